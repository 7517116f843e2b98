/* Anthropic's `system` and `messages` -> messages of a chat: tool results become separate messages, thinking
 * becomes reasoning, adjacent messages of one role are merged. Worker thread. */
#include "server/dialect/messages.h"
#include "server/json/fields.h"
#include "server/context/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct intake {
    struct generation *g;
    struct chat_reader r;
    const char *front; /* of the next text */
};

/* The current block: its path after the message's place, and its index in the content. */
struct at {
    char path[64];
    uint32_t number;
};

/* `back` behind `front`, in the arena. */
static enum status joined(struct intake *t, const char *front, const json_t *back, struct text *out)
{
    size_t len = strlen(front), more = json_string_length(back);
    char *text = arena_alloc(&t->r.out->arena, len + more + 1, 1);
    if (!text) return chat_no_memory(&t->r);
    memcpy(text, front, len);
    if (more) memcpy(text + len, json_string_value(back), more);
    *out = (struct text){text, len + more};
    return ST_OK;
}

static enum status joined_add(struct intake *t, const char *front, const json_t *back, uint32_t number)
{
    struct text all;
    enum status st = joined(t, front, back, &all);
    return st ? st : chat_copy_add(&t->r, all, number);
}

static enum status text_add(struct intake *t, json_t *text, uint32_t number)
{
    const char *front = t->front;
    t->front = "";
    return *front ? joined_add(t, front, text, number) : chat_text_add(&t->r, text, number);
}

static struct chat_message *last_message(const struct intake *t)
{
    const struct chat_messages *m = t->r.out;
    return m->count ? &m->list[m->count - 1] : NULL;
}

/* The message for a block of this role: the last one, or a new one. Adjacent turns are merged; system
 * messages stay separate. */
static enum status message_for(struct intake *t, enum chat_role role, bool first)
{
    struct chat_message *last = last_message(t);
    bool turn = role != CHAT_SYSTEM || !first;
    return last && turn && last->role == role ? ST_OK : chat_message_add(&t->r, role, &last);
}

/* ---- blocks ---- */

/* Base64 image text is moved, not copied: its place in the body is emptied. */
static enum status image_block(struct intake *t, json_t *block, const struct at *at)
{
    json_t *source = field(block, "source"), *type, *media, *data, *url;
    struct text full;
    struct at in = *at;
    if (!source)
        return chat_fault_at(&t->r, "missing_required_parameter", at->path, ".source", "Field required.");
    if (!json_is_object(source))
        return chat_fault_at(&t->r, "invalid_type", at->path, ".source", "Must be an object.");
    snprintf(in.path, sizeof in.path, "%.50s.source", at->path);
    if (chat_string(&t->r, source, in.path, "type", &type)) return ST_INVALID;
    if (json_is(type, "url")) {
        if (chat_string(&t->r, source, in.path, "url", &url)) return ST_INVALID;
        if (arena_text(&t->r.out->arena, url, &full)) return chat_no_memory(&t->r);
    } else if (json_is(type, "base64")) {
        if (chat_string(&t->r, source, in.path, "media_type", &media) ||
            chat_string(&t->r, source, in.path, "data", &data))
            return ST_INVALID;
        const char *name = json_string_value(media);
        size_t len = json_string_length(media);
        if (len > 64 || strncmp(name, "image/", 6) != 0 ||
            strspn(name + 6, "abcdefghijklmnopqrstuvwxyz0123456789.+-") != len - 6)
            return chat_fault_at(&t->r, "invalid_value", in.path, ".media_type",
                                 "'%.60s' is no type of an image.", name);
        char front[96];
        snprintf(front, sizeof front, "data:%s;base64,", name);
        if (joined(t, front, data, &full)) return ST_NOMEM;
        json_object_del(source, "data");
    } else {
        return chat_fault_at(&t->r, "unsupported_value", in.path, ".type",
                             "Sources of type '%.60s' are not supported.", json_string_value(type));
    }
    struct image_ref *ref;
    enum status st = chat_image_add(&t->r, at->number, false, at->path, ".source", &ref);
    if (!st) ref->url = full;
    return st;
}

static enum status text_block(struct intake *t, json_t *block, const struct at *at)
{
    json_t *text;
    enum status st = chat_string(&t->r, block, at->path, "text", &text);
    return st ? st : text_add(t, text, at->number);
}

/* Documents of text; `title` first. */
static enum status document_block(struct intake *t, json_t *block, const struct at *at)
{
    json_t *source = field(block, "source"), *title = field(block, "title"), *data;
    char front[300] = "";
    if (!json_is_object(source) || !json_is(field(source, "type"), "text"))
        return chat_fault_at(&t->r, "unsupported_content_part", at->path, ".source",
                             "Only documents of type 'text' are supported.");
    if (chat_string(&t->r, source, at->path, "data", &data)) return ST_INVALID;
    if (json_is_string(title)) snprintf(front, sizeof front, "%.280s\n", json_string_value(title));
    return joined_add(t, front, data, at->number);
}

/* A tool found by a tool search: it is one of the request's tools. */
static enum status reference_block(struct intake *t, json_t *block, const struct at *at)
{
    json_t *name;
    if (chat_string(&t->r, block, at->path, "tool_name", &name)) return ST_INVALID;
    return chat_text_add(&t->r, name, at->number);
}

static enum status thinking_block(struct intake *t, json_t *block, const struct at *at)
{
    json_t *text;
    if (chat_string(&t->r, block, at->path, "thinking", &text)) return ST_INVALID;
    /* Without it, only the signature is present. */
    struct text thoughts = json_text(text);
    return thoughts.len ? chat_reasoning_add(&t->r, thoughts) : ST_OK;
}

static enum status tool_use_block(struct intake *t, json_t *block, const struct at *at)
{
    json_t *id, *name, *input = field(block, "input"), *arguments, *call;
    if (chat_string(&t->r, block, at->path, "id", &id) || chat_string(&t->r, block, at->path, "name", &name))
        return ST_INVALID;
    if (input && (!json_is_object(input) || json_big_int(input)))
        return chat_fault_at(&t->r, "invalid_type", at->path, ".input", "Must be an object.");
    arguments = input ? json_incref(input) : json_object();
    call = arguments ? chat_call_new(&t->r, id, name, arguments) : NULL;
    json_decref(arguments);
    return chat_call_add(&t->r, call);
}

static enum status content_of(struct intake *t, json_t *content, enum chat_role role, const struct at *at);

/* Chat messages have no field for a failure: it goes into the text. */
static enum status tool_result_block(struct intake *t, json_t *block, const struct at *at)
{
    json_t *id, *content = field(block, "content"), *failed = field(block, "is_error");
    struct chat_message *m;
    struct at in = {.number = 0};
    snprintf(in.path, sizeof in.path, "%.40s.content", at->path);
    if (chat_string(&t->r, block, at->path, "tool_use_id", &id)) return ST_INVALID;
    if (failed && !json_is_boolean(failed))
        return chat_fault_at(&t->r, "invalid_type", at->path, ".is_error", "Must be a boolean.");
    if (chat_message_add(&t->r, CHAT_TOOL, &m)) return ST_INVALID;
    if (!(m->more = json_pack("{s:O}", "tool_call_id", id))) return chat_no_memory(&t->r);
    t->front = json_is_true(failed) ? "Error: " : "";
    if (!json_is_string(content) && !json_is(field(json_array_get(content, 0), "type"), "text") &&
        json_is_true(failed) && text_add(t, NULL, 0))
        return ST_INVALID;
    return content ? content_of(t, content, CHAT_TOOL, &in) : ST_OK;
}

enum { IN_USER = 1, IN_ASSISTANT = 2, IN_SYSTEM = 4, IN_RESULT = 8 };

/* Claude Code's first system block: one line with a number that differs in each request, which would prevent
 * prefix caching. */
static bool is_billing_header(const struct intake *t, json_t *block)
{
    static const char front[] = "x-anthropic-billing-header:";
    const char *text = json_string_value(field(block, "text"));
    return text && strncmp(text, front, strlen(front)) == 0 && !strchr(text, '\n') &&
           t->g->ctx->opt->billing_header == BILLING_HEADER_DROP;
}

/* Results of Anthropic's own tools: not in the prompt. */
static bool is_hosted_result(const json_t *type)
{
    static const char end[] = "_tool_result";
    size_t n = json_string_length(type);
    return n > strlen(end) && strcmp(json_string_value(type) + n - strlen(end), end) == 0;
}

static enum status one_block(struct intake *t, json_t *block, enum chat_role role, const struct at *at)
{
    static const struct {
        const char *type;
        unsigned roles;
        enum status (*read)(struct intake *t, json_t *block, const struct at *at);
    } kinds[] = {{"text", IN_USER | IN_ASSISTANT | IN_SYSTEM | IN_RESULT, text_block},
                 {"image", IN_USER | IN_RESULT, image_block},
                 {"document", IN_USER | IN_RESULT, document_block},
                 {"tool_reference", IN_RESULT, reference_block},
                 {"tool_result", IN_USER, NULL},
                 {"server_tool_use", IN_ASSISTANT, NULL},
                 {"mcp_tool_use", IN_ASSISTANT, NULL},
                 {"thinking", IN_ASSISTANT, thinking_block},
                 {"redacted_thinking", IN_ASSISTANT, NULL},
                 {"tool_use", IN_ASSISTANT, tool_use_block}};
    unsigned in = role == CHAT_USER        ? IN_USER
                  : role == CHAT_ASSISTANT ? IN_ASSISTANT
                  : role == CHAT_TOOL      ? IN_RESULT
                                           : IN_SYSTEM;
    json_t *type;
    if (chat_count(&t->r, at->path, 1)) return ST_INVALID;
    if (!json_is_object(block))
        return chat_fault(&t->r, "invalid_type", at->path, "A content block must be an object.");
    if (chat_string(&t->r, block, at->path, "type", &type)) return ST_INVALID;
    if (role == CHAT_ASSISTANT && is_hosted_result(type)) return ST_OK;
    if (!at->number && strcmp(t->r.at.field, "system") == 0 && is_billing_header(t, block)) {
        t->g->left_out = "system[0]";
        return ST_OK;
    }
    size_t i = 0;
    while (i < sizeof kinds / sizeof *kinds && !json_is(type, kinds[i].type)) i++;
    if (i == sizeof kinds / sizeof *kinds)
        return chat_fault_at(&t->r, "unsupported_content_part", at->path, ".type",
                             "Content blocks of type '%.60s' are not supported.", json_string_value(type));
    if (!(kinds[i].roles & in))
        return chat_fault_at(&t->r, "invalid_value", at->path, ".type",
                             "Content blocks of type '%.60s' are not allowed in a message of this role.",
                             kinds[i].type);
    if (json_is(type, "tool_result")) return tool_result_block(t, block, at);
    enum status st = message_for(t, role, !at->number);
    return st || !kinds[i].read ? st : kinds[i].read(t, block, at);
}

/* ---- messages ---- */

static enum status content_of(struct intake *t, json_t *content, enum chat_role role, const struct at *at)
{
    if (json_is_string(content)) {
        enum status st = message_for(t, role, true);
        return st ? st : text_add(t, content, 0);
    }
    if (!content) return chat_fault(&t->r, "missing_required_parameter", at->path, "Field required.");
    if (!json_is_array(content))
        return chat_fault(&t->r, "invalid_type", at->path, "Must be a string or an array of content blocks.");
    if (!json_array_size(content) && role == CHAT_USER)
        return chat_fault(&t->r, "empty_array", at->path, "Must not be empty.");
    if (!json_array_size(content)) return message_for(t, role, true);
    for (size_t i = 0; i < json_array_size(content); i++) {
        struct at in = {.number = (uint32_t)i};
        snprintf(in.path, sizeof in.path, "%.40s[%zu]", at->path, i);
        enum status st = one_block(t, json_array_get(content, i), role, &in);
        if (st) return st;
    }
    return ST_OK;
}

/* A single text is a string: all templates support that. So is a system message: of a list, some show only
 * the first text. */
static enum status contents_resolve(struct intake *t)
{
    struct chat_messages *m = t->r.out;
    for (size_t i = 0; i < m->count; i++) {
        struct chat_message *one = &m->list[i];
        one->list = one->part_count > 1 && one->role != CHAT_TOOL && one->role != CHAT_SYSTEM;
        if (!one->list && chat_one_text(&t->r, one, "\n")) return ST_NOMEM;
    }
    return ST_OK;
}

/* An assistant's message at the end is continued. */
static enum status prefill(struct intake *t, bool *go_on)
{
    const struct at at = {.path = ""};
    struct chat_message *last = last_message(t);
    if (!last || last->role != CHAT_ASSISTANT) return ST_OK;
    if (last->calls)
        return chat_fault(
            &t->r, "invalid_value", at.path,
            "Content blocks of type 'tool_use' must be followed by a message with their results.");
    *go_on = last->list || last->parts[0].text.len;
    if (*go_on) return ST_OK;
    if (last->reasons)
        return chat_fault(&t->r, "invalid_value", at.path, "The last message has no text to continue.");
    chat_message_drop(t->r.out);
    return ST_OK;
}

static enum status one_message(struct intake *t, json_t *m)
{
    const struct at content = {.path = ".content"};
    json_t *name;
    enum chat_role role;
    if (!json_is_object(m)) return chat_fault(&t->r, "invalid_type", "", "A message must be an object.");
    if (chat_string(&t->r, m, "", "role", &name)) return ST_INVALID;
    if (!chat_role_find(name, &role) || role > CHAT_ASSISTANT || role == CHAT_DEVELOPER)
        return chat_fault(&t->r, "invalid_value", ".role", "'%.60s' is not one of 'user', 'assistant'.",
                          json_string_value(name));
    return content_of(t, field(m, "content"), role, &content);
}

enum status messages_read(struct generation *g, json_t *root, bool *go_on)
{
    json_t *system = field(root, "system"), *messages = field(root, "messages");
    const struct at at = {.path = ""};
    struct intake t = {.g = g, .front = ""};
    if (gen_read_begin(g, &t.r)) return ST_INVALID;
    bool empty = (json_is_string(system) && !json_string_length(system)) ||
                 (json_is_array(system) && !json_array_size(system));
    t.r.at.field = "system";
    if (system && !empty && content_of(&t, system, CHAT_SYSTEM, &at)) return ST_INVALID;
    t.r.at.field = "messages";
    if (!messages) return chat_fault(&t.r, "missing_required_parameter", at.path, "Field required.");
    if (!json_is_array(messages)) return chat_fault(&t.r, "invalid_type", at.path, "Must be an array.");
    if (!json_array_size(messages))
        return chat_fault(&t.r, "empty_array", at.path, "At least one message is required.");
    if (json_array_size(messages) > LIMIT_MESSAGES)
        return chat_fault(&t.r, "invalid_value", at.path, "There are more than %u messages.", LIMIT_MESSAGES);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        t.r.at.index = (int32_t)i;
        if (one_message(&t, json_array_get(messages, i))) return ST_INVALID;
    }
    return contents_resolve(&t) || prefill(&t, go_on) ? ST_INVALID : ST_OK;
}
