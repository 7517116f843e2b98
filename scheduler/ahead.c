/* Overlap: the step after the one in flight is submitted before that one's tokens are known, so that a device
 * doesn't wait for the host between two steps of decodes. It has one row for each sequence that goes on,
 * whose input the device takes from what it draws (engine_chunk.after). A sequence that ends by that very
 * token is in it all the same: its row is computed for nobody. It writes behind the sequence's last token,
 * and a state to a block of its own, so neither the cache nor another sequence ever reads it.
 *
 * With a step in flight nothing is decided but this: the step behind it is the one that would be planned if
 * all its sequences go on. Whatever else there is to do - an arrival, a cancel, a deadline, an image, a mask,
 * draft tokens, an admission, a prefill - waits until no step is in flight, and is done as without overlap,
 * at most one step later. Engine thread. See scheduler/internal.h. */
#include "scheduler/internal.h"

bool sched__called(struct scheduler *s, uint64_t now_us)
{
    const struct seq_list *lists[] = {&s->running, &s->waiting};
    pthread_mutex_lock(&s->lock);
    bool any = s->inbox.head || s->poked || s->stopping;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < 2; i++)
        for (const struct sequence *q = lists[i]->head; q && !any; q = q->next)
            any = q->req.deadline_us && now_us >= q->req.deadline_us;
    return any;
}

/* Whether the step in flight has all running sequences, the device draws all their tokens, and nothing is to
 * be planned but their next ones. */
static bool goes_on(struct scheduler *s)
{
    const struct sched_flight *f = s->step;
    uint32_t running = 0;
    if (s->opt.no_overlap || s->opt.draft_max || f->status) return false;
    for (uint32_t i = 0; i < f->count; i++) {
        const struct sequence *q = f->seqs[i];
        if (!engine_draws(s->engine, &f->chunks[i])) return false;
        running += q != NULL;
    }
    return running == s->running.count && !sched__may_admit(s);
}

static void fill_ahead(const struct scheduler *s, const struct sequence *q, uint32_t after,
                       struct engine_chunk *r)
{
    const struct prompt *p = q->req.prompt;
    const struct block_table *state = &q->tables[s->paged];
    *r = s->step->chunks[after];
    r->position = q->count;
    r->count = 1;
    r->after = after + 1;
    r->token_count = q->count + 1;
    r->span_count = 0;
    r->mrope_delta = p->span_count ? p->spans[p->span_count - 1].mrope_delta : 0;
    for (uint32_t g = 0; g < s->paged; g++) r->tables[g] = q->tables[g].block_offsets;
    if (s->paged == s->caps.group_count) return;
    r->state_from = state->block_offsets[0];
    r->state_to = state->block_offsets[1];
}

void sched__submit_ahead(struct scheduler *s)
{
    struct sched_flight *f = s->ahead;
    uint32_t n = 0;
    if (!goes_on(s)) return;
    for (uint32_t i = 0; i < s->step->count; i++) {
        struct sequence *q = s->step->seqs[i];
        if (!q || q->generated + 1 >= q->tokens_max) continue;
        f->chunks[n].after = i;
        f->seqs[n++] = q;
    }
    if (!n || !sched__blocks_ahead(s, f->seqs, n)) return;
    for (uint32_t i = 0; i < n; i++) {
        fill_ahead(s, f->seqs[i], f->chunks[i].after, &f->chunks[i]);
        f->seqs[i]->ahead = i + 1;
    }
    f->count = f->tokens = n;
    f->batch = (struct engine_batch){.chunks = f->chunks, .chunk_count = n};
    f->err = (struct err){{0}};
    f->learns = true;
    f->status = engine_submit(s->engine, &f->batch, &f->err);
    s->turn++;
}

void sched__drop_ahead(struct scheduler *s, struct sequence *q)
{
    static const struct sampling_params nobodys = {
        .top_p = 1, .repetition_penalty = 1, .logprobs = SAMPLING_NO_LOGPROBS};
    s->ahead->seqs[q->ahead - 1] = NULL;
    s->ahead->chunks[q->ahead - 1].sampling = &nobodys; /* the request's is the client's again */
    q->ahead = 0;
}

void sched__account(struct scheduler *s, const struct sched_flight *f, uint64_t spent)
{
    struct step_load load = {{0}};
    for (uint32_t i = 0; i < f->count; i++) {
        const struct engine_chunk *r = &f->chunks[i];
        step_load_add(&s->cost, &load, r->position, r->count, r->sample);
        load.n[STEP_SAMPLED] += r->proposed;
    }
    if (!f->status && f->learns) {
        step_cost_learn(&s->cost, &load, (double)spent);
        sched__speculate_learn(s, f->count, (double)spent);
    }
    s->now.steps++;
    s->now.step_us_total += spent;
    s->now.last_batch_tokens = f->tokens;
    s->now.step_tokens_total += f->tokens;
    uint32_t bucket = f->tokens > 1;
    while (bucket && bucket < SCHED_STEP_BUCKETS - 1 && f->tokens > 4u << bucket) bucket++;
    s->now.step_tokens[bucket]++;
    s->now.last_batch_sequences = f->count;
}
