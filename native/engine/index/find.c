/* Looking up ids: a search through the places sorted by id.
 *
 * Each search starts at the result of the one before, in steps that double (galloping search). A list of increasing ids
 * therefore costs about as much as merging it with the range of the index that it spans. */
#include "index/arrays.h"

struct finder {
    const wh_index *index;
    const uint8_t *order;
    uint64_t last; /* the id of the previous search */
    uint64_t low;  /* all entries of `order` before this position have smaller ids than `last` */
};

static struct finder finder_of(const wh_index *index, const void *by_id) {
    return (struct finder){.index = index, .order = by_id, .last = 0, .low = 0};
}

/* Find the place of an id, or UINT64_MAX. Returns WH_CORRUPT if `order` contains a place that does not exist. */
static int find(struct finder *finder, uint64_t id, uint64_t *found) {
    const wh_index *index = finder->index;
    uint64_t n = index->meta.n, low = id < finder->last ? 0 : finder->low, high = low, step = 1;
    *found = UINT64_MAX;
    while (high < n) {
        uint64_t place = load32(finder->order + 4 * high);
        if (place >= n) return WH_CORRUPT;
        if (id_at(index, place) >= id) break;
        low = high + 1;
        high += step;
        step *= 2;
    }
    if (high > n) high = n;
    while (low < high) { /* the first position whose id is at least `id` is in [low, high] */
        uint64_t middle = low + (high - low) / 2, place = load32(finder->order + 4 * middle);
        if (place >= n) return WH_CORRUPT;
        if (id_at(index, place) < id) low = middle + 1;
        else high = middle;
    }
    finder->last = id;
    finder->low = low;
    if (low == n) return WH_OK;
    uint64_t place = load32(finder->order + 4 * low);
    if (place >= n) return WH_CORRUPT;
    if (id_at(index, place) == id) *found = place;
    return WH_OK;
}

int wh_index_find(const wh_index *index, const void *by_id, const uint64_t *ids, size_t count, uint64_t *places) {
    struct finder finder = finder_of(index, by_id);
    for (size_t i = 0; i < count; i++) {
        int status = find(&finder, ids[i], &places[i]);
        if (status) return status;
    }
    return WH_OK;
}

int wh_index_remove(const wh_index *index, const void *by_id, const uint64_t *ids, size_t count, uint8_t *dead,
                    uint8_t *removed) {
    struct finder finder = finder_of(index, by_id);
    for (size_t i = 0; i < count; i++) {
        uint64_t place;
        int status = find(&finder, ids[i], &place);
        if (status) return status;
        uint8_t mask = (uint8_t)(1 << (place & 7));
        removed[i] = place != UINT64_MAX && !(dead[place >> 3] & mask);
        if (removed[i]) dead[place >> 3] |= mask;
    }
    return WH_OK;
}
