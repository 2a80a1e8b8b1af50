#ifndef WHAMMING_PART_H
#define WHAMMING_PART_H
/* The search of one part for one query, in rounds of probing or sweeping.
 *
 * A round collects the next `round` hits after the last one returned. A search for k <= 65,536 hits takes one round. A
 * larger k takes rounds of 65,536 hits each. An unlimited search starts with a round of 256 hits. Each further round
 * has 4 times as many as the one before, up to 65,536. This bounds the memory. Each round repeats the work of the
 * rounds before it. As long as rounds grow, most of a round's work is new.
 *
 *      PROBE --(bound > limit)-------------------> SORT --> PROVEN --(all returned)--> next round, or END
 *        \--(planner, or queues full)--> SWEEP ---^
 */
#include "base/clock.h"
#include "search/plan.h"
#include "search/probe.h"
#include "search/query.h"
#include "search/sweep.h"

enum phase {
    PHASE_PROBE,  /* probing (Alg. 2) */
    PHASE_SWEEP,  /* sweeping */
    PHASE_SORT,   /* all kept hits are final and are being sorted, piece by piece */
    PHASE_PROVEN, /* all hits of the round are sorted and can be returned */
    PHASE_END     /* there are no more hits */
};

struct part {
    const wh_index *index;
    const struct query *query;
    const uint8_t *dead;
    const struct kernels *kernels;
    uint64_t live;       /* items that are not dead */
    struct hit farthest; /* the last position within the radius; part_lower_limit may lower it */

    enum phase phase;
    struct probe probe;
    struct sweep sweep;
    struct plan plan;
    uint64_t entered; /* time on the clock when the current slice started */
    uint64_t worked;  /* nanoseconds spent in earlier slices */
    struct collector collector;
    struct hit *hits;
    size_t room;     /* allocated size of `hits`, in hits */
    size_t round;    /* maximum number of hits in the current round */
    uint64_t bound;  /* lower bound, in steps, of every item that is neither returned nor proven */
    uint64_t beyond; /* while sorting: lower bound of every item that was not kept */
    struct hit last; /* the last hit returned */
    uint64_t handed_out;
    struct wh_stats stats; /* without the counts of `probe` and `sweep` */
};

/* Start the search. batch: 1 if a sweep shares its pass with other queries. The query and the index are borrowed until
 * part_free. Returns a wh_status (WH_MEMORY); part_free is safe on a zeroed or failed struct. */
int part_open(struct part *part, const struct wh_part *what, const struct query *query, int batch);
void part_free(struct part *part);

/* Do a slice of work in the current phase, well under a millisecond. Returns a wh_status. */
int part_work(struct part *part);

/* End the round after its sweep has passed the last block. */
void part_swept(struct part *part);

/* The next proven hit; NULL if none is known yet. */
static inline const struct hit *part_head(const struct part *p) {
    const struct collector *c = &p->collector;
    return c->sent < c->proven ? &c->hits[c->sent] : NULL;
}

/* Take the next proven hit. */
static inline struct hit part_take(struct part *p) {
    p->handed_out++;
    return p->last = p->collector.hits[p->collector.sent++];
}

/* All items that have yet to be returned are at this position or after it. Its steps are at least NO_RADIUS if there
 * are no such items. */
static inline struct hit part_bound(const struct part *p) {
    const struct hit *head = part_head(p);
    return head ? *head : (struct hit){p->bound, 0, 0};
}

/* An upper bound on the steps of the cursor's k-th hit: k items of this part lie within it. UINT64_MAX: not known
 * yet. */
static inline uint64_t part_limit(const struct part *p) {
    const struct collector *c = &p->collector;
    return c->capacity == p->query->k && collect_full(c) ? c->limit : UINT64_MAX;
}

/* Ignore items beyond this limit from now on. */
void part_lower_limit(struct part *part, uint64_t limit);

/* Write the best hits found so far that have not been returned, in any order. hits: room for the collector's capacity.
 * Returns a wh_status (WH_CORRUPT). */
int part_guess(const struct part *part, struct hit *hits, size_t *count);

/* The bytes that the part has allocated for hits, lists and queues. */
size_t part_memory(const struct part *part);

/* Number of codes compared so far, for the budget. A sweep counts all codes of its blocks. */
uint64_t part_compared(const struct part *part);

/* Add the statistics of this part. */
void part_add_stats(const struct part *part, struct wh_stats *stats);

#endif
