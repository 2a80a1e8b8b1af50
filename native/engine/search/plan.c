/* See plan.h. */
#include "search/plan.h"

#include "search/forecast.h"
#include "search/quantise.h"

#include <math.h>

enum {
    FIRST_EFFORT = 1024,         /* effort before the first check: a few microseconds */
    MIN_CANDIDATES_PER_HIT = 16, /* with fewer, the k-th best distance says little */
    PATIENT = 3,                 /* START_PATIENT multiplies the time that the rest of a probe may take by this */
    TRIAL_DISCOUNT = 3           /* a trial divides the estimated time of the probe by this */
};

int plan_starts_with_sweep(struct plan *plan, const wh_index *index, uint32_t wanted, uint64_t k) {
    plan->k = UINT64_MAX;
    if (wanted == WH_SWEEP || index->meta.tables == 0) return 1;
    if (wanted == WH_PROBE) return 0;
    if (index->meta.covered < index->meta.bits) return 1;
    if (plan->batch || k == UINT64_MAX) return 0;
    plan->k = k;
    plan->start = planner_choose_start(plan->planner, k);
    return plan->start == START_SWEEP;
}

void plan_learn_start(const struct plan *plan, uint64_t nanoseconds) {
    if (plan->k != UINT64_MAX) planner_learn_start(plan->planner, plan->k, plan->start, nanoseconds);
}

void plan_start(struct plan *plan, uint64_t now, uint64_t blocks_swept) {
    *plan = (struct plan){.planner = plan->planner,
                          .batch = plan->batch,
                          .k = plan->k,
                          .start = plan->start,
                          .slice = FIRST_EFFORT,
                          .started = now,
                          .last_check = now,
                          .trial = planner_starts_trial(plan->planner),
                          .blocks_before = blocks_swept};
}

static double sweep_nanoseconds(const struct plan *plan, const wh_index *index) {
    return planner_planes_nanoseconds(plan->planner, plan->batch, (double)index->blocks_count * (double)index->planes);
}

/* Buckets probed before the first check are ignored. They take longer than later ones, because the caches are cold. */
void plan_learn_buckets(const struct plan *plan, const struct probe *probe, uint64_t now) {
    if (plan->total == 0) return;
    planner_learn_buckets(plan->planner, plan->last_buckets, probe->counts.buckets, now - plan->last_check);
}

/* Estimate the total number of buckets that the probe will need. `forecast` is the number for the current limit. Early
 * in a probe, the limit will still fall a lot, so fewer buckets are needed. The formula was fitted to searches of SIFT
 * and GIST codes with k = 1 to 100. When 1/400 of the forecast buckets have been probed, a search needs about a quarter
 * of the forecast in total. After 1/50 it needs half, and after 1/10 it needs 85 %. */
static double expected_buckets(double forecast, double probed) {
    double share = 1.9 * pow(probed / forecast, 0.35);
    return share < 1 ? forecast * share : forecast;
}

/* How long the rest of the probe may take, as a multiple of the sweep's time. `spent` is the time of the probe so far,
 * also as a multiple of the sweep's time. Early on, the probe is favoured, because a switch throws its work away. If
 * the probe is still running later, the forecasts were too low, so the rest must be clearly shorter than a sweep. */
static double patience(const struct plan *plan, double spent) {
    return (spent < 0.25 ? 1.25 : spent < 0.5 ? 1 : 0.7) * (plan->start == START_PATIENT ? PATIENT : 1);
}

int plan_prefers_sweep(struct plan *plan, const struct probe *probe, const wh_index *index, uint64_t k, uint64_t limit,
                       uint64_t now) {
    double spent = (double)(now - plan->started);
    plan_learn_buckets(plan, probe, now);
    double per_effort = (double)(now - plan->last_check) / (double)plan->slice;
    plan->total += plan->slice;
    plan->slice = plan->total;
    plan->last_check = now;
    plan->last_buckets = probe->counts.buckets;
    if (limit >= NO_LIMIT) /* give the probe a quarter of the time of a full sweep to find k codes */
        return spent > sweep_nanoseconds(plan, index) / 4;
    double price = sweep_nanoseconds(plan, index);
    if (per_effort * (double)probe_pending(probe) > price / 2) return 1; /* the current bucket alone takes too long */
    if (spent < price / 16) return 0;                                    /* too early to decide */
    if (probe->counts.candidates < MIN_CANDIDATES_PER_HIT * k && spent < price / 4)
        return 0; /* the limit is still poor */
    if (plan->limit != limit) {
        plan->limit = limit;
        plan->forecast = forecast_buckets(probe, (double)limit);
    }
    double probed = (double)probe->counts.buckets;
    double left = planner_buckets_nanoseconds(plan->planner, probed, expected_buckets(plan->forecast, probed));
    if (plan->trial && spent < price) left /= TRIAL_DISCOUNT;
    return left > price * patience(plan, spent / price);
}
