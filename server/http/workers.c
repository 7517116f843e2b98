/* See workers.h. libuv starts its threads with the first job. */
#include "server/http/workers.h"

#include "config/base/cgroup.h"
#include "config/base/env.h"
#include "config/base/threads.h"
#include "server/http/event_loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define WORKERS_MAX 1024u /* libuv's */
#define MORE        4u    /* threads started later: loader, engine, and a margin */

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

struct work {
    uv_work_t uv;
    void (*run)(void *arg), (*done)(void *arg);
    void *arg;
};

static void work_run(uv_work_t *uv)
{
    struct work *w = uv->data;
    w->run(w->arg);
}

static void work_done(uv_work_t *uv, int status)
{
    struct work w = *(struct work *)uv->data;
    (void)status; /* never cancelled */
    free(uv->data);
    w.done(w.arg);
}

bool workers_run(struct loop *loop, void (*run)(void *arg), void (*done)(void *arg), void *arg)
{
    struct work *w = malloc(sizeof *w);
    if (!w) return false;
    *w = (struct work){.uv.data = w, .run = run, .done = done, .arg = arg};
    if (!uv_queue_work(&loop->uv, &w->uv, work_run, work_done)) return true;
    free(w);
    return false;
}

static void nothing_to_do(void *arg)
{
    (void)arg;
}

static void started(void *arg)
{
    *(bool *)arg = true;
}

enum status workers_start(struct loop *loop, struct err *err)
{
    bool done = false;
    unsigned count = workers_set();
    if (!threads_fit(count + MORE))
        return err_set(
            err, ST_NOMEM,
            "can't start %u threads: the limit of memory (ulimit -v), of threads (ulimit -u) or of "
            "the control group is too low",
            count + MORE);
    if (!workers_run(loop, nothing_to_do, started, &done))
        return err_set(err, ST_IO, "can't start worker threads");
    while (!done) uv_run(&loop->uv, UV_RUN_ONCE);
    return ST_OK;
}
