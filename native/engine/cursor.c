/* The cursor: rounds of probing or sweeping, and handing out what is proven.
 *
 * A round collects the next `round` hits after the last one handed out. A search for k <= 65,536 hits is one round;
 * a longer one, or one without end, is several, each a multiple of the one before, so that memory stays bounded and
 * the work repeated stays below the work done.
 *
 *      PROBE --(bound > limit)--------------------> PROVEN --(all handed out)--> next round, or END
 *        \--(planner, or queues full)--> SWEEP ----^
 */
#include "cursor.h"

#include "memory.h"

#include <math.h>
#include <time.h>

enum { MOST_KEPT = 65536, FIRST_ROUND = 256, ROUND_GROWTH = 4, SLICE_PLANES = 16384, SLICE_EFFORT = 4096 };

#define NO_RADIUS (UINT64_MAX - 1) /* below the bound that "everything was met" has */

uint64_t clock_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* -- Between distances and cost units ---------------------------------------------------------------------------- */

static double distance_from_units(const wh_cursor *c, uint64_t units) {
    return ldexp((double)(c->floor + (int64_t)units), -c->exponent);
}

/* The largest number of units whose distance is at most x, counted from the floor; -1 if even the floor's is more. */
static int64_t units_within(const wh_cursor *c, double x) {
    double scaled = floor(ldexp(x, c->exponent));
    if (scaled == 0 && x < 0) scaled = -1; /* x vanished in the scaling */
    if (scaled < (double)c->floor) return -1;
    if (scaled > 0x1p60) return INT64_MAX;
    return (int64_t)scaled - c->floor;
}

/* -- Rounds ------------------------------------------------------------------------------------------------------ */

static int start_round(wh_cursor *c, int resumed) {
    size_t capacity = c->round;
    if (capacity > c->wanted) capacity = (size_t)c->wanted;
    if (capacity > c->index->meta.n) capacity = (size_t)c->index->meta.n;
    if (capacity > c->room) {
        struct hit *hits = wh_realloc(c->hits, sizeof *hits * capacity);
        if (!hits) return WH_MEMORY;
        c->hits = hits;
        c->room = capacity;
    }
    collect_start(&c->collector, c->hits, capacity, c->radius, resumed, c->last);
    c->stats.rounds++;
    sweep_restart(&c->sweep);
    if (c->requested == WH_SWEEP || (c->requested == WH_AUTO && c->index->meta.tables == 0)) {
        c->phase = PHASE_SWEEP;
        plan_start(&c->plan, c->index, c->plan.batch, clock_nanoseconds(), c->sweep.planes_read);
        return WH_OK;
    }
    probe_free(&c->probe);
    int status = probe_init(&c->probe, c->index, &c->distance, c->optimum, c->delta);
    plan_start(&c->plan, c->index, c->plan.batch, clock_nanoseconds(), c->sweep.planes_read);
    c->phase = PHASE_PROBE;
    return status;
}

static void add_probe_stats(const wh_cursor *c, struct wh_stats *stats) {
    stats->buckets += c->probe.buckets;
    stats->buckets_nonempty += c->probe.nonempty;
    stats->candidates += c->probe.candidates;
    stats->verified += c->probe.candidates;
}

static void end_probe(wh_cursor *c) {
    add_probe_stats(c, &c->stats);
    probe_free(&c->probe);
    c->probe = (struct probe){0};
}

static void round_is_proven(wh_cursor *c) {
    collect_prove(&c->collector, UINT64_MAX);
    c->phase = PHASE_PROVEN;
    /* What was not kept lies beyond the last hit kept if the round is full, else beyond the radius, if anywhere. */
    const struct collector *k = &c->collector;
    uint64_t bound = UINT64_MAX;
    if (collect_full(k)) bound = k->hits[k->proven - 1].distance;
    else if (c->radius != NO_RADIUS) bound = c->radius + 1;
    if (bound > c->bound) c->bound = bound;
}

static int work_probe(wh_cursor *c) {
    struct collector *k = &c->collector;
    uint64_t effort = c->requested == WH_AUTO && c->plan.slice < SLICE_EFFORT ? c->plan.slice : SLICE_EFFORT;
    enum probe_result result = probe_run(&c->probe, k, effort);
    switch (result) {
    case PROBE_DONE:
        if (c->requested == WH_AUTO) plan_probed(&c->plan, &c->probe, clock_nanoseconds());
        end_probe(c);
        c->stats.plan = WH_PROBE;
        round_is_proven(c);
        return WH_OK;
    case PROBE_FAILED_MEMORY:
        return WH_MEMORY;
    case PROBE_FAILED_CORRUPT:
        return WH_CORRUPT;
    case PROBE_CROWDED:
        break;
    case PROBE_PAUSED:
        collect_prove(k, c->probe.bound);
        if (c->probe.bound > c->bound) c->bound = c->probe.bound;
        if (c->requested == WH_PROBE) return WH_OK;
        c->plan.done += effort;
        if (c->plan.done < c->plan.slice) return WH_OK;
        c->plan.done = 0;
        if (!plan_prefers_sweep(&c->plan, &c->probe, &c->sweep, k->capacity, k->limit, clock_nanoseconds()))
            return WH_OK;
        break;
    }
    end_probe(c);
    collect_restart(k);
    c->stats.switched = 1;
    c->phase = PHASE_SWEEP;
    plan_start(&c->plan, c->index, c->plan.batch, clock_nanoseconds(), c->sweep.planes_read);
    return WH_OK;
}

static int work_sweep(wh_cursor *c) {
    int status = sweep_run(&c->sweep, &c->collector, c->sweep.next + SLICE_PLANES / c->index->planes + 1, 0);
    if (status != WH_OK) return status;
    if (c->sweep.next < c->index->blocks_count) return WH_OK;
    plan_learn(c->index, 0, c->sweep.planes_read - c->plan.planes_before, clock_nanoseconds() - c->plan.started);
    cursor_swept(c);
    return WH_OK;
}

void cursor_swept(wh_cursor *c) {
    c->stats.plan = WH_SWEEP;
    plan_learn_margin(&c->sweep, c->sweep.planes_read - c->plan.planes_before, c->collector.limit);
    round_is_proven(c);
}

/* The round's hits are all handed out: is there a next one? */
static int next_round(wh_cursor *c) {
    if (!collect_full(&c->collector) || c->wanted == 0 || c->handed_out >= c->index->meta.n) {
        c->phase = PHASE_END;
        return WH_OK;
    }
    c->round = c->round * ROUND_GROWTH < MOST_KEPT ? c->round * ROUND_GROWTH : MOST_KEPT;
    return start_round(c, 1);
}

int cursor_work(wh_cursor *c) {
    switch (c->phase) {
    case PHASE_PROBE:
        return work_probe(c);
    case PHASE_SWEEP:
        return work_sweep(c);
    case PHASE_PROVEN:
        return next_round(c);
    default:
        return WH_OK;
    }
}

/* -- The public face --------------------------------------------------------------------------------------------- */

int cursor_open(const wh_index *index, const struct wh_search *search, int batch, wh_cursor **out) {
    if (search->plan > WH_SWEEP || isnan(search->radius) || (search->resumed && isnan(search->after_distance)))
        return WH_ARGUMENT;
    if (search->plan == WH_PROBE && index->meta.tables == 0) return WH_NO_TABLES;
    uint32_t bits = index->meta.bits;
    wh_cursor *c = wh_calloc(1, sizeof *c);
    if (!c) return WH_MEMORY;
    int status = WH_MEMORY;
    c->index = index;
    c->optimum = wh_malloc(index->code_bytes);
    c->delta = wh_malloc(sizeof *c->delta * bits);
    if (!c->optimum || !c->delta) goto fail;
    memcpy(c->optimum, search->optimum, index->code_bytes);
    memcpy(c->delta, search->delta, sizeof *c->delta * bits);
    c->floor = search->floor;
    c->exponent = search->exponent;
    c->requested = search->plan;
    c->wanted = search->k;
    c->plan.batch = batch;
    c->round = search->k == UINT64_MAX ? FIRST_ROUND : MOST_KEPT;
    c->stats.plan = search->plan == WH_SWEEP || index->meta.tables == 0 ? WH_SWEEP : WH_PROBE;
    int64_t radius = units_within(c, search->radius);
    c->radius = radius == INT64_MAX ? NO_RADIUS : (uint64_t)radius;
    int resumed = 0;
    if (search->resumed) {
        int64_t after = units_within(c, search->after_distance);
        resumed = after >= 0;
        /* Between two multiples of a unit there is no hit: everything up to the lower one is over. */
        int exact = resumed && after != INT64_MAX && distance_from_units(c, (uint64_t)after) == search->after_distance;
        c->last = (struct hit){(uint64_t)after, exact ? search->after_id : UINT64_MAX};
        if (resumed && after != INT64_MAX) c->bound = (uint64_t)after;
    }
    if (c->wanted == 0 || index->meta.n == 0 || radius < 0) {
        c->phase = PHASE_END;
        if (index->meta.n == 0) c->bound = UINT64_MAX;
        *out = c;
        return WH_OK;
    }
    if ((status = distance_init(&c->distance, bits, c->optimum, c->delta)) != WH_OK) goto fail;
    if ((status = sweep_init(&c->sweep, index, &c->distance, c->optimum, c->delta)) != WH_OK) goto fail;
    if ((status = start_round(c, resumed)) != WH_OK) goto fail;
    *out = c;
    return WH_OK;
fail:
    wh_cursor_close(c);
    return status;
}

int wh_cursor_open(const wh_index *index, const struct wh_search *search, wh_cursor **cursor) {
    uint64_t start = clock_nanoseconds();
    int status = cursor_open(index, search, 0, cursor);
    if (status == WH_OK) (*cursor)->stats.nanoseconds = clock_nanoseconds() - start;
    return status;
}

void wh_cursor_close(wh_cursor *c) {
    if (!c) return;
    wh_free(c->optimum);
    wh_free(c->delta);
    wh_free(c->hits);
    probe_free(&c->probe);
    sweep_free(&c->sweep);
    distance_free(&c->distance);
    wh_free(c);
}

/* Codes compared so far, for the budget: a sweep compares all codes of its blocks. */
static uint64_t compared(const wh_cursor *c) {
    return c->stats.candidates + c->probe.candidates + c->sweep.blocks * WH_BLOCK_CODES;
}

static size_t hand_out(wh_cursor *c, size_t capacity, uint64_t *ids, double *distances) {
    struct collector *k = &c->collector;
    size_t count = 0;
    for (; count < capacity && k->sent < k->proven && c->wanted > 0; count++) {
        struct hit hit = k->hits[k->sent++];
        ids[count] = hit.id;
        distances[count] = distance_from_units(c, hit.distance);
        c->last = hit;
        c->handed_out++;
        if (c->wanted != UINT64_MAX) c->wanted--;
    }
    return count;
}

int wh_cursor_next(wh_cursor *c, size_t capacity, const struct wh_budget *budget, int eager, uint64_t *ids,
                   double *distances, size_t *count, int *stop) {
    uint64_t start = clock_nanoseconds(), compared_before = compared(c);
    size_t found = 0;
    int status = c->failed, worked = 0;
    *stop = WH_MORE;
    while (status == WH_OK) {
        found += hand_out(c, capacity - found, ids + found, distances + found);
        if (c->phase == PHASE_END || c->wanted == 0 || c->handed_out == c->index->meta.n) {
            c->phase = PHASE_END;
            *stop = WH_EXHAUSTED;
            break;
        }
        if (found == capacity || (eager && found)) break;
        if (atomic_load_explicit(&c->cancelled, memory_order_relaxed)) {
            *stop = WH_CANCELLED;
            break;
        }
        if (budget && worked &&
            ((budget->candidates && compared(c) - compared_before >= budget->candidates) ||
             (budget->nanoseconds && clock_nanoseconds() - start >= budget->nanoseconds))) {
            *stop = WH_BUDGET;
            break;
        }
        status = cursor_work(c);
        worked = 1;
    }
    c->failed = status;
    c->stats.nanoseconds += clock_nanoseconds() - start;
    *count = found;
    return status;
}

int wh_cursor_guess(const wh_cursor *c, size_t capacity, uint64_t *ids, double *distances, size_t *count) {
    const struct collector *k = &c->collector;
    size_t proven = k->proven - k->sent, kept = proven + k->count;
    *count = 0;
    if (c->phase == PHASE_END || kept == 0) return WH_OK;
    struct hit *hits = wh_malloc(sizeof *hits * kept);
    if (!hits) return WH_MEMORY;
    memcpy(hits, k->hits + k->sent, sizeof *hits * kept);
    hits_sort(hits, kept);
    for (; *count < kept && *count < capacity && *count < c->wanted; ++*count) {
        ids[*count] = hits[*count].id;
        distances[*count] = distance_from_units(c, hits[*count].distance);
    }
    wh_free(hits);
    return WH_OK;
}

double wh_cursor_bound(const wh_cursor *c) {
    const struct collector *k = &c->collector;
    if (c->phase != PHASE_END && k->sent < k->proven) return distance_from_units(c, k->hits[k->sent].distance);
    uint64_t bound = c->bound;
    if (c->handed_out && c->last.distance > bound) bound = c->last.distance;
    if (c->handed_out >= c->index->meta.n || bound >= NO_RADIUS) return INFINITY;
    return distance_from_units(c, bound);
}

void wh_cursor_cancel(wh_cursor *c) { atomic_store_explicit(&c->cancelled, 1, memory_order_relaxed); }

void wh_cursor_stats(const wh_cursor *c, struct wh_stats *stats) {
    *stats = c->stats;
    add_probe_stats(c, stats);
    stats->blocks = c->sweep.blocks;
    stats->planes = c->sweep.planes_read;
    stats->candidates += c->sweep.candidates;
    stats->verified += c->sweep.verified;
    if (c->phase == PHASE_SWEEP) stats->plan = WH_SWEEP;
}
