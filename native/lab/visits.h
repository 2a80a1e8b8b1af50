#ifndef WHAMMING_LAB_VISITS_H
#define WHAMMING_LAB_VISITS_H
/* The codes that a query has found, and in how many tables each was found. */
#include "lab.h"

#include <stdbool.h>

struct lab_visits {
    size_t n;
    uint64_t candidates;   /* distinct rows found */
    uint64_t *met;         /* one bit per row: 1 if it was found */
    uint16_t *appearances; /* per row, in how many tables it was found; NULL if not counted */
    uint32_t *counted;     /* the rows whose appearances are not 0 */
    size_t counted_size;
};

/* Initialise an empty set. Failures: LAB_MEMORY; call lab_visits_free even after a failure. */
int lab_visits_init(struct lab_visits *visits, size_t n, bool count_appearances);
void lab_visits_free(struct lab_visits *visits);

/* Clear the set for the next query. */
void lab_visits_clear(struct lab_visits *visits);

/* Record that a row was found. Returns true the first time. */
static inline bool lab_visits_first(struct lab_visits *visits, uint32_t row) {
    uint64_t bit = UINT64_C(1) << (row & 63);
    if (visits->met[row >> 6] & bit) return false;
    visits->met[row >> 6] |= bit;
    visits->candidates++;
    return true;
}

/* Record that a row was found in one more table. Returns the number of tables so far. */
static inline uint32_t lab_visits_appear(struct lab_visits *visits, uint32_t row) {
    if (visits->appearances[row] == 0) visits->counted[visits->counted_size++] = row;
    return ++visits->appearances[row];
}

#endif
