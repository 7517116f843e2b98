/* Filters on sequences and mappings. Lazy results of the reference are computed eagerly; the result is still
 * consumed only once. */
#include "config/base/assert.h"
#include "server/jinja/internal.h"

#include <stdio.h>

#define ATTR_PARTS_MAX 32

static struct jinja_value as_iter(struct jinja_value list)
{
    list.type = JN_ITER;
    return list;
}

/* ---- attribute paths: "a.b.0" ---- */

struct getter {
    struct jinja_value part[ATTR_PARTS_MAX];
    uint32_t count;
    struct jinja_value fallback; /* for undefined intermediate values; JN_MISSING = none */
};

static void add_part(struct jinja_ctx *c, struct getter *g, const struct jinja_str *s, size_t from, size_t to)
{
    int64_t n = 0;
    bool number = to > from && to - from < 18;
    ASSERT(from <= to && to <= s->len);
    if (g->count == ATTR_PARTS_MAX) jn_error(c, "an attribute path has too many parts");
    for (size_t i = from; i < to; i++) {
        number = number && s->p[i] >= '0' && s->p[i] <= '9';
        n = n * 10 + (number ? s->p[i] - '0' : 0);
        if (!number) break;
    }
    g->part[g->count++] = number ? JN_V(JN_INT, i, n) : jn_slice_bytes(c, s, from, to);
}

static void make_getter(struct jinja_ctx *c, struct getter *g, struct jinja_value attr)
{
    g->count = 0;
    g->fallback = JN_V(JN_MISSING, i, 0);
    if (attr.type == JN_NONE || attr.type == JN_MISSING) return;
    if (attr.type != JN_STR) {
        g->part[g->count++] = attr;
        return;
    }
    size_t from = 0;
    for (size_t i = 0; i <= attr.u.s->len; i++) {
        if (i < attr.u.s->len && attr.u.s->p[i] != '.') continue;
        add_part(c, g, attr.u.s, from, i);
        from = i + 1;
    }
}

static struct jinja_value get(struct jinja_ctx *c, const struct getter *g, struct jinja_value item)
{
    for (uint32_t i = 0; i < g->count; i++) {
        item = jn_getitem(c, item, g->part[i]);
        if (item.type == JN_UNDEF && GIVEN(g->fallback) && g->fallback.type != JN_NONE) item = g->fallback;
    }
    return item;
}

static struct jinja_value folded(struct jinja_ctx *c, struct jinja_value v, bool case_sensitive)
{
    return !case_sensitive && v.type == JN_STR ? jn_lower(c, v.u.s) : v;
}

/* ---- stable sort ---- */

static void merge_sort(struct jinja_ctx *c, struct jinja_value *keys, struct jinja_value *a,
                       struct jinja_value *tmp, uint32_t n, bool reverse)
{
    if (n < 2) return;
    uint32_t h = n / 2, i = 0, j = h, o = 0;
    merge_sort(c, keys, a, tmp, h, reverse);
    merge_sort(c, keys + h, a + h, tmp, n - h, reverse);
    while (i < h || j < n) {
        bool right = i == h || (j < n && (reverse ? jn_compare(c, OP_LT, keys[i], keys[j])
                                                  : jn_compare(c, OP_LT, keys[j], keys[i])));
        uint32_t from = right ? j++ : i++;
        tmp[o] = keys[from];
        tmp[n + o++] = a[from];
    }
    memcpy(keys, tmp, n * sizeof *keys);
    memcpy(a, tmp + n, n * sizeof *a);
    jn_charge(c, (size_t)n * 16);
}

void jn_sort_by(struct jinja_ctx *c, struct jinja_value *keys, struct jinja_value *a, uint32_t n,
                bool reverse)
{
    struct jinja_value *tmp = jn_alloc_array(&c->base, (size_t)n * 2, sizeof *tmp);
    merge_sort(c, keys, a, tmp, n, reverse);
}

/* ---- plain ---- */

FILTER(f_length)
{
    int64_t n;
    if (!jn_length(c, v, &n)) jn_error(c, "object of type '%s' has no len()", jn_type_name(v));
    return JN_V(JN_INT, i, n);
}

FILTER(f_list)
{
    const struct jinja_list *l = jn_items_of(c, v);
    struct jinja_value out = jn_new_list(c, JN_LIST, l->count);
    for (uint32_t i = 0; i < l->count; i++) jn_list_push(c, out.u.l, l->v[i]);
    out.origin = v.type == JN_STR ? JINJA_TEMPLATE : v.origin;
    return out;
}

FILTER(f_first)
{
    if (v.type == JN_ITER) { /* takes one and leaves the rest */
        if (v.u.l->pos == v.u.l->count) return jn_undef_text(c, "No first item, sequence was empty.");
        return v.u.l->v[v.u.l->pos++];
    }
    const struct jinja_list *l = jn_items_of(c, v);
    return l->count ? l->v[0] : jn_undef_text(c, "No first item, sequence was empty.");
}

FILTER(f_last)
{
    if (v.type == JN_ITER || v.type == JN_LOOP) jn_error(c, "'%s' object is not reversible", jn_type_name(v));
    if (v.type == JN_UNDEF) return jn_undef_text(c, "No last item, sequence was empty.");
    const struct jinja_list *l = jn_items_of(c, v);
    return l->count ? l->v[l->count - 1] : jn_undef_text(c, "No last item, sequence was empty.");
}

FILTER(f_join)
{
    struct getter g;
    make_getter(c, &g, arg[1]);
    const struct jinja_list *l = jn_items_of(c, v);
    struct jinja_value sep = GIVEN(arg[0]) ? jn_to_str(c, arg[0]) : jn_lit(c, "");
    struct jn_sb sb = jn_sb_new(c);
    for (uint32_t i = 0; i < l->count; i++) {
        if (i) jn_sb_str(c, &sb, sep.u.s);
        jn_print(c, &sb, get(c, &g, l->v[i]));
    }
    return jn_sb_value(c, &sb);
}

FILTER(f_reverse)
{
    struct jinja_value none = JN_V(JN_NONE, i, 0);
    if (v.type == JN_STR) return jn_getslice(c, v, none, none, JN_V(JN_INT, i, -1));
    const struct jinja_list *l = jn_items_of(c, v);
    struct jinja_value out = jn_new_list(c, JN_LIST, l->count);
    for (uint32_t i = l->count; i > 0; i--) jn_list_push(c, out.u.l, l->v[i - 1]);
    return v.type == JN_ITER || v.type == JN_UNDEF ? out : as_iter(out);
}

FILTER(f_items)
{
    if (v.type == JN_UNDEF) return as_iter(jn_new_list(c, JN_LIST, 0));
    if (v.type != JN_DICT) jn_error(c, "Can only get item pairs from a mapping.");
    v.type = JN_VIEW;
    v.kind = JN_V_ITEMS;
    return as_iter(JN_V(JN_LIST, l, jn_items_of(c, v)));
}

/* ---- order ---- */

/* The items (copied) in the order of the attribute, cased or not; their keys too. */
static struct jinja_list *sorted(struct jinja_ctx *c, const struct jinja_list *l, const struct getter *g,
                                 bool cased, bool reverse, struct jinja_value **keys)
{
    struct jinja_list *out = jn_new_list(c, JN_LIST, l->count).u.l;
    *keys = jn_alloc_array(&c->base, l->count, sizeof **keys);
    for (uint32_t i = 0; i < l->count; i++) {
        jn_list_push(c, out, l->v[i]);
        (*keys)[i] = folded(c, get(c, g, l->v[i]), cased);
    }
    jn_sort_by(c, *keys, out->v, l->count, reverse);
    return out;
}

FILTER(f_sort)
{
    struct jinja_value *keys;
    struct getter g;
    if (arg[2].type == JN_STR && memchr(arg[2].u.s->p, ',', arg[2].u.s->len))
        jn_error(c, "sort: by more than one attribute is not supported");
    make_getter(c, &g, arg[2]);
    struct jinja_list *l = sorted(c, jn_items_of(c, v), &g, GIVEN(arg[1]) && jn_truth(arg[1]),
                                  GIVEN(arg[0]) && jn_truth(arg[0]), &keys);
    return jinja_with_origin(JN_V(JN_LIST, l, l), v.origin);
}

FILTER(f_dictsort)
{
    bool by_value = GIVEN(arg[1]) && jn_str_is(arg[1], "value"), cased = GIVEN(arg[0]) && jn_truth(arg[0]);
    if (GIVEN(arg[1]) && !by_value && !jn_str_is(arg[1], "key"))
        jn_error(c, "You can only sort by either \"key\" or \"value\"");
    if (v.type == JN_UNDEF) jn_fail_undef(c, v);
    if (v.type != JN_DICT) jn_error(c, "'%s' object has no attribute 'items'", jn_type_name(v));
    struct jinja_value view = v, *keys;
    struct getter g = {.part = {JN_V(JN_INT, i, by_value)}, .count = 1, .fallback = JN_V(JN_MISSING, i, 0)};
    view.type = JN_VIEW;
    view.kind = JN_V_ITEMS;
    struct jinja_list *l =
        sorted(c, jn_items_of(c, view), &g, cased, GIVEN(arg[2]) && jn_truth(arg[2]), &keys);
    return jinja_with_origin(JN_V(JN_LIST, l, l), v.origin);
}

static struct jinja_value min_max(struct jinja_ctx *c, struct jinja_value v, const struct jinja_value *arg,
                                  bool max)
{
    struct getter g;
    make_getter(c, &g, arg[1]);
    bool cased = GIVEN(arg[0]) && jn_truth(arg[0]);
    const struct jinja_list *l = jn_items_of(c, v);
    if (!l->count) return jn_undef_text(c, "No aggregated item, sequence was empty.");
    struct jinja_value best = l->v[0], best_key = folded(c, get(c, &g, best), cased);
    for (uint32_t i = 1; i < l->count; i++) {
        struct jinja_value key = folded(c, get(c, &g, l->v[i]), cased);
        if (!jn_compare(c, max ? OP_GT : OP_LT, key, best_key)) continue;
        best = l->v[i];
        best_key = key;
    }
    return best;
}

VALUE(f_min, min_max(c, v, arg, false))
VALUE(f_max, min_max(c, v, arg, true))

FILTER(f_unique)
{
    struct jinja_value seen = jn_new_dict(c), out = jn_new_list(c, JN_LIST, 0), ignored;
    struct getter g;
    make_getter(c, &g, arg[1]);
    bool cased = GIVEN(arg[0]) && jn_truth(arg[0]);
    const struct jinja_list *l = jn_items_of(c, v);
    for (uint32_t i = 0; i < l->count; i++) {
        struct jinja_value key = folded(c, get(c, &g, l->v[i]), cased);
        if (jn_dict_find(c, seen.u.d, key, &ignored)) continue;
        jn_dict_put(c, seen.u.d, key, key);
        jn_list_push(c, out.u.l, l->v[i]);
    }
    return as_iter(out);
}

FILTER(f_groupby)
{
    struct jinja_value out = jn_new_list(c, JN_LIST, 0), group = JN_V(JN_MISSING, i, 0);
    struct getter g;
    make_getter(c, &g, arg[0]);
    g.fallback = arg[1];
    struct jinja_value *keys;
    const struct jinja_list *l =
        sorted(c, jn_items_of(c, v), &g, GIVEN(arg[2]) && jn_truth(arg[2]), false, &keys);
    for (uint32_t i = 0; i < l->count; i++) {
        if (!i || !jn_equal(c, keys[i], keys[i - 1])) {
            struct jinja_value pair = jn_new_list(c, JN_TUPLE, 2);
            group = jn_new_list(c, JN_LIST, 0);
            pair.kind = 1;
            jn_list_push(c, pair.u.l, get(c, &g, l->v[i]));
            jn_list_push(c, pair.u.l, group);
            jn_list_push(c, out.u.l, pair);
        }
        jn_list_push(c, group.u.l, l->v[i]);
    }
    return out;
}

/* ---- map and select ---- */

FILTER(f_map)
{
    struct jinja_value out = jn_new_list(c, JN_LIST, 0);
    struct getter g = {0};
    struct jn_args rest = *a;
    bool by_attr = !a->count && a->kw_count, has_attr = false;
    if (by_attr) {
        struct jinja_value fallback = JN_V(JN_MISSING, i, 0);
        for (uint32_t k = 0; k < a->kw_count; k++) {
            if (jn_str_is(a->names[k], "attribute")) {
                make_getter(c, &g, a->vals[k]);
                has_attr = true;
            } else if (jn_str_is(a->names[k], "default")) {
                fallback = a->vals[k];
            } else {
                jn_error(c, "map: unexpected keyword argument");
            }
        }
        g.fallback = fallback;
    } else if (a->count) {
        rest.pos++;
        rest.count--;
    }
    if ((by_attr && !has_attr) || (!by_attr && !a->count)) {
        if (!jn_truth(v)) return as_iter(out);
        jn_error(c, "map requires a filter argument");
    }
    if (!jn_truth(v)) return as_iter(out); /* the reference does not evaluate it then */
    const struct jinja_list *l = jn_items_of(c, v);
    for (uint32_t i = 0; i < l->count; i++)
        jn_list_push(c, out.u.l,
                     by_attr ? get(c, &g, l->v[i]) : jn_call_filter(c, -1, a->pos[0], l->v[i], &rest));
    return as_iter(out);
}

static struct jinja_value select_items(struct jinja_ctx *c, struct jinja_value v, const struct jn_args *a,
                                       bool want, bool by_attr)
{
    struct jinja_value out = jn_new_list(c, JN_LIST, 0);
    struct getter g = {0};
    uint32_t used = by_attr ? 1 : 0;
    if (!jn_truth(v)) return as_iter(out);
    if (a->count < used) jn_error(c, "Missing parameter for attribute name");
    if (by_attr) make_getter(c, &g, a->pos[0]);
    bool test = a->count > used;
    struct jn_args rest = *a;
    if (test) {
        rest.pos += used + 1;
        rest.count -= used + 1;
    }
    const struct jinja_list *l = jn_items_of(c, v);
    for (uint32_t i = 0; i < l->count; i++) {
        struct jinja_value x = get(c, &g, l->v[i]);
        bool yes = test ? jn_call_test(c, -1, a->pos[used], x, &rest) : jn_truth(x);
        if (yes == want) jn_list_push(c, out.u.l, l->v[i]);
    }
    return as_iter(out);
}

VALUE(f_select, select_items(c, v, a, true, false))
VALUE(f_reject, select_items(c, v, a, false, false))
VALUE(f_selectattr, select_items(c, v, a, true, true))
VALUE(f_rejectattr, select_items(c, v, a, false, true))

const struct jn_filter jn_seq_filters[] = {
    {"count", f_length, 0, 0, {0}},
    {"dictsort", f_dictsort, 3, 0, {"case_sensitive", "by", "reverse"}},
    {"first", f_first, 0, 0, {0}},
    {"groupby", f_groupby, 3, 1, {"attribute", "default", "case_sensitive"}},
    {"items", f_items, 0, 0, {0}},
    {"join", f_join, 2, 0, {"d", "attribute"}},
    {"last", f_last, 0, 0, {0}},
    {"length", f_length, 0, 0, {0}},
    {"list", f_list, 0, 0, {0}},
    {"map", f_map, JN_RAW, 0, {0}},
    {"max", f_max, 2, 0, {"case_sensitive", "attribute"}},
    {"min", f_min, 2, 0, {"case_sensitive", "attribute"}},
    {"reject", f_reject, JN_RAW, 0, {0}},
    {"rejectattr", f_rejectattr, JN_RAW, 0, {0}},
    {"reverse", f_reverse, 0, 0, {0}},
    {"select", f_select, JN_RAW, 0, {0}},
    {"selectattr", f_selectattr, JN_RAW, 0, {0}},
    {"sort", f_sort, 3, 0, {"reverse", "case_sensitive", "attribute"}},
    {"unique", f_unique, 2, 0, {"case_sensitive", "attribute"}},
};
const uint32_t jn_seq_filter_count = sizeof jn_seq_filters / sizeof *jn_seq_filters;
