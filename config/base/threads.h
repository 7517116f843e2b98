/* libuv and ZeroMQ abort if thread creation fails, so the server checks in advance. */
#ifndef KVASIR_THREADS_H
#define KVASIR_THREADS_H

#include <stdbool.h>

#define THREADS_MAX 1100u

/* Whether `count` more threads, at most THREADS_MAX, can be alive at once: starts and joins them. One caller
 * at a time. */
bool threads_fit(unsigned count);

#endif
