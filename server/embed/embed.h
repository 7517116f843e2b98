/* Vectors and relevance scores instead of text: POST /v1/embeddings (OpenAI's), /v1/rerank (Jina's and
 * Cohere's) and /v1/score (vLLM's). Each is a dialect of completions whose sequences sample nothing, or one
 * token of two. The tables are for gen_start of generate/generate.h. */
#ifndef KVASIR_EMBED_H
#define KVASIR_EMBED_H

#include "server/generate/generate.h"

extern const struct dialect dialect_embeddings;
/* Ollama's POST /api/embed and /api/embeddings. */
extern const struct dialect dialect_ollama_embed;
extern const struct dialect dialect_ollama_embeddings;
extern const struct dialect dialect_rerank;
extern const struct dialect dialect_score;

/* The fields that all three share: user, cache_salt, priority; no tokens are sampled. */
enum status embed_read(struct gen *g, json_t *root);
/* A text made of parts, which may have U+0000: adds a string; the whole, or NULL without memory or !ok. */
enum status embed_text_add(struct buf *b, const json_t *text);
json_t *embed_text_end(struct buf *b, bool ok);
/* "id":..,"object":..,"created":..,"model":.. without the opening brace; and "usage":{..}. */
void embed_head(struct json_writer *o, const struct gen *g, const char *id, const char *object);
void embed_usage(struct json_writer *o, const struct gen *g);

#endif
