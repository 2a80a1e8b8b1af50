/* Allocation of arrays, and control over the C library's heap. */
#if defined(__linux__)
#define _DEFAULT_SOURCE /* madvise */
#include <sys/mman.h>
#endif
#include "base/memory.h"

#include <stdint.h>
#include <string.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "whamming.h"

enum { CACHE_LINE = 64, HUGE_PAGE = 2 * 1024 * 1024 };
enum { TRIM_THRESHOLD = 16 * 1024 * 1024, MMAP_THRESHOLD = 1024 * 1024 };

void *memory_array(uint64_t size) {
    size_t align = size >= 2 * HUGE_PAGE ? HUGE_PAGE : CACHE_LINE;
    if (size > SIZE_MAX - align) return NULL;
    size_t rounded = ((size_t)size + align - 1) / align * align;
    void *array = wh_aligned_alloc(align, rounded ? rounded : align);
    if (!array) return NULL;
#if defined(__linux__)
    /* Reads of large arrays are scattered, so huge pages save TLB misses. This is advice, so failure is ignored. */
    if (align == HUGE_PAGE) madvise(array, rounded, MADV_HUGEPAGE);
#endif
    memset(array, 0, rounded);
    return array;
}

int wh_release_memory(void) {
#if defined(__GLIBC__)
    return malloc_trim(0);
#else
    return 0;
#endif
}

int wh_keep_memory(void) {
#if defined(__GLIBC__)
    return mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD) && mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD);
#else
    return 0;
#endif
}
