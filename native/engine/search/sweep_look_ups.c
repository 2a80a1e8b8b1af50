/* The look-ups of a sweep: costs scaled to small numbers, and the order in which planes are visited. See sweep.h. */
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
    uint64_t most[WH_MAX_BITS / 4];
    for (size_t p = 0; p < planes; p++) {
        uint64_t largest = largest_of(s->distance->nibble + p * 16);
        size_t at = p; /* insertion sort: few planes, often nearly in order */
        for (; at > 0 && most[at - 1] > largest; at--) most[at] = most[at - 1];
        most[at] = largest;
    }
    size_t free = 0; /* number of planes whose costs are all 0 */
    while (free < planes && most[free] == 0) free++;
    double typical = free < planes ? (double)most[free + (planes - free) * 9 / 10] : 0;
    double largest = (double)most[planes - 1] <= MOST_RATIO * typical ? (double)most[planes - 1] : typical;
    s->scale = largest > SWEEP_LUT_MAX ? SWEEP_LUT_MAX / largest * (1 - 0x1p-50) : 1;
}

/* Compute the look-ups. The part of a scaled cost above SWEEP_LUT_MAX goes to the look-ups of a heavy plane. These are
 * capped so that no sum exceeds 65,535. */
static void quantise(struct sweep *s) {
    size_t planes = s->index->planes;
    choose_scale(s);
    for (size_t p = 0; p < planes; p++) {
        const uint64_t *nibble = s->distance->nibble + p * 16;
        quantise_nibble(nibble, s->scale, SWEEP_LUT_MAX, s->mode[SWEEP_STREAM].lut + p * 16);
        if ((double)largest_of(nibble) * s->scale >= SWEEP_LUT_MAX + 1) s->heavy_at[s->heavy++] = (uint32_t)p;
    }
    size_t cap = s->heavy ? (ALL_SUMS - planes * SWEEP_LUT_MAX) / s->heavy : 0;
    for (size_t i = 0; i < s->heavy; i++) {
        const uint64_t *nibble = s->distance->nibble + (size_t)s->heavy_at[i] * 16;
        uint8_t *lut = s->heavy_lut + i * 32;
        for (size_t x = 0; x < 16; x++) {
            double rest = (double)nibble[x] * s->scale - SWEEP_LUT_MAX;
            size_t step = rest < 0 ? 0 : rest >= (double)cap ? cap : (size_t)rest;
            if (rest >= (double)cap + 1) s->capped = 1;
            lut[x] = (uint8_t)step;
            lut[16 + x] = (uint8_t)(step >> 8);
        }
        s->heavy_at[i] *= 64;
    }
    s->exact = s->scale == 1 && !s->capped;
    s->margin = s->exact ? 0 : (uint16_t)((double)planes / 2 + 4 * sqrt((double)planes / 12) + 1);
}

/* Order the groups of planes for SWEEP_SKIP. The group that is expected to add most to the cost of a code comes first.
 * If the last group is smaller than the others, it stays last. */
void sweep_order_groups(struct sweep *s) {
    const wh_index *index = s->index;
    size_t full = index->planes / SWEEP_GROUP;
    double expected[WH_MAX_BITS / 4 / SWEEP_GROUP];
    uint32_t *order = s->mode[SWEEP_SKIP].order;
    for (size_t g = 0; g < s->groups; g++) {
        double sum = 0;
        for (size_t i = g * SWEEP_GROUP * 4; i < (g + 1) * SWEEP_GROUP * 4 && i < index->meta.bits; i++) {
            double ones = index->frequency[i] / 65535.0;
            sum += (double)s->delta[i] * (s->optimum[i >> 3] >> (i & 7) & 1 ? 1 - ones : ones);
        }
        expected[g] = sum;
        size_t at = g;
        for (; g < full && at > 0 && expected[order[at - 1]] < sum; at--) order[at] = order[at - 1];
        order[at] = (uint32_t)g;
    }
    for (size_t at = 0; at < s->groups; at++) {
        size_t g = order[at], size = g < full ? SWEEP_GROUP : index->planes % SWEEP_GROUP;
        memcpy(s->mode[SWEEP_SKIP].lut + at * SWEEP_GROUP * 16, s->mode[SWEEP_STREAM].lut + g * SWEEP_GROUP * 16,
               size * 16);
        order[at] = (uint32_t)(g * SWEEP_GROUP * 64);
    }
    s->ordered = 1;
}

void sweep_fill_look_ups(struct sweep *s) {
    quantise(s);
    for (size_t g = 0; g < s->groups; g++) s->mode[SWEEP_STREAM].order[g] = (uint32_t)(g * SWEEP_GROUP * 64);
}
