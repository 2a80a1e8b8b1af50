#ifndef WHAMMING_H
#define WHAMMING_H
#include <stddef.h>
#include <stdint.h>

/* Whamming's engine: exact nearest neighbours of binary codes under weighted Hamming distance.
 *
 * The engine has four kinds of object:
 *
 *   arrays   flat, position-independent bytes that hold an index. They are built once and never change. They may be in
 *            RAM or in a memory map: the engine borrows them and reads them in place.
 *   index    an open, checked view of such arrays. Immutable; any number of threads may share it.
 *   planner  estimates learned from earlier searches of one index on this machine. Any number of threads may share it.
 *   cursor   one running query. It owns all of the query's scratch memory; one thread at a time may use it.
 *
 * A typical program:
 *
 *   wh_costs_of_weights       convert the query's costs to integers
 *   wh_build, wh_index_open   build the arrays, open an index over them
 *   wh_planner_create         optional: lets searches learn which plan is faster
 *   wh_cursor_open, _next     search, as many hits at a time as wanted; or wh_search_batch for many queries
 *   wh_cursor_close, wh_planner_free, wh_index_close, wh_arrays_free
 *
 * Exactness. Hits are in total order by (distance, id), where the distance is the exact sum of the given costs: costs
 * become integers without rounding (wh_costs_of_tables), and sums are computed and compared as integers of 128 bits. A
 * distance is returned as the double nearest to that sum; different sums may round to the same double. The order is the
 * same for every plan, array layout, instruction set and number of threads.
 *
 * Codes. Bit i of a code is in byte i >> 3, mask 1 << (i & 7). Bits past the last one are ignored.
 *
 * Places. The engine stores items in its own order, that of WH_IDS. The place of an item is its position in this
 * order, 0 .. n - 1.
 *
 * Failures. Functions return WH_OK or another wh_status. On failure they leave their out-pointers untouched, unless
 * documented otherwise. No function calls back or prints. Only wh_keep_memory changes a setting of the process.
 */

enum wh_status {
    WH_OK = 0,
    WH_MEMORY = 1,     /* an allocation failed */
    WH_ARGUMENT = 2,   /* an argument is outside its documented range */
    WH_NOT_FINITE = 3, /* a cost is NaN or infinite */
    WH_CORRUPT = 4,    /* the arrays are inconsistent; the index must not be trusted */
    WH_VERSION = 5,    /* the arrays have a format version that this build does not read */
    WH_NO_TABLES = 6,  /* WH_PROBE was requested, but no part has tables */
    WH_TOO_LARGE = 7,  /* n x tables exceeds 2^32 - 1, the limit of the single layout */
    WH_OVERFLOW = 8,   /* a distance would exceed the range of a double */
    WH_SPAN = 9,       /* the costs differ so much in magnitude that their sums do not fit in 126 bits */
    WH_STOPPED = 10    /* the build was cancelled */
};

/* The meaning of a status, in English. Never NULL; the text is static. */
const char *wh_status_text(int status);

/* The C library keeps freed memory for later allocations. This returns it to the system. Takes about a millisecond.
 * Returns 1 if any memory was returned; 0 if there was none, or if the C library does not support this. */
int wh_release_memory(void);

/* Make the C library keep up to about 16 MiB of freed memory per heap, until the process ends. By default, it returns
 * the scratch memory of each batch to the system, and the next batch pays for page faults. Allocations of
 * 1 MiB and more are still returned as soon as they are freed. Meant for programs that mostly search, such as a server.
 * Returns 1 if it took effect; 0 if the C library has no such setting. */
int wh_keep_memory(void);

enum wh_limits {
    WH_MAX_BITS = 4096,         /* bits of a code */
    WH_MAX_SUBSTRING_BITS = 32, /* bits of a table's substring */
    WH_MAX_TABLES = 4096,       /* tables of one index */
    WH_BLOCK_CODES = 64,        /* codes per block of WH_CODES */
    WH_FORMAT = 3               /* format version of the arrays */
};

/* -- Costs ----------------------------------------------------------------------------------------------------------
 *
 * A query is a cost table of bits x 2 finite numbers: for each bit, the cost of a stored 0 and of a stored 1. The
 * distance of a code is the sum of the costs of its bits. All costs of a query are multiples of some power of two, its
 * unit. In units, costs are integers, and
 *
 *     distance(g) = (floor + sum of extra[i] over the bits i where g differs from optimum) x 2^exponent,
 *     extra[i]    = delta[i] x 2^shift + rest[i],
 *
 * with nonnegative integers delta[i] and rest[i] < 2^shift. The engine computes with nothing else. `optimum` is the
 * cheapest possible code, and `floor` is its cost. The deltas, in steps of 2^shift units, add up to less than 2^63.
 * Nearly all work is done with them. The rests matter only where sums of steps are close.
 */

/* Type of the given costs. */
enum wh_number { WH_DOUBLE = 0, WH_FLOAT = 1 };

/* An exact sum of costs, in units: high x 2^64 + low. */
struct wh_sum {
    uint64_t low;
    int64_t high;
};

struct wh_scale {
    struct wh_sum floor;
    int32_t exponent;
    uint32_t shift;   /* 0 .. 63; if 0, all rests are 0 */
    uint32_t rounded; /* 1: some sums have more than 53 binary digits, so their distances may be rounded */
    uint32_t reserved;
};

/* Convert `count` consecutive cost tables of bits x 2 numbers (row-major, any alignment). The unit is the highest power
 * of two of which all costs are multiples. A table whose costs span too many digits fails with WH_SPAN: if 2^x is the
 * smallest power of two above every |cost| and 2^y is the unit, x - y + 1 + ceil(log2(bits)) must be at most 126.
 * WH_SPAN cannot happen if the largest |cost| is at most 2^60 times the smallest that is not 0. If both costs of a bit
 * are equal, its optimum, delta and rest are 0.
 *   type    enum wh_number
 *   optima  out: count x ceil(bits / 8) bytes
 *   deltas  out: count x bits
 *   rests   out: count x bits
 *   scales  out: count
 *   failed  out: the number of the table that caused WH_NOT_FINITE, WH_SPAN or WH_OVERFLOW
 * Failures: WH_ARGUMENT (bits, type), WH_NOT_FINITE, WH_SPAN, WH_OVERFLOW. The outputs are unspecified after the last
 * three. Thread-safe. */
int wh_costs_of_tables(const void *tables, uint32_t type, uint32_t bits, size_t count, uint8_t *optima,
                       uint64_t *deltas, uint64_t *rests, struct wh_scale *scales, size_t *failed);

/* Convert the costs of `count` queries that are given as a code (ceil(bits / 8) bytes) and one weight per bit. A weight
 * is the cost of a mismatch in that bit; it may be negative. The result is the same as for the cost table in which a
 * match costs 0, and a mismatch costs the weight of its bit. Other parameters and failures: those of
 * wh_costs_of_tables.
 *   shared_code     1: `codes` holds one code, shared by all queries
 *   shared_weights  1: `weights` holds one row, shared by all queries */
int wh_costs_of_weights(const uint8_t *codes, int shared_code, const void *weights, int shared_weights, uint32_t type,
                        uint32_t bits, size_t count, uint8_t *optima, uint64_t *deltas, uint64_t *rests,
                        struct wh_scale *scales, size_t *failed);

/* -- Arrays --------------------------------------------------------------------------------------------------------
 *
 * The head of index/arrays.h describes the byte layout of each array. They may have any alignment.
 * WH_CODES is read fastest if it starts on a cache line (64 bytes).
 */

enum wh_array {
    WH_META = 0,      /* sizes, layout, frequency of ones per bit */
    WH_CODES = 1,     /* the codes, in a layout for SIMD; equal codes may share a row */
    WH_IDS = 2,       /* ids, row by row; empty if each id equals its row */
    WH_GROUPS = 3,    /* where each row's ids start; empty if each row has one id */
    WH_DIRECTORY = 4, /* where each bucket of the tables starts and ends */
    WH_POSTINGS = 5,  /* rows, bucket by bucket */
    WH_ENTRIES = 6,   /* codes, bucket by bucket; empty for compact buckets */
    WH_ARRAYS = 7
};

enum wh_layout {
    WH_MULTI = 0, /* one directory per table */
    WH_SINGLE = 1 /* one directory for all tables */
};
enum wh_buckets {
    WH_COMPACT = 0, /* buckets hold rows */
    WH_FAST = 1     /* buckets hold rows and codes: more memory, faster probing */
};

struct wh_arrays {
    void *data[7];    /* written by wh_build only */
    uint64_t size[7]; /* bytes */
};

struct wh_build_options {
    uint32_t bits;    /* 1 .. WH_MAX_BITS */
    uint32_t tables;  /* number of tables, one per substring; at most `covered`. No substring may exceed
                         WH_MAX_SUBSTRING_BITS. 0: no tables, sweep only */
    uint32_t covered; /* 1 .. bits: the substrings are cut from the first `covered` bits. The other bits do not raise
                         the probe's lower bound, but answers stay exact */
    uint32_t layout;  /* enum wh_layout */
    uint32_t buckets; /* enum wh_buckets */
    uint32_t reorder; /* 1: store similar codes next to each other (faster searches); 0: keep the order of the rows */
    uint32_t threads; /* 0 or 1: build on the calling thread */
    volatile uint32_t
        *cancel; /* another thread may set it to 1. The build then ends soon, with WH_STOPPED. May be NULL */
};

/* Build the arrays of an index over n codes (n x ceil(bits / 8) bytes, row-major; n < 2^32). If many codes are equal,
 * they are stored once, with all their ids.
 *   ids       n distinct ids in any order; NULL: 0 .. n - 1. Not checked: if two items at the same distance have the
 *             same id, a search that resumes after one of them skips the other
 *   progress  rises from 0 to 1000 during the build; another thread may read it. May be NULL
 *   arrays    out: owned by the caller; free them with wh_arrays_free
 * Peak memory: the finished arrays, plus 24 bytes per code, plus 4 bytes per bucket and thread; for the single layout
 * also 4 bytes per bucket and table.
 * Failures: WH_ARGUMENT, WH_MEMORY, WH_STOPPED, WH_TOO_LARGE. Thread-safe. */
int wh_build(const uint8_t *codes, uint64_t n, const uint64_t *ids, const struct wh_build_options *options,
             volatile uint32_t *progress, struct wh_arrays *arrays);

/* Free the arrays of wh_build and clear the struct. Not for borrowed arrays. */
void wh_arrays_free(struct wh_arrays *arrays);

/* -- Index ------------------------------------------------------------------------------------------------------- */

typedef struct wh_index wh_index;

struct wh_index_info {
    uint64_t n;    /* items */
    uint64_t rows; /* stored codes: n, or the number of distinct codes */
    uint32_t bits;
    uint32_t tables;
    uint32_t covered;
    uint32_t layout;
    uint32_t buckets;
    uint32_t reordered;
    uint32_t id_bytes;    /* of an entry of WH_IDS; 0: it is empty */
    uint32_t place_bytes; /* of an entry of WH_GROUPS and WH_POSTINGS */
};

/* Open an index over borrowed arrays. They must stay in place and unchanged until wh_index_close. Reads WH_META only,
 * so opening a large memory map is cheap. Corrupt arrays never cause a read outside of them: sizes are checked here,
 * offsets and rows when they are used (WH_CORRUPT).
 * Failures: WH_CORRUPT, WH_VERSION, WH_MEMORY. */
int wh_index_open(const struct wh_arrays *arrays, wh_index **index);
void wh_index_close(wh_index *index); /* NULL is allowed. All cursors must be closed. */
void wh_index_describe(const wh_index *index, struct wh_index_info *info);

/* Copy the codes of `count` rows, ceil(bits / 8) bytes each. Thread-safe.
 * Failures: WH_CORRUPT if a row does not exist; `codes` is then partly written. */
int wh_index_codes(const wh_index *index, const uint64_t *rows, size_t count, uint8_t *codes);

/* Look up the places of `count` ids. Thread-safe.
 *   by_id   all places by increasing id: n x uint32, any alignment
 *   places  out: UINT64_MAX for an id that is not in the index
 * Failures: WH_CORRUPT if by_id contains a place that does not exist; `places` is then partly written. */
int wh_index_find(const wh_index *index, const void *by_id, const uint64_t *ids, size_t count, uint64_t *places);

/* -- Planner -----------------------------------------------------------------------------------------------------
 *
 * A planner belongs to one index. It learns how long probing and sweeping take on this machine, and searches use these
 * estimates to choose between the two plans. It also sets the instruction set that searches use. It affects the time of
 * a search, never the answer. Any number of threads may share a planner.
 */

typedef struct wh_planner wh_planner;

/* Create a planner with default estimates. Failures: WH_MEMORY. */
int wh_planner_create(wh_planner **planner);
void wh_planner_free(wh_planner *planner); /* NULL is allowed. No search may be using it. */

/* Instruction sets, fastest last. All give the same results. */
enum wh_simd { WH_PORTABLE = 0, WH_NEON = 1, WH_AVX2 = 2, WH_AVX512 = 3 };

/* The default instruction set: the fastest that this machine supports. */
int wh_simd_level(void);
/* Returns 1 if this machine supports the instruction set. */
int wh_simd_available(int level);
/* Use this instruction set for searches that start from now on. For tests and benchmarks. Thread-safe.
 * Failures: WH_ARGUMENT if it is not available. */
int wh_planner_use_simd(wh_planner *planner, int level);

/* -- Search ------------------------------------------------------------------------------------------------------ */

enum wh_plan {
    WH_AUTO = 0,  /* start with the probe; switch to the sweep if that is estimated to be faster */
    WH_PROBE = 1, /* look up buckets in order of cost. Parts without tables are swept; WH_NO_TABLES if no part has
                     any. A probe that needs too much memory is replaced by a sweep */
    WH_SWEEP = 2  /* scan all blocks with SIMD */
};

typedef struct wh_cursor wh_cursor;

/* A search covers one or several parts. A part is an index without its dead items. All parts have the same number of
 * bits. An id may be alive in at most one part. Put the largest part first: its hits limit the search of the others. */
struct wh_part {
    const wh_index *index;
    wh_planner *planner; /* of this index; NULL: default estimates and instruction set, nothing is learned */
    const uint8_t *dead; /* bitmap: bit p (byte p >> 3, mask 1 << (p & 7)) is set if place p is dead; NULL: none */
    uint64_t dead_count; /* bits set in `dead` */
};

/* Where a search starts. */
enum wh_after {
    WH_BEGINNING = 0,      /* at the first hit */
    WH_AFTER_DISTANCE = 1, /* after the hit (after_distance, after_id). If the query's distances are rounded, this does
                              not determine its position, so all other hits with this distance are returned again */
    WH_AFTER_SUM = 2       /* after the hit (after_sum, after_id) in the total order */
};

/* One query. wh_cursor_open copies everything that is pointed to. */
struct wh_search {
    const uint8_t *optimum; /* this and the next three: the converted costs */
    const uint64_t *delta;
    const uint64_t *rest;
    struct wh_scale scale;
    uint32_t plan;    /* enum wh_plan */
    uint32_t resumed; /* enum wh_after */
    uint64_t k;       /* maximum number of hits; UINT64_MAX: no limit */
    double radius;    /* maximum distance, as returned, inclusive; +infinity: no limit. Not NaN */
    double after_distance;
    struct wh_sum after_sum;
    uint64_t after_id;
};

/* Fill `count` searches that differ only in their costs and are not resumed. The arrays of costs have the layout that
 * the conversions write. The searches point into these arrays, which must outlive them. */
void wh_searches_fill(struct wh_search *searches, size_t count, uint32_t bits, const uint8_t *optima,
                      const uint64_t *deltas, const uint64_t *rests, const struct wh_scale *scales, uint32_t plan,
                      uint64_t k, double radius);

/* Why wh_cursor_next returned. */
enum wh_stop {
    WH_MORE = 0,      /* returned `capacity` hits, or at least one if eager; there may be more */
    WH_EXHAUSTED = 1, /* all hits within k and radius have been returned */
    WH_BUDGET = 2,    /* the budget of this call is used up; call again to continue */
    WH_CANCELLED = 3  /* wh_cursor_cancel was called */
};

/* Approximate limits of one call. Every call does at least one slice of work (well under a millisecond), so a search
 * finishes after enough calls. */
struct wh_budget {
    uint64_t candidates;  /* codes to compare: `candidates` + 64 x `blocks` of wh_stats; 0: no limit */
    uint64_t nanoseconds; /* time to spend; 0: no limit */
};

struct wh_stats {
    uint32_t plan;     /* WH_PROBE or WH_SWEEP: the current or last plan of the first part */
    uint32_t switched; /* 1: changed from probe to sweep */
    uint32_t rounds;   /* largest number of rounds in a part; above 1 only if k is unlimited or exceeds 65,536 */
    uint32_t reserved;
    uint64_t buckets;          /* buckets probed, empty ones included */
    uint64_t buckets_nonempty; /* buckets probed that were not empty */
    uint64_t candidates;       /* codes found in buckets, and codes that the sweep has listed */
    uint64_t verified;         /* codes whose exact distance was computed */
    uint64_t blocks;           /* blocks swept */
    uint64_t planes;           /* planes (4 bits of 64 codes, 32 bytes) read in those blocks */
    uint64_t nanoseconds;      /* time spent in the engine */
};

/* Open a cursor. Indexes, planners and `dead` are borrowed until the cursor is closed; `dead` must not change.
 * Memory of a cursor: up to 700 KiB for the query's tables. In addition, each part takes 24 bytes x min(k, n, 65536)
 * for hits. While a part is swept, it takes about as much again. While a part is probed, its queues take up to 32 MiB,
 * but usually a few KiB. wh_cursor_close frees all memory.
 * Failures: WH_ARGUMENT, WH_NO_TABLES, WH_MEMORY. */
int wh_cursor_open(const struct wh_part *parts, size_t count, const struct wh_search *search, wh_cursor **cursor);
void wh_cursor_close(wh_cursor *cursor); /* NULL is allowed */

/* Return the next hits, at most `capacity`. Each is proven to be the next in the total order by (distance, id).
 *   budget  limits of this call; NULL: none
 *   eager   1: return as soon as at least one hit is proven; 0: fill the capacity if possible
 *   sums    out: the exact distances of the hits, for WH_AFTER_SUM. May be NULL
 *   count   out: number of hits; always set
 *   stop    out: enum wh_stop; always set
 * Failures: WH_MEMORY, WH_CORRUPT. The cursor can then only be closed. */
int wh_cursor_next(wh_cursor *cursor, size_t capacity, const struct wh_budget *budget, int eager, uint64_t *ids,
                   double *distances, struct wh_sum *sums, size_t *count, int *stop);

/* Write the best hits found so far that have not been returned, proven or not, in order. After a budget has run out,
 * they are the best guess at the rest of the answer. Does not change the cursor. Failures: WH_MEMORY. */
int wh_cursor_guess(const wh_cursor *cursor, size_t capacity, uint64_t *ids, double *distances, size_t *count);

/* A lower bound on the distances of all items that have yet to be returned. It is rounded like these distances.
 * +infinity if there are no such items. */
double wh_cursor_bound(const wh_cursor *cursor);

/* About how many bytes the cursor has allocated. */
size_t wh_cursor_memory(const wh_cursor *cursor);

/* Make a running or later wh_cursor_next return WH_CANCELLED soon (well under a millisecond). This is the only function
 * that another thread may call while the cursor is in use. */
void wh_cursor_cancel(wh_cursor *cursor);

void wh_cursor_stats(const wh_cursor *cursor, struct wh_stats *stats);

/* -- Batches ----------------------------------------------------------------------------------------------------- */

/* Search q queries on `threads` threads (0 or 1: the calling thread only). Up to 32 queries that sweep share each pass
 * over the blocks. For k above 65,536, they share only the first pass. If there are threads to spare, the pass of a query
 * that sweeps alone is divided among several, unless it is short.
 *   k                columns of the results; no search may have a larger k
 *   cancel           another thread may set it to 1. The call then returns WH_OK early, leaves the flag set, and
 *                    the results are unspecified. May be NULL
 *   nanoseconds      stop after about this time; 0: no limit
 *   done             out: the first *done queries have complete results; those of the others are unspecified. It is q,
 *                    unless the time ran out or the call was cancelled. May be NULL
 *   ids, distances   out: q x k. Row i has counts[i] hits, then UINT64_MAX and +infinity
 *   counts           out: q
 *   stats            out: q, or NULL
 * Failures: WH_ARGUMENT, and those of wh_cursor_open and wh_cursor_next. If several queries fail, the status is that of
 * one of them. After a failure, the outputs are unspecified. */
int wh_search_batch(const struct wh_part *parts, size_t count, const struct wh_search *searches, size_t q, size_t k,
                    uint32_t threads, volatile uint32_t *cancel, uint64_t nanoseconds, uint64_t *ids, double *distances,
                    uint64_t *counts, struct wh_stats *stats, size_t *done);

#endif
