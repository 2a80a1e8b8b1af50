/* See sieve.h. */
#include "search/sieve.h"

#include "search/quantise.h"

enum { MIN_CODES = 4 };

void sieve_init(struct sieve *s, const struct distance *distance, sieve_kernel *kernel) {
    size_t bytes = distance->code_bytes;
    s->distance = distance;
    s->kernel = kernel;
    s->limit = UINT64_MAX;
    s->columns = (bytes + 7) / 8;
    s->last_column = bytes - 8;
}

static void requantise(struct sieve *s, uint64_t limit) {
    double scale = quantise_scale(limit, 254);
    size_t planes = s->distance->planes, repeated = 2 * (s->columns * 8 - s->distance->code_bytes);
    s->limit = limit;
    /* The last column may repeat bytes of the column before it. The look-ups of these bytes in the last column are 0,
     * so that each byte counts once. */
    memset(s->lut, 0, sizeof s->lut);
    for (size_t p = 0; p < planes; p++) {
        size_t at = p / 16 + 1 < s->columns ? p : p + repeated;
        quantise_nibble(s->distance->nibble + p * 16, scale, 255, s->lut + at * 16);
    }
}

int sieve_prepare(struct sieve *s, uint64_t limit, size_t count) {
    if (!s || limit >= NO_LIMIT || count < MIN_CODES) return 0;
    if (limit < s->limit - s->limit / 16) requantise(s, limit);
    return 1;
}
