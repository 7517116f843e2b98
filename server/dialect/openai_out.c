/* Responses of chat completions and completions, whole or in chunks: what both have. */
#include "server/dialect/openai.h"

#include "engine/model/model_info.h"
#include "server/json/sse.h"
#include "server/json/errors.h"

#include <stdio.h>

static const struct openai_form *form(const struct generation *g)
{
    return g->dialect->own;
}

static void preamble(struct json_writer *o, const struct generation *g, bool chunk)
{
    jw_text(o, "{\"id\":\"");
    jw_text(o, form(g)->id);
    jw_text(o, g->caller.id); /* its alphabet needs no escape */
    jw_put(o, "\",\"object\":%s,\"created\":%ld,\"model\":%s,\"system_fingerprint\":%s",
           chunk ? form(g)->chunk : form(g)->object, g->caller.created, gen_model(g), gen_fingerprint(g));
    if (g->q.service_tier) jw_text(o, ",\"service_tier\":\"default\"");
    jw_text(o, ",\"choices\":[");
}

static void usage_short(struct json_writer *o, const struct gen_usage *u)
{
    jw_put(o, "{\"prompt_tokens\":%lu,\"completion_tokens\":%lu,\"total_tokens\":%lu", u->prompt,
           u->completion, u->prompt + u->completion);
}

static void usage_full(struct json_writer *o, const struct generation *g)
{
    struct gen_usage u = gen_usage(g);
    usage_short(o, &u);
    jw_put(o,
           ",\"prompt_tokens_details\":{\"cached_tokens\":%lu,\"audio_tokens\":0,"
           "\"image_tokens\":%lu},\"completion_tokens_details\":{\"reasoning_tokens\":%lu,"
           "\"audio_tokens\":0,\"accepted_prediction_tokens\":%lu,"
           "\"rejected_prediction_tokens\":%lu}}",
           u.cached, u.image, u.reasoning, u.accepted, u.rejected);
}

/* `timed` of the n tokens took the time. */
static void timing(struct json_writer *o, const char *name, uint64_t n, uint64_t timed, uint64_t us)
{
    double ms = (double)us * 1e-3;
    char text[160];
    snprintf(text, sizeof text,
             "\"%s_n\":%llu,\"%s_ms\":%.3f,\"%s_per_token_ms\":%.3f,\"%s_per_second\":%.3f", name,
             (unsigned long long)n, name, ms, name, timed ? ms / (double)timed : 0, name,
             us ? (double)timed * 1e3 / ms : 0);
    jw_text(o, text);
}

/* As llama.cpp has them. With several choices: from the first token of any to the last. The rate of output is
 * that of the tokens after the first, which comes with the prompt. */
static void timings(struct json_writer *o, const struct generation *g)
{
    struct gen_usage u = gen_usage(g);
    uint64_t first = 0, last = 0;
    if (!g->q.timings) return;
    for (uint32_t i = 0; i < g->choice_count; i++) {
        const struct choice *c = &g->choices[i];
        if (c->first_us && (!first || c->first_us < first)) first = c->first_us;
        if (c->last_us > last) last = c->last_us;
    }
    jw_put(o, ",\"timings\":{\"cache_n\":%lu,", u.cached);
    uint64_t computed = u.prompt - u.cached, more = u.completion - (u.completion ? 1 : 0);
    timing(o, "prompt", computed, computed, first ? first - g->caller.arrived_us : 0);
    jw_text(o, ",");
    timing(o, "predicted", u.completion, more, last - first);
    jw_text(o, "}");
}

/* "finish_reason":..,"stop_reason":.. */
static void reasons(struct json_writer *o, const struct choice *c)
{
    /* "tool_calls" means that the calls can be executed: not so if output stopped within one. */
    bool called = c->finish != FIN_LENGTH && c->out && chat_output_called(c->out);
    jw_text(o, ",\"finish_reason\":");
    jw_cstring(o, c->finish == FIN_LENGTH               ? "length"
                  : called && !c->gen->rules.named_call ? "tool_calls"
                                                        : "stop");
    jw_text(o, ",\"stop_reason\":");
    if (c->stop_string >= 0) {
        const struct stop_string *s = &c->gen->q.stops[c->stop_string];
        jw_string(o, s->text, s->len);
    } else if (c->stop_is_id) {
        jw_uint(o, c->stop_id);
    } else {
        jw_text(o, "null");
    }
}

static void logprobs_field(struct json_writer *o, struct choice *c, bool any)
{
    jw_text(o, ",\"logprobs\":");
    if (any && c->gen->q.logprobs) form(c->gen)->logprobs(o, &c->logprobs);
    else jw_text(o, "null");
}

static void prompt_ids(struct json_writer *o, const struct gen_prompt *p)
{
    jw_text(o, ",\"prompt_token_ids\":");
    jw_ids(o, p->prompt.tokens, p->prompt.token_count);
}

/* ---- the whole response ---- */

void openai_text(struct json_writer *o, const struct choice *c, const char *text, size_t len)
{
    const struct gen_prompt *p = c->prompt;
    struct buf both;
    buf_init(&both, SIZE_MAX / 4);
    if (c->gen->q.echo && p->text && !c->shown.any) {
        if (buf_add(&both, p->text, p->text_len) || buf_add(&both, text, len)) o->st = ST_NOMEM;
        text = both.data ? both.data : "";
        len = both.len;
    }
    jw_string(o, text, len);
    buf_fini(&both);
}

static void choice_write(struct json_writer *o, struct choice *c)
{
    struct generation *g = c->gen;
    if (c->index) jw_text(o, ",");
    jw_put(o, "{\"index\":%u", c->index);
    form(g)->text(o, c);
    logprobs_field(o, c, true);
    reasons(o, c);
    if (g->q.return_token_ids) {
        jw_text(o, ",\"token_ids\":");
        jw_ids(o, c->ids, c->id_count);
        if (form(g)->prompt_each) prompt_ids(o, c->prompt);
    }
    if (form(g)->prompt_each && g->q.prompt_logprobs) logprobs_prompt(o, g, c->prompt);
    if (g->q.given_count) {
        jw_text(o, ",\"logprob\":");
        logprobs_value(o, (float)c->likelihood);
        jw_text(o, c->unlikely ? ",\"is_greedy\":false" : ",\"is_greedy\":true");
    }
    jw_text(o, "}");
}

void openai_response(struct json_writer *o, struct choice *first)
{
    struct generation *g = first->gen;
    preamble(o, g, false);
    for (uint32_t i = 0; i < g->choice_count; i++) choice_write(o, &g->choices[i]);
    jw_text(o, "],\"usage\":");
    usage_full(o, g);
    /* With one prompt, its fields are also at the top level. */
    if (g->q.return_token_ids && g->prompt_count == 1) prompt_ids(o, &g->prompts[0]);
    if (!g->q.prompt_logprobs) jw_text(o, ",\"prompt_logprobs\":null");
    else if (g->prompt_count == 1) logprobs_prompt(o, g, &g->prompts[0]);
    timings(o, g);
    gen_cache_info(o, g);
    jw_text(o, "}");
}

/* ---- chunks ---- */

void openai_chunk_begin(struct json_writer *o, const struct choice *c)
{
    sse_begin(o);
    preamble(o, c->gen, true);
    jw_put(o, "{\"index\":%u", c->index);
}

/* As llama.cpp has it. */
static void progress(struct json_writer *o, const struct generation *g)
{
    const struct sched_event *ev = g->shown.progress;
    const struct choice *c = ev->user;
    char text[160];
    snprintf(text, sizeof text,
             ",\"prompt_progress\":{\"total\":%u,\"cache\":%u,\"processed\":%u,\"time_ms\":%.3f}",
             c->prompt->prompt.token_count, ev->cache.reused, ev->index,
             (double)(ev->pushed_us - g->caller.arrived_us) * 1e-3);
    jw_text(o, text);
}

void openai_chunk_end(struct json_writer *o, struct generation *g, bool counted, bool finish)
{
    jw_text(o, "]");
    if (g->q.continuous_usage) {
        struct gen_usage u = gen_usage(g);
        if (!counted) u.completion = 0;
        jw_text(o, ",\"usage\":");
        usage_short(o, &u);
        jw_text(o, "}");
    } else if (g->q.include_usage) {
        jw_text(o, ",\"usage\":null");
    }
    if (g->q.return_token_ids && !g->shown.prompt_ids && g->prompt_count == 1) prompt_ids(o, &g->prompts[0]);
    g->shown.prompt_ids = true;
    if (counted) timings(o, g);
    if (g->shown.progress) progress(o, g);
    /* With a usage chunk it goes there; else into the last chunk: an extra chunk without choices would break
     * clients that read choices[0]. */
    if (finish && !g->q.include_usage && g->shown.finishes == g->choice_count) gen_cache_info(o, g);
    gen_event_end(o, g);
}

bool openai_content_missing(const struct choice *c)
{
    return c->shown.null && !c->out->content.len && !c->out->call_count;
}

/* The finish reason, if finished, and tokens not yet reported. */
static void reasons_and_ids(struct json_writer *o, const struct choice *c, bool last)
{
    if (last) {
        reasons(o, c);
    } else {
        jw_text(o, ",\"finish_reason\":null");
    }
    if (c->gen->q.return_token_ids) {
        jw_text(o, ",\"token_ids\":");
        jw_ids(o, c->ids + c->shown.ids, c->id_count - c->shown.ids);
    }
}

/* A chunk per step, also without text; but none while the kind of text is undecided. */
static bool undecided(const struct chat_output *out)
{
    bool in_call = out->call_count || (out->rules.calls && out->tool_calls.state != TOOL_TEXT);
    return chat_output_reasons(out) ? !out->reasoning_shown : !out->content_shown || in_call;
}

/* Chunks for everything new; the first one carries the per-token data since the last one. finish: the last
 * one carries the finish_reason. */
static void chunks(struct choice *c, bool finish)
{
    struct generation *g = c->gen;
    bool ended = c->finish != FIN_NONE, first = true;
    struct delta delta = delta_next(c);
    if (delta.kind == DELTA_NONE && !ended && c->out && undecided(c->out)) return;
    do {
        struct json_writer o = {.buf = g->out};
        bool opens = !c->shown.any;
        openai_chunk_begin(&o, c);
        form(g)->delta(&o, c, &delta);
        delta_shown(c, &delta);
        delta = delta_next(c);
        bool last = finish && delta.kind == DELTA_NONE && !openai_content_missing(c);
        logprobs_field(&o, c, first);
        reasons_and_ids(&o, c, last);
        if (g->q.return_token_ids && form(g)->prompt_each && opens) prompt_ids(&o, c->prompt);
        c->shown.ids = c->id_count;
        first = false;
        jw_text(&o, "}");
        openai_chunk_end(&o, g, true, last);
    } while (delta.kind != DELTA_NONE || (ended && openai_content_missing(c)));
}

/* Has c, which is finished, unsent output? For example text held back for a stop string that never completed.
 */
static bool pending(const struct choice *c)
{
    const struct inference_request *q = &c->gen->q;
    if (delta_next(c).kind != DELTA_NONE || openai_content_missing(c)) return true;
    return c->out ? (q->logprobs || q->return_token_ids) && c->shown.ids < c->id_count
                  : c->shown.dirty || !c->shown.any;
}

/* A choice that has finished closes with its finish_reason: in a chunk of its own, unless --stream-finish
 * says otherwise. */
void openai_news(struct choice *c)
{
    struct generation *g = c->gen;
    struct json_writer o = {.buf = g->out};
    bool ended = c->finish != FIN_NONE, text = !ended || pending(c);
    bool merged = ended && text && g->ctx->opt->stream_finish == STREAM_FINISH_MERGED;
    g->shown.finishes += ended;
    if (text) chunks(c, merged);
    if (!ended || merged) return;
    openai_chunk_begin(&o, c);
    jw_text(&o, form(g)->empty);
    jw_text(&o, ",\"logprobs\":null");
    reasons(&o, c);
    jw_text(&o, "}");
    openai_chunk_end(&o, g, true, true);
}

void openai_progress(struct choice *c, const struct sched_event *ev)
{
    struct generation *g = c->gen;
    struct json_writer o = {.buf = g->out};
    g->shown.progress = ev;
    openai_chunk_begin(&o, c);
    jw_text(&o, form(g)->empty);
    jw_text(&o, ",\"logprobs\":null,\"finish_reason\":null}");
    openai_chunk_end(&o, g, false, false);
    g->shown.progress = NULL;
}

void openai_tail(struct choice *first)
{
    struct generation *g = first->gen;
    struct json_writer o = {.buf = g->out};
    if (g->q.include_usage) {
        sse_begin(&o);
        preamble(&o, g, true);
        jw_text(&o, "],\"usage\":");
        usage_full(&o, g);
        gen_cache_info(&o, g);
        gen_event_end(&o, g);
    }
    sse_done(&o);
    if (o.st) gen_abort(g->r, 500, "internal_error", "The response is too large.");
}

void openai_error(struct generation *g)
{
    struct json_writer o = {.buf = g->out};
    sse_begin(&o);
    error_json(g->e, ERROR_OPENAI, g->out);
    sse_end(&o);
    sse_done(&o);
}
