#ifndef WHAMMING_PART_H
#define WHAMMING_PART_H
/* One query at work on one part of what is searched: rounds of probing or sweeping.
 *
 * A round collects the next `round` hits after the last one handed out. A search for k <= 65,536 hits is one round;
 * a longer one, or one without end, is several, each a multiple of the one before, so that memory stays bounded and
 * the work repeated stays below the work done.
 *
 *      PROBE --(bound > limit)-------------------> SORT --> PROVEN --(all handed out)--> next round, or END
 *        \--(planner, or queues full)--> SWEEP ---^
 */
#include "search/plan.h"
#include "search/probe.h"
#include "search/query.h"
#include "search/sweep.h"

enum phase {
    PHASE_PROBE,  /* Alg. 2 is at work */
    PHASE_SWEEP,  /* the sweep is */
    PHASE_SORT,   /* all that was kept is proven, and put in order piece by piece */
    PHASE_PROVEN, /* this round is over: all that was kept can be handed out */
    PHASE_END     /* no more hits will come */
};

struct part {
    const wh_index *index;
    const struct query *query;
    const uint8_t *dead;
    const struct kernels *kernels;
    uint64_t live;   /* items that are not dead */
    uint64_t radius; /* inclusive, in cost units; may be lowered in mid-search */

    enum phase phase;
    struct probe probe;
    struct sweep sweep;
    struct plan plan;
    uint64_t entered; /* clock, when the slice at hand began */
    uint64_t worked;  /* nanoseconds of the slices before */
    struct collector collector;
    struct hit *hits;
    size_t room;     /* of hits */
    size_t round;    /* hits that the next round collects */
    uint64_t bound;  /* cost units: every item not handed out and not proven is at least this far */
    uint64_t beyond; /* likewise, while sorting: every item not kept is */
    struct hit last; /* handed out */
    uint64_t handed_out;
    struct wh_stats stats; /* of finished rounds */
};

/* Begin. batch: a sweep, if it comes to one, shares its pass with others. The query and the index are borrowed until
 * part_free. Returns a wh_status (WH_MEMORY); part_free is safe on a zeroed or failed struct. */
int part_open(struct part *part, const struct wh_part *what, const struct query *query, int batch);
void part_free(struct part *part);

/* Do a slice of work in the present phase, well under a millisecond of it. Returns a wh_status. */
int part_work(struct part *part);

/* The sweep of this round has passed the last block. */
void part_swept(struct part *part);

/* The next proven hit, or NULL where none is known yet. */
static inline const struct hit *part_head(const struct part *p) {
    const struct collector *c = &p->collector;
    return c->sent < c->proven ? &c->hits[c->sent] : NULL;
}

/* Hand out the next proven hit. */
static inline struct hit part_take(struct part *p) {
    p->handed_out++;
    return p->last = p->collector.hits[p->collector.sent++];
}

/* Every item not handed out is at least this far, in cost units; UINT64_MAX: there is none. */
static inline uint64_t part_bound(const struct part *p) {
    const struct hit *head = part_head(p);
    return head ? head->distance : p->bound;
}

/* A limit for the k-th hit of all parts, if this part knows one: k of its own items lie within it. */
static inline uint64_t part_limit(const struct part *p) {
    const struct collector *c = &p->collector;
    return c->capacity == p->query->k && collect_full(c) ? c->limit : UINT64_MAX;
}

/* Items beyond this limit are no longer wanted. */
void part_lower(struct part *part, uint64_t limit);

/* Codes compared so far, for the budget: a sweep compares all codes of its blocks. */
uint64_t part_compared(const struct part *part);

/* Add what the part has cost so far. */
void part_add_stats(const struct part *part, struct wh_stats *stats);

uint64_t clock_nanoseconds(void);

#endif
