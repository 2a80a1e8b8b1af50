/* A growing binary min-heap by (cost, code).
 *
 *             cheapest               heap[i] comes before heap[2i + 1] and heap[2i + 2]
 *             /      \
 *          ...        ...
 */
#include "frontier.h"

#include <stdbool.h>
#include <stdlib.h>

static bool before(struct lab_node a, struct lab_node b) {
    return a.cost != b.cost ? a.cost < b.cost : a.code < b.code;
}

void lab_frontier_free(struct lab_frontier *frontier) {
    free(frontier->heap);
    *frontier = (struct lab_frontier){0};
}

int lab_frontier_push(struct lab_frontier *frontier, struct lab_node node) {
    if (frontier->size == frontier->capacity) {
        size_t capacity = frontier->capacity ? 2 * frontier->capacity : 64;
        struct lab_node *heap = realloc(frontier->heap, capacity * sizeof *heap);
        if (!heap) return LAB_MEMORY;
        frontier->heap = heap;
        frontier->capacity = capacity;
    }
    size_t at = frontier->size++;
    for (; at && before(node, frontier->heap[(at - 1) / 2]); at = (at - 1) / 2)
        frontier->heap[at] = frontier->heap[(at - 1) / 2];
    frontier->heap[at] = node;
    return LAB_OK;
}

struct lab_node lab_frontier_pop(struct lab_frontier *frontier) {
    struct lab_node *heap = frontier->heap;
    struct lab_node top = heap[0], last = heap[--frontier->size];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < frontier->size; at = child) {
        if (child + 1 < frontier->size && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], last)) break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}
