/* What input/prompt.c (completions) and input/chat.c (chats) share. Worker thread. */
#ifndef KVASIR_GEN_PROMPT_H
#define KVASIR_GEN_PROMPT_H

#include "server/input/input.h"

uint32_t gen_ids_max(const struct generation *g);             /* more ids are rejected during tokenization */
enum status gen_too_long(struct generation *g) KV_MUST_CHECK; /* sets that error */
enum status gen_prompts_new(struct generation *g,
                            size_t count) KV_MUST_CHECK; /* so many, empty; or too many */
/* The next prompt has its tokens: truncates it as truncate_prompt_tokens says, checks that it fits the
 * context with the output, and that the request's prompts are not too much together. */
enum status gen_prompt_made(struct generation *g, struct gen_prompt *p) KV_MUST_CHECK;
/* A prompt of /v1/completions that is a list of content parts, for models with their own prompt format:
 * handled like a chat with this one message, in two steps. */
enum status gen_read_parts(struct generation *g, json_t *parts) KV_MUST_CHECK;
enum status gen_prompt_parts(struct generation *g) KV_MUST_CHECK;

#endif
