/* What leaves tests out: environment variables and `--only`. A selector that selects nothing fails the
 * program, as a misspelt name would otherwise pass. */
#ifndef KVASIR_TEST_SELECTORS_H
#define KVASIR_TEST_SELECTORS_H

#include <stdbool.h>
#include <stddef.h>

/* GOLDEN_VARIANT is not set, or is a part of the name. */
bool selects_variant(const char *name);
/* GOLDEN_KERNELS is not set, or is the name of the kernel set. */
bool selects_kernels(const char *set);
/* The value for main: the number of failed tests, or 1 with a message where one of the two variables is set
 * and has selected nothing. */
int selectors_end(int failed);

struct CMUnitTest;
/* `--only PATTERN` of a program: leaves out the tests whose names don't match (`*`, `?`). Ends the program
 * with a message when none does. */
void selects_tests(const char *pattern, const struct CMUnitTest *tests, size_t count);

#endif
