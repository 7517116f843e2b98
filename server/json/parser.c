/* See parser.h. The grammar is RFC 8259's; of duplicate keys the last one counts. */
#include "server/json/parser.h"

#include "config/base/json_escape.h"
#include "config/base/utf8.h"
#include "server/json/fields.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status error(struct json_parser *p, const char *what)
{
    snprintf(p->error, sizeof p->error, "%s", what);
    return ST_FORMAT;
}

static char next(const struct json_parser *p)
{
    return p->at < p->len ? p->text[p->at] : '\0';
}

static enum status expected(struct json_parser *p, const char *what)
{
    if (p->at >= p->len) return error(p, "it ends too early");
    snprintf(p->error, sizeof p->error, "%s expected", what);
    return ST_FORMAT;
}

static void skip_space(struct json_parser *p)
{
    while (next(p) && strchr(" \t\r\n", next(p))) p->at++;
}

static enum status count(struct json_parser *p, uint32_t tokens)
{
    p->tokens += tokens;
    return p->tokens > LIMIT_JSON_TOKENS ? error(p, "too many values") : ST_OK;
}

/* ---- strings ---- */

static enum status replace(struct json_parser *p, uint32_t *cp)
{
    *cp = UTF8_REPLACEMENT;
    if (p->strict) return error(p, "not UTF-8");
    if (++p->replaced <= LIMIT_ILL_FORMED) return ST_OK;
    return error(p, "it is not UTF-8: too many bytes and surrogates that mean nothing");
}

/* At a backslash. */
static enum status escape(struct json_parser *p, uint32_t *cp)
{
    size_t n = json_unescape(p->text + p->at, p->len - p->at, cp);
    if (n == 0) return error(p, "no escape that JSON has");
    bool lone = *cp >= 0xD800 && *cp < 0xE000;
    if (lone && replace(p, cp)) return ST_FORMAT;
    p->at += n;
    return ST_OK;
}

/* A string without escapes is used in place; else it is built in scratch. */
static enum status string(struct json_parser *p, const char **text, size_t *len)
{
    enum status st = count(p, 1);
    size_t plain = ++p->at; /* start of what is not yet copied */
    bool copied = false;
    p->scratch.len = 0;
    while (!st) {
        unsigned char c = (unsigned char)next(p);
        uint32_t cp;
        if (p->at >= p->len) return expected(p, "'\"'");
        if (c == '"') break;
        if (c < 0x20) return error(p, "a control character in a string");
        size_t n = utf8_decode(p->text + p->at, p->len - p->at, &cp);
        if (c != '\\' && cp < UTF8_BAD) {
            p->at += n;
            continue;
        }
        char bytes[4];
        size_t from = p->at;
        if (!copied) st = buf_reserve(&p->scratch, 64);
        copied = true;
        if (!st) st = buf_add(&p->scratch, p->text + plain, from - plain);
        if (!st) st = c == '\\' ? escape(p, &cp) : replace(p, &cp);
        if (!st) st = buf_add(&p->scratch, bytes, utf8_encode(cp, bytes));
        if (c != '\\') p->at++;
        plain = p->at;
    }
    if (!st && copied) st = buf_add(&p->scratch, p->text + plain, p->at - plain);
    *text = copied ? p->scratch.data : p->text + plain;
    *len = copied ? p->scratch.len : p->at - plain;
    p->at++;
    return st;
}

static enum status made(json_t *v, json_t **out)
{
    *out = v;
    return v ? ST_OK : ST_NOMEM;
}

/* ---- numbers ---- */

static bool digits(struct json_parser *p)
{
    size_t from = p->at;
    while (isdigit((unsigned char)next(p))) p->at++;
    return p->at > from;
}

/* jansson has no integers beyond 64 bits, but JSON has (the maximum of an unsigned type in a tool's schema,
 * an id among a call's arguments). In the body's own fields they become doubles, which range checks reject.
 * Deeper, a template may print them as written (fields.h). */
static enum status large(struct json_parser *p, const char *text, size_t len, json_t **out)
{
    json_t *o = json_object();
    enum status st = count(p, 3);
    if (!st && (!o || json_object_set_new_nocheck(o, JSON_BIG_INT, json_stringn_nocheck(text, len))))
        st = ST_NOMEM;
    if (!st) return made(o, out);
    json_decref(o);
    return st;
}

static enum status number(struct json_parser *p, json_t **out)
{
    size_t from = p->at;
    p->at += next(p) == '-';
    size_t first = p->at;
    if (!digits(p)) return expected(p, "a value");
    if (p->text[first] == '0' && p->at - first > 1) return error(p, "a number with a zero before it");
    bool whole = true;
    if (next(p) == '.') {
        whole = false;
        p->at++;
        if (!digits(p)) return expected(p, "a digit");
    }
    if (next(p) == 'e' || next(p) == 'E') {
        whole = false;
        p->at++;
        p->at += next(p) == '+' || next(p) == '-';
        if (!digits(p)) return expected(p, "a digit");
    }
    p->scratch.len = 0; /* NUL-terminated, which the text may not be */
    if (buf_add(&p->scratch, p->text + from, p->at - from)) return ST_NOMEM;
    errno = 0;
    long long n = whole ? strtoll(p->scratch.data, NULL, 10) : 0;
    if (whole && !errno) return made(json_integer(n), out);
    if (whole && p->depth > 1) return large(p, p->scratch.data, p->scratch.len, out);
    double d = strtod(p->scratch.data, NULL);
    return isfinite(d) ? made(json_real(d), out) : error(p, "a number that is too large");
}

/* ---- values ---- */

static enum status value(struct json_parser *p, json_t **out);

static enum status member(struct json_parser *p, json_t *object)
{
    const char *text;
    size_t len;
    if (next(p) != '"') return expected(p, "a key");
    if (json_object_size(object) >= LIMIT_JSON_MEMBERS) return error(p, "an object with too many members");
    enum status st = string(p, &text, &len);
    if (st) return st;
    if (memchr(text, '\0', len)) return error(p, "a key with a NUL in it");
    char few[64], *key = len <= sizeof few ? few : malloc(len); /* scratch is used by the value */
    if (!key) return ST_NOMEM;
    memcpy(key, text, len);
    json_t *v = NULL;
    skip_space(p);
    st = next(p) == ':' ? ST_OK : expected(p, "':'");
    p->at += !st;
    if (!st) st = value(p, &v);
    if (!st && json_object_setn_new_nocheck(object, key, len, v)) st = ST_NOMEM;
    if (key != few) free(key);
    return st;
}

static enum status element(struct json_parser *p, json_t *array)
{
    json_t *v;
    enum status st = value(p, &v);
    return !st && json_array_append_new(array, v) ? ST_NOMEM : st;
}

static enum status container(struct json_parser *p, json_t **out)
{
    bool object = next(p) == '{';
    char close = object ? '}' : ']';
    if (++p->depth > LIMIT_JSON_DEPTH) return error(p, "nested too deep");
    json_t *c = object ? json_object() : json_array();
    enum status st = c ? count(p, 1) : ST_NOMEM;
    p->at++;
    skip_space(p);
    bool more = next(p) != close;
    while (!st && more) {
        skip_space(p);
        st = object ? member(p, c) : element(p, c);
        if (!st) skip_space(p);
        more = next(p) == ',';
        if (st || !more) continue;
        st = count(p, 1);
        p->at++;
    }
    if (!st && next(p) != close) st = expected(p, object ? "',' or '}'" : "',' or ']'");
    if (st) {
        json_decref(c);
        return st;
    }
    p->at++;
    p->depth--;
    return made(c, out);
}

static enum status value(struct json_parser *p, json_t **out)
{
    static const char *const words[] = {"true", "false", "null"};
    const char *text;
    size_t len;
    skip_space(p);
    if (next(p) == '{' || next(p) == '[') return container(p, out);
    if (next(p) == '"') {
        enum status st = string(p, &text, &len);
        return st ? st : made(json_stringn_nocheck(text, len), out);
    }
    for (size_t i = 0; i < 3; i++) {
        len = strlen(words[i]);
        if (p->len - p->at < len || memcmp(p->text + p->at, words[i], len) != 0) continue;
        p->at += len;
        return made(i == 2 ? json_null() : json_boolean(i == 0), out);
    }
    return number(p, out);
}

enum status json_parse_body(struct json_parser *p, json_t **out)
{
    json_t *v = NULL;
    buf_init(&p->scratch, p->len + 3 * (size_t)LIMIT_ILL_FORMED + 64);
    enum status st = value(p, &v);
    skip_space(p);
    if (!st && p->at < p->len) st = error(p, "text after the value");
    buf_fini(&p->scratch);
    if (!st) return made(v, out);
    json_decref(v);
    return st == ST_FORMAT ? st : ST_NOMEM;
}

enum status json_from_text(const char *text, size_t len, json_t **out)
{
    struct json_parser p = {.text = text, .len = len, .depth = 1, .strict = true};
    return json_parse_body(&p, out);
}
