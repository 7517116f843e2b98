/* Values of the template interpreter: lists, dicts, truth, equality, order, membership, arithmetic. Python's
 * rules. */
#include "config/base/assert.h"
#include "server/jinja/internal.h"

#include <math.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- lists ---- */

struct jinja_value jn_new_list(struct jinja_ctx *c, enum jn_type type, uint32_t cap)
{
    ASSERT(type == JN_LIST || type == JN_TUPLE);
    struct jinja_list *l = jn_alloc(&c->base, sizeof *l);
    *l = (struct jinja_list){.v = cap ? jn_alloc_array(&c->base, cap, sizeof *l->v) : NULL, .cap = cap};
    return JN_V((uint8_t)type, l, l);
}

void jn_list_push(struct jinja_ctx *c, struct jinja_list *l, struct jinja_value v)
{
    JN_ROOM(&c->base, l->v, l->count, l->cap);
    l->v[l->count++] = v;
}

/* ---- dicts ---- */

bool jn_hashable(struct jinja_ctx *c, struct jinja_value v)
{
    if (v.type == JN_LIST || v.type == JN_DICT || v.type == JN_VIEW) return false;
    bool ok = true;
    if (v.type == JN_TUPLE) {
        jn_enter(c);
        for (uint32_t i = 0; i < v.u.l->count && ok; i++) ok = jn_hashable(c, v.u.l->v[i]);
        jn_leave(c);
    }
    return ok;
}

static unsigned char hash_key[crypto_shorthash_KEYBYTES];

static void hash_key_make(void)
{
    randombytes_buf(hash_key, sizeof hash_key);
}

uint32_t jn_hash(const void *p, size_t len)
{
    static pthread_once_t made = PTHREAD_ONCE_INIT;
    unsigned char out[crypto_shorthash_BYTES];
    uint32_t h;
    pthread_once(&made, hash_key_make);
    crypto_shorthash(out, p, len, hash_key);
    memcpy(&h, out, sizeof h);
    return h;
}

static uint32_t hash_int(int64_t i)
{
    return jn_hash(&i, sizeof i);
}

/* Equal keys must hash alike: 1, 1.0 and true are one key. Depth of tuples is checked by jn_hashable. */
static uint32_t hash_value(struct jinja_value v)
{
    uint32_t h = 0;
    switch (v.type) {
    case JN_STR: return jn_hash(v.u.s->p, v.u.s->len);
    case JN_BOOL:
    case JN_INT: return hash_int(v.u.i);
    case JN_FLOAT:
        if (v.u.f >= -9.2e18 && v.u.f <= 9.2e18 && v.u.f == floor(v.u.f)) return hash_int((int64_t)v.u.f);
        return hash_int(v.u.f * 4096.0 < 1e18 && v.u.f * 4096.0 > -1e18 ? (int64_t)(v.u.f * 4096.0) : 7);
    case JN_BIG: return hash_int(7); /* as the float that may equal it */
    case JN_TUPLE:
        for (uint32_t i = 0; i < v.u.l->count; i++) h = h * 31u + hash_value(v.u.l->v[i]);
        return h;
    default: return v.type;
    }
}

static bool same_key(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b)
{
    if (a.type != JN_STR && b.type != JN_STR) return jn_equal(c, a, b);
    return a.type == b.type && a.u.s->len == b.u.s->len && memcmp(a.u.s->p, b.u.s->p, a.u.s->len) == 0;
}

struct jinja_value jn_new_dict(struct jinja_ctx *c)
{
    struct jinja_dict *d = jn_alloc(&c->base, sizeof *d);
    *d = (struct jinja_dict){0};
    return JN_V(JN_DICT, d, d);
}

/* The key's entry, or UINT32_MAX. Many entries have an index. c: not used if the key is a string. */
static uint32_t dict_slot(struct jinja_ctx *c, const struct jinja_dict *d, struct jinja_value key)
{
    if (!d->index.cap) {
        for (uint32_t i = 0; i < d->count; i++)
            if (same_key(c, d->k[i], key)) return i;
        return UINT32_MAX;
    }
    uint32_t hash = hash_value(key), at = hash;
    for (uint32_t id; (id = id_table_next(&d->index, hash, &at));)
        if (same_key(c, d->k[id - 1], key)) return id - 1;
    return UINT32_MAX;
}

void jn_dict_put(struct jinja_ctx *c, struct jinja_dict *d, struct jinja_value key, struct jinja_value value)
{
    if (!jn_hashable(c, key)) jn_error(c, "unhashable type: '%s'", jn_type_name(key));
    uint32_t at = dict_slot(c, d, key);
    if (at != UINT32_MAX) {
        d->v[at] = value;
        return;
    }
    uint32_t cap = d->cap;
    JN_ROOM(&c->base, d->k, d->count, cap);
    JN_ROOM(&c->base, d->v, d->count, d->cap);
    d->k[d->count] = key;
    d->v[d->count++] = value;
    if (d->count <= 8) return;
    for (uint32_t i = d->index.cap ? d->count - 1 : 0; i < d->count; i++)
        jn_index_add(&c->base, &d->index, hash_value(d->k[i]), i + 1);
}

bool jn_dict_find(struct jinja_ctx *c, const struct jinja_dict *d, struct jinja_value key,
                  struct jinja_value *out)
{
    if (!jn_hashable(c, key)) jn_error(c, "unhashable type: '%s'", jn_type_name(key));
    uint32_t at = dict_slot(c, d, key);
    if (at == UINT32_MAX) return false;
    *out = d->v[at];
    return true;
}

bool jn_dict_find_str(const struct jinja_dict *d, const char *key, size_t len, struct jinja_value *out)
{
    struct jinja_str s = {.p = key, .len = (uint32_t)len};
    struct jinja_value k = JN_V(JN_STR, s, &s);
    uint32_t at = dict_slot(NULL, d, k);
    if (at != UINT32_MAX) *out = d->v[at];
    return at != UINT32_MAX;
}

/* ---- kinds ---- */

const char *jn_type_name(struct jinja_value v)
{
    static const char *const names[] = {"None",        "Undefined", "bool",     "int",
                                        "float",       "str",       "list",     "tuple",
                                        "dict",        "Namespace", "range",    "generator",
                                        "dict view",   "Macro",     "function", "builtin_function_or_method",
                                        "LoopContext", "Joiner",    "int",      "missing"};
    return v.type == JN_STR && v.u.s->markup ? "Markup" : names[v.type];
}

struct jinja_value jn_undef(enum jn_undef kind, const struct jinja_str *name, uint32_t of_type)
{
    return (struct jinja_value){.type = JN_UNDEF, .kind = (uint8_t)kind, .n = (uint8_t)of_type, .u.s = name};
}

struct jinja_value jn_undef_text(struct jinja_ctx *c, const char *text)
{
    return jn_undef(JN_U_TEXT, jn_lit(c, text).u.s, 0);
}

void jn_fail_undef(struct jinja_ctx *c, struct jinja_value v)
{
    ASSERT_CMP(v.type, ==, JN_UNDEF);
    const struct jinja_str *s = v.u.s;
    int len = s ? (s->len > 100 ? 100 : (int)s->len) : 0;
    const char *name = s ? s->p : "",
               *type = jn_type_name((struct jinja_value){.type = (uint8_t)(v.n == JN_STR ? JN_NONE : v.n)});
    if (v.n == JN_STR) type = "str";
    switch (v.kind) {
    case JN_U_NAME: jn_error(c, "'%.*s' is undefined", len, name);
    case JN_U_ATTR:
        jn_error(c, v.n == JN_NONE ? "'%s' has no attribute '%.*s'" : "'%s object' has no attribute '%.*s'",
                 type, len, name);
    case JN_U_ITEM: jn_error(c, "%s object has no element %.*s", type, len, name);
    case JN_U_UNSAFE: jn_error(c, "access to attribute '%.*s' of '%s' object is unsafe", len, name, type);
    default: jn_error(c, "%.*s", len, len ? name : "value is undefined");
    }
}

bool jn_as_int(struct jinja_value v, int64_t *out)
{
    if (v.type != JN_INT && v.type != JN_BOOL) return false;
    *out = v.u.i;
    return true;
}

bool jn_as_num(struct jinja_value v, double *out)
{
    if (v.type == JN_FLOAT) *out = v.u.f;
    else if (v.type == JN_INT || v.type == JN_BOOL) *out = (double)v.u.i;
    else if (v.type == JN_BIG) *out = strtod(v.u.s->p, NULL);
    else return false;
    return true;
}

bool jn_truth(struct jinja_value v)
{
    switch (v.type) {
    case JN_NONE:
    case JN_UNDEF:
    case JN_MISSING: return false;
    case JN_BOOL:
    case JN_INT: return v.u.i != 0;
    case JN_FLOAT: return v.u.f != 0.0;
    case JN_STR: return v.u.s->len != 0;
    case JN_LIST:
    case JN_TUPLE: return v.u.l->count != 0;
    case JN_DICT:
    case JN_VIEW: return v.u.d->count != 0;
    case JN_RANGE: return ((const struct jn_range *)v.u.p)->count != 0;
    case JN_LOOP: return ((const struct jn_loop *)v.u.p)->items->count != 0;
    default: return true;
    }
}

bool jn_length(struct jinja_ctx *c, struct jinja_value v, int64_t *out)
{
    (void)c;
    switch (v.type) {
    case JN_UNDEF: *out = 0; return true;
    case JN_STR: *out = v.u.s->chars; return true;
    case JN_LIST:
    case JN_TUPLE: *out = v.u.l->count; return true;
    case JN_DICT:
    case JN_VIEW: *out = v.u.d->count; return true;
    case JN_RANGE: *out = ((const struct jn_range *)v.u.p)->count; return true;
    case JN_LOOP: *out = ((const struct jn_loop *)v.u.p)->items->count; return true;
    default: return false;
    }
}

bool jn_is_iterable(struct jinja_value v)
{
    return v.type == JN_UNDEF || v.type == JN_STR || v.type == JN_LIST || v.type == JN_TUPLE ||
           v.type == JN_DICT || v.type == JN_RANGE || v.type == JN_ITER || v.type == JN_VIEW ||
           v.type == JN_LOOP;
}

static struct jinja_value pair(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b,
                               uint32_t origin)
{
    struct jinja_value t = jn_new_list(c, JN_TUPLE, 2);
    jn_list_push(c, t.u.l, a);
    jn_list_push(c, t.u.l, b);
    t.origin = origin;
    return t;
}

/* The elements as a list. For lists and tuples it is the list itself; a generator yields its remaining
 * elements and is then empty. */
struct jinja_list *jn_items_of(struct jinja_ctx *c, struct jinja_value v)
{
    if (v.type == JN_LIST || v.type == JN_TUPLE) return v.u.l;
    struct jinja_value out = jn_new_list(c, JN_LIST, 0);
    switch (v.type) {
    case JN_UNDEF: break;
    case JN_STR:
        for (size_t at = 0; at < v.u.s->len;) {
            struct jinja_value ch = jn_char_at(c, v.u.s, at);
            at += ch.u.s->len;
            jn_list_push(c, out.u.l, ch);
        }
        break;
    case JN_DICT:
    case JN_VIEW: {
        bool keys = v.type == JN_DICT || v.kind == JN_V_KEYS;
        for (uint32_t i = 0; i < v.u.d->count; i++)
            jn_list_push(c, out.u.l,
                         keys                    ? v.u.d->k[i]
                         : v.kind == JN_V_VALUES ? v.u.d->v[i]
                                                 : pair(c, v.u.d->k[i], v.u.d->v[i], v.origin));
        break;
    }
    case JN_RANGE: {
        const struct jn_range *r = v.u.p;
        for (uint32_t i = 0; i < r->count; i++)
            jn_list_push(c, out.u.l, JN_V(JN_INT, i, r->start + r->step * (int64_t)i));
        break;
    }
    case JN_ITER:
        if (v.u.l->v) /* an empty one has no array */
            *out.u.l = (struct jinja_list){.v = v.u.l->v + v.u.l->pos,
                                           .count = v.u.l->count - v.u.l->pos,
                                           .cap = v.u.l->count - v.u.l->pos};
        v.u.l->pos = v.u.l->count;
        break;
    default: jn_error(c, "'%s' object is not iterable", jn_type_name(v));
    }
    jn_charge(c, (size_t)out.u.l->count * 16);
    return out.u.l;
}

/* ---- integers beyond 64 bits: kept as written digits. They print and compare as in Python; arithmetic on
 * them is an error. ---- */

struct jinja_value jn_int_digits(struct jinja_ctx *c, const char *text, size_t len, uint32_t origin)
{
    bool minus = len && *text == '-';
    size_t at = minus;
    int64_t v = 0;
    while (at + 1 < len && text[at] == '0') at++;
    size_t first = at;
    while (at < len && !__builtin_mul_overflow(v, 10, &v) && !__builtin_sub_overflow(v, text[at] - '0', &v))
        at++;
    if (at == len && (minus || v != INT64_MIN))
        return jinja_with_origin(JN_V(JN_INT, i, minus ? v : -v), origin);
    size_t n = len - first + minus;
    if (n >= UINT32_MAX / 2)
        jn_fail(&c->base, JINJA_LIMIT, "a number has more than a thousand million digits");
    char *p = jn_alloc(&c->base, n + 1);
    if (minus) *p = '-';
    memcpy(p + minus, text + first, len - first);
    p[n] = '\0';
    struct jinja_str *s = jn_alloc(&c->base, sizeof *s);
    *s = (struct jinja_str){.p = p, .len = (uint32_t)n, .chars = (uint32_t)n, .origin = origin};
    return jinja_with_origin(JN_V(JN_BIG, s, s), origin);
}

static int compare_digits(const char *a, size_t na, const char *b, size_t nb)
{
    bool minus = *a == '-';
    if (minus != (*b == '-')) return minus ? -1 : 1;
    int d = na != nb ? (na > nb) - (na < nb) : memcmp(a, b, na);
    return minus ? -d : d;
}

static int big_compare(struct jinja_value big, struct jinja_value other)
{
    ASSERT_CMP(big.type, ==, JN_BIG);
    const struct jinja_str *s = big.u.s;
    char text[400]; /* a double has up to 309 digits */
    int sign = *s->p == '-' ? -1 : 1;
    if (other.type == JN_BIG) return compare_digits(s->p, s->len, other.u.s->p, other.u.s->len);
    if (other.type != JN_FLOAT || fabs(other.u.f) < 0x1p63) return sign;
    if (isinf(other.u.f)) return other.u.f < 0 ? 1 : -1;
    int n = snprintf(text, sizeof text, "%.0f", other.u.f);
    return compare_digits(s->p, s->len, text, (size_t)n);
}

struct jinja_value jn_float_int(struct jinja_ctx *c, struct jinja_value v)
{
    if (!isfinite(v.u.f)) jn_error(c, "cannot convert float to integer");
    if (fabs(v.u.f) >= 0x1p63) jn_error(c, "integer overflow");
    return jinja_with_origin(JN_V(JN_INT, i, (int64_t)v.u.f), v.origin);
}

/* ---- equality and order ---- */

static bool equal_lists(struct jinja_ctx *c, const struct jinja_list *a, const struct jinja_list *b)
{
    if (a->count != b->count) return false;
    for (uint32_t i = 0; i < a->count; i++)
        if (!jn_equal(c, a->v[i], b->v[i])) return false;
    return true;
}

static bool equal_dicts(struct jinja_ctx *c, const struct jinja_dict *a, const struct jinja_dict *b)
{
    struct jinja_value other;
    if (a->count != b->count) return false;
    for (uint32_t i = 0; i < a->count; i++)
        if (!jn_dict_find(c, b, a->k[i], &other) || !jn_equal(c, a->v[i], other)) return false;
    return true;
}

static bool int_equals_float(int64_t i, double f)
{
    return f >= -9223372036854775808.0 && f < 9223372036854775808.0 && f == floor(f) && (int64_t)f == i;
}

bool jn_equal(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b)
{
    int64_t ia = 0, ib = 0;
    bool na = jn_as_int(a, &ia), nb = jn_as_int(b, &ib), same;
    if (na && nb) return ia == ib;
    if (na && b.type == JN_FLOAT) return int_equals_float(ia, b.u.f);
    if (nb && a.type == JN_FLOAT) return int_equals_float(ib, a.u.f);
    if (a.type == JN_BIG && (b.type == JN_BIG || (b.type == JN_FLOAT && !isnan(b.u.f))))
        return big_compare(a, b) == 0;
    if (b.type == JN_BIG && a.type == JN_FLOAT && !isnan(a.u.f)) return big_compare(b, a) == 0;
    if (a.type != b.type) return false;
    jn_enter(c);
    switch (a.type) {
    case JN_FLOAT: same = a.u.f == b.u.f; break;
    case JN_STR: same = a.u.s->len == b.u.s->len && memcmp(a.u.s->p, b.u.s->p, a.u.s->len) == 0; break;
    case JN_LIST:
    case JN_TUPLE: same = equal_lists(c, a.u.l, b.u.l); break;
    case JN_DICT: same = equal_dicts(c, a.u.d, b.u.d); break;
    case JN_RANGE: same = equal_lists(c, jn_items_of(c, a), jn_items_of(c, b)); break;
    case JN_NONE:
    case JN_UNDEF: same = true; break;
    case JN_FUNC: same = a.kind == b.kind; break;
    case JN_VIEW: same = a.kind == b.kind && a.u.d == b.u.d; break;
    default: same = a.u.p == b.u.p; break;
    }
    jn_leave(c);
    return same;
}

static bool by_sign(enum jn_op op, int d)
{
    return op == OP_LT ? d < 0 : op == OP_LE ? d <= 0 : op == OP_GT ? d > 0 : d >= 0;
}

static bool compare_lists(struct jinja_ctx *c, enum jn_op op, const struct jinja_list *a,
                          const struct jinja_list *b)
{
    for (uint32_t i = 0; i < a->count && i < b->count; i++)
        if (!jn_equal(c, a->v[i], b->v[i])) return jn_compare(c, op, a->v[i], b->v[i]);
    return by_sign(op, (a->count > b->count) - (a->count < b->count));
}

bool jn_compare(struct jinja_ctx *c, enum jn_op op, struct jinja_value a, struct jinja_value b)
{
    static const char *const signs[] = {"<", "<=", ">", ">="};
    ASSERT(op >= OP_LT && op <= OP_GE);
    int64_t ia = 0, ib = 0;
    double fa = 0, fb = 0;
    if (a.type == JN_UNDEF) jn_fail_undef(c, a);
    if (b.type == JN_UNDEF) jn_fail_undef(c, b);
    if (jn_as_int(a, &ia) && jn_as_int(b, &ib)) return by_sign(op, (ia > ib) - (ia < ib));
    if (jn_as_num(a, &fa) && jn_as_num(b, &fb) && (a.type == JN_BIG || b.type == JN_BIG) && !isnan(fa) &&
        !isnan(fb))
        return by_sign(op, a.type == JN_BIG ? big_compare(a, b) : -big_compare(b, a));
    if (jn_as_num(a, &fa) && jn_as_num(b, &fb))
        return op == OP_LT ? fa < fb : op == OP_LE ? fa <= fb : op == OP_GT ? fa > fb : fa >= fb;
    if (a.type == JN_STR && b.type == JN_STR) return by_sign(op, jn_str_cmp(a.u.s, b.u.s));
    if (a.type == b.type && (a.type == JN_LIST || a.type == JN_TUPLE)) {
        jn_enter(c);
        bool r = compare_lists(c, op, a.u.l, b.u.l);
        jn_leave(c);
        return r;
    }
    jn_error(c, "'%s' not supported between instances of '%s' and '%s'", signs[op - OP_LT], jn_type_name(a),
             jn_type_name(b));
}

bool jn_contains(struct jinja_ctx *c, struct jinja_value box, struct jinja_value item)
{
    struct jinja_value ignored;
    if (box.type == JN_STR) {
        if (item.type != JN_STR)
            jn_error(c, "'in <string>' requires string as left operand, not %s", jn_type_name(item));
        jn_charge(c, box.u.s->len);
        return !item.u.s->len || memmem(box.u.s->p, box.u.s->len, item.u.s->p, item.u.s->len) != NULL;
    }
    if (box.type == JN_DICT || (box.type == JN_VIEW && box.kind == JN_V_KEYS))
        return jn_dict_find(c, box.u.d, item, &ignored);
    if (box.type == JN_NS || !jn_is_iterable(box))
        jn_error(c, "argument of type '%s' is not iterable", jn_type_name(box));
    const struct jinja_list *l = jn_items_of(c, box);
    for (uint32_t i = 0; i < l->count; i++)
        if (jn_equal(c, l->v[i], item)) return true;
    return false;
}

/* ---- arithmetic ---- */

static _Noreturn void bad_operands(struct jinja_ctx *c, enum jn_op op, struct jinja_value a,
                                   struct jinja_value b)
{
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%"};
    ASSERT(op <= OP_MOD);
    jn_error(c, "unsupported operand type(s) for %s: '%s' and '%s'", signs[op], jn_type_name(a),
             jn_type_name(b));
}

static struct jinja_value int_op(struct jinja_ctx *c, enum jn_op op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &r); break;
    case OP_SUB: over = __builtin_sub_overflow(a, b, &r); break;
    case OP_MUL: over = __builtin_mul_overflow(a, b, &r); break;
    case OP_DIV:
        if (!b) jn_error(c, "division by zero");
        return JN_V(JN_FLOAT, f, (double)a / (double)b);
    case OP_FLOORDIV:
    case OP_MOD:
        if (!b) jn_error(c, "integer division or modulo by zero");
        if (b == -1) { /* INT64_MIN / -1 traps */
            over = op == OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &r);
            break;
        }
        r = op == OP_MOD ? a % b : a / b;
        if (a % b && (a < 0) != (b < 0)) r += op == OP_MOD ? b : -1;
        break;
    default: UNREACHABLE();
    }
    if (over) jn_error(c, "integer overflow");
    return JN_V(JN_INT, i, r);
}

static struct jinja_value float_op(struct jinja_ctx *c, enum jn_op op, double a, double b)
{
    double r;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0.0)
        jn_error(c, "float division by zero");
    switch (op) {
    case OP_ADD: r = a + b; break;
    case OP_SUB: r = a - b; break;
    case OP_MUL: r = a * b; break;
    case OP_DIV: r = a / b; break;
    default: { /* OP_FLOORDIV, OP_MOD */
        double m = fmod(a, b), d = (a - m) / b;
        if (m != 0.0 && (b < 0) != (m < 0)) {
            m += b;
            d -= 1.0;
        } else if (m == 0.0) {
            m = copysign(0.0, b);
        }
        r = op == OP_MOD ? m : d != 0.0 ? nearbyint(d) : copysign(0.0, a / b);
    }
    }
    return JN_V(JN_FLOAT, f, r);
}

static struct jinja_value add_strings(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b)
{
    bool markup = a.u.s->markup || b.u.s->markup; /* markup + text escapes the text: MarkupSafe */
    if (markup) {
        a = jn_escape(c, a);
        b = jn_escape(c, b);
    }
    struct jn_sb sb = jn_sb_new(c);
    jn_sb_str(c, &sb, a.u.s);
    jn_sb_str(c, &sb, b.u.s);
    struct jinja_value v = jn_sb_value(c, &sb);
    if (markup) {
        struct jinja_str *s = jn_alloc(&c->base, sizeof *s);
        *s = *v.u.s;
        s->markup = 1;
        v.u.s = s;
    }
    return v;
}

static struct jinja_value repeat(struct jinja_ctx *c, struct jinja_value v, int64_t times)
{
    if (times < 0) times = 0;
    if (v.type == JN_STR) {
        struct jn_sb sb = jn_sb_new(c);
        if (v.u.s->len && (uint64_t)times > c->base.limits.output_bytes_max / v.u.s->len)
            jn_fail(&c->base, JINJA_LIMIT, "a repeated string is longer than %zu bytes",
                    c->base.limits.output_bytes_max);
        for (int64_t i = 0; i < times && v.u.s->len; i++) jn_sb_str(c, &sb, v.u.s);
        return jn_sb_value(c, &sb);
    }
    struct jinja_value out = jn_new_list(c, v.type, 0);
    out.origin = v.origin;
    for (int64_t i = 0; i < times && v.u.l->count; i++) {
        jn_charge(c, (size_t)v.u.l->count * 16);
        for (uint32_t k = 0; k < v.u.l->count; k++) jn_list_push(c, out.u.l, v.u.l->v[k]);
    }
    return out;
}

struct jinja_value jn_binary(struct jinja_ctx *c, enum jn_op op, struct jinja_value a, struct jinja_value b)
{
    int64_t ia = 0, ib = 0;
    double fa = 0, fb = 0;
    if (a.type == JN_UNDEF) jn_fail_undef(c, a);
    if (op == OP_MOD && a.type == JN_STR) return jn_str_mod(c, a.u.s, b);
    if (b.type == JN_UNDEF) jn_fail_undef(c, b);
    if (jn_as_int(a, &ia) && jn_as_int(b, &ib)) return int_op(c, op, ia, ib);
    if ((a.type == JN_BIG || b.type == JN_BIG) && a.type != JN_STR && b.type != JN_STR)
        jn_error(c, "arithmetic on an integer of more than 64 bits");
    if (jn_as_num(a, &fa) && jn_as_num(b, &fb)) return float_op(c, op, fa, fb);
    bool seq_a = a.type == JN_STR || a.type == JN_LIST || a.type == JN_TUPLE,
         seq_b = b.type == JN_STR || b.type == JN_LIST || b.type == JN_TUPLE;
    if (op == OP_ADD && a.type == JN_STR && b.type == JN_STR) return add_strings(c, a, b);
    if (op == OP_ADD && a.type == b.type && seq_a) {
        struct jinja_value out = jn_new_list(c, a.type, a.u.l->count + b.u.l->count);
        out.origin = (a.origin & 3) > (b.origin & 3) ? a.origin : b.origin;
        jn_charge(c, ((size_t)a.u.l->count + b.u.l->count) * 16);
        for (uint32_t i = 0; i < a.u.l->count; i++) jn_list_push(c, out.u.l, a.u.l->v[i]);
        for (uint32_t i = 0; i < b.u.l->count; i++) jn_list_push(c, out.u.l, b.u.l->v[i]);
        return out;
    }
    if (op == OP_MUL && seq_a && jn_as_int(b, &ib)) return repeat(c, a, ib);
    if (op == OP_MUL && seq_b && jn_as_int(a, &ia)) return repeat(c, b, ia);
    bad_operands(c, op, a, b);
}
