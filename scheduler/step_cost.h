/* Cost model of a step: its time as a linear function, learnt online. Pure data structure: no sequences, no
 * clock.
 *
 *     microseconds = fixed + rows * a + sampled rows * b + prefill pairs * c + decode pairs * d
 *
 * `fixed` is what every step pays (weights are read once), a row is a token through the linear layers, a
 * sampled row its logits and sampling, a pair a query and a key that it sees. Pairs of sliding groups count
 * by their window, groups by their share of a token's KV bytes. Two weights for pairs: a prefill's keys are
 * read once for many queries, a decode's for one. Learnt by normalised least mean squares: every step moves
 * the weights part of the way to its measured time; none becomes negative. The model decides the size of
 * steps, never what is computed. */
#ifndef KVASIR_STEP_COST_H
#define KVASIR_STEP_COST_H

#include "engine/engine.h"

enum step_term { STEP_FIXED = 0, STEP_ROWS, STEP_SAMPLED, STEP_PREFILL_PAIRS, STEP_DECODE_PAIRS, STEP_TERMS };

struct step_load {
    double n[STEP_TERMS]; /* how many of each term; STEP_FIXED is 1 */
};
struct step_cost {
    double us[STEP_TERMS];           /* of one each */
    double share[ENGINE_GROUPS_MAX]; /* of a pair in that group; they add up to 1 */
    uint32_t group_count, window[ENGINE_GROUPS_MAX];
    uint32_t steps;    /* learnt from */
    uint32_t rows_max; /* largest step so far; the model does not hold far above it */
};

void step_cost_init(struct step_cost *c, const struct engine_caps *caps);
/* Adds a chunk of `count` tokens after `position` cached ones; sampled: its last token needs logits. */
void step_load_add(const struct step_cost *c, struct step_load *l, uint32_t position, uint32_t count,
                   bool sampled);
double step_cost_us(const struct step_cost *c, const struct step_load *l);
/* Learns that a step of this load took so long. */
void step_cost_learn(struct step_cost *c, const struct step_load *l, double us);
/* Microseconds that a chunk adds to a step that runs anyway. */
double step_cost_chunk_us(const struct step_cost *c, uint32_t position, uint32_t count, bool sampled);
/* The longest chunk at `position` that adds at most `us`; 1 to most. */
uint32_t step_cost_fit(const struct step_cost *c, uint32_t position, uint32_t most, double us);
/* Limit for the rows of a step: a multiple of the most seen so far. */
uint32_t step_cost_rows(const struct step_cost *c);

#endif
