/* Unit tests of the engine: conversion of costs, and what a planner learns. */
#include "search/planner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static size_t passed, failed;

#define CHECK(condition) check(!!(condition), #condition, __LINE__)

static void check(int holds, const char *condition, int line) {
    if (holds) passed++;
    else failed++;
    if (!holds) fprintf(stderr, "%s:%d: %s\n", __FILE__, line, condition);
}

/* Invalid costs are rejected; floats and doubles are read at any alignment. */
static void test_costs(void) {
    double table[4] = {0, 1, NAN, 0};
    uint8_t optimum[1], expected_optimum[1], code = 1, bytes[sizeof(float) * 4 + 1];
    uint64_t delta[2], expected_delta[2], rest[2];
    struct wh_scale scale, expected;
    size_t query = 9;
#define CONVERT(type, bits) wh_costs_of_tables(table, type, bits, 1, optimum, delta, rest, &scale, &query)
    CHECK(CONVERT(WH_DOUBLE, 2) == WH_NOT_FINITE && query == 0);
    table[2] = -INFINITY;
    CHECK(CONVERT(WH_DOUBLE, 2) == WH_NOT_FINITE);
    CHECK(CONVERT(WH_DOUBLE, 0) == WH_ARGUMENT);
    CHECK(CONVERT(WH_DOUBLE, WH_MAX_BITS + 1) == WH_ARGUMENT);
    CHECK(CONVERT(WH_FLOAT + 1, 2) == WH_ARGUMENT);
    table[2] = 1e-300;
    CHECK(CONVERT(WH_DOUBLE, 2) == WH_SPAN);
    table[1] = 0;
    table[2] = 1.7e308;
    table[0] = 1.7e308;
    CHECK(CONVERT(WH_DOUBLE, 2) == WH_OVERFLOW);
    /* Code 01 with weights .75 (bit 0) and -2 (bit 1): matching bit 0 and differing in bit 1 is cheapest. */
    double weights[2] = {0.75, -2}, same[4] = {0.75, 0, 0, -2};
    float narrow[4] = {0.75f, 0, 0, -2};
    memcpy(table, same, sizeof table);
    CHECK(CONVERT(WH_DOUBLE, 2) == WH_OK && optimum[0] == 3 && delta[0] == 3 && delta[1] == 8);
    CHECK(scale.floor.high == -1 && scale.floor.low == UINT64_MAX - 7 && scale.exponent == -2 && scale.shift == 0);
    memcpy(bytes + 1, narrow, sizeof narrow);
    CHECK(wh_costs_of_tables(bytes + 1, WH_FLOAT, 2, 1, expected_optimum, expected_delta, rest, &expected, &query) ==
          WH_OK);
    CHECK(optimum[0] == expected_optimum[0] && delta[0] == expected_delta[0] && delta[1] == expected_delta[1]);
    CHECK(memcmp(&scale, &expected, sizeof scale) == 0);
    CHECK(wh_costs_of_weights(&code, 1, weights, 1, WH_DOUBLE, 2, 1, expected_optimum, expected_delta, rest, &expected,
                              &query) == WH_OK);
    CHECK(optimum[0] == expected_optimum[0] && delta[0] == expected_delta[0] && delta[1] == expected_delta[1]);
    CHECK(memcmp(&scale, &expected, sizeof scale) == 0);
    weights[1] = NAN;
    CHECK(wh_costs_of_weights(&code, 1, weights, 1, WH_DOUBLE, 2, 1, optimum, delta, rest, &scale, &query) ==
          WH_NOT_FINITE);
#undef CONVERT
}

/* Sweeps slower than the estimate raise it step by step; short sweeps are ignored. */
static void test_planes(struct wh_planner *planner) {
    for (int batch = 0; batch < 2; batch++) {
        double guess = planner_planes_nanoseconds(NULL, batch, 1e6), last = guess;
        CHECK(guess > 0 && planner_planes_nanoseconds(planner, batch, 1e6) == guess);
        planner_learn_planes(planner, batch, 100, 1000000000);
        CHECK(planner_planes_nanoseconds(planner, batch, 1e6) == guess);
        for (int i = 0; i < 100; i++) {
            planner_learn_planes(planner, batch, 1000000, (uint64_t)(3 * guess));
            CHECK(planner_planes_nanoseconds(planner, batch, 1e6) >= last);
            last = planner_planes_nanoseconds(planner, batch, 1e6);
        }
        CHECK(fabs(last / guess - 3) < 0.01);
        planner_learn_planes(planner, batch, 1000000, (uint64_t)(1000 * guess)); /* the thread was preempted */
        CHECK(planner_planes_nanoseconds(planner, batch, 1e6) < 2 * last);
        planner_learn_planes(NULL, batch, 1000000, 1);
        CHECK(planner_planes_nanoseconds(NULL, batch, 1e6) == guess);
    }
}

/* Near and far buckets have separate estimates. */
static void test_buckets(struct wh_planner *planner) {
    double guess = planner_buckets_nanoseconds(NULL, 0, 1000);
    CHECK(guess > 0 && planner_buckets_nanoseconds(planner, 0, 1000) == guess);
    CHECK(planner_buckets_nanoseconds(planner, 1000, 1000) == 0);
    for (int i = 0; i < 100; i++) planner_learn_buckets(planner, 1000, 2000, 20 * 1000); /* far buckets: 20 ns each */
    double near = planner_buckets_nanoseconds(planner, 0, 10), far = planner_buckets_nanoseconds(planner, 1100, 1110);
    CHECK(near == planner_buckets_nanoseconds(NULL, 0, 10));
    CHECK(far > 150 && far < 500);
    planner_learn_buckets(planner, 1500, 1500, 1000000000);
    CHECK(planner_buckets_nanoseconds(planner, 1100, 1110) == far);
    planner_learn_buckets(NULL, 1000, 2000, 1);
    CHECK(planner_buckets_nanoseconds(NULL, 0, 1000) == guess);
}

/* How often of n searches for the k nearest start with a sweep, if a search takes this long by its start. */
static int count_sweeps(struct wh_planner *planner, uint64_t k, int n, const uint64_t nanoseconds[STARTS]) {
    int sweeps = 0;
    for (int i = 0; i < n; i++) {
        enum start start = planner_choose_start(planner, k);
        planner_learn_start(planner, k, start, nanoseconds[start]);
        sweeps += start == START_SWEEP;
    }
    return sweeps;
}

/* Searches start in the way that is faster, and rarely in the other. Each class of k has its own times. */
static void test_starts(struct wh_planner *planner) {
    const uint64_t far[STARTS] = {300000, 100000, 400000}, near[STARTS] = {10000, 100000, 11000},
                   cold[STARTS] = {50000000, 60000000, 70000000};
    CHECK(planner_choose_start(NULL, 10) == START_PROBE);
    planner_learn_start(NULL, 10, START_PROBE, 1);
    CHECK(count_sweeps(planner, 1, 1, cold) == 0); /* the first search is slow; this does not count */
    int sweeps = count_sweeps(planner, 1, 3200, near);
    CHECK(sweeps > 4 && sweeps < 20); /* a sweep takes 10 times as long */
    sweeps = count_sweeps(planner, 1000, 3200, far);
    CHECK(sweeps > 3100 && sweeps < 3190);
    CHECK(count_sweeps(planner, 900, 100, far) > 95); /* the same class */
    count_sweeps(planner, 1, 3200, far);              /* another machine: what was learned is forgotten */
    CHECK(count_sweeps(planner, 1, 320, far) > 300);
    CHECK(count_sweeps(planner, UINT64_MAX - 1, 10, near) < 10);
}

static void test_planner(void) {
    struct wh_planner *planner = NULL;
    CHECK(wh_planner_create(&planner) == WH_OK);
    if (!planner) return;
    int trials = 0;
    for (int i = 0; i < 320; i++) trials += planner_starts_trial(planner);
    CHECK(trials == 10 && !planner_starts_trial(NULL));
    CHECK(planner_kernels(planner) == kernels_for(wh_simd_level()) &&
          planner_kernels(NULL) == planner_kernels(planner));
    CHECK(wh_planner_use_simd(planner, WH_PORTABLE) == WH_OK);
    CHECK(planner_kernels(planner) == kernels_for(WH_PORTABLE));
    test_planes(planner);
    test_buckets(planner);
    test_starts(planner);
    wh_planner_free(planner);
}

int main(void) {
    test_costs();
    test_planner();
    printf("units: %zu passed, %zu failed\n", passed, failed);
    return failed != 0;
}
