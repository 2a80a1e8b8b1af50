#ifndef WHAMMING_DISTANCE_H
#define WHAMMING_DISTANCE_H
/* Distances of codes to one query, as integers. Here, the distance of a code is how much more it costs than the
 * cheapest possible code.
 *
 * A step is 2^shift units. distance_of adds up the whole steps of a code's costs, by table look-ups. Tables per nibble
 * (16 costs each) always exist, because the sweep makes its byte-sized tables from them. Tables per byte (256 costs
 * each) halve the number of look-ups; only short codes have them, so that they fit the cache.
 *
 * If the costs have too many digits for sums of 63 bits (shift > 0), the rests of the costs are missing from this sum,
 * so it is a lower bound on the distance. All filters, bounds and limits work with such lower bounds. The exact
 * distance is computed only for codes whose steps are within the limit (distance_exact). If shift is 0, the steps are
 * exact.
 */
#include "base/wide.h"
#include "index/arrays.h"

struct distance {
    uint32_t bits;
    size_t code_bytes;
    size_t planes;
    uint64_t *nibble; /* planes x 16 */
    uint64_t *byte;   /* code_bytes x 256, in the same allocation; NULL for long codes */
    const uint8_t *optimum;
    const uint64_t *rest;  /* per bit; NULL if all are 0 */
    uint64_t *rest_nibble; /* planes x 16, in the same allocation; NULL if all are 0 or their sums may exceed 64 bits */
    uint32_t shift;
};

/* A distance: steps x 2^shift + rest units, where rest < 2^shift. */
struct exact {
    uint64_t steps, rest;
};

/* Compute the tables of a query. Borrows `optimum` and `rest`. Returns a wh_status (WH_MEMORY); distance_free is safe
 * on a zeroed or failed struct. */
int distance_init(struct distance *distance, uint32_t bits, const uint8_t *optimum, const uint64_t *delta,
                  const uint64_t *rest, uint32_t shift);
void distance_free(struct distance *distance);

/* The cost of four bytes of a code. The look-ups are independent, so the processor can overlap them. */
static inline uint64_t distance_of_4(const uint64_t *table, uint32_t word) {
    return (table[word & 255] + table[256 + (word >> 8 & 255)]) +
           (table[512 + (word >> 16 & 255)] + table[768 + (word >> 24)]);
}

/* The sum of the look-ups of all nibbles of a code. */
static inline uint64_t sum_nibbles(const uint64_t *table, size_t planes, const uint8_t *code) {
    uint64_t sum = 0;
    size_t pairs = planes / 2;
    for (size_t j = 0; j < pairs; j++, table += 32) sum += table[code[j] & 15] + table[16 + (code[j] >> 4)];
    if (planes & 1) sum += table[code[pairs] & 15];
    return sum;
}

/* The whole steps of a code's costs. */
static inline uint64_t distance_of(const struct distance *d, const uint8_t *code) {
    uint64_t sum = 0;
    if (d->byte) {
        const uint64_t *table = d->byte;
        size_t j = 0;
        for (; j + 8 <= d->code_bytes; j += 8, table += 8 * 256) {
            uint64_t word = load64(code + j);
            sum += distance_of_4(table, (uint32_t)word) + distance_of_4(table + 4 * 256, (uint32_t)(word >> 32));
        }
        if (j + 4 <= d->code_bytes) {
            sum += distance_of_4(table, load32(code + j));
            j += 4;
            table += 4 * 256;
        }
        for (; j < d->code_bytes; j++, table += 256) sum += table[code[j]];
        return sum;
    }
    return sum_nibbles(d->nibble, d->planes, code);
}

/* The largest number of steps that the rests of a code can add. There is one rest per bit, and each is less than a
 * step. */
static inline uint64_t distance_carry(const struct distance *d) { return d->rest ? d->bits : 0; }

/* Add the rests of the bits in which the code differs from the optimum. */
struct exact distance_add_rests(const struct distance *distance, const uint8_t *code, uint64_t steps);

/* The exact distance of a code, given its steps. */
static inline struct exact distance_exact(const struct distance *d, const uint8_t *code, uint64_t steps) {
    return d->rest ? distance_add_rests(d, code, steps) : (struct exact){steps, 0};
}

#endif
