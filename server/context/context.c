/* See context.h. */
#include "server/context/context.h"

#include "server/context/adapters.h"

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

bool models_next(const struct context *x, struct model_iter *it)
{
    if (!it->lora) {
        it->name = it->name ? it->name + strlen(it->name) + 1 : x->model_name;
        if (it->name < x->model_names_end) return true;
    }
    it->lora = lora_next(x->adapters, it->lora);
    if (it->lora) it->name = it->lora->name;
    return it->lora != NULL;
}
