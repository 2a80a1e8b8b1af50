/* See part.h. */
#include "search/part.h"

#include "base/memory.h"

enum {
    MAX_KEPT = 65536,
    FIRST_ROUND = 256,
    ROUND_GROWTH = 4,
    SLICE_PLANES = 32768,
    SLICE_EFFORT = 4096,
    SLICE_VERIFIED = 4096
};

/* The time spent on this part. The planner uses it instead of the clock, which also counts work on other parts. */
static uint64_t own_time(const struct part *p) { return p->worked + clock_nanoseconds() - p->entered; }

/* The sweep is initialised on first use: many searches finish without it. */
static int start_sweep(struct part *p) {
    p->phase = PHASE_SWEEP;
    int status = p->sweep.prepared ? WH_OK
                                   : sweep_init(&p->sweep, p->index, p->kernels, &p->query->distance, p->query->optimum,
                                                p->query->delta);
    if (status == WH_OK) status = sweep_start(&p->sweep, &p->collector);
    plan_start(&p->plan, own_time(p), p->sweep.counts.blocks);
    return status;
}

static int start_round(struct part *p, int resumed) {
    size_t capacity = p->round;
    if (capacity > p->query->k - p->handed_out) capacity = (size_t)(p->query->k - p->handed_out);
    if (capacity > p->live) capacity = (size_t)p->live;
    if (capacity > p->room) {
        struct hit *hits = wh_realloc(p->hits, sizeof *hits * capacity);
        if (!hits) return WH_MEMORY;
        p->hits = hits;
        p->room = capacity;
    }
    collect_start(&p->collector, p->hits, capacity, p->farthest, p->dead, p->query->skips ? &p->query->skipped : NULL,
                  resumed, p->last);
    p->stats.rounds++;
    if (p->stats.plan == WH_SWEEP) return start_sweep(p);
    probe_free(&p->probe);
    const struct query *q = p->query;
    int status = probe_init(&p->probe, p->index, p->kernels, &q->distance, q->optimum, q->delta);
    plan_start(&p->plan, own_time(p), p->sweep.counts.blocks);
    p->phase = PHASE_PROBE;
    return status;
}

static void add_counts(struct wh_stats *stats, const struct wh_stats *counts) {
    stats->buckets += counts->buckets;
    stats->buckets_nonempty += counts->buckets_nonempty;
    stats->candidates += counts->candidates;
    stats->verified += counts->verified;
    stats->blocks += counts->blocks;
    stats->planes += counts->planes;
}

static void end_probe(struct part *p) {
    add_counts(&p->stats, &p->probe.counts);
    probe_free(&p->probe);
    p->probe = (struct probe){0};
}

static void work_sort(struct part *p) {
    struct collector *k = &p->collector;
    collect_prove_piece(k);
    uint64_t bound = k->count ? k->hits[k->proven - 1].steps : p->beyond;
    if (bound > p->bound) p->bound = bound;
    if (k->count == 0) p->phase = PHASE_PROVEN;
}

/* Whether the radius includes every distance that has the same number of steps as the radius. */
static int is_whole_step(const struct part *p) { return p->farthest.rest >= (UINT64_C(1) << p->query->shift) - 1; }

static void finish_round(struct part *p) {
    /* Items that were not kept lie beyond the last kept hit if the round is full, otherwise beyond the radius. */
    const struct collector *k = &p->collector;
    p->beyond = UINT64_MAX;
    if (collect_full(k))
        p->beyond = k->hits[k->count ? k->proven : k->proven - 1].steps; /* the top of the heap is the last hit */
    else if (p->farthest.steps != NO_RADIUS) p->beyond = p->farthest.steps + is_whole_step(p);
    p->phase = PHASE_SORT;
    work_sort(p);
    plan_learn_start(&p->plan, own_time(p));
    p->plan.k = UINT64_MAX; /* the time of later rounds is not learned */
}

static int work_probe(struct part *p) {
    struct collector *k = &p->collector;
    uint64_t effort = p->query->plan == WH_AUTO && p->plan.slice < SLICE_EFFORT ? p->plan.slice : SLICE_EFFORT;
    enum probe_result result = probe_run(&p->probe, k, effort);
    switch (result) {
    case PROBE_DONE:
        if (p->query->plan == WH_AUTO) plan_learn_buckets(&p->plan, &p->probe, own_time(p));
        end_probe(p);
        p->stats.plan = WH_PROBE;
        finish_round(p);
        return WH_OK;
    case PROBE_FAILED_MEMORY:
        return WH_MEMORY;
    case PROBE_FAILED_CORRUPT:
        return WH_CORRUPT;
    case PROBE_CROWDED:
        break;
    case PROBE_PAUSED:
        collect_prove(k, p->probe.bound);
        if (p->probe.bound > p->bound) p->bound = p->probe.bound;
        if (p->query->plan == WH_PROBE) return WH_OK;
        p->plan.done += effort;
        if (p->plan.done < p->plan.slice) return WH_OK;
        p->plan.done = 0;
        if (!plan_prefers_sweep(&p->plan, &p->probe, p->index, k->capacity, k->limit, own_time(p))) return WH_OK;
        break;
    }
    end_probe(p);
    collect_restart(k);
    p->stats.switched = 1;
    return start_sweep(p);
}

static int work_sweep(struct part *p) {
    size_t last = p->sweep.next + SLICE_PLANES / p->index->planes + 1;
    int status = sweep_run(&p->sweep, &p->collector, last, SLICE_VERIFIED);
    if (status != WH_OK || !p->sweep.done) return status;
    uint64_t blocks = p->sweep.counts.blocks - p->plan.blocks_before;
    planner_learn_planes(p->plan.planner, 0, blocks * p->index->planes, own_time(p) - p->plan.started);
    part_swept(p);
    return WH_OK;
}

void part_swept(struct part *p) {
    if (p->round == MAX_KEPT) sweep_free_list(&p->sweep); /* the hits may be kept long */
    p->stats.plan = WH_SWEEP;
    finish_round(p);
}

/* All hits of the round have been returned: start the next round, if there is one. */
static int next_round(struct part *p) {
    if (!collect_full(&p->collector) || p->handed_out == p->query->k || p->handed_out == p->live) {
        p->phase = PHASE_END;
        return WH_OK;
    }
    p->round = p->round * ROUND_GROWTH < MAX_KEPT ? p->round * ROUND_GROWTH : MAX_KEPT;
    return start_round(p, 1);
}

static int work(struct part *p) {
    switch (p->phase) {
    case PHASE_PROBE:
        return work_probe(p);
    case PHASE_SWEEP:
        return work_sweep(p);
    case PHASE_SORT:
        work_sort(p);
        return WH_OK;
    case PHASE_PROVEN:
        return next_round(p);
    default:
        return WH_OK;
    }
}

int part_work(struct part *p) {
    p->entered = clock_nanoseconds();
    int status = work(p);
    p->worked = own_time(p);
    return status;
}

int part_open(struct part *p, const struct wh_part *what, const struct query *query, int batch) {
    const wh_index *index = what->index;
    p->entered = clock_nanoseconds();
    p->index = index;
    p->query = query;
    p->dead = what->dead_count ? what->dead : NULL;
    p->live = index->meta.n - what->dead_count;
    p->farthest = query->farthest;
    p->bound = query->bound;
    p->last = query->after;
    p->kernels = planner_kernels(what->planner);
    p->plan.planner = what->planner;
    p->plan.batch = batch;
    p->round = query->k == UINT64_MAX ? FIRST_ROUND : MAX_KEPT;
    uint64_t k = query->resumed || query->farthest.steps != NO_RADIUS ? UINT64_MAX : query->k;
    p->stats.plan = plan_starts_with_sweep(&p->plan, index, query->plan, k) ? WH_SWEEP : WH_PROBE;
    if (query->nothing || p->live == 0) {
        p->phase = PHASE_END;
        if (p->live == 0) p->bound = UINT64_MAX;
        return WH_OK;
    }
    int status = start_round(p, query->resumed);
    p->worked = own_time(p);
    return status;
}

void part_free(struct part *p) {
    wh_free(p->hits);
    probe_free(&p->probe);
    sweep_free(&p->sweep);
}

void part_lower_limit(struct part *p, uint64_t limit) {
    if (limit >= p->farthest.steps) return;
    p->farthest = p->collector.farthest = (struct hit){limit, UINT64_MAX, UINT64_MAX};
    if (limit < p->collector.limit) p->collector.limit = limit;
}

int part_guess(const struct part *p, struct hit *hits, size_t *count) {
    struct collector copy = p->collector;
    int status = WH_OK;
    copy.hits = hits;
    if (copy.proven + copy.count) memcpy(hits, p->collector.hits, sizeof *hits * (copy.proven + copy.count));
    if (p->phase == PHASE_SWEEP) status = sweep_guess(&p->sweep, &copy);
    *count = copy.proven - copy.sent + copy.count;
    memmove(hits, hits + copy.sent, sizeof *hits * *count);
    return status;
}

size_t part_memory(const struct part *p) {
    size_t queues = 0;
    for (size_t t = 0; p->probe.tables && t < p->index->meta.tables; t++)
        queues += p->probe.tables[t].room * sizeof *p->probe.tables[t].queue;
    return sizeof *p + p->room * sizeof *p->hits + sweep_list_bytes(p->sweep.room) + queues;
}

uint64_t part_compared(const struct part *p) {
    return p->stats.candidates + p->probe.counts.candidates + p->sweep.counts.candidates +
           p->sweep.counts.blocks * WH_BLOCK_CODES;
}

void part_add_stats(const struct part *p, struct wh_stats *stats) {
    stats->plan = p->phase == PHASE_SWEEP ? WH_SWEEP : p->stats.plan;
    stats->switched |= p->stats.switched;
    if (p->stats.rounds > stats->rounds) stats->rounds = p->stats.rounds;
    add_counts(stats, &p->stats);
    add_counts(stats, &p->probe.counts);
    add_counts(stats, &p->sweep.counts);
}
