#ifndef WHAMMING_PLANNER_H
#define WHAMMING_PLANNER_H
/* Estimates learned from the searches of one index on this machine. See "Planner" in whamming.h; plan.h uses them.
 *
 * Thread safety: any number of threads may read and learn at once. All values are atomic. If two threads update a
 * value at the same time, one update may be lost. This is harmless: estimates never affect the answer of a search.
 *
 * A planner may be NULL: reading then returns the default estimates, and nothing is learned. */
#include "simd/kernels.h"
#include "whamming.h"

enum {
    PLANNER_CLASSES = 24, /* classes of buckets, by position in a search: 1, 2 to 3, 4 to 7, ... */
    PLANNER_KS = 32       /* classes of k: 1, 2 to 3, 4 to 7, ... */
};

/* How a single search starts. START_PATIENT: with a probe, which switches to a sweep later than START_PROBE. */
enum start { START_PROBE, START_SWEEP, START_PATIENT, STARTS };

struct wh_planner {
    _Atomic int simd;        /* enum wh_simd */
    _Atomic uint32_t rounds; /* probes and sweeps started so far */
    /* Per class: the number of buckets observed, and their total time. Older observations have less weight. */
    _Atomic uint64_t buckets[PLANNER_CLASSES], nanoseconds[PLANNER_CLASSES];
    _Atomic uint32_t plane_picoseconds[2]; /* [0]: single sweeps, [1]: sweeps that share a pass */
    /* Per class of k: the number of single searches, and of those that have been learned from, by how they started
     * (enum start), and the time that these take. */
    _Atomic uint32_t searches[PLANNER_KS], starts[PLANNER_KS][STARTS];
    _Atomic uint64_t start_nanoseconds[PLANNER_KS][STARTS];
};

const struct kernels *planner_kernels(const struct wh_planner *planner);

/* Count the start of a probe or a sweep. Returns whether it is a trial: a probe that runs longer than seems worthwhile,
 * to learn the time of far buckets. */
int planner_starts_trial(struct wh_planner *planner);

/* Estimate the time that a search takes for its buckets number `from` to `to`. */
double planner_buckets_nanoseconds(const struct wh_planner *planner, double from, double to);

/* Estimate the time to sweep this many planes, including planes that the sweep skips. `batch` is 1 if the sweep shares
 * its pass with other queries. */
double planner_planes_nanoseconds(const struct wh_planner *planner, int batch, double planes);

/* How a single search for the k nearest should start. Mostly the way that was fastest so far, sometimes another: the
 * slower that is, the more rarely. Once all times are known, each other way takes about 1/32 of the time of all
 * searches. */
enum start planner_choose_start(struct wh_planner *planner, uint64_t k);

/* Learn how long a single search for the k nearest took. */
void planner_learn_start(struct wh_planner *planner, uint64_t k, enum start start, uint64_t nanoseconds);

/* Learn how long a search took for its buckets number `from` to `to`. */
void planner_learn_buckets(struct wh_planner *planner, uint64_t from, uint64_t to, uint64_t nanoseconds);

/* Learn the time of a sweep, or of several sweeps that shared a pass. `planes` includes the planes that were skipped.
 * */
void planner_learn_planes(struct wh_planner *planner, int batch, uint64_t planes, uint64_t nanoseconds);

#endif
