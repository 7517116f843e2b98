/* See threads.h. */
#include "config/base/threads.h"

#include <pthread.h>
#include <stddef.h>

#define STACK_BYTES ((size_t)8 << 20) /* the stack size that they use */

static void *wait_at(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

bool threads_fit(unsigned count)
{
    static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    static pthread_t ids[THREADS_MAX];
    pthread_attr_t attr;
    unsigned started = 0;
    if (count > THREADS_MAX || pthread_attr_init(&attr)) return false;
    bool sized = !pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_mutex_lock(&gate);
    while (sized && started < count && !pthread_create(&ids[started], &attr, wait_at, &gate)) started++;
    pthread_mutex_unlock(&gate);
    for (unsigned i = 0; i < started; i++) pthread_join(ids[i], NULL);
    pthread_attr_destroy(&attr);
    return started == count;
}
