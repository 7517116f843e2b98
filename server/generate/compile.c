/* Compiling the grammars of requests: a queue in front of the workers. Event loop's thread. */
#include "server/generate/generate.h"
#include "server/generate/grammars.h"
#include "server/http/request.h"

#include <string.h>
#include <uv.h>

#define WAIT_US 8000000u /* in the queue; then 503 */

/* A worker that compiles is busy for up to half a second, and takes a core. */
static uint32_t compiles_max(void)
{
    return uv_available_parallelism() < 4 ? 1 : 2;
}

static void job(struct request *r)
{
    struct gen *g = r->gen;
    (void)gen_constraint_compile(g);
    gen_constraint_made(g);
    if (r->answer.error.http && g->dialect) g->dialect->fault(g);
}

static bool waits(const struct request *r)
{
    return r->gen && !r->working && r->gen->compile_waits && r->state == RQ_WORKING && !r->cancelled;
}

/* The oldest one that waits; how many compile. */
static struct request *next_of(const struct server *s, uint32_t *compiling)
{
    struct request *oldest = NULL;
    *compiling = 0;
    for (struct request *r = s->requests; r; r = r->next) {
        if (r->working && r->compiling) ++*compiling;
        if (waits(r)) oldest = r;
    }
    return oldest;
}

static void late(struct request *r, bool memory)
{
    r->gen->compile_waits = false;
    if (memory)
        (void)api_fail(&r->answer.error, 503, "grammar_memory", gen_constraint_param(r->gen), "%s",
                       gen_grammar_memory_full);
    else
        (void)api_fail(&r->answer.error, 503, "overloaded", gen_constraint_param(r->gen),
                       "Too many new grammars are to be compiled: try again later.");
    request_fail(r);
}

void gen_compile_next(struct server *s)
{
    struct request *r;
    uint32_t compiling;
    while (s->compile_waits && (r = next_of(s, &compiling))) {
        struct gen *g = r->gen;
        bool free = compiling < compiles_max();
        bool fits = free && grammars_reserve(s->grammars, strlen(g->compile_key));
        if (!fits && now_us() - g->compile_us > WAIT_US) {
            late(r, free);
            continue;
        }
        if (!fits) return;
        g->compile_waits = false;
        r->compiling = true;
        request_work(r, job, g->done);
    }
    s->compile_waits = false;
}

void gen_compile(struct request *r, void (*done)(struct request *r))
{
    struct gen *g = r->gen;
    g->done = done;
    g->compile_us = now_us();
    g->compile_waits = r->srv->compile_waits = true;
    gen_compile_next(r->srv);
}
