/* See context.h. */
#include "server/context/context.h"

#include <string.h>

const char *model_names_split(char *names, bool list)
{
    char *to = names;
    for (const char *at = names, *next; list && *at; at = next) {
        size_t n = strcspn(at, ",");
        next = at + n + (at[n] == ',');
        for (; n && *at == ' '; n--) at++;
        while (n && at[n - 1] == ' ') n--;
        if (!n) continue;
        memmove(to, at, n);
        to += n;
        *to++ = '\0'; /* at the comma, or before it */
    }
    return to > names ? to : strchr(names, '\0') + 1;
}

const char *model_name_find(const struct context *x, const char *name, size_t len)
{
    for (const char *n = x->model_name; n < x->model_names_end; n += strlen(n) + 1)
        if (strlen(n) == len && memcmp(n, name, len) == 0) return n;
    return NULL;
}
