/* Selecting tests by environment variables. A selector that selects nothing fails the program; otherwise a
 * misspelt name would pass. TEST_ONLY=PATTERN (`*`, `?`) selects among the tests of any program. */
#ifndef KVASIR_TEST_SELECTORS_H
#define KVASIR_TEST_SELECTORS_H

#include <stdbool.h>

/* GOLDEN_VARIANT is not set, or is a part of the name. */
bool selects_variant(const char *name);
/* GOLDEN_KERNELS is not set, or is the name of the kernel set. */
bool selects_kernels(const char *set);
/* The value for main: the number of failed tests, or 1 with a message if one of the two variables is set and
 * selected nothing. */
int selectors_end(int failed);

#endif
