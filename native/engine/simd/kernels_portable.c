/* The sweep kernel in plain C, for machines without a supported instruction set. There is no sieve kernel: without
 * SIMD, exact comparison is as fast. */
#include <stdint.h>
#include <string.h>

/* The sums of a cell's 16 codes. */
typedef struct {
    uint16_t sum[16];
} portable_sums;

static inline portable_sums portable_add(portable_sums s, const uint8_t *cell, const uint8_t *lut, int times) {
    for (int i = 0; i < 4; i++, cell += 16, lut += 16)
        for (int j = 0; j < 16; j++)
            s.sum[j] = (uint16_t)(s.sum[j] + times * (lut[cell[j] & 15] + lut[64 + (cell[j] >> 4)]));
    return s;
}

static inline uint64_t portable_in(const portable_sums *s, uint16_t threshold) {
    uint64_t in = 0;
    for (int j = 0; j < 64; j++) in |= (uint64_t)(s[j / 16].sum[j % 16] <= threshold) << j;
    return in;
}

#define KERNEL(name) portable_##name
#define TARGET
#define INLINE static inline
#define SUMS portable_sums
#define sums_zero() ((portable_sums){{0}})
#define sums_add(s, cell, lut) portable_add(s, cell, lut, 1)
#define sums_add_64(s, cell, lut) portable_add(s, cell, lut, 64)
#define sums_any(s, threshold) (portable_in(s, threshold) != 0)
#define sums_in(s, threshold) portable_in(s, threshold)
#define sums_store(s, out) memcpy(out, s, 4 * sizeof *(s))
#include "simd/sweep_kernel.h"

const struct kernels kernels_portable = {portable_sweep, NULL, NULL};
