#ifndef WHAMMING_PLAN_H
#define WHAMMING_PLAN_H
/* The planner: probe or sweep?
 *
 * A search begins by probing, which also finds good candidates early: their limit is what makes a sweep fast. Each time
 * the effort has doubled, the planner looks at how far the bound S has come. On real and synthetic codes alike, S grows
 * about like a power of the effort (0.4 to 0.7 on SIFT codes of 64 and 128 bits), so the last doubling tells the power
 * and the power tells what it will cost to reach the limit:
 *
 *      S |                 . - ' limit        S ~ effort^p,  p = log2(S2 / S1)
 *        |         S2 .  '                    forecast = effort x (limit / S2)^(1 / p) x pace of the last doubling
 *        |   S1 .  '
 *        |  . '
 *        +------|------|-------------- effort
 *
 * The sweep's price is known better: blocks x planes per block x the time of a plane. A block is left when the
 * cheapest of its codes has passed the limit: a code some deviations below the mean, both of which follow from the
 * share of ones of each bit. How many deviations, and the time of a plane, are learned from the sweeps that this index
 * has run on this machine. Time spent is read off the clock, so a machine with slow memory, or pages that are not in
 * memory yet, count as what they cost.
 */
#include "sweep.h"

struct plan {
    uint64_t slice;     /* effort between the last look and the next: all the effort before it */
    uint64_t done;      /* effort since the last look */
    uint64_t total;     /* effort up to the last look */
    uint64_t started;   /* clock, nanoseconds */
    uint64_t last_look; /* clock */
    double last_bound;
    uint64_t planes_before; /* that the sweep had read when it began its present round */
    int batch;
    uint32_t size; /* of the search, for what is learned by size */
};

/* Begin a round's probing or sweeping. */
void plan_start(struct plan *plan, int batch, uint64_t k, uint64_t now, uint64_t planes_read);

/* Where a search stands after a slice of probing. */
struct plan_look {
    double bound; /* cost units */
    double limit;
    uint64_t pending; /* postings left in the bucket at hand */
    uint64_t now;     /* clock, nanoseconds */
};

/* Is it cheaper to sweep from here? Sets the next slice. */
int plan_prefers_sweep(struct plan *plan, const struct sweep *sweep, struct plan_look look);

/* Learn from a sweep, or from several that shared a pass: planes read, and the time it took. */
void plan_learn(const wh_index *index, int batch, uint64_t planes, uint64_t nanoseconds);

/* Learn how a round that the planner watched ended. */
void plan_learn_outcome(const struct plan *plan, const wh_index *index, int swept);

/* Learn from one query's sweep: planes read, and the limit it ended with. */
void plan_learn_margin(const struct sweep *sweep, uint64_t planes, uint64_t limit);

#endif
