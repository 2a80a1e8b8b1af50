#ifndef WHAMMING_LAB_FRONTIER_H
#define WHAMMING_LAB_FRONTIER_H
/* The priority queue of a probing sequence: codes that were generated but not probed yet, cheapest first. */
#include "lab.h"

struct lab_node {
    uint64_t cost;
    uint32_t code;  /* in the generator's own representation; breaks ties, so that the order is deterministic */
    uint32_t state; /* private to the generator */
};

/* A zeroed struct is an empty frontier. */
struct lab_frontier {
    struct lab_node *heap;
    size_t size;
    size_t capacity;
};

/* Free the memory. The frontier is then empty and can be used again. */
void lab_frontier_free(struct lab_frontier *frontier);

/* Add a node. Failures: LAB_MEMORY; the frontier is then unchanged. */
int lab_frontier_push(struct lab_frontier *frontier, struct lab_node node);

/* Remove and return the cheapest node. The frontier must not be empty. */
struct lab_node lab_frontier_pop(struct lab_frontier *frontier);

#endif
