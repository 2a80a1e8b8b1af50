/* The laboratory under ASan and UBSan, with every allocation failing once.
 *
 * Each system runs repeatedly while the n-th allocation fails, n = 0, 1, 2, ..., until a run needs fewer allocations. A
 * run with a failed allocation must return LAB_MEMORY and leak nothing; the last run must equal the linear scan. The
 * linker's --wrap redirects the laboratory's allocations to this file, so its sources need no hooks.
 */
#include "lab.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 500, BITS = 37, BYTES = 5, TABLES = 3, QUERIES = 3, K = 20, ORDER = 4000 };

static long allocations_left = -1; /* allocations until one fails; negative: none does */

static bool fails(void) { return allocations_left >= 0 && allocations_left-- == 0; }

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return fails() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *old, size_t size) { return fails() ? NULL : __real_realloc(old, size); }

struct output {
    uint32_t ids[QUERIES * K];
    uint64_t distances[QUERIES * K];
    uint64_t found[QUERIES], buckets[QUERIES], candidates[QUERIES];
};

static uint8_t codes[ROWS * BYTES], optimum[QUERIES * BYTES];
static uint64_t deltas[QUERIES * BITS];

enum system { SCAN, FSWBC, PQTABLE = FSWBC + 5, BINARY, KEPT, MET, USAGE, PROBING, SYSTEMS };

static int run(const lab_index *index, int system, enum lab_layout layout, struct output *output) {
    struct lab_costs costs = {QUERIES, optimum, deltas};
    struct lab_answers answers = {output->ids, output->distances, output->found, output->buckets, output->candidates};
    static uint32_t keys[ORDER];
    static uint64_t key_costs[ORDER];
    struct lab_usage usage;
    switch (system) {
    case SCAN:
        return lab_scan(index, &costs, K, &answers);
    case PQTABLE:
        return lab_pqtable(index, &costs, K, &answers);
    case BINARY:
        return lab_mih_binary(index, optimum, QUERIES, K, &answers);
    case KEPT:
        return lab_mih_weight(index, optimum, &costs, K, LAB_KEPT, &answers);
    case MET:
        return lab_mih_weight(index, optimum, &costs, K, LAB_MET, &answers);
    case USAGE:
        return lab_index_usage(index, &usage);
    case PROBING: /* each layout tests another generator */
        return lab_probing_order(3, deltas, 12, layout == LAB_MULTI ? LAB_FLIPS : LAB_MULTI_SEQUENCE, ORDER, keys,
                                 key_costs);
    default:
        return lab_fswbc(index, &costs, K, (enum lab_criterion)(system - FSWBC), &answers);
    }
}

static int build_and_run(int system, enum lab_layout layout, struct output *output) {
    lab_index *index = NULL;
    int status = lab_index_new(codes, ROWS, BITS, TABLES, layout, &index);
    if (status == LAB_OK) status = run(index, system, layout, output);
    lab_index_free(index);
    return status;
}

int main(void) {
    srand(1);
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)rand();
    for (size_t i = 0; i < sizeof optimum; i++) optimum[i] = (uint8_t)rand();
    for (size_t i = 0; i < QUERIES * BITS; i++) deltas[i] = (uint64_t)(rand() % 1000);
    static struct output expected, output;
    if (build_and_run(SCAN, LAB_MULTI, &expected) != LAB_OK) return 1;

    int injected = 0;
    for (int layout = LAB_MULTI; layout <= LAB_SINGLE; layout++)
        for (int system = 0; system < SYSTEMS; system++)
            for (long at = 0;; at++, injected++) {
                allocations_left = at;
                int status = build_and_run(system, (enum lab_layout)layout, &output);
                bool complete = allocations_left >= 0;
                allocations_left = -1;
                if (status != (complete ? LAB_OK : LAB_MEMORY)) {
                    printf("layout %d, system %d, failing allocation %ld: %s\n", layout, system, at,
                           lab_status_text(status));
                    return 1;
                }
                if (!complete) continue;
                if (system <= PQTABLE && memcmp(output.distances, expected.distances, sizeof output.distances) != 0) {
                    printf("layout %d, system %d: distances differ from the linear scan\n", layout, system);
                    return 1;
                }
                break;
            }
    printf("laboratory: %d failing allocations handled, %d systems x 2 layouts passed\n", injected, SYSTEMS);
    return 0;
}
