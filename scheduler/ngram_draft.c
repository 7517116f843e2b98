/* See ngram_draft.h. */
#include "scheduler/ngram_draft.h"

#include <math.h>
#include <stdlib.h>

/* The initial acceptance rate is 0.3; a new sequence starts with PRIOR_TRIED tokens at the rate of all
 * sequences. Older draft tokens fade so that about the last TRIED_MAX count, ALL_MAX for all sequences. While
 * drafting doesn't pay, one token is tried after REST sampled tokens, then after twice as many and so on,
 * because the text may change. REST is for probes of cost REST_PRICE; more expensive probes are rarer; with
 * no data yet, the first probe comes soon. */
#define FIRST_RIGHT 0.3f
#define PRIOR_TRIED 4.0f
#define REST_PRICE  0.25
enum { TRIED_MAX = 24, ALL_MAX = 96, REST = 32, REST_MAX = 256, REST_UNKNOWN = 2, SLOTS_FIRST = 256 };

void ngram_draft_fini(struct ngram *l)
{
    free(l->after);
    *l = (struct ngram){0};
}

static uint32_t slot_of(const struct ngram *l, const uint32_t *last)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < NGRAM_TOKENS; i++) h = (h ^ last[i]) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(h >> 32) & (l->slots - 1);
}

/* Reserves twice as many entries as there are tokens. */
static bool reserve(struct ngram *l, uint32_t count)
{
    uint32_t slots = l->slots ? l->slots : SLOTS_FIRST;
    while (slots / 2 < count && slots < 1u << 30) slots *= 2;
    if (slots == l->slots) return true;
    uint32_t *after = calloc(slots, sizeof *after);
    if (!after) return false;
    free(l->after);
    l->after = after;
    l->slots = slots;
    l->known = 0;
    return true;
}

uint32_t ngram_draft_propose(struct ngram *l, const uint32_t *tokens, uint32_t count, uint32_t most,
                             uint32_t *out)
{
    if (count <= NGRAM_TOKENS || !reserve(l, count)) return 0;
    if (l->known < NGRAM_TOKENS) l->known = NGRAM_TOKENS;
    for (; l->known < count; l->known++) l->after[slot_of(l, tokens + l->known - NGRAM_TOKENS)] = l->known;
    const uint32_t *last = tokens + count - NGRAM_TOKENS;
    uint32_t at = l->after[slot_of(l, last)], n = 0;
    if (!at) return 0;
    for (uint32_t i = 0; i < NGRAM_TOKENS; i++)
        if (tokens[at - NGRAM_TOKENS + i] != last[i]) return 0;
    /* At the end of the history the draft tokens themselves continue it: a repetition. */
    for (; n < most; n++) out[n] = at + n < count ? tokens[at + n] : out[at + n - count];
    return n;
}

uint32_t ngram_draft_worth(struct ngram *l, const struct acceptance *others, double price, uint32_t most,
                           bool may_try)
{
    double prior = (others->right + FIRST_RIGHT) / (others->tried + 1),
           p = (l->odds.right + PRIOR_TRIED * prior) / (l->odds.tried + PRIOR_TRIED), all = p, tokens = 1;
    uint32_t n = 0, first = others->tried < ACCEPTANCE_KNOWN ? REST_UNKNOWN : REST;
    /* The n-th draft token is accepted only if all before it are. It pays while it yields more tokens per
     * time than the step so far. */
    while (n < most && all * (1 + n * price) > tokens * price) {
        tokens += all;
        all *= p;
        n++;
    }
    if (n) l->since_probe = 0;
    else if (++l->since_probe >=
                 (l->probe_interval ? l->probe_interval : first) * fmax(price / REST_PRICE, 1) &&
             most && may_try) {
        l->since_probe = 0;
        l->probe_interval = l->probe_interval ? 2 * l->probe_interval : 2 * REST;
        if (l->probe_interval > REST_MAX) l->probe_interval = REST_MAX;
        n = 1;
    }
    return n;
}

static void odds_add(struct acceptance *o, uint32_t proposed, uint32_t accepted, float most)
{
    o->right += (float)accepted;
    o->tried += (float)accepted + (accepted < proposed);
    if (o->tried <= most) return;
    o->right *= most / o->tried;
    o->tried = most;
}

void ngram_draft_learn(struct ngram *l, struct acceptance *all, uint32_t proposed, uint32_t accepted)
{
    if (accepted) l->probe_interval = REST;
    odds_add(&l->odds, proposed, accepted, TRIED_MAX);
    odds_add(all, proposed, accepted, ALL_MAX);
}
