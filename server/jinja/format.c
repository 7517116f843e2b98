/* `'%s' % x` and `'{}'.format(x)`: Python's two ways of formatting, for the conversions that make sense in a
 * prompt. Origins are kept. */
#include "server/jinja/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define WIDTH_MAX 100000 /* of a field; more can only be an attack or a mistake */

struct spec {
    uint32_t fill; /* code point */
    char align;    /* < > ^ = or 0 */
    char sign;     /* + - space or 0 */
    bool alt, zero;
    char group;           /* , _ or 0 */
    int width, precision; /* -1 = not given */
    char type;
};

/* Puts text into a field. sign_len bytes at its start stay in front of '=' padding. */
static void put_field(struct jinja_ctx *c, struct jn_sb *sb, const struct jinja_str *s, const struct spec *f,
                      char default_align, size_t sign_len)
{
    char align = f->align ? f->align : default_align, fill[4];
    size_t fill_len = jn_encode(f->fill, fill);
    int64_t room = f->width > (int64_t)s->chars ? f->width - (int64_t)s->chars : 0, left = align == '<' ? 0
                                                                                           : align == '^'
                                                                                               ? room / 2
                                                                                               : room;
    if (align == '=') jn_sb_slice(c, sb, s, 0, sign_len);
    for (int64_t i = 0; i < left; i++) jn_sb_bytes(c, sb, fill, fill_len, JINJA_TEMPLATE);
    jn_sb_slice(c, sb, s, align == '=' ? sign_len : 0, s->len);
    for (int64_t i = left; i < room; i++) jn_sb_bytes(c, sb, fill, fill_len, JINJA_TEMPLATE);
}

static void put_text(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v, const struct spec *f,
                     char default_align)
{
    const struct jinja_str *s = v.u.s;
    if (f->precision >= 0 && (uint32_t)f->precision < s->chars)
        s = jn_slice_bytes(c, s, 0, jn_byte_of_char(s, (size_t)f->precision)).u.s;
    put_field(c, sb, s, f, default_align, 0);
}

static void put_number(struct jinja_ctx *c, struct jn_sb *sb, const char *digits, bool negative,
                       const char *prefix, const struct spec *f, uint32_t origin)
{
    char head[8];
    int n = snprintf(head, sizeof head, "%s%s",
                     negative         ? "-"
                     : f->sign == '+' ? "+"
                     : f->sign == ' ' ? " "
                                      : "",
                     prefix);
    struct jn_sb text = jn_sb_new(c);
    jn_sb_bytes(c, &text, head, (size_t)n, origin);
    size_t whole = strcspn(digits, ".e%");
    unsigned step =
        f->group == '_' && (f->type == 'x' || f->type == 'X' || f->type == 'b' || f->type == 'o') ? 4 : 3;
    for (size_t i = 0; i < whole; i++) {
        if (f->group && i && (whole - i) % step == 0) jn_sb_bytes(c, &text, &f->group, 1, origin);
        jn_sb_bytes(c, &text, digits + i, 1, origin);
    }
    jn_sb_bytes(c, &text, digits + whole, strlen(digits + whole), origin);
    struct spec field = *f;
    if (f->zero && !f->align) {
        field.fill = '0';
        field.align = '=';
    }
    put_field(c, sb, jn_sb_value(c, &text).u.s, &field, '>', (size_t)n);
}

static void put_int(struct jinja_ctx *c, struct jn_sb *sb, int64_t v, const struct spec *f, uint32_t origin)
{
    char buf[72];
    size_t at = sizeof buf - 1;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    unsigned base = f->type == 'x' || f->type == 'X' ? 16 : f->type == 'o' ? 8 : f->type == 'b' ? 2 : 10;
    const char *set = f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    buf[at] = '\0';
    do {
        buf[--at] = set[u % base];
        u /= base;
    } while (u);
    const char *prefix = !f->alt          ? ""
                         : f->type == 'x' ? "0x"
                         : f->type == 'X' ? "0X"
                         : f->type == 'o' ? "0o"
                         : f->type == 'b' ? "0b"
                                          : "";
    put_number(c, sb, buf + at, v < 0, prefix, f, origin);
}

/* Digits of an int of any size, in base 10 only. */
static void put_big(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v, const struct spec *f)
{
    bool minus = *v.u.s->p == '-';
    if (f->type && !strchr("dn", f->type)) jn_error(c, "integer overflow");
    put_number(c, sb, v.u.s->p + minus, minus, "", f, v.origin);
}

static void put_float(struct jinja_ctx *c, struct jn_sb *sb, double v, const struct spec *f, uint32_t origin)
{
    char fmt[16], type = f->type == '%' ? 'f' : f->type;
    int precision = f->precision < 0 ? 6 : f->precision;
    if (precision > 300) jn_error(c, "precision is too large");
    if (f->type == '%') v *= 100;
    char *text = jn_alloc(&c->base, 700);
    if (!type && f->precision < 0) {
        text[jn_float_repr(fabs(v), text)] = '\0';
    } else {
        snprintf(fmt, sizeof fmt, f->alt ? "%%#.%d%c" : "%%.%d%c", precision, type ? type : 'g');
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, 690, fmt, fabs(v)); /* the format was made two lines above */
#pragma GCC diagnostic pop
        if (!type && isfinite(v) && !strpbrk(text, ".e")) strcat(text, ".0");
    }
    if (f->type == '%') strcat(text, "%");
    put_number(c, sb, text, signbit(v) && !isnan(v), "", f, origin);
}

/* ---- printf style ---- */

struct percent {
    struct jinja_ctx *c;
    const struct jinja_list *items; /* of a tuple, or NULL: one value */
    struct jinja_value args;
    uint32_t next;
    bool mapped; /* some %(name) was seen */
};

static struct jinja_value next_arg(struct percent *x)
{
    if (x->items) {
        if (x->next >= x->items->count) jn_error(x->c, "not enough arguments for format string");
        return x->items->v[x->next++];
    }
    if (x->next++) jn_error(x->c, "not enough arguments for format string");
    return x->args;
}

static int field_number(struct jinja_ctx *c, const char **p, const char *end)
{
    int n = 0;
    while (*p < end && **p >= '0' && **p <= '9') {
        n = n * 10 + (*(*p)++ - '0');
        if (n > WIDTH_MAX) jn_error(c, "a field is too wide");
    }
    return n;
}

static int star_or_number(struct percent *x, const char **p, const char *end)
{
    if (*p < end && **p == '*') {
        (*p)++;
        int64_t n = jn_want_int(x->c, "* wants int", next_arg(x));
        if (n > WIDTH_MAX || n < -WIDTH_MAX) jn_error(x->c, "a field is too wide");
        return (int)n;
    }
    return field_number(x->c, p, end);
}

static void percent_number(struct percent *x, struct jn_sb *sb, struct jinja_value v, struct spec *f)
{
    double d;
    int64_t i = 0;
    if (v.type == JN_UNDEF) jn_fail_undef(x->c, v);
    if (strchr("eEfFgG", f->type)) {
        if (!jn_as_num(v, &d)) jn_error(x->c, "must be real number, not %s", jn_type_name(v));
        put_float(x->c, sb, d, f, v.origin);
        return;
    }
    if (v.type == JN_FLOAT && (f->type == 'd' || f->type == 'i' || f->type == 'u')) {
        if (!isfinite(v.u.f)) jn_error(x->c, "cannot convert float to integer");
        v = jn_float_digits(x->c, v);
    }
    if (v.type != JN_BIG && !jn_as_int(v, &i)) {
        jn_error(x->c, "%%%c format: a number is required, not %s", f->type, jn_type_name(v));
    }
    if (f->type == 'i' || f->type == 'u') f->type = 'd';
    if (f->precision > 0) { /* digits, not width */
        f->zero = f->precision > f->width || f->zero;
        if (f->precision >= f->width) {
            f->width = f->precision + (i < 0 || (v.type == JN_BIG && *v.u.s->p == '-') || f->sign ? 1 : 0);
            f->align = 0;
        }
    }
    if (v.type == JN_BIG) put_big(x->c, sb, v, f);
    else put_int(x->c, sb, i, f, v.origin);
}

static void percent_field(struct percent *x, struct jn_sb *sb, struct jinja_value v, struct spec *f)
{
    struct jinja_ctx *c = x->c;
    char type = f->type;
    if (type == 's') {
        put_text(c, sb, jn_to_str(c, v), f, '>');
    } else if (type == 'r' || type == 'a') {
        struct jn_sb r = jn_sb_new(c);
        jn_repr(c, &r, v);
        put_text(c, sb, jn_sb_value(c, &r), f, '>');
    } else if (type == 'c') {
        int64_t i;
        char utf8[4];
        if (v.type == JN_STR && v.u.s->chars == 1) {
            put_text(c, sb, v, f, '>');
        } else if (jn_as_int(v, &i) && i >= 0 && i <= 0x10ffff) {
            struct jn_sb one = jn_sb_new(c);
            jn_sb_bytes(c, &one, utf8, jn_encode((uint32_t)i, utf8), v.origin);
            put_text(c, sb, jn_sb_value(c, &one), f, '>');
        } else {
            jn_error(c, "%%c requires int or char");
        }
    } else if (type && strchr("diuoxXeEfFgG", type)) {
        percent_number(x, sb, v, f);
    } else {
        jn_error(c, "unsupported format character");
    }
}

/* One conversion; p is behind the '%'. */
static const char *percent_one(struct percent *x, struct jn_sb *sb, const struct jinja_str *fmt,
                               const char *p)
{
    const char *end = fmt->p + fmt->len;
    struct spec f = {.fill = ' ', .width = 0, .precision = -1};
    struct jinja_value v = JN_V(JN_MISSING, i, 0);
    if (p < end && *p == '(') {
        const char *close = memchr(p, ')', (size_t)(end - p));
        if (!close) jn_error(x->c, "incomplete format key");
        if (x->args.type != JN_DICT) jn_error(x->c, "format requires a mapping");
        if (!jn_dict_find_str(x->args.u.d, p + 1, (size_t)(close - p - 1), &v))
            jn_error(x->c, "a key of the format string is missing");
        x->mapped = true;
        p = close + 1;
    }
    for (; p < end && strchr("-+ 0#", *p) && *p; p++) {
        if (*p == '-') f.align = '<';
        else if (*p == '+' || (*p == ' ' && f.sign != '+')) f.sign = *p;
        else if (*p == '0') f.zero = true;
        else if (*p == '#') f.alt = true;
    }
    f.width = star_or_number(x, &p, end);
    if (f.width < 0) {
        f.align = '<';
        f.width = -f.width;
    }
    if (p < end && *p == '.') {
        p++;
        f.precision = star_or_number(x, &p, end);
        if (f.precision < 0) f.precision = 0;
    }
    while (p < end && (*p == 'l' || *p == 'h' || *p == 'L')) p++;
    if (p >= end) jn_error(x->c, "incomplete format");
    f.type = *p++;
    if (f.type == '%') {
        jn_sb_bytes(x->c, sb, "%", 1, jn_origin_at(fmt, (size_t)(p - 1 - fmt->p)));
        return p;
    }
    percent_field(x, sb, v.type == JN_MISSING ? next_arg(x) : v, &f);
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

static void parse_spec(struct jinja_ctx *c, const char *p, const char *end, struct spec *f)
{
    const char *next = p;
    *f = (struct spec){.fill = ' ', .precision = -1};
    if (p >= end) return;
    uint32_t first = jn_decode(p, end, &next);
    if (next < end && strchr("<>^=", *next)) {
        f->fill = first;
        f->align = *next;
        p = next + 1;
    } else if (strchr("<>^=", *p)) {
        f->align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' ')) f->sign = *p++;
    if (p < end && *p == '#') {
        f->alt = true;
        p++;
    }
    if (p < end && *p == '0') {
        f->zero = true;
        p++;
    }
    f->width = field_number(c, &p, end);
    if (p < end && (*p == ',' || *p == '_')) f->group = *p++;
    if (p < end && *p == '.') {
        p++;
        if (p >= end || *p < '0' || *p > '9') jn_error(c, "format specifier missing precision");
        f->precision = field_number(c, &p, end);
    }
    if (p < end) f->type = *p++;
    if (p < end) jn_error(c, "invalid format specifier");
}

static void format_value(struct jinja_ctx *c, struct jn_sb *sb, struct jinja_value v, const char *spec,
                         const char *end)
{
    struct spec f;
    double d;
    if (spec >= end) {
        jn_print(c, sb, v);
        return;
    }
    parse_spec(c, spec, end, &f);
    if (v.type == JN_STR) {
        if ((f.type && f.type != 's') || f.sign || f.align == '=')
            jn_error(c, "invalid format specifier for str");
        if (f.zero && !f.align) f.fill = '0';
        put_text(c, sb, v, &f, '<');
    } else if (v.type == JN_FLOAT || ((v.type == JN_INT || v.type == JN_BIG || v.type == JN_BOOL) && f.type &&
                                      strchr("eEfFgG%", f.type))) {
        if (f.type && !strchr("eEfFgG%", f.type)) jn_error(c, "unknown format code '%c' for float", f.type);
        jn_as_num(v, &d);
        put_float(c, sb, d, &f, v.origin);
    } else if (v.type == JN_INT || v.type == JN_BOOL) {
        if (f.type == 'c') {
            char utf8[4];
            struct jn_sb one = jn_sb_new(c);
            if (v.u.i < 0 || v.u.i > 0x10ffff) jn_error(c, "%%c arg not in range");
            jn_sb_bytes(c, &one, utf8, jn_encode((uint32_t)v.u.i, utf8), v.origin);
            put_field(c, sb, jn_sb_value(c, &one).u.s, &f, '<', 0);
            return;
        }
        if (f.precision >= 0) jn_error(c, "precision not allowed in integer format specifier");
        if (f.type && !strchr("dnboxX", f.type)) jn_error(c, "unknown format code '%c' for int", f.type);
        put_int(c, sb, v.u.i, &f, v.origin);
    } else if (v.type == JN_BIG) {
        if (f.precision >= 0) jn_error(c, "precision not allowed in integer format specifier");
        put_big(c, sb, v, &f);
    } else {
        jn_error(c, "unsupported format string passed to %s.__format__", jn_type_name(v));
    }
}

/* field_name = arg ("." attribute | "[" index "]")* */
static struct jinja_value find_field(struct jinja_ctx *c, const struct jn_args *a, const char *p,
                                     const char *end, uint32_t *next_auto, bool *manual)
{
    const char *q = p;
    while (q < end && *q != '.' && *q != '[') q++;
    struct jinja_value v = JN_V(JN_MISSING, i, 0);
    if (q == p || (*p >= '0' && *p <= '9')) {
        uint32_t idx = *next_auto;
        if (q > p) {
            const char *num = p;
            idx = (uint32_t)field_number(c, &num, q);
            if (num != q) jn_error(c, "bad field name in a format string");
            if (*next_auto) jn_error(c, "cannot switch from automatic field numbering to manual");
            *manual = true;
        } else {
            if (*manual) jn_error(c, "cannot switch from manual field numbering to automatic");
            (*next_auto)++;
        }
        if (idx >= a->count) jn_error(c, "replacement index %u out of range for positional args", idx);
        v = a->pos[idx];
    } else {
        for (uint32_t k = 0; k < a->kw_count; k++)
            if (a->names[k].u.s->len == (size_t)(q - p) &&
                memcmp(a->names[k].u.s->p, p, (size_t)(q - p)) == 0)
                v = a->vals[k];
        if (v.type == JN_MISSING) jn_error(c, "a keyword of the format string is missing");
    }
    while (q < end) {
        bool item = *q == '[';
        p = ++q;
        while (q < end && (item ? *q != ']' : *q != '.' && *q != '[')) q++;
        if (q == p || (item && q >= end)) jn_error(c, "empty attribute in format string");
        struct jinja_value key = jinja_string_copy(c, p, (size_t)(q - p), JINJA_TEMPLATE);
        if (item && *p >= '0' && *p <= '9') {
            const char *num = p;
            key = JN_V(JN_INT, i, field_number(c, &num, q));
            if (num != q) jn_error(c, "bad index in a format string");
        }
        v = item ? jn_getitem(c, v, key) : jn_getattr(c, v, key);
        if (item) {
            q++;
            if (q < end && *q != '.' && *q != '[')
                jn_error(c, "only '.' or '[' may follow ']' in format field specifier");
        }
    }
    return v;
}

static const char *format_field(struct jinja_ctx *c, struct jn_sb *sb, const struct jn_args *a, const char *p,
                                const char *end, uint32_t *next_auto, bool *manual)
{
    const char *close = p, *name_end;
    int brackets = 0;
    while (close < end && (brackets || *close != '}')) {
        if (*close == '{') jn_error(c, "nested replacement fields are not supported");
        brackets = *close == '[' ? 1 : *close == ']' ? 0 : brackets;
        close++;
    }
    if (close >= end) jn_error(c, "expected '}' before end of string");
    for (name_end = p; name_end < close && *name_end != '!' && *name_end != ':'; name_end++) {
    }
    struct jinja_value v = find_field(c, a, p, name_end, next_auto, manual);
    const char *spec = name_end;
    if (spec < close && *spec == '!') {
        char conv = spec + 1 < close ? spec[1] : 0;
        spec += 2;
        if (conv == 'r' || conv == 'a') {
            struct jn_sb r = jn_sb_new(c);
            jn_repr(c, &r, v);
            v = jn_sb_value(c, &r);
        } else if (conv == 's') {
            v = jn_to_str(c, v);
        } else {
            jn_error(c, "unknown conversion specifier");
        }
        if (spec < close && *spec != ':') jn_error(c, "expected ':' after conversion specifier");
    }
    if (spec < close && *spec == ':') spec++;
    format_value(c, sb, v, spec, close);
    return close + 1;
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
        } else if (*q == '}') {
            jn_error(c, "single '}' encountered in format string");
        } else {
            p = format_field(c, &sb, a, q + 1, end, &next_auto, &manual);
        }
    }
    return jn_sb_value(c, &sb);
}
