/* See sweep.h. */
#include "search/sweep.h"

#include "base/clock.h"
#include "base/memory.h"
#include "search/quantise.h"
#include "search/rows.h"

enum {
    ALL = 65535,       /* the highest threshold: every sum is within it */
    SPARE = 1024,      /* additional entries of the list */
    FETCH_CODE = 12,   /* while verifying: prefetch the code of the entry this far ahead */
    FETCH_ROW = 6,     /* while verifying: prefetch the group or id of the entry this far ahead */
    SAMPLE_AT = 32,    /* blocks before the first sample; the threshold falls meanwhile */
    MIN_BLOCKS = 2048, /* in shorter passes, choosing a mode takes longer than it saves */
};

/* The stages of choosing a mode. They are repeated, because the threshold falls. The choice affects how long a sweep
 * takes, never its hits. */
enum stage { CRUISE, SAMPLE, TIME_STREAM, TIME_SKIP };
enum { SAMPLE_BLOCKS = 32, TIMED_BLOCKS = 64 };

/* The largest sum that a code within the limit can have. The multiplications here and in quantise() err by a factor of
 * at most 1 + 2^-52 each. The factor 1 + 2^-40 makes up for them. */
static uint16_t limit_sum(const struct sweep *s, uint64_t limit) {
    if (limit >= NO_LIMIT) return ALL;
    double sum = s->exact ? (double)limit : (double)limit * s->scale * (1 + 0x1p-40) + 1;
    return sum >= ALL ? ALL : (uint16_t)sum;
}

/* A lower bound on the sums of the codes that come after the collector's `after`. Rounding takes less than 1 from each
 * scaled cost. If costs were capped, nothing is known, so the bound is 0. */
static uint16_t least_sum(const struct sweep *s, const struct collector *c) {
    if (!c->resumed || s->capped) return 0;
    double carry = (double)distance_carry(s->distance), steps = (double)c->after.steps * (1 - 0x1p-40) - carry;
    double sum = steps * s->scale - (double)s->index->planes - 1;
    return sum <= 0 ? 0 : sum >= ALL ? ALL : (uint16_t)sum;
}

int sweep_init(struct sweep *s, const wh_index *index, const struct kernels *kernels, const struct distance *distance,
               const uint8_t *optimum, const uint64_t *delta) {
    s->index = index;
    s->distance = distance;
    s->kernels = kernels;
    s->optimum = optimum;
    s->delta = delta;
    size_t quads = s->quads = quads_of(index->meta.bits);
    s->prepared = wh_calloc(quads, (2 + 2 * SWEEP_MODES) * sizeof(uint32_t) + (1 + SWEEP_MODES) * SWEEP_LUT_BYTES);
    if (!s->prepared) return WH_MEMORY;
    s->left = s->prepared;
    s->heavy_at = s->left + quads;
    uint32_t *numbers = s->heavy_at + quads;
    s->heavy_lut = (uint8_t *)(numbers + 2 * SWEEP_MODES * quads);
    for (size_t m = 0; m < SWEEP_MODES; m++) {
        s->mode[m].order = numbers + 2 * m * quads;
        s->mode[m].stops = s->mode[m].order + quads;
        s->mode[m].lut = s->heavy_lut + (1 + m) * quads * SWEEP_LUT_BYTES;
    }
    sweep_fill_look_ups(s);
    return WH_OK;
}

void sweep_free_list(struct sweep *s) {
    wh_free(s->allocated);
    s->allocated = NULL;
    s->room = s->count = 0;
}

void sweep_free(struct sweep *s) {
    sweep_free_list(s);
    wh_free(s->prepared);
    s->prepared = NULL;
}

/* Set how long the list may get before it is cut back. */
static void set_trigger(struct sweep *s) {
    size_t base = s->count > s->want ? s->count : s->want, most = s->room - WH_BLOCK_CODES;
    s->trigger = 2 * base + 2 * WH_BLOCK_CODES;
    if (s->trigger > most) s->trigger = most;
}

static void start_pass(struct sweep *s, uint16_t threshold) {
    s->threshold = threshold;
    s->next = s->count = s->verified = 0;
    s->verifying = s->sampled = 0;
    set_trigger(s);
    s->best = SWEEP_STREAM;
    s->stage = CRUISE;
    s->stage_end = s->index->blocks_count < MIN_BLOCKS ? SIZE_MAX : SAMPLE_AT;
}

int sweep_allocate_list(struct sweep *s, size_t entries) {
    size_t room = 2 * s->want + SPARE;
    if (room < entries + WH_BLOCK_CODES) room = entries + WH_BLOCK_CODES;
    if (room <= s->room) return WH_OK;
    void *allocated = wh_malloc(sweep_list_bytes(room));
    if (!allocated) return WH_MEMORY;
    sweep_free_list(s);
    s->allocated = allocated;
    s->room = room;
    s->rows = s->allocated;
    s->other_rows = s->rows + room;
    s->sums = (uint16_t *)(s->other_rows + room);
    s->other_sums = s->sums + room;
    return WH_OK;
}

int sweep_start(struct sweep *s, const struct collector *c) {
    size_t want = c->capacity - c->proven, rows = s->index->meta.rows;
    if (c->dead || c->resumed) want += want / 2 + 8;
    s->want = want < rows ? want : rows;
    int status = sweep_allocate_list(s, 0);
    if (status != WH_OK) return status;
    s->fixed = s->done = 0;
    s->least = least_sum(s, c);
    start_pass(s, limit_sum(s, c->limit));
    sweep_sample(s);
    return WH_OK;
}

/* A sum that at least n entries of the list do not exceed. A histogram of 256 bins finds it, so it may be too high, but
 * by less than a bin. Precondition: the list has n entries. */
static uint32_t about_nth_sum(const struct sweep *s, size_t n) {
    /* Two histograms take turns, because successive entries often fall into the same bin. */
    uint32_t bins[2][257] = {{0}}, bin = 0, shift = 0;
    while (s->threshold >> shift > 255) shift++;
    for (size_t i = 0; i < s->count; i++)
        bins[i & 1][(s->sums[i] < s->threshold ? s->sums[i] : s->threshold) >> shift]++;
    for (size_t below = 0; bin < 255; bin++)
        if ((below += bins[0][bin] + bins[1][bin]) >= n) break;
    return ((bin + 1) << shift) - 1;
}

void sweep_cut_back(struct sweep *s, const struct collector *c) {
    uint32_t threshold = limit_sum(s, c->limit), kept = 0;
    if (threshold > s->threshold) threshold = s->threshold;
    if (!s->fixed && s->count >= s->want) {
        uint32_t sum = about_nth_sum(s, s->want) + s->margin;
        if (sum < threshold) threshold = sum;
    }
    s->threshold = (uint16_t)threshold;
    for (size_t i = 0; i < s->count; i++) {
        s->rows[kept] = s->rows[i];
        s->sums[kept] = s->sums[i];
        kept += s->sums[i] <= threshold && s->sums[i] >= s->least;
    }
    s->count = kept;
    set_trigger(s);
}

/* Sort the list by sum: a radix sort by the low byte, then by the high byte. */
static void sort(struct sweep *s) {
    for (int shift = 0; shift < 16; shift += 8) {
        size_t at[257] = {0};
        for (size_t i = 0; i < s->count; i++) at[(s->sums[i] >> shift & 255) + 1]++;
        for (int b = 0; b < 256; b++) at[b + 1] += at[b];
        for (size_t i = 0; i < s->count; i++) {
            size_t to = at[s->sums[i] >> shift & 255]++;
            s->other_rows[to] = s->rows[i];
            s->other_sums[to] = s->sums[i];
        }
        uint32_t *rows = s->rows;
        uint16_t *sums = s->sums;
        s->rows = s->other_rows;
        s->sums = s->other_sums;
        s->other_rows = rows;
        s->other_sums = sums;
    }
}

static void start_verifying(struct sweep *s, const struct collector *c) {
    sweep_cut_back(s, c);
    sort(s);
    s->counts.candidates += s->count;
    s->verified = 0;
    s->verifying = 1;
}

/* Offer one row. Returns 0 if the index is corrupt. */
static inline int offer(const struct sweep *s, struct collector *c, uint32_t row, uint64_t carry) {
    uint8_t code[CODE_ROOM];
    copy_code(s->index, row, code);
    uint64_t steps = distance_of(s->distance, code);
    if (!collect_may_keep(c, steps, carry)) return 1;
    return offer_row(s->index, c, row, distance_exact(s->distance, code, steps));
}

/* Verify up to `most` entries, in order of their sums. */
static int verify(struct sweep *s, struct collector *c, uint64_t most) {
    const wh_index *index = s->index;
    uint64_t carry = distance_carry(s->distance), limit = UINT64_MAX;
    uint16_t beyond = ALL;
    for (; s->verified < s->count && most > 0; s->verified++, most--) {
        size_t i = s->verified;
        if (c->limit != limit) beyond = limit_sum(s, limit = c->limit);
        if (s->sums[i] > beyond) { /* all further entries are beyond it, too */
            s->verified = s->count;
            return 1;
        }
        if (i + FETCH_CODE < s->count) fetch_code(index, s->rows[i + FETCH_CODE]);
        if (i + FETCH_ROW < s->count) fetch_group(index, s->rows[i + FETCH_ROW]);
        s->counts.verified++;
        if (!offer(s, c, s->rows[i], carry)) return 0;
    }
    return 1;
}

/* Call this when all blocks have been swept and all listed codes verified. If a hit may be missing, it starts another
 * pass. */
static void end_pass(struct sweep *s, struct collector *c) {
    uint16_t needed = limit_sum(s, c->limit);
    if (needed <= s->threshold) {
        s->done = 1;
        return;
    }
    collect_restart(c);
    s->fixed = !s->sampled || needed < ALL;
    start_pass(s, needed);
}

/* Choose after which quads SWEEP_SKIP checks whether to leave a block. `left` says after which quads the sampled blocks
 * could be left. Choose the one or two stops with which the fewest quads are expected to be read. Returns 0 if they
 * would not pay. */
static int choose_stops(struct sweep *s) {
    const double price = 0.2;                    /* of a check, in quads */
    const double most = (double)s->quads - 0.25; /* the checks must save at least this much */
    size_t step = s->quads / 32 + 1, first = 0, second = 0;
    double best = most, gone = 0,
           stay[WH_MAX_BITS / 4 / SWEEP_QUAD_PLANES]; /* per quad: share of blocks not left by then */
    for (size_t q = 0; q < s->quads; q++) stay[q] = 1 - (gone += s->left[q]) / SAMPLE_BLOCKS;
    for (size_t a = 0; a + 1 < s->quads; a += step)
        for (size_t b = a; b + 1 < s->quads; b += step) { /* a == b: one stop */
            double cost = (double)(a + 1) + price + stay[b] * (double)(s->quads - b - 1);
            if (b > a) cost += stay[a] * ((double)(b - a) + price);
            if (cost >= best) continue;
            best = cost;
            first = a;
            second = b;
        }
    uint32_t *stop = s->mode[SWEEP_SKIP].stops;
    if (best < most) {
        *stop++ = (uint32_t)first + 1;
        if (second > first) *stop++ = (uint32_t)second + 1;
    }
    *stop = (uint32_t)s->quads;
    return best < most;
}

static void enter(struct sweep *s, int stage) {
    s->stage = stage;
    switch (stage) {
    case SAMPLE:
        if (!s->ordered) sweep_order_quads(s);
        memset(s->left, 0, s->quads * sizeof *s->left);
        for (size_t q = 0; q < s->quads; q++) s->mode[SWEEP_SKIP].stops[q] = (uint32_t)q + 1;
        s->stage_end = s->next + SAMPLE_BLOCKS;
        break;
    case CRUISE:
        s->stage_end = 3 * s->next;
        break;
    default:
        s->stage_end = s->next + TIMED_BLOCKS;
        s->stage_nanoseconds[stage == TIME_SKIP] = 0;
    }
}

static void next_stage(struct sweep *s) {
    switch (s->stage) {
    case CRUISE:
        enter(s, SAMPLE);
        break;
    case SAMPLE:
        s->best = SWEEP_STREAM;
        enter(s, choose_stops(s) ? TIME_STREAM : CRUISE);
        break;
    case TIME_STREAM:
        enter(s, TIME_SKIP);
        break;
    default:
        s->best = s->stage_nanoseconds[SWEEP_SKIP] < s->stage_nanoseconds[SWEEP_STREAM] ? SWEEP_SKIP : SWEEP_STREAM;
        enter(s, CRUISE);
    }
}

static void run_kernel(struct sweep *s, size_t last) {
    const wh_index *index = s->index;
    if (s->next >= s->stage_end) next_stage(s);
    static const int modes[] = {[SAMPLE] = SWEEP_SKIP, [TIME_STREAM] = SWEEP_STREAM, [TIME_SKIP] = SWEEP_SKIP};
    int mode = s->stage == CRUISE ? s->best : modes[s->stage];

    struct sweep_job job = sweep_job(s, mode, s->next, last < s->stage_end ? last : s->stage_end);
    int timed = s->stage == TIME_STREAM || s->stage == TIME_SKIP;
    uint64_t start = timed ? clock_nanoseconds() : 0;
    size_t next = s->kernels->sweep(&job);
    if (timed) s->stage_nanoseconds[mode] += clock_nanoseconds() - start;
    s->counts.blocks += next - s->next;
    s->counts.planes += job.planes_read;
    s->next = next;
    size_t first = s->count;
    s->count = job.count;
    if (next == index->blocks_count && index->meta.rows % WH_BLOCK_CODES) { /* drop the padding of the last block */
        size_t kept = first;
        for (size_t i = first; i < job.count; i++) {
            s->rows[kept] = s->rows[i];
            s->sums[kept] = s->sums[i];
            kept += s->rows[i] < index->meta.rows;
        }
        s->count = kept;
    }
}

int sweep_list(struct sweep *s, const struct collector *c, size_t last) {
    run_kernel(s, last);
    if (s->count <= s->trigger) return 1;
    sweep_cut_back(s, c);
    return s->count + WH_BLOCK_CODES <= s->trigger;
}

int sweep_run(struct sweep *s, struct collector *c, size_t last, uint64_t most) {
    const size_t blocks = s->index->blocks_count;
    if (last > blocks) last = blocks;
    while (!s->done) {
        if (s->verifying) {
            size_t before = s->verified;
            if (!verify(s, c, most)) return WH_CORRUPT;
            most -= s->verified - before < most ? s->verified - before : most;
            if (s->verified < s->count) return WH_OK;
            s->verifying = 0;
            s->count = 0;
            set_trigger(s);
            if (s->next == blocks) {
                end_pass(s, c);
                return WH_OK;
            }
        }
        if (s->next >= last && s->next < blocks) return WH_OK;
        if (s->next == blocks) { /* all codes are listed already (sweep_list_together) */
            start_verifying(s, c);
            continue;
        }
        if (!sweep_list(s, c, last) || s->next == blocks) start_verifying(s, c);
    }
    return WH_OK;
}

int sweep_guess(const struct sweep *s, struct collector *copy) {
    for (size_t i = s->verifying ? s->verified : 0; i < s->count; i++)
        if (!offer(s, copy, s->rows[i], distance_carry(s->distance))) return WH_CORRUPT;
    return WH_OK;
}
