#ifndef WHAMMING_QUANTISE_H
#define WHAMMING_QUANTISE_H
/* Converts costs to bytes for the SIMD filters. Each cost is multiplied by a scale and rounded down. So the sum of a
 * code's bytes is a lower bound on its scaled distance. */
#include <stdint.h>

#define NO_LIMIT (UINT64_C(1) << 63) /* above every distance, in steps */

/* A scale at which the bytes of every code within the limit add up to at most `top`.
 *
 * Proof: every conversion to a double, multiplication or division errs by a factor of at most
 * 1 / (1 - 2^-53). The scale takes three of these operations, and a byte two more. Together, the five factors are
 * less than 1 + 2^-50. So the sum of a code within the limit is less than top x (1 - 2^-50)(1 + 2^-50) < top. */
static inline double quantise_scale(uint64_t limit, uint32_t top) {
    return limit ? top / (double)limit * (1 - 0x1p-50) : 0x1p60; /* limit 0: every cost above 0 reaches the cap */
}

/* Quantise the 16 costs of a nibble. Results above `cap` become `cap`. Returns the largest result. */
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
