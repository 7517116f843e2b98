/* Methods of strings and dicts (one table says which types have which; Python's semantics), and the global
 * functions. */
#include "config/base/assert.h"
#include "config/base/utf8.h"
#include "server/jinja/internal.h"

#include <ctype.h>
#include <stdio.h>
#include <time.h>

#define ON(t_)  (1u << (t_))
#define ARG_MAX 4

/* METHOD, "name", types that have it, how many arguments it takes and needs, their names: relevant only where
 * Python allows keywords; positional-only ones have names that no template can write. */
#define METHODS(M)                                                                                           \
    M(CAPITALIZE, "capitalize", ON(JN_STR), 0, 0, 0)                                                         \
    M(ENDSWITH, "endswith", ON(JN_STR), 1, 1, "-")                                                           \
    M(FIND, "find", ON(JN_STR), 1, 1, "-")                                                                   \
    M(FORMAT, "format", ON(JN_STR), 0, 0, 0)                                                                 \
    M(ISALNUM, "isalnum", ON(JN_STR), 0, 0, 0)                                                               \
    M(ISALPHA, "isalpha", ON(JN_STR), 0, 0, 0)                                                               \
    M(ISASCII, "isascii", ON(JN_STR), 0, 0, 0)                                                               \
    M(ISDECIMAL, "isdecimal", ON(JN_STR), 0, 0, 0)                                                           \
    M(ISDIGIT, "isdigit", ON(JN_STR), 0, 0, 0)                                                               \
    M(ISSPACE, "isspace", ON(JN_STR), 0, 0, 0)                                                               \
    M(JOIN, "join", ON(JN_STR), 1, 1, "-")                                                                   \
    M(LOWER, "lower", ON(JN_STR), 0, 0, 0)                                                                   \
    M(LSTRIP, "lstrip", ON(JN_STR), 1, 0, "-")                                                               \
    M(PARTITION, "partition", ON(JN_STR), 1, 1, "-")                                                         \
    M(REMOVEPREFIX, "removeprefix", ON(JN_STR), 1, 1, "-")                                                   \
    M(REMOVESUFFIX, "removesuffix", ON(JN_STR), 1, 1, "-")                                                   \
    M(REPLACE, "replace", ON(JN_STR), 3, 2, "-", "-", "-")                                                   \
    M(RFIND, "rfind", ON(JN_STR), 1, 1, "-")                                                                 \
    M(RPARTITION, "rpartition", ON(JN_STR), 1, 1, "-")                                                       \
    M(RSPLIT, "rsplit", ON(JN_STR), 2, 0, "sep", "maxsplit")                                                 \
    M(RSTRIP, "rstrip", ON(JN_STR), 1, 0, "-")                                                               \
    M(SPLIT, "split", ON(JN_STR), 2, 0, "sep", "maxsplit")                                                   \
    M(SPLITLINES, "splitlines", ON(JN_STR), 1, 0, "keepends")                                                \
    M(STARTSWITH, "startswith", ON(JN_STR), 1, 1, "-")                                                       \
    M(STRIP, "strip", ON(JN_STR), 1, 0, "-")                                                                 \
    M(TITLE, "title", ON(JN_STR), 0, 0, 0)                                                                   \
    M(UPPER, "upper", ON(JN_STR), 0, 0, 0)                                                                   \
    M(GET, "get", ON(JN_DICT), 2, 1, "-", "-")                                                               \
    M(ITEMS, "items", ON(JN_DICT), 0, 0, 0)                                                                  \
    M(KEYS, "keys", ON(JN_DICT), 0, 0, 0)                                                                    \
    M(VALUES, "values", ON(JN_DICT), 0, 0, 0)
#define M(id, ...) M_##id,
enum method_id { METHODS(M) };
#undef M
#define M(id, name, types, max, required, ...) {name, types, max, required, {__VA_ARGS__}},
static const struct method {
    const char *name;
    uint32_t types;
    uint32_t args_max, required;
    const char *params[ARG_MAX];
} methods[] = {METHODS(M)};
#undef M

static bool name_is(const struct jinja_str *s, const char *name)
{
    return s->len == strlen(name) && memcmp(s->p, name, s->len) == 0;
}

/* Of Python's methods: what the reference's sandbox forbids, and what no template is known to use. */
static const struct {
    uint32_t types;
    enum jn_undef kind;
    const char *names;
} absent[] = {
    {ON(JN_LIST), JN_U_UNSAFE, " append clear pop reverse insert sort extend remove "},
    {ON(JN_DICT), JN_U_UNSAFE, " clear pop popitem setdefault update fromkeys "},
    {ON(JN_LIST) | ON(JN_TUPLE) | ON(JN_RANGE), JN_U_ABSENT, " count index copy "},
    {ON(JN_DICT), JN_U_ABSENT, " copy "},
    {ON(JN_LOOP), JN_U_ABSENT, " cycle changed "},
    {ON(JN_STR), JN_U_ABSENT,
     " casefold center count encode expandtabs format_map index isidentifier islower isnumeric isprintable "
     "istitle isupper ljust maketrans rindex rjust swapcase translate zfill "},
};

int32_t jn_find_method(struct jinja_value self, const struct jinja_str *name, enum jn_undef *why)
{
    char word[32];
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if ((methods[i].types & ON(self.type)) && name_is(name, methods[i].name)) return (int32_t)i;
    *why = JN_U_ATTR;
    snprintf(word, sizeof word, " %.*s ", (int)(name->len < 28 ? name->len : 0), name->p);
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if ((absent[i].types & ON(self.type)) && strstr(absent[i].names, word)) *why = absent[i].kind;
    return -1;
}

/* ---- strings: searching ---- */

static const char *last_hit(struct jinja_ctx *c, const char *p, size_t len, const struct jinja_str *sub)
{
    if (sub->len > len) return NULL;
    for (const char *q = p + (len - sub->len);; q--) {
        if (!sub->len) return q;
        if (*q == *sub->p) {
            jn_charge(c, sub->len);
            if (memcmp(q, sub->p, sub->len) == 0) return q;
        }
        if (q == p) return NULL;
    }
}

static struct jinja_value find(struct jinja_ctx *c, const struct jinja_str *s, struct jinja_value what,
                               bool last)
{
    const struct jinja_str *sub = jn_want_str(c, "find", what);
    jn_charge(c, s->len);
    const char *hit = last ? last_hit(c, s->p, s->len, sub) : memmem(s->p, s->len, sub->p, sub->len);
    return JN_V(JN_INT, i, hit ? (int64_t)jn_char_of_byte(s, (size_t)(hit - s->p)) : -1);
}

static bool has_affix(const struct jinja_str *s, const struct jinja_str *affix, bool end)
{
    return affix->len <= s->len && memcmp(s->p + (end ? s->len - affix->len : 0), affix->p, affix->len) == 0;
}

static struct jinja_value starts_ends(struct jinja_ctx *c, const struct jinja_str *s, struct jinja_value what,
                                      bool end)
{
    bool many = what.type == JN_TUPLE, hit = false;
    for (uint32_t i = 0; i < (many ? what.u.l->count : 1) && !hit; i++)
        hit = has_affix(s, jn_want_str(c, "affix", many ? what.u.l->v[i] : what), end);
    return JN_V(JN_BOOL, i, hit);
}

/* ---- strings: splitting ---- */

static void split_space(struct jinja_ctx *c, const struct jinja_str *s, int64_t max, struct jinja_list *out)
{
    const char *p = s->p, *end = s->p + s->len, *next;
    for (;;) {
        while (p < end && jn_is_space(jn_decode(p, end, &next))) p = next;
        if (p >= end) return;
        const char *q = p;
        if (max-- <= 0) { /* the rest, with the white space at its end */
            jn_list_push(c, out, jn_slice_bytes(c, s, (size_t)(p - s->p), s->len));
            return;
        }
        while (q < end && !jn_is_space(jn_decode(q, end, &next))) q = next;
        jn_list_push(c, out, jn_slice_bytes(c, s, (size_t)(p - s->p), (size_t)(q - s->p)));
        p = q;
    }
}

static void split_sep(struct jinja_ctx *c, const struct jinja_str *s, const struct jinja_str *sep,
                      int64_t max, struct jinja_list *out)
{
    size_t from = 0;
    while (max-- > 0) {
        const char *hit = memmem(s->p + from, s->len - from, sep->p, sep->len);
        if (!hit) break;
        jn_list_push(c, out, jn_slice_bytes(c, s, from, (size_t)(hit - s->p)));
        from = (size_t)(hit - s->p) + sep->len;
        jn_charge(c, 64);
    }
    jn_list_push(c, out, jn_slice_bytes(c, s, from, s->len));
}

static void rsplit_sep(struct jinja_ctx *c, const struct jinja_str *s, const struct jinja_str *sep,
                       int64_t max, struct jinja_list *out)
{
    struct jinja_list back = {0};
    size_t to = s->len;
    while (max-- > 0) {
        const char *hit = last_hit(c, s->p, to, sep);
        if (!hit) break;
        jn_list_push(c, &back, jn_slice_bytes(c, s, (size_t)(hit - s->p) + sep->len, to));
        to = (size_t)(hit - s->p);
        jn_charge(c, 64);
    }
    jn_list_push(c, out, jn_slice_bytes(c, s, 0, to));
    for (uint32_t i = back.count; i > 0; i--) jn_list_push(c, out, back.v[i - 1]);
}

static struct jinja_value split(struct jinja_ctx *c, const struct jinja_str *s, const struct jinja_value *arg,
                                bool right)
{
    struct jinja_value out = jn_new_list(c, JN_LIST, 4);
    int64_t max = arg[1].type == JN_MISSING ? -1 : jn_want_int(c, "maxsplit", arg[1]);
    if (max < 0) max = INT64_MAX;
    jn_charge(c, s->len);
    if (arg[0].type == JN_MISSING || arg[0].type == JN_NONE) {
        if (right) jn_error(c, "rsplit() without a separator is not supported");
        split_space(c, s, max, out.u.l);
        return out;
    }
    const struct jinja_str *sep = jn_want_str(c, "separator", arg[0]);
    if (!sep->len) jn_error(c, "empty separator");
    if (right) rsplit_sep(c, s, sep, max, out.u.l);
    else split_sep(c, s, sep, max, out.u.l);
    return out;
}

static struct jinja_value partition(struct jinja_ctx *c, const struct jinja_str *s, struct jinja_value by,
                                    bool right)
{
    const struct jinja_str *sep = jn_want_str(c, "partition", by);
    struct jinja_value out = jn_new_list(c, JN_TUPLE, 3);
    if (!sep->len) jn_error(c, "empty separator");
    const char *hit = right ? last_hit(c, s->p, s->len, sep) : memmem(s->p, s->len, sep->p, sep->len);
    size_t at = hit ? (size_t)(hit - s->p) : right ? 0 : s->len, after = hit ? at + sep->len : at;
    jn_list_push(c, out.u.l, jn_slice_bytes(c, s, 0, at));
    jn_list_push(c, out.u.l, jn_slice_bytes(c, s, at, after));
    jn_list_push(c, out.u.l, jn_slice_bytes(c, s, after, s->len));
    return out;
}

static struct jinja_value join(struct jinja_ctx *c, const struct jinja_str *sep, struct jinja_value items)
{
    const struct jinja_list *l = jn_items_of(c, items);
    struct jn_sb sb = jn_sb_new(c);
    for (uint32_t i = 0; i < l->count; i++) {
        if (i) jn_sb_str(c, &sb, sep);
        jn_sb_str(c, &sb, jn_want_str(c, "sequence item", l->v[i]));
    }
    return jn_sb_value(c, &sb);
}

/* ---- strings: mapping, classes ---- */

static struct jinja_value title(struct jinja_ctx *c, const struct jinja_str *s)
{
    struct jn_sb sb = jn_sb_new(c);
    const char *end = s->p + s->len, *next;
    bool inside = false;
    for (const char *p = s->p; p < end; p = next) {
        uint32_t cp = jn_decode(p, end, &next);
        char out[4];
        size_t n = utf8_encode(inside ? jn_to_lower(cp) : jn_to_title(cp), out);
        inside = jn_case_of(cp) != 0;
        jn_sb_bytes(c, &sb, out, n, jn_origin_at(s, (size_t)(p - s->p)));
    }
    return jn_sb_value(c, &sb);
}

static bool all_chars(const struct jinja_str *s, int32_t method)
{
    const char *end = s->p + s->len;
    if (!s->len) return method == M_ISASCII;
    for (const char *p = s->p; p < end;) {
        uint32_t cp = jn_decode(p, end, &p);
        bool ok = method == M_ISALPHA   ? jn_is_alpha(cp)
                  : method == M_ISALNUM ? cp != '_' && jn_is_word(cp)
                  : method == M_ISSPACE ? jn_is_space(cp)
                  : method == M_ISASCII ? cp < 0x80
                                        : jn_is_decimal(cp);
        if (!ok) return false;
    }
    return true;
}

static struct jinja_value remove_affix(struct jinja_ctx *c, const struct jinja_str *s, struct jinja_value v,
                                       bool end)
{
    const struct jinja_str *affix = jn_want_str(c, "affix", v);
    if (!has_affix(s, affix, end)) return jn_slice_bytes(c, s, 0, s->len);
    return end ? jn_slice_bytes(c, s, 0, s->len - affix->len) : jn_slice_bytes(c, s, affix->len, s->len);
}

static struct jinja_value call_string(struct jinja_ctx *c, const struct jinja_str *s, int32_t method,
                                      const struct jinja_value *arg)
{
    switch (method) {
    case M_CAPITALIZE: return jn_capitalize(c, s);
    case M_LOWER: return jn_lower(c, s);
    case M_UPPER: return jn_upper(c, s);
    case M_TITLE: return title(c, s);
    case M_STARTSWITH:
    case M_ENDSWITH: return starts_ends(c, s, arg[0], method == M_ENDSWITH);
    case M_FIND:
    case M_RFIND: return find(c, s, arg[0], method == M_RFIND);
    case M_JOIN: return join(c, s, arg[0]);
    case M_STRIP:
    case M_LSTRIP:
    case M_RSTRIP: return jn_strip(c, s, arg[0], method == M_STRIP ? 3 : method == M_LSTRIP ? 1 : 2);
    case M_PARTITION:
    case M_RPARTITION: return partition(c, s, arg[0], method == M_RPARTITION);
    case M_REMOVEPREFIX:
    case M_REMOVESUFFIX: return remove_affix(c, s, arg[0], method == M_REMOVESUFFIX);
    case M_REPLACE:
        return jn_replace(c, s, jn_want_str(c, "replace", arg[0]), jn_want_str(c, "replace", arg[1]),
                          arg[2].type == JN_MISSING ? -1 : jn_want_int(c, "count", arg[2]));
    case M_SPLIT:
    case M_RSPLIT: return split(c, s, arg, method == M_RSPLIT);
    case M_SPLITLINES: return jn_splitlines(c, s, arg[0].type != JN_MISSING && jn_truth(arg[0]));
    default: jn_charge(c, s->len); return JN_V(JN_BOOL, i, all_chars(s, method));
    }
}

static struct jinja_value call_dict(struct jinja_ctx *c, struct jinja_value self, int32_t method,
                                    const struct jinja_value *arg)
{
    struct jinja_value out;
    if (method == M_GET) {
        if (jn_dict_find(c, self.u.d, arg[0], &out)) return out;
        return arg[1].type == JN_MISSING ? JN_V(JN_NONE, i, 0) : arg[1];
    }
    out = JN_V(JN_VIEW, d, self.u.d);
    out.kind = method == M_ITEMS ? JN_V_ITEMS : method == M_KEYS ? JN_V_KEYS : JN_V_VALUES;
    out.origin = self.origin;
    return out;
}

struct jinja_value jn_call_method(struct jinja_ctx *c, const struct jn_bound *m, const struct jn_args *a)
{
    const struct method *d = &methods[m->method];
    struct jinja_value arg[ARG_MAX];
    ASSERT(d->types & ON(m->self.type));
    if (m->method == M_FORMAT) return jn_str_format(c, m->self.u.s, a);
    jn_bind(c, d->name, a, d->params, d->args_max, d->required, arg);
    for (uint32_t i = d->args_max; i < ARG_MAX; i++) arg[i] = JN_V(JN_MISSING, i, 0);
    if (m->self.type == JN_STR) return call_string(c, m->self.u.s, m->method, arg);
    return call_dict(c, m->self, m->method, arg);
}

/* ---- global functions: range, dict, namespace, joiner, raise_exception, strftime_now ---- */

enum func_id { F_RANGE, F_DICT, F_NAMESPACE, F_JOINER, F_RAISE, F_STRFTIME, F_COUNT };
static const char *const func_names[F_COUNT] = {"range",           "dict",        "namespace", "joiner",
                                                "raise_exception", "strftime_now"};

void jn_define_globals(struct jinja_ctx *c)
{
    for (uint32_t i = 0; i < F_COUNT; i++) {
        uint32_t sym = jn_find_sym(c->t, func_names[i], strlen(func_names[i]));
        if (sym == JN_NO_SYM || c->root[sym].type != JN_MISSING) continue;
        c->root[sym] = (struct jinja_value){.type = JN_FUNC, .kind = (uint8_t)i};
    }
}

static struct jinja_value make_range(struct jinja_ctx *c, const struct jn_args *a)
{
    int64_t start = 0, stop, step = 1;
    if (a->kw_count || !a->count || a->count > 3) jn_error(c, "range expected 1 to 3 arguments");
    stop = jn_want_int(c, "range", a->pos[0]);
    if (a->count > 1) {
        start = stop;
        stop = jn_want_int(c, "range", a->pos[1]);
    }
    if (a->count > 2) step = jn_want_int(c, "range", a->pos[2]);
    if (!step) jn_error(c, "range() arg 3 must not be zero");
    uint64_t span = 0, stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 && stop > start) span = (uint64_t)stop - (uint64_t)start;
    if (step < 0 && stop < start) span = (uint64_t)start - (uint64_t)stop;
    ASSERT(stride);
    uint64_t count = span / stride + (span % stride != 0);
    if (count > c->base.limits.range_max)
        jn_fail(&c->base, JINJA_LIMIT, "range too big: the sandbox blocks ranges larger than %u",
                c->base.limits.range_max);
    struct jn_range *r = jn_alloc(&c->base, sizeof *r);
    /* One step or none: the end of the only element may not be representable. */
    *r = (struct jn_range){.start = start,
                           .step = count > 1 || stride < ((uint64_t)1 << 40) ? step : 1,
                           .count = (uint32_t)count};
    return JN_V(JN_RANGE, p, r);
}

/* dict(mapping or pairs, key=value ...): also the body of namespace(). */
static struct jinja_value make_dict(struct jinja_ctx *c, const struct jn_args *a, const char *what)
{
    struct jinja_value d = jn_new_dict(c);
    if (a->count > 1) jn_error(c, "%s expected at most 1 argument, got %u", what, a->count);
    if (a->count && a->pos[0].type == JN_DICT) {
        const struct jinja_dict *src = a->pos[0].u.d;
        for (uint32_t i = 0; i < src->count; i++) jn_dict_put(c, d.u.d, src->k[i], src->v[i]);
    } else if (a->count) {
        const struct jinja_list *pairs = jn_items_of(c, a->pos[0]);
        for (uint32_t i = 0; i < pairs->count; i++) {
            const struct jinja_list *p = jn_items_of(c, pairs->v[i]);
            if (p->count != 2) jn_error(c, "%s: an element has length %u; 2 is required", what, p->count);
            jn_dict_put(c, d.u.d, p->v[0], p->v[1]);
        }
    }
    for (uint32_t k = 0; k < a->kw_count; k++) jn_dict_put(c, d.u.d, a->names[k], a->vals[k]);
    return d;
}

static struct jinja_value make_namespace(struct jinja_ctx *c, const struct jn_args *a)
{
    struct jinja_value d = make_dict(c, a, "namespace");
    for (uint32_t i = 0; i < d.u.d->count; i++)
        if (d.u.d->k[i].type == JN_STR && d.u.d->k[i].u.s->len && d.u.d->k[i].u.s->p[0] == '_')
            jn_error(c, "a namespace cannot store attributes that start with an underscore");
    d.type = JN_NS;
    return d;
}

static struct jinja_value make_joiner(struct jinja_ctx *c, const struct jn_args *a)
{
    static const char *const params[] = {"sep"};
    struct jn_joiner *j = jn_alloc(&c->base, sizeof *j);
    *j = (struct jn_joiner){.used = false};
    jn_bind(c, "joiner", a, params, 1, 0, &j->sep);
    if (j->sep.type == JN_MISSING) j->sep = jn_lit(c, ", ");
    return JN_V(JN_JOINER, p, j);
}

/* ---- time ---- */

/* The time of the render, constant throughout. Python's strftime is the C library's; a time without a zone
 * prints none. */
static struct jinja_value strftime_now(struct jinja_ctx *c, const struct jn_args *a)
{
    static const char *const params[] = {"format"};
    struct jinja_value arg;
    jn_bind(c, "strftime_now", a, params, 1, 1, &arg);
    const struct jinja_str *f = jn_want_str(c, "strftime_now", arg);
    if (!c->have_now) { /* one time for the whole render */
        time_t now = time(NULL);
        localtime_r(&now, &c->now);
        c->have_now = true;
    }
    struct jn_sb sb = jn_sb_new(c);
    for (size_t i = 0; i < f->len; i++) {
        char conversion[4] = {'%'}, out[80] = "";
        size_t n = 1, at = i;
        if (f->p[i] == '%' && i + 1 < f->len && f->p[i + 1] == '-')
            conversion[n++] = f->p[++i]; /* no padding */
        if (f->p[at] != '%' || ++i >= f->len || !isalpha((unsigned char)f->p[i])) {
            i = f->p[at] == '%' && i < f->len && f->p[i] == '%' ? i : at; /* %% is one */
            jn_sb_slice(c, &sb, f, at, at + 1);
            continue;
        }
        conversion[n] = f->p[i];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        if (!strchr("zZ", f->p[i])) strftime(out, sizeof out, conversion, &c->now);
#pragma GCC diagnostic pop
        jn_sb_bytes(c, &sb, out, strlen(out), jn_origin_at(f, at));
    }
    return jn_sb_value(c, &sb);
}

struct jinja_value jn_call_func(struct jinja_ctx *c, uint32_t func, const struct jn_args *a)
{
    static const char *const message[] = {"message"};
    struct jinja_value v;
    ASSERT_CMP(func, <, F_COUNT);
    switch (func) {
    case F_RANGE: return make_range(c, a);
    case F_DICT: return make_dict(c, a, "dict");
    case F_NAMESPACE: return make_namespace(c, a);
    case F_JOINER: return make_joiner(c, a);
    case F_STRFTIME: return strftime_now(c, a);
    default:
        jn_bind(c, "raise_exception", a, message, 1, 1, &v);
        v = jn_to_str(c, v);
        jn_fail(&c->base, JINJA_RAISED, "%.*s", v.u.s->len > 500 ? 500 : (int)v.u.s->len, v.u.s->p);
    }
}
