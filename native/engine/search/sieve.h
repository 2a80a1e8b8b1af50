#ifndef WHAMMING_SIEVE_H
#define WHAMMING_SIEVE_H
/* The sieve: which of a bucket's codes may be within the limit, many at a time.
 *
 * The probe compares tens of thousands of codes with the limit and nearly all of them are beyond it. As in the sweep
 * (sweep.h), costs are rounded down to bytes so that their sum, at most 254 for a code within the limit, is a lower
 * bound; what the sieve lets through is compared exactly. */
#include "search/distance.h"
#include "simd/kernels.h"

enum {
    SIEVE_LEAST_BYTES = 8, /* per code: shorter ones are compared exactly at once */
    SIEVE_MOST_BYTES = 32, /* longer ones lose too much by rounding */
    SIEVE_COLUMNS = SIEVE_MOST_BYTES / 8
};

struct sieve {
    const struct distance *distance;
    sieve_kernel *kernel;
    size_t columns;
    size_t last_column; /* the last column's first byte: it overlaps the one before where 8 does not divide */
    uint64_t limit;     /* that the lut was made for */
    uint8_t lut[SIEVE_COLUMNS * 256];
    uint8_t codes[SIEVE_COLUMNS][SIEVE_CODES * 8]; /* copies, column by column */
};

/* Are codes of so many bytes sieved, by a kernel that this machine may not have? */
static inline int sieve_suits(size_t code_bytes, sieve_kernel *kernel) {
    return kernel && code_bytes >= SIEVE_LEAST_BYTES && code_bytes <= SIEVE_MOST_BYTES;
}

/* Start for codes that it suits, in zeroed memory. */
void sieve_init(struct sieve *sieve, const struct distance *distance, sieve_kernel *kernel);

/* Is it worth while for so many codes at this limit? If so, makes the sieve ready for the limit. No sieve: no. */
int sieve_ready(struct sieve *sieve, uint64_t limit, size_t count);

/* Copy a code to its place i in the sieve. */
static inline void sieve_put(struct sieve *s, size_t i, const uint8_t *code) {
    for (size_t c = 0; c + 1 < s->columns; c++) memcpy(s->codes[c] + i * 8, code + c * 8, 8);
    memcpy(s->codes[s->columns - 1] + i * 8, code + s->last_column, 8);
}

/* The numbers of those of the first `count` codes that may be within the limit. */
static inline size_t sieve_run(const struct sieve *s, size_t count, uint8_t in[SIEVE_CODES]) {
    return s->kernel(s->codes[0], s->columns, sizeof s->codes[0], s->lut, count, in);
}

/* The same for codes of 8 bytes that lie one after the other; SIEVE_CODES of them must be readable. */
static inline size_t sieve_run_in_place(const struct sieve *s, const uint8_t *codes, size_t count,
                                        uint8_t in[SIEVE_CODES]) {
    return s->kernel(codes, 1, 0, s->lut, count, in);
}

#endif
