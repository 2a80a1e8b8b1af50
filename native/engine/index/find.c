/* Looking up ids: searches in `order`, the list of all places by increasing id.
 *
 * Each search starts at the result of the previous one. From the difference between its id and the previous id, it
 * guesses how far ahead its result is, as if the ids of the index were evenly spaced. It corrects the guess in steps
 * that double (galloping search). Each step reads an id at a random place, so the number of steps matters. A list of
 * increasing ids takes one or two steps per id if the index's ids are consecutive. At worst, it takes about twice as
 * many as a binary search. */
#include "index/arrays.h"

struct finder {
    const wh_index *index;
    const uint8_t *order;
    double density; /* ids of the index per unit of id */
    uint64_t last;  /* the id of the previous search */
    uint64_t low;   /* all entries of `order` before this position have smaller ids than `last` */
};

/* Read the id at a position of `order`. Returns WH_CORRUPT if the place there does not exist. */
static int read_id(const struct finder *finder, uint64_t position, uint64_t *id) {
    uint64_t place = load32(finder->order + 4 * position);
    if (place >= finder->index->meta.n) return WH_CORRUPT;
    *id = id_at(finder->index, place);
    return WH_OK;
}

static int finder_start(struct finder *finder, const wh_index *index, const void *by_id) {
    uint64_t n = index->meta.n, least = 0, greatest = 0;
    *finder = (struct finder){.index = index, .order = by_id};
    if (n == 0) return WH_OK;
    int status = read_id(finder, 0, &least);
    if (status == WH_OK) status = read_id(finder, n - 1, &greatest);
    finder->last = least;
    if (greatest > least) finder->density = (double)(n - 1) / (double)(greatest - least);
    return status;
}

/* Find the place of an id, or UINT64_MAX. Returns WH_CORRUPT if `order` contains a place that does not exist. */
static int find(struct finder *finder, uint64_t id, uint64_t *found) {
    uint64_t n = finder->index->meta.n, low = finder->low, high = n, there, step = 1;
    int status;
    *found = UINT64_MAX;
    if (id < finder->last) { /* not in order: search everything before the previous result */
        high = low;
        low = 0;
    } else if (low < n) {
        double ahead = (double)(id - finder->last) * finder->density, most = (double)(n - 1 - low);
        uint64_t guess = low + (uint64_t)(ahead < most ? ahead : most);
        status = read_id(finder, guess, &there);
        if (status != WH_OK) return status;
        if (there < id) {
            for (low = guess + 1, high = low; high < n; high += step, step *= 2) {
                status = read_id(finder, high, &there);
                if (status != WH_OK) return status;
                if (there >= id) break;
                low = high + 1;
            }
            if (high > n) high = n;
        } else {
            for (high = guess; high > low; step *= 2) {
                uint64_t before = high - low < step ? low : high - step;
                status = read_id(finder, before, &there);
                if (status != WH_OK) return status;
                if (there < id) {
                    low = before + 1;
                    break;
                }
                high = before;
            }
        }
    }
    while (low < high) { /* the first position whose id is at least `id` is in [low, high] */
        uint64_t middle = low + (high - low) / 2;
        status = read_id(finder, middle, &there);
        if (status != WH_OK) return status;
        if (there < id) low = middle + 1;
        else high = middle;
    }
    finder->last = id;
    finder->low = low;
    if (low == n) return WH_OK;
    status = read_id(finder, low, &there);
    if (status == WH_OK && there == id) *found = load32(finder->order + 4 * low);
    return status;
}

int wh_index_find(const wh_index *index, const void *by_id, const uint64_t *ids, size_t count, uint64_t *places) {
    struct finder finder;
    int status = finder_start(&finder, index, by_id);
    for (size_t i = 0; i < count && status == WH_OK; i++) status = find(&finder, ids[i], &places[i]);
    return status;
}
