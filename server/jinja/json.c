/* tojson (exactly Python's json.dumps with ensure_ascii off) and from_json for templates. Origins: text of
 * the request stays text of the request, punctuation has the origin of its container. */
#include "config/base/decimal.h"
#include "config/base/json_text.h"
#include "config/base/utf8.h"
#include "server/jinja/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void json_string(struct jinja_ctx *c, struct jn_sb *sb, const struct jinja_str *s, bool ascii,
                        uint32_t quote_origin)
{
    struct json_escape e;
    jn_sb_bytes(c, sb, "\"", 1, quote_origin);
    for (size_t i = 0; i < s->len; i += e.plain + e.used) {
        e = json_escape_next(s->p + i, s->len - i, ascii ? JSON_ESCAPE_ASCII : JSON_ESCAPE_MUST);
        size_t at = i + e.plain;
        jn_sb_slice(c, sb, s, i, at);
        if (e.used) jn_sb_bytes(c, sb, e.text, strlen(e.text), jn_origin_at(s, at));
    }
    jn_sb_bytes(c, sb, "\"", 1, quote_origin);
}

static uint32_t origin_of(struct jinja_value v)
{
    return v.type != JN_STR ? v.origin : v.u.s->run_count ? v.u.s->runs[0].origin : v.u.s->origin;
}

/* NULL: not a number, bool or none. */
static const char *scalar(struct jinja_value v, char text[DECIMAL_BYTES])
{
    if (v.type == JN_FLOAT && !isfinite(v.u.f))
        return isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity";
    if (v.type == JN_FLOAT) (void)decimal_repr(v.u.f, text);
    else if (v.type == JN_INT) snprintf(text, DECIMAL_BYTES, "%lld", (long long)v.u.i);
    else if (v.type == JN_BIG) return v.u.s->p;
    else return v.type == JN_NONE ? "null" : v.type != JN_BOOL ? NULL : v.u.i ? "true" : "false";
    return text;
}

static void json_key(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value k,
                     const struct jn_json_style *st)
{
    char text[DECIMAL_BYTES];
    const char *p = scalar(k, text);
    if (k.type == JN_STR) {
        json_string(c, sb, k.u.s, st->ascii, origin_of(k));
        return;
    }
    if (!p) jn_error(c, "keys must be str, int, float, bool or None, not %s", jn_type_name(k));
    jn_sb_bytes(c, sb, "\"", 1, k.origin);
    jn_sb_bytes(c, sb, p, strlen(p), k.origin);
    jn_sb_bytes(c, sb, "\"", 1, k.origin);
}

static void new_line(struct jinja_ctx *c, struct jn_sb *sb, const struct jn_json_style *st, uint32_t level)
{
    jn_sb_bytes(c, sb, "\n", 1, JINJA_TEMPLATE);
    for (uint32_t i = 0; i < level; i++) jn_sb_str(c, sb, st->indent.u.s);
}

static void json_value(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v,
                       const struct jn_json_style *st, uint32_t level);

static void put_sep(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value sep, uint32_t origin)
{
    /* Separators from the template keep their own origin; default ones have the container's. */
    if (sep.n) jn_sb_str(c, sb, sep.u.s);
    else jn_sb_bytes(c, sb, sep.u.s->p, sep.u.s->len, origin);
}

static void json_list(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v,
                      const struct jn_json_style *st, uint32_t level)
{
    const struct jinja_list *l = v.u.l;
    jn_sb_bytes(c, sb, "[", 1, v.origin);
    for (uint32_t i = 0; i < l->count; i++) {
        if (i) put_sep(c, sb, st->item_sep, v.origin);
        if (st->pretty) new_line(c, sb, st, level + 1);
        json_value(c, sb, l->v[i], st, level + 1);
    }
    if (st->pretty && l->count) new_line(c, sb, st, level);
    jn_sb_bytes(c, sb, "]", 1, v.origin);
}

static void json_dict(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v,
                      const struct jn_json_style *st, uint32_t level)
{
    const struct jinja_dict *d = v.u.d;
    struct jinja_value *keys = d->k, *items = d->v;
    if (st->sort && d->count) { /* keys are compared before they become strings */
        keys = jn_alloc_array(&c->base, (size_t)d->count * 2, sizeof *keys);
        items = keys + d->count;
        memcpy(keys, d->k, d->count * sizeof *keys);
        memcpy(items, d->v, d->count * sizeof *items);
        jn_sort_by(c, keys, items, d->count, false);
    }
    jn_sb_bytes(c, sb, "{", 1, v.origin);
    for (uint32_t i = 0; i < d->count; i++) {
        if (i) put_sep(c, sb, st->item_sep, v.origin);
        if (st->pretty) new_line(c, sb, st, level + 1);
        json_key(c, sb, keys[i], st);
        put_sep(c, sb, st->key_sep, v.origin);
        json_value(c, sb, items[i], st, level + 1);
    }
    if (st->pretty && d->count) new_line(c, sb, st, level);
    jn_sb_bytes(c, sb, "}", 1, v.origin);
}

static void json_value(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v,
                       const struct jn_json_style *st, uint32_t level)
{
    char text[DECIMAL_BYTES];
    const char *p = scalar(v, text);
    jn_enter(c);
    switch (v.type) {
    case JN_STR: json_string(c, sb, v.u.s, st->ascii, origin_of(v)); break;
    case JN_LIST:
    case JN_TUPLE: json_list(c, sb, v, st, level); break;
    case JN_DICT: json_dict(c, sb, v, st, level); break;
    default:
        if (!p) jn_error(c, "Object of type %s is not JSON serializable", jn_type_name(v));
        jn_sb_bytes(c, sb, p, strlen(p), v.origin);
    }
    jn_leave(c);
}

void jn_tojson(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v, const struct jn_json_style *style)
{
    json_value(c, sb, v, style, 0);
}

/* ---- from_json ---- */

struct reader {
    struct jinja_ctx *c;
    const struct jinja_str *s;
    struct json_lexer x;
};

static enum json_token next(struct reader *r)
{
    enum json_token t = json_lex(&r->x);
    if (t <= JSON_LEX_DEEP) jn_error(r->c, "from_json: the text is not valid JSON (at byte %zu)", r->x.at);
    return t;
}

static struct jinja_value read_string(struct reader *r)
{
    struct jn_sb sb = jn_sb_new(r->c);
    const char *s = r->s->p;
    size_t from = r->x.from;
    while (from < r->x.to) {
        const char *hit = memchr(s + from, '\\', r->x.to - from);
        size_t at = hit ? (size_t)(hit - s) : r->x.to;
        char out[4];
        uint32_t cp;
        jn_sb_slice(r->c, &sb, r->s, from, at);
        from = at;
        if (!hit) break;
        from += json_unescape(hit, r->x.to - at, &cp);
        jn_sb_bytes(r->c, &sb, out, utf8_encode(cp, out), jn_origin_at(r->s, at));
    }
    return jn_sb_value(r->c, &sb);
}

static struct jinja_value read_number(struct reader *r)
{
    char text[64];
    const char *from = r->s->p + r->x.from;
    size_t n = r->x.to - r->x.from;
    if (r->x.whole) return jn_int_digits(r->c, from, n, JINJA_TEMPLATE);
    if (n >= sizeof text) jn_error(r->c, "from_json: a number of more than %zu bytes", sizeof text - 1);
    memcpy(text, from, n);
    text[n] = '\0';
    return JN_V(JN_FLOAT, f, strtod(text, NULL));
}

static struct jinja_value read_value(struct reader *r, enum json_token t)
{
    struct jinja_value v, key;
    uint32_t origin = jn_origin_at(r->s, t == JSON_LEX_STRING ? r->x.from - 1 : r->x.from);
    jn_enter(r->c);
    switch (t) {
    case JSON_LEX_STRING: v = read_string(r); break;
    case JSON_LEX_OBJECT:
        v = jn_new_dict(r->c);
        while (next(r) != JSON_LEX_CLOSE) {
            key = read_string(r);
            jn_dict_put(r->c, v.u.d, key, read_value(r, next(r)));
        }
        break;
    case JSON_LEX_ARRAY:
        v = jn_new_list(r->c, JN_LIST, 0);
        while ((t = next(r)) != JSON_LEX_CLOSE) jn_list_push(r->c, v.u.l, read_value(r, t));
        break;
    case JSON_LEX_NUMBER: v = read_number(r); break;
    case JSON_LEX_NULL: v = JN_V(JN_NONE, i, 0); break;
    default: v = JN_V(JN_BOOL, i, t == JSON_LEX_TRUE);
    }
    if (v.type != JN_STR) v.origin = origin;
    jn_leave(r->c);
    return v;
}

struct jinja_value jn_fromjson(struct jinja_ctx *c, const struct jinja_str *s)
{
    struct reader r = {.c = c, .s = s, .x = {.text = s->p, .len = s->len, .depth_max = JSON_LEX_DEPTH}};
    struct jinja_value v = read_value(&r, next(&r));
    (void)next(&r); /* the end */
    return v;
}
