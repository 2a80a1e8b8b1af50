/* Converting a query's costs to integers, without rounding. See "Costs" in whamming.h. */
#include "base/wide.h"

#include <math.h>
#include <string.h>

enum {
    SUM_BITS = 126, /* every sum of costs is below 2^126 in magnitude */
    STEP_BITS = 63  /* every sum of steps is below 2^63 */
};

/* Read number i of an array, which may have any alignment. Floats convert to doubles exactly. */
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

/* Split |number| into mantissa x 2^exponent. Returns 0 if the number is NaN or infinite. */
static inline int take_apart(double number, uint64_t *mantissa, int *exponent) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    int biased = (int)(bits >> 52 & 0x7ff);
    *mantissa = (bits & ((UINT64_C(1) << 52) - 1)) | (uint64_t)(biased != 0) << 52;
    *exponent = (biased ? biased : 1) - 1075;
    return biased != 0x7ff;
}

/* The range of the binary digits of all costs: every |cost| is below 2^high and a multiple of 2^low. */
struct digits {
    int low, high;
};

static int find_digits(const void *numbers, uint32_t type, size_t count, struct digits *digits) {
    *digits = (struct digits){INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < count; i++) {
        uint64_t mantissa;
        int exponent;
        if (!take_apart(number_at(numbers, type, i), &mantissa, &exponent)) return WH_NOT_FINITE;
        if (mantissa == 0) continue;
        int low = exponent + __builtin_ctzll(mantissa), high = exponent + 64 - __builtin_clzll(mantissa);
        if (low < digits->low) digits->low = low;
        if (high > digits->high) digits->high = high;
    }
    if (digits->high < digits->low) *digits = (struct digits){0, 0}; /* all costs are 0 */
    return WH_OK;
}

/* Convert a cost to units of 2^unit. It must be a multiple of the unit. */
static inline signed_wide in_units(double cost, int unit) {
    uint64_t mantissa;
    int exponent;
    take_apart(cost, &mantissa, &exponent);
    if (mantissa == 0) return 0;
    wide size = exponent >= unit ? (wide)mantissa << (exponent - unit) : mantissa >> (unit - exponent);
    return cost < 0 ? -(signed_wide)size : (signed_wide)size;
}

/* Where to store the converted costs of one query. */
struct output {
    uint8_t *optimum;
    uint64_t *delta, *rest;
    struct wh_scale *scale;
};

static int bit_length(wide value) {
    uint64_t high = (uint64_t)(value >> 64), low = (uint64_t)value;
    return high ? 128 - __builtin_clzll(high) : low ? 64 - __builtin_clzll(low) : 0;
}

/* Find the range of the digits, and clear the optimum. Returns WH_SPAN if adding up the differences of `bits` pairs of
 * costs may take more than SUM_BITS bits. */
static int start(const void *numbers, uint32_t type, size_t count, uint32_t bits, struct output out,
                 struct digits *digits) {
    int status = find_digits(numbers, type, count, digits);
    if (status != WH_OK) return status;
    memset(out.optimum, 0, (bits + 7u) / 8);
    return digits->high - digits->low + 1 + ceil_log2(bits) <= SUM_BITS ? WH_OK : WH_SPAN;
}

/* Store the difference between the two costs of a bit as two words in delta and rest. finish() then splits it into
 * steps and the rest. */
static inline void put(struct output out, uint32_t i, wide difference, int is_one) {
    out.optimum[i >> 3] |= (uint8_t)(is_one << (i & 7));
    out.delta[i] = (uint64_t)(difference >> 64);
    out.rest[i] = (uint64_t)difference;
}

/* Split the differences into steps and rests, and describe the scale. */
static int finish(struct output out, uint32_t bits, signed_wide floor, wide range, int unit) {
    int length = bit_length(range), shift = length > STEP_BITS ? length - STEP_BITS : 0;
    uint64_t mask = (UINT64_C(1) << shift) - 1;
    for (uint32_t i = 0; i < bits; i++) {
        wide difference = (wide)out.delta[i] << 64 | out.rest[i];
        out.delta[i] = (uint64_t)(difference >> shift);
        out.rest[i] = (uint64_t)difference & mask;
    }
    signed_wide most = floor + (signed_wide)range;
    wide size = (wide)(floor < 0 ? -floor : floor), other = (wide)(most < 0 ? -most : most);
    *out.scale = (struct wh_scale){.floor = sum_of(floor),
                                   .exponent = unit,
                                   .shift = (uint32_t)shift,
                                   .rounded = bit_length(size > other ? size : other) > 53};
    return isfinite(ldexp((double)floor, unit)) && isfinite(ldexp((double)most, unit)) ? WH_OK : WH_OVERFLOW;
}

static inline int convert_table(const void *table, uint32_t type, uint32_t bits, struct output out) {
    struct digits digits;
    int status = start(table, type, 2 * (size_t)bits, bits, out, &digits);
    if (status != WH_OK) return status;
    signed_wide floor = 0;
    wide range = 0;
    for (uint32_t i = 0; i < bits; i++) {
        signed_wide zero = in_units(number_at(table, type, 2 * (size_t)i), digits.low);
        signed_wide one = in_units(number_at(table, type, 2 * (size_t)i + 1), digits.low);
        wide difference = (wide)(one < zero ? zero - one : one - zero);
        floor += one < zero ? one : zero;
        range += difference;
        put(out, i, difference, one < zero);
    }
    return finish(out, bits, floor, range, digits.low);
}

/* Weights stand for the table in which a stored bit costs 0 if it matches the code, and its weight if it differs. */
static inline int convert_weights(const uint8_t *code, const void *weights, uint32_t type, uint32_t bits,
                                  struct output out) {
    struct digits digits;
    int status = start(weights, type, bits, bits, out, &digits);
    if (status != WH_OK) return status;
    signed_wide floor = 0;
    wide range = 0;
    for (uint32_t i = 0; i < bits; i++) {
        signed_wide weight = in_units(number_at(weights, type, i), digits.low);
        wide size = (wide)(weight < 0 ? -weight : weight);
        int agrees = code[i >> 3] >> (i & 7) & 1;
        floor += weight < 0 ? weight : 0;
        range += size;
        put(out, i, size, weight < 0 ? !agrees : weight > 0 && agrees);
    }
    return finish(out, bits, floor, range, digits.low);
}

static int is_valid(uint32_t type, uint32_t bits) { return type <= WH_FLOAT && bits >= 1 && bits <= WH_MAX_BITS; }

static size_t size_of(uint32_t type) { return type == WH_FLOAT ? sizeof(float) : sizeof(double); }

int wh_costs_of_tables(const void *tables, uint32_t type, uint32_t bits, size_t count, uint8_t *optima,
                       uint64_t *deltas, uint64_t *rests, struct wh_scale *scales, size_t *failed) {
    if (!is_valid(type, bits)) return WH_ARGUMENT;
    const uint8_t *table = tables;
    for (size_t i = 0; i < count; i++, table += 2 * bits * size_of(type)) {
        struct output out = {optima + i * ((bits + 7u) / 8), deltas + i * bits, rests + i * bits, scales + i};
        *failed = i;
        int status = convert_table(table, type, bits, out);
        if (status != WH_OK) return status;
    }
    return WH_OK;
}

int wh_costs_of_weights(const uint8_t *codes, int shared_code, const void *weights, int shared_weights, uint32_t type,
                        uint32_t bits, size_t count, uint8_t *optima, uint64_t *deltas, uint64_t *rests,
                        struct wh_scale *scales, size_t *failed) {
    if (!is_valid(type, bits)) return WH_ARGUMENT;
    const uint8_t *row = weights;
    size_t bytes = (bits + 7u) / 8;
    for (size_t i = 0; i < count; i++) {
        struct output out = {optima + i * bytes, deltas + i * bits, rests + i * bits, scales + i};
        *failed = i;
        int status = convert_weights(codes, row, type, bits, out);
        if (status != WH_OK) return status;
        if (!shared_code) codes += bytes;
        if (!shared_weights) row += bits * size_of(type);
    }
    return WH_OK;
}
