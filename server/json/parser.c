/* See parser.h. Of duplicate keys the last one counts. */
#include "server/json/parser.h"

#include "config/base/assert.h"
#include "config/base/json_text.h"
#include "config/base/utf8.h"
#include "server/json/fields.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct json_parser *p;
    struct json_lexer x;
    struct buf scratch;
    uint32_t outer; /* nesting around the text */
};

static enum status error(struct reader *r, size_t at, const char *what)
{
    r->x.at = at;
    r->x.error = what;
    return ST_FORMAT;
}

static enum status made(json_t *v, json_t **out)
{
    *out = v;
    return v ? ST_OK : ST_NOMEM;
}

static enum status count(struct reader *r, uint32_t tokens)
{
    r->p->tokens += tokens;
    return r->p->tokens > LIMIT_JSON_TOKENS ? error(r, r->x.at, "too many values") : ST_OK;
}

/* ---- strings ---- */

/* What means nothing, at `at`, becomes U+FFFD. */
static enum status replace(struct reader *r, size_t at)
{
    if (r->p->strict) return error(r, at, "not UTF-8");
    if (++r->p->replaced <= LIMIT_ILL_FORMED) return ST_OK;
    return error(r, at, "it is not UTF-8: too many bytes and surrogates that mean nothing");
}

/* The lexer's string with its escapes and ill-formed bytes replaced, in scratch. */
static enum status string_unescape(struct reader *r)
{
    const char *s = r->x.text;
    size_t plain = r->x.from; /* start of what is not yet copied */
    enum status st = buf_reserve(&r->scratch, 64);
    r->scratch.len = 0;
    for (size_t at = plain, n; at < r->x.to && !st; at += n) {
        uint32_t cp;
        bool escape = s[at] == '\\';
        n = escape ? json_unescape(s + at, r->x.to - at, &cp) : utf8_decode(s + at, r->x.to - at, &cp);
        if (!escape && cp < UTF8_BAD) continue;
        char bytes[4];
        bool bad = cp >= UTF8_BAD || (cp >= 0xD800 && cp < 0xE000);
        if (!escape) n = 1;
        if (bad) st = replace(r, at);
        if (!st) st = buf_add(&r->scratch, s + plain, at - plain);
        if (!st) st = buf_add(&r->scratch, bytes, utf8_encode(bad ? UTF8_REPLACEMENT : cp, bytes));
        plain = at + n;
    }
    return st ? st : buf_add(&r->scratch, s + plain, r->x.to - plain);
}

/* The lexer's string, used in place if it can be; else in scratch. */
static enum status string(struct reader *r, const char **text, size_t *len)
{
    ASSERT(r->x.from <= r->x.to && r->x.to < r->x.at && r->x.at <= r->x.len);
    *text = r->x.text + r->x.from;
    *len = r->x.to - r->x.from;
    if (!r->x.escaped && utf8_valid(*text, *len)) return ST_OK;
    enum status st = string_unescape(r);
    *text = r->scratch.data;
    *len = r->scratch.len;
    return st;
}

/* ---- numbers ---- */

/* jansson has no integers beyond 64 bits, but JSON has (the maximum of an unsigned type in a tool's schema,
 * an id among a call's arguments). In the body's own fields they become doubles, which range checks reject.
 * Deeper, a template may print them as written (fields.h). */
static enum status large(struct reader *r, json_t **out)
{
    json_t *o = json_object();
    enum status st = count(r, 3);
    if (!st && (!o || json_object_set_new_nocheck(o, JSON_BIG_INT,
                                                  json_stringn_nocheck(r->scratch.data, r->scratch.len))))
        st = ST_NOMEM;
    if (!st) return made(o, out);
    json_decref(o);
    return st;
}

static enum status number(struct reader *r, json_t **out)
{
    r->scratch.len = 0; /* NUL-terminated, which the text may not be */
    if (buf_add(&r->scratch, r->x.text + r->x.from, r->x.to - r->x.from)) return ST_NOMEM;
    errno = 0;
    long long n = r->x.whole ? strtoll(r->scratch.data, NULL, 10) : 0;
    if (r->x.whole && !errno) return made(json_integer(n), out);
    if (r->x.whole && r->outer + r->x.depth > 1) return large(r, out);
    double d = strtod(r->scratch.data, NULL);
    return isfinite(d) ? made(json_real(d), out) : error(r, r->x.at, "a number that is too large");
}

/* ---- values ---- */

static enum status value(struct reader *r, enum json_token t, json_t **out);

/* t: the token of its key. */
static enum status member(struct reader *r, enum json_token t, json_t *object)
{
    const char *text;
    size_t len;
    if (t != JSON_LEX_KEY) return ST_FORMAT;
    if (json_object_size(object) >= LIMIT_JSON_MEMBERS)
        return error(r, r->x.from - 1, "an object with too many members");
    enum status st = count(r, 1);
    if (!st) st = string(r, &text, &len);
    if (st) return st;
    if (memchr(text, '\0', len)) return error(r, r->x.at, "a key with a NUL in it");
    char few[64], *key = len <= sizeof few ? few : malloc(len); /* scratch is used by the value */
    if (!key) return ST_NOMEM;
    memcpy(key, text, len);
    json_t *v = NULL;
    st = value(r, json_lex(&r->x), &v);
    if (!st && json_object_setn_new_nocheck(object, key, len, v)) st = ST_NOMEM;
    if (key != few) free(key);
    return st;
}

static enum status element(struct reader *r, enum json_token t, json_t *array)
{
    json_t *v;
    enum status st = value(r, t, &v);
    return !st && json_array_append_new(array, v) ? ST_NOMEM : st;
}

static enum status container(struct reader *r, bool object, json_t **out)
{
    json_t *c = object ? json_object() : json_array();
    enum status st = c ? ST_OK : ST_NOMEM;
    for (enum json_token t; !st && (t = json_lex(&r->x)) != JSON_LEX_CLOSE;)
        st = object ? member(r, t, c) : element(r, t, c);
    if (!st) return made(c, out);
    json_decref(c);
    return st;
}

/* Recursive: the lexer limits the depth. */
static enum status value(struct reader *r, enum json_token t, json_t **out)
{
    const char *text;
    size_t len;
    bool scalar = t >= JSON_LEX_NUMBER;
    enum status st = t > JSON_LEX_END ? count(r, scalar ? 1 : 2) : ST_FORMAT;
    if (st) return st;
    switch (t) {
    case JSON_LEX_STRING:
        st = string(r, &text, &len);
        return st ? st : made(json_stringn_nocheck(text, len), out);
    case JSON_LEX_NUMBER: return number(r, out);
    case JSON_LEX_NULL: return made(json_null(), out);
    case JSON_LEX_TRUE:
    case JSON_LEX_FALSE: return made(json_boolean(t == JSON_LEX_TRUE), out);
    default: return container(r, t == JSON_LEX_OBJECT, out);
    }
}

enum status json_parse_body(struct json_parser *p, json_t **out)
{
    json_t *v = NULL;
    _Static_assert(LIMIT_JSON_DEPTH <= JSON_LEX_DEPTH, "the lexer's levels");
    ASSERT_CMP(p->depth, <, LIMIT_JSON_DEPTH);
    struct reader r = {
        .p = p,
        .x = {.text = p->text, .len = p->len, .depth_max = LIMIT_JSON_DEPTH - p->depth},
        .outer = p->depth,
    };
    buf_init(&r.scratch, p->len + 3 * (size_t)LIMIT_ILL_FORMED + 64);
    enum status st = value(&r, json_lex(&r.x), &v);
    if (!st && json_lex(&r.x) != JSON_LEX_END) st = ST_FORMAT;
    buf_fini(&r.scratch);
    p->at = r.x.at;
    p->error = r.x.error;
    if (!st) return made(v, out);
    json_decref(v);
    return st == ST_FORMAT ? st : ST_NOMEM;
}

enum status json_from_text(const char *text, size_t len, json_t **out)
{
    struct json_parser p = {.text = text, .len = len, .depth = 1, .strict = true};
    return json_parse_body(&p, out);
}
