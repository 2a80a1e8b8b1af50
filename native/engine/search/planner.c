/* See planner.h. */
#include "search/planner.h"

#include "base/memory.h"

#include <stdatomic.h>

enum {
    FIRST_PLANE_PICOSECONDS = 1250, /* default estimates, before anything is learned */
    FIRST_BATCH_PLANE_PICOSECONDS = 750,
    FIRST_BUCKET_NANOSECONDS = 500,
    MIN_PLANES = 4000,        /* sweeps of fewer planes are ignored */
    PRIOR_BUCKETS = 64,       /* weight of the prior estimate, in buckets */
    MAX_BUCKETS = 4096,       /* per class; above this, older observations lose weight */
    TRIAL_INTERVAL = 32,      /* one in this many probes and sweeps is a trial, to learn about far buckets */
    FIRST_STARTS = 4,         /* the time of searches that start in some way is known after this many, */
    FIRST_START_INTERVAL = 4, /* until then, one in this many starts like that */
    MAX_START_RATIO = 1000
};

#define LEARNING_RATE 0.125 /* weight of one search in an estimate; a batch has a higher weight */
#define START_LEARNING_RATE 0.0625

static const struct wh_planner defaults = {
    .plane_picoseconds = {FIRST_PLANE_PICOSECONDS, FIRST_BATCH_PLANE_PICOSECONDS}};

static const struct wh_planner *or_defaults(const struct wh_planner *planner) { return planner ? planner : &defaults; }

static double read32(const _Atomic uint32_t *value) { return atomic_load_explicit(value, memory_order_relaxed); }

static uint64_t read64(const _Atomic uint64_t *value) { return atomic_load_explicit(value, memory_order_relaxed); }

/* Move an estimate towards an observed value. */
static void learn(_Atomic uint32_t *value, double seen, double share) {
    double old = read32(value);
    atomic_store_explicit(value, (uint32_t)(old + (seen - old) * share + 0.5), memory_order_relaxed);
}

int wh_planner_create(wh_planner **out) {
    wh_planner *planner = wh_calloc(1, sizeof *planner);
    if (!planner) return WH_MEMORY;
    atomic_init(&planner->simd, wh_simd_level());
    atomic_init(&planner->plane_picoseconds[0], FIRST_PLANE_PICOSECONDS);
    atomic_init(&planner->plane_picoseconds[1], FIRST_BATCH_PLANE_PICOSECONDS);
    *out = planner;
    return WH_OK;
}

void wh_planner_free(wh_planner *planner) { wh_free(planner); }

int wh_planner_use_simd(wh_planner *planner, int level) {
    if (!wh_simd_available(level)) return WH_ARGUMENT;
    atomic_store_explicit(&planner->simd, level, memory_order_relaxed);
    return WH_OK;
}

const struct kernels *planner_kernels(const struct wh_planner *planner) {
    return kernels_for(planner ? atomic_load_explicit(&planner->simd, memory_order_relaxed) : wh_simd_level());
}

int planner_starts_trial(struct wh_planner *planner) {
    return planner && atomic_fetch_add_explicit(&planner->rounds, 1, memory_order_relaxed) % TRIAL_INTERVAL == 0;
}

/* Near buckets are full and far buckets nearly empty, so their times are learned separately. Class c has the buckets
 * number 2^c to 2^(c + 1) - 1 of a search. */
static int class_of(double bucket) {
    int class = 0;
    while (class < PLANNER_CLASSES - 1 && bucket >= 2) bucket /= 2, class++;
    return class;
}

/* Estimated time of a bucket of a class. The estimate of the next nearer class is the prior, because classes are mostly
 * similar and a few observations alone are unreliable: the thread may have been preempted. */
static double class_nanoseconds(const struct wh_planner *planner, int class, double nearer) {
    double buckets = (double)read64(&planner->buckets[class]);
    double nanoseconds = (double)read64(&planner->nanoseconds[class]);
    return (nanoseconds + PRIOR_BUCKETS * nearer) / (buckets + PRIOR_BUCKETS);
}

double planner_buckets_nanoseconds(const struct wh_planner *planner, double from, double to) {
    double sum = 0, price = FIRST_BUCKET_NANOSECONDS, end = 2;
    planner = or_defaults(planner);
    for (int class = 0; class < PLANNER_CLASSES; class++, end *= 2) {
        price = class_nanoseconds(planner, class, price);
        double last = class == PLANNER_CLASSES - 1 || to < end ? to : end;
        if (last > from) {
            sum += (last - from) * price;
            from = last;
        }
    }
    return sum;
}

/* Once a class has many observations, all of them lose weight before a new one is added. A long search counts more than
 * a short one. */
void planner_learn_buckets(struct wh_planner *planner, uint64_t from, uint64_t to, uint64_t nanoseconds) {
    if (!planner || from == to) return;
    double middle = (double)(from + to) / 2;
    int class = class_of(middle);
    uint64_t count = read64(&planner->buckets[class]), time = read64(&planner->nanoseconds[class]);
    double most = 8 * planner_buckets_nanoseconds(planner, middle, middle + 1) * (double)(to - from);
    if ((double)nanoseconds > most) nanoseconds = (uint64_t)most; /* the thread was preempted */
    if (count > MAX_BUCKETS) {
        count -= count / 8;
        time -= time / 8;
    }
    atomic_store_explicit(&planner->buckets[class], count + (to - from), memory_order_relaxed);
    atomic_store_explicit(&planner->nanoseconds[class], time + nanoseconds, memory_order_relaxed);
}

double planner_planes_nanoseconds(const struct wh_planner *planner, int batch, double planes) {
    return planes * read32(&or_defaults(planner)->plane_picoseconds[batch != 0]) / 1000;
}

void planner_learn_planes(struct wh_planner *planner, int batch, uint64_t planes, uint64_t nanoseconds) {
    if (!planner || planes < MIN_PLANES) return;
    _Atomic uint32_t *price = &planner->plane_picoseconds[batch != 0];
    double seen = (double)nanoseconds * 1000 / (double)planes, most = 2 * read32(price);
    learn(price, seen < most ? seen : most,
          batch ? 0.5 : LEARNING_RATE); /* `most` limits the effect of a preempted sweep */
}

static int class_of_k(uint64_t k) {
    int class = 63 - __builtin_clzll(k | 1);
    return class < PLANNER_KS ? class : PLANNER_KS - 1;
}

enum start planner_choose_start(struct wh_planner *planner, uint64_t k) {
    if (!planner) return START_PROBE;
    int class = class_of_k(k);
    uint32_t searches = atomic_fetch_add_explicit(&planner->searches[class], 1, memory_order_relaxed);
    if (read32(&planner->starts[class][START_PROBE]) < FIRST_STARTS) return START_PROBE;
    double time[STARTS]; /* 0: not known yet */
    enum start fastest = START_PROBE;
    for (enum start s = START_PROBE; s < STARTS; s++) {
        int known = read32(&planner->starts[class][s]) >= FIRST_STARTS;
        time[s] = known ? (double)read64(&planner->start_nanoseconds[class][s]) : 0;
        if (known && time[s] < time[fastest]) fastest = s;
    }
    for (enum start s = START_PROBE; s < STARTS; s++) {
        if (s == fastest) continue;
        double ratio = time[s] / time[fastest];
        uint32_t interval = time[s] == 0
                                ? FIRST_START_INTERVAL
                                : (uint32_t)(TRIAL_INTERVAL * (ratio < MAX_START_RATIO ? ratio : MAX_START_RATIO));
        if (searches % interval == (uint32_t)s) return s;
    }
    return fastest;
}

/* The first searches are slow, because the caches are cold, so the fastest of them counts. */
void planner_learn_start(struct wh_planner *planner, uint64_t k, enum start start, uint64_t nanoseconds) {
    if (!planner) return;
    int class = class_of_k(k);
    _Atomic uint64_t *time = &planner->start_nanoseconds[class][start];
    uint32_t starts = atomic_fetch_add_explicit(&planner->starts[class][start], 1, memory_order_relaxed);
    double old = (double)read64(time), seen = (double)nanoseconds + 1;
    if (starts >= FIRST_STARTS) {
        if (seen > 4 * old) seen = 4 * old; /* the thread was preempted */
        seen = old + (seen - old) * START_LEARNING_RATE;
    } else if (starts > 0 && old < seen) {
        seen = old;
    }
    atomic_store_explicit(time, (uint64_t)seen, memory_order_relaxed);
}
