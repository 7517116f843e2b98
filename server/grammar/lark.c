/* Lark grammars; features that only affect parse trees are ignored. */
#include "server/grammar/ebnf.h"
#include "server/grammar/regex_parse.h"

#include <stdlib.h>
#include <string.h>

/* Definitions of %import common.NAME. */
static const char *const common[][2] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[_A-Za-z][_A-Za-z0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"SQL_COMMENT", "--[^\\n]*"},
    {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"},
};

/* The start of a definition's name, and the position after its colon; 0: none. */
static size_t definition(const struct ebnf *e, size_t *from, size_t *to)
{
    size_t at = e->at;
    while (at < e->len && (e->s[at] == '?' || e->s[at] == '!')) at++;
    *from = at;
    *to = at = ebnf_name(e, at);
    if (at == *from) return 0;
    if (at < e->len && e->s[at] == '.') /* a priority, which doesn't affect the language */
        for (at++; at < e->len && ((e->s[at] >= '0' && e->s[at] <= '9') || e->s[at] == '-');) at++;
    at = ebnf_space(e, at);
    return at < e->len && e->s[at] == ':' ? at + 1 : 0;
}

static bool defines(const struct ebnf *e)
{
    size_t from, to;
    return ebnf_has(e, "%") || definition(e, &from, &to);
}

static bool is_terminal(const struct ebnf *e, size_t at)
{
    while (at < e->len && e->s[at] == '_') at++;
    return at < e->len && e->s[at] >= 'A' && e->s[at] <= 'Z';
}

static enode regex(struct ebnf *e)
{
    size_t from = ++e->at, to;
    for (bool in_class = false; e->at < e->len && (e->s[e->at] != '/' || in_class); e->at++) {
        if (e->s[e->at] == '[') in_class = true;
        if (e->s[e->at] == ']') in_class = false;
        if (e->s[e->at] == '\\' && e->at + 1 < e->len) e->at++;
        if (e->s[e->at] == '\n') break;
    }
    if (!ebnf_has(e, "/")) return ebnf_refuse(e, ST_INVALID, "a regular expression does not end");
    unsigned flags = REGEX_DOT_LINE;
    for (to = e->at++; e->at < e->len && e->s[e->at] && strchr("imslux", e->s[e->at]); e->at++) {
        char c = e->s[e->at];
        if (c == 'x' || c == 'm') return ebnf_refuse(e, ST_UNSUPPORTED, "the flag %c is not supported", c);
        flags |= c == 's' ? REGEX_DOT_ALL : c == 'i' ? REGEX_ANY_CASE : 0u;
    }
    rx out = RX_NONE;
    enum status st = regex_parse(e->p, e->s + from, to - from, flags, &out, e->error);
    return st ? ebnf_refuse(e, st, "the regular expression is not valid") : ebnf_regex(e, out, to - from);
}

/* "..."  or  "a".."z" */
static enode string(struct ebnf *e)
{
    size_t at = e->at;
    enode out = ebnf_string(e, true);
    if (e->st || !ebnf_take(e, "..")) return out;
    uint32_t ends[2];
    e->at = at;
    for (int i = 0; i < 2 && !e->st; i++) {
        bool ok = ebnf_take(e, "\"");
        ends[i] = ok ? ebnf_char(e) : 0;
        ok = ok && ebnf_take(e, "\"") && (i || ebnf_take(e, ".."));
        if (!ok) ebnf_refuse(e, ST_INVALID, "a range has one character at each end");
    }
    if (!e->st && ends[1] < ends[0]) ebnf_refuse(e, ST_INVALID, "a range is out of order");
    return e->st ? 0 : ebnf_regex(e, rx_chars(e->p, ends[0], ends[1]), 1);
}

static enode atom(struct ebnf *e)
{
    size_t to = ebnf_name(e, e->at);
    if (to > e->at) {
        enode out = ebnf_rule(e, e->at, to);
        if (is_terminal(e, e->at)) out = ebnf_token(e, out);
        e->at = to;
        return out;
    }
    if (ebnf_has(e, "\"")) return ebnf_token(e, string(e));
    if (ebnf_has(e, "/")) return ebnf_token(e, regex(e));
    if (ebnf_take(e, "(")) return ebnf_group(e, ")");
    if (ebnf_take(e, "[")) return ebnf_repeat(e, ebnf_group(e, "]"), 0, 1);
    if (ebnf_has(e, "<")) return ebnf_refuse(e, ST_UNSUPPORTED, "special tokens (<...>) are not supported");
    return ebnf_refuse(e, ST_INVALID, "unexpected text");
}

/* One name of %import common...: it may be renamed here. */
static void import_one(struct ebnf *e)
{
    e->at = ebnf_space(e, e->at);
    size_t from = e->at, to = ebnf_name(e, from), at = ebnf_space(e, to);
    const char *text = NULL;
    rx out = RX_NONE;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (strlen(common[i][0]) == to - from && !memcmp(common[i][0], e->s + from, to - from))
            text = common[i][1];
    if (!text) {
        ebnf_refuse(e, ST_UNSUPPORTED, "%%import of what is not known");
        return;
    }
    e->at = to;
    if (e->len - at >= 2 && memcmp(e->s + at, "->", 2) == 0) {
        from = ebnf_space(e, at + 2);
        e->at = to = ebnf_name(e, from);
        if (to == from) ebnf_refuse(e, ST_INVALID, "a name is expected");
    }
    enum status st = e->st ? e->st : regex_parse(e->p, text, strlen(text), 0, &out, e->error);
    if (st) ebnf_refuse(e, st, "%%import failed");
    else ebnf_define(e, ebnf_rule(e, from, to), ebnf_regex(e, out, 16));
}

static void directive(struct ebnf *e)
{
    if (ebnf_take(e, "%ignore")) {
        e->in_terminal = true;
        e->ignored = ebnf_either(e, e->ignored, ebnf_alternatives(e));
        e->in_terminal = false;
    } else if (ebnf_take(e, "%import")) {
        e->at = ebnf_space(e, e->at);
        bool known = ebnf_take(e, "common");
        if (known && ebnf_take(e, ".")) {
            import_one(e);
        } else if (e->at = ebnf_space(e, e->at), known && ebnf_take(e, "(")) {
            do import_one(e);
            while (!e->st && (e->at = ebnf_space(e, e->at), ebnf_take(e, ",")));
            if (!e->st && !ebnf_take(e, ")")) ebnf_refuse(e, ST_INVALID, "a ) is expected");
        } else {
            ebnf_refuse(e, ST_UNSUPPORTED, "%%import from anything but common is not supported");
        }
    } else {
        ebnf_refuse(e, ST_UNSUPPORTED, "of the directives, %%ignore and %%import are supported");
    }
}

enum status ebnf_read_lark(struct ebnf *e)
{
    static const struct ebnf_dialect lark = {"start", {"//", "#"}, defines, atom};
    e->dialect = &lark;
    for (e->at = ebnf_space(e, 0); e->at < e->len && !e->st; e->at = ebnf_space(e, e->at)) {
        size_t from, to, behind = definition(e, &from, &to);
        if (ebnf_has(e, "%")) {
            directive(e);
        } else if (behind) {
            enode name = ebnf_rule(e, from, to);
            e->at = behind;
            e->in_terminal = is_terminal(e, from);
            ebnf_define(e, name, ebnf_alternatives(e));
            e->in_terminal = false;
        } else {
            ebnf_refuse(e, ST_INVALID, "a rule (name: ...) is expected");
        }
    }
    return e->st;
}
