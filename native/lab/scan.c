/* Linear Scan (Sec. V.B): computes the distance of every code with byte tables, and keeps the k best in a heap.
 * All n codes are candidates; no bucket is probed.
 */
#include "nearest.h"
#include "weigher.h"

/* Inlined below with a constant code_bytes, so that the loop is unrolled for common lengths. */
static inline void scan_rows(const lab_index *index, const struct lab_weigher *weigher, size_t code_bytes,
                             struct lab_nearest *nearest) {
    for (size_t row = 0; row < index->n; row++) {
        const uint8_t *code = index->codes + row * code_bytes;
        uint64_t sum = 0;
        for (size_t byte = 0; byte < code_bytes; byte++) sum += weigher->sums[byte][code[byte]];
        lab_nearest_offer(nearest, sum, (uint32_t)row);
    }
}

int lab_scan(const lab_index *index, const struct lab_costs *costs, size_t k, struct lab_answers *answers) {
    struct lab_weigher weigher = {0};
    struct lab_nearest nearest = {0};
    int status = lab_weigher_init(&weigher, index);
    if (status == LAB_OK) status = lab_nearest_init(&nearest, k, index->n);
    for (size_t query = 0; status == LAB_OK && query < costs->count; query++) {
        status = lab_weigher_start(&weigher, index, costs, query);
        if (status != LAB_OK) break;
        switch (index->code_bytes) {
        case 4:
            scan_rows(index, &weigher, 4, &nearest);
            break;
        case 8:
            scan_rows(index, &weigher, 8, &nearest);
            break;
        case 16:
            scan_rows(index, &weigher, 16, &nearest);
            break;
        default:
            scan_rows(index, &weigher, index->code_bytes, &nearest);
        }
        lab_nearest_emit(&nearest, answers, query, k);
        answers->buckets[query] = 0;
        answers->candidates[query] = index->n;
    }
    lab_nearest_free(&nearest);
    lab_weigher_free(&weigher);
    return status;
}
