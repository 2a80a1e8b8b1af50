/* Building the arrays of an index (arrays.h) from codes.
 *
 *   codes -> distinct codes (distinct.c) -> reorder (order.c) -> rows
 *     rows -> CODES, IDS, GROUPS
 *          -> per table: count keys, prefix sums, place rows: DIRECTORY, POSTINGS, ENTRIES
 *
 * Postings are placed by a counting sort, table by table, in row order. Rows therefore increase within a bucket.
 */
#include "index/arrays.h"
#include "index/distinct.h"
#include "base/memory.h"
#include "index/order.h"
#include "base/parallel.h"

enum { DISTINCT = 100, ORDERED = 500, BLOCKED = 600, FINISHED = 1000 }; /* progress after each stage */

struct build {
    const struct wh_build_options *options;
    struct meta meta;
    struct substring *substring;
    uint8_t *data[WH_ARRAYS];
    uint64_t size[WH_ARRAYS];
    uint8_t *rows;   /* the codes row by row, then 8 bytes, for substring_key */
    uint32_t **next; /* per thread: the next free position of each bucket */
    uint32_t *wide;  /* the single directory in wide form */
    uint64_t places; /* number of buckets of the largest table */
    volatile uint32_t *progress, *cancel;
    _Atomic uint32_t tables_done;
};

static uint32_t directory_bits_for(uint64_t n, uint32_t longest) {
    uint32_t bits = 8;
    while (bits < 28 && (UINT64_C(1) << bits) < 2 * n) bits++;
    return longest < bits ? longest : bits;
}

static uint32_t key_bucket(const struct build *b, uint32_t t, uint64_t row) {
    const struct substring *s = &b->substring[t];
    return bucket_of(substring_key(b->rows + row * code_bytes_of(b->meta.bits), s), s);
}

/* Write a block of CODES. The arrays are zeroed, so there is nothing to do for the padding. */
static void fill_block(void *context, size_t block, uint32_t worker) {
    struct build *b = context;
    (void)worker;
    if (is_cancelled(b->cancel)) return;
    size_t bytes = code_bytes_of(b->meta.bits), block_bytes = quads_of(b->meta.bits) * QUAD_BYTES;
    uint64_t first = (uint64_t)block * WH_BLOCK_CODES, end = first + WH_BLOCK_CODES;
    if (end > b->meta.rows) end = b->meta.rows;
    for (uint64_t row = first; row < end; row++) {
        const uint8_t *code = b->rows + row * bytes;
        uint8_t *out =
            b->data[WH_CODES] + block * block_bytes + (row - first) / CELL_CODES * CELL_BYTES + row % CELL_CODES;
        for (size_t i = 0; i < bytes; i++) out[i / 4 * QUAD_BYTES + i % 4 * CELL_CODES] = code[i];
    }
}

/* Whether a loop over rows must end because the build was cancelled. Reads the flag once per 65,536 rows. */
static int must_stop(const struct build *b, uint64_t row) { return row % 65536 == 0 && is_cancelled(b->cancel); }

/* Count the keys of table t into offset[bucket x stride + 1], ready for prefix sums. */
static void count_table(void *context, size_t table, uint32_t worker) {
    struct build *b = context;
    (void)worker;
    uint32_t t = (uint32_t)table;
    uint32_t *offset = b->wide ? b->wide + t : (uint32_t *)(b->data[WH_DIRECTORY] + b->substring[t].directory);
    size_t stride = b->wide ? b->meta.tables : 1;
    for (uint64_t row = 0; row < b->meta.rows && !must_stop(b, row); row++)
        offset[key_bucket(b, t, row) * stride + 1]++;
}

static void place_table(void *context, size_t table, uint32_t worker) {
    struct build *b = context;
    uint32_t t = (uint32_t)table, *next = b->next[worker];
    const uint32_t *offset = b->wide ? b->wide + t : (uint32_t *)(b->data[WH_DIRECTORY] + b->substring[t].directory);
    size_t stride = b->wide ? b->meta.tables : 1, bytes = code_bytes_of(b->meta.bits);
    uint64_t places = UINT64_C(1) << b->substring[t].directory_bits, base = b->wide ? 0 : t * b->meta.rows;
    for (uint64_t bucket = 0; bucket < places; bucket++) next[bucket] = offset[bucket * stride];
    uint32_t width = bytes_of_number(b->meta.n);
    for (uint64_t row = 0; row < b->meta.rows && !must_stop(b, row); row++) {
        uint64_t position = base + next[key_bucket(b, t, row)]++;
        store_number(b->data[WH_POSTINGS] + position * width, width, row);
        if (b->size[WH_ENTRIES]) memcpy(b->data[WH_ENTRIES] + position * bytes, b->rows + row * bytes, bytes);
    }
    uint32_t done = atomic_fetch_add(&b->tables_done, 1) + 1;
    progress_report(b->progress, BLOCKED + done * (FINISHED - BLOCKED) / b->meta.tables);
}

static void prefix_sums(uint32_t *offset, uint64_t count) {
    for (uint64_t i = 1; i < count; i++) offset[i] += offset[i - 1];
}

/* The narrow directory is used if it is smaller, and 16 bits can count the postings of all tables together under each
 * bucket number. */
static int narrow_fits(const struct build *b) {
    uint64_t m = b->meta.tables;
    if (narrow_record_bytes(b->meta.tables) >= 4 * m) return 0;
    for (uint64_t bucket = 0; bucket < b->places; bucket++)
        if (b->wide[(bucket + 1) * m] - b->wide[bucket * m] > UINT16_MAX) return 0;
    return 1;
}

static void write_narrow(const struct build *b) {
    uint64_t m = b->meta.tables;
    size_t record = narrow_record_bytes(b->meta.tables);
    for (uint64_t bucket = 0; bucket < b->places; bucket++) {
        uint8_t *out = b->data[WH_DIRECTORY] + bucket * record;
        uint32_t base = b->wide[bucket * m];
        memcpy(out, &base, 4);
        for (uint64_t t = 0; t < m; t++) {
            uint16_t end = (uint16_t)(b->wide[bucket * m + t + 1] - base);
            memcpy(out + 4 + 2 * t, &end, 2);
        }
    }
}

static int allocate(struct build *b, int array) {
    b->data[array] = b->size[array] ? memory_array(b->size[array]) : NULL;
    return b->size[array] && !b->data[array] ? WH_MEMORY : WH_OK;
}

static int stopped(const struct build *b) { return is_cancelled(b->cancel) ? WH_STOPPED : WH_OK; }

static int build_tables(struct build *b) {
    uint32_t m = b->meta.tables, threads = b->options->threads > 1 ? b->options->threads : 1;
    int status = WH_MEMORY;
    if (threads > m) threads = m;
    b->substring = wh_calloc(m, sizeof *b->substring);
    b->next = wh_calloc(threads, sizeof *b->next);
    if (!b->substring || !b->next) return status;
    substrings_fill(b->substring, &b->meta);
    b->places = UINT64_C(1) << b->substring[0].directory_bits;
    for (uint32_t t = 0; t < threads; t++)
        if (!(b->next[t] = wh_malloc(sizeof **b->next * b->places))) goto out;

    if (b->meta.layout == WH_SINGLE) {
        if (!(b->wide = wh_calloc((size_t)(b->places * m + 1), sizeof *b->wide))) goto out;
        parallel_run(threads, m, count_table, b);
        if ((status = stopped(b)) != WH_OK) goto out;
        status = WH_MEMORY;
        prefix_sums(b->wide, b->places * m + 1);
        b->meta.narrow = (uint32_t)narrow_fits(b);
    }
    arrays_sizes(&b->meta, b->size);
    if (allocate(b, WH_DIRECTORY) || allocate(b, WH_POSTINGS) || allocate(b, WH_ENTRIES)) goto out;
    if (b->meta.layout == WH_MULTI) {
        parallel_run(threads, m, count_table, b);
        if ((status = stopped(b)) != WH_OK) goto out;
        for (uint32_t t = 0; t < m; t++)
            prefix_sums((uint32_t *)(b->data[WH_DIRECTORY] + b->substring[t].directory),
                        (UINT64_C(1) << b->substring[t].directory_bits) + 1);
    } else if (b->meta.narrow) {
        write_narrow(b);
    } else {
        memcpy(b->data[WH_DIRECTORY], b->wide, (size_t)b->size[WH_DIRECTORY]);
    }
    parallel_run(threads, m, place_table, b);
    status = stopped(b);
out:
    for (uint32_t t = 0; t < threads; t++) wh_free(b->next[t]);
    return status;
}

static int compare_ids(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Sort the ids of each row. The ids of row i end before place end[i]. `most`: of one row. */
static int sort_ids(struct build *b, const uint32_t *end, size_t most) {
    uint32_t width = b->meta.id_bytes;
    uint64_t *ids = wh_malloc(sizeof *ids * most), mask = mask_of_bytes(width);
    if (!ids) return WH_MEMORY;
    for (uint64_t row = 0; row < b->meta.rows; row++) {
        uint64_t first = row ? end[row - 1] : 0, count = end[row] - first;
        if (count < 2) continue;
        uint8_t *at = b->data[WH_IDS] + first * width;
        for (uint64_t i = 0; i < count; i++) ids[i] = load64(at + i * width) & mask;
        qsort(ids, (size_t)count, sizeof *ids, compare_ids);
        for (uint64_t i = 0; i < count; i++) store_number(at + i * width, width, ids[i]);
    }
    wh_free(ids);
    return WH_OK;
}

/* Fill IDS and GROUPS. Code i has the row row_of[distinct->number_of[i]]. `next` is scratch: one number per row.
 * Returns a wh_status (WH_MEMORY). */
static int write_ids(struct build *b, const uint64_t *ids, const struct distinct *distinct, const uint32_t *row_of,
                     uint32_t *next) {
    uint64_t n = b->meta.n, rows = b->meta.rows;
    uint32_t width = bytes_of_number(n), start = 0, most = 0;
    memset(next, 0, sizeof *next * (size_t)rows);
    for (uint64_t i = 0; i < n; i++) next[row_of[distinct->number_of[i]]]++;
    for (uint64_t row = 0; row < rows; row++) {
        uint32_t count = next[row];
        if (b->size[WH_GROUPS]) store_number(b->data[WH_GROUPS] + row * width, width, start);
        if (count > most) most = count;
        next[row] = start;
        start += count;
    }
    if (b->size[WH_GROUPS]) store_number(b->data[WH_GROUPS] + rows * width, width, start);
    if (b->meta.id_bytes == 0) return WH_OK;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t place = next[row_of[distinct->number_of[i]]]++, id = ids ? ids[i] : i;
        store_number(b->data[WH_IDS] + place * b->meta.id_bytes, b->meta.id_bytes, id);
    }
    return ids && most > 1 ? sort_ids(b, next, most) : WH_OK; /* without `ids`, they increase because i does */
}

/* How many bytes the largest id needs. */
static uint32_t bytes_of_ids(const uint64_t *ids, uint64_t n) {
    uint64_t all = n; /* has the highest bit of each id */
    for (uint64_t i = 0; ids && i < n; i++) all |= ids[i];
    return bytes_of_number(all);
}

/* Count the ones of each bit in `rows` codes, `step` codes apart. A word holds eight counters of one byte each. They
 * are added to `ones` after every 255 codes, before they can overflow. */
static void count_set_bits(const uint8_t *codes, size_t bytes, size_t step, size_t rows, uint32_t *ones) {
    uint64_t counters[WH_MAX_BITS / 8];
    for (size_t first = 0; first < rows; first += UINT8_MAX) {
        size_t end = rows - first < UINT8_MAX ? rows : first + UINT8_MAX;
        memset(counters, 0, sizeof *counters * bytes);
        for (size_t row = first; row < end; row++) {
            const uint8_t *code = codes + row * step * bytes;
            for (size_t i = 0; i < bytes; i++) { /* byte j of `bits` is code[i] & 1 << j; it becomes 0 or 1 */
                uint64_t bits = code[i] * UINT64_C(0x0101010101010101) & UINT64_C(0x8040201008040201);
                counters[i] += (bits + UINT64_C(0x7F7F7F7F7F7F7F7F)) >> 7 & UINT64_C(0x0101010101010101);
            }
        }
        for (size_t i = 0; i < 8 * bytes; i++) ones[i] += counters[i >> 3] >> 8 * (i & 7) & 255;
    }
}

static void write_meta(struct build *b) {
    uint64_t n = b->meta.rows, step = n / 65536 + 1, seen = (n + step - 1) / step;
    uint32_t ones[WH_MAX_BITS] = {0};
    count_set_bits(b->rows, code_bytes_of(b->meta.bits), (size_t)step, (size_t)seen, ones);
    for (uint32_t i = 0; i < b->meta.bits; i++) {
        uint16_t share = seen ? (uint16_t)((uint64_t)ones[i] * 65535 / seen) : 0;
        memcpy(b->data[WH_META] + sizeof b->meta + 2 * (size_t)i, &share, 2);
    }
    memcpy(b->data[WH_META], &b->meta, sizeof b->meta);
    b->meta.check = meta_check(b->data[WH_META], (size_t)b->size[WH_META]);
    memcpy(b->data[WH_META], &b->meta, sizeof b->meta);
}

static int build(struct build *b, const uint8_t *codes, const uint64_t *ids, struct distinct *distinct,
                 uint32_t *scratch[3]) {
    const struct wh_build_options *o = b->options;
    uint64_t n = b->meta.n, bytes = code_bytes_of(o->bits);
    uint8_t last_mask = (uint8_t)(o->bits & 7 ? (1u << (o->bits & 7)) - 1 : 255);
    int status = distinct_find(distinct, codes, n, bytes, last_mask, b->cancel);
    if (status != WH_OK) return status;
    status = distinct_keep_rare(distinct, n);
    if (status != WH_OK) return status;
    uint64_t rows = b->meta.rows = distinct->count;
    b->meta.id_bytes = ids || o->reorder || rows < n ? bytes_of_ids(ids, n) : 0;
    progress_report(b->progress, DISTINCT);

    arrays_sizes(&b->meta, b->size);
    if (allocate(b, WH_META) || allocate(b, WH_CODES) || allocate(b, WH_IDS) || allocate(b, WH_GROUPS))
        return WH_MEMORY;
    if (!(b->rows = wh_malloc((size_t)(rows * bytes + 8)))) return WH_MEMORY;
    for (int i = 0; i < 3; i++)
        if (!(scratch[i] = wh_malloc(sizeof **scratch * (size_t)(rows + 1)))) return WH_MEMORY;
    uint32_t *order = scratch[0], *row_of = scratch[1], *next = scratch[2];
    for (uint64_t row = 0, end; row < rows; row = end) { /* copy each run of consecutive codes at once */
        for (end = row + 1; end < rows && distinct->first[end] == distinct->first[end - 1] + 1;) end++;
        memcpy(b->rows + row * bytes, codes + distinct->first[row] * bytes, (size_t)((end - row) * bytes));
    }
    for (uint64_t row = 0; row < rows; row++) {
        b->rows[(row + 1) * bytes - 1] &= last_mask;
        order[row] = (uint32_t)row;
    }
    if (o->reorder) {
        status =
            order_codes(b->rows, order, (size_t)rows, o->bits, o->threads, b->progress, DISTINCT, ORDERED, b->cancel);
        if (status != WH_OK) return status;
    }
    for (uint64_t row = 0; row < rows; row++) row_of[order[row]] = (uint32_t)row;
    status = write_ids(b, ids, distinct, row_of, next);
    if (status != WH_OK) return status;
    progress_report(b->progress, ORDERED);

    parallel_run(o->threads, (size_t)((rows + WH_BLOCK_CODES - 1) / WH_BLOCK_CODES), fill_block, b);
    progress_report(b->progress, BLOCKED);
    if ((status = stopped(b)) != WH_OK) return status;
    if (o->tables && (status = build_tables(b)) != WH_OK) return status;
    write_meta(b);
    progress_report(b->progress, FINISHED);
    return status;
}

int wh_build(const uint8_t *codes, uint64_t n, const uint64_t *ids, const struct wh_build_options *options,
             volatile uint32_t *progress, struct wh_arrays *arrays) {
    uint32_t bits = options->bits, m = options->tables;
    if (bits < 1 || bits > WH_MAX_BITS || n > UINT32_MAX) return WH_ARGUMENT;
    if (options->covered < 1 || options->covered > bits || m > options->covered) return WH_ARGUMENT;
    if (options->layout > WH_SINGLE || options->buckets > WH_FAST || options->reorder > 1) return WH_ARGUMENT;
    uint32_t longest = m ? (options->covered + m - 1) / m : 1;
    if (longest > WH_MAX_SUBSTRING_BITS) return WH_ARGUMENT;
    if (options->layout == WH_SINGLE && n * m > UINT32_MAX) return WH_TOO_LARGE;
    struct build b = {.options = options,
                      .meta = {.magic = {'W', 'H', 'A', 'M'},
                               .format = WH_FORMAT,
                               .n = n,
                               .bits = bits,
                               .tables = m,
                               .covered = options->covered,
                               .layout = options->layout,
                               .buckets = options->buckets,
                               .reordered = options->reorder,
                               .directory_bits = directory_bits_for(n, longest)},
                      .progress = progress,
                      .cancel = options->cancel};
    struct distinct distinct = {0};
    uint32_t *scratch[3] = {NULL};
    int status = build(&b, codes, ids, &distinct, scratch);
    distinct_free(&distinct);
    for (int i = 0; i < 3; i++) wh_free(scratch[i]);
    wh_free(b.rows);
    wh_free(b.substring);
    wh_free(b.next);
    wh_free(b.wide);
    for (int a = 0; a < WH_ARRAYS; a++) {
        if (status == WH_OK) {
            arrays->data[a] = b.data[a];
            arrays->size[a] = b.size[a];
        } else {
            wh_free(b.data[a]);
        }
    }
    return status;
}

void wh_arrays_free(struct wh_arrays *arrays) {
    for (int a = 0; a < WH_ARRAYS; a++) {
        wh_free(arrays->data[a]);
        arrays->data[a] = NULL;
        arrays->size[a] = 0;
    }
}
