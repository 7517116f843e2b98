/* Log-probabilities as JSON. An entry is rendered per token; an event or the response takes those rendered so
 * far. Internal to server/dialect/. Event loop's thread. */
#ifndef KVASIR_LOGPROBS_OUT_H
#define KVASIR_LOGPROBS_OUT_H

#include "server/generate/generate.h"

/* struct dialect: {"token", "logprob", "bytes", "top_logprobs"} -> part[0], comma-separated. */
enum status logprobs_entry(struct choice *c, const struct token_out *t, uint32_t id, size_t offset);
/* Writes a part, and empties it; o NULL: drops it. */
void logprobs_take(struct json_writer *o, struct logprobs *l, int part);
uint32_t logprobs_top(const struct choice *c, const struct token_out *t); /* alternatives to write */
void logprobs_token(struct json_writer *o, const struct choice *c,
                    uint32_t id); /* its text, or "token_id:42" */
void logprobs_value(struct json_writer *o, float logprob);
/* ,"prompt_logprobs":[null,{"<id>":{"logprob":..,"rank":..,"decoded_token":..},..},..] */
void logprobs_prompt(struct json_writer *o, const struct generation *g, const struct gen_prompt *p);

#endif
