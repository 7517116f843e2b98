/* Masks of constrained sequences: requested before a step is planned, so that no step waits for them. A
 * sequence whose mask is not ready skips the step (its prompt is prefilled up to the last token meanwhile);
 * its output does not depend on that. See scheduler/internal.h and engine/sample/sampling.h. */
#include "scheduler/internal.h"

static enum mask_state prepare(const struct sequence *q)
{
    const struct sampling_constraint *c = q->req.sampling->constraint;
    uint32_t prompt = q->req.prompt->token_count;
    return c->prepare(c->arg, q->tokens + prompt, q->count - prompt);
}

static void prepare_one(void *ctx, uint32_t i)
{
    struct sequence *q = ((struct sequence **)ctx)[i];
    q->mask = prepare(q);
}

void sched__masks_prepare(struct scheduler *s)
{
    uint32_t n = 0;
    for (struct sequence *q = s->running.head; q; q = q->next) {
        q->mask = MASK_READY;
        if (q->req.sampling->constraint && q->tokens_max) s->asking[n++] = q;
    }
    if (n) engine_each(s->engine, n, prepare_one, s->asking);
    for (uint32_t i = 0; i < n; i++) {
        struct sequence *q = s->asking[i];
        /* Sequences of one grammar contended for it. */
        if (q->mask == MASK_BUSY) q->mask = prepare(q);
        s->mask_failed = s->mask_failed || q->mask == MASK_FAILED;
        s->now.mask_waits += q->mask == MASK_LATER || q->mask == MASK_BUSY;
    }
}

void sched__masks_cut(struct sequence *q)
{
    const struct sampling_constraint *c = q->req.sampling->constraint;
    uint32_t prompt = q->req.prompt->token_count;
    if (c && q->proposed) q->proposed = c->drafts(c->arg, q->tokens + prompt, q->count - prompt, q->proposed);
}

uint32_t sched__masks_forced(struct sequence *q, uint32_t most)
{
    const struct sampling_constraint *c = q->req.sampling->constraint;
    uint32_t prompt = q->req.prompt->token_count;
    return c->forced(c->arg, q->tokens + prompt, q->count - prompt, most, q->tokens + q->count);
}

void sched__masks_stop(const struct sequence *q)
{
    const struct sampling_constraint *c = q->req.sampling->constraint;
    if (c && c->stop) c->stop(c->arg);
}
