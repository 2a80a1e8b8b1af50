/* The kernels on AVX-512 with byte permutes (VBMI): 64 codes per instruction. A permute uses the low six bits of each
 * index. The 16 costs are repeated four times, so only the low four bits matter, and the index need not be masked. */
#if defined(__x86_64__)
#include <immintrin.h>
#define KERNEL(name) avx512_##name
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))
#define V __m512i
#define V_BYTES 64
#define VECTORS 1
#define v_zero() _mm512_setzero_si512()
#define v_load(p) _mm512_loadu_si512(p)
#define v_table(p) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(p)))
#define v_look_low(t, x) _mm512_permutexvar_epi8(x, t)
#define v_look_high(t, x) _mm512_permutexvar_epi8(_mm512_srli_epi16(x, 4), t)
#define v_add8(a, b) _mm512_adds_epu8(a, b)
#define v_add16(a, b) _mm512_add_epi16(a, b)
#define v_sub16(a, b) _mm512_sub_epi16(a, b)
#define v_min16(a, b) _mm512_min_epu16(a, b)
#define v_shift8(x) _mm512_slli_epi16(x, 8)
#define v_store(p, x) _mm512_storeu_si512(p, x)
#define v_odd(x) _mm512_srli_epi16(x, 8)
#define v_zip_low(a, b) _mm512_unpacklo_epi8(a, b)
#define v_zip_high(a, b) _mm512_unpackhi_epi8(a, b)
#define v_in8(x) _mm512_cmpneq_epu8_mask(x, _mm512_set1_epi8(-1))
#define v_in16(x, limit) _mm512_cmple_epu16_mask(x, _mm512_set1_epi16((short)(limit)))
#include "simd/sieve_kernel.h"
#include "simd/sweep_kernel.h"

const struct kernels kernels_avx512 = {avx512_sweep, avx512_sieve};
#else
typedef int kernels_avx512_is_empty;
#endif
