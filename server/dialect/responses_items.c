/* Items of /v1/responses -> messages of a chat: those that the model wrote in one turn (reasoning, text,
 * calls) become one message. What went before comes from the store and takes the same way. Worker thread.
 * What the chat checks anyway is left to it; its errors find their way back by the origins noted here. */
#include "server/dialect/responses.h"

#include "server/http/fields.h"
#include "server/http/json_in.h"
#include "server/http/json_value.h"
#include "server/http/limits.h"
#include "server/http/request.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct intake {
    struct reader *r;
    struct responses_state *s;
    json_t *chat; /* messages; owned by r->to */
    struct message_origin at;
    json_t *turn;   /* the model's message that further items belong to, or NULL */
    bool turn_text; /* its last item was text */
    size_t pieces;  /* items and parts so far */
};

/* At the item at hand: where = "", ".role", ... */
static enum status fault(struct intake *t, const char *code, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static enum status fault(struct intake *t, const char *code, const char *where, const char *fmt, ...)
{
    char path[128], text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (t->at.from == FROM_BEFORE) snprintf(path, sizeof path, "previous_response_id");
    else snprintf(path, sizeof path, "input[%u]%s", t->at.item, where);
    return api_fail(t->r->e, 400, code, path, "%s", text);
}

/* Each becomes several values. */
static enum status count_pieces(struct intake *t, size_t n)
{
    t->pieces += n;
    if (t->pieces <= LIMIT_PARTS) return ST_OK;
    return fault(t, "invalid_value", "", "There are more than %u items and content parts.", LIMIT_PARTS);
}

static enum status need_string(struct intake *t, json_t *item, const char *key, json_t **out)
{
    char where[40];
    *out = field(item, key);
    snprintf(where, sizeof where, ".%s", key);
    if (!*out) return fault(t, "missing_required_parameter", where, "Field required.");
    return json_is_string(*out) ? ST_OK : fault(t, "invalid_type", where, "Must be a string.");
}

/* Consumes message. */
static enum status add_message(struct intake *t, json_t *message)
{
    struct responses_state *s = t->s;
    if (s->origin_count == s->origin_cap) {
        size_t cap = s->origin_cap ? 2 * s->origin_cap : 16;
        void *grown = realloc(s->origins, cap * sizeof *s->origins);
        if (!grown) {
            json_decref(message);
            return reader_no_memory(t->r);
        }
        s->origins = grown;
        s->origin_cap = cap;
    }
    if (!message || json_array_append_new(t->chat, message)) return reader_no_memory(t->r);
    s->origins[s->origin_count++] = t->at;
    return ST_OK;
}

/* The model's message that the next item belongs to. */
static enum status turn_for(struct intake *t, bool anew)
{
    if (t->turn && !anew) return ST_OK;
    t->turn = json_pack("{s:s,s:[]}", "role", "assistant", "content");
    t->turn_text = false;
    return add_message(t, t->turn);
}

/* Lists of texts for the time being: turns_settle puts them together. */
static enum status turn_add(struct intake *t, const char *key, json_t *text)
{
    json_t *list = json_object_get(t->turn, key);
    if (!list && json_object_set_new(t->turn, key, list = json_array())) return reader_no_memory(t->r);
    return json_array_append(list, text) ? reader_no_memory(t->r) : ST_OK;
}

static enum status turns_settle(struct intake *t)
{
    static const char *const keys[] = {"content", "reasoning_content"};
    size_t i;
    json_t *message;
    json_array_foreach(t->chat, i, message)
    {
        for (size_t k = 0; k < 2 && json_is(json_object_get(message, "role"), "assistant"); k++) {
            const json_t *list = json_object_get(message, keys[k]);
            json_t *all = list ? strings_joined(list) : NULL;
            if (list && (!all || json_object_set_new(message, keys[k], all))) return reader_no_memory(t->r);
        }
    }
    return ST_OK;
}

/* ---- kinds of items ---- */

static enum status assistant_item(struct intake *t, json_t *content)
{
    enum status st = count_pieces(t, json_array_size(content));
    if (!st) st = turn_for(t, t->turn_text);
    if (st) return st;
    t->turn_text = true;
    if (!st && json_is_string(content)) return turn_add(t, "content", content);
    for (size_t i = 0; i < json_array_size(content) && !st; i++) {
        json_t *part = json_array_get(content, i), *type = field(part, "type"), *text;
        char where[48];
        snprintf(where, sizeof where, ".content[%zu]", i);
        if (!json_is_object(part)) return fault(t, "invalid_type", where, "Must be an object.");
        bool refusal = json_is(type, "refusal");
        if (type && !refusal && !json_is(type, "output_text") && !json_is(type, "input_text") &&
            !json_is(type, "text"))
            return fault(t, "unsupported_content_part", where,
                         "Only parts of type 'output_text' and 'refusal' are allowed in a message of this "
                         "role.");
        text = field(part, refusal ? "refusal" : "text");
        if (!json_is_string(text))
            return fault(t, text ? "invalid_type" : "missing_required_parameter", where,
                         "The content part has no text.");
        st = turn_add(t, "content", text);
    }
    return st;
}

/* A single text is a string: that is what all templates know. */
static json_t *content_of(json_t *content)
{
    json_t *part = json_array_size(content) == 1 ? json_array_get(content, 0) : NULL, *type;
    type = field(part, "type");
    json_t *text = json_is(type, "input_text") || json_is(type, "output_text") || json_is(type, "text")
                       ? field(part, "text")
                       : NULL;
    return json_incref(json_is_string(text) ? text : content);
}

/* Kinds of parts are the chat's; what it can't know is said here. */
static enum status parts_check(struct intake *t, json_t *content, const char *key)
{
    char where[48];
    snprintf(where, sizeof where, ".%s", key);
    if (!content) return fault(t, "missing_required_parameter", where, "Field required.");
    if (!json_is_string(content) && !json_is_array(content))
        return fault(t, "invalid_type", where, "Must be a string or an array of content parts.");
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *part = json_array_get(content, i);
        if (!json_is(field(part, "type"), "input_image") || !field(part, "file_id")) continue;
        snprintf(where, sizeof where, ".%s[%zu].file_id", key, i);
        return fault(t, "unsupported_parameter", where,
                     "This server keeps no files: give the picture as image_url.");
    }
    return ST_OK;
}

static enum status message_item(struct intake *t, json_t *item)
{
    json_t *role, *content = field(item, "content");
    if (need_string(t, item, "role", &role) || parts_check(t, content, "content")) return ST_INVALID;
    if (json_is(role, "assistant")) return assistant_item(t, content);
    if (!json_is(role, "user") && !json_is(role, "system") && !json_is(role, "developer"))
        return fault(t, "invalid_value", ".role",
                     "'%.60s' is not one of 'user', 'assistant', 'system', 'developer'.",
                     json_string_value(role));
    t->turn = NULL;
    return add_message(t, json_pack("{s:O,s:o}", "role", role, "content", content_of(content)));
}

static enum status call_item(struct intake *t, json_t *item)
{
    json_t *id, *name, *arguments, *calls;
    if (need_string(t, item, "call_id", &id) || need_string(t, item, "name", &name) ||
        need_string(t, item, "arguments", &arguments) || turn_for(t, false))
        return ST_INVALID;
    t->turn_text = false;
    calls = json_object_get(t->turn, "tool_calls");
    if (!calls && json_object_set_new(t->turn, "tool_calls", calls = json_array()))
        return reader_no_memory(t->r);
    json_t *call = json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", arguments);
    return !call || json_array_append_new(calls, call) ? reader_no_memory(t->r) : ST_OK;
}

static enum status result_item(struct intake *t, json_t *item)
{
    json_t *id, *output = field(item, "output");
    if (need_string(t, item, "call_id", &id) || parts_check(t, output, "output")) return ST_INVALID;
    t->turn = NULL;
    if (t->at.from == FROM_INPUT) t->at.from = FROM_OUTPUT_OF;
    return add_message(
        t, json_pack("{s:s,s:O,s:o}", "role", "tool", "tool_call_id", id, "content", content_of(output)));
}

/* Without its text, as others send it in encrypted form, it tells this model nothing. */
static enum status reasoning_item(struct intake *t, json_t *item)
{
    json_t *content = field(item, "content");
    if (content && !json_is_array(content))
        return fault(t, "invalid_type", ".content", "Must be an array of parts.");
    if (count_pieces(t, json_array_size(content))) return ST_INVALID;
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *text = field(json_array_get(content, i), "text");
        char where[48];
        snprintf(where, sizeof where, ".content[%zu].text", i);
        if (!json_is_string(text))
            return fault(t, text ? "invalid_type" : "missing_required_parameter", where,
                         "The reasoning has no text.");
        bool other = t->turn_text || (t->turn && json_object_get(t->turn, "tool_calls"));
        if (turn_for(t, other) || turn_add(t, "reasoning_content", text)) return ST_INVALID;
    }
    return ST_OK;
}

static enum status one_item(struct intake *t, json_t *item)
{
    if (count_pieces(t, 1)) return ST_INVALID;
    if (!json_is_object(item)) return fault(t, "invalid_type", "", "An item must be an object.");
    json_t *type = field(item, "type");
    if (type && !json_is_string(type)) return fault(t, "invalid_type", ".type", "Must be a string.");
    if (type ? json_is(type, "message") : field(item, "role") != NULL) return message_item(t, item);
    if (json_is(type, "function_call")) return call_item(t, item);
    if (json_is(type, "function_call_output")) return result_item(t, item);
    if (json_is(type, "reasoning")) return reasoning_item(t, item);
    if (!type && !field(item, "id"))
        return fault(t, "missing_required_parameter", ".type", "Field required.");
    return fault(t, "unsupported_value", ".type", "Items of type '%.60s' are not supported.",
                 type ? json_string_value(type) : "item_reference");
}

/* ---- all of them ---- */

static enum status kept_json(struct intake *t, const struct buf *text, json_t **out)
{
    struct json_in p = {.text = text->data ? text->data : "", .len = text->len};
    enum status st = json_in_parse(&p, out);
    return st ? reader_no_memory(t->r) : ST_OK;
}

static enum status kept_items(struct intake *t, const struct response_kept *kept)
{
    json_t *items = NULL, *response = NULL;
    enum status st = kept_json(t, &kept->items, &items);
    if (!st) st = kept_json(t, &kept->response, &response);
    for (size_t i = 0; i < json_array_size(items) && !st; i++) st = one_item(t, json_array_get(items, i));
    json_t *output = field(response, "output");
    for (size_t i = 0; i < json_array_size(output) && !st; i++) st = one_item(t, json_array_get(output, i));
    json_decref(items);
    json_decref(response);
    return st;
}

/* Oldest first. */
static enum status items_before(struct intake *t)
{
    size_t count = 0, i = 0;
    t->at.from = FROM_BEFORE;
    for (const struct response_kept *k = t->s->before; k; k = k->before) count++;
    if (!count) return ST_OK;
    const struct response_kept **list = calloc(count, sizeof *list);
    if (!list) return reader_no_memory(t->r);
    for (const struct response_kept *k = t->s->before; k; k = k->before) list[i++] = k;
    enum status st = ST_OK;
    while (i && !st) st = kept_items(t, list[--i]);
    free(list);
    return st;
}

static enum status items_input(struct intake *t)
{
    json_t *input = field(t->r->from, "input");
    if (!input && t->s->before) return ST_OK;
    if (!input) return api_fail(t->r->e, 400, "missing_required_parameter", "input", "Field required.");
    t->at = (struct message_origin){FROM_INPUT, 0};
    t->s->plain = json_is_string(input);
    if (t->s->plain) {
        t->turn = NULL;
        return add_message(t, json_pack("{s:s,s:O}", "role", "user", "content", input));
    }
    if (!json_is_array(input))
        return api_fail(t->r->e, 400, "invalid_type", "input", "Must be a string or an array of items.");
    if (!json_array_size(input) && !t->s->before)
        return api_fail(t->r->e, 400, "empty_array", "input", "Must not be empty.");
    for (size_t i = 0; i < json_array_size(input); i++) {
        t->at = (struct message_origin){FROM_INPUT, (uint32_t)i};
        enum status st = one_item(t, json_array_get(input, i));
        if (st) return st;
    }
    return ST_OK;
}

enum status responses_messages(struct reader *r, struct responses_state *s)
{
    json_t *instructions = field(r->from, "instructions");
    struct intake t = {.r = r, .s = s, .chat = json_array(), .at = {FROM_INSTRUCTIONS, 0}};
    if (reader_put(r, "messages", t.chat)) return ST_INVALID;
    if (instructions && !json_is_string(instructions))
        return api_fail(r->e, 400, "invalid_type", "instructions", "Must be a string.");
    if (instructions && add_message(&t, json_pack("{s:s,s:O}", "role", "system", "content", instructions)))
        return ST_INVALID;
    return items_before(&t) || items_input(&t) || turns_settle(&t) ? ST_INVALID : ST_OK;
}

/* ---- what is kept ---- */

static bool set_missing(json_t *o, const char *key, json_t *value)
{
    if (!field(o, key)) return value && !json_object_set_new(o, key, value);
    json_decref(value);
    return true;
}

/* A message's text as a part; an id; all as the list of input items shows it. */
static json_t *item_kept(const struct responses_state *s, json_t *item, size_t index)
{
    json_t *copy = json_copy(item), *content = field(item, "content");
    bool message = !field(item, "type") || json_is(field(item, "type"), "message"), ok = copy != NULL;
    bool model = json_is(field(item, "role"), "assistant");
    char id[64];
    snprintf(id, sizeof id, "%s_%s_i%zu",
             message                                     ? "msg"
             : json_is(field(item, "type"), "reasoning") ? "rs"
                                                         : "fc",
             s->id + strlen("resp_"), index);
    if (ok && message) ok = set_missing(copy, "type", json_string("message"));
    if (ok) ok = set_missing(copy, "id", json_string(id));
    if (ok) ok = set_missing(copy, "status", json_string("completed"));
    if (ok && message && json_is_string(content)) {
        json_t *parts =
            model ? json_pack("[{s:s,s:O,s:[]}]", "type", "output_text", "text", content, "annotations")
                  : json_pack("[{s:s,s:O}]", "type", "input_text", "text", content);
        ok = parts && !json_object_set_new(copy, "content", parts);
    }
    if (ok) return copy;
    json_decref(copy);
    return NULL;
}

enum status responses_items_keep(struct reader *r, struct responses_state *s)
{
    json_t *input = field(r->from, "input"), *items;
    struct json_out o = {.buf = &s->items};
    items = json_is_string(input) ? json_pack("[{s:s,s:O}]", "role", "user", "content", input)
            : input               ? json_incref(input)
                                  : json_array();
    if (!items) return reader_no_memory(r);
    jo_text(&o, "[");
    for (size_t i = 0; i < json_array_size(items) && !o.st; i++) {
        json_t *item = item_kept(s, json_array_get(items, i), i);
        if (i) jo_text(&o, ",");
        if (item) jo_value(&o, item);
        else o.st = ST_NOMEM;
        json_decref(item);
    }
    jo_text(&o, "]");
    json_decref(items);
    return o.st;
}
