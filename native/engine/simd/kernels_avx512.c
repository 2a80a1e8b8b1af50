/* The kernels on AVX-512 with byte permutes (VBMI), sums of bytes (VNNI) and bit matrices (GFNI): 64 bytes per
 * instruction. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>
#define KERNEL(name) avx512_##name
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,gfni")))
#define V __m512i
#define V_BYTES 64
#define v_zero() _mm512_setzero_si512()
#define v_load(p) _mm512_loadu_si512(p)
#define v_table(p) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(p)))
/* A permute uses the low six bits of each index. The 16 costs are repeated four times, so only the low four bits matter,
 * and the index need not be masked. */
#define v_look_low(t, x) _mm512_permutexvar_epi8(x, t)
#define v_look_high(t, x) _mm512_permutexvar_epi8(_mm512_srli_epi16(x, 4), t)
#define v_add8(a, b) _mm512_adds_epu8(a, b)
#define v_zip_low(a, b) _mm512_unpacklo_epi8(a, b)
#define v_zip_high(a, b) _mm512_unpackhi_epi8(a, b)
#define v_in8(x) _mm512_cmpneq_epu8_mask(x, _mm512_set1_epi8(-1))
#include "simd/sieve_kernel.h"

/* Sums are 16 lanes of 32 bits, one per code. A cell is one vector: lane i has byte i of the 16 codes. Its look-ups are
 * permuted so that those of a code are next to each other, and vpdpbusd adds them up. */
#define SUMS __m512i
#define sums_zero() _mm512_setzero_si512()
#define sums_add(s, cell, lut) avx512_add(s, avx512_look(v_load(cell), v_load(lut), v_load((lut) + 64)), 1)
#define sums_add_64(s, cell, lut) avx512_add(s, avx512_look(v_load(cell), v_load(lut), v_load((lut) + 64)), 64)
#define sums_any(s, threshold) avx512_any(s, threshold)
#define sums_in(s, threshold) avx512_in(s, threshold)
#define sums_store(s, out) avx512_store(s, out)
#define INLINE static inline __attribute__((always_inline)) TARGET

/* The sum of the look-ups of both nibbles of each byte. The matrix takes the high nibble of a byte. */
INLINE __m512i avx512_look(__m512i x, __m512i low, __m512i high) {
    const __m512i four_bits = _mm512_set1_epi8(15), to_low = _mm512_set1_epi64(0x1020408000000000);
    return _mm512_add_epi8(_mm512_shuffle_epi8(low, _mm512_and_si512(x, four_bits)),
                           _mm512_shuffle_epi8(high, _mm512_gf2p8affine_epi64_epi8(x, to_low, 0)));
}

/* Add `times` the bytes of each code to its sum. */
INLINE __m512i avx512_add(__m512i sums, __m512i bytes, int times) {
    const __m512i by_code =
        _mm512_set_epi64(0x3f2f1f0f3e2e1e0e, 0x3d2d1d0d3c2c1c0c, 0x3b2b1b0b3a2a1a0a, 0x3929190938281808,
                         0x3727170736261606, 0x3525150534241404, 0x3323130332221202, 0x3121110130201000);
    return _mm512_dpbusd_epi32(sums, _mm512_permutexvar_epi8(by_code, bytes), _mm512_set1_epi8((char)times));
}

/* GCC 12 may read a 16-bit mask that it has spilled as 32 bits. Therefore all masks here have 32 bits: of 16-bit lanes. */
INLINE int avx512_any(const __m512i *s, uint16_t threshold) {
    __m512i least = _mm512_min_epu32(_mm512_min_epu32(s[0], s[1]), _mm512_min_epu32(s[2], s[3]));
    return (_mm512_cmple_epu16_mask(least, _mm512_set1_epi16((short)threshold)) & 0x55555555) != 0;
}

/* The sums of two cells in 16-bit lanes. */
INLINE __m512i avx512_join(__m512i first, __m512i second) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(first)), _mm512_cvtepi32_epi16(second), 1);
}

INLINE uint64_t avx512_in(const __m512i *s, uint16_t threshold) {
    const __m512i most = _mm512_set1_epi16((short)threshold);
    return _mm512_cmple_epu16_mask(avx512_join(s[0], s[1]), most) |
           (uint64_t)_mm512_cmple_epu16_mask(avx512_join(s[2], s[3]), most) << 32;
}

INLINE void avx512_store(const __m512i *s, uint16_t *out) {
    _mm512_storeu_si512(out, avx512_join(s[0], s[1]));
    _mm512_storeu_si512(out + 32, avx512_join(s[2], s[3]));
}

/* The look-ups of both quads are added up as bytes first. */
#define ADDS_PAIRS
INLINE void sums_add_pair(__m512i *s, const uint8_t *quad, const uint8_t *lut, const uint8_t *other,
                          const uint8_t *other_lut) {
    __m512i bytes[4], low = v_load(lut), high = v_load(lut + 64);
    for (int c = 0; c < 4; c++) bytes[c] = avx512_look(v_load(quad + 64 * c), low, high);
    low = v_load(other_lut);
    high = v_load(other_lut + 64);
    for (int c = 0; c < 4; c++)
        s[c] = avx512_add(s[c], _mm512_add_epi8(bytes[c], avx512_look(v_load(other + 64 * c), low, high)), 1);
}

#include "simd/sweep_kernel.h"

/* A permute takes byte j of each 16-byte lane of two cells: 8 bytes of code j. */
static TARGET void avx512_copy(const uint8_t *codes, size_t quads, const uint32_t *rows, size_t count, uint8_t *out,
                               size_t room) {
    const __m512i lanes = _mm512_set1_epi64(0x7060504030201000);
    for (size_t i = 0; i < count; i++, out += room) {
        size_t row = rows[i], q = 0;
        const uint8_t *cell = codes + row / WH_BLOCK_CODES * quads * 256 + row % WH_BLOCK_CODES / 16 * 64;
        const __m512i of_code = _mm512_or_si512(lanes, _mm512_set1_epi8((char)(row % 16)));
        for (; q + 2 <= quads; q += 2, cell += 512) {
            __m512i bytes = _mm512_permutex2var_epi8(v_load(cell), of_code, v_load(cell + 256));
            _mm_storel_epi64((__m128i *)(out + 4 * q), _mm512_castsi512_si128(bytes));
        }
        if (q == quads) continue;
        __m512i bytes = _mm512_permutex2var_epi8(v_load(cell), of_code, v_zero());
        _mm_storel_epi64((__m128i *)(out + 4 * q), _mm512_castsi512_si128(bytes));
    }
}

const struct kernels kernels_avx512 = {avx512_sweep, avx512_sieve, avx512_copy};
#else
typedef int kernels_avx512_is_empty;
#endif
