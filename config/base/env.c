/* See env.h. */
#include "config/base/env.h"

#include <stdlib.h>

const char *env_get(const char *name)
{
    return getenv(name);
}
