/* Attention spans: runs of prompt tokens whose attention mask differs from text, or whose embeddings do not
 * come from their ids. prompt_build makes them by the family's rule; scheduler, cache and attention know only
 * spans, no images. */
#ifndef KVASIR_SPAN_H
#define KVASIR_SPAN_H

#include "engine/prompt/image.h"

#include <stdbool.h>
#include <stdint.h>

/* 3-D positions (mRoPE) of an image's tokens. Its token i lies at t = i / (h w), y = i / w % h, x = i % w;
 * with B the next free position before it, its position is (B + floor(t * seconds), B + y, B + x), and the
 * next free position after it is B + 1 + max(floor((t-1) * seconds), h-1, w-1). */
struct prompt_grid {
    uint32_t t, h, w; /* in tokens: t * h * w = end - begin */
    double seconds;   /* rope positions between two frames; 0 for still images */
    /* Plain positions, and between rows lies a token that has an embedding instead of a feature: h * (w + 1)
     * - 1 tokens. */
    bool breaks;
};

static inline bool prompt_grid_break(const struct prompt_grid *g, uint32_t i)
{
    return g->breaks && i % (g->w + 1) == g->w;
}
/* The feature of token i, which is no break. */
static inline uint32_t prompt_grid_feature(const struct prompt_grid *g, uint32_t i)
{
    return g->breaks ? i - i / (g->w + 1) : i;
}

/* floor(t * seconds), in float32 as in transformers: rounding matters near whole numbers. */
static inline int32_t prompt_grid_time(const struct prompt_grid *g, uint32_t t)
{
    return (int32_t)((float)t * (float)g->seconds);
}
static inline bool prompt_grid_equal(const struct prompt_grid *a, const struct prompt_grid *b)
{
    return a->t == b->t && a->h == b->h && a->w == b->w && a->seconds == b->seconds && a->breaks == b->breaks;
}

/* A run of tokens with its own mask and identity; it may be an image (or a crop, a frame). */
struct prompt_span {
    uint32_t begin, end; /* token indices */
    enum span_rule rule;
    /* The tokens that must stay together: no prefill chunk and no cache hit ends between them. The span
     * itself, or, for SPAN_PREFIX_LM, the beginning of the prompt, which its spans fill; begin = end for
     * SPAN_CAUSAL. */
    uint32_t atomic_begin, atomic_end;
    uint8_t key[32]; /* 256-bit content key of the image: pixels and preprocessing parameters. All zero =
                        identity uncertain: nothing from `begin` on is cached */
    /* SPAN_PREFIX_LM: of all that lies in [atomic_begin, atomic_end), zero as above */
    uint8_t atomic_key[32];
    int32_t mrope_delta;     /* next rope position minus token count after the span; 0 with 1-D positions */
    struct prompt_grid grid; /* all 0 with 1-D positions and without breaks */
    /* The image: its features replace the embeddings of its tokens (prompt_grid_feature). */
    bool image;
    /* resized for the tower; owned by the prompt. rgb NULL: not decoded yet; the scheduler requests it
     * (EV_IMAGE) if neither its KV nor its features are cached */
    struct image_u8 pixels;
};
/* True if no run of tokens may end at p (0 < p); s is the first span that ends after p. */
static inline bool span_cut(const struct prompt_span *s, uint32_t p)
{
    return s->atomic_begin < p && p < s->atomic_end;
}
/* What distinguishes the KV of its tokens from that of other tokens at the same position after the same
 * prefix. */
static inline const uint8_t *span_identity(const struct prompt_span *s)
{
    return s->rule == SPAN_PREFIX_LM ? s->atomic_key : s->key;
}
/* An image's span without key, positions and pixels; not for SPAN_PREFIX_LM. */
static inline struct prompt_span span_of_image(uint32_t begin, uint32_t end, enum span_rule rule)
{
    bool whole = rule != SPAN_CAUSAL;
    return (struct prompt_span){.begin = begin,
                                .end = end,
                                .rule = rule,
                                .atomic_begin = whole ? begin : 0,
                                .atomic_end = whole ? end : 0,
                                .image = true};
}

#endif
