/* Vectors, classes and relevance scores instead of text: POST /v1/embeddings (OpenAI's), /v1/rerank (Jina's
 * and Cohere's), /classify, /pooling and /v1/score (vLLM's).
 * Each is a dialect of completions whose sequences sample nothing, or one token of two. The tables are for
 * gen_start of generate/generate.h. */
#ifndef KVASIR_EMBED_H
#define KVASIR_EMBED_H

#include "server/chat/messages.h"
#include "server/generate/generate.h"
#include "server/input/fields.h"

extern const struct dialect dialect_embeddings, dialect_pooling, dialect_classify;
/* Ollama's POST /api/embed and /api/embeddings. */
extern const struct dialect dialect_ollama_embed;
extern const struct dialect dialect_ollama_embeddings;
extern const struct dialect dialect_rerank;
extern const struct dialect dialect_score;
/* Probabilities of given tokens as the next one: /v1/score with label_token_ids as SGLang has it, and vLLM's
 * POST /generative_scoring. */
extern const struct dialect dialect_labels;
extern const struct dialect dialect_generative_scoring;

/* The fields that all three share: user, cache_salt, priority; no tokens are sampled. */
enum status embed_read(struct generation *g, json_t *root, unsigned api);
/* A text made of parts, which may have U+0000: adds a string; the whole, or NULL without memory or !ok. */
enum status embed_text_add(struct buf *b, const json_t *text);
json_t *embed_text_end(struct buf *b, bool ok);
/* `input` or `messages`, with the fields of embed_read. */
enum status embed_inputs(struct generation *g, json_t *root, unsigned api);
/* The log-probs of these tokens as the next one: sample j is about ids[j], which g keeps. */
enum status embed_next(struct generation *g, uint32_t *ids, size_t count);
json_t *embed_list(json_t *v); /* v, or a list of it; NULL: out of memory */
/* The template for pairs of a model whose pooling is read; own: --chat-template is one. */
enum status embed_pairs_load(struct model *m, bool own, struct err *err) KV_MUST_CHECK;
/* use_activation, and vLLM's older name for it. */
enum status embed_activation(struct generation *g, json_t *root, bool *raw);
/* A response around a list: from its beginning to the list's bracket; and from there, with the usage. */
void embed_head(struct json_writer *o, const struct generation *g, const char *id, const char *list);
void embed_tail(struct json_writer *o, const struct generation *g);
/* The vectors of choice i, once: the first n numbers of each, scaled as the checkpoint says. *rows: how many.
 */
float *embed_vectors(struct generation *g, uint32_t i, uint32_t n, uint32_t *rows);

/* ---- embed/inputs.c: inputs as chats of `each` messages ---- */
enum status embed_begin(struct generation *g, uint32_t each, struct chat_reader *r);
/* text NULL: it gets its parts by embed_item. */
enum status embed_message(struct generation *g, struct chat_reader *r, enum chat_role role, const char *text);
/* The text of a system message: `given` (a string, or NULL) or, if that is empty, `fallback`. NULL: out of
 * memory. */
json_t *embed_instruction(const json_t *given, const char *fallback);
/* Adds what field[index] (index -1: field) holds: a string, {"content": parts} or {"image", "text"}. */
enum status embed_item(struct chat_reader *r, const char *field, int32_t index, const json_t *v);

#endif
