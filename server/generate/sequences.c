/* Sequences of a generating request: preparing, submitting and ending them, and handling their events. Event
 * loop's thread. The response is written by generate/write.c; the request is read by input/parse.c. */
#include "config/base/utf8.h"
#include "server/http/request.h"
#include "server/generate/generate.h"
#include "server/input/remote.h"
#include "server/fetch/fetch.h"

#include "config/base/assert.h"
#include "config/base/list.h"
#include "config/base/log.h"
#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"
#include "scheduler/cache/hash_mix.h"
#include "server/json/fields.h"
#include "server/context/adapters.h"
#include "server/context/limits.h"
#include "server/chat/tool_calls/types.h"
#include "server/grammar/grammar.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX     (64u << 20) /* bytes of one choice's text */
#define LOGPROBS_MAX (256u << 20)

static size_t pooled_floats(const struct choice *c)
{
    const struct generation *g = c->gen;
    uint32_t rows = g->q.pooling == POOL_ALL ? c->prompt->prompt.token_count : 1;
    return (size_t)rows * g->ctx->model->embedding_width;
}

static void account_choice(struct choice *c)
{
    size_t bytes = c->text.cap + c->id_cap * sizeof *c->ids;
    for (int i = 0; i < LOGPROBS_PARTS; i++) bytes += c->logprobs.part[i].cap;
    if (c->out)
        bytes += sizeof *c->out +
                 2 * c->text.cap; /* a second, parsed copy of the text; buffers grow by doubling */
    if (c->gen->q.pooling == POOL_ALL) bytes += 2 * c->text.cap; /* the scheduler's, in f64 */
    response_account(&c->gen->r->response, &c->accounted, bytes);
}

static void gen_tokens(const struct generation *g, struct request_tokens *out)
{
    struct gen_usage u = gen_usage(g);
    *out = (struct request_tokens){.prompt = u.prompt, .cached = u.cached, .completion = u.completion};
    for (uint32_t i = 0; i < g->choice_count; i++) {
        uint64_t first = g->choices[i].first_us;
        if (first && (!out->first_us || first < out->first_us)) out->first_us = first;
    }
}

void gen_free(struct generation *g)
{
    g->r->srv->load--;
    if (g->dialect->end) g->dialect->end(g);
    gen_shed(g);
    buf_fini(&g->written);
    for (uint32_t i = 0; i < g->choice_count; i++) {
        free(g->choices[i].detok);
        matcher_free(g->choices[i].matcher);
    }
    grammar_unref(g->grammar);
    json_decref(g->compile.source);
    free(g->compile.key);
    free(g->warnings);
    json_decref(g->misspelt);
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        prompt_free(&g->prompts[i].prompt);
        free(g->prompts[i].text);
        cache_places_free(&g->prompts[i].places);
    }
    gen_images_free(g);
    gen_remote_end(g);
    free(g->choices);
    free(g->prompts);
    stop_set_free(g->stops);
    tool_types_destroy(g->rules.tool_types);
    json_decref(g->rules.bare_calls);
    gen_read_free(g);
    inference_request_free(&g->q);
    gen_receipt_free(g->receipt);
    free(g->dialect_state);
    free(g);
}

/* ---- images fetched before the prompt is built ---- */

/* The files are fetched: the job continues. */
static void go_on(struct request *r)
{
    r->fetches--;
    if (r->cancelled || !r->http.mhd || r->state != RQ_WORKING) { /* answered meanwhile, or disconnected */
        request_release(r);
        return;
    }
    r->gen->prep.fetched = true;
    request_work(r, r->job_run, r->job_done);
}

void gen_remote_done(struct server *s)
{
    void *r;
    while (s->ctx.fetcher && fetch_take(s->ctx.fetcher, &r)) go_on(r);
}

static void job_ended(struct request *r)
{
    struct generation *g = r->gen;
    if (g->prep.again) {
        g->prep.again = false;
        request_work(r, r->job_run, r->job_done);
        return;
    }
    if (!g->prep.remote || g->prep.fetched || r->response.error.http) {
        g->done(r);
        return;
    }
    /* The parsed body is kept while the files are fetched, its text is not. */
    request_body_drop(r, r->http.body.len + 150 * r->http.body_marks);
    r->fetches++;
    fetch_start(g->prep.remote, r->response.share, r);
}

struct caller caller_of(const struct request *r)
{
    const struct http_message *m = &r->http;
    return (struct caller){.id = m->id,
                           .client = m->client,
                           .key = m->key,
                           .has_key = m->has_key,
                           .one_key = m->one_key,
                           .websocket = m->websocket,
                           .created = m->created,
                           .arrived_us = m->arrived_us,
                           .body_len = m->body.len,
                           .body_bytes = m->body.len + 150 * m->body_marks};
}

void gen_start(struct request *r, const struct dialect *dialect, void (*job)(struct request *r),
               void (*done)(struct request *r))
{
    struct generation *g = calloc(1, sizeof *g);
    if (!g) {
        (void)api_nomem(&r->response.error);
        request_fail(r);
        return;
    }
    *g = (struct generation){.r = r,
                             .ctx = &r->srv->ctx,
                             .e = &r->response.error,
                             .share = r->response.share,
                             .out = &r->response.out,
                             .caller = caller_of(r),
                             .dialect = dialect,
                             .q = {.kind = dialect->kind, .source = dialect->source},
                             .done = done};
    gen_defaults(g);
    r->gen = g;
    r->gen_cancel = gen_cancel;
    r->gen_free = gen_free;
    r->gen_tokens = gen_tokens;
    r->srv->load++;
    request_work(r, job, job_ended);
}

static void touch(struct generation *g, struct generation **list)
{
    if (g->touched) return;
    g->touched = true;
    g->next_touched = *list;
    *list = g;
}

static void choice_finish(struct choice *c, enum finish why)
{
    if (c->finish != FIN_NONE) return;
    c->finish = why;
    c->held = 0;
    c->gen->choices_open--;
}

/* ---- text ---- */

/* New text of c is in c->text from `from` on: searches it for stop strings. */
static void text_match(struct choice *c, size_t from)
{
    struct generation *g = c->gen;
    if (!g->stops) return;
    while (from < c->text.len) {
        struct stop_hit hit = stop_feed(g->stops, &c->stop, c->text.data + from, c->text.len - from);
        if (!hit.found) break;
        if (c->id_count < g->q.min_tokens) { /* too early to stop: keep the text and search after the match */
            c->stop = (struct stop_state){0};
            from += hit.end;
            continue;
        }
        c->text.len = from + hit.end - (g->q.include_stop ? 0 : hit.len);
        c->stop_string = (int)hit.which;
        choice_finish(c, FIN_STOP);
        return;
    }
    c->held = stop_held(g->stops, &c->stop);
}

/* A complete constrained output allows only EOS. */
static bool ignores_eos(const struct generation *g)
{
    return g->q.ignore_eos && !g->grammar;
}

static bool is_stop_id(const struct choice *c, uint32_t id)
{
    const struct inference_request *p = &c->gen->q;
    const struct model_info *mi = c->gen->ctx->model->info;
    for (uint32_t i = 0; i < p->stop_id_count; i++) {
        if (p->stop_ids[i] == id) return true;
    }
    for (uint32_t i = 0; i < mi->eos_count && !ignores_eos(c->gen); i++) {
        if (mi->eos_ids[i] == id) return true;
    }
    return false;
}

static enum status ids_add(struct choice *c, uint32_t id)
{
    if (!LIST_RESERVE(c->ids, c->id_cap, c->id_count + 1)) return ST_NOMEM;
    c->ids[c->id_count++] = id;
    return ST_OK;
}

/* Parses the new text of a chat's output, except what is held back for a stop string. */
static enum status output_run(struct choice *c)
{
    size_t len = c->text.len > c->held ? c->text.len - c->held : 0;
    if (c->out) c->out->ended = c->finish == FIN_STOP && c->stop_string < 0;
    return c->out ? chat_output_run(c->out, c->text.data ? c->text.data : "", len, c->finish != FIN_NONE)
                  : ST_OK;
}

/* Is this token omitted from the text because it ended the output? */
static bool is_hidden_stop(const struct choice *c, uint32_t id)
{
    return is_stop_id(c, id) && !c->gen->q.include_stop;
}

static enum status token_text(struct choice *c, uint32_t id)
{
    const struct generation *g = c->gen;
    if (is_hidden_stop(c, id)) return ST_OK;
    bool tag = false;
    for (uint32_t i = 0; i < g->tag_id_count; i++) tag = tag || g->tag_ids[i] == id;
    c->detok->skip_special = g->q.skip_special && !tag;
    return detok_push(c->detok, id, &c->text);
}

static enum status token_take(struct choice *c, const struct token_out *t)
{
    struct generation *g = c->gen;
    size_t before = c->text.len;
    enum reasoning_state reasoning = c->out ? c->out->reasoning_parse.state : REASON_AFTER;
    enum status st = ids_add(c, t->id);
    c->logprobs.special_bytes = !g->q.skip_special && !is_hidden_stop(c, t->id);
    if (!st && g->q.logprobs)
        st = g->dialect->logprob(c, t, t->id, c->chars + (g->q.echo ? c->prompt->text_chars : 0));
    if (st) return st;
    st = token_text(c, t->id);
    if (st) return st;
    c->chars += utf8_count(c->text.data ? c->text.data + before : "", c->text.len - before);
    text_match(c, before);
    st = output_run(c);
    if (st || !c->out) return st;
    chat_output_token(c->out, reasoning);
    /* The only allowed call is complete: further output would be dropped anyway. */
    if (chat_output_done(c->out) && !g->q.given_count && !ignores_eos(g) && c->id_count >= g->q.min_tokens)
        choice_finish(c, FIN_STOP);
    return ST_OK;
}

/* ---- events ---- */

/* A prompt's cache report is that of its first sample: the others find what that one left. */
static void cache_seen(struct choice *c, const struct sched_event *ev)
{
    struct gen_prompt *p = c->prompt;
    if (p->cache_known || c->index % c->gen->q.n) return;
    p->cache_known = true;
    p->cache = ev->cache;
    p->cached_tokens = ev->cache.reused;
}

static void on_progress(struct choice *c, const struct sched_event *ev, struct generation **touched)
{
    struct generation *g = c->gen;
    if (c->finish != FIN_NONE || g->failed || g->r->cancelled || !g->r->http.mhd) return;
    cache_seen(c, ev);
    gen_stream_progress(c, ev);
    touch(g, touched);
}

static void on_token(struct choice *c, const struct sched_event *ev, struct generation **touched)
{
    struct generation *g = c->gen;
    struct request *r = g->r;
    if (c->finish != FIN_NONE || g->failed || r->cancelled)
        return;                   /* text after a stop string, or the client has disconnected */
    uint64_t now = ev->pushed_us; /* tokens of several steps may come together */
    if (!c->first_us) {
        c->first_us = now;
        metrics_first_token(r->srv->metrics, (double)(now - r->http.arrived_us) * 1e-6);
        cache_seen(c, ev);
    } else {
        metrics_next_token(r->srv->metrics, (double)(now - c->last_us) * 1e-6);
    }
    c->last_us = now;
    c->logprob = ev->token.logprob;
    if (g->receipt || g->record)
        crypto_hash_sha256_update(&c->logprobs_hash, (const unsigned char *)&c->logprob, sizeof c->logprob);
    c->likelihood += (double)ev->token.logprob;
    c->unlikely = c->unlikely || ev->token.rank != 1;
    c->proposed = ev->proposed;
    c->accepted = ev->accepted;
    if (g->q.stream) gen_stream_token(c);
    if (token_take(c, &ev->token)) {
        gen_abort_status(r, ST_NOMEM, NULL);
        return;
    }
    if (g->dialect->token) g->dialect->token(c);
    account_choice(c);
    touch(g, touched);
    if (c->finish != FIN_NONE) sched_cancel(r->srv->ctx.model->sched, c->seq);
}

static bool echoes_logprobs(const struct generation *g)
{
    return g->q.kind == GEN_COMPLETION && g->q.echo && g->q.logprobs;
}

/* Log-probs of an echoed prompt, as they arrive: all at once would block the event loop. The prompt's first
 * token has none. Until the last one, c->detok is the prompt's. */
static enum status echo_logprobs(struct choice *c, uint32_t from, uint32_t count,
                                 const struct token_out *scores)
{
    const struct prompt *p = &c->prompt->prompt;
    struct buf text;
    enum status st = ST_OK;
    buf_init(&text, SIZE_MAX / 4);
    for (uint32_t i = 0; i < count && !st; i++) {
        uint32_t id = p->tokens[from + i];
        st = c->gen->dialect->logprob(c, scores ? &scores[i] : NULL, id, c->echo_chars);
        text.len = 0;
        if (!st) st = detok_push(c->detok, id, &text);
        c->echo_chars += utf8_count(text.data ? text.data : "", text.len);
    }
    buf_fini(&text);
    if (from + count == p->token_count) detok_init(c->detok, c->gen->ctx->model->tok, c->gen->q.skip_special);
    account_choice(c);
    return st;
}

static void on_scores(struct choice *c, struct sched_event *ev)
{
    struct generation *g = c->gen;
    struct gen_prompt *p = c->prompt;
    uint32_t total = p->prompt.token_count;
    if (!g->failed && !g->r->cancelled && echoes_logprobs(g) &&
        echo_logprobs(c, ev->index, ev->score_count, ev->scores))
        gen_abort_status(g->r, ST_NOMEM, NULL);
    if (!p->scores && !g->failed && g->q.prompt_logprobs) p->scores = calloc(total, sizeof *p->scores);
    if (p->scores) response_account(&g->r->response, &p->accounted, total * sizeof *p->scores);
    for (uint32_t i = 0; p->scores && i < ev->score_count; i++) {
        if (ev->index + i < total) p->scores[ev->index + i] = ev->scores[i];
    }
    free(ev->scores);
}

static void end_metrics(struct choice *c, const struct sched_event *ev)
{
    struct request *r = c->gen->r;
    uint64_t now = now_us();
    metrics_sequence(r->srv->metrics, &(struct metrics_sequence){
                                          .finish = r->cancelled ? FIN_ABORT : c->finish,
                                          .prompt_tokens = c->prompt->prompt.token_count,
                                          .cached_tokens = ev->cache.reused,
                                          .generated = c->id_count,
                                          .preemptions = ev->preemptions,
                                          .max_tokens = (uint32_t)c->gen->q.max_tokens,
                                          .e2e_seconds = (double)(now - r->http.arrived_us) * 1e-6,
                                          .queue_seconds = (double)ev->queued_us * 1e-6,
                                          .prefill_seconds = (double)ev->prefill_us * 1e-6,
                                          .decode_seconds = (double)(c->last_us - c->first_us) * 1e-6,
                                          .had_token = c->id_count > 0,
                                      });
}

/* The pooled vectors take the place of the text. */
static enum status take_pooled(struct choice *c, const double *pooled)
{
    size_t n = pooled_floats(c);
    enum status st = buf_reserve(&c->text, n * sizeof(float));
    for (size_t i = 0; i < n && !st; i++) ((float *)(void *)c->text.data)[i] = (float)pooled[i];
    if (!st) c->text.len = n * sizeof(float);
    account_choice(c);
    return st;
}

/* Whether a generation would have stopped after the given tokens, its stop strings aside. */
static bool given_stops(const struct choice *c)
{
    return (c->out && chat_output_done(c->out)) || (c->id_count && is_stop_id(c, c->ids[c->id_count - 1]));
}

static void on_end(struct choice *c, const struct sched_event *ev, struct generation **touched)
{
    struct generation *g = c->gen;
    struct request *r = g->r;
    c->seq_ended = true;
    r->sequences_alive--;
    r->srv->background -= r->http.inside;
    if (r->lora) atomic_fetch_sub(&r->lora->sequences, 1);
    share_sub(r->response.share, SHARE_QUEUE, 1);
    cache_seen(c, ev);
    if ((ev->end == END_GIVEN && !g->q.given_count) || ev->end == END_DIFFERS) {
        /* a receipt is wrong, unless it has finished */
        c->differs = ev->end == END_DIFFERS && c->finish == FIN_NONE;
        c->drew = ev->drew;
        c->given = ev->given;
        choice_finish(c, FIN_ABORT);
        touch(g, touched);
    } else if (c->finish == FIN_NONE && ev->end != END_ERROR && ev->end != END_CANCELLED &&
               ev->end != END_DEADLINE && ev->end != END_CONSTRAINT) {
        size_t before = c->text.len;
        if (detok_flush(c->detok, &c->text) == ST_OK) text_match(c, before);
        c->chars += utf8_count(c->text.data ? c->text.data + before : "", c->text.len - before);
        if (c->finish == FIN_NONE && ev->end == END_STOP_TOKEN) {
            c->stop_is_id = true;
            c->stop_id = ev->stop_id;
        }
        bool cut = ev->end == END_LENGTH || (ev->end == END_GIVEN && !given_stops(c));
        choice_finish(c, cut ? FIN_LENGTH : FIN_STOP);
        if (output_run(c) || (ev->pooled && take_pooled(c, ev->pooled))) gen_abort_status(r, ST_NOMEM, NULL);
        else if (g->dialect->token && !g->failed && !r->cancelled)
            g->dialect->token(c); /* text held back until the end */
        touch(g, touched);
    } else if (c->finish == FIN_NONE) {
        choice_finish(c, ev->end == END_ERROR || ev->end == END_CONSTRAINT ? FIN_ERROR : FIN_ABORT);
        if (ev->end == END_CONSTRAINT) {
            char text[384];
            const char *code = gen_constraint_failure(c, text, sizeof text);
            gen_abort(r, strcmp(code, "out_of_memory") == 0 ? 503 : 400, code, text);
        } else if (ev->end == END_DEADLINE && !r->cancelled && !g->failed) {
            char text[96];
            snprintf(text, sizeof text, "The request took longer than %llu seconds.",
                     (unsigned long long)r->srv->ctx.opt->request_timeout);
            gen_abort(r, 504, "timeout", text);
        } else if (!r->cancelled && !g->failed) {
            log_warn("req=%s the engine ended the sequence: %s", r->http.id, ev->message);
            gen_abort(r, 500, "engine_error", "The engine aborted this request.");
        }
    }
    free(ev->pooled);
    end_metrics(c, ev);
    if (!g->choices_open && !r->sequences_alive) {
        uint32_t longest = 0;
        for (uint32_t i = 0; i < g->choice_count; i++)
            longest = g->choices[i].id_count > longest ? g->choices[i].id_count : longest;
        metrics_request_n(r->srv->metrics, g->q.n, longest);
    }
}

/* After the events of one wake-up: sends to the client. */
static void gen_flush(struct generation *g)
{
    struct request *r = g->r;
    g->touched = false;
    if (r->cancelled || g->failed || !r->http.mhd) return;
    if (!g->q.stream) {
        if (g->choices_open || r->state != RQ_RUNNING) return;
        gen_write_response(g);
        return;
    }
    gen_stream_write(g);
    if (r->stream.end) gen_shed(g);
    request_stream_more(r);
}

void gen_events(struct server *s)
{
    struct generation *touched = NULL;
    struct sched_event ev;
    uint64_t now = now_us(), since = sched_poll_since(s->ctx.model->sched);
    if (since && now > since) peak_note(&s->health.handed, now - since, now);
    while (sched_poll(s->ctx.model->sched, &ev)) {
        struct choice *c = ev.user;
        struct request *r = c->gen->r;
        switch (ev.kind) {
        case EV_PROGRESS: on_progress(c, &ev, &touched); break;
        case EV_TOKEN: on_token(c, &ev, &touched); break;
        case EV_PROMPT_SCORES: on_scores(c, &ev); break;
        case EV_IMAGE: gen_image_wanted(c, &ev); break;
        case EV_END:
            on_end(c, &ev, &touched);
            /* A request in the list must live until the list is walked. */
            if (!c->gen->touched) request_release(r);
            break;
        }
    }
    while (touched) {
        struct generation *g = touched;
        touched = g->next_touched;
        struct request *r = g->r;
        gen_flush(g);
        request_release(r);
    }
}

/* ---- start ---- */

/* Not on the worker: the loop logs the id when the client disconnects. */
static void request_id_take(struct request *r, struct text id)
{
    char text[sizeof r->http.id];
    if (r->http.id_from_client || !id.len || id.len >= sizeof text) return;
    memcpy(text, id.data, id.len);
    text[id.len] = '\0';
    if (strlen(text) != id.len || !request_id_ok(text)) return;
    memcpy(r->http.id, text, id.len + 1);
    r->http.id_from_client = true;
}

static uint64_t random_seed(void)
{
    uint64_t v;
    randombytes_buf(&v, sizeof v);
    return v;
}

/* Sample 0 uses the request's seed, so that n = 1 and n = 3 agree on it; the others use a mix (splitmix64).
 */
static uint64_t choice_seed(uint64_t seed, uint32_t sample)
{
    return sample ? hash_mix(seed + (sample - 1) * 0x9E3779B97F4A7C15ull) : seed;
}

/* Tags of calls and reasoning that are special tokens of this checkpoint. In most releases they are ordinary
 * added tokens. */
static void tags_find(struct generation *g)
{
    bool channel = g->rules.reasoning_syntax == REASONING_CHANNEL;
    const char *tags[TOOL_TAGS_MAX + 2];
    size_t n = g->rules.calls ? tool_syntax_tags(g->rules.calls, tags) : 0;
    if (g->rules.reasoning != REASONING_NONE) {
        tags[n++] = channel ? CHANNEL_OPEN : reasoning_open(g->rules.reasoning_syntax);
        tags[n++] = reasoning_close(g->rules.reasoning_syntax);
    }
    const struct tokenizer *tok = g->ctx->model->tok;
    for (size_t i = 0; i < n; i++) {
        uint32_t id;
        if (tok_id_of(tok, tags[i], strlen(tags[i]), &id) && tok_is_special(tok, id))
            g->tag_ids[g->tag_id_count++] = id;
    }
}

static bool output_create(struct choice *c)
{
    const struct generation *g = c->gen;
    bool marked = g->rules.calls || g->rules.reasoning != REASONING_NONE;
    if (g->q.kind == GEN_VECTORS || (g->dialect->plain && !marked)) return true;
    c->out = malloc(sizeof *c->out);
    if (!c->out) return false;
    chat_output_init(c->out,
                     &(struct chat_output_rules){.reasoning = g->rules.reasoning,
                                                 .syntax = g->rules.reasoning_syntax,
                                                 .inside = g->inside_reasoning,
                                                 .calls = g->rules.calls,
                                                 .types = g->rules.tool_types,
                                                 .bare = g->rules.bare_calls,
                                                 .exact = g->grammar != NULL,
                                                 .single_call = !g->q.parallel_calls,
                                                 .must_call = g->rules.must_call},
                     TEXT_MAX);
    return true;
}

static bool choices_create(struct generation *g)
{
    const struct tokenizer *tok = g->ctx->model->tok;
    g->choices = calloc((size_t)g->prompt_count * g->q.n, sizeof *g->choices);
    if (!g->choices) return false;
    uint64_t seed = g->q.has_seed ? (uint64_t)g->q.seed : random_seed();
    if (g->receipt && g->receipt->claim) seed = g->receipt->seed;
    else if (g->receipt) g->receipt->seed = seed;
    g->choice_count = g->prompt_count * g->q.n;
    g->choices_open = g->choice_count;
    for (uint32_t i = 0; i < g->choice_count; i++) {
        struct choice *c = &g->choices[i];
        c->gen = g;
        c->index = i;
        c->prompt = &g->prompts[i / g->q.n];
        c->stop_string = -1;
        crypto_hash_sha256_init(&c->logprobs_hash);
        c->sampling = g->q.sampling;
        c->sampling.seed = choice_seed(seed, i % g->q.n);
        /* One sequence per prompt scores it, unless each choice returns the scores before its own tokens. */
        if (i % g->q.n && !echoes_logprobs(g)) c->sampling.prompt_logprobs = SAMPLING_NO_LOGPROBS;
        buf_init(&c->text, g->q.pooling ? LIMIT_RESPONSE_BYTES : TEXT_MAX);
        for (int k = 0; k < LOGPROBS_PARTS; k++) buf_init(&c->logprobs.part[k], LOGPROBS_MAX);
        c->detok = malloc(sizeof *c->detok);
        if (!c->detok) return false;
        detok_init(c->detok, tok, g->q.skip_special);
        if (echoes_logprobs(g) && echo_logprobs(c, 0, 1, NULL)) return false;
        /* Vectors of all tokens: counted before they are computed. */
        if (g->q.pooling == POOL_ALL) {
            if (buf_reserve(&c->text, pooled_floats(c) * sizeof(float))) return false;
            account_choice(c);
        }
        if (!output_create(c) || (!g->q.given_count && !gen_constraint_start(c))) return false;
    }
    tags_find(g);
    return true;
}

static enum status submit(struct choice *c, struct err *err)
{
    struct generation *g = c->gen;
    struct request *r = g->r;
    struct server *s = r->srv;
    uint32_t context = s->ctx.model->caps.context_max, count = c->prompt->prompt.token_count;
    uint32_t max = g->q.has_max_tokens ? (uint32_t)g->q.max_tokens : context - count;
    if (!max && !g->q.pooling && c->sampling.prompt_logprobs == SAMPLING_NO_LOGPROBS) { /* echo only */
        choice_finish(c, FIN_LENGTH);
        c->seq_ended = true;
        return ST_OK;
    }
    uint32_t given_count = 0;
    const uint32_t *given = gen_verify_given(c, &given_count, &max);
    if (g->q.given_count) {
        const struct prompt_input *own = &g->q.given[g->q.given_count == 1 ? 0 : c->index % g->q.n];
        given = own->ids;
        given_count = (uint32_t)own->id_count;
    }
    struct sched_sequence seq = {
        .prompt = &c->prompt->prompt,
        .given = given,
        .given_count = given_count,
        .forced = g->q.given_count > 0,
        .sampling = &c->sampling,
        .pooling = g->q.pooling,
        .tokens_max = max,
        .tokens_min = (uint32_t)(g->q.min_tokens > max ? max : g->q.min_tokens),
        .ignore_eos = ignores_eos(g),
        .stop_ids = g->q.stop_ids,
        .stop_id_count = g->q.stop_id_count,
        .priority = r->http.inside        ? SCHED_BACKGROUND
                    : r->http.may_precede ? g->q.priority
                                          : 0,
        .rank = r->http.may_precede ? 0 : g->q.priority,
        .tenant = g->caller.tenant ^ r->http.inside, /* not its owner's share of the engine */
        .progress = g->q.progress && g->q.stream && g->dialect->progress && c->index % g->q.n == 0,
        .no_cache_read = c->sampling.prompt_logprobs != SAMPLING_NO_LOGPROBS,
        .deadline_us = s->ctx.opt->request_timeout && !r->http.inside
                           ? r->http.arrived_us + s->ctx.opt->request_timeout * 1000000u
                           : 0,
        .user = c};
    memcpy(seq.salt, g->caller.salt, sizeof seq.salt);
    if (r->lora) {
        seq.adapter = r->lora->weights;
        seq.running = &r->lora->running;
    }
    enum status st = sched_submit(s->ctx.model->sched, &seq, &c->seq, err);
    if (st) return st;
    c->submitted = true;
    r->sequences_alive++;
    if (r->lora) atomic_fetch_add(&r->lora->sequences, 1);
    s->background += r->http.inside;
    share_add(r->response.share, SHARE_QUEUE, 1);
    return ST_OK;
}

static void submit_failed(struct request *r, enum status st, const struct err *err)
{
    if (st == ST_AGAIN) share_refused(r->response.share, SHARE_QUEUE);
    (void)api_fail_status(&r->response.error, st, gen_source(r->gen), err);
    if (gen_verify_failed(r->gen)) {
        r->gen->failed = true;
        gen_cancel(r);
        request_finish(r);
        return;
    }
    gen_abort_status(r, st, err);
}

/* Of a request with many sequences a part is in the queue at once, so that it pushes nobody out. The others
 * follow as those end; while it has one there, a full queue makes it wait. */
enum { PARTS = 8 };
static void feed(struct request *r)
{
    struct generation *g = r->gen;
    struct err err = {0};
    uint64_t most = r->srv->ctx.opt->max_queue / PARTS + 1;
    enum status st = ST_OK;
    while (!g->failed && !r->cancelled && g->choices_fed < g->choice_count && r->sequences_alive < most) {
        bool may = !(r->sequences_alive || !g->choices_fed) ||
                   server_queue_admits(r->srv, r->response.share, r->http.inside);
        st = may ? submit(&g->choices[g->choices_fed], &err) : ST_AGAIN;
        if (st == ST_AGAIN && g->choices_fed) return;
        if (st) break;
        g->choices_fed++;
    }
    if (st) submit_failed(r, st, &err);
    if (g->choices_fed == g->choice_count) request_wait_end(r);
}

void gen_submit(struct request *r)
{
    struct generation *g = r->gen;
    struct server *s = r->srv;
    request_id_take(r, g->q.id);
    for (uint32_t i = 0; i < g->images_decoded; i++)
        metrics_image(s->metrics, g->image_seconds / g->images_decoded);
    if (r->response.error.http) {
        request_fail(r);
        return;
    }
    if (!choices_create(g)) {
        (void)api_nomem(&r->response.error);
        request_fail(r);
        return;
    }
    request_wait(r, feed);
    feed(r);
    if (!g->choices_open && !g->failed) gen_flush(g);
}
