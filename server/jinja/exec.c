/* Statements: output, scopes, loops, macros; and the public API of a render: contexts, value constructors,
 * the result. */
#include "config/base/assert.h"
#include "config/base/clock.h"
#include "server/jinja/internal.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- scopes ---- */

static void scope_set(struct jinja_ctx *c, struct jn_scope *s, uint32_t sym, struct jinja_value v)
{
    if (!s->up) {
        c->root[sym] = v;
        return;
    }
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->syms[i] != sym) continue;
        s->vals[i] = v;
        return;
    }
    uint32_t cap = s->cap;
    JN_ROOM(&c->base, s->syms, s->count, cap);
    JN_ROOM(&c->base, s->vals, s->count, s->cap);
    s->syms[s->count] = sym;
    s->vals[s->count++] = v;
}

/* Lives in the arena: macros keep the scope of their definition. */
static struct jn_scope *new_scope(struct jinja_ctx *c, struct jn_scope *up)
{
    struct jn_scope *s = jn_alloc(&c->base, sizeof *s);
    *s = (struct jn_scope){.up = up};
    return s;
}

static void assign(struct jinja_ctx *c, const struct jn_node *target, struct jn_scope *s,
                   struct jinja_value v)
{
    if (target->kind == K_NAME) {
        scope_set(c, s, target->sym, v);
        return;
    }
    jn_enter(c);
    if (target->kind == K_NSREF) {
        struct jn_node name = {.kind = K_NAME, .sym = target->sym, .line = target->line};
        struct jinja_value ns = jn_eval(c, &name, s);
        if (ns.type != JN_NS) jn_error(c, "cannot assign attribute on non-namespace object");
        if (target->value.u.s->len && target->value.u.s->p[0] == '_')
            jn_error(c, "a namespace cannot store attributes that start with an underscore");
        jn_dict_put(c, ns.u.d, target->value, v);
    } else {
        ASSERT_CMP(target->kind, ==, K_TUPLE);
        const struct jinja_list *l = jn_items_of(c, v);
        if (l->count != target->list.count)
            jn_error(c, "cannot unpack %u values into %u names", l->count, target->list.count);
        for (uint32_t i = 0; i < l->count; i++) assign(c, target->list.v[i], s, l->v[i]);
    }
    jn_leave(c);
}

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };
static enum flow exec(struct jinja_ctx *c, const struct jn_nodes *body, struct jn_scope *s);

/* Runs a body and returns what it printed. */
static struct jinja_value capture(struct jinja_ctx *c, const struct jn_nodes *body, struct jn_scope *s)
{
    struct jn_sb sb = jn_sb_new(c), *outer = c->out;
    sb.max = c->base.limits.output_bytes_max;
    c->out = &sb;
    (void)exec(c, body, s); /* break and continue end at a captured body */
    ASSERT(c->out == &sb);
    c->out = outer;
    return jn_sb_value(c, &sb);
}

/* ---- loops ---- */

static enum flow exec_for(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    struct jinja_list *items = jn_items_of(c, jn_eval(c, n->b, s));
    if (n->c) {
        struct jinja_value kept = jn_new_list(c, JN_LIST, 0);
        struct jn_scope *inner = new_scope(c, s);
        for (uint32_t i = 0; i < items->count; i++) {
            inner->count = 0;
            assign(c, n->a, inner, items->v[i]);
            if (jn_truth(jn_eval(c, n->c, inner))) jn_list_push(c, kept.u.l, items->v[i]);
        }
        items = kept.u.l;
    }
    bool finished = false;
    struct jn_loop *loop = jn_alloc(&c->base, sizeof *loop);
    *loop = (struct jn_loop){.outer = c->running, .items = items};
    struct jn_scope *inner = new_scope(c, s);
    c->running = loop;
    for (uint32_t i = 0; i < items->count; i++) {
        if (++c->loops > c->base.limits.loops_max)
            jn_fail(&c->base, JINJA_LIMIT, "the template's loops ran more than %llu times",
                    (unsigned long long)c->base.limits.loops_max);
        loop->index0 = i;
        inner->count = 0; /* variables set in one iteration are not visible in the next */
        scope_set(c, inner, c->t->sym_loop, JN_V(JN_LOOP, p, loop));
        assign(c, n->a, inner, items->v[i]);
        enum flow flow = exec(c, &n->body, inner);
        if (flow == FLOW_BREAK) break;
        finished |= flow == FLOW_ON;
    }
    ASSERT(c->running == loop);
    c->running = loop->outer;
    /* The reference runs `else` when no iteration completed, also because of break or continue. A `break` in
     * it belongs to the enclosing loop. */
    return finished ? FLOW_ON : exec(c, &n->orelse, new_scope(c, s));
}

/* ---- macros ---- */

/* Positional, then keyword arguments; and `caller`, if it is given. */
static void bind_macro(struct jinja_ctx *c, const struct jn_node *n, const struct jn_args *a,
                       struct jn_scope *s)
{
    uint32_t params = n->list.count, no_default = params - n->defaults.count;
    bool *used = jn_alloc(&c->base, a->kw_count + 1u);
    ASSERT_CMP(n->defaults.count, <=, params);
    memset(used, 0, a->kw_count + 1u);
    if (a->count > params) jn_error(c, "the macro takes not more than %u argument(s)", params);
    for (uint32_t i = 0; i < params; i++) {
        const struct jn_sym *name = &c->t->syms[n->list.v[i]->sym];
        struct jinja_value v = i < a->count ? a->pos[i] : JN_V(JN_MISSING, i, 0);
        for (uint32_t k = 0; k < a->kw_count && v.type == JN_MISSING; k++) {
            if (used[k] || a->names[k].u.s->len != name->len ||
                memcmp(a->names[k].u.s->p, name->name, name->len) != 0)
                continue;
            v = a->vals[k];
            used[k] = true;
        }
        if (v.type == JN_MISSING)
            v = i >= no_default
                    ? jn_eval(c, n->defaults.v[i - no_default], s)
                    : jn_undef(JN_U_NAME, jinja_string(c, name->name, name->len, JINJA_TEMPLATE).u.s, 0);
        scope_set(c, s, n->list.v[i]->sym, v);
    }
    for (uint32_t k = 0; k < a->kw_count; k++) {
        if (used[k]) continue;
        if (!jn_str_is(a->names[k], "caller"))
            jn_error(c, "the macro takes no keyword argument '%.*s'", (int)(a->names[k].u.s->len & 63),
                     a->names[k].u.s->p);
        scope_set(c, s, c->t->sym_caller, a->vals[k]);
    }
}

struct jinja_value jn_call_macro(struct jinja_ctx *c, const struct jn_macro *m, const struct jn_args *a)
{
    struct jn_scope *s = new_scope(c, m->scope);
    uint32_t line = c->base.line;
    jn_enter(c);
    bind_macro(c, m->node, a, s);
    struct jinja_value v = capture(c, &m->node->body, s);
    c->base.line = line;
    jn_leave(c);
    return v;
}

static struct jinja_value make_macro(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    struct jn_macro *m = jn_alloc(&c->base, sizeof *m);
    *m = (struct jn_macro){.node = n, .scope = s};
    return JN_V(JN_MACRO, p, m);
}

static void exec_call_block(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    struct jn_args args;
    struct jinja_value f = jn_eval(c, n->a->a, s);
    jn_eval_args(c, &n->a->list, s, &args);
    struct jinja_value *names = jn_alloc_array(&c->base, args.kw_count + 1u, sizeof *names),
                       *vals = jn_alloc_array(&c->base, args.kw_count + 1u, sizeof *vals);
    for (uint32_t i = 0; i < args.kw_count; i++) {
        names[i] = args.names[i];
        vals[i] = args.vals[i];
    }
    names[args.kw_count] = jn_lit(c, "caller");
    vals[args.kw_count] = make_macro(c, n, s);
    args.names = names;
    args.vals = vals;
    args.kw_count++;
    jn_print(c, c->out, jn_call(c, f, &args));
}

/* ---- statements ---- */

static enum flow exec_if(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    for (uint32_t i = 0; i < n->list.count; i++) {
        const struct jn_node *br = n->list.v[i];
        if (!br->a || jn_truth(jn_eval(c, br->a, s))) return exec(c, &br->body, s);
    }
    return FLOW_ON;
}

static enum flow exec_with(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    struct jn_scope *inner = new_scope(c, s);
    for (uint32_t i = 0; i < n->list.count; i++)
        assign(c, n->list.v[i], inner, jn_eval(c, n->defaults.v[i], s));
    return exec(c, &n->body, inner);
}

static enum flow exec_node(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s)
{
    c->base.line = n->line;
    switch ((enum jn_kind)n->kind) {
    case K_DATA: jn_sb_str(c, c->out, n->value.u.s); break;
    case K_PRINT:
        for (uint32_t i = 0; i < n->list.count; i++) jn_print(c, c->out, jn_eval(c, n->list.v[i], s));
        break;
    case K_IF: return exec_if(c, n, s);
    case K_FOR: return exec_for(c, n, s);
    case K_SET: assign(c, n->a, s, jn_eval(c, n->b, s)); break;
    case K_SETBLOCK: {
        struct jn_scope *inner = new_scope(c, s);
        assign(c, n->a, s, jn_apply_filters(c, n->b, inner, capture(c, &n->body, inner)));
        break;
    }
    case K_MACRO: scope_set(c, s, n->sym, make_macro(c, n, s)); break;
    case K_CALLBLOCK: exec_call_block(c, n, s); break;
    case K_FILTERBLOCK: {
        struct jn_scope *inner = new_scope(c, s);
        struct jinja_value v = jn_apply_filters(c, n->b, inner, capture(c, &n->body, inner));
        if (v.type != JN_STR) jn_error(c, "a filter block must yield a string, not %s", jn_type_name(v));
        jn_print(c, c->out, v);
        break;
    }
    case K_WITH: return exec_with(c, n, s);
    case K_GENERATION: exec(c, &n->body, new_scope(c, s)); break;
    case K_BREAK: return FLOW_BREAK;
    case K_CONTINUE: return FLOW_CONTINUE;
    default: jn_error(c, "a statement was expected here");
    }
    return FLOW_ON;
}

static enum flow exec(struct jinja_ctx *c, const struct jn_nodes *body, struct jn_scope *s)
{
    enum flow flow = FLOW_ON;
    jn_enter(c);
    for (uint32_t i = 0; i < body->count && flow == FLOW_ON; i++) flow = exec_node(c, body->v[i], s);
    jn_leave(c);
    return flow;
}

/* ---- contexts ---- */

struct jinja_ctx *jinja_ctx_create(const struct jinja_limits *limits)
{
    struct jinja_ctx *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->base.limits = limits ? *limits : JINJA_LIMITS_DEFAULT;
    c->base.arena.bytes_max = c->base.limits.arena_bytes_max;
    c->started_us = now_us();
    return c;
}

void jinja_ctx_destroy(struct jinja_ctx *c)
{
    if (!c) return;
    jn_arena_free(&c->base.arena);
    free(c->top.p);
    free(c->top.runs);
    free(c);
}

struct jinja_value jinja_none(void)
{
    return JN_V(JN_NONE, i, 0);
}

struct jinja_value jinja_bool(bool b)
{
    return JN_V(JN_BOOL, i, b);
}

struct jinja_value jinja_int(int64_t i)
{
    return JN_V(JN_INT, i, i);
}

struct jinja_value jinja_float(double f)
{
    return JN_V(JN_FLOAT, f, f);
}

struct jinja_value jinja_with_origin(struct jinja_value v, uint32_t origin)
{
    v.origin = origin;
    return v;
}

/* Constructors run outside of a render too: the first error is kept for jinja_render to report, and after it
 * nothing more is created. Within a render (on_error is set) the error is raised there. */
#define MAKE(c_, do_)                                                                                        \
    do {                                                                                                     \
        jmp_buf here_, *was_ = (c_)->base.on_error;                                                          \
        if ((c_)->base.error.code) break;                                                                    \
        if (!was_) (c_)->base.on_error = &here_;                                                             \
        if (was_ || setjmp(here_) == 0) do_;                                                                 \
        (c_)->base.on_error = was_;                                                                          \
    } while (0)

static struct jinja_value borrowed(struct jinja_ctx *c, const char *text, size_t len, uint32_t origin)
{
    if (len >= UINT32_MAX / 2) jn_fail(&c->base, JINJA_LIMIT, "a string has more than 2 GiB");
    struct jinja_str *s = jn_alloc(&c->base, sizeof *s);
    *s = (struct jinja_str){
        .p = text, .len = (uint32_t)len, .chars = (uint32_t)jn_count_chars(text, len), .origin = origin};
    return JN_V(JN_STR, s, s);
}

static void add_var(struct jinja_ctx *c, const char *name, struct jinja_value v)
{
    if (c->var_count == c->var_cap) {
        uint32_t cap = c->var_cap ? c->var_cap * 2 : 16;
        c->vars = jn_grow(&c->base, c->vars, c->var_cap * sizeof *c->vars, cap * sizeof *c->vars);
        c->var_cap = cap;
    }
    c->vars[c->var_count++] = (struct jn_var){.name = name, .value = v};
}

struct jinja_value jinja_string(struct jinja_ctx *c, const char *text, size_t len, uint32_t origin)
{
    volatile struct jinja_value v = jinja_none(); /* it survives a longjmp */
    MAKE(c, v = borrowed(c, text, len, origin));
    return v;
}

struct jinja_value jinja_int_digits(struct jinja_ctx *c, const char *digits, size_t len, uint32_t origin)
{
    volatile struct jinja_value v = jinja_none();
    MAKE(c, v = jn_int_digits(c, digits, len, origin));
    return v;
}

struct jinja_value jinja_list(struct jinja_ctx *c, uint32_t origin)
{
    volatile struct jinja_value v = jinja_none();
    MAKE(c, v = jn_new_list(c, JN_LIST, 0));
    return jinja_with_origin(v, origin);
}

struct jinja_value jinja_dict(struct jinja_ctx *c, uint32_t origin)
{
    volatile struct jinja_value v = jinja_none();
    MAKE(c, v = jn_new_dict(c));
    return jinja_with_origin(v, origin);
}

void jinja_list_add(struct jinja_ctx *c, struct jinja_value list, struct jinja_value item)
{
    if (list.type == JN_LIST) MAKE(c, jn_list_push(c, list.u.l, item));
}

void jinja_dict_set(struct jinja_ctx *c, struct jinja_value dict, const char *key, size_t key_len,
                    struct jinja_value value)
{
    if (dict.type == JN_DICT)
        MAKE(c, jn_dict_put(c, dict.u.d, borrowed(c, key, key_len, dict.origin), value));
}

struct jinja_value jinja_join2(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b)
{
    volatile struct jinja_value v = jinja_none();
    MAKE(c, v = jn_concat(c, (struct jinja_value[]){a, b}, 2));
    return v;
}

void jinja_set(struct jinja_ctx *c, const char *name, struct jinja_value value)
{
    MAKE(c, add_var(c, name, value));
}

void jinja_set_now(struct jinja_ctx *c, const struct tm *now)
{
    c->now = *now;
    c->have_now = true;
}

/* ---- the render ---- */

static void run(struct jinja_ctx *c)
{
    c->root = jn_alloc_array(&c->base, c->t->sym_count + 1u, sizeof *c->root);
    for (uint32_t i = 0; i < c->t->sym_count; i++) c->root[i] = JN_V(JN_MISSING, i, 0);
    for (uint32_t i = 0; i < c->var_count; i++) {
        uint32_t sym = jn_find_sym(c->t, c->vars[i].name, strlen(c->vars[i].name));
        if (sym != JN_NO_SYM) c->root[sym] = c->vars[i].value;
    }
    jn_define_globals(c);
    /* The root scope may be captured by macros, so it must live as long as the render. */
    exec(c, &c->t->body, new_scope(c, NULL));
    ASSERT_CMP(c->depth, ==, 0);
    ASSERT(!c->running && c->out == &c->top);
}

static bool run_guarded(struct jinja_ctx *c)
{
    jmp_buf here;
    c->base.on_error = &here;
    bool ok = false;
    if (setjmp(here) == 0) {
        run(c);
        ok = true;
    }
    c->base.on_error = NULL;
    return ok;
}

static enum status hand_over(struct jinja_ctx *c, struct jinja_output *out)
{
    struct jn_sb *sb = &c->top;
    struct jinja_run *runs = malloc((sb->run_count + 1u) * sizeof *runs);
    char *text = realloc(sb->p, sb->len + 1);
    if (text) sb->p = text;
    if (!text || !runs) {
        free(runs);
        return ST_NOMEM;
    }
    text[sb->len] = '\0';
    size_t at = 0;
    for (uint32_t i = 0; i < sb->run_count; i++) {
        runs[i] = (struct jinja_run){.len = sb->runs[i].end - at,
                                     .origin = (enum jinja_origin)(sb->runs[i].origin & 3),
                                     .source = sb->runs[i].origin >> 2};
        at = sb->runs[i].end;
    }
    ASSERT_CMP(at, ==, sb->len);
    *out = (struct jinja_output){.text = text, .len = sb->len, .runs = runs, .run_count = sb->run_count};
    sb->p = NULL;
    return ST_OK;
}

enum status jinja_render(const struct jinja_template *t, struct jinja_ctx *c, struct jinja_output *out,
                         struct jinja_error *err)
{
    ASSERT(!c->t); /* a context serves one render */
    *err = (struct jinja_error){0};
    c->t = t;
    c->top =
        (struct jn_sb){.heap = true,
                       .max = c->base.limits.output_bytes_max < UINT32_MAX ? c->base.limits.output_bytes_max
                                                                           : UINT32_MAX - 1};
    c->out = &c->top;
    c->started_us = now_us();
    if (!c->base.error.code && run_guarded(c)) {
        if (hand_over(c, out) == ST_OK) return ST_OK;
        c->base.error = (struct jinja_error){.code = JINJA_NOMEM, .message = "out of memory"};
    }
    *err = c->base.error;
    return err->code == JINJA_NOMEM ? ST_NOMEM : err->code == JINJA_LIMIT ? ST_TOO_LARGE : ST_INVALID;
}

uint32_t jinja_error_loop(const struct jinja_ctx *c, struct jinja_value item)
{
    uint32_t level = 1;
    if (!c->base.error.code || item.type != JN_DICT) return 0;
    for (const struct jn_loop *l = c->running; l; l = l->outer, level++) {
        const struct jinja_value *at = l->index0 < l->items->count ? &l->items->v[l->index0] : NULL;
        if (at && at->type == JN_DICT && at->u.d == item.u.d) return level;
    }
    return 0;
}

void jinja_output_free(struct jinja_output *o)
{
    free(o->text);
    free(o->runs);
    *o = (struct jinja_output){0};
}
