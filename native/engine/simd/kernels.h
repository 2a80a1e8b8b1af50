#ifndef WHAMMING_KERNELS_H
#define WHAMMING_KERNELS_H
/* The inner loops that are written once per instruction set: kernels_*.c, picked at run time by simd.c. */
#include <stddef.h>
#include <stdint.h>

enum {
    SWEEP_SURVIVORS = 512, /* rows that a call of a sweep's kernel may leave over */
    SIEVE_CODES = 64       /* that one call of the sieve looks at */
};

/* One call of the sweep's kernel: blocks [first, last) until the survivors' room may not suffice for one more block. */
struct sweep_job {
    const uint8_t *blocks;
    size_t planes;
    const uint32_t *order; /* byte offset in the block of each plane, in visiting order */
    const uint8_t *lut;    /* 16 bytes per plane, in visiting order; planes padded to a multiple of 4 */
    size_t check_from;     /* no lane can be out before this many planes (a multiple of 2; of 4 if wide) */
    size_t prefetch;       /* planes to prefetch of a block ahead; 0 where the blocks are in cache */
    uint16_t limit;        /* wide only: sums above it are out */
    size_t first, last;
    uint32_t *survivors;
    size_t count;
    uint64_t planes_read;
};

/* Runs the job; returns the first block not done. */
typedef size_t sweep_kernel(struct sweep_job *job);

/* Which of SIEVE_CODES codes have a sum of look-ups below 255. The codes come as columns of 8 bytes each, all codes'
 * first column first, `stride` bytes from one column to the next; lut holds 16 bytes per nibble in the order of the
 * code. Writes the numbers of those below `count` that are in, in any order, and returns how many. */
typedef size_t sieve_kernel(const uint8_t *codes, size_t columns, size_t stride, const uint8_t *lut, size_t count,
                            uint8_t *in);

struct kernels {
    sweep_kernel *narrow; /* 8-bit sums */
    sweep_kernel *wide;   /* 16-bit sums */
    sieve_kernel *sieve;  /* NULL: comparing exactly at once is as fast */
};

/* The kernels of an instruction set (enum wh_simd), or NULL where this build or machine has none. */
const struct kernels *kernels_for(int level);

#endif
