#ifndef WHAMMING_PROBE_H
#define WHAMMING_PROBE_H
/* The probe: the paper's Alg. 2 over m tables; for m = 1 this is Alg. 1.
 *
 * Search module (section III.B). Each table enumerates its keys by increasing cost, with a priority queue. A key is
 * represented by the mask of the bits in which it differs from the substring's optimum, ranked by increasing delta:
 *
 *      mask, rank 0 first   1010    the highest changed rank is r = 2
 *      operation 1          1011    also change rank r + 1
 *      operation 2          1001    move the change from rank r to rank r + 1
 *
 * Neither operation lowers the cost, and both raise the mask as a number. Keys are therefore generated in strictly
 * increasing order of (cost, mask), each exactly once.
 *
 * Decision module (section IV.A). The frontier of a table is its next key. Consider a code that no table has found yet.
 * Each of its substrings costs at least as much as the frontier of its table. So the code costs at least the sum S of
 * the frontiers' costs (Eqn. 11, updated after each bucket). The search ends when S is strictly greater than the
 * collector's limit. If they were equal, an unseen code could be just as near and have a smaller id.
 *
 * The probe keeps no set of visited rows. A row found in table t was found before if and only if another of its
 * substrings precedes the frontier of that substring's table, in the order of (cost, mask). Only the few rows within
 * the limit need this check.
 */
#include "search/collect.h"
#include "search/sieve.h"

enum {
    PROBE_LAG = 4, /* keys per table that are taken from the queue ahead of use, so that prefetches arrive in time */
    PROBE_MAX_QUEUED = 1 << 20 /* keys in all queues together: 16 MiB, in at most 32 MiB of allocated memory */
};

enum probe_result { PROBE_PAUSED, PROBE_DONE, PROBE_CROWDED, PROBE_FAILED_MEMORY, PROBE_FAILED_CORRUPT };

struct probe_key {
    uint64_t cost;
    uint32_t mask; /* changed bits by rank */
    uint32_t key;
};

struct probe_bucket {
    struct probe_key key;
    uint64_t start, stop; /* postings; UINT64_MAX until they are looked up */
};

struct probe_table {
    struct probe_key *queue; /* a binary min-heap by (cost, mask) */
    uint32_t queued, room;
    struct probe_bucket ahead[PROBE_LAG]; /* taken from the queue, not searched yet, oldest first */
    uint32_t ahead_count;
    uint32_t length;
    uint32_t optimum;
    uint64_t delta[WH_MAX_SUBSTRING_BITS]; /* by rank */
    uint32_t bit[WH_MAX_SUBSTRING_BITS];   /* by rank: mask within the key */
};

struct probe {
    const wh_index *index;
    const struct distance *distance;
    const uint8_t *optimum;
    struct sieve *sieve;
    copy_kernel *copy; /* or NULL */
    uint8_t *codes;    /* copies of the codes of a compact bucket, `code_room` bytes each; NULL for fast buckets */
    size_t code_room;
    struct probe_table *tables;
    uint32_t turn;  /* the table to probe next */
    int within;     /* a bucket of that table is partly searched */
    uint64_t bound; /* S; UINT64_MAX once every code has been found */
    uint64_t queued;
    struct wh_stats counts; /* `verified` counts the candidates that the sieve has not rejected */
};

/* Prepare for one query; index, distance and optimum are borrowed until probe_free. Returns a wh_status (WH_MEMORY);
 * probe_free is safe on a zeroed or failed struct. */
int probe_init(struct probe *probe, const wh_index *index, const struct kernels *kernels,
               const struct distance *distance, const uint8_t *optimum, const uint64_t *delta);
void probe_free(struct probe *probe);

/* Probe buckets and offer their codes to the collector. Returns PROBE_DONE when the bound has passed the collector's
 * limit, or when the collector is full of proven hits. Returns PROBE_PAUSED after about `effort` units of work: a
 * candidate counts as one unit, a bucket as BUCKET_EFFORT. Returns PROBE_CROWDED if the queues are full; the caller
 * must then sweep. */
enum probe_result probe_run(struct probe *probe, struct collector *collector, uint64_t effort);

/* Number of postings left in a partly searched bucket. */
uint64_t probe_pending(const struct probe *probe);

#endif
