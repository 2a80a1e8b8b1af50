#ifndef WHAMMING_QUANTISE_H
#define WHAMMING_QUANTISE_H
/* Costs rounded down to bytes, for the SIMD filters. A sum of them is a lower bound of the scaled distance. */
#include <stdint.h>

#define NO_LIMIT (UINT64_C(1) << 63) /* above every distance, in steps */

/* The scale at which every distance within the limit has a sum of at most `top`.
 *
 * Proof: each conversion to a double, product and quotient errs by a factor of at most 1 / (1 - 2^-53). The scale
 * results from three of them, a look-up from two more; five are less than 1 + 2^-50. So the sum of a code within the
 * limit is less than top x (1 - 2^-50)(1 + 2^-50) < top. */
static inline double quantise_scale(uint64_t limit, uint32_t top) {
    return limit ? top / (double)limit * (1 - 0x1p-50) : 0x1p60; /* limit 0: any cost exceeds it */
}

/* Quantise the 16 costs of a nibble, each to at most `cap`. Returns the largest. */
static inline uint32_t quantise_nibble(const uint64_t *cost, double scale, uint32_t cap, uint8_t *out) {
    uint32_t most = 0;
    for (int x = 0; x < 16; x++) {
        double scaled = (double)cost[x] * scale;
        uint32_t step = scaled >= cap ? cap : (uint32_t)scaled;
        out[x] = (uint8_t)step;
        if (step > most) most = step;
    }
    return most;
}

#endif
