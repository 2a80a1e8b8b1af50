#ifndef WHAMMING_PLAN_H
#define WHAMMING_PLAN_H
/* The planner: probe or sweep?
 *
 * A search begins by probing, which also finds good candidates early: their limit is what makes a sweep fast. Each time
 * the effort has doubled, the planner looks at how far the bound S rose during that doubling. Codes get denser as S
 * grows, so the bound rises by about as much per doubling; the doublings that are missing tell what probing will cost:
 *
 *      cost                              .  forecast = spent x 2 ^ ((limit - S2) / (S2 - S1))
 *       |                             .
 *       |                  . ' S2 ------------> limit
 *       |___ . . '  S1
 *
 * The sweep's price is known better: blocks x planes per block (measured on a few blocks at the present limit) x the time
 * of a plane, learned from the sweeps that this index has run on this machine. Time spent is read off the clock, so a
 * machine with slow memory, or pages that are not in memory yet, count as what they cost.
 */
#include "sweep.h"

struct plan {
    uint64_t slice;         /* effort between the last look and the next: all the effort before it */
    uint64_t done;          /* effort since the last look */
    uint64_t total;         /* effort up to the last look */
    uint64_t started;       /* clock, nanoseconds */
    uint64_t last_bound;    /* at the last look */
    uint64_t sampled_limit; /* that planes_256 was measured at; 0: not yet */
    uint64_t planes_256;    /* planes per block x 256 */
    uint64_t planes_before; /* that the sweep had read when it began its present round */
    int batch;
};

/* Begin a round's probing or sweeping. */
void plan_start(struct plan *plan, int batch, uint64_t now, uint64_t planes_read);

/* After a slice of probing: is it cheaper to sweep from here? May sample the sweep. Sets the next slice. */
int plan_prefers_sweep(struct plan *plan, struct sweep *sweep, uint64_t bound, uint64_t limit, uint64_t now);

/* Learn from a sweep: planes read, and the time it took. */
void plan_learn(const wh_index *index, int batch, uint64_t planes, uint64_t nanoseconds);

#endif
