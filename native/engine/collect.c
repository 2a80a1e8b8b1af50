/* See collect.h. */
#include "collect.h"

#include <stdlib.h>

void collect_start(struct collector *c, struct hit *hits, size_t capacity, uint64_t radius, const uint8_t *dead,
                   int resumed, struct hit after) {
    *c = (struct collector){.hits = hits,
                            .capacity = capacity,
                            .limit = radius,
                            .radius = radius,
                            .dead = dead,
                            .resumed = resumed,
                            .after = after};
}

void collect_restart(struct collector *c) {
    if (c->proven) { /* they will be offered again: let them be refused */
        c->resumed = 1;
        c->after = c->hits[c->proven - 1];
    }
    c->count = 0;
}

static void sift_down(struct hit *heap, size_t count, size_t at) {
    struct hit hit = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && hit_before(heap[child], heap[child + 1])) child++;
        if (!hit_before(hit, heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = hit;
}

static void sift_up(struct hit *heap, size_t at) {
    struct hit hit = heap[at];
    for (size_t parent; at > 0; at = parent) {
        parent = (at - 1) / 2;
        if (!hit_before(heap[parent], hit)) break;
        heap[at] = heap[parent];
    }
    heap[at] = hit;
}

int collect_offer(struct collector *c, struct hit hit) {
    struct hit *heap = c->hits + c->proven;
    if (hit.distance > c->limit) return 0;
    if (c->resumed && !hit_before(c->after, hit)) return 1;
    if (!collect_full(c)) {
        heap[c->count] = hit;
        sift_up(heap, c->count++);
    } else if (c->count && hit_before(hit, heap[0])) {
        heap[0] = hit;
        sift_down(heap, c->count, 0);
    } else {
        return 0;
    }
    if (collect_full(c) && c->count && heap[0].distance < c->limit) c->limit = heap[0].distance;
    return 1;
}

static int compare_hits(const void *a, const void *b) {
    const struct hit *x = a, *y = b;
    return hit_before(*x, *y) ? -1 : hit_before(*y, *x);
}

void hits_sort(struct hit *hits, size_t count) { qsort(hits, count, sizeof *hits, compare_hits); }

void collect_prove(struct collector *c, uint64_t bound) {
    struct hit *heap = c->hits + c->proven;
    size_t low = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (heap[i].distance >= bound) continue;
        struct hit hit = heap[i];
        heap[i] = heap[low];
        heap[low++] = hit;
    }
    if (low == 0) return;
    hits_sort(heap, low);
    c->proven += low;
    c->count -= low;
    heap += low;
    for (size_t i = c->count / 2; i-- > 0;) sift_down(heap, c->count, i);
}
