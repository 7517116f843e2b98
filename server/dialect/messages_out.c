/* Responses of /v1/messages, whole or as events. Event loop's thread. */
#include "server/dialect/messages.h"

#include "server/json/fields.h"
#include "server/json/sse.h"

#include <string.h>

/* ---- shared ---- */

/* Call ids are assigned when first sent. */
static void block_begin(struct json_writer *o, struct choice *c, enum delta_kind kind, uint32_t call)
{
    switch (kind) {
    case DELTA_REASONING: jw_text(o, "{\"type\":\"thinking\",\"thinking\":"); break;
    case DELTA_CONTENT: jw_text(o, "{\"type\":\"text\",\"text\":"); break;
    default: {
        struct chat_call *it = &c->out->calls[call];
        call_id_make(it, "toolu_");
        jw_put(o, "{\"type\":\"tool_use\",\"id\":%s,\"name\":", it->id);
        jw_string(o, it->name.data, it->name.len);
        jw_text(o, ",\"input\":");
    }
    }
}

/* "stop_reason":..,"stop_sequence":.. */
static void reasons(struct json_writer *o, const struct choice *c)
{
    const struct inference_request *p = &c->gen->q;
    bool length = c->finish == FIN_LENGTH, called = !length && chat_output_called(c->out);
    bool stopped = !length && !called && c->stop_string >= 0;
    jw_text(o, "\"stop_reason\":");
    jw_cstring(o, length    ? c->gen->max_tokens_cut ? "model_context_window_exceeded" : "max_tokens"
                  : called  ? "tool_use"
                  : stopped ? "stop_sequence"
                            : "end_turn");
    jw_text(o, ",\"stop_sequence\":");
    if (stopped) jw_string(o, p->stops[c->stop_string].text, p->stops[c->stop_string].len);
    else jw_text(o, "null");
}

/* input_tokens excludes cached tokens. */
static void usage(struct json_writer *o, const struct generation *g, bool begin)
{
    struct gen_usage u = gen_usage(g);
    jw_put(o,
           ",\"usage\":{\"input_tokens\":%lu,\"cache_creation_input_tokens\":0,"
           "\"cache_read_input_tokens\":%lu,\"output_tokens\":%lu",
           u.prompt - u.cached, u.cached, begin ? 0 : u.completion);
    if (!begin) {
        jw_put(o, ",\"output_tokens_details\":{\"thinking_tokens\":%lu}", u.reasoning);
    }
}

static void message_begin(struct json_writer *o, const struct generation *g)
{
    jw_text(o, "{\"id\":\"msg_");
    jw_text(o, g->caller.id); /* its alphabet needs no escape */
    jw_put(o, "\",\"type\":\"message\",\"role\":\"assistant\",\"model\":%s,\"content\":[", gen_model(g));
}

/* ---- the whole response ---- */

/* The blocks in stream order; without streaming, each delta is complete. */
static void content(struct json_writer *o, struct choice *c)
{
    const struct chat_output *out = c->out;
    for (struct output_item it = {0}; output_next(out, false, &it);) {
        if (it.index) jw_text(o, ",");
        block_begin(o, c, it.kind, it.call);
        if (it.kind == DELTA_REASONING) jw_string(o, out->reasoning.data, out->reasoning.len);
        else if (it.kind == DELTA_CONTENT) jw_string(o, out->content.data + it.from, it.to - it.from);
        else call_object_write(o, &out->calls[it.call].arguments);
        jw_text(o, it.kind == DELTA_REASONING ? ",\"signature\":\"kvasir\"}" : "}");
    }
}

void messages_write_response(struct json_writer *o, struct choice *c)
{
    message_begin(o, c->gen);
    content(o, c);
    jw_text(o, "],");
    reasons(o, c);
    usage(o, c->gen, false);
    jw_text(o, ",\"service_tier\":\"standard\"}");
    gen_cache_info(o, c->gen);
    jw_text(o, "}");
}

/* ---- events ---- */

static void event_begin(struct json_writer *o, const char *type)
{
    sse_begin_named(o, type);
    jw_put(o, "{\"type\":%s", type);
}

void messages_head(struct generation *g)
{
    struct json_writer o = {.buf = g->out};
    event_begin(&o, "message_start");
    jw_text(&o, ",\"message\":");
    message_begin(&o, g);
    jw_text(&o, "],\"stop_reason\":null,\"stop_sequence\":null");
    usage(&o, g, true);
    jw_text(&o, ",\"service_tier\":\"standard\"}}");
    gen_event_end(&o, g);
    event_begin(&o, "ping");
    gen_event_end(&o, g);
}

/* An event for the open block. */
static void block_event(struct json_writer *o, const struct messages_state *s, const char *type)
{
    event_begin(o, type);
    jw_put(o, ",\"index\":%u", s->blocks - 1);
}

static void block_close(struct generation *g)
{
    struct messages_state *s = g->dialect_state;
    struct json_writer o = {.buf = g->out};
    if (!s->open) return;
    s->open = false;
    if (s->kind == DELTA_REASONING) {
        block_event(&o, s, "content_block_delta");
        jw_text(&o, ",\"delta\":{\"type\":\"signature_delta\",\"signature\":\"kvasir\"}");
        gen_event_end(&o, g);
    }
    block_event(&o, s, "content_block_stop");
    gen_event_end(&o, g);
}

static void block_open(struct choice *c, enum delta_kind kind, uint32_t call)
{
    struct generation *g = c->gen;
    struct messages_state *s = g->dialect_state;
    struct json_writer o = {.buf = g->out};
    s->open = true;
    s->kind = kind;
    s->blocks++;
    block_event(&o, s, "content_block_start");
    jw_text(&o, ",\"content_block\":");
    block_begin(&o, c, kind, call);
    jw_text(&o, kind == DELTA_REASONING ? "\"\",\"signature\":\"\"}"
                : kind == DELTA_CONTENT ? "\"\"}"
                                        : "{}}");
    gen_event_end(&o, g);
}

void messages_delta(struct choice *c, const struct delta *delta)
{
    struct generation *g = c->gen;
    struct messages_state *s = g->dialect_state;
    struct json_writer o = {.buf = g->out};
    enum delta_kind kind = delta->kind == DELTA_ARGUMENTS ? DELTA_CALL : delta->kind;
    if (!s->open || s->kind != kind || delta->kind == DELTA_CALL) {
        block_close(g);
        block_open(c, kind, delta->call);
    }
    if (delta->kind == DELTA_CALL) return;
    block_event(&o, s, "content_block_delta");
    jw_text(&o, kind == DELTA_REASONING ? ",\"delta\":{\"type\":\"thinking_delta\",\"thinking\":"
                : kind == DELTA_CONTENT ? ",\"delta\":{\"type\":\"text_delta\",\"text\":"
                                        : ",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":");
    jw_string(&o, delta->text, delta->len);
    jw_text(&o, "}");
    gen_event_end(&o, g);
}

void messages_tail(struct choice *c)
{
    struct generation *g = c->gen;
    struct json_writer o = {.buf = g->out};
    block_close(g);
    event_begin(&o, "message_delta");
    jw_text(&o, ",\"delta\":{");
    reasons(&o, c);
    jw_text(&o, "}");
    usage(&o, g, false);
    jw_text(&o, "}");
    gen_cache_info(&o, g);
    gen_event_end(&o, g);
    event_begin(&o, "message_stop");
    gen_event_end(&o, g);
}

void messages_error(struct generation *g)
{
    struct json_writer o = {.buf = g->out};
    sse_begin_named(&o, "error");
    error_json(g->e, ERROR_ANTHROPIC, g->out);
    sse_end(&o);
}
