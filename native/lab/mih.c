/* Multi-index hashing by Hamming distance, MIH_binary, and its re-ranked variant, MIH_weight (Sec. V.B).
 *
 * The query q is cut into substrings like the codes. The radius s grows from 0, and for each radius the tables take
 * turns. Table t probes all buckets whose key differs from substring t of q in exactly s bits. A distance d is settled
 * once all codes at that distance have been found:
 *
 *     radius 0: table 0, table 1, ..., m - 1       radius 1: table 0, table 1, ...
 *     settled:   d = 0    d = 1       d = m - 1              d = m    d = m + 1
 *
 * Why each turn settles one distance: consider a code that has not been found after table t at radius s. Its substrings
 * 0 .. t differ from those of q in at least s + 1 bits each, and the others in at least s bits each. These are at least
 * s x m + t + 1 bits in all. So every code at distance d = s x m + t has been found. The search ends once the settled
 * distances have k codes.
 *
 * Only the first k codes found at each distance are kept. This suffices for the k nearest by Hamming distance:
 *
 *     kept[d]: row, row, ...  (at most k)          d = 0 .. bits
 *
 * MIH_weight ranks the kept codes by weighted distance, including those at distances not settled yet. This pool, not
 * the whole set of candidates, reproduces the paper's accuracy.
 */
#include "hash_table.h"
#include "nearest.h"
#include "visits.h"
#include "weigher.h"

#include <stdlib.h>
#include <string.h>

struct kept {
    uint32_t *rows;
    size_t size;
    size_t capacity;
};

/* Scratch memory of a batch, reused for each query. */
struct search {
    const lab_index *index;
    size_t k;          /* min(k, n) */
    struct kept *kept; /* one per Hamming distance, 0 .. bits */
    struct lab_visits visits;
    uint64_t buckets;
    struct lab_weigher *weigher; /* LAB_MET only: weighs every candidate when it is found; otherwise NULL */
    struct lab_nearest *nearest;
};

static void search_free(struct search *search) {
    for (uint32_t d = 0; search->kept && d <= search->index->bits; d++) free(search->kept[d].rows);
    free(search->kept);
    lab_visits_free(&search->visits);
}

static int search_init(struct search *search, const lab_index *index, size_t k) {
    *search = (struct search){.index = index, .k = k < index->n ? k : index->n};
    search->kept = calloc((size_t)index->bits + 1, sizeof *search->kept);
    int status = search->kept ? lab_visits_init(&search->visits, index->n, false) : LAB_MEMORY;
    if (status != LAB_OK) search_free(search);
    return status;
}

static uint32_t ones(uint64_t word) {
    word -= word >> 1 & UINT64_C(0x5555555555555555);
    word = (word & UINT64_C(0x3333333333333333)) + (word >> 2 & UINT64_C(0x3333333333333333));
    word = (word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (uint32_t)(word * UINT64_C(0x0101010101010101) >> 56);
}

static uint32_t hamming(const lab_index *index, const uint8_t *a, const uint8_t *b) {
    size_t whole = index->bits / 8, byte = 0;
    uint32_t distance = 0;
    for (; byte + 8 <= whole; byte += 8) {
        uint64_t left, right;
        memcpy(&left, a + byte, 8);
        memcpy(&right, b + byte, 8);
        distance += ones(left ^ right);
    }
    uint64_t rest = 0;
    for (; byte < whole; byte++) rest = rest << 8 | (uint64_t)(a[byte] ^ b[byte]);
    distance += ones(rest);
    if (index->bits % 8) distance += ones((uint64_t)(a[byte] ^ b[byte]) & ((1u << index->bits % 8) - 1));
    return distance;
}

static int keep(struct kept *kept, uint32_t row, size_t limit) {
    if (kept->size == limit) return LAB_OK;
    if (kept->size == kept->capacity) {
        size_t capacity = kept->capacity ? 2 * kept->capacity : 8;
        uint32_t *rows = realloc(kept->rows, capacity * sizeof *rows);
        if (!rows) return LAB_MEMORY;
        kept->rows = rows;
        kept->capacity = capacity;
    }
    kept->rows[kept->size++] = row;
    return LAB_OK;
}

static int probe_bucket(struct search *search, const uint8_t *code, uint32_t t, uint32_t key) {
    const lab_index *index = search->index;
    struct lab_bucket bucket = lab_bucket(index, t, key);
    search->buckets++;
    for (size_t i = 0; i < bucket.size; i++) {
        uint32_t row = bucket.rows[i];
        if (!lab_visits_first(&search->visits, row)) continue;
        const uint8_t *candidate = lab_code(index, row);
        int status = keep(&search->kept[hamming(index, candidate, code)], row, search->k);
        if (status != LAB_OK) return status;
        if (search->weigher) lab_nearest_offer(search->nearest, lab_weigh(search->weigher, candidate), row);
    }
    return LAB_OK;
}

/* The next larger number with the same number of ones. x must not be 0. */
static uint32_t next_same_weight(uint32_t x) {
    uint32_t lowest = x & (~x + 1), ripple = x + lowest;
    return ripple | ((x ^ ripple) / lowest) >> 2;
}

/* Probe every bucket of table t at exactly `radius` from the query's substring. */
static int probe_shell(struct search *search, const uint8_t *code, uint32_t t, uint32_t radius) {
    uint32_t length = lab_substring_bits(search->index, t);
    uint32_t centre = lab_substring(search->index, code, t);
    if (radius == 0) return probe_bucket(search, code, t, centre);
    if (radius > length) return LAB_OK;
    for (uint32_t flips = (UINT32_C(1) << radius) - 1; flips >> length == 0; flips = next_same_weight(flips)) {
        int status = probe_bucket(search, code, t, centre ^ flips);
        if (status != LAB_OK) return status;
    }
    return LAB_OK;
}

/* Fill kept[] until the settled distances contain the k nearest by Hamming distance. */
static int search_run(struct search *search, const uint8_t *code) {
    uint32_t tables = search->index->tables;
    size_t settled = 0;
    lab_visits_clear(&search->visits);
    search->buckets = 0;
    for (uint32_t d = 0; d <= search->index->bits; d++) search->kept[d].size = 0;
    /* The loop ends before d exceeds `bits`, because all n >= k codes are settled by then. */
    for (uint32_t d = 0; settled < search->k; d++) {
        int status = probe_shell(search, code, d % tables, d / tables);
        if (status != LAB_OK) return status;
        settled += search->kept[d].size;
    }
    return LAB_OK;
}

int lab_mih_binary(const lab_index *index, const uint8_t *codes, size_t count, size_t k, struct lab_answers *answers) {
    struct search search;
    int status = search_init(&search, index, k);
    if (status != LAB_OK) return status;
    for (size_t query = 0; query < count; query++) {
        status = search_run(&search, codes + query * index->code_bytes);
        if (status != LAB_OK) break;
        size_t found = 0;
        for (uint32_t d = 0; found < search.k; d++)
            for (size_t i = 0; i < search.kept[d].size && found < search.k; i++, found++) {
                answers->ids[query * k + found] = search.kept[d].rows[i];
                answers->distances[query * k + found] = d;
            }
        answers->found[query] = found;
        answers->buckets[query] = search.buckets;
        answers->candidates[query] = search.visits.candidates;
    }
    search_free(&search);
    return status;
}

static void weigh_kept(const struct search *search, const struct lab_weigher *weigher, struct lab_nearest *nearest) {
    for (uint32_t d = 0; d <= search->index->bits; d++)
        for (size_t i = 0; i < search->kept[d].size; i++) {
            uint32_t row = search->kept[d].rows[i];
            lab_nearest_offer(nearest, lab_weigh(weigher, lab_code(search->index, row)), row);
        }
}

int lab_mih_weight(const lab_index *index, const uint8_t *codes, const struct lab_costs *costs, size_t k,
                   enum lab_pool pool, struct lab_answers *answers) {
    if (pool != LAB_KEPT && pool != LAB_MET) return LAB_ARGUMENT;
    struct lab_weigher weigher = {0};
    struct lab_nearest nearest = {0};
    struct search search;
    int status = search_init(&search, index, k);
    if (status != LAB_OK) return status;
    status = lab_weigher_init(&weigher, index);
    if (status == LAB_OK) status = lab_nearest_init(&nearest, k, index->n);
    if (pool == LAB_MET) {
        search.weigher = &weigher;
        search.nearest = &nearest;
    }
    for (size_t query = 0; status == LAB_OK && query < costs->count; query++) {
        status = lab_weigher_start(&weigher, index, costs, query);
        if (status == LAB_OK) status = search_run(&search, codes + query * index->code_bytes);
        if (status != LAB_OK) break;
        if (pool == LAB_KEPT) weigh_kept(&search, &weigher, &nearest);
        lab_nearest_emit(&nearest, answers, query, k);
        answers->buckets[query] = search.buckets;
        answers->candidates[query] = search.visits.candidates;
    }
    lab_nearest_free(&nearest);
    lab_weigher_free(&weigher);
    search_free(&search);
    return status;
}
