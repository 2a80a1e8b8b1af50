#ifndef WHAMMING_SWEEP_H
#define WHAMMING_SWEEP_H
/* The sweep: a SIMD pass over the blocks (arrays.h) that is exact and leaves most of them early.
 *
 * Filter. Each plane's 16 costs are scaled and rounded *down* to a byte, so that a sum of them is a lower bound of the
 * code's scaled distance. With the scale chosen so that the collector's limit becomes 254, a code within the
 * limit never reaches 255; a lane at 255 (sums saturate there) is out, and a block whose 128 lanes are all out is left.
 *
 *      planes, most telling first          128 lanes of 8-bit sums
 *      order[0]: look up 16 costs  ->  +=  [ 40  12  90 ... ]
 *      order[1]: ...               ->  +=  [ 95 255 255 ... ]   every 2 planes: all 255? next block
 *
 * Long codes have so many planes that rounding down would lose too much of 254 steps: from WIDE_FROM planes on the
 * sums have 16 bits (sums of 4 planes in a byte, then widened) and finer steps.
 *
 * Verification. What is left over is compared exactly, by the code itself.
 *
 * Order. A plane's expected cost, from the share of ones of each bit, tells how much of the limit it uses up: the
 * largest goes first.
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
    void *allocated; /* all that is pointed to below; NULL: not made ready yet */
    uint32_t *order;
    uint32_t *plane; /* plane numbers in visiting order */
    uint8_t *lut;
    struct {
        double mean, deviation;
    } *outlook;       /* of a code's cost in the first planes, in visiting order, were its bits independent */
    uint64_t limit;   /* that the lut was made for */
    uint64_t largest; /* wide: the plane cost that one look-up's full range stands for */
    size_t check_from;
    uint16_t wide_limit;
    size_t next; /* block */
    uint64_t blocks, planes_read, candidates, verified;
    uint32_t *survivors; /* SWEEP_SURVIVORS */
};

/* Make ready for one query. Returns a wh_status (WH_MEMORY); sweep_free is safe on a zeroed or failed struct. */
int sweep_init(struct sweep *sweep, const wh_index *index, const struct kernels *kernels,
               const struct distance *distance, const uint8_t *optimum, const uint64_t *delta);
void sweep_free(struct sweep *sweep);

/* Go back to the first block, for hits beyond the limit so far. */
void sweep_restart(struct sweep *sweep);

/* Sweep blocks from sweep->next up to `last`, or until about `most` codes have been compared exactly, and offer what is
 * found. cached: another query has just passed over these blocks. Returns a wh_status (WH_CORRUPT). */
int sweep_run(struct sweep *sweep, struct collector *collector, size_t last, uint64_t most, int cached);

/* Planes that a block is likely to take at this limit: until the cost of a code that lies `margin` deviations below the
 * mean passes it. */
double sweep_forecast(const struct sweep *sweep, uint64_t limit, double margin);

/* The margin that a finished sweep of so many planes per block turned out to have; -1 where it tells nothing. */
double sweep_margin(const struct sweep *sweep, double planes, uint64_t limit);

#endif
