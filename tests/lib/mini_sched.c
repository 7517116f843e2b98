/* See mini_sched.h. */
#include "tests/lib/mini_sched.h"

#include "engine/model/model_info.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(enum status st, const struct err *err)
{
    if (st == ST_OK) return;
    fprintf(stderr, "%s: %s\n", status_name(st), err->msg);
    abort();
}

struct sampling_params mini_greedy(void)
{
    return (struct sampling_params){.temperature = 0, .top_p = 1, .repetition_penalty = 1};
}

void mini_init(struct mini_sched *m, struct engine *e)
{
    *m = (struct mini_sched){.e = e};
    engine_caps(e, &m->caps);
    m->chunks = calloc(2 * (size_t)m->caps.sequences_max, sizeof *m->chunks);
}

void mini_fini(struct mini_sched *m)
{
    free(m->chunks);
}

static void encode(struct mini_sched *m, struct mini_seq *s)
{
    struct err err;
    s->features = calloc(s->image_count + 1, sizeof *s->features);
    s->uses = calloc(2 * s->image_count + 1, sizeof *s->uses); /* with the text between, where it has spans */
    for (uint32_t i = 0; i < s->image_count; i++) {
        must(engine_features_create(m->e, &s->images[i].pixels, s->adapter, &s->features[i], &err), &err);
        for (bool done = false; !done;)
            must(engine_features_step(m->e, s->features[i], m->encode_layers, &done, &err), &err);
    }
}

void mini_add(struct mini_sched *m, struct mini_seq *s)
{
    uint32_t total = s->prompt_count + s->generate,
             blocks = (total + m->caps.block_tokens - 1) / m->caps.block_tokens;
    s->tokens = calloc(total + 1, sizeof *s->tokens);
    s->scores = calloc(total + 1, sizeof *s->scores);
    memcpy(s->tokens, s->prompt, s->prompt_count * sizeof *s->tokens);
    s->done = s->generated = 0;
    for (uint32_t g = 0; g < m->caps.group_count; g++) {
        for (uint32_t k = 0; k < 2 && m->caps.groups[g].recurrent; k++) {
            s->states[k] = (uint32_t)m->next_unit;
            m->next_unit += m->caps.groups[g].block_grains;
        }
        if (m->caps.groups[g].recurrent) continue;
        s->tables[g] = calloc(blocks, sizeof **s->tables);
        for (uint32_t b = 0; b < blocks; b++) {
            s->tables[g][b] = (uint32_t)m->next_unit;
            m->next_unit += m->caps.groups[g].block_grains;
        }
    }
    if (m->next_unit > m->caps.arena_grains) {
        fprintf(stderr, "mini_sched: the test's arena is too small\n");
        abort();
    }
    encode(m, s);
}

void mini_drop(struct mini_sched *m, struct mini_seq *s)
{
    for (uint32_t i = 0; i < s->image_count; i++) engine_features_free(m->e, s->features[i]);
    for (uint32_t g = 0; g < m->caps.group_count; g++) free(s->tables[g]);
    free(s->features);
    free(s->uses);
    free(s->tokens);
    free(s->scores);
}

void mini_scan(struct mini_image *images, uint32_t n)
{
    int32_t offset = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct mini_image *im = &images[i];
        im->mrope_delta_before = offset;
        if (im->grid.w && !im->grid.breaks) {
            int32_t far = (int32_t)((double)(im->grid.t - 1) * im->grid.seconds);
            if (far < (int32_t)im->grid.h - 1) far = (int32_t)im->grid.h - 1;
            if (far < (int32_t)im->grid.w - 1) far = (int32_t)im->grid.w - 1;
            offset += far + 1 - (int32_t)(im->end - im->begin);
        }
        im->mrope_delta = offset;
    }
}

/* End of the next chunk: an atomic image is taken whole, even above the chunk's size. */
static uint32_t chunk_end(const struct mini_seq *s, enum span_rule rule)
{
    uint32_t end = s->chunk && s->prompt_count - s->done > s->chunk && rule != SPAN_PREFIX_LM
                       ? s->done + s->chunk
                       : s->prompt_count;
    for (uint32_t i = 0; i < s->image_count && rule; i++) {
        const struct mini_image *im = &s->images[i];
        if (end > im->begin && end < im->end) end = im->begin > s->done ? im->begin : im->end;
    }
    return end;
}

/* Text up to `end` of a prefix-LM prompt; nothing in others. */
static uint32_t add_text(struct mini_seq *s, enum span_rule rule, uint32_t used, uint32_t end)
{
    uint32_t begin = used ? s->uses[used - 1].end : 0;
    if (rule != SPAN_PREFIX_LM || begin == end) return used;
    s->uses[used] =
        (struct engine_span){.begin = begin, .end = end, .rule = rule, .atomic_end = s->prompt_count};
    return used + 1;
}

static void make_chunk(struct mini_seq *s, const struct mini_sched *m, struct engine_chunk *r)
{
    bool prefill = s->done < s->prompt_count;
    enum span_rule rule = engine_model(m->e)->image.rule;
    uint32_t end = prefill ? chunk_end(s, rule) : s->done + 1, used = 0;
    *r = (struct engine_chunk){
        .position = s->done,
        .count = end - s->done,
        .adapter = s->adapter,
        .tokens = s->tokens,
        .token_count = s->prompt_count + s->generated,
        .prompt_count = prefill && s->score_end ? s->score_end : s->prompt_count,
        .sampling = &s->sampling,
        .sample = end >= s->prompt_count,
        .score_first = prefill ? (s->score_first ? s->score_first : 1) : UINT32_MAX,
        .scores = s->scores + s->done + 1,
        .hidden = prefill && s->hidden ? s->hidden + (size_t)s->done * m->caps.hidden_size : NULL,
        .hidden_first = s->done,
        .state_from = s->done ? s->states[0] : ENGINE_NO_BLOCK,
        .state_to = s->states[s->done % 3 > 0], /* or in place */
        .spans = s->uses};
    for (uint32_t g = 0; g < m->caps.group_count; g++) r->tables[g] = s->tables[g];
    for (uint32_t i = 0; i < s->image_count; i++) {
        const struct mini_image *im = &s->images[i];
        if (im->end <= s->done) r->mrope_delta = im->mrope_delta;
        if (im->begin < end && im->end > s->done) {
            used = add_text(s, rule, used, im->begin);
            s->uses[used++] =
                (struct engine_span){.features = s->features[i],
                                     .begin = im->begin,
                                     .end = im->end,
                                     .rule = rule,
                                     .atomic_begin = rule && rule != SPAN_PREFIX_LM ? im->begin : 0,
                                     .atomic_end = rule == SPAN_PREFIX_LM ? s->prompt_count
                                                   : rule                 ? im->end
                                                                          : 0,
                                     .grid = im->grid,
                                     .mrope_delta_before = im->mrope_delta_before,
                                     .mrope_delta = im->mrope_delta};
        }
    }
    if (prefill) used = add_text(s, rule, used, s->prompt_count);
    r->span_count = used;
}

/* A step and whose its chunks are. */
struct mini_flight {
    struct engine_batch b;
    struct mini_seq *who[4096];
};

static void take(struct mini_sched *m, struct mini_flight *f)
{
    struct err err;
    must(engine_wait(m->e, &f->b, &err), &err);
    if (m->after_step) m->after_step(m->arg, &f->b);
    for (uint32_t i = 0; i < f->b.chunk_count; i++) {
        struct mini_seq *s = f->who[i];
        const struct engine_chunk *r = &f->b.chunks[i];
        if (s->generated >= s->generate && s->done >= s->prompt_count) continue; /* a row for nobody */
        s->done = r->position + r->count;
        if (r->state_to != s->states[0]) {
            s->states[1] = s->states[0];
            s->states[0] = r->state_to;
        }
        if (!r->sample || s->generated >= s->generate) continue;
        s->scores[s->done] = r->out;
        s->tokens[s->done] = s->forced ? s->forced[s->generated] : r->out.id;
        s->generated++;
    }
}

/* The step behind f, of the sequences whose token there is needed: for nobody after their last. False: f
 * can't have one. */
static bool make_ahead(const struct mini_sched *m, const struct mini_flight *f, struct mini_flight *out)
{
    out->b.chunk_count = 0;
    for (uint32_t i = 0; i < f->b.chunk_count; i++) {
        const struct engine_chunk *before = &f->b.chunks[i];
        struct mini_seq *s = f->who[i];
        if (s->forced || !engine_draws(m->e, before)) return false;
        if (s->generated >= s->generate) continue;
        struct engine_chunk *r = &out->b.chunks[out->b.chunk_count];
        *r = *before;
        r->position += r->count;
        r->count = 1;
        r->after = i + 1;
        r->token_count = r->position + 1;
        r->span_count = 0;
        if (s->image_count) r->mrope_delta = s->images[s->image_count - 1].mrope_delta;
        r->state_from = before->state_to;
        r->state_to = s->states[before->state_to == s->states[0]];
        out->who[out->b.chunk_count++] = s;
    }
    return out->b.chunk_count > 0;
}

bool mini_step(struct mini_sched *m, struct mini_seq **seqs, uint32_t n)
{
    struct mini_flight flights[2], *now = &flights[0], *next = &flights[1];
    struct err err;
    now->b = (struct engine_batch){m->chunks, 0};
    next->b = (struct engine_batch){m->chunks + m->caps.sequences_max, 0};
    for (uint32_t i = 0; i < n; i++) {
        struct mini_seq *s = seqs[i];
        bool finished = s->done >= s->prompt_count && s->generated >= s->generate;
        if (finished) continue;
        now->who[now->b.chunk_count] = s;
        make_chunk(s, m, &m->chunks[now->b.chunk_count++]);
    }
    if (now->b.chunk_count == 0) return false;
    must(engine_submit(m->e, &now->b, &err), &err);
    for (uint32_t ahead = 0; ahead < m->ahead && make_ahead(m, now, next); ahead++) {
        struct mini_flight *taken = now;
        must(engine_submit(m->e, &next->b, &err), &err);
        take(m, taken);
        now = next;
        next = taken;
        m->ahead_steps++;
    }
    take(m, now);
    return true;
}

void mini_run(struct mini_sched *m, struct mini_seq **seqs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) mini_add(m, seqs[i]);
    while (mini_step(m, seqs, n)) {
    }
}

void mini_run_parts(struct mini_sched *m, struct mini_seq *s, uint32_t rows, uint32_t *first, uint32_t *end)
{
    *first = 0;
    while (engine_model(m->e)->image.rule == SPAN_PREFIX_LM && s->prompt_count - *first > rows) {
        struct mini_seq part = *s;
        *end = *first + rows - 1;
        part.generate = 1;
        part.forced = NULL;
        part.score_first = *first + 1;
        part.score_end = *end + 1;
        mini_run(m, (struct mini_seq *[]){&part}, 1);
        mini_drop(m, &part);
        *first = *end;
    }
    *end = UINT32_MAX;
    s->score_first = *first + 1;
    mini_run(m, (struct mini_seq *[]){s}, 1);
}
