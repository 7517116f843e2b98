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
    if (o->content_begun || o->drafting) tool_calls_fini(&o->tool_calls);
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
    if (o->reasoning_parse.cut) return on_reasoning(user, text, len);
    return o->rules.must_call ? ST_OK : buf_add(&o->content, text, len);
}

static enum status on_begin(void *user, const char *name, size_t len)
{
    struct chat_output *o = user;
    if (o->call_count == CHAT_CALLS_MAX) return ST_TOO_LARGE;
    if (!LIST_RESERVE(o->calls, o->call_cap, o->call_count + 1)) return ST_NOMEM;
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

/* ---- calls in the reasoning ---- */

static enum status draft_ignore(void *user, const char *text, size_t len)
{
    (void)user, (void)text, (void)len;
    return ST_OK;
}

static enum status draft_begin(void *user, const char *name, size_t len)
{
    (void)name, (void)len;
    struct chat_output *o = user;
    if (!o->drafted) o->reasoning_parse.hold = o->tool_calls.at;
    o->drafted = true;
    return ST_OK;
}

/* Sets up tool_calls; `from` as there. */
static void calls_start(struct chat_output *o, size_t from, bool draft)
{
    const struct tool_rules rules = {.syntax = o->rules.calls,
                                     .types = o->rules.types,
                                     .bare = o->rules.calls ? o->rules.bare : NULL,
                                     .lines = draft && o->rules.bare,
                                     .exact = o->rules.exact,
                                     .single = o->rules.single_call};
    if (o->drafting) tool_calls_fini(&o->tool_calls);
    tool_calls_init(&o->tool_calls, from, &rules);
    o->drafting = draft;
    o->content_begun = !draft;
}

/* Looks for the first call in text that is, or may be, reasoning. */
static enum status draft_run(struct chat_output *o, const char *text, size_t len, bool final)
{
    const struct tool_sink sink = {
        .user = o, .content = draft_ignore, .begin = draft_begin, .arguments = draft_ignore};
    if (!o->drafting) calls_start(o, 0, true);
    o->tool_calls.ended = o->ended;
    enum status st = o->drafted ? ST_OK : tool_calls_run(&o->tool_calls, text, len, final, &sink);
    if (!o->drafted) o->reasoning_parse.hold = final ? SIZE_MAX : o->tool_calls.at;
    return st;
}

/* ---- public functions ---- */

enum status chat_output_run(struct chat_output *o, const char *text, size_t len, bool final)
{
    enum status st = ST_OK;
    size_t from = 0;
    if (o->rules.reasoning != REASONING_NONE) {
        if (o->rules.calls && o->reasoning_parse.state <= REASON_INSIDE) st = draft_run(o, text, len, final);
        if (st) return st;
        st = reasoning_parse_run(&o->reasoning_parse, text, len, final, on_reasoning, o);
        if (st || o->reasoning_parse.state != REASON_AFTER) return st;
        from = o->reasoning_parse.at;
    }
    if (!o->content_begun) calls_start(o, from, false);
    o->tool_calls.ended = o->ended;
    if (o->rules.calls) {
        const struct tool_sink sink = {
            .user = o, .content = on_content, .begin = on_begin, .arguments = on_arguments};
        st = tool_calls_run(&o->tool_calls, text, len, final, &sink);
        while (o->reasoning_parse.cut && o->reasoning.len && o->reasoning.data[o->reasoning.len - 1] == '\n')
            o->reasoning.data[--o->reasoning.len] = '\0';
        return st;
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
        bool draft = o->drafted && (o->reasoning_parse.state == REASON_INSIDE || o->reasoning_parse.cut);
        o->undecided_tokens++; /* those of a call are none of the reasoning's */
        if (draft) return;
        o->reasoning_tokens += o->undecided_tokens;
        o->undecided_tokens = 0;
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
