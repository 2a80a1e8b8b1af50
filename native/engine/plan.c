/* See plan.h. */
#include "plan.h"

#include <math.h>

enum {
    FIRST_EFFORT = 512, /* buckets and candidates before the first look: a few microseconds */
    COLD_EFFORT = 4096, /* up to here probing runs at about half its later pace: caches are cold, hits still many */
    LEARN_FROM = 2000   /* planes: shorter sweeps tell too little */
};

/* How the bound may be thought to grow, whatever one doubling showed. */
#define LEAST_POWER 0.3
#define USUAL_POWER 0.5
#define MOST_POWER 0.8
#define SHARE 0.125                  /* that one search has in what is learned; a batch is many */
#define NO_LIMIT (UINT64_C(1) << 55) /* above every distance */

/* Searches for about as many hits: 1, 8, 64, ... */
static uint32_t size_class(uint64_t k) {
    uint32_t size = k ? (63 - (uint32_t)__builtin_clzll(k)) / 3 : 0;
    return size < PLAN_SIZES ? size : PLAN_SIZES - 1;
}

void plan_start(struct plan *plan, int batch, uint64_t k, uint64_t now, uint64_t planes_read) {
    *plan = (struct plan){.slice = FIRST_EFFORT,
                          .started = now,
                          .last_look = now,
                          .batch = batch,
                          .planes_before = planes_read,
                          .size = size_class(k)};
}

static double sweep_nanoseconds(const struct plan *plan, const wh_index *index, double planes_per_block) {
    const _Atomic uint32_t *price = plan->batch ? &index->batch_plane_picoseconds : &index->plane_picoseconds;
    double picoseconds = atomic_load_explicit((_Atomic uint32_t *)price, memory_order_relaxed);
    return (double)index->blocks_count * planes_per_block * picoseconds / 1000;
}

/* What probing will still cost, in nanoseconds: see plan.h. */
static double probe_nanoseconds(const struct plan *plan, double pace, double last, struct plan_look look) {
    double power = last > 0 ? log2(look.bound / last) : MOST_POWER;
    power = power < LEAST_POWER ? LEAST_POWER : power > MOST_POWER ? MOST_POWER : power;
    power = (power + USUAL_POWER) / 2;
    return pace * (double)plan->total * (pow(look.limit / look.bound, 1 / power) - 1);
}

/* How many times the sweep's price the forecast may come to before the search goes over. Early forecasts are rough and
 * one more doubling is cheap then, so they must be clear, unless searches like this one have been ending in a sweep
 * anyway. Late ones must promise an end soon: a forecast that was wrong before may be wrong again. */
static double patience(const struct plan *plan, const wh_index *index, double spent) {
    double habit =
        atomic_load_explicit((_Atomic uint32_t *)&index->swept_1000[plan->size], memory_order_relaxed) / 1000.0;
    if (plan->batch) habit = 1; /* sweeps that share a pass are cheap: no time to lose */
    if (spent < 0.125) return 4 - 3 * habit;
    if (spent < 0.25) return 2 - habit;
    if (spent < 0.5) return 0.7;
    return spent < 1 ? 0.4 : 0.2;
}

int plan_prefers_sweep(struct plan *plan, const struct sweep *sweep, struct plan_look look) {
    const wh_index *index = sweep->index;
    double spent = (double)(look.now - plan->started), last = plan->last_bound;
    double pace = (double)(look.now - plan->last_look) / (double)plan->slice; /* without what the start cost once */
    int first = plan->total == 0;
    plan->total += plan->slice;
    plan->slice = plan->total;
    plan->last_bound = look.bound;
    plan->last_look = look.now;
    if (look.limit >= NO_LIMIT) /* give probing a quarter of a full sweep to find k codes */
        return spent > sweep_nanoseconds(plan, index, (double)index->planes) / 4;
    if (index->meta.covered < index->meta.bits) return 1; /* tables over a part of the code only give a first limit */
    if (plan->total < COLD_EFFORT) pace /= 2;
    double margin = atomic_load_explicit((_Atomic uint32_t *)&index->margin_1000, memory_order_relaxed) / 1000.0;
    double price = sweep_nanoseconds(plan, index, sweep_forecast(sweep, (uint64_t)look.limit, margin));
    if (pace * (double)look.pending > price / 2) return 1; /* the bucket at hand alone is too dear */
    if (first) return 0;                                   /* no doubling to go by yet */
    if (look.bound <= last) return spent > price / 4;      /* nor here: the bound stands still */
    return probe_nanoseconds(plan, pace, last, look) > price * patience(plan, index, spent / price);
}

/* Move a learned value by a share of the difference. */
static void learn(const _Atomic uint32_t *value, double seen, double share) {
    double old = atomic_load_explicit((_Atomic uint32_t *)value, memory_order_relaxed);
    atomic_store_explicit((_Atomic uint32_t *)value, (uint32_t)(old + (seen - old) * share + 0.5),
                          memory_order_relaxed);
}

void plan_learn(const wh_index *index, int batch, uint64_t planes, uint64_t nanoseconds) {
    if (planes < LEARN_FROM) return;
    const _Atomic uint32_t *price = batch ? &index->batch_plane_picoseconds : &index->plane_picoseconds;
    double seen = (double)nanoseconds * 1000 / (double)planes;
    double most = 2 * (double)atomic_load_explicit((_Atomic uint32_t *)price, memory_order_relaxed);
    learn(price, seen < most ? seen : most, batch ? 0.5 : SHARE); /* a sweep that was interrupted teaches little */
}

void plan_learn_margin(const struct sweep *sweep, uint64_t planes, uint64_t limit) {
    const wh_index *index = sweep->index;
    if (planes < LEARN_FROM || limit >= NO_LIMIT) return;
    double margin = sweep_margin(sweep, (double)planes / (double)index->blocks_count, limit);
    if (margin >= 0) learn(&index->margin_1000, margin * 1000, SHARE);
}

void plan_learn_outcome(const struct plan *plan, const wh_index *index, int swept) {
    learn(&index->swept_1000[plan->size], swept ? 1000 : 0, SHARE);
}
