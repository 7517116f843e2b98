/* See selectors.h. */
#include "tests/lib/selectors.h"

#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static bool variant_found, kernels_found;

bool selects_variant(const char *name)
{
    const char *only = getenv("GOLDEN_VARIANT");
    bool found = only && strstr(name, only);
    variant_found = variant_found || found;
    return found || !only;
}

bool selects_kernels(const char *set)
{
    const char *only = getenv("GOLDEN_KERNELS");
    bool found = only && strcmp(set, only) == 0;
    kernels_found = kernels_found || found;
    return found || !only;
}

int selectors_end(int failed)
{
    const char *variant = getenv("GOLDEN_VARIANT"), *kernels = getenv("GOLDEN_KERNELS");
    bool lost = (variant && !variant_found) || (kernels && !kernels_found);
    if (variant && !variant_found) fprintf(stderr, "GOLDEN_VARIANT=%s selects no checkpoint\n", variant);
    if (kernels && !kernels_found) fprintf(stderr, "GOLDEN_KERNELS=%s selects no kernel set\n", kernels);
    return failed || !lost ? failed : 1;
}

#ifndef KVASIR_TEST_CMOCKA_H
/* The linker's names for cmocka's function and for what every program calls in its place (Makefile). */
int __real__cmocka_run_group_tests(const char *, const struct CMUnitTest *, size_t, CMFixtureFunction,
                                   CMFixtureFunction);
int __wrap__cmocka_run_group_tests(const char *, const struct CMUnitTest *, size_t, CMFixtureFunction,
                                   CMFixtureFunction);
int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown)
{
    const char *only = getenv("TEST_ONLY");
    size_t i = 0;
    while (only && i < count && fnmatch(only, tests[i].name, 0) != 0) i++;
    if (i == count) return fprintf(stderr, "TEST_ONLY=%s selects no test\n", only), 2;
    cmocka_set_test_filter(only);
    return __real__cmocka_run_group_tests(name, tests, count, setup, teardown);
}
/* cmocka's looks at one byte after the other. */
void __real__assert_memory_equal(const void *, const void *, size_t, const char *, int);
void __wrap__assert_memory_equal(const void *, const void *, size_t, const char *, int);
void __wrap__assert_memory_equal(const void *a, const void *b, size_t size, const char *file, int line)
{
    if (memcmp(a, b, size) != 0) __real__assert_memory_equal(a, b, size, file, line);
}
#endif
