/* See env.h. */
#include "config/base/env.h"

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

const char *env_get(const char *name)
{
    return getenv(name);
}

char **env_with(const char *const *first, const char *const *second)
{
    const char *const *from[] = {first, second, (const char *const *)environ};
    size_t count = 0;
    for (size_t i = 0; i < 3; i++)
        for (const char *const *e = from[i]; e && *e; e++) count++;
    char **all = calloc(count + 1, sizeof *all), **to = all;
    for (size_t i = 0; all && i < 3; i++)
        for (const char *const *e = from[i]; e && *e; e++) *to++ = (char *)(uintptr_t)*e;
    return all;
}
