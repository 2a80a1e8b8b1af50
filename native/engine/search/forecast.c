/* See forecast.h. */
#include "search/forecast.h"

#define MAX_KEYS 0x1p32
#define GROWTH 1.2

/* Include one more bit. A sum x is reached without the bit from x, and with it from x - step. Indices below 0 fall into
 * the half of the array that stays 0. */
static void add_bit(const float *restrict now, float *restrict next, int step) {
    for (int x = 0; x < FORECAST_STEPS; x++) next[x] = now[x] + now[x - step];
}

/* Set counts[x] to the number of keys of the table that cost at most x steps. */
static void count_keys(const struct probe_table *table, double steps_per_unit, float counts[FORECAST_STEPS]) {
    float arrays[2][2 * FORECAST_STEPS] = {{0}}; /* the first half of each array stays 0 */
    float *now = arrays[0] + FORECAST_STEPS, *next = arrays[1] + FORECAST_STEPS;
    now[0] = 1;
    double owed = 0; /* rounding error so far, carried over to the next bit */
    for (uint32_t r = 0; r < table->length; r++) {
        double exact = (double)table->delta[r] * steps_per_unit;
        if (exact + owed >= FORECAST_STEPS - 1) break; /* deltas ascend, so the remaining bits cost too much as well */
        int step = (int)(exact + owed + 0.5);
        owed += exact - step;
        add_bit(now, next, step);
        float *was = now;
        now = next;
        next = was;
    }
    float sum = 0;
    for (int x = 0; x < FORECAST_STEPS; x++) counts[x] = sum += now[x];
}

double forecast_buckets(const struct probe *p, double limit) {
    uint32_t all = p->index->meta.tables, tables = all < FORECAST_TABLES ? all : FORECAST_TABLES;
    float counts[FORECAST_TABLES][FORECAST_STEPS];
    int reached[FORECAST_TABLES] = {0};
    double share = limit / all, steps_per_unit = share > 0 ? FORECAST_STEPS / 2 / share : 0;
    for (uint32_t t = 0; t < tables; t++) count_keys(&p->tables[t], steps_per_unit, counts[t]);
    /* Increase n until the n-th smallest key costs of all tables add up to more than the limit. The scale was chosen so
     * that the limit is FORECAST_STEPS / 2 steps per table. */
    double n = 1;
    for (; n < MAX_KEYS; n *= GROWTH) {
        int sum = 0;
        for (uint32_t t = 0; t < tables; t++) {
            while (reached[t] < FORECAST_STEPS - 1 && counts[t][reached[t]] < n) reached[t]++;
            sum += reached[t];
        }
        if (sum > (int)tables * (FORECAST_STEPS / 2)) break;
    }
    return n * all;
}
