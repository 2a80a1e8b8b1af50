/* Many threads on one index, for the thread sanitizer: cursors, batches, cancelling, and progress of a build. Every
 * answer is compared with that of the naive twin. */
#include "twin.h"

#include <pthread.h>
#include <stdatomic.h>

enum { BITS = 48, TABLES = 5, CODES = 3000, WORKERS = 4, K = 300 };

static _Atomic size_t passed, failed;

#define CHECK(condition) check(!!(condition), #condition, __LINE__)

static void check(int holds, const char *condition, int line) {
    atomic_fetch_add(holds ? &passed : &failed, 1);
    if (!holds) fprintf(stderr, "%s:%d: %s\n", __FILE__, line, condition);
}

static struct twin_data data;
static struct twin_query queries[TWIN_WEIGHTS];
static struct twin_hit *hits[TWIN_WEIGHTS];
static struct wh_part part; /* index and planner are shared by all threads */

static void start(pthread_t *thread, void *(*run)(void *), void *argument) {
    if (pthread_create(thread, NULL, run, argument) != 0) abort();
}

/* Searches every query with every plan, in chunks; each worker in a different order. */
static void *search_with_cursors(void *argument) {
    size_t worker = *(const size_t *)argument;
    uint64_t ids[64];
    double distances[64];
    for (size_t job = 0; job < 3 * TWIN_WEIGHTS; job++) {
        size_t pick = (job * (2 * worker + 1)) % (3 * TWIN_WEIGHTS), kind = pick / 3, sent = 0, count;
        struct wh_search search = twin_search(&queries[kind], (uint32_t)(pick % 3), K);
        wh_cursor *cursor = NULL;
        struct wh_stats stats;
        int stop = WH_MORE;
        CHECK(wh_cursor_open(&part, 1, &search, &cursor) == WH_OK);
        while (stop != WH_EXHAUSTED) {
            if (wh_cursor_next(cursor, 64, NULL, job & 1, ids, distances, NULL, &count, &stop) != WH_OK) abort();
            CHECK(twin_agrees(&queries[kind], hits[kind], sent, ids, distances, count));
            sent += count;
        }
        CHECK(sent == K);
        wh_cursor_stats(cursor, &stats);
        wh_cursor_close(cursor);
    }
    return NULL;
}

static void test_cursors(void) {
    pthread_t threads[WORKERS];
    size_t numbers[WORKERS];
    for (size_t w = 0; w < WORKERS; w++) {
        numbers[w] = w;
        start(&threads[w], search_with_cursors, &numbers[w]);
    }
    for (size_t w = 0; w < WORKERS; w++) pthread_join(threads[w], NULL);
}

enum { Q = 70 };

static void *search_a_batch(void *argument) {
    uint32_t plan = *(const uint32_t *)argument;
    static const size_t k = 40;
    struct wh_search searches[Q];
    uint64_t *ids = must(malloc(sizeof *ids * Q * k)), counts[Q];
    double *distances = must(malloc(sizeof *distances * Q * k));
    struct wh_stats *stats = must(malloc(sizeof *stats * Q));
    for (size_t i = 0; i < Q; i++) searches[i] = twin_search(&queries[i % TWIN_WEIGHTS], plan, k);
    CHECK(wh_search_batch(&part, 1, searches, Q, k, WORKERS, NULL, 0, ids, distances, counts, stats, NULL) == WH_OK);
    for (size_t i = 0; i < Q; i++) {
        size_t kind = i % TWIN_WEIGHTS;
        CHECK(counts[i] == k && twin_agrees(&queries[kind], hits[kind], 0, ids + i * k, distances + i * k, k));
    }
    free(ids);
    free(distances);
    free(stats);
    return NULL;
}

/* Three batches at a time, each with its own threads. */
static void test_batches(void) {
    pthread_t threads[3];
    uint32_t plans[3] = {WH_AUTO, WH_PROBE, WH_SWEEP};
    for (size_t p = 0; p < 3; p++) start(&threads[p], search_a_batch, &plans[p]);
    for (size_t p = 0; p < 3; p++) pthread_join(threads[p], NULL);
}

static void *cancel_cursor(void *cursor) {
    wh_cursor_cancel(cursor);
    return NULL;
}

/* Whenever the search is cancelled, the hits returned before are the twin's. */
static void test_cancelled_cursors(void) {
    uint64_t *ids = must(malloc(sizeof *ids * CODES));
    double *distances = must(malloc(sizeof *distances * CODES));
    for (uint32_t round = 0; round < 30; round++) {
        size_t kind = round % TWIN_WEIGHTS, count = 0;
        struct wh_search search = twin_search(&queries[kind], round % 3, UINT64_MAX);
        wh_cursor *cursor = NULL;
        pthread_t thread;
        int stop = WH_MORE;
        CHECK(wh_cursor_open(&part, 1, &search, &cursor) == WH_OK);
        start(&thread, cancel_cursor, cursor);
        CHECK(wh_cursor_next(cursor, CODES, NULL, 0, ids, distances, NULL, &count, &stop) == WH_OK);
        pthread_join(thread, NULL);
        CHECK(stop == WH_CANCELLED || (stop == WH_EXHAUSTED && count == CODES));
        CHECK(twin_agrees(&queries[kind], hits[kind], 0, ids, distances, count));
        CHECK(wh_cursor_next(cursor, CODES, NULL, 0, ids, distances, NULL, &count, &stop) == WH_OK);
        CHECK(stop == WH_CANCELLED || stop == WH_EXHAUSTED);
        wh_cursor_close(cursor);
    }
    free(ids);
    free(distances);
}

static void *cancel_batch(void *flag) {
    atomic_store((_Atomic uint32_t *)flag, 1);
    return NULL;
}

static void test_cancelled_batches(void) {
    struct wh_search searches[Q];
    uint64_t *ids = must(malloc(sizeof *ids * Q * 40)), counts[Q];
    double *distances = must(malloc(sizeof *distances * Q * 40));
    for (uint32_t round = 0; round < 12; round++) {
        uint32_t cancel = 0;
        pthread_t thread;
        for (size_t i = 0; i < Q; i++) searches[i] = twin_search(&queries[i % TWIN_WEIGHTS], round % 3, 40);
        start(&thread, cancel_batch, &cancel);
        CHECK(wh_search_batch(&part, 1, searches, Q, 40, WORKERS, &cancel, 0, ids, distances, counts, NULL, NULL) ==
              WH_OK);
        pthread_join(thread, NULL);
        CHECK(cancel == 1);
    }
    free(ids);
    free(distances);
}

/* Threads that share the sweep of one query find what one thread finds. */
static void test_one_query_on_several_threads(void) {
    enum { WIDE = 512, MANY = 80000, HITS = 100 };
    uint8_t *codes = must(malloc(MANY * WIDE / 8)), optimum[WIDE / 8] = {0};
    uint64_t seed = 5, delta[WIDE], rest[WIDE] = {0}, ids[2][HITS], counts[2];
    double distances[2][HITS];
    for (size_t i = 0; i < MANY * WIDE / 8; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        codes[i] = (uint8_t)(seed >> 56);
    }
    for (size_t i = 0; i < WIDE; i++) delta[i] = i * i + 1;
    struct wh_build_options options = {.bits = WIDE, .covered = WIDE, .layout = WH_SINGLE, .reorder = 1};
    struct wh_arrays arrays;
    struct wh_part wide = {0};
    wh_index *index = NULL;
    CHECK(wh_build(codes, MANY, NULL, &options, NULL, &arrays) == WH_OK && wh_index_open(&arrays, &index) == WH_OK);
    wide.index = index;
    CHECK(wh_planner_create(&wide.planner) == WH_OK);
    struct wh_search search = {.optimum = optimum, .delta = delta, .rest = rest, .k = HITS, .radius = INFINITY};
    for (uint32_t many = 0; many < 2; many++)
        CHECK(wh_search_batch(&wide, 1, &search, 1, HITS, many ? WORKERS : 1, NULL, 0, ids[many], distances[many],
                              &counts[many], NULL, NULL) == WH_OK);
    CHECK(counts[0] == HITS && counts[1] == HITS && memcmp(ids[0], ids[1], sizeof ids[0]) == 0);
    CHECK(memcmp(distances[0], distances[1], sizeof distances[0]) == 0);
    wh_index_close(index);
    wh_planner_free(wide.planner);
    wh_arrays_free(&arrays);
    free(codes);
}

static _Atomic int built;

/* The progress of a build never decreases. */
static void *watch(void *progress) {
    uint32_t last = 0;
    do {
        uint32_t now = atomic_load((_Atomic uint32_t *)progress);
        CHECK(now >= last && now <= 1000);
        last = now;
    } while (!atomic_load(&built));
    return NULL;
}

static struct wh_arrays build(void) {
    struct wh_build_options options = {.bits = BITS,
                                       .tables = TABLES,
                                       .covered = BITS,
                                       .layout = WH_SINGLE,
                                       .buckets = WH_FAST,
                                       .reorder = 1,
                                       .threads = WORKERS};
    struct wh_arrays arrays;
    uint32_t progress = 0;
    pthread_t thread;
    start(&thread, watch, &progress);
    CHECK(wh_build(data.codes, data.n, data.ids, &options, &progress, &arrays) == WH_OK);
    atomic_store(&built, 1);
    pthread_join(thread, NULL);
    CHECK(progress == 1000);
    return arrays;
}

int main(void) {
    data = twin_data(BITS, CODES, 1, 7);
    for (int kind = 0; kind < TWIN_WEIGHTS; kind++) {
        queries[kind] = twin_query(&data, (enum twin_weights)kind, (uint64_t)kind);
        hits[kind] = twin_answer(&data, &queries[kind]);
    }
    struct wh_arrays arrays = build();
    wh_index *index = NULL;
    CHECK(wh_index_open(&arrays, &index) == WH_OK);
    part.index = index;
    CHECK(wh_planner_create(&part.planner) == WH_OK);
    test_cursors();
    test_batches();
    test_cancelled_cursors();
    test_cancelled_batches();
    test_one_query_on_several_threads();
    wh_index_close(index);
    wh_planner_free(part.planner);
    wh_arrays_free(&arrays);
    for (int kind = 0; kind < TWIN_WEIGHTS; kind++) {
        twin_query_free(&queries[kind]);
        free(hits[kind]);
    }
    twin_data_free(&data);
    printf("%zu passed, %zu failed\n", (size_t)passed, (size_t)failed);
    return failed != 0;
}
