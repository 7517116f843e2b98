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

void selects_tests(const char *pattern, const struct CMUnitTest *tests, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fnmatch(pattern, tests[i].name, 0) == 0) {
            cmocka_set_test_filter(pattern);
            return;
        }
    fprintf(stderr, "--only %s selects no test\n", pattern);
    exit(2);
}
