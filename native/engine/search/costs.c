/* Rounding a query's costs to integers, once. See "Costs" in whamming.h. */
#include "whamming.h"

#include <math.h>
#include <string.h>

static int ceil_log2(uint32_t x) {
    int log = 0;
    while ((UINT64_C(1) << log) < x) log++;
    return log;
}

int wh_costs_round(const double *table, uint32_t bits, uint8_t *optimum, uint64_t *delta, int64_t *floor,
                   int32_t *exponent) {
    if (bits < 1 || bits > WH_MAX_BITS) return WH_ARGUMENT;
    double largest = 0;
    for (size_t i = 0; i < 2 * (size_t)bits; i++) {
        if (!isfinite(table[i])) return WH_NOT_FINITE;
        if (fabs(table[i]) > largest) largest = fabs(table[i]);
    }
    /* |cost| < 2^x becomes an integer of at most 2^(53 - ceil(log2 bits)); rounding cannot pass a power of two, so
     * the sum of `bits` of them is at most 2^53 in size. */
    int x = 0;
    frexp(largest, &x);
    int e = largest == 0 ? 0 : 53 - x - ceil_log2(bits);
    int64_t least = 0, range = 0;
    memset(optimum, 0, (bits + 7u) / 8);
    for (uint32_t i = 0; i < bits; i++) {
        int64_t zero = (int64_t)rint(ldexp(table[2 * (size_t)i], e));
        int64_t one = (int64_t)rint(ldexp(table[2 * (size_t)i + 1], e));
        if (one < zero) optimum[i >> 3] |= (uint8_t)(1u << (i & 7));
        least += one < zero ? one : zero;
        delta[i] = (uint64_t)(one < zero ? zero - one : one - zero);
        range += (int64_t)delta[i];
    }
    if (isinf(ldexp((double)least, -e)) || isinf(ldexp((double)(least + range), -e))) return WH_OVERFLOW;
    *floor = least;
    *exponent = e;
    return WH_OK;
}

int wh_costs_round_all(const double *tables, uint32_t bits, size_t count, uint8_t *optima, uint64_t *deltas,
                       int64_t *floors, int32_t *exponents, size_t *failed) {
    for (size_t i = 0; i < count; i++) {
        *failed = i;
        int status = wh_costs_round(tables + i * 2 * bits, bits, optima + i * ((bits + 7u) / 8), deltas + i * bits,
                                    floors + i, exponents + i);
        if (status != WH_OK) return status;
    }
    return WH_OK;
}
