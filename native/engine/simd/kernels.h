#ifndef WHAMMING_KERNELS_H
#define WHAMMING_KERNELS_H
/* The inner loops of the sieve and the sweep. Each kernels_*.c compiles them for one instruction set. simd.c selects a
 * set at run time. */
#include <stddef.h>
#include <stdint.h>

enum { SIEVE_CODES = 64 /* codes per call of the sieve kernel */ };

/* Arguments and results of one call of the sweep kernel. It sweeps the blocks [first, last). It stops earlier if the
 * results of one more block might not fit. */
struct sweep_job {
    const uint8_t *blocks;
    size_t planes;
    const uint32_t *order; /* byte offset in the block of each group of SWEEP_GROUP planes, in visiting order. A smaller
                              group comes last */
    const uint8_t *lut;    /* 16 bytes per plane, in visiting order, each at most SWEEP_LUT_MAX */
    size_t heavy;          /* planes with scaled costs above SWEEP_LUT_MAX */
    const uint32_t *heavy_at; /* byte offset of each heavy plane in the block */
    const uint8_t *heavy_lut; /* per heavy plane: the low bytes of 16 look-ups, then their high bytes. They are added to
                                  the look-ups of `lut`. No sum exceeds 65,535 */
    const uint8_t *check;     /* per group: 1 to leave the block after it if all sums are above the threshold by then */
    uint32_t *left;           /* per group: incremented for each block that was left after it */
    size_t first, last;
    size_t ahead;       /* prefetch this many bytes ahead */
    uint16_t threshold; /* rows with larger sums are not returned */
    uint32_t *rows;     /* results are appended to `rows` and `sums`: `count` entries, space for `room` */
    uint16_t *sums;
    size_t count, room;
    uint64_t planes_read; /* increased by the number of planes read */
};

enum {
    SWEEP_GROUP = 4,
    SWEEP_LUT_MAX = 63 /* the sum of SWEEP_GROUP look-ups fits a byte, that of 1024 fits 16 bits */
};

/* Adds up the look-ups of every code of the blocks. Appends the rows within the threshold, with their sums. The last
 * block may be padded; its padding is treated like rows, which the caller must drop. Returns the first block that was
 * not processed. */
typedef size_t sweep_kernel(struct sweep_job *job);

/* Finds those of the first `count` codes whose sum of look-ups is below 255. All SIEVE_CODES codes must be readable,
 * even if `count` is smaller. Codes are stored by column: bytes 0 to 7 of every code, then bytes 8 to 15 of every code,
 * and so on. Columns start `stride` bytes apart. lut holds 16 bytes per nibble, in the order of the code.
 *   found  out: the numbers of the codes found, in any order
 * Returns how many were found. */
typedef size_t sieve_kernel(const uint8_t *codes, size_t columns, size_t stride, const uint8_t *lut, size_t count,
                            uint8_t *found);

struct kernels {
    sweep_kernel *sweep;
    sieve_kernel *sieve; /* NULL: exact comparison is as fast */
};

/* The kernels of an instruction set (enum wh_simd); NULL if this build or machine does not support it. */
const struct kernels *kernels_for(int level);

#endif
