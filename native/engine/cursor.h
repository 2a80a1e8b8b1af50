#ifndef WHAMMING_CURSOR_H
#define WHAMMING_CURSOR_H
/* A cursor from the inside: what batch.c needs beyond whamming.h. */
#include "plan.h"
#include "probe.h"
#include "sweep.h"

enum phase {
    PHASE_PROBE,  /* Alg. 2 is at work */
    PHASE_SWEEP,  /* the sweep is */
    PHASE_PROVEN, /* this round is over: all that was kept is proven */
    PHASE_END     /* nothing more will be handed out */
};

struct wh_cursor {
    const wh_index *index;
    uint8_t *optimum;
    uint64_t *delta;
    int64_t floor;
    int32_t exponent;
    uint32_t requested; /* enum wh_plan */
    uint64_t wanted;    /* hits still to hand out */
    uint64_t radius;    /* inclusive, in cost units */

    enum phase phase;
    int failed; /* wh_status that ended the cursor */
    struct distance distance;
    struct probe probe;
    struct sweep sweep;
    struct plan plan;
    struct collector collector;
    struct hit *hits;
    size_t room;     /* of hits */
    size_t round;    /* hits that the next round collects */
    uint64_t bound;  /* cost units: every code not handed out and not kept is at least this far */
    struct hit last; /* handed out */
    uint64_t handed_out;
    struct wh_stats stats; /* of finished rounds; time */
    _Atomic int cancelled;
};

/* Open a cursor whose sweep, if it comes to one, shares its pass with others. */
int cursor_open(const wh_index *index, const struct wh_search *search, int batch, wh_cursor **cursor);

/* Do a slice of work in the present phase, well under a millisecond of it. Returns a wh_status. */
int cursor_work(wh_cursor *cursor);

/* The sweep of this round has passed the last block. */
void cursor_swept(wh_cursor *cursor);

uint64_t clock_nanoseconds(void);

#endif
