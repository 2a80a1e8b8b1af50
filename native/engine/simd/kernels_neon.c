/* The kernels on NEON (AArch64): 16 codes per instruction. */
#if defined(__aarch64__)
#include <arm_neon.h>
#define KERNEL(name) neon_##name
#define TARGET
#define V uint8x16_t
#define V_BYTES 16
#define VECTORS 4
#define v_zero() vdupq_n_u8(0)
#define v_load(p) vld1q_u8(p)
#define v_table(p) vld1q_u8(p)
#define v_look_low(t, x) vqtbl1q_u8(t, vandq_u8(x, vdupq_n_u8(15)))
#define v_look_high(t, x) vqtbl1q_u8(t, vshrq_n_u8(x, 4))
#define v_add8(a, b) vqaddq_u8(a, b)
#define v_add16(a, b) vreinterpretq_u8_u16(vaddq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)))
#define v_sub16(a, b) vreinterpretq_u8_u16(vsubq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)))
#define v_min16(a, b) vreinterpretq_u8_u16(vminq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)))
#define v_shift8(x) vreinterpretq_u8_u16(vshlq_n_u16(vreinterpretq_u16_u8(x), 8))
#define v_store(p, x) vst1q_u8((uint8_t *)(p), x)
#define v_odd(x) vreinterpretq_u8_u16(vshrq_n_u16(vreinterpretq_u16_u8(x), 8))
#define v_zip_low(a, b) vzip1q_u8(a, b)
#define v_zip_high(a, b) vzip2q_u8(a, b)
#define v_in8(x) neon_in8(x)
#define v_in16(x, limit) neon_in16(x, limit)
#include <stdint.h>

static inline uint32_t neon_in8(uint8x16_t x) {
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t in = vandq_u8(vmvnq_u8(vceqq_u8(x, vdupq_n_u8(255))), vld1q_u8(bit));
    return (uint32_t)vaddv_u8(vget_low_u8(in)) | (uint32_t)vaddv_u8(vget_high_u8(in)) << 8;
}

static inline uint32_t neon_in16(uint8x16_t x, uint16_t limit) {
    static const uint16_t bit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddvq_u16(vandq_u16(vcleq_u16(vreinterpretq_u16_u8(x), vdupq_n_u16(limit)), vld1q_u16(bit)));
}

#include "simd/sieve_kernel.h"
#include "simd/sweep_kernel.h"

const struct kernels kernels_neon = {neon_sweep, neon_sieve};
#else
typedef int kernels_neon_is_empty;
#endif
