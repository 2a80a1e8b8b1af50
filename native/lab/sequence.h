#ifndef WHAMMING_LAB_SEQUENCE_H
#define WHAMMING_LAB_SEQUENCE_H
/* A probing sequence: all codes of one substring, each exactly once, in order of nondecreasing cost.
 *
 * Two generators produce the same sequence up to ties: lab_flips_* (fswbc.c) and lab_parts_* (pqtable.c). In both, the
 * top of the frontier is the cheapest code that has not been probed.
 */
#include "frontier.h"

#include <stdbool.h>

struct lab_probe {
    uint64_t cost;
    uint32_t key;
};

enum lab_parts_limits { LAB_PART_BITS = 8, LAB_MAX_PARTS = LAB_MAX_SUBSTRING_BITS / LAB_PART_BITS };

/* The state of the multi-sequence algorithm. A substring is cut into parts of LAB_PART_BITS bits; the last part may be
 * shorter. The values of each part are ranked by cost. */
struct lab_parts {
    uint32_t count;
    uint32_t size[LAB_MAX_PARTS];                     /* number of values of each part */
    uint64_t cost[LAB_MAX_PARTS][1 << LAB_PART_BITS]; /* by part and rank, ascending */
    uint8_t value[LAB_MAX_PARTS][1 << LAB_PART_BITS]; /* by part and rank */
    uint64_t *popped;                                 /* one bit per combination of ranks: 1 if it was probed */
};

struct lab_sequence {
    struct lab_frontier frontier;
    uint32_t bits;
    uint32_t optimum;
    uint64_t delta[LAB_MAX_SUBSTRING_BITS];    /* ascending */
    uint32_t position[LAB_MAX_SUBSTRING_BITS]; /* which bit has the r-th smallest delta */
    struct lab_parts *parts;                   /* NULL: the generator is lab_flips_* */
};

/* Prepare for substrings of `bits` bits. Failures: LAB_MEMORY; call lab_sequence_free even after a failure. */
int lab_sequence_init(struct lab_sequence *sequence, uint32_t bits, enum lab_generator generator);
void lab_sequence_free(struct lab_sequence *sequence);

/* Start a new sequence at `optimum`. Flipping its bit i costs deltas[i]. Failures: LAB_MEMORY. */
int lab_sequence_start(struct lab_sequence *sequence, uint32_t optimum, const uint64_t *deltas);

static inline bool lab_sequence_ended(const struct lab_sequence *sequence) { return sequence->frontier.size == 0; }

/* The cost of the next code, f(s^) in the paper. The sequence must not have ended. */
static inline uint64_t lab_sequence_top(const struct lab_sequence *sequence) { return sequence->frontier.heap[0].cost; }

/* Take the next code. The sequence must not have ended. Failures: LAB_MEMORY. */
int lab_sequence_next(struct lab_sequence *sequence, struct lab_probe *probe);

/* The two generators. lab_sequence_* call one of them. lab_parts_new returns NULL if there is not enough memory. */
int lab_flips_start(struct lab_sequence *sequence, const uint64_t *deltas);
int lab_flips_next(struct lab_sequence *sequence, struct lab_probe *probe);
struct lab_parts *lab_parts_new(uint32_t bits);
void lab_parts_free(struct lab_parts *parts);
int lab_parts_start(struct lab_sequence *sequence, const uint64_t *deltas);
int lab_parts_next(struct lab_sequence *sequence, struct lab_probe *probe);

#endif
