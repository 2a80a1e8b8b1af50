#ifndef WHAMMING_PARALLEL_H
#define WHAMMING_PARALLEL_H
/* Run independent jobs on a few threads: the calling one and threads - 1 more that live for this call only. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Calls job(context, i, worker) once for each i < count; worker < threads is the number of the thread it runs on.
 * Jobs are taken in order as threads become free. Where threads cannot be started, fewer do the work: it cannot
 * fail. */
void parallel_run(uint32_t threads, size_t count, void (*job)(void *context, size_t i, uint32_t worker), void *context);

/* Tell another thread how far the work has come. progress may be NULL. */
static inline void progress_report(volatile uint32_t *progress, uint32_t value) {
    if (progress) atomic_store_explicit((volatile _Atomic uint32_t *)progress, value, memory_order_relaxed);
}

#endif
