#ifndef WHAMMING_CURSOR_H
#define WHAMMING_CURSOR_H
/* The internals of a cursor, for cursor.c and batch.c.
 *
 * Each part is searched separately (part.h), and the cursor merges their hits. The nearest hit that any part has proven
 * is the next hit of the cursor, provided that the bound of every part without a proven hit has passed it. In this
 * example, the numbers are distances:
 *
 *      part 0    | hit 3, hit 5 | bound 6
 *      part 1    | hit 4        | bound 4        3 is returned, then 4; before 5 is returned, parts 1 and 2
 *      part 2    |              | bound 5        must work until their bounds pass 5
 *
 * The parts share their limits: if k items of one part are within a limit, no part needs to look beyond it. */
#include "search/part.h"

struct wh_cursor {
    struct query query;
    struct part *parts;
    size_t count;
    uint64_t wanted; /* hits still to return; UINT64_MAX: no limit */
    uint64_t live;   /* items of all parts that are not dead */
    uint64_t handed_out;
    struct hit last;      /* the last hit returned */
    int failed;           /* wh_status of the failure that ended the cursor */
    uint64_t nanoseconds; /* spent so far */
    _Atomic int cancelled;
};

/* Open a cursor. batch: 1 if its sweeps share their passes with other queries. Failures: those of wh_cursor_open. */
int cursor_open(const struct wh_part *parts, size_t count, const struct wh_search *search, int batch,
                wh_cursor **cursor);

/* Lower the limit of all parts to the lowest that one of them has found. */
void cursor_share_limit(wh_cursor *cursor);

#endif
