/* Global functions of a template: range, dict, namespace, cycler, joiner, raise_exception, strftime_now. */
#include "server/jinja/internal.h"

#include <ctype.h>
#include <time.h>

enum func_id { F_RANGE, F_DICT, F_NAMESPACE, F_CYCLER, F_JOINER, F_RAISE, F_STRFTIME, F_COUNT };
static const char *const names[F_COUNT] = {"range",           "dict",        "namespace", "cycler", "joiner",
                                           "raise_exception", "strftime_now"};

void jn_define_globals(struct jinja_ctx *c)
{
    for (uint32_t i = 0; i < F_COUNT; i++) {
        uint32_t sym = jn_find_sym(c->t, names[i], strlen(names[i]));
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

static struct jinja_value make_cycler(struct jinja_ctx *c, const struct jn_args *a, bool joiner)
{
    struct jn_cycler *cy = jn_alloc(&c->base, sizeof *cy);
    *cy = (struct jn_cycler){.joiner = joiner};
    if (joiner) {
        static const char *const params[] = {"sep"};
        jn_bind(c, "joiner", a, params, 1, 0, &cy->sep);
        if (cy->sep.type == JN_MISSING) cy->sep = jn_lit(c, ", ");
    } else {
        if (!a->count || a->kw_count) jn_error(c, "at least one item has to be provided");
        cy->items = jn_new_list(c, JN_LIST, a->count).u.l;
        for (uint32_t i = 0; i < a->count; i++) jn_list_push(c, cy->items, a->pos[i]);
    }
    return JN_V(JN_CYCLER, p, cy);
}

/* ---- time ---- */

/* The moment of the render, the same for all of it. Python's strftime is the C library's; a time without a
 * zone prints none. */
static struct jinja_value strftime_now(struct jinja_ctx *c, const struct jn_args *a)
{
    static const char *const params[] = {"format"};
    struct jinja_value arg;
    jn_bind(c, "strftime_now", a, params, 1, 1, &arg);
    const struct jinja_str *f = jn_want_str(c, "strftime_now", arg);
    if (!c->have_now) { /* one moment for the whole render */
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
    switch (func) {
    case F_RANGE: return make_range(c, a);
    case F_DICT: return make_dict(c, a, "dict");
    case F_NAMESPACE: return make_namespace(c, a);
    case F_CYCLER: return make_cycler(c, a, false);
    case F_JOINER: return make_cycler(c, a, true);
    case F_STRFTIME: return strftime_now(c, a);
    default:
        jn_bind(c, "raise_exception", a, message, 1, 1, &v);
        v = jn_to_str(c, v);
        jn_fail(&c->base, JINJA_RAISED, "%.*s", v.u.s->len > 500 ? 500 : (int)v.u.s->len, v.u.s->p);
    }
}
