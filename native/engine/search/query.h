#ifndef WHAMMING_QUERY_H
#define WHAMMING_QUERY_H
/* One query: what the search of every part of an index shares. */
#include "search/collect.h"
#include "search/distance.h"

#define NO_RADIUS (UINT64_MAX - 1) /* below the bound that "everything was met" has */

struct query {
    uint64_t *delta;
    uint8_t *optimum; /* behind the deltas, in the same allocation */
    int64_t floor;
    int32_t exponent;
    uint32_t plan;   /* enum wh_plan */
    uint64_t k;      /* hits wanted in all */
    uint64_t radius; /* inclusive, in cost units */
    int nothing;     /* k or radius admit no hit at all */
    int resumed;     /* only hits after `after` */
    struct hit after;
    uint64_t bound; /* cost units: known from the start */
    struct distance distance;
};

/* Copies what the search points to. Returns a wh_status (WH_ARGUMENT, WH_MEMORY); query_free is safe on a zeroed or
 * failed struct. */
int query_init(struct query *query, uint32_t bits, const struct wh_search *search);
void query_free(struct query *query);

/* Cost units above the floor as a distance. */
double query_distance(const struct query *query, uint64_t units);

#endif
