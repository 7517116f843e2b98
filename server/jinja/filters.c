/* Filters on text, numbers and whole values, and the table of all filters. Filters on sequences are in
 * jinja/filters_seq.c. */
#include "server/jinja/internal.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define GIVEN(v_) ((v_).type != JN_MISSING)

/* filter(value) and nothing else */
static void no_args(struct jinja_ctx *c, const char *name, const struct jn_args *a)
{
    jn_bind(c, name, a, NULL, 0, 0, NULL);
}

static const struct jinja_str *text(struct jinja_ctx *c, struct jinja_value v)
{
    return jn_to_str(c, v).u.s;
}

static struct jinja_value f_trim(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    static const char *const names[] = {"chars"};
    struct jinja_value chars;
    jn_bind(c, "trim", a, names, 1, 0, &chars);
    return jn_strip(c, text(c, v), chars, 3);
}

static struct jinja_value f_upper(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    no_args(c, "upper", a);
    return jn_upper(c, text(c, v));
}

static struct jinja_value f_lower(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    no_args(c, "lower", a);
    return jn_lower(c, text(c, v));
}

static struct jinja_value f_capitalize(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    no_args(c, "capitalize", a);
    return jn_capitalize(c, text(c, v));
}

/* Words begin after - white space ( { [ <; Jinja's own rule, not str.title(). */
static struct jinja_value f_title(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    no_args(c, "title", a);
    const struct jinja_str *s = text(c, v);
    struct jn_sb sb = jn_sb_new(c);
    const char *end = s->p + s->len, *next;
    bool first = true;
    for (const char *p = s->p; p < end; p = next) {
        uint32_t cp = jn_decode(p, end, &next);
        bool edge = jn_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
        char out[4];
        if (first && cp == 0xdf) jn_sb_bytes(c, &sb, "SS", 2, jn_origin_at(s, (size_t)(p - s->p)));
        else
            jn_sb_bytes(c, &sb, out, jn_encode(first ? jn_to_upper(cp) : jn_to_lower(cp), out),
                        jn_origin_at(s, (size_t)(p - s->p)));
        first = edge;
    }
    return jn_sb_value(c, &sb);
}

static struct jinja_value f_string(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    no_args(c, "string", a);
    return jn_to_str(c, v);
}

static struct jinja_value f_safe(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    no_args(c, "safe", a);
    struct jinja_str *s = jn_alloc(&c->base, sizeof *s);
    *s = *text(c, v);
    s->markup = 1;
    return JN_V(JN_STR, s, s);
}

static struct jinja_value f_escape(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    no_args(c, "escape", a);
    return jn_escape(c, jn_to_str(c, v));
}

static struct jinja_value f_forceescape(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    no_args(c, "forceescape", a);
    struct jinja_str plain = *text(c, v);
    plain.markup = 0;
    return jn_escape(c, JN_V(JN_STR, s, &plain));
}

static struct jinja_value f_replace(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    static const char *const names[] = {"old", "new", "count"};
    struct jinja_value arg[3];
    jn_bind(c, "replace", a, names, 3, 2, arg);
    int64_t max = !GIVEN(arg[2]) || arg[2].type == JN_NONE ? -1 : jn_want_int(c, "count", arg[2]);
    struct jinja_str plain = *text(c, v);
    plain.markup = 0;
    return jn_replace(c, &plain, text(c, arg[0]), text(c, arg[1]), max);
}

static struct jinja_value f_indent(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    static const char *const names[] = {"width", "first", "blank"};
    struct jinja_value arg[3], pad;
    jn_bind(c, "indent", a, names, 3, 0, arg);
    if (v.type != JN_STR)
        jn_error(c, "indent: unsupported operand type(s) for +=: '%s' and 'str'", jn_type_name(v));
    struct jn_sb p = jn_sb_new(c), sb = jn_sb_new(c);
    if (arg[0].type == JN_STR) {
        pad = arg[0];
    } else {
        int64_t width = GIVEN(arg[0]) ? jn_want_int(c, "width", arg[0]) : 4;
        if (width > 10000) jn_error(c, "indent: the width is too large");
        for (int64_t i = 0; i < width; i++) jn_sb_bytes(c, &p, " ", 1, JINJA_TEMPLATE);
        pad = jn_sb_value(c, &p);
    }
    bool blank = GIVEN(arg[2]) && jn_truth(arg[2]);
    struct jinja_value nl = jn_lit(c, "\n"), lines = jn_splitlines(c, jn_binary(c, OP_ADD, v, nl).u.s, false);
    if (GIVEN(arg[1]) && jn_truth(arg[1])) jn_sb_str(c, &sb, pad.u.s);
    for (uint32_t i = 0; i < lines.u.l->count; i++) {
        const struct jinja_str *line = lines.u.l->v[i].u.s;
        if (i) {
            jn_sb_bytes(c, &sb, "\n", 1, JINJA_TEMPLATE);
            if (line->len || blank) jn_sb_str(c, &sb, pad.u.s);
        }
        jn_sb_str(c, &sb, line);
    }
    return jn_sb_value(c, &sb);
}

static struct jinja_value f_truncate(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    static const char *const names[] = {"length", "killwords", "end", "leeway"};
    struct jinja_value arg[4], end;
    jn_bind(c, "truncate", a, names, 4, 0, arg);
    int64_t length = GIVEN(arg[0]) ? jn_want_int(c, "length", arg[0]) : 255;
    int64_t leeway = GIVEN(arg[3]) && arg[3].type != JN_NONE ? jn_want_int(c, "leeway", arg[3]) : 5;
    end = GIVEN(arg[2]) ? arg[2] : jn_lit(c, "...");
    int64_t have;
    const struct jinja_str *e = jn_want_str(c, "end", end), *s;
    if (length < e->chars || leeway < 0)
        jn_error(c, "truncate: the length is too small or the leeway negative");
    if (!jn_length(c, v, &have)) jn_error(c, "object of type '%s' has no len()", jn_type_name(v));
    if (have <= length || have - length <= leeway) return v;
    s = jn_want_str(c, "truncate", v);
    size_t cut = jn_byte_of_char(s, (size_t)(length - e->chars));
    if (!GIVEN(arg[1]) || !jn_truth(arg[1])) {
        const char *space = memrchr(s->p, ' ', cut);
        if (space) cut = (size_t)(space - s->p);
    }
    struct jn_sb sb = jn_sb_new(c);
    jn_sb_slice(c, &sb, s, 0, cut);
    jn_sb_str(c, &sb, e);
    return jn_sb_value(c, &sb);
}

static struct jinja_value f_wordcount(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    no_args(c, "wordcount", a);
    const struct jinja_str *s = text(c, v);
    int64_t n = 0;
    bool inside = false;
    for (const char *p = s->p, *end = s->p + s->len; p < end;) {
        bool word = jn_is_word(jn_decode(p, end, &p));
        n += word && !inside;
        inside = word;
    }
    return JN_V(JN_INT, i, n);
}

static struct jinja_value f_center(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    static const char *const names[] = {"width"};
    struct jinja_value width;
    jn_bind(c, "center", a, names, 1, 0, &width);
    if (!GIVEN(width)) width = JN_V(JN_INT, i, 80);
    struct jinja_value s = jn_to_str(c, v), name = jn_lit(c, "center");
    struct jn_args args = {.pos = &width, .count = 1};
    return jn_call(c, jn_getattr(c, s, name), &args);
}

static struct jinja_value f_format(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    if (a->count && a->kw_count)
        jn_error(c, "can't handle positional and keyword arguments at the same time");
    struct jinja_value args = a->kw_count ? jn_new_dict(c) : jn_new_list(c, JN_TUPLE, a->count);
    for (uint32_t i = 0; i < a->kw_count; i++) jn_dict_put(c, args.u.d, a->names[i], a->vals[i]);
    for (uint32_t i = 0; i < a->count; i++) jn_list_push(c, args.u.l, a->pos[i]);
    return jn_str_mod(c, text(c, v), args);
}

static struct jinja_value f_default(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    static const char *const names[] = {"default_value", "boolean"};
    struct jinja_value arg[2];
    jn_bind(c, "default", a, names, 2, 0, arg);
    bool replace = v.type == JN_UNDEF || (GIVEN(arg[1]) && jn_truth(arg[1]) && !jn_truth(v));
    return !replace ? v : GIVEN(arg[0]) ? arg[0] : jn_lit(c, "");
}

static struct jinja_value f_attr(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    static const char *const names[] = {"name"};
    struct jinja_value name, out;
    jn_bind(c, "attr", a, names, 1, 1, &name);
    name = jn_to_str(c, name);
    out = jn_attr_only(c, v, name);
    return out.type == JN_MISSING ? jn_undef(JN_U_ATTR, name.u.s, v.type) : out;
}

/* ---- numbers ---- */

/* Text of a number without white space around it and underscores between its digits; false if it can't be
 * one. */
static bool number_text(const struct jinja_str *s, char *out, size_t cap)
{
    const char *p = s->p, *end = s->p + s->len, *next;
    size_t n = 0;
    while (p < end && jn_is_space(jn_decode(p, end, &next))) p = next;
    for (; p < end && !jn_is_space(jn_decode(p, end, &next)); p++) {
        if (*p == '_') {
            if (p == s->p || p + 1 >= end || !isalnum((unsigned char)p[-1]) || !isalnum((unsigned char)p[1]))
                return false;
            continue;
        }
        if ((unsigned char)*p >= 0x80 || !*p || n + 1 >= cap) return false;
        out[n++] = *p;
    }
    while (p < end && jn_is_space(jn_decode(p, end, &next))) p = next;
    out[n] = '\0';
    return p >= end && n > 0;
}

static bool parse_float(const struct jinja_str *s, double *out)
{
    char buf[400], *stop;
    if (!number_text(s, buf, sizeof buf) || strpbrk(buf, "xXpP(")) return false;
    *out = strtod(buf, &stop);
    return *stop == '\0';
}

static bool parse_int(struct jinja_ctx *c, const struct jinja_str *s, int64_t base, int64_t *out)
{
    char buf[100];
    if (base && (base < 2 || base > 36)) return false;
    if (!number_text(s, buf, sizeof buf)) return false;
    const char *p = buf;
    bool negative = *p == '-';
    if (*p == '-' || *p == '+') p++;
    if (p[0] == '0' && p[1]) {
        int64_t prefix = (p[1] | 32) == 'x' ? 16 : (p[1] | 32) == 'o' ? 8 : (p[1] | 32) == 'b' ? 2 : 0;
        if (prefix && (base == prefix || base == 0)) {
            p += 2;
            base = prefix;
        } else if (base == 0 && strspn(p, "0") != strlen(p)) {
            return false;
        }
    }
    if (!base) base = 10;
    if (!*p) return false;
    int64_t v = 0;
    for (; *p; p++) {
        int d = isdigit((unsigned char)*p)   ? *p - '0'
                : isalpha((unsigned char)*p) ? (*p | 32) - 'a' + 10
                                             : 99;
        if (d >= base) return false;
        if (__builtin_mul_overflow(v, base, &v) || __builtin_sub_overflow(v, d, &v))
            jn_error(c, "integer overflow");
    }
    if (!negative && v == INT64_MIN) jn_error(c, "integer overflow");
    *out = negative ? v : -v;
    return true;
}

static struct jinja_value f_int(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    static const char *const names[] = {"default", "base"};
    struct jinja_value arg[2];
    int64_t i = 0, base;
    double f;
    jn_bind(c, "int", a, names, 2, 0, arg);
    base = GIVEN(arg[1]) ? jn_want_int(c, "base", arg[1]) : 10;
    if (v.type == JN_UNDEF) jn_fail_undef(c, v);
    if (jn_as_int(v, &i)) return JN_V(JN_INT, i, i);
    if (v.type == JN_BIG) return v;
    if (v.type == JN_FLOAT && isinf(v.u.f)) jn_error(c, "cannot convert float infinity to integer");
    if (v.type == JN_STR && parse_int(c, v.u.s, base, &i)) return JN_V(JN_INT, i, i);
    if (v.type == JN_STR && parse_float(v.u.s, &f) && isfinite(f)) v = JN_V(JN_FLOAT, f, f);
    if (v.type == JN_FLOAT && isfinite(v.u.f)) return jn_float_int(c, v);
    return GIVEN(arg[0]) ? arg[0] : JN_V(JN_INT, i, 0);
}

static struct jinja_value f_float(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    static const char *const names[] = {"default"};
    struct jinja_value arg;
    double f;
    jn_bind(c, "float", a, names, 1, 0, &arg);
    if (v.type == JN_UNDEF) jn_fail_undef(c, v);
    if (jn_as_num(v, &f) && v.type == JN_BIG && isinf(f)) jn_error(c, "int too large to convert to float");
    if (jn_as_num(v, &f) || (v.type == JN_STR && parse_float(v.u.s, &f))) return JN_V(JN_FLOAT, f, f);
    return GIVEN(arg) ? arg : JN_V(JN_FLOAT, f, 0.0);
}

static struct jinja_value f_abs(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    no_args(c, "abs", a);
    if (v.type == JN_UNDEF) jn_fail_undef(c, v);
    if (v.type == JN_FLOAT) return JN_V(JN_FLOAT, f, fabs(v.u.f));
    if (v.type == JN_BIG && *v.u.s->p != '-') return v;
    int64_t i = jn_want_int(c, "abs", v);
    if (i == INT64_MIN) jn_error(c, "integer overflow");
    return JN_V(JN_INT, i, i < 0 ? -i : i);
}

/* Python's round(): halves to even, decided on the exact value; ints stay ints. */
static struct jinja_value round_common(struct jinja_ctx *c, struct jinja_value v, int64_t digits)
{
    if (v.type == JN_BIG) return v;
    if (v.type == JN_INT || v.type == JN_BOOL) {
        if (digits >= 0) return JN_V(JN_INT, i, v.u.i);
        if (digits < -18) return JN_V(JN_INT, i, 0);
        int64_t p = 1;
        for (int64_t k = digits; k < 0; k++) p *= 10;
        int64_t q = v.u.i / p, r = v.u.i % p, half = (r < 0 ? -r : r) * 2 - p;
        if (half > 0 || (half == 0 && (q & 1))) q += v.u.i < 0 ? -1 : 1;
        int64_t out;
        if (__builtin_mul_overflow(q, p, &out)) jn_error(c, "integer overflow");
        return JN_V(JN_INT, i, out);
    }
    if (!isfinite(v.u.f) || digits > 300) return v;
    if (digits < 0) {
        double p = pow(10.0, digits < -300 ? 300.0 : (double)-digits);
        return JN_V(JN_FLOAT, f, nearbyint(v.u.f / p) * p);
    }
    char buf[700];
    snprintf(buf, sizeof buf, "%.*f", (int)digits, v.u.f);
    return JN_V(JN_FLOAT, f, strtod(buf, NULL));
}

static struct jinja_value f_round(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    static const char *const names[] = {"precision", "method"};
    struct jinja_value arg[2];
    double f;
    jn_bind(c, "round", a, names, 2, 0, arg);
    int64_t digits = GIVEN(arg[0]) ? jn_want_int(c, "precision", arg[0]) : 0;
    if (v.type == JN_UNDEF) jn_fail_undef(c, v);
    if (!jn_as_num(v, &f)) jn_error(c, "type %s doesn't define a rounding method", jn_type_name(v));
    if (!GIVEN(arg[1]) || jn_str_is(arg[1], "common")) return round_common(c, v, digits);
    bool up = jn_str_is(arg[1], "ceil");
    if (!up && !jn_str_is(arg[1], "floor")) jn_error(c, "method must be common, ceil or floor");
    if (digits > 300 || digits < -300) jn_error(c, "round: the precision is too large");
    double p = pow(10.0, (double)digits), r = up ? ceil(f * p) : floor(f * p);
    if (!isfinite(r)) jn_error(c, "cannot convert float to integer");
    return JN_V(JN_FLOAT, f, r / p);
}

/* ---- JSON ---- */

static struct jinja_value separator(struct jinja_ctx *c, struct jinja_value pair, uint32_t idx)
{
    const struct jinja_list *l = jn_items_of(c, pair);
    if (l->count != 2 || l->v[idx].type != JN_STR) jn_error(c, "tojson: separators must be two strings");
    struct jinja_value v = l->v[idx];
    v.n = 1; /* given by the template */
    return v;
}

static struct jinja_value f_tojson(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    static const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    struct jinja_value arg[4];
    struct jn_sb sb = jn_sb_new(c), pad = jn_sb_new(c);
    jn_bind(c, "tojson", a, names, 4, 0, arg);
    struct jn_json_style st = {.ascii = GIVEN(arg[0]) && jn_truth(arg[0]),
                               .sort = GIVEN(arg[3]) && jn_truth(arg[3])};
    st.pretty = GIVEN(arg[1]) && arg[1].type != JN_NONE;
    if (st.pretty && arg[1].type == JN_STR) {
        st.indent = arg[1];
    } else if (st.pretty) {
        int64_t n = jn_want_int(c, "indent", arg[1]);
        if (n > 1000) jn_error(c, "tojson: the indent is too large");
        for (int64_t i = 0; i < n; i++) jn_sb_bytes(c, &pad, " ", 1, JINJA_TEMPLATE);
        st.indent = jn_sb_value(c, &pad);
    }
    bool given = GIVEN(arg[2]) && arg[2].type != JN_NONE;
    st.item_sep = given ? separator(c, arg[2], 0) : jn_lit(c, st.pretty ? "," : ", ");
    st.key_sep = given ? separator(c, arg[2], 1) : jn_lit(c, ": ");
    jn_tojson(c, &sb, v, &st);
    return jn_sb_value(c, &sb);
}

static struct jinja_value f_from_json(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a)
{
    no_args(c, "from_json", a);
    return jn_fromjson(c, jn_want_str(c, "from_json", v));
}

const struct jn_filter jn_text_filters[] = {
    {"abs", f_abs},
    {"attr", f_attr},
    {"capitalize", f_capitalize},
    {"center", f_center},
    {"d", f_default},
    {"default", f_default},
    {"e", f_escape},
    {"escape", f_escape},
    {"float", f_float},
    {"forceescape", f_forceescape},
    {"format", f_format},
    {"from_json", f_from_json},
    {"indent", f_indent},
    {"int", f_int},
    {"lower", f_lower},
    {"replace", f_replace},
    {"round", f_round},
    {"safe", f_safe},
    {"string", f_string},
    {"title", f_title},
    {"tojson", f_tojson},
    {"trim", f_trim},
    {"truncate", f_truncate},
    {"upper", f_upper},
    {"wordcount", f_wordcount},
};
const uint32_t jn_text_filter_count = sizeof jn_text_filters / sizeof *jn_text_filters;

int32_t jn_filter_index(const char *name, size_t len)
{
    for (uint32_t i = 0; i < jn_text_filter_count + jn_seq_filter_count; i++) {
        const struct jn_filter *f =
            i < jn_text_filter_count ? &jn_text_filters[i] : &jn_seq_filters[i - jn_text_filter_count];
        if (strlen(f->name) == len && memcmp(f->name, name, len) == 0) return (int32_t)i;
    }
    return -1;
}

struct jinja_value jn_call_filter(struct jinja_ctx *c, int32_t func, struct jinja_value name,
                                  struct jinja_value v, const struct jn_args *a)
{
    if (func < 0 && name.type == JN_STR) func = jn_filter_index(name.u.s->p, name.u.s->len);
    if (func < 0)
        jn_error(c, "no filter named '%.*s'", name.type == JN_STR ? (int)(name.u.s->len & 63) : 0,
                 name.type == JN_STR ? name.u.s->p : "");
    uint32_t i = (uint32_t)func;
    return i < jn_text_filter_count ? jn_text_filters[i].fn(c, v, a)
                                    : jn_seq_filters[i - jn_text_filter_count].fn(c, v, a);
}
