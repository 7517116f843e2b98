/* A prompt as the scheduler and the engine see it: token ids plus image spans. Plain data, built off the
 * engine thread by prompt_build (engine/prompt/prompt.c). The server's request owns it; the scheduler borrows
 * it until the sequence's final event. */
#ifndef KVASIR_PROMPT_H
#define KVASIR_PROMPT_H

#include "config/base/status.h"
#include "engine/prompt/image.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 3-D positions (mRoPE) of a picture's tokens. Its token i lies at t = i / (h w), y = i / w % h, x = i % w;
 * with B the next free position in front of it its position is (B + floor(t * seconds), B + y, B + x), and
 * the next free position behind it is B + 1 + max(floor((t-1) * seconds), h-1, w-1). */
struct prompt_grid {
    uint32_t t, h, w; /* in tokens: t * h * w = end - begin */
    double seconds;   /* rope positions between two frames; 0 for still pictures */
};

/* floor(t * seconds), in float32 as transformers computes it: at whole numbers the rounding decides. */
static inline int32_t prompt_grid_time(const struct prompt_grid *g, uint32_t t)
{
    return (int32_t)((float)t * (float)g->seconds);
}
static inline bool prompt_grid_equal(const struct prompt_grid *a, const struct prompt_grid *b)
{
    return a->t == b->t && a->h == b->h && a->w == b->w && a->seconds == b->seconds;
}

/* One picture (or crop) that stands in the prompt: tokens [begin, end) are its soft tokens; row i of its
 * features replaces the embedding of token begin+i. */
struct prompt_image {
    uint32_t begin, end; /* token indices; end - begin = feature rows */
    uint8_t key[32];     /* 256-bit content key: pixels and preprocessing parameters. All zero = identity in
                            doubt: nothing from     `begin` on is cached */
    struct image_u8
        pixels; /* resized to what the tower takes; owned by the prompt. rgb NULL: not decoded yet; the
                 * scheduler asks for it (EV_IMAGE) when neither its KV nor its features are cached */
    int32_t rope_offset; /* next rope position minus token count behind this picture; 0 with 1-D positions */
    struct prompt_grid grid; /* all 0 with 1-D positions */
    bool atomic;             /* its tokens attend to each other in both directions: never cut */
};

struct prompt {
    uint32_t *tokens; /* [token_count], owned */
    uint32_t token_count;
    struct prompt_image *images; /* [image_count] in order of begin, disjoint; owned */
    uint32_t image_count;
};
void prompt_free(struct prompt *p);

#endif
