/* See chat/output.h. */
#include "server/chat/output.h"

#include "config/base/list.h"

#include <stdlib.h>

void chat_output_init(struct chat_output *o, const struct chat_output_rules *rules, size_t text_max)
{
    *o = (struct chat_output){.rules = *rules};
    reasoning_parse_init(&o->reasoning_parse, rules->syntax, rules->inside,
                         rules->reasoning == REASONING_CONTENT);
    buf_init(&o->content, text_max);
    buf_init(&o->reasoning, text_max);
}

void chat_output_fini(struct chat_output *o)
{
    for (uint32_t i = 0; i < o->call_count; i++) {
        buf_fini(&o->calls[i].name);
        buf_fini(&o->calls[i].arguments);
    }
    free(o->calls);
    if (o->content_begun) tool_calls_fini(&o->tool_calls);
    buf_fini(&o->content);
    buf_fini(&o->reasoning);
}

/* ---- events ---- */

static enum status on_reasoning(void *user, const char *text, size_t len)
{
    struct chat_output *o = user;
    if (o->rules.reasoning == REASONING_DROP) return ST_OK;
    return buf_add(o->rules.reasoning == REASONING_FIELD ? &o->reasoning : &o->content, text, len);
}

static enum status on_content(void *user, const char *text, size_t len)
{
    struct chat_output *o = user;
    return o->rules.must_call ? ST_OK : buf_add(&o->content, text, len);
}

static enum status on_begin(void *user, const char *name, size_t len)
{
    struct chat_output *o = user;
    if (o->call_count == CHAT_CALLS_MAX) return ST_TOO_LARGE;
    if (!LIST_ROOM(o->calls, o->call_count, o->call_cap, 4)) return ST_NOMEM;
    struct chat_call *c = &o->calls[o->call_count++];
    *c = (struct chat_call){.content_at = o->content.len};
    buf_init(&c->name, o->content.max);
    buf_init(&c->arguments, o->content.max);
    return buf_add(&c->name, name, len);
}

static enum status on_arguments(void *user, const char *text, size_t len)
{
    struct chat_output *o = user;
    return buf_add(&o->calls[o->call_count - 1].arguments, text, len);
}

/* ---- public functions ---- */

enum status chat_output_run(struct chat_output *o, const char *text, size_t len, bool final)
{
    enum status st = ST_OK;
    size_t from = 0;
    if (o->rules.reasoning != REASONING_NONE) {
        st = reasoning_parse_run(&o->reasoning_parse, text, len, final, on_reasoning, o);
        if (st || o->reasoning_parse.state != REASON_AFTER) return st;
        from = o->reasoning_parse.at;
    }
    if (!o->content_begun) {
        const struct tool_rules rules = {.syntax = o->rules.calls,
                                         .types = o->rules.types,
                                         .bare = o->rules.calls ? o->rules.bare : NULL,
                                         .exact = o->rules.exact,
                                         .single = o->rules.single_call};
        tool_calls_init(&o->tool_calls, from, &rules);
        o->content_begun = true;
    }
    o->tool_calls.ended = o->ended;
    if (o->rules.calls) {
        const struct tool_sink sink = {
            .user = o, .content = on_content, .begin = on_begin, .arguments = on_arguments};
        return tool_calls_run(&o->tool_calls, text, len, final, &sink);
    }
    size_t at = o->tool_calls.at;
    o->tool_calls.at = len;
    return len > at ? on_content(o, text + at, len - at) : ST_OK;
}

void chat_output_token(struct chat_output *o, enum reasoning_state before)
{
    if (o->rules.reasoning == REASONING_NONE) return;
    if (o->reasoning_parse.state == REASON_START) { /* may be the beginning of a tag */
        o->undecided_tokens++;
    } else if (before == REASON_INSIDE) {
        o->reasoning_tokens++;
    } else if (before == REASON_START) {
        if (o->reasoning_parse.found) o->reasoning_tokens += o->undecided_tokens + 1;
        o->undecided_tokens = 0;
    }
}

bool chat_output_reasons(const struct chat_output *o)
{
    return o->rules.reasoning != REASONING_NONE && o->reasoning_parse.state == REASON_INSIDE;
}

bool chat_output_called(const struct chat_output *o)
{
    return o->content_begun && tool_calls_complete(&o->tool_calls);
}

bool chat_output_done(const struct chat_output *o)
{
    return o->content_begun && o->rules.calls && tool_calls_done(&o->tool_calls);
}
