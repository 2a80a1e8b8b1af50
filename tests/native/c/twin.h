#ifndef WHAMMING_TWIN_H
#define WHAMMING_TWIN_H
/* The naive twin of the engine, and random data for comparing the two. The twin computes every distance bit by bit and
 * sorts all hits. */
#include "base/wide.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline uint64_t random_next(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static inline uint64_t random_below(uint64_t *state, uint64_t bound) { return random_next(state) % bound; }

static inline double random_unit(uint64_t *state) { return (double)(random_next(state) >> 11) * 0x1p-53; }

/* Abort if the test itself is out of memory. */
static inline void *must(void *memory) {
    if (!memory) {
        fputs("the test itself is out of memory\n", stderr);
        abort();
    }
    return memory;
}

struct twin_hit {
    signed_wide distance; /* in units, including the floor */
    uint64_t id;
};

struct twin_data {
    uint32_t bits;
    uint64_t n;
    size_t code_bytes;
    uint8_t *codes;
    uint64_t *ids; /* NULL: each id equals its row */
};

struct twin_query {
    uint8_t *optimum;
    uint64_t *delta, *rest;
    struct wh_scale scale;
};

enum twin_weights { TWIN_RANDOM, TWIN_ZERO, TWIN_INTEGERS, TWIN_NEGATIVE, TWIN_HUGE, TWIN_WEIGHTS };

/* Clustered codes, many of them equal. own_ids: 1 for scattered ids. */
static inline struct twin_data twin_data(uint32_t bits, uint64_t n, int own_ids, uint64_t seed) {
    struct twin_data d = {.bits = bits, .n = n, .code_bytes = (bits + 7u) / 8};
    d.codes = must(malloc((size_t)n * d.code_bytes + 1));
    for (uint64_t row = 0; row < n; row++) {
        uint8_t *code = d.codes + row * d.code_bytes;
        if (row && random_below(&seed, 3)) { /* near or equal to an earlier code */
            memcpy(code, d.codes + random_below(&seed, row) * d.code_bytes, d.code_bytes);
            for (uint64_t flips = random_below(&seed, 4); flips; flips--) {
                uint64_t bit = random_below(&seed, bits);
                code[bit >> 3] ^= (uint8_t)(1u << (bit & 7));
            }
        } else {
            for (size_t j = 0; j < d.code_bytes; j++) code[j] = (uint8_t)random_next(&seed);
        }
    }
    if (own_ids) {
        d.ids = must(malloc(sizeof *d.ids * (size_t)(n + 1)));
        uint64_t odd = random_next(&seed) | 1; /* multiplication by an odd number is a bijection: ids are distinct */
        for (uint64_t row = 0; row < n; row++) d.ids[row] = row * odd;
    }
    return d;
}

static inline void twin_data_free(struct twin_data *d) {
    free(d->codes);
    free(d->ids);
}

static inline struct twin_query twin_query(const struct twin_data *d, enum twin_weights kind, uint64_t seed) {
    struct twin_query q = {.optimum = must(malloc(d->code_bytes)),
                           .delta = must(malloc(sizeof(uint64_t) * d->bits)),
                           .rest = must(malloc(sizeof(uint64_t) * d->bits))};
    double *table = must(malloc(sizeof(double) * 2 * d->bits));
    const uint8_t *near = d->n ? d->codes + random_below(&seed, d->n) * d->code_bytes : NULL;
    for (uint32_t i = 0; i < d->bits; i++) {
        uint32_t bit = near ? near[i >> 3] >> (i & 7) & 1 : (uint32_t)random_below(&seed, 2);
        double weight = random_unit(&seed);
        if (kind == TWIN_ZERO) weight = 0;
        if (kind == TWIN_INTEGERS) weight = floor(4 * weight);
        if (kind == TWIN_NEGATIVE) weight -= 0.5;
        if (kind == TWIN_HUGE) weight = weight < 0.2 ? 1e30 : 1e12 + 1e12 * weight;
        table[2 * i + bit] = 0;
        table[2 * i + (1 - bit)] = weight;
    }
    size_t failed;
    if (wh_costs_of_tables(table, WH_DOUBLE, d->bits, 1, q.optimum, q.delta, q.rest, &q.scale, &failed) != WH_OK)
        abort();
    free(table);
    return q;
}

static inline void twin_query_free(struct twin_query *q) {
    free(q->optimum);
    free(q->delta);
    free(q->rest);
}

static inline struct wh_search twin_search(const struct twin_query *q, uint32_t plan, uint64_t k) {
    return (struct wh_search){.optimum = q->optimum,
                              .delta = q->delta,
                              .rest = q->rest,
                              .scale = q->scale,
                              .plan = plan,
                              .k = k,
                              .radius = INFINITY};
}

static int twin_compare(const void *a, const void *b) {
    const struct twin_hit *x = a, *y = b;
    if (x->distance != y->distance) return x->distance < y->distance ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* All n items in order of (distance, id). The caller frees them. */
static inline struct twin_hit *twin_answer(const struct twin_data *d, const struct twin_query *q) {
    struct twin_hit *hits = must(malloc(sizeof *hits * (size_t)(d->n + 1)));
    for (uint64_t row = 0; row < d->n; row++) {
        const uint8_t *code = d->codes + row * d->code_bytes;
        signed_wide sum = wide_of(q->scale.floor);
        for (uint32_t i = 0; i < d->bits; i++)
            if ((code[i >> 3] ^ q->optimum[i >> 3]) >> (i & 7) & 1)
                sum += (signed_wide)(((wide)q->delta[i] << q->scale.shift) + q->rest[i]);
        hits[row] = (struct twin_hit){sum, d->ids ? d->ids[row] : row};
    }
    if (d->n) qsort(hits, (size_t)d->n, sizeof *hits, twin_compare);
    return hits;
}

static inline double twin_distance(const struct twin_query *q, struct twin_hit hit) {
    return ldexp((double)hit.distance, q->scale.exponent);
}

/* Whether the engine's `count` hits equal the twin's, starting at number `first`. */
static inline int twin_agrees(const struct twin_query *q, const struct twin_hit *hits, uint64_t first,
                              const uint64_t *ids, const double *distances, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (ids[i] != hits[first + i].id || distances[i] != twin_distance(q, hits[first + i])) return 0;
    return 1;
}

#endif
