#ifndef WHAMMING_COLLECT_H
#define WHAMMING_COLLECT_H
/* The best hits of one pass over the index: proven ones in order, the others in a max-heap (the paper's section IV.A).
 *
 *      hits   | proven, sorted            | heap of the best others, worst on top |
 *             0       sent        proven                            proven + count     capacity
 *
 * Invariants. Every proven hit comes before every hit of the heap and every hit not found yet. `limit` is the largest
 * number of steps that can still be among the best, ties included; hits beyond it are not accepted. part_lower_limit
 * lowers it when another part has enough nearer hits. Some hits that are already kept may then be beyond the limit.
 * They stay, but the cursor will not return them.
 */
#include <stddef.h>
#include <stdint.h>

enum {
    COLLECT_PIECE = 4096, /* hits sorted at a time; takes some tenths of a millisecond */
    COLLECT_CUTS = 48     /* maximum number of successive partitions while sorting */
};

struct hit {
    uint64_t steps; /* with `rest`: the exact distance above the query's floor (distance.h) */
    uint64_t rest;
    uint64_t id;
};

struct collector {
    struct hit *hits;
    size_t capacity;
    size_t sent;
    size_t proven;
    size_t count;
    uint64_t limit;            /* inclusive; falls to the steps of the worst kept hit once the collector is full */
    struct hit farthest;       /* hits after this one are not kept; its steps are the initial limit */
    const uint8_t *dead;       /* bit p: the item at place p is dead; NULL: none is. Callers do not offer dead items */
    const struct hit *skipped; /* a hit with this id, at this position or before it, is not kept; may be NULL */

    int resumed; /* 1: only hits after `after` are kept */
    struct hit after;
    size_t cut[COLLECT_CUTS]; /* while sorting: where sections end, farthest first (see collect.c) */
    size_t cuts;
};

static inline int hit_before(struct hit a, struct hit b) {
    if (a.steps != b.steps) return a.steps < b.steps;
    return a.rest != b.rest ? a.rest < b.rest : a.id < b.id;
}

/* Start a pass that collects up to `capacity` >= 1 hits in the given array. */
void collect_start(struct collector *c, struct hit *hits, size_t capacity, struct hit farthest, const uint8_t *dead,
                   const struct hit *skipped, int resumed, struct hit after);

/* Drop the hits that are not proven, but keep the limit, so that the sweep that follows can reject most codes from the
 * start. Precondition: every hit within the limit will be offered again. */
void collect_restart(struct collector *c);

/* Whether a code with this many steps may be kept. `carry` is the largest number of steps that its rests can add. */
static inline int collect_may_keep(const struct collector *c, uint64_t steps, uint64_t carry) {
    return steps <= c->limit && !(c->resumed && steps + carry < c->after.steps);
}

/* Keep the hit if it is among the best. Callers need not offer hits beyond the limit. Returns 0 if neither this hit nor
 * any later one in the total order can be kept. */
int collect_offer(struct collector *c, struct hit hit);

/* Mark the kept hits with fewer steps than `bound` as proven. Precondition: all such hits have been offered. */
void collect_prove(struct collector *c, uint64_t bound);

/* Sort the next piece of the kept hits and mark it as proven. Call again until count is 0. Precondition: all hits have
 * been offered, and no more will be. */
void collect_prove_piece(struct collector *c);

/* Whether the capacity is reached. */
static inline int collect_full(const struct collector *c) { return c->proven + c->count == c->capacity; }

void hits_sort(struct hit *hits, size_t count);

#endif
