/* One pass of a sweep on several threads. See sweep.h.
 *
 *      blocks     | thread 0      | thread 1      | thread 2      |
 *                   own list        own list        own list          share the lowest threshold
 *                         \            |              /
 *                          the list of the sweep, cut back; verified by the calling thread
 *
 * Each thread lists the codes of a range of blocks. A thread's threshold is at least the sum of the want-th best code of
 * its range, and so of the want-th best code of all. So the lowest threshold is valid for all threads.
 */
#include "base/memory.h"
#include "base/parallel.h"
#include "search/sweep.h"

enum {
    MIN_BYTES = 4 << 20,   /* of blocks: below, starting a thread takes longer than it saves */
    TILE_BYTES = 256 << 10 /* between looks at the shared threshold */
};

struct team {
    struct sweep *members;
    const struct collector *collector;
    size_t tile;
    size_t each; /* blocks per member */
    _Atomic uint32_t threshold;
    _Atomic int failed;
    int (*stop)(const void *context);
    const void *context;
};

static void list_range(void *context, size_t number, uint32_t worker) {
    struct team *team = context;
    struct sweep *s = &team->members[number];
    size_t blocks = s->index->blocks_count, end = s->next + team->each < blocks ? s->next + team->each : blocks;
    (void)worker;
    while (s->next < end && !atomic_load_explicit(&team->failed, memory_order_relaxed)) {
        uint32_t shared = atomic_load_explicit(&team->threshold, memory_order_relaxed);
        if (shared < s->threshold) s->threshold = (uint16_t)shared;
        size_t last = s->next + team->tile < end ? s->next + team->tile : end;
        if (!sweep_list(s, team->collector, last) || team->stop(team->context)) atomic_store(&team->failed, 1);
        while (s->threshold < shared && !atomic_compare_exchange_weak(&team->threshold, &shared, s->threshold))
            continue;
    }
}

/* Set up a member: its range, list and counts are its own. */
static int recruit(struct sweep *member, const struct sweep *s, size_t first, uint32_t *left) {
    *member = *s;
    member->allocated = NULL;
    member->room = 0;
    member->left = left;
    member->next = first;
    member->counts = (struct wh_stats){0};
    member->stage_end = SIZE_MAX; /* SWEEP_STREAM to the end */
    return sweep_allocate_list(member, 0) == WH_OK;
}

/* Join the lists of the members. Returns 0 if there is no memory. */
static int join(struct sweep *s, const struct sweep *members, uint32_t threads) {
    size_t entries = 0;
    for (uint32_t t = 0; t < threads; t++) entries += members[t].count;
    if (sweep_allocate_list(s, entries) != WH_OK) return 0;
    for (uint32_t t = 0; t < threads; t++)
        for (size_t i = 0; i < members[t].count; i++) {
            s->rows[s->count] = members[t].rows[i];
            s->sums[s->count] = members[t].sums[i];
            s->count += members[t].sums[i] <= s->threshold;
        }
    return 1;
}

int sweep_list_together(struct sweep *s, const struct collector *c, uint32_t threads, int (*stop)(const void *context),
                        const void *context) {
    const size_t blocks = s->index->blocks_count, block_bytes = s->index->block_bytes;
    if (threads < 2 || s->done || s->next > 0 || s->count > 0 || blocks * block_bytes < MIN_BYTES) return 0;
    struct team team = {.collector = c,
                        .tile = TILE_BYTES / block_bytes + 1,
                        .each = (blocks + threads - 1) / threads,
                        .threshold = s->threshold,
                        .stop = stop,
                        .context = context};
    const uint16_t before = s->threshold;
    const size_t left_bytes = s->quads * sizeof *s->left;
    team.members = wh_calloc(threads, sizeof *team.members + left_bytes);
    if (!team.members) return 0;
    uint32_t *left = (uint32_t *)(team.members + threads);
    int done = 1;
    for (uint32_t t = 0; t < threads && done; t++)
        done = recruit(&team.members[t], s, t * team.each, left + t * s->quads);
    if (done) {
        parallel_run(threads, threads, list_range, &team);
        done = !atomic_load(&team.failed);
    }
    if (done) s->threshold = (uint16_t)atomic_load(&team.threshold);
    if (done) done = join(s, team.members, threads);
    for (uint32_t t = 0; t < threads; t++) {
        if (done) {
            s->counts.blocks += team.members[t].counts.blocks;
            s->counts.planes += team.members[t].counts.planes;
        }
        sweep_free_list(&team.members[t]);
    }
    wh_free(team.members);
    s->next = done ? blocks : 0;
    if (!done) {
        s->count = 0;
        s->threshold = before;
    }
    return done;
}
