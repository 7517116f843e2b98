/* Early ends of a generating request: cancel, error, limits. Event loop's thread. */
#include "server/generate/generate.h"

#include "config/base/log.h"
#include "server/fetch/fetch.h"
#include "server/http/conn.h"
#include "server/http/request.h"

#include <stdlib.h>
#include <string.h>

void gen_account(struct generation *g, size_t *was, size_t now)
{
    response_account(&g->r->response, was, now);
}

void gen_shed(struct generation *g)
{
    gen_record_end(g);
    for (uint32_t i = 0; i < g->choice_count; i++) {
        struct choice *c = &g->choices[i];
        free(c->ids);
        c->ids = NULL;
        c->id_cap = 0; /* the count is kept for the metrics */
        buf_fini(&c->text);
        if (c->out) chat_output_fini(c->out);
        free(c->out);
        c->out = NULL;
        for (int k = 0; k < LOGPROBS_PARTS; k++) buf_fini(&c->logprobs.part[k]);
        response_account(&g->r->response, &c->accounted, 0);
    }
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        free(g->prompts[i].scores);
        g->prompts[i].scores = NULL;
        response_account(&g->r->response, &g->prompts[i].accounted, 0);
    }
}

void gen_cancel(struct request *r)
{
    struct generation *g = r->gen;
    if (g) atomic_store(&g->cancelled, true);
    if (!g || !r->srv->ctx.model || r->work.runs) return;
    if (g->prep.remote) fetch_cancel(g->prep.remote);
    for (uint32_t i = 0; i < g->choice_count; i++) {
        struct choice *c = &g->choices[i];
        if (c->submitted && !c->seq_ended) sched_cancel(r->srv->ctx.model->sched, c->seq);
    }
}

void gen_abort(struct request *r, int http, const char *code, const char *message)
{
    if (!r->http.mhd || r->cancelled || r->state == RQ_RESPONSE || (r->state == RQ_STREAM && r->stream.end))
        return;
    if (r->gen && !r->work.runs) r->gen->failed = true;
    gen_cancel(r);
    if (r->work.runs) { /* the worker may be writing r->response.error: drop the client instead */
        request_client_gone(r);
        return;
    }
    (void)api_fail(&r->response.error, http, code, NULL, "%s", message);
    if (r->state == RQ_STREAM && !r->gen) {
        conn_cut(r);
    } else if (r->state == RQ_STREAM) {
        r->gen->dialect->error(r->gen);
        r->stream.end = true;
        request_stream_more(r);
    } else if (!conn_respond_early(r)) {
        request_fail(r);
    }
}

void gen_abort_status(struct request *r, enum status st, const struct err *err)
{
    struct api_error why = {0};
    (void)api_fail_status(&why, st, NULL, err);
    gen_abort(r, why.http, why.code, why.message);
}

/* Ends the largest response of who holds most, so that neither a large one nor many end the others. */
void gen_responses_check(struct server *s)
{
    static const char message[] =
        "The buffered responses exceed --response-memory, and this one is the largest: "
        "try again later, or request less output.";
    for (struct request *r; (r = requests_largest(s));) {
        /* In a stream, unread events are replaced by the error. */
        bool cut = r->state == RQ_RESPONSE ? r->http.queued : !stream_drop(&r->stream, &r->response.out);
        log_warn("req=%s responses hold %zu KiB: this one is aborted, with %zu KiB", r->http.id,
                 shares_held(&s->shares, SHARE_RESPONSES) >> 10, r->response.bytes >> 10);
        r->response.retry_after = 5;
        share_refused(r->response.share, SHARE_RESPONSES);
        if (cut) {
            conn_cut(r);
        } else if (r->state == RQ_RESPONSE) { /* just written */
            (void)api_fail(&r->response.error, 429, "rate_limit_exceeded", NULL, "%s", message);
            request_fail(r);
        } else {
            gen_abort(r, 429, "rate_limit_exceeded", message);
        }
        if (!r->gen || r->work.runs) continue;
        r->gen->failed = true;
        gen_shed(r->gen);
    }
}
