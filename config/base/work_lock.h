/* Mutexes that are held for milliseconds of work. A thread that must never block, such as the event loop,
 * calls work_lock_never() once; with ASSERT_SLOW, taking such a mutex on that thread aborts. */
#ifndef KVASIR_WORK_LOCK_H
#define KVASIR_WORK_LOCK_H

#include "config/base/assert.h"

#include <pthread.h>
#include <stdbool.h>

extern _Thread_local bool work_lock_forbidden; /* work_lock.c */

static inline void work_lock_never(void)
{
    work_lock_forbidden = true;
}

static inline void work_lock(pthread_mutex_t *m)
{
    ASSERT_SLOW(!work_lock_forbidden);
    pthread_mutex_lock(m);
}

static inline bool work_lock_try(pthread_mutex_t *m)
{
    return pthread_mutex_trylock(m) == 0;
}

static inline void work_unlock(pthread_mutex_t *m)
{
    pthread_mutex_unlock(m);
}

#endif
