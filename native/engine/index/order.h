#ifndef WHAMMING_ORDER_H
#define WHAMMING_ORDER_H
#include <stddef.h>
#include <stdint.h>

/* Reorder n codes in place so that similar ones are next to each other. `rows` has n entries, which are moved along
 * with the codes. `progress` rises from `from` to `to`. `progress` and `cancel` may be NULL. Returns WH_OK, WH_MEMORY
 * or WH_STOPPED. */
int order_codes(uint8_t *codes, uint32_t *rows, size_t n, uint32_t bits, uint32_t threads, volatile uint32_t *progress,
                uint32_t from, uint32_t to, volatile uint32_t *cancel);

#endif
