/* A prompt of token ids (copied), for tests. */
#ifndef KVASIR_TEST_PROMPT_IDS_H
#define KVASIR_TEST_PROMPT_IDS_H

#include "engine/prompt/prompt_build.h"

#include <stdlib.h>
#include <string.h>

static inline enum status prompt_from_ids(const struct model_info *m, const uint32_t *ids, size_t count,
                                          struct prompt *out, struct err *err)
{
    struct prompt p = {.tokens = calloc(count + 1, sizeof *ids), .token_count = (uint32_t)count};
    memcpy(p.tokens, ids, count * sizeof *ids);
    enum status st = prompt_check(m, &p, err);
    if (!st) st = prompt_apply_rule(m, &p, err);
    if (st) prompt_free(&p);
    else *out = p;
    return st;
}

#endif
