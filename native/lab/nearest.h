#ifndef WHAMMING_LAB_NEAREST_H
#define WHAMMING_LAB_NEAREST_H
/* The k best codes found so far: the max-heap of size K in the paper's decision module (Sec. IV.A). */
#include "lab.h"

#include <stdbool.h>

struct lab_hit {
    uint64_t distance;
    uint32_t id;
};

struct lab_nearest {
    struct lab_hit *heap; /* heap[0] is the worst by (distance, id) */
    size_t size;
    size_t capacity; /* min(k, n), so that a heap that holds all codes counts as full */
};

/* Initialise an empty heap. Failures: LAB_MEMORY; call lab_nearest_free even after a failure. */
int lab_nearest_init(struct lab_nearest *nearest, size_t k, size_t n);
void lab_nearest_free(struct lab_nearest *nearest);

static inline bool lab_nearest_full(const struct lab_nearest *nearest) { return nearest->size == nearest->capacity; }

/* Whether the heap is full and its worst hit r has g(r) <= bound. Then no code that costs `bound` or more is nearer
 * than a kept hit. */
static inline bool lab_nearest_within(const struct lab_nearest *nearest, uint64_t bound) {
    return lab_nearest_full(nearest) && (nearest->capacity == 0 || nearest->heap[0].distance <= bound);
}

/* Add a hit if it is among the k best. If the heap is full, drop the worst hit. Precondition: capacity > 0. */
void lab_nearest_keep(struct lab_nearest *nearest, struct lab_hit hit);

/* Add a candidate if it is among the k best. This function is inline, because nearly all candidates are too far and are
 * rejected here. */
static inline void lab_nearest_offer(struct lab_nearest *nearest, uint64_t distance, uint32_t id) {
    if (lab_nearest_full(nearest) && (nearest->capacity == 0 || distance > nearest->heap[0].distance)) return;
    lab_nearest_keep(nearest, (struct lab_hit){distance, id});
}

/* Write the kept hits in order of (distance, id), and clear the heap. `query` is the number of the query in its batch,
 * and k is the k of the batch. */
void lab_nearest_emit(struct lab_nearest *nearest, struct lab_answers *answers, size_t query, size_t k);

#endif
