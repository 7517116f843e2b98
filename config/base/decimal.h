/* The shortest decimals of floating-point numbers. Pure. */
#ifndef KVASIR_DECIMAL_H
#define KVASIR_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>

#define DECIMAL_BYTES 40

/* As %g of printf, with the fewest digits, at least `from`, that are read back as v; `single`: v is a
 * float. */
void decimal_shortest(double v, bool single, int from, char text[DECIMAL_BYTES]);
/* Python's repr of a float: "1.0", "1e+16", "nan", "-inf". Returns the length. */
size_t decimal_repr(double v, char text[DECIMAL_BYTES]);

#endif
