/* The sweep kernel. Each kernels_*.c defines the following for its instruction set, and then includes this file:
 *
 *   KERNEL(name)   the function's name for this set       TARGET        attributes that enable the set
 *   SUMS           the sums of a cell's 16 codes, each below 65,536
 *   sums_zero()
 *   sums_add(sums, cell, lut)      add the look-ups of a quad
 *   sums_add_64(sums, cell, lut)   add them 64 times
 *   sums_any(sums, threshold)      whether any sum of the four cells is at most the threshold
 *   sums_in(sums, threshold)       bit j: the sum of code j of the four cells is
 *   sums_store(sums, out)          store the 64 sums of the four cells
 *   ADDS_PAIRS     if defined, also sums_add_pair(sums, quad, lut, other_quad, other_lut): add the look-ups of two quads
 *                  to the sums of the four cells
 *
 * Only these operations differ between the sets. Each set finds the same sums, so the answers are the same too.
 *
 * A quad of a block is 256 bytes, and quads are mostly visited in order. The hardware prefetches memory that is read in
 * order, and prefetch instructions make it slower.
 */
#include "simd/kernels.h"
#include "whamming.h"

enum { CELLS = 4 }; /* per block */

/* Add the look-ups of the quads [from, to), in visiting order. */
INLINE void KERNEL(add_quads)(SUMS *sums, const struct sweep_job *job, const uint8_t *block, size_t from, size_t to) {
    const uint32_t *order = job->order;
    const uint8_t *lut = job->lut + from * SWEEP_LUT_BYTES;
    size_t q = from;
#if defined(ADDS_PAIRS)
    for (; q + 2 <= to; q += 2, lut += 2 * SWEEP_LUT_BYTES) {
        const uint8_t *quad = block + order[q], *other = block + order[q + 1];
        sums_add_pair(sums, quad, lut, other, lut + SWEEP_LUT_BYTES);
    }
#endif
    for (; q < to; q++, lut += SWEEP_LUT_BYTES) {
        const uint8_t *quad = block + order[q];
        for (int c = 0; c < CELLS; c++) sums[c] = sums_add(sums[c], quad + 64 * c, lut);
    }
}

/* Append the rows of a block whose sums are within the threshold. */
static TARGET __attribute__((noinline)) size_t KERNEL(emit)(const struct sweep_job *job, size_t block, const SUMS *sums,
                                                            size_t count) {
    uint16_t stored[WH_BLOCK_CODES];
    sums_store(sums, stored);
    for (uint64_t in = sums_in(sums, job->threshold); in; in &= in - 1) {
        uint32_t code = (uint32_t)__builtin_ctzll(in);
        job->rows[count] = (uint32_t)(block * WH_BLOCK_CODES) + code;
        job->sums[count++] = stored[code];
    }
    return count;
}

/* Sweep blocks without heavy quads and without stops. `quads` is a constant for the most common lengths. */
INLINE size_t KERNEL(stream)(struct sweep_job *job, size_t quads) {
    const size_t block_bytes = quads * 256, last = job->last;
    const uint16_t threshold = job->threshold;
    const uint8_t *at = job->codes + job->first * block_bytes;
    size_t block = job->first, count = job->count;
    for (; block < last && count + WH_BLOCK_CODES <= job->room; block++, at += block_bytes) {
        SUMS sums[CELLS];
        for (int c = 0; c < CELLS; c++) sums[c] = sums_zero();
        KERNEL(add_quads)(sums, job, at, 0, quads);
        if (__builtin_expect(sums_any(sums, threshold), 0)) {
            SUMS copy[CELLS]; /* the other sums can stay in registers */
            for (int c = 0; c < CELLS; c++) copy[c] = sums[c];
            count = KERNEL(emit)(job, block, copy, count);
        }
    }
    job->planes_read += (block - job->first) * job->planes;
    job->count = count;
    return block;
}

/* Sweep blocks, and leave each at a stop if none of its codes can be within the threshold. */
static TARGET size_t KERNEL(skip)(struct sweep_job *job) {
    const size_t quads = job->quads;
    size_t block = job->first, count = job->count;
    for (; block < job->last && count + WH_BLOCK_CODES <= job->room; block++) {
        const uint8_t *at = job->codes + block * quads * 256;
        SUMS sums[CELLS];
        for (int c = 0; c < CELLS; c++) sums[c] = sums_zero();
        for (size_t h = 0; h < job->heavy; h++)
            for (int c = 0; c < CELLS; c++)
                sums[c] = sums_add_64(sums[c], at + job->heavy_at[h] + 64 * c, job->heavy_lut + h * SWEEP_LUT_BYTES);
        size_t done = 0;
        int any = 1;
        for (size_t stop = 0; done < quads && any; stop++) {
            KERNEL(add_quads)(sums, job, at, done, job->stops[stop]);
            done = job->stops[stop];
            any = sums_any(sums, job->threshold);
            if (!any && done < quads) job->left[stop]++;
        }
        job->planes_read += done < quads ? SWEEP_QUAD_PLANES * done : job->planes;
        if (any) count = KERNEL(emit)(job, block, sums, count);
    }
    job->count = count;
    return block;
}

static TARGET size_t KERNEL(sweep)(struct sweep_job *job) {
    if (job->heavy || job->stops[0] < job->quads) return KERNEL(skip)(job);
    switch (job->quads) {
    case 1:
        return KERNEL(stream)(job, 1);
    case 2:
        return KERNEL(stream)(job, 2);
    case 4:
        return KERNEL(stream)(job, 4);
    default:
        return KERNEL(stream)(job, job->quads);
    }
}
