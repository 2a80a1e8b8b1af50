/* Distances by look-up tables (Sec. V.B, Linear Scan): one table of 256 sums per byte of the code.
 *
 *     distance(g) = sums[0][g byte 0] + sums[1][g byte 1] + ...
 *
 * Invariant: bits past the last bit of the code cost 0, so they are ignored.
 */
#include "weigher.h"

#include <stdlib.h>

int lab_weigher_init(struct lab_weigher *weigher, const lab_index *index) {
    weigher->code_bytes = index->code_bytes;
    weigher->sums = malloc(index->code_bytes * sizeof *weigher->sums);
    return weigher->sums ? LAB_OK : LAB_MEMORY;
}

void lab_weigher_free(struct lab_weigher *weigher) {
    free(weigher->sums);
    *weigher = (struct lab_weigher){0};
}

int lab_check_deltas(const uint64_t *deltas, uint32_t bits) {
    const uint64_t limit = UINT64_C(1) << 63;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < bits; i++) {
        if (deltas[i] >= limit - sum) return LAB_COST;
        sum += deltas[i];
    }
    return LAB_OK;
}

int lab_weigher_start(struct lab_weigher *weigher, const lab_index *index, const struct lab_costs *costs,
                      size_t query) {
    const uint64_t *deltas = costs->deltas + query * index->bits;
    const uint8_t *optimum = costs->optimum + query * index->code_bytes;
    if (lab_check_deltas(deltas, index->bits) != LAB_OK) return LAB_COST;
    for (size_t byte = 0; byte < index->code_bytes; byte++) {
        uint64_t *sums = weigher->sums[byte];
        sums[optimum[byte]] = 0;
        /* Before bit `bit` is added, the sums of all values that differ from the optimum only in lower bits are
         * known. */
        for (uint32_t bit = 0; bit < 8; bit++) {
            size_t i = 8 * byte + bit;
            uint64_t delta = i < index->bits ? deltas[i] : 0;
            for (uint32_t lower = 0; lower < 1u << bit; lower++)
                sums[optimum[byte] ^ lower ^ 1u << bit] = sums[optimum[byte] ^ lower] + delta;
        }
    }
    return LAB_OK;
}
