#ifndef WHAMMING_QUERY_H
#define WHAMMING_QUERY_H
/* One query: the data that the searches of all parts share. */
#include "search/collect.h"
#include "search/distance.h"

#define NO_RADIUS (UINT64_MAX - 1) /* less than UINT64_MAX, the bound once every code has been found */

struct query {
    uint64_t *delta;
    uint8_t *optimum; /* in the same allocation, after the deltas */
    int64_t floor;
    int32_t exponent;
    uint32_t plan;   /* enum wh_plan */
    uint64_t k;      /* maximum number of hits */
    uint64_t radius; /* inclusive, in cost units */
    int nothing;     /* 1: k or radius allow no hit at all */
    int resumed;     /* 1: only hits after `after` */
    struct hit after;
    uint64_t bound; /* initial lower bound, in cost units */
    struct distance distance;
};

/* Copies everything that the search points to. Returns a wh_status (WH_ARGUMENT, WH_MEMORY); query_free is safe on a
 * zeroed or failed struct. */
int query_init(struct query *query, uint32_t bits, const struct wh_search *search);
void query_free(struct query *query);

/* Convert cost units above the floor to a distance. */
double query_distance(const struct query *query, uint64_t units);

#endif
