#ifndef WHAMMING_PLAN_H
#define WHAMMING_PLAN_H
/* The planner: probe or sweep?
 *
 * A search begins by probing, which also finds good candidates early: their limit is what makes a sweep fast. Each time
 * the effort has doubled, the planner compares what is left of both. How many buckets probing will take at the limit of
 * the moment follows from the costs (forecast.h). The limit will still fall, and the number of buckets with it: to a
 * quarter after the first look, by little later. What a bucket takes is known from earlier searches, near and far ones
 * apart: the first ones are full of codes, those that a long search comes to nearly empty.
 *
 * The sweep's price: blocks x planes per block x the time of a plane. A block is left when the
 * cheapest of its codes has passed the limit: a code some deviations below the mean, both of which follow from the
 * share of ones of each bit. How many deviations, and the time of a plane, are learned from the sweeps of this index
 * on this machine (planner.h). Time spent is read off the clock, so a machine with slow memory, or pages that are not in
 * memory yet, count as what they cost.
 */
#include "search/planner.h"
#include "search/probe.h"
#include "search/sweep.h"

struct plan {
    struct wh_planner *planner; /* what is known from earlier searches; may be NULL */
    int batch;                  /* a sweep would share its pass with others */
    uint64_t slice;             /* effort between the last look and the next: all the effort before it */
    uint64_t done;              /* effort since the last look */
    uint64_t total;             /* effort up to the last look */
    uint64_t started;           /* nanoseconds of the part's own work, as all times here */
    uint64_t last_look;
    uint64_t last_buckets;  /* probed up to the last look */
    uint64_t limit;         /* that the forecast was made for */
    double forecast;        /* buckets */
    uint64_t planes_before; /* that the sweep had read when it began its present round */
    int trial;              /* probe longer than seems worth while, to learn */
};

/* Begin a round's probing or sweeping. `planner` and `batch` stay as they are. */
void plan_start(struct plan *plan, uint64_t now, uint64_t planes_read);

/* Is it cheaper to sweep from here, after a slice of probing for k hits, at this limit? Sets the next slice. */
int plan_prefers_sweep(struct plan *plan, const struct probe *probe, const struct sweep *sweep, uint64_t k,
                       uint64_t limit, uint64_t now);

/* Learn from the buckets probed since the last look: at the next one, or when probing has come to its end. */
void plan_learn_buckets(const struct plan *plan, const struct probe *probe, uint64_t now);

/* Learn from the round's finished sweep, which ended with this limit. */
void plan_learn_margin(const struct plan *plan, const struct sweep *sweep, uint64_t limit);

#endif
