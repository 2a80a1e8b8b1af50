#ifndef WHAMMING_DISTINCT_H
#define WHAMMING_DISTINCT_H
#include <stddef.h>
#include <stdint.h>

/* The distinct codes among n, numbered by their first appearance. */
struct distinct {
    uint64_t count;
    uint32_t *of;    /* per code: the number of its distinct code */
    uint32_t *first; /* per distinct code: the first code equal to it */
};

/* Find them. Only the bits of last_mask count in a code's last byte. Takes 8 bytes per code, and 8 more while at work.
 * Returns a wh_status (WH_MEMORY); distinct_free is safe on a zeroed or failed struct. */
int distinct_find(struct distinct *distinct, const uint8_t *codes, uint64_t n, size_t code_bytes, uint8_t last_mask);
void distinct_free(struct distinct *distinct);

#endif
