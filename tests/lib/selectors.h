/* Selecting tests by environment variables and `--only`. A selector that selects nothing fails the program;
 * otherwise a misspelt name would pass. */
#ifndef KVASIR_TEST_SELECTORS_H
#define KVASIR_TEST_SELECTORS_H

#include <stdbool.h>
#include <stddef.h>

/* GOLDEN_VARIANT is not set, or is a part of the name. */
bool selects_variant(const char *name);
/* GOLDEN_KERNELS is not set, or is the name of the kernel set. */
bool selects_kernels(const char *set);
/* The value for main: the number of failed tests, or 1 with a message if one of the two variables is set and
 * selected nothing. */
int selectors_end(int failed);

struct CMUnitTest;
/* `--only PATTERN` of a program: skips the tests whose names don't match (`*`, `?`). Ends the program with a
 * message if none does. */
void selects_tests(const char *pattern, const struct CMUnitTest *tests, size_t count);

#endif
