/* See plan.h. */
#include "plan.h"

#include <math.h>

enum {
    FIRST_EFFORT = 512,  /* buckets and candidates before the first look: a few microseconds */
    LEAST_PLANES = 2,    /* that any sweep reads per block */
    LEARN_FROM = 2000    /* planes: shorter sweeps tell too little */
};

#define NO_LIMIT (UINT64_C(1) << 55) /* above every distance */

void plan_start(struct plan *plan, int batch, uint64_t now, uint64_t planes_read) {
    *plan = (struct plan){.slice = FIRST_EFFORT, .started = now, .batch = batch, .planes_before = planes_read};
}

static double sweep_nanoseconds(const struct plan *plan, const wh_index *index, double planes_per_block) {
    const _Atomic uint32_t *price = plan->batch ? &index->batch_plane_picoseconds : &index->plane_picoseconds;
    double picoseconds = atomic_load_explicit((_Atomic uint32_t *)price, memory_order_relaxed);
    return (double)index->blocks_count * planes_per_block * picoseconds / 1000;
}

int plan_prefers_sweep(struct plan *plan, struct sweep *sweep, uint64_t bound, uint64_t limit, uint64_t now) {
    const wh_index *index = sweep->index;
    double spent = (double)(now - plan->started) + 1;
    double rise = (double)(bound - plan->last_bound);
    int first = plan->total == 0;
    plan->total += plan->slice;
    plan->slice = plan->total;
    plan->last_bound = bound;
    if (limit >= NO_LIMIT) /* give probing a quarter of a full sweep to find k codes */
        return spent > sweep_nanoseconds(plan, index, (double)index->planes) / 4;
    if (first) return 0; /* no doubling to go by yet */
    double doublings = rise > 0 ? ((double)limit - (double)bound) / rise : 64;
    double remaining = spent * (exp2(doublings < 40 ? doublings : 40) - 1);
    if (remaining < sweep_nanoseconds(plan, index, LEAST_PLANES)) return 0;
    if (plan->sampled_limit == 0 || limit < plan->sampled_limit - plan->sampled_limit / 8) {
        plan->planes_256 = sweep_sample(sweep, limit);
        plan->sampled_limit = limit ? limit : 1;
    }
    return remaining > sweep_nanoseconds(plan, index, (double)plan->planes_256 / 256);
}

void plan_learn(const wh_index *index, int batch, uint64_t planes, uint64_t nanoseconds) {
    if (planes < LEARN_FROM) return;
    _Atomic uint32_t *price = (_Atomic uint32_t *)(batch ? &index->batch_plane_picoseconds : &index->plane_picoseconds);
    double old = atomic_load_explicit(price, memory_order_relaxed);
    double seen = (double)nanoseconds * 1000 / (double)planes;
    if (seen > 2 * old) seen = 2 * old; /* a sweep that was interrupted teaches little */
    atomic_store_explicit(price, (uint32_t)(old + (seen - old) / 8 + 0.5), memory_order_relaxed);
}
