#ifndef WHAMMING_ROWS_H
#define WHAMMING_ROWS_H
/* From a row, one distinct code, to the hits of all ids that share it. */
#include "index/arrays.h"
#include "search/collect.h"

/* Fetch what offer_row will need of a row: its group first, once that has come its ids. Where no two codes are equal, the
 * row is the place of its id; where the id is the row, there is nothing to fetch. */
static inline void fetch_group(const wh_index *index, uint32_t row) {
    if (index->groups) __builtin_prefetch(index->groups + 4 * (uint64_t)row);
    else if (index->meta.id_bytes) __builtin_prefetch(id_address(index, row));
}
static inline void fetch_ids(const wh_index *index, uint32_t row) {
    if (index->groups) __builtin_prefetch(id_address(index, load32(index->groups + 4 * (uint64_t)row)));
}

static inline int is_dead(const struct collector *collector, uint64_t place) {
    return collector->dead && (collector->dead[place >> 3] >> (place & 7) & 1);
}

/* Offer a row's ids, smallest first, until the collector takes no more. Returns 0 where GROUPS contradicts itself. */
static inline int offer_row(const wh_index *index, struct collector *collector, uint32_t row, uint64_t distance) {
    if (!index->groups) {
        if (!is_dead(collector, row)) collect_offer(collector, (struct hit){distance, id_at(index, row)});
        return 1;
    }
    uint64_t start = load32(index->groups + 4 * (uint64_t)row), stop = load32(index->groups + 4 * (uint64_t)row + 4);
    if (start > stop || stop > index->meta.n) return 0;
    for (uint64_t place = start; place < stop; place++)
        if (!is_dead(collector, place) && !collect_offer(collector, (struct hit){distance, id_at(index, place)})) break;
    return 1;
}

#endif
