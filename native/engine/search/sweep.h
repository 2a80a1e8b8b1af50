#ifndef WHAMMING_SWEEP_H
#define WHAMMING_SWEEP_H
/* The sweep: an exact SIMD pass over all blocks (arrays.h), which leaves most blocks early.
 *
 * Filter. The 16 costs of each plane are scaled and rounded *down* to a byte. The sum of a code's costs over the planes
 * is then a lower bound of its scaled distance. The scale maps the collector's limit to 254, so a code within the limit
 * never reaches 255.
 * Sums saturate at 255; a lane at 255 is rejected. The sweep leaves a block once all of its 128 lanes are rejected.
 *
 *      planes, most selective first        128 lanes of 8-bit sums
 *      order[0]: look up 16 costs  ->  +=  [ 40  12  90 ... ]
 *      order[1]: ...               ->  +=  [ 95 255 255 ... ]   every 2 planes: all 255? next block
 *
 * Long codes have so many planes that rounding down to 254 steps would lose too much. From SWEEP_WIDE_FROM planes on,
 * sums have 16 bits (sums of 4 planes in a byte, then widened) and finer steps.
 *
 * Verification. For the remaining codes, the exact distance is computed.
 *
 * Order. Planes are visited by decreasing expected cost, computed from the fraction of ones in each bit.
 */
#include "search/collect.h"
#include "search/distance.h"
#include "simd/kernels.h"

enum { SWEEP_WIDE_FROM = 72 /* planes */ };

struct sweep {
    const wh_index *index;
    const struct distance *distance;
    const struct kernels *kernels;
    int wide;
    void *allocated; /* memory of all arrays below; NULL: not initialised yet */
    uint32_t *order;
    uint32_t *plane; /* plane numbers in visiting order */
    uint8_t *lut;
    struct {
        double mean, deviation;
    } *expected;      /* [i]: of a code's cost in the first i + 1 planes visited, if bits were independent */
    uint64_t limit;   /* the limit that `lut` was computed for */
    uint64_t largest; /* wide: the plane cost that maps to the largest value of a look-up */
    size_t check_from;
    uint16_t wide_limit;
    size_t next;            /* the next block */
    struct wh_stats counts; /* blocks, planes, candidates, verified */
    uint32_t *survivors;    /* SWEEP_SURVIVORS */
};

/* Prepare for one query. Returns a wh_status (WH_MEMORY); sweep_free is safe on a zeroed or failed struct. */
int sweep_init(struct sweep *sweep, const wh_index *index, const struct kernels *kernels,
               const struct distance *distance, const uint8_t *optimum, const uint64_t *delta);
void sweep_free(struct sweep *sweep);

/* Go back to the first block, for the next round. */
void sweep_restart(struct sweep *sweep);

/* Sweep the blocks from sweep->next up to `last`, or until about `most` codes have been compared exactly, and offer the
 * codes within the limit. cached: 1 if another query has just read these blocks. Returns a wh_status (WH_CORRUPT). */
int sweep_run(struct sweep *sweep, struct collector *collector, size_t last, uint64_t most, int cached);

/* Estimated number of planes that the sweep reads per block at this limit. It leaves a block when a code whose cost is
 * `margin` standard deviations below the mean passes the limit. */
double sweep_forecast(const struct sweep *sweep, uint64_t limit, double margin);

/* The margin of a finished sweep, computed from its average number of planes per block; -1 if not known. */
double sweep_margin(const struct sweep *sweep, double planes, uint64_t limit);

#endif
