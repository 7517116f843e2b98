/* The response of a generating request, whole or in chunks. Event loop's thread. Knows nothing of sequences
 * or sockets: it reads a gen and writes JSON into its request's `out`. */
#include "server/generate/generate.h"

#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/generate/delta.h"
#include "server/context/limits.h"
#include "server/http/request.h"
#include "server/http/stream.h"
#include "server/json/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void preamble(struct json_writer *o, const struct generation *g, bool chunk)
{
    const struct request *r = g->r;
    const struct server *s = r->srv;
    bool chat = g->q.kind == GEN_CHAT;
    jw_text(o, chat ? "{\"id\":\"chatcmpl-" : "{\"id\":\"cmpl-");
    jw_text(o, r->http.id); /* its alphabet needs no escape */
    jw_text(o, !chat   ? "\",\"object\":\"text_completion\""
               : chunk ? "\",\"object\":\"chat.completion.chunk\""
                       : "\",\"object\":\"chat.completion\"");
    jw_put(o, ",\"created\":%ld,\"model\":%s,\"system_fingerprint\":%s", r->http.created,
           r->model_name ? r->model_name : s->ctx.model_name, s->ctx.model->info->fingerprint);
    if (g->q.service_tier) jw_text(o, ",\"service_tier\":\"default\"");
    jw_text(o, ",\"choices\":[");
}

struct gen_usage gen_usage(const struct generation *g)
{
    struct gen_usage u = {0};
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        u.prompt += g->prompts[i].prompt.token_count;
        u.cached += g->prompts[i].cached_tokens;
        u.image += g->prompts[i].image_tokens;
    }
    for (uint32_t i = 0; i < g->choice_count; i++) {
        u.completion += g->choices[i].id_count;
        u.accepted += g->choices[i].accepted;
        u.rejected += g->choices[i].proposed - g->choices[i].accepted;
        u.reasoning += g->choices[i].out ? g->choices[i].out->reasoning_tokens : 0;
    }
    return u;
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

void gen_cache_info(struct json_writer *o, const struct generation *g)
{
    static const struct sched_cache_info nothing = {
        .stop = CACHE_STOP_DISABLED}; /* a prompt that is only echoed */
    if (g->warnings || g->misspelt) {
        size_t len = g->warnings ? strlen(g->warnings) - 1 : 0; /* without the last bracket */
        jw_text(o, ",\"warnings\":");
        if (len) jw_bytes(o, g->warnings, len);
        for (size_t i = 0; i < json_array_size(g->misspelt); i++) {
            jw_text(o, len + i ? "," : "[");
            jw_value(o, json_array_get(g->misspelt, i));
        }
        jw_text(o, "]");
    }
    if (!g->q.return_cache_info) return;
    jw_text(o, g->prompt_count > 1 ? ",\"cache_info\":{\"prompts\":[" : ",\"cache_info\":");
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        const struct gen_prompt *p = &g->prompts[i];
        if (i) jw_text(o, ",");
        cache_info_write(o, p->cache_known ? &p->cache : &nothing, p->prompt.token_count, p->dropped,
                         g->left_out, &p->places);
    }
    if (g->prompt_count > 1) jw_text(o, "]}");
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
    timing(o, "prompt", computed, computed, first ? first - g->r->http.arrived_us : 0);
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
    if (any && c->gen->q.logprobs) {
        logprobs_take(&c->logprobs, o);
    } else {
        jw_text(o, "null");
    }
}

static void prompt_logprobs(struct json_writer *o, const struct generation *g, const struct gen_prompt *p)
{
    jw_text(o, ",\"prompt_logprobs\":[null");
    for (uint32_t i = 1; i < p->prompt.token_count; i++) {
        jw_text(o, ",");
        if (p->scores) {
            logprobs_prompt_entry(o, g->ctx->model->tok, &p->scores[i], g->q.prompt_logprobs_top);
        } else {
            jw_text(o, "null");
        }
    }
    jw_text(o, "]");
}

static void prompt_ids(struct json_writer *o, const struct gen_prompt *p)
{
    jw_text(o, ",\"prompt_token_ids\":");
    jw_ids(o, p->prompt.tokens, p->prompt.token_count);
}

/* ---- the whole response ---- */

/* Text of the output, after the prompt's if it is echoed. */
static void text_write(struct json_writer *o, const struct choice *c, const char *text, size_t len)
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

static void whole_text(struct json_writer *o, const struct choice *c)
{
    const struct buf *b = c->out ? &c->out->content : &c->text;
    text_write(o, c, b->data ? b->data : "", b->len);
}

/* "id":..,"type":"function","function":{"name":..,"arguments":<text>} without the opening brace */
static void call_write(struct json_writer *o, struct chat_call *call, const char *arguments, size_t len)
{
    call_id_make(call, "call_");
    jw_put(o, "\"id\":%s,\"type\":\"function\",\"function\":{\"name\":", call->id);
    jw_string(o, call->name.data, call->name.len);
    jw_text(o, ",\"arguments\":");
    jw_string(o, arguments, len);
    jw_text(o, "}}");
}

/* Both names: OpenAI's clients of thinking models know one or the other. NULL: null. */
static void reasoning(struct json_writer *o, const char *text, size_t len)
{
    static const char *const names[] = {"\"reasoning_content\":", ",\"reasoning\":"};
    for (size_t i = 0; i < 2; i++) {
        jw_text(o, names[i]);
        if (text) jw_string(o, text, len);
        else jw_text(o, "null");
    }
}

static void message_write(struct json_writer *o, const struct choice *c)
{
    const struct generation *g = c->gen;
    struct chat_output *out = c->out;
    jw_put(o, ",\"message\":{\"role\":%s,\"content\":", g->response_role ? g->response_role : "assistant");
    if (out && out->call_count && !out->content.len && !(g->q.echo && c->prompt->text)) {
        jw_text(o, "null");
    } else {
        whole_text(o, c);
    }
    jw_text(o, ",\"refusal\":null,\"annotations\":[]");
    if (g->rules.reasoning == REASONING_FIELD) {
        jw_text(o, ",");
        reasoning(o, out && out->reasoning.len ? out->reasoning.data : NULL, out ? out->reasoning.len : 0);
    }
    if (!out || !out->call_count) jw_text(o, ",\"tool_calls\":null");
    for (uint32_t i = 0; out && i < out->call_count; i++) {
        struct chat_call *call = &out->calls[i];
        jw_text(o, i ? ",{" : ",\"tool_calls\":[{");
        call_write(o, call, call->arguments.data ? call->arguments.data : "", call->arguments.len);
    }
    jw_text(o, out && out->call_count ? "]}" : "}");
}

static void choice_write(struct json_writer *o, struct choice *c)
{
    struct generation *g = c->gen;
    if (c->index) jw_text(o, ",");
    jw_put(o, "{\"index\":%u", c->index);
    if (g->q.kind == GEN_CHAT) {
        message_write(o, c);
    } else {
        jw_text(o, ",\"text\":");
        whole_text(o, c);
    }
    logprobs_field(o, c, true);
    reasons(o, c);
    if (g->q.return_token_ids) {
        jw_text(o, ",\"token_ids\":");
        jw_ids(o, c->ids, c->id_count);
        if (g->q.kind == GEN_COMPLETION) prompt_ids(o, c->prompt);
    }
    if (g->q.kind == GEN_COMPLETION && g->q.prompt_logprobs) prompt_logprobs(o, g, c->prompt);
    jw_text(o, "}");
}

static void response(struct json_writer *o, struct generation *g)
{
    preamble(o, g, false);
    for (uint32_t i = 0; i < g->choice_count; i++) choice_write(o, &g->choices[i]);
    jw_text(o, "],\"usage\":");
    usage_full(o, g);
    /* With one prompt, its fields are also at the top level. */
    if (g->q.return_token_ids && g->prompt_count == 1) prompt_ids(o, &g->prompts[0]);
    if (!g->q.prompt_logprobs) jw_text(o, ",\"prompt_logprobs\":null");
    else if (g->prompt_count == 1) prompt_logprobs(o, g, &g->prompts[0]);
    timings(o, g);
    gen_cache_info(o, g);
    jw_text(o, "}");
}

static void write_job(struct request *r)
{
    struct generation *g = r->gen;
    struct json_writer o = {.buf = &g->written};
    if (g->dialect->response) g->dialect->response(&o, &g->choices[0]);
    else response(&o, g);
    if (o.st) buf_fini(&g->written);
}

static void write_done(struct request *r)
{
    struct generation *g = r->gen;
    r->response.out = g->written;
    g->written = (struct buf){0};
    if (!r->response.out.len)
        (void)api_fail(&r->response.error, 500, "internal_error", NULL, "The response is too large.");
    request_finish(r);
    gen_shed(g);
}

/* The event loop writes short responses itself; long ones would make other clients wait. */
static bool takes_worker(const struct generation *g)
{
    return g->q.kind == GEN_VECTORS || (!g->dialect->response && g->r->response.bytes > 65536);
}

void gen_write_response(struct generation *g)
{
    buf_init(&g->written, LIMIT_RESPONSE_BYTES);
    if (takes_worker(g)) {
        request_work(g->r, write_job, write_done);
        return;
    }
    write_job(g->r);
    write_done(g->r);
}

/* ---- chunks ---- */

static void chunk_begin(struct json_writer *o, struct choice *c)
{
    sse_begin(o);
    preamble(o, c->gen, true);
    jw_put(o, "{\"index\":%u", c->index);
}

void gen_event_end(struct json_writer *o, struct generation *g)
{
    jw_text(o, g->r->stream.lines ? "}\n" : "}" SSE_END);
    if (o->st) gen_abort(g->r, 500, "internal_error", "The response is too large.");
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
             (double)(ev->pushed_us - g->r->http.arrived_us) * 1e-3);
    jw_text(o, text);
}

/* counted: its tokens are in the running usage. finish: it carries a finish_reason. */
static void chunk_end(struct json_writer *o, struct generation *g, bool counted, bool finish)
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

static void head_chunks(struct generation *g)
{
    if (g->shown.head) return;
    g->shown.head = true;
    for (uint32_t i = 0; i < g->choice_count && g->q.kind == GEN_CHAT; i++) {
        struct json_writer o = {.buf = &g->r->response.out};
        chunk_begin(&o, &g->choices[i]);
        jw_put(&o, ",\"delta\":{\"role\":%s", g->response_role ? g->response_role : "assistant");
        /* Clients concatenate strings of one key: null if there may be only calls. */
        struct choice *c = &g->choices[i];
        c->shown.null =
            c->out && c->out->rules.calls && !c->out->content.len && !(g->q.echo && c->prompt->text);
        jw_text(&o, c->shown.null ? ",\"content\":null" : ",\"content\":\"\"");
        jw_text(&o, ",\"refusal\":null},\"logprobs\":null,\"finish_reason\":null}");
        chunk_end(&o, g, false, false);
    }
}

/* ---- chunks of parsed output ---- */

/* The role chunk had null and no content followed: send an empty string, as without streaming. */
static bool content_missing(const struct choice *c)
{
    return c->shown.null && !c->out->content.len && !c->out->call_count;
}

static void delta_json(struct json_writer *o, struct choice *c, const struct delta *delta, bool final)
{
    jw_text(o, ",\"delta\":{");
    switch (delta->kind) {
    case DELTA_NONE:
        /* A token without text; or, at the end, tokens not yet reported. */
        if (!final && chat_output_reasons(c->out)) {
            reasoning(o, "", 0);
        } else if (!final || content_missing(c)) {
            c->shown.null = false;
            jw_text(o, "\"content\":\"\"");
        }
        break;
    case DELTA_CALL:
        jw_put(o, "\"tool_calls\":[{\"index\":%u,", delta->call);
        call_write(o, &c->out->calls[delta->call], "", 0);
        jw_text(o, "]");
        break;
    case DELTA_ARGUMENTS:
        jw_put(o, "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", delta->call);
        jw_string(o, delta->text, delta->len);
        jw_text(o, "}}]");
        break;
    default:
        if (delta->kind == DELTA_REASONING) {
            reasoning(o, delta->text, delta->len);
        } else {
            jw_text(o, "\"content\":");
            jw_string(o, delta->text, delta->len);
        }
    }
    jw_text(o, "}");
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

/* Chunks for everything new; the first one carries the per-token data since the last one. finish: the last
 * one carries the finish_reason. */
static void deltas_write(struct choice *c, bool finish)
{
    struct generation *g = c->gen;
    const struct chat_output *out = c->out;
    bool ended = c->finish != FIN_NONE, first = true;
    struct delta delta = delta_next(c);
    c->shown.dirty = false;
    if (delta.kind == DELTA_NONE && !ended) {
        /* One chunk per step, also without text; but none while the kind of text is undecided. */
        bool in_call = out->call_count || (out->rules.calls && out->tool_calls.state != TOOL_TEXT);
        if (chat_output_reasons(out) ? !out->reasoning_shown : !out->content_shown || in_call) return;
    }
    do {
        struct json_writer o = {.buf = &g->r->response.out};
        struct delta now = delta;
        chunk_begin(&o, c);
        delta_json(&o, c, &now, ended);
        delta_shown(c, &now);
        delta = delta_next(c);
        bool last = finish && delta.kind == DELTA_NONE && !content_missing(c);
        logprobs_field(&o, c, first);
        reasons_and_ids(&o, c, last);
        c->shown.ids = c->id_count;
        first = false;
        jw_text(&o, "}");
        chunk_end(&o, g, true, last);
    } while (delta.kind != DELTA_NONE || (ended && content_missing(c)));
}

/* Has c, which is finished, unsent output? For example text held back for a stop string that never completed.
 */
static bool pending(const struct choice *c)
{
    const struct inference_request *p = &c->gen->q;
    if (!c->out) return c->shown.dirty || c->shown.text < c->text.len || !c->shown.any;
    return delta_next(c).kind != DELTA_NONE || content_missing(c) ||
           ((p->logprobs || p->return_token_ids) && c->shown.ids < c->id_count);
}

/* The unsent output of c; final: with its finish_reason. */
static void delta_chunk(struct choice *c, bool final)
{
    struct generation *g = c->gen;
    if (c->out) {
        deltas_write(c, final);
        return;
    }
    struct json_writer o = {.buf = &g->r->response.out};
    const struct gen_prompt *p = c->prompt;
    size_t to = c->text.len > c->held ? c->text.len - c->held : 0;
    if (to < c->shown.text) to = c->shown.text;
    const char *text = c->text.data ? c->text.data + c->shown.text : "";
    chunk_begin(&o, c);
    jw_text(&o, g->q.kind == GEN_CHAT ? ",\"delta\":{\"content\":" : ",\"text\":");
    text_write(&o, c, text, to - c->shown.text);
    if (g->q.kind == GEN_CHAT) jw_text(&o, "}");
    logprobs_field(&o, c, true);
    reasons_and_ids(&o, c, final);
    if (g->q.return_token_ids && g->q.kind == GEN_COMPLETION && !c->shown.any) prompt_ids(&o, p);
    jw_text(&o, "}");
    c->shown.any = true;
    c->shown.dirty = false;
    c->shown.text = to;
    c->shown.ids = c->id_count;
    chunk_end(&o, g, true, final);
}

static void finish_chunk(struct choice *c)
{
    struct json_writer o = {.buf = &c->gen->r->response.out};
    chunk_begin(&o, c);
    jw_text(&o, c->gen->q.kind == GEN_CHAT ? ",\"delta\":{},\"logprobs\":null"
                                           : ",\"text\":\"\",\"logprobs\":null");
    reasons(&o, c);
    jw_text(&o, "}");
    chunk_end(&o, c->gen, true, true);
}

static void tail_chunks(struct generation *g)
{
    struct json_writer o = {.buf = &g->r->response.out};
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

/* ---- any dialect ---- */

/* Sends everything new. */
static void news(struct choice *c)
{
    struct generation *g = c->gen;
    if (!g->dialect->response) {
        head_chunks(g);
        delta_chunk(c, false);
        return;
    }
    if (!g->shown.head && g->dialect->head) g->dialect->head(g);
    g->shown.head = true;
    for (struct delta delta; (delta = delta_next(c)).kind != DELTA_NONE;) {
        g->dialect->delta(c, &delta);
        delta_shown(c, &delta);
    }
    c->shown.dirty = false;
}

void gen_stream_token(struct choice *c)
{
    if (c->shown.dirty) news(c);
    c->shown.dirty = true;
}

void gen_stream_progress(struct choice *c, const struct sched_event *ev)
{
    struct generation *g = c->gen;
    struct json_writer o = {.buf = &g->r->response.out};
    head_chunks(g);
    g->shown.progress = ev;
    chunk_begin(&o, c);
    jw_text(&o, g->q.kind == GEN_CHAT ? ",\"delta\":{}" : ",\"text\":\"\"");
    jw_text(&o, ",\"logprobs\":null,\"finish_reason\":null}");
    chunk_end(&o, g, false, false);
    g->shown.progress = NULL;
}

static void dialect_write(struct generation *g)
{
    struct choice *c = &g->choices[0];
    if (c->finish != FIN_NONE && g->dialect->token) g->dialect->token(c); /* text held back until the end */
    news(c);
    if (g->r->state == RQ_RUNNING) request_stream_open(g->r);
    if (c->finish == FIN_NONE || c->finish == FIN_ABORT || g->r->stream.end) return;
    g->dialect->tail(c);
    g->r->stream.end = true;
}

void gen_stream_write(struct generation *g)
{
    struct request *r = g->r;
    bool merged = r->srv->ctx.opt->stream_finish == STREAM_FINISH_MERGED;
    if (g->dialect->response) {
        dialect_write(g);
        return;
    }
    head_chunks(g);
    if (r->state == RQ_RUNNING) request_stream_open(r);
    for (uint32_t i = 0; i < g->choice_count; i++) {
        struct choice *c = &g->choices[i];
        if (c->finish == FIN_NONE) {
            if (c->shown.dirty) delta_chunk(c, false);
        } else if (c->finish != FIN_ABORT && !c->shown.finish) {
            c->shown.finish = true;
            g->shown.finishes++;
            bool delta = pending(c);
            if (delta) delta_chunk(c, merged);
            if (!delta || !merged) finish_chunk(c);
        }
    }
    if (g->choices_open || r->stream.end) return;
    tail_chunks(g);
    r->stream.end = true;
}
