#ifndef WHAMMING_WIRE_H
#define WHAMMING_WIRE_H
#include <stddef.h>
#include <stdint.h>

/* Batches of queries and answers as they lie in messages.
 *
 * A message comes from the network through protobuf's own library, which decides what is valid. Going through hundreds
 * of queries number by number in Python would then take longer than some searches do, so these functions find a
 * batch's numbers in the bytes that the library writes for it, and write the answers of a batch as the library would:
 *
 *     QueryBatch  ... 12 len [08 id] [12 len code] [1a len weights] [22 len table] [3a len vector] [40 form] ...
 *                                         |              |               |               |
 *                                         +--------------+-------+-------+---------------+
 *                                                                v
 *                                               struct wire_query, one per query
 *
 * Field numbers are those of protos/whamming/v1/search.proto. No function allocates, keeps state, or reads or writes
 * outside the memory that it is given, whatever it holds. Any thread may call any of them.
 */

/* Where the parts of a query lie. Starts and sizes are in bytes from the start of the batch; a part of size 0 is not
 * there. Queries whose last six members are equal are of one shape: they can be read together. */
struct wire_query {
    uint64_t id;
    uint64_t start, size; /* of the whole query */
    uint64_t code_start, weights_start, table_start, vector_start;
    uint64_t own; /* 1: it has options or a resume token */
    uint64_t form;
    uint64_t code_size, weights_size, table_size, vector_size;
};

/* Find the queries of a QueryBatch. The bytes must be as protobuf's library writes them: every known field once, numbers
 * packed. Returns how many queries there are and sets the first `room` of them; -1 where the bytes are no such message,
 * or hold a group, which only unknown fields can be. */
int64_t wire_find_queries(const uint8_t *batch, size_t size, struct wire_query *queries, size_t room);

/* Count what protobuf's library would make of a request, before it has looked at it: the fields of number `inner`, each a
 * length and bytes, in those of number `outer`. An empty one takes two bytes of a message; in memory an empty query takes
 * a hundred, an empty payload forty. Bytes that are no message are counted up to where they break. */
uint64_t wire_count(const uint8_t *request, size_t size, uint64_t outer, uint64_t inner);

/* Copy pieces of `size` bytes from their starts to rows that lie one after the other. Returns how many were copied: all,
 * unless one is not inside the batch. */
size_t wire_gather(const uint8_t *batch, size_t batch_size, const uint64_t *starts, size_t count, size_t size,
                   uint8_t *rows);

enum wire_limits { WIRE_ANSWER_BYTES = 160 }; /* of an answer at most, and 16 more per hit */

/* Write a SearchResponse of one chunk per query that brings all its hits and ends it, exact. A query with `wanted` hits is
 * complete, and its lower bound is the last hit's distance; one with fewer is exhausted: of what is left of the `items`
 * nothing is nearer than `radius`, and where nothing is left the bound is infinity.
 *   ids, distances: q x k;  counts: hits of each row;  radius: infinity for none;
 *   stats: q structs wh_stats of the engine;  elapsed: seconds, of each of them;
 *   message: room for q x (WIRE_ANSWER_BYTES + 16 k) bytes.
 * Returns how many bytes were written, the same that protobuf's library would write. */
size_t wire_write_answers(size_t q, size_t k, const uint64_t *query_ids, uint64_t wanted, double radius, uint64_t items,
                          const uint64_t *ids, const double *distances, const uint64_t *counts, const void *stats,
                          double elapsed, uint8_t *message);

#endif
