/* Filters on text, numbers and whole values, filter calls, and tests. Filters on sequences are in
 * jinja/filters_seq.c. */
#include "config/base/assert.h"
#include "config/base/utf8.h"
#include "server/jinja/internal.h"

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

/* ---- numbers ---- */

/* Decimal digits, with a sign and white space around them; the text of a float is cut to an int. */
FILTER(f_int)
{
    char buf[400], *stop;
    if (v.type == JN_UNDEF) jn_fail_undef(c, v);
    if (v.type == JN_INT || v.type == JN_BOOL) return JN_V(JN_INT, i, v.u.i);
    if (v.type == JN_BIG) return v;
    if (v.type == JN_FLOAT && isinf(v.u.f)) jn_error(c, "cannot convert float infinity to integer");
    if (v.type == JN_STR) {
        size_t len = v.u.s->len, digits;
        const char *p = jinja_trim(v.u.s->p, &len, 3), *sign = len && (*p == '-' || *p == '+') ? p : NULL;
        snprintf(buf, sizeof buf, "%.*s", len < sizeof buf ? (int)len : 0, p);
        digits = strspn(buf + (sign != NULL), "0123456789");
        if (digits && digits + (sign != NULL) == len)
            return jn_int_digits(c, *p == '+' ? p + 1 : p, len - (*p == '+'), v.origin);
        if (digits && strchr(buf, '_')) jn_error(c, "int: digits with underscores are not supported");
        double f = strtod(buf, &stop);
        if (*buf && !*stop && !strpbrk(buf, "xXpP(")) v = JN_V(JN_FLOAT, f, f);
    }
    if (v.type == JN_FLOAT && isfinite(v.u.f)) return jn_float_int(c, v);
    return GIVEN(arg[0]) ? arg[0] : JN_V(JN_INT, i, 0);
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
    {"capitalize", f_capitalize, 0, 0, {0}},
    {"d", f_default, 2, 0, {"default_value", "boolean"}},
    {"default", f_default, 2, 0, {"default_value", "boolean"}},
    {"e", f_escape, 0, 0, {0}},
    {"escape", f_escape, 0, 0, {0}},
    {"format", f_format, JN_RAW, 0, {0}},
    {"from_json", f_from_json, 0, 0, {0}},
    {"indent", f_indent, 3, 0, {"width", "first", "blank"}},
    {"int", f_int, 1, 0, {"default"}},
    {"lower", f_lower, 0, 0, {0}},
    {"replace", f_replace, 3, 2, {"old", "new", "count"}},
    {"safe", f_safe, 0, 0, {0}},
    {"string", f_string, 0, 0, {0}},
    {"title", f_title, 0, 0, {0}},
    {"tojson", f_tojson, 4, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", f_trim, 1, 0, {"chars"}},
    {"upper", f_upper, 0, 0, {0}},
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
    ASSERT_CMP(i, <, jn_text_filter_count + jn_seq_filter_count);
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

/* TEST(id, name, arguments, is it?) */
#define TESTS(TEST)                                                                                          \
    TEST(BOOLEAN, "boolean", 0, v.type == JN_BOOL)                                                           \
    TEST(CALLABLE, "callable", 0, v.type == JN_UNDEF || (v.type >= JN_MACRO && v.type <= JN_JOINER))         \
    TEST(DEFINED, "defined", 0, v.type != JN_UNDEF)                                                          \
    TEST(DIVISIBLEBY, "divisibleby", 1, modulo_is(c, v, arg, 0))                                             \
    TEST(EQ, "eq", 1, jn_equal(c, v, arg))                                                                   \
    TEST(EQUALTO, "equalto", 1, jn_equal(c, v, arg))                                                         \
    TEST(EQ_SIGN, "==", 1, jn_equal(c, v, arg))                                                              \
    TEST(EVEN, "even", 0, modulo_is(c, v, JN_V(JN_INT, i, 2), 0))                                            \
    TEST(FALSE, "false", 0, v.type == JN_BOOL && !v.u.i)                                                     \
    TEST(FLOAT, "float", 0, v.type == JN_FLOAT)                                                              \
    TEST(GE, "ge", 1, jn_compare(c, OP_GE, v, arg))                                                          \
    TEST(GE_SIGN, ">=", 1, jn_compare(c, OP_GE, v, arg))                                                     \
    TEST(GT, "gt", 1, jn_compare(c, OP_GT, v, arg))                                                          \
    TEST(GT_SIGN, ">", 1, jn_compare(c, OP_GT, v, arg))                                                      \
    TEST(GREATERTHAN, "greaterthan", 1, jn_compare(c, OP_GT, v, arg))                                        \
    TEST(IN, "in", 1, jn_contains(c, arg, v))                                                                \
    TEST(INTEGER, "integer", 0, v.type == JN_INT || v.type == JN_BIG)                                        \
    TEST(ITERABLE, "iterable", 0, jn_is_iterable(v))                                                         \
    TEST(LE, "le", 1, jn_compare(c, OP_LE, v, arg))                                                          \
    TEST(LE_SIGN, "<=", 1, jn_compare(c, OP_LE, v, arg))                                                     \
    TEST(LT, "lt", 1, jn_compare(c, OP_LT, v, arg))                                                          \
    TEST(LT_SIGN, "<", 1, jn_compare(c, OP_LT, v, arg))                                                      \
    TEST(LESSTHAN, "lessthan", 1, jn_compare(c, OP_LT, v, arg))                                              \
    TEST(MAPPING, "mapping", 0, v.type == JN_DICT)                                                           \
    TEST(NE, "ne", 1, !jn_equal(c, v, arg))                                                                  \
    TEST(NE_SIGN, "!=", 1, !jn_equal(c, v, arg))                                                             \
    TEST(NONE, "none", 0, v.type == JN_NONE)                                                                 \
    TEST(NUMBER, "number", 0,                                                                                \
         v.type == JN_INT || v.type == JN_BIG || v.type == JN_FLOAT || v.type == JN_BOOL)                    \
    TEST(ODD, "odd", 0, modulo_is(c, v, JN_V(JN_INT, i, 2), 1))                                              \
    TEST(SEQUENCE, "sequence", 0,                                                                            \
         jn_is_iterable(v) && v.type != JN_ITER && v.type != JN_VIEW && v.type != JN_LOOP)                   \
    TEST(STRING, "string", 0, v.type == JN_STR)                                                              \
    TEST(TRUE, "true", 0, v.type == JN_BOOL && v.u.i)                                                        \
    TEST(UNDEFINED, "undefined", 0, v.type == JN_UNDEF)

#define TEST(id, name, args, is) TEST_##id,
enum test_id { TESTS(TEST) };
#undef TEST
#define TEST(id, name, args, is) {name, args},
static const struct {
    const char *name;
    uint32_t args;
} tests[] = {TESTS(TEST)};
#undef TEST

int32_t jn_test_index(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strlen(tests[i].name) == len && memcmp(tests[i].name, name, len) == 0) return (int32_t)i;
    return -1;
}

bool jn_call_test(struct jinja_ctx *c, int32_t func, struct jinja_value name, struct jinja_value v,
                  const struct jn_args *a)
{
    if (func < 0 && name.type == JN_STR) func = jn_test_index(name.u.s->p, name.u.s->len);
    if (func < 0)
        jn_error(c, "no test named '%.*s'", name.type == JN_STR ? (int)(name.u.s->len & 63) : 0,
                 name.type == JN_STR ? name.u.s->p : "");
    ASSERT_CMP(func, <, sizeof tests / sizeof *tests);
    const char *param = func == TEST_DIVISIBLEBY ? "num" : func == TEST_IN ? "seq" : "-";
    struct jinja_value arg = JN_V(JN_MISSING, i, 0);
    jn_bind(c, tests[func].name, a, &param, tests[func].args, tests[func].args, &arg);
    switch ((enum test_id)func) {
#define TEST(id, name, args, is)                                                                             \
    case TEST_##id: return is;
        TESTS(TEST)
#undef TEST
    }
    return false;
}
