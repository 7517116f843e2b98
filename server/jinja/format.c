/* `'%s' % x` and `'{}'.format(x)`: the conversions of C's printf, which prints the numbers. Origins are
 * kept. */
#include "server/jinja/internal.h"

#include <math.h>
#include <stdio.h>

#define WIDTH_MAX 100000 /* of a field; more is an attack or a mistake */

struct field {
    char flags[5], type;  /* type 0 = not given */
    int width, precision; /* precision -1 = not given */
};

static int field_number(struct jinja_ctx *c, const char **p, const char *end)
{
    int n = 0;
    while (*p < end && **p >= '0' && **p <= '9') {
        n = n * 10 + (*(*p)++ - '0');
        if (n > WIDTH_MAX) jn_error(c, "a field is too wide");
    }
    return n;
}

/* [flags][width][.precision][type], the flags out of `flags`; returns the position after it. */
static const char *parse_field(struct jinja_ctx *c, const char *p, const char *end, const char *flags,
                               struct field *f)
{
    size_t n = 0;
    *f = (struct field){.precision = -1};
    for (; p < end && *p && strchr(flags, *p); p++)
        if (!strchr(f->flags, *p)) f->flags[n++] = *p;
    f->width = field_number(c, &p, end);
    if (p < end && *p == '.') {
        p++;
        f->precision = field_number(c, &p, end);
    }
    if (p < end) f->type = *p++;
    return p;
}

static void put_text(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v, const struct field *f,
                     bool left)
{
    const struct jinja_str *s = v.u.s;
    if (f->precision >= 0 && (uint32_t)f->precision < s->chars)
        s = jn_slice_bytes(c, s, 0, jn_byte_of_char(s, (size_t)f->precision)).u.s;
    int64_t room = f->width - (int64_t)s->chars;
    if (left) jn_sb_str(c, sb, s);
    for (; room > 0; room--) jn_sb_bytes(c, sb, " ", 1, JINJA_TEMPLATE);
    if (!left) jn_sb_str(c, sb, s);
}

/* f->type is one of d x X e E f F g G. */
static void put_number(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v, const struct field *f)
{
    bool real = strchr("eEfFgG", f->type) != NULL;
    double d = 0;
    int64_t i = 0;
    char spec[16];
    if (v.type == JN_UNDEF) jn_fail_undef(c, v);
    if (real) {
        if (!jn_as_num(v, &d)) jn_error(c, "must be real number, not %s", jn_type_name(v));
    } else {
        if (v.type == JN_BIG && f->type == 'd') {
            put_text(c, sb, jn_to_str(c, v), f, strchr(f->flags, '-') != NULL);
            return;
        }
        if (v.type == JN_FLOAT && f->type == 'd') v = jn_float_int(c, v);
        if (!jn_as_int(v, &i))
            jn_error(c, "%%%c format: a number is required, not %s", f->type, jn_type_name(v));
        if (i < 0 && f->type != 'd') jn_error(c, "%%%c format: the number is negative", f->type);
    }
    size_t cap = (size_t)f->width + (size_t)(f->precision + 1) + 400; /* a double has up to 309 digits */
    char *text = jn_alloc(&c->base, cap);
    snprintf(spec, sizeof spec, "%%%s*.*%s%c", f->flags, real ? "" : "ll", f->type);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = real ? snprintf(text, cap, spec, f->width, f->precision, d)
                 : snprintf(text, cap, spec, f->width, f->precision, (long long)i);
#pragma GCC diagnostic pop
    jn_sb_bytes(c, sb, text, (size_t)n, v.origin);
}

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
    struct field f;
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
    p = parse_field(c, p, end, "-+ 0", &f);
    if (f.type == '%') {
        jn_sb_bytes(c, sb, "%", 1, jn_origin_at(fmt, (size_t)(p - 1 - fmt->p)));
        return p;
    }
    if (f.type == 'i') f.type = 'd';
    if (!f.type || !strchr("srdxXeEfFgG", f.type)) jn_error(c, "unsupported format character");
    if (v.type == JN_MISSING) v = next_arg(x);
    if (f.type == 's' || f.type == 'r') {
        struct jn_sb text = jn_sb_new(c);
        if (f.type == 'r') jn_repr(c, &text, v);
        else jn_print(c, &text, v);
        put_text(c, sb, jn_sb_value(c, &text), &f, strchr(f.flags, '-') != NULL);
    } else {
        put_number(c, sb, v, &f);
    }
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

static void format_plain(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v, struct field *f)
{
    bool whole = v.type == JN_INT || v.type == JN_BOOL || v.type == JN_BIG;
    if (!f->type) f->type = whole ? 'd' : v.type == JN_STR ? 's' : 0;
    if (v.type == JN_STR && f->type == 's' && !*f->flags) put_text(c, sb, v, f, true);
    else if (f->type && ((whole && strchr("dxX", f->type) && f->precision < 0) ||
                         ((whole || v.type == JN_FLOAT) && strchr("eEfFgG", f->type))))
        put_number(c, sb, v, f);
    else jn_error(c, "unsupported format specifier for %s", jn_type_name(v));
}

/* [[fill]align][flags][width][.precision][type], a part of fmt. */
static void format_value(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v,
                         const struct jinja_str *fmt, const char *spec, const char *end)
{
    const char *align = spec;
    struct field f;
    if (spec >= end) {
        jn_print(c, sb, v);
        return;
    }
    jn_decode(spec, end, &align);
    if (align >= end || !*align || !strchr("<>^", *align))
        align = *spec && strchr("<>^", *spec) ? spec : NULL;
    if (parse_field(c, align ? align + 1 : spec, end, "+ 0", &f) < end)
        jn_error(c, "unsupported format specifier");
    struct jn_sb text = jn_sb_new(c);
    int64_t width = f.width;
    if (align) f.width = 0;
    format_plain(c, align ? &text : sb, v, &f);
    if (!align) return;
    struct jinja_value s = jn_sb_value(c, &text), fill = jn_lit(c, " ");
    if (align > spec) fill = jn_slice_bytes(c, fmt, (size_t)(spec - fmt->p), (size_t)(align - fmt->p));
    int64_t room = width - (int64_t)s.u.s->chars, left = *align == '>' ? room : *align == '^' ? room / 2 : 0;
    for (int64_t k = 0; k < left; k++) jn_sb_str(c, sb, fill.u.s);
    jn_sb_str(c, sb, s.u.s);
    for (int64_t k = left; k < room; k++) jn_sb_str(c, sb, fill.u.s);
}

/* What follows the name of a field: `.name` and `[key]`. */
static struct jinja_value find_inside(struct jinja_ctx *c, const struct jinja_str *fmt, struct jinja_value v,
                                      const char *p, const char *end)
{
    while (p < end) {
        const char *from = ++p, *stop = from;
        bool item = from[-1] == '[';
        while (stop < end && (item ? *stop != ']' : *stop != '.' && *stop != '[')) stop++;
        if (item && stop == end) jn_error(c, "expected ']' before end of string");
        struct jinja_value key = jn_slice_bytes(c, fmt, (size_t)(from - fmt->p), (size_t)(stop - fmt->p));
        int index = field_number(c, &from, stop);
        if (item && from == stop && from > p) key = JN_V(JN_INT, i, index);
        v = item ? jn_getitem(c, v, key) : jn_getattr(c, v, key);
        p = stop + item;
    }
    return v;
}

/* `{}`, `{0}` or `{name}`, with what follows it. */
static struct jinja_value find_field(struct jinja_ctx *c, const struct jinja_str *fmt,
                                     const struct jn_args *a, const char *p, const char *end,
                                     uint32_t *next_auto, bool *manual)
{
    const char *name = end;
    for (const char *q = end; q > p; q--)
        if (q[-1] == '.' || q[-1] == '[') name = q - 1;
    if (p < name && (*p < '0' || *p > '9')) {
        for (uint32_t k = 0; k < a->kw_count; k++)
            if (a->names[k].type == JN_STR && a->names[k].u.s->len == (size_t)(name - p) &&
                memcmp(a->names[k].u.s->p, p, (size_t)(name - p)) == 0)
                return find_inside(c, fmt, a->vals[k], name, end);
        jn_error(c, "a keyword of the format string is missing");
    }
    bool given = p < name;
    uint32_t idx = given ? (uint32_t)field_number(c, &p, name) : (*next_auto)++;
    *manual |= given;
    if (p != name) jn_error(c, "bad field name in a format string");
    if (*manual && *next_auto) jn_error(c, "automatic and manual field numbering in one format string");
    if (idx >= a->count) jn_error(c, "replacement index %u out of range for positional args", idx);
    return find_inside(c, fmt, a->pos[idx], name, end);
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
        char as = name_end - q > 2 && name_end[-2] == '!' ? name_end[-1] : 0;
        struct jinja_value v =
            find_field(c, fmt, a, q + 1, as ? name_end - 2 : name_end, &next_auto, &manual);
        if (as) {
            struct jn_sb text = jn_sb_new(c);
            if (as == 'r') jn_repr(c, &text, v);
            else if (as == 's') jn_print(c, &text, v);
            else jn_error(c, "unknown conversion in a format string");
            v = jn_sb_value(c, &text);
        }
        format_value(c, &sb, v, fmt, colon ? colon + 1 : close, close);
        p = close + 1;
    }
    return jn_sb_value(c, &sb);
}
