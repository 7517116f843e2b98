/* See number.h. Bounds are compared digit by digit: first the integral part, which has no leading zeros,
 * so that a longer one is larger, then the fraction. */
#include "config/base/assert.h"
#include "server/grammar/json/number.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DIGITS_MAX 340

struct decimal { /* a magnitude: digits before and after the point, without trailing zeros */
    char text[2 * DIGITS_MAX], *whole, *part;
    size_t whole_len, part_len;
};

static void decimal_of(double v, struct decimal *d)
{
    ASSERT(isfinite(v));
    v = fabs(v);
    /* The shortest digits of this number. */
    int n = 0;
    for (; n < 17; n++) {
        double back = 0;
        snprintf(d->text, sizeof d->text, "%.*f", n, v);
        if (sscanf(d->text, "%lf", &back) == 1 && !(back < v) && !(back > v)) break;
    }
    snprintf(d->text, sizeof d->text, "%.*f", n, v);
    d->whole = d->text;
    d->whole_len = strcspn(d->text, ".");
    d->part = d->text + d->whole_len + (d->text[d->whole_len] == '.');
    d->part_len = strlen(d->part);
    while (d->part_len && d->part[d->part_len - 1] == '0') d->part_len--;
}

static rx digits(struct rx_pool *p, int from, int to)
{
    return from > to ? RX_NONE : rx_chars(p, (uint32_t)('0' + from), (uint32_t)('0' + to));
}

static rx some(struct rx_pool *p, uint32_t min, uint32_t max)
{
    return rx_repeat(p, digits(p, 0, 9), min, max);
}

/* Integral parts above (sign 1) or below (sign -1) the given one. */
static rx whole_beyond(struct rx_pool *p, const struct decimal *d, int sign)
{
    uint32_t n = (uint32_t)d->whole_len;
    rx out = RX_NONE;
    if (sign > 0) {
        out = rx_concat(p, digits(p, 1, 9), some(p, n, RX_NO_LIMIT));
    } else if (n > 1) {
        out = rx_alt(p, rx_literal(p, "0", 1), rx_concat(p, digits(p, 1, 9), some(p, 0, n - 2)));
    }
    for (uint32_t i = 0; i < n; i++) {
        int c = d->whole[i] - '0', low = i == 0 && n > 1;
        rx here = sign > 0 ? digits(p, c + 1, 9) : digits(p, low, c - 1);
        if (i == 0 && sign > 0 && c == 0) here = digits(p, 1, 9);
        rx one = rx_concat(p, rx_literal(p, d->whole, i), rx_concat(p, here, some(p, n - i - 1, n - i - 1)));
        out = rx_alt(p, out, one);
    }
    return out;
}

/* ".digits" or nothing, compared with the fraction: above or below, optionally equal. */
static rx part_beyond(struct rx_pool *p, const struct decimal *d, int sign, bool equal, rx any)
{
    rx point = rx_literal(p, ".", 1), out = RX_NONE;
    uint32_t n = (uint32_t)d->part_len;
    rx zeros = rx_repeat(p, digits(p, 0, 0), 0, RX_NO_LIMIT);
    for (uint32_t i = 0; i < n; i++) {
        int c = d->part[i] - '0';
        rx here = sign > 0 ? digits(p, c + 1, 9) : digits(p, 0, c - 1);
        out = rx_alt(p, out,
                     rx_concat(p, rx_literal(p, d->part, i), rx_concat(p, here, some(p, 0, RX_NO_LIMIT))));
        /* a prefix of it is less */
        if (sign < 0 && i > 0) out = rx_alt(p, out, rx_literal(p, d->part, i));
    }
    rx same = rx_literal(p, d->part, n);
    if (sign > 0) {
        rx more = rx_concat(p, zeros, rx_concat(p, digits(p, 1, 9), some(p, 0, RX_NO_LIMIT)));
        out = rx_alt(p, out, rx_concat(p, same, more));
    }
    if (equal)
        out = rx_alt(p, out, rx_concat(p, same, n ? zeros : rx_repeat(p, digits(p, 0, 0), 1, RX_NO_LIMIT)));
    out = rx_concat(p, point, out);
    /* An absent fraction is zero. */
    if ((equal && !n) || (sign < 0 && n)) out = rx_alt(p, out, RX_EMPTY);
    return rx_and(p, out, any);
}

/* Magnitudes at or past the bound; out: the bound is exclusive. */
static rx beyond(struct rx_pool *p, double bound, int sign, bool out, rx any_part)
{
    struct decimal d;
    decimal_of(bound, &d);
    rx equal = rx_concat(p, rx_literal(p, d.whole, d.whole_len), part_beyond(p, &d, sign, !out, any_part));
    return rx_alt(p, equal, rx_concat(p, whole_beyond(p, &d, sign), any_part));
}

static rx magnitudes(struct rx_pool *p, bool has_low, double low, bool over, bool has_high, double high,
                     bool under, rx any_part)
{
    rx whole = rx_alt(p, rx_literal(p, "0", 1), rx_concat(p, digits(p, 1, 9), some(p, 0, RX_NO_LIMIT)));
    rx out = rx_concat(p, whole, any_part);
    if (has_low && (low > 0 || over)) out = rx_and(p, out, beyond(p, low, 1, over, any_part));
    if (has_high) out = rx_and(p, out, beyond(p, high, -1, under, any_part));
    return out;
}

static rx one_of(struct rx_pool *p, char a, char b)
{
    uint32_t set[8] = {0};
    set[(unsigned char)a >> 5] |= 1u << (a & 31);
    set[(unsigned char)b >> 5] |= 1u << (b & 31);
    return rx_bytes(p, set);
}

/* Magnitudes below 1 (sign -1) or from 1 up: d.ddd with an exponent in the range of doubles. */
static rx scientific(struct rx_pool *p, int sign)
{
    ASSERT(sign == 1 || sign == -1);
    rx zeros = rx_repeat(p, digits(p, 0, 0), 0, RX_NO_LIMIT),
       part = rx_repeat(p, rx_concat(p, rx_literal(p, ".", 1), some(p, 1, RX_NO_LIMIT)), 0, 1),
       size = rx_alt(p, rx_concat(p, digits(p, 1, 9), some(p, 0, 1)),
                     rx_concat(p, digits(p, 1, 2), some(p, 2, 2))),
       up = rx_concat(p, rx_repeat(p, rx_literal(p, "+", 1), 0, 1),
                      rx_concat(p, zeros, rx_alt(p, size, digits(p, 0, 0)))),
       down = rx_concat(p, rx_literal(p, "-", 1), rx_concat(p, zeros, size));
    rx e = rx_concat(p, one_of(p, 'e', 'E'), sign < 0 ? down : up);
    return rx_concat(p, digits(p, 1, 9), rx_concat(p, part, e));
}

static rx with_exponents(struct rx_pool *p, const struct number_bounds *b, rx out)
{
    rx minus = rx_literal(p, "-", 1);
    for (int negative = 0; negative < 2; negative++) {
        /* The allowed magnitudes of this sign. */
        bool has_low = negative ? b->has_max : b->has_min, has_high = negative ? b->has_min : b->has_max;
        double low = negative ? -b->max : b->min, high = negative ? -b->min : b->max;
        bool over = negative ? b->under_max : b->over_min;
        for (int sign = -1; sign < 2; sign += 2) {
            bool from = sign < 0 ? !has_low || low <= 0 : !has_low || low < 1 || (low <= 1 && !over);
            bool to = sign < 0 ? !has_high || high >= 1 : !has_high;
            rx one = from && to ? scientific(p, sign) : RX_NONE;
            out = rx_alt(p, out, negative ? rx_concat(p, minus, one) : one);
        }
    }
    return out;
}

rx json_number(struct rx_pool *p, const struct number_bounds *b)
{
    rx point = rx_literal(p, ".", 1), minus = rx_literal(p, "-", 1), part = RX_EMPTY;
    if (!b->integer) part = rx_alt(p, RX_EMPTY, rx_concat(p, point, some(p, 1, RX_NO_LIMIT)));
    if (!b->has_min && !b->has_max) {
        rx all = magnitudes(p, false, 0, false, false, 0, false, part);
        rx exponent =
            rx_concat(p, one_of(p, 'e', 'E'),
                      rx_concat(p, rx_repeat(p, one_of(p, '+', '-'), 0, 1), some(p, 1, RX_NO_LIMIT)));
        if (!b->integer && !b->plain) all = rx_concat(p, all, rx_repeat(p, exponent, 0, 1));
        return rx_concat(p, rx_repeat(p, minus, 0, 1), all);
    }
    rx out = RX_NONE;
    bool zero_in = (!b->has_min || b->min < 0 || (b->min <= 0 && !b->over_min)) &&
                   (!b->has_max || b->max > 0 || (b->max >= 0 && !b->under_max));
    if (!b->has_max || b->max > 0)
        out = magnitudes(p, b->has_min && b->min >= 0, b->has_min ? b->min : 0, b->over_min, b->has_max,
                         b->max, b->under_max, part);
    else if (zero_in) out = magnitudes(p, false, 0, false, true, 0, false, part);
    if (!b->has_min || b->min < 0) {
        rx below = magnitudes(p, b->has_max && b->max <= 0, b->has_max ? -b->max : 0, b->under_max,
                              b->has_min, -b->min, b->over_min, part);
        if (!zero_in || b->has_max) /* -0 is 0 */
            below = rx_and(p, below, beyond(p, 0, 1, !zero_in, part));
        out = rx_alt(p, out, rx_concat(p, minus, below));
    }
    return b->integer || b->plain ? out : with_exponents(p, b, out);
}
