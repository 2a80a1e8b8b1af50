/* A binary max-heap of at most k hits by (distance, id).
 *
 *               worst                heap[i] is no better than heap[2i + 1] and heap[2i + 2]
 *              /     \
 *           ...       ...            a better hit replaces the root; emit removes the root until the heap is empty
 */
#include "nearest.h"

#include <stdlib.h>

static bool worse(struct lab_hit a, struct lab_hit b) {
    return a.distance != b.distance ? a.distance > b.distance : a.id > b.id;
}

int lab_nearest_init(struct lab_nearest *nearest, size_t k, size_t n) {
    *nearest = (struct lab_nearest){.capacity = k < n ? k : n};
    nearest->heap = malloc((nearest->capacity + 1) * sizeof *nearest->heap);
    return nearest->heap ? LAB_OK : LAB_MEMORY;
}

void lab_nearest_free(struct lab_nearest *nearest) {
    free(nearest->heap);
    *nearest = (struct lab_nearest){0};
}

static void sink(struct lab_hit *heap, size_t size, struct lab_hit hit) {
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < size; at = child) {
        if (child + 1 < size && worse(heap[child + 1], heap[child])) child++;
        if (!worse(heap[child], hit)) break;
        heap[at] = heap[child];
    }
    heap[at] = hit;
}

void lab_nearest_keep(struct lab_nearest *nearest, struct lab_hit hit) {
    if (lab_nearest_full(nearest)) {
        if (worse(nearest->heap[0], hit)) sink(nearest->heap, nearest->size, hit);
        return;
    }
    size_t at = nearest->size++;
    for (; at && worse(hit, nearest->heap[(at - 1) / 2]); at = (at - 1) / 2)
        nearest->heap[at] = nearest->heap[(at - 1) / 2];
    nearest->heap[at] = hit;
}

void lab_nearest_emit(struct lab_nearest *nearest, struct lab_answers *answers, size_t query, size_t k) {
    answers->found[query] = nearest->size;
    for (size_t rank = nearest->size; rank-- > 0;) {
        answers->ids[query * k + rank] = nearest->heap[0].id;
        answers->distances[query * k + rank] = nearest->heap[0].distance;
        sink(nearest->heap, rank, nearest->heap[rank]);
    }
    nearest->size = 0;
}
