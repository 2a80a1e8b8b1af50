#ifndef WHAMMING_LAB_WEIGHER_H
#define WHAMMING_LAB_WEIGHER_H
/* Computes a query's weighted Hamming distance to any code, byte by byte. See weigher.c. */
#include "hash_table.h"

struct lab_weigher {
    size_t code_bytes;
    uint64_t (*sums)[256]; /* sums[i][v]: cost of byte i of a code if its value is v */
};

/* Allocate the tables for codes of this index. Failures: LAB_MEMORY; call lab_weigher_free even after a failure. */
int lab_weigher_init(struct lab_weigher *weigher, const lab_index *index);
void lab_weigher_free(struct lab_weigher *weigher);

/* Fill the tables for query number `query`. Failures: LAB_COST. */
int lab_weigher_start(struct lab_weigher *weigher, const lab_index *index, const struct lab_costs *costs, size_t query);

/* The distance of a code. */
static inline uint64_t lab_weigh(const struct lab_weigher *weigher, const uint8_t *code) {
    uint64_t sum = 0;
    for (size_t byte = 0; byte < weigher->code_bytes; byte++) sum += weigher->sums[byte][code[byte]];
    return sum;
}

/* Return LAB_OK if the deltas add up to less than 2^63, so that no sum or bound can overflow; otherwise LAB_COST. */
int lab_check_deltas(const uint64_t *deltas, uint32_t bits);

#endif
