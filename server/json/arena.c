/* See arena.h. */
#include "server/json/arena.h"

#include "config/base/assert.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct arena_block {
    struct arena_block *next;
    max_align_t data[];
};

struct text json_text(const json_t *v)
{
    return (struct text){json_string_value(v), json_string_length(v)};
}

bool text_is(struct text t, const char *s)
{
    return t.data && t.len == strlen(s) && memcmp(t.data, s, t.len) == 0;
}

void *arena_alloc(struct arena *a, size_t count, size_t size)
{
    if (size && count > (SIZE_MAX - sizeof(struct arena_block)) / size) return NULL;
    struct arena_block *b = calloc(1, sizeof *b + count * size);
    if (!b) return NULL;
    b->next = a->blocks;
    a->blocks = b;
    return b->data;
}

json_t *arena_keep(struct arena *a, json_t *v)
{
    if (!a->values) a->values = json_array();
    return !a->values || json_array_append_new(a->values, v) ? NULL : v;
}

enum status arena_text(struct arena *a, const json_t *v, struct text *out)
{
    ASSERT(json_is_string(v));
    *out = json_text(v);
    return arena_keep(a, json_incref((json_t *)(uintptr_t)v)) ? ST_OK : ST_NOMEM;
}

enum status arena_copy(struct arena *a, const char *s, size_t len, struct text *out)
{
    char *copy = len < SIZE_MAX ? arena_alloc(a, len + 1, 1) : NULL;
    if (!copy) return ST_NOMEM;
    memcpy(copy, s, len);
    *out = (struct text){copy, len};
    return ST_OK;
}

void arena_free(struct arena *a)
{
    for (struct arena_block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    json_decref(a->values);
    *a = (struct arena){0};
}
