/* Tokens -> expression trees: Jinja2's grammar and precedence (`~` binds tighter than `+`, filters and
 * tests bind to the operand before them). Statements are in jinja/stmt.c. */
#include "config/base/assert.h"
#include "server/jinja/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static struct jn_node *parse_or(struct jn_parser *p);
static struct jn_node *parse_unary(struct jn_parser *p, bool with_filter);
static struct jn_node *parse_postfix(struct jn_parser *p, struct jn_node *n);

/* ---- helpers ---- */

void jn_syntax(struct jn_parser *p, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->b->line = p->tok->line;
    jn_fail(p->b, JINJA_SYNTAX, "%s", text);
}

void jn_unexpected(struct jn_parser *p, const char *expected)
{
    static const char *const names[] = {"end of template",          "text",
                                        "begin of print statement", "end of print statement",
                                        "begin of statement block", "end of statement block"};
    const struct jn_token *t = p->tok;
    int len = t->len > 40 ? 40 : (int)t->len;
    if (t->type <= T_BLOCK_END) jn_syntax(p, "expected %s, got %s", expected, names[t->type]);
    jn_syntax(p, "expected %s, got '%.*s'", expected, len, t->p);
}

bool jn_is_op(const struct jn_parser *p, const char *op)
{
    return p->tok->type == T_OP && strcmp(p->tok->op, op) == 0;
}

bool jn_skip_op(struct jn_parser *p, const char *op)
{
    if (!jn_is_op(p, op)) return false;
    p->tok++;
    return true;
}

void jn_expect_op(struct jn_parser *p, const char *op)
{
    if (!jn_skip_op(p, op)) jn_unexpected(p, op);
}

static bool tok_is(const struct jn_token *t, const char *name)
{
    return t->type == T_NAME && t->len == strlen(name) && memcmp(t->p, name, t->len) == 0;
}

bool jn_is_name(const struct jn_parser *p, const char *name)
{
    return tok_is(p->tok, name);
}

bool jn_skip_name(struct jn_parser *p, const char *name)
{
    if (!jn_is_name(p, name)) return false;
    p->tok++;
    return true;
}

void jn_deeper(struct jn_parser *p)
{
    if (++p->depth > p->b->limits.parse_depth_max) {
        p->b->line = p->tok->line;
        jn_fail(p->b, JINJA_LIMIT, "the template is nested more than %u levels deep",
                p->b->limits.parse_depth_max);
    }
}

struct jn_node *jn_new_node(struct jn_parser *p, enum jn_kind kind)
{
    struct jn_node *n = jn_alloc(p->b, sizeof *n);
    memset(n, 0, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = p->tok->line;
    n->func = -1;
    return n;
}

/* Capacity is the power of two at or above the count, so it needs no field. */
void jn_push_node(struct jn_parser *p, struct jn_nodes *list, struct jn_node *n)
{
    ASSERT(n);
    if ((list->count & (list->count - 1)) == 0) {
        size_t cap = list->count ? (size_t)list->count * 2 : 1;
        list->v = jn_grow(p->b, list->v, list->count * sizeof *list->v, cap * sizeof *list->v);
    }
    list->v[list->count++] = n;
}

/* Constants are shared by threads: nothing in them is computed lazily. */
struct jinja_value jn_const_str(struct jn_base *b, const char *p, size_t len)
{
    struct jinja_str *s = jn_alloc(b, sizeof *s);
    *s = (struct jinja_str){
        .p = p, .len = (uint32_t)len, .chars = (uint32_t)jn_count_chars(p, len), .origin = JINJA_TEMPLATE};
    return JN_V(JN_STR, s, s);
}

static struct jn_node *binary(struct jn_parser *p, enum jn_op op, struct jn_node *a, struct jn_node *b)
{
    struct jn_node *n = jn_new_node(p, K_BINARY);
    n->op = (uint8_t)op;
    n->a = a;
    n->b = b;
    return n;
}

/* ---- primary expressions ---- */

static struct jinja_value int_value(struct jn_parser *p, const struct jn_token *t)
{
    int64_t v = 0;
    for (uint32_t i = 0; i < t->len; i++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, t->p[i] - '0', &v))
            jn_syntax(p, "an integer literal does not fit into 64 bits");
    return JN_V(JN_INT, i, v);
}

static struct jinja_value float_value(struct jn_parser *p, const struct jn_token *t)
{
    char text[400];
    if (t->len >= sizeof text) jn_syntax(p, "a number is too long");
    memcpy(text, t->p, t->len);
    text[t->len] = '\0';
    return JN_V(JN_FLOAT, f, strtod(text, NULL));
}

static struct jn_node *parse_string(struct jn_parser *p)
{
    struct jn_node *n = jn_new_node(p, K_CONST);
    const struct jn_token *first = p->tok;
    size_t len = 0;
    while (p->tok->type == T_STRING) len += (p->tok++)->len;
    const char *text = first->p;
    if (p->tok - first > 1) { /* adjacent literals are joined */
        char *buf = jn_alloc(p->b, len + 1), *o = buf;
        for (const struct jn_token *t = first; t < p->tok; t++) {
            memcpy(o, t->p, t->len);
            o += t->len;
        }
        text = buf;
    }
    n->value = jn_const_str(p->b, text, len);
    return n;
}

/* "[" or "{", then items or pairs. */
static struct jn_node *parse_display(struct jn_parser *p)
{
    bool dict = jn_is_op(p, "{");
    const char *close = dict ? "}" : "]";
    struct jn_node *n = jn_new_node(p, dict ? K_DICT : K_LIST);
    p->tok++;
    while (!jn_is_op(p, close)) {
        if (n->list.count) jn_expect_op(p, ",");
        if (jn_is_op(p, close)) break;
        jn_push_node(p, &n->list, jn_parse_expr(p, true));
        if (!dict) continue;
        jn_expect_op(p, ":");
        jn_push_node(p, &n->list, jn_parse_expr(p, true));
    }
    p->tok++;
    return n;
}

static struct jn_node *parse_name(struct jn_parser *p, bool target)
{
    const struct jn_token *t = p->tok;
    struct jn_node *n = jn_new_node(p, K_CONST);
    p->tok++;
    if (tok_is(t, "true") || tok_is(t, "True") || tok_is(t, "false") || tok_is(t, "False")) {
        n->value = JN_V(JN_BOOL, i, (t->p[0] | 32) == 't');
    } else if (tok_is(t, "none") || tok_is(t, "None")) {
        n->value = JN_V(JN_NONE, i, 0);
    } else if (target && jn_skip_op(p, ".")) {
        n->kind = K_NSREF;
        n->sym = jn_intern(p->t, t->p, t->len);
        p->t->syms[n->sym].read = true;
        if (p->tok->type != T_NAME) jn_unexpected(p, "a name");
        n->value = jn_const_str(p->b, p->tok->p, p->tok->len);
        p->tok++;
    } else {
        n->kind = K_NAME;
        n->sym = jn_intern(p->t, t->p, t->len);
        *(target ? &p->t->syms[n->sym].given : &p->t->syms[n->sym].read) = true;
        if (p->in_macro && !p->t->syms[n->sym].given && (tok_is(t, "varargs") || tok_is(t, "kwargs")))
            jn_syntax(p, "'%.*s' of a macro is not supported", (int)t->len, t->p);
    }
    return n;
}

static struct jn_node *parse_primary(struct jn_parser *p, bool target)
{
    const struct jn_token *t = p->tok;
    if (t->type == T_NAME) return parse_name(p, target);
    if (t->type == T_STRING) return parse_string(p);
    if (t->type == T_INT || t->type == T_FLOAT) {
        struct jn_node *n = jn_new_node(p, K_CONST);
        n->value = t->type == T_INT ? int_value(p, t) : float_value(p, t);
        p->tok++;
        return n;
    }
    if (jn_is_op(p, "(")) {
        p->tok++;
        struct jn_node *n = jn_parse_tuple(p, target ? JN_TUPLE_TARGET : JN_TUPLE_EXPR, NULL, true);
        jn_expect_op(p, ")");
        return n;
    }
    if (jn_is_op(p, "[") || jn_is_op(p, "{")) return parse_display(p);
    jn_unexpected(p, "an expression");
}

struct jn_node *jn_parse_tuple(struct jn_parser *p, enum jn_tuple_mode mode, const char *end_name,
                               bool explicit_parens)
{
    struct jn_nodes items = {0};
    bool is_tuple = false;
    jn_deeper(p);
    for (;;) {
        if (items.count) jn_expect_op(p, ",");
        if (p->tok->type == T_VAR_END || p->tok->type == T_BLOCK_END || jn_is_op(p, ")") ||
            (end_name && jn_is_name(p, end_name)))
            break;
        jn_push_node(p, &items,
                     mode == JN_TUPLE_TARGET ? parse_primary(p, true)
                                             : jn_parse_expr(p, mode == JN_TUPLE_EXPR));
        if (!jn_is_op(p, ",")) break;
        is_tuple = true;
    }
    p->depth--;
    if (!is_tuple) {
        if (items.count) return items.v[0];
        if (!explicit_parens) jn_unexpected(p, "an expression");
    }
    struct jn_node *n = jn_new_node(p, K_TUPLE);
    n->list = items;
    return n;
}

/* ---- postfix: subscripts, calls, filters, tests ---- */

static struct jn_node *parse_subscribed(struct jn_parser *p)
{
    struct jn_node *part[3] = {0};
    int at = 0;
    bool slice = false;
    for (;;) {
        if (jn_skip_op(p, ":")) {
            slice = true;
            if (++at == 3) jn_unexpected(p, "]");
        } else if (jn_is_op(p, "]") || jn_is_op(p, ",")) {
            break;
        } else {
            if (part[at]) jn_unexpected(p, "]");
            part[at] = jn_parse_expr(p, true);
        }
    }
    if (!slice) {
        if (!part[0]) jn_unexpected(p, "an expression");
        return part[0];
    }
    struct jn_node *n = jn_new_node(p, K_SLICE);
    n->a = part[0];
    n->b = part[1];
    n->c = part[2];
    return n;
}

static struct jn_node *parse_subscript(struct jn_parser *p, struct jn_node *obj)
{
    struct jn_node *n = jn_new_node(p, K_ITEM);
    n->a = obj;
    if (jn_skip_op(p, ".")) {
        const struct jn_token *t = p->tok;
        if (t->type == T_NAME) {
            n->kind = K_ATTR;
            n->value = jn_const_str(p->b, t->p, t->len);
        } else if (t->type == T_INT) {
            n->b = jn_new_node(p, K_CONST);
            n->b->value = int_value(p, t);
        } else {
            jn_unexpected(p, "name or number");
        }
        p->tok++;
        return n;
    }
    jn_expect_op(p, "[");
    n->b = parse_subscribed(p);
    if (jn_is_op(p, ",")) jn_syntax(p, "subscripts of more than one expression are not supported");
    jn_expect_op(p, "]");
    return n;
}

/* "(" arguments ")": positional, then *a and keywords. */
static struct jn_nodes parse_args(struct jn_parser *p)
{
    struct jn_nodes args = {0};
    bool named = false;
    jn_expect_op(p, "(");
    jn_deeper(p);
    while (!jn_is_op(p, ")")) {
        if (args.count) {
            jn_expect_op(p, ",");
            if (jn_is_op(p, ")")) break;
        }
        struct jn_node *n = NULL;
        if (jn_is_op(p, "**")) jn_syntax(p, "'**' in a call is not supported");
        if (jn_is_op(p, "*")) {
            n = jn_new_node(p, K_STAR);
            p->tok++;
        } else if (p->tok->type == T_NAME && p->tok[1].type == T_OP && strcmp(p->tok[1].op, "=") == 0) {
            n = jn_new_node(p, K_KWARG);
            n->value = jn_const_str(p->b, p->tok->p, p->tok->len);
            for (uint32_t i = 0; i < args.count; i++)
                if (args.v[i]->kind == K_KWARG && jn_str_cmp(args.v[i]->value.u.s, n->value.u.s) == 0)
                    jn_syntax(p, "a keyword argument is repeated");
            p->tok += 2;
        } else if (named) {
            jn_syntax(p, "invalid syntax for function call expression");
        }
        named = named || n;
        if (n) n->a = jn_parse_expr(p, true);
        jn_push_node(p, &args, n ? n : jn_parse_expr(p, true));
    }
    p->depth--;
    jn_expect_op(p, ")");
    return args;
}

static struct jn_node *parse_call(struct jn_parser *p, struct jn_node *callee)
{
    struct jn_node *n = jn_new_node(p, K_CALL);
    n->a = callee;
    n->list = parse_args(p);
    return n;
}

/* name(.name)* as one string */
static struct jinja_value dotted_name(struct jn_parser *p)
{
    char buf[200];
    size_t len = 0;
    for (;;) {
        if (p->tok->type != T_NAME) jn_unexpected(p, "a name");
        if (len + p->tok->len + 1 > sizeof buf) jn_syntax(p, "a name is too long");
        memcpy(buf + len, p->tok->p, p->tok->len);
        len += p->tok->len;
        p->tok++;
        if (!jn_is_op(p, ".")) break;
        buf[len++] = '.';
        p->tok++;
    }
    char *copy = jn_alloc(p->b, len + 1);
    memcpy(copy, buf, len);
    return jn_const_str(p->b, copy, len);
}

struct jn_node *jn_parse_filter(struct jn_parser *p, struct jn_node *value, bool start_inline)
{
    while (jn_is_op(p, "|") || start_inline) {
        if (!start_inline) p->tok++;
        start_inline = false;
        struct jn_node *n = jn_new_node(p, K_FILTER);
        n->a = value;
        n->value = dotted_name(p);
        n->func = jn_filter_index(n->value.u.s->p, n->value.u.s->len);
        if (n->func < 0 && !p->soft)
            jn_syntax(p, "no filter named '%.*s'", (int)n->value.u.s->len, n->value.u.s->p);
        if (jn_is_op(p, "(")) n->list = parse_args(p);
        value = n;
    }
    return value;
}

static struct jn_node *parse_test(struct jn_parser *p, struct jn_node *value)
{
    struct jn_node *n = jn_new_node(p, K_TEST);
    p->tok++; /* is */
    n->a = value;
    n->flag = jn_skip_name(p, "not");
    n->value = dotted_name(p);
    n->func = jn_test_index(n->value.u.s->p, n->value.u.s->len);
    if (n->func < 0 && !p->soft)
        jn_syntax(p, "no test named '%.*s'", (int)n->value.u.s->len, n->value.u.s->p);
    const struct jn_token *t = p->tok;
    if (jn_is_op(p, "(")) {
        n->list = parse_args(p);
    } else if ((t->type == T_NAME || t->type == T_STRING || t->type == T_INT || t->type == T_FLOAT ||
                jn_is_op(p, "[") || jn_is_op(p, "{")) &&
               !tok_is(t, "else") && !tok_is(t, "or") && !tok_is(t, "and")) {
        if (tok_is(t, "is")) jn_syntax(p, "tests can't be chained with 'is'");
        jn_push_node(p, &n->list, parse_postfix(p, parse_primary(p, false)));
    }
    return n;
}

static struct jn_node *parse_postfix(struct jn_parser *p, struct jn_node *n)
{
    for (;;) {
        if (jn_is_op(p, ".") || jn_is_op(p, "[")) n = parse_subscript(p, n);
        else if (jn_is_op(p, "(")) n = parse_call(p, n);
        else return n;
    }
}

static struct jn_node *parse_unary(struct jn_parser *p, bool with_filter)
{
    struct jn_node *n;
    jn_deeper(p);
    if (jn_is_op(p, "-") || jn_is_op(p, "+")) {
        n = jn_new_node(p, jn_is_op(p, "-") ? K_NEG : K_POS);
        p->tok++;
        n->a = parse_unary(p, false);
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    while (with_filter) {
        if (jn_is_op(p, "|")) n = jn_parse_filter(p, n, false);
        else if (jn_is_name(p, "is")) n = parse_test(p, n);
        else if (jn_is_op(p, "(")) n = parse_call(p, n);
        else break;
    }
    p->depth--;
    return n;
}

/* ---- operators, from tight to loose ---- */

static enum jn_op skip_one_of(struct jn_parser *p, const char *const ops[], const enum jn_op kinds[])
{
    for (size_t i = 0; ops[i]; i++)
        if (jn_skip_op(p, ops[i])) return kinds[i];
    return OP_NONE;
}

static struct jn_node *parse_product(struct jn_parser *p)
{
    static const char *const ops[] = {"*", "/", "//", "%", NULL};
    static const enum jn_op kinds[] = {OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD};
    struct jn_node *n = parse_unary(p, true);
    for (enum jn_op op; (op = skip_one_of(p, ops, kinds)) != OP_NONE;)
        n = binary(p, op, n, parse_unary(p, true));
    if (jn_is_op(p, "**")) jn_syntax(p, "the operator '**' is not supported");
    return n;
}

static struct jn_node *parse_concat(struct jn_parser *p)
{
    struct jn_node *first = parse_product(p);
    if (!jn_is_op(p, "~")) return first;
    struct jn_node *n = jn_new_node(p, K_CONCAT);
    jn_push_node(p, &n->list, first);
    while (jn_skip_op(p, "~")) jn_push_node(p, &n->list, parse_product(p));
    return n;
}

static struct jn_node *parse_sum(struct jn_parser *p)
{
    static const char *const ops[] = {"+", "-", NULL};
    static const enum jn_op kinds[] = {OP_ADD, OP_SUB};
    struct jn_node *n = parse_concat(p);
    for (enum jn_op op; (op = skip_one_of(p, ops, kinds)) != OP_NONE;) n = binary(p, op, n, parse_concat(p));
    return n;
}

static enum jn_op compare_op(struct jn_parser *p)
{
    static const char *const ops[] = {"==", "!=", "<", "<=", ">", ">=", NULL};
    static const enum jn_op kinds[] = {OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE};
    if (jn_skip_name(p, "in")) return OP_IN;
    if (!jn_is_name(p, "not") || !tok_is(p->tok + 1, "in")) return skip_one_of(p, ops, kinds);
    p->tok += 2;
    return OP_NOT_IN;
}

static struct jn_node *parse_compare(struct jn_parser *p)
{
    struct jn_node *first = parse_sum(p), *n = NULL;
    for (enum jn_op op; (op = compare_op(p)) != OP_NONE;) {
        if (!n) {
            n = jn_new_node(p, K_COMPARE);
            n->a = first;
        }
        struct jn_node *o = jn_new_node(p, K_OPERAND);
        o->op = (uint8_t)op;
        o->a = parse_sum(p);
        jn_push_node(p, &n->list, o);
    }
    return n ? n : first;
}

static struct jn_node *parse_not(struct jn_parser *p)
{
    if (!jn_is_name(p, "not")) return parse_compare(p);
    struct jn_node *n = jn_new_node(p, K_NOT);
    jn_deeper(p);
    p->tok++;
    n->a = parse_not(p);
    p->depth--;
    return n;
}

static struct jn_node *parse_logic(struct jn_parser *p, const char *word, enum jn_kind kind,
                                   struct jn_node *(*operand)(struct jn_parser *p))
{
    struct jn_node *a = operand(p);
    while (jn_is_name(p, word)) {
        struct jn_node *n = jn_new_node(p, kind);
        p->tok++;
        n->a = a;
        n->b = operand(p);
        a = n;
    }
    return a;
}

static struct jn_node *parse_and(struct jn_parser *p)
{
    return parse_logic(p, "and", K_AND, parse_not);
}

static struct jn_node *parse_or(struct jn_parser *p)
{
    return parse_logic(p, "or", K_OR, parse_and);
}

/* Is this expression the first part of `x if y`? Filters in it then may be unknown (`soft`). The `if` comes
 * later, so look ahead for it at this bracket level. */
static bool if_follows(const struct jn_parser *p)
{
    int level = 0;
    for (const struct jn_token *t = p->tok;; t++) {
        if (t->type == T_EOF || t->type == T_VAR_END || t->type == T_BLOCK_END) return false;
        if (t->type == T_OP && strchr("([{", t->op[0])) level++;
        if (t->type == T_OP && strchr(")]}", t->op[0]) && --level < 0) return false;
        if (level == 0 && t->type == T_OP && t->op[0] == ',') return false;
        if (level == 0 && tok_is(t, "if") && t > p->tok) return true;
    }
}

struct jn_node *jn_parse_expr(struct jn_parser *p, bool with_cond)
{
    bool soft = p->soft;
    jn_deeper(p);
    if (with_cond && !soft) p->soft = if_follows(p);
    struct jn_node *n = parse_or(p);
    while (with_cond && jn_is_name(p, "if")) {
        struct jn_node *cond = jn_new_node(p, K_COND);
        p->tok++;
        p->soft = true;
        cond->b = n;
        cond->a = parse_or(p);
        if (jn_skip_name(p, "else")) cond->c = jn_parse_expr(p, true);
        n = cond;
    }
    p->soft = soft;
    p->depth--;
    return n;
}
