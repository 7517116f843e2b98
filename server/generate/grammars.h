/* The grammars that the server has compiled, the model's tokens for them, the threads that make their masks,
 * and the memory of all of it (--grammar-memory). Any thread; nothing here waits for work, but where it says
 * so. */
#ifndef KVASIR_GRAMMARS_H
#define KVASIR_GRAMMARS_H

#include "server/grammar/grammar.h"
#include "server/http/http.h"

struct grammars;
/* memory: what they may hold together. wake: on a thread that has made a mask. */
enum status grammars_create(size_t memory, void (*wake)(void *arg), void *arg,
                            struct grammars **out) KV_MUST_CHECK;
void grammars_stop(struct grammars *g); /* ends the threads */
void grammars_free(struct grammars *g); /* NULL is fine */
struct mask_threads *grammars_threads(struct grammars *g);

/* The model's tokens; made at the first call, which takes a while and which others wait for: workers only. */
enum status grammars_vocab(struct grammars *g, const struct model *m, const struct grammar_vocab **out,
                           struct err *err) KV_MUST_CHECK;
/* A reference of the grammar that was kept under this key; NULL: there is none. */
struct grammar *grammars_find(struct grammars *g, const char *key);

/* Reserves memory for a grammar that is to be compiled from a description of so many bytes. False: those in
 * use leave too little. What is reserved goes with grammars_keep or grammars_dismiss. */
bool grammars_reserve(struct grammars *g, size_t description);
void grammars_dismiss(struct grammars *g, size_t description);
/* Keeps a compiled one, which counts from now on; those that nobody uses give way. ST_AGAIN: those in use
 * leave too little memory. ST_TOO_LARGE: it alone takes more than there is. Workers only. */
enum status grammars_keep(struct grammars *g, const char *key, struct grammar *grammar) KV_MUST_CHECK;

const struct grammar_memory *grammars_memory(const struct grammars *g);

#endif
