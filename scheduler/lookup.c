/* See lookup.h. */
#include "scheduler/lookup.h"

#include <math.h>
#include <stdlib.h>

/* Before the first guess, 0.3 of one are taken to have been right; a sequence that is new has as many of
 * PRIOR_TRIED right as all sequences had. Older guesses fade so that about the last TRIED_MAX count, ALL_MAX
 * of all. While none is worth it, one is tried after REST draws, then twice as many and so on: texts change.
 * REST is for tries of REST_PRICE; dearer ones are rarer; where nothing is known yet, the first one comes
 * soon. */
#define FIRST_RIGHT 0.3f
#define PRIOR_TRIED 4.0f
#define REST_PRICE  0.25
enum { TRIED_MAX = 24, ALL_MAX = 96, REST = 32, REST_MAX = 256, REST_UNKNOWN = 2, SLOTS_FIRST = 256 };

void lookup_fini(struct lookup *l)
{
    free(l->after);
    *l = (struct lookup){0};
}

static uint32_t slot_of(const struct lookup *l, const uint32_t *last)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < LOOKUP_TOKENS; i++) h = (h ^ last[i]) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(h >> 32) & (l->slots - 1);
}

/* Room for twice as many entries as there are tokens. */
static bool reserve(struct lookup *l, uint32_t count)
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

uint32_t lookup_propose(struct lookup *l, const uint32_t *tokens, uint32_t count, uint32_t most,
                        uint32_t *out)
{
    if (count <= LOOKUP_TOKENS || !reserve(l, count)) return 0;
    if (l->known < LOOKUP_TOKENS) l->known = LOOKUP_TOKENS;
    for (; l->known < count; l->known++) l->after[slot_of(l, tokens + l->known - LOOKUP_TOKENS)] = l->known;
    const uint32_t *last = tokens + count - LOOKUP_TOKENS;
    uint32_t at = l->after[slot_of(l, last)], n = 0;
    if (!at) return 0;
    for (uint32_t i = 0; i < LOOKUP_TOKENS; i++)
        if (tokens[at - LOOKUP_TOKENS + i] != last[i]) return 0;
    /* Where the history ends it goes on with the guesses themselves: a repetition. */
    for (; n < most; n++) out[n] = at + n < count ? tokens[at + n] : out[at + n - count];
    return n;
}

uint32_t lookup_worth(struct lookup *l, const struct guess_odds *others, double price, uint32_t most,
                      bool may_try)
{
    double prior = (others->right + FIRST_RIGHT) / (others->tried + 1),
           p = (l->odds.right + PRIOR_TRIED * prior) / (l->odds.tried + PRIOR_TRIED), all = p, tokens = 1;
    uint32_t n = 0, first = others->tried < GUESS_ODDS_KNOWN ? REST_UNKNOWN : REST;
    /* The n-th guess is right when all before it are. It pays while it makes more of its time than the step
     * does so far. */
    while (n < most && all * (1 + n * price) > tokens * price) {
        tokens += all;
        all *= p;
        n++;
    }
    if (n) l->rested = 0;
    else if (++l->rested >= (l->rest ? l->rest : first) * fmax(price / REST_PRICE, 1) && most && may_try) {
        l->rested = 0;
        l->rest = l->rest ? 2 * l->rest : 2 * REST;
        if (l->rest > REST_MAX) l->rest = REST_MAX;
        n = 1;
    }
    return n;
}

static void odds_add(struct guess_odds *o, uint32_t proposed, uint32_t accepted, float most)
{
    o->right += (float)accepted;
    o->tried += (float)accepted + (accepted < proposed);
    if (o->tried <= most) return;
    o->right *= most / o->tried;
    o->tried = most;
}

void lookup_learn(struct lookup *l, struct guess_odds *all, uint32_t proposed, uint32_t accepted)
{
    if (accepted) l->rest = REST;
    odds_add(&l->odds, proposed, accepted, TRIED_MAX);
    odds_add(all, proposed, accepted, ALL_MAX);
}
