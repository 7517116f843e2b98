/* Strings of the template interpreter: text plus, byte by byte, its origin. Every operation that builds
 * strings uses the builder here, which preserves origins. Also operations shared by filters and str methods.
 */
#include "config/base/assert.h"
#include "config/base/decimal.h"
#include "config/base/utf8.h"
#include "server/jinja/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- builder ---- */

struct jn_sb jn_sb_new(struct jinja_ctx *c)
{
    return (struct jn_sb){.max = c->base.limits.arena_bytes_max < UINT32_MAX ? c->base.limits.arena_bytes_max
                                                                             : UINT32_MAX - 1};
}

static void add_run(struct jinja_ctx *c, struct jn_sb *sb, uint32_t end, uint32_t origin)
{
    if (sb->run_count && sb->runs[sb->run_count - 1].origin == origin) {
        sb->runs[sb->run_count - 1].end = end;
        return;
    }
    if (sb->run_count == sb->run_cap) {
        uint32_t cap = sb->run_cap ? sb->run_cap * 2 : 4;
        size_t bytes = (size_t)cap * sizeof *sb->runs;
        struct jn_run *p = sb->heap ? realloc(sb->runs, bytes)
                                    : jn_grow(&c->base, sb->runs, sb->run_cap * sizeof *sb->runs, bytes);
        if (!p) jn_fail(&c->base, JINJA_NOMEM, "out of memory");
        sb->runs = p;
        sb->run_cap = cap;
    }
    sb->runs[sb->run_count++] = (struct jn_run){.end = end, .origin = origin};
}

void jn_sb_bytes(struct jinja_ctx *c, struct jn_sb *sb, const char *p, size_t len, uint32_t origin)
{
    if (!len) return;
    jn_charge(c, len);
    if (len > sb->max - sb->len)
        jn_fail(&c->base, JINJA_LIMIT, "the rendered text is longer than %zu bytes", sb->max);
    if (len > sb->cap - sb->len) {
        size_t cap = sb->cap ? sb->cap * 2 : 64;
        while (cap < sb->len + len) cap *= 2;
        char *q = sb->heap ? realloc(sb->p, cap) : jn_grow(&c->base, sb->p, sb->cap, cap);
        if (!q) jn_fail(&c->base, JINJA_NOMEM, "out of memory");
        sb->p = q;
        sb->cap = cap;
    }
    memcpy(sb->p + sb->len, p, len);
    sb->len += len;
    add_run(c, sb, (uint32_t)sb->len, origin);
}

/* First run of s that ends after `byte`. */
static uint32_t run_at(const struct jinja_str *s, size_t byte)
{
    uint32_t lo = 0, hi = s->run_count;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (s->runs[mid].end > byte) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

uint32_t jn_origin_at(const struct jinja_str *s, size_t byte)
{
    ASSERT_CMP(byte, <=, s->len);
    if (!s->run_count) return s->origin;
    uint32_t i = run_at(s, byte);
    return s->runs[i < s->run_count ? i : s->run_count - 1].origin;
}

void jn_sb_slice(struct jinja_ctx *c, struct jn_sb *sb, const struct jinja_str *s, size_t from, size_t to)
{
    ASSERT(from <= to && to <= s->len);
    if (!s->run_count) {
        jn_sb_bytes(c, sb, s->p + from, to - from, s->origin);
        return;
    }
    for (uint32_t i = run_at(s, from); from < to && i < s->run_count; i++) {
        size_t end = s->runs[i].end < to ? s->runs[i].end : to;
        jn_sb_bytes(c, sb, s->p + from, end - from, s->runs[i].origin);
        from = end;
    }
}

void jn_sb_str(struct jinja_ctx *c, struct jn_sb *sb, const struct jinja_str *s)
{
    jn_sb_slice(c, sb, s, 0, s->len);
}

struct jinja_value jn_sb_value(struct jinja_ctx *c, struct jn_sb *sb)
{
    ASSERT_CMP(sb->run_count ? sb->runs[sb->run_count - 1].end : 0, ==, sb->len);
    struct jinja_str *s = jn_alloc(&c->base, sizeof *s);
    *s = (struct jinja_str){.p = sb->len ? sb->p : "", .len = (uint32_t)sb->len, .origin = JINJA_TEMPLATE};
    s->chars = (uint32_t)jn_count_chars(s->p, s->len);
    if (sb->run_count == 1) {
        s->origin = sb->runs[0].origin;
    } else if (sb->run_count > 1) {
        s->runs = sb->runs;
        s->run_count = sb->run_count;
    }
    return JN_V(JN_STR, s, s);
}

struct jinja_value jn_lit(struct jinja_ctx *c, const char *text)
{
    struct jn_sb sb = jn_sb_new(c);
    jn_sb_bytes(c, &sb, text, strlen(text), JINJA_TEMPLATE);
    return jn_sb_value(c, &sb);
}

/* Shares the bytes of s; only the runs inside the window are copied. */
struct jinja_value jn_slice_bytes(struct jinja_ctx *c, const struct jinja_str *s, size_t from, size_t to)
{
    ASSERT(from <= to && to <= s->len);
    struct jinja_str *o = jn_alloc(&c->base, sizeof *o);
    jn_charge(c, to - from);
    *o = (struct jinja_str){.p = s->p + from, .len = (uint32_t)(to - from), .origin = s->origin};
    o->chars = s->chars == s->len ? o->len : (uint32_t)jn_count_chars(o->p, o->len);
    if (s->run_count && to > from) {
        uint32_t a = run_at(s, from), b = run_at(s, to - 1);
        o->origin = s->runs[a].origin;
        if (b > a) {
            struct jn_run *runs = jn_alloc_array(&c->base, b - a + 1, sizeof *runs);
            for (uint32_t i = a; i <= b; i++)
                runs[i - a] =
                    (struct jn_run){.end = (uint32_t)((s->runs[i].end < to ? s->runs[i].end : to) - from),
                                    .origin = s->runs[i].origin};
            o->runs = runs;
            o->run_count = b - a + 1;
        }
    }
    return JN_V(JN_STR, s, o);
}

size_t jn_byte_of_char(const struct jinja_str *s, size_t char_idx)
{
    if (s->chars == s->len || char_idx == 0) return char_idx;
    if (char_idx >= s->chars) return s->len;
    const char *p = s->p, *end = s->p + s->len;
    for (; char_idx; char_idx--) jn_decode(p, end, &p);
    return (size_t)(p - s->p);
}

size_t jn_char_of_byte(const struct jinja_str *s, size_t byte)
{
    return s->chars == s->len ? byte : jn_count_chars(s->p, byte);
}

struct jinja_value jn_char_at(struct jinja_ctx *c, const struct jinja_str *s, size_t byte)
{
    const char *next;
    jn_decode(s->p + byte, s->p + s->len, &next);
    return jn_slice_bytes(c, s, byte, (size_t)(next - s->p));
}

bool jn_str_is(struct jinja_value v, const char *text)
{
    return v.type == JN_STR && v.u.s->len == strlen(text) && memcmp(v.u.s->p, text, v.u.s->len) == 0;
}

/* Order of UTF-8 bytes is order of code points. */
int jn_str_cmp(const struct jinja_str *a, const struct jinja_str *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    int d = n ? memcmp(a->p, b->p, n) : 0;
    return d ? d : (a->len > b->len) - (a->len < b->len);
}

/* ---- printing ---- */

static void repr_str(struct jinja_ctx *c, struct jn_sb *sb, const struct jinja_str *s)
{
    char quote = s->len && memchr(s->p, '\'', s->len) && !memchr(s->p, '"', s->len) ? '"' : '\'';
    uint32_t edge = s->run_count ? s->runs[0].origin : s->origin;
    const char *end = s->p + s->len, *next;
    jn_sb_bytes(c, sb, &quote, 1, edge);
    for (const char *p = s->p; p < end; p = next) {
        uint32_t cp = jn_decode(p, end, &next), origin = jn_origin_at(s, (size_t)(p - s->p));
        char esc[12];
        if (cp == (unsigned char)quote || cp == '\\') snprintf(esc, sizeof esc, "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(esc, sizeof esc, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (jn_is_printable(cp)) {
            jn_sb_bytes(c, sb, p, (size_t)(next - p), origin);
            continue;
        } else snprintf(esc, sizeof esc, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        jn_sb_bytes(c, sb, esc, strlen(esc), origin);
    }
    jn_sb_bytes(c, sb, &quote, 1, edge);
}

static void repr_items(struct jinja_ctx *c, struct jn_sb *sb, const struct jinja_list *l, const char *open,
                       const char *close, uint32_t origin)
{
    jn_sb_bytes(c, sb, open, strlen(open), origin);
    for (uint32_t i = 0; i < l->count; i++) {
        if (i) jn_sb_bytes(c, sb, ", ", 2, origin);
        jn_repr(c, sb, l->v[i]);
    }
    jn_sb_bytes(c, sb, close, strlen(close), origin);
}

static void repr_dict(struct jinja_ctx *c, struct jn_sb *sb, const struct jinja_dict *d, uint32_t origin)
{
    jn_sb_bytes(c, sb, "{", 1, origin);
    for (uint32_t i = 0; i < d->count; i++) {
        if (i) jn_sb_bytes(c, sb, ", ", 2, origin);
        jn_repr(c, sb, d->k[i]);
        jn_sb_bytes(c, sb, ": ", 2, origin);
        jn_repr(c, sb, d->v[i]);
    }
    jn_sb_bytes(c, sb, "}", 1, origin);
}

void jn_repr(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v)
{
    static const char *const view_names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    jn_enter(c);
    switch (v.type) {
    case JN_STR:
        if (v.u.s->markup) jn_sb_bytes(c, sb, "Markup(", 7, JINJA_TEMPLATE);
        repr_str(c, sb, v.u.s);
        if (v.u.s->markup) jn_sb_bytes(c, sb, ")", 1, JINJA_TEMPLATE);
        break;
    case JN_UNDEF: jn_sb_bytes(c, sb, "Undefined", 9, v.origin); break;
    case JN_LIST: repr_items(c, sb, v.u.l, "[", "]", v.origin); break;
    case JN_TUPLE: repr_items(c, sb, v.u.l, "(", v.u.l->count == 1 ? ",)" : ")", v.origin); break;
    case JN_DICT: repr_dict(c, sb, v.u.d, v.origin); break;
    case JN_VIEW: repr_items(c, sb, jn_items_of(c, v), view_names[v.kind], "])", v.origin); break;
    default: jn_print(c, sb, v); break;
    }
    jn_leave(c);
}

void jn_print(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v)
{
    char text[80];
    int n;
    switch (v.type) {
    case JN_STR: jn_sb_str(c, sb, v.u.s); return;
    case JN_UNDEF: return;
    case JN_NONE: jn_sb_bytes(c, sb, "None", 4, v.origin); return;
    case JN_BOOL: jn_sb_bytes(c, sb, v.u.i ? "True" : "False", v.u.i ? 4 : 5, v.origin); return;
    case JN_INT:
        n = snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        jn_sb_bytes(c, sb, text, (size_t)n, v.origin);
        return;
    case JN_BIG: jn_sb_bytes(c, sb, v.u.s->p, v.u.s->len, v.origin); return;
    case JN_FLOAT: jn_sb_bytes(c, sb, text, decimal_repr(v.u.f, text), v.origin); return;
    case JN_LIST:
    case JN_TUPLE:
    case JN_DICT:
    case JN_VIEW: jn_repr(c, sb, v); return;
    case JN_NS:
        jn_sb_bytes(c, sb, "<Namespace ", 11, v.origin);
        repr_dict(c, sb, v.u.d, v.origin);
        jn_sb_bytes(c, sb, ">", 1, v.origin);
        return;
    case JN_RANGE: {
        const struct jn_range *r = v.u.p;
        long long stop = (long long)(r->start + r->step * (int64_t)r->count);
        n = r->step == 1 ? snprintf(text, sizeof text, "range(%lld, %lld)", (long long)r->start, stop)
                         : snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)r->start, stop,
                                    (long long)r->step);
        jn_sb_bytes(c, sb, text, (size_t)n, v.origin);
        return;
    }
    default: /* the reference prints addresses here */
        n = snprintf(text, sizeof text, "<%s>", jn_type_name(v));
        jn_sb_bytes(c, sb, text, (size_t)n, v.origin);
        return;
    }
}

struct jinja_value jn_to_str(struct jinja_ctx *c, struct jinja_value v)
{
    if (v.type == JN_STR) return v;
    struct jn_sb sb = jn_sb_new(c);
    jn_print(c, &sb, v);
    return jn_sb_value(c, &sb);
}

/* ---- operations on whole strings ---- */

static struct jinja_value with_markup(struct jinja_ctx *c, struct jinja_value v, bool markup)
{
    if (v.u.s->markup == markup) return v;
    struct jinja_str *s = jn_alloc(&c->base, sizeof *s);
    *s = *v.u.s;
    s->markup = markup;
    return JN_V(JN_STR, s, s);
}

struct jinja_value jn_escape(struct jinja_ctx *c, struct jinja_value v)
{
    const struct jinja_str *s = v.u.s;
    if (s->markup) return v;
    struct jn_sb sb = jn_sb_new(c);
    size_t from = 0;
    for (size_t i = 0; i < s->len; i++) {
        const char *ref = s->p[i] == '&'    ? "&amp;"
                          : s->p[i] == '<'  ? "&lt;"
                          : s->p[i] == '>'  ? "&gt;"
                          : s->p[i] == '\'' ? "&#39;"
                          : s->p[i] == '"'  ? "&#34;"
                                            : NULL;
        if (!ref) continue;
        jn_sb_slice(c, &sb, s, from, i);
        jn_sb_bytes(c, &sb, ref, strlen(ref), jn_origin_at(s, i));
        from = i + 1;
    }
    jn_sb_slice(c, &sb, s, from, s->len);
    return with_markup(c, jn_sb_value(c, &sb), true);
}

static bool in_set(const struct jinja_str *set, uint32_t cp)
{
    const char *end = set->p + set->len;
    for (const char *p = set->p; p < end;)
        if (jn_decode(p, end, &p) == cp) return true;
    return false;
}

struct jinja_value jn_strip(struct jinja_ctx *c, const struct jinja_str *s, struct jinja_value chars,
                            int sides)
{
    const struct jinja_str *set = NULL;
    ASSERT(sides >= 1 && sides <= 3);
    if (chars.type == JN_STR) set = chars.u.s;
    else if (chars.type != JN_NONE && chars.type != JN_MISSING) jn_error(c, "strip arg must be None or str");
    const char *a = s->p, *b = s->p + s->len, *next;
    while ((sides & 1) && a < b) {
        uint32_t cp = jn_decode(a, b, &next);
        if (set ? !in_set(set, cp) : !jn_is_space(cp)) break;
        jn_charge(c, 1 + (set ? set->len : 0));
        a = next;
    }
    while ((sides & 2) && a < b) {
        const char *q = b - 1;
        while (q > a && ((unsigned char)*q & 0xc0) == 0x80) q--;
        uint32_t cp = jn_decode(q, b, &next);
        if (next != b || (set ? !in_set(set, cp) : !jn_is_space(cp))) break;
        jn_charge(c, 1 + (set ? set->len : 0));
        b = q;
    }
    return with_markup(c, jn_slice_bytes(c, s, (size_t)(a - s->p), (size_t)(b - s->p)), s->markup);
}

/* Small sigma has its own form at the end of a word. */
static bool final_sigma(const struct jinja_str *s, const char *p, const char *next)
{
    const char *end = s->p + s->len, *q = p, *ignored;
    while (q > s->p && ((unsigned char)*--q & 0xc0) == 0x80) {
    }
    return p > s->p && jn_case_of(jn_decode(q, p, &ignored)) &&
           (next >= end || !jn_case_of(jn_decode(next, end, &ignored)));
}

enum fold { FOLD_LOWER, FOLD_UPPER, FOLD_CAPITAL };

static struct jinja_value fold(struct jinja_ctx *c, const struct jinja_str *s, enum fold how)
{
    struct jn_sb sb = jn_sb_new(c);
    const char *end = s->p + s->len, *next;
    for (const char *p = s->p; p < end; p = next) {
        uint32_t cp = jn_decode(p, end, &next);
        bool up = how == FOLD_UPPER || (how == FOLD_CAPITAL && p == s->p);
        char out[8];
        size_t n;
        if (up && cp == 0xdf) { /* sharp s: the only common letter with a two-letter capital */
            memcpy(out, how == FOLD_UPPER ? "SS" : "Ss", 2);
            n = 2;
        } else if (!up && cp == 0x3a3 && final_sigma(s, p, next)) {
            n = utf8_encode(0x3c2, out);
        } else {
            n = utf8_encode(how == FOLD_UPPER ? jn_to_upper(cp)
                            : up              ? jn_to_title(cp)
                                              : jn_to_lower(cp),
                            out);
        }
        jn_sb_bytes(c, &sb, out, n, jn_origin_at(s, (size_t)(p - s->p)));
    }
    return with_markup(c, jn_sb_value(c, &sb), s->markup);
}

struct jinja_value jn_lower(struct jinja_ctx *c, const struct jinja_str *s)
{
    return fold(c, s, FOLD_LOWER);
}

struct jinja_value jn_upper(struct jinja_ctx *c, const struct jinja_str *s)
{
    return fold(c, s, FOLD_UPPER);
}

struct jinja_value jn_capitalize(struct jinja_ctx *c, const struct jinja_str *s)
{
    return fold(c, s, FOLD_CAPITAL);
}

struct jinja_value jn_replace(struct jinja_ctx *c, const struct jinja_str *s, const struct jinja_str *from,
                              const struct jinja_str *to, int64_t max)
{
    struct jn_sb sb = jn_sb_new(c);
    size_t at = 0;
    if (max < 0) max = INT64_MAX;
    if (!from->len) { /* between all characters, and at both ends */
        while (max-- > 0) {
            jn_sb_str(c, &sb, to);
            if (at >= s->len) {
                at = s->len;
                break;
            }
            const char *next;
            jn_decode(s->p + at, s->p + s->len, &next);
            size_t end = (size_t)(next - s->p);
            jn_sb_slice(c, &sb, s, at, end);
            at = end;
        }
    }
    while (from->len && max-- > 0 && at < s->len) {
        const char *hit = memmem(s->p + at, s->len - at, from->p, from->len);
        if (!hit) break;
        size_t pos = (size_t)(hit - s->p);
        jn_sb_slice(c, &sb, s, at, pos);
        jn_sb_str(c, &sb, to);
        at = pos + from->len;
        jn_charge(c, 64);
    }
    jn_sb_slice(c, &sb, s, at, s->len);
    return with_markup(c, jn_sb_value(c, &sb), s->markup);
}

struct jinja_value jn_splitlines(struct jinja_ctx *c, const struct jinja_str *s, bool keep_ends)
{
    struct jinja_value out = jn_new_list(c, JN_LIST, 4);
    const char *end = s->p + s->len, *next;
    size_t from = 0;
    for (const char *p = s->p; p < end; p = next) {
        uint32_t cp = jn_decode(p, end, &next);
        if (!jn_is_line_break(cp)) continue;
        if (cp == '\r' && next < end && *next == '\n') next++;
        jn_list_push(c, out.u.l, jn_slice_bytes(c, s, from, (size_t)((keep_ends ? next : p) - s->p)));
        from = (size_t)(next - s->p);
    }
    if (from < s->len) jn_list_push(c, out.u.l, jn_slice_bytes(c, s, from, s->len));
    return out;
}
