/* libuv and ZeroMQ abort where the system refuses them a thread. So it is asked before. */
#ifndef KVASIR_THREADS_H
#define KVASIR_THREADS_H

#include <stdbool.h>

#define THREADS_MAX 1100u

/* Whether `count` more threads, at most THREADS_MAX, can be alive at once: they are started, and end again.
 * One caller at a time. */
bool threads_fit(unsigned count);

#endif
