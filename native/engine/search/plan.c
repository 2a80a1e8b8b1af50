/* See plan.h. */
#include "search/plan.h"

#include "search/forecast.h"
#include "search/quantise.h"

#include <math.h>

enum {
    FIRST_EFFORT = 1024, /* before the first look: a few microseconds */
    LEARN_FROM = 2000,   /* planes: shorter sweeps tell too little */
    FEW_BUCKETS = 64,    /* that what is known already counts as much as */
    MOST_BUCKETS = 4096, /* that are remembered */
    FEW_PER_HIT = 16,    /* candidates */
    TRIAL = 32,          /* one search in so many is patient, for otherwise nothing would be learned of far buckets */
    PATIENT = 3          /* it takes probing for so many times cheaper than it seems */
};

#define SHARE 0.125 /* that one search has in what is learned; a batch is many */

void plan_start(struct plan *plan, const wh_index *index, int batch, uint64_t now, uint64_t planes_read) {
    uint32_t number = atomic_fetch_add_explicit((_Atomic uint32_t *)&index->rounds, 1, memory_order_relaxed);
    *plan = (struct plan){.slice = FIRST_EFFORT,
                          .started = now,
                          .last_look = now,
                          .batch = batch,
                          .trial = number % TRIAL == 0,
                          .planes_before = planes_read};
}

static double sweep_nanoseconds(const struct plan *plan, const wh_index *index, double planes_per_block) {
    const _Atomic uint32_t *price = plan->batch ? &index->batch_plane_picoseconds : &index->plane_picoseconds;
    double picoseconds = atomic_load_explicit((_Atomic uint32_t *)price, memory_order_relaxed);
    return (double)index->blocks_count * planes_per_block * picoseconds / 1000;
}

/* Move a learned value by a share of the difference. */
static void learn(const _Atomic uint32_t *value, double seen, double share) {
    double old = atomic_load_explicit((_Atomic uint32_t *)value, memory_order_relaxed);
    atomic_store_explicit((_Atomic uint32_t *)value, (uint32_t)(old + (seen - old) * share + 0.5),
                          memory_order_relaxed);
}

static uint64_t read_sum(const _Atomic uint64_t *sum) {
    return atomic_load_explicit((_Atomic uint64_t *)sum, memory_order_relaxed);
}

/* Near buckets are full and far ones nearly empty, so their times are learned apart: class c has the 2^c-th bucket of a
 * search and those after it, up to twice as many. */
static int class_of(double bucket) {
    int class = 0;
    while (class < PROBED_CLASSES - 1 && bucket >= 2) bucket /= 2, class++;
    return class;
}

/* The time of a bucket of a class, given that of the next nearer class, which counts as much as a few buckets: most classes
 * are alike, and where only a few buckets were seen the processor may have been away. */
static double class_nanoseconds(const wh_index *index, int class, double nearer) {
    double buckets = (double)read_sum(&index->probed_buckets[class]);
    double nanoseconds = (double)read_sum(&index->probed_nanoseconds[class]);
    return (nanoseconds + FEW_BUCKETS * nearer) / (buckets + FEW_BUCKETS);
}

/* The time of the buckets from one number to another. */
static double buckets_nanoseconds(const wh_index *index, double from, double to) {
    double sum = 0, price = PROBE_BUCKET_NANOSECONDS, end = 2;
    for (int class = 0; class < PROBED_CLASSES; class++, end *= 2) {
        price = class_nanoseconds(index, class, price);
        double last = class == PROBED_CLASSES - 1 || to < end ? to : end;
        if (last > from) {
            sum += (last - from) * price;
            from = last;
        }
    }
    return sum;
}

/* The first buckets are left out: they take longer than those to come, for caches are cold. Old sums fade, long searches
 * count more than short ones. */
void plan_learn_buckets(const struct plan *plan, const struct probe *probe, uint64_t now) {
    uint64_t buckets = probe->buckets - plan->last_buckets, nanoseconds = now - plan->last_look;
    if (plan->total == 0 || buckets == 0) return;
    const wh_index *index = probe->index;
    double middle = (double)(probe->buckets + plan->last_buckets) / 2;
    int class = class_of(middle);
    const _Atomic uint64_t *count = &index->probed_buckets[class], *spent = &index->probed_nanoseconds[class];
    uint64_t all = read_sum(count), time = read_sum(spent);
    double most = 8 * buckets_nanoseconds(index, middle, middle + 1) * (double)buckets;
    if ((double)nanoseconds > most) nanoseconds = (uint64_t)most; /* it was interrupted */
    if (all > MOST_BUCKETS) {
        all -= all / 8;
        time -= time / 8;
    }
    atomic_store_explicit((_Atomic uint64_t *)count, all + buckets, memory_order_relaxed);
    atomic_store_explicit((_Atomic uint64_t *)spent, time + nanoseconds, memory_order_relaxed);
}

/* Buckets that probing will take in all. The limit of the moment asks for `forecast`, but while few buckets have been
 * seen it still has far to fall. On SIFT and GIST codes, for k = 1 to 100, the end came at about this share of a forecast:
 * a quarter of it after 1/400 of the buckets, half after 1/50, all but a fifth after 1/10. */
static double expected_buckets(double forecast, double probed) {
    double share = 1.9 * pow(probed / forecast, 0.35);
    return share < 1 ? forecast * share : forecast;
}

/* How many times the sweep's price the rest of probing may come to. What was spent is lost by going over, which early on
 * speaks against it; a forecast that was wrong for long speaks for it. */
static double patience(double spent) { return spent < 0.25 ? 1.25 : spent < 0.5 ? 1 : 0.7; }

int plan_prefers_sweep(struct plan *plan, const struct probe *probe, const struct sweep *sweep, uint64_t k,
                       uint64_t limit, uint64_t now) {
    const wh_index *index = sweep->index;
    double spent = (double)(now - plan->started);
    plan_learn_buckets(plan, probe, now);
    double per_effort = (double)(now - plan->last_look) / (double)plan->slice;
    plan->total += plan->slice;
    plan->slice = plan->total;
    plan->last_look = now;
    plan->last_buckets = probe->buckets;
    if (limit >= NO_LIMIT) /* give probing a quarter of a full sweep to find k codes */
        return spent > sweep_nanoseconds(plan, index, (double)index->planes) / 4;
    if (index->meta.covered < index->meta.bits) return 1; /* tables over a part of the code only give a first limit */
    double margin = atomic_load_explicit((_Atomic uint32_t *)&index->margin_1000, memory_order_relaxed) / 1000.0;
    double price = sweep_nanoseconds(plan, index, sweep_forecast(sweep, limit, margin));
    if (per_effort * (double)probe_pending(probe) > price / 2) return 1;    /* the bucket at hand alone is too dear */
    if (spent < price / 16) return 0;                                       /* less than it is worth thinking about */
    if (probe->candidates < FEW_PER_HIT * k && spent < price / 4) return 0; /* the k best so far say little */
    if (plan->limit != limit) {
        plan->limit = limit;
        plan->forecast = forecast_buckets(probe, (double)limit);
    }
    double probed = (double)probe->buckets;
    double left = buckets_nanoseconds(index, probed, expected_buckets(plan->forecast, probed));
    if (plan->trial && spent < price) left /= PATIENT;
    return left > price * patience(spent / price);
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
