#ifndef WHAMMING_H
#define WHAMMING_H
#include <stddef.h>
#include <stdint.h>

/* Whamming's engine: exact nearest neighbours of binary codes by weighted Hamming distance.
 *
 * The engine knows four things:
 *
 *   arrays   flat, position-independent bytes that hold an index; built once, never changed. They may live in RAM
 *            or in a memory map: the engine borrows them and reads them in place.
 *   index    an opened, checked view of such arrays. Immutable; any number of threads may share it.
 *   planner  what searches of one index have taught about this machine. Any number of threads may share it.
 *   cursor   one query at work. Owns all of the query's scratch; one thread at a time may use it.
 *
 * Exactness. A query's costs are rounded once to integers (wh_costs_round_tables). From there on every sum, bound, tie and
 * stop rule is integer arithmetic; the answer is the total order by (distance, id), the same for every plan, array
 * layout, instruction set and thread count. All sums stay within 2^53, so that a distance handed out as a double is
 * that integer over a power of two without any rounding, and the order of the doubles is the order of the integers.
 *
 * Codes. Bit i of a code is byte i >> 3, mask 1 << (i & 7). Bits past the last one are ignored.
 *
 * Failures. Functions return WH_OK or another wh_status and leave their out-pointers untouched on failure, unless
 * they say otherwise. No function calls back, prints, or keeps global state that a caller could observe.
 */

enum wh_status {
    WH_OK = 0,
    WH_MEMORY = 1,     /* an allocation failed; nothing was changed */
    WH_ARGUMENT = 2,   /* an argument is outside the range its comment gives */
    WH_NOT_FINITE = 3, /* a cost is NaN or infinite */
    WH_CORRUPT = 4,    /* the arrays contradict themselves; the index must not be trusted */
    WH_VERSION = 5,    /* the arrays were written in a format that this build does not read */
    WH_NO_TABLES = 6,  /* the probe plan was asked of an index without tables */
    WH_TOO_LARGE = 7,  /* n x tables does not fit the single layout (2^32 postings) */
    WH_OVERFLOW = 8    /* a distance would be larger than a double can hold */
};

/* A sentence for people. Never NULL; the text is static. */
const char *wh_status_text(int status);

/* Give memory that was freed, but is kept for later allocations, back to the system. Returns whether there was any;
 * 0 where the C library has no such thing. It takes a millisecond or so. */
int wh_release_memory(void);

/* Keep freed memory for later allocations, up to about 16 MiB per heap, for the rest of the process. Without this the
 * C library returns the scratch of a batch to the system after each call, and every query takes page faults for it.
 * Allocations of 1 MiB and more are still returned as soon as they are freed. Returns whether it had an effect; 0 where
 * the C library has no such setting. For programs that only search, such as a server. */
int wh_keep_memory(void);

enum wh_limits {
    WH_MAX_BITS = 4096,         /* the longest code */
    WH_MAX_SUBSTRING_BITS = 32, /* the longest substring of a table */
    WH_MAX_TABLES = 4096,       /* the most tables of one index */
    WH_BLOCK_CODES = 128,       /* codes per block of the sweep's array */
    WH_FORMAT = 1               /* the arrays' format version */
};

/* -- Costs ----------------------------------------------------------------------------------------------------------
 *
 * A query is a table of bits x 2 finite doubles: the cost of a stored bit being 0, and of its being 1. A code's
 * distance is the sum over its bits. Rounding reduces the table to
 *
 *     distance(g) = (floor + sum of delta[i] over the bits where g differs from optimum) / 2^exponent
 *
 * with nonnegative integer deltas, which is all that the engine ever computes with.
 */

/* What costs are given as; any alignment. */
enum wh_number { WH_DOUBLE = 0, WH_FLOAT = 1 };

/* Round `count` tables of bits x 2 numbers (row-major), one after the other, into arrays that have one row per query.
 * exponent = 53 - x - ceil(log2(bits)) where every |cost| < 2^x, so that no sum leaves [-2^53, 2^53]; each cost becomes
 * rint(cost x 2^exponent), ties to even. A bit whose two costs round alike has optimum 0 and delta 0.
 *   type: enum wh_number;  optima: count x ceil(bits / 8) bytes;  deltas: count x bits;  floors, exponents: count.
 * Failures: WH_ARGUMENT (bits, type), WH_NOT_FINITE, WH_OVERFLOW; the last two are those of table *failed, and the
 * outputs are unspecified then. Thread-safe. */
int wh_costs_round_tables(const void *tables, uint32_t type, uint32_t bits, size_t count, uint8_t *optima,
                          uint64_t *deltas, int64_t *floors, int32_t *exponents, size_t *failed);

/* The same for queries given as a code (ceil(bits / 8) bytes) and the cost of a mismatch per bit (bits numbers, which may
 * be negative): what rounding the table with 0 for a stored bit that agrees gives, without that table.
 * shared_code, shared_weights: 1: all queries share one code, or one row of weights. */
int wh_costs_round_weights(const uint8_t *codes, int shared_code, const void *weights, int shared_weights,
                           uint32_t type, uint32_t bits, size_t count, uint8_t *optima, uint64_t *deltas,
                           int64_t *floors, int32_t *exponents, size_t *failed);

/* -- Arrays --------------------------------------------------------------------------------------------------------
 * The byte layout of each array is described at the head of arrays.h. Any alignment works; WH_BLOCKS is read fastest
 * where it starts on a cache line (64 bytes).
 */

enum wh_array {
    WH_META = 0,      /* sizes, layout, frequency of ones per bit */
    WH_CODES = 1,     /* the distinct codes, row by row */
    WH_BLOCKS = 2,    /* the codes again, by planes of 4 bits: what the sweep reads */
    WH_IDS = 3,       /* ids, row by row; empty where id = row */
    WH_GROUPS = 4,    /* where each row's ids start; empty where no two codes are equal */
    WH_DIRECTORY = 5, /* where each bucket of the tables starts and ends */
    WH_POSTINGS = 6,  /* rows, bucket by bucket */
    WH_ENTRIES = 7,   /* the codes, bucket by bucket; empty for compact buckets */
    WH_ARRAYS = 8
};

enum wh_layout { WH_MULTI = 0, WH_SINGLE = 1 };
enum wh_buckets { WH_COMPACT = 0, WH_FAST = 1 };

struct wh_arrays {
    void *data[8];    /* nothing but wh_build writes to them */
    uint64_t size[8]; /* bytes */
};

struct wh_build_options {
    uint32_t bits;    /* 1 .. WH_MAX_BITS */
    uint32_t tables;  /* number of substrings; 0: no tables, sweep only. At most covered, and so many that no
                         substring is longer than WH_MAX_SUBSTRING_BITS */
    uint32_t covered; /* the substrings are cut from the first `covered` bits, 1 .. bits; what lies beyond
                         adds nothing to the probe's bound, which stays exact */
    uint32_t layout;  /* enum wh_layout */
    uint32_t buckets; /* enum wh_buckets */
    uint32_t reorder; /* 1: place alike codes next to each other (faster); 0: keep the rows' order */
    uint32_t threads; /* 0 or 1: build on the calling thread */
};

/* Build the arrays of an index over n codes (n x ceil(bits / 8) bytes, row-major; n < 2^32).
 * ids: n distinct ids in any order, or NULL for 0 .. n - 1. (Searches go on after a (distance, id), so of equal ids at
 * one distance some could be passed over; that is not checked here.) progress, if not NULL, is raised from 0 to 1000 as
 * the work goes on, for another thread to read. The arrays are allocated with malloc and belong to the caller:
 * wh_arrays_free. Equal codes are stored once, with all their ids. Peak memory: the finished arrays, plus 24 bytes per
 * code, 4 bytes per bucket and thread, and for the single layout 4 bytes per bucket and table. Failures: WH_ARGUMENT,
 * WH_MEMORY, WH_TOO_LARGE. Thread-safe. */
int wh_build(const uint8_t *codes, uint64_t n, const uint64_t *ids, const struct wh_build_options *options,
             volatile uint32_t *progress, struct wh_arrays *arrays);

/* Free what wh_build allocated, and empty the struct. Not for borrowed arrays. */
void wh_arrays_free(struct wh_arrays *arrays);

/* -- Index ------------------------------------------------------------------------------------------------------- */

typedef struct wh_index wh_index;

struct wh_index_info {
    uint64_t n;    /* codes */
    uint64_t rows; /* distinct ones */
    uint32_t bits;
    uint32_t tables;
    uint32_t covered;
    uint32_t layout;
    uint32_t buckets;
    uint32_t reordered;
    uint32_t explicit_ids;
};

/* Open an index over borrowed arrays, which must stay in place and unchanged until wh_index_close. Reads the meta
 * array only, so that opening a large memory map is cheap. No later call reads outside the arrays whatever they hold:
 * sizes are checked here, offsets and rows as they are met (WH_CORRUPT then).
 * Failures: WH_CORRUPT, WH_VERSION, WH_MEMORY. */
int wh_index_open(const struct wh_arrays *arrays, wh_index **index);
void wh_index_close(wh_index *index); /* NULL is allowed. No cursor may be open. */
void wh_index_describe(const wh_index *index, struct wh_index_info *info);

/* The places of `count` ids: positions in the order of WH_IDS, UINT64_MAX where the index does not have the id. by_id
 * lists all places by increasing id (n x 4 bytes, any alignment). WH_CORRUPT where it names a place that is none. */
int wh_index_find(const wh_index *index, const void *by_id, const uint64_t *ids, size_t count, uint64_t *places);

/* Set the bits of `count` ids in a bitmap of dead places (see struct wh_part), and tell in removed[i] which of them were
 * not set before: 1, or 0 where the index does not have the id or it was dead. by_id and failures as in wh_index_find. */
int wh_index_remove(const wh_index *index, const void *by_id, const uint64_t *ids, size_t count, uint8_t *dead,
                    uint8_t *removed);

/* -- Planner -----------------------------------------------------------------------------------------------------
 *
 * A planner chooses how to search one index: whether to probe or to sweep, from the times that earlier searches took on
 * this machine, and with which instruction set. It never changes an answer. Any number of threads may share a planner and
 * learn at once.
 */

typedef struct wh_planner wh_planner;

/* A planner that has learned nothing yet. Failures: WH_MEMORY. */
int wh_planner_create(wh_planner **planner);
void wh_planner_free(wh_planner *planner); /* NULL is allowed. No search may be using it. */

/* The sweep's kernels, best last. All give the same survivors. */
enum wh_simd { WH_PORTABLE = 0, WH_NEON = 1, WH_AVX2 = 2, WH_AVX512 = 3 };

/* The kernel in use by default: the best that this machine runs. */
int wh_simd_level(void);
/* 1 if this machine runs the kernel. */
int wh_simd_available(int level);
/* Use this kernel for searches that start from now on; WH_ARGUMENT where it is not available. For tests and
 * benchmarks. Thread-safe. */
int wh_planner_use_simd(wh_planner *planner, int level);

/* -- Search ------------------------------------------------------------------------------------------------------ */

/* Parts without tables are swept, whatever the plan; WH_NO_TABLES where that leaves nothing to probe. */
enum wh_plan { WH_AUTO = 0, WH_PROBE = 1, WH_SWEEP = 2 };

typedef struct wh_cursor wh_cursor;

/* What is searched: one or several indexes of the same number of bits, each without the items that are gone. An id may
 * be alive in one part only. The largest part should come first: what it finds makes the others' search short. */
struct wh_part {
    const wh_index *index;
    wh_planner *planner; /* of this index; NULL: first guesses and the best kernels, and nothing is learned */
    const uint8_t *dead; /* bit p (byte p >> 3, mask 1 << (p & 7)): the item at place p is gone; NULL: none is */
    uint64_t dead_count; /* bits set */
};

/* One query. Everything pointed to is copied by wh_cursor_open. */
struct wh_search {
    const uint8_t *optimum; /* as rounding gives them */
    const uint64_t *delta;
    int64_t floor;
    int32_t exponent;
    uint32_t plan;    /* enum wh_plan */
    uint64_t k;       /* the most hits ever wanted; UINT64_MAX: as many as the caller asks for */
    double radius;    /* only hits of distance <= radius; +infinity: all. Not NaN */
    uint32_t resumed; /* 1: only hits that come after (after_distance, after_id) in the total order */
    double after_distance;
    uint64_t after_id;
};

/* Describe `count` searches that are alike but for their costs, which lie row by row as rounding leaves them and must
 * outlive the searches. None is resumed. */
void wh_searches_fill(struct wh_search *searches, size_t count, uint32_t bits, const uint8_t *optima,
                      const uint64_t *deltas, const int64_t *floors, const int32_t *exponents, uint32_t plan,
                      uint64_t k, double radius);

enum wh_stop {
    WH_MORE = 0,      /* the capacity was filled; more hits may follow */
    WH_EXHAUSTED = 1, /* every hit that k and radius admit has been handed out */
    WH_BUDGET = 2,    /* the budget of this call ran out; call again to go on */
    WH_CANCELLED = 3  /* wh_cursor_cancel was called */
};

/* Every call does at least a slice of work (some tens of microseconds), so that repeating it comes to an end. */
struct wh_budget {
    uint64_t candidates;  /* codes to compare in this call, about; 0: no limit */
    uint64_t nanoseconds; /* time to spend in this call, about; 0: no limit */
};

struct wh_stats {
    uint32_t plan;     /* the plan that finished, or is at work: WH_PROBE or WH_SWEEP */
    uint32_t switched; /* 1: began by probing and went over to the sweep */
    uint32_t rounds;   /* passes over the index; more than 1 only past 65,536 hits or in unlimited iteration */
    uint32_t reserved;
    uint64_t buckets;          /* buckets probed */
    uint64_t buckets_nonempty; /* of them, not empty */
    uint64_t candidates;       /* codes met in buckets, or left over by the sweep's filter */
    uint64_t verified;         /* codes whose exact distance was computed */
    uint64_t blocks;           /* blocks swept */
    uint64_t planes;           /* planes of blocks read, 64 bytes each */
    uint64_t nanoseconds;      /* time spent inside the engine */
};

/* Start a search. Indexes, planners and `dead` are borrowed until the cursor is closed; `dead` must not change.
 * Memory of a cursor, all of it freed by wh_cursor_close: at most 400 KiB of the query's tables, and per part 16 bytes x
 * min(k, n, 65536), plus while probing at most 32 MiB of queues (a few KiB as a rule).
 * Failures: WH_ARGUMENT, WH_NO_TABLES, WH_MEMORY. */
int wh_cursor_open(const struct wh_part *parts, size_t count, const struct wh_search *search, wh_cursor **cursor);
void wh_cursor_close(wh_cursor *cursor); /* NULL is allowed */

/* Hand out the next hits: at most capacity of them, each proven to be the next in the total order by (distance, id).
 * Returns as soon as at least one hit is proven and `eager` is not 0; else fills the capacity if it can.
 * *count and *stop (enum wh_stop) are always set. budget may be NULL.
 * Failures: WH_MEMORY, WH_CORRUPT; the cursor can then only be closed. */
int wh_cursor_next(wh_cursor *cursor, size_t capacity, const struct wh_budget *budget, int eager, uint64_t *ids,
                   double *distances, size_t *count, int *stop);

/* The best hits known but not proven yet, in order, following those already handed out: what a search whose budget
 * ran out can say beyond its proven prefix. Changes nothing. Failures: WH_MEMORY. */
int wh_cursor_guess(const wh_cursor *cursor, size_t capacity, uint64_t *ids, double *distances, size_t *count);

/* No hit that has not been handed out is nearer than this; +infinity once there are none. */
double wh_cursor_bound(const wh_cursor *cursor);

/* Make a running or later wh_cursor_next return WH_CANCELLED soon (well under a millisecond of work). The only
 * function that another thread may call while the cursor is in use. */
void wh_cursor_cancel(wh_cursor *cursor);

void wh_cursor_stats(const wh_cursor *cursor, struct wh_stats *stats);

/* -- Batches ----------------------------------------------------------------------------------------------------- */

/* Top-k of q queries on `threads` threads (0 or 1: the calling one only). Queries that sweep share each pass over the
 * blocks. Results go to row i of ids and distances (q x k): counts[i] hits, then UINT64_MAX and
 * +infinity. stats: q structs or NULL.
 * cancel, if not NULL, may be set to 1 by another thread: the call then returns WH_OK with *cancel still 1 and
 * the results unspecified. Every search must have k <= `k`. The first failure of any query is returned. */
int wh_search_batch(const struct wh_part *parts, size_t count, const struct wh_search *searches, size_t q, size_t k,
                    uint32_t threads, volatile uint32_t *cancel, uint64_t *ids, double *distances, uint64_t *counts,
                    struct wh_stats *stats);

#endif
