/* Items of /v1/responses -> messages of a chat: items of one model turn (reasoning, text, calls) become one
 * message. Items of previous responses come from the store and are converted the same way. Worker thread. */
#include "server/dialect/responses.h"

#include "server/json/fields.h"
#include "server/context/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct intake {
    struct chat_reader r; /* at: the current item */
    struct responses_state *s;
    bool turn;      /* the last message is the model's, and further items belong to it */
    bool turn_text; /* its last item is text */
    json_t *calls;  /* an object of the ids of calls so far; NULL: results of unknown calls are taken */
};

/* The model's message that the next item belongs to. */
static enum status turn_for(struct intake *t, bool new_turn)
{
    struct chat_message *m;
    if (t->turn && !new_turn) return ST_OK;
    t->turn = true;
    t->turn_text = false;
    return chat_message_add(&t->r, CHAT_ASSISTANT, &m);
}

static enum status turns_resolve(struct intake *t)
{
    struct chat_messages *m = t->r.out;
    for (size_t i = 0; i < m->count; i++) {
        enum chat_role role = m->list[i].role;
        bool instructs = role == CHAT_SYSTEM || role == CHAT_DEVELOPER; /* some templates show one text */
        if ((instructs && chat_one_text(&t->r, &m->list[i], "\n")) ||
            (role == CHAT_ASSISTANT && chat_one_text(&t->r, &m->list[i], "")))
            return ST_NOMEM;
    }
    return ST_OK;
}

/* ---- kinds of items ---- */

static enum status assistant_item(struct intake *t, json_t *content)
{
    enum status st = chat_count(&t->r, "", json_array_size(content));
    if (!st) st = turn_for(t, t->turn_text);
    if (st) return st;
    t->turn_text = true;
    if (json_is_string(content)) return chat_text_add(&t->r, content, 0);
    for (size_t i = 0; i < json_array_size(content) && !st; i++) {
        json_t *part = json_array_get(content, i), *type = field(part, "type"), *text;
        char where[48];
        snprintf(where, sizeof where, ".content[%zu]", i);
        if (!json_is_object(part)) return chat_fault(&t->r, "invalid_type", where, "Must be an object.");
        bool refusal = json_is(type, "refusal");
        if (type && !refusal && !json_is(type, "output_text") && !json_is(type, "input_text") &&
            !json_is(type, "text"))
            return chat_fault(
                &t->r, "unsupported_content_part", where,
                "Only parts of type 'output_text' and 'refusal' are allowed in a message of this "
                "role.");
        text = field(part, refusal ? "refusal" : "text");
        if (!json_is_string(text))
            return chat_fault(&t->r, text ? "invalid_type" : "missing_required_parameter", where,
                              "The content part has no text.");
        st = chat_text_add(&t->r, text, (uint32_t)i);
    }
    return st;
}

/* A single text is a string, which all templates support, unless it has what only the template knows.
 * name: ".content", ".output". */
static enum status content_of(struct intake *t, json_t *content, const char *name)
{
    enum status st = chat_content_read(&t->r, content, name);
    struct chat_message *m = &t->r.out->list[t->r.out->count - 1];
    const struct chat_part *only = m->part_count == 1 ? m->parts : NULL;
    if (!st && only && only->text.data && !only->thinking && !only->more) m->list = false;
    return st;
}

/* Part types are those of chat completions; errors for others are reported here. */
static enum status parts_check(struct intake *t, json_t *content, const char *key)
{
    char where[48];
    snprintf(where, sizeof where, ".%s", key);
    if (!content) return chat_fault(&t->r, "missing_required_parameter", where, "Field required.");
    if (!json_is_string(content) && !json_is_array(content))
        return chat_fault(&t->r, "invalid_type", where, "Must be a string or an array of content parts.");
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *part = json_array_get(content, i);
        if (!json_is(field(part, "type"), "input_image") || !field(part, "file_id")) continue;
        snprintf(where, sizeof where, ".%s[%zu].file_id", key, i);
        return chat_fault(&t->r, "unsupported_parameter", where,
                          "This server keeps no files: give the image as image_url.");
    }
    return ST_OK;
}

static enum status message_item(struct intake *t, json_t *item)
{
    json_t *name, *content = field(item, "content");
    enum chat_role role;
    if (chat_string(&t->r, item, "", "role", &name) || parts_check(t, content, "content")) return ST_INVALID;
    if (!chat_role_find(name, &role) || role > CHAT_ASSISTANT)
        return chat_fault(&t->r, "invalid_value", ".role",
                          "'%.60s' is not one of 'user', 'assistant', 'system', 'developer'.",
                          json_string_value(name));
    if (role == CHAT_ASSISTANT) return assistant_item(t, content);
    t->turn = false;
    struct chat_message *m;
    enum status st = chat_message_add(&t->r, role, &m);
    return st ? st : content_of(t, content, ".content");
}

json_t *responses_tool_name(const json_t *name_space, const json_t *name)
{
    const char *a = json_string_value(name_space), *b = json_string_value(name);
    bool flat = !a || strcmp(a, "functions") == 0; /* OpenAI's name for tools without a namespace */
    size_t n = flat ? 0 : strlen(a);
    return json_sprintf("%s%s%s", flat ? "" : a, n && a[n - 1] != '_' ? "__" : "", b);
}

/* The input of a custom tool is the one argument of its function. */
static enum status call_item(struct intake *t, json_t *item)
{
    json_t *id, *name, *text, *arguments, *call = NULL, *name_space = field(item, "namespace");
    bool custom = json_is(field(item, "type"), "custom_tool_call");
    if (chat_string(&t->r, item, "", "call_id", &id) || chat_string(&t->r, item, "", "name", &name) ||
        chat_string(&t->r, item, "", custom ? "input" : "arguments", &text) || turn_for(t, false))
        return ST_INVALID;
    t->turn_text = false;
    if (t->calls && json_object_set_new_nocheck(t->calls, json_string_value(id), json_null()))
        return chat_no_memory(&t->r);
    if (custom) {
        json_t *all = json_pack("{s:O}", "input", text);
        char *packed = all ? json_dumps(all, 0) : NULL;
        arguments = packed ? json_string_nocheck(packed) : NULL;
        json_decref(all);
        free(packed);
    } else {
        arguments = json_incref(text);
    }
    name = responses_tool_name(json_is_string(name_space) ? name_space : NULL, name);
    if (name && arguments) call = chat_call_new(&t->r, id, name, arguments);
    json_decref(name);
    json_decref(arguments);
    return chat_call_add(&t->r, call);
}

static enum status result_item(struct intake *t, json_t *item)
{
    json_t *id, *output = field(item, "output");
    if (chat_string(&t->r, item, "", "call_id", &id) || parts_check(t, output, "output")) return ST_INVALID;
    if (t->calls && t->r.at.index >= 0 && !json_object_get(t->calls, json_string_value(id)))
        return chat_fault(&t->r, "invalid_value", ".call_id",
                          "No call with call_id '%.60s' is in the conversation.", json_string_value(id));
    t->turn = false;
    struct chat_message *m;
    if (chat_message_add(&t->r, CHAT_TOOL, &m)) return ST_INVALID;
    m->more = json_pack("{s:O}", "tool_call_id", id);
    return m->more ? content_of(t, output, ".output") : chat_no_memory(&t->r);
}

static enum status reasoning_text(struct intake *t, struct text text)
{
    const struct chat_messages *m = t->r.out;
    bool other = t->turn_text || (t->turn && m->list[m->count - 1].calls);
    enum status st = turn_for(t, other);
    return st ? st : chat_reasoning_add(&t->r, text);
}

/* Reasoning without text, such as encrypted content of other servers, is of no use to this model. */
static enum status reasoning_item(struct intake *t, json_t *item)
{
    json_t *content = field(item, "content");
    const char *sealed = json_string_value(field(item, "encrypted_content"));
    size_t front = strlen(SEALED_TEXT);
    if (!json_array_size(content) && sealed && strncmp(sealed, SEALED_TEXT, front) == 0)
        return reasoning_text(t, (struct text){sealed + front, strlen(sealed + front)});
    if (content && !json_is_array(content))
        return chat_fault(&t->r, "invalid_type", ".content", "Must be an array of parts.");
    if (chat_count(&t->r, "", json_array_size(content))) return ST_INVALID;
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *text = field(json_array_get(content, i), "text");
        char where[48];
        snprintf(where, sizeof where, ".content[%zu].text", i);
        if (!json_is_string(text))
            return chat_fault(&t->r, text ? "invalid_type" : "missing_required_parameter", where,
                              "The reasoning has no text.");
        if (reasoning_text(t, json_text(text))) return ST_INVALID;
    }
    return ST_OK;
}

/* ---- compaction ---- */

/* The last message of a request for compaction. */
static const char compact_prompt[] =
    "Summarize our conversation so far, so that you can continue it from the summary alone: the goals, the "
    "decisions, all facts, names and numbers that still matter, and what is left to do.";

/* After the user's last message it is a part of that: some templates want turns to alternate. */
static enum status compact_ask(struct intake *t)
{
    struct chat_messages *m = t->r.out;
    struct chat_message *last = m->count ? &m->list[m->count - 1] : NULL;
    t->r.at = (struct chat_place){"input", -1, true};
    t->turn = false;
    if (last && last->role != CHAT_USER) last = NULL;
    enum status st = last ? ST_OK : chat_message_add(&t->r, CHAT_USER, &last);
    if (!st) st = chat_copy_add(&t->r, TEXT_OF(compact_prompt), (uint32_t)last->part_count);
    return st ? st : chat_one_text(&t->r, last, "\n\n");
}

/* The summary as the model wrote it. */
static enum status compaction_item(struct intake *t, json_t *item)
{
    json_t *sealed;
    struct chat_message *m;
    size_t front = strlen(SEALED_TEXT);
    if (chat_string(&t->r, item, "", "encrypted_content", &sealed)) return ST_INVALID;
    const char *text = json_string_value(sealed);
    if (strncmp(text, SEALED_TEXT, front) != 0)
        return chat_fault(&t->r, "invalid_value", ".encrypted_content",
                          "This compaction is of another server: send the conversation itself.");
    t->turn = false;
    if (chat_message_add(&t->r, CHAT_USER, &m) || chat_copy_add(&t->r, TEXT_OF(compact_prompt), 0) ||
        turn_for(t, true))
        return ST_INVALID;
    t->turn_text = true;
    return chat_copy_add(&t->r, (struct text){text + front, strlen(text + front)}, 0);
}

enum status responses_instructions_keep(struct reader *r, struct responses_state *s)
{
    const struct chat_messages *all = &r->g->q.messages;
    if (!(s->items = json_array())) return gen_nomem(r->g);
    for (size_t i = 0; i < all->count; i++) {
        const struct chat_message *m = &all->list[i];
        if ((m->role != CHAT_SYSTEM && m->role != CHAT_DEVELOPER) || m->list || !m->part_count ||
            strcmp(m->at.field, "instructions") == 0)
            continue;
        char id[64];
        snprintf(id, sizeof id, "msg_%s_i%zu", s->id + strlen("resp_"), i);
        json_t *item = json_pack("{s:s,s:s,s:s,s:s,s:[{s:s,s:s#}]}", "type", "message", "id", id, "status",
                                 "completed", "role", chat_role_name(m->role), "content", "type",
                                 "input_text", "text", m->parts[0].text.data, (int)m->parts[0].text.len);
        if (json_array_append_new(s->items, item)) return gen_nomem(r->g);
    }
    return ST_OK;
}

/* What hosted tools of other servers did, and notes of clients: not in the prompt. */
static bool is_foreign(const json_t *type)
{
    static const char *const types[] = {
        "web_search_call",      "file_search_call",      "image_generation_call", "code_interpreter_call",
        "computer_call",        "computer_call_output",  "local_shell_call",      "local_shell_call_output",
        "shell_call",           "shell_call_output",     "apply_patch_call",      "apply_patch_call_output",
        "tool_search_call",     "tool_search_output",    "mcp_list_tools",        "mcp_call",
        "mcp_approval_request", "mcp_approval_response", "ghost_snapshot"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (json_is(type, types[i])) return true;
    return false;
}

static enum status one_item(struct intake *t, json_t *item)
{
    if (chat_count(&t->r, "", 1)) return ST_INVALID;
    if (!json_is_object(item)) return chat_fault(&t->r, "invalid_type", "", "An item must be an object.");
    json_t *type = field(item, "type");
    if (type && !json_is_string(type)) return chat_fault(&t->r, "invalid_type", ".type", "Must be a string.");
    if (type ? json_is(type, "message") : field(item, "role") != NULL) return message_item(t, item);
    if (json_is(type, "function_call") || json_is(type, "custom_tool_call")) return call_item(t, item);
    if (json_is(type, "function_call_output") || json_is(type, "custom_tool_call_output"))
        return result_item(t, item);
    if (json_is(type, "reasoning")) return reasoning_item(t, item);
    if (json_is(type, "compaction") || json_is(type, "compaction_summary")) return compaction_item(t, item);
    if (is_foreign(type)) return ST_OK;
    if (!type && !field(item, "id"))
        return chat_fault(&t->r, "missing_required_parameter", ".type", "Field required.");
    return chat_fault(&t->r, "unsupported_value", ".type", "Items of type '%.60s' are not supported.",
                      type ? json_string_value(type) : "item_reference");
}

/* ---- all items ---- */

static enum status kept_items(struct intake *t, const struct response_kept *kept)
{
    enum status st = ST_OK;
    for (size_t i = 0; i < json_array_size(kept->items) && !st; i++)
        st = one_item(t, json_array_get(kept->items, i));
    return st;
}

/* Oldest first. */
static enum status items_before(struct intake *t)
{
    size_t count = 0, i = 0;
    t->r.at = (struct chat_place){"previous_response_id", -1, true};
    for (const struct response_kept *k = t->s->before; k; k = k->before) count++;
    if (!count) return ST_OK;
    const struct response_kept **list = calloc(count, sizeof *list);
    if (!list) return chat_no_memory(&t->r);
    for (const struct response_kept *k = t->s->before; k; k = k->before) list[i++] = k;
    enum status st = ST_OK;
    while (i && !st) st = kept_items(t, list[--i]);
    free(list);
    return st;
}

/* A message of one text: `input` as a string. */
static enum status plain_message(struct intake *t, enum chat_role role, const char *name, json_t *text)
{
    struct chat_message *m;
    t->r.at = (struct chat_place){name, -1, true};
    t->turn = false;
    enum status st = chat_message_add(&t->r, role, &m);
    return st ? st : chat_text_add(&t->r, text, 0);
}

static enum status items_input(struct intake *t, json_t *input)
{
    struct api_error *e = t->r.err;
    if (!input && t->s->before) return ST_OK;
    if (!input) return api_fail(e, 400, "missing_required_parameter", "input", "Field required.");
    if (json_is_string(input)) return plain_message(t, CHAT_USER, "input", input);
    if (!json_is_array(input))
        return api_fail(e, 400, "invalid_type", "input", "Must be a string or an array of items.");
    if (!json_array_size(input) && !t->s->before)
        return api_fail(e, 400, "empty_array", "input", "Must not be empty.");
    for (size_t i = 0; i < json_array_size(input); i++) {
        t->r.at = (struct chat_place){.field = "input", .index = (int32_t)i};
        enum status st = one_item(t, json_array_get(input, i));
        if (st) return st;
    }
    return ST_OK;
}

enum status responses_messages(struct reader *r, struct responses_state *s)
{
    json_t *instructions = field(r->from, "instructions");
    struct intake t = {.s = s};
    if (gen_read_begin(r->g, &t.r)) return ST_INVALID;
    if (instructions && !json_is_string(instructions))
        return api_fail(r->e, 400, "invalid_type", "instructions", "Must be a string.");
    if (instructions && plain_message(&t, CHAT_SYSTEM, "instructions", instructions)) return ST_INVALID;
    if (s->before && s->before->owner.websocket && !(t.calls = json_object())) return gen_nomem(r->g);
    bool ok = !items_before(&t) && !items_input(&t, field(r->from, "input")) &&
              !(s->compact && compact_ask(&t)) && !turns_resolve(&t);
    json_decref(t.calls);
    return ok ? ST_OK : ST_INVALID;
}

/* ---- stored items ---- */

static bool set_missing(json_t *o, const char *key, json_t *value)
{
    if (!field(o, key)) return value && !json_object_set_new(o, key, value);
    json_decref(value);
    return true;
}

/* A message's text as a part, with an id: the format of the input item list. */
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
    json_t *input = field(r->from, "input"),
           *text = json_is_string(input) ? json_pack("{s:s,s:O}", "role", "user", "content", input) : NULL;
    size_t n = json_is_string(input) ? 1 : json_array_size(input);
    bool ok = (s->items = json_array()) != NULL;
    for (size_t i = 0; i < n && ok; i++)
        ok = !json_array_append_new(s->items, item_kept(s, text ? text : json_array_get(input, i), i));
    json_decref(text);
    return ok ? ST_OK : gen_nomem(r->g);
}
