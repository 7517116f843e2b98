/* Compiling the grammars of requests: a queue before the workers, in which tenants take turns. Event loop's
 * thread. */
#include "server/generate/generate.h"
#include "server/input/grammars.h"
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
    struct generation *g = r->gen;
    (void)gen_constraint_compile(g);
    gen_constraint_made(g);
}

static bool waits(const struct request *r)
{
    return r->gen && !r->work.runs && r->gen->compile.waits && r->state == RQ_WORKING && !r->cancelled;
}

static bool compiles(const struct request *r)
{
    return r->compiling && r->work.runs;
}

/* The first waiting request by turn, then by age, whose description has less than so many bytes. */
static struct request *next_of(const struct server *s, size_t below)
{
    struct request *first = NULL;
    for (struct request *r = s->requests; r; r = r->next)
        if (waits(r) && r->gen->compile.bytes < below &&
            (!first || r->gen->compile.turn <= first->gen->compile.turn))
            first = r;
    return first;
}

static void late(struct request *r, bool memory)
{
    r->gen->compile.waits = false;
    if (memory)
        (void)api_fail(&r->response.error, 503, "grammar_memory", gen_constraint_param(r->gen), "%s",
                       gen_grammar_memory_full);
    else
        (void)api_fail(&r->response.error, 503, "overloaded", gen_constraint_param(r->gen),
                       "Too many new constraints wait to be compiled: try again later.");
    request_fail(r);
}

static void compiled(struct request *r)
{
    struct server *s = r->srv;
    r->compiling = false;
    r->gen->done(r);
    gen_compile_next(s);
}

void gen_compile_next(struct server *s)
{
    struct request *r;
    uint32_t compiling = 0;
    size_t below = SIZE_MAX; /* larger ones don't fit */
    if (!s->compile_waits) return;
    s->compile_waits = false;
    for (r = s->requests; r; r = r->next) compiling += compiles(r);
    while (compiling < compiles_max() && (r = next_of(s, below))) {
        struct generation *g = r->gen;
        if (!grammars_reserve(s->ctx.grammars, g->compile.bytes, gen_grammar_tenant(g))) {
            below = g->compile.bytes;
            continue;
        }
        if (g->compile.turn >= s->compile_turn) s->compile_turn = g->compile.turn + 1;
        g->compile.waits = false;
        r->compiling = true;
        request_work(r, job, compiled);
        compiling++;
    }
    uint64_t now = now_us();
    for (r = s->requests; r; r = r->next) {
        if (!waits(r)) continue;
        if (now - r->gen->compile.since_us > WAIT_US) late(r, r->gen->compile.bytes >= below);
        else s->compile_waits = true;
    }
}

void gen_compile(struct request *r, void (*done)(struct request *r))
{
    struct generation *g = r->gen;
    struct server *s = r->srv;
    g->done = done;
    g->compile.since_us = now_us();
    g->compile.turn = s->compile_turn;
    for (const struct request *o = s->requests; o; o = o->next)
        if ((waits(o) || compiles(o)) && o->gen->caller.tenant == g->caller.tenant &&
            o->gen->compile.turn >= g->compile.turn)
            g->compile.turn = o->gen->compile.turn + 1;
    g->compile.waits = s->compile_waits = true;
    gen_compile_next(s);
}
