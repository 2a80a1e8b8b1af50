#ifndef WHAMMING_QUERY_H
#define WHAMMING_QUERY_H
/* One query: the data that the searches of all parts share. */
#include "base/wide.h"
#include "search/collect.h"
#include "search/distance.h"

#define NO_RADIUS (UINT64_MAX - 1) /* less than UINT64_MAX, which is the bound once every code has been found */

struct query {
    uint64_t *delta;
    uint64_t *rest;   /* in the same allocation, after the deltas; NULL if all rests are 0 */
    uint8_t *optimum; /* in the same allocation, at its end */
    signed_wide floor;
    wide range;  /* the sum of the extra costs of all bits, in units */
    double unit; /* 2^exponent */
    uint32_t shift;
    uint32_t plan;       /* enum wh_plan */
    uint64_t k;          /* maximum number of hits */
    struct hit farthest; /* the last position within the radius */
    int nothing;         /* 1: k or radius allow no hit at all */
    int resumed;         /* 1: only hits after `after` */
    struct hit after;
    int skips; /* 1: `skipped` is set (collect.h) */
    struct hit skipped;
    uint64_t bound; /* the lower bound that all parts start with, in steps */
    struct distance distance;
};

/* Initialise a query. Copies everything that the search points to. Returns a wh_status (WH_ARGUMENT, WH_MEMORY);
 * query_free is safe on a zeroed or failed struct. */
int query_init(struct query *query, uint32_t bits, const struct wh_search *search);
void query_free(struct query *query);

/* The exact distance of a hit, in units. */
static inline signed_wide query_sum(const struct query *q, struct hit hit) {
    return q->floor + (signed_wide)(((wide)hit.steps << q->shift) + hit.rest);
}

/* Convert a sum of units to a distance: the nearest double, ties to even. Only the conversion to double may round. The
 * multiplication is exact, because the unit is a power of two of at least 2^-1074. A sum that was rounded exceeds 2^53
 * in magnitude, so the result is a normal double. */
static inline double query_rounded(const struct query *q, signed_wide sum) {
    int64_t small = (int64_t)sum;
    return (small == sum ? (double)small : (double)sum) * q->unit;
}

#endif
