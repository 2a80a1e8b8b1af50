/* Compares the engine with its naive twin, in plain C: for the sanitizers, and for machines without Python.
 *
 * Built with -DWHAMMING_TEST_ALLOCATOR, it also makes each allocation of a build, an open and a search fail in turn.
 * The call must then return WH_MEMORY and leak nothing (the leak sanitizer checks this).
 */
#include "twin.h"

#include <stdatomic.h>

static size_t passed, failed;

#define CHECK(condition) check(!!(condition), #condition, __FILE__, __LINE__)

static void check(int holds, const char *condition, const char *file, int line) {
    if (holds) {
        passed++;
        return;
    }
    failed++;
    fprintf(stderr, "%s:%d: %s\n", file, line, condition);
}

/* -- An allocator that fails on purpose -------------------------------------------------------------------------- */

static _Atomic long fail_at; /* countdown to the allocation that fails; 0: none does */
static _Atomic int has_failed;

#ifdef WHAMMING_TEST_ALLOCATOR
static int fails(void) {
    if (atomic_load(&fail_at) == 0 || atomic_fetch_sub(&fail_at, 1) != 1) return 0;
    atomic_store(&has_failed, 1);
    return 1;
}
void *wh_test_malloc(size_t size) { return fails() ? NULL : malloc(size); }
void *wh_test_calloc(size_t count, size_t size) { return fails() ? NULL : calloc(count, size); }
void *wh_test_realloc(void *old, size_t size) { return fails() ? NULL : realloc(old, size); }
void *wh_test_aligned_alloc(size_t align, size_t size) { return fails() ? NULL : aligned_alloc(align, size); }
#endif

static void fail_allocation(long number) {
    atomic_store(&has_failed, 0);
    atomic_store(&fail_at, number);
}

/* -- Answers ----------------------------------------------------------------------------------------------------- */

static const uint32_t plans[] = {WH_AUTO, WH_PROBE, WH_SWEEP};

static void test_chunks(const struct wh_part *part, const struct twin_data *d, const struct twin_query *q,
                        const struct twin_hit *hits, uint32_t plan, uint64_t k, size_t chunk, int eager) {
    struct wh_search search = twin_search(q, plan, k);
    uint64_t *ids = must(malloc(sizeof *ids * (chunk + 1)));
    double *distances = must(malloc(sizeof *distances * (chunk + 1)));
    uint64_t want = k < d->n ? k : d->n, sent = 0;
    wh_cursor *cursor = NULL;
    int stop = WH_MORE;
    CHECK(wh_cursor_open(part, 1, &search, &cursor) == WH_OK);
    double bound = wh_cursor_bound(cursor);
    while (cursor && stop != WH_EXHAUSTED && sent <= want) {
        size_t count = 0;
        if (sent < d->n) CHECK(bound <= twin_distance(q, hits[sent]));
        CHECK(wh_cursor_next(cursor, chunk, NULL, eager, ids, distances, NULL, &count, &stop) == WH_OK);
        CHECK(sent + count <= want && twin_agrees(q, hits, sent, ids, distances, count));
        CHECK(count > 0 || stop == WH_EXHAUSTED);
        sent += count;
        CHECK(wh_cursor_bound(cursor) >= bound);
        bound = wh_cursor_bound(cursor);
    }
    CHECK(sent == want);
    CHECK(sent < d->n || bound == INFINITY);
    wh_cursor_close(cursor);
    free(ids);
    free(distances);
}

/* Budgets, guesses and resuming after a hit: the hits before and after a pause are the twin's answer. */
static void test_pauses(const struct wh_part *part, const struct twin_data *d, const struct twin_query *q,
                        const struct twin_hit *hits, uint32_t plan) {
    struct wh_search search = twin_search(q, plan, UINT64_MAX);
    struct wh_budget budget = {.candidates = 100};
    uint64_t *ids = must(malloc(sizeof *ids * (size_t)(d->n + 1))), sent = 0;
    double *distances = must(malloc(sizeof *distances * (size_t)(d->n + 1)));
    wh_cursor *cursor = NULL;
    size_t count = 0;
    int stop = WH_MORE;
    struct wh_stats stats;
    CHECK(wh_cursor_open(part, 1, &search, &cursor) == WH_OK);
    for (int calls = 0; cursor && calls < 5 && stop != WH_EXHAUSTED; calls++) {
        CHECK(wh_cursor_next(cursor, 7, &budget, 0, ids, distances, NULL, &count, &stop) == WH_OK);
        CHECK(twin_agrees(q, hits, sent, ids, distances, count));
        sent += count;
        CHECK(wh_cursor_guess(cursor, (size_t)d->n, ids, distances, &count) == WH_OK);
        for (size_t i = 0; i < count; i++) CHECK(distances[i] >= wh_cursor_bound(cursor));
        for (size_t i = 1; i < count; i++) CHECK(distances[i - 1] <= distances[i]);
    }
    wh_cursor_stats(cursor, &stats);
    CHECK(stats.rounds >= 1 || d->n == 0);
    wh_cursor_cancel(cursor);
    CHECK(wh_cursor_next(cursor, (size_t)d->n, NULL, 0, ids, distances, NULL, &count, &stop) == WH_OK);
    CHECK(stop == WH_CANCELLED || stop == WH_EXHAUSTED || (stop == WH_MORE && count == d->n));
    sent += count;
    wh_cursor_close(cursor);
    if (sent) { /* resume with a new cursor */
        search.resumed = q->scale.rounded ? WH_AFTER_SUM : WH_AFTER_DISTANCE;
        search.after_sum = sum_of(hits[sent - 1].distance);
        search.after_distance = twin_distance(q, hits[sent - 1]);
        search.after_id = hits[sent - 1].id;
    }
    cursor = NULL;
    CHECK(wh_cursor_open(part, 1, &search, &cursor) == WH_OK);
    CHECK(wh_cursor_next(cursor, (size_t)d->n, NULL, 0, ids, distances, NULL, &count, &stop) == WH_OK);
    CHECK(count == d->n - sent && twin_agrees(q, hits, sent, ids, distances, count));
    wh_cursor_close(cursor);
    free(ids);
    free(distances);
}

static void test_radius(const struct wh_part *part, const struct twin_data *d, const struct twin_query *q,
                        const struct twin_hit *hits, uint32_t plan) {
    uint64_t at = d->n / 3, want = at;
    struct wh_search search = twin_search(q, plan, d->n);
    uint64_t *ids = must(malloc(sizeof *ids * (size_t)(d->n + 1)));
    double *distances = must(malloc(sizeof *distances * (size_t)(d->n + 1)));
    for (int exactly = 0; exactly < 2; exactly++) {
        double radius = twin_distance(q, hits[at]);
        search.radius = exactly ? radius : nextafter(radius, -INFINITY);
        for (want = 0; want < d->n && twin_distance(q, hits[want]) <= search.radius;) want++;
        wh_cursor *cursor = NULL;
        size_t count = 0;
        int stop = WH_MORE;
        CHECK(wh_cursor_open(part, 1, &search, &cursor) == WH_OK);
        CHECK(wh_cursor_next(cursor, (size_t)d->n, NULL, 0, ids, distances, NULL, &count, &stop) == WH_OK);
        CHECK(count == want && twin_agrees(q, hits, 0, ids, distances, count));
        CHECK(stop == WH_EXHAUSTED);
        wh_cursor_close(cursor);
    }
    free(ids);
    free(distances);
}

/* A query of each kind, with the twin's answer. */
struct known {
    struct twin_query queries[TWIN_WEIGHTS];
    struct twin_hit *hits[TWIN_WEIGHTS];
};

static struct known known_answers(const struct twin_data *d) {
    struct known known;
    for (int kind = 0; kind < TWIN_WEIGHTS; kind++) {
        known.queries[kind] = twin_query(d, (enum twin_weights)kind, d->n + (uint64_t)kind);
        known.hits[kind] = twin_answer(d, &known.queries[kind]);
    }
    return known;
}

static void known_free(struct known *known) {
    for (int kind = 0; kind < TWIN_WEIGHTS; kind++) {
        twin_query_free(&known->queries[kind]);
        free(known->hits[kind]);
    }
}

static void test_batch(const struct wh_part *part, const struct twin_data *d, const struct known *known, uint32_t plan,
                       uint32_t threads) {
    enum { Q = 40 };
    size_t k = d->n < 9 ? (size_t)d->n : 9;
    struct wh_search searches[Q];
    uint64_t *ids = must(malloc(sizeof *ids * (Q * k + 1))), counts[Q] = {0};
    double *distances = must(malloc(sizeof *distances * (Q * k + 1)));
    struct wh_stats stats[Q];
    uint32_t cancel = 0;
    for (size_t i = 0; i < Q; i++) searches[i] = twin_search(&known->queries[i % TWIN_WEIGHTS], plan, k);
    uint64_t limits[] = {0, 1, 20000, 1000000}; /* none; too short to start; long enough for some, perhaps for all */
    for (size_t limit = 0; limit < sizeof limits / sizeof *limits; limit++) {
        size_t done = SIZE_MAX;
        CHECK(wh_search_batch(part, 1, searches, Q, k, threads, &cancel, limits[limit], ids, distances, counts, stats,
                              &done) == WH_OK);
        CHECK(done <= Q && (limits[limit] != 0 || done == Q) && (limits[limit] != 1 || done == 0));
        for (size_t i = 0; i < done; i++)
            CHECK(counts[i] == k && twin_agrees(&known->queries[i % TWIN_WEIGHTS], known->hits[i % TWIN_WEIGHTS], 0,
                                                ids + i * k, distances + i * k, k));
    }
    free(ids);
    free(distances);
}

static void test_part(const struct wh_part *part, const struct twin_data *d, const struct known *known, uint32_t plan) {
    for (int kind = 0; kind < TWIN_WEIGHTS; kind++) {
        const struct twin_query *q = &known->queries[kind];
        const struct twin_hit *hits = known->hits[kind];
        test_chunks(part, d, q, hits, plan, 10, 3, 0);
        test_chunks(part, d, q, hits, plan, UINT64_MAX, 61, kind & 1);
        if (d->n) test_radius(part, d, q, hits, plan);
        test_pauses(part, d, q, hits, plan);
    }
    for (uint32_t threads = 1; threads <= 3; threads += 2) test_batch(part, d, known, plan, threads);
}

/* Every plan with every instruction set, and without a planner. */
static void test_every_way(const wh_index *index, const struct twin_data *d, const struct known *known) {
    struct wh_part part = {.index = index};
    struct wh_index_info info;
    wh_index_describe(index, &info);
    CHECK(info.n == d->n && info.bits == d->bits);
    test_part(&part, d, known, WH_AUTO);
    CHECK(wh_planner_create(&part.planner) == WH_OK);
    for (int level = WH_PORTABLE; level <= WH_AVX512; level++) {
        if (!wh_simd_available(level)) {
            CHECK(wh_planner_use_simd(part.planner, level) == WH_ARGUMENT);
            continue;
        }
        CHECK(wh_planner_use_simd(part.planner, level) == WH_OK);
        for (size_t p = 0; p < sizeof plans / sizeof *plans; p++)
            if (plans[p] != WH_PROBE || (info.tables && level == wh_simd_level())) test_part(&part, d, known, plans[p]);
    }
    wh_planner_free(part.planner);
}

static void test_index(const struct twin_data *d, struct wh_build_options options) {
    struct wh_arrays arrays;
    wh_index *index = NULL;
    uint32_t progress = 0;
    struct known known = known_answers(d);
    CHECK(wh_build(d->codes, d->n, d->ids, &options, &progress, &arrays) == WH_OK);
    CHECK(progress == 1000);
    CHECK(wh_index_open(&arrays, &index) == WH_OK);
    test_every_way(index, d, &known);
    wh_index_close(index);

    /* The same bytes at odd addresses, in blocks of the exact size: sanitizers catch misaligned and stray reads. */
    struct wh_arrays moved = arrays;
    uint8_t *room[WH_ARRAYS];
    for (int a = 0; a < WH_ARRAYS; a++) {
        size_t offset = 1 + 2 * (size_t)a;
        room[a] = must(malloc((size_t)arrays.size[a] + offset));
        moved.data[a] = arrays.size[a] ? memcpy(room[a] + offset, arrays.data[a], (size_t)arrays.size[a]) : NULL;
    }
    CHECK(wh_index_open(&moved, &index) == WH_OK);
    test_every_way(index, d, &known);
    wh_index_close(index);
    for (int a = 0; a < WH_ARRAYS; a++) { /* one byte short */
        struct wh_arrays cut = moved;
        if (cut.size[a] == 0) continue;
        cut.size[a]--;
        CHECK(wh_index_open(&cut, &index) == WH_CORRUPT);
        cut.size[a]++;
        cut.data[a] = NULL;
        CHECK(wh_index_open(&cut, &index) == WH_CORRUPT);
    }
    for (int a = 0; a < WH_ARRAYS; a++) free(room[a]);
    known_free(&known);
    wh_arrays_free(&arrays);
    CHECK(arrays.data[WH_CODES] == NULL && arrays.size[WH_CODES] == 0);
}

static void test_answers(void) {
    static const struct {
        uint32_t bits, tables, covered;
        uint64_t n;
    } shapes[] = {{1, 1, 1, 9},     {7, 3, 7, 300},      {20, 2, 20, 200},    {32, 2, 24, 130}, {64, 8, 64, 700},
                  {65, 5, 65, 129}, {287, 36, 287, 150}, {289, 16, 128, 260}, {300, 0, 1, 128}, {33, 4, 33, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (uint32_t way = 0; way < 4; way++) {
            struct twin_data d = twin_data(shapes[i].bits, shapes[i].n, (int)(way & 1), i + 100 * way);
            struct wh_build_options options = {.bits = shapes[i].bits,
                                               .tables = shapes[i].tables,
                                               .covered = shapes[i].covered,
                                               .layout = way & 1 ? WH_SINGLE : WH_MULTI,
                                               .buckets = way & 2 ? WH_FAST : WH_COMPACT,
                                               .reorder = (way ^ (uint32_t)i) >> 1 & 1,
                                               .threads = way};
            test_index(&d, options);
            twin_data_free(&d);
        }
    }
}

/* -- Limits of a batch --------------------------------------------------------------------------------------------
 * */

/* A time limit also holds in the rounds after the first, which queries run one after the other. With the right limit,
 * a batch therefore completes some queries of a group, but not all. */
static void test_limit_in_later_rounds(void) {
    enum { Q = 5, N = 150000 }; /* three rounds per query */
    struct twin_data d = twin_data(24, N, 0, 3);
    struct wh_build_options options = {.bits = 24, .covered = 24};
    struct wh_arrays arrays;
    struct wh_part part = {0};
    wh_index *index = NULL;
    CHECK(wh_build(d.codes, d.n, d.ids, &options, NULL, &arrays) == WH_OK);
    CHECK(wh_index_open(&arrays, &index) == WH_OK);
    part.index = index;
    struct twin_query q = twin_query(&d, TWIN_INTEGERS, 5);
    struct wh_search searches[Q];
    for (size_t i = 0; i < Q; i++) searches[i] = twin_search(&q, WH_SWEEP, N);
    uint64_t *ids = must(malloc(sizeof *ids * Q * N)), counts[Q];
    double *distances = must(malloc(sizeof *distances * Q * N));
    struct wh_stats stats[Q];
    struct twin_hit *hits = twin_answer(&d, &q);
    size_t done = 0;
    uint64_t time = 0, low = 0, high;
    CHECK(wh_search_batch(&part, 1, searches, Q, N, 1, NULL, 0, ids, distances, counts, stats, &done) == WH_OK);
    CHECK(done == Q && stats[0].rounds == 3);
    for (size_t i = 0; i < Q; i++) time += stats[i].nanoseconds;
    high = time;
    for (int try = 0; try < 40 && (done == 0 || done == Q); try++) {
        uint64_t limit = low + (high - low) / 2;
        CHECK(wh_search_batch(&part, 1, searches, Q, N, 1, NULL, limit, ids, distances, counts, stats, &done) == WH_OK);
        *(done ? &high : &low) = limit;
        if (high - low < time / 50) { /* the machine is busy: start over */
            low = 0;
            high = 2 * time;
        }
    }
    CHECK(done > 0 && done < Q);
    for (size_t i = 0; i < done; i++)
        CHECK(counts[i] == N && twin_agrees(&q, hits, 0, ids + i * N, distances + i * N, N));
    free(hits);
    free(ids);
    free(distances);
    twin_query_free(&q);
    wh_index_close(index);
    wh_arrays_free(&arrays);
    twin_data_free(&d);
}

/* -- Invalid arguments ----------------------------------------------------------------------------------------------
 * */

static void test_refusals(void) {
    struct twin_data d = twin_data(40, 50, 0, 1);
    struct wh_build_options good = {.bits = 40, .tables = 4, .covered = 40};
    struct wh_arrays arrays;
    for (int wrong = 0; wrong < 8; wrong++) {
        struct wh_build_options options = good;
        if (wrong == 0) options.bits = 0;
        if (wrong == 1) options.bits = WH_MAX_BITS + 1;
        if (wrong == 2) options.tables = 41;
        if (wrong == 3) options.tables = 1; /* a substring of 40 bits */
        if (wrong == 4) options.covered = 0;
        if (wrong == 5) options.covered = 41;
        if (wrong == 6) options.layout = 2;
        if (wrong == 7) options.buckets = 2;
        CHECK(wh_build(d.codes, d.n, NULL, &options, NULL, &arrays) == WH_ARGUMENT);
    }
    CHECK(wh_build(d.codes, UINT64_C(1) << 32, NULL, &good, NULL, &arrays) == WH_ARGUMENT);
    struct wh_build_options single = {.bits = 40, .tables = 2, .covered = 40, .layout = WH_SINGLE};
    CHECK(wh_build(d.codes, UINT32_MAX, NULL, &single, NULL, &arrays) == WH_TOO_LARGE);

    good.tables = 0;
    CHECK(wh_build(d.codes, d.n, NULL, &good, NULL, &arrays) == WH_OK);
    wh_index *index = NULL;
    wh_cursor *cursor = NULL;
    CHECK(wh_index_open(&arrays, &index) == WH_OK);
    struct twin_query q = twin_query(&d, TWIN_RANDOM, 1);
    struct wh_search search = twin_search(&q, WH_PROBE, 1);
    CHECK(wh_cursor_open(&(struct wh_part){.index = index}, 1, &search, &cursor) == WH_NO_TABLES);
    search.plan = WH_SWEEP + 1;
    CHECK(wh_cursor_open(&(struct wh_part){.index = index}, 1, &search, &cursor) == WH_ARGUMENT);
    search.plan = WH_SWEEP;
    search.radius = NAN;
    CHECK(wh_cursor_open(&(struct wh_part){.index = index}, 1, &search, &cursor) == WH_ARGUMENT);
    search.radius = INFINITY;
    search.resumed = 1;
    search.after_distance = NAN;
    CHECK(wh_cursor_open(&(struct wh_part){.index = index}, 1, &search, &cursor) == WH_ARGUMENT);
    CHECK(cursor == NULL);
    search.resumed = 0;
    search.k = 5;
    uint64_t ids[4], counts[1];
    double distances[4];
    CHECK(wh_search_batch(&(struct wh_part){.index = index}, 1, &search, 1, 4, 1, NULL, 0, ids, distances, counts, NULL,
                          NULL) == WH_ARGUMENT);
    CHECK(wh_search_batch(&(struct wh_part){.index = index}, 1, NULL, 0, 4, 2, NULL, 0, NULL, NULL, NULL, NULL, NULL) ==
          WH_OK);
    CHECK(!wh_simd_available(-1) && !wh_simd_available(99) && wh_simd_available(wh_simd_level()));
    wh_planner *planner = NULL;
    CHECK(wh_planner_create(&planner) == WH_OK);
    CHECK(wh_planner_use_simd(planner, 99) == WH_ARGUMENT);
    wh_planner_free(planner);
    wh_planner_free(NULL);
    for (int status = -1; status < 99; status++) CHECK(wh_status_text(status) && *wh_status_text(status));
    wh_cursor_close(NULL);
    wh_index_close(NULL);
    wh_index_close(index);

    uint32_t *meta = arrays.data[WH_META];
    meta[1]++;
    CHECK(wh_index_open(&arrays, &index) == WH_VERSION);
    meta[1]--;
    meta[0]++;
    CHECK(wh_index_open(&arrays, &index) == WH_CORRUPT);
    twin_query_free(&q);
    wh_arrays_free(&arrays);
    twin_data_free(&d);
}

/* -- Failing allocations --------------------------------------------------------------------------------------------
 * */

/* Build, open and search an index. Returns the first status that is not WH_OK. */
static int build_and_search(const struct twin_data *d, const struct twin_query *q,
                            const struct wh_build_options *options, uint32_t plan, int batch) {
    struct wh_arrays arrays = {{NULL}, {0}};
    wh_index *index = NULL;
    wh_cursor *cursor = NULL;
    uint64_t ids[600], counts[3];
    double distances[600];
    size_t count = 0;
    int stop, status = wh_build(d->codes, d->n, d->ids, options, NULL, &arrays);
    if (status == WH_OK) status = wh_index_open(&arrays, &index);
    struct wh_part part = {.index = index};
    if (status == WH_OK) status = wh_planner_create(&part.planner);
    struct wh_search search = twin_search(q, plan, batch ? 200 : UINT64_MAX);
    if (status == WH_OK && batch) {
        struct wh_search searches[3] = {search, search, search};
        status = wh_search_batch(&part, 1, searches, 3, 200, 2, NULL, 0, ids, distances, counts, NULL, NULL);
    }
    if (status == WH_OK && !batch) status = wh_cursor_open(&part, 1, &search, &cursor);
    if (status == WH_OK && !batch) {
        status = wh_cursor_next(cursor, 5, NULL, 1, ids, distances, NULL, &count, &stop);
        if (status == WH_OK) status = wh_cursor_guess(cursor, 600, ids, distances, &count);
        if (status == WH_OK) status = wh_cursor_next(cursor, 600, NULL, 0, ids, distances, NULL, &count, &stop);
        else CHECK(wh_cursor_next(cursor, 600, NULL, 0, ids, distances, NULL, &count, &stop) == status || stop >= 0);
    }
    wh_cursor_close(cursor);
    wh_index_close(index);
    wh_planner_free(part.planner);
    wh_arrays_free(&arrays);
    return status;
}

static void test_failing_allocations(void) {
#ifdef WHAMMING_TEST_ALLOCATOR
    for (uint32_t way = 0; way < 16; way++) {
        struct twin_data d = twin_data(60, 500, (int)(way & 1), way);
        struct twin_query q = twin_query(&d, TWIN_RANDOM, way);
        struct wh_build_options options = {.bits = 60,
                                           .tables = way < 14 ? 6 : 0,
                                           .covered = 60,
                                           .layout = way & 1 ? WH_SINGLE : WH_MULTI,
                                           .buckets = way & 2 ? WH_FAST : WH_COMPACT,
                                           .reorder = way >> 2 & 1,
                                           .threads = way >> 2 & 2};
        uint32_t plan = way < 14 ? way % 3 : WH_SWEEP;
        long number = 0;
        int status;
        do {
            fail_allocation(++number);
            status = build_and_search(&d, &q, &options, plan, (int)(way >> 3 & 1));
            CHECK(status == (atomic_load(&has_failed) ? WH_MEMORY : WH_OK));
        } while (atomic_load(&has_failed) && number < 10000);
        CHECK(number > 10 && number < 10000);
        fail_allocation(0);
        twin_query_free(&q);
        twin_data_free(&d);
    }
#endif
}

int main(void) {
    test_answers();
    test_limit_in_later_rounds();
    test_refusals();
    test_failing_allocations();
    printf("%zu passed, %zu failed\n", passed, failed);
    return failed != 0;
}
