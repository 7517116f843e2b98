/* Private to the interpreter (server/jinja).
 *
 * Errors leave through longjmp to jinja_parse / jinja_render: interpreter functions own only arena memory
 * (and the output buffer, which the context owns), so nothing can leak, and an evaluator of two dozen
 * mutually recursive functions stays readable. Every recursion goes through jn_enter, which bounds depth and
 * counts steps. */
#ifndef KVASIR_JINJA_INTERNAL_H
#define KVASIR_JINJA_INTERNAL_H

#include "config/base/id_table.h"
#include "server/jinja/jinja.h"

#include <setjmp.h>
#include <string.h>

/* ---- memory: chunks, bump allocation, one ceiling ---- */

struct jn_chunk {
    struct jn_chunk *next;
    size_t used, cap;
    _Alignas(16) char data[];
};
struct jn_arena {
    struct jn_chunk *head; /* the one being filled */
    size_t bytes, bytes_max;
};

/* Error state and memory: the common first member of the parser and the render. */
struct jn_base {
    struct jn_arena arena;
    struct jinja_limits limits;
    jmp_buf *on_error;
    uint32_t line; /* current line of the template */
    struct jinja_error error;
};
_Noreturn void jn_fail(struct jn_base *b, enum jinja_error_kind code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void *jn_alloc(struct jn_base *b, size_t bytes); /* 16-byte aligned, uninitialised; never NULL */
void *jn_alloc_array(struct jn_base *b, size_t count, size_t size);
void *jn_grow(struct jn_base *b, void *old, size_t old_bytes,
              size_t new_bytes); /* extends in place where possible */
/* Room for one more in `list`, which has `count` elements; `cap`, a uint32_t, doubles when it is reached. */
#define JN_ROOM(b, list, count, cap)                                                                         \
    ((count) < (cap) ? (void)0 : (void)((list) = jn_room(b, list, sizeof *(list), &(cap))))
void *jn_room(struct jn_base *b, void *old, size_t size, uint32_t *cap);
/* id_table_add, in the arena. */
void jn_index_add(struct jn_base *b, struct id_table *t, uint32_t hash, uint32_t id);
void jn_arena_free(struct jn_arena *a);

/* ---- values ---- */

enum jn_type {
    JN_NONE = 0,
    JN_UNDEF, /* kind = enum jn_undef, u.s = the name or message */
    JN_BOOL,  /* u.i */
    JN_INT,
    JN_FLOAT,
    JN_STR,
    JN_LIST,
    JN_TUPLE, /* u.l; kind 1: group of groupby (attributes grouper, list) */
    JN_DICT,
    JN_NS,      /* namespace: u.d */
    JN_RANGE,   /* u.p = struct jn_range */
    JN_ITER,    /* a generator or iterator in the reference: u.l, consumed once */
    JN_VIEW,    /* dict view: u.d, kind = enum jn_view */
    JN_MACRO,   /* u.p = struct jn_macro */
    JN_FUNC,    /* global function: kind = enum jn_func */
    JN_METHOD,  /* u.p = struct jn_bound */
    JN_LOOP,    /* u.p = struct jn_loop */
    JN_JOINER,  /* u.p = struct jn_joiner */
    JN_BIG,     /* an int beyond 64 bits: u.s = its digits, with a minus if negative, NUL-terminated */
    JN_MISSING, /* no value: an argument that was not given. Never visible to a template. */
};
enum jn_undef { JN_U_NAME, JN_U_ATTR, JN_U_ITEM, JN_U_TEXT, JN_U_UNSAFE, JN_U_ABSENT };
enum jn_view { JN_V_KEYS, JN_V_VALUES, JN_V_ITEMS };

struct jn_run {
    uint32_t end;    /* byte offset after the run */
    uint32_t origin; /* JINJA_FROM, here and below */
};
/* Immutable. Bytes are valid UTF-8. */
struct jinja_str {
    const char *p;
    uint32_t len;
    uint32_t chars;     /* code points */
    uint32_t run_count; /* 0: all of `origin` */
    uint32_t origin;
    uint8_t markup;
    const struct jn_run *runs;
};
struct jinja_list {
    struct jinja_value *v;
    uint32_t count, cap;
    uint32_t pos; /* of a JN_ITER: consumed so far */
};
/* Insertion ordered; a hash index appears above 8 pairs. Keys are hashable values. */
struct jinja_dict {
    struct jinja_value *k, *v;
    uint32_t count, cap;
    struct id_table index; /* of entries, from 1 */
};
struct jn_range {
    int64_t start, step;
    uint32_t count;
};
struct jn_joiner {
    struct jinja_value sep;
    bool used;
};

#define JN_V(t_, field_, x_) ((struct jinja_value){.type = (t_), .u.field_ = (x_)})

/* ---- the tree ---- */

enum jn_kind {
    /* expressions */
    K_CONST,
    K_NAME,
    K_LIST,
    K_TUPLE,
    K_DICT,
    K_COND,
    K_AND,
    K_OR,
    K_NOT,
    K_COMPARE,
    K_OPERAND,
    K_BINARY,
    K_CONCAT,
    K_NEG,
    K_POS,
    K_ATTR,
    K_ITEM,
    K_SLICE,
    K_CALL,
    K_FILTER,
    K_TEST,
    K_KWARG,
    K_STAR,
    K_NSREF,
    /* statements */
    K_DATA,
    K_PRINT,
    K_IF,
    K_BRANCH,
    K_FOR,
    K_SET,
    K_SETBLOCK,
    K_MACRO,
    K_CALLBLOCK,
    K_FILTERBLOCK,
    K_WITH,
    K_GENERATION,
    K_BREAK,
    K_CONTINUE,
};
enum jn_op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
    OP_NONE,
};
#define JN_NO_SYM UINT32_MAX
struct jn_node;
struct jn_nodes {
    struct jn_node **v;
    uint32_t count;
};
/* One shape for all kinds; which field means what:
 *   CONST value                     NAME sym                        LIST, TUPLE list
 *   DICT list = key, value, ...     COND a=test b=then c=else|NULL  COMPARE a, list of OPERAND
 *   OPERAND op a                    BINARY op a b                   CONCAT list
 *   ATTR a value=name               ITEM a b                        SLICE a b c (each may be NULL)
 *   CALL a list=arguments           KWARG value=name a              STAR a
 *   FILTER a (NULL: the captured text of a block) value=name func list=arguments
 *   TEST a value=name func list, flag=negated
 *   NSREF sym value=attribute       DATA value                      PRINT list
 *   IF list of BRANCH               BRANCH a (NULL: else) body
 *   FOR a=target b=iterable c=filter body orelse
 *   SET a b                         SETBLOCK a=target b=filters or NULL, body
 *   MACRO sym list=parameters (NAME) defaults body
 *   CALLBLOCK a=call, else as MACRO FILTERBLOCK b=filters body
 *   WITH list=targets defaults=values body                          GENERATION body */
struct jn_node {
    uint8_t kind, op, flag;
    uint32_t line;
    uint32_t sym;
    int32_t func; /* index of the filter or test; -1 unknown (an error when it is evaluated) */
    struct jn_node *a, *b, *c;
    struct jn_nodes list, defaults, body, orelse;
    struct jinja_value value;
};

struct jn_sym {
    const char *name;
    uint32_t len;
    bool read;  /* some expression loads it */
    bool given; /* a parameter, or assigned to */
};
struct jinja_template {
    struct jn_base base; /* owns the tree's memory; immutable after the parse */
    const char *src;
    size_t src_len;
    struct jn_nodes body;
    struct jn_sym *syms;
    uint32_t sym_count, sym_cap;
    struct id_table index; /* of symbols, from 1 */
    uint32_t sym_caller, sym_loop;
};
uint32_t jn_intern(struct jinja_template *t, const char *name, size_t len);
uint32_t jn_find_sym(const struct jinja_template *t, const char *name, size_t len); /* JN_NO_SYM */

/* ---- lexer ---- */

enum jn_tok {
    T_EOF,
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP
};
struct jn_token {
    uint8_t type;
    char op[3]; /* T_OP: "+", "//" ... */
    uint32_t line;
    uint32_t len;
    const char *p; /* DATA, NAME, STRING (unescaped), INT, FLOAT: text */
};
struct jn_tokens {
    struct jn_token *v;
    uint32_t count, cap;
};
/* Source with \n newlines -> tokens ending with T_EOF. Longjmps on errors. */
void jn_lex(struct jn_base *b, const char *src, size_t len, struct jn_tokens *out);

/* ---- parser: expressions (jinja/parse.c) and statements (jinja/stmt.c) ---- */

struct jn_parser {
    struct jinja_template *t;
    struct jn_base *b;
    struct jn_token *tok; /* current */
    uint32_t depth;
    uint32_t loop_depth; /* break and continue need one */
    bool in_macro;
    bool soft; /* in an `if`: unknown filters and tests fail only when they are reached */
};
struct jn_node *jn_new_node(struct jn_parser *p, enum jn_kind kind);
void jn_push_node(struct jn_parser *p, struct jn_nodes *list, struct jn_node *n);
_Noreturn void jn_syntax(struct jn_parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void jn_unexpected(struct jn_parser *p, const char *expected);
bool jn_is_op(const struct jn_parser *p, const char *op);
bool jn_skip_op(struct jn_parser *p, const char *op);
void jn_expect_op(struct jn_parser *p, const char *op);
void jn_deeper(struct jn_parser *p);
bool jn_is_name(const struct jn_parser *p, const char *name);
bool jn_skip_name(struct jn_parser *p, const char *name);
struct jinja_value jn_const_str(struct jn_base *b, const char *p, size_t len);
struct jn_node *jn_parse_expr(struct jn_parser *p, bool with_cond);
/* end_name: a name that ends the tuple (`in`), or NULL. */
enum jn_tuple_mode { JN_TUPLE_EXPR, JN_TUPLE_NO_COND, JN_TUPLE_TARGET };
struct jn_node *jn_parse_tuple(struct jn_parser *p, enum jn_tuple_mode mode, const char *end_name,
                               bool explicit_parens);
struct jn_node *jn_parse_filter(struct jn_parser *p, struct jn_node *value, bool start_inline);

/* ---- a render ---- */

struct jn_scope {
    struct jn_scope *up; /* NULL: the root, whose variables are in jinja_ctx.root */
    uint32_t *syms;
    struct jinja_value *vals;
    uint32_t count, cap;
};
struct jn_macro {
    const struct jn_node *node;
    struct jn_scope *scope; /* the scope of its definition */
};
struct jn_loop {
    const struct jn_loop *outer; /* the enclosing loop */
    struct jinja_list *items;
    uint32_t index0;
};
struct jn_bound {
    struct jinja_value self;
    int32_t method;
};
/* Positional and keyword arguments of one call. */
struct jn_args {
    struct jinja_value *pos;
    uint32_t count;
    struct jinja_value *names, *vals; /* keywords: strings and values */
    uint32_t kw_count;
};

/* Growing text with origins. */
struct jn_sb {
    char *p;
    size_t len, cap, max;
    struct jn_run *runs;
    uint32_t run_count, run_cap;
    bool heap; /* the output of the render: malloc'd, owned by the context */
};
struct jn_var {
    const char *name;
    struct jinja_value value;
};
struct jinja_ctx {
    struct jn_base base;
    const struct jinja_template *t;
    struct jinja_value *root; /* by symbol; JN_MISSING = not set */
    struct jn_var *vars;
    uint32_t var_count, var_cap;
    uint32_t depth;
    uint64_t steps, loops;
    const struct jn_loop *running; /* the innermost loop; after an error the one that it happened in */
    uint64_t started_us;
    uint64_t next_clock_check;
    size_t charged; /* bytes not yet adding up to a step */
    struct jn_sb *out;
    struct jn_sb top;
    bool have_now;
    struct tm now;
};

/* Counts one step and one level of depth; jn_leave gives the level back. */
void jn_enter(struct jinja_ctx *c);
static inline void jn_leave(struct jinja_ctx *c)
{
    c->depth--;
}
void jn_charge(struct jinja_ctx *c, size_t bytes); /* work proportional to bytes or elements */
#define jn_error(c_, ...) jn_fail(&(c_)->base, JINJA_RUNTIME, __VA_ARGS__)

/* strings (jinja/string.c) */
struct jn_sb jn_sb_new(struct jinja_ctx *c);
void jn_sb_bytes(struct jinja_ctx *c, struct jn_sb *sb, const char *p, size_t len, uint32_t origin);
void jn_sb_str(struct jinja_ctx *c, struct jn_sb *sb, const struct jinja_str *s);
void jn_sb_slice(struct jinja_ctx *c, struct jn_sb *sb, const struct jinja_str *s, size_t from,
                 size_t to); /* bytes */
struct jinja_value jn_sb_value(struct jinja_ctx *c, struct jn_sb *sb);
struct jinja_value jn_lit(struct jinja_ctx *c, const char *text); /* copies; template origin */
struct jinja_value jn_concat(struct jinja_ctx *c, const struct jinja_value *list, uint32_t count);
struct jinja_value jn_slice_bytes(struct jinja_ctx *c, const struct jinja_str *s, size_t from, size_t to);
uint32_t jn_origin_at(const struct jinja_str *s, size_t byte);
size_t jn_byte_of_char(const struct jinja_str *s, size_t char_idx);
size_t jn_char_of_byte(const struct jinja_str *s, size_t byte);
struct jinja_value jn_to_str(struct jinja_ctx *c, struct jinja_value v);    /* str(v): always JN_STR */
void jn_print(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v); /* appends str(v) */
void jn_repr(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v);
bool jn_str_is(struct jinja_value v, const char *text);
int jn_str_cmp(const struct jinja_str *a, const struct jinja_str *b);
struct jinja_value jn_escape(struct jinja_ctx *c,
                             struct jinja_value s); /* & < > ' " -> references; result is markup */
struct jinja_value jn_strip(struct jinja_ctx *c, const struct jinja_str *s, struct jinja_value chars,
                            int sides); /* 1 left, 2 right */
struct jinja_value jn_lower(struct jinja_ctx *c, const struct jinja_str *s);
struct jinja_value jn_upper(struct jinja_ctx *c, const struct jinja_str *s);
struct jinja_value jn_capitalize(struct jinja_ctx *c, const struct jinja_str *s);
struct jinja_value jn_replace(struct jinja_ctx *c, const struct jinja_str *s, const struct jinja_str *from,
                              const struct jinja_str *to, int64_t max);
struct jinja_value jn_splitlines(struct jinja_ctx *c, const struct jinja_str *s, bool keep_ends);
struct jinja_value jn_str_mod(struct jinja_ctx *c, const struct jinja_str *fmt,
                              struct jinja_value args); /* printf style */
struct jinja_value jn_str_format(struct jinja_ctx *c, const struct jinja_str *fmt,
                                 const struct jn_args *a); /* {} style */
/* Unicode (jinja/unicode.c) */
uint32_t jn_decode(const char *p, const char *end,
                   const char **next); /* one code point; an invalid byte is U+FFFD, one byte long */
size_t jn_count_chars(const char *p, size_t len);
bool jn_is_space(uint32_t cp);
bool jn_is_printable(uint32_t cp);
bool jn_is_ident(uint32_t cp, bool start);
bool jn_is_alpha(uint32_t cp);
bool jn_is_decimal(uint32_t cp);
bool jn_is_word(uint32_t cp);
bool jn_is_line_break(uint32_t cp);
int jn_case_of(uint32_t cp); /* 0 uncased, 1 lower, 2 upper, 3 title */
uint32_t jn_to_lower(uint32_t cp);
uint32_t jn_to_upper(uint32_t cp);
uint32_t jn_to_title(uint32_t cp);

/* values (jinja/value.c) */
struct jinja_value jn_new_list(struct jinja_ctx *c, enum jn_type type, uint32_t cap);
void jn_list_push(struct jinja_ctx *c, struct jinja_list *l, struct jinja_value v);
struct jinja_value jn_new_dict(struct jinja_ctx *c);
void jn_dict_put(struct jinja_ctx *c, struct jinja_dict *d, struct jinja_value key, struct jinja_value value);
bool jn_dict_find(struct jinja_ctx *c, const struct jinja_dict *d, struct jinja_value key,
                  struct jinja_value *out); /* unhashable: error */
bool jn_dict_find_str(const struct jinja_dict *d, const char *key, size_t len, struct jinja_value *out);
bool jn_hashable(struct jinja_ctx *c, struct jinja_value v);
/* Keyed at random: clients choose the keys of dicts, and must not find many with one hash. */
uint32_t jn_hash(const void *p, size_t len);
bool jn_truth(struct jinja_value v);
bool jn_equal(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b);
bool jn_compare(struct jinja_ctx *c, enum jn_op op, struct jinja_value a,
                struct jinja_value b); /* < <= > >= */
bool jn_contains(struct jinja_ctx *c, struct jinja_value container, struct jinja_value item);
struct jinja_value jn_binary(struct jinja_ctx *c, enum jn_op op, struct jinja_value a, struct jinja_value b);
bool jn_is_iterable(struct jinja_value v);
struct jinja_list *jn_items_of(struct jinja_ctx *c,
                               struct jinja_value v); /* iterates: a list that must not be modified */
bool jn_length(struct jinja_ctx *c, struct jinja_value v, int64_t *out); /* false: has no length */
struct jinja_value jn_undef(enum jn_undef kind, const struct jinja_str *name, uint32_t of_type);
struct jinja_value jn_undef_text(struct jinja_ctx *c, const char *text);
_Noreturn void jn_fail_undef(struct jinja_ctx *c, struct jinja_value undef);
const char *jn_type_name(struct jinja_value v);
/* Decimal digits, copied; -N too: JN_INT or JN_BIG. */
struct jinja_value jn_int_digits(struct jinja_ctx *c, const char *text, size_t len, uint32_t origin);
struct jinja_value jn_float_int(struct jinja_ctx *c, struct jinja_value v); /* without its fraction */
bool jn_as_int(struct jinja_value v, int64_t *out);                         /* ints and bools */
bool jn_as_num(struct jinja_value v, double *out); /* and floats, and ints beyond 64 bits */
struct jinja_value jn_char_at(struct jinja_ctx *c, const struct jinja_str *s, size_t byte);

/* Sorts `a` by `keys` (moved along). reverse keeps the order of equal elements, as Python does. */
void jn_sort_by(struct jinja_ctx *c, struct jinja_value *keys, struct jinja_value *a, uint32_t n,
                bool reverse);

/* attributes, items, calls (jinja/attr.c, jinja/methods.c, jinja/eval.c) */
struct jinja_value jn_getattr(struct jinja_ctx *c, struct jinja_value obj, struct jinja_value name);
struct jinja_value jn_getitem(struct jinja_ctx *c, struct jinja_value obj, struct jinja_value key);
struct jinja_value jn_attr_only(struct jinja_ctx *c, struct jinja_value obj,
                                struct jinja_value name); /* JN_MISSING if none */
struct jinja_value jn_getslice(struct jinja_ctx *c, struct jinja_value obj, struct jinja_value from,
                               struct jinja_value to, struct jinja_value step);
/* -1: none, and why. */
int32_t jn_find_method(struct jinja_value self, const struct jinja_str *name, enum jn_undef *why);
struct jinja_value jn_call_method(struct jinja_ctx *c, const struct jn_bound *m, const struct jn_args *a);
struct jinja_value jn_call_func(struct jinja_ctx *c, uint32_t func, const struct jn_args *a);
struct jinja_value jn_call(struct jinja_ctx *c, struct jinja_value callee, const struct jn_args *a);
void jn_define_globals(struct jinja_ctx *c);
/* Spreads arguments over named parameters: out[i] = JN_MISSING when absent. The first `required` must be
 * there. */
void jn_bind(struct jinja_ctx *c, const char *func, const struct jn_args *a, const char *const *names,
             uint32_t count, uint32_t required, struct jinja_value *out);
int64_t jn_want_int(struct jinja_ctx *c, const char *what, struct jinja_value v);
const struct jinja_str *jn_want_str(struct jinja_ctx *c, const char *what, struct jinja_value v);

/* filters and tests (jinja/filters.c, jinja/filters_seq.c): value | name(arguments), the arguments in the
 * order of `params`, JN_MISSING if not given; JN_RAW: as written, in `a`. */
#define JN_FILTER_ARGS 4
#define JN_RAW         UINT8_MAX
#define GIVEN(v_)      ((v_).type != JN_MISSING)
#define FILTER(name_)                                                                                        \
    static struct jinja_value name_(struct jinja_ctx *c __attribute__((unused)), struct jinja_value v,       \
                                    struct jinja_value *arg __attribute__((unused)),                         \
                                    const struct jn_args *a __attribute__((unused)))
#define VALUE(name_, value_)                                                                                 \
    FILTER(name_)                                                                                            \
    {                                                                                                        \
        return value_;                                                                                       \
    }
struct jn_filter {
    const char *name;
    struct jinja_value (*fn)(struct jinja_ctx *c, struct jinja_value v, struct jinja_value *arg,
                             const struct jn_args *a);
    uint8_t args, required;
    const char *params[JN_FILTER_ARGS];
};
int32_t jn_filter_index(const char *name, size_t len); /* -1 */
struct jinja_value jn_call_filter(struct jinja_ctx *c, int32_t func, struct jinja_value name,
                                  struct jinja_value v, const struct jn_args *a);
extern const struct jn_filter jn_text_filters[], jn_seq_filters[];
extern const uint32_t jn_text_filter_count, jn_seq_filter_count;
int32_t jn_test_index(const char *name, size_t len);
bool jn_call_test(struct jinja_ctx *c, int32_t func, struct jinja_value name, struct jinja_value v,
                  const struct jn_args *a);

/* evaluation (jinja/eval.c, jinja/exec.c) */
struct jinja_value jn_eval(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s);
struct jinja_value jn_apply_filters(struct jinja_ctx *c, const struct jn_node *n, struct jn_scope *s,
                                    struct jinja_value text);
void jn_eval_args(struct jinja_ctx *c, const struct jn_nodes *list, struct jn_scope *s, struct jn_args *out);
struct jinja_value jn_call_macro(struct jinja_ctx *c, const struct jn_macro *m, const struct jn_args *a);

/* JSON (jinja/json.c) */
struct jn_json_style {
    bool ascii, sort, pretty;
    struct jinja_value indent; /* string, when pretty */
    struct jinja_value item_sep, key_sep;
};
void jn_tojson(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v,
               const struct jn_json_style *style);
struct jinja_value jn_fromjson(struct jinja_ctx *c, const struct jinja_str *s);

#endif
