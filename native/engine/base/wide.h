#ifndef WHAMMING_WIDE_H
#define WHAMMING_WIDE_H
/* 128-bit integers, which hold the exact sums of a query's costs. */
#include "whamming.h"

__extension__ typedef unsigned __int128 wide;
__extension__ typedef __int128 signed_wide;

static inline signed_wide wide_of(struct wh_sum sum) { return (signed_wide)((wide)(uint64_t)sum.high << 64 | sum.low); }

static inline struct wh_sum sum_of(signed_wide value) {
    return (struct wh_sum){(uint64_t)value, (int64_t)(uint64_t)((wide)value >> 64)};
}

#endif
