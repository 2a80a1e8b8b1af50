#ifndef WHAMMING_MEMORY_H
#define WHAMMING_MEMORY_H
/* All allocations of the engine go through these names, so that tests can make the n-th one fail. */
#include <stdint.h>
#include <stdlib.h>

#ifdef WHAMMING_TEST_ALLOCATOR
void *wh_test_malloc(size_t size);
void *wh_test_calloc(size_t count, size_t size);
void *wh_test_realloc(void *old, size_t size);
void *wh_test_aligned_alloc(size_t align, size_t size);
#define wh_malloc wh_test_malloc
#define wh_calloc wh_test_calloc
#define wh_realloc wh_test_realloc
#define wh_aligned_alloc wh_test_aligned_alloc
#else
#define wh_malloc malloc
#define wh_calloc calloc
#define wh_realloc realloc
#define wh_aligned_alloc aligned_alloc
#endif
#define wh_free free

/* Allocate a zeroed array. It starts on a cache line, so that each plane of a block is one cache line. A large array
 * starts on a huge page. Returns NULL if memory is short. Free it with wh_free. */
void *memory_array(uint64_t size);

#endif
