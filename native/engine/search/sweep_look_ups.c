/* The look-ups of a sweep: costs scaled to small numbers, and the order in which quads are visited. See sweep.h. */
#include "search/quantise.h"
#include "search/sweep.h"

#include <math.h>

enum { ALL_SUMS = 65535 /* the largest 16-bit sum */, MOST_RATIO = 2 };

static uint64_t largest_of(const uint64_t *nibble) {
    uint64_t largest = 0;
    for (size_t x = 0; x < 16; x++)
        if (nibble[x] > largest) largest = nibble[x];
    return largest;
}

/* Choose the scale of all look-ups: the largest cost of all planes becomes SWEEP_LUT_MAX. But if it is more than
 * MOST_RATIO times as much as that of a typical plane, the largest cost of the typical plane becomes SWEEP_LUT_MAX
 * instead. Planes with larger costs are then heavy. They take more time, but a small scale would make sums imprecise. The
 * typical plane is the one at the 90th percentile of those that have costs, sorted by their largest one. If the costs are
 * small already, the scale is 1. */
static void choose_scale(struct sweep *s) {
    size_t planes = s->index->planes;
    uint64_t most[WH_MAX_BITS / 4], highest = 0;
    for (size_t p = 0; p < planes; p++) {
        uint64_t largest = largest_of(s->distance->nibble + p * 16);
        if (largest > highest) highest = largest;
        size_t at = p; /* insertion sort: few planes, often nearly in order */
        for (; at > 0 && most[at - 1] > largest; at--) most[at] = most[at - 1];
        most[at] = largest;
    }
    size_t free = 0; /* number of planes whose costs are all 0 */
    while (free < planes && most[free] == 0) free++;
    double typical = free < planes ? (double)most[free + (planes - free) * 9 / 10] : 0;
    double largest = (double)highest <= MOST_RATIO * typical ? (double)highest : typical;
    s->scale = largest > SWEEP_LUT_MAX ? SWEEP_LUT_MAX / largest * (1 - 0x1p-50) : 1;
}

/* The look-ups of a plane among those of its quad. */
static uint8_t *lut_of(uint8_t *luts, size_t plane) {
    size_t byte = plane / 2 % 4, half = plane % 2 * (SWEEP_LUT_BYTES / 2);
    return luts + plane / SWEEP_QUAD_PLANES * SWEEP_LUT_BYTES + half + byte * 16;
}

/* Compute the look-ups of a plane with a cost above SWEEP_LUT_MAX, in two parts. */
static void quantise_heavy(struct sweep *s, size_t plane, size_t cap, uint8_t *heavy_lut) {
    enum { TIMES = SWEEP_LUT_MAX + 1 };
    const uint64_t *nibble = s->distance->nibble + plane * 16;
    uint8_t *light = lut_of(s->mode[SWEEP_STREAM].lut, plane), *heavy = lut_of(heavy_lut, plane % SWEEP_QUAD_PLANES);
    for (size_t x = 0; x < 16; x++) {
        double scaled = (double)nibble[x] * s->scale;
        size_t step = scaled >= (double)cap ? cap : (size_t)scaled;
        if (scaled >= (double)cap + 1) s->capped = 1;
        light[x] = (uint8_t)(step % TIMES);
        heavy[x] = (uint8_t)(step / TIMES);
    }
}

/* Compute all look-ups. Those of heavy planes are capped so that no sum exceeds 65,535. */
static void quantise(struct sweep *s) {
    size_t planes = s->index->planes, count = 0;
    uint8_t is_heavy[WH_MAX_BITS / 4];
    choose_scale(s);
    for (size_t p = 0; p < planes; p++) {
        const uint64_t *nibble = s->distance->nibble + p * 16;
        is_heavy[p] = (double)largest_of(nibble) * s->scale >= SWEEP_LUT_MAX + 1;
        count += is_heavy[p];
        if (!is_heavy[p]) quantise_nibble(nibble, s->scale, SWEEP_LUT_MAX, lut_of(s->mode[SWEEP_STREAM].lut, p));
    }
    size_t cap = (SWEEP_LUT_MAX + 1) * SWEEP_HEAVY_MAX + SWEEP_LUT_MAX;
    if (count && (ALL_SUMS - planes * SWEEP_LUT_MAX) / count + SWEEP_LUT_MAX < cap)
        cap = (ALL_SUMS - planes * SWEEP_LUT_MAX) / count + SWEEP_LUT_MAX;
    for (size_t p = 0; p < planes; p++) {
        if (!is_heavy[p]) continue;
        uint32_t at = (uint32_t)(p / SWEEP_QUAD_PLANES) * QUAD_BYTES;
        if (s->heavy == 0 || s->heavy_at[s->heavy - 1] != at) s->heavy_at[s->heavy++] = at;
        quantise_heavy(s, p, cap, s->heavy_lut + (s->heavy - 1) * SWEEP_LUT_BYTES);
    }
    s->exact = s->scale == 1 && !s->capped;
    s->margin = s->exact ? 0 : (uint16_t)((double)planes / 2 + 4 * sqrt((double)planes / 12) + 1);
}

/* Order the quads for SWEEP_SKIP. The quad that is expected to add most to the cost of a code comes first. */
void sweep_order_quads(struct sweep *s) {
    const wh_index *index = s->index;
    double expected[WH_MAX_BITS / 4 / SWEEP_QUAD_PLANES];
    uint32_t *order = s->mode[SWEEP_SKIP].order;
    for (size_t q = 0; q < s->quads; q++) {
        const size_t first = q * SWEEP_QUAD_PLANES * 4, end = first + SWEEP_QUAD_PLANES * 4;
        double sum = 0;
        for (size_t i = first; i < end && i < index->meta.bits; i++) {
            double ones = index->frequency[i] / 65535.0;
            sum += (double)s->delta[i] * (s->optimum[i >> 3] >> (i & 7) & 1 ? 1 - ones : ones);
        }
        expected[q] = sum;
        size_t at = q;
        for (; at > 0 && expected[order[at - 1]] < sum; at--) order[at] = order[at - 1];
        order[at] = (uint32_t)q;
    }
    for (size_t at = 0; at < s->quads; at++) {
        memcpy(s->mode[SWEEP_SKIP].lut + at * SWEEP_LUT_BYTES, s->mode[SWEEP_STREAM].lut + order[at] * SWEEP_LUT_BYTES,
               SWEEP_LUT_BYTES);
        order[at] *= QUAD_BYTES;
    }
    s->ordered = 1;
}

void sweep_fill_look_ups(struct sweep *s) {
    quantise(s);
    for (size_t q = 0; q < s->quads; q++) s->mode[SWEEP_STREAM].order[q] = (uint32_t)q * QUAD_BYTES;
    s->mode[SWEEP_STREAM].stops[0] = (uint32_t)s->quads;
}
