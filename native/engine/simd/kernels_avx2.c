/* The kernels on AVX2: 32 bytes per instruction. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>
#define KERNEL(name) avx2_##name
#define TARGET __attribute__((target("avx2")))
#define V __m256i
#define V_BYTES 32
#define v_zero() _mm256_setzero_si256()
#define v_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define v_table(p) _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(p)))
#define v_look_low(t, x) _mm256_shuffle_epi8(t, _mm256_and_si256(x, _mm256_set1_epi8(15)))
#define v_look_high(t, x) _mm256_shuffle_epi8(t, _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15)))
#define v_add8(a, b) _mm256_adds_epu8(a, b)
#define v_zip_low(a, b) _mm256_unpacklo_epi8(a, b)
#define v_zip_high(a, b) _mm256_unpackhi_epi8(a, b)
#define v_in8(x) (~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_set1_epi8(-1))))
#include "simd/sieve_kernel.h"

#define SUMS avx2_sums
#define sums_zero() ((avx2_sums){_mm256_setzero_si256(), _mm256_setzero_si256()})
#define sums_add(s, cell, lut) avx2_add(s, avx2_look(cell, lut, 0), 0)
#define sums_add_64(s, cell, lut)                                                                                      \
    avx2_add(avx2_add(s, avx2_look(cell, lut, 1), 6), avx2_look((cell) + 32, (lut) + 32, 1), 6)
#define sums_any(s, threshold) avx2_any(s, threshold)
#define sums_in(s, threshold) avx2_in(s, threshold)
#define sums_store(s, out) avx2_store(s, out)
#define INLINE static inline __attribute__((always_inline)) TARGET

/* Sums of look-ups that are bytes, in two sets of 16-bit lanes: `odd` adds up the odd bytes, and `all` adds up whole
 * lanes, that is each even byte + 256 x the odd byte after it. Each half of a vector has a part of the sums of the
 * cell's 16 codes. */
typedef struct {
    __m256i all, odd;
} avx2_sums;

/* The sum of the look-ups of a quad: byte i of the codes is in half i % 2. `half` = 1: of its first 32 bytes only. */
INLINE __m256i avx2_look(const uint8_t *cell, const uint8_t *lut, int half) {
    const __m256i four_bits = _mm256_set1_epi8(15);
    __m256i x = v_load(cell), sum, other;
    sum = _mm256_add_epi8(_mm256_shuffle_epi8(v_load(lut), _mm256_and_si256(x, four_bits)),
                          _mm256_shuffle_epi8(v_load(lut + 64), _mm256_and_si256(_mm256_srli_epi16(x, 4), four_bits)));
    if (half) return sum;
    x = v_load(cell + 32);
    other =
        _mm256_add_epi8(_mm256_shuffle_epi8(v_load(lut + 32), _mm256_and_si256(x, four_bits)),
                        _mm256_shuffle_epi8(v_load(lut + 96), _mm256_and_si256(_mm256_srli_epi16(x, 4), four_bits)));
    return _mm256_add_epi8(sum, other);
}

/* Add 2^shift times the bytes to the sums. */
INLINE avx2_sums avx2_add(avx2_sums s, __m256i bytes, int shift) {
    return (avx2_sums){_mm256_add_epi16(s.all, _mm256_slli_epi16(bytes, shift)),
                       _mm256_add_epi16(s.odd, _mm256_slli_epi16(_mm256_srli_epi16(bytes, 8), shift))};
}

/* The sums as 16-bit lanes: of the codes 0, 2, .., 14, then of 1, 3, .., 15. Those of even bytes are `all` - 256 x
 * `odd`. */
INLINE __m256i avx2_fold(avx2_sums s) {
    __m256i even = _mm256_sub_epi16(s.all, _mm256_slli_epi16(s.odd, 8));
    return _mm256_add_epi16(_mm256_permute2x128_si256(even, s.odd, 0x20), _mm256_permute2x128_si256(even, s.odd, 0x31));
}

/* Bit j: the sum of code j of a cell is at most the threshold. */
INLINE uint32_t avx2_in_cell(__m256i folded, uint16_t threshold) {
    __m256i least = _mm256_min_epu16(folded, _mm256_set1_epi16((short)threshold));
    uint32_t mask = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi16(least, folded)); /* two bits per lane */
    return (mask & 0x5555) | (mask >> 15 & 0xAAAA);
}

INLINE int avx2_any(const avx2_sums *s, uint16_t threshold) {
    return avx2_in_cell(_mm256_min_epu16(_mm256_min_epu16(avx2_fold(s[0]), avx2_fold(s[1])),
                                         _mm256_min_epu16(avx2_fold(s[2]), avx2_fold(s[3]))),
                        threshold) != 0;
}

INLINE uint64_t avx2_in(const avx2_sums *s, uint16_t threshold) {
    uint64_t in = 0;
    for (int c = 0; c < 4; c++) in |= (uint64_t)avx2_in_cell(avx2_fold(s[c]), threshold) << 16 * c;
    return in;
}

INLINE void avx2_store(const avx2_sums *s, uint16_t *out) {
    for (int c = 0; c < 4; c++, out += 16) {
        __m256i folded = avx2_fold(s[c]);
        __m128i even = _mm256_castsi256_si128(folded), odd = _mm256_extracti128_si256(folded, 1);
        _mm_storeu_si128((__m128i *)out, _mm_unpacklo_epi16(even, odd));
        _mm_storeu_si128((__m128i *)(out + 8), _mm_unpackhi_epi16(even, odd));
    }
}

#include "simd/sweep_kernel.h"

const struct kernels kernels_avx2 = {avx2_sweep, avx2_sieve, NULL};
#else
typedef int kernels_avx2_is_empty;
#endif
