/* See parallel.h. */
#include "base/parallel.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MAX_THREADS = 256 };

struct run {
    _Atomic size_t next;
    size_t count;
    void (*job)(void *, size_t, uint32_t);
    void *context;
};

struct worker {
    pthread_t thread;
    struct run *run;
    uint32_t number;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    struct run *run = worker->run;
    for (size_t i; (i = atomic_fetch_add(&run->next, 1)) < run->count;) run->job(run->context, i, worker->number);
    return NULL;
}

void parallel_run(uint32_t threads, size_t count, void (*job)(void *, size_t, uint32_t), void *context) {
    struct run run = {.count = count, .job = job, .context = context};
    struct worker workers[MAX_THREADS];
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads > count) threads = (uint32_t)count;
    uint32_t started = 1;
    for (; started < threads; started++) {
        workers[started] = (struct worker){.run = &run, .number = started};
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started]) != 0) break;
    }
    workers[0] = (struct worker){.run = &run, .number = 0};
    work(&workers[0]);
    for (uint32_t t = 1; t < started; t++) pthread_join(workers[t].thread, NULL);
}
