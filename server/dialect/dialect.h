/* APIs other than OpenAI's chat completions. Each reads its body into struct inference_request, checks
 * its own fields, and names them in errors; what all APIs share is checked by generate/ and chat/.
 * messages_in.c and messages_blocks.c read a request, messages_out.c writes its response; responses_in.c and
 * responses_items.c read one, responses_out.c and responses_stream.c write its response, store.c stores it;
 * ollama_in.c reads Ollama's requests, ollama_out.c writes the responses.
 * The tables are for gen_start of generate/generate.h. */
#ifndef KVASIR_DIALECT_H
#define KVASIR_DIALECT_H

#include "server/generate/generate.h"

/* OpenAI's POST /v1/chat/completions and /v1/completions. */
extern const struct dialect dialect_chat;
extern const struct dialect dialect_completions;
/* The prompt of a chat: of /tokenize, /apply-template, /v1/chat/completions/input_tokens. */
extern const struct dialect dialect_chat_tokens;
/* Anthropic's POST /v1/messages. */
extern const struct dialect dialect_messages;
/* POST /v1/messages/count_tokens: reads only. */
extern const struct dialect dialect_count_tokens;
/* OpenAI's POST /v1/responses. */
extern const struct dialect dialect_responses;
/* POST /v1/responses/compact. */
extern const struct dialect dialect_compact;
/* POST /v1/responses/input_tokens: reads only. */
extern const struct dialect dialect_input_tokens;
/* Ollama's POST /api/chat and /api/generate. */
extern const struct dialect dialect_ollama_chat;
extern const struct dialect dialect_ollama_generate;

#endif
