#ifndef WHAMMING_DISTANCE_H
#define WHAMMING_DISTANCE_H
/* Exact distances of codes to one query, in integer cost units above the query's floor.
 *
 * The distance is a sum of table look-ups. Tables per nibble (16 costs each) always exist: the sweep quantises them
 * too. Tables per byte (256 costs each) halve the number of look-ups; only short codes have them, so that they fit the
 * cache.
 */
#include "index/arrays.h"

struct distance {
    size_t code_bytes;
    size_t planes;
    uint64_t *nibble; /* planes x 16 */
    uint64_t *byte;   /* code_bytes x 256, in the same allocation; NULL for long codes */
};

/* Compute the tables of a query. Returns a wh_status (WH_MEMORY); distance_free is safe on a zeroed or failed
 * struct. */
int distance_init(struct distance *distance, uint32_t bits, const uint8_t *optimum, const uint64_t *delta);
void distance_free(struct distance *distance);

/* The sum of four bytes, with independent look-ups. */
static inline uint64_t distance_of_4(const uint64_t *table, uint32_t word) {
    return (table[word & 255] + table[256 + (word >> 8 & 255)]) +
           (table[512 + (word >> 16 & 255)] + table[768 + (word >> 24)]);
}

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
    const uint64_t *table = d->nibble;
    size_t pairs = d->planes / 2;
    for (size_t j = 0; j < pairs; j++, table += 32) sum += table[code[j] & 15] + table[16 + (code[j] >> 4)];
    if (d->planes & 1) sum += table[code[pairs] & 15];
    return sum;
}

#endif
