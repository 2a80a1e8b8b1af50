/* See distance.h. */
#include "search/distance.h"

#include "base/memory.h"

enum { MAX_BYTE_TABLES = 32 }; /* 64 KiB: larger tables would not stay in the fastest caches */

/* Fill the tables of all nibbles: the sum for each of the 16 values of a nibble. value[i] is what bit i adds to the sum
 * if it differs from the optimum. */
static void fill_nibbles(uint64_t *table, uint32_t bits, const uint8_t *optimum, const uint64_t *value) {
    for (size_t p = 0; p < planes_of(bits); p++, table += 16) {
        uint32_t best = optimum[p >> 1] >> (4 * (p & 1)) & 15;
        table[best] = 0;
        for (uint32_t i = 0; i < 4; i++) { /* each bit doubles the number of known sums */
            uint64_t more = 4 * p + i < bits ? value[4 * p + i] : 0;
            for (uint32_t low = 0; low < 1u << i; low++) table[best ^ low ^ (1u << i)] = table[best ^ low] + more;
        }
    }
}

/* Whether a sum of rests, each less than 2^shift, fits 64 bits. */
static int rests_fit(uint32_t bits, uint32_t shift) { return (uint64_t)bits <= UINT64_C(1) << (64 - shift - 1); }

int distance_init(struct distance *d, uint32_t bits, const uint8_t *optimum, const uint64_t *delta,
                  const uint64_t *rest, uint32_t shift) {
    size_t planes = planes_of(bits), bytes = code_bytes_of(bits);
    *d = (struct distance){
        .bits = bits, .code_bytes = bytes, .planes = planes, .optimum = optimum, .rest = rest, .shift = shift};
    size_t byte_tables = bytes <= MAX_BYTE_TABLES ? bytes : 0,
           rest_planes = rest && rests_fit(bits, shift) ? planes : 0;
    d->nibble = wh_malloc(sizeof *d->nibble * ((planes + rest_planes) * 16 + byte_tables * 256));
    if (!d->nibble) return WH_MEMORY;
    if (byte_tables) d->byte = d->nibble + planes * 16;
    if (rest_planes) d->rest_nibble = d->nibble + planes * 16 + byte_tables * 256;

    fill_nibbles(d->nibble, bits, optimum, delta);
    if (d->rest_nibble) fill_nibbles(d->rest_nibble, bits, optimum, rest);
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

/* The sum of the rests of the bits in which a code differs from the optimum. Used if the sum may need more than 64
 * bits. */
static wide sum_rests(const struct distance *d, const uint8_t *code) {
    wide sum = 0;
    for (size_t j = 0; j < d->code_bytes; j++) {
        uint32_t differing = code[j] ^ d->optimum[j];
        if (j + 1 == d->code_bytes && d->bits & 7) differing &= (1u << (d->bits & 7)) - 1;
        for (; differing; differing &= differing - 1) sum += d->rest[8 * j + (uint32_t)__builtin_ctz(differing)];
    }
    return sum;
}

struct exact distance_add_rests(const struct distance *d, const uint8_t *code, uint64_t steps) {
    wide sum = d->rest_nibble ? sum_nibbles(d->rest_nibble, d->planes, code) : sum_rests(d, code);
    return (struct exact){steps + (uint64_t)(sum >> d->shift), (uint64_t)sum & ((UINT64_C(1) << d->shift) - 1)};
}

void distance_free(struct distance *d) {
    wh_free(d->nibble);
    *d = (struct distance){0};
}
