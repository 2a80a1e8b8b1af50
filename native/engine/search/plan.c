/* See plan.h. */
#include "search/plan.h"

#include "search/forecast.h"
#include "search/quantise.h"

#include <math.h>

enum {
    FIRST_EFFORT = 1024, /* before the first look: a few microseconds */
    FEW_PER_HIT = 16,    /* candidates */
    PATIENT = 3          /* a trial takes probing for so many times cheaper than it seems */
};

void plan_start(struct plan *plan, uint64_t now, uint64_t planes_read) {
    *plan = (struct plan){.planner = plan->planner,
                          .batch = plan->batch,
                          .slice = FIRST_EFFORT,
                          .started = now,
                          .last_look = now,
                          .trial = planner_starts_trial(plan->planner),
                          .planes_before = planes_read};
}

static double sweep_nanoseconds(const struct plan *plan, const wh_index *index, double planes_per_block) {
    return planner_planes_nanoseconds(plan->planner, plan->batch, (double)index->blocks_count * planes_per_block);
}

/* The first buckets are left out: they take longer than those to come, for caches are cold. */
void plan_learn_buckets(const struct plan *plan, const struct probe *probe, uint64_t now) {
    if (plan->total == 0) return;
    planner_learn_buckets(plan->planner, plan->last_buckets, probe->buckets, now - plan->last_look);
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
    double price = sweep_nanoseconds(plan, index, sweep_forecast(sweep, limit, planner_margin(plan->planner)));
    if (per_effort * (double)probe_pending(probe) > price / 2) return 1;    /* the bucket at hand alone is too dear */
    if (spent < price / 16) return 0;                                       /* less than it is worth thinking about */
    if (probe->candidates < FEW_PER_HIT * k && spent < price / 4) return 0; /* the k best so far say little */
    if (plan->limit != limit) {
        plan->limit = limit;
        plan->forecast = forecast_buckets(probe, (double)limit);
    }
    double probed = (double)probe->buckets;
    double left = planner_buckets_nanoseconds(plan->planner, probed, expected_buckets(plan->forecast, probed));
    if (plan->trial && spent < price) left /= PATIENT;
    return left > price * patience(spent / price);
}

void plan_learn_margin(const struct plan *plan, const struct sweep *sweep, uint64_t limit) {
    uint64_t planes = sweep->planes_read - plan->planes_before;
    if (limit >= NO_LIMIT) return;
    double margin = sweep_margin(sweep, (double)planes / (double)sweep->index->blocks_count, limit);
    planner_learn_margin(plan->planner, planes, margin);
}
