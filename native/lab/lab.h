#ifndef WHAMMING_LAB_H
#define WHAMMING_LAB_H
#include <stddef.h>
#include <stdint.h>

/* The laboratory: every system that the paper "Fast Search on Binary Codes by Weighted Hamming Distance" compares. Each
 * is implemented as the paper describes it, and counts what the paper counts. The laboratory is a baseline for
 * measurements and tests, not part of the engine.
 *
 *   index     the hash tables of the codes, one per substring or all merged into one. Immutable; any number of threads
 *             may share it. It borrows the codes.
 *   search    one call answers a batch of queries on the calling thread. Each call owns its scratch memory, so several
 *             calls may run on one index at the same time.
 *
 * Codes. Bit i of a code is in byte i >> 3, mask 1 << (i & 7). Bits past the last one are ignored. A code is cut into m
 * substrings of consecutive bits. The first bits % m substrings have ceil(bits / m) bits, the others floor(bits / m).
 *
 * Distances. The caller reduces a query to the optimum h, the cheapest possible code (Eqn. 5), and nonnegative integers
 * delta[i], the cost of differing from h in bit i (Eqn. 6). The distance of a code is the sum of delta[i] over the bits
 * where it differs from h. All arithmetic is therefore exact. Since h need not be the query's own code, a mismatch with
 * the query may be cheaper than a match.
 *
 * Counts. These rules reproduce the paper's tables. Buckets: every look-up counts, even that of an empty bucket. If
 * several substrings look up the same key in the merged table, each look-up counts. Candidates: distinct codes found.
 *
 * Ties. As in the paper, a search stops as soon as the k-th distance is at most the bound. If several codes are at
 * exactly the k-th distance, the order of probing decides which of them are returned. The returned distances are exact.
 *
 * Failures. Functions return LAB_OK or another lab_status. No function calls back, prints or keeps global state.
 */

enum lab_status {
    LAB_OK = 0,
    LAB_MEMORY = 1,    /* an allocation failed; the contents of the answers are unspecified */
    LAB_ARGUMENT = 2,  /* an argument is outside its documented range */
    LAB_TOO_LONG = 3,  /* a substring has more than LAB_MAX_SUBSTRING_BITS bits: use more tables */
    LAB_TOO_LARGE = 4, /* n x tables is 2^32 or more: use fewer tables or split the codes */
    LAB_COST = 5       /* a query's deltas add up to 2^63 or more: round its costs to fewer bits */
};

/* The meaning of a status, in English. Never NULL; the text is static. */
const char *lab_status_text(int status);

enum lab_limits {
    LAB_MAX_BITS = 4096,        /* bits of a code */
    LAB_MAX_SUBSTRING_BITS = 24 /* bits of a substring; the directory of a table has 2^bits entries of 4 bytes */
};

/* -- Index ------------------------------------------------------------------------------------------------------- */

typedef struct lab_index lab_index;

enum lab_layout {
    LAB_MULTI = 0, /* one hash table per substring (Sec. IV.A) */
    LAB_SINGLE = 1 /* all substrings of all codes in one table (Sec. IV.B) */
};

/* Build the hash tables over n codes (n x ceil(bits / 8) bytes, row-major). The codes are borrowed and must not
 * change until lab_index_free. `tables` is the paper's m, 1 .. bits.
 * Failures: LAB_ARGUMENT, LAB_TOO_LONG, LAB_TOO_LARGE, LAB_MEMORY. *index is untouched on failure. Thread-safe. */
int lab_index_new(const uint8_t *codes, size_t n, uint32_t bits, uint32_t tables, enum lab_layout layout,
                  lab_index **index);

/* Free the tables; NULL is allowed. No search may be running on the index. */
void lab_index_free(lab_index *index);

struct lab_storage {
    uint64_t codes;     /* bytes of the codes themselves */
    uint64_t directory; /* bytes of the bucket offsets */
    uint64_t postings;  /* bytes of the row numbers in the buckets */
};

/* The size of an index. Thread-safe, cannot fail. */
void lab_index_storage(const lab_index *index, struct lab_storage *storage);

struct lab_usage {
    uint64_t all; /* |T_all|: bucket indices that are non-empty in at least one of the m tables */
    uint64_t one; /* |T_one|: bucket indices that are non-empty in exactly one table */
};

/* The paper's Table I: how many bucket indices are used by all m tables together, and how many by one table only. The
 * numbers are the same for both layouts. Thread-safe.
 * Failures: LAB_MEMORY. */
int lab_index_usage(const lab_index *index, struct lab_usage *usage);

/* -- Queries and answers ----------------------------------------------------------------------------------------- */

struct lab_costs {
    size_t count;           /* queries */
    const uint8_t *optimum; /* count x ceil(bits / 8) bytes: h, packed like a code */
    const uint64_t *deltas; /* count x bits: the cost of differing from h in each bit */
};

/* Arrays of the caller. The hits of query i start at position i x k, ordered by (distance, id). Only the first
 * found[i] = min(k, n) are written. */
struct lab_answers {
    uint32_t *ids;        /* count x k: row numbers */
    uint64_t *distances;  /* count x k */
    uint64_t *found;      /* count */
    uint64_t *buckets;    /* count: look-ups */
    uint64_t *candidates; /* count: distinct codes compared */
};

/* -- The systems -------------------------------------------------------------------------------------------------
 * Each answers every query of the batch on the calling thread. k may be 0 and may exceed n. All are thread-safe.
 * Failures of each: LAB_MEMORY, and LAB_COST if it takes costs.
 */

/* Linear Scan (Sec. V.B): compares every code, with one look-up table of 256 sums per byte. Exact. */
int lab_scan(const lab_index *index, const struct lab_costs *costs, size_t k, struct lab_answers *answers);

/* When a search over the tables may stop (Sec. IV.A). Each table i has a queue of keys in order of cost. f(s_i) is the
 * cost of the key last taken from queue i, and f(s^_i) the cost of the key now at its head. r is the k-th best code
 * found so far, and g(r) its distance. */
enum lab_criterion {
    LAB_EQN10 = 0,      /* g(r) <= sum f(s^_i), checked once per round over all tables */
    LAB_EQN11 = 1,      /* the same bound, checked after every bucket: FSWBC */
    LAB_EQN15 = 2,      /* Eqn. 11 with each round's tables sorted by f(s^_i) - f(s_i): FSWBC_sort */
    LAB_EQN16 = 3,      /* g(r) <= sum f(s_i), checked after every bucket: the paper's formula for PQTable's rule */
    LAB_APPEARANCES = 4 /* PQTable's own rule: some code v was found in all m tables, and k of the codes found are no
                           farther than v. Checked after every candidate. The paper's tables show PQTable with this
                           rule */
};

/* FSWBC (Alg. 1 and 2); on a LAB_SINGLE index this is FSWBC_single. Exact under every criterion.
 * Other failures: LAB_ARGUMENT for an unknown criterion. */
int lab_fswbc(const lab_index *index, const struct lab_costs *costs, size_t k, enum lab_criterion criterion,
              struct lab_answers *answers);

/* PQTable on binary codes (Sec. V.C): each 8 bits of a substring are one sub-quantiser with 256 centroids. The
 * multi-sequence algorithm generates the buckets in order; LAB_APPEARANCES stops the search. Exact. */
int lab_pqtable(const lab_index *index, const struct lab_costs *costs, size_t k, struct lab_answers *answers);

/* MIH_binary: multi-index hashing by plain Hamming distance. codes: `count` packed query codes. The distances are exact
 * Hamming distances. Hits at the same distance are in the order in which they were found, not by id. */
int lab_mih_binary(const lab_index *index, const uint8_t *codes, size_t count, size_t k, struct lab_answers *answers);

/* The codes that MIH_weight ranks. */
enum lab_pool {
    LAB_KEPT = 0, /* the codes that multi-index hashing keeps: the first k found at each Hamming distance. This
                     reproduces the paper's accuracy */
    LAB_MET = 1   /* every candidate: slower and more accurate than the paper */
};

/* MIH_weight: searches like MIH_binary, and then ranks the codes of a pool by weighted distance. Not exact: it misses
 * near codes whose Hamming distance is large. codes: costs->count packed query codes.
 * Other failures: LAB_ARGUMENT for an unknown pool. */
int lab_mih_weight(const lab_index *index, const uint8_t *codes, const struct lab_costs *costs, size_t k,
                   enum lab_pool pool, struct lab_answers *answers);

/* -- Probing order ----------------------------------------------------------------------------------------------- */

/* Apply Operations 1 and 2 (Sec. III.B) to `changed`, and write both results to `successors`. Bit r of `changed` is set
 * if the bit with the r-th smallest delta differs from h (r counts from 0). Returns the number of results, usually 2.
 * It is 1 if `changed` is 0, because only Operation 1 applies. It is 0 if the most expensive of the `bits` bits is
 * already changed. Thread-safe, cannot fail. */
uint32_t lab_successors(uint32_t changed, uint32_t bits, uint32_t successors[2]);

enum lab_generator {
    LAB_FLIPS = 0,         /* FSWBC's two operations and priority queue */
    LAB_MULTI_SEQUENCE = 1 /* PQTable's multi-sequence algorithm over parts of 8 bits */
};

/* Write the first min(count, 2^bits) keys of a substring in probing order, and their costs.
 *   bits    length of the substring, 1 .. LAB_MAX_SUBSTRING_BITS
 *   deltas  `bits` values: the cost of differing from `optimum` in each bit
 * Failures: LAB_ARGUMENT (bits, generator), LAB_COST, LAB_MEMORY. Thread-safe. */
int lab_probing_order(uint32_t optimum, const uint64_t *deltas, uint32_t bits, enum lab_generator generator,
                      size_t count, uint32_t *keys, uint64_t *key_costs);

#endif
