/* What responses of /v1/chat/completions have of their own. */
#include "server/dialect/openai.h"

/* "id":..,"type":"function","function":{"name":..,"arguments":<text>} without the opening brace */
static void call_write(struct json_writer *o, struct chat_call *call, const char *arguments, size_t len)
{
    call_id_make(call, "call_");
    jw_put(o, "\"id\":%s,\"type\":\"function\",\"function\":{\"name\":", call->id);
    jw_string(o, call->name.data, call->name.len);
    jw_text(o, ",\"arguments\":");
    jw_string(o, arguments, len);
    jw_text(o, "}}");
}

/* Both names: OpenAI's clients of thinking models know one or the other. NULL: null. */
static void reasoning(struct json_writer *o, const char *text, size_t len)
{
    static const char *const names[] = {"\"reasoning_content\":", ",\"reasoning\":"};
    for (size_t i = 0; i < 2; i++) {
        jw_text(o, names[i]);
        if (text) jw_string(o, text, len);
        else jw_text(o, "null");
    }
}

static void message_write(struct json_writer *o, const struct choice *c)
{
    const struct generation *g = c->gen;
    struct chat_output *out = c->out;
    const struct buf *text = out ? &out->content : &c->text;
    jw_put(o, ",\"message\":{\"role\":%s,\"content\":", g->response_role ? g->response_role : "assistant");
    if (out && out->call_count && !text->len && !(g->q.echo && c->prompt->text)) jw_text(o, "null");
    else openai_text(o, c, text->data, text->len);
    jw_text(o, ",\"refusal\":null,\"annotations\":[]");
    if (g->rules.reasoning == REASONING_FIELD) {
        jw_text(o, ",");
        reasoning(o, out && out->reasoning.len ? out->reasoning.data : NULL, out ? out->reasoning.len : 0);
    }
    if (!out || !out->call_count) jw_text(o, ",\"tool_calls\":null");
    for (uint32_t i = 0; out && i < out->call_count; i++) {
        struct chat_call *call = &out->calls[i];
        jw_text(o, i ? ",{" : ",\"tool_calls\":[{");
        call_write(o, call, call->arguments.data, call->arguments.len);
    }
    jw_text(o, out && out->call_count ? "]}" : "}");
}

static void delta_write(struct json_writer *o, struct choice *c, const struct delta *delta)
{
    bool final = c->finish != FIN_NONE;
    jw_text(o, ",\"delta\":{");
    switch (delta->kind) {
    case DELTA_NONE:
        /* A token without text; or, at the end, tokens not yet reported. */
        if (c->out && !final && chat_output_reasons(c->out)) {
            reasoning(o, "", 0);
        } else if (!c->out || !final || openai_content_missing(c)) {
            c->shown.null = false;
            jw_text(o, "\"content\":");
            openai_text(o, c, "", 0);
        }
        break;
    case DELTA_CALL:
        jw_put(o, "\"tool_calls\":[{\"index\":%u,", delta->call);
        call_write(o, &c->out->calls[delta->call], "", 0);
        jw_text(o, "]");
        break;
    case DELTA_ARGUMENTS:
        jw_put(o, "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", delta->call);
        jw_string(o, delta->text, delta->len);
        jw_text(o, "}}]");
        break;
    case DELTA_REASONING: reasoning(o, delta->text, delta->len); break;
    default: jw_text(o, "\"content\":"); openai_text(o, c, delta->text, delta->len);
    }
    jw_text(o, "}");
}

static void entries(struct json_writer *o, struct logprobs *l)
{
    jw_text(o, "{\"content\":[");
    logprobs_take(o, l, 0);
    jw_text(o, "],\"refusal\":null}");
}

const struct openai_form openai_chat = {.id = "chatcmpl-",
                                        .object = "chat.completion",
                                        .chunk = "chat.completion.chunk",
                                        .empty = ",\"delta\":{}",
                                        .text = message_write,
                                        .delta = delta_write,
                                        .logprobs = entries};

void chat_head(struct generation *g)
{
    for (uint32_t i = 0; i < g->choice_count; i++) {
        struct json_writer o = {.buf = g->out};
        openai_chunk_begin(&o, &g->choices[i]);
        jw_put(&o, ",\"delta\":{\"role\":%s", g->response_role ? g->response_role : "assistant");
        /* Clients concatenate strings of one key: null if there may be only calls. */
        struct choice *c = &g->choices[i];
        c->shown.null =
            c->out && c->out->rules.calls && !c->out->content.len && !(g->q.echo && c->prompt->text);
        jw_text(&o, c->shown.null ? ",\"content\":null" : ",\"content\":\"\"");
        jw_text(&o, ",\"refusal\":null},\"logprobs\":null,\"finish_reason\":null}");
        openai_chunk_end(&o, g, false, false);
    }
}
