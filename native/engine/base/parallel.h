#ifndef WHAMMING_PARALLEL_H
#define WHAMMING_PARALLEL_H
/* Run independent jobs on the calling thread and threads - 1 others, which are started for this call. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Call job(context, i, worker) once for each i < count, where worker < threads is the number of the thread. Threads
 * take the jobs in order. If a thread cannot be started, fewer threads do the work, so this cannot fail. */
void parallel_run(uint32_t threads, size_t count, void (*job)(void *context, size_t i, uint32_t worker), void *context);

/* Publish the progress for another thread to read. progress may be NULL. */
static inline void progress_report(volatile uint32_t *progress, uint32_t value) {
    if (progress) atomic_store_explicit((volatile _Atomic uint32_t *)progress, value, memory_order_relaxed);
}

/* Whether another thread has cancelled the work. cancel may be NULL. */
static inline int is_cancelled(volatile uint32_t *cancel) {
    return cancel && atomic_load_explicit((volatile _Atomic uint32_t *)cancel, memory_order_relaxed);
}

#endif
