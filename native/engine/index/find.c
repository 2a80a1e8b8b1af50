/* From ids to places: a search through the places sorted by id.
 *
 * Ids that come in increasing order are found by steps that double from where the last one was, so that a list of them
 * costs about as much as merging it with the part of the index that it spans. */
#include "index/arrays.h"

int wh_index_find(const wh_index *index, const void *by_id, const uint64_t *ids, size_t count, uint64_t *places) {
    const uint8_t *order = by_id;
    uint64_t n = index->meta.n, low = 0;
    for (size_t i = 0; i < count; i++) {
        /* Whatever is before `low` in the order has an id less than ids[i]. */
        if (i && ids[i] < ids[i - 1]) low = 0;
        uint64_t high = low, step = 1, found = UINT64_MAX;
        while (high < n) {
            uint64_t place = load32(order + 4 * high);
            if (place >= n) return WH_CORRUPT;
            if (id_at(index, place) >= ids[i]) break;
            low = high + 1;
            high += step;
            step *= 2;
        }
        if (high > n) high = n;
        while (low < high) { /* the first place whose id is at least ids[i] lies in [low, high] */
            uint64_t middle = low + (high - low) / 2, place = load32(order + 4 * middle);
            if (place >= n) return WH_CORRUPT;
            if (id_at(index, place) < ids[i]) low = middle + 1;
            else high = middle;
        }
        if (low < n) {
            uint64_t place = load32(order + 4 * low);
            if (place >= n) return WH_CORRUPT;
            if (id_at(index, place) == ids[i]) found = place;
        }
        places[i] = found;
    }
    return WH_OK;
}
