/* Calls with tags for their parameters, or with an object in place of them:
 *
 *     <function=NAME>                        NAME
 *     <parameter=KEY>                        <arg_key>KEY</arg_key>
 *     value                                  <arg_value>value</arg_value>
 *     </parameter>
 *     </function>
 *
 * - The arguments are one object, its keys in the order of the tags (a name that comes twice is in it twice).
 *   A line break after a value's tag and one before its end tag belong to the template.
 * - The function's schema gives the type of a value (types.h). If it can only be a string, or if the
 * schema gives no type, the value is the text exactly as written, passed on as it arrives. Else JSON of an
 * allowed type is kept, also in other notations (value.h), and anything else is a string.
 * - A value ends at its end tag if the next parameter or the end of the call follows; if that tag is missing,
 * at the tag of another of the function's parameters, at the end of the call, or at another call.
 * - Closing tags in a wrong spelling (calls__closer) are read like the right ones, where a parameter, a call
 * or nothing follows them, or where there are two, and where the value has not opened them itself.
 * - <function=NAME> alone is a call of a function that was offered. */
#include "server/chat/tool_calls/reader.h"

#include "config/base/assert.h"

#include <stdio.h>

#define FUNCTION_OPEN  "<function="
#define FUNCTION_CLOSE "</function>"
#define GO_ON          CALL_NO /* between the parts of a call */
#define CLOSERS_MAX    8u      /* in a row that are looked at */

static const char *const value_ends[] = {"</parameter>", "</arg_value>"};

enum { PARAMETERS = 0, VALUE, OBJECT, AFTER };

/* ---- names ---- */

/* White space, then tag: like tag_at; *i receives the end of the tag. */
static int tag_next(const struct tag_text *t, size_t *i, const char *tag)
{
    size_t at = blanks_skip(t, *i);
    int found = at < t->len ? tag_at(t, at, tag) : t->final ? 0 : -1;
    if (found > 0) *i = at + strlen(tag);
    return found;
}

/* <WORD=NAME> or <WORD name="NAME"> at i, with white space before it: the name and the end of the tag. Like
 * tag_at. */
static int tag_named(const struct tag_text *t, const char *word, size_t i, size_t name[2], size_t *end)
{
    char tag[24];
    int most = 0;
    for (int k = 0; k < 2; k++) {
        size_t at = i;
        (void)snprintf(tag, sizeof tag, k ? "<%s name=" : "<%s=", word);
        int found = tag_next(t, &at, tag);
        if (found < 0) most = -1;
        if (found <= 0) continue;
        for (i = at; i < t->len && i - at <= NAME_MAX_LEN && t->s[i] != '>'; i++)
            if (t->s[i] == '<' || (is_blank(t->s[i]) && t->s[i] != ' ')) return 0;
        if (i == t->len) return t->final ? 0 : -1;
        if (t->s[i] != '>') return 0;
        *end = i + 1;
        while (at < i && strchr("\"' ", t->s[at])) at++;
        while (i > at && strchr("\"' ", t->s[i - 1])) i--;
        name[0] = at;
        name[1] = i;
        return i > at && !memchr(t->s + at, '=', i - at);
    }
    return most;
}

/* The tags before a value at i: 1: <parameter=KEY>; 2: <arg_key>KEY</arg_key><arg_value>; else like
 * tag_named. */
static int parameter_at(const struct tag_text *t, size_t i, size_t key[2], size_t *end)
{
    int found = tag_named(t, "parameter", i, key, end), first;
    if (found) return found;
    first = tag_next(t, &i, "<arg_key>");
    if (first <= 0) return first;
    key[0] = i;
    while (i < t->len && i - key[0] <= NAME_MAX_LEN && t->s[i] != '<') i++;
    if (i == t->len) return t->final ? 0 : -1;
    key[1] = i;
    size_t name[2];
    first = calls__closer(NULL, t, &i, name);
    if (first >= 0) first = tag_next(t, &i, "<arg_value>");
    *end = i;
    return first > 0 ? 2 * (key[1] > key[0]) : first;
}

static uint8_t types_of(const struct tool_calls *c, const struct tag_text *t, const size_t key[2])
{
    return tool_types_of(c->rules.types, t->s + c->tags.name_at, c->tags.name_end - c->tags.name_at,
                         t->s + key[0], key[1] - key[0]);
}

/* ---- the head ---- */

/* The end of the text at i, white space before it; like tag_at. */
static int text_end(const struct tag_text *t, size_t i)
{
    return blanks_skip(t, i) < t->len ? 0 : t->final ? 1 : -1;
}

/* One of the tags, like tag_next. */
static int one_next(const struct tag_text *t, size_t *i, const char *const *tags)
{
    int most = 0;
    for (; *tags; tags++) {
        int found = tag_next(t, i, *tags);
        if (found > 0) return 1;
        if (found < 0) most = -1;
    }
    return most;
}

static bool is_tag(const struct tag_text *t, const size_t name[2], const char *tag)
{
    size_t len = name[1] - name[0];
    return tag && strlen(tag) == len + 3 && memcmp(tag + 2, t->s + name[0], len) == 0;
}

static bool is_value_end(const struct tag_text *t, const size_t name[2])
{
    return is_tag(t, name, value_ends[0]) || is_tag(t, name, value_ends[1]);
}

/* After <function=NAME> or NAME: parameters, an object, or the end. Like tag_at. */
static int head_ends(const struct tool_calls *c, const struct tag_text *t, size_t i, bool function)
{
    size_t key[2], end, at = blanks_skip(t, i);
    int found = at < t->len ? function && t->s[at] == '{' : t->final ? 0 : -1;
    if (!found) found = parameter_at(t, i, key, &end);
    if (!found && function) {
        found = calls__closer(NULL, t, &i, key);
        if (found > 0 && is_value_end(t, key)) return 0; /* a value has the tag */
    }
    return found ? found : one_next(t, &i, c->syntax->closes);
}

/* A call's <function=NAME> or NAME at i, and what it needs behind it. Like tag_at. */
static int head_at(const struct tool_calls *c, const struct tag_text *t, size_t i, size_t name[2],
                   size_t *end, bool *function)
{
    int found = tag_named(t, "function", i, name, end);
    *function = found > 0;
    if (found < 0) return -1;
    if (!*function) { /* NAME */
        name[0] = blanks_skip(t, i);
        name[1] = *end = name_skip(t, name[0]);
        if (*end == t->len) return t->final ? 0 : -1;
        if (*end == name[0]) return 0;
    }
    return head_ends(c, t, *end, *function);
}

static int tags_starts(struct tool_calls *c, const struct tag_text *t)
{
    size_t name[2], end = c->scan;
    bool function, alone = c->prefaced || c->scan == c->block_at;
    int found = head_at(c, t, c->scan, name, &end, &function);
    if (found <= 0) return found;
    bool known = calls__known(c, t->s + name[0], name[1] - name[0]);
    /* Of a call without <tool_call>, or of a name alone, only a known name tells that it is one. */
    size_t key[2], at = end;
    alone = alone || memchr(t->s + name[0], ' ', name[1] - name[0]);
    if (!known && (alone || (!function && parameter_at(t, end, key, &at) <= 0))) return 0;
    calls__begin(c, t->s + name[0], name[1] - name[0]);
    memset(&c->tags, 0, sizeof c->tags);
    c->tags.name_at = name[0];
    c->tags.name_end = name[1];
    c->scan = blanks_skip(t, end);
    if (function && t->s[c->scan] == '{') {
        c->tags.part = OBJECT;
        c->tags.ends[0] = FUNCTION_CLOSE;
        c->tags.ends[1] = c->syntax->closes[0];
        calls__value(c, c->scan);
        c->value.ends = c->tags.ends;
    }
    return 1;
}

/* ---- values ---- */

/* The text [from, to) as a value of the parameter's types. */
static void value_put(struct tool_calls *c, const struct tag_text *t, size_t from, size_t to)
{
    ASSERT(from <= to && c->tags.value_at == from);
    size_t len = c->args.len, a = from, b = blanks_trim(t, from, to);
    for (int n = 1; a < b && n > 0; a += (size_t)n) n = space_at(t, a);
    int odds = value_whole(t->s + a, b - a, &c->args);
    const char *json = c->args.data + len;
    uint8_t type = odds < 0                       ? 0
                   : *json == '{'                 ? TYPE_OBJECT
                   : *json == '['                 ? TYPE_ARRAY
                   : *json == '"'                 ? TYPE_STRING
                   : *json == 'n'                 ? TYPE_NULL
                   : *json == 't' || *json == 'f' ? TYPE_BOOLEAN
                   : json[strcspn(json, ".eE")]   ? TYPE_NUMBER
                                                  : TYPE_INTEGER | TYPE_NUMBER;
    bool text = c->tags.types & TYPE_STRING; /* then only what is certain is anything else */
    if (type && (!text || (odds < VALUE_REPAIRED && type & c->tags.types & ~(unsigned)TYPE_STRING))) return;
    c->args.len = len;
    calls__put(c, "\"");
    if (!c->st) c->st = value_escape(&c->args, t->s + from, to - from);
    calls__put(c, "\"");
}

/* A block with a call of a known function begins at i. Like tag_at. */
static int call_at(const struct tool_calls *c, const struct tag_text *t, size_t i)
{
    size_t name[2], end;
    bool function;
    int block = tag_at(t, i, c->syntax->opens[0]), found;
    if (block > 0) i += strlen(c->syntax->opens[0]);
    found = block < 0 ? -1 : head_at(c, t, i, name, &end, &function);
    if (found > 0 && !block && !function) return 0;
    return found > 0 ? calls__known(c, t->s + name[0], name[1] - name[0]) : found;
}

/* Closing tags at i, of which some are wrong, and then what follows a value. after: they follow the value's
 * own end tag. Like tag_at. */
static int closers_at(const struct tool_calls *c, const struct tag_text *t, size_t i, bool after)
{
    const char *close = c->syntax->closes[0];
    size_t name[2], first[2] = {0}, n = 0, key[2], end, at = i;
    bool block = false, wrong = false;
    int found;
    while ((found = calls__closer(c, t, &at, name)) > 0) {
        if (!n++) memcpy(first, name, sizeof first);
        if (!after && n > 1 && is_value_end(t, name)) { /* the value's own end tag is still to come */
            if (n > 2 || !is_tag(t, first, FUNCTION_CLOSE)) return 0;
            found = one_next(t, &at, c->syntax->closes); /* unless both are swapped */
            return found ? found : text_end(t, at);
        }
        block = block || is_tag(t, name, close);
        wrong = wrong || (n == 1 && !block && !is_tag(t, name, FUNCTION_CLOSE));
        if (n == CLOSERS_MAX || (after && (block || n > 1))) break;
    }
    if (found < 0 || !n) return found;
    if (!(after && (block || n > 1))) {
        found = text_end(t, at);
        if (!found) found = parameter_at(t, at, key, &end);
        if (found > 0 && blanks_skip(t, at) < t->len) found = after || types_of(c, t, key) != 0;
        if (!found)
            found = n > 1 && block ? one_next(t, &at, c->syntax->opens) : call_at(c, t, blanks_skip(t, at));
    }
    if (!found && wrong) found = n + after > 1 && !is_value_end(t, first); /* text that follows several */
    if (found <= 0 || !wrong) return found;
    for (size_t k = c->tags.value_at; k < i; k++) /* it closes what the value has opened */
        if (t->s[k] == '<' && i - k > first[1] - first[0] + 1 &&
            memcmp(t->s + k + 1 + (t->s[k + 1] == '|'), t->s + first[0], first[1] - first[0]) == 0)
            return 0;
    return 1;
}

/* What follows the end tag of a value at i is what follows values. Like tag_at. */
static int next_at(const struct tool_calls *c, const struct tag_text *t, size_t i)
{
    static const char *const function[] = {FUNCTION_CLOSE, NULL};
    size_t key[2], end;
    int found = parameter_at(t, i, key, &end);
    if (!found) found = text_end(t, i);
    if (!found) found = one_next(t, &i, function);
    if (!found) found = one_next(t, &i, c->syntax->closes);
    if (!found) found = one_next(t, &i, c->syntax->opens);
    return found ? found : closers_at(c, t, i, true);
}

/* The value's end tag is missing, and it ends with what follows it at i: another parameter of the function,
 * another call, or closing tags, where nothing or another call follows. Like tag_at. */
static int cut_at(const struct tool_calls *c, const struct tag_text *t, size_t i)
{
    size_t key[2], end;
    bool may = c->tags.inline_ || t->s[i - 1] == '\n';
    int found = may ? parameter_at(t, i, key, &end) : 0;
    if (found > 0) found = types_of(c, t, key) != 0;
    if (!found && may) found = call_at(c, t, i);
    return found ? found : closers_at(c, t, i, false);
}

static enum call_step value_feed(struct tool_calls *c, const struct tag_text *t)
{
    const struct tag_text more = {t->s, t->len, false};
    bool stream = !c->tags.types || c->tags.types == TYPE_STRING;
    int over = 0;
    size_t end, skip = 0;
    while (c->scan < t->len && !over) {
        const char *hit = memchr(t->s + c->scan, '<', t->len - c->scan);
        c->scan = hit ? (size_t)(hit - t->s) : t->len;
        skip = 0;
        for (size_t k = 0; hit && k < 2 && !over; k++) {
            over = tag_at(t, c->scan, value_ends[k]);
            if (over > 0) over = next_at(c, &more, c->scan + (skip = strlen(value_ends[k])));
            if (over < 0 && t->final) over = 1; /* a tag that is cut, or nothing */
        }
        if (hit && !over) skip = 0;
        if (hit && !over) over = cut_at(c, t, c->scan);
        if (hit && !over) c->scan++;
    }
    end = over > 0 || !t->final ? c->scan : t->len;
    bool trim = over > 0 ? c->tags.trim || !skip : !t->final;
    if (trim && end > c->tags.value_at && t->s[end - 1] == '\n') end--;
    if (stream && end > c->tags.value_out && !c->st) {
        c->st = value_escape(&c->args, t->s + c->tags.value_out, end - c->tags.value_out);
        c->tags.value_out = end;
    }
    ASSERT(!stream || c->st || c->tags.value_out <= c->scan);
    if (over <= 0) return CALL_MORE;
    if (stream) calls__put(c, "\"");
    else value_put(c, t, c->tags.value_at, end);
    c->scan += skip;
    c->tags.part = PARAMETERS;
    return GO_ON;
}

/* Between parameters. */
static enum call_step parameter_feed(struct tool_calls *c, const struct tag_text *t)
{
    static const char *const function[] = {FUNCTION_CLOSE, NULL};
    const struct tag_text more = {t->s, t->len, false}; /* a cut tag is no text */
    size_t key[2], end = 0, at = c->scan;
    int found = parameter_at(&more, c->scan, key, &end);
    if (found > 0) {
        if (end == t->len && !t->final) return CALL_MORE; /* the line break may come */
        c->tags.types = types_of(c, t, key);
        c->tags.part = VALUE;
        memcpy(c->tags.key, key, sizeof key);
        c->tags.closed = false;
        c->tags.inline_ = end == t->len || t->s[end] != '\n';
        c->tags.trim = found == 1 || !c->tags.inline_;
        c->scan = c->tags.value_at = c->tags.value_out = end + !c->tags.inline_;
        calls__put(c, c->tags.any ? ", \"" : "{\"");
        c->tags.any = true;
        if (!c->st) c->st = value_escape(&c->args, t->s + key[0], key[1] - key[0]);
        calls__put(c, !c->tags.types || c->tags.types == TYPE_STRING ? "\": \"" : "\": ");
        return GO_ON;
    }
    if (!found) found = one_next(&more, &at, function);
    c->scan = at;
    if (!found) found = one_next(&more, &at, c->syntax->closes);
    if (!found) found = one_next(&more, &at, c->syntax->opens);
    if (!found && (found = calls__closer(c, &more, &c->scan, key)) > 0) { /* a wrong one */
        c->tags.closed = true;
        return GO_ON;
    }
    bool over = t->final && c->tags.closed;
    if (found < 0 && !over && !(c->ended && blanks_skip(t, c->scan) == t->len)) return CALL_MORE;
    calls__put(c, c->tags.any ? "}" : "{}");
    return CALL_END;
}

static enum call_step tags_feed(struct tool_calls *c, const struct tag_text *t)
{
    enum call_step step = GO_ON;
    if (c->tags.part == OBJECT) {
        step = calls__arguments(c, t);
        if (step == CALL_END) c->tags.part = AFTER;
    }
    if (c->tags.part == AFTER) return tag_next(t, &c->scan, FUNCTION_CLOSE) < 0 ? CALL_MORE : CALL_END;
    while (step == GO_ON && !c->st) step = c->tags.part == VALUE ? value_feed(c, t) : parameter_feed(c, t);
    return step;
}

const struct call_reader call_tags = {tags_starts, tags_feed};
