/* Normalised messages -> the variable `messages`, in the form that a template wants, with the origin of every
 * text. */
#include "server/chat/template_internal.h"

#include <string.h>

struct builder {
    struct jinja_ctx *c;
    const struct template_caps *caps;
    const struct template_request *rq;
    const char *tag; /* goes behind the last text of the last message */
    struct template_final *final_text;
    struct template_trace *trace;
    uint32_t at; /* index of the message at hand */
    struct err *err;
    struct jinja_value list, *each;
    struct jinja_value
        lead; /* text of a system message that the template can't show: goes before the first user message */
    bool have_lead;
    const json_t *calls; /* of the assistant message before: tool results may have to go there */
    struct jinja_value responses;
    bool have_responses;
};

static struct jinja_value literal(struct builder *b, const char *text)
{
    return jinja_string(b->c, text, strlen(text), JINJA_TEMPLATE);
}

static struct jinja_value input(struct builder *b, const json_t *v, uint32_t origin)
{
    return jinja_string(b->c, json_string_value(v), json_string_length(v), origin);
}

/* The origin of a part of this message's content; part -1: of all of it. */
static uint32_t content_from(struct builder *b, enum jinja_origin origin, int32_t part)
{
    return template_from(b->trace, origin,
                         &(struct template_source){.kind = TEMPLATE_CONTENT, .message = b->at, .part = part});
}

static uint32_t field_from(struct builder *b, enum jinja_origin origin, const char *name)
{
    static const char *const usual[] = {"role", "name", "tool_calls", "tool_call_id", "reasoning_content"};
    struct template_source s = {.kind = TEMPLATE_FIELD, .message = b->at, .part = -1};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (strcmp(name, usual[i]) == 0) s.field = usual[i];
    return template_from(b->trace, origin, &s);
}

/* A text, with the tag behind it if it is the one to be continued. */
static struct jinja_value text_value(struct builder *b, const json_t *text, uint32_t origin, bool tagged)
{
    struct jinja_value v = input(b, text, origin);
    if (!tagged) return v;
    *b->final_text =
        (struct template_final){.text = json_string_value(text), .len = json_string_length(text)};
    return jinja_join2(b->c, v, jinja_string(b->c, b->tag, strlen(b->tag), JINJA_ASSISTANT));
}

/* The system text that waits for a user message, which is now here. */
static struct jinja_value with_lead(struct builder *b, struct jinja_value v)
{
    if (!b->have_lead) return v;
    b->have_lead = false;
    return jinja_join2(b->c, b->lead, v);
}

static bool is_video(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type && strcmp(type, "video") == 0;
}

static enum status content_string(struct builder *b, const json_t *parts, enum jinja_origin origin,
                                  size_t tagged, struct jinja_value *out)
{
    struct jinja_value v = jinja_string(b->c, "", 0, JINJA_TEMPLATE);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        const char *place = is_video(part) ? b->rq->video_placeholder : b->rq->image_placeholder;
        uint32_t from = content_from(b, origin, (int32_t)i);
        if (i) v = jinja_join2(b->c, v, jinja_string(b->c, "\n", 1, from));
        if (!text && !place)
            return err_set(b->err, ST_INVALID, "this chat template has no place for %s",
                           is_video(part) ? "videos" : "images");
        v = jinja_join2(b->c, v, text ? text_value(b, text, from, i == tagged) : literal(b, place));
    }
    *out = v;
    return ST_OK;
}

static struct jinja_value content_list(struct builder *b, const json_t *parts, enum jinja_origin origin,
                                       size_t tagged, bool lead)
{
    struct jinja_value list = jinja_list(b->c, content_from(b, origin, -1));
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        uint32_t from = content_from(b, origin, (int32_t)i);
        struct jinja_value d = jinja_dict(b->c, from),
                           v = text ? text_value(b, text, from, i == tagged) : jinja_none();
        if (lead && b->have_lead && !text) {
            struct jinja_value first = jinja_dict(b->c, from);
            jinja_dict_set(b->c, first, "type", 4, literal(b, "text"));
            jinja_dict_set(b->c, first, "text", 4, with_lead(b, literal(b, "")));
            jinja_list_add(b->c, list, first);
        }
        jinja_dict_set(b->c, d, "type", 4, literal(b, text ? "text" : is_video(part) ? "video" : "image"));
        if (text) jinja_dict_set(b->c, d, "text", 4, lead ? with_lead(b, v) : v);
        jinja_list_add(b->c, list, d);
    }
    return list;
}

static enum status content_value(struct builder *b, const json_t *content, enum jinja_origin origin,
                                 bool last, bool user, struct jinja_value *out)
{
    bool tagged = last && b->tag;
    size_t tagged_part = SIZE_MAX;
    if (!json_is_array(content)) {
        uint32_t from = content_from(b, origin, -1);
        struct jinja_value v = json_is_string(content) ? text_value(b, content, from, tagged)
                                                       : template_value(b->c, content, from);
        *out = user ? with_lead(b, v) : v;
        return ST_OK;
    }
    for (size_t i = json_array_size(content); tagged && i > 0 && tagged_part == SIZE_MAX; i--)
        if (json_object_get(json_array_get(content, i - 1), "text")) tagged_part = i - 1;
    if (tagged && tagged_part == SIZE_MAX)
        return err_set(b->err, ST_INVALID, "the final message has no text to continue");
    if (b->caps->content_list) {
        *out = content_list(b, content, origin, tagged_part, user);
        return ST_OK;
    }
    enum status st = content_string(b, content, origin, tagged_part, out);
    if (!st && user) *out = with_lead(b, *out);
    return st;
}

/* ---- what a template lacks ---- */

/* A system message's content for a template that takes it as one string only. */
static enum status system_string(struct builder *b, const json_t *content, bool last, struct jinja_value *out)
{
    struct template_caps strings = {.content_list = false};
    const struct template_caps *saved = b->caps;
    b->caps = &strings;
    enum status st = content_value(b, content, JINJA_INPUT, last, false, out);
    b->caps = saved;
    return st;
}

static bool has_pictures(const json_t *content)
{
    for (size_t i = 0; i < json_array_size(content); i++)
        if (!json_object_get(json_array_get(content, i), "text")) return true;
    return false;
}

/* The content of a system message for a template that has them. */
static enum status system_value(struct builder *b, const json_t *content, bool last, struct jinja_value *out)
{
    if (b->caps->content_list && !b->caps->system_pictures && has_pictures(content))
        return err_set(b->err, ST_INVALID,
                       "this model's chat template has no place for pictures in a system message: put them "
                       "into a user message");
    return b->caps->system_list ? content_value(b, content, JINJA_INPUT, last, false, out)
                                : system_string(b, content, last, out);
}

/* A system message for a template without one. */
static enum status hold_lead(struct builder *b, const json_t *content)
{
    struct jinja_value v;
    enum status st = system_string(b, content, false, &v);
    if (st) return st;
    v = jinja_join2(b->c, v, jinja_string(b->c, "\n\n", 2, content_from(b, JINJA_INPUT, -1)));
    b->lead = b->have_lead ? jinja_join2(b->c, b->lead, v) : v;
    b->have_lead = true;
    return ST_OK;
}

static const json_t *name_of_result(const struct builder *b, const json_t *m)
{
    const json_t *name = json_object_get(m, "name"), *id = json_object_get(m, "tool_call_id");
    if (json_is_string(name) || !json_is_string(id)) return name;
    for (size_t i = 0; i < json_array_size(b->calls); i++) {
        const json_t *call = json_array_get(b->calls, i);
        if (json_equal(json_object_get(call, "id"), id))
            return json_object_get(json_object_get(call, "function"), "name");
    }
    return NULL;
}

/* A tool's result for a template that wants it inside of the assistant's message. */
static enum status fold_result(struct builder *b, const json_t *m)
{
    struct jinja_value d = jinja_dict(b->c, JINJA_INPUT), v;
    const json_t *name = name_of_result(b, m);
    enum status st = content_value(b, json_object_get(m, "content"), JINJA_INPUT, false, false, &v);
    if (st) return st;
    jinja_dict_set(b->c, d, "name", 4,
                   json_is_string(name) ? input(b, name, field_from(b, JINJA_INPUT, "name"))
                                        : literal(b, "unknown"));
    jinja_dict_set(b->c, d, "response", 8, v);
    jinja_list_add(b->c, b->responses, d);
    return ST_OK;
}

/* ---- messages ---- */

static void set_reasoning(struct builder *b, struct jinja_value d, const json_t *m)
{
    static const char *const names[] = {"thinking", "reasoning"};
    const json_t *r = json_object_get(m, "reasoning_content");
    if (!json_is_string(r)) return;
    struct jinja_value v = input(b, r, field_from(b, JINJA_ASSISTANT, "reasoning_content"));
    jinja_dict_set(b->c, d, "reasoning_content", 17, v);
    for (size_t i = 0; i < 2; i++) /* templates differ in the name */
        if (!json_object_get(m, names[i])) jinja_dict_set(b->c, d, names[i], strlen(names[i]), v);
}

static enum status add_message(struct builder *b, const json_t *m, bool last)
{
    const char *role = json_string_value(json_object_get(m, "role")), *key;
    json_t *v, *object = (json_t *)(uintptr_t)m; /* iteration does not change it */
    if (!role) return err_set(b->err, ST_INVALID, "a message has no role");
    if (strcmp(role, "developer") == 0 && !b->caps->developer_role) role = "system";
    bool assistant = strcmp(role, "assistant") == 0, user = strcmp(role, "user") == 0;
    if (strcmp(role, "system") == 0 && !b->caps->system_role && !last)
        return hold_lead(b, json_object_get(m, "content"));
    if (strcmp(role, "tool") == 0 && b->caps->tool_responses && b->have_responses) return fold_result(b, m);
    struct jinja_value d = jinja_dict(b->c, JINJA_INPUT), content;
    json_object_foreach(object, key, v)
    {
        if (strcmp(key, "role") == 0) {
            jinja_dict_set(b->c, d, key, strlen(key),
                           jinja_string(b->c, role, strlen(role), field_from(b, JINJA_INPUT, key)));
        } else if (strcmp(key, "content") == 0) {
            enum status st =
                strcmp(role, "system") == 0 && b->caps->system_role
                    ? system_value(b, v, last, &content)
                    : content_value(b, v, assistant ? JINJA_ASSISTANT : JINJA_INPUT, last, user, &content);
            if (st) return st;
            jinja_dict_set(b->c, d, key, strlen(key), content);
        } else if (strcmp(key, "reasoning_content") != 0) {
            jinja_dict_set(b->c, d, key, strlen(key),
                           template_value(b->c, v, field_from(b, JINJA_INPUT, key)));
        }
    }
    set_reasoning(b, d, m);
    b->have_responses = false;
    if (assistant && b->caps->tool_responses && json_object_get(m, "tool_calls")) {
        b->calls = json_object_get(m, "tool_calls");
        b->responses = jinja_list(b->c, JINJA_INPUT);
        b->have_responses = true;
        jinja_dict_set(b->c, d, "tool_responses", 14, b->responses);
    }
    jinja_list_add(b->c, b->list, d);
    b->each[b->at] = d;
    return ST_OK;
}

enum status template_messages(struct jinja_ctx *c, const struct template_caps *caps,
                              const struct template_request *rq, const char *tag, struct template_chat *out,
                              struct template_final *final_text, struct template_trace *trace,
                              struct err *err)
{
    struct builder b = {.c = c,
                        .caps = caps,
                        .rq = rq,
                        .tag = tag,
                        .each = out->each,
                        .final_text = final_text,
                        .trace = trace,
                        .err = err};
    size_t n = json_array_size(rq->messages);
    const json_t *last = n ? json_array_get(rq->messages, n - 1) : NULL;
    const char *role = json_string_value(json_object_get(last, "role"));
    if (tag && (!role || strcmp(role, "assistant") != 0))
        return err_set(err, ST_INVALID, "continue_final_message needs an assistant message at the end");
    if (tag && !json_object_get(last, "content"))
        return err_set(err, ST_INVALID, "the final message has no text to continue");
    b.list = jinja_list(c, JINJA_INPUT);
    for (size_t i = 0; i < n; i++) {
        b.at = (uint32_t)i;
        b.each[i] = jinja_none();
        enum status st = add_message(&b, json_array_get(rq->messages, i), i + 1 == n);
        if (st) return err_prefix(err, st, "messages[%zu]", i);
    }
    out->list = b.list;
    return ST_OK;
}
