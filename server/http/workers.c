/* See workers.h. libuv starts its threads with the first job. */
#include "server/http/workers.h"

#include "config/base/cgroup.h"
#include "config/base/env.h"
#include "config/base/threads.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define WORKERS_MAX 1024u /* libuv's */
#define MORE        4u    /* threads that are started later: the loader's and the engine's, and a margin */

static unsigned workers_set(void)
{
    char text[16];
    long cores = sysconf(_SC_NPROCESSORS_ONLN), quota = (long)cgroup_cpus("");
    if (quota && quota < cores) cores = quota;
    snprintf(text, sizeof text, "%ld", cores < 4 ? 4 : cores > 32 ? 32 : cores);
    setenv("UV_THREADPOOL_SIZE", text, 0);
    long n = strtol(env_get("UV_THREADPOOL_SIZE"), NULL, 10);
    return n < 1 ? 1 : n > (long)WORKERS_MAX ? WORKERS_MAX : (unsigned)n;
}

static void nothing_to_do(uv_work_t *w)
{
    (void)w;
}

static void started(uv_work_t *w, int status)
{
    (void)status;
    *(bool *)w->data = true;
}

enum status workers_start(uv_loop_t *loop, struct err *err)
{
    bool done = false;
    uv_work_t job = {.data = &done};
    unsigned count = workers_set();
    if (!threads_fit(count + MORE))
        return err_set(
            err, ST_NOMEM,
            "can't start %u threads: the limit of memory (ulimit -v), of threads (ulimit -u) or of "
            "the control group is too low",
            count + MORE);
    if (uv_queue_work(loop, &job, nothing_to_do, started))
        return err_set(err, ST_IO, "can't start worker threads");
    while (!done) uv_run(loop, UV_RUN_ONCE);
    return ST_OK;
}
