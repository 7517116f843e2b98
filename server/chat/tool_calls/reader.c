/* Shared by the readers of calls, see reader.h. */
#include "server/chat/tool_calls/reader.h"

#include "config/base/assert.h"

#include <strings.h>

void calls__flush(struct tool_calls *c)
{
    size_t n = c->args.len > c->hold ? c->args.len - c->hold : 0;
    if (!n || !c->begun || c->st) return;
    c->st = c->sink->arguments(c->sink->user, c->args.data, n);
    for (size_t i = 0; i < n; i++)
        if (!is_blank(c->args.data[i])) c->last = c->args.data[i];
    c->args.len -= n;
    memmove(c->args.data, c->args.data + n, c->args.len);
}

void calls__begin(struct tool_calls *c, const char *name, size_t len)
{
    ASSERT(len && !c->begun);
    c->calls++;
    c->begun = c->open = true;
    if (!c->st) c->st = c->sink->begin(c->sink->user, name, len);
}

void calls__end(struct tool_calls *c)
{
    ASSERT(c->begun);
    c->hold = 0;
    calls__flush(c);
    c->open = false;
}

void calls__put(struct tool_calls *c, const char *s)
{
    if (!c->st) c->st = buf_adds(&c->args, s);
}

bool calls__known(const struct tool_calls *c, const char *name, size_t len)
{
    return tool_types_knows(c->rules.types, name, len) || json_object_getn(c->rules.bare, name, len);
}

/* The text [from, to) is that of [a, b). */
static bool is_same(const struct tag_text *t, size_t from, size_t to, size_t a, size_t b)
{
    return b - a == to - from && memcmp(t->s + from, t->s + a, to - from) == 0;
}

int calls__closer(const struct tool_calls *c, const struct tag_text *t, size_t *i, size_t name[2])
{
    static const char *const words[] = {"func", "tool", "invo", "call", "param", "arg", "value"};
    size_t from = blanks_skip(t, *i), to, at;
    bool bar = from + 1 < t->len && t->s[from + 1] == '|'; /* <|/parameter|> */
    int found = from < t->len ? tag_at(t, from, bar ? "<|/" : "</") : t->final ? 0 : -1;
    if (found <= 0) return found;
    for (to = from += 2 + bar; to < t->len && to - from <= NAME_MAX_LEN && !strchr("<>\n", t->s[to]); to++)
        ;
    if (to == t->len) return t->final ? 0 : -1;
    if (t->s[to] != '>' && t->s[to] != '\n') return 0;
    bool is = c && (is_same(t, from, to, c->tags.key[0], c->tags.key[1]) ||
                    is_same(t, from, to, c->tags.name_at, c->tags.name_end) ||
                    tool_types_lists(c->rules.types, t->s + c->tags.name_at,
                                     c->tags.name_end - c->tags.name_at, t->s + from, to - from));
    at = from + strspn(t->s + from, "|_ ");
    const char *colon = memchr(t->s + at, ':', to - at); /* of a namespace */
    if (colon) at = (size_t)(colon - t->s) + 1;
    for (size_t k = 0; k < sizeof words / sizeof *words && !is; k++)
        is = to - at >= strlen(words[k]) && strncasecmp(t->s + at, words[k], strlen(words[k])) == 0;
    name[0] = from;
    name[1] = to;
    if (is) *i = to + (t->s[to] == '>');
    return is;
}

void calls__value(struct tool_calls *c, size_t at)
{
    value_init(&c->value, at, &c->args);
    c->value.key = &c->key;
    c->value.quote = c->syntax->quote;
    c->value.ends = c->syntax->closes;
    c->value.opens = c->syntax->opens;
}

enum call_step calls__arguments(struct tool_calls *c, const struct tag_text *t)
{
    enum value_event event = value_read(&c->value, t);
    if (event == VALUE_MORE && !(t->final && c->ended && value_may_end(&c->value))) return CALL_MORE;
    c->broken = c->broken || event == VALUE_DEEP;
    if (event != VALUE_DONE) value_close(&c->value, t);
    c->scan = c->value.at;
    return CALL_END;
}
