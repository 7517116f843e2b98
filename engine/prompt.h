/* A prompt as the scheduler and the engine see it: token ids plus image spans. Plain data, built off the engine thread by prompt_build
 * (engine/prompt.c). The server's request owns it; the scheduler borrows it until the sequence's final event. */
#ifndef KVASIR_PROMPT_H
#define KVASIR_PROMPT_H

#include "config/base/status.h"
#include "engine/image.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One picture (or crop) that stands in the prompt: tokens [begin, end) are its soft tokens; row i of its features replaces the embedding of token begin+i. */
struct prompt_image {
    uint32_t begin, end;   /* token indices; end - begin = feature rows */
    uint8_t key[32];       /* 256-bit content key: pixels and preprocessing parameters. All zero = identity in doubt: nothing from `begin` on is cached */
    struct image_u8 pixels; /* resized to what the tower takes; owned by the prompt. rgb NULL: not decoded yet; the scheduler asks for it
                             * (EV_IMAGE) when neither its KV nor its features are cached */
    int32_t rope_offset;   /* next rope position minus token count behind this picture; 0 with 1-D positions */
    bool atomic;           /* its tokens attend to each other in both directions: never cut */
};

struct prompt {
    uint32_t *tokens; /* [token_count], owned */
    uint32_t token_count;
    struct prompt_image *images; /* [image_count] in order of begin, disjoint; owned */
    uint32_t image_count;
};
void prompt_free(struct prompt *p);

#endif
