/* See distance.h. */
#include "search/distance.h"

#include "base/memory.h"

enum { MAX_BYTE_TABLES = 32 }; /* 64 KiB: larger tables would not stay in the fastest caches */

int distance_init(struct distance *d, uint32_t bits, const uint8_t *optimum, const uint64_t *delta) {
    size_t planes = planes_of(bits), bytes = code_bytes_of(bits);
    *d = (struct distance){.code_bytes = bytes, .planes = planes};
    size_t byte_tables = bytes <= MAX_BYTE_TABLES ? bytes : 0;
    d->nibble = wh_malloc(sizeof *d->nibble * (planes * 16 + byte_tables * 256));
    if (!d->nibble) return WH_MEMORY;
    if (byte_tables) d->byte = d->nibble + planes * 16;

    for (size_t p = 0; p < planes; p++) {
        uint64_t *table = d->nibble + p * 16;
        uint32_t best = optimum[p >> 1] >> (4 * (p & 1)) & 15;
        table[best] = 0;
        for (uint32_t i = 0; i < 4; i++) { /* each bit doubles the number of known values */
            uint64_t cost = 4 * p + i < bits ? delta[4 * p + i] : 0;
            for (uint32_t low = 0; low < 1u << i; low++) table[best ^ low ^ (1u << i)] = table[best ^ low] + cost;
        }
    }
    if (!d->byte) return WH_OK;
    for (size_t j = 0; j < bytes; j++) {
        static const uint64_t none[16];
        const uint64_t *low = d->nibble + 2 * j * 16, *high = 2 * j + 1 < planes ? low + 16 : none;
        uint64_t *table = d->byte + j * 256;
        for (uint32_t x = 0; x < 16; x++)
            for (uint32_t y = 0; y < 16; y++) table[16 * x + y] = high[x] + low[y];
    }
    return WH_OK;
}

void distance_free(struct distance *d) {
    wh_free(d->nibble);
    *d = (struct distance){0};
}
