/* Prefix-LM prompts: see prompt_prefix_lm in prompt.h. */
#include "engine/prompt/prompt.h"

#include "config/base/sha256.h"

#include <stdlib.h>
#include <string.h>

/* Appends the text from where the last span ends up to `end`. */
static void add_text(struct prompt_span *spans, uint32_t *count, uint32_t end)
{
    const struct prompt_span *last = *count ? &spans[*count - 1] : NULL;
    uint32_t begin = last ? last->end : 0;
    if (begin == end) return;
    spans[*count] =
        (struct prompt_span){.begin = begin, .end = end, .mrope_delta = last ? last->mrope_delta : 0};
    ++*count;
}

static bool doubtful(const uint8_t key[32])
{
    static const uint8_t zero[32];
    return memcmp(key, zero, sizeof zero) == 0;
}

/* Hash of the layout, the ids of text and the keys of images; all zero if one of the keys is. */
static void atomic_key(const struct prompt *p, const struct prompt_span *spans, uint32_t count,
                       uint8_t key[32])
{
    struct sha256 h;
    bool doubt = false;
    sha256_init(&h);
    for (uint32_t i = 0; i < count; i++) {
        const struct prompt_span *s = &spans[i];
        const uint32_t head[7] = {s->image,  s->begin,  s->end,   (uint32_t)s->mrope_delta,
                                  s->grid.t, s->grid.h, s->grid.w};
        sha256_add(&h, head, sizeof head);
        sha256_add(&h, &s->grid.seconds, sizeof s->grid.seconds);
        if (s->image) sha256_add(&h, s->key, sizeof s->key);
        else sha256_add(&h, p->tokens + s->begin, (size_t)(s->end - s->begin) * sizeof *p->tokens);
        doubt |= s->image && doubtful(s->key);
    }
    sha256_end(&h, key);
    if (doubt) memset(key, 0, 32);
}

enum status prompt_prefix_lm(struct prompt *p, struct err *err)
{
    struct prompt_span *spans = calloc(2 * (size_t)p->span_count + 1, sizeof *spans);
    uint32_t count = 0;
    uint8_t key[32];
    if (!spans) return err_nomem(err, "the spans of a prompt");
    for (uint32_t i = 0; i < p->span_count; i++) {
        if (!p->spans[i].image) continue; /* text of an earlier call */
        add_text(spans, &count, p->spans[i].begin);
        spans[count++] = p->spans[i];
    }
    add_text(spans, &count, p->token_count);
    atomic_key(p, spans, count, key);
    for (uint32_t i = 0; i < count; i++) {
        spans[i].rule = SPAN_PREFIX_LM;
        spans[i].atomic_begin = 0;
        spans[i].atomic_end = p->token_count;
        memcpy(spans[i].atomic_key, key, sizeof key);
    }
    free(p->spans);
    p->spans = spans;
    p->span_count = count;
    return ST_OK;
}

uint32_t prompt_image(const struct prompt *p, uint32_t n)
{
    uint32_t i = 0;
    while (i < p->span_count && (!p->spans[i].image || n--)) i++;
    return i;
}
