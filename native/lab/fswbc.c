/* FSWBC. Two operations and a priority queue generate the buckets (Sec. III.B, Alg. 1); framework.c does the rest.
 *
 * Bits are ranked by ascending delta. A code is written as the set of ranks at which it differs from h: the changed
 * ranks. Let r be the highest of them.
 *
 *                            0000                     Operation 1 also changes rank r + 1
 *                          1 /                        Operation 2 moves the change at r to r + 1
 *                        1000
 *                      1 /  \ 2                       (leftmost = cheapest, as the paper draws it)
 *                   1100     0100
 *                 1 / \ 2   1 / \ 2
 *              1110 1010  0110  0010
 *                  1 / \ 2
 *               1011   1001
 *
 * Invariants. The tree contains every code exactly once (Corollary 1), because each code but h has exactly one parent.
 * If rank r - 1 is changed too, Operation 1 made the code; otherwise Operation 2 did. The code in which only rank 0 is
 * changed comes from h. A child never costs less than its parent, since delta[r + 1] >= delta[r] >= 0. Hence the
 * cheapest code not yet taken is always in the queue (Proposition 1).
 */
#include "framework.h"
#include "sequence.h"

static uint32_t operation1(uint32_t changed, uint32_t r) { return changed | UINT32_C(2) << r; }

static uint32_t operation2(uint32_t changed, uint32_t r) { return changed ^ UINT32_C(3) << r; }

uint32_t lab_successors(uint32_t changed, uint32_t bits, uint32_t successors[2]) {
    if (changed == 0) {
        successors[0] = 1;
        return 1;
    }
    uint32_t r = 0;
    while (changed >> r > 1) r++;
    if (r + 1 >= bits) return 0;
    successors[0] = operation1(changed, r);
    successors[1] = operation2(changed, r);
    return 2;
}

int lab_flips_start(struct lab_sequence *sequence, const uint64_t *deltas) {
    for (uint32_t i = 0; i < sequence->bits; i++) {
        uint32_t r = i;
        for (; r && sequence->delta[r - 1] > deltas[i]; r--) {
            sequence->delta[r] = sequence->delta[r - 1];
            sequence->position[r] = sequence->position[r - 1];
        }
        sequence->delta[r] = deltas[i];
        sequence->position[r] = i;
    }
    return lab_frontier_push(&sequence->frontier, (struct lab_node){0, 0, 0});
}

/* The state of a node is its highest changed rank plus one; 0 for h itself. */
int lab_flips_next(struct lab_sequence *sequence, struct lab_probe *probe) {
    struct lab_node node = lab_frontier_pop(&sequence->frontier);
    const uint64_t *delta = sequence->delta;
    uint32_t next = node.state;
    int status = LAB_OK;
    if (next == 0) {
        status = lab_frontier_push(&sequence->frontier, (struct lab_node){delta[0], 1, 1});
    } else if (next < sequence->bits) {
        uint32_t r = next - 1;
        struct lab_node one = {node.cost + delta[next], operation1(node.code, r), next + 1};
        struct lab_node two = {node.cost - delta[r] + delta[next], operation2(node.code, r), next + 1};
        status = lab_frontier_push(&sequence->frontier, one);
        if (status == LAB_OK) status = lab_frontier_push(&sequence->frontier, two);
    }
    probe->cost = node.cost;
    probe->key = sequence->optimum;
    for (uint32_t rank = 0; rank < next; rank++) probe->key ^= (node.code >> rank & 1) << sequence->position[rank];
    return status;
}

int lab_fswbc(const lab_index *index, const struct lab_costs *costs, size_t k, enum lab_criterion criterion,
              struct lab_answers *answers) {
    if ((int)criterion < LAB_EQN10 || criterion > LAB_APPEARANCES) return LAB_ARGUMENT;
    return lab_framework(index, costs, k, LAB_FLIPS, criterion, answers);
}
