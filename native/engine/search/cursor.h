#ifndef WHAMMING_CURSOR_H
#define WHAMMING_CURSOR_H
/* A cursor from the inside: what batch.c needs beyond whamming.h.
 *
 * What is searched may have several parts; each has a search of its own (part.h), and the cursor merges their hits.
 * The nearest hit that any part has proven is the next one if every other part's bound has passed it.
 *
 *      part 0    | hit 3, hit 5 | bound 6
 *      part 1    | hit 4        | bound 4        3 goes out, then 4; before 5 does, part 1 must work until
 *      part 2    |              | bound 5        its bound passes 5
 *
 * The parts share what they learn: k items of one part within a limit are k items of all, so that the others need not
 * look beyond it. */
#include "search/part.h"

struct wh_cursor {
    struct query query;
    struct part *parts;
    size_t count;
    uint64_t wanted; /* hits still to hand out */
    uint64_t live;   /* items of all parts */
    uint64_t handed_out;
    struct hit last;      /* handed out */
    int failed;           /* wh_status that ended the cursor */
    uint64_t nanoseconds; /* spent so far */
    _Atomic int cancelled;
};

/* Open a cursor whose sweeps, if it comes to any, share their pass with others. */
int cursor_open(const struct wh_part *parts, size_t count, const struct wh_search *search, int batch,
                wh_cursor **cursor);

/* Let all parts know of the nearest limit that one of them has found. */
void cursor_share_limit(wh_cursor *cursor);

#endif
