/* Shorthands for the tokenizer's functions, for tests. */
#ifndef KVASIR_TEST_TOKENS_H
#define KVASIR_TEST_TOKENS_H

#include "engine/tokenizer/tokenizer.h"

#include <string.h>

static inline enum status tok_load(const char *dir, struct tokenizer **out, struct err *err)
{
    return tok_load_extra(dir, NULL, 0, out, err);
}

/* The special token of that role; NULL: none. */
static inline const char *tok_special(const struct tokenizer *t, const char *role)
{
    const char *name, *content;
    for (size_t i = 0; tok_special_role(t, i, &name, &content); i++)
        if (strcmp(name, role) == 0) return content;
    return NULL;
}

/* Whether a text gets a token in front. */
static inline bool tok_adds_bos(const struct tokenizer *t, uint32_t *bos_id)
{
    struct tok_ids ids = {0};
    struct err err;
    bool adds = tok_encode(t, NULL, 0, true, 8, &ids, &err) == ST_OK && ids.count > 0;
    if (adds) *bos_id = ids.ids[0];
    tok_ids_free(&ids);
    return adds;
}

#endif
