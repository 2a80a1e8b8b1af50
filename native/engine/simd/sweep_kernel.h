/* The sweep kernel, written in terms of a few vector operations. Each kernels_*.c defines them for its instruction set
 * and then includes this file:
 *
 *   KERNEL(name)      the function's name for this set         TARGET        attributes that enable the set
 *   V, V_BYTES        a vector of bytes                        VECTORS       64 / V_BYTES
 *   v_zero()          all bytes 0                              v_load(p)     V_BYTES bytes at p
 *   v_table(p)        16 bytes at p, as the table t of a look-up
 *   v_look_low(t, x)  t[low nibble of each byte]               v_look_high(t, x)   t[high nibble of each byte]
 *   v_add8(a, b)      may saturate                             v_add16(a, b), v_sub16(a, b)  wrap around
 *   v_odd(x)          odd bytes as 16-bit lanes                v_shift8(x)   16-bit lanes, shifted left by 8
 *   v_min16(a, b)     minimum of unsigned 16-bit lanes         v_store(p, x)     store V_BYTES bytes
 *   v_in16(x, limit)  bit j: 16-bit lane j is at most limit (V_BYTES / 2 bits)
 *   Planes have 64 bytes and any alignment (arrays.h).
 *
 * Only these operations differ between the sets. Each set finds the same sums, so the answers are the same too.
 */
#include "simd/kernels.h"
#include "whamming.h"

/* Append the rows of a block whose sums are within the threshold. Bit j of in[h][odd] stands for code 64 h + 2 j + odd
 * of the block. */
static inline size_t KERNEL(emit)(const struct sweep_job *job, size_t block, const uint16_t sums[2][2][32],
                                  const uint64_t in[2][2], size_t count) {
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t odd = 0; odd < 2; odd++)
            for (uint64_t m = in[h][odd]; m; m &= m - 1) {
                uint32_t lane = (uint32_t)__builtin_ctzll(m);
                job->rows[count] = (uint32_t)(block * WH_BLOCK_CODES + 64 * h + 2 * lane + odd);
                job->sums[count++] = sums[h][odd][lane];
            }
    return count;
}

/* Add the look-ups of up to 4 planes to the sums. They are first added up as bytes, which cannot overflow. The bytes
 * are then added to two sets of 16-bit sums: `odd` adds up the odd bytes, and `all` adds up whole lanes, that is each
 * even byte + 256 x the odd byte after it. */
#define ADD_PLANES(number)                                                                                             \
    do {                                                                                                               \
        V low[VECTORS], high[VECTORS];                                                                                 \
        for (int v = 0; v < VECTORS; v++) low[v] = high[v] = v_zero();                                                 \
        for (size_t p = 0; p < (number); p++) {                                                                        \
            __builtin_prefetch(plane + p * 64 + ahead);                                                                \
            V table = v_table(lut + p * 16);                                                                           \
            for (int v = 0; v < VECTORS; v++) {                                                                        \
                V x = v_load(plane + p * 64 + v * V_BYTES);                                                            \
                low[v] = v_add8(low[v], v_look_low(table, x));                                                         \
                high[v] = v_add8(high[v], v_look_high(table, x));                                                      \
            }                                                                                                          \
        }                                                                                                              \
        for (int v = 0; v < VECTORS; v++) {                                                                            \
            all[0][v] = v_add16(all[0][v], low[v]);                                                                    \
            odd[0][v] = v_add16(odd[0][v], v_odd(low[v]));                                                             \
            all[1][v] = v_add16(all[1][v], high[v]);                                                                   \
            odd[1][v] = v_add16(odd[1][v], v_odd(high[v]));                                                            \
        }                                                                                                              \
    } while (0)

/* Find the sums that are within the threshold. The sums of even bytes are `all` - 256 x `odd`. */
#define FIND(in)                                                                                                       \
    do {                                                                                                               \
        for (int h = 0; h < 2; h++) {                                                                                  \
            in[h][0] = in[h][1] = 0;                                                                                   \
            for (int v = 0; v < VECTORS; v++) {                                                                        \
                even[h][v] = v_sub16(all[h][v], v_shift8(odd[h][v]));                                                  \
                in[h][0] |= (uint64_t)v_in16(even[h][v], threshold) << (v * V_BYTES / 2);                              \
                in[h][1] |= (uint64_t)v_in16(odd[h][v], threshold) << (v * V_BYTES / 2);                               \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

/* Add the 16-bit look-ups of a heavy plane. */
#define ADD_HEAVY_PLANE(plane, lut)                                                                                    \
    do {                                                                                                               \
        V low_bytes = v_table(lut), high_bytes = v_table((lut) + 16);                                                  \
        for (int v = 0; v < VECTORS; v++) {                                                                            \
            V x = v_load((plane) + v * V_BYTES);                                                                       \
            V low[2] = {v_look_low(low_bytes, x), v_look_high(low_bytes, x)};                                          \
            V high[2] = {v_look_low(high_bytes, x), v_look_high(high_bytes, x)};                                       \
            for (int h = 0; h < 2; h++) {                                                                              \
                all[h][v] = v_add16(all[h][v], v_add16(low[h], v_shift8(high[h])));                                    \
                odd[h][v] = v_add16(odd[h][v], v_add16(v_odd(low[h]), v_shift8(v_odd(high[h]))));                      \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

static TARGET size_t KERNEL(sweep)(struct sweep_job *job) {
    const size_t planes = job->planes, block_bytes = planes * 64, last = job->last, ahead = job->ahead;
    const size_t full = planes / SWEEP_GROUP, rest = planes % SWEEP_GROUP;
    const uint16_t threshold = job->threshold;
    size_t block = job->first, count = job->count;
    for (; block < last && count + WH_BLOCK_CODES <= job->room; block++) {
        const uint8_t *bytes = job->blocks + block * block_bytes, *lut = job->lut;
        V all[2][VECTORS], odd[2][VECTORS], even[2][VECTORS];
        for (int v = 0; v < VECTORS; v++) all[0][v] = all[1][v] = odd[0][v] = odd[1][v] = v_zero();
        for (size_t p = 0; p < job->heavy; p++) ADD_HEAVY_PLANE(bytes + job->heavy_at[p], job->heavy_lut + 32 * p);
        uint64_t in[2][2];
        size_t g = 0;
        for (; g < full; g++, lut += SWEEP_GROUP * 16) {
            const uint8_t *plane = bytes + job->order[g];
            ADD_PLANES(SWEEP_GROUP);
            if (job->check[g]) {
                V least = odd[0][0];
                for (int h = 0; h < 2; h++)
                    for (int v = 0; v < VECTORS; v++) {
                        least = v_min16(least, odd[h][v]);
                        least = v_min16(least, v_sub16(all[h][v], v_shift8(odd[h][v])));
                    }
                if (!v_in16(least, threshold)) break;
            }
        }
        if (g < full) {
            job->left[g]++;
            job->planes_read += (g + 1) * SWEEP_GROUP;
            continue;
        }
        if (rest > 0) {
            const uint8_t *plane = bytes + job->order[g];
            ADD_PLANES(rest);
        }
        job->planes_read += planes;
        FIND(in);
        if (in[0][0] | in[0][1] | in[1][0] | in[1][1]) {
            uint16_t sums[2][2][32];
            for (int h = 0; h < 2; h++)
                for (int v = 0; v < VECTORS; v++) {
                    v_store(sums[h][0] + v * V_BYTES / 2, even[h][v]);
                    v_store(sums[h][1] + v * V_BYTES / 2, odd[h][v]);
                }
            count = KERNEL(emit)(job, block, (const uint16_t (*)[2][32])sums, (const uint64_t (*)[2])in, count);
        }
    }
    job->count = count;
    return block;
}
