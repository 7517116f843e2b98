/* The messages of a chat -> the variable `messages`, as a template expects it, with the origin of every
 * string. */
#include "server/chat/template_internal.h"

#include <string.h>

struct builder {
    struct jinja_ctx *c;
    const struct template_caps *caps;
    const struct template_request *rq;
    const char *tag; /* appended to the last text of the last message */
    struct template_final *final_text;
    struct template_trace *trace;
    uint32_t at; /* index of the current message */
    struct err *err;
    struct jinja_value list, *each;
    struct jinja_value lead; /* text of a system message that the template can't render: prepended to the
                                first user message */
    bool have_lead;
    const json_t *calls; /* of the preceding assistant message: tool results may belong there */
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

/* The origin of a part of this message's content; part -1: the whole content. */
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

/* A string, followed by the tag if it is the one to be continued. */
static struct jinja_value text_value(struct builder *b, struct text text, uint32_t origin, bool tagged)
{
    struct jinja_value v = jinja_string(b->c, text.data, text.len, origin);
    if (!tagged) return v;
    *b->final_text = (struct template_final){.text = text.data, .len = text.len};
    return jinja_join2(b->c, v, jinja_string(b->c, b->tag, strlen(b->tag), JINJA_ASSISTANT));
}

/* Prepends the pending system text to this user message. */
static struct jinja_value with_lead(struct builder *b, struct jinja_value v)
{
    if (!b->have_lead) return v;
    b->have_lead = false;
    return jinja_join2(b->c, b->lead, v);
}

/* The parts as the family's own template writes them. */
static enum status content_string(struct builder *b, const struct chat_message *m, enum jinja_origin origin,
                                  size_t tagged, struct jinja_value *out)
{
    const struct model_parts *rule = b->rq->parts;
    bool sorted = rule && (rule->order == PARTS_IMAGES_FIRST ||
                           (rule->order == PARTS_OF_PAIRS_FIRST && m->part_count == 2));
    struct jinja_value v = jinja_string(b->c, "", 0, JINJA_TEMPLATE);
    for (size_t k = 0; k < m->part_count * (sorted ? 2 : 1); k++) {
        size_t i = k % m->part_count, len;
        struct text text = m->parts[i].text;
        const char *place = m->parts[i].video ? b->rq->video_placeholder : b->rq->image_placeholder, *kept;
        uint32_t from = content_from(b, origin, (int32_t)i);
        if (sorted && !text.data != (k < m->part_count)) continue;
        if (i && !rule) v = jinja_join2(b->c, v, jinja_string(b->c, "\n", 1, from));
        if (!text.data && !place)
            return err_set(b->err, ST_INVALID, "this chat template has no place for %s",
                           m->parts[i].video ? "videos" : "images");
        if (text.data && rule && rule->trim && i != tagged) {
            len = text.len;
            kept = jinja_trim(text.data, &len, 3);
            v = jinja_join2(b->c, v, jinja_string(b->c, kept, len, from));
        } else {
            v = jinja_join2(b->c, v, text.data ? text_value(b, text, from, i == tagged) : literal(b, place));
        }
    }
    *out = v;
    return ST_OK;
}

static struct jinja_value content_list(struct builder *b, const struct chat_message *m,
                                       enum jinja_origin origin, size_t tagged, bool lead)
{
    struct jinja_value list = jinja_list(b->c, content_from(b, origin, -1));
    for (size_t i = 0; i < m->part_count; i++) {
        struct text text = m->parts[i].text;
        uint32_t from = content_from(b, origin, m->list ? (int32_t)i : -1);
        struct jinja_value d = jinja_dict(b->c, from),
                           v = text.data ? text_value(b, text, from, i == tagged) : jinja_none();
        if (lead && b->have_lead && !text.data) {
            struct jinja_value first = jinja_dict(b->c, from);
            jinja_dict_set(b->c, first, "type", 4, literal(b, "text"));
            jinja_dict_set(b->c, first, "text", 4, with_lead(b, literal(b, "")));
            jinja_list_add(b->c, list, first);
        }
        const char *type = m->parts[i].thinking ? "thinking"
                           : text.data          ? "text"
                           : m->parts[i].video  ? "video"
                                                : "image";
        jinja_dict_set(b->c, d, "type", 4, literal(b, type));
        if (text.data) jinja_dict_set(b->c, d, type, strlen(type), lead ? with_lead(b, v) : v);
        const char *key;
        json_t *more;
        json_object_foreach(m->parts[i].more, key, more)
            jinja_dict_set(b->c, d, key, strlen(key), input(b, more, field_from(b, origin, key)));
        jinja_list_add(b->c, list, d);
    }
    return list;
}

/* Of images (false) or of videos. */
static bool has(const struct chat_message *m, bool video)
{
    for (size_t i = 0; i < m->part_count; i++)
        if (!m->parts[i].text.data && m->parts[i].video == video) return true;
    return false;
}

static enum status content_value(struct builder *b, const struct chat_message *m, enum jinja_origin origin,
                                 bool last, bool user, struct jinja_value *out)
{
    bool tagged = last && b->tag;
    size_t tagged_part = SIZE_MAX;
    if (!m->list && !b->caps->only_lists) {
        struct jinja_value v = text_value(b, m->parts[0].text, content_from(b, origin, -1), tagged);
        *out = user ? with_lead(b, v) : v;
        return ST_OK;
    }
    for (size_t i = m->part_count; tagged && i > 0 && tagged_part == SIZE_MAX; i--)
        if (m->parts[i - 1].text.data && !m->parts[i - 1].thinking) tagged_part = i - 1;
    if (tagged && tagged_part == SIZE_MAX)
        return err_set(b->err, ST_INVALID, "the final message has no text to continue");
    bool lost = (!b->caps->images && has(m, false)) || (!b->caps->videos && has(m, true));
    if (b->caps->content_list && (!lost || b->caps->only_lists)) {
        *out = content_list(b, m, origin, tagged_part, user);
        return ST_OK;
    }
    enum status st = content_string(b, m, origin, tagged_part, out);
    if (!st && user) *out = with_lead(b, *out);
    return st;
}

/* ---- missing template features ---- */

/* A system message's content for a template that only accepts one string. */
static enum status system_string(struct builder *b, const struct chat_message *m, bool last,
                                 struct jinja_value *out)
{
    struct template_caps strings = {.content_list = false};
    const struct template_caps *saved = b->caps;
    b->caps = &strings;
    enum status st = content_value(b, m, JINJA_INPUT, last, false, out);
    b->caps = saved;
    return st;
}

/* A system message's content for a template that supports system messages. */
static enum status system_value(struct builder *b, const struct chat_message *m, bool last,
                                struct jinja_value *out)
{
    if (b->caps->content_list && b->caps->images && !b->caps->system_images &&
        (has(m, false) || has(m, true)))
        return err_set(b->err, ST_INVALID,
                       "this model's chat template has no place for images in a system message: put them "
                       "into a user message");
    return b->caps->system_list ? content_value(b, m, JINJA_INPUT, last, false, out)
                                : system_string(b, m, last, out);
}

/* A system message for a template without one. */
static enum status hold_lead(struct builder *b, const struct chat_message *m)
{
    struct jinja_value v;
    enum status st = system_string(b, m, false, &v);
    if (st) return st;
    v = jinja_join2(b->c, v, jinja_string(b->c, "\n\n", 2, content_from(b, JINJA_INPUT, -1)));
    b->lead = b->have_lead ? jinja_join2(b->c, b->lead, v) : v;
    b->have_lead = true;
    return ST_OK;
}

static const json_t *name_of_result(const struct builder *b, const struct chat_message *m)
{
    const json_t *name = json_object_get(m->more, "name"), *id = json_object_get(m->more, "tool_call_id");
    if (json_is_string(name) || !json_is_string(id)) return name;
    for (size_t i = 0; i < json_array_size(b->calls); i++) {
        const json_t *call = json_array_get(b->calls, i);
        if (json_equal(json_object_get(call, "id"), id))
            return json_object_get(json_object_get(call, "function"), "name");
    }
    return NULL;
}

/* A tool result for a template that expects it inside the assistant message. */
static enum status fold_result(struct builder *b, const struct chat_message *m)
{
    struct jinja_value d = jinja_dict(b->c, JINJA_INPUT), v;
    const json_t *name = name_of_result(b, m);
    enum status st = content_value(b, m, JINJA_INPUT, false, false, &v);
    if (st) return st;
    jinja_dict_set(b->c, d, "name", 4,
                   json_is_string(name) ? input(b, name, field_from(b, JINJA_INPUT, "name"))
                                        : literal(b, "unknown"));
    jinja_dict_set(b->c, d, "response", 8, v);
    jinja_list_add(b->c, b->responses, d);
    return ST_OK;
}

/* ---- messages ---- */

/* Templates differ in the field name. */
static void set_reasoning(struct builder *b, struct jinja_value d, const struct chat_message *m)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    if (!m->reasons) return;
    const struct buf *text = &m->reasoning;
    struct jinja_value v =
        jinja_string(b->c, text->data ? text->data : "", text->len, field_from(b, JINJA_ASSISTANT, names[0]));
    for (size_t i = 0; i < 3; i++) jinja_dict_set(b->c, d, names[i], strlen(names[i]), v);
}

/* An id of a call; of one that is too long for the template the last characters, as vLLM passes it. */
static struct jinja_value call_id(struct builder *b, const json_t *id, uint32_t from)
{
    const char *text = json_string_value(id);
    size_t len = json_string_length(id), at = len;
    for (size_t n = 0; n < 9 && at; n += ((unsigned char)text[at] & 0xC0) != 0x80) at--;
    if (!b->caps->short_ids) at = 0;
    return jinja_string(b->c, text + at, len - at, from);
}

static struct jinja_value calls_value(struct builder *b, const json_t *calls)
{
    uint32_t from = field_from(b, JINJA_INPUT, "tool_calls");
    struct jinja_value list = jinja_list(b->c, from);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *id = json_object_get(call, "id");
        struct jinja_value d = template_value(b->c, call, from);
        if (json_is_string(id)) jinja_dict_set(b->c, d, "id", 2, call_id(b, id, from));
        jinja_dict_set(b->c, d, "type", 4, literal(b, "function")); /* the only type there is */
        jinja_list_add(b->c, list, d);
    }
    return list;
}

static enum status add_message(struct builder *b, const struct chat_message *m, bool last)
{
    enum chat_role is = m->role == CHAT_DEVELOPER && !b->caps->developer_role ? CHAT_SYSTEM : m->role;
    const char *role = chat_role_shown(is), *key;
    bool assistant = is == CHAT_ASSISTANT, tool = is == CHAT_TOOL || is == CHAT_FUNCTION;
    json_t *v;
    if (is == CHAT_SYSTEM && !b->caps->system_role && !last) return hold_lead(b, m);
    if (tool && b->caps->tool_responses && b->have_responses) return fold_result(b, m);
    /* The role is one of role_names and the keys are ours: templates build control tokens of them. */
    struct jinja_value d = jinja_dict(b->c, JINJA_TEMPLATE), content;
    jinja_dict_set(b->c, d, "role", 4,
                   jinja_string(b->c, role, strlen(role), field_from(b, JINJA_TEMPLATE, "role")));
    enum status st =
        is == CHAT_SYSTEM && b->caps->system_role
            ? system_value(b, m, last, &content)
            : content_value(b, m, assistant ? JINJA_ASSISTANT : JINJA_INPUT, last, is == CHAT_USER, &content);
    if (st) return st;
    if (m->calls && m->part_count == 1 && m->parts[0].text.data && !m->parts[0].text.len &&
        (m->plain ? b->caps->only_null_calls : b->caps->null_calls))
        content = jinja_none();
    jinja_dict_set(b->c, d, "content", 7, content);
    if (m->calls) jinja_dict_set(b->c, d, "tool_calls", 10, calls_value(b, m->calls));
    json_object_foreach(m->more, key, v) {
        uint32_t from = chat_field_known(key) || json_is_null(v) ? 0 : field_from(b, JINJA_INPUT, key);
        bool id = json_is_string(v) && strcmp(key, "tool_call_id") == 0;
        if (from)
            jinja_dict_set(b->c, jinja_with_origin(d, from), key, strlen(key),
                           id ? call_id(b, v, from) : template_value(b->c, v, from));
    }
    set_reasoning(b, d, m);
    b->have_responses = false;
    if (assistant && b->caps->tool_responses && m->calls) {
        b->calls = m->calls;
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
    const struct chat_messages *m = rq->messages;
    if (tag && (!m->count || m->list[m->count - 1].role != CHAT_ASSISTANT))
        return err_set(err, ST_INVALID, "continue_final_message needs an assistant message at the end");
    b.list = jinja_list(c, JINJA_INPUT);
    for (size_t i = 0; i < m->count; i++) {
        char at[64];
        b.at = (uint32_t)i;
        b.each[i] = jinja_none();
        enum status st = add_message(&b, &m->list[i], i + 1 == m->count);
        if (!st) continue;
        chat_place_name(&m->list[i].at, "", at, sizeof at);
        return err_prefix(err, st, "%s", at);
    }
    out->list = b.list;
    return ST_OK;
}
