/* See planner.h. */
#include "search/planner.h"

#include "base/memory.h"

#include <stdatomic.h>

enum {
    FIRST_PLANE_PICOSECONDS = 6000, /* first guesses; learned from then on */
    FIRST_BATCH_PLANE_PICOSECONDS = 2000,
    FIRST_MARGIN_1000 = 2500,
    FIRST_BUCKET_NANOSECONDS = 500,
    LEARN_FROM = 2000,   /* planes: shorter sweeps tell too little */
    FEW_BUCKETS = 64,    /* that what is known already counts as much as */
    MOST_BUCKETS = 4096, /* that are remembered */
    TRIAL = 32           /* one search in so many is patient, for otherwise nothing would be learned of far buckets */
};

#define SHARE 0.125 /* that one search has in what is learned; a batch is many */

static const struct wh_planner untaught = {
    .plane_picoseconds = {FIRST_PLANE_PICOSECONDS, FIRST_BATCH_PLANE_PICOSECONDS}, .margin_1000 = FIRST_MARGIN_1000};

static const struct wh_planner *known(const struct wh_planner *planner) { return planner ? planner : &untaught; }

static double read32(const _Atomic uint32_t *value) { return atomic_load_explicit(value, memory_order_relaxed); }

static uint64_t read64(const _Atomic uint64_t *value) { return atomic_load_explicit(value, memory_order_relaxed); }

/* Move a learned value by a share of the difference. */
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
    atomic_init(&planner->margin_1000, FIRST_MARGIN_1000);
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
    return planner && atomic_fetch_add_explicit(&planner->rounds, 1, memory_order_relaxed) % TRIAL == 0;
}

/* Near buckets are full and far ones nearly empty, so their times are learned apart: class c has the 2^c-th bucket of a
 * search and those after it, up to twice as many. */
static int class_of(double bucket) {
    int class = 0;
    while (class < PLANNER_CLASSES - 1 && bucket >= 2) bucket /= 2, class++;
    return class;
}

/* The time of a bucket of a class, given that of the next nearer class, which counts as much as a few buckets: most classes
 * are alike, and where only a few buckets were seen the processor may have been away. */
static double class_nanoseconds(const struct wh_planner *planner, int class, double nearer) {
    double buckets = (double)read64(&planner->buckets[class]);
    double nanoseconds = (double)read64(&planner->nanoseconds[class]);
    return (nanoseconds + FEW_BUCKETS * nearer) / (buckets + FEW_BUCKETS);
}

double planner_buckets_nanoseconds(const struct wh_planner *planner, double from, double to) {
    double sum = 0, price = FIRST_BUCKET_NANOSECONDS, end = 2;
    planner = known(planner);
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

/* Old sums fade, long searches count more than short ones. */
void planner_learn_buckets(struct wh_planner *planner, uint64_t from, uint64_t to, uint64_t nanoseconds) {
    if (!planner || from == to) return;
    double middle = (double)(from + to) / 2;
    int class = class_of(middle);
    uint64_t count = read64(&planner->buckets[class]), time = read64(&planner->nanoseconds[class]);
    double most = 8 * planner_buckets_nanoseconds(planner, middle, middle + 1) * (double)(to - from);
    if ((double)nanoseconds > most) nanoseconds = (uint64_t)most; /* it was interrupted */
    if (count > MOST_BUCKETS) {
        count -= count / 8;
        time -= time / 8;
    }
    atomic_store_explicit(&planner->buckets[class], count + (to - from), memory_order_relaxed);
    atomic_store_explicit(&planner->nanoseconds[class], time + nanoseconds, memory_order_relaxed);
}

double planner_planes_nanoseconds(const struct wh_planner *planner, int batch, double planes) {
    return planes * read32(&known(planner)->plane_picoseconds[batch != 0]) / 1000;
}

void planner_learn_planes(struct wh_planner *planner, int batch, uint64_t planes, uint64_t nanoseconds) {
    if (!planner || planes < LEARN_FROM) return;
    _Atomic uint32_t *price = &planner->plane_picoseconds[batch != 0];
    double seen = (double)nanoseconds * 1000 / (double)planes, most = 2 * read32(price);
    learn(price, seen < most ? seen : most, batch ? 0.5 : SHARE); /* a sweep that was interrupted teaches little */
}

double planner_margin(const struct wh_planner *planner) { return read32(&known(planner)->margin_1000) / 1000.0; }

void planner_learn_margin(struct wh_planner *planner, uint64_t planes, double margin) {
    if (planner && planes >= LEARN_FROM && margin >= 0) learn(&planner->margin_1000, margin * 1000, SHARE);
}
