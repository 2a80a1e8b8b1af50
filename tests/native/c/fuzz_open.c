/* Fuzzes the arrays of an index. Whatever they contain, opening and searching them must end with an answer or an error,
 * never with a read outside of them. Each array is allocated with its exact size, so that the address sanitizer detects
 * a read one byte too far.
 *
 * The first byte of an input selects how the rest becomes arrays:
 *
 *   even   edits of a valid index, 5 bytes each: array, position, value
 *   odd    a META array, with magic and version corrected; the other arrays have the sizes that it implies, filled by
 *          repeating the rest of the input
 *
 * With clang's -fsanitize=fuzzer, LLVMFuzzerTestOneInput is the entry point. With -DFUZZ_MAIN, for machines that only
 * have gcc, main() generates the inputs: fuzz_open RUNS [SEED].
 */
#include "index/arrays.h"
#include "twin.h"

#include <stddef.h>

enum { BUILT = 8, MAX_BYTES = 1 << 20 };

/* Valid indexes: both layouts, both kinds of buckets, hashed and narrow directories, groups, ids of several sizes. */
static struct wh_arrays built[BUILT];

static void build_all(void) {
    static const struct {
        uint32_t bits, tables, covered, n;
    } shapes[BUILT] = {{9, 2, 9, 60},     {24, 2, 24, 200}, {31, 5, 31, 140},   {64, 8, 64, 300},
                       {100, 9, 70, 130}, {17, 0, 1, 150},  {300, 12, 96, 129}, {40, 4, 40, 257}};
    for (uint32_t i = 0; i < BUILT; i++) {
        struct twin_data d = twin_data(shapes[i].bits, shapes[i].n, (int)(i & 1), i);
        struct wh_build_options options = {.bits = shapes[i].bits,
                                           .tables = shapes[i].tables,
                                           .covered = shapes[i].covered,
                                           .layout = i & 1 ? WH_SINGLE : WH_MULTI,
                                           .buckets = i & 2 ? WH_FAST : WH_COMPACT,
                                           .reorder = i >> 2 & 1};
        if (wh_build(d.codes, d.n, d.ids, &options, NULL, &built[i]) != WH_OK) abort();
        twin_data_free(&d);
    }
}

/* A short search with one plan. The budget prevents long probes of large directories. */
static void search(const struct wh_part *part, const struct wh_search *query) {
    uint64_t ids[40];
    double distances[40];
    wh_cursor *cursor;
    struct wh_budget budget = {.candidates = 1000, .nanoseconds = 100000};
    struct wh_stats stats;
    if (wh_cursor_open(part, 1, query, &cursor) != WH_OK) return;
    for (int call = 0; call < 3; call++) {
        size_t count = 99;
        int stop = 99, status = wh_cursor_next(cursor, 40, &budget, call & 1, ids, distances, NULL, &count, &stop);
        if (count > 40 || stop < WH_MORE || stop > WH_CANCELLED) abort();
        if (status != WH_OK && status != WH_CORRUPT) abort();
        if (status != WH_OK || stop == WH_EXHAUSTED) break;
        if (wh_cursor_guess(cursor, 40, ids, distances, &count) != WH_OK || count > 40) abort();
    }
    if (isnan(wh_cursor_bound(cursor))) abort();
    wh_cursor_stats(cursor, &stats);
    wh_cursor_close(cursor);
}

/* Without this, the checksum of META would reject most inputs. */
static void fix_checksum(const struct wh_arrays *arrays) {
    uint8_t *meta = arrays->data[WH_META];
    uint32_t check = meta_check(meta, (size_t)arrays->size[WH_META]);
    memcpy(meta + offsetof(struct meta, check), &check, sizeof check);
}

static void open_and_search(const struct wh_arrays *arrays) {
    wh_index *index;
    struct wh_index_info info;
    fix_checksum(arrays);
    if (wh_index_open(arrays, &index) != WH_OK) return;
    wh_planner *planner;
    if (wh_planner_create(&planner) != WH_OK) abort();
    struct wh_part part = {.index = index, .planner = planner};
    wh_index_describe(index, &info);
    uint8_t optimum[WH_MAX_BITS / 8];
    uint64_t delta[WH_MAX_BITS], seed = info.n;
    for (size_t j = 0; j < sizeof optimum; j++) optimum[j] = (uint8_t)random_next(&seed);
    for (size_t i = 0; i < WH_MAX_BITS; i++) delta[i] = random_below(&seed, 1000);
    if (info.bits & 7) optimum[info.bits / 8] &= (uint8_t)((1u << (info.bits & 7)) - 1);
    struct wh_search query = {.optimum = optimum, .delta = delta, .k = UINT64_MAX, .radius = INFINITY};
    for (query.plan = WH_AUTO; query.plan <= WH_SWEEP; query.plan++) {
        for (int level = WH_PORTABLE; level <= WH_AVX512; level++) {
            if (wh_planner_use_simd(planner, level) != WH_OK) continue;
            if (query.plan == WH_PROBE && level != wh_simd_level()) continue;
            search(&part, &query);
        }
    }
    query.plan = WH_AUTO;
    query.k = 5;
    struct wh_search queries[3] = {query, query, query};
    uint64_t ids[15], counts[3];
    double distances[15];
    if (info.tables == 0 || (info.covered + info.tables - 1) / info.tables <= 12) /* no budget: avoid long probes */
        wh_search_batch(&part, 1, queries, 3, 5, 1, NULL, 0, ids, distances, counts, NULL, NULL);
    wh_index_close(index);
    wh_planner_free(planner);
}

static void *block(uint64_t size) { return size ? must(malloc((size_t)size)) : NULL; }

static uint32_t read32(const uint8_t *bytes, size_t size) {
    uint32_t value = 0;
    memcpy(&value, bytes, size < 4 ? size : 4);
    return value;
}

static void run_edits(const uint8_t *input, size_t size) {
    struct wh_arrays arrays = built[input[0] >> 1 & (BUILT - 1)];
    for (int a = 0; a < WH_ARRAYS; a++) {
        void *copy = block(arrays.size[a]);
        if (copy) memcpy(copy, arrays.data[a], (size_t)arrays.size[a]);
        arrays.data[a] = copy;
    }
    for (size_t at = 1; at + 5 <= size; at += 5) {
        int a = (input[at] & 7) % WH_ARRAYS, wide = input[at] & 8;
        uint8_t *array = arrays.data[a];
        uint64_t place = read32(input + at + 1, 3) & 0xFFFFFF;
        if (arrays.size[a] == 0) continue;
        place %= arrays.size[a];
        if (wide) place &= ~UINT64_C(3);
        for (uint64_t i = 0; i < (wide ? 4 : 1) && place + i < arrays.size[a]; i++) array[place + i] = input[at + 4];
    }
    open_and_search(&arrays);
    for (int a = 0; a < WH_ARRAYS; a++) free(arrays.data[a]);
}

static void run_raw(const uint8_t *input, size_t size) {
    struct meta meta;
    uint64_t sizes[WH_ARRAYS], total = 0;
    if (size < 1 + sizeof meta) return;
    memcpy(&meta, input + 1, sizeof meta);
    memcpy(meta.magic, "WHAM", 4);
    meta.format = WH_FORMAT;
    if (meta.bits - 1u >= WH_MAX_BITS) meta.bits = 1 + meta.bits % WH_MAX_BITS;
    if (meta.n > 5000) meta.n %= 5000;
    if (meta.rows > meta.n) meta.rows %= meta.n + 1;
    if (meta.covered - 1u >= meta.bits) meta.covered = 1 + meta.covered % meta.bits;
    if (meta.tables > meta.covered) meta.tables %= meta.covered + 1;
    if (meta.directory_bits - 1u >= 31) meta.directory_bits = 1 + meta.directory_bits % 14;
    if (meta.id_bytes > 8) meta.id_bytes %= 9;
    meta.layout &= 1;
    meta.buckets &= 1;
    meta.reordered &= 1;
    meta.narrow &= meta.layout;
    arrays_sizes(&meta, sizes);
    for (int a = 0; a < WH_ARRAYS; a++) {
        if (sizes[a] > MAX_BYTES) return;
        total += sizes[a];
    }
    if (total > MAX_BYTES) return;
    const uint8_t *rest = input + 1 + sizeof meta;
    size_t left = size - 1 - sizeof meta;
    struct wh_arrays arrays;
    for (int a = 0; a < WH_ARRAYS; a++) {
        uint8_t *array = block(sizes[a]);
        for (uint64_t i = 0; i < sizes[a]; i++) array[i] = left ? rest[(i + (uint64_t)a) % left] : 0;
        if (a == WH_META) memcpy(array, &meta, sizeof meta);
        arrays.data[a] = array;
        arrays.size[a] = sizes[a];
    }
    open_and_search(&arrays);
    for (int a = 0; a < WH_ARRAYS; a++) free(arrays.data[a]);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    if (!built[0].data[0]) build_all();
    if (size == 0) return 0;
    if (input[0] & 1) run_raw(input, size);
    else run_edits(input, size);
    return 0;
}

#ifdef FUZZ_MAIN
/* An odd input is the META array of a valid index with a few bytes changed, then noise of small numbers. Noise alone
 * would hardly ever be accepted as an index. */
static size_t make_input(uint8_t *input, size_t room, uint64_t *seed) {
    size_t size = 1;
    input[0] = (uint8_t)random_next(seed);
    if (input[0] & 1) {
        memcpy(input + 1, built[random_below(seed, BUILT)].data[WH_META], sizeof(struct meta));
        for (uint64_t edits = random_below(seed, 6); edits; edits--)
            input[1 + random_below(seed, sizeof(struct meta))] = (uint8_t)(random_next(seed) >> random_below(seed, 8));
        size += sizeof(struct meta);
    }
    uint64_t length = random_below(seed, 60), bits = random_below(seed, 8);
    while (size < room && length--) input[size++] = (uint8_t)((random_next(seed) & 255) >> bits);
    return size;
}

int main(int argc, char **argv) {
    uint64_t runs = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    build_all();
    for (uint64_t run = 0; run < runs; run++) {
        uint8_t input[256];
        uint64_t state = seed * UINT64_C(1000000007) + run; /* so that a run can be repeated by its number */
        LLVMFuzzerTestOneInput(input, make_input(input, sizeof input, &state));
    }
    for (int i = 0; i < BUILT; i++) wh_arrays_free(&built[i]);
    printf("%llu inputs, seed %llu: no crash\n", (unsigned long long)runs, (unsigned long long)seed);
    return 0;
}
#endif
