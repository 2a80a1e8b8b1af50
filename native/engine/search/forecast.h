#ifndef WHAMMING_FORECAST_H
#define WHAMMING_FORECAST_H
/* How many buckets will probing take to get the bound past a limit? The costs alone tell, before anything is read.
 *
 * After n keys of each table the bound is the sum over the tables of the n-th smallest key cost. A key's cost is a
 * subset sum of the table's deltas; how many subsets have which sum is counted on a scale of FORECAST_STEPS steps, one
 * bit at a time (each bit doubles the subsets: counts[x] += counts[x - delta]), for all tables in about a microsecond.
 * Rounding to steps makes it an estimate; nothing depends on it but time. */
#include "search/probe.h"

enum { FORECAST_STEPS = 32, FORECAST_TABLES = 64 /* counted; the others are taken to be alike */ };

/* Buckets, all tables together; at least one of each. */
double forecast_buckets(const struct probe *probe, double limit);

#endif
