/* Calls as a name and arguments: call:NAME{key:value}, NAME[ARGS]{..}, NAME(key=value). */
#include "server/chat/tool_calls/reader.h"

/* Skips white space and, if it is next, the word. */
static int word_skip(const struct tag_text *t, size_t *i, const char *word)
{
    size_t at = blanks_skip(t, *i);
    int found = at < t->len ? tag_at(t, at, word) : t->final ? 0 : -1;
    *i = at + (found > 0 ? strlen(word) : 0);
    return found;
}

/* Are these the first bytes of arguments? Like tag_at. */
static int arguments_at(const struct tool_calls *c, const struct tag_text *t, size_t i)
{
    static const char *const closers = "{})";
    if (t->s[i] != '{' && t->s[i] != '(') return 0;
    i = blanks_skip(t, i + 1);
    if (i == t->len) return t->final ? 0 : -1;
    int quote = c->syntax->quote ? tag_at(t, i, c->syntax->quote) : 0;
    if (quote || strchr(closers, t->s[i])) return quote ? quote : t->s[i] != 0;
    int close = c->syntax->closes[0] ? tag_at(t, i, c->syntax->closes[0]) : 0,
        key = close ? close : value_key_at(t, i);
    return key < 0 && t->final ? 0 : key;
}

static int named_starts(struct tool_calls *c, const struct tag_text *t)
{
    size_t i = c->scan, name, end;
    int found = word_skip(t, &i, "call:");
    bool call = found > 0;
    if (found < 0) return -1;
    name = i = blanks_skip(t, i);
    end = i = name_skip(t, i);
    if (i < t->len && end == name) return 0;
    if (word_skip(t, &i, "[CALL_ID]") > 0) i = name_skip(t, i);
    (void)word_skip(t, &i, "[ARGS]");
    i = blanks_skip(t, i);
    if (i == t->len || tag_at(t, i, "[CALL_ID]") < 0 || tag_at(t, i, "[ARGS]") < 0) return t->final ? 0 : -1;
    if ((c->prefaced || !(c->syntax->named && (call || c->call_at == c->block_at))) &&
        !calls__known(c, t->s + name, end - name))
        return 0;
    found = arguments_at(c, t, i);
    if (found <= 0) return found;
    calls__begin(c, t->s + name, end - name);
    calls__value(c, i);
    return 1;
}

const struct call_reader call_named = {named_starts, calls__arguments};
