/* libuv's worker pool: images are decoded, prompts tokenized and JSON parsed there. */
#ifndef KVASIR_WORKERS_H
#define KVASIR_WORKERS_H

#include "config/base/status.h"

#include <uv.h>

/* Starts the workers; the environment's UV_THREADPOOL_SIZE, else as many as cores, so that one large image
 * holds up none of the small requests. Before any other thread. */
enum status workers_start(uv_loop_t *loop, struct err *err) KV_MUST_CHECK;

#endif
