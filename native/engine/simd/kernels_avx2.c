/* The kernels on AVX2: 32 codes per instruction. */
#if defined(__x86_64__)
#include <immintrin.h>
#define KERNEL(name) avx2_##name
#define TARGET __attribute__((target("avx2")))
#define V __m256i
#define V_BYTES 32
#define VECTORS 2
#define v_zero() _mm256_setzero_si256()
#define v_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define v_table(p) _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(p)))
#define v_look_low(t, x) _mm256_shuffle_epi8(t, _mm256_and_si256(x, _mm256_set1_epi8(15)))
#define v_look_high(t, x) _mm256_shuffle_epi8(t, _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15)))
#define v_add8(a, b) _mm256_adds_epu8(a, b)
#define v_add16(a, b) _mm256_add_epi16(a, b)
#define v_sub16(a, b) _mm256_sub_epi16(a, b)
#define v_min16(a, b) _mm256_min_epu16(a, b)
#define v_shift8(x) _mm256_slli_epi16(x, 8)
#define v_store(p, x) _mm256_storeu_si256((__m256i *)(p), x)
#define v_odd(x) _mm256_srli_epi16(x, 8)
#define v_zip_low(a, b) _mm256_unpacklo_epi8(a, b)
#define v_zip_high(a, b) _mm256_unpackhi_epi8(a, b)
#define v_in8(x) (~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_set1_epi8(-1))))
#define v_in16(x, limit) avx2_in16(x, limit)
#include <stdint.h>

/* Bit j of the result is 1 if 16-bit lane j is at most `limit`: the saturating difference is then 0. The byte mask has
 * two bits per lane. One of them is kept, and the kept bits are moved together. */
static inline __attribute__((target("avx2"))) uint32_t avx2_in16(__m256i x, uint16_t limit) {
    __m256i over = _mm256_subs_epu16(x, _mm256_set1_epi16((short)limit));
    uint32_t mask = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi16(over, _mm256_setzero_si256())) & 0x55555555u;
    mask = (mask | mask >> 1) & 0x33333333u;
    mask = (mask | mask >> 2) & 0x0F0F0F0Fu;
    mask = (mask | mask >> 4) & 0x00FF00FFu;
    return (mask | mask >> 8) & 0x0000FFFFu;
}

#include "simd/sieve_kernel.h"
#include "simd/sweep_kernel.h"

const struct kernels kernels_avx2 = {avx2_sweep, avx2_sieve};
#else
typedef int kernels_avx2_is_empty;
#endif
