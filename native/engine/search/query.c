/* See query.h. */
#include "search/query.h"

#include "base/memory.h"

#include <math.h>

double query_distance(const struct query *q, uint64_t units) {
    return ldexp((double)(q->floor + (int64_t)units), -q->exponent);
}

/* The largest number of cost units above the floor whose distance is at most x; -1 if the floor itself exceeds x. */
static int64_t units_within(const struct query *q, double x) {
    double scaled = floor(ldexp(x, q->exponent));
    if (scaled == 0 && x < 0) scaled = -1; /* x underflowed to -0 */
    if (scaled < (double)q->floor) return -1;
    if (scaled > 0x1p60) return INT64_MAX;
    return (int64_t)scaled - q->floor;
}

int query_init(struct query *q, uint32_t bits, const struct wh_search *search) {
    if (search->plan > WH_SWEEP || isnan(search->radius) || (search->resumed && isnan(search->after_distance)))
        return WH_ARGUMENT;
    q->delta = wh_malloc(sizeof *q->delta * bits + code_bytes_of(bits));
    if (!q->delta) return WH_MEMORY;
    q->optimum = (uint8_t *)(q->delta + bits);
    memcpy(q->optimum, search->optimum, code_bytes_of(bits));
    memcpy(q->delta, search->delta, sizeof *q->delta * bits);
    q->floor = search->floor;
    q->exponent = search->exponent;
    q->plan = search->plan;
    q->k = search->k;
    int64_t radius = units_within(q, search->radius);
    q->radius = radius == INT64_MAX ? NO_RADIUS : (uint64_t)radius;
    q->nothing = search->k == 0 || radius < 0;
    if (search->resumed) {
        int64_t after = units_within(q, search->after_distance);
        q->resumed = after >= 0;
        /* Hits are at multiples of a unit. If `after` is between two multiples, skip all hits up to the lower one. */
        int exact = q->resumed && after != INT64_MAX && query_distance(q, (uint64_t)after) == search->after_distance;
        q->after = (struct hit){(uint64_t)after, exact ? search->after_id : UINT64_MAX};
        if (q->resumed && after != INT64_MAX) q->bound = (uint64_t)after;
    }
    return q->nothing ? WH_OK : distance_init(&q->distance, bits, q->optimum, q->delta);
}

void query_free(struct query *q) {
    wh_free(q->delta);
    distance_free(&q->distance);
    *q = (struct query){0};
}

void wh_searches_fill(struct wh_search *searches, size_t count, uint32_t bits, const uint8_t *optima,
                      const uint64_t *deltas, const int64_t *floors, const int32_t *exponents, uint32_t plan,
                      uint64_t k, double radius) {
    for (size_t i = 0; i < count; i++)
        searches[i] = (struct wh_search){.optimum = optima + i * code_bytes_of(bits),
                                         .delta = deltas + i * bits,
                                         .floor = floors[i],
                                         .exponent = exponents[i],
                                         .plan = plan,
                                         .k = k,
                                         .radius = radius};
}
