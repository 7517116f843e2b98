/* See tool_parse.h. */
#include "server/chat/tool_parse_internal.h"

#include "server/http/fields.h"
#include "server/http/json_parser.h"

#include <jansson.h>
#include <string.h>

enum { FIELD_OTHER = 0, FIELD_NAME, FIELD_ARGUMENTS };

/* ---- content ---- */

static bool all_space(const char *text, size_t from, size_t to)
{
    while (from < to && tool__is_space(text[from])) from++;
    return from >= to;
}

static enum status content_emit(struct tool_parse *p, const char *text, size_t to,
                                const struct tool_sink *sink)
{
    size_t from = p->at;
    if (to <= from) return ST_OK;
    p->at = to;
    p->blank = false;
    return sink->content(sink->user, text + from, to - from);
}

void tool__text_start(struct tool_parse *p, size_t from)
{
    tool__to(p, p->rules.single && p->calls ? TOOL_DONE : TOOL_TEXT);
    p->at = p->search = p->blank_to = from;
    p->blank = true;
}

/* Like tool__xml_find. */
static const char *tag_find(const struct tool_parse *p, const char *text, size_t from, size_t len,
                            size_t *keep)
{
    size_t n = len > from ? len - from : 0;
    const char *open = tool__open(p);
    *keep = tag_prefix(text + from, n, open);
    return n ? memmem(text + from, n, open, strlen(open)) : NULL;
}

/* In TOOL_TEXT. *more: a block began. */
static enum status text_run(struct tool_parse *p, const char *text, size_t len, bool final,
                            const struct tool_sink *sink, bool *more)
{
    size_t end = len, keep;
    const char *hit = p->rules.syntax == TOOL_SYNTAX_XML ? tool__xml_find(text, p->search, len, &keep)
                                                         : tag_find(p, text, p->search, len, &keep);
    if (hit) {
        end = (size_t)(hit - text);
    } else if (!final) {
        end = len - keep;
    }
    size_t next = end;
    if ((hit || !final) && end > p->at && text[end - 1] == '\n') end--;
    if (p->blank) {
        if (p->blank_to < end && all_space(text, p->blank_to, end)) p->blank_to = end;
        if (p->blank_to >= end) {
            /* White space: dropped next to a call, but content if there is nothing else.
             */
            if (final && !hit && !p->calls) return content_emit(p, text, end, sink);
            end = p->at;
        }
    }
    enum status st = content_emit(p, text, end, sink);
    p->search = next;
    if (st || !hit) return st;
    tool__to(p, TOOL_BLOCK);
    p->bare = false;
    p->open = next;
    p->scan = next + strlen(tool__open(p));
    p->json = (struct tool_json){0};
    p->field = FIELD_OTHER;
    p->has_name = p->has_args = false;
    p->name_end = p->args_end = 0;
    *more = true;
    return ST_OK;
}

/* ---- calls ---- */

/* Decodes a JSON string of the text, given with its quotes. Owned; NULL: out of memory, or a lone surrogate.
 */
static json_t *unpack(const char *text, size_t from, size_t to)
{
    json_t *v = NULL;
    (void)json_from_text(text + from, to - from, &v);
    return v;
}

static enum status call_begin(struct tool_parse *p, const char *text, const struct tool_sink *sink)
{
    json_t *name = unpack(text, p->name_at, p->name_end);
    if (!json_is_string(name)) { /* its syntax is already checked: only memory can fail */
        json_decref(name);
        return ST_NOMEM;
    }
    tool__to(p, TOOL_REST);
    enum status st = tool__call_begin(p, json_string_value(name), json_string_length(name), sink);
    json_decref(name);
    return st;
}

/* The arguments are complete and not a literal object: begins and ends the call. `ok` false: invalid
 * arguments. */
static enum status call_packed(struct tool_parse *p, const char *text, const struct tool_sink *sink, bool *ok)
{
    json_t *inner = p->has_args && text[p->args_at] == '"' ? unpack(text, p->args_at, p->args_end) : NULL;
    const char *s = inner ? json_string_value(inner) : "";
    size_t len = inner ? json_string_length(inner) : 0, skip = 0;
    while (skip < len && tool__is_space(s[skip])) skip++;
    *ok = !(p->has_args && text[p->args_at] == '"' && !inner) && (skip == len || s[skip] == '{');
    enum status st = *ok ? call_begin(p, text, sink) : ST_OK;
    if (*ok && !st)
        st = skip < len ? sink->arguments(sink->user, s + skip, len - skip)
                        : sink->arguments(sink->user, "{}", 2);
    if (*ok && !st) st = tool__call_end(p, sink);
    json_decref(inner);
    return st;
}

static enum status arguments_emit(struct tool_parse *p, const char *text, size_t to,
                                  const struct tool_sink *sink)
{
    size_t from = p->args_out;
    if (to <= from) return ST_OK;
    p->args_out = to;
    return sink->arguments(sink->user, text + from, to - from);
}

/* A value of the block's object begins at i; false: its type does not fit its key. */
static bool value_begins(struct tool_parse *p, const char *text, size_t i)
{
    char c = text[i];
    if (p->field == FIELD_NAME) {
        p->name_at = i;
        return c == '"';
    }
    if (p->field != FIELD_ARGUMENTS) return true;
    p->has_args = true;
    p->args_at = p->args_out = i;
    return c == '{' || c == '"' || c == 'n';
}

/* Handles the effect of the byte at i on the block's object (depth 1), given the state before it. False: the
 * block is not a call. */
static bool block_notice(struct tool_parse *p, const char *text, size_t i, uint8_t before, uint32_t depth)
{
    const struct tool_json *j = &p->json;
    if (!depth) return text[i] == '{' || tool__is_space(text[i]);
    if (depth != 1 && j->depth != 1) return true;
    if ((before == J_KEY || before == J_FIRST_KEY) && j->state == J_STRING) p->key_at = i;
    if (before == J_STRING && j->state == J_COLON) {
        const char *key = text + p->key_at + 1;
        size_t len = i - p->key_at - 1;
        bool name = len == 4 && memcmp(key, "name", 4) == 0,
             args = len == 9 && memcmp(key, "arguments", 9) == 0;
        p->field = name && !p->has_name ? FIELD_NAME : args && !p->has_args ? FIELD_ARGUMENTS : FIELD_OTHER;
    }
    if (before == J_VALUE && depth == 1 && j->state != J_VALUE && !value_begins(p, text, i)) return false;
    if (j->depth != 1 || j->state != J_AFTER || (before == J_AFTER && depth == 1)) return true;
    /* A value is complete. */
    if (p->field == FIELD_NAME) {
        json_t *name = unpack(text, p->name_at, i + 1);
        p->has_name = json_is_string(name) && json_string_length(name);
        p->name_end = i + 1;
        json_decref(name);
        if (!p->has_name) return false;
    } else if (p->field == FIELD_ARGUMENTS) {
        p->args_end = i + 1;
    }
    p->field = FIELD_OTHER;
    return true;
}

/* In TOOL_BLOCK, TOOL_SYNTAX_JSON: nothing of the block is reported yet. */
static enum status block_run(struct tool_parse *p, const char *text, size_t len, bool final,
                             const struct tool_sink *sink, bool *more)
{
    while (p->scan < len && p->state == TOOL_BLOCK) {
        size_t i = p->scan++;
        uint8_t before = p->json.state;
        uint32_t depth = p->json.depth;
        bool ok = tool_json_step(&p->json, text[i]) && block_notice(p, text, i, before, depth);
        bool object = ok && p->has_args && text[p->args_at] == '{', over = ok && p->json.state == J_DONE;
        enum status st = ST_OK;
        if (ok && p->has_name && object) {
            st = call_begin(p, text, sink);
            if (!st && p->args_end) st = arguments_emit(p, text, p->args_end, sink);
            if (!st && p->args_end) st = tool__call_end(p, sink);
        } else if (ok && p->has_name && (p->args_end || (over && !p->has_args))) {
            st = call_packed(p, text, sink, &ok);
        } else if (over) {
            ok = false;
        }
        if (st) return st;
        if (ok && over) tool__to(p, TOOL_END);
        if (!ok) tool__block_refuse(p);
    }
    if (p->state == TOOL_BLOCK && final) tool__block_refuse(p);
    *more = p->state != TOOL_BLOCK;
    return ST_OK;
}

/* In TOOL_REST: the call is reported; parses the rest of its arguments and the end of the block's object. */
static enum status rest_run(struct tool_parse *p, const char *text, size_t len, const struct tool_sink *sink,
                            bool *more)
{
    enum status st = ST_OK;
    while (p->scan < len && p->state == TOOL_REST && !st) {
        uint8_t before = p->json.state;
        bool ok = tool_json_step(&p->json, text[p->scan]);
        if (!ok && p->arguments_open) { /* reparse the byte by looser rules */
            tool__to(p, TOOL_LOOSE);
            p->loose_string = before >= J_STRING && before <= J_HEX;
            p->loose_escape = false;
            break;
        }
        if (!ok) {
            tool__to(p, TOOL_END);
            break;
        }
        p->scan++;
        if (p->arguments_open && p->json.depth == 1 && p->json.state == J_AFTER) {
            st = arguments_emit(p, text, p->scan, sink);
            if (!st) st = tool__call_end(p, sink);
        }
        if (p->json.state == J_DONE) tool__to(p, TOOL_END);
    }
    if (!st && p->arguments_open) st = arguments_emit(p, text, p->scan, sink);
    *more = p->state != TOOL_REST;
    return st;
}

/* In TOOL_LOOSE: arguments that are not JSON. Strings and brackets are still tracked. */
static enum status loose_run(struct tool_parse *p, const char *text, size_t len, bool final,
                             const struct tool_sink *sink, bool *more)
{
    bool over = false;
    while (p->scan < len && !over) {
        char c = text[p->scan];
        int tag = c == '<' ? tool__tag_at(text, len, p->scan, TOOL_CLOSE, final) : 0;
        if (tag < 0) break;
        over = tag > 0;
        if (over) break;
        if (p->loose_string) {
            bool escape = p->loose_escape;
            p->loose_escape = !escape && c == '\\';
            if (c == '"' && !escape) p->loose_string = false;
        } else if (c == '"') {
            p->loose_string = true;
        } else if (c == '{' || c == '[') {
            p->json.depth++;
        } else if (c == '}' || c == ']') {
            over = --p->json.depth == 1;
        }
        p->scan++;
    }
    enum status st = arguments_emit(p, text, p->scan, sink);
    if (!st && over) st = tool__call_end(p, sink);
    if (over) tool__to(p, TOOL_END);
    *more = over;
    return st;
}

/* In TOOL_END: white space and superfluous brackets, then the end tag, or content. */
static void end_run(struct tool_parse *p, const char *text, size_t len, bool final, bool *more)
{
    bool json = p->rules.syntax != TOOL_SYNTAX_XML;
    while (p->scan < len &&
           (tool__is_space(text[p->scan]) || (json && strchr("}],", text[p->scan] ? text[p->scan] : ' '))))
        p->scan++;
    if (p->scan == len) return;
    int tag = tool__tag_at(text, len, p->scan, tool__close(p), final);
    if (tag < 0) return;
    tool__text_start(p, p->scan + (tag ? strlen(tool__close(p)) : 0));
    *more = true;
}

/* ---- public functions ---- */

void tool_parse_init(struct tool_parse *p, size_t from, const struct tool_rules *rules)
{
    *p = (struct tool_parse){.rules = *rules};
    tool__text_start(p, from);
    if (rules->bare) tool__to(p, TOOL_BARE);
}

enum status tool_parse_run(struct tool_parse *p, const char *text, size_t len, bool final,
                           const struct tool_sink *sink)
{
    enum status st = ST_OK;
    bool more = true;
    while (more && !st) {
        more = false;
        switch (p->state) {
        case TOOL_TEXT: st = text_run(p, text, len, final, sink, &more); break;
        case TOOL_BARE: st = tool__bare_head(p, text, len, final, sink, &more); break;
        case TOOL_BLOCK:
            st = p->rules.syntax == TOOL_SYNTAX_XML    ? tool__xml_block(p, text, len, final, sink, &more)
                 : p->rules.syntax == TOOL_SYNTAX_CALL ? tool__call_block(p, text, len, final, sink, &more)
                                                       : block_run(p, text, len, final, sink, &more);
            break;
        case TOOL_REST: st = rest_run(p, text, len, sink, &more); break;
        case TOOL_LOOSE: st = loose_run(p, text, len, final, sink, &more); break;
        case TOOL_PARAMETERS:
            st = p->rules.syntax == TOOL_SYNTAX_CALL ? tool__call_parameters(p, text, len, final, sink, &more)
                                                     : tool__xml_parameters(p, text, len, final, sink, &more);
            break;
        case TOOL_VALUE:
            st = p->rules.syntax == TOOL_SYNTAX_CALL ? tool__call_value(p, text, len, final, sink, &more)
                                                     : tool__xml_value(p, text, len, final, sink, &more);
            break;
        case TOOL_END: (p->bare ? tool__bare_end : end_run)(p, text, len, final, &more); break;
        case TOOL_DONE: break;
        }
    }
    return st;
}

bool tool_parse_open(const struct tool_parse *p)
{
    return p->arguments_open;
}

bool tool_parse_done(const struct tool_parse *p)
{
    return p->state == TOOL_DONE;
}
