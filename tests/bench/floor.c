/* The physical limit of a sweep: a bare pass over all codes. They are laid out by planes of 4 bits (floor.py). The pass
 * reads all planes in memory order, adds up their look-ups, and compares once per block of 128 codes. It knows the final
 * limit from the start, collects nothing and verifies nothing. Look-ups are at most 63, so four of them fit a byte. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

/* The number of codes whose sum of look-ups is at most `limit`. lut: 16 bytes per plane. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi"))) size_t floor_avx512(const uint8_t *blocks, size_t count,
                                                                                    size_t planes, const uint8_t *lut,
                                                                                    uint16_t limit) {
    size_t found = 0;
    const __m512i most = _mm512_set1_epi16((short)limit), zero = _mm512_setzero_si512();
    for (size_t b = 0; b < count; b++) {
        __m512i all[2] = {zero, zero}, odd[2] = {zero, zero};
        for (size_t first = 0; first < planes; first += 4) {
            size_t last = first + 4 < planes ? first + 4 : planes;
            __m512i sum[2] = {zero, zero};
            for (size_t p = first; p < last; p++) {
                __m512i x = _mm512_loadu_si512(blocks + (b * planes + p) * 64);
                __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(lut + p * 16)));
                sum[0] = _mm512_add_epi8(sum[0], _mm512_permutexvar_epi8(x, t));
                sum[1] = _mm512_add_epi8(sum[1], _mm512_permutexvar_epi8(_mm512_srli_epi16(x, 4), t));
            }
            for (int h = 0; h < 2; h++) {
                all[h] = _mm512_add_epi16(all[h], sum[h]);
                odd[h] = _mm512_add_epi16(odd[h], _mm512_srli_epi16(sum[h], 8));
            }
        }
        for (int h = 0; h < 2; h++) {
            __m512i even = _mm512_sub_epi16(all[h], _mm512_slli_epi16(odd[h], 8));
            __mmask32 in = _mm512_cmple_epu16_mask(even, most), also = _mm512_cmple_epu16_mask(odd[h], most);
            if (in | also) found += (size_t)(__builtin_popcount(in) + __builtin_popcount(also));
        }
    }
    return found;
}

__attribute__((target("avx2"))) size_t floor_avx2(const uint8_t *blocks, size_t count, size_t planes,
                                                  const uint8_t *lut, uint16_t limit) {
    size_t found = 0;
    const __m256i most = _mm256_set1_epi16((short)limit), zero = _mm256_setzero_si256(), low = _mm256_set1_epi8(15);
    for (size_t b = 0; b < count; b++) {
        __m256i all[2][2] = {{zero, zero}, {zero, zero}}, odd[2][2] = {{zero, zero}, {zero, zero}};
        for (size_t first = 0; first < planes; first += 4) {
            size_t last = first + 4 < planes ? first + 4 : planes;
            __m256i sum[2][2] = {{zero, zero}, {zero, zero}};
            for (size_t p = first; p < last; p++) {
                __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(lut + p * 16)));
                for (int v = 0; v < 2; v++) {
                    __m256i x = _mm256_loadu_si256((const __m256i *)(blocks + (b * planes + p) * 64 + v * 32));
                    __m256i high = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
                    sum[0][v] = _mm256_add_epi8(sum[0][v], _mm256_shuffle_epi8(t, _mm256_and_si256(x, low)));
                    sum[1][v] = _mm256_add_epi8(sum[1][v], _mm256_shuffle_epi8(t, high));
                }
            }
            for (int h = 0; h < 2; h++)
                for (int v = 0; v < 2; v++) {
                    all[h][v] = _mm256_add_epi16(all[h][v], sum[h][v]);
                    odd[h][v] = _mm256_add_epi16(odd[h][v], _mm256_srli_epi16(sum[h][v], 8));
                }
        }
        __m256i least = _mm256_set1_epi16(-1);
        __m256i in[4];
        for (int h = 0; h < 2; h++)
            for (int v = 0; v < 2; v++) {
                __m256i even = _mm256_sub_epi16(all[h][v], _mm256_slli_epi16(odd[h][v], 8));
                in[2 * h + v] = _mm256_min_epu16(even, odd[h][v]);
                least = _mm256_min_epu16(least, in[2 * h + v]);
            }
        if (_mm256_movemask_epi8(_mm256_cmpeq_epi16(_mm256_min_epu16(least, most), least)))
            for (int i = 0; i < 4; i++) /* counts pairs of codes; enough to keep the compiler from leaving out work */
                found += (size_t)__builtin_popcount(
                             (unsigned)_mm256_movemask_epi8(_mm256_cmpeq_epi16(_mm256_min_epu16(in[i], most), in[i]))) /
                         2;
    }
    return found;
}
