/* GBNF, llama.cpp's grammar format; and detection of a text's grammar format. */
#include "server/grammar/ebnf.h"
#include "server/grammar/regex_parse.h"

#include <string.h>

#define TEXT_MAX ((size_t)1 << 18)

static bool defines(const struct ebnf *e)
{
    size_t to = ebnf_name(e, e->at), at = ebnf_space(e, to);
    return to > e->at && e->len - at >= 3 && memcmp(e->s + at, "::=", 3) == 0;
}

/* [...]: a class of regular expressions. */
static enode class(struct ebnf *e)
{
    size_t from = e->at;
    rx out = RX_NONE;
    while (e->at < e->len && e->s[e->at] != ']') e->at += e->s[e->at] == '\\' && e->at + 1 < e->len ? 2 : 1;
    if (e->at++ >= e->len) return ebnf_refuse(e, ST_INVALID, "a ] is expected");
    enum status st = regex_parse(e->p, e->s + from, e->at - from, REGEX_LONG_CODE, &out, e->error);
    return st ? ebnf_refuse(e, st, "the class is not valid") : ebnf_regex(e, out, 1);
}

static enode atom(struct ebnf *e)
{
    size_t to = ebnf_name(e, e->at);
    if (to > e->at) {
        enode out = ebnf_rule(e, e->at, to);
        e->at = to;
        return out;
    }
    if (ebnf_has(e, "\"")) return ebnf_string(e, false);
    if (ebnf_has(e, "[")) return class(e);
    if (ebnf_take(e, "(")) return ebnf_group(e, ")");
    if (ebnf_take(e, ".")) return ebnf_regex(e, rx_chars(e->p, 0, 0x10FFFF), 1);
    if (ebnf_has(e, "<") || ebnf_has(e, "!<"))
        return ebnf_refuse(e, ST_UNSUPPORTED, "tokens (<...>) are not supported");
    return ebnf_refuse(e, ST_INVALID, "unexpected text");
}

enum status ebnf_read_gbnf(struct ebnf *e)
{
    static const struct ebnf_dialect gbnf = {"root", {"#", NULL}, defines, atom};
    e->dialect = &gbnf;
    for (e->at = ebnf_space(e, 0); e->at < e->len && !e->st; e->at = ebnf_space(e, e->at)) {
        if (!defines(e)) {
            ebnf_refuse(e, ST_INVALID, "a rule (name ::= ...) is expected");
            break;
        }
        size_t to = ebnf_name(e, e->at);
        enode name = ebnf_rule(e, e->at, to);
        e->at = ebnf_space(e, to) + 3;
        ebnf_define(e, name, ebnf_alternatives(e));
    }
    return e->st;
}

/* The first thing in GBNF is a rule with "::=". */
static bool is_gbnf(struct ebnf *e)
{
    static const struct ebnf_dialect any = {"", {"#", "//"}, NULL, NULL};
    e->dialect = &any;
    e->at = ebnf_space(e, 0);
    bool yes = defines(e);
    e->at = 0;
    return yes;
}

enum status gb_text(struct grammar_builder *b, const char *text, size_t len, bool in_json, gx *out,
                    struct grammar_error *error)
{
    struct ebnf e = {.b = b, .s = text, .len = len, .in_json = in_json, .error = error};
    *error = (struct grammar_error){0};
    *out = 0;
    if (len > TEXT_MAX) ebnf_refuse(&e, ST_TOO_LARGE, "the grammar is longer than %zu bytes", TEXT_MAX);
    else if (!ebnf_open(&e)) ebnf_nomem(&e);
    else if (!(is_gbnf(&e) ? ebnf_read_gbnf(&e) : ebnf_read_lark(&e))) *out = ebnf_compile(&e);
    ebnf_close(&e);
    return e.st;
}
