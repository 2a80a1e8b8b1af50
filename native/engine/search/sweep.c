/* The sweep around its kernels: plane order, look-up tables, verification. See sweep.h. */
#include "search/sweep.h"

#include "base/memory.h"
#include "search/quantise.h"
#include "search/rows.h"

#include <math.h>

/* How many planes of a later block to prefetch: as many as were read per block so far, on average, and a few more. The
 * wide kernel prefetches the remaining planes as it proceeds; prefetching more at once slows it down. */
enum { PREFETCH_MORE = 2, PREFETCH_MAX = 32, PREFETCH_MAX_WIDE = 16 };

static void order_planes(struct sweep *s, const uint8_t *optimum, const uint64_t *delta) {
    const wh_index *index = s->index;
    size_t planes = index->planes;
    double mean[WH_MAX_BITS / 4], variance[WH_MAX_BITS / 4];
    for (size_t p = 0; p < planes; p++) {
        mean[p] = variance[p] = 0;
        for (uint32_t i = 4 * (uint32_t)p; i < 4 * p + 4 && i < index->meta.bits; i++) {
            double ones = index->frequency[i] / 65535.0, cost = (double)delta[i];
            mean[p] += cost * (optimum[i >> 3] >> (i & 7) & 1 ? 1 - ones : ones);
            variance[p] += cost * cost * ones * (1 - ones);
        }
    }
    for (size_t p = 0; p < planes; p++) { /* insertion sort: few planes, often nearly in order */
        size_t at = p;
        for (; at > 0 && mean[s->plane[at - 1]] < mean[p]; at--) s->plane[at] = s->plane[at - 1];
        s->plane[at] = (uint32_t)p;
    }
    double sum = 0, square = 0;
    for (size_t at = 0; at < planes; at++) {
        uint32_t p = s->plane[at];
        s->order[at] = p * 64;
        s->expected[at].mean = sum += mean[p];
        s->expected[at].deviation = sqrt(square += variance[p]);
    }
}

void sweep_restart(struct sweep *s) {
    s->next = 0;
    s->limit = UINT64_MAX; /* the filter is outdated: the next round has a higher limit */
}

int sweep_init(struct sweep *s, const wh_index *index, const struct kernels *kernels, const struct distance *distance,
               const uint8_t *optimum, const uint64_t *delta) {
    size_t planes = index->planes;
    s->index = index;
    s->distance = distance;
    s->kernels = kernels;
    s->wide = planes >= SWEEP_WIDE_FROM;
    sweep_restart(s);
    size_t padded = (planes + 3) / 4 * 4; /* the wide kernel processes 4 planes at a time */
    s->allocated = wh_malloc(padded * (sizeof *s->expected + 16 + sizeof *s->plane + sizeof *s->order) +
                             SWEEP_SURVIVORS * sizeof *s->survivors);
    if (!s->allocated) return WH_MEMORY;
    s->expected = s->allocated;
    s->lut = (uint8_t *)(s->expected + padded);
    s->plane = (uint32_t *)(s->lut + 16 * padded);
    s->order = s->plane + padded;
    s->survivors = s->order + padded;
    memset(s->lut, 0, 16 * padded);
    order_planes(s, optimum, delta);
    /* The scale of wide sums: take the largest cost of each plane. The 90th percentile of these is mapped to the
     * largest value that a look-up can have. Higher costs are capped, so the sum is still a lower bound. */
    uint64_t most[WH_MAX_BITS / 4];
    if (s->wide) {
        for (size_t p = 0; p < planes; p++) {
            uint64_t largest = 0;
            for (int x = 0; x < 16; x++)
                if (distance->nibble[p * 16 + (size_t)x] > largest) largest = distance->nibble[p * 16 + (size_t)x];
            size_t at = p;
            for (; at > 0 && most[at - 1] > largest; at--) most[at] = most[at - 1];
            most[at] = largest;
        }
        s->largest = most[planes * 9 / 10];
    }
    return WH_OK;
}

void sweep_free(struct sweep *s) {
    wh_free(s->allocated);
    s->allocated = NULL;
}

/* Scale the costs so that the limit becomes the largest sum that is not rejected. */
static void quantise(struct sweep *s, uint64_t limit) {
    size_t planes = s->index->planes;
    uint32_t top = 254, cap = 255;
    double scale;
    s->limit = limit;
    if (s->wide) {
        cap = 63;
        scale = s->largest ? cap / (double)s->largest : 1;
        double sum = (double)limit * scale;
        if (sum > 65534) scale = 65534 / (double)limit;
        scale *= 1 - 0x1p-50;
        sum = (double)limit * scale * (1 + 0x1p-40) + 1;
        s->wide_limit = sum >= 65534 ? 65534 : (uint16_t)sum;
        top = s->wide_limit;
    } else {
        scale = quantise_scale(limit, top);
    }
    uint64_t reach = 0;
    s->check_from = planes + 4;
    for (size_t at = 0; at < planes; at++) {
        reach += quantise_nibble(s->distance->nibble + (size_t)s->plane[at] * 16, scale, cap, s->lut + at * 16);
        if (reach > top && s->check_from > planes) s->check_from = s->wide ? (at + 4) / 4 * 4 : (at + 2) / 2 * 2;
    }
}

static int verify(struct sweep *s, struct collector *c, size_t count) {
    const wh_index *index = s->index;
    uint64_t carry = distance_carry(s->distance);
    s->counts.candidates += count;
    for (size_t i = 0; i < count; i++) __builtin_prefetch(index->codes + (uint64_t)s->survivors[i] * index->code_bytes);
    for (size_t i = 0; i < count; i++) {
        uint32_t row = s->survivors[i];
        if (row >= index->meta.rows) continue; /* padding of the last block */
        s->counts.verified++;
        const uint8_t *code = index->codes + (uint64_t)row * index->code_bytes;
        uint64_t steps = distance_of(s->distance, code);
        if (collect_may_keep(c, steps, carry) && !offer_row(index, c, row, distance_exact(s->distance, code, steps)))
            return 0;
    }
    return 1;
}

static size_t run_kernel(struct sweep *s, size_t first, size_t last, int cached, size_t *survivors) {
    size_t prefetch = cached ? 0 : s->counts.blocks ? (size_t)(s->counts.planes / s->counts.blocks) + PREFETCH_MORE : 4;
    size_t most = s->wide ? PREFETCH_MAX_WIDE : PREFETCH_MAX;
    struct sweep_job job = {.blocks = s->index->blocks,
                            .planes = s->index->planes,
                            .order = s->order,
                            .lut = s->lut,
                            .check_from = s->check_from,
                            .prefetch = prefetch < most ? prefetch : most,
                            .limit = s->wide_limit,
                            .first = first,
                            .last = last,
                            .survivors = s->survivors};
    if (job.prefetch > job.planes) job.prefetch = job.planes;
    size_t next = (s->wide ? s->kernels->wide : s->kernels->narrow)(&job);
    s->counts.blocks += next - first;
    s->counts.planes += job.planes_read;
    *survivors = job.count;
    return next;
}

int sweep_run(struct sweep *s, struct collector *c, size_t last, uint64_t most, int cached) {
    uint64_t before = s->counts.verified;
    if (last > s->index->blocks_count) last = s->index->blocks_count;
    while (s->next < last && s->counts.verified - before < most) {
        size_t count;
        uint64_t limit = c->limit < NO_LIMIT ? c->limit : NO_LIMIT;
        if (limit < s->limit - s->limit / 32) quantise(s, limit); /* tighten the filter as the limit falls */
        s->next = run_kernel(s, s->next, last, cached, &count);
        if (!verify(s, c, count)) return WH_CORRUPT;
    }
    return WH_OK;
}

double sweep_forecast(const struct sweep *s, uint64_t limit, double margin) {
    size_t planes = s->index->planes, p = 0;
    while (p < planes && s->expected[p].mean - margin * s->expected[p].deviation < (double)limit) p++;
    return p < 2 ? 2 : (double)p;
}

double sweep_margin(const struct sweep *s, double planes, uint64_t limit) {
    size_t p = (size_t)(planes + 0.5);
    if (p < 1 || p >= s->index->planes || s->expected[p - 1].deviation <= 0) return -1;
    return (s->expected[p - 1].mean - (double)limit) / s->expected[p - 1].deviation;
}
