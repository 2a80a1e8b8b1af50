/* The sweep kernels, written in terms of a few vector operations. Each kernels_*.c defines them for its instruction set
 * and then includes this file:
 *
 *   KERNEL(name)      the function's name for this set         TARGET        attributes that enable the set
 *   V, V_BYTES        a vector of bytes                        VECTORS       64 / V_BYTES
 *   v_zero()          all bytes 0                              v_load(p)     V_BYTES bytes at p
 *   v_table(p)        16 bytes at p, as the table t of a look-up
 *   v_look_low(t, x)  t[low nibble of each byte]               v_look_high(t, x)
 *   v_add8(a, b)      saturating                               v_add16(a, b) saturating
 *   v_even(x)         even bytes as 16-bit lanes               v_odd(x)
 *   v_in8(x)          bit j: byte j is not 255 (V_BYTES bits)
 *   v_in16(x, limit)  bit j: 16-bit lane j is at most limit (V_BYTES / 2 bits)
 *   Planes have 64 bytes and any alignment (arrays.h).
 *
 * Only these operations differ between the sets. Each set keeps the same survivors, so the answers are the same too.
 */
#include "simd/kernels.h"
#include "whamming.h"

enum { AHEAD = 3 }; /* the narrow kernel prefetches this many blocks ahead; the wide kernel, one */

/* Append the rows of a block's survivors: bit j of in[0] is lane j, bit j of in[1] is lane 64 + j. */
static inline size_t KERNEL(emit_survivors)(uint32_t *out, size_t block, const uint64_t in[2]) {
    size_t count = 0;
    for (uint32_t half = 0; half < 2; half++)
        for (uint64_t m = in[half]; m; m &= m - 1)
            out[count++] = (uint32_t)(block * WH_BLOCK_CODES + half * 64 + (uint32_t)__builtin_ctzll(m));
    return count;
}

/* Add the look-ups of one plane to the 8-bit sums of the 128 lanes. */
#define ADD_PLANE(p)                                                                                                   \
    do {                                                                                                               \
        const uint8_t *plane = bytes + order[p];                                                                       \
        V table = v_table(lut + 16 * (p));                                                                             \
        for (int v = 0; v < VECTORS; v++) {                                                                            \
            V x = v_load(plane + v * V_BYTES);                                                                         \
            low[v] = v_add8(low[v], v_look_low(table, x));                                                             \
            high[v] = v_add8(high[v], v_look_high(table, x));                                                          \
        }                                                                                                              \
    } while (0)

static TARGET size_t KERNEL(narrow)(struct sweep_job *job) {
    const size_t planes = job->planes, even = planes & ~(size_t)1, block_bytes = planes * 64;
    const size_t last = job->last, check_from = job->check_from, prefetch = job->prefetch;
    const uint32_t *order = job->order;
    const uint8_t *lut = job->lut;
    uint64_t planes_read = 0;
    size_t block = job->first, count = 0;
    for (; block < last && count + WH_BLOCK_CODES <= SWEEP_SURVIVORS; block++) {
        const uint8_t *bytes = job->blocks + block * block_bytes;
        if (block + AHEAD < last)
            for (size_t p = 0; p < prefetch; p++) __builtin_prefetch(bytes + AHEAD * block_bytes + order[p]);
        V low[VECTORS], high[VECTORS];
        for (int v = 0; v < VECTORS; v++) low[v] = high[v] = v_zero();
        uint64_t in[2] = {~UINT64_C(0), ~UINT64_C(0)};
        size_t p = 0;
        while (p < planes) {
            if (p < even) {
                ADD_PLANE(p);
                ADD_PLANE(p + 1);
                p += 2;
            } else {
                ADD_PLANE(p);
                p++;
            }
            if (p < check_from && p < planes) continue;
            in[0] = in[1] = 0;
            for (int v = 0; v < VECTORS; v++) {
                in[0] |= (uint64_t)v_in8(low[v]) << (v * V_BYTES % 64);
                in[1] |= (uint64_t)v_in8(high[v]) << (v * V_BYTES % 64);
            }
            if ((in[0] | in[1]) == 0) break;
        }
        planes_read += p;
        if (in[0] | in[1]) count += KERNEL(emit_survivors)(job->survivors + count, block, in);
    }
    job->count = count;
    job->planes_read = planes_read;
    return block;
}

/* Interleave the bits of the even codes with those of the odd codes: bit j of the result is code j. */
static inline uint64_t KERNEL(interleave)(uint64_t even, uint64_t odd) {
    uint64_t in = 0;
    for (uint64_t m = even; m; m &= m - 1) in |= UINT64_C(1) << (2 * __builtin_ctzll(m));
    for (uint64_t m = odd; m; m &= m - 1) in |= UINT64_C(2) << (2 * __builtin_ctzll(m));
    return in;
}

static TARGET size_t KERNEL(wide)(struct sweep_job *job) {
    size_t planes = job->planes, block_bytes = planes * 64, block = job->first;
    const uint32_t *order = job->order;
    const uint8_t *lut = job->lut;
    uint64_t planes_read = 0;
    size_t count = 0;
    for (; block < job->last && count + WH_BLOCK_CODES <= SWEEP_SURVIVORS; block++) {
        const uint8_t *bytes = job->blocks + block * block_bytes;
        if (block + 1 < job->last)
            for (size_t p = 0; p < job->prefetch; p++) __builtin_prefetch(bytes + block_bytes + order[p]);
        V even[2][VECTORS], odd[2][VECTORS]; /* [0: low nibbles, 1: high nibbles] */
        for (int v = 0; v < VECTORS; v++) even[0][v] = even[1][v] = odd[0][v] = odd[1][v] = v_zero();
        uint64_t in[2][2] = {{~UINT64_C(0), ~UINT64_C(0)}, {~UINT64_C(0), ~UINT64_C(0)}};
        size_t p = 0;
        int left = 0;
        while (p < planes) {
            size_t stop = p + 4 < planes ? p + 4 : planes;
            for (size_t next = p + job->prefetch; next < p + job->prefetch + 4 && next < planes; next++)
                __builtin_prefetch(bytes + order[next]);
            V low[VECTORS], high[VECTORS]; /* sums of 4 look-ups, each at most 63 */
            for (int v = 0; v < VECTORS; v++) low[v] = high[v] = v_zero();
            for (; p < stop; p++) ADD_PLANE(p);
            for (int v = 0; v < VECTORS; v++) {
                even[0][v] = v_add16(even[0][v], v_even(low[v]));
                odd[0][v] = v_add16(odd[0][v], v_odd(low[v]));
                even[1][v] = v_add16(even[1][v], v_even(high[v]));
                odd[1][v] = v_add16(odd[1][v], v_odd(high[v]));
            }
            if (p < job->check_from && p < planes) continue;
            uint64_t any = 0;
            for (int h = 0; h < 2; h++) {
                in[h][0] = in[h][1] = 0;
                for (int v = 0; v < VECTORS; v++) {
                    in[h][0] |= (uint64_t)v_in16(even[h][v], job->limit) << (v * V_BYTES / 2);
                    in[h][1] |= (uint64_t)v_in16(odd[h][v], job->limit) << (v * V_BYTES / 2);
                }
                any |= in[h][0] | in[h][1];
            }
            if (any == 0) {
                left = 1;
                break;
            }
        }
        planes_read += p;
        if (!left) {
            uint64_t lanes[2] = {KERNEL(interleave)(in[0][0], in[0][1]), KERNEL(interleave)(in[1][0], in[1][1])};
            count += KERNEL(emit_survivors)(job->survivors + count, block, lanes);
        }
    }
    job->count = count;
    job->planes_read = planes_read;
    return block;
}
