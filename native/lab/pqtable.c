/* PQTable on binary codes (Sec. V.C). The multi-sequence algorithm over parts of 8 bits generates the buckets;
 * framework.c does the rest and stops by PQTable's own rule.
 *
 * The values of each part, at most 256, are sorted by cost once per query. A code is then a tuple of ranks, one per part:
 *
 *       rank of part 1
 *         ^
 *       2 | o  .  .            # popped    o in the queue
 *       1 | #  o  .
 *       0 | #  #  o            a tuple is queued once all its predecessors (one rank less in one part) are popped
 *         +----------> rank of part 0
 *           0  1  2
 *
 * Invariants. A higher rank never costs less, so a tuple never costs less than its predecessors. Hence the queue always
 * has one of the cheapest tuples that have not been popped. A tuple is queued when the last of its predecessors is
 * popped, so only once.
 */
#include "framework.h"
#include "sequence.h"

#include <stdlib.h>
#include <string.h>

static size_t popped_words(uint32_t bits) { return ((size_t)1 << bits) / 64 + 1; }

static uint32_t rank_of(uint32_t tuple, uint32_t part) {
    return tuple >> LAB_PART_BITS * part & ((1u << LAB_PART_BITS) - 1);
}

struct lab_parts *lab_parts_new(uint32_t bits) {
    struct lab_parts *parts = calloc(1, sizeof *parts);
    if (!parts) return NULL;
    parts->popped = malloc(popped_words(bits) * sizeof *parts->popped);
    if (!parts->popped) {
        free(parts);
        return NULL;
    }
    for (uint32_t left = bits; left > 0;) {
        uint32_t width = left < LAB_PART_BITS ? left : LAB_PART_BITS;
        parts->size[parts->count++] = 1u << width;
        left -= width;
    }
    return parts;
}

void lab_parts_free(struct lab_parts *parts) {
    if (!parts) return;
    free(parts->popped);
    free(parts);
}

struct ranked_value {
    uint64_t cost;
    uint32_t value;
};

static int by_cost(const void *left, const void *right) {
    const struct ranked_value *a = left, *b = right;
    if (a->cost != b->cost) return a->cost < b->cost ? -1 : 1;
    return a->value < b->value ? -1 : a->value > b->value;
}

int lab_parts_start(struct lab_sequence *sequence, const uint64_t *deltas) {
    struct lab_parts *parts = sequence->parts;
    for (uint32_t part = 0; part < parts->count; part++) {
        struct ranked_value ranked[1 << LAB_PART_BITS];
        uint32_t first = LAB_PART_BITS * part;
        for (uint32_t value = 0; value < parts->size[part]; value++) {
            uint32_t differing = (value ^ sequence->optimum >> first) & (parts->size[part] - 1);
            ranked[value] = (struct ranked_value){0, value};
            for (uint32_t bit = 0; differing >> bit; bit++)
                if (differing >> bit & 1) ranked[value].cost += deltas[first + bit];
        }
        qsort(ranked, parts->size[part], sizeof *ranked, by_cost);
        for (uint32_t rank = 0; rank < parts->size[part]; rank++) {
            parts->cost[part][rank] = ranked[rank].cost;
            parts->value[part][rank] = (uint8_t)ranked[rank].value;
        }
    }
    memset(parts->popped, 0, popped_words(sequence->bits) * sizeof *parts->popped);
    return lab_frontier_push(&sequence->frontier, (struct lab_node){0, 0, 0});
}

static bool predecessors_popped(const struct lab_parts *parts, uint32_t tuple) {
    for (uint32_t part = 0; part < parts->count; part++) {
        if (rank_of(tuple, part) == 0) continue;
        uint32_t predecessor = tuple - (UINT32_C(1) << LAB_PART_BITS * part);
        if (!(parts->popped[predecessor >> 6] >> (predecessor & 63) & 1)) return false;
    }
    return true;
}

int lab_parts_next(struct lab_sequence *sequence, struct lab_probe *probe) {
    struct lab_parts *parts = sequence->parts;
    struct lab_node node = lab_frontier_pop(&sequence->frontier);
    parts->popped[node.code >> 6] |= UINT64_C(1) << (node.code & 63);
    *probe = (struct lab_probe){node.cost, 0};
    for (uint32_t part = 0; part < parts->count; part++) {
        uint32_t rank = rank_of(node.code, part);
        probe->key |= (uint32_t)parts->value[part][rank] << LAB_PART_BITS * part;
        if (rank + 1 == parts->size[part]) continue;
        uint32_t tuple = node.code + (UINT32_C(1) << LAB_PART_BITS * part);
        if (!predecessors_popped(parts, tuple)) continue;
        uint64_t cost = node.cost - parts->cost[part][rank] + parts->cost[part][rank + 1];
        int status = lab_frontier_push(&sequence->frontier, (struct lab_node){cost, tuple, 0});
        if (status != LAB_OK) return status;
    }
    return LAB_OK;
}

int lab_pqtable(const lab_index *index, const struct lab_costs *costs, size_t k, struct lab_answers *answers) {
    return lab_framework(index, costs, k, LAB_MULTI_SEQUENCE, LAB_APPEARANCES, answers);
}
