/* Guesses by look-up: what a sequence goes on with is what followed the last time its last tokens stood in
 * its own history, as in answers that quote their prompt. No model, no other sequence: engine thread, pure
 * data structure.
 *
 * How many are worth it is learnt per sequence from those that were right, and from how those of all
 * sequences did: a guess that is right saves a step of the sequence, each costs a row of a step whether it is
 * right or not. Guesses decide how long an answer takes, never what it says (verified runs: engine/engine.h).
 */
#ifndef KVASIR_LOOKUP_H
#define KVASIR_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

#define LOOKUP_TOKENS 3u /* that have to be equal */

struct guess_odds { /* guesses so far, older ones count less */
    float tried, right;
};
#define GUESS_ODDS_KNOWN 16 /* tried ones that tell something of what a new sequence's will be */

struct lookup {
    uint32_t *after; /* [slots] by hash of LOOKUP_TOKENS tokens: index of the token that followed them last; 0
                        = none */
    uint32_t slots;  /* a power of two, or 0 */
    uint32_t known;  /* tokens below this index are in the table */
    struct guess_odds odds;
    uint32_t rested; /* draws since none was worth it */
    uint32_t rest;   /* so many until one is tried again; 0: the first time */
};

void lookup_fini(struct lookup *l);
/* Up to `most` tokens that may follow tokens[0..count); how many. 0 too when out of memory. tokens[0..count)
 * begins with what earlier calls saw. */
uint32_t lookup_propose(struct lookup *l, const uint32_t *tokens, uint32_t count, uint32_t most,
                        uint32_t *out);
/* `price`: what a guess costs, in tokens that the same time makes otherwise. `others`: of all sequences. How
 * many guesses pay, at most `most`; may_try: one, now and then, if none does. */
uint32_t lookup_worth(struct lookup *l, const struct guess_odds *others, double price, uint32_t most,
                      bool may_try);
/* Of `proposed` guesses the first `accepted` were right. */
void lookup_learn(struct lookup *l, struct guess_odds *all, uint32_t proposed, uint32_t accepted);

#endif
