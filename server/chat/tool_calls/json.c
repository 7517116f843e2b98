/* Calls as JSON objects: {"name": .., "arguments": {..}}. Other APIs use other names for these keys; an
 * object under the key `function` is the call itself; arguments may be a JSON string, or members of the
 * object itself. */
#include "server/chat/tool_calls/reader.h"

#include "config/base/assert.h"
#include "server/json/parser.h"

#define VALUE_MAX 66u /* of a type or an id in plain JSON, with its quotes */

enum { OTHER = 0, NAME, ARGUMENTS };

/* Is the current key one of the first n of the list? */
static bool is_one(const struct tool_calls *c, const char *const *list, size_t n)
{
    const struct buf *key = &c->key;
    for (size_t i = 0; i < n; i++)
        if (key->len == strlen(list[i]) + 2 && memcmp(key->data + 1, list[i], key->len - 2) == 0) return true;
    return false;
}

static int json_starts(struct tool_calls *c, const struct tag_text *t)
{
    if (t->s[c->scan] != '{') return 0;
    calls__value(c, c->scan);
    c->value.watch = 1;
    c->name.len = c->key.len = c->flat.len = 0;
    memset(&c->json, 0, sizeof c->json);
    return 1;
}

/* Decodes a JSON string. Owned; NULL: none. */
static json_t *unpack(const struct buf *string)
{
    json_t *v = NULL;
    if (string->len) (void)json_from_text(string->data, string->len, &v);
    return v;
}

/* The function's schema has a parameter like the current key. */
static bool is_parameter(const struct tool_calls *c)
{
    json_t *name = unpack(&c->name);
    const char *s = json_string_value(name);
    bool is =
        s && tool_types_of(c->rules.types, s, json_string_length(name), c->key.data + 1, c->key.len - 2);
    json_decref(name);
    return is;
}

/* False: there is no name, or in plain JSON that of no function. */
static bool begin(struct tool_calls *c)
{
    json_t *name = unpack(&c->name);
    const char *s = json_string_value(name);
    size_t len = json_string_length(name);
    bool ok = len && (!c->bare || json_object_getn(c->rules.bare, s, len)) &&
              (!c->prefaced || calls__known(c, s, len));
    if (ok) calls__begin(c, s, len);
    json_decref(name);
    return ok;
}

/* Complete arguments that are not reported yet: unpacks a string. False: they are no object. */
static bool unpack_arguments(struct tool_calls *c)
{
    struct buf *args = &c->args;
    if (args->len && args->data[0] == '{') return true;
    json_t *inner = args->len && args->data[0] == '"' ? unpack(args) : NULL;
    const char *s = json_string_value(inner);
    size_t len = json_string_length(inner), from = 0;
    while (from < len && is_blank(s[from])) from++;
    bool none =
        s ? from == len : !args->len || strcmp(args->data, "null") == 0 || strcmp(args->data, "[]") == 0;
    args->len = 0;
    bool ok = none || (s && s[from] == '{' && value_whole(s + from, len - from, args) >= 0);
    if (none) calls__put(c, "{}");
    json_decref(inner);
    return ok;
}

/* A member begins, with its value at value.at. False: the object is no call. */
static bool member(struct tool_calls *c, const struct tag_text *t)
{
    static const char *const names[] = {"name", "function", "tool", "tool_name", "function_name"},
                             *const arguments[] = {"arguments", "parameters", "args",
                                                   "params",    "input",      "tool_input"},
                             *const wrappers[] = {"function", "tool_call", "function_call"},
                             *const further[] = {"type", "id", "index", "call_id"};
    struct value_reader *r = &c->value;
    ASSERT(c->key.len >= 2 && r->at < t->len); /* the key with its quotes, and a value */
    char first = t->s[r->at];
    bool quoted = first == '"' || first == '\'' || (r->quote && first == r->quote[0]);
    bool exact = c->bare && c->rules.exact;
    if (exact && !c->begun && (r->odds || (!c->json.has_name && is_one(c, arguments, 2)))) return false;
    if (!exact && first == '{' && !c->json.has_name && is_one(c, wrappers, 3)) {
        r->watch++;
        return true;
    }
    if (!c->json.has_name && is_one(c, names, exact || !quoted ? 1 : 5)) {
        c->json.field = NAME;
        r->out = &c->name;
        return quoted;
    }
    bool named =
        !c->bare && first == '{' && !c->json.has_name && calls__known(c, c->key.data + 1, c->key.len - 2);
    if (named) { /* {NAME: {..}} */
        c->name.len = 0;
        if (!c->st) c->st = buf_add(&c->name, c->key.data, c->key.len);
        c->json.has_name = true;
    }
    if (!c->json.has_args && (named || is_one(c, arguments, exact || first != '{' ? 2 : 6))) {
        if (exact && first != '{') return false;
        if (c->json.other) c->flat.len = 0;
        c->json.has_args = true;
        c->json.field = ARGUMENTS;
        r->out = &c->args;
        return first != '{' || !c->json.has_name || begin(c);
    }
    if (c->bare && !c->begun && !is_one(c, further, 2)) return false;
    bool own = is_parameter(c);
    c->json.other = c->json.other || !own;
    c->json.drop = !own && (c->json.has_args || is_one(c, further, 4));
    c->json.flat_at = c->flat.len;
    r->out = &c->flat;
    if (!c->st) c->st = buf_addf(&c->flat, "%s%.*s: ", c->flat.len ? ", " : "", (int)c->key.len, c->key.data);
    c->json.value_at = c->flat.len;
    return true;
}

/* The member's value is complete. False: the object is no call. */
static bool member_end(struct tool_calls *c)
{
    uint8_t field = c->json.field;
    const struct buf *flat = &c->flat;
    c->json.field = OTHER;
    if (field == NAME) c->json.has_name = true;
    if (field == ARGUMENTS) c->json.args_done = true;
    if (field == OTHER && c->bare && !c->begun) { /* a type or an id */
        size_t at = c->json.value_at, len = flat->len - at;
        if (!len || flat->data[at] != '"' || len > VALUE_MAX || memchr(flat->data + at, '\\', len))
            return false;
    }
    if (field == NAME && c->bare && c->rules.exact && memchr(c->name.data, '\\', c->name.len)) return false;
    if (field == OTHER && c->json.drop) c->flat.len = c->json.flat_at;
    c->json.drop = false;
    if (c->json.args_done && c->json.has_name && !c->begun && (!unpack_arguments(c) || !begin(c)))
        return false;
    if (c->json.args_done) c->hold = 1; /* the last brace: more may follow */
    return true;
}

/* The object is complete. */
static enum call_step object_end(struct tool_calls *c)
{
    ASSERT(!c->json.drop || c->json.flat_at <= c->flat.len);
    if (c->json.drop) c->flat.len = c->json.flat_at;
    if (c->json.field == NAME || !c->json.has_name || (c->bare && !c->begun)) return CALL_NO;
    if (!c->begun) {
        if (c->json.has_args && !unpack_arguments(c)) return CALL_NO;
        if (!c->json.has_args) calls__put(c, "{}");
        if (!begin(c)) return CALL_NO;
    }
    if (c->flat.len && c->args.len && !c->st) {
        char last = c->last; /* before the closing brace */
        for (size_t i = 0; i + 1 < c->args.len; i++)
            if (!is_blank(c->args.data[i])) last = c->args.data[i];
        c->args.len--;
        c->st = buf_addf(&c->args, "%s%s}", last == '{' ? "" : ", ", c->flat.data);
    }
    c->scan = c->value.at;
    return CALL_END;
}

static enum call_step json_feed(struct tool_calls *c, const struct tag_text *t)
{
    struct value_reader *r = &c->value;
    for (;;) {
        switch (value_read(r, t)) {
        case VALUE_MEMBER:
            if (!member(c, t)) return CALL_NO;
            break;
        case VALUE_NEXT:
            if (!member_end(c)) return CALL_NO;
            break;
        case VALUE_MORE:
            if (!t->final || !c->begun || r->st) return CALL_MORE;
            if (!c->json.args_done && !(c->ended && value_may_end(r))) return CALL_MORE;
            value_close(r, t);
            return object_end(c);
        case VALUE_DEEP:
            if (!c->begun) return CALL_NO;
            c->broken = true;              /* fallthrough */
        case VALUE_TAG: value_close(r, t); /* fallthrough */
        case VALUE_DONE: return object_end(c);
        }
    }
}

const struct call_reader call_json = {json_starts, json_feed};
