/* The response object of /v1/responses and its items: whole, in stream events, and as stored. Event loop's
 * thread. */
#include "config/base/list.h"
#include "server/dialect/responses.h"

#include "config/base/log.h"
#include "server/json/value.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- log-probs of text ---- */

/* Number of calls before the text at `at`. */
static uint32_t calls_before(const struct chat_output *out, size_t at)
{
    uint32_t n = 0;
    while (n < out->call_count && out->calls[n].content_at <= at) n++;
    return n;
}

static enum status part_for(struct responses_state *s, uint32_t calls)
{
    if (s->part_count && s->parts[s->part_count - 1].calls == calls) return ST_OK;
    if (!LIST_RESERVE(s->parts, s->part_cap, s->part_count + 1)) return ST_NOMEM;
    s->parts[s->part_count++] = (struct logprobs_part){calls, s->logprobs.len};
    return ST_OK;
}

/* A token belongs to the text that appears with it or next. Tokens of reasoning and calls, their tags, and
 * tokens whose text is never sent belong to none. */
void responses_token(struct choice *c)
{
    struct generation *g = c->gen;
    struct responses_state *s = g->dialect_state;
    const struct chat_output *out = c->out;
    bool in_call = out->rules.calls && out->content_begun && out->tool_calls.state != TOOL_TEXT;
    struct json_writer o = {.buf = &s->logprobs};
    if (!g->q.logprobs) return;
    if (out->content.len > s->seen_content) {
        o.st = part_for(s, calls_before(out, s->seen_content));
        if (c->logprobs.count && s->logprobs.len) jw_text(&o, ",");
        logprobs_take(&o, &c->logprobs, 0);
    } else if (in_call || s->in_call || out->reasoning_tokens != s->seen_reasoning) {
        logprobs_take(NULL, &c->logprobs, 0);
    }
    s->seen_content = out->content.len;
    s->in_call = in_call;
    s->seen_reasoning = out->reasoning_tokens;
    gen_account(g, &s->accounted, s->logprobs.cap);
    if (o.st) gen_abort_status(g->r, ST_NOMEM, NULL);
}

void response_logprobs_range(const struct choice *c, size_t from, size_t *begin, size_t *end)
{
    const struct responses_state *s = c->gen->dialect_state;
    uint32_t calls = calls_before(c->out, from);
    *begin = *end = s->logprobs.len;
    for (uint32_t i = 0; i < s->part_count; i++) {
        if (s->parts[i].calls != calls) continue;
        *begin = s->parts[i].from;
        *end = i + 1 < s->part_count ? s->parts[i + 1].from : s->logprobs.len;
    }
}

void response_logprobs_write(struct json_writer *o, const struct responses_state *s, size_t from, size_t to)
{
    jw_text(o, "[");
    if (from < to && s->logprobs.data[from] == ',') from++;
    if (from < to) jw_bytes(o, s->logprobs.data + from, to - from);
    jw_text(o, "]");
}

/* ---- items ---- */

void response_item_id(struct json_writer *o, const struct responses_state *s, const struct output_item *item)
{
    jw_text(o, item->kind == DELTA_REASONING ? "\"rs_" : item->kind == DELTA_CONTENT ? "\"msg_" : "\"fc_");
    jw_text(o, s->id + strlen("resp_"));
    jw_put(o, "_%u\"", item->index);
}

void response_part_write(struct json_writer *o, struct choice *c, const struct output_item *item)
{
    const struct chat_output *out = c->out;
    const struct buf *b = item->kind == DELTA_REASONING ? &out->reasoning : &out->content;
    bool empty = item->state == ITEM_BEGUN || !b->len;
    size_t from = item->kind == DELTA_REASONING ? 0 : item->from, begin, end;
    size_t to = item->kind == DELTA_REASONING ? b->len : item->to;
    jw_text(o, item->kind == DELTA_REASONING ? "{\"type\":\"reasoning_text\",\"text\":"
                                             : "{\"type\":\"output_text\",\"text\":");
    jw_string(o, empty ? "" : b->data + from, empty ? 0 : to - from);
    if (item->kind == DELTA_CONTENT) {
        jw_text(o, ",\"annotations\":[],\"logprobs\":");
        response_logprobs_range(c, from, &begin, &end);
        response_logprobs_write(o, c->gen->dialect_state, begin, empty ? begin : end);
    }
    jw_text(o, "}");
}

const json_t *response_tool(const struct choice *c, uint32_t call)
{
    const struct responses_state *s = c->gen->dialect_state;
    const struct buf *name = &c->out->calls[call].name;
    return name->len ? json_object_getn(s->renamed, name->data, name->len) : NULL;
}

static json_t *string_of(const struct buf *text, size_t from, size_t to)
{
    return json_stringn_nocheck(text->data ? text->data + from : "", to - from);
}

/* The free text in a custom tool's arguments; else these, as the model wrote them. NULL: out of memory. */
static json_t *input_of(const struct buf *arguments)
{
    json_t *all = arguments->len ? json_loadb(arguments->data, arguments->len, JSON_ALLOW_NUL, NULL) : NULL;
    for (size_t cut = 0; !all && cut <= 12 && cut < arguments->len; cut++) { /* ends within the text */
        struct buf closed;
        buf_init(&closed, SIZE_MAX / 4);
        if (!buf_add(&closed, arguments->data, arguments->len - cut) && !buf_addf(&closed, "\"}"))
            all = json_loadb(closed.data, closed.len, JSON_ALLOW_NUL, NULL);
        buf_fini(&closed);
    }
    json_t *input = json_incref(json_object_get(all, "input"));
    json_decref(all);
    if (json_is_string(input)) return input;
    json_decref(input);
    return string_of(arguments, 0, arguments->len);
}

void response_input_write(struct json_writer *o, const char *key, const struct buf *arguments)
{
    json_t *input = input_of(arguments);
    jw_text(o, key);
    if (input) jw_value(o, input);
    else o->st = ST_NOMEM;
    json_decref(input);
}

static void call_write(struct json_writer *o, struct choice *c, const struct output_item *item)
{
    static const struct buf nothing = {0};
    struct chat_call *call = &c->out->calls[item->call];
    const json_t *tool = response_tool(c, item->call);
    const struct buf *arguments = item->state == ITEM_BEGUN ? &nothing : &call->arguments;
    if (!call->id[0]) call_id_make(call, "call_");
    jw_put(o, ",\"call_id\":%s,\"name\":", call->id);
    if (tool) jw_value(o, json_object_get(tool, "name"));
    else jw_string(o, call->name.data, call->name.len);
    if (json_object_get(tool, "namespace")) {
        jw_text(o, ",\"namespace\":");
        jw_value(o, json_object_get(tool, "namespace"));
    }
    if (json_is_true(json_object_get(tool, "custom"))) {
        response_input_write(o, ",\"input\":", arguments);
        return;
    }
    jw_text(o, ",\"arguments\":");
    jw_string(o, arguments->len ? arguments->data : "", arguments->len);
}

static void sealed_write(struct json_writer *o, const struct buf *text)
{
    struct buf sealed;
    buf_init(&sealed, SIZE_MAX / 4);
    if (buf_adds(&sealed, SEALED_TEXT) || buf_add(&sealed, text->data, text->len)) o->st = ST_NOMEM;
    else jw_string(o, sealed.data, sealed.len);
    buf_fini(&sealed);
}

void response_item_write(struct json_writer *o, struct choice *c, const struct output_item *item)
{
    static const char *const states[] = {"in_progress", "completed", "incomplete"};
    const struct responses_state *s = c->gen->dialect_state;
    const struct chat_output *out = c->out;
    bool custom =
        item->kind == DELTA_CALL && json_is_true(json_object_get(response_tool(c, item->call), "custom"));
    jw_text(o, item->kind == DELTA_REASONING ? "{\"type\":\"reasoning\",\"id\":"
               : item->kind == DELTA_CONTENT ? "{\"type\":\"message\",\"id\":"
               : custom                      ? "{\"type\":\"custom_tool_call\",\"id\":"
                                             : "{\"type\":\"function_call\",\"id\":");
    response_item_id(o, s, item);
    jw_put(o, ",\"status\":%s", states[item->state]);
    if (item->kind == DELTA_CALL) {
        call_write(o, c, item);
    } else {
        jw_text(o, item->kind == DELTA_REASONING ? ",\"summary\":[],\"content\":["
                                                 : ",\"role\":\"assistant\",\"content\":[");
        if (item->state != ITEM_BEGUN) response_part_write(o, c, item);
        jw_text(o, "]");
    }
    if (item->kind == DELTA_REASONING && item->state != ITEM_BEGUN && s->sealed) {
        jw_text(o, ",\"encrypted_content\":");
        sealed_write(o, &out->reasoning);
    }
    jw_text(o, "}");
}

bool response_text_missing(const struct choice *c)
{
    const struct chat_output *out = c->out;
    return !out->content.len && !out->call_count && !(out->reasoning.len && c->finish == FIN_LENGTH);
}

bool response_incomplete(const struct choice *c)
{
    const struct responses_state *s = c->gen->dialect_state;
    return c->finish == FIN_LENGTH && !s->warm;
}

bool response_cut(const struct choice *c, enum delta_kind last)
{
    return c->finish == FIN_LENGTH || (last == DELTA_CALL && !chat_output_called(c->out));
}

static void output_write(struct json_writer *o, struct choice *c)
{
    const struct responses_state *s = c->gen->dialect_state;
    struct output_item item, next = {0};
    bool missing = response_text_missing(c), more = !s->warm && output_next(c->out, missing, &next);
    while (more) {
        item = next;
        more = output_next(c->out, missing, &next);
        item.state = !more && response_cut(c, item.kind) ? ITEM_CUT : ITEM_WHOLE;
        if (item.index) jw_text(o, ",");
        response_item_write(o, c, &item);
    }
}

/* As an input item of the next turn. */
static json_t *item_value(const struct choice *c, const struct output_item *item)
{
    const struct chat_output *out = c->out;
    if (item->kind == DELTA_REASONING)
        return json_pack("{s:s,s:[{s:o}]}", "type", "reasoning", "content", "text",
                         string_of(&out->reasoning, 0, out->reasoning.len));
    if (item->kind == DELTA_CONTENT)
        return json_pack("{s:s,s:o}", "role", "assistant", "content",
                         string_of(&out->content, item->from, item->to));
    const struct chat_call *call = &out->calls[item->call];
    bool custom = json_is_true(json_object_get(response_tool(c, item->call), "custom"));
    return json_pack(
        "{s:s,s:s,s:o,s:o}", "type", custom ? "custom_tool_call" : "function_call", "call_id", call->id,
        "name", string_of(&call->name, 0, call->name.len), custom ? "input" : "arguments",
        custom ? input_of(&call->arguments) : string_of(&call->arguments, 0, call->arguments.len));
}

static bool response_store(struct choice *c, const char *response, size_t len)
{
    struct responses_state *s = c->gen->dialect_state;
    struct response_store *all = c->gen->ctx->responses;
    struct response_kept new = {.owner = s->owner,
                                .holder = c->gen->share->holder,
                                .items = s->items,
                                .inputs = json_array_size(s->items),
                                .before = s->before};
    struct output_item item = {0};
    memcpy(new.id, s->id, sizeof new.id);
    if (s->local) response_forget_websocket(all, s->owner.websocket); /* the latest alone */
    while (!s->warm && output_next(c->out, response_text_missing(c), &item))
        if (json_array_append_new(s->items, item_value(c, &item))) return false;
    if (!response_keep(all, &new, response, len)) return false;
    s->before = NULL;
    s->items = NULL;
    return true;
}

/* ---- the response ---- */

static void usage(struct json_writer *o, const struct generation *g)
{
    struct gen_usage u = gen_usage(g);
    /* prompt_tokens and completion_tokens: SGLang's names for the same */
    jw_put(o,
           "{\"input_tokens\":%lu,\"input_tokens_details\":{\"cached_tokens\":%lu,"
           "\"cache_write_tokens\":0},\"output_tokens\":%lu,"
           "\"output_tokens_details\":{\"reasoning_tokens\":%lu},\"total_tokens\":%lu,"
           "\"prompt_tokens\":%lu,\"completion_tokens\":%lu}",
           u.prompt, u.cached, u.completion, u.reasoning, u.prompt + u.completion, u.prompt, u.completion);
}

/* Only error codes that OpenAI's clients know. */
static void error_write(struct json_writer *o, const struct api_error *e)
{
    jw_put(o, "{\"code\":%s,\"message\":%s}", e->http == 429 ? "rate_limit_exceeded" : "server_error",
           e->message);
}

void response_write(struct json_writer *o, struct generation *g, const char *status, struct choice *c,
                    const struct api_error *error)
{
    const struct responses_state *s = g->dialect_state;
    jw_put(o,
           "{\"id\":%s,\"object\":\"response\",\"created_at\":%ld,\"status\":%s,"
           "\"completed_at\":",
           s->id, g->caller.created, status);
    if (c && !response_incomplete(c)) jw_int(o, (int64_t)time(NULL));
    else jw_text(o, "null");
    jw_text(o, ",\"error\":");
    if (error) error_write(o, error);
    else jw_text(o, "null");
    jw_text(o, ",\"incomplete_details\":");
    jw_text(o, c && response_incomplete(c) ? "{\"reason\":\"max_output_tokens\"}" : "null");
    jw_put(o, ",\"model\":%s,\"output\":[", gen_model(g));
    if (c) output_write(o, c);
    jw_text(o, "],\"usage\":");
    if (c) usage(o, g);
    else jw_text(o, "null");
    jw_text(o, s->store ? ",\"background\":false,\"store\":true" : ",\"background\":false,\"store\":false");
    jw_text(o, ",\"service_tier\":\"default\"");
    jw_bytes(o, s->echo.data, s->echo.len);
    if (c) gen_cache_info(o, g);
    jw_text(o, "}");
}

void response_compact(struct json_writer *o, struct choice *c)
{
    struct generation *g = c->gen;
    const struct responses_state *s = g->dialect_state;
    const char *number = s->id + strlen("resp_");
    jw_put(o, "{\"id\":%s,\"object\":\"response.compaction\",\"created_at\":%ld,\"output\":[", s->id,
           g->caller.created);
    for (size_t i = 0; i < json_array_size(s->items); i++) {
        jw_value(o, json_array_get(s->items, i));
        jw_text(o, ",");
    }
    jw_text(o, "{\"id\":\"cmp_");
    jw_text(o, number);
    jw_text(o, "\",\"type\":\"compaction\",\"encrypted_content\":");
    sealed_write(o, &c->out->content);
    jw_text(o, "}],\"usage\":");
    usage(o, g);
    gen_cache_info(o, g);
    jw_text(o, "}");
}

void response_finish(struct json_writer *o, struct choice *c)
{
    struct generation *g = c->gen;
    struct responses_state *s = g->dialect_state;
    const char *status = response_incomplete(c) ? "incomplete" : "completed";
    size_t from = o->buf->len;
    response_write(o, g, status, c, NULL);
    if (!(s->store || s->local) || o->st) return;
    if (response_store(c, o->buf->data + from, o->buf->len - from)) return;
    log_warn("req=%s the response is too large to be kept: see --response-store", g->caller.id);
    s->store = false;
    o->buf->len = from;
    response_write(o, g, status, c, NULL);
}
