/* tojson (exactly Python's json.dumps with ensure_ascii off) and from_json for templates. Origins: text of
 * the request stays text of the request, punctuation has the origin of its container. */
#include "config/base/json_escape.h"
#include "config/base/utf8.h"
#include "server/jinja/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void json_string(struct jinja_ctx *c, struct jn_sb *sb, const struct jinja_str *s, bool ascii,
                        uint32_t quote_origin)
{
    const char *end = s->p + s->len, *next, *from = s->p;
    jn_sb_bytes(c, sb, "\"", 1, quote_origin);
    for (const char *p = s->p; p < end; p = next) {
        uint32_t cp = jn_decode(p, end, &next);
        char esc[16];
        const char *hit = cp < 0x80 && cp ? strchr("\"\\\n\r\t\b\f", (int)cp) : NULL;
        if (hit) snprintf(esc, sizeof esc, "\\%c", "\"\\nrtbf"[hit - "\"\\\n\r\t\b\f"]);
        else if (cp < 0x20 || (ascii && cp > 0x7e && cp < 0x10000)) snprintf(esc, sizeof esc, "\\u%04x", cp);
        else if (ascii && cp >= 0x10000)
            snprintf(esc, sizeof esc, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                     0xdc00 + ((cp - 0x10000) & 0x3ff));
        else continue; /* printed as part of the run from `from` */
        jn_sb_slice(c, sb, s, (size_t)(from - s->p), (size_t)(p - s->p));
        jn_sb_bytes(c, sb, esc, strlen(esc), jn_origin_at(s, (size_t)(p - s->p)));
        from = next;
    }
    jn_sb_slice(c, sb, s, (size_t)(from - s->p), s->len);
    jn_sb_bytes(c, sb, "\"", 1, quote_origin);
}

static uint32_t origin_of(struct jinja_value v)
{
    return v.type != JN_STR ? v.origin : v.u.s->run_count ? v.u.s->runs[0].origin : v.u.s->origin;
}

static void json_key(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value k,
                     const struct jn_json_style *st)
{
    char text[48];
    const char *p = text;
    if (k.type == JN_STR) {
        json_string(c, sb, k.u.s, st->ascii, origin_of(k));
        return;
    }
    if (k.type == JN_FLOAT) text[jn_float_repr(k.u.f, text)] = '\0';
    else if (k.type == JN_INT) snprintf(text, sizeof text, "%lld", (long long)k.u.i);
    else if (k.type == JN_BIG) p = k.u.s->p;
    else if (k.type == JN_BOOL) p = k.u.i ? "true" : "false";
    else if (k.type == JN_NONE) p = "null";
    else jn_error(c, "keys must be str, int, float, bool or None, not %s", jn_type_name(k));
    if (k.type == JN_FLOAT && !isfinite(k.u.f))
        p = isnan(k.u.f) ? "NaN" : k.u.f < 0 ? "-Infinity" : "Infinity";
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
    char text[48];
    const char *p = text;
    jn_enter(c);
    switch (v.type) {
    case JN_STR: json_string(c, sb, v.u.s, st->ascii, origin_of(v)); break;
    case JN_LIST:
    case JN_TUPLE: json_list(c, sb, v, st, level); break;
    case JN_DICT: json_dict(c, sb, v, st, level); break;
    case JN_BIG: jn_sb_bytes(c, sb, v.u.s->p, v.u.s->len, v.origin); break;
    case JN_UNDEF: jn_error(c, "Object of type Undefined is not JSON serializable");
    case JN_NONE:
    case JN_BOOL:
    case JN_INT:
    case JN_FLOAT:
        if (v.type == JN_FLOAT && isfinite(v.u.f)) text[jn_float_repr(v.u.f, text)] = '\0';
        else if (v.type == JN_FLOAT) p = isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity";
        else if (v.type == JN_INT) snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        else p = v.type == JN_NONE ? "null" : v.u.i ? "true" : "false";
        jn_sb_bytes(c, sb, p, strlen(p), v.origin);
        break;
    default: jn_error(c, "Object of type %s is not JSON serializable", jn_type_name(v));
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
    const char *p, *end;
};

static struct jinja_value read_value(struct reader *r);

static void skip_blank(struct reader *r)
{
    while (r->p < r->end && strchr(" \t\r\n", *r->p) && *r->p) r->p++;
}

static _Noreturn void bad_json(struct reader *r)
{
    jn_error(r->c, "from_json: the text is not valid JSON (at byte %zu)", (size_t)(r->p - r->s->p));
}

static struct jinja_value read_string(struct reader *r)
{
    struct jn_sb sb = jn_sb_new(r->c);
    r->p++;
    while (r->p < r->end && *r->p != '"') {
        const char *from = r->p;
        while (r->p < r->end && *r->p != '"' && *r->p != '\\' && (unsigned char)*r->p >= 0x20) r->p++;
        jn_sb_slice(r->c, &sb, r->s, (size_t)(from - r->s->p), (size_t)(r->p - r->s->p));
        if (r->p >= r->end || (unsigned char)*r->p < 0x20) bad_json(r);
        if (*r->p != '\\') continue;
        char out[4];
        uint32_t cp;
        size_t n = json_unescape(r->p, (size_t)(r->end - r->p), &cp);
        if (!n) bad_json(r);
        jn_sb_bytes(r->c, &sb, out, utf8_encode(cp, out), jn_origin_at(r->s, (size_t)(r->p - r->s->p)));
        r->p += n;
    }
    if (r->p >= r->end) bad_json(r);
    r->p++;
    return jn_sb_value(r->c, &sb);
}

static struct jinja_value read_number(struct reader *r)
{
    char text[64];
    const char *from = r->p;
    bool real = false;
    while (r->p < r->end && *r->p && strchr("+-.eE0123456789", *r->p)) {
        real |= *r->p == '.' || *r->p == 'e' || *r->p == 'E';
        r->p++;
    }
    size_t n = (size_t)(r->p - from), sign = n && *from == '-', digits = sign;
    while (digits < n && from[digits] >= '0' && from[digits] <= '9') digits++;
    if (digits == n && n > sign) return jn_int_digits(r->c, from, n, JINJA_TEMPLATE);
    if (!n || !real || n >= sizeof text) bad_json(r);
    memcpy(text, from, n);
    text[n] = '\0';
    char *stop;
    struct jinja_value v = JN_V(JN_FLOAT, f, strtod(text, &stop));
    if (*stop || text[0] == '+') bad_json(r);
    return v;
}

static struct jinja_value read_container(struct reader *r)
{
    bool dict = *r->p == '{';
    char close = dict ? '}' : ']';
    struct jinja_value v = dict ? jn_new_dict(r->c) : jn_new_list(r->c, JN_LIST, 0);
    v.origin = jn_origin_at(r->s, (size_t)(r->p - r->s->p));
    r->p++;
    skip_blank(r);
    if (r->p < r->end && *r->p == close) {
        r->p++;
        return v;
    }
    for (;;) {
        struct jinja_value key = JN_V(JN_NONE, i, 0);
        skip_blank(r);
        if (dict) {
            if (r->p >= r->end || *r->p != '"') bad_json(r);
            key = read_string(r);
            skip_blank(r);
            if (r->p >= r->end || *r->p++ != ':') bad_json(r);
        }
        struct jinja_value item = read_value(r);
        if (dict) jn_dict_put(r->c, v.u.d, key, item);
        else jn_list_push(r->c, v.u.l, item);
        skip_blank(r);
        if (r->p >= r->end || (*r->p != ',' && *r->p != close)) bad_json(r);
        if (*r->p++ == close) return v;
    }
}

static struct jinja_value read_value(struct reader *r)
{
    static const struct {
        const char *word;
        uint8_t type, value;
    } words[] = {{"true", JN_BOOL, 1}, {"false", JN_BOOL, 0}, {"null", JN_NONE, 0}};
    struct jinja_value v;
    jn_enter(r->c);
    skip_blank(r);
    if (r->p >= r->end) bad_json(r);
    uint32_t origin = jn_origin_at(r->s, (size_t)(r->p - r->s->p));
    size_t w = 0;
    while (w < 3 && ((size_t)(r->end - r->p) < strlen(words[w].word) ||
                     memcmp(r->p, words[w].word, strlen(words[w].word)) != 0))
        w++;
    if (w < 3) {
        v = JN_V(words[w].type, i, words[w].value);
        v.origin = origin;
        r->p += strlen(words[w].word);
    } else if (*r->p == '"') {
        v = read_string(r);
    } else if (*r->p == '{' || *r->p == '[') {
        v = read_container(r);
    } else {
        v = read_number(r);
        v.origin = origin;
    }
    jn_leave(r->c);
    return v;
}

struct jinja_value jn_fromjson(struct jinja_ctx *c, const struct jinja_str *s)
{
    struct reader r = {.c = c, .s = s, .p = s->p, .end = s->p + s->len};
    struct jinja_value v = read_value(&r);
    skip_blank(&r);
    if (r.p < r.end) bad_json(&r);
    return v;
}
