/* Whole numbers that 64 bits don't hold: kept as the digits that were written. They print and compare as
 * Python's do; arithmetic on them is an overflow like any other, where it doesn't end in a float. */
#include "server/jinja/internal.h"

#include <math.h>
#include <stdio.h>

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

struct jinja_value jn_float_digits(struct jinja_ctx *c, struct jinja_value v)
{
    char text[400]; /* a double has up to 309 digits */
    int n = snprintf(text, sizeof text, "%.0f", trunc(v.u.f));
    return jn_int_digits(c, text, (size_t)n, v.origin);
}

struct jinja_value jn_big_negate(struct jinja_ctx *c, struct jinja_value v)
{
    const struct jinja_str *s = v.u.s;
    if (*s->p == '-') return jn_int_digits(c, s->p + 1, s->len - 1, v.origin);
    char *p = jn_alloc(&c->base, s->len + 1u);
    *p = '-';
    memcpy(p + 1, s->p, s->len);
    return jn_int_digits(c, p, s->len + 1u, v.origin);
}

static int compare_digits(const char *a, size_t na, const char *b, size_t nb)
{
    bool minus = *a == '-';
    if (minus != (*b == '-')) return minus ? -1 : 1;
    int d = na != nb ? (na > nb) - (na < nb) : memcmp(a, b, na);
    return minus ? -d : d;
}

int jn_big_compare(struct jinja_value big, struct jinja_value other)
{
    const struct jinja_str *s = big.u.s;
    char text[400]; /* a double has up to 309 digits */
    int sign = *s->p == '-' ? -1 : 1;
    if (other.type == JN_BIG) return compare_digits(s->p, s->len, other.u.s->p, other.u.s->len);
    if (other.type != JN_FLOAT || fabs(other.u.f) < 0x1p63) return sign;
    if (isinf(other.u.f)) return other.u.f < 0 ? 1 : -1;
    int n = snprintf(text, sizeof text, "%.0f", other.u.f);
    return compare_digits(s->p, s->len, text, (size_t)n);
}

struct jinja_value jn_big_binary(struct jinja_ctx *c, enum jn_op op, struct jinja_value a, int64_t b)
{
    if (op != OP_MOD || b <= 0 || b > UINT32_MAX) jn_error(c, "integer overflow");
    int64_t r = 0;
    bool minus = *a.u.s->p == '-';
    jn_charge(c, a.u.s->len);
    for (const char *p = a.u.s->p + minus; *p; p++) r = (r * 10 + (*p - '0')) % b;
    return JN_V(JN_INT, i, minus && r ? b - r : r);
}
