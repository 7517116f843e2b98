/* `a.b`, `a['b']`, slices, and binding of call arguments to parameters. A missing attribute or element is
 * undefined, not an error; attributes of undefined are errors. What the reference's sandbox forbids (mutating
 * methods, names starting with an underscore) is undefined too. */
#include "config/base/assert.h"
#include "server/jinja/internal.h"

#include <stdio.h>

static struct jinja_value bound(struct jinja_ctx *c, struct jinja_value self, int32_t method)
{
    struct jn_bound *m = jn_alloc(&c->base, sizeof *m);
    *m = (struct jn_bound){.self = self, .method = method};
    return JN_V(JN_METHOD, p, m);
}

static struct jinja_value loop_attr(struct jinja_ctx *c, struct jinja_value v, struct jinja_value name)
{
    const struct jn_loop *l = v.u.p;
    uint32_t i = l->index0, n = l->items->count;
    ASSERT_CMP(i, <, n);
    if (jn_str_is(name, "index")) return JN_V(JN_INT, i, (int64_t)i + 1);
    if (jn_str_is(name, "index0")) return JN_V(JN_INT, i, i);
    if (jn_str_is(name, "revindex")) return JN_V(JN_INT, i, (int64_t)n - i);
    if (jn_str_is(name, "revindex0")) return JN_V(JN_INT, i, (int64_t)n - i - 1);
    if (jn_str_is(name, "first")) return JN_V(JN_BOOL, i, i == 0);
    if (jn_str_is(name, "last")) return JN_V(JN_BOOL, i, i + 1 >= n);
    if (jn_str_is(name, "length")) return JN_V(JN_INT, i, n);
    if (jn_str_is(name, "depth")) return JN_V(JN_INT, i, 1); /* of recursion, which isn't supported */
    if (jn_str_is(name, "depth0")) return JN_V(JN_INT, i, 0);
    if (jn_str_is(name, "previtem"))
        return i ? l->items->v[i - 1] : jn_undef_text(c, "there is no previous item");
    if (jn_str_is(name, "nextitem"))
        return i + 1 < n ? l->items->v[i + 1] : jn_undef_text(c, "there is no next item");
    return JN_V(JN_MISSING, i, 0);
}

/* What getattr() finds on the object itself; JN_MISSING if nothing. */
struct jinja_value jn_attr_only(struct jinja_ctx *c, struct jinja_value obj, struct jinja_value name)
{
    struct jinja_value out = JN_V(JN_MISSING, i, 0);
    if (obj.type == JN_UNDEF) jn_fail_undef(c, obj);
    if (name.u.s->len && name.u.s->p[0] == '_') {
        if (name.u.s->len > 1 && name.u.s->p[1] == '_') return jn_undef(JN_U_UNSAFE, name.u.s, obj.type);
        return out;
    }
    if (obj.type == JN_NS) {
        if (!jn_dict_find_str(obj.u.d, name.u.s->p, name.u.s->len, &out)) out.type = JN_MISSING;
        return out;
    }
    if (obj.type == JN_LOOP) {
        out = loop_attr(c, obj, name);
        if (out.type != JN_MISSING) return out;
    }
    if (obj.type == JN_TUPLE && obj.kind == 1 && jn_str_is(name, "grouper")) return obj.u.l->v[0];
    if (obj.type == JN_TUPLE && obj.kind == 1 && jn_str_is(name, "list")) return obj.u.l->v[1];
    if (obj.type == JN_MACRO && jn_str_is(name, "name")) {
        const struct jn_sym *s = &c->t->syms[((const struct jn_macro *)obj.u.p)->node->sym];
        return jinja_string(c, s->name, s->len, JINJA_TEMPLATE);
    }
    enum jn_undef why;
    int32_t method = jn_find_method(obj, name.u.s, &why);
    if (method >= 0) return bound(c, obj, method);
    if (why == JN_U_ABSENT)
        jn_error(c, "'%.*s' of '%s' object is not supported", (int)name.u.s->len, name.u.s->p,
                 jn_type_name(obj));
    return why == JN_U_UNSAFE ? jn_undef(why, name.u.s, obj.type) : out;
}

/* obj[key] without the fallback to attributes; false if there is no such element. */
static bool element(struct jinja_ctx *c, struct jinja_value obj, struct jinja_value key,
                    struct jinja_value *out)
{
    if (obj.type == JN_DICT) return jn_hashable(c, key) && jn_dict_find(c, obj.u.d, key, out);
    int64_t i, n;
    if (!jn_as_int(key, &i) || !jn_length(c, obj, &n)) return false;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return false;
    if (obj.type == JN_LIST || obj.type == JN_TUPLE) {
        *out = obj.u.l->v[i];
    } else if (obj.type == JN_STR) {
        jn_charge(c, obj.u.s->chars == obj.u.s->len ? 0 : (size_t)i);
        *out = jn_char_at(c, obj.u.s, jn_byte_of_char(obj.u.s, (size_t)i));
    } else if (obj.type == JN_RANGE) {
        const struct jn_range *r = obj.u.p;
        *out = JN_V(JN_INT, i, r->start + r->step * i);
    } else {
        return false;
    }
    return true;
}

struct jinja_value jn_getattr(struct jinja_ctx *c, struct jinja_value obj, struct jinja_value name)
{
    struct jinja_value out = jn_attr_only(c, obj, name);
    if (out.type != JN_MISSING || element(c, obj, name, &out)) return out;
    return jn_undef(JN_U_ATTR, name.u.s, obj.type);
}

struct jinja_value jn_getitem(struct jinja_ctx *c, struct jinja_value obj, struct jinja_value key)
{
    struct jinja_value out;
    if (obj.type == JN_UNDEF) jn_fail_undef(c, obj);
    if (element(c, obj, key, &out)) return out;
    if (key.type == JN_STR) {
        out = jn_attr_only(c, obj, key);
        return out.type != JN_MISSING ? out : jn_undef(JN_U_ATTR, key.u.s, obj.type);
    }
    struct jn_sb sb = jn_sb_new(c);
    jn_repr(c, &sb, key);
    return jn_undef(JN_U_ITEM, jn_sb_value(c, &sb).u.s, obj.type);
}

/* ---- slices ---- */

static int64_t slice_part(struct jinja_ctx *c, struct jinja_value v, int64_t absent)
{
    int64_t i;
    if (v.type == JN_NONE || v.type == JN_MISSING) return absent;
    if (!jn_as_int(v, &i)) jn_error(c, "slice indices must be integers or None");
    return i;
}

static int64_t clamp(int64_t i, int64_t lo, int64_t hi)
{
    return i < lo ? lo : i > hi ? hi : i;
}

static struct jinja_value slice_string(struct jinja_ctx *c, const struct jinja_str *s, int64_t from,
                                       int64_t count, int64_t step)
{
    ASSERT(from + (count ? count - 1 : 0) * step < s->chars || !count);
    if (!count) return jn_slice_bytes(c, s, 0, 0);
    jn_charge(c, s->len);
    if (step == 1)
        return jn_slice_bytes(c, s, jn_byte_of_char(s, (size_t)from),
                              jn_byte_of_char(s, (size_t)(from + count)));
    /* Byte offsets of all characters, then pick. */
    uint32_t *at = jn_alloc_array(&c->base, (size_t)s->chars + 1, sizeof *at), n = 0;
    for (const char *p = s->p, *end = s->p + s->len; p < end; n++) {
        at[n] = (uint32_t)(p - s->p);
        jn_decode(p, end, &p);
    }
    at[n] = s->len;
    struct jn_sb sb = jn_sb_new(c);
    for (int64_t k = 0; k < count; k++) {
        int64_t i = from + k * step;
        jn_sb_slice(c, &sb, s, at[i], at[i + 1]);
    }
    return jn_sb_value(c, &sb);
}

struct jinja_value jn_getslice(struct jinja_ctx *c, struct jinja_value obj, struct jinja_value a,
                               struct jinja_value b, struct jinja_value s)
{
    int64_t n, step = slice_part(c, s, 1);
    if (obj.type == JN_UNDEF) jn_fail_undef(c, obj);
    if ((obj.type != JN_STR && obj.type != JN_LIST && obj.type != JN_TUPLE && obj.type != JN_RANGE) ||
        !jn_length(c, obj, &n))
        jn_error(c, "'%s' object can't be sliced",
                 jn_type_name(obj)); /* unlike a missing element, this is an error */
    if (step == 0) jn_error(c, "slice step cannot be zero");
    int64_t lo = step > 0 ? 0 : -1, hi = step > 0 ? n : n - 1;
    int64_t from = slice_part(c, a, step > 0 ? lo : hi), to = slice_part(c, b, INT64_MIN);
    if (from < 0 && a.type != JN_NONE && a.type != JN_MISSING) from += n;
    from = clamp(from, lo, hi);
    if (b.type == JN_NONE || b.type == JN_MISSING) to = step > 0 ? hi : lo;
    else to = clamp(to < 0 ? to + n : to, lo, hi);
    /* Distances are below 2^32, so a larger step picks one element. */
    step = clamp(step, -((int64_t)1 << 40), (int64_t)1 << 40);
    int64_t count = step > 0 ? (to - from + step - 1) / step : (from - to - step - 1) / -step;
    if (count < 0) count = 0;
    if (obj.type == JN_STR) return slice_string(c, obj.u.s, from, count, step);
    if (obj.type == JN_RANGE) {
        const struct jn_range *r = obj.u.p;
        struct jn_range *o = jn_alloc(&c->base, sizeof *o);
        *o = (struct jn_range){.start = r->start + r->step * from,
                               .step = count > 1 ? r->step * step : 1,
                               .count = (uint32_t)count};
        return JN_V(JN_RANGE, p, o);
    }
    struct jinja_value out = jn_new_list(c, obj.type, (uint32_t)count);
    out.origin = obj.origin;
    jn_charge(c, (size_t)count * 16);
    for (int64_t k = 0; k < count; k++) jn_list_push(c, out.u.l, obj.u.l->v[from + k * step]);
    return out;
}

/* ---- arguments ---- */

void jn_bind(struct jinja_ctx *c, const char *func, const struct jn_args *a, const char *const *names,
             uint32_t count, uint32_t required, struct jinja_value *out)
{
    ASSERT_CMP(required, <=, count);
    if (a->count > count) jn_error(c, "%s() takes at most %u arguments (%u given)", func, count, a->count);
    for (uint32_t i = 0; i < count; i++) out[i] = i < a->count ? a->pos[i] : JN_V(JN_MISSING, i, 0);
    for (uint32_t k = 0; k < a->kw_count; k++) {
        uint32_t i = 0;
        while (i < count && !jn_str_is(a->names[k], names[i])) i++;
        if (i == count)
            jn_error(c, "%s() got an unexpected keyword argument '%.*s'", func,
                     (int)(a->names[k].u.s->len & 63), a->names[k].u.s->p);
        if (out[i].type != JN_MISSING)
            jn_error(c, "%s() got multiple values for argument '%s'", func, names[i]);
        out[i] = a->vals[k];
    }
    for (uint32_t i = 0; i < required; i++)
        if (out[i].type == JN_MISSING) jn_error(c, "%s() missing argument '%s'", func, names[i]);
}

int64_t jn_want_int(struct jinja_ctx *c, const char *what, struct jinja_value v)
{
    int64_t i;
    if (v.type == JN_UNDEF) jn_fail_undef(c, v);
    if (!jn_as_int(v, &i))
        jn_error(c, "%s: '%s' object cannot be interpreted as an integer", what, jn_type_name(v));
    return i;
}

const struct jinja_str *jn_want_str(struct jinja_ctx *c, const char *what, struct jinja_value v)
{
    if (v.type != JN_STR) jn_error(c, "%s: must be str, not %s", what, jn_type_name(v));
    return v.u.s;
}
