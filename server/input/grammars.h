/* Compiled grammars, the model's vocabulary for them, the threads that compute their masks, and the memory of
 * all of it (--grammar-memory). Any thread; nothing here blocks on work unless its comment says so. */
#ifndef KVASIR_GRAMMARS_H
#define KVASIR_GRAMMARS_H

#include "server/grammar/grammar.h"
#include "server/context/limits.h"
#include "server/context/model.h"

struct grammars;
/* memory: limit on their total. wake: called on a thread that has computed a mask. */
enum status grammars_create(size_t memory, void (*wake)(void *arg), void *arg,
                            struct grammars **out) KV_MUST_CHECK;
void grammars_stop(struct grammars *g); /* ends the threads */
void grammars_free(struct grammars *g); /* NULL is fine */
struct mask_threads *grammars_threads(struct grammars *g);

/* The model's vocabulary. Built by the first call, which takes a while and which others wait for: workers
 * only. */
enum status grammars_vocab(struct grammars *g, const struct model *m, const struct grammar_vocab **out,
                           struct err *err) KV_MUST_CHECK;
/* A reference to the cached grammar of this key; NULL: none. *warnings: a copy of its warnings; NULL: none.
 */
struct grammar *grammars_find(struct grammars *g, const char *key, char **warnings);

/* Reserves memory to compile a grammar from a description of so many bytes. False: grammars in use leave too
 * little, or the tenant's (0: nobody's) would take more than they leave to others. grammars_keep or
 * grammars_dismiss releases the reservation. */
bool grammars_reserve(struct grammars *g, size_t description, uint64_t tenant);
void grammars_dismiss(struct grammars *g, size_t description);
/* Caches a compiled grammar and counts its memory; unused grammars are evicted, the tenant's own first if it
 * has more than half. ST_AGAIN: grammars in use
 * leave too little memory. ST_TOO_LARGE: it alone exceeds the limit. Workers only. */
enum status grammars_keep(struct grammars *g, const char *key, uint64_t tenant, struct grammar *grammar,
                          const char *warnings) KV_MUST_CHECK;

const struct grammar_memory *grammars_memory(const struct grammars *g);

#endif
