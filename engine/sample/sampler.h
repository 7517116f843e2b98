/* Samples one token from a row of logits and reports log-probs. Pure: the result depends on its arguments
 * alone. Host arithmetic only; the row's maximum, log-sum-exp and largest entries come from the backend, so
 * that a row of 262,144 entries is rarely read as a whole here.
 *
 * Order of effects:
 *   1. repetition penalty over prompt and generated ids (l > 0 ? l / r : l * r), then frequency * count +
 *      presence over generated ids
 *   2. logit bias (-100 and below = never), banned ids and those that would repeat an n-gram (never), what
 *      the constraint does not allow (never). If nothing is left, the constraint alone counts: the largest
 *      raw logit, of those that it allows
 *   3. temperature (0 = the largest, ties by lower id; nothing below applies)
 *   4. top_n_sigma: not more than so many standard deviations of the finite logits below the largest; these
 *      as 2 left them, whatever the temperature
 *   5. top_k
 *   6. top_p: the smallest set of largest probabilities whose sum reaches top_p, of what 4 and 5 left
 *   7. min_p: relative to the largest
 *   8. the draw: u = sampling_uniform(seed, position of the new token); candidates in descending order, ties
 *      by lower id (in order of id when none of 5..7 is on); the first whose cumulative weight exceeds
 *      u * total, sums in double in that order
 * Log-probs and ranks are of the raw row. */
#ifndef KVASIR_SAMPLER_H
#define KVASIR_SAMPLER_H

#include "config/base/status.h"
#include "engine/sample/sampling.h"
#include "kernels/backend.h"

#include <stdbool.h>
#include <stdint.h>

struct sampler; /* workspace for one vocabulary size */
enum status sampler_create(uint32_t vocab, struct sampler **out, struct err *err) KV_MUST_CHECK;
void sampler_destroy(struct sampler *s);

struct sampler_row {
    /* [V] logits (softcap applied) in host memory, or NULL: sampler_draw then may ask for them */
    const float *raw;
    struct be_logit_stats stats;
    const uint32_t *top_ids; /* [top_count] largest raw logits, descending, ties by lower id */
    const float *top_values;
    uint32_t top_count;
    const uint32_t *history; /* [history_count] ids so far, of which prompt_count are the prompt */
    uint32_t history_count, prompt_count;
    uint64_t position; /* of the sampled token */
    const uint32_t *banned;
    uint32_t banned_count;
};
/* How many of the row's largest entries sampling with these parameters reads (0..BE_TOPK_MAX). A row uses
 * exactly these even if more are given: its result must not depend on what other rows of the batch need. */
uint32_t sampler_top_wanted(const struct sampling_params *p, uint32_t banned_count);
/* True if sampling may read the whole row or the history: then it is worth its own thread. */
bool sampler_walks(const struct sampling_params *p, uint32_t banned_count);

/* Whether nothing but the row's largest value, or the backend's draw, decides: the row is neither changed nor
 * cut. */
bool sampler_plain(const struct sampling_params *p, uint32_t banned_count);
/* How the backend can draw for such a request; greedy, and otherwise: inverse is 0. */
struct be_draw sampler_plain_draw(const struct sampling_params *p, uint32_t banned_count, uint64_t position);

/* False: row->raw was NULL and is needed; call again with it. Without it a token that the backend has drawn
 * counts. */
bool sampler_draw(struct sampler *s, const struct sampling_params *p, const struct sampler_row *row,
                  struct token_out *out);

/* Log-prob, rank and alternatives of a given token (a scored prompt token): stats.target and
 * stats.target_rank are about it. */
void sampler_score(uint32_t id, uint32_t top_n, const struct sampler_row *row, struct token_out *out);

#endif
