#ifndef WHAMMING_PLAN_H
#define WHAMMING_PLAN_H
/* Decides between probe and sweep during a search.
 *
 * A search starts by probing, unless the tables cover only some of the bits, or searches for about as many hits were
 * faster when they began with a sweep. The planner learns this, and how patient a probe should be
 * (planner_choose_start). The work done is measured as effort (probe_run). Each
 * time it has doubled, two estimates are compared: the time for the rest of the probe, and the time of a sweep.
 *
 * Time of the probe. forecast.h estimates how many buckets the probe needs at the current limit. The limit still falls,
 * so the probe will need fewer: early in a probe about a quarter of the forecast, later nearly all of it. The time per
 * bucket is learned from earlier searches. It is learned separately for near and far buckets, because the first buckets
 * of a search are full of codes, while those that a long search reaches are nearly empty.
 *
 * Time of a sweep: blocks x planes x time per plane. The time per plane is learned from sweeps of this index on this
 * machine (planner.h). All times are measured, so they include verification, slow memory, and the loading of pages that
 * are not in memory yet.
 */
#include "search/planner.h"
#include "search/probe.h"
#include "search/sweep.h"

struct plan {
    struct wh_planner *planner; /* estimates from earlier searches; may be NULL */
    int batch;                  /* a sweep would share its pass with other queries */
    uint64_t slice;             /* effort from the last check to the next; after the first check, equal to `total` */
    uint64_t done;              /* effort since the last check */
    uint64_t total;             /* effort up to the last check */
    uint64_t started;           /* start; this and last_check are in nanoseconds of work on this part */
    uint64_t last_check;
    uint64_t last_buckets;  /* buckets probed up to the last check */
    uint64_t limit;         /* the limit of `forecast` */
    double forecast;        /* estimated number of buckets */
    uint64_t blocks_before; /* blocks swept before the current round */
    uint64_t k;             /* of the search, to learn from its time; UINT64_MAX: not to be learned */
    enum start start;
    int trial; /* 1: probe longer than seems worthwhile, to learn the time of far buckets */
};

/* Whether a search sweeps from the start. A sweep does not need the limit of tables that cover only some of the bits.
 *   wanted  enum wh_plan
 *   k       UINT64_MAX: the time of this search is not typical for its k, so nothing is learned from it */
int plan_starts_with_sweep(struct plan *plan, const wh_index *index, uint32_t wanted, uint64_t k);

/* Learn how long the search took. */
void plan_learn_start(const struct plan *plan, uint64_t nanoseconds);

/* Reset the plan when a probe or a sweep starts. Keeps `planner`, `batch`, `k` and `start`. */
void plan_start(struct plan *plan, uint64_t now, uint64_t blocks_swept);

/* Whether to switch to the sweep now. Call it after each slice of probing for k hits, with the limit found so far. It
 * also sets the length of the next slice. */
int plan_prefers_sweep(struct plan *plan, const struct probe *probe, const wh_index *index, uint64_t k, uint64_t limit,
                       uint64_t now);

/* Learn from the buckets probed since the last check. Call it when the probe ends; plan_prefers_sweep calls it at each
 * check. */
void plan_learn_buckets(const struct plan *plan, const struct probe *probe, uint64_t now);

#endif
