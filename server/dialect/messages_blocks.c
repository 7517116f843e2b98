/* Anthropic's `system` and `messages` -> messages of a chat: results of tools become messages of their own,
 * thinking becomes reasoning, neighbours of one role become one message. Worker thread. What the chat checks
 * anyway is left to it; its errors find their way back by the places noted here. */
#include "server/dialect/messages.h"
#include "server/dialect/reader.h"
#include "server/http/fields.h"
#include "server/http/limits.h"
#include "server/chat/template.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status no_memory(struct translation *t)
{
    return api_fail(t->e, 503, "out_of_memory", NULL, "The server is out of memory.");
}

/* The block at hand: its path, and its place. */
struct at {
    char path[96];
    int32_t block, inner;
};

static enum status fault(struct translation *t, const char *code, const struct at *at, const char *key,
                         const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static enum status fault(struct translation *t, const char *code, const struct at *at, const char *key,
                         const char *fmt, ...)
{
    char path[128], text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(path, sizeof path, "%s%s%s", at->path, key ? "." : "", key ? key : "");
    return api_fail(t->e, 400, code, path, "%s", text);
}

/* Each becomes several values. */
static enum status count_block(struct translation *t, const struct at *at)
{
    if (++t->blocks <= LIMIT_PARTS) return ST_OK;
    return fault(t, "invalid_value", at, NULL, "There are more than %u content blocks.", LIMIT_PARTS);
}

static enum status need_string(struct translation *t, json_t *o, const char *key, const struct at *at,
                               json_t **out)
{
    *out = field(o, key);
    if (!*out) return fault(t, "missing_required_parameter", at, key, "Field required.");
    return json_is_string(*out) ? ST_OK : fault(t, "invalid_type", at, key, "Must be a string.");
}

/* A new string; NULL: out of memory. */
static json_t *joined(const char *front, size_t len, const json_t *back)
{
    size_t more = json_string_length(back);
    char *text = malloc(len + more + 1);
    if (!text) return NULL;
    memcpy(text, front, len);
    memcpy(text + len, json_string_value(back), more);
    json_t *v = json_stringn_nocheck(text, len + more);
    free(text);
    return v;
}

/* ---- the chat's side ---- */

static enum status note_place(struct translation *t, int32_t part, const struct at *at)
{
    struct messages_state *s = t->g->dialect_state;
    if (s->place_count == s->place_cap) {
        size_t cap = s->place_cap ? 2 * s->place_cap : 16;
        s = realloc(s, sizeof *s + cap * sizeof *s->places);
        if (!s) return no_memory(t);
        s->place_cap = cap;
        t->g->dialect_state = s;
    }
    s->places[s->place_count++] = (struct place){.chat = (uint32_t)json_array_size(t->chat) - 1,
                                                 .part = part,
                                                 .message = (uint32_t)t->at,
                                                 .block = at->block,
                                                 .inner = at->inner};
    return ST_OK;
}

static bool has_role(const json_t *message, const char *role)
{
    return json_is(json_object_get(message, "role"), role);
}

/* The message that a block of this role belongs to: the last one, or a new one. Turns next to each other are
 * one; of system messages each stands for itself. */
static enum status message_for(struct translation *t, const char *role, const struct at *at, json_t **out)
{
    size_t n = json_array_size(t->chat);
    json_t *last = n ? json_array_get(t->chat, n - 1) : NULL;
    bool turn = strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0 ||
                (strcmp(role, "system") == 0 && at->block > 0);
    *out = last;
    if (last && turn && has_role(last, role)) return ST_OK;
    *out = json_pack("{s:s,s:[]}", "role", role, "content");
    if (!*out || json_array_append_new(t->chat, *out)) return no_memory(t);
    return note_place(t, -1, at);
}

/* Consumes part. */
static enum status add_part(struct translation *t, json_t *message, json_t *part, const struct at *at)
{
    json_t *content = json_object_get(message, "content");
    if (!part || json_array_append_new(content, part)) return no_memory(t);
    return note_place(t, (int32_t)json_array_size(content) - 1, at);
}

static json_t *text_part(json_t *text)
{
    return text ? json_pack("{s:s,s:o}", "type", "text", "text", text) : NULL;
}

/* ---- blocks ---- */

/* The text of a picture in base64 is there once only: its place in the body is emptied. */
static enum status image_block(struct translation *t, json_t *block, json_t *message, const struct at *at)
{
    json_t *source = field(block, "source"), *type, *media, *data, *url;
    struct at in = *at;
    if (!source) return fault(t, "missing_required_parameter", at, "source", "Field required.");
    if (!json_is_object(source)) return fault(t, "invalid_type", at, "source", "Must be an object.");
    snprintf(in.path, sizeof in.path, "%.80s.source", at->path);
    if (need_string(t, source, "type", &in, &type)) return ST_INVALID;
    if (json_is(type, "url")) {
        if (need_string(t, source, "url", &in, &url)) return ST_INVALID;
        json_incref(url);
    } else if (json_is(type, "base64")) {
        if (need_string(t, source, "media_type", &in, &media) || need_string(t, source, "data", &in, &data))
            return ST_INVALID;
        const char *name = json_string_value(media);
        size_t len = json_string_length(media);
        if (len > 64 || strncmp(name, "image/", 6) != 0 ||
            strspn(name + 6, "abcdefghijklmnopqrstuvwxyz0123456789.+-") != len - 6)
            return fault(t, "invalid_value", &in, "media_type", "'%.60s' is no type of a picture.", name);
        char front[96];
        snprintf(front, sizeof front, "data:%s;base64,", name);
        url = joined(front, strlen(front), data);
        json_object_del(source, "data");
    } else {
        return fault(t, "unsupported_value", &in, "type", "Sources of type '%.60s' are not supported.",
                     json_string_value(type));
    }
    json_t *part = url ? json_pack("{s:s,s:{s:o}}", "type", "image_url", "image_url", "url", url) : NULL;
    return add_part(t, message, part, at);
}

static enum status text_block(struct translation *t, json_t *block, json_t *message, const struct at *at)
{
    json_t *text;
    enum status st = need_string(t, block, "text", at, &text);
    return st ? st : add_part(t, message, text_part(json_incref(text)), at);
}

/* A list for the time being: reasoning_settle puts them together. */
static enum status thinking_block(struct translation *t, json_t *block, json_t *message, const struct at *at)
{
    json_t *text, *list = json_object_get(message, "reasoning_content");
    if (need_string(t, block, "thinking", at, &text)) return ST_INVALID;
    if (!json_string_length(text)) return ST_OK; /* only the signature was shown */
    if (!list && json_object_set_new(message, "reasoning_content", list = json_array())) return no_memory(t);
    return json_array_append(list, text) ? no_memory(t) : ST_OK;
}

static enum status tool_use_block(struct translation *t, json_t *block, json_t *message, const struct at *at)
{
    json_t *id, *name, *input = field(block, "input"), *calls = json_object_get(message, "tool_calls");
    if (need_string(t, block, "id", at, &id) || need_string(t, block, "name", at, &name)) return ST_INVALID;
    if (input && (!json_is_object(input) || json_big_int(input)))
        return fault(t, "invalid_type", at, "input", "Must be an object.");
    const struct template *tmpl = t->g->r->srv->model->tmpl;
    json_t *arguments = input ? json_incref(input) : json_object();
    if (arguments && tmpl && template_caps(tmpl, t->tools)->arguments_as_text) {
        char *text = json_dumps(arguments, 0);
        json_decref(arguments);
        arguments = text ? json_string_nocheck(text) : NULL;
        free(text);
    }
    if (!calls)
        calls = json_object_set_new(message, "tool_calls", json_array())
                    ? NULL
                    : json_object_get(message, "tool_calls");
    json_t *call = arguments ? json_pack("{s:O,s:s,s:{s:O,s:o}}", "id", id, "type", "function", "function",
                                         "name", name, "arguments", arguments)
                             : NULL;
    return !calls || !call || json_array_append_new(calls, call) ? no_memory(t) : ST_OK;
}

/* A chat has no field for a failure: the text says it. */
static const char error_front[] = "Error: ";

static enum status result_content(struct translation *t, json_t *content, bool failed, json_t *message,
                                  const struct at *at)
{
    bool text_first = json_is(json_object_get(json_array_get(content, 0), "type"), "text");
    size_t front = failed && text_first ? strlen(error_front) : 0;
    if (failed && !text_first && add_part(t, message, text_part(json_string(error_front)), at))
        return ST_INVALID;
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *block = json_array_get(content, i), *type, *text;
        struct at in = {.block = at->block, .inner = (int32_t)i};
        snprintf(in.path, sizeof in.path, "%.64s.content[%zu]", at->path, i);
        if (count_block(t, &in)) return ST_INVALID;
        if (!json_is_object(block)) return fault(t, "invalid_type", &in, NULL, "Must be an object.");
        if (need_string(t, block, "type", &in, &type)) return ST_INVALID;
        enum status st;
        if (json_is(type, "image")) {
            st = image_block(t, block, message, &in);
        } else if (!json_is(type, "text")) {
            st = fault(t, "unsupported_content_part", &in, "type",
                       "Content blocks of type '%.60s' are not supported here.", json_string_value(type));
        } else {
            st = need_string(t, block, "text", &in, &text);
            if (!st) st = add_part(t, message, text_part(joined(error_front, front, text)), &in);
            front = 0;
        }
        if (st) return st;
    }
    return ST_OK;
}

static enum status tool_result_block(struct translation *t, json_t *block, const struct at *at)
{
    json_t *id, *content = field(block, "content"), *failed = field(block, "is_error"), *message;
    if (need_string(t, block, "tool_use_id", at, &id)) return ST_INVALID;
    if (failed && !json_is_boolean(failed))
        return fault(t, "invalid_type", at, "is_error", "Must be a boolean.");
    if (content && !json_is_string(content) && !json_is_array(content))
        return fault(t, "invalid_type", at, "content", "Must be a string or an array of content blocks.");
    if (message_for(t, "tool", at, &message)) return ST_INVALID;
    if (json_object_set(message, "tool_call_id", id)) return no_memory(t);
    if (!json_is_string(content)) return result_content(t, content, json_is_true(failed), message, at);
    json_t *text = joined(error_front, json_is_true(failed) ? strlen(error_front) : 0, content);
    return add_part(t, message, text_part(text), at);
}

enum { IN_USER = 1, IN_ASSISTANT = 2, IN_SYSTEM = 4 };

static enum status one_block(struct translation *t, json_t *block, const char *role, const struct at *at)
{
    static const struct {
        const char *type;
        unsigned roles;
        enum status (*read)(struct translation *t, json_t *block, json_t *message, const struct at *at);
    } kinds[] = {{"text", IN_USER | IN_ASSISTANT | IN_SYSTEM, text_block},
                 {"image", IN_USER, image_block},
                 {"tool_result", IN_USER, NULL},
                 {"thinking", IN_ASSISTANT, thinking_block},
                 {"redacted_thinking", IN_ASSISTANT, NULL},
                 {"tool_use", IN_ASSISTANT, tool_use_block}};
    unsigned in = *role == 'u' ? IN_USER : *role == 'a' ? IN_ASSISTANT : IN_SYSTEM;
    json_t *type, *message;
    if (count_block(t, at)) return ST_INVALID;
    if (!json_is_object(block))
        return fault(t, "invalid_type", at, NULL, "A content block must be an object.");
    if (need_string(t, block, "type", at, &type)) return ST_INVALID;
    size_t i = 0;
    while (i < sizeof kinds / sizeof *kinds && !json_is(type, kinds[i].type)) i++;
    if (i == sizeof kinds / sizeof *kinds)
        return fault(t, "unsupported_content_part", at, "type",
                     "Content blocks of type '%.60s' are not supported.", json_string_value(type));
    if (!(kinds[i].roles & in))
        return fault(t, "invalid_value", at, "type",
                     "Content blocks of type '%.60s' are not allowed in a message of this role.",
                     kinds[i].type);
    if (json_is(type, "tool_result")) return tool_result_block(t, block, at);
    enum status st = message_for(t, role, at, &message);
    return st || !kinds[i].read ? st : kinds[i].read(t, block, message, at);
}

/* ---- messages ---- */

static enum status content_of(struct translation *t, json_t *content, const char *role, struct at *at)
{
    json_t *message;
    at->block = at->inner = -1;
    if (json_is_string(content)) {
        enum status st = message_for(t, role, at, &message);
        return st ? st : add_part(t, message, text_part(json_incref(content)), at);
    }
    if (!content) return fault(t, "missing_required_parameter", at, NULL, "Field required.");
    if (!json_is_array(content))
        return fault(t, "invalid_type", at, NULL, "Must be a string or an array of content blocks.");
    if (!json_array_size(content) && *role == 'u')
        return fault(t, "empty_array", at, NULL, "Must not be empty.");
    if (!json_array_size(content)) return message_for(t, role, at, &message);
    struct at in = {.inner = -1};
    for (size_t i = 0; i < json_array_size(content); i++) {
        snprintf(in.path, sizeof in.path, "%.64s[%zu]", at->path, i);
        in.block = (int32_t)i;
        enum status st = one_block(t, json_array_get(content, i), role, &in);
        if (st) return st;
    }
    return ST_OK;
}

/* Several thoughts of one turn follow each other without a break, as their deltas do. */
static enum status reasoning_settle(struct translation *t, json_t *message)
{
    json_t *list = json_object_get(message, "reasoning_content");
    if (!list) return ST_OK;
    json_t *all = strings_joined(list);
    return !all || json_object_set_new(message, "reasoning_content", all) ? no_memory(t) : ST_OK;
}

/* A single text is a string: that is what all templates know. */
static enum status contents_settle(struct translation *t)
{
    size_t i;
    json_t *message;
    json_array_foreach(t->chat, i, message)
    {
        json_t *content = json_object_get(message, "content");
        size_t n = json_array_size(content);
        if (reasoning_settle(t, message)) return ST_INVALID;
        json_t *text = n == 1 ? json_object_get(json_array_get(content, 0), "text") : NULL;
        if (n && !text) continue;
        if (json_object_set_new(message, "content", text ? json_incref(text) : json_string("")))
            return no_memory(t);
    }
    return ST_OK;
}

/* An assistant's message at the end is continued. */
static enum status prefill(struct translation *t, json_t *root)
{
    size_t n = json_array_size(t->chat);
    json_t *last = n ? json_array_get(t->chat, n - 1) : NULL, *content = json_object_get(last, "content");
    struct at at = {.block = -1, .inner = -1};
    if (!has_role(last, "assistant")) return ST_OK;
    snprintf(at.path, sizeof at.path, "messages[%zu]", t->at - 1);
    if (json_object_get(last, "tool_calls"))
        return fault(t, "invalid_value", &at, NULL,
                     "Content blocks of type 'tool_use' must be followed by a message with their results.");
    if (!json_is_string(content) || json_string_length(content))
        return json_object_set_new(root, "continue_final_message", json_true()) ? no_memory(t) : ST_OK;
    if (json_object_get(last, "reasoning_content"))
        return fault(t, "invalid_value", &at, NULL, "The last message has no text to continue.");
    return json_array_remove(t->chat, n - 1) ? no_memory(t) : ST_OK;
}

enum status messages_translate_chat(struct translation *t, json_t *root, json_t *chat_root)
{
    json_t *system = field(root, "system"), *messages = field(root, "messages"), *role;
    struct at at = {.path = "system"};
    t->at = UINT32_MAX;
    bool empty = (json_is_string(system) && !json_string_length(system)) ||
                 (json_is_array(system) && !json_array_size(system));
    if (system && !empty && content_of(t, system, "system", &at)) return ST_INVALID;
    snprintf(at.path, sizeof at.path, "messages");
    if (!messages) return fault(t, "missing_required_parameter", &at, NULL, "Field required.");
    if (!json_is_array(messages)) return fault(t, "invalid_type", &at, NULL, "Must be an array.");
    if (!json_array_size(messages))
        return fault(t, "empty_array", &at, NULL, "At least one message is required.");
    if (json_array_size(messages) > LIMIT_MESSAGES)
        return fault(t, "invalid_value", &at, NULL, "There are more than %u messages.", LIMIT_MESSAGES);
    for (t->at = 0; t->at < json_array_size(messages); t->at++) {
        json_t *m = json_array_get(messages, t->at);
        snprintf(at.path, sizeof at.path, "messages[%zu]", t->at);
        if (!json_is_object(m)) return fault(t, "invalid_type", &at, NULL, "A message must be an object.");
        if (need_string(t, m, "role", &at, &role)) return ST_INVALID;
        if (!json_is(role, "user") && !json_is(role, "assistant") && !json_is(role, "system"))
            return fault(t, "invalid_value", &at, "role", "'%.60s' is not one of 'user', 'assistant'.",
                         json_string_value(role));
        snprintf(at.path, sizeof at.path, "messages[%zu].content", t->at);
        if (content_of(t, field(m, "content"), json_string_value(role), &at)) return ST_INVALID;
    }
    return contents_settle(t) || prefill(t, chat_root) ? ST_INVALID : ST_OK;
}
