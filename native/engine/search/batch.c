/* Batches: queries share the pass over the blocks.
 *
 * Queries are searched in groups, part by part. The queries of a group first probe, one after the other. Those for
 * which a sweep is faster then sweep together, tile by tile. A tile is a number of blocks that stay in the fast caches.
 * All these queries sweep a tile before the next one is read. So the first round reads each block from memory once per
 * group. Queries that need more rounds (k > 65,536, part.h) then continue one after the other, each with passes of its
 * own. Each thread takes one group at a time. If there are more threads than groups, a query that sweeps alone uses
 * several (sweep_together.c).
 */
#include "search/cursor.h"
#include "base/memory.h"
#include "base/parallel.h"

#include <math.h>

enum { GROUP = 32, TILE_BYTES = 256 * 1024, SLICE_NANOSECONDS = 1000000 };

struct batch {
    const struct wh_part *parts;
    size_t count;
    const struct wh_search *searches;
    size_t q, k, group;
    uint32_t helpers; /* threads for the sweep of a query, if there are more threads than groups */
    volatile uint32_t *cancel;
    uint64_t deadline; /* a time of clock_nanoseconds; UINT64_MAX: none */
    uint64_t *ids;
    double *distances;
    uint64_t *counts;
    struct wh_stats *stats;
    _Atomic int status;
    _Atomic size_t done; /* number of the first query that was not completed */
};

static int stopped(const void *batch) {
    const struct batch *b = batch;
    if (b->cancel && atomic_load_explicit((const volatile _Atomic uint32_t *)b->cancel, memory_order_relaxed)) return 1;
    return b->deadline != UINT64_MAX && clock_nanoseconds() >= b->deadline;
}

/* Add the time since `start` to this query, and restart the clock for the next one. */
static void add_time(wh_cursor *cursor, uint64_t *start) {
    uint64_t now = clock_nanoseconds();
    cursor->nanoseconds += now - *start;
    *start = now;
}

/* Sweep one part for all queries of a group that have chosen the sweep. Clears *complete if it was stopped early. */
static int sweep_together(const struct batch *b, wh_cursor *const cursors[], size_t count, size_t part, int *complete) {
    const wh_index *index = b->parts[part].index;
    size_t tile = TILE_BYTES / index->block_bytes + 1, sweeping = 0;
    uint64_t start = clock_nanoseconds(), now = start, planes = 0;
    for (size_t i = 0; i < count; i++) {
        struct part *p = &cursors[i]->parts[part];
        if (p->phase != PHASE_SWEEP) continue;
        sweeping++;
        p->entered = start;
        planes -= p->sweep.counts.blocks * index->planes;
    }
    if (sweeping == 0) return WH_OK;
    int together = 0;
    if (b->helpers > 1) { /* there are more threads than queries, so the group has one query */
        struct part *p = &cursors[0]->parts[part];
        together = sweep_list_together(&p->sweep, &p->collector, b->helpers, stopped, b);
        if (together) p->plan.k = UINT64_MAX; /* the time of several threads is not learned */
    }
    for (size_t last = tile, left = sweeping; left > 0; last = last < index->blocks_count ? last + tile : tile) {
        if (stopped(b)) {
            *complete = 0;
            return WH_OK;
        }
        left = 0;
        for (size_t i = 0; i < count; i++) {
            struct part *p = &cursors[i]->parts[part];
            if (p->phase != PHASE_SWEEP || p->sweep.done) continue;
            uint64_t before = now;
            int status = sweep_run(&p->sweep, &p->collector, last, UINT64_MAX);
            if (status != WH_OK) return status;
            left += !p->sweep.done;
            now = clock_nanoseconds();
            cursors[i]->nanoseconds += now - before;
        }
    }
    for (size_t i = 0; i < count; i++) {
        struct part *p = &cursors[i]->parts[part];
        if (p->phase != PHASE_SWEEP) continue;
        planes += p->sweep.counts.blocks * index->planes;
        part_swept(p);
    }
    /* If few queries sweep, a plane takes longer, because fewer queries share the cost of reading it. Such groups are
     * learned from too: the estimate should be the average over all groups. */
    if (!together) planner_learn_planes(b->parts[part].planner, count > 1, planes, now - start);
    return WH_OK;
}

/* Search one part for all queries of a group. Clears *complete if it was stopped early. */
static int run_part(const struct batch *b, wh_cursor *const cursors[], size_t count, size_t part, int *complete) {
    int status = WH_OK;
    uint64_t start = clock_nanoseconds();
    for (size_t i = 0; i < count; i++) {
        struct part *p = &cursors[i]->parts[part];
        while (p->phase == PHASE_PROBE) {
            if (stopped(b)) {
                *complete = 0;
                return WH_OK;
            }
            status = part_work(p);
            if (status != WH_OK) return status;
        }
        add_time(cursors[i], &start);
    }
    status = sweep_together(b, cursors, count, part, complete);
    for (size_t i = 0; i < count; i++) cursor_share_limit(cursors[i]);
    return status;
}

/* Fill a query's row of the results. Searches further rounds if necessary. Clears *complete if it was stopped early. */
static int finish(const struct batch *b, wh_cursor *cursor, size_t row, int *complete) {
    const struct wh_budget slice = {.nanoseconds = SLICE_NANOSECONDS};
    uint64_t *ids = b->ids + row * b->k;
    double *distances = b->distances + row * b->k;
    size_t count = 0;
    for (int stop = WH_BUDGET; stop == WH_BUDGET;) {
        size_t found;
        int status =
            wh_cursor_next(cursor, b->k - count, &slice, 0, ids + count, distances + count, NULL, &found, &stop);
        if (status != WH_OK) return status;
        count += found;
        if (stop == WH_BUDGET && stopped(b)) {
            *complete = 0;
            return WH_OK;
        }
    }
    b->counts[row] = count;
    for (; count < b->k; count++) {
        ids[count] = UINT64_MAX;
        distances[count] = INFINITY;
    }
    if (b->stats) wh_cursor_stats(cursor, &b->stats[row]);
    return WH_OK;
}

/* Search a group. Sets *done to d if the first d of its queries were completed. These are all of them, unless the
 * search was stopped or failed. */
static int run_group(const struct batch *b, size_t first, size_t count, wh_cursor *cursors[], size_t *done) {
    int status = WH_OK, complete = 1;
    uint64_t start = clock_nanoseconds();
    for (size_t i = 0; i < count && status == WH_OK; i++) {
        status = cursor_open(b->parts, b->count, &b->searches[first + i], count > 1, &cursors[i]);
        if (status == WH_OK) add_time(cursors[i], &start);
    }
    for (size_t part = 0; part < b->count && status == WH_OK && complete; part++)
        status = run_part(b, cursors, count, part, &complete);
    for (size_t i = 0; i < count && status == WH_OK && complete; i++) {
        status = finish(b, cursors[i], first + i, &complete);
        if (complete) *done = i + 1;
    }
    return status;
}

static void work(void *context, size_t group, uint32_t worker) {
    struct batch *b = context;
    (void)worker;
    size_t first = group * b->group, count = b->q - first < b->group ? b->q - first : b->group;
    wh_cursor *cursors[GROUP] = {NULL};
    if (atomic_load(&b->status) != WH_OK) return;
    size_t completed = 0;
    int status = stopped(b) ? WH_OK : run_group(b, first, count, cursors, &completed);
    for (size_t i = 0; i < count; i++) wh_cursor_close(cursors[i]);
    if (status != WH_OK) atomic_store(&b->status, status);
    size_t unfinished = first + completed, done = atomic_load(&b->done);
    if (completed == count) return;
    while (unfinished < done && !atomic_compare_exchange_weak(&b->done, &done, unfinished)) continue;
}

int wh_search_batch(const struct wh_part *parts, size_t count, const struct wh_search *searches, size_t q, size_t k,
                    uint32_t threads, volatile uint32_t *cancel, uint64_t nanoseconds, uint64_t *ids, double *distances,
                    uint64_t *counts, struct wh_stats *stats, size_t *done) {
    if (threads < 1) threads = 1;
    for (size_t i = 0; i < q; i++)
        if (searches[i].k > k) return WH_ARGUMENT;
    struct batch b = {.parts = parts,
                      .count = count,
                      .searches = searches,
                      .q = q,
                      .k = k,
                      .group = (q + threads - 1) / threads,
                      .cancel = cancel,
                      .deadline = nanoseconds ? clock_nanoseconds() + nanoseconds : UINT64_MAX,
                      .ids = ids,
                      .distances = distances,
                      .counts = counts,
                      .stats = stats,
                      .done = q};
    if (b.group > GROUP) b.group = GROUP;
    if (b.group < 1) b.group = 1;
    size_t groups = (q + b.group - 1) / b.group;
    b.helpers = groups ? (uint32_t)(threads / groups) : 1;
    parallel_run(threads, groups, work, &b);
    if (done) *done = atomic_load(&b.done);
    return atomic_load(&b.status);
}
