/* The events of /v1/responses. Event loop's thread. */
#include "server/dialect/responses.h"

#include "server/http/request.h"
#include "server/http/stream.h"

#include <string.h>

static void event_begin(struct json_out *o, struct responses_state *s, const char *type)
{
    sse_begin_named(o, type);
    jo_text(o, "{\"type\":");
    jo_cstring(o, type);
    jo_text(o, ",\"sequence_number\":");
    jo_uint(o, s->sequence++);
}

static void event_end(struct json_out *o, struct gen *g)
{
    jo_text(o, "}");
    sse_end(o);
    if (o->st) gen_abort(g->r, 500, "internal_error", "The answer is too large.");
}

static void head(struct gen *g)
{
    static const char *const types[] = {"response.created", "response.in_progress"};
    struct json_out o = {.buf = &g->r->answer.out};
    if (g->shown.head) return;
    g->shown.head = true;
    for (size_t i = 0; i < 2; i++) {
        event_begin(&o, g->dialect_state, types[i]);
        jo_text(&o, ",\"response\":");
        response_write(&o, g, "in_progress", NULL, NULL);
        event_end(&o, g);
    }
}

/* ---- events of the item that is open ---- */

static struct response_item item_now(const struct responses_state *s)
{
    return (struct response_item){
        .kind = s->kind, .index = s->items_begun - 1, .call = s->call, .from = s->from};
}

/* With the item: the whole; else its id. */
static void item_event(struct json_out *o, struct choice *c, const char *type,
                       const struct response_item *item, bool whole)
{
    struct responses_state *s = c->gen->dialect_state;
    event_begin(o, s, type);
    jo_text(o, ",\"output_index\":");
    jo_uint(o, item->index);
    jo_text(o, whole ? ",\"item\":" : ",\"item_id\":");
    if (whole) response_item_write(o, c, item);
    else response_item_id(o, s, item);
    if (!whole && item->kind != PIECE_CALL) jo_text(o, ",\"content_index\":0");
}

static void part_event(struct choice *c, const char *type, const struct response_item *item)
{
    struct json_out o = {.buf = &c->gen->r->answer.out};
    item_event(&o, c, type, item, false);
    jo_text(&o, ",\"part\":");
    response_part_write(&o, c, item);
    event_end(&o, c->gen);
}

static void text_done(struct choice *c, const struct response_item *item)
{
    struct json_out o = {.buf = &c->gen->r->answer.out};
    const struct chat_output *out = c->out;
    size_t begin, end;
    switch (item->kind) {
    case PIECE_REASONING:
        item_event(&o, c, "response.reasoning_text.done", item, false);
        jo_text(&o, ",\"text\":");
        jo_string(&o, out->reasoning.data, out->reasoning.len);
        break;
    case PIECE_CONTENT:
        item_event(&o, c, "response.output_text.done", item, false);
        jo_text(&o, ",\"text\":");
        jo_string(&o, out->content.data ? out->content.data + item->from : "", item->to - item->from);
        jo_text(&o, ",\"logprobs\":");
        response_logprobs_range(c, item->from, &begin, &end);
        response_logprobs_write(&o, c->gen->dialect_state, begin, end);
        break;
    default: {
        const struct chat_call *call = &out->calls[item->call];
        item_event(&o, c, "response.function_call_arguments.done", item, false);
        jo_text(&o, ",\"name\":");
        jo_string(&o, call->name.data, call->name.len);
        jo_text(&o, ",\"arguments\":");
        jo_string(&o, call->arguments.data ? call->arguments.data : "", call->arguments.len);
    }
    }
    event_end(&o, c->gen);
}

static void item_close(struct choice *c, bool cut)
{
    struct responses_state *s = c->gen->dialect_state;
    struct json_out o = {.buf = &c->gen->r->answer.out};
    struct response_item item = item_now(s);
    if (!s->open) return;
    s->open = false;
    item.state = cut ? ITEM_CUT : ITEM_WHOLE;
    item.to = c->out->content_shown;
    text_done(c, &item);
    if (item.kind != PIECE_CALL) part_event(c, "response.content_part.done", &item);
    item_event(&o, c, "response.output_item.done", &item, true);
    event_end(&o, c->gen);
}

static void item_open(struct choice *c, enum piece_kind kind, uint32_t call)
{
    struct responses_state *s = c->gen->dialect_state;
    struct json_out o = {.buf = &c->gen->r->answer.out};
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
    if (kind != PIECE_CALL) part_event(c, "response.content_part.added", &item);
}

static void piece_write(struct choice *c, const struct piece *piece)
{
    struct responses_state *s = c->gen->dialect_state;
    struct json_out o = {.buf = &c->gen->r->answer.out};
    enum piece_kind kind = piece->kind == PIECE_ARGUMENTS ? PIECE_CALL : piece->kind;
    if (!s->open || s->kind != kind || piece->kind == PIECE_CALL) {
        item_close(c, false);
        item_open(c, kind, piece->call);
    }
    if (piece->kind == PIECE_CALL) return;
    struct response_item item = item_now(s);
    item_event(&o, c,
               kind == PIECE_REASONING ? "response.reasoning_text.delta"
               : kind == PIECE_CONTENT ? "response.output_text.delta"
                                       : "response.function_call_arguments.delta",
               &item, false);
    jo_text(&o, ",\"delta\":");
    jo_string(&o, piece->text, piece->len);
    if (kind == PIECE_CONTENT) {
        size_t begin, end;
        response_logprobs_range(c, s->from, &begin, &end);
        jo_text(&o, ",\"logprobs\":");
        response_logprobs_write(&o, s, s->logprobs_shown, end);
        s->logprobs_shown = end;
    }
    event_end(&o, c->gen);
}

/* All that is new. */
static void pieces_write(struct choice *c)
{
    head(c->gen);
    for (struct piece piece; (piece = piece_next(c)).kind != PIECE_NONE;) {
        piece_write(c, &piece);
        piece_shown(c, &piece);
    }
    c->shown.dirty = false;
}

static void tail(struct choice *c)
{
    struct gen *g = c->gen;
    struct responses_state *s = g->dialect_state;
    struct json_out o = {.buf = &g->r->answer.out};
    bool cut = c->finish == FIN_LENGTH;
    if (response_text_missing(c)) {
        item_close(c, false);
        item_open(c, PIECE_CONTENT, 0);
    }
    item_close(c, cut);
    event_begin(&o, s, cut ? "response.incomplete" : "response.completed");
    jo_text(&o, ",\"response\":");
    response_finish(&o, c);
    event_end(&o, g);
}

void responses_stream_token(struct choice *c)
{
    if (c->shown.dirty) pieces_write(c);
    c->shown.dirty = true;
}

void responses_stream(struct gen *g)
{
    struct choice *c = &g->choices[0];
    if (c->finish != FIN_NONE) responses_token(c); /* text that was held back until the end */
    pieces_write(c);
    if (g->r->state == RQ_RUNNING) request_stream_open(g->r);
    if (c->finish == FIN_NONE || c->finish == FIN_ABORT || g->r->stream.end) return;
    tail(c);
    g->r->stream.end = true;
}

void responses_stream_error(struct request *r)
{
    struct gen *g = r->gen;
    struct json_out o = {.buf = &r->answer.out};
    event_begin(&o, g->dialect_state, "response.failed");
    jo_text(&o, ",\"response\":");
    response_write(&o, g, "failed", NULL, &r->answer.error);
    jo_text(&o, "}");
    sse_end(&o);
}
