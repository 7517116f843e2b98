/* See workers.h. libuv starts its threads with the first job, and has no more jobs than threads. */
#include "server/http/workers.h"

#include "config/base/cgroup.h"
#include "config/base/env.h"
#include "config/base/threads.h"
#include "config/base/list.h"
#include "server/context/limits.h"
#include "server/shares/shares.h"

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
    snprintf(text, sizeof text, "%ld", cores < 2 ? 4 : cores > 16 ? 32 : 2 * cores);
    setenv("UV_THREADPOOL_SIZE", text, 0);
    long n = strtol(env_get("UV_THREADPOOL_SIZE"), NULL, 10);
    return n < 1 ? 1 : n > (long)WORKERS_MAX ? WORKERS_MAX : (unsigned)n;
}

static void work_run(uv_work_t *uv)
{
    struct work *w = uv->data;
    w->run(w->arg);
}

static bool fits(const struct workers *p, const struct work *w)
{
    return !w->memory || w->kept || !p->memory || p->memory + w->memory <= LIMIT_PARSE_BYTES;
}

/* The one whose turn it is; small: of those that need no memory. */
static struct work *next_of(const struct workers *p, bool small)
{
    struct work *first = NULL;
    uint32_t most = (p->count + 1) / 2;
    for (struct work *w = p->head; w; w = w->next)
        if (!(small && w->memory && !w->kept) && !(w->large && p->large >= most) &&
            share_admits(w->share, SHARE_WORKERS, 1, most, p->count - most) &&
            (!first || share_before(w->share, first->share, SHARE_WORKERS)))
            first = w;
    return first;
}

static void work_done(uv_work_t *uv, int status);

static void start(struct workers *p)
{
    struct work *w;
    while ((w = next_of(p, false)) && (fits(p, w) || (w = next_of(p, true)))) {
        LIST_UNLINK(p, w);
        w->queued = false;
        w->runs = true;
        w->uv.data = w;
        share_serve(w->share, SHARE_WORKERS);
        p->large += w->large;
        if (!w->kept) p->memory += w->memory;
        (void)uv_queue_work(p->uv, &w->uv, work_run, work_done); /* fails without a function only */
    }
}

static void work_done(uv_work_t *uv, int status)
{
    struct work *w = uv->data;
    struct workers *p = w->of;
    (void)status; /* never cancelled */
    w->runs = false;
    share_sub(w->share, SHARE_WORKERS, 1);
    p->large -= w->large;
    p->memory -= w->memory;
    w->done(w->arg); /* may free w, or queue it again */
    start(p);
}

void workers_run(struct workers *p, struct work *w)
{
    w->of = p;
    w->queued = !w->bound;
    w->runs = w->bound;
    if (w->kept) p->memory += w->memory;
    LIST_LINK(p, p->tail, w);
    start(p);
}

void workers_withdraw(struct work *w)
{
    if (!w->queued) return;
    w->queued = false;
    LIST_UNLINK(w->of, w);
    if (w->kept) w->of->memory -= w->memory;
}

static void nothing_to_do(uv_work_t *uv)
{
    (void)uv;
}

static void started(uv_work_t *uv, int status)
{
    (void)status;
    *(bool *)uv->data = true;
}

enum status workers_start(struct workers *p, uv_loop_t *uv, struct err *err)
{
    bool done = false;
    uv_work_t first = {.data = &done};
    *p = (struct workers){.uv = uv, .count = workers_set()};
    if (!threads_fit(p->count + MORE))
        return err_set(
            err, ST_NOMEM,
            "can't start %u threads: the limit of memory (ulimit -v), of threads (ulimit -u) or of "
            "the control group is too low",
            p->count + MORE);
    if (uv_queue_work(uv, &first, nothing_to_do, started))
        return err_set(err, ST_IO, "can't start worker threads");
    while (!done) uv_run(uv, UV_RUN_ONCE);
    return ST_OK;
}
