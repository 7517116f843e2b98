/* libuv's worker pool: images are decoded, prompts tokenized and JSON parsed there. Event loop's thread. */
#ifndef KVASIR_WORKERS_H
#define KVASIR_WORKERS_H

#include "config/base/status.h"

#include <stdbool.h>

struct loop;

/* Starts the workers: UV_THREADPOOL_SIZE of the environment, else one per core, so that one large image does
 * not delay small requests. Before any other thread. */
enum status workers_start(struct loop *loop, struct err *err) KV_MUST_CHECK;
/* Calls run(arg) on a worker, then done(arg) on the loop. False: out of memory; neither is called. */
bool workers_run(struct loop *loop, void (*run)(void *arg), void (*done)(void *arg), void *arg) KV_MUST_CHECK;

#endif
