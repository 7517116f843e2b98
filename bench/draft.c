/* See bench.h: sequences with and without speculative decoding, at a given acceptance rate. The scheduler
 * chooses the number of draft tokens, as in the server, and keeps its statistics across repeats; a draft
 * model runs, but its tokens are replaced, so that its time counts. */
#include "bench/bench.h"

#include "config/base/clock.h"
#include "engine/engine.h"
#include "engine/prompt/prompt.h"
#include "scheduler/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER = BENCH_DRAFT_TOKENS, DRAFT_MAX = 8 };

struct speech {
    struct prompt prompt;
    struct sched_sequence seq;
    uint32_t said[ANSWER + DRAFT_MAX], count; /* output without draft tokens; count in this run */
    bool ended;
};
struct speeches {
    struct engine *e;
    struct speech *all;
    uint32_t count, right, vocab; /* right: of 100 */
    uint64_t random;
};
struct outcome {
    double seconds; /* from when all are decoding until the first ends, because later steps are smaller */
    uint64_t tokens, steps;
};

static uint32_t draw(struct speeches *p, uint32_t below)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((p->random >> 33) % below);
}

static uint32_t propose_drafts(void *arg, void *user, const uint32_t *tokens, uint32_t count, uint32_t most,
                               uint32_t *out)
{
    struct speeches *p = arg;
    const struct speech *s = user;
    uint32_t at = count - s->prompt.token_count;
    (void)tokens;
    for (uint32_t i = 0; i < most; i++) out[i] = (s->said[at + i] + (draw(p, 100) >= p->right)) % p->vocab;
    return most;
}

/* Handles events; returns the number of sequences that have started output, or have ended. */
static bool take(struct scheduler *sc, bool note, uint32_t *begun, uint32_t *ended, uint64_t *tokens)
{
    struct sched_event ev;
    while (sched_poll(sc, &ev)) {
        struct speech *s = ev.user;
        if (ev.kind == EV_TOKEN) {
            if (note) s->said[s->count] = ev.token.id;
            *begun += s->count++ == 0;
            ++*tokens;
        } else if (ev.kind == EV_END) {
            ++*ended;
            if (ev.end == END_LENGTH) continue;
            fprintf(stderr, "kvasir bench: a sequence ended early: %s\n", ev.message);
            return false;
        }
    }
    return true;
}

static struct scheduler *stage(struct speeches *p, bool drafts)
{
    struct sched_options opt = {.no_prefix_cache = true,
                                .draft_max = drafts ? DRAFT_MAX : 0,
                                .propose = drafts ? propose_drafts : NULL,
                                .propose_arg = p};
    struct scheduler *sc;
    struct err err = {{0}};
    if (!sched_create(p->e, &opt, &sc, &err)) return sc;
    (void)bench_failed(&err);
    return NULL;
}

static void stage_free(struct scheduler *sc)
{
    if (!sc) return;
    sched_stop(sc, false);
    sched_destroy(sc);
}

static double rate(struct outcome o)
{
    return o.seconds > 0 ? (double)o.tokens / o.seconds : 0;
}

static bool play(struct speeches *p, struct scheduler *sc, bool note, struct outcome *out)
{
    struct err err = {{0}};
    uint32_t begun = 0, ended = 0;
    uint64_t tokens = 0;
    struct sched_stats before = {0}, after;
    double start = 0;
    bool ok = true, timed = false;
    if (!sc) return false;
    for (uint32_t i = 0; ok && i < p->count; i++) {
        struct seq_id id;
        p->all[i].count = 0;
        ok = sched_submit(sc, &p->all[i].seq, &id, &err) == ST_OK;
        if (!ok) (void)bench_failed(&err);
    }
    while (ok && ended < p->count) {
        sched_step(sc, (uint64_t)(now_s() * 1e6));
        ok = take(sc, note, &begun, &ended, &tokens);
        if (ended && start == 0) {
            fprintf(stderr, "kvasir bench: a sequence ends before all have begun; use a shorter context\n");
            ok = false;
        }
        if (begun == p->count && start == 0) {
            sched_stats(sc, &before);
            tokens = 0;
            start = now_s();
        }
        if (!ended || timed) continue;
        timed = true;
        sched_stats(sc, &after);
        *out = (struct outcome){now_s() - start, tokens, after.steps - before.steps};
    }
    return ok;
}

static bool fill(struct speeches *p, uint32_t context, const struct sampling_params *sampling)
{
    p->all = calloc(p->count, sizeof *p->all);
    for (uint32_t i = 0; p->all && i < p->count; i++) {
        struct speech *s = &p->all[i];
        uint32_t *ids = malloc(context * sizeof *ids);
        if (!ids) return false;
        for (uint32_t k = 0; k < context; k++) ids[k] = draw(p, p->vocab < 250000 ? p->vocab : 250000);
        s->prompt = (struct prompt){.tokens = ids, .token_count = context};
        s->seq = (struct sched_sequence){
            .prompt = &s->prompt, .sampling = sampling, .tokens_max = ANSWER, .ignore_eos = true, .user = s};
    }
    return p->all != NULL;
}

bool bench_drafts(struct engine *e, uint32_t batch, uint32_t context, uint32_t right, uint32_t repeats,
                  const struct sampling_params *sampling, struct bench_drafts *out)
{
    struct engine_caps caps;
    struct outcome plain = {0}, drafted = {0}, now = {0};
    engine_caps(e, &caps);
    struct speeches p = {.e = e, .count = batch, .right = right, .vocab = caps.vocab_size, .random = right};
    struct scheduler *without = stage(&p, false), *with = stage(&p, true);
    bool ok = fill(&p, context, sampling) && play(&p, without, true, &now) && play(&p, with, false, &now);
    for (uint32_t i = 0; ok && i < repeats; i++) {
        ok = play(&p, without, false, &now);
        if (rate(now) > rate(plain)) plain = now;
        if (ok) ok = play(&p, with, false, &now);
        if (rate(now) > rate(drafted)) drafted = now;
    }
    *out = (struct bench_drafts){.tokens_s = rate(drafted),
                                 .plain_tokens_s = rate(plain),
                                 .tokens_per_step = (double)drafted.tokens /
                                                    (double)(drafted.steps ? drafted.steps : 1) / batch};
    stage_free(without);
    stage_free(with);
    for (uint32_t i = 0; p.all && i < batch; i++) free(p.all[i].prompt.tokens);
    free(p.all);
    return ok;
}
