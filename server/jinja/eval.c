/* Expressions: tree + scope -> value, and calls. */
#include "config/base/assert.h"
#include "config/base/clock.h"
#include "server/jinja/internal.h"

#include <stdio.h>

#define CLOCK_EVERY 4096 /* steps between clock checks */

/* ---- limits ---- */

static void check_clock(struct jinja_ctx *c)
{
    c->next_clock_check = c->steps + CLOCK_EVERY;
    if (c->base.limits.time_ms_max && now_us() - c->started_us > 1000ull * c->base.limits.time_ms_max)
        jn_fail(&c->base, JINJA_LIMIT, "the template took longer than %u ms", c->base.limits.time_ms_max);
}

static void spend(struct jinja_ctx *c, uint64_t steps)
{
    c->steps += steps;
    if (c->steps > c->base.limits.steps_max)
        jn_fail(&c->base, JINJA_LIMIT, "the template took more than %llu steps",
                (unsigned long long)c->base.limits.steps_max);
    if (c->steps >= c->next_clock_check) check_clock(c);
}

void jn_enter(struct jinja_ctx *c)
{
    if (++c->depth > c->base.limits.depth_max)
        jn_fail(&c->base, JINJA_LIMIT, "the template is nested more than %u levels deep",
                c->base.limits.depth_max);
    spend(c, 1);
}

void jn_charge(struct jinja_ctx *c, size_t bytes)
{
    c->charged += bytes; /* many small amounts add up */
    if (c->charged < 64) return;
    spend(c, c->charged / 64);
    c->charged %= 64;
}

/* ---- names ---- */

static struct jinja_value lookup(struct jinja_ctx *c, uint32_t sym, const struct jn_scope *s)
{
    for (; s->up; s = s->up)
        for (uint32_t i = s->count; i > 0; i--)
            if (s->syms[i - 1] == sym) return s->vals[i - 1];
    if (c->root[sym].type != JN_MISSING) return c->root[sym];
    const struct jn_sym *name = &c->t->syms[sym];
    return jn_undef(JN_U_NAME, jinja_string(c, name->name, name->len, JINJA_TEMPLATE).u.s, 0);
}

/* ---- calls ---- */

void jn_eval_args(struct jinja_ctx *c, const struct jn_nodes *list, struct jn_scope *s, struct jn_args *out)
{
    struct jinja_value pos = jn_new_list(c, JN_LIST, list->count), names = jn_new_list(c, JN_LIST, 0),
                       vals = jn_new_list(c, JN_LIST, 0);
    for (uint32_t i = 0; i < list->count; i++) {
        const struct jn_node *n = list->v[i];
        if (n->kind == K_KWARG) {
            jn_list_push(c, names.u.l, n->value);
            jn_list_push(c, vals.u.l, jn_eval(c, n->a, s));
        } else if (n->kind == K_STAR) {
            const struct jinja_list *more = jn_items_of(c, jn_eval(c, n->a, s));
            for (uint32_t k = 0; k < more->count; k++) jn_list_push(c, pos.u.l, more->v[k]);
        } else {
            jn_list_push(c, pos.u.l, jn_eval(c, n, s));
        }
    }
    ASSERT_CMP(names.u.l->count, ==, vals.u.l->count);
    *out = (struct jn_args){.pos = pos.u.l->v,
                            .count = pos.u.l->count,
                            .names = names.u.l->v,
                            .vals = vals.u.l->v,
                            .kw_count = names.u.l->count};
}

struct jinja_value jn_call(struct jinja_ctx *c, struct jinja_value f, const struct jn_args *a)
{
    switch (f.type) {
    case JN_UNDEF: jn_fail_undef(c, f);
    case JN_FUNC: return jn_call_func(c, f.kind, a);
    case JN_METHOD: return jn_call_method(c, f.u.p, a);
    case JN_MACRO: return jn_call_macro(c, f.u.p, a);
    case JN_LOOP: jn_error(c, "recursive loops are not supported");
    case JN_JOINER: {
        struct jn_joiner *j = f.u.p;
        bool first = !j->used;
        j->used = true;
        return first ? jn_lit(c, "") : j->sep;
    }
    default: jn_error(c, "'%s' object is not callable", jn_type_name(f));
    }
}

struct jinja_value jn_apply_filters(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s,
                                    struct jinja_value text)
{
    struct jn_args args;
    if (!n) return text;
    jn_enter(c);
    struct jinja_value v = n->kind != K_FILTER              ? jn_eval(c, n, s)
                           : n->a && n->a->kind == K_FILTER ? jn_apply_filters(c, n->a, s, text)
                           : n->a                           ? jn_eval(c, n->a, s)
                                                            : text;
    if (n->kind == K_FILTER) {
        jn_eval_args(c, &n->list, s, &args);
        c->base.line = n->line;
        v = jn_call_filter(c, n->func, n->value, v, &args);
    }
    jn_leave(c);
    return v;
}

/* ---- operators ---- */

static struct jinja_value eval_compare(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    struct jinja_value a = jn_eval(c, n->a, s);
    bool r = true;
    for (uint32_t i = 0; i < n->list.count && r; i++) {
        enum jn_op op = (enum jn_op)n->list.v[i]->op;
        struct jinja_value b = jn_eval(c, n->list.v[i]->a, s);
        if (op == OP_EQ || op == OP_NE) r = jn_equal(c, a, b) == (op == OP_EQ);
        else if (op == OP_IN || op == OP_NOT_IN) r = jn_contains(c, b, a) == (op == OP_IN);
        else r = jn_compare(c, op, a, b);
        a = b;
    }
    return JN_V(JN_BOOL, i, r);
}

static struct jinja_value eval_sign(struct jinja_ctx *c, struct jinja_value v, bool negate)
{
    int64_t i;
    if (v.type == JN_UNDEF) jn_fail_undef(c, v);
    if (v.type == JN_FLOAT) return JN_V(JN_FLOAT, f, negate ? -v.u.f : v.u.f);
    if (v.type == JN_BIG && negate) jn_error(c, "arithmetic on an integer of more than 64 bits");
    if (v.type == JN_BIG) return v;
    if (!jn_as_int(v, &i))
        jn_error(c, "bad operand type for unary %c: '%s'", negate ? '-' : '+', jn_type_name(v));
    if (negate && __builtin_sub_overflow((int64_t)0, i, &i)) jn_error(c, "integer overflow");
    return JN_V(JN_INT, i, i);
}

static struct jinja_value eval_items(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    struct jinja_value out = jn_new_list(c, n->kind == K_LIST ? JN_LIST : JN_TUPLE, n->list.count);
    for (uint32_t i = 0; i < n->list.count; i++) jn_list_push(c, out.u.l, jn_eval(c, n->list.v[i], s));
    return out;
}

static struct jinja_value eval_dict(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    struct jinja_value out = jn_new_dict(c);
    for (uint32_t i = 0; i + 1 < n->list.count; i += 2) {
        struct jinja_value k = jn_eval(c, n->list.v[i], s);
        jn_dict_put(c, out.u.d, k, jn_eval(c, n->list.v[i + 1], s));
    }
    return out;
}

struct jinja_value jn_concat(struct jinja_ctx *c, const struct jinja_value *list, uint32_t count)
{
    struct jn_sb sb = jn_sb_new(c);
    for (uint32_t i = 0; i < count; i++) jn_print(c, &sb, list[i]);
    return jn_sb_value(c, &sb);
}

static struct jinja_value eval_item(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    struct jinja_value obj = jn_eval(c, n->a, s), missing = JN_V(JN_MISSING, i, 0);
    if (n->b->kind != K_SLICE) return jn_getitem(c, obj, jn_eval(c, n->b, s));
    struct jinja_value from = n->b->a ? jn_eval(c, n->b->a, s) : missing,
                       to = n->b->b ? jn_eval(c, n->b->b, s) : missing;
    return jn_getslice(c, obj, from, to, n->b->c ? jn_eval(c, n->b->c, s) : missing);
}

static struct jinja_value eval_call(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    struct jn_args args;
    struct jinja_value f = jn_eval(c, n->a, s);
    jn_eval_args(c, &n->list, s, &args);
    c->base.line = n->line;
    return jn_call(c, f, &args);
}

static struct jinja_value eval_test(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    struct jn_args args;
    struct jinja_value v = jn_eval(c, n->a, s);
    jn_eval_args(c, &n->list, s, &args);
    return JN_V(JN_BOOL, i, jn_call_test(c, n->func, n->value, v, &args) != n->flag);
}

static struct jinja_value eval_node(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    struct jinja_value v;
    switch ((enum jn_kind)n->kind) {
    case K_CONST: return n->value;
    case K_NAME: return lookup(c, n->sym, s);
    case K_LIST:
    case K_TUPLE: return eval_items(c, n, s);
    case K_DICT: return eval_dict(c, n, s);
    case K_COND:
        if (jn_truth(jn_eval(c, n->a, s))) return jn_eval(c, n->b, s);
        return n->c ? jn_eval(c, n->c, s)
                    : jn_undef_text(
                          c, "the inline if-expression evaluated to false and no else section was defined.");
    case K_AND: v = jn_eval(c, n->a, s); return jn_truth(v) ? jn_eval(c, n->b, s) : v;
    case K_OR: v = jn_eval(c, n->a, s); return jn_truth(v) ? v : jn_eval(c, n->b, s);
    case K_NOT: return JN_V(JN_BOOL, i, !jn_truth(jn_eval(c, n->a, s)));
    case K_COMPARE: return eval_compare(c, n, s);
    case K_BINARY: v = jn_eval(c, n->a, s); return jn_binary(c, (enum jn_op)n->op, v, jn_eval(c, n->b, s));
    case K_CONCAT: v = eval_items(c, n, s); return jn_concat(c, v.u.l->v, v.u.l->count);
    case K_NEG:
    case K_POS: return eval_sign(c, jn_eval(c, n->a, s), n->kind == K_NEG);
    case K_ATTR: return jn_getattr(c, jn_eval(c, n->a, s), n->value);
    case K_ITEM: return eval_item(c, n, s);
    case K_CALL: return eval_call(c, n, s);
    case K_FILTER: return jn_apply_filters(c, n, s, JN_V(JN_NONE, i, 0));
    case K_TEST: return eval_test(c, n, s);
    default: jn_error(c, "an expression was expected here");
    }
}

struct jinja_value jn_eval(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    jn_enter(c);
    c->base.line = n->line;
    struct jinja_value v = eval_node(c, n, s);
    jn_leave(c);
    return v;
}
