#ifndef WHAMMING_MEMORY_H
#define WHAMMING_MEMORY_H
/* Every allocation of the engine goes through these names, so that the test build can make the n-th one fail. */
#include <stdlib.h>

#ifdef WHAMMING_TEST_ALLOCATOR
void *wh_test_malloc(size_t size);
void *wh_test_calloc(size_t count, size_t size);
void *wh_test_realloc(void *old, size_t size);
#define wh_malloc wh_test_malloc
#define wh_calloc wh_test_calloc
#define wh_realloc wh_test_realloc
#else
#define wh_malloc malloc
#define wh_calloc calloc
#define wh_realloc realloc
#endif
#define wh_free free

#endif
