/* Constrained decoding (structured outputs): a request's output constraint -> which tokens may follow.
 *
 *   json/, gbnf.c, lark.c, regex_parse.c   front ends: client text -> build.h
 *   regex.c, machine.c                     the grammar as a machine over bytes
 *   vocab.c, mask.c                        the tokenizer's tokens as a trie; masks over them
 *
 * A grammar is over bytes, not tokens: every tokenization of an allowed text is allowed. The public header of
 * server/grammar/. */
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

/* The tokens of a tokenizer by their bytes. Immutable once built; any thread. Special tokens are excluded,
 * except `tags`: tokens that delimit parts of the output (calls, reasoning). */
struct grammar_vocab;
struct grammar_token {
    const void *bytes; /* NULL: has no text and is never allowed */
    size_t len;
};
enum status grammar_vocab_create(const struct grammar_token *tokens, uint32_t count, const uint32_t *end_ids,
                                 uint32_t end_count, const uint32_t *tags, uint32_t tag_count,
                                 struct grammar_vocab **out, struct err *err) KV_MUST_CHECK;
void grammar_vocab_free(struct grammar_vocab *v);

/* A compiled grammar. Reference-counted: many sequences share one. Any thread. */
struct grammar;
struct grammar *grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g); /* NULL is fine */
/* Bytes that it holds, including masks; it grows as sequences reach new states. SIZE_MAX: it ran out of
 * memory and is unusable. Takes no lock. */
size_t grammar_bytes(const struct grammar *g);
bool grammar_shared(const struct grammar *g); /* others hold references too */
/* Memory of many grammars together. Above `most` each caches less of what it can rebuild. */
struct grammar_memory {
    atomic_size_t used;
    size_t most;
};
void grammar_count_in(struct grammar *g, struct grammar_memory *memory); /* once; memory outlives g */

/* Where the error is: "$.properties.a.contains", with a description. */
struct grammar_error {
    char path[256];
    char message[256];
};
struct grammar_json_options {
    bool any_whitespace; /* white space wherever JSON allows it (bounded); false: only ", " and ": " */
    bool any_order;      /* of properties; false: the schema's order, then additional properties */
    /* A list to which what is not enforced (uniqueItems, multipleOf, pattern) is added, as in the schema
     * `where`. NULL: a schema with such keywords is refused. */
    json_t *notes;
    const char *where;
};
/* Threads that compute slow masks, so that no step waits for them. */
struct mask_threads;
/* Both are called on such a thread: wake when a mask is ready or has failed, idle about once a second. */
enum status mask_threads_create(uint32_t threads, void (*wake)(void *arg), void *wake_arg,
                                void (*idle)(void *arg), void *idle_arg,
                                struct mask_threads **out) KV_MUST_CHECK;
/* NULL is fine. Grammars whose masks are in progress are unusable afterwards. */
void mask_threads_destroy(struct mask_threads *t);

/* One sequence's state in a grammar: the functions of a struct sampling_constraint. */
struct matcher;
enum status matcher_create(struct grammar *g, const struct grammar_vocab *v,
                           struct matcher **out) KV_MUST_CHECK; /* takes a reference to g */
/* Before the first call. Without threads each call does all the work itself. The threads must outlive the
 * matcher; tenants take turns on them. */
void matcher_threads(struct matcher *m, struct mask_threads *t, uint64_t tenant);
void matcher_free(struct matcher *m); /* never blocks; NULL is fine */
/* brief: others have taken most of the planner's time. */
enum mask_state matcher_prepare(void *matcher, const uint32_t *tokens, uint32_t count, bool brief);
uint32_t matcher_drafts(void *matcher, const uint32_t *tokens, uint32_t count, uint32_t drafts);
/* Writes the mask of tokens that may follow tokens[0..count) to bits[0..words), zeros after the last token:
 * end ids are allowed where the text is complete, and are the only ones where nothing can follow (or where
 * the tokens violate the grammar, which never happens if the sampler applies the masks). The result depends
 * on the grammar and the tokens alone: the matcher's state from earlier calls only saves time. A mask that is
 * not prepared is computed here. */
void matcher_mask(void *matcher, const uint32_t *tokens, uint32_t count, uint32_t *bits, uint32_t words);
uint32_t matcher_forced(void *matcher, const uint32_t *tokens, uint32_t count, uint32_t most, uint32_t *out);
void matcher_stop(void *matcher); /* its masks are no longer needed */
/* Why matcher_prepare failed; any thread. */
enum matcher_failure {
    MATCHER_FINE = 0,
    MATCHER_STUCK,       /* the text is incomplete, and no token is allowed */
    MATCHER_MASK_COST,   /* one mask exceeds the work limit per mask */
    MATCHER_ANSWER_COST, /* all masks of the sequence exceed the work limit for its length */
    MATCHER_MEMORY
};
enum matcher_failure matcher_failure(const struct matcher *m);

#endif
