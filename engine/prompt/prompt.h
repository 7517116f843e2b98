/* A prompt as the scheduler and the engine see it: token ids plus spans. Plain data, built off the
 * engine thread by prompt_build (engine/prompt/prompt.c). The server's request owns it; the scheduler borrows
 * it until the sequence's final event. */
#ifndef KVASIR_PROMPT_H
#define KVASIR_PROMPT_H

#include "config/base/status.h"
#include "engine/prompt/span.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct prompt {
    uint32_t *tokens; /* [token_count], owned */
    uint32_t token_count;
    struct prompt_span *spans; /* [span_count] in order of begin, disjoint; owned */
    uint32_t span_count;
};
void prompt_free(struct prompt *p);
/* Makes the whole prompt one SPAN_PREFIX_LM: the text around the images gets its own spans, and every span
 * gets the identity of the whole, the images' keys included. Call it again after any change. On error nothing
 * changes. */
enum status prompt_prefix_lm(struct prompt *p, struct err *err) KV_MUST_CHECK;
/* Index of the span of image n; span_count: there is none. */
uint32_t prompt_image(const struct prompt *p, uint32_t n);

#endif
