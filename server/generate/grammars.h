/* The grammars that the server has compiled, the last used ones, and the model's tokens for them. Any thread.
 */
#ifndef KVASIR_GRAMMARS_H
#define KVASIR_GRAMMARS_H

#include "server/grammar/grammar.h"
#include "server/http/model.h"

struct grammars;
enum status grammars_create(struct grammars **out) KV_MUST_CHECK;
void grammars_free(struct grammars *g); /* NULL is fine */

/* The model's tokens; made at the first call, which takes a while. */
enum status grammars_vocab(struct grammars *g, const struct model *m, const struct grammar_vocab **out,
                           struct err *err) KV_MUST_CHECK;
/* A reference of the grammar that was kept under this key; NULL: there is none. */
struct grammar *grammars_find(struct grammars *g, const char *key);
void grammars_keep(struct grammars *g, const char *key, struct grammar *grammar);

#endif
