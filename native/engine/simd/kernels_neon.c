/* The kernels on NEON (AArch64): 16 bytes per instruction. */
#if defined(__aarch64__)
#include <arm_neon.h>
#define KERNEL(name) neon_##name
#define TARGET
#define V uint8x16_t
#define V_BYTES 16
#define v_zero() vdupq_n_u8(0)
#define v_load(p) vld1q_u8(p)
#define v_table(p) vld1q_u8(p)
#define v_look_low(t, x) vqtbl1q_u8(t, vandq_u8(x, vdupq_n_u8(15)))
#define v_look_high(t, x) vqtbl1q_u8(t, vshrq_n_u8(x, 4))
#define v_add8(a, b) vqaddq_u8(a, b)
#define v_zip_low(a, b) vzip1q_u8(a, b)
#define v_zip_high(a, b) vzip2q_u8(a, b)
#define v_in8(x) neon_in8(x)
#include <stdint.h>

static inline uint32_t neon_in8(uint8x16_t x) {
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t in = vandq_u8(vmvnq_u8(vceqq_u8(x, vdupq_n_u8(255))), vld1q_u8(bit));
    return (uint32_t)vaddv_u8(vget_low_u8(in)) | (uint32_t)vaddv_u8(vget_high_u8(in)) << 8;
}

#include "simd/sieve_kernel.h"

#define SUMS neon_sums
#define sums_zero() ((neon_sums){vdupq_n_u16(0), vdupq_n_u16(0)})
#define sums_add(s, cell, lut) neon_add_quad(s, cell, lut)
#define sums_add_64(s, cell, lut) neon_add_heavy(s, cell, lut)
#define sums_any(s, threshold) neon_any(s, threshold)
#define sums_in(s, threshold) neon_in(s, threshold)
#define INLINE static inline __attribute__((always_inline))
#define sums_store(s, out) neon_store(s, out)

/* The sums of the first and of the last 8 codes. */
typedef struct {
    uint16x8_t first, last;
} neon_sums;

/* The sum of the look-ups of both nibbles of byte i of each code. */
static inline uint8x16_t neon_look(const uint8_t *cell, const uint8_t *lut, int i) {
    uint8x16_t x = v_load(cell + 16 * i);
    return vaddq_u8(v_look_low(v_load(lut + 16 * i), x), v_look_high(v_load(lut + 64 + 16 * i), x));
}

static inline neon_sums neon_add_quad(neon_sums s, const uint8_t *cell, const uint8_t *lut) {
    for (int i = 0; i < 4; i += 2) {
        uint8x16_t bytes = vaddq_u8(neon_look(cell, lut, i), neon_look(cell, lut, i + 1));
        s = (neon_sums){vaddw_u8(s.first, vget_low_u8(bytes)), vaddw_high_u8(s.last, bytes)};
    }
    return s;
}

static inline neon_sums neon_add_heavy(neon_sums s, const uint8_t *cell, const uint8_t *lut) {
    for (int i = 0; i < 4; i++) {
        uint8x16_t bytes = neon_look(cell, lut, i);
        s = (neon_sums){vaddq_u16(s.first, vshll_n_u8(vget_low_u8(bytes), 6)),
                        vaddq_u16(s.last, vshll_high_n_u8(bytes, 6))};
    }
    return s;
}

static inline uint64_t neon_in(const neon_sums *s, uint16_t threshold) {
    static const uint16_t bit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    uint16x8_t most = vdupq_n_u16(threshold), bits = vld1q_u16(bit);
    uint64_t in = 0;
    for (int c = 0; c < 4; c++) {
        in |= (uint64_t)vaddvq_u16(vandq_u16(vcleq_u16(s[c].first, most), bits)) << 16 * c;
        in |= (uint64_t)vaddvq_u16(vandq_u16(vcleq_u16(s[c].last, most), bits)) << (16 * c + 8);
    }
    return in;
}

static inline void neon_store(const neon_sums *s, uint16_t *out) {
    for (int c = 0; c < 4; c++, out += 16) {
        vst1q_u16(out, s[c].first);
        vst1q_u16(out + 8, s[c].last);
    }
}

static inline int neon_any(const neon_sums *s, uint16_t threshold) {
    uint16x8_t least = vminq_u16(s[0].first, s[0].last);
    for (int c = 1; c < 4; c++) least = vminq_u16(least, vminq_u16(s[c].first, s[c].last));
    return vminvq_u16(least) <= threshold;
}

#include "simd/sweep_kernel.h"

const struct kernels kernels_neon = {neon_sweep, neon_sieve, NULL};
#else
typedef int kernels_neon_is_empty;
#endif
