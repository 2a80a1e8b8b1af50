#ifndef WHAMMING_FORECAST_H
#define WHAMMING_FORECAST_H
/* Estimates how many buckets must be probed until the bound passes a limit, from the costs alone.
 *
 * After n keys of each table, the bound is the sum over the tables of the n-th smallest key cost. The cost of a key is
 * a subset sum of the table's deltas. The number of subsets per sum is counted on a scale of FORECAST_STEPS steps, one
 * bit at a time (each bit doubles the subsets: counts[x] += counts[x - delta]). This takes about a microsecond for all
 * tables. Rounding to steps makes it an estimate, which affects the time of a search and nothing else. */
#include "search/probe.h"

enum { FORECAST_STEPS = 32, FORECAST_TABLES = 64 /* tables to count; the others are assumed similar */ };

/* Number of buckets of all tables together, at least one per table. */
double forecast_buckets(const struct probe *probe, double limit);

#endif
