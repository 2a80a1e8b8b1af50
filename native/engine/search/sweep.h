#ifndef WHAMMING_SWEEP_H
#define WHAMMING_SWEEP_H
/* The sweep: an exact SIMD pass over all blocks (arrays.h), in memory order.
 *
 *      blocks, 64 codes at a time           list: row, sum             collector
 *      look up 16 costs per plane, add  ->  sums up to the threshold,  ->  exact distances,
 *                                           which falls meanwhile          lowest sum first
 *
 * Sums. A plane is 4 bits of each code. Its 16 costs are scaled and rounded *down* to a byte. The sum of a code's
 * look-ups is then a lower bound of its scaled distance. Most planes have a similar largest cost. The scale is chosen for
 * these planes. The others are heavy: the look-ups of their quads (4 bytes, 8 planes) have a second part, which counts 64
 * times. If that is not enough, costs are capped, and the sum is still a lower bound.
 *
 * Selection. A pass computes no distances. It lists the codes whose sum is within a threshold. From time to time, the
 * list is cut back: the threshold becomes the k-th smallest sum so far, plus a margin for the rounding, and codes
 * beyond it are dropped.
 *
 * Verification. After the pass, the exact distances of the listed codes are computed in order of their sums, until a
 * sum is beyond the collector's limit. So not many more codes are verified than hits are wanted.
 *
 * The first threshold comes from a sample of the blocks, so few codes are listed that will be dropped (sweep_sample.c).
 *
 * Completeness. Every code with a sum within the threshold has been listed. A code within the collector's limit has a
 * sum of at most limit_sum(limit). If this is within the threshold, no hit is missing. Otherwise there is another pass,
 * with this sum as the threshold. That is rare. It can happen if costs were capped, or if many of the listed codes were
 * dead or came before the position at which the search resumes. If a pass lists too few codes, because the sample was
 * not typical, another pass starts without a sample.
 *
 * Modes. There are two ways to sweep a block. SWEEP_STREAM reads all quads in memory order, which suits the hardware.
 * SWEEP_SKIP begins with the quads that are expected to cost most. It leaves the block early if the partial sums of
 * all its codes are beyond the threshold. Which mode is faster depends on the machine and on the query. So from time to
 * time, a pass tries both on a few blocks, and continues with the faster one. Both modes compute the same sums.
 *
 * If the list is full although it was cut back, many codes have equal sums. All listed codes are then verified at once.
 * This gives the pass a limit, and the list starts again empty. So memory is bounded.
 */
#include "search/collect.h"
#include "search/distance.h"
#include "simd/kernels.h"

enum {
    SWEEP_STREAM, /* all quads, in memory order */
    SWEEP_SKIP,   /* the quads with the highest expected costs first; blocks are left early */
    SWEEP_MODES
};

struct sweep {
    const wh_index *index;
    const struct distance *distance;
    const struct kernels *kernels;
    const uint8_t *optimum;
    const uint64_t *delta;
    void *allocated; /* memory of `rows` to `other_sums` below; NULL before the first pass */
    /* Per mode: how the quads are visited; see struct sweep_job. */
    struct {
        uint8_t *lut;
        uint32_t *order, *stops;
    } mode[SWEEP_MODES];
    size_t quads;
    size_t heavy;
    uint32_t *heavy_at;
    uint8_t *heavy_lut;
    void *prepared;   /* memory of all arrays above, and of `left`; NULL: not initialised yet */
    uint32_t *left;   /* per quad, while sampling: how many blocks were left after it */
    int ordered;      /* 1: SWEEP_SKIP is prepared */
    int best;         /* the faster mode, as far as known */
    int stage;        /* enum stage in sweep.c */
    size_t stage_end; /* the block at which the next stage begins */
    uint64_t stage_nanoseconds[SWEEP_MODES];
    double scale;    /* of the sums */
    int exact;       /* 1: the scale is 1 and no cost was capped, so sums are distances in steps */
    int capped;      /* 1: some costs of heavy planes were capped */
    uint16_t margin; /* added to the k-th smallest sum */
    uint16_t least;  /* codes with smaller sums come before the position at which the search resumes */

    size_t next;        /* the next block */
    uint16_t threshold; /* larger sums are not listed */
    int fixed;          /* 1: the threshold follows the collector's limit only */
    int sampled;        /* 1: the threshold was lowered by sweep_sample */
    size_t want;        /* how many codes to keep when the list is cut back, at least */
    size_t room;        /* entries of the arrays below */
    size_t trigger;     /* cut the list back when it has more entries */
    size_t count;
    size_t verified; /* while verifying: number of entries verified */
    int verifying;
    int done; /* 1: all hits have been offered */
    uint32_t *rows, *other_rows;
    uint16_t *sums, *other_sums;
    struct wh_stats counts; /* blocks, planes, candidates, verified */
};

/* Prepare for one query. `optimum` and `delta` are borrowed. Returns a wh_status (WH_MEMORY); sweep_free is safe on a
 * zeroed or failed struct. */
int sweep_init(struct sweep *sweep, const wh_index *index, const struct kernels *kernels,
               const struct distance *distance, const uint8_t *optimum, const uint64_t *delta);
void sweep_free(struct sweep *sweep);

/* Free the list after a pass. The next pass allocates it again. */
void sweep_free_list(struct sweep *sweep);

/* The size of the list in bytes. */
static inline size_t sweep_list_bytes(size_t room) { return room * 2 * (sizeof(uint32_t) + sizeof(uint16_t)); }

/* Choose the scale, and fill the look-ups and the order of SWEEP_STREAM. sweep_init calls this. */
void sweep_fill_look_ups(struct sweep *sweep);

/* Fill the look-ups and the order of SWEEP_SKIP. */
void sweep_order_quads(struct sweep *sweep);

/* Lower the threshold, which at first may be far too high, by looking at a few blocks all over the index. Afterwards,
 * most likely `want` codes are within it, but not many more. sweep_start calls this. */
void sweep_sample(struct sweep *sweep);

/* Start a pass for the collector's hits. Returns a wh_status (WH_MEMORY). */
int sweep_start(struct sweep *sweep, const struct collector *collector);

/* The sweep kernel's job for blocks [first, last) in a mode. It appends to the list. */
static inline struct sweep_job sweep_job(const struct sweep *s, int mode, size_t first, size_t last) {
    return (struct sweep_job){.codes = s->index->codes,
                              .planes = s->index->planes,
                              .quads = s->quads,
                              .order = s->mode[mode].order,
                              .lut = s->mode[mode].lut,
                              .heavy = s->heavy,
                              .heavy_at = s->heavy_at,
                              .heavy_lut = s->heavy_lut,
                              .stops = s->mode[mode].stops,
                              .left = s->left,
                              .first = first,
                              .last = last,
                              .threshold = s->threshold,
                              .rows = s->rows,
                              .sums = s->sums,
                              .count = s->count,
                              .room = s->trigger + WH_BLOCK_CODES};
}

/* Sweep the blocks from sweep->next up to `last`, or until about `most` codes have been compared exactly. After the
 * last block of the index, offer the listed codes that are within the limit. Sets sweep->done when no hit can be
 * missing. If one could be, sets sweep->next to 0, for another pass. Returns a wh_status (WH_CORRUPT). */
int sweep_run(struct sweep *sweep, struct collector *collector, size_t last, uint64_t most);

/* List the codes of the blocks from sweep->next up to `last`, or fewer: one step of a pass. Returns 0 if the list is full
 * although it was cut back. */
int sweep_list(struct sweep *sweep, const struct collector *collector, size_t last);

/* Lower the threshold as far as possible, and drop the entries of the list that cannot be hits. */
void sweep_cut_back(struct sweep *sweep, const struct collector *collector);

/* Do the whole pass on several threads. Only the codes are listed; sweep_run then verifies them. Call it when a pass has
 * started. If it cannot be done, or `stop` returns 1, nothing has changed, so sweep_run can do the pass.
 *   stop  called often, by all threads
 * Returns whether it was done. */
int sweep_list_together(struct sweep *sweep, const struct collector *collector, uint32_t threads,
                        int (*stop)(const void *context), const void *context);

/* Allocate the list for the hits that are wanted, and for at least `entries`. If it has to grow, its entries are lost.
 * Returns a wh_status (WH_MEMORY: nothing has changed). */
int sweep_allocate_list(struct sweep *sweep, size_t entries);

/* Offer the codes listed so far to a copy of the collector, for wh_cursor_guess. Returns a wh_status (WH_CORRUPT). */
int sweep_guess(const struct sweep *sweep, struct collector *copy);

#endif
