#ifndef WHAMMING_DISTINCT_H
#define WHAMMING_DISTINCT_H
#include <stddef.h>
#include <stdint.h>

/* The distinct codes among n codes, numbered in order of first occurrence. */
struct distinct {
    uint64_t count;
    uint32_t *number_of; /* per code: the number of its distinct code */
    uint32_t *first;     /* per distinct code: the first code equal to it */
};

/* Find the distinct codes. In the last byte of a code, only the bits in last_mask are compared. The result takes 8
 * bytes per code; scratch memory is 8 to 16 bytes per code. Returns a wh_status (WH_MEMORY); distinct_free is safe on a
 * zeroed or failed struct. */
int distinct_find(struct distinct *distinct, const uint8_t *codes, uint64_t n, size_t code_bytes, uint8_t last_mask,
                  volatile uint32_t *cancel);
/* If few codes are equal to others, treat all n codes as distinct: a row of several ids costs each row the place of its
 * first id, and saves little. Returns a wh_status (WH_MEMORY). */
int distinct_keep_rare(struct distinct *distinct, uint64_t n);
void distinct_free(struct distinct *distinct);

#endif
