#ifndef WHAMMING_FORECAST_H
#define WHAMMING_FORECAST_H
/* Estimates, from the costs alone, how many buckets must be probed until the probe's bound passes a limit.
 *
 * Once n keys of each table have been probed, the bound is about the sum of the n-th smallest key costs of all tables.
 * The cost of a key is the sum of the deltas of its changed bits. So the keys of a table are counted by cost, one bit
 * at a time: counts[x] += counts[x - delta]. The costs are rounded to a scale of FORECAST_STEPS steps. This takes about
 * a microsecond for all tables. Because of the rounding, the result is an estimate. It affects the time of a search and
 * nothing else. */
#include "search/probe.h"

enum {
    FORECAST_STEPS = 32,
    FORECAST_TABLES = 64 /* tables whose keys are counted; the others are assumed to be similar */
};

/* The estimated number of buckets, for all tables together. It is at least one per table. */
double forecast_buckets(const struct probe *probe, double limit);

#endif
