#ifndef WHAMMING_ORDER_H
#define WHAMMING_ORDER_H
#include <stddef.h>
#include <stdint.h>

/* Sort n codes in place so that alike ones come to stand next to each other, and carry their original numbers along.
 * rows: n entries, moved as the codes are. progress may be NULL; it is raised from `from` to `to`.
 * Returns a wh_status (WH_MEMORY). */
int order_codes(uint8_t *codes, uint32_t *rows, size_t n, uint32_t bits, uint32_t threads, volatile uint32_t *progress,
                uint32_t from, uint32_t to);

#endif
