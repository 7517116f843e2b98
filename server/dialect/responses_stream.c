/* The events of /v1/responses. Event loop's thread. */
#include "server/dialect/responses.h"

#include "server/http/request.h"
#include "server/http/stream.h"

#include <string.h>

static void event_begin(struct json_writer *o, struct responses_state *s, const char *type)
{
    sse_begin_named(o, type);
    jw_text(o, "{\"type\":");
    jw_cstring(o, type);
    jw_text(o, ",\"sequence_number\":");
    jw_uint(o, s->sequence++);
}

static void event_end(struct json_writer *o, struct gen *g)
{
    jw_text(o, "}");
    sse_end(o);
    if (o->st) gen_abort(g->r, 500, "internal_error", "The response is too large.");
}

static void head(struct gen *g)
{
    static const char *const types[] = {"response.created", "response.in_progress"};
    struct json_writer o = {.buf = &g->r->response.out};
    if (g->shown.head) return;
    g->shown.head = true;
    for (size_t i = 0; i < 2; i++) {
        event_begin(&o, g->dialect_state, types[i]);
        jw_text(&o, ",\"response\":");
        response_write(&o, g, "in_progress", NULL, NULL);
        event_end(&o, g);
    }
}

/* ---- events of the open item ---- */

static struct response_item item_now(const struct responses_state *s)
{
    return (struct response_item){
        .kind = s->kind, .index = s->items_begun - 1, .call = s->call, .from = s->from};
}

/* With the item: the whole item; else its id. */
static void item_event(struct json_writer *o, struct choice *c, const char *type,
                       const struct response_item *item, bool whole)
{
    struct responses_state *s = c->gen->dialect_state;
    event_begin(o, s, type);
    jw_text(o, ",\"output_index\":");
    jw_uint(o, item->index);
    jw_text(o, whole ? ",\"item\":" : ",\"item_id\":");
    if (whole) response_item_write(o, c, item);
    else response_item_id(o, s, item);
    if (!whole && item->kind != DELTA_CALL) jw_text(o, ",\"content_index\":0");
}

static void part_event(struct choice *c, const char *type, const struct response_item *item)
{
    struct json_writer o = {.buf = &c->gen->r->response.out};
    item_event(&o, c, type, item, false);
    jw_text(&o, ",\"part\":");
    response_part_write(&o, c, item);
    event_end(&o, c->gen);
}

static void text_done(struct choice *c, const struct response_item *item)
{
    struct json_writer o = {.buf = &c->gen->r->response.out};
    const struct chat_output *out = c->out;
    size_t begin, end;
    switch (item->kind) {
    case DELTA_REASONING:
        item_event(&o, c, "response.reasoning_text.done", item, false);
        jw_text(&o, ",\"text\":");
        jw_string(&o, out->reasoning.data, out->reasoning.len);
        break;
    case DELTA_CONTENT:
        item_event(&o, c, "response.output_text.done", item, false);
        jw_text(&o, ",\"text\":");
        jw_string(&o, out->content.data ? out->content.data + item->from : "", item->to - item->from);
        jw_text(&o, ",\"logprobs\":");
        response_logprobs_range(c, item->from, &begin, &end);
        response_logprobs_write(&o, c->gen->dialect_state, begin, end);
        break;
    default: {
        const struct chat_call *call = &out->calls[item->call];
        item_event(&o, c, "response.function_call_arguments.done", item, false);
        jw_text(&o, ",\"name\":");
        jw_string(&o, call->name.data, call->name.len);
        jw_text(&o, ",\"arguments\":");
        jw_string(&o, call->arguments.data ? call->arguments.data : "", call->arguments.len);
    }
    }
    event_end(&o, c->gen);
}

static void item_close(struct choice *c, bool cut)
{
    struct responses_state *s = c->gen->dialect_state;
    struct json_writer o = {.buf = &c->gen->r->response.out};
    struct response_item item = item_now(s);
    if (!s->open) return;
    s->open = false;
    item.state = cut ? ITEM_CUT : ITEM_WHOLE;
    item.to = c->out->content_shown;
    text_done(c, &item);
    if (item.kind != DELTA_CALL) part_event(c, "response.content_part.done", &item);
    item_event(&o, c, "response.output_item.done", &item, true);
    event_end(&o, c->gen);
}

static void item_open(struct choice *c, enum delta_kind kind, uint32_t call)
{
    struct responses_state *s = c->gen->dialect_state;
    struct json_writer o = {.buf = &c->gen->r->response.out};
    size_t end;
    s->open = true;
    s->kind = kind;
    s->call = call;
    s->from = c->out->content_shown;
    s->items_begun++;
    response_logprobs_range(c, s->from, &s->logprobs_shown, &end);
    struct response_item item = item_now(s);
    item_event(&o, c, "response.output_item.added", &item, true);
    event_end(&o, c->gen);
    if (kind != DELTA_CALL) part_event(c, "response.content_part.added", &item);
}

static void delta_write(struct choice *c, const struct delta *delta)
{
    struct responses_state *s = c->gen->dialect_state;
    struct json_writer o = {.buf = &c->gen->r->response.out};
    enum delta_kind kind = delta->kind == DELTA_ARGUMENTS ? DELTA_CALL : delta->kind;
    if (!s->open || s->kind != kind || delta->kind == DELTA_CALL) {
        item_close(c, false);
        item_open(c, kind, delta->call);
    }
    if (delta->kind == DELTA_CALL) return;
    struct response_item item = item_now(s);
    item_event(&o, c,
               kind == DELTA_REASONING ? "response.reasoning_text.delta"
               : kind == DELTA_CONTENT ? "response.output_text.delta"
                                       : "response.function_call_arguments.delta",
               &item, false);
    jw_text(&o, ",\"delta\":");
    jw_string(&o, delta->text, delta->len);
    if (kind == DELTA_CONTENT) {
        size_t begin, end;
        response_logprobs_range(c, s->from, &begin, &end);
        jw_text(&o, ",\"logprobs\":");
        response_logprobs_write(&o, s, s->logprobs_shown, end);
        s->logprobs_shown = end;
    }
    event_end(&o, c->gen);
}

/*  Sends everything new. */
static void deltas_write(struct choice *c)
{
    head(c->gen);
    for (struct delta delta; (delta = delta_next(c)).kind != DELTA_NONE;) {
        delta_write(c, &delta);
        delta_shown(c, &delta);
    }
    c->shown.dirty = false;
}

static void tail(struct choice *c)
{
    struct gen *g = c->gen;
    struct responses_state *s = g->dialect_state;
    struct json_writer o = {.buf = &g->r->response.out};
    bool cut = c->finish == FIN_LENGTH;
    if (response_text_missing(c)) {
        item_close(c, false);
        item_open(c, DELTA_CONTENT, 0);
    }
    item_close(c, cut);
    event_begin(&o, s, cut ? "response.incomplete" : "response.completed");
    jw_text(&o, ",\"response\":");
    response_finish(&o, c);
    event_end(&o, g);
}

void responses_stream_token(struct choice *c)
{
    if (c->shown.dirty) deltas_write(c);
    c->shown.dirty = true;
}

void responses_stream(struct gen *g)
{
    struct choice *c = &g->choices[0];
    if (c->finish != FIN_NONE) responses_token(c); /* text held back until the end */
    deltas_write(c);
    if (g->r->state == RQ_RUNNING) request_stream_open(g->r);
    if (c->finish == FIN_NONE || c->finish == FIN_ABORT || g->r->stream.end) return;
    tail(c);
    g->r->stream.end = true;
}

void responses_stream_error(struct request *r)
{
    struct gen *g = r->gen;
    struct json_writer o = {.buf = &r->response.out};
    event_begin(&o, g->dialect_state, "response.failed");
    jw_text(&o, ",\"response\":");
    response_write(&o, g, "failed", NULL, &r->response.error);
    jw_text(&o, "}");
    sse_end(&o);
}
