/* Finding equal codes.
 *
 * Short codes of real data often repeat thousands of times (GIST1M has 48,670 copies of one 32-bit code). Because such
 * a code is stored once, each search compares it once. Distinct codes are numbered in the order in which they first
 * occur. A hash table with open addressing, at most half full, holds these numbers.
 */
#include "index/distinct.h"

#include "base/memory.h"
#include "base/parallel.h"
#include "whamming.h"

#include <string.h>

enum { EMPTY = 0xFFFFFFFF };
enum {
    MANY = 8,          /* equal codes are stored once if one in MANY codes repeats another, ... */
    MOST_COPIES = 1000 /* ... or if one code occurs more often than this */
};

/* A multiply-and-fold hash that takes 8 bytes at a time. The last byte is masked. */
static uint64_t hash(const uint8_t *code, size_t bytes, uint8_t last_mask) {
    uint64_t h = bytes;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        size_t part = bytes - at < 8 ? bytes - at : 8;
        memcpy(&word, code + at, part);
        if (at + part == bytes) {
            uint8_t last = code[bytes - 1] & last_mask;
            memcpy((uint8_t *)&word + part - 1, &last, 1);
        }
        h = (h ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 32;
    }
    return h * UINT64_C(0xD6E8FEB86659FD93);
}

static int equal(const uint8_t *a, const uint8_t *b, size_t bytes, uint8_t last_mask) {
    return memcmp(a, b, bytes - 1) == 0 && ((a[bytes - 1] ^ b[bytes - 1]) & last_mask) == 0;
}

int distinct_find(struct distinct *d, const uint8_t *codes, uint64_t n, size_t bytes, uint8_t last_mask,
                  volatile uint32_t *cancel) {
    enum { AHEAD = 16 };
    int log = 4;
    while ((UINT64_C(1) << log) < 2 * n) log++;
    uint64_t places = UINT64_C(1) << log;
    uint64_t upcoming[AHEAD] = {0};
    uint32_t *table = wh_malloc(sizeof *table * places);
    d->number_of = wh_malloc(sizeof *d->number_of * (size_t)(n + 1));
    d->first = wh_malloc(sizeof *d->first * (size_t)(n + 1));
    if (!table || !d->number_of || !d->first) {
        wh_free(table);
        return WH_MEMORY;
    }
    memset(table, 0xFF, sizeof *table * places);
    for (uint64_t i = 0; i < n + AHEAD; i++) { /* hash AHEAD codes in advance, to prefetch the table's cache lines */
        if (i >= AHEAD) {
            uint64_t row = i - AHEAD, place = upcoming[i % AHEAD];
            const uint8_t *code = codes + row * bytes;
            while (table[place] != EMPTY &&
                   !equal(codes + (uint64_t)d->first[table[place]] * bytes, code, bytes, last_mask))
                place = (place + 1) & (places - 1);
            if (table[place] == EMPTY) {
                table[place] = (uint32_t)d->count;
                d->first[d->count++] = (uint32_t)row;
            }
            d->number_of[row] = table[place];
        }
        if (i % 65536 == 0 && is_cancelled(cancel)) {
            wh_free(table);
            return WH_STOPPED;
        }
        if (i < n) {
            uint64_t place = hash(codes + i * bytes, bytes, last_mask) >> (64 - log);
            upcoming[i % AHEAD] = place;
            __builtin_prefetch(&table[place]);
        }
    }
    wh_free(table);
    return WH_OK;
}

int distinct_keep_rare(struct distinct *d, uint64_t n) {
    if (d->count == n || (n - d->count) * MANY > n) return WH_OK;
    uint16_t *copies = wh_calloc((size_t)d->count, sizeof *copies);
    if (!copies) return WH_MEMORY;
    int rare = 1;
    for (uint64_t i = 0; i < n && rare; i++) rare = ++copies[d->number_of[i]] <= MOST_COPIES;
    wh_free(copies);
    for (uint64_t i = 0; i < n && rare; i++) d->number_of[i] = d->first[i] = (uint32_t)i;
    if (rare) d->count = n;
    return WH_OK;
}

void distinct_free(struct distinct *d) {
    wh_free(d->number_of);
    wh_free(d->first);
    *d = (struct distinct){0};
}
