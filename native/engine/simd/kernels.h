#ifndef WHAMMING_KERNELS_H
#define WHAMMING_KERNELS_H
/* The inner loops of the sieve and the sweep. Each kernels_*.c compiles them for one instruction set. simd.c selects a
 * set at run time. */
#include <stddef.h>
#include <stdint.h>

enum { SIEVE_CODES = 64 /* codes per call of the sieve kernel */ };

/* Arguments and results of one call of the sweep kernel. It sweeps the blocks [first, last). It stops earlier if the
 * results of one more block might not fit. A quad is 4 bytes of each of the 64 codes. */
struct sweep_job {
    const uint8_t *codes; /* in blocks of quads (arrays.h) */
    size_t planes;        /* of 4 bits */
    size_t quads;
    const uint32_t *order; /* where each quad begins in a block, in visiting order */
    const uint8_t *lut; /* per quad, in visiting order: 4 x 16 bytes for the low nibbles of its bytes, then as many for
                              the high nibbles. Each is at most SWEEP_LUT_MAX. Those of padding are 0 */
    size_t heavy;       /* quads with a scaled cost above SWEEP_LUT_MAX */
    const uint32_t *heavy_at; /* where each heavy quad begins in a block */
    const uint8_t
        *heavy_lut;        /* of heavy quads, like `lut`, each at most SWEEP_HEAVY_MAX. They are added 64 times. No sum
                                 exceeds 65,535 */
    const uint32_t *stops; /* after these numbers of quads, leave the block if all sums are above the threshold. The
                                 last one is `quads` */
    uint32_t *left;        /* per stop: incremented for each block that was left there */
    size_t first, last;
    uint16_t threshold; /* rows with larger sums are not returned */
    uint32_t *rows;     /* results are appended to `rows` and `sums`: `count` entries, space for `room` */
    uint16_t *sums;
    size_t count, room;
    uint64_t planes_read; /* increased by the number of planes read */
};

enum {
    SWEEP_QUAD_PLANES = 8,
    SWEEP_LUT_BYTES = SWEEP_QUAD_PLANES * 16, /* look-ups of a quad */
    SWEEP_LUT_MAX = 63,                       /* four look-ups fit a byte; those of 1024 nibbles fit 16 bits */
    SWEEP_HEAVY_MAX = 127
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

/* Copies the codes of `count` rows to `out`, `room` bytes apart. `codes` is in blocks of `quads` quads (arrays.h). Each
 * copy may be followed by up to 7 zero bytes. */
typedef void copy_kernel(const uint8_t *codes, size_t quads, const uint32_t *rows, size_t count, uint8_t *out,
                         size_t room);

struct kernels {
    sweep_kernel *sweep;
    sieve_kernel *sieve; /* NULL: exact comparison is as fast */
    copy_kernel *copy;   /* NULL: copy_code is as fast */
};

/* The kernels of an instruction set (enum wh_simd); NULL if this build or machine does not support it. */
const struct kernels *kernels_for(int level);

#endif
