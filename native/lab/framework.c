/* The search framework for long codes (Sec. IV.A, Alg. 2; with one table it is Alg. 1).
 *
 *     search module                              decision module
 *     queue 0: s_0 <= s^_0 <= ...  --> bucket \
 *     queue 1: s_1 <= s^_1 <= ...  --> bucket  }--> candidates --> k-heap, root r      g(r) <= bound: stop
 *       ...                                   /                                        else next table, next round
 *
 * Why the bounds hold. Let u be a code that has not been found. No table i has probed u's substring i. Queues are in
 * order of cost, so this substring costs at least f(s^_i), the next cost in queue i. Therefore
 *
 *     g(u) >= sum f(s^_i)      Eqn. 10 and 11: one sum, checked once per round or after every bucket
 *          >= sum f(s_i)       Eqn. 16: the substrings probed last
 *
 * Once the heap is full and its root r costs no more than one of these sums, every code in the heap is at least as near
 * as u. Eqn. 15 changes only the order of the tables within a round.
 *
 * PQTable's own rule: let v be a code found in all m tables. All of its substrings were probed, each at a cost of at
 * most f(s_i), so g(v) <= sum f(s_i) <= g(u). If the root is no farther than v, every code in the heap is at least
 * as near as u. The rule is also checked within a bucket of table i, when the rest of the bucket may still contain u.
 * Then u's substring i costs f(s_i), so sum f(s_i) <= g(u) still holds.
 *
 * With one merged table for all substrings, table t's key may lead to a code because another of the code's substrings
 * equals that key. This does not count as an appearance in table t.
 *
 * A table whose queue has ended has found every code. The search then ends as well.
 */
#include "framework.h"

#include "hash_table.h"
#include "nearest.h"
#include "sequence.h"
#include "visits.h"
#include "weigher.h"

#include <stdlib.h>

/* Scratch memory of a batch, reused for each query. */
struct search {
    const lab_index *index;
    enum lab_criterion criterion;
    struct lab_sequence *sequences; /* one per table */
    struct lab_probe *taken;        /* per table: the key that it probes in this round */
    uint64_t *probed;               /* f(s_i): cost of the bucket that each table probed last */
    uint32_t *order;                /* order of the tables in this round */
    struct lab_weigher weigher;
    struct lab_nearest nearest;
    struct lab_visits visits;
    uint64_t buckets;
};

static void search_free(struct search *search) {
    for (uint32_t t = 0; search->sequences && t < search->index->tables; t++) lab_sequence_free(&search->sequences[t]);
    free(search->sequences);
    free(search->taken);
    free(search->probed);
    free(search->order);
    lab_weigher_free(&search->weigher);
    lab_nearest_free(&search->nearest);
    lab_visits_free(&search->visits);
}

static int search_init(struct search *search, const lab_index *index, size_t k, enum lab_generator generator,
                       enum lab_criterion criterion) {
    *search = (struct search){.index = index, .criterion = criterion};
    search->sequences = calloc(index->tables, sizeof *search->sequences);
    search->taken = calloc(index->tables, sizeof *search->taken);
    search->probed = calloc(index->tables, sizeof *search->probed);
    search->order = calloc(index->tables, sizeof *search->order);
    int status = LAB_OK;
    if (!search->sequences || !search->taken || !search->probed || !search->order) status = LAB_MEMORY;
    for (uint32_t t = 0; status == LAB_OK && t < index->tables; t++)
        status = lab_sequence_init(&search->sequences[t], lab_substring_bits(index, t), generator);
    if (status == LAB_OK) status = lab_weigher_init(&search->weigher, index);
    if (status == LAB_OK) status = lab_nearest_init(&search->nearest, k, index->n);
    if (status == LAB_OK) status = lab_visits_init(&search->visits, index->n, criterion == LAB_APPEARANCES);
    if (status != LAB_OK) search_free(search);
    return status;
}

static int search_start(struct search *search, const struct lab_costs *costs, size_t query) {
    const lab_index *index = search->index;
    const uint8_t *optimum = costs->optimum + query * index->code_bytes;
    const uint64_t *deltas = costs->deltas + query * index->bits;
    int status = lab_weigher_start(&search->weigher, index, costs, query);
    for (uint32_t t = 0; status == LAB_OK && t < index->tables; t++) {
        status = lab_sequence_start(&search->sequences[t], lab_substring(index, optimum, t),
                                    deltas + lab_substring_start(index, t));
        search->probed[t] = 0;
        search->order[t] = t;
    }
    lab_visits_clear(&search->visits);
    search->buckets = 0;
    return status;
}

/* f(s^_i) - f(s_i) of a table whose key for this round has been taken from its queue. A table whose queue has ended
 * sorts last. */
static uint64_t gain(const struct search *search, uint32_t t) {
    const struct lab_sequence *sequence = &search->sequences[t];
    return lab_sequence_ended(sequence) ? UINT64_MAX : lab_sequence_top(sequence) - search->taken[t].cost;
}

/* Eqn. 15: take the keys of all tables for this round in advance, and order the tables by ascending gain. */
static int plan_sorted_round(struct search *search) {
    for (uint32_t t = 0; t < search->index->tables; t++) {
        int status = lab_sequence_next(&search->sequences[t], &search->taken[t]);
        if (status != LAB_OK) return status;
        uint32_t at = t;
        for (; at && gain(search, search->order[at - 1]) > gain(search, t); at--)
            search->order[at] = search->order[at - 1];
        search->order[at] = t;
    }
    return LAB_OK;
}

/* Record that `row` was found in table t. Returns true if PQTable's rule now holds. */
static bool appearance_ends(struct search *search, uint32_t t, uint32_t key, uint32_t row) {
    const lab_index *index = search->index;
    const uint8_t *code = lab_code(index, row);
    if (index->layout == LAB_SINGLE && lab_substring(index, code, t) != key) return false;
    return lab_visits_appear(&search->visits, row) == index->tables &&
           lab_nearest_within(&search->nearest, lab_weigh(&search->weigher, code));
}

/* Compare the candidates of a bucket. Returns true if PQTable's rule stops the search within it. */
static bool probe_bucket(struct search *search, uint32_t t, uint32_t key) {
    const lab_index *index = search->index;
    struct lab_bucket bucket = lab_bucket(index, t, key);
    search->buckets++;
    for (size_t i = 0; i < bucket.size; i++) {
        uint32_t row = bucket.rows[i];
        if (lab_visits_first(&search->visits, row))
            lab_nearest_offer(&search->nearest, lab_weigh(&search->weigher, lab_code(index, row)), row);
        if (search->criterion == LAB_APPEARANCES && appearance_ends(search, t, key, row)) return true;
    }
    return false;
}

/* Probe until the criterion proves that the heap holds the k nearest. */
static int search_run(struct search *search) {
    const uint32_t tables = search->index->tables;
    uint64_t next_bound = 0;   /* sum of f(s^_i) over all tables; every queue starts at h, which costs 0 */
    uint64_t probed_bound = 0; /* sum of f(s_i) */
    if (search->nearest.capacity == 0) return LAB_OK;
    for (;;) {
        if (search->criterion == LAB_EQN15) {
            int status = plan_sorted_round(search);
            if (status != LAB_OK) return status;
        }
        for (uint32_t turn = 0; turn < tables; turn++) {
            uint32_t t = search->order[turn];
            struct lab_sequence *sequence = &search->sequences[t];
            struct lab_probe *taken = &search->taken[t];
            if (search->criterion != LAB_EQN15) {
                int status = lab_sequence_next(sequence, taken);
                if (status != LAB_OK) return status;
            }
            if (probe_bucket(search, t, taken->key) || lab_sequence_ended(sequence)) return LAB_OK;
            next_bound += lab_sequence_top(sequence) - taken->cost;
            probed_bound += taken->cost - search->probed[t];
            search->probed[t] = taken->cost;

            if (search->criterion == LAB_APPEARANCES) continue;
            if (search->criterion == LAB_EQN10 && turn + 1 < tables) continue;
            uint64_t bound = search->criterion == LAB_EQN16 ? probed_bound : next_bound;
            if (lab_nearest_within(&search->nearest, bound)) return LAB_OK;
        }
    }
}

int lab_framework(const lab_index *index, const struct lab_costs *costs, size_t k, enum lab_generator generator,
                  enum lab_criterion criterion, struct lab_answers *answers) {
    struct search search;
    int status = search_init(&search, index, k, generator, criterion);
    if (status != LAB_OK) return status;
    for (size_t query = 0; query < costs->count; query++) {
        status = search_start(&search, costs, query);
        if (status == LAB_OK) status = search_run(&search);
        if (status != LAB_OK) break;
        lab_nearest_emit(&search.nearest, answers, query, k);
        answers->buckets[query] = search.buckets;
        answers->candidates[query] = search.visits.candidates;
    }
    search_free(&search);
    return status;
}
