/* Filters on text, numbers and whole values, filter calls, and tests. Filters on sequences are in
 * jinja/filters_seq.c. */
#include "config/base/utf8.h"
#include "server/jinja/internal.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const struct jinja_str *text(struct jinja_ctx *c, struct jinja_value v)
{
    return jn_to_str(c, v).u.s;
}

VALUE(f_trim, jn_strip(c, text(c, v), arg[0], 3))
VALUE(f_upper, jn_upper(c, text(c, v)))
VALUE(f_lower, jn_lower(c, text(c, v)))
VALUE(f_capitalize, jn_capitalize(c, text(c, v)))

/* Words begin after - white space ( { [ <; Jinja's own rule, not str.title(). */
FILTER(f_title)
{
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
            jn_sb_bytes(c, &sb, out, utf8_encode(first ? jn_to_upper(cp) : jn_to_lower(cp), out),
                        jn_origin_at(s, (size_t)(p - s->p)));
        first = edge;
    }
    return jn_sb_value(c, &sb);
}

VALUE(f_string, jn_to_str(c, v))

FILTER(f_safe)
{
    struct jinja_str *s = jn_alloc(&c->base, sizeof *s);
    *s = *text(c, v);
    s->markup = 1;
    return JN_V(JN_STR, s, s);
}

VALUE(f_escape, jn_escape(c, jn_to_str(c, v)))

FILTER(f_forceescape)
{
    struct jinja_str plain = *text(c, v);
    plain.markup = 0;
    return jn_escape(c, JN_V(JN_STR, s, &plain));
}

FILTER(f_replace)
{
    int64_t max = !GIVEN(arg[2]) || arg[2].type == JN_NONE ? -1 : jn_want_int(c, "count", arg[2]);
    struct jinja_str plain = *text(c, v);
    plain.markup = 0;
    return jn_replace(c, &plain, text(c, arg[0]), text(c, arg[1]), max);
}

FILTER(f_indent)
{
    struct jinja_value pad;
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

FILTER(f_truncate)
{
    struct jinja_value end;
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

FILTER(f_wordcount)
{
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

FILTER(f_center)
{
    if (!GIVEN(arg[0])) arg[0] = JN_V(JN_INT, i, 80);
    struct jinja_value s = jn_to_str(c, v), name = jn_lit(c, "center");
    struct jn_args args = {.pos = &arg[0], .count = 1};
    return jn_call(c, jn_getattr(c, s, name), &args);
}

FILTER(f_format)
{
    if (a->count && a->kw_count)
        jn_error(c, "can't handle positional and keyword arguments at the same time");
    struct jinja_value args = a->kw_count ? jn_new_dict(c) : jn_new_list(c, JN_TUPLE, a->count);
    for (uint32_t i = 0; i < a->kw_count; i++) jn_dict_put(c, args.u.d, a->names[i], a->vals[i]);
    for (uint32_t i = 0; i < a->count; i++) jn_list_push(c, args.u.l, a->pos[i]);
    return jn_str_mod(c, text(c, v), args);
}

FILTER(f_default)
{
    bool replace = v.type == JN_UNDEF || (GIVEN(arg[1]) && jn_truth(arg[1]) && !jn_truth(v));
    return !replace ? v : GIVEN(arg[0]) ? arg[0] : jn_lit(c, "");
}

FILTER(f_attr)
{
    struct jinja_value out;
    arg[0] = jn_to_str(c, arg[0]);
    out = jn_attr_only(c, v, arg[0]);
    return out.type == JN_MISSING ? jn_undef(JN_U_ATTR, arg[0].u.s, v.type) : out;
}

/* ---- numbers ---- */

/* Text of a number without white space around it and underscores between its digits; false if it can't be
 * one. */
static bool number_text(const struct jinja_str *s, char *out, size_t cap)
{
    size_t n = 0, len = s->len;
    const char *p = jinja_trim(s->p, &len, 3), *end = p + len;
    for (; p < end; p++) {
        if (*p == '_') {
            if (p == s->p || p + 1 >= end || !isalnum((unsigned char)p[-1]) || !isalnum((unsigned char)p[1]))
                return false;
            continue;
        }
        if ((unsigned char)*p >= 0x80 || !*p || jn_is_space((uint32_t)*p) || n + 1 >= cap) return false;
        out[n++] = *p;
    }
    out[n] = '\0';
    return n > 0;
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

FILTER(f_int)
{
    int64_t i = 0, base;
    double f;
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

FILTER(f_float)
{
    double f;
    if (v.type == JN_UNDEF) jn_fail_undef(c, v);
    if (jn_as_num(v, &f) && v.type == JN_BIG && isinf(f)) jn_error(c, "int too large to convert to float");
    if (jn_as_num(v, &f) || (v.type == JN_STR && parse_float(v.u.s, &f))) return JN_V(JN_FLOAT, f, f);
    return GIVEN(arg[0]) ? arg[0] : JN_V(JN_FLOAT, f, 0.0);
}

FILTER(f_abs)
{
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

FILTER(f_round)
{
    double f;
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

FILTER(f_tojson)
{
    struct jn_sb sb = jn_sb_new(c), pad = jn_sb_new(c);
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

VALUE(f_from_json, jn_fromjson(c, jn_want_str(c, "from_json", v)))

const struct jn_filter jn_text_filters[] = {
    {"abs", f_abs, 0, 0, {0}},
    {"attr", f_attr, 1, 1, {"name"}},
    {"capitalize", f_capitalize, 0, 0, {0}},
    {"center", f_center, 1, 0, {"width"}},
    {"d", f_default, 2, 0, {"default_value", "boolean"}},
    {"default", f_default, 2, 0, {"default_value", "boolean"}},
    {"e", f_escape, 0, 0, {0}},
    {"escape", f_escape, 0, 0, {0}},
    {"float", f_float, 1, 0, {"default"}},
    {"forceescape", f_forceescape, 0, 0, {0}},
    {"format", f_format, JN_RAW, 0, {0}},
    {"from_json", f_from_json, 0, 0, {0}},
    {"indent", f_indent, 3, 0, {"width", "first", "blank"}},
    {"int", f_int, 2, 0, {"default", "base"}},
    {"lower", f_lower, 0, 0, {0}},
    {"replace", f_replace, 3, 2, {"old", "new", "count"}},
    {"round", f_round, 2, 0, {"precision", "method"}},
    {"safe", f_safe, 0, 0, {0}},
    {"string", f_string, 0, 0, {0}},
    {"title", f_title, 0, 0, {0}},
    {"tojson", f_tojson, 4, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", f_trim, 1, 0, {"chars"}},
    {"truncate", f_truncate, 4, 0, {"length", "killwords", "end", "leeway"}},
    {"upper", f_upper, 0, 0, {0}},
    {"wordcount", f_wordcount, 0, 0, {0}},
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
    const struct jn_filter *f =
        i < jn_text_filter_count ? &jn_text_filters[i] : &jn_seq_filters[i - jn_text_filter_count];
    struct jinja_value arg[JN_FILTER_ARGS];
    if (f->args != JN_RAW) jn_bind(c, f->name, a, f->params, f->args, f->required, arg);
    return f->fn(c, v, arg, a);
}

/* ---- tests: `x is NAME`, also by name from select, reject, selectattr, rejectattr ---- */

static bool modulo_is(struct jinja_ctx *c, struct jinja_value v, struct jinja_value by, int64_t want)
{
    struct jinja_value m = jn_binary(c, OP_MOD, v, by);
    return jn_equal(c, m, JN_V(JN_INT, i, want));
}

static bool same_object(struct jinja_value a, struct jinja_value b)
{
    if (a.type != b.type) return false;
    switch (a.type) {
    case JN_NONE: return true;
    case JN_UNDEF: return false;
    case JN_BIG:
    case JN_STR: return jn_str_cmp(a.u.s, b.u.s) == 0; /* the reference depends on interning: not reliable */
    case JN_FLOAT: return a.u.f == b.u.f;
    case JN_FUNC: return a.kind == b.kind;
    case JN_VIEW: return false;
    default: return a.u.i == b.u.i;
    }
}

#define TEST(name_, is_)                                                                                     \
    static bool name_(struct jinja_ctx *c __attribute__((unused)),                                           \
                      struct jinja_value v __attribute__((unused)),                                          \
                      struct jinja_value arg __attribute__((unused)))                                        \
    {                                                                                                        \
        return is_;                                                                                          \
    }
TEST(is_boolean, v.type == JN_BOOL)
TEST(is_callable, v.type == JN_MACRO || v.type == JN_FUNC || v.type == JN_METHOD || v.type == JN_LOOP ||
                      v.type == JN_UNDEF ||
                      (v.type == JN_CYCLER && ((const struct jn_cycler *)v.u.p)->joiner))
TEST(is_defined, v.type != JN_UNDEF)
TEST(is_undefined, v.type == JN_UNDEF)
TEST(is_divisibleby, modulo_is(c, v, arg, 0))
TEST(is_even, modulo_is(c, v, JN_V(JN_INT, i, 2), 0))
TEST(is_odd, modulo_is(c, v, JN_V(JN_INT, i, 2), 1))
TEST(is_eq, jn_equal(c, v, arg))
TEST(is_ne, !jn_equal(c, v, arg))
TEST(is_ge, jn_compare(c, OP_GE, v, arg))
TEST(is_gt, jn_compare(c, OP_GT, v, arg))
TEST(is_le, jn_compare(c, OP_LE, v, arg))
TEST(is_lt, jn_compare(c, OP_LT, v, arg))
TEST(is_escaped, v.type == JN_STR && v.u.s->markup)
TEST(is_false, v.type == JN_BOOL && !v.u.i)
TEST(is_true, v.type == JN_BOOL && v.u.i)
TEST(is_filter, v.type == JN_STR && jn_filter_index(v.u.s->p, v.u.s->len) >= 0)
TEST(is_test, v.type == JN_STR && jn_test_index(v.u.s->p, v.u.s->len) >= 0)
TEST(is_float, v.type == JN_FLOAT)
TEST(is_in, jn_contains(c, arg, v))
TEST(is_integer, v.type == JN_INT || v.type == JN_BIG)
TEST(is_iterable, jn_is_iterable(v))
TEST(is_lower, jn_str_cased(c, jn_to_str(c, v).u.s) == 1)
TEST(is_upper, jn_str_cased(c, jn_to_str(c, v).u.s) == 2)
TEST(is_mapping, v.type == JN_DICT)
TEST(is_none, v.type == JN_NONE)
TEST(is_number, v.type == JN_INT || v.type == JN_BIG || v.type == JN_FLOAT || v.type == JN_BOOL)
TEST(is_sameas, same_object(v, arg))
TEST(is_sequence, v.type == JN_STR || v.type == JN_LIST || v.type == JN_TUPLE || v.type == JN_DICT ||
                      v.type == JN_RANGE || v.type == JN_UNDEF)
TEST(is_string, v.type == JN_STR)

static const struct test {
    const char *name;
    bool (*is)(struct jinja_ctx *c, struct jinja_value v, struct jinja_value arg);
    uint8_t args;
} tests[] = {
    {"boolean", is_boolean, 0},
    {"callable", is_callable, 0},
    {"defined", is_defined, 0},
    {"divisibleby", is_divisibleby, 1},
    {"eq", is_eq, 1},
    {"equalto", is_eq, 1},
    {"==", is_eq, 1},
    {"escaped", is_escaped, 0},
    {"even", is_even, 0},
    {"false", is_false, 0},
    {"filter", is_filter, 0},
    {"float", is_float, 0},
    {"ge", is_ge, 1},
    {">=", is_ge, 1},
    {"gt", is_gt, 1},
    {">", is_gt, 1},
    {"greaterthan", is_gt, 1},
    {"in", is_in, 1},
    {"integer", is_integer, 0},
    {"iterable", is_iterable, 0},
    {"le", is_le, 1},
    {"<=", is_le, 1},
    {"lower", is_lower, 0},
    {"lt", is_lt, 1},
    {"<", is_lt, 1},
    {"lessthan", is_lt, 1},
    {"mapping", is_mapping, 0},
    {"ne", is_ne, 1},
    {"!=", is_ne, 1},
    {"none", is_none, 0},
    {"number", is_number, 0},
    {"odd", is_odd, 0},
    {"sameas", is_sameas, 1},
    {"sequence", is_sequence, 0},
    {"string", is_string, 0},
    {"test", is_test, 0},
    {"true", is_true, 0},
    {"undefined", is_undefined, 0},
    {"upper", is_upper, 0},
};

int32_t jn_test_index(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strlen(tests[i].name) == len && memcmp(tests[i].name, name, len) == 0) return (int32_t)i;
    return -1;
}

bool jn_call_test(struct jinja_ctx *c, int32_t func, struct jinja_value name, struct jinja_value v,
                  const struct jn_args *a)
{
    static const char *const params[] = {"-"}, *const named[] = {"num"}, *const other[] = {"other"},
                             *const seq[] = {"seq"};
    if (func < 0 && name.type == JN_STR) func = jn_test_index(name.u.s->p, name.u.s->len);
    if (func < 0)
        jn_error(c, "no test named '%.*s'", name.type == JN_STR ? (int)(name.u.s->len & 63) : 0,
                 name.type == JN_STR ? name.u.s->p : "");
    const struct test *t = &tests[func];
    struct jinja_value arg = JN_V(JN_MISSING, i, 0);
    const char *const *names = t->is == is_divisibleby ? named
                               : t->is == is_sameas    ? other
                               : t->is == is_in        ? seq
                                                       : params;
    jn_bind(c, t->name, a, names, t->args, t->args, &arg);
    return t->is(c, v, arg);
}
