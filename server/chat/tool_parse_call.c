/* Calls in a notation of their own (tool_parse.h): call:NAME{key:value,...} between tags that are tokens,
 * with tokens as quotes. Parsed input is emitted as JSON at once; a bare word is buffered, because only its
 * end shows whether it is a number. */
#include "server/chat/tool_parse_internal.h"

#include "config/base/assert.h"

#include <string.h>

#define LEVELS_MAX 60u

/* What is expected next in the arguments. */
enum { AT_KEY = 0, AT_KEY_WORD, AT_COLON, AT_VALUE, AT_WORD, AT_NEXT };

static bool is_array(const struct tool_parse *p)
{
    return p->arrays >> p->level & 1;
}

static enum status say(const struct tool_sink *sink, const char *s)
{
    return sink->arguments(sink->user, s, strlen(s));
}

/* ---- the head ---- */

static bool in_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || (unsigned char)c >= 0x80;
}

enum status tool__call_block(struct tool_parse *p, const char *text, size_t len, bool final,
                             const struct tool_sink *sink, bool *more)
{
    static const char head[] = "call:";
    size_t i = p->open + strlen(tool__open(p));
    while (i < len && tool__is_space(text[i])) i++;
    int found = i < len ? tool__tag_at(text, len, i, head, final) : final ? 0 : -1;
    size_t name = i + sizeof head - 1, end = name;
    while (found > 0 && end < len && in_name(text[end])) end++;
    if (found > 0 && end == len) found = final ? 0 : -1;
    if (found > 0) found = end > name && text[end] == '{';
    *more = found >= 0;
    if (!found) tool__block_refuse(p);
    if (found <= 0) return ST_OK;
    tool__to(p, TOOL_PARAMETERS);
    p->scan = end + 1;
    p->level = 0;
    p->arrays = p->items = 0;
    p->part = AT_KEY;
    enum status st = tool__call_begin(p, text + name, end - name, sink);
    return st ? st : say(sink, "{");
}

/* ---- values ---- */

/* An element of the innermost object or array begins. */
static enum status element(struct tool_parse *p, const struct tool_sink *sink)
{
    uint64_t bit = (uint64_t)1 << p->level;
    bool first = !(p->items & bit);
    p->items |= bit;
    return first ? ST_OK : say(sink, ", ");
}

static enum status push(struct tool_parse *p, bool array, const struct tool_sink *sink)
{
    uint64_t bit = (uint64_t)1 << ++p->level;
    ASSERT(p->level <= LEVELS_MAX);
    p->arrays = array ? p->arrays | bit : p->arrays & ~bit;
    p->items &= ~bit;
    p->part = array ? AT_VALUE : AT_KEY;
    return say(sink, array ? "[" : "{");
}

static enum status pop(struct tool_parse *p, const struct tool_sink *sink)
{
    enum status st = say(sink, is_array(p) ? "]" : "}");
    p->part = AT_NEXT;
    if (p->level--) return st;
    tool__to(p, TOOL_END);
    return st ? st : tool__call_end(p, sink);
}

/* A premature end tag, or nesting too deep: closes everything open. */
static enum status close_all(struct tool_parse *p, const struct tool_sink *sink)
{
    enum status st = p->part == AT_COLON ? say(sink, ": null") : ST_OK;
    if (p->part == AT_VALUE && !is_array(p)) st = say(sink, "null");
    while (p->state == TOOL_PARAMETERS && !st) st = pop(p, sink);
    return st;
}

static size_t digits(const char *s, size_t i, size_t len)
{
    while (i < len && s[i] >= '0' && s[i] <= '9') i++;
    return i;
}

static bool is_number(const char *s, size_t len)
{
    size_t i = len && s[0] == '-', from = i;
    i = digits(s, i, len);
    if (i == from || (s[from] == '0' && i > from + 1)) return false;
    if (i < len && s[i] == '.') {
        from = ++i;
        i = digits(s, i, len);
        if (i == from) return false;
    }
    if (i < len && (s[i] == 'e' || s[i] == 'E')) {
        if (++i < len && (s[i] == '+' || s[i] == '-')) i++;
        from = i;
        i = digits(s, i, len);
        if (i == from) return false;
    }
    return i == len;
}

static bool is_word(const char *s, size_t len, const char *word)
{
    return strlen(word) == len && strncasecmp(s, word, len) == 0;
}

/* The bare word text[from, to). */
static enum status word(const char *text, size_t from, size_t to, const struct tool_sink *sink)
{
    while (to > from && tool__is_space(text[to - 1])) to--;
    const char *s = text + from;
    size_t len = to - from;
    if (is_word(s, len, "null") || is_word(s, len, "none") || is_word(s, len, "nil"))
        return say(sink, "null");
    if (is_number(s, len) || (len == 4 && memcmp(s, "true", 4) == 0) ||
        (len == 5 && memcmp(s, "false", 5) == 0))
        return sink->arguments(sink->user, s, len);
    enum status st = say(sink, "\"");
    if (!st) st = tool__say_escaped(sink, s, len);
    return st ? st : say(sink, "\"");
}

/* A string begins: of a key or of a value. */
static enum status string(struct tool_parse *p, const struct tool_sink *sink)
{
    bool key = p->part == AT_KEY;
    enum status st = key || is_array(p) ? element(p, sink) : ST_OK;
    p->part = key ? AT_COLON : AT_NEXT; /* after it */
    p->scan += strlen(TOOL_QUOTE);
    tool__to(p, TOOL_VALUE);
    return st ? st : say(sink, "\"");
}

static enum status value_begins(struct tool_parse *p, char c, const struct tool_sink *sink)
{
    enum status st = ST_OK;
    if (c == ',' && is_array(p)) return ST_OK;
    if (c == ']' && is_array(p)) return pop(p, sink);
    if (c == ',' || c == '}') { /* of an object, or a superfluous brace */
        if (is_array(p)) return ST_OK;
        st = say(sink, "null");
        p->part = AT_KEY;
        return st || c == ',' ? st : pop(p, sink);
    }
    if (is_array(p)) st = element(p, sink);
    if (st) return st;
    if (c != '{' && c != '[') {
        p->part = AT_WORD;
        p->args_at = p->scan - 1;
        return ST_OK;
    }
    return p->level == LEVELS_MAX ? close_all(p, sink) : push(p, c == '[', sink);
}

/* One byte of the arguments, at p->scan - 1, that begins neither a string nor the end tag. */
static enum status step(struct tool_parse *p, const char *text, const struct tool_sink *sink)
{
    size_t i = p->scan - 1;
    char c = text[i];
    bool space = tool__is_space(c);
    enum status st = ST_OK;
    switch (p->part) {
    case AT_KEY:
        if (space || c == ',') return ST_OK;
        if (c == '}') return pop(p, sink);
        p->part = AT_KEY_WORD;
        p->args_at = i;
        return ST_OK;
    case AT_KEY_WORD:
        if (c == '}' || c == ',') { /* a key without a value is dropped */
            p->part = AT_KEY;
            return c == '}' ? pop(p, sink) : ST_OK;
        }
        if (c != ':') return ST_OK;
        while (i > p->args_at && tool__is_space(text[i - 1])) i--;
        st = element(p, sink);
        if (!st) st = say(sink, "\"");
        if (!st) st = tool__say_escaped(sink, text + p->args_at, i - p->args_at);
        p->part = AT_VALUE;
        return st ? st : say(sink, "\": ");
    case AT_COLON:
        if (space) return ST_OK;
        p->part = AT_VALUE;
        if (c != ':') p->scan--; /* it is missing */
        return say(sink, ": ");
    case AT_VALUE: return space ? ST_OK : value_begins(p, c, sink);
    case AT_WORD:
        if (c != ',' && c != ']' && (c != '}' || is_array(p))) return ST_OK;
        st = word(text, p->args_at, i, sink);
        p->part = AT_NEXT;
        p->scan--;
        return st;
    default: /* AT_NEXT */
        if (space || (c == ']' && !is_array(p)) || (c == '}' && is_array(p))) return ST_OK;
        if (c == '}' || c == ']') return pop(p, sink);
        p->part = is_array(p) ? AT_VALUE : AT_KEY;
        if (c != ',') p->scan--; /* it is missing */
        return ST_OK;
    }
}

enum status tool__call_parameters(struct tool_parse *p, const char *text, size_t len, bool final,
                                  const struct tool_sink *sink, bool *more)
{
    enum status st = ST_OK;
    while (p->scan < len && p->state == TOOL_PARAMETERS && !st) {
        bool tag = text[p->scan] == '<';
        int end = tag ? tool__tag_at(text, len, p->scan, tool__close(p), final) : 0,
            quote = tag ? tool__tag_at(text, len, p->scan, TOOL_QUOTE, final) : 0;
        if (end < 0 || quote < 0) break;
        if (end) {
            if (p->part == AT_WORD) st = word(text, p->args_at, p->scan, sink);
            if (p->part == AT_WORD) p->part = AT_NEXT;
            if (!st) st = close_all(p, sink);
        } else if (quote && (p->part == AT_KEY || p->part == AT_VALUE)) {
            st = string(p, sink);
        } else {
            p->scan++;
            st = step(p, text, sink);
        }
    }
    *more = p->state != TOOL_PARAMETERS;
    return st;
}

/* Within a string: up to the closing quote, or to the end tag if that is missing. */
enum status tool__call_value(struct tool_parse *p, const char *text, size_t len, bool final,
                             const struct tool_sink *sink, bool *more)
{
    size_t from = p->scan, to = len;
    int quote = 0, end = 0;
    for (; p->scan < len; p->scan++) {
        const char *hit = memchr(text + p->scan, '<', len - p->scan);
        p->scan = hit ? (size_t)(hit - text) : len;
        if (!hit) break;
        quote = tool__tag_at(text, len, p->scan, TOOL_QUOTE, final);
        end = tool__tag_at(text, len, p->scan, tool__close(p), final);
        if (quote || end) break;
    }
    to = p->scan;
    enum status st = to > from ? tool__say_escaped(sink, text + from, to - from) : ST_OK;
    *more = quote > 0 || end > 0;
    if (!*more || st) return st;
    if (quote > 0) p->scan += strlen(TOOL_QUOTE);
    tool__to(p, TOOL_PARAMETERS);
    return say(sink, "\"");
}
