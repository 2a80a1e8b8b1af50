/* The sweep kernel in plain C, for machines without a supported instruction set. There is no sieve kernel: without
 * SIMD, exact comparison is as fast. */
#include <stdint.h>
#include <string.h>

typedef struct {
    uint8_t byte[64];
} bytes64;

static inline bytes64 portable_load(const uint8_t *p) {
    bytes64 x;
    memcpy(x.byte, p, 64);
    return x;
}
static inline bytes64 portable_table(const uint8_t *p) {
    bytes64 x = {{0}};
    memcpy(x.byte, p, 16);
    return x;
}
static inline bytes64 portable_look(bytes64 t, bytes64 x, int shift) {
    for (int j = 0; j < 64; j++) x.byte[j] = t.byte[x.byte[j] >> shift & 15];
    return x;
}
static inline bytes64 portable_add8(bytes64 a, bytes64 b) {
    for (int j = 0; j < 64; j++) {
        unsigned sum = (unsigned)a.byte[j] + b.byte[j];
        a.byte[j] = (uint8_t)(sum > 255 ? 255 : sum);
    }
    return a;
}
static inline uint16_t portable_lane(bytes64 x, int j) { return (uint16_t)(x.byte[2 * j] | x.byte[2 * j + 1] << 8); }
static inline bytes64 portable_sum16(bytes64 a, bytes64 b, unsigned sign) {
    for (int j = 0; j < 32; j++) {
        unsigned sum = (unsigned)portable_lane(a, j) + portable_lane(b, j) * sign;
        a.byte[2 * j] = (uint8_t)sum;
        a.byte[2 * j + 1] = (uint8_t)(sum >> 8);
    }
    return a;
}
static inline bytes64 portable_min16(bytes64 a, bytes64 b) {
    for (int j = 0; j < 32; j++)
        if (portable_lane(b, j) < portable_lane(a, j)) memcpy(a.byte + 2 * j, b.byte + 2 * j, 2);
    return a;
}
static inline bytes64 portable_odd(bytes64 x) {
    for (int j = 0; j < 32; j++) {
        x.byte[2 * j] = x.byte[2 * j + 1];
        x.byte[2 * j + 1] = 0;
    }
    return x;
}
static inline bytes64 portable_shift8(bytes64 x) {
    for (int j = 0; j < 32; j++) {
        x.byte[2 * j + 1] = x.byte[2 * j];
        x.byte[2 * j] = 0;
    }
    return x;
}
static inline void portable_store(uint16_t *p, bytes64 x) {
    for (int j = 0; j < 32; j++) p[j] = portable_lane(x, j);
}
static inline uint64_t portable_in16(bytes64 x, uint16_t limit) {
    uint64_t in = 0;
    for (int j = 0; j < 32; j++) in |= (uint64_t)(portable_lane(x, j) <= limit) << j;
    return in;
}

#define KERNEL(name) portable_##name
#define TARGET
#define V bytes64
#define V_BYTES 64
#define VECTORS 1
#define v_zero() ((bytes64){{0}})
#define v_load(p) portable_load(p)
#define v_table(p) portable_table(p)
#define v_look_low(t, x) portable_look(t, x, 0)
#define v_look_high(t, x) portable_look(t, x, 4)
#define v_add8(a, b) portable_add8(a, b)
#define v_add16(a, b) portable_sum16(a, b, 1u)
#define v_sub16(a, b) portable_sum16(a, b, -1u)
#define v_odd(x) portable_odd(x)
#define v_min16(a, b) portable_min16(a, b)
#define v_shift8(x) portable_shift8(x)
#define v_store(p, x) portable_store(p, x)
#define v_in16(x, limit) portable_in16(x, limit)
#include "simd/sweep_kernel.h"

const struct kernels kernels_portable = {portable_sweep, NULL};
