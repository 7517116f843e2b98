/* See decimal.h. */
#include "config/base/decimal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void decimal_shortest(double v, bool single, int from, char text[DECIMAL_BYTES])
{
    for (int digits = from, most = single ? 9 : 17; digits <= most; digits++) {
        snprintf(text, DECIMAL_BYTES, "%.*g", digits, v);
        if (single ? strtof(text, NULL) == (float)v : strtod(text, NULL) == v) return;
    }
}

size_t decimal_repr(double v, char text[DECIMAL_BYTES])
{
    if (isnan(v)) v = fabs(v); /* printf writes its sign */
    decimal_shortest(v, false, 1, text);
    bool exponent = strchr(text, 'e'), large = fabs(v) >= 1e16 && !isinf(v);
    if (exponent && !large && fabs(v) >= 1) snprintf(text, DECIMAL_BYTES, "%.0f", v);
    if (!exponent && large) snprintf(text, DECIMAL_BYTES, "%.16e", v); /* it has 17 digits */
    if (!strpbrk(text, ".en")) strcat(text, ".0");
    return strlen(text);
}
