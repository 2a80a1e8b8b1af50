#ifndef WHAMMING_PLANNER_H
#define WHAMMING_PLANNER_H
/* What the planner has learned from searches of one index on this machine. See "Planner" in whamming.h; what follows
 * from it for one search is in plan.h.
 *
 * Thread safety: any number of threads read and learn at once. Values are atomic and races between updates lose one of
 * them, which is harmless: they steer how a search runs, never its answer.
 *
 * A planner may be NULL: reading then gives the first guesses, and nothing is learned. */
#include "simd/kernels.h"
#include "whamming.h"

enum { PLANNER_CLASSES = 24 /* of buckets by their number: 1, 2 and 3, 4 to 7, and so on */ };

struct wh_planner {
    _Atomic int simd;        /* enum wh_simd */
    _Atomic uint32_t rounds; /* begun so far */
    _Atomic uint64_t buckets[PLANNER_CLASSES], nanoseconds[PLANNER_CLASSES];
    _Atomic uint32_t plane_picoseconds[2]; /* of a sweep alone, and of one that shares its pass with others */
    _Atomic uint32_t margin_1000; /* deviations below the mean at which the last code leaves a block, in thousandths */
};

const struct kernels *planner_kernels(const struct wh_planner *planner);

/* Count a round that begins. Returns whether it is a patient one, which learns the price of far buckets: one in some. */
int planner_starts_trial(struct wh_planner *planner);

/* The time of the buckets from one number to another, counted from a search's first. */
double planner_buckets_nanoseconds(const struct wh_planner *planner, double from, double to);

/* The time of so many planes. batch: the sweep shares its pass with others. */
double planner_planes_nanoseconds(const struct wh_planner *planner, int batch, double planes);

/* How many deviations below the mean the last code of a block lies, when the sweep leaves the block. */
double planner_margin(const struct wh_planner *planner);

/* Learn from the buckets of a search from one number to another: the time they took. */
void planner_learn_buckets(struct wh_planner *planner, uint64_t from, uint64_t to, uint64_t nanoseconds);

/* Learn from a sweep, or from several that shared a pass: planes read, and the time it took. */
void planner_learn_planes(struct wh_planner *planner, int batch, uint64_t planes, uint64_t nanoseconds);

/* Learn from the margin that one query's sweep of so many planes had; less than 0: it is not known. */
void planner_learn_margin(struct wh_planner *planner, uint64_t planes, double margin);

#endif
