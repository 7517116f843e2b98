/* Draft tokens by prompt lookup (n-gram): what a sequence goes on with is what followed the last time its
 * last tokens stood in its own history, as in answers that quote their prompt. No model, no other sequence:
 * engine thread, pure data structure.
 *
 * How many are worth it is learnt per sequence from those that were right, and from how those of all
 * sequences did: a draft token that is right saves a step of the sequence, each costs a row of a step whether
 * it is right or not. Draft tokens decide how long an answer takes, never what it says (verified chunks:
 * engine/engine.h).
 */
#ifndef KVASIR_NGRAM_DRAFT_H
#define KVASIR_NGRAM_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

#define NGRAM_TOKENS 3u /* that have to be equal */

struct acceptance { /* draft tokens so far, older ones count less */
    float tried, right;
};
#define ACCEPTANCE_KNOWN 16 /* tried ones that tell something of what a new sequence's will be */

struct ngram {
    uint32_t *after; /* [slots] by hash of NGRAM_TOKENS tokens: index of the token that followed them last; 0
                        = none */
    uint32_t slots;  /* a power of two, or 0 */
    uint32_t known;  /* tokens below this index are in the table */
    struct acceptance odds;
    uint32_t since_probe;    /* draws since none was worth it */
    uint32_t probe_interval; /* so many until one is tried again; 0: the first time */
};

void ngram_draft_fini(struct ngram *l);
/* Up to `most` tokens that may follow tokens[0..count); how many. 0 too when out of memory. tokens[0..count)
 * begins with what earlier calls saw. */
uint32_t ngram_draft_propose(struct ngram *l, const uint32_t *tokens, uint32_t count, uint32_t most,
                             uint32_t *out);
/* `price`: what a draft token costs, in tokens that the same time makes otherwise. `others`: of all
 * sequences. How many draft tokens pay, at most `most`; may_try: one, now and then, if none does. */
uint32_t ngram_draft_worth(struct ngram *l, const struct acceptance *others, double price, uint32_t most,
                           bool may_try);
/* Of `proposed` draft tokens the first `accepted` were right. */
void ngram_draft_learn(struct ngram *l, struct acceptance *all, uint32_t proposed, uint32_t accepted);

#endif
