#ifndef WHAMMING_SIEVE_H
#define WHAMMING_SIEVE_H
/* The sieve: a SIMD filter for the codes of a bucket.
 *
 * The probe compares tens of thousands of codes with the limit, and nearly all are beyond it. As in the sweep
 * (sweep.h), costs are scaled and rounded down to bytes, so that their sum is at most 254 for every code within the
 * limit. Codes with such a sum pass, and are compared exactly. */
#include "search/distance.h"
#include "simd/kernels.h"

enum {
    SIEVE_MIN_BYTES = 8,  /* shorter codes are compared exactly right away */
    SIEVE_MAX_BYTES = 32, /* longer codes lose too much precision by rounding */
    SIEVE_COLUMNS = SIEVE_MAX_BYTES / 8
};

struct sieve {
    const struct distance *distance;
    sieve_kernel *kernel;
    size_t columns;
    size_t last_column; /* first byte of the last column; it may overlap the column before it */
    uint64_t limit;     /* the limit that `lut` was computed for */
    uint8_t lut[SIEVE_COLUMNS * 256];
    uint8_t codes[SIEVE_COLUMNS][SIEVE_CODES * 8]; /* copied codes, column by column */
};

/* Whether codes of this length are sieved. `kernel` is NULL if the instruction set has none. */
static inline int sieve_supports(size_t code_bytes, sieve_kernel *kernel) {
    return kernel && code_bytes >= SIEVE_MIN_BYTES && code_bytes <= SIEVE_MAX_BYTES;
}

/* Initialise a zeroed sieve. Precondition: sieve_supports. */
void sieve_init(struct sieve *sieve, const struct distance *distance, sieve_kernel *kernel);

/* Return whether to sieve `count` codes at this limit. If so, prepare the sieve for the limit. Returns 0 if sieve is
 * NULL. */
int sieve_prepare(struct sieve *sieve, uint64_t limit, size_t count);

/* Copy a code to position i of the sieve. */
static inline void sieve_put(struct sieve *s, size_t i, const uint8_t *code) {
    for (size_t c = 0; c + 1 < s->columns; c++) memcpy(s->codes[c] + i * 8, code + c * 8, 8);
    memcpy(s->codes[s->columns - 1] + i * 8, code + s->last_column, 8);
}

/* Find those of the first `count` codes that may be within the limit. Writes their positions to `in` and returns their
 * number. */
static inline size_t sieve_run(const struct sieve *s, size_t count, uint8_t in[SIEVE_CODES]) {
    return s->kernel(s->codes[0], s->columns, sizeof s->codes[0], s->lut, count, in);
}

/* Like sieve_run, for codes of 8 bytes that lie next to each other in memory. They need not be copied. SIEVE_CODES
 * codes must be readable, even if `count` is smaller. */
static inline size_t sieve_run_in_place(const struct sieve *s, const uint8_t *codes, size_t count,
                                        uint8_t in[SIEVE_CODES]) {
    return s->kernel(codes, 1, 0, s->lut, count, in);
}

#endif
