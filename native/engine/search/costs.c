/* Rounding a query's costs to integers, once. See "Costs" in whamming.h. */
#include "whamming.h"

#include <math.h>
#include <string.h>

/* Number i of an array of any alignment. Floats convert to doubles exactly. */
static inline double number_at(const void *numbers, uint32_t type, size_t i) {
    const uint8_t *bytes = numbers;
    if (type == WH_FLOAT) {
        float number;
        memcpy(&number, bytes + i * sizeof number, sizeof number);
        return number;
    }
    double number;
    memcpy(&number, bytes + i * sizeof number, sizeof number);
    return number;
}

static int ceil_log2(uint32_t x) {
    int log = 0;
    while ((UINT64_C(1) << log) < x) log++;
    return log;
}

/* The scale of one query, 2^exponent. It is stored as two factors because the exponent ranges from -983 to 1126, and a
 * double cannot hold more than 2^1023. */
struct scale {
    double first, second;
    int exponent;
};

/* |cost| < 2^x becomes an integer of magnitude at most 2^(53 - ceil(log2 bits)), since rounding cannot pass a power of
 * two. The magnitude of a sum of `bits` such integers is therefore at most 2^53. */
static int choose_scale(const void *numbers, uint32_t type, size_t count, uint32_t bits, struct scale *scale) {
    double largest = 0;
    for (size_t i = 0; i < count; i++) {
        double size = fabs(number_at(numbers, type, i));
        if (!isfinite(size)) return WH_NOT_FINITE;
        if (size > largest) largest = size;
    }
    int x = 0;
    frexp(largest, &x);
    int e = largest == 0 ? 0 : 53 - x - ceil_log2(bits);
    *scale = (struct scale){ldexp(1, e / 2), ldexp(1, e - e / 2), e};
    return WH_OK;
}

/* rint(cost x 2^exponent). Products with powers of two are exact, unless the first one falls below the smallest normal
 * double. That requires a negative exponent; the result is then far below 1/2 and rounds to 0 anyway. */
static inline int64_t scaled(double cost, const struct scale *scale) {
    return (int64_t)rint(cost * scale->first * scale->second);
}

static int distances_fit(int64_t least, int64_t range, int exponent) {
    return isfinite(ldexp((double)least, -exponent)) && isfinite(ldexp((double)(least + range), -exponent));
}

static inline int round_table(const void *table, uint32_t type, uint32_t bits, uint8_t *optimum, uint64_t *delta,
                              int64_t *floor, int32_t *exponent) {
    struct scale scale;
    int status = choose_scale(table, type, 2 * (size_t)bits, bits, &scale);
    if (status != WH_OK) return status;
    int64_t least = 0, range = 0;
    memset(optimum, 0, (bits + 7u) / 8);
    for (uint32_t i = 0; i < bits; i++) {
        int64_t zero = scaled(number_at(table, type, 2 * (size_t)i), &scale);
        int64_t one = scaled(number_at(table, type, 2 * (size_t)i + 1), &scale);
        int64_t difference = one < zero ? zero - one : one - zero;
        optimum[i >> 3] |= (uint8_t)((one < zero) << (i & 7));
        least += one < zero ? one : zero;
        range += difference;
        delta[i] = (uint64_t)difference;
    }
    *floor = least;
    *exponent = scale.exponent;
    return distances_fit(least, range, scale.exponent) ? WH_OK : WH_OVERFLOW;
}

/* Weights stand for the table in which a stored bit costs 0 if it matches the code, and its weight if it differs. */
static inline int round_weights(const uint8_t *code, const void *weights, uint32_t type, uint32_t bits,
                                uint8_t *optimum, uint64_t *delta, int64_t *floor, int32_t *exponent) {
    struct scale scale;
    int status = choose_scale(weights, type, bits, bits, &scale);
    if (status != WH_OK) return status;
    int64_t least = 0, range = 0;
    memset(optimum, 0, (bits + 7u) / 8);
    for (uint32_t i = 0; i < bits; i++) {
        int64_t weight = scaled(number_at(weights, type, i), &scale);
        int64_t size = weight < 0 ? -weight : weight;
        int agrees = code[i >> 3] >> (i & 7) & 1;
        optimum[i >> 3] |= (uint8_t)((weight < 0 ? !agrees : weight > 0 && agrees) << (i & 7));
        least += weight < 0 ? weight : 0;
        range += size;
        delta[i] = (uint64_t)size;
    }
    *floor = least;
    *exponent = scale.exponent;
    return distances_fit(least, range, scale.exponent) ? WH_OK : WH_OVERFLOW;
}

static int is_valid(uint32_t type, uint32_t bits) { return type <= WH_FLOAT && bits >= 1 && bits <= WH_MAX_BITS; }

static size_t size_of(uint32_t type) { return type == WH_FLOAT ? sizeof(float) : sizeof(double); }

int wh_costs_round_tables(const void *tables, uint32_t type, uint32_t bits, size_t count, uint8_t *optima,
                          uint64_t *deltas, int64_t *floors, int32_t *exponents, size_t *failed) {
    if (!is_valid(type, bits)) return WH_ARGUMENT;
    const uint8_t *table = tables;
    for (size_t i = 0; i < count; i++, table += 2 * bits * size_of(type)) {
        int status = round_table(table, type, bits, optima + i * ((bits + 7u) / 8), deltas + i * bits, floors + i,
                                 exponents + i);
        *failed = i;
        if (status != WH_OK) return status;
    }
    return WH_OK;
}

int wh_costs_round_weights(const uint8_t *codes, int shared_code, const void *weights, int shared_weights,
                           uint32_t type, uint32_t bits, size_t count, uint8_t *optima, uint64_t *deltas,
                           int64_t *floors, int32_t *exponents, size_t *failed) {
    if (!is_valid(type, bits)) return WH_ARGUMENT;
    const uint8_t *row = weights;
    size_t bytes = (bits + 7u) / 8;
    for (size_t i = 0; i < count; i++) {
        int status =
            round_weights(codes, row, type, bits, optima + i * bytes, deltas + i * bits, floors + i, exponents + i);
        *failed = i;
        if (status != WH_OK) return status;
        if (!shared_code) codes += bytes;
        if (!shared_weights) row += bits * size_of(type);
    }
    return WH_OK;
}
