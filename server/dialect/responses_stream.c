/* The events of /v1/responses. Event loop's thread. */
#include "server/dialect/responses.h"

#include "server/json/sse.h"

#include <string.h>

static void event_begin(struct json_writer *o, struct responses_state *s, const char *type)
{
    sse_begin_named(o, type);
    jw_put(o, "{\"type\":%s,\"sequence_number\":%lu", type, s->sequence++);
}

void responses_head(struct generation *g)
{
    static const char *const types[] = {"response.created", "response.in_progress"};
    struct json_writer o = {.buf = g->out};
    for (size_t i = 0; i < 2; i++) {
        event_begin(&o, g->dialect_state, types[i]);
        jw_text(&o, ",\"response\":");
        response_write(&o, g, "in_progress", NULL, NULL);
        gen_event_end(&o, g);
    }
}

/* ---- events of the open item ---- */

static struct output_item item_now(const struct responses_state *s)
{
    return (struct output_item){
        .kind = s->kind, .index = s->items_begun - 1, .call = s->call, .from = s->from};
}

/* With the item: the whole item; else its id. */
static void item_event(struct json_writer *o, struct choice *c, const char *type,
                       const struct output_item *item, bool whole)
{
    struct responses_state *s = c->gen->dialect_state;
    event_begin(o, s, type);
    jw_put(o, ",\"output_index\":%u", item->index);
    jw_text(o, whole ? ",\"item\":" : ",\"item_id\":");
    if (whole) response_item_write(o, c, item);
    else response_item_id(o, s, item);
    if (!whole && item->kind != DELTA_CALL) jw_text(o, ",\"content_index\":0");
}

static void part_event(struct choice *c, const char *type, const struct output_item *item)
{
    struct json_writer o = {.buf = c->gen->out};
    item_event(&o, c, type, item, false);
    jw_text(&o, ",\"part\":");
    response_part_write(&o, c, item);
    gen_event_end(&o, c->gen);
}

static bool custom_call(const struct choice *c, uint32_t call)
{
    return json_is_true(json_object_get(response_tool(c, call), "custom"));
}

static void text_done(struct choice *c, const struct output_item *item)
{
    struct json_writer o = {.buf = c->gen->out};
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
        if (custom_call(c, item->call)) { /* its arguments are JSON, which is not sent piecemeal */
            item_event(&o, c, "response.custom_tool_call_input.delta", item, false);
            response_input_write(&o, ",\"delta\":", &call->arguments);
            gen_event_end(&o, c->gen);
            item_event(&o, c, "response.custom_tool_call_input.done", item, false);
            response_input_write(&o, ",\"input\":", &call->arguments);
            break;
        }
        item_event(&o, c, "response.function_call_arguments.done", item, false);
        jw_text(&o, ",\"name\":");
        jw_string(&o, call->name.data, call->name.len);
        jw_text(&o, ",\"arguments\":");
        jw_string(&o, call->arguments.data ? call->arguments.data : "", call->arguments.len);
    }
    }
    gen_event_end(&o, c->gen);
}

static void item_close(struct choice *c, bool cut)
{
    struct responses_state *s = c->gen->dialect_state;
    struct json_writer o = {.buf = c->gen->out};
    struct output_item item = item_now(s);
    if (!s->open) return;
    s->open = false;
    item.state = cut ? ITEM_CUT : ITEM_WHOLE;
    item.to = c->out->content_shown;
    text_done(c, &item);
    if (item.kind != DELTA_CALL) part_event(c, "response.content_part.done", &item);
    item_event(&o, c, "response.output_item.done", &item, true);
    gen_event_end(&o, c->gen);
}

static void item_open(struct choice *c, enum delta_kind kind, uint32_t call)
{
    struct responses_state *s = c->gen->dialect_state;
    struct json_writer o = {.buf = c->gen->out};
    size_t end;
    s->open = true;
    s->kind = kind;
    s->call = call;
    s->from = c->out->content_shown;
    s->items_begun++;
    response_logprobs_range(c, s->from, &s->logprobs_shown, &end);
    struct output_item item = item_now(s);
    item_event(&o, c, "response.output_item.added", &item, true);
    gen_event_end(&o, c->gen);
    if (kind != DELTA_CALL) part_event(c, "response.content_part.added", &item);
}

void responses_delta(struct choice *c, const struct delta *delta)
{
    struct responses_state *s = c->gen->dialect_state;
    struct json_writer o = {.buf = c->gen->out};
    enum delta_kind kind = delta->kind == DELTA_ARGUMENTS ? DELTA_CALL : delta->kind;
    if (s->warm) return;
    if (!s->open || s->kind != kind || delta->kind == DELTA_CALL) {
        item_close(c, false);
        item_open(c, kind, delta->call);
    }
    if (delta->kind == DELTA_CALL || (kind == DELTA_CALL && custom_call(c, delta->call))) return;
    struct output_item item = item_now(s);
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
    gen_event_end(&o, c->gen);
}

void responses_tail(struct choice *c)
{
    struct generation *g = c->gen;
    struct responses_state *s = g->dialect_state;
    struct json_writer o = {.buf = g->out};
    bool cut = response_incomplete(c);
    if (response_text_missing(c) && !s->warm) {
        item_close(c, false);
        item_open(c, DELTA_CONTENT, 0);
    }
    item_close(c, response_cut(c, s->kind));
    event_begin(&o, s, cut ? "response.incomplete" : "response.completed");
    jw_text(&o, ",\"response\":");
    response_finish(&o, c);
    gen_event_end(&o, g);
}

void responses_error(struct generation *g)
{
    struct json_writer o = {.buf = g->out};
    responses_evict(g);
    event_begin(&o, g->dialect_state, "response.failed");
    jw_text(&o, ",\"response\":");
    response_write(&o, g, "failed", NULL, g->e);
    jw_text(&o, "}");
    sse_end(&o);
}
