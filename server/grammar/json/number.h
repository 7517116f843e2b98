/* Bounded JSON numbers as regular expressions. Internal to server/grammar/. */
#ifndef KVASIR_JSON_NUMBER_H
#define KVASIR_JSON_NUMBER_H

#include "server/grammar/regex.h"

struct number_bounds {
    bool integer, plain;                        /* plain: without an exponent */
    bool has_min, has_max, over_min, under_max; /* over, under: the bound is exclusive */
    double min, max;
};
/* Without bounds a number may have any exponent; with bounds only exponents that certainly fit. RX_NONE: no
 * number fits. */
rx json_number(struct rx_pool *p, const struct number_bounds *b);

#endif
