/* Tests: `x is NAME`, also by name from select, reject, selectattr, rejectattr. */
#include "server/jinja/internal.h"

#include <math.h>

enum test_id {
    IS_BOOLEAN,
    IS_CALLABLE,
    IS_DEFINED,
    IS_DIVISIBLEBY,
    IS_EQ,
    IS_ESCAPED,
    IS_EVEN,
    IS_FALSE,
    IS_FILTER,
    IS_FLOAT,
    IS_GE,
    IS_GT,
    IS_IN,
    IS_INTEGER,
    IS_ITERABLE,
    IS_LE,
    IS_LOWER,
    IS_LT,
    IS_MAPPING,
    IS_NE,
    IS_NONE,
    IS_NUMBER,
    IS_ODD,
    IS_SAMEAS,
    IS_SEQUENCE,
    IS_STRING,
    IS_TEST,
    IS_TRUE,
    IS_UNDEFINED,
    IS_UPPER,
};
static const struct test {
    const char *name;
    uint8_t id, args;
} tests[] = {
    {"boolean", IS_BOOLEAN, 0},
    {"callable", IS_CALLABLE, 0},
    {"defined", IS_DEFINED, 0},
    {"divisibleby", IS_DIVISIBLEBY, 1},
    {"eq", IS_EQ, 1},
    {"equalto", IS_EQ, 1},
    {"==", IS_EQ, 1},
    {"escaped", IS_ESCAPED, 0},
    {"even", IS_EVEN, 0},
    {"false", IS_FALSE, 0},
    {"filter", IS_FILTER, 0},
    {"float", IS_FLOAT, 0},
    {"ge", IS_GE, 1},
    {">=", IS_GE, 1},
    {"gt", IS_GT, 1},
    {">", IS_GT, 1},
    {"greaterthan", IS_GT, 1},
    {"in", IS_IN, 1},
    {"integer", IS_INTEGER, 0},
    {"iterable", IS_ITERABLE, 0},
    {"le", IS_LE, 1},
    {"<=", IS_LE, 1},
    {"lower", IS_LOWER, 0},
    {"lt", IS_LT, 1},
    {"<", IS_LT, 1},
    {"lessthan", IS_LT, 1},
    {"mapping", IS_MAPPING, 0},
    {"ne", IS_NE, 1},
    {"!=", IS_NE, 1},
    {"none", IS_NONE, 0},
    {"number", IS_NUMBER, 0},
    {"odd", IS_ODD, 0},
    {"sameas", IS_SAMEAS, 1},
    {"sequence", IS_SEQUENCE, 0},
    {"string", IS_STRING, 0},
    {"test", IS_TEST, 0},
    {"true", IS_TRUE, 0},
    {"undefined", IS_UNDEFINED, 0},
    {"upper", IS_UPPER, 0},
};

int32_t jn_test_index(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strlen(tests[i].name) == len && memcmp(tests[i].name, name, len) == 0) return (int32_t)i;
    return -1;
}

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
    case JN_STR:
        return jn_str_cmp(a.u.s, b.u.s) ==
               0; /* the reference answers by interning: not something to rely on */
    case JN_FLOAT: return a.u.f == b.u.f;
    case JN_FUNC: return a.kind == b.kind;
    case JN_VIEW: return false;
    default: return a.u.i == b.u.i;
    }
}

static bool run_test(struct jinja_ctx *c, enum test_id id, struct jinja_value v, struct jinja_value arg)
{
    switch (id) {
    case IS_BOOLEAN: return v.type == JN_BOOL;
    case IS_CALLABLE:
        return v.type == JN_MACRO || v.type == JN_FUNC || v.type == JN_METHOD || v.type == JN_LOOP ||
               v.type == JN_UNDEF || (v.type == JN_CYCLER && ((const struct jn_cycler *)v.u.p)->joiner);
    case IS_DEFINED: return v.type != JN_UNDEF;
    case IS_UNDEFINED: return v.type == JN_UNDEF;
    case IS_DIVISIBLEBY: return modulo_is(c, v, arg, 0);
    case IS_EVEN: return modulo_is(c, v, JN_V(JN_INT, i, 2), 0);
    case IS_ODD: return modulo_is(c, v, JN_V(JN_INT, i, 2), 1);
    case IS_EQ: return jn_equal(c, v, arg);
    case IS_NE: return !jn_equal(c, v, arg);
    case IS_GE: return jn_compare(c, OP_GE, v, arg);
    case IS_GT: return jn_compare(c, OP_GT, v, arg);
    case IS_LE: return jn_compare(c, OP_LE, v, arg);
    case IS_LT: return jn_compare(c, OP_LT, v, arg);
    case IS_ESCAPED: return v.type == JN_STR && v.u.s->markup;
    case IS_FALSE: return v.type == JN_BOOL && !v.u.i;
    case IS_TRUE: return v.type == JN_BOOL && v.u.i;
    case IS_FILTER: return v.type == JN_STR && jn_filter_index(v.u.s->p, v.u.s->len) >= 0;
    case IS_TEST: return v.type == JN_STR && jn_test_index(v.u.s->p, v.u.s->len) >= 0;
    case IS_FLOAT: return v.type == JN_FLOAT;
    case IS_IN: return jn_contains(c, arg, v);
    case IS_INTEGER: return v.type == JN_INT || v.type == JN_BIG;
    case IS_ITERABLE: return jn_is_iterable(v);
    case IS_LOWER: return jn_str_cased(c, jn_to_str(c, v).u.s) == 1;
    case IS_UPPER: return jn_str_cased(c, jn_to_str(c, v).u.s) == 2;
    case IS_MAPPING: return v.type == JN_DICT;
    case IS_NONE: return v.type == JN_NONE;
    case IS_NUMBER: return v.type == JN_INT || v.type == JN_BIG || v.type == JN_FLOAT || v.type == JN_BOOL;
    case IS_SAMEAS: return same_object(v, arg);
    case IS_SEQUENCE:
        return v.type == JN_STR || v.type == JN_LIST || v.type == JN_TUPLE || v.type == JN_DICT ||
               v.type == JN_RANGE || v.type == JN_UNDEF;
    case IS_STRING: return v.type == JN_STR;
    }
    return false;
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
    const char *const *names = t->id == IS_DIVISIBLEBY ? named
                               : t->id == IS_SAMEAS    ? other
                               : t->id == IS_IN        ? seq
                                                       : params;
    jn_bind(c, t->name, a, names, t->args, t->args, &arg);
    return run_test(c, (enum test_id)t->id, v, arg);
}
