/* Constrained decoding: what a request says about the form of its answer -> which tokens may follow.
 *
 *   json_schema*.c, gbnf.c, lark.c, regex_parse.c   front ends: texts of clients -> build.h
 *   regex.c, machine.c                              the grammar as a machine over bytes
 *   vocab.c, mask.c                                 the tokenizer's tokens as a trie; masks over them
 *
 * Bytes, not tokens, are what a grammar speaks of: every way to write an allowed text in tokens is allowed.
 * The seam of server/grammar/. */
#ifndef KVASIR_GRAMMAR_H
#define KVASIR_GRAMMAR_H

#include "config/base/status.h"
#include "engine/sample/sampling.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* The tokens of a tokenizer by their bytes. Immutable once made; any thread. Special tokens are left out,
 * but for `tags`: tokens that mark parts of an answer (calls, reasoning). */
struct grammar_vocab;
struct grammar_token {
    const void *bytes; /* NULL: stands for no text and is never allowed */
    size_t len;
};
enum status grammar_vocab_create(const struct grammar_token *tokens, uint32_t count, const uint32_t *end_ids,
                                 uint32_t end_count, const uint32_t *tags, uint32_t tag_count,
                                 struct grammar_vocab **out, struct err *err) KV_MUST_CHECK;
void grammar_vocab_free(struct grammar_vocab *v);

/* A compiled grammar. Counted: many answers share one. Any thread. */
struct grammar;
struct grammar *grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g); /* NULL is fine */
/* Bytes that it holds, masks too; it grows with what answers reach. SIZE_MAX: it ran out of memory, and is of
 * no more use. Takes no lock. */
size_t grammar_bytes(const struct grammar *g);
bool grammar_shared(const struct grammar *g); /* others hold references */
/* What many grammars hold together. Above `most` each keeps less of what it can make again. */
struct grammar_memory {
    atomic_size_t used;
    size_t most;
};
void grammar_count_in(struct grammar *g, struct grammar_memory *memory); /* once; memory outlives g */

/* Where the error is: "$.properties.a.contains", and in words what it is. */
struct grammar_error {
    char path[256];
    char message[256];
};
struct grammar_json_options {
    bool any_whitespace; /* white space wherever JSON allows it (bounded); false: ", " and ": " alone */
    bool any_order;      /* of properties; false: that of the schema, those it does not name behind them */
};
/* Front ends, one per kind of text. ST_INVALID, ST_UNSUPPORTED, ST_TOO_LARGE: error says what and where.
 * schema: a JSON schema, or true (any JSON value). */
struct grammar_builder;
enum status grammar_from_schema(const json_t *schema, const struct grammar_json_options *opt,
                                struct grammar **out, struct grammar_error *error) KV_MUST_CHECK;
enum status grammar_from_regex(const char *text, size_t len, struct grammar **out,
                               struct grammar_error *error) KV_MUST_CHECK;
/* GBNF (llama.cpp) or Lark (as vLLM and llguidance take it): told apart by the text. */
enum status grammar_from_text(const char *text, size_t len, struct grammar **out,
                              struct grammar_error *error) KV_MUST_CHECK;

/* Threads that make the masks which take long, so that no step waits for them. */
struct mask_threads;
/* wake: on such a thread, when a mask is ready or has failed. idle: on such a thread, about once a second. */
enum status mask_threads_create(uint32_t threads, void (*wake)(void *arg), void *wake_arg,
                                void (*idle)(void *arg), void *idle_arg,
                                struct mask_threads **out) KV_MUST_CHECK;
/* NULL is fine. Grammars whose masks are being made are of no more use. */
void mask_threads_destroy(struct mask_threads *t);

/* One answer's way through a grammar: the functions of a struct sampling_constraint. */
struct matcher;
enum status matcher_create(struct grammar *g, const struct grammar_vocab *v,
                           struct matcher **out) KV_MUST_CHECK; /* takes a reference of g */
/* Before the first call. Without threads each call does all there is to do. They outlive the matcher. */
void matcher_threads(struct matcher *m, struct mask_threads *t);
void matcher_free(struct matcher *m); /* waits for nothing; NULL is fine */
enum mask_state matcher_prepare(struct matcher *m, const uint32_t *tokens, uint32_t count);
uint32_t matcher_drafts(struct matcher *m, const uint32_t *tokens, uint32_t count, uint32_t drafts);
/* Bits of the tokens that may follow the answer tokens[0..count) into bits[0..words), zeros behind the last
 * token: end ids are allowed where the text is complete, and are the only ones where nothing can follow (or
 * where the tokens left the grammar, which a sampler that heeds the masks never does). The result depends on
 * the grammar and the tokens alone: where the matcher stands from earlier calls only saves time. A mask that
 * was not prepared is made here. */
void matcher_mask(struct matcher *m, const uint32_t *tokens, uint32_t count, uint32_t *bits, uint32_t words);
uint32_t matcher_forced(struct matcher *m, const uint32_t *tokens, uint32_t count, uint32_t most,
                        uint32_t *out);
void matcher_stop(struct matcher *m); /* its masks are no longer wanted */
/* Why matcher_prepare failed; any thread. */
enum matcher_failure {
    MATCHER_FINE = 0,
    MATCHER_STUCK,       /* the text is not complete, and no token fits */
    MATCHER_MASK_COST,   /* one mask takes more work than any may */
    MATCHER_ANSWER_COST, /* the answer's masks took more work together than so many tokens may */
    MATCHER_MEMORY
};
enum matcher_failure matcher_failure(const struct matcher *m);

#endif
