/* See wire.h. A field is its tag (number << 3 | type), then by type a varint, 8 bytes, a length and that many bytes, or
 * 4 bytes. A varint is 7 bits a byte, the lowest first, all but the last byte with the highest bit set. Between the start
 * and the end of a group, which are tags alone, lie fields. */
#include "wire.h"

#include <math.h>
#include <string.h>

#include "whamming.h"

enum { VARINT = 0, EIGHT_BYTES = 1, BYTES = 2, GROUP = 3, GROUP_END = 4, FOUR_BYTES = 5 };

#define TAG(number, type) ((number) << 3 | (type))

/* -- Reading ------------------------------------------------------------------------------------------------------ */

struct reader {
    const uint8_t *data;
    size_t at, end;
};

static int read_varint(struct reader *r, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 64 && r->at < r->end; shift += 7) {
        uint8_t byte = r->data[r->at++];
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return 1;
    }
    return 0;
}

/* Read one field. Of a varint *value is the number; else the field's contents are *value bytes from *start on. */
static int read_field(struct reader *r, uint64_t *tag, size_t *start, uint64_t *value) {
    if (!read_varint(r, tag)) return 0;
    switch (*tag & 7) {
    case VARINT:
        return read_varint(r, value);
    case EIGHT_BYTES:
        *value = 8;
        break;
    case FOUR_BYTES:
        *value = 4;
        break;
    case BYTES:
        if (!read_varint(r, value)) return 0;
        break;
    default:
        return 0;
    }
    if (*value > r->end - r->at) return 0;
    *start = r->at;
    r->at += *value;
    return 1;
}

static int find_parts(struct reader r, struct wire_query *query) {
    *query = (struct wire_query){.start = r.at, .size = r.end - r.at};
    while (r.at < r.end) {
        uint64_t tag, value;
        size_t start = 0;
        if (!read_field(&r, &tag, &start, &value)) return 0;
        switch (tag) {
        case TAG(1, VARINT):
            query->id = value;
            break;
        case TAG(2, BYTES):
            query->code_start = start, query->code_size = value;
            break;
        case TAG(3, BYTES):
            query->weights_start = start, query->weights_size = value;
            break;
        case TAG(4, BYTES):
            query->table_start = start, query->table_size = value;
            break;
        case TAG(5, BYTES):
        case TAG(6, BYTES):
            query->own = 1;
            break;
        case TAG(7, BYTES):
            query->vector_start = start, query->vector_size = value;
            break;
        case TAG(8, VARINT):
            query->form = value;
            break;
        default:
            break;
        }
    }
    return 1;
}

int64_t wire_find_queries(const uint8_t *batch, size_t size, struct wire_query *queries, size_t room) {
    struct reader r = {batch, 0, size};
    int64_t count = 0;
    while (r.at < r.end) {
        uint64_t tag, value;
        size_t start = 0;
        if (!read_field(&r, &tag, &start, &value)) return -1;
        if (tag != TAG(2, BYTES)) continue;
        if ((size_t)count < room && !find_parts((struct reader){batch, start, start + value}, &queries[count]))
            return -1;
        count++;
    }
    return count;
}

/* Read one field, or a group with all that is in it, which *tag then is the end of. */
static int read_whole(struct reader *r, uint64_t *tag, size_t *start, uint64_t *value) {
    uint64_t depth = 0;
    do {
        struct reader ahead = *r;
        if (!read_varint(&ahead, tag)) return 0;
        int is_start = (*tag & 7) == GROUP, is_end = (*tag & 7) == GROUP_END;
        if (is_start) depth++;
        if (is_end && depth-- == 0) return 0;
        if (is_start || is_end) *r = ahead;
        else if (!read_field(r, tag, start, value)) return 0;
    } while (depth > 0);
    return 1;
}

uint64_t wire_count(const uint8_t *request, size_t size, uint64_t outer, uint64_t inner) {
    struct reader r = {request, 0, size};
    uint64_t count = 0, tag, value;
    size_t start = 0;
    while (r.at < r.end && read_whole(&r, &tag, &start, &value)) {
        if (tag != TAG(outer, BYTES)) continue;
        struct reader part = {request, start, start + value};
        while (part.at < part.end && read_whole(&part, &tag, &start, &value)) count += tag == TAG(inner, BYTES);
    }
    return count;
}

size_t wire_gather(const uint8_t *batch, size_t batch_size, const uint64_t *starts, size_t count, size_t size,
                   uint8_t *rows) {
    for (size_t i = 0; i < count; i++) {
        if (starts[i] > batch_size || size > batch_size - starts[i]) return i;
        memcpy(rows + i * size, batch + starts[i], size);
    }
    return count;
}

/* -- Writing ------------------------------------------------------------------------------------------------------
 * Each function returns where its field ends. A number that is zero is not written: that is what its absence means. */

static uint8_t *write_varint(uint8_t *to, uint64_t value) {
    for (; value > 127; value >>= 7) *to++ = (uint8_t)(value | 128);
    *to++ = (uint8_t)value;
    return to;
}

static uint8_t *write_eight(uint8_t *to, uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) *to++ = (uint8_t)(value >> shift);
    return to;
}

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint8_t *write_number(uint8_t *to, unsigned field, uint64_t value) {
    if (value == 0) return to;
    return write_varint(write_varint(to, TAG(field, VARINT)), value);
}

static uint8_t *write_double(uint8_t *to, unsigned field, double value) {
    if (bits_of(value) == 0) return to;
    return write_eight(write_varint(to, TAG(field, EIGHT_BYTES)), bits_of(value));
}

static uint8_t *write_length(uint8_t *to, unsigned field, size_t size) {
    return write_varint(write_varint(to, TAG(field, BYTES)), size);
}

static uint8_t *write_bytes(uint8_t *to, unsigned field, const uint8_t *data, size_t size) {
    to = write_length(to, field, size);
    memcpy(to, data, size);
    return to + size;
}

static uint8_t *write_ids(uint8_t *to, unsigned field, const uint64_t *ids, size_t count) {
    if (count == 0) return to;
    to = write_length(to, field, 8 * count);
    for (size_t i = 0; i < count; i++) to = write_eight(to, ids[i]);
    return to;
}

static uint8_t *write_distances(uint8_t *to, unsigned field, const double *distances, size_t count) {
    if (count == 0) return to;
    to = write_length(to, field, 8 * count);
    for (size_t i = 0; i < count; i++) to = write_eight(to, bits_of(distances[i]));
    return to;
}

/* A QueryStatistics. */
static size_t write_statistics(uint8_t *to, const struct wh_stats *stats, double elapsed) {
    uint8_t *start = to;
    to = write_number(to, 1, (uint64_t)stats->plan + 1);
    to = write_number(to, 2, stats->switched != 0);
    to = write_number(to, 3, stats->rounds);
    to = write_number(to, 4, stats->buckets);
    to = write_number(to, 5, stats->buckets_nonempty);
    to = write_number(to, 6, stats->candidates);
    to = write_number(to, 7, stats->verified);
    to = write_number(to, 8, stats->blocks);
    to = write_number(to, 9, stats->planes);
    to = write_double(to, 10, (double)stats->nanoseconds / 1e9);
    to = write_double(to, 11, elapsed);
    return (size_t)(to - start);
}

/* A QueryEnd. */
static size_t write_end(uint8_t *to, int complete, const struct wh_stats *stats, double elapsed) {
    uint8_t statistics[WIRE_ANSWER_BYTES], *start = to;
    size_t size = write_statistics(statistics, stats, elapsed);
    to = write_number(to, 1, complete ? 1 : 2);
    to = write_number(to, 2, 1);
    to = write_bytes(to, 3, statistics, size);
    return (size_t)(to - start);
}

static size_t varint_size(uint64_t value) {
    size_t size = 1;
    for (; value > 127; value >>= 7) size++;
    return size;
}

static size_t packed_size(uint64_t count) { return count ? 1 + varint_size(8 * count) + 8 * count : 0; }

size_t wire_write_answers(size_t q, size_t k, const uint64_t *query_ids, uint64_t wanted, double radius, uint64_t items,
                          const uint64_t *ids, const double *distances, const uint64_t *counts, const void *stats,
                          double elapsed, uint8_t *message) {
    uint8_t *to = message;
    for (size_t i = 0; i < q; i++) {
        uint8_t end[WIRE_ANSWER_BYTES];
        size_t count = counts[i] < k ? counts[i] : k;
        double bound = count < items ? radius : INFINITY;
        if (count > 0 && count == wanted) bound = distances[i * k + count - 1];
        size_t end_size = write_end(end, count == wanted, (const struct wh_stats *)stats + i, elapsed);
        size_t size = (query_ids[i] ? 1 + varint_size(query_ids[i]) : 0) + 2 * packed_size(count) +
                      (bits_of(bound) ? 9 : 0) + 1 + varint_size(end_size) + end_size;
        to = write_length(to, 1, size);
        to = write_number(to, 1, query_ids[i]);
        to = write_ids(to, 2, ids + i * k, count);
        to = write_distances(to, 3, distances + i * k, count);
        to = write_double(to, 5, bound);
        to = write_bytes(to, 6, end, end_size);
    }
    return (size_t)(to - message);
}
