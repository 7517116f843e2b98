/* The response of a generating request, whole or as a stream: when the dialect writes what. Event loop's
 * thread. Knows nothing of sequences or sockets. */
#include "server/generate/generate.h"

#include "server/context/adapters.h"
#include "server/context/limits.h"
#include "server/generate/delta.h"
#include "server/http/request.h"
#include "server/http/stream.h"
#include "server/json/value.h"

#include <string.h>

const char *gen_fingerprint(const struct generation *g)
{
    return g->r->lora ? g->r->lora->fingerprint : g->ctx->model->info->fingerprint;
}

const char *gen_model(const struct generation *g)
{
    return g->r->model_name ? g->r->model_name : g->ctx->model_name;
}

struct gen_usage gen_usage(const struct generation *g)
{
    struct gen_usage u = {0};
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        u.prompt += g->prompts[i].prompt.token_count;
        u.cached += g->prompts[i].cached_tokens;
        u.image += g->prompts[i].image_tokens;
    }
    for (uint32_t i = 0; i < g->choice_count; i++) {
        u.completion += g->choices[i].id_count;
        u.accepted += g->choices[i].accepted;
        u.rejected += g->choices[i].proposed - g->choices[i].accepted;
        u.reasoning += g->choices[i].out ? g->choices[i].out->reasoning_tokens : 0;
    }
    return u;
}

void gen_cache_info(struct json_writer *o, const struct generation *g)
{
    static const struct sched_cache_info nothing = {
        .stop = CACHE_STOP_DISABLED}; /* a prompt that is only echoed */
    gen_receipt_write(o, g);
    if (g->warnings || g->misspelt) {
        size_t len = g->warnings ? strlen(g->warnings) - 1 : 0; /* without the last bracket */
        jw_text(o, ",\"warnings\":");
        if (len) jw_bytes(o, g->warnings, len);
        for (size_t i = 0; i < json_array_size(g->misspelt); i++) {
            jw_text(o, len + i ? "," : "[");
            jw_value(o, json_array_get(g->misspelt, i));
        }
        jw_text(o, "]");
    }
    if (!g->q.return_cache_info) return;
    jw_text(o, g->prompt_count > 1 ? ",\"cache_info\":{\"prompts\":[" : ",\"cache_info\":");
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        const struct gen_prompt *p = &g->prompts[i];
        if (i) jw_text(o, ",");
        cache_info_write(o, p->cache_known ? &p->cache : &nothing, p->prompt.token_count, p->dropped,
                         g->left_out, &p->places);
    }
    if (g->prompt_count > 1) jw_text(o, "]}");
}

/* ---- the whole response ---- */

static void write_job(struct request *r)
{
    struct generation *g = r->gen;
    struct json_writer o = {.buf = &g->written};
    if (g->receipt && g->receipt->claim) gen_verify_write(&o, g);
    else g->dialect->response(&o, &g->choices[0]);
    if (o.st) buf_fini(&g->written);
}

static void write_done(struct request *r)
{
    struct generation *g = r->gen;
    r->response.out = g->written;
    g->written = (struct buf){0};
    if (!r->response.out.len)
        (void)api_fail(&r->response.error, 500, "internal_error", NULL, "The response is too large.");
    request_finish(r);
    gen_shed(g);
}

/* The event loop writes short responses itself; long ones would make other clients wait. */
static bool takes_worker(const struct generation *g)
{
    return g->q.kind == GEN_VECTORS || g->r->response.bytes > 65536 ||
           (g->receipt && (g->receipt->full || g->receipt->claim));
}

void gen_write_response(struct generation *g)
{
    buf_init(&g->written, LIMIT_RESPONSE_BYTES);
    if (takes_worker(g)) {
        request_work(g->r, write_job, write_done);
        return;
    }
    write_job(g->r);
    write_done(g->r);
}

/* ---- a stream ---- */

void gen_event_end(struct json_writer *o, struct generation *g)
{
    jw_text(o, g->r->stream.lines ? "}\n" : "}" SSE_END);
    if (o->st) gen_abort(g->r, 500, "internal_error", "The response is too large.");
}

static void head(struct generation *g)
{
    if (!g->shown.head && g->dialect->head) g->dialect->head(g);
    g->shown.head = true;
}

/* Sends everything new. */
static void news(struct choice *c)
{
    const struct dialect *d = c->gen->dialect;
    head(c->gen);
    if (d->news) d->news(c);
    for (struct delta delta; d->delta && (delta = delta_next(c)).kind != DELTA_NONE;) {
        d->delta(c, &delta);
        delta_shown(c, &delta);
    }
    c->shown.dirty = false;
}

void gen_stream_token(struct choice *c)
{
    if (c->shown.dirty) news(c);
    c->shown.dirty = true;
}

void gen_stream_progress(struct choice *c, const struct sched_event *ev)
{
    head(c->gen);
    c->gen->dialect->progress(c, ev);
}

void gen_stream_write(struct generation *g)
{
    struct request *r = g->r;
    head(g);
    if (r->state == RQ_RUNNING) request_stream_open(r);
    for (uint32_t i = 0; i < g->choice_count; i++) {
        struct choice *c = &g->choices[i];
        bool ended = c->finish != FIN_NONE && c->finish != FIN_ABORT && !c->shown.finish;
        c->shown.finish = c->shown.finish || ended;
        if (ended || (c->finish == FIN_NONE && c->shown.dirty)) news(c);
    }
    if (g->choices_open || r->stream.end) return;
    g->dialect->tail(&g->choices[0]);
    r->stream.end = true;
}
