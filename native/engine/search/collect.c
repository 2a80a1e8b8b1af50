/* See collect.h. */
#include "search/collect.h"

#include <stdlib.h>

enum { SMALL = 12 }; /* up to this many hits are sorted by insertion */

void collect_start(struct collector *c, struct hit *hits, size_t capacity, struct hit farthest, const uint8_t *dead,
                   const struct hit *skipped, int resumed, struct hit after) {
    *c = (struct collector){.hits = hits,
                            .capacity = capacity,
                            .limit = farthest.steps,
                            .farthest = farthest,
                            .dead = dead,
                            .skipped = skipped,
                            .resumed = resumed,
                            .after = after};
}

void collect_restart(struct collector *c) {
    if (c->proven) { /* proven hits will be offered again and must be rejected */
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
    if (hit.steps > c->limit || hit_before(c->farthest, hit)) return 0;
    if (c->resumed && !hit_before(c->after, hit)) return 1;
    if (c->skipped && hit.id == c->skipped->id && !hit_before(*c->skipped, hit)) return 1;
    if (!collect_full(c)) {
        heap[c->count] = hit;
        sift_up(heap, c->count++);
    } else if (c->count && hit_before(hit, heap[0])) {
        heap[0] = hit;
        sift_down(heap, c->count, 0);
    } else {
        return 0;
    }
    if (collect_full(c) && c->count && heap[0].steps < c->limit) c->limit = heap[0].steps;
    return 1;
}

static int compare_hits(const void *a, const void *b) {
    const struct hit *x = a, *y = b;
    return hit_before(*x, *y) ? -1 : hit_before(*y, *x);
}

/* Partition hits into two nonempty parts, so that all of the first come before all of the second. Returns the size of
 * the first. This is Hoare's partition with the median of three hits as the pivot. Because count > SMALL, the last hit
 * is none of the three, so the second part is not empty. */
static size_t cut(struct hit *hits, size_t count) {
    struct hit a = hits[count / 4], pivot = hits[count / 2], b = hits[count * 3 / 4];
    if (hit_before(b, a)) {
        struct hit other = a;
        a = b;
        b = other;
    }
    if (hit_before(pivot, a)) pivot = a;
    if (hit_before(b, pivot)) pivot = b;
    for (size_t i = 0, j = count - 1;; i++, j--) {
        while (hit_before(hits[i], pivot)) i++;
        while (hit_before(pivot, hits[j])) j--;
        if (i >= j) return j + 1;
        struct hit other = hits[i];
        hits[i] = hits[j];
        hits[j] = other;
    }
}

void hits_sort(struct hit *hits, size_t count) {
    for (int cuts = 0; count > SMALL; cuts++) {
        if (cuts == COLLECT_CUTS) { /* too many bad pivots */
            qsort(hits, count, sizeof *hits, compare_hits);
            return;
        }
        size_t first = cut(hits, count), second = count - first;
        hits_sort(first < second ? hits : hits + first, first < second ? first : second);
        hits += first < second ? first : 0;
        count = first < second ? second : first;
    }
    for (size_t i = 1; i < count; i++) {
        struct hit hit = hits[i];
        size_t at = i;
        for (; at > 0 && hit_before(hit, hits[at - 1]); at--) hits[at] = hits[at - 1];
        hits[at] = hit;
    }
}

/* Incremental quicksort (Paredes and Navarro, 2006): only the first section is partitioned further. All hits of a
 * section come before all hits of the next section. */
void collect_prove_piece(struct collector *c) {
    size_t first = c->proven, end = c->cuts ? c->cut[c->cuts - 1] : first + c->count;
    while (end - first > COLLECT_PIECE && c->cuts < COLLECT_CUTS) {
        end = first + cut(c->hits + first, end - first);
        c->cut[c->cuts++] = end;
    }
    hits_sort(c->hits + first, end - first);
    c->count -= end - first;
    c->proven = end;
    if (c->cuts) c->cuts--;
}

void collect_prove(struct collector *c, uint64_t bound) {
    struct hit *heap = c->hits + c->proven;
    size_t low = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (heap[i].steps >= bound) continue;
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
