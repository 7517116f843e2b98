/* Calls with a tag for every parameter (TOOL_SYNTAX_XML); see tool_parse.h. */
#include "server/chat/tool_parse_internal.h"
#include "server/chat/tool_types.h"

#include <stdio.h>
#include <string.h>

#define FUNCTION_OPEN   "<function="
#define FUNCTION_CLOSE  "</function>"
#define PARAMETER_OPEN  "<parameter="
#define PARAMETER_CLOSE "</parameter>"

/* Maximum bytes of a name and of white space between a call's tags: the head of a block is reparsed as it
 * grows. */
#define NAME_MAX_LEN  128u
#define BLANK_MAX_LEN 64u

const char *tool__xml_find(const char *text, size_t from, size_t len, size_t *keep)
{
    const char *s = text + from;
    size_t n = len > from ? len - from : 0, a = tag_prefix(s, n, TOOL_OPEN),
           b = tag_prefix(s, n, FUNCTION_OPEN);
    *keep = a > b ? a : b;
    const char *block = n ? memmem(s, n, TOOL_OPEN, OPEN_LEN) : NULL;
    if (block) n = (size_t)(block - s);
    const char *bare = n ? memmem(s, n, FUNCTION_OPEN, sizeof FUNCTION_OPEN - 1) : NULL;
    return bare ? bare : block;
}

/* ---- the head: <tool_call> <function=NAME> and what follows it ---- */

/* White space, then tag: like tool__tag_at; *i receives the tag's position. */
static int tag_next(const char *text, size_t len, size_t *i, const char *tag, bool final)
{
    size_t at = *i;
    while (at < len && at - *i < BLANK_MAX_LEN && tool__is_space(text[at])) at++;
    int found = tool__tag_at(text, len, at, tag, final);
    if (found > 0) *i = at;
    return found;
}

/* A name that ends at '>': 1 and its end, 0: no name, -1: the text is too short to decide. blanks: it may
 * contain spaces. */
static int name_at(const char *text, size_t len, size_t from, bool blanks, bool final, size_t *end)
{
    for (size_t i = from; i < len && i - from <= NAME_MAX_LEN; i++) {
        *end = i;
        if (text[i] == '>') return i > from;
        if ((tool__is_space(text[i]) && !(blanks && text[i] == ' ')) || text[i] == '<') return 0;
    }
    return len - from > NAME_MAX_LEN || final ? 0 : -1;
}

/* Like name_at, for a parameter. known: it must be one of the function's, as must a name with spaces, so that
 * prose is not mistaken for one. */
static int parameter_at(const struct tool_parse *p, const char *text, size_t len, size_t from, bool known,
                        bool final, size_t *end)
{
    int found = name_at(text, len, from, false, final, end);
    if (!found) {
        known = true;
        found = name_at(text, len, from, true, final, end);
    }
    if (found <= 0 || !known) return found;
    return tool_types_of(p->rules.types, text + p->name_at, p->name_end - p->name_at, text + from,
                         *end - from) != 0;
}

/* 1: a call, its name is recorded; 0: none; -1: the text is too short to decide. */
static int head_read(struct tool_parse *p, const char *text, size_t len, bool final)
{
    size_t i = p->open;
    bool bare = tool__tag_at(text, len, i, FUNCTION_OPEN, true) > 0;
    if (!bare) i += OPEN_LEN;
    int found = bare ? 1 : tag_next(text, len, &i, FUNCTION_OPEN, final);
    if (found <= 0) return found;
    p->name_at = i + sizeof FUNCTION_OPEN - 1;
    found = name_at(text, len, p->name_at, false, final, &p->name_end);
    if (found <= 0) return found;
    /* Some models omit <tool_call>: accepted for a known function. */
    if (bare && !tool_types_knows(p->rules.types, text + p->name_at, p->name_end - p->name_at)) return 0;
    static const char *const next[] = {PARAMETER_OPEN, FUNCTION_CLOSE, TOOL_CLOSE};
    int most = 0;
    p->scan = p->name_end + 1;
    for (size_t k = 0; k < sizeof next / sizeof *next; k++) {
        found = tag_next(text, len, &p->scan, next[k], final);
        if (found > 0) return 1;
        if (found < 0) most = -1;
    }
    return most;
}

enum status tool__xml_block(struct tool_parse *p, const char *text, size_t len, bool final,
                            const struct tool_sink *sink, bool *more)
{
    int found = head_read(p, text, len, final);
    *more = found >= 0;
    if (!found) tool__block_refuse(p);
    if (found <= 0) return ST_OK;
    tool__to(p, TOOL_PARAMETERS);
    p->has_args = false;
    return tool__call_begin(p, text + p->name_at, p->name_end - p->name_at, sink);
}

/* ---- parameters ---- */

static enum status say(const struct tool_sink *sink, const char *s)
{
    return sink->arguments(sink->user, s, strlen(s));
}

/* The parameter's name is text[from, to). */
static enum status parameter_begin(struct tool_parse *p, const char *text, size_t from, size_t to,
                                   const struct tool_sink *sink)
{
    uint8_t types =
        tool_types_of(p->rules.types, text + p->name_at, p->name_end - p->name_at, text + from, to - from);
    p->value_types = types;
    tool__to(p, TOOL_VALUE);
    p->scan = p->args_at = p->args_out = to + 1;
    p->value_begun = false;
    enum status st = say(sink, p->has_args ? ", \"" : "{\"");
    p->has_args = true;
    if (!st) st = tool__say_escaped(sink, text + from, to - from);
    return st ? st : say(sink, !types || types == TYPE_STRING ? "\": \"" : "\": ");
}

enum status tool__xml_parameters(struct tool_parse *p, const char *text, size_t len, bool final,
                                 const struct tool_sink *sink, bool *more)
{
    enum status st = ST_OK;
    while (p->state == TOOL_PARAMETERS && !st) {
        const char *hit = p->scan < len ? memchr(text + p->scan, '<', len - p->scan) : NULL;
        size_t i = p->scan = hit ? (size_t)(hit - text) : len, end = 0;
        if (!hit) break;
        int function = tool__tag_at(text, len, i, FUNCTION_CLOSE, final),
            block = tool__tag_at(text, len, i, TOOL_CLOSE, final);
        /* The end tags are missing if another call begins: its parameters are not this one's. */
        int another = tool__tag_at(text, len, i, TOOL_OPEN, final),
            bare = tool__tag_at(text, len, i, FUNCTION_OPEN, final);
        int parameter = tool__tag_at(text, len, i, PARAMETER_OPEN, final);
        size_t from = i + sizeof PARAMETER_OPEN - 1;
        if (parameter > 0) parameter = parameter_at(p, text, len, from, false, final, &end);
        if (function > 0 || block > 0 || another > 0 || bare > 0) {
            if (function > 0) p->scan = i + sizeof FUNCTION_CLOSE - 1;
            tool__to(p, TOOL_END);
            st = say(sink, p->has_args ? "}" : "{}");
            if (!st) st = tool__call_end(p, sink);
        } else if (parameter > 0) {
            st = parameter_begin(p, text, from, end, sink);
        } else if (function < 0 || block < 0 || another < 0 || bare < 0 || parameter < 0) {
            break;
        } else {
            p->scan = i + 1; /* unexpected text: dropped */
        }
    }
    *more = p->state != TOOL_PARAMETERS;
    return st;
}

/* ---- values ---- */

/* The JSON type of the text, also in Python notation; 0: neither. *json: its JSON form, if different. */
static uint8_t type_read(const char *s, size_t len, const char **json)
{
    static const struct {
        const char *python, *json;
        uint8_t type;
    } words[] = {
        {"True", "true", TYPE_BOOLEAN}, {"False", "false", TYPE_BOOLEAN}, {"None", "null", TYPE_NULL}};
    *json = NULL;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (len != strlen(words[i].python) || memcmp(s, words[i].python, len) != 0) continue;
        *json = words[i].json;
        return words[i].type;
    }
    if (!tool_json_whole(s, len)) return 0;
    switch (s[0]) {
    case '{': return TYPE_OBJECT;
    case '[': return TYPE_ARRAY;
    case '"': return TYPE_STRING;
    case 'n': return TYPE_NULL;
    case 't':
    case 'f': return TYPE_BOOLEAN;
    default: break;
    }
    for (size_t i = 0; i < len; i++) {
        if (strchr(".eE", s[i])) return TYPE_NUMBER;
    }
    return TYPE_INTEGER | TYPE_NUMBER;
}

/* A complete value that may be other than a string. */
static enum status value_typed(const struct tool_parse *p, const char *s, size_t len,
                               const struct tool_sink *sink)
{
    const char *json, *t = s;
    size_t n = len;
    while (n && tool__is_space(*t)) t++, n--;
    while (n && tool__is_space(t[n - 1])) n--;
    uint8_t type = type_read(t, n, &json);
    bool may_be_text = p->value_types & TYPE_STRING;
    if (type && (!may_be_text || (type & p->value_types & ~(unsigned)TYPE_STRING))) {
        return json ? say(sink, json) : sink->arguments(sink->user, t, n);
    }
    enum status st = say(sink, "\"");
    if (!st) st = tool__say_escaped(sink, s, len);
    return st ? st : say(sink, "\"");
}

/* The end tag is missing, and the value ends with the tag that follows it at i: one of the function's
 * parameters, or both end tags of the call (a value may well hold one of them). Like tool__tag_at. */
static int value_cut(const struct tool_parse *p, const char *text, size_t len, size_t i, bool final)
{
    size_t from = i + sizeof PARAMETER_OPEN - 1, end;
    int found = tool__tag_at(text, len, i, PARAMETER_OPEN, final);
    if (found > 0) found = parameter_at(p, text, len, from, true, final, &end);
    if (found) return found;
    found = tool__tag_at(text, len, i, FUNCTION_CLOSE, final);
    i += sizeof FUNCTION_CLOSE - 1;
    return found > 0 ? tag_next(text, len, &i, TOOL_CLOSE, final) : found;
}

enum status tool__xml_value(struct tool_parse *p, const char *text, size_t len, bool final,
                            const struct tool_sink *sink, bool *more)
{
    bool over = false, stream = !p->value_types || p->value_types == TYPE_STRING;
    size_t skip = 0, end = len;
    if (!p->value_begun &&
        p->scan < len) { /* the template writes a line break after the tag and one before the end tag */
        p->value_begun = true;
        if (text[p->scan] == '\n') p->args_at = p->args_out = ++p->scan;
    }
    while (p->scan < len && !over) {
        const char *hit = memchr(text + p->scan, '<', len - p->scan);
        p->scan = hit ? (size_t)(hit - text) : len;
        int found = hit ? tool__tag_at(text, len, p->scan, PARAMETER_CLOSE, final) : 0;
        skip = found > 0 ? sizeof PARAMETER_CLOSE - 1 : 0;
        if (hit && !found && text[p->scan - 1] == '\n') found = value_cut(p, text, len, p->scan, final);
        if (found < 0) break;
        over = found > 0;
        if (hit && !over) p->scan++;
    }
    if (over || !final) end = p->scan;
    if ((over || !final) && end > p->args_at && text[end - 1] == '\n') end--;
    enum status st = ST_OK;
    if (stream && end > p->args_out) {
        st = tool__say_escaped(sink, text + p->args_out, end - p->args_out);
        p->args_out = end;
    }
    *more = over;
    if (st || !over) return st;
    p->scan += skip;
    tool__to(p, TOOL_PARAMETERS);
    return stream ? say(sink, "\"") : value_typed(p, text + p->args_at, end - p->args_at, sink);
}
