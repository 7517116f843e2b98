/* Tokens -> statement trees, and the public API of a parsed template: symbols, parse and free, what it reads.
 */
#include "config/base/assert.h"
#include "config/base/utf8.h"
#include "server/jinja/internal.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- symbols ---- */

uint32_t jn_find_sym(const struct jinja_template *t, const char *name, size_t len)
{
    uint32_t hash = jn_hash(name, len), at = hash;
    for (uint32_t id; (id = id_table_next(&t->index, hash, &at));)
        if (t->syms[id - 1].len == len && memcmp(t->syms[id - 1].name, name, len) == 0) return id - 1;
    return JN_NO_SYM;
}

uint32_t jn_intern(struct jinja_template *t, const char *name, size_t len)
{
    uint32_t sym = jn_find_sym(t, name, len);
    if (sym != JN_NO_SYM) return sym;
    JN_ROOM(&t->base, t->syms, t->sym_count, t->sym_cap);
    t->syms[t->sym_count++] = (struct jn_sym){.name = name, .len = (uint32_t)len};
    jn_index_add(&t->base, &t->index, jn_hash(name, len), t->sym_count);
    return t->sym_count - 1;
}

/* ---- statements ---- */

/* A statement list inside a tag pair; `ends` are the names that end it (not consumed). */
static struct jn_nodes parse_until(struct jn_parser *p, const char *const *ends);

static struct jn_nodes parse_block(struct jn_parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct jn_nodes body = parse_until(p, ends);
    p->tok++;
    return body;
}

/* Body of a new scope: `soft` is reset, as in the reference's compiler. */
static struct jn_nodes parse_scope_block(struct jn_parser *p, const char *end)
{
    bool soft = p->soft;
    p->soft = false;
    struct jn_nodes body = parse_block(p, end);
    p->soft = soft;
    return body;
}

static void check_target(struct jn_parser *p, const struct jn_node *n, bool attributes)
{
    if (n->kind == K_NAME || (n->kind == K_NSREF && attributes)) return;
    if (n->kind != K_TUPLE) jn_syntax(p, "can't assign to this expression");
    for (uint32_t i = 0; i < n->list.count; i++) check_target(p, n->list.v[i], attributes);
}

static uint32_t expect_name(struct jn_parser *p)
{
    static const char *const constants[] = {"true", "True", "false", "False", "none", "None"};
    if (p->tok->type != T_NAME) jn_unexpected(p, "a name");
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (jn_is_name(p, constants[i])) jn_syntax(p, "can't assign to a constant");
    uint32_t sym = jn_intern(p->t, p->tok->p, p->tok->len);
    p->tok++;
    return sym;
}

static struct jn_node *parse_if(struct jn_parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jn_node *n = jn_new_node(p, K_IF);
    bool soft = p->soft, last = false;
    p->soft = true;
    for (;;) {
        struct jn_node *br = jn_new_node(p, K_BRANCH);
        p->tok++; /* if, elif, else */
        if (!last) br->a = jn_parse_tuple(p, JN_TUPLE_NO_COND, NULL, false);
        br->body = parse_until(p, ends);
        jn_push_node(p, &n->list, br);
        if (jn_skip_name(p, "endif")) break;
        if (last) jn_unexpected(p, "endif");
        last = jn_is_name(p, "else");
    }
    p->soft = soft;
    return n;
}

static struct jn_node *parse_for(struct jn_parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct jn_node *n = jn_new_node(p, K_FOR);
    p->tok++;
    n->a = jn_parse_tuple(p, JN_TUPLE_TARGET, "in", false);
    check_target(p, n->a, false);
    if (!jn_skip_name(p, "in")) jn_unexpected(p, "in");
    n->b = jn_parse_tuple(p, JN_TUPLE_NO_COND, "recursive", false);
    if (jn_is_name(p, "recursive")) jn_syntax(p, "'recursive' loops are not supported");
    bool soft = p->soft;
    p->soft = false;
    if (jn_skip_name(p, "if")) n->c = jn_parse_expr(p, true);
    if (jn_is_name(p, "recursive")) jn_syntax(p, "'recursive' loops are not supported");
    p->loop_depth++;
    n->body = parse_until(p, ends);
    p->loop_depth--;
    if (jn_skip_name(p, "else")) n->orelse = parse_block(p, "endfor");
    else p->tok++;
    p->soft = soft;
    return n;
}

static struct jn_node *parse_set(struct jn_parser *p)
{
    struct jn_node *n = jn_new_node(p, K_SET);
    p->tok++;
    n->a = jn_parse_tuple(p, JN_TUPLE_TARGET, NULL, false);
    check_target(p, n->a, true);
    if (jn_skip_op(p, "=")) {
        n->b = jn_parse_tuple(p, JN_TUPLE_EXPR, NULL, false);
        return n;
    }
    n->kind = K_SETBLOCK;
    n->b = jn_parse_filter(p, NULL, false);
    n->body = parse_scope_block(p, "endset");
    return n;
}

static void parse_signature(struct jn_parser *p, struct jn_node *n)
{
    jn_expect_op(p, "(");
    while (!jn_is_op(p, ")")) {
        if (n->list.count) jn_expect_op(p, ",");
        struct jn_node *param = jn_new_node(p, K_NAME);
        param->sym = expect_name(p);
        p->t->syms[param->sym].given = true;
        for (uint32_t i = 0; i < n->list.count; i++)
            if (n->list.v[i]->sym == param->sym) jn_syntax(p, "a parameter is repeated");
        if (jn_skip_op(p, "=")) jn_push_node(p, &n->defaults, jn_parse_expr(p, true));
        else if (n->defaults.count) jn_syntax(p, "non-default argument follows default argument");
        jn_push_node(p, &n->list, param);
    }
    jn_expect_op(p, ")");
}

/* Long chains of operators are deep trees: walks other than evaluation have their own bound. */
#define TREE_DEPTH_MAX 4000

static void parse_macro_body(struct jn_parser *p, struct jn_node *n, const char *end)
{
    uint32_t loops = p->loop_depth;
    bool inside = p->in_macro;
    p->loop_depth = 0;
    p->in_macro = true;
    n->body = parse_scope_block(p, end);
    p->loop_depth = loops;
    p->in_macro = inside;
}

static struct jn_node *parse_macro(struct jn_parser *p)
{
    struct jn_node *n = jn_new_node(p, K_MACRO);
    p->tok++;
    n->sym = expect_name(p);
    parse_signature(p, n);
    parse_macro_body(p, n, "endmacro");
    return n;
}

static struct jn_node *parse_call_block(struct jn_parser *p)
{
    struct jn_node *n = jn_new_node(p, K_CALLBLOCK);
    p->tok++;
    if (jn_is_op(p, "(")) parse_signature(p, n);
    n->a = jn_parse_expr(p, true);
    if (n->a->kind != K_CALL) jn_syntax(p, "expected call");
    n->sym = p->t->sym_caller;
    parse_macro_body(p, n, "endcall");
    return n;
}

static struct jn_node *parse_with(struct jn_parser *p)
{
    struct jn_node *n = jn_new_node(p, K_WITH);
    p->tok++;
    while (p->tok->type != T_BLOCK_END) {
        if (n->list.count) jn_expect_op(p, ",");
        struct jn_node *target = jn_parse_tuple(p, JN_TUPLE_TARGET, NULL, false);
        check_target(p, target, false);
        jn_push_node(p, &n->list, target);
        jn_expect_op(p, "=");
        jn_push_node(p, &n->defaults, jn_parse_expr(p, true));
    }
    n->body = parse_scope_block(p, "endwith");
    return n;
}

static struct jn_node *parse_filter_block(struct jn_parser *p)
{
    struct jn_node *n = jn_new_node(p, K_FILTERBLOCK);
    p->tok++;
    n->b = jn_parse_filter(p, NULL, true);
    n->body = parse_scope_block(p, "endfilter");
    return n;
}

static struct jn_node *parse_generation(struct jn_parser *p)
{
    struct jn_node *n = jn_new_node(p, K_GENERATION);
    uint32_t loops = p->loop_depth;
    p->tok++;
    p->loop_depth = 0;
    n->body = parse_scope_block(p, "endgeneration");
    p->loop_depth = loops;
    return n;
}

static struct jn_node *parse_jump(struct jn_parser *p)
{
    struct jn_node *n = jn_new_node(p, jn_is_name(p, "break") ? K_BREAK : K_CONTINUE);
    if (!p->loop_depth) jn_syntax(p, "'break' or 'continue' outside of a loop");
    p->tok++;
    return n;
}

static struct jn_node *parse_statement(struct jn_parser *p)
{
    static const struct {
        const char *name;
        struct jn_node *(*parse)(struct jn_parser *p); /* NULL: Jinja has it */
    } statements[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"with", parse_with},
        {"call", parse_call_block},
        {"break", parse_jump},
        {"filter", parse_filter_block},
        {"continue", parse_jump},
        {"generation", parse_generation},
        {"include", NULL},
        {"import", NULL},
        {"from", NULL},
        {"extends", NULL},
        {"block", NULL},
        {"autoescape", NULL},
        {"do", NULL},
        {"trans", NULL},
        {"print", NULL},
    };
    if (p->tok->type != T_NAME) jn_unexpected(p, "a tag name");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!jn_is_name(p, statements[i].name)) continue;
        if (statements[i].parse) return statements[i].parse(p);
        jn_syntax(p, "the statement '%s' is not supported", statements[i].name);
    }
    jn_syntax(p, "unknown tag '%.*s'", p->tok->len > 40 ? 40 : (int)p->tok->len, p->tok->p);
}

static bool at_end(const struct jn_parser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (jn_is_name(p, *ends)) return true;
    return false;
}

/* Data, prints and tags until a tag in `ends`; with ends == NULL until the template ends. */
static struct jn_nodes parse_body(struct jn_parser *p, const char *const *ends)
{
    struct jn_nodes body = {0};
    for (;;) {
        const struct jn_token *t = p->tok;
        if (t->type == T_DATA) {
            struct jn_node *n = jn_new_node(p, K_DATA);
            n->value = jn_const_str(p->b, t->p, t->len);
            p->tok++;
            jn_push_node(p, &body, n);
        } else if (t->type == T_VAR_BEGIN) {
            struct jn_node *n = jn_new_node(p, K_PRINT);
            p->tok++;
            jn_push_node(p, &n->list, jn_parse_tuple(p, JN_TUPLE_EXPR, NULL, false));
            if (p->tok->type != T_VAR_END) jn_unexpected(p, "end of print statement");
            p->tok++;
            jn_push_node(p, &body, n);
        } else if (t->type == T_BLOCK_BEGIN) {
            p->tok++;
            if (ends && at_end(p, ends)) return body;
            jn_push_node(p, &body, parse_statement(p));
            if (p->tok->type != T_BLOCK_END) jn_unexpected(p, "end of statement block");
            p->tok++;
        } else {
            if (ends) jn_syntax(p, "unexpected end of template: '%s' is missing", ends[0]);
            if (t->type != T_EOF) jn_unexpected(p, "end of template");
            return body;
        }
    }
}

static struct jn_nodes parse_until(struct jn_parser *p, const char *const *ends)
{
    if (jn_is_op(p, ":")) p->tok++;
    if (p->tok->type != T_BLOCK_END) jn_unexpected(p, "end of statement block");
    p->tok++;
    jn_deeper(p);
    struct jn_nodes body = parse_body(p, ends);
    p->depth--;
    return body;
}

/* ---- public API ---- */

/* Copies the source with \n newlines and without one newline at its end. */
static void take_source(struct jinja_template *t, const char *src, size_t len)
{
    char *copy = jn_alloc(&t->base, len + 1), *o = copy;
    for (size_t i = 0; i < len; i++) {
        if (src[i] == '\r') {
            *o++ = '\n';
            if (i + 1 < len && src[i + 1] == '\n') i++;
        } else {
            *o++ = src[i];
        }
    }
    t->src_len = (size_t)(o - copy);
    if (t->src_len && copy[t->src_len - 1] == '\n') t->src_len--;
    copy[t->src_len] = '\0';
    t->src = copy;
}

static void build(struct jinja_template *t, const char *src, size_t len)
{
    if (len > t->base.limits.source_bytes_max)
        jn_fail(&t->base, JINJA_LIMIT, "the template has more than %zu bytes",
                t->base.limits.source_bytes_max);
    if (!utf8_valid(src, len)) jn_fail(&t->base, JINJA_SYNTAX, "the template is not valid UTF-8");
    take_source(t, src, len);
    t->sym_caller = jn_intern(t, "caller", 6);
    t->sym_loop = jn_intern(t, "loop", 4);
    struct jn_tokens tokens = {0};
    jn_lex(&t->base, t->src, t->src_len, &tokens);
    struct jn_parser p = {.t = t, .b = &t->base, .tok = tokens.v};
    t->body = parse_body(&p, NULL);
    ASSERT(!p.depth && !p.loop_depth && !p.in_macro && !p.soft);
}

enum status jinja_parse(const char *src, size_t len, const struct jinja_limits *limits,
                        struct jinja_template **out, struct jinja_error *err)
{
    struct jinja_template *t = calloc(1, sizeof *t);
    *err = (struct jinja_error){0};
    if (!t) {
        err->code = JINJA_NOMEM;
        snprintf(err->message, sizeof err->message, "out of memory");
        return ST_NOMEM;
    }
    t->base.limits = limits ? *limits : JINJA_LIMITS_DEFAULT;
    t->base.arena.bytes_max = t->base.limits.arena_bytes_max;
    jmp_buf code;
    t->base.on_error = &code;
    if (setjmp(code) == 0) {
        build(t, src, len);
        t->base.on_error = NULL;
        *out = t;
        return ST_OK;
    }
    *err = t->base.error;
    jinja_free(t);
    return err->code == JINJA_NOMEM ? ST_NOMEM : err->code == JINJA_LIMIT ? ST_TOO_LARGE : ST_FORMAT;
}

void jinja_free(struct jinja_template *t)
{
    if (!t) return;
    jn_arena_free(&t->base.arena);
    free(t);
}

const char *jinja_source(const struct jinja_template *t, size_t *len)
{
    *len = t->src_len;
    return t->src;
}

bool jinja_reads(const struct jinja_template *t, const char *name)
{
    uint32_t sym = jn_find_sym(t, name, strlen(name));
    return sym != JN_NO_SYM && t->syms[sym].read;
}

/* ---- does it walk over message content? ---- */

struct content_scan {
    const struct jinja_template *t;
    bool *alias; /* by symbol: holds content */
    bool found, changed;
    int depth;
};

static bool is_content(const struct content_scan *x, const struct jn_node *n)
{
    while (n &&
           (n->kind == K_FILTER || (n->kind == K_ITEM && n->b && n->b->kind == K_SLICE) || n->kind == K_OR))
        n = n->a;
    if (!n) return false;
    if (n->kind == K_NAME) return x->alias[n->sym];
    if (n->kind == K_ATTR) return jn_str_is(n->value, "content");
    return n->kind == K_ITEM && n->b->kind == K_CONST && jn_str_is(n->b->value, "content");
}

static void scan_node(struct content_scan *x, const struct jn_node *n);

static void scan_list(struct content_scan *x, const struct jn_nodes *list)
{
    for (uint32_t i = 0; i < list->count; i++) scan_node(x, list->v[i]);
}

static void set_alias(struct content_scan *x, uint32_t sym)
{
    if (x->alias[sym]) return;
    x->alias[sym] = true;
    x->changed = true;
}

/* Arguments of any macro may be content: which parameter is which is decided by name, for all macros of the
 * callee's name. */
static void scan_macro_args(struct content_scan *x, const struct jn_nodes *tree, const struct jn_node *call)
{
    for (uint32_t i = 0; i < tree->count; i++) {
        const struct jn_node *m = tree->v[i];
        if (m->kind != K_MACRO || m->sym != call->a->sym) continue;
        for (uint32_t k = 0; k < call->list.count && k < m->list.count; k++)
            if (is_content(x, call->list.v[k])) set_alias(x, m->list.v[k]->sym);
    }
}

static void scan_node(struct content_scan *x, const struct jn_node *n)
{
    if (!n || x->found || x->depth > TREE_DEPTH_MAX) return;
    x->depth++;
    if (n->kind == K_FOR && is_content(x, n->b)) x->found = true;
    if (n->kind == K_ITEM && n->b && n->b->kind == K_CONST && n->b->value.type == JN_INT &&
        is_content(x, n->a))
        x->found = true;
    if (n->kind == K_SET && n->a->kind == K_NAME && is_content(x, n->b)) set_alias(x, n->a->sym);
    if (n->kind == K_CALL && n->a->kind == K_NAME) scan_macro_args(x, &x->t->body, n);
    scan_node(x, n->a);
    scan_node(x, n->b);
    scan_node(x, n->c);
    scan_list(x, &n->list);
    scan_list(x, &n->defaults);
    scan_list(x, &n->body);
    scan_list(x, &n->orelse);
    x->depth--;
}

bool jinja_iterates_content(const struct jinja_template *t)
{
    struct content_scan x = {.t = t, .alias = calloc(t->sym_count + 1u, sizeof(bool))};
    if (!x.alias) return false;
    for (int pass = 0; pass < 8 && (x.changed || !pass) && !x.found;
         pass++) { /* an alias of an alias of an alias ... */
        x.changed = false;
        scan_list(&x, &t->body);
    }
    free(x.alias);
    return x.found;
}
