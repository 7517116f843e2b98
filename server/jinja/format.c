/* `'%s' % x` and `'{}'.format(x)`, as far as templates use them: without widths, precisions and bases of
 * numbers. Origins are kept. */
#include "config/base/assert.h"
#include "server/jinja/internal.h"

/* ---- printf style ---- */

struct percent {
    struct jinja_ctx *c;
    const struct jinja_list *items; /* of a tuple, or NULL: one value */
    struct jinja_value args;
    uint32_t next;
    bool mapped; /* a %(name) was seen */
};

static struct jinja_value next_arg(struct percent *x)
{
    if (x->next >= (x->items ? x->items->count : 1)) jn_error(x->c, "not enough arguments for format string");
    return x->items ? x->items->v[x->next++] : (x->next++, x->args);
}

/* One conversion; p is after the '%'. */
static const char *percent_one(struct percent *x, struct jn_sb *sb, const struct jinja_str *fmt,
                               const char *p)
{
    struct jinja_ctx *c = x->c;
    const char *end = fmt->p + fmt->len;
    struct jinja_value v = JN_V(JN_MISSING, i, 0);
    if (p < end && *p == '(') {
        const char *close = memchr(p, ')', (size_t)(end - p));
        if (!close) jn_error(c, "incomplete format key");
        if (x->args.type != JN_DICT) jn_error(c, "format requires a mapping");
        if (!jn_dict_find_str(x->args.u.d, p + 1, (size_t)(close - p - 1), &v))
            jn_error(c, "a key of the format string is missing");
        x->mapped = true;
        p = close + 1;
    }
    ASSERT(p <= end);
    char type = p < end ? *p++ : '\0';
    if (type == '%') {
        jn_sb_bytes(c, sb, "%", 1, jn_origin_at(fmt, (size_t)(p - 1 - fmt->p)));
        return p;
    }
    if (!type || !strchr("srdi", type)) jn_error(c, "of the formats, %%s, %%r, %%d and %%i are supported");
    if (v.type == JN_MISSING) v = next_arg(x);
    if (type == 'd' || type == 'i') {
        if (v.type == JN_UNDEF) jn_fail_undef(c, v);
        if (v.type == JN_FLOAT) v = jn_float_int(c, v);
        if (v.type == JN_BOOL) v.type = JN_INT;
        if (v.type != JN_INT && v.type != JN_BIG)
            jn_error(c, "%%d format: a number is required, not %s", jn_type_name(v));
    }
    (type == 'r' ? jn_repr : jn_print)(c, sb, v);
    return p;
}

struct jinja_value jn_str_mod(struct jinja_ctx *c, const struct jinja_str *fmt, struct jinja_value args)
{
    struct percent x = {.c = c, .items = args.type == JN_TUPLE ? args.u.l : NULL, .args = args};
    struct jn_sb sb = jn_sb_new(c);
    const char *p = fmt->p, *end = fmt->p + fmt->len;
    while (p < end) {
        const char *q = memchr(p, '%', (size_t)(end - p));
        if (!q) q = end;
        jn_sb_slice(c, &sb, fmt, (size_t)(p - fmt->p), (size_t)(q - fmt->p));
        p = q < end ? percent_one(&x, &sb, fmt, q + 1) : q;
    }
    bool left = x.items ? x.next < x.items->count
                        : !x.next && args.type != JN_DICT && args.type != JN_LIST && args.type != JN_RANGE &&
                              args.type != JN_UNDEF;
    if (left && !x.mapped) jn_error(c, "not all arguments converted during string formatting");
    return jn_sb_value(c, &sb);
}

/* ---- str.format ---- */

/* The value of `{}`, `{0}` or `{name}`. */
static struct jinja_value find_field(struct jinja_ctx *c, const struct jn_args *a, const char *p,
                                     const char *end, uint32_t *next_auto, bool *manual)
{
    uint32_t index = 0;
    if (p < end && (*p < '0' || *p > '9')) {
        for (uint32_t k = 0; k < a->kw_count; k++)
            if (a->names[k].u.s->len == (size_t)(end - p) &&
                memcmp(a->names[k].u.s->p, p, (size_t)(end - p)) == 0)
                return a->vals[k];
        jn_error(c, "a keyword of the format string is missing");
    }
    *manual |= p < end;
    if (p == end) index = (*next_auto)++;
    for (; p < end && *p >= '0' && *p <= '9' && index <= a->count; p++)
        index = 10 * index + (uint32_t)(*p - '0');
    if (*manual && *next_auto) jn_error(c, "automatic and manual field numbering in one format string");
    if (index >= a->count) jn_error(c, "replacement index %u out of range for positional args", index);
    if (p != end) jn_error(c, "bad field name in a format string");
    return a->pos[index];
}

struct jinja_value jn_str_format(struct jinja_ctx *c, const struct jinja_str *fmt, const struct jn_args *a)
{
    struct jn_sb sb = jn_sb_new(c);
    const char *p = fmt->p, *end = fmt->p + fmt->len;
    uint32_t next_auto = 0;
    bool manual = false;
    while (p < end) {
        const char *q = p;
        while (q < end && *q != '{' && *q != '}') q++;
        jn_sb_slice(c, &sb, fmt, (size_t)(p - fmt->p), (size_t)(q - fmt->p));
        if (q >= end) break;
        if (q + 1 < end && q[1] == q[0]) {
            jn_sb_slice(c, &sb, fmt, (size_t)(q - fmt->p), (size_t)(q - fmt->p) + 1);
            p = q + 2;
            continue;
        }
        const char *close = memchr(q, '}', (size_t)(end - q));
        if (*q == '}') jn_error(c, "single '}' encountered in format string");
        if (!close) jn_error(c, "expected '}' before end of string");
        const char *colon = memchr(q, ':', (size_t)(close - q)), *name_end = colon ? colon : close;
        char as = colon && close - colon == 2 ? colon[1] : '\0';
        for (const char *k = q; k < close; k++)
            if (strchr("!.[", *k) || (k == colon && as != 'd' && as != 's'))
                jn_error(c, "of the fields of format(), {}, {0}, {name}, {:d} and {:s} are supported");
        struct jinja_value v = find_field(c, a, q + 1, name_end, &next_auto, &manual);
        if (as == 'd' && v.type == JN_BOOL) v.type = JN_INT;
        if (as && (as == 's' ? v.type != JN_STR : v.type != JN_INT && v.type != JN_BIG))
            jn_error(c, "unsupported format specifier '%c' for %s", as, jn_type_name(v));
        jn_print(c, &sb, v);
        p = close + 1;
    }
    return jn_sb_value(c, &sb);
}
