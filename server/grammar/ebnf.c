/* See ebnf.h. */
#include "server/grammar/ebnf.h"

#include "config/base/assert.h"
#include "config/base/hex.h"
#include "config/base/utf8.h"
#include "config/base/id_table.h"
#include "config/base/list.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define DEPTH_MAX  2000u
#define COUNT_MAX  100000u
#define INLINE_MAX 256u /* larger rules are not inlined */
#define RUN_MAX    (1u << 15)

enum { E_REGEX = 1, E_RULE, E_SEQ, E_ALT, E_REPEAT, E_TOKEN };
struct ebnf_node {
    uint8_t kind;
    enode first, next; /* E_RULE: first is the rule number */
    uint32_t min, max; /* E_REGEX: min is the regex, max its size */
};
struct ebnf_rule {
    enode body;  /* 0: not defined yet */
    size_t from; /* position of the name's first occurrence */
    enum { RULE_NEW = 0, RULE_OPEN, RULE_DONE } state;
    struct ebnf_part part;
};

/* ---- reading ---- */

enode ebnf_refuse(struct ebnf *e, enum status st, const char *fmt, ...)
{
    size_t line = 1;
    if (e->st) return 0;
    e->st = st;
    for (size_t i = 0; i < e->at && i < e->len; i++) line += e->s[i] == '\n';
    snprintf(e->error->path, sizeof e->error->path, "line %zu", line);
    va_list args;
    va_start(args, fmt);
    if (!e->error->message[0]) vsnprintf(e->error->message, sizeof e->error->message, fmt, args);
    va_end(args);
    return 0;
}

enode ebnf_nomem(struct ebnf *e)
{
    return ebnf_refuse(e, ST_NOMEM, "out of memory");
}

static bool has(const struct ebnf *e, size_t at, const char *text)
{
    size_t n = strlen(text);
    return at <= e->len && e->len - at >= n && memcmp(e->s + at, text, n) == 0;
}

bool ebnf_has(const struct ebnf *e, const char *text)
{
    return has(e, e->at, text);
}

bool ebnf_take(struct ebnf *e, const char *text)
{
    bool yes = ebnf_has(e, text);
    if (yes) e->at += strlen(text);
    return yes;
}

size_t ebnf_space(const struct ebnf *e, size_t at)
{
    for (bool comment = false; at < e->len; at++) {
        char c = e->s[at];
        for (int i = 0; i < 2 && e->dialect->comments[i]; i++)
            comment = comment || has(e, at, e->dialect->comments[i]);
        if (c == '\n') comment = false;
        else if (!comment && c != ' ' && c != '\t' && c != '\r' && c != '\f') break;
    }
    return at;
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

size_t ebnf_name(const struct ebnf *e, size_t at)
{
    if (at >= e->len || !name_char(e->s[at])) return at;
    while (at < e->len && (name_char(e->s[at]) || (e->s[at] >= '0' && e->s[at] <= '9') ||
                           (e->s[at] == '-' && !has(e, at, "->"))))
        at++;
    return at;
}

uint32_t ebnf_number(struct ebnf *e)
{
    uint32_t n = 0;
    size_t from = e->at;
    for (; e->at < e->len && e->s[e->at] >= '0' && e->s[e->at] <= '9'; e->at++)
        if (n <= COUNT_MAX) n = 10 * n + (uint32_t)(e->s[e->at] - '0');
    if (from == e->at) ebnf_refuse(e, ST_INVALID, "a number is expected");
    if (n > COUNT_MAX) ebnf_refuse(e, ST_TOO_LARGE, "a count is larger than %u", COUNT_MAX);
    return n;
}

uint32_t ebnf_char(struct ebnf *e)
{
    static const char from[] = "ntrfvb0", to[] = "\n\t\r\f\v\b";
    uint32_t c;
    size_t n = utf8_decode(e->s + e->at, e->len - e->at, &c);
    if (c >= UTF8_BAD) return ebnf_refuse(e, ST_INVALID, "the text ends, or is not UTF-8");
    e->at += n;
    if (c != '\\') return c;
    if (e->at == e->len) return ebnf_refuse(e, ST_INVALID, "the text ends with a backslash");
    char k = e->s[e->at++];
    const char *at = memchr(from, k, sizeof from - 1);
    if (at) return (uint32_t)to[at - from];
    unsigned digits = k == 'x' ? 2 : k == 'u' ? 4 : k == 'U' ? 8 : 0;
    if (!digits && (name_char(k) || (k >= '0' && k <= '9') || (unsigned char)k >= 0x80))
        return ebnf_refuse(e, ST_UNSUPPORTED, "an escape is not known");
    if (!digits) return (uint32_t)k;
    uint32_t code = 0;
    for (; digits; digits--, e->at++) {
        int d = e->at < e->len ? hex_digit(e->s[e->at]) : -1;
        if (d < 0 || code > 0x10FFFF >> 4) return ebnf_refuse(e, ST_INVALID, "an escape is not complete");
        code = code << 4 | (uint32_t)d;
    }
    if (code >= 0xD800 && code <= 0xDFFF) return ebnf_refuse(e, ST_INVALID, "half of a surrogate pair");
    return code;
}

/* ---- expressions ---- */

static enode node(struct ebnf *e, struct ebnf_node n)
{
    if (e->st) return 0;
    if (!LIST_RESERVE(e->nodes, e->node_cap, e->node_count + 1u)) return ebnf_nomem(e);
    e->nodes[e->node_count] = n;
    return e->node_count++;
}

enode ebnf_regex(struct ebnf *e, rx a, size_t size)
{
    return node(e, (struct ebnf_node){.kind = E_REGEX, .min = a, .max = (uint32_t)size});
}

enode ebnf_token(struct ebnf *e, enode x)
{
    return e->in_terminal ? x : node(e, (struct ebnf_node){.kind = E_TOKEN, .first = x});
}

enode ebnf_repeat(struct ebnf *e, enode x, uint32_t min, uint32_t max)
{
    if (max < min) return ebnf_refuse(e, ST_INVALID, "counts are out of order");
    return node(e, (struct ebnf_node){.kind = E_REPEAT, .first = x, .min = min, .max = max});
}

enode ebnf_either(struct ebnf *e, enode a, enode b)
{
    if (!a || !b) return a ? a : b;
    e->nodes[a].next = b;
    return node(e, (struct ebnf_node){.kind = E_ALT, .first = a});
}

enode ebnf_rule(struct ebnf *e, size_t from, size_t to)
{
    json_t *at = json_object_getn(e->names, e->s + from, to - from);
    uint32_t k = at ? (uint32_t)json_integer_value(at) : e->rule_count;
    if (!at) {
        if (!LIST_RESERVE(e->rules, e->rule_cap, e->rule_count + 1u) ||
            json_object_setn_new(e->names, e->s + from, to - from, json_integer(k)))
            return ebnf_nomem(e);
        e->rules[e->rule_count++] = (struct ebnf_rule){.from = from};
    }
    return node(e, (struct ebnf_node){.kind = E_RULE, .first = k});
}

void ebnf_define(struct ebnf *e, enode rule, enode body)
{
    if (e->st || !rule) return;
    ASSERT_CMP(e->nodes[rule].kind, ==, E_RULE);
    struct ebnf_rule *r = &e->rules[e->nodes[rule].first];
    size_t to = ebnf_name(e, r->from);
    if (r->body)
        ebnf_refuse(e, ST_INVALID, "%.*s is defined twice", (int)(to - r->from > 80 ? 80 : to - r->from),
                    e->s + r->from);
    r->body = body;
}

enode ebnf_string(struct ebnf *e, bool any_case)
{
    size_t from = ++e->at;
    uint32_t *codes = malloc((e->len - from + 1) * sizeof *codes);
    size_t n = 0;
    if (!codes) return ebnf_nomem(e);
    while (!e->st && !ebnf_has(e, "\"")) codes[n++] = ebnf_char(e);
    e->at++;
    bool fold = any_case && !e->st && ebnf_take(e, "i");
    rx out = RX_EMPTY;
    for (size_t i = n; i-- > 0 && !e->st;) {
        rx c = rx_chars(e->p, codes[i], codes[i]);
        uint32_t low = (uint32_t)utf8proc_tolower((utf8proc_int32_t)codes[i]),
                 up = (uint32_t)utf8proc_toupper((utf8proc_int32_t)codes[i]);
        if (fold) c = rx_alt(e->p, c, rx_alt(e->p, rx_chars(e->p, low, low), rx_chars(e->p, up, up)));
        out = rx_concat(e->p, c, out);
    }
    free(codes);
    return ebnf_regex(e, out, n);
}

static enode quantified(struct ebnf *e)
{
    enode x = e->dialect->atom(e);
    for (;;) {
        size_t was = e->at;
        e->at = ebnf_space(e, e->at);
        if (e->st || e->dialect->defines(e)) return x;
        uint32_t min = 0, max = RX_NO_LIMIT;
        if (ebnf_take(e, "?")) {
            max = 1;
        } else if (ebnf_take(e, "+")) {
            min = 1;
        } else if (ebnf_take(e, "{")) {
            e->at = ebnf_space(e, e->at);
            if (!ebnf_has(e, ",")) min = max = ebnf_number(e);
            e->at = ebnf_space(e, e->at);
            if (ebnf_take(e, ",")) {
                e->at = ebnf_space(e, e->at);
                max = ebnf_has(e, "}") ? RX_NO_LIMIT : ebnf_number(e);
            }
            e->at = ebnf_space(e, e->at);
            if (!ebnf_take(e, "}")) return ebnf_refuse(e, ST_INVALID, "a } is expected");
        } else if (ebnf_take(e, "~")) { /* Lark only: in GBNF it never follows an atom */
            e->at = ebnf_space(e, e->at);
            min = max = ebnf_number(e);
            if (ebnf_take(e, "..")) max = ebnf_number(e);
        } else if (!ebnf_take(e, "*")) {
            e->at = was;
            return x;
        }
        x = ebnf_repeat(e, x, min, max);
    }
}

static enode sequence(struct ebnf *e)
{
    enode out = node(e, (struct ebnf_node){.kind = E_SEQ}), last = 0;
    while (!e->st) {
        e->at = ebnf_space(e, e->at);
        if (e->at == e->len || strchr("|)]", e->s[e->at]) || ebnf_has(e, "->") || e->dialect->defines(e))
            break;
        enode x = quantified(e);
        if (e->st) break;
        if (last) e->nodes[last].next = x;
        else e->nodes[out].first = x;
        last = x;
    }
    if (!e->st && ebnf_take(e, "->")) { /* an alias for the parse tree */
        e->at = ebnf_space(e, e->at);
        e->at = ebnf_space(e, ebnf_name(e, e->at));
    }
    return out;
}

enode ebnf_alternatives(struct ebnf *e)
{
    enode out = node(e, (struct ebnf_node){.kind = E_ALT}), last = 0;
    do {
        enode x = sequence(e);
        if (e->st) return 0;
        if (last) e->nodes[last].next = x;
        else e->nodes[out].first = x;
        last = x;
    } while (ebnf_take(e, "|"));
    return out;
}

enode ebnf_group(struct ebnf *e, const char *close)
{
    if (++e->depth > DEPTH_MAX / 8) return ebnf_refuse(e, ST_TOO_LARGE, "groups are nested too deeply");
    enode out = ebnf_alternatives(e);
    e->depth--;
    if (!e->st && !ebnf_take(e, close)) return ebnf_refuse(e, ST_INVALID, "a %s is expected", close);
    return out;
}

/* ---- building ---- */

static struct ebnf_part compile(struct ebnf *e, enode x);

static gx lift(struct ebnf *e, struct ebnf_part a)
{
    return !a.regular ? a.g : gb_regex(e->b, e->in_json ? rx_in_json(e->p, a.r) : a.r);
}

static struct ebnf_part both(struct ebnf *e, struct ebnf_part a, struct ebnf_part b)
{
    if (a.regular && b.regular && a.size + b.size <= RUN_MAX)
        return (struct ebnf_part){true, rx_concat(e->p, a.r, b.r), 0, a.size + b.size};
    return (struct ebnf_part){.g = GB_SEQ(e->b, lift(e, a), lift(e, b))};
}

static struct ebnf_part repeated(struct ebnf *e, struct ebnf_part a, uint32_t min, uint32_t max)
{
    if (a.regular) return (struct ebnf_part){true, rx_repeat(e->p, a.r, min, max), 0, a.size + 1};
    return (struct ebnf_part){.g = gb_repeat(e->b, a.g, min, max)};
}

/* Combines adjacent regular parts as far as possible. */
static struct ebnf_part many(struct ebnf *e, enode first, bool alt)
{
    rx (*together)(struct rx_pool *, const rx *, size_t) = alt ? rx_alt_list : rx_concat_list;
    struct ebnf_part run = {.regular = true};
    size_t n = 0, count = 1, runs = 0; /* run: of so many parts, whose expressions follow the list */
    for (enode x = first; x; x = e->nodes[x].next) count += 2;
    gx *list = malloc(2 * count * sizeof *list);
    rx *parts = list + count;
    if (!list) ebnf_nomem(e);
    for (enode x = first; x && !e->st; x = e->nodes[x].next) {
        struct ebnf_part p = compile(e, x);
        bool fits = p.regular && run.size + p.size <= RUN_MAX;
        if (runs && !fits && (p.regular || !alt)) {
            run.r = together(e->p, parts, runs);
            list[n++] = lift(e, run);
            run.size = 0;
            runs = 0;
        }
        if (p.regular) {
            parts[runs++] = p.r;
            run.size += p.size;
        } else {
            list[n++] = p.g;
        }
    }
    if (list) run.r = together(e->p, parts, runs);
    if (n && runs) list[n++] = lift(e, run);
    struct ebnf_part out = {.g = !n || e->st ? 0 : alt ? gb_alt(e->b, list, n) : gb_seq(e->b, list, n)};
    free(list);
    return n ? out : run;
}

static struct ebnf_part rule(struct ebnf *e, uint32_t number)
{
    ASSERT_CMP(number, <, e->rule_count);
    struct ebnf_rule *r = &e->rules[number];
    if (r->state == RULE_NEW) {
        r->state = RULE_OPEN;
        struct ebnf_part p = compile(e, r->body);
        if (p.regular && p.size <= INLINE_MAX && !r->part.g) {
            r->part = p;
        } else {
            if (!r->part.g) r->part.g = gb_rule(e->b);
            gb_define(e->b, r->part.g, lift(e, p));
        }
        r->state = RULE_DONE;
    }
    if (r->state == RULE_OPEN && !r->part.g) r->part.g = gb_rule(e->b); /* recursive */
    return r->part;
}

static struct ebnf_part compile(struct ebnf *e, enode x)
{
    struct ebnf_node n = e->nodes[x];
    struct ebnf_part out = {0};
    if (e->depth >= DEPTH_MAX) ebnf_refuse(e, ST_TOO_LARGE, "rules are nested too deeply");
    if (e->st) return out;
    e->depth++;
    switch (n.kind) {
    case E_REGEX: out = (struct ebnf_part){true, n.min, 0, n.max}; break;
    case E_RULE: out = rule(e, n.first); break;
    case E_REPEAT: out = repeated(e, compile(e, n.first), n.min, n.max); break;
    case E_TOKEN:
        out = compile(e, n.first);
        if (e->ignored) out = both(e, out, e->gap);
        break;
    default: out = many(e, n.first, n.kind == E_ALT); break;
    }
    e->depth--;
    return out;
}

bool ebnf_open(struct ebnf *e)
{
    e->p = gb_pool(e->b);
    e->names = json_object();
    if (!e->names || !LIST_RESERVE(e->nodes, e->node_cap, 1)) return false;
    e->nodes[e->node_count++] = (struct ebnf_node){0};
    return true;
}

gx ebnf_compile(struct ebnf *e)
{
    for (uint32_t i = 0; i < e->rule_count && !e->st; i++) {
        size_t from = e->rules[i].from, to = ebnf_name(e, from);
        if (e->rules[i].body) continue;
        e->at = from;
        ebnf_refuse(e, ST_INVALID, "%.*s is not defined", (int)(to - from > 80 ? 80 : to - from),
                    e->s + from);
    }
    json_t *start = json_object_get(e->names, e->dialect->start);
    if (!start) ebnf_refuse(e, ST_INVALID, "there is no rule \"%s\"", e->dialect->start);
    if (e->st) return 0;
    if (e->ignored) e->gap = repeated(e, compile(e, e->ignored), 0, RX_NO_LIMIT);
    struct ebnf_part out = rule(e, (uint32_t)json_integer_value(start));
    if (e->ignored) out = both(e, e->gap, out);
    ASSERT(e->st || !e->depth);
    gx g = e->st ? 0 : lift(e, out);
    if (rx_status(e->p)) ebnf_refuse(e, rx_status(e->p), "the grammar is too large");
    return e->st ? 0 : g;
}

void ebnf_close(struct ebnf *e)
{
    free(e->nodes);
    free(e->rules);
    json_decref(e->names);
}
