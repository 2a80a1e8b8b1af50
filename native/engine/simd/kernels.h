#ifndef WHAMMING_KERNELS_H
#define WHAMMING_KERNELS_H
/* The inner loops of sieve and sweep. kernels_*.c compile them per instruction set; simd.c selects one at run time. */
#include <stddef.h>
#include <stdint.h>

enum {
    SWEEP_SURVIVORS = 512, /* maximum number of rows that one call of a sweep kernel returns */
    SIEVE_CODES = 64       /* codes per call of the sieve kernel */
};

/* One call of a sweep kernel: blocks [first, last), or fewer if the survivors of one more block might not fit. */
struct sweep_job {
    const uint8_t *blocks;
    size_t planes;
    const uint32_t *order; /* byte offset of each plane in the block, in visiting order */
    const uint8_t *lut;    /* 16 bytes per plane, in visiting order; planes padded to a multiple of 4 */
    size_t check_from;     /* no code can exceed the limit before this many planes (a multiple of 2; of 4 if wide) */
    size_t prefetch;       /* planes of a later block to prefetch; 0 if the blocks are in cache. The wide kernel also
                              prefetches within a block, this many planes ahead */
    uint16_t limit;        /* wide only: larger sums are rejected */
    size_t first, last;
    uint32_t *survivors;
    size_t count;
    uint64_t planes_read;
};

/* Runs the job. Returns the first block that was not processed. */
typedef size_t sweep_kernel(struct sweep_job *job);

/* Finds those of the first `count` codes whose sum of look-ups is below 255. All SIEVE_CODES codes must be readable,
 * even if `count` is smaller. Codes are stored by column: bytes 0 to 7 of every code, then bytes 8 to 15 of every code,
 * and so on. Columns start `stride` bytes apart. lut holds 16 bytes per nibble, in the order of the code.
 *   found  out: the numbers of the codes found, in any order
 * Returns how many were found. */
typedef size_t sieve_kernel(const uint8_t *codes, size_t columns, size_t stride, const uint8_t *lut, size_t count,
                            uint8_t *found);

struct kernels {
    sweep_kernel *narrow; /* 8-bit sums */
    sweep_kernel *wide;   /* 16-bit sums */
    sieve_kernel *sieve;  /* NULL: exact comparison is as fast */
};

/* The kernels of an instruction set (enum wh_simd); NULL if this build or machine does not support it. */
const struct kernels *kernels_for(int level);

#endif
