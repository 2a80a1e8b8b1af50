#ifndef WHAMMING_ROWS_H
#define WHAMMING_ROWS_H
/* A row is one stored code. These functions offer its items to the collector. */
#include "index/arrays.h"
#include "search/collect.h"
#include "search/distance.h"

/* Prefetch what offer_row will read. Call fetch_group first, and fetch_ids once the group has arrived in the cache. If
 * all codes are distinct, the row is also the place, so fetch_group prefetches the id itself. If each id equals its
 * row, there is nothing to prefetch. */
static inline void fetch_group(const wh_index *index, uint32_t row) {
    if (index->groups) __builtin_prefetch(group_address(index, row));
    else if (index->meta.id_bytes) __builtin_prefetch(id_address(index, row));
}
static inline void fetch_ids(const wh_index *index, uint32_t row) {
    if (index->groups) __builtin_prefetch(id_address(index, group_at(index, row)));
}

static inline int is_dead(const struct collector *collector, uint64_t place) {
    return collector->dead && (collector->dead[place >> 3] >> (place & 7) & 1);
}

/* Offer the ids of a row, smallest first, until the collector accepts no more. Returns 0 if GROUPS is corrupt. */
static inline int offer_row(const wh_index *index, struct collector *collector, uint32_t row, struct exact distance) {
    if (!index->groups) {
        if (!is_dead(collector, row))
            collect_offer(collector, (struct hit){distance.steps, distance.rest, id_at(index, row)});
        return 1;
    }
    uint64_t start = group_at(index, row), stop = group_at(index, (uint64_t)row + 1);
    if (start > stop || stop > index->meta.n) return 0;
    for (uint64_t place = start; place < stop; place++) {
        if (is_dead(collector, place)) continue;
        if (!collect_offer(collector, (struct hit){distance.steps, distance.rest, id_at(index, place)})) break;
    }
    return 1;
}

#endif
