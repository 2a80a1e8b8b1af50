/* The set of rows found, as in the paper's systems. It has one bit per row; all bits are cleared before each query.
 * (With a billion rows, clearing accounts for the constant 8 ms in the paper's Table VII.) LAB_APPEARANCES also counts
 * in how many tables each row was found. These counters take 16 bits per row; only those that the last query used are
 * reset.
 */
#include "visits.h"

#include <stdlib.h>
#include <string.h>

static size_t words(size_t n) { return (n + 63) / 64; }

int lab_visits_init(struct lab_visits *visits, size_t n, bool count_appearances) {
    *visits = (struct lab_visits){.n = n};
    visits->met = calloc(words(n) + 1, sizeof *visits->met);
    if (!visits->met) return LAB_MEMORY;
    if (!count_appearances) return LAB_OK;
    visits->appearances = calloc(n + 1, sizeof *visits->appearances);
    visits->counted = malloc((n + 1) * sizeof *visits->counted);
    return visits->appearances && visits->counted ? LAB_OK : LAB_MEMORY;
}

void lab_visits_free(struct lab_visits *visits) {
    free(visits->met);
    free(visits->appearances);
    free(visits->counted);
    *visits = (struct lab_visits){0};
}

void lab_visits_clear(struct lab_visits *visits) {
    memset(visits->met, 0, words(visits->n) * sizeof *visits->met);
    for (size_t i = 0; i < visits->counted_size; i++) visits->appearances[visits->counted[i]] = 0;
    visits->counted_size = 0;
    visits->candidates = 0;
}
