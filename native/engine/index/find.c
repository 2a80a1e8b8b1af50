/* From ids to places: binary search through the places sorted by id. */
#include "index/arrays.h"

int wh_index_find(const wh_index *index, const void *by_id, const uint64_t *ids, size_t count, uint64_t *places) {
    const uint8_t *order = by_id;
    uint64_t n = index->meta.n;
    for (size_t i = 0; i < count; i++) {
        uint64_t low = 0, high = n; /* the first place whose id is at least ids[i] lies in [low, high] */
        places[i] = UINT64_MAX;
        while (low < high) {
            uint64_t middle = low + (high - low) / 2, place = load32(order + 4 * middle);
            if (place >= n) return WH_CORRUPT;
            uint64_t id = id_at(index, place);
            if (id == ids[i]) {
                places[i] = place;
                break;
            }
            if (id < ids[i]) low = middle + 1;
            else high = middle;
        }
    }
    return WH_OK;
}
