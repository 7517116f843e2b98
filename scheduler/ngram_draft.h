/* Draft tokens by prompt lookup (n-gram): the tokens that followed the last occurrence of the sequence's
 * current n-gram in its own history, as in output that quotes the prompt. No model, no other sequence; engine
 * thread; pure data structure.
 *
 * The number of draft tokens follows the acceptance rate of the sequence and of all sequences: an accepted
 * token saves the sequence a step, and each draft token costs a row of a step. Draft tokens change how long
 * the output takes, never the output itself (verified chunks: engine/engine.h).
 */
#ifndef KVASIR_NGRAM_DRAFT_H
#define KVASIR_NGRAM_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

#define NGRAM_TOKENS 3u /* n of the n-gram */

struct acceptance { /* of draft tokens so far, exponentially weighted */
    float tried, right;
};
#define ACCEPTANCE_KNOWN 16 /* tried tokens that suffice to predict a new sequence's rate */

struct ngram {
    uint32_t *after; /* [slots] by hash of an n-gram: index of the token after its last occurrence; 0 =
                        none */
    uint32_t slots;  /* a power of two, or 0 */
    uint32_t known;  /* tokens below this index are in the table */
    struct acceptance odds;
    uint32_t since_probe;    /* tokens sampled since drafting stopped paying */
    uint32_t probe_interval; /* tokens until the next probe; 0: the first time */
};

void ngram_draft_fini(struct ngram *l);
/* Proposes up to `most` tokens after tokens[0..count); returns how many, 0 also when out of memory.
 * tokens[0..count) extends what earlier calls saw. */
uint32_t ngram_draft_propose(struct ngram *l, const uint32_t *tokens, uint32_t count, uint32_t most,
                             uint32_t *out);
/* How many draft tokens pay, at most `most`. `price`: the cost of a draft token, in tokens generated in the
 * same time without it. `others`: acceptance of all sequences. may_try: if none pays, probes with one now and
 * then. */
uint32_t ngram_draft_worth(struct ngram *l, const struct acceptance *others, double price, uint32_t most,
                           bool may_try);
/* The first `accepted` of `proposed` draft tokens were accepted. */
void ngram_draft_learn(struct ngram *l, struct acceptance *all, uint32_t proposed, uint32_t accepted);

#endif
