/* See cursor.h. */
#include "search/cursor.h"

#include "base/memory.h"

#include <math.h>
#include <stdatomic.h>

int cursor_open(const struct wh_part *parts, size_t count, const struct wh_search *search, int batch, wh_cursor **out) {
    if (count == 0) return WH_ARGUMENT;
    uint32_t bits = parts[0].index->meta.bits, tables = 0;
    for (size_t i = 0; i < count; i++) {
        const wh_index *index = parts[i].index;
        if (index->meta.bits != bits || parts[i].dead_count > index->meta.n || (parts[i].dead_count && !parts[i].dead))
            return WH_ARGUMENT;
        tables |= index->meta.tables;
    }
    if (search->plan == WH_PROBE && tables == 0) return WH_NO_TABLES;
    wh_cursor *c = wh_calloc(1, sizeof *c);
    if (!c) return WH_MEMORY;
    int status = query_init(&c->query, bits, search);
    if (status != WH_OK) goto fail;
    status = WH_MEMORY;
    c->parts = wh_calloc(count, sizeof *c->parts);
    if (!c->parts) goto fail;
    c->count = count;
    c->wanted = c->query.k;
    for (size_t i = 0; i < count; i++) {
        if ((status = part_open(&c->parts[i], &parts[i], &c->query, batch)) != WH_OK) goto fail;
        c->live += c->parts[i].live;
    }
    *out = c;
    return WH_OK;
fail:
    wh_cursor_close(c);
    return status;
}

int wh_cursor_open(const struct wh_part *parts, size_t count, const struct wh_search *search, wh_cursor **cursor) {
    uint64_t start = clock_nanoseconds();
    int status = cursor_open(parts, count, search, 0, cursor);
    if (status == WH_OK) (*cursor)->nanoseconds = clock_nanoseconds() - start;
    return status;
}

void wh_cursor_close(wh_cursor *c) {
    if (!c) return;
    for (size_t i = 0; i < c->count; i++) part_free(&c->parts[i]);
    wh_free(c->parts);
    query_free(&c->query);
    wh_free(c);
}

void cursor_share_limit(wh_cursor *c) {
    if (c->count == 1) return;
    uint64_t limit = UINT64_MAX;
    for (size_t i = 0; i < c->count; i++) {
        uint64_t known = part_limit(&c->parts[i]);
        if (known < limit) limit = known;
    }
    for (size_t i = 0; i < c->count; i++) part_lower_limit(&c->parts[i], limit);
}

/* Whether a hit comes before everything that part p has not proven yet. If the bound has as many steps as the hit, p
 * may still find a hit with a smaller rest or id. */
static int certainly_before(struct hit hit, const struct part *p) { return hit.steps < p->bound; }

/* The part whose head is the next hit of the cursor; NULL if that is not certain yet. */
static struct part *next_part(wh_cursor *c) {
    struct part *best = NULL;
    struct hit nearest = {0};
    for (size_t i = 0; i < c->count; i++) {
        const struct hit *head = part_head(&c->parts[i]);
        if (!head || (best && !hit_before(*head, nearest))) continue;
        best = &c->parts[i];
        nearest = *head;
    }
    for (size_t i = 0; best && i < c->count; i++)
        if (!part_head(&c->parts[i]) && c->parts[i].phase != PHASE_END && !certainly_before(nearest, &c->parts[i]))
            best = NULL;
    return best;
}

static size_t hand_out(wh_cursor *c, size_t capacity, uint64_t *ids, double *distances, struct wh_sum *sums) {
    size_t count = 0;
    for (struct part *p; count < capacity && c->wanted > 0 && (p = next_part(c)); count++) {
        c->last = part_take(p);
        ids[count] = c->last.id;
        signed_wide sum = query_sum(&c->query, c->last);
        distances[count] = query_rounded(&c->query, sum);
        if (sums) sums[count] = sum_of(sum);
        c->handed_out++;
        if (c->wanted != UINT64_MAX) c->wanted--;
    }
    return count;
}

/* Choose the part to work on. This is the first part until it has found a limit for the others. After that, it is the
 * part with the lowest bound among those without a proven hit. Returns NULL if every part has a proven hit or has
 * finished. */
static struct part *part_behind(wh_cursor *c) {
    struct part *first = &c->parts[0], *behind = NULL;
    if (c->query.k != UINT64_MAX && (first->phase == PHASE_PROBE || first->phase == PHASE_SWEEP) &&
        !collect_full(&first->collector))
        return first;
    for (size_t i = c->count; i-- > 0;) { /* prefer the last parts: they are the smallest */
        struct part *p = &c->parts[i];
        if (part_head(p) || p->phase == PHASE_END) continue;
        if (!behind || p->bound < behind->bound) behind = p;
    }
    return behind;
}

static uint64_t compared(const wh_cursor *c) {
    uint64_t sum = 0;
    for (size_t i = 0; i < c->count; i++) sum += part_compared(&c->parts[i]);
    return sum;
}

int wh_cursor_next(wh_cursor *c, size_t capacity, const struct wh_budget *budget, int eager, uint64_t *ids,
                   double *distances, struct wh_sum *sums, size_t *count, int *stop) {
    uint64_t start = clock_nanoseconds(), compared_before = compared(c);
    size_t found = 0;
    int status = c->failed, worked = 0;
    *stop = WH_MORE;
    while (status == WH_OK) {
        found += hand_out(c, capacity - found, ids + found, distances + found, sums ? sums + found : NULL);
        struct part *behind = c->wanted && c->handed_out < c->live ? part_behind(c) : NULL;
        if (!behind && (c->wanted == 0 || c->handed_out == c->live || !next_part(c))) {
            *stop = WH_EXHAUSTED;
            break;
        }
        if (found == capacity || (eager && found)) break;
        if (atomic_load_explicit(&c->cancelled, memory_order_relaxed)) {
            *stop = WH_CANCELLED;
            break;
        }
        if (budget && worked &&
            ((budget->candidates && compared(c) - compared_before >= budget->candidates) ||
             (budget->nanoseconds && clock_nanoseconds() - start >= budget->nanoseconds))) {
            *stop = WH_BUDGET;
            break;
        }
        status = part_work(behind);
        cursor_share_limit(c);
        worked = 1;
    }
    c->failed = status;
    c->nanoseconds += clock_nanoseconds() - start;
    *count = found;
    return status;
}

int wh_cursor_guess(const wh_cursor *c, size_t capacity, uint64_t *ids, double *distances, size_t *count) {
    size_t kept = 0, room = 0;
    *count = 0;
    for (size_t i = 0; i < c->count; i++) room += c->parts[i].collector.capacity;
    if (room == 0 || c->wanted == 0) return WH_OK;
    struct hit *hits = wh_malloc(sizeof *hits * room);
    if (!hits) return WH_MEMORY;
    for (size_t i = 0; i < c->count; i++) {
        size_t known;
        int status = part_guess(&c->parts[i], hits + kept, &known);
        if (status != WH_OK) {
            wh_free(hits);
            return status;
        }
        kept += known;
    }
    hits_sort(hits, kept);
    for (; *count < kept && *count < capacity && *count < c->wanted; ++*count) {
        ids[*count] = hits[*count].id;
        distances[*count] = query_rounded(&c->query, query_sum(&c->query, hits[*count]));
    }
    wh_free(hits);
    return WH_OK;
}

double wh_cursor_bound(const wh_cursor *c) {
    struct hit bound = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < c->count; i++) {
        struct hit of_part = part_bound(&c->parts[i]);
        if (hit_before(of_part, bound)) bound = of_part;
    }
    if (c->handed_out && hit_before(bound, c->last)) bound = c->last;
    if (c->handed_out >= c->live || bound.steps >= NO_RADIUS) return INFINITY;
    return query_rounded(&c->query, query_sum(&c->query, bound));
}

size_t wh_cursor_memory(const wh_cursor *c) {
    size_t bits = c->query.distance.bits, planes = c->query.distance.planes;
    size_t bytes = sizeof *c + bits * 16 + planes * 16 * 2 * 8; /* costs and look-ups; of short codes, also by byte */
    if (c->query.distance.byte) bytes += c->query.distance.code_bytes * 256 * 8;
    for (size_t i = 0; i < c->count; i++) bytes += part_memory(&c->parts[i]);
    return bytes;
}

void wh_cursor_cancel(wh_cursor *c) { atomic_store_explicit(&c->cancelled, 1, memory_order_relaxed); }

void wh_cursor_stats(const wh_cursor *c, struct wh_stats *stats) {
    *stats = (struct wh_stats){.nanoseconds = c->nanoseconds};
    for (size_t i = c->count; i-- > 0;)
        part_add_stats(&c->parts[i], stats); /* the first part comes last: its plan is reported */
}
