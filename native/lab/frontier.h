#ifndef WHAMMING_LAB_FRONTIER_H
#define WHAMMING_LAB_FRONTIER_H
/* The priority queue of a probing sequence: what has been generated and not yet probed, cheapest first. */
#include "lab.h"

struct lab_node {
    uint64_t cost;
    uint32_t code;  /* in the generator's own coordinates; breaks ties, so that the order is the same everywhere */
    uint32_t state; /* the generator's */
};

struct lab_frontier {
    struct lab_node *heap;
    size_t size;
    size_t capacity;
};

/* A zeroed frontier is empty and ready. */
void lab_frontier_free(struct lab_frontier *frontier);

/* Failures: LAB_MEMORY; the frontier is unchanged. */
int lab_frontier_push(struct lab_frontier *frontier, struct lab_node node);

/* Take the cheapest node off. The frontier must not be empty. */
struct lab_node lab_frontier_pop(struct lab_frontier *frontier);

#endif
