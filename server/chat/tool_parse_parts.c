/* Shared by the tool call syntaxes (tool_parse_internal.h): tags, states, the beginning and the end of a
 * call. */
#include "server/chat/tool_parse_internal.h"

#include "config/base/assert.h"

#include <stdio.h>
#include <string.h>

bool tool__is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

size_t tag_prefix(const char *text, size_t len, const char *tag)
{
    size_t n = strlen(tag) - 1;
    if (n > len) n = len;
    while (n && memcmp(text + len - n, tag, n) != 0) n--;
    return n;
}

int tool__tag_at(const char *text, size_t len, size_t i, const char *tag, bool final)
{
    size_t tag_len = strlen(tag), n = len - i < tag_len ? len - i : tag_len;
    if (memcmp(text + i, tag, n) != 0) return 0;
    return n == tag_len ? 1 : final ? 0 : -1;
}

void tool__to(struct tool_parse *p, enum tool_state state)
{
    static const unsigned next[] = {
        [TOOL_TEXT] = 1u << TOOL_TEXT | 1u << TOOL_BLOCK | 1u << TOOL_BARE,
        [TOOL_BARE] = 1u << TOOL_TEXT | 1u << TOOL_REST,
        [TOOL_BLOCK] = 1u << TOOL_TEXT | 1u << TOOL_REST | 1u << TOOL_PARAMETERS | 1u << TOOL_END,
        [TOOL_REST] = 1u << TOOL_LOOSE | 1u << TOOL_END,
        [TOOL_LOOSE] = 1u << TOOL_END,
        [TOOL_PARAMETERS] = 1u << TOOL_VALUE | 1u << TOOL_END,
        [TOOL_VALUE] = 1u << TOOL_PARAMETERS,
        [TOOL_END] = 1u << TOOL_TEXT | 1u << TOOL_DONE,
        [TOOL_DONE] = 0,
    };
    (void)next;
    ASSERT_SLOW(next[p->state] >> state & 1);
    p->state = state;
}

void tool__block_refuse(struct tool_parse *p)
{
    tool__to(p, TOOL_TEXT);
    p->search = p->open + 1;
}

enum status tool__call_begin(struct tool_parse *p, const char *name, size_t len, const struct tool_sink *sink)
{
    p->calls++;
    p->arguments_open = true;
    return sink->begin(sink->user, name, len);
}

enum status tool__call_end(struct tool_parse *p, const struct tool_sink *sink)
{
    p->arguments_open = false;
    return sink->end(sink->user);
}

enum status tool__say_escaped(const struct tool_sink *sink, const char *s, size_t len)
{
    enum status st = ST_OK;
    for (size_t i = 0, from = 0; i <= len && !st; i++) {
        unsigned char c = i < len ? (unsigned char)s[i] : 0;
        if (i < len && c >= 0x20 && c != '"' && c != '\\') continue;
        if (i > from) st = sink->arguments(sink->user, s + from, i - from);
        from = i + 1;
        if (st || i == len) break;
        static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
        const char *k = c ? strchr(plain, c) : NULL;
        char escape[8];
        if (k) {
            snprintf(escape, sizeof escape, "\\%c", letters[k - plain]);
        } else {
            snprintf(escape, sizeof escape, "\\u%04x", c);
        }
        st = sink->arguments(sink->user, escape, strlen(escape));
    }
    return st;
}
