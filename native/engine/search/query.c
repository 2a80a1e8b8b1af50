/* See query.h. */
#include "search/query.h"

#include "base/memory.h"

#include <math.h>

static struct hit position(const struct query *q, wide units, uint64_t id) {
    return (struct hit){(uint64_t)(units >> q->shift), (uint64_t)units & ((UINT64_C(1) << q->shift) - 1), id};
}

/* Return how many of the possible sums are rounded to a distance below x; if `inclusive`, to a distance of at most x.
 * Here, sums are counted in units above the floor: 0, 1, ..., range. A larger sum never has a smaller distance, so a
 * binary search finds the number. */
static wide sums_below(const struct query *q, double x, int inclusive) {
    wide low = 0, high = q->range + 1;
    while (low < high) {
        wide middle = low + (high - low) / 2;
        double distance = query_rounded(q, q->floor + (signed_wide)middle);
        if (inclusive ? distance <= x : distance < x) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void set_radius(struct query *q, double radius) {
    wide within = isinf(radius) && radius > 0 ? q->range + 1 : sums_below(q, radius, 1);
    if (within == 0) q->nothing = 1;
    q->farthest = within > q->range ? (struct hit){NO_RADIUS, UINT64_MAX, UINT64_MAX}
                                    : position(q, within ? within - 1 : 0, UINT64_MAX);
}

/* Skip all hits whose sum, in units above the floor, is less than `skipped`. If has_id, also skip the hits with exactly
 * this sum whose ids are at most `id`. */
static void resume_after(struct query *q, wide skipped, int has_id, uint64_t id) {
    q->resumed = has_id || skipped > 0;
    if (!q->resumed) return;
    q->after = has_id ? position(q, skipped, id) : position(q, skipped - 1, UINT64_MAX);
    q->bound = q->after.steps;
}

static void set_after(struct query *q, const struct wh_search *search) {
    if (search->resumed == WH_AFTER_SUM) {
        signed_wide sum = wide_of(search->after_sum);
        if (sum < q->floor) return;
        wide after = (wide)sum - (wide)q->floor; /* unsigned, because the given sum may be any number */
        if (after > q->range) resume_after(q, q->range + 1, 0, 0);
        else resume_after(q, after, 1, search->after_id);
    } else if (search->resumed == WH_AFTER_DISTANCE) {
        wide below = sums_below(q, search->after_distance, 0);
        int is_sum = below <= q->range && query_rounded(q, q->floor + (signed_wide)below) == search->after_distance;
        if (is_sum && search->scale.rounded) {
            /* Several sums may round to this distance: return their hits again, except the one with the given id. */
            q->skips = 1;
            q->skipped = position(q, sums_below(q, search->after_distance, 1) - 1, search->after_id);
            is_sum = 0;
        }
        resume_after(q, below, is_sum, search->after_id);
    }
}

int query_init(struct query *q, uint32_t bits, const struct wh_search *search) {
    if (search->plan > WH_SWEEP || isnan(search->radius) || search->resumed > WH_AFTER_SUM ||
        (search->resumed == WH_AFTER_DISTANCE && isnan(search->after_distance)) || search->scale.shift > 63)
        return WH_ARGUMENT;
    size_t numbers = search->scale.shift ? 2 * (size_t)bits : bits;
    q->delta = wh_malloc(sizeof *q->delta * numbers + code_bytes_of(bits));
    if (!q->delta) return WH_MEMORY;
    q->optimum = (uint8_t *)(q->delta + numbers);
    memcpy(q->optimum, search->optimum, code_bytes_of(bits));
    memcpy(q->delta, search->delta, sizeof *q->delta * bits);
    q->shift = search->scale.shift;
    if (q->shift) {
        q->rest = q->delta + bits;
        memcpy(q->rest, search->rest, sizeof *q->rest * bits);
    }
    for (uint32_t i = 0; i < bits; i++) q->range += ((wide)q->delta[i] << q->shift) + (q->rest ? q->rest[i] : 0);
    q->floor = wide_of(search->scale.floor);
    q->unit = ldexp(1, search->scale.exponent);
    q->plan = search->plan;
    q->k = search->k;
    q->nothing = search->k == 0;
    set_radius(q, search->radius);
    set_after(q, search);
    return q->nothing ? WH_OK : distance_init(&q->distance, bits, q->optimum, q->delta, q->rest, q->shift);
}

void query_free(struct query *q) {
    wh_free(q->delta);
    distance_free(&q->distance);
    *q = (struct query){0};
}

void wh_searches_fill(struct wh_search *searches, size_t count, uint32_t bits, const uint8_t *optima,
                      const uint64_t *deltas, const uint64_t *rests, const struct wh_scale *scales, uint32_t plan,
                      uint64_t k, double radius) {
    for (size_t i = 0; i < count; i++)
        searches[i] = (struct wh_search){.optimum = optima + i * code_bytes_of(bits),
                                         .delta = deltas + i * bits,
                                         .rest = rests + i * bits,
                                         .scale = scales[i],
                                         .plan = plan,
                                         .k = k,
                                         .radius = radius};
}
