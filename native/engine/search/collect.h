#ifndef WHAMMING_COLLECT_H
#define WHAMMING_COLLECT_H
/* The best hits of one pass over the index: proven ones in order, the others in a max-heap (the paper's, section IV.A).
 *
 *      hits   | proven, sorted            | heap of the best others, worst on top |
 *             0       sent        proven                            proven + count     capacity
 *
 * Invariants: every proven hit comes before every hit of the heap and every hit not met yet. A hit that cannot be
 * among the best is never kept: `limit` is the largest distance that still can, ties included.
 */
#include <stddef.h>
#include <stdint.h>

enum {
    COLLECT_PIECE = 4096, /* hits sorted at once: some tenths of a millisecond */
    COLLECT_CUTS = 48
};

struct hit {
    uint64_t distance; /* cost units above the floor */
    uint64_t id;
};

struct collector {
    struct hit *hits;
    size_t capacity;
    size_t sent;
    size_t proven;
    size_t count;
    uint64_t limit;      /* inclusive; falls to the worst kept distance once the capacity is reached */
    uint64_t radius;     /* inclusive: the limit to start from */
    const uint8_t *dead; /* bit p: the item at place p is gone; NULL: none is. For those who offer */
    int resumed;         /* only hits after `after` count */
    struct hit after;
    size_t cut[COLLECT_CUTS]; /* while sorting: sections, from the last to the first; each comes after all before it */
    size_t cuts;
};

static inline int hit_before(struct hit a, struct hit b) {
    return a.distance < b.distance || (a.distance == b.distance && a.id < b.id);
}

/* Start a pass for `capacity` hits in the given array (capacity >= 1). */
void collect_start(struct collector *c, struct hit *hits, size_t capacity, uint64_t radius, const uint8_t *dead,
                   int resumed, struct hit after);

/* Forget the hits that are not proven; the limit stays, which is what makes a second plan start well. Precondition:
 * every hit within the limit will be offered again. */
void collect_restart(struct collector *c);

/* Keep the hit if it is among the best. Callers need not offer hits beyond the limit. Returns 0 where the hit, and so
 * every later one, comes too late. */
int collect_offer(struct collector *c, struct hit hit);

/* Every hit nearer than `bound` has been offered: those kept are proven. */
void collect_prove(struct collector *c, uint64_t bound);

/* Every hit there is has been offered. Put the next piece of those kept in order, which makes it proven. Call it again
 * until count is 0, and offer nothing any more. */
void collect_prove_piece(struct collector *c);

/* No room is left for hits that have not been offered yet. */
static inline int collect_full(const struct collector *c) { return c->proven + c->count == c->capacity; }

void hits_sort(struct hit *hits, size_t count);

#endif
