#ifndef WHAMMING_PROBE_H
#define WHAMMING_PROBE_H
/* The probe: the paper's Alg. 2 over m tables, which is Alg. 1 where m = 1.
 *
 * Search module (section III.B). Each table enumerates its keys in increasing cost with a priority queue. A key is
 * known by which bits of the substring's optimum it changes, with the bits ranked by increasing delta:
 *
 *      mask (by rank)   1010          highest changed rank r
 *      operation 1      1010 + r+1    change the next bit too
 *      operation 2      move r to r+1
 *
 * Both raise the cost (or keep it, where deltas are 0 or equal) and both raise the mask as a number, so the keys come
 * out in strictly increasing order of (cost, mask), each exactly once.
 *
 * Decision module (section IV.A). A code that no table has met yet costs at least the frontier, the next key's cost, in
 * every table, so at least their sum S (Eqn. 11, kept up to date after each bucket). The search is over when S is
 * strictly greater than the collector's limit: at S equal to it, a tie with a smaller id could still be unmet.
 *
 * No visited set. A row met in table t was met before exactly if another of its substrings lies before that table's
 * frontier in the order of (cost, mask). That is checked for the few rows within the limit only.
 */
#include "search/collect.h"
#include "search/sieve.h"

enum {
    PROBE_LAG = 4,              /* keys taken out ahead of use, so that memory is fetched in time */
    PROBE_MOST_QUEUED = 1 << 20 /* keys waiting in all queues: 16 MiB of them, in at most 32 MiB of room */
};

enum probe_result { PROBE_PAUSED, PROBE_DONE, PROBE_CROWDED, PROBE_FAILED_MEMORY, PROBE_FAILED_CORRUPT };

struct probe_key {
    uint64_t cost;
    uint32_t mask; /* changed bits by rank */
    uint32_t key;
};

struct probe_bucket {
    struct probe_key key;
    uint64_t start, stop; /* postings; known from the second step on */
};

struct probe_table {
    struct probe_key *queue; /* a binary min-heap by (cost, mask) */
    uint32_t queued, room;
    struct probe_bucket ahead[PROBE_LAG]; /* taken out, not searched yet, oldest first */
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
    struct probe_table *tables;
    uint32_t turn;  /* the table to advance next */
    int within;     /* a bucket of that table is searched in part */
    uint64_t bound; /* S; UINT64_MAX once every code has been met */
    uint64_t queued;
    uint64_t buckets, nonempty, candidates;
    uint64_t verified; /* candidates that the sieve let through, or that it was not worth while for */
};

/* Make ready for one query; index, distance and optimum are borrowed until probe_free. Returns a wh_status (WH_MEMORY);
 * probe_free is safe on a zeroed or failed struct. */
int probe_init(struct probe *probe, const wh_index *index, const struct kernels *kernels,
               const struct distance *distance, const uint8_t *optimum, const uint64_t *delta);
void probe_free(struct probe *probe);

/* Probe bucket after bucket, offering what is met, until the bound passes the collector's limit (PROBE_DONE) or about
 * `effort` more buckets and candidates have been seen (PROBE_PAUSED). PROBE_CROWDED: the queues are full; sweep
 * instead. */
enum probe_result probe_run(struct probe *probe, struct collector *collector, uint64_t effort);

/* Postings left in the bucket that a pause interrupted. */
uint64_t probe_pending(const struct probe *probe);

#endif
