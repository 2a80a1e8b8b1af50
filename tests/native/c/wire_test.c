/* Queries and answers in messages, under ASan and UBSan: whatever the bytes are, nothing outside of them is touched.
 *
 * Buffers are exactly as large as they are said to be. Batches are made up, broken at random, cut at every byte; answers
 * have the largest numbers there are. That what is found and written is right is for the Python tests, which have
 * protobuf's library to compare with.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "whamming.h"
#include "wire.h"

enum { RUNS = 200000, ROOM = 8, K = 3 };

static unsigned long checks, failures;

static void expect(int holds, const char *what) {
    checks++;
    if (holds) return;
    failures++;
    fprintf(stderr, "failed: %s\n", what);
}

static uint64_t random_state = 1;

static uint64_t draw(uint64_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % below;
}

/* A batch of two queries: id, code, table, form. */
static const uint8_t EXAMPLE[] = {0x0a, 1, 'd', 0x12, 17, 0x08, 0x96, 0x01, 0x12, 2, 0xab, 0xcd, 0x22, 8,    0, 0,
                                  0,    0, 0,   0,    0,  0,    0x12, 7,    0x08, 5, 0x12, 1,    0xef, 0x40, 2};

static void look(const uint8_t *bytes, size_t size) {
    uint8_t *batch = malloc(size ? size : 1);
    struct wire_query queries[ROOM];
    memcpy(batch, bytes, size);
    batch = realloc(batch, size ? size : 1);
    int64_t count = wire_find_queries(batch, size, queries, ROOM);
    expect(count >= -1 && count <= (int64_t)size, "as many queries as there is room for");
    expect(wire_count(batch, size, 1, 2) <= size / 2, "a query has two bytes at least");
    for (int64_t i = 0; i < count && i < ROOM; i++) {
        const struct wire_query *q = &queries[i];
        uint64_t parts[][2] = {{q->code_start, q->code_size},
                               {q->weights_start, q->weights_size},
                               {q->table_start, q->table_size},
                               {q->vector_start, q->vector_size}};
        expect(q->start <= size && q->size <= size - q->start, "a query is inside the batch");
        for (int part = 0; part < 4; part++) {
            uint64_t start = parts[part][0], length = parts[part][1];
            if (length == 0) continue;
            expect(start >= q->start && start + length <= q->start + q->size, "a part is inside its query");
            uint8_t *row = malloc(length);
            expect(wire_gather(batch, size, &start, 1, length, row) == 1, "a part can be copied");
            expect(memcmp(row, batch + start, length) == 0, "a part is copied as it is");
            free(row);
        }
    }
    free(batch);
}

static void test_reading(void) {
    struct wire_query queries[2];
    expect(wire_find_queries(EXAMPLE, sizeof EXAMPLE, queries, 2) == 2, "two queries");
    expect(queries[0].id == 150 && queries[0].code_size == 2 && queries[0].table_size == 8, "the first");
    expect(EXAMPLE[queries[0].code_start] == 0xab && queries[0].own == 0, "its code");
    expect(queries[1].id == 5 && queries[1].code_size == 1 && queries[1].form == 2, "the second");
    for (size_t size = 0; size <= sizeof EXAMPLE; size++) look(EXAMPLE, size);
    uint8_t request[sizeof EXAMPLE + 2] = {0x0a, sizeof EXAMPLE};
    memcpy(request + 2, EXAMPLE, sizeof EXAMPLE);
    expect(wire_count(request, sizeof request, 1, 2) == 2, "two queries are counted");
    for (int run = 0; run < RUNS; run++) {
        uint8_t bytes[sizeof request];
        size_t size = run % 2 ? sizeof EXAMPLE : sizeof request;
        memcpy(bytes, run % 2 ? EXAMPLE : request, size);
        if (run % 4 == 0)
            for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)draw(256);
        else
            for (uint64_t change = draw(5); change > 0; change--) bytes[draw(size)] = (uint8_t)draw(256);
        look(bytes, draw(4) ? size : draw(size + 1));
    }
    uint64_t starts[] = {0, 8, UINT64_MAX, UINT64_MAX - 3};
    uint8_t rows[8];
    for (int i = 1; i < 4; i++) expect(wire_gather(EXAMPLE, 8, starts + i, 1, 4, rows) == 0, "not inside");
    expect(wire_gather(EXAMPLE, 8, starts, 2, 4, rows) == 1, "the second is not inside");
}

static void test_writing(void) {
    struct wh_stats stats[2];
    memset(stats, 0xff, sizeof stats);
    stats[0].plan = 2;
    uint64_t query_ids[] = {UINT64_MAX, 0}, ids[2 * K], counts[] = {UINT64_MAX, 0};
    double distances[2 * K] = {-0.0, -0.0, -0.0};
    memset(ids, 0xff, sizeof ids);
    size_t most = 2 * (WIRE_ANSWER_BYTES + 16 * K);
    uint8_t *message = malloc(most);
    size_t size = wire_write_answers(2, K, query_ids, K, -1.0, UINT64_MAX, ids, distances, counts, stats, 1.5, message);
    expect(size <= most, "answers fit");
    expect(message[0] == 0x0a, "a chunk comes first");
    expect(wire_write_answers(0, K, query_ids, K, -1.0, UINT64_MAX, ids, distances, counts, stats, 1.5, message) == 0,
           "no answers");
    free(message);
}

int main(void) {
    test_reading();
    test_writing();
    printf("wire: %lu passed, %lu failed\n", checks - failures, failures);
    return failures != 0;
}
