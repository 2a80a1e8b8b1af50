/* See probe.h. */
#include "search/probe.h"

#include "base/memory.h"
#include "search/rows.h"

enum { BUCKET_EFFORT = 48, FETCH_AHEAD = 16, FETCH_LINES = 16 };

static int key_before(struct probe_key a, struct probe_key b) {
    return a.cost < b.cost || (a.cost == b.cost && a.mask < b.mask);
}

/* -- Alg. 1: the keys of one table by increasing cost ------------------------------------------------------------ */

static void queue_sift_down(struct probe_key *queue, uint32_t count, uint32_t at) {
    struct probe_key key = queue[at];
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && key_before(queue[child + 1], queue[child])) child++;
        if (!key_before(queue[child], key)) break;
        queue[at] = queue[child];
    }
    queue[at] = key;
}

static void queue_sift_up(struct probe_key *queue, uint32_t at) {
    struct probe_key key = queue[at];
    for (uint32_t parent; at > 0; at = parent) {
        parent = (at - 1) / 2;
        if (!key_before(key, queue[parent])) break;
        queue[at] = queue[parent];
    }
    queue[at] = key;
}

static int queue_grow(struct probe_table *table) {
    uint32_t room = table->room * 2;
    struct probe_key *queue = wh_realloc(table->queue, sizeof *queue * room);
    if (!queue) return 0;
    table->queue = queue;
    table->room = room;
    return 1;
}

/* Pop the cheapest key and push its successors. The queue must not be empty and must have room for one more key. */
static struct probe_key queue_next(struct probe_table *table) {
    struct probe_key top = table->queue[0];
    uint32_t next = top.mask ? 32 - (uint32_t)__builtin_clz(top.mask) : 0; /* rank after the highest changed rank */
    if (next == table->length) {                                           /* the last bit is changed: no successors */
        table->queue[0] = table->queue[--table->queued];
        queue_sift_down(table->queue, table->queued, 0);
        return top;
    }
    struct probe_key changed = {top.cost + table->delta[next], top.mask | 1u << next, top.key ^ table->bit[next]};
    table->queue[0] = changed; /* operation 1 */
    queue_sift_down(table->queue, table->queued, 0);
    if (top.mask) { /* operation 2; the optimum has no changed bit to move */
        struct probe_key moved = {changed.cost - table->delta[next - 1], changed.mask ^ 1u << (next - 1),
                                  changed.key ^ table->bit[next - 1]};
        table->queue[table->queued] = moved;
        queue_sift_up(table->queue, table->queued++);
    }
    return top;
}

/* The first key of the table that has not been searched. Returns 0 if there is none. */
static int frontier(const struct probe_table *table, struct probe_key *key) {
    if (table->ahead_count) *key = table->ahead[0].key;
    else if (table->queued) *key = table->queue[0];
    else return 0;
    return 1;
}

int probe_init(struct probe *p, const wh_index *index, const struct kernels *kernels, const struct distance *distance,
               const uint8_t *optimum, const uint64_t *delta) {
    uint32_t m = index->meta.tables;
    *p = (struct probe){.index = index, .distance = distance, .optimum = optimum, .queued = m};
    p->tables = wh_calloc(m, sizeof *p->tables);
    if (!p->tables) return WH_MEMORY;
    p->copy = kernels->copy;
    p->code_room = index->code_bytes + 8;
    if (!index->entries && !(p->codes = wh_malloc(SIEVE_CODES * p->code_room))) return WH_MEMORY;
    if (sieve_supports(distance->code_bytes, kernels->sieve)) {
        p->sieve = wh_calloc(1, sizeof *p->sieve);
        if (!p->sieve) return WH_MEMORY;
        sieve_init(p->sieve, distance, kernels->sieve);
    }
    uint8_t padded[WH_MAX_BITS / 8 + 8] = {0}; /* substring_key reads 8 bytes */
    memcpy(padded, optimum, index->code_bytes);
    for (uint32_t t = 0; t < m; t++) {
        const struct substring *s = &index->substring[t];
        struct probe_table *table = &p->tables[t];
        table->length = s->length;
        table->optimum = substring_key(padded, s);
        for (uint32_t i = 0; i < s->length; i++) { /* rank the bits by increasing delta */
            uint64_t d = delta[s->first + i];
            uint32_t at = i;
            for (; at > 0 && table->delta[at - 1] > d; at--) {
                table->delta[at] = table->delta[at - 1];
                table->bit[at] = table->bit[at - 1];
            }
            table->delta[at] = d;
            table->bit[at] = 1u << i;
        }
        table->room = 64;
        table->queue = wh_malloc(sizeof *table->queue * table->room);
        if (!table->queue) return WH_MEMORY;
        table->queue[table->queued++] = (struct probe_key){0, 0, table->optimum};
    }
    return WH_OK;
}

void probe_free(struct probe *p) {
    for (uint32_t t = 0; p->tables && t < p->index->meta.tables; t++) wh_free(p->tables[t].queue);
    wh_free(p->tables);
    wh_free(p->sieve);
    wh_free(p->codes);
    p->tables = NULL;
    p->sieve = NULL;
    p->codes = NULL;
}

/* -- Alg. 2: searching buckets ----------------------------------------------------------------------------------- */

/* The mask, by rank, of the bits in which a key differs from the optimum. */
static uint32_t mask_of(const struct probe_table *table, uint32_t key) {
    uint32_t changed = key ^ table->optimum, mask = 0;
    for (uint32_t r = 0; r < table->length; r++) mask |= (uint32_t)((changed & table->bit[r]) != 0) << r;
    return mask;
}

/* The cost of a code's substring. If a nibble extends beyond the substring, its other bits are set to the optimum, so
 * that they cost nothing. */
static uint64_t substring_cost(const struct probe *p, const uint8_t *code, uint32_t t) {
    const struct substring *s = &p->index->substring[t];
    uint32_t end = s->first + s->length;
    uint64_t cost = 0;
    for (uint32_t plane = s->first / 4; plane * 4 < end; plane++) {
        const uint64_t *table = p->distance->nibble + (size_t)plane * 16;
        uint32_t shift = 4 * (plane & 1), value = code[plane >> 1] >> shift & 15, within = 15;
        if (plane * 4 < s->first) within &= 15u << (s->first & 3);
        if (plane * 4 + 4 > end) within &= (1u << (end & 3)) - 1;
        if (within != 15) value = (value & within) | (p->optimum[plane >> 1] >> shift & ~within & 15);
        cost += table[value];
    }
    return cost;
}

/* Whether table t has already found this code. It has if the code's substring precedes the table's frontier. */
static int already_met(const struct probe *p, const uint8_t *code, uint32_t t) {
    struct probe_key first;
    if (!frontier(&p->tables[t], &first)) return 1;
    uint64_t cost = substring_cost(p, code, t);
    if (cost != first.cost) return cost < first.cost;
    return mask_of(&p->tables[t], substring_key(code, &p->index->substring[t])) < first.mask;
}

/* Offer a row that is within the limit and was found in table t under this key, unless it was found before. Returns 0
 * if the index is corrupt. */
static int consider(struct probe *p, struct collector *c, uint32_t t, uint32_t key, const uint8_t *code, uint32_t row,
                    uint64_t steps) {
    const wh_index *index = p->index;
    if (substring_key(code, &index->substring[t]) != key) return 1; /* hash collision */
    for (uint32_t other = 0; other < index->meta.tables; other++)
        if (other != t && already_met(p, code, other)) return 1;
    return offer_row(index, c, row, distance_exact(p->distance, code, steps));
}

/* A row within the limit. */
struct found {
    const uint8_t *code;
    uint64_t steps;
    uint32_t row;
};

/* Call consider() for several rows. Three passes, so that the prefetches of all rows overlap. */
static int consider_all(struct probe *p, struct collector *c, uint32_t t, uint32_t key, const struct found *found,
                        size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (found[i].row >= p->index->meta.rows) return 0;
        fetch_group(p->index, found[i].row);
    }
    for (size_t i = 0; i < count; i++) fetch_ids(p->index, found[i].row);
    for (size_t i = 0; i < count; i++)
        if (found[i].steps <= c->limit && !consider(p, c, t, key, found[i].code, found[i].row, found[i].steps))
            return 0;
    return 1;
}

/* Search the postings [start, stop) of a fast bucket: at most SIEVE_CODES of them. Returns 0 if the index is corrupt.
 * */
static int search_entries(struct probe *p, struct collector *c, uint32_t t, uint32_t key, uint64_t start,
                          uint64_t stop) {
    const wh_index *index = p->index;
    uint64_t bytes = index->code_bytes, all = (uint64_t)index->meta.rows * index->meta.tables;
    const uint8_t *entry = index->entries + start * bytes;
    size_t count = (size_t)(stop - start), left = count, within = 0;
    struct found found[SIEVE_CODES];
    uint8_t in[SIEVE_CODES];
    int sieved = sieve_prepare(p->sieve, c->limit, count);
    if (sieved && bytes == 8 && start + SIEVE_CODES <= all) {
        left = sieve_run_in_place(p->sieve, entry, count, in);
    } else if (sieved) {
        for (size_t i = 0; i < count; i++) sieve_put(p->sieve, i, entry + i * bytes);
        left = sieve_run(p->sieve, count, in);
    }
    uint64_t carry = distance_carry(p->distance);
    p->counts.verified += left;
    for (size_t i = 0; i < left; i++) {
        uint64_t at = sieved ? in[i] : i;
        const uint8_t *code = entry + at * bytes;
        uint64_t steps = distance_of(p->distance, code);
        if (!collect_may_keep(c, steps, carry)) continue;
        found[within++] = (struct found){code, steps, posting_at(index, start + at)};
    }
    return consider_all(p, c, t, key, found, within);
}

/* Like search_entries, for a compact bucket, which has row numbers only. */
static int search_rows(struct probe *p, struct collector *c, uint32_t t, uint32_t key, uint64_t start, uint64_t stop) {
    const wh_index *index = p->index;
    size_t count = (size_t)(stop - start), left = count, within = 0, room = p->code_room;
    struct found found[SIEVE_CODES];
    uint32_t rows[SIEVE_CODES];
    uint8_t in[SIEVE_CODES];
    for (size_t i = 0; i < count; i++) {
        rows[i] = posting_at(index, start + i);
        if (rows[i] >= index->meta.rows) return 0;
        fetch_code(index, rows[i]);
    }
    if (p->copy) p->copy(index->codes, quads_of(index->meta.bits), rows, count, p->codes, room);
    else
        for (size_t i = 0; i < count; i++) copy_code(index, rows[i], p->codes + i * room);
    int sieved = sieve_prepare(p->sieve, c->limit, count);
    if (sieved) {
        for (size_t i = 0; i < count; i++) sieve_put(p->sieve, i, p->codes + i * room);
        left = sieve_run(p->sieve, count, in);
    }
    uint64_t carry = distance_carry(p->distance);
    p->counts.verified += left;
    for (size_t i = 0; i < left; i++) {
        size_t at = sieved ? in[i] : i;
        const uint8_t *code = p->codes + at * room;
        uint64_t steps = distance_of(p->distance, code);
        if (collect_may_keep(c, steps, carry)) found[within++] = (struct found){code, steps, rows[at]};
    }
    return consider_all(p, c, t, key, found, within);
}

/* Search at most `most` further postings of a bucket, and advance its start. Returns 0 if the index is corrupt. */
static int search_bucket(struct probe *p, struct collector *c, uint32_t t, struct probe_bucket *bucket, uint64_t most) {
    uint64_t start = bucket->start, stop = bucket->stop - start > most ? start + most : bucket->stop;
    bucket->start = stop;
    p->counts.candidates += stop - start;
    for (uint64_t next; start < stop; start = next) {
        next = stop - start > SIEVE_CODES ? start + SIEVE_CODES : stop;
        if (!(p->index->entries ? search_entries : search_rows)(p, c, t, bucket->key.key, start, next)) return 0;
    }
    return 1;
}

/* Prefetch the first cache lines of a bucket; the hardware prefetcher continues from there. */
static void fetch_entries(const wh_index *index, const struct probe_bucket *bucket) {
    const uint8_t *entry = index->entries + bucket->start * index->code_bytes;
    uint64_t bytes = (bucket->stop - bucket->start) * index->code_bytes;
    for (uint64_t line = 0; line < FETCH_LINES * 64 && line < bytes; line += 64) __builtin_prefetch(entry + line, 0, 2);
}

/* Take keys from the queue ahead of use. `ahead` is a pipeline: the directory entry, the postings and the codes of a
 * bucket are each prefetched one step before they are needed. Returns PROBE_PAUSED on success. */
static enum probe_result look_ahead(struct probe *p, uint32_t t) {
    const wh_index *index = p->index;
    struct probe_table *table = &p->tables[t];
    uint32_t fresh = table->ahead_count;
    while (table->ahead_count < PROBE_LAG && table->queued) {
        if (table->queued == table->room) {
            if (p->queued + table->queued > PROBE_MAX_QUEUED) return PROBE_CROWDED;
            if (!queue_grow(table)) return PROBE_FAILED_MEMORY;
        }
        uint32_t before = table->queued;
        struct probe_bucket *bucket = &table->ahead[table->ahead_count++];
        bucket->key = queue_next(table);
        bucket->start = UINT64_MAX;
        p->queued = p->queued + table->queued - before;
        __builtin_prefetch(bucket_place(index, t, bucket_of(bucket->key.key, &index->substring[t])));
    }
    for (uint32_t i = 0; i < table->ahead_count && i < (fresh ? fresh : 1); i++) {
        struct probe_bucket *bucket = &table->ahead[i];
        if (bucket->start == UINT64_MAX) {
            uint32_t number = bucket_of(bucket->key.key, &index->substring[t]);
            if (!bucket_range(index, t, number, &bucket->start, &bucket->stop)) return PROBE_FAILED_CORRUPT;
            if (index->entries) fetch_entries(index, bucket); /* row numbers are needed for the few hits only */
            else __builtin_prefetch(posting_address(index, bucket->start));
        } else if (i == 1 && !index->entries) {
            uint64_t stop = bucket->stop - bucket->start < FETCH_AHEAD ? bucket->stop : bucket->start + FETCH_AHEAD;
            for (uint64_t at = bucket->start; at < stop; at++) fetch_code(index, posting_at(index, at));
        }
    }
    return PROBE_PAUSED;
}

enum probe_result probe_run(struct probe *p, struct collector *c, uint64_t effort) {
    uint64_t start = p->counts.buckets * BUCKET_EFFORT + p->counts.candidates;
    while (p->bound <= c->limit && !(collect_full(c) && c->count == 0)) {
        if (p->counts.buckets * BUCKET_EFFORT + p->counts.candidates - start >= effort) return PROBE_PAUSED;
        uint32_t t = p->turn;
        struct probe_table *table = &p->tables[t];
        enum probe_result result = look_ahead(p, t);
        if (result != PROBE_PAUSED) return result;

        struct probe_bucket *bucket = &table->ahead[0];
        p->counts.buckets_nonempty += !p->within && bucket->start < bucket->stop;
        if (!search_bucket(p, c, t, bucket, effort)) return PROBE_FAILED_CORRUPT;
        p->within = bucket->start < bucket->stop; /* a large bucket is searched in several turns */
        if (p->within) continue;
        uint64_t cost = bucket->key.cost;
        p->counts.buckets++;
        memmove(table->ahead, table->ahead + 1, sizeof *table->ahead * --table->ahead_count);
        struct probe_key next;
        if (frontier(table, &next)) p->bound += next.cost - cost;
        else p->bound = UINT64_MAX; /* this table has found every code */
        p->turn = t + 1 < p->index->meta.tables ? t + 1 : 0;
    }
    return PROBE_DONE;
}

uint64_t probe_pending(const struct probe *p) {
    const struct probe_bucket *bucket = &p->tables[p->turn].ahead[0];
    return p->within ? bucket->stop - bucket->start : 0;
}
