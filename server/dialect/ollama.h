/* Shared by the files of Ollama's dialect. Internal to server/dialect/. */
#ifndef KVASIR_OLLAMA_DIALECT_H
#define KVASIR_OLLAMA_DIALECT_H

#include "server/dialect/dialect.h"
#include "server/dialect/logprobs_out.h"
#include "server/generate/delta.h"

/* gen.dialect_state */
struct ollama_state {
    uint32_t begun, sent; /* calls of a stream; a call is sent when it is complete */
};

/* ollama_out.c */
/* The response to a request without a prompt, which Ollama's clients send to load a model. */
enum status ollama_loaded(struct generation *g);
void ollama_write_response(struct json_writer *o, struct choice *c);
void ollama_delta(struct choice *c, const struct delta *delta);
void ollama_tail(struct choice *c);
void ollama_error(struct generation *g);

#endif
