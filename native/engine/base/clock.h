#ifndef WHAMMING_CLOCK_H
#define WHAMMING_CLOCK_H
/* The clock that searches measure their time by. */
#include <stdint.h>
#include <time.h>

static inline uint64_t clock_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
