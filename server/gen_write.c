/* What a generating request answers, whole or in chunks (openai-api §4, §5, §7). Event loop's thread. Knows nothing of sequences or sockets:
 * it reads a gen and writes JSON into its request's `out`. */
#include "server/gen.h"

#include "engine/model_info.h"
#include "engine/tokenizer.h"
#include "server/sse.h"

#include <stdlib.h>
#include <string.h>

static void preamble(struct json_out *o, const struct gen *g, bool chunk)
{
    const struct request *r = g->r;
    const struct server *s = r->srv;
    bool chat = g->kind == GEN_CHAT;
    jo_text(o, chat ? "{\"id\":\"chatcmpl-" : "{\"id\":\"cmpl-");
    jo_text(o, r->id); /* its alphabet needs no escape */
    jo_text(o, !chat ? "\",\"object\":\"text_completion\"" : chunk ? "\",\"object\":\"chat.completion.chunk\"" : "\",\"object\":\"chat.completion\"");
    jo_text(o, ",\"created\":");
    jo_int(o, r->created);
    jo_text(o, ",\"model\":");
    jo_cstring(o, s->model_name);
    jo_text(o, ",\"system_fingerprint\":");
    jo_cstring(o, s->model->info->fingerprint);
    if (g->p.service_tier) jo_text(o, ",\"service_tier\":\"default\"");
    jo_text(o, ",\"choices\":[");
}

struct usage {
    uint64_t prompt, completion, cached, image;
};

static struct usage usage_of(const struct gen *g)
{
    struct usage u = {0};
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        u.prompt += g->prompts[i].prompt.token_count;
        u.cached += g->prompts[i].cached_tokens;
        u.image += g->prompts[i].image_tokens;
    }
    for (uint32_t i = 0; i < g->choice_count; i++) u.completion += g->choices[i].id_count;
    return u;
}

static void usage_short(struct json_out *o, const struct usage *u)
{
    jo_text(o, "{\"prompt_tokens\":");
    jo_uint(o, u->prompt);
    jo_text(o, ",\"completion_tokens\":");
    jo_uint(o, u->completion);
    jo_text(o, ",\"total_tokens\":");
    jo_uint(o, u->prompt + u->completion);
}

static void usage_full(struct json_out *o, const struct gen *g)
{
    struct usage u = usage_of(g);
    usage_short(o, &u);
    jo_text(o, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    jo_uint(o, u.cached);
    jo_text(o, ",\"audio_tokens\":0,\"image_tokens\":");
    jo_uint(o, u.image);
    jo_text(o, "},\"completion_tokens_details\":{\"reasoning_tokens\":0,\"audio_tokens\":0,\"accepted_prediction_tokens\":0,"
               "\"rejected_prediction_tokens\":0}}");
}

/* "cache_info": what the prompt found cached, if asked for; with several prompts a list of that. */
static void cache_info(struct json_out *o, const struct gen *g)
{
    static const struct sched_cache_info nothing = {.stop = CACHE_STOP_DISABLED}; /* a prompt that was only echoed */
    if (!g->p.return_cache_info) return;
    jo_text(o, g->prompt_count > 1 ? ",\"cache_info\":{\"prompts\":[" : ",\"cache_info\":");
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        const struct gen_prompt *p = &g->prompts[i];
        if (i) jo_text(o, ",");
        cache_info_write(o, p->cache_known ? &p->cache : &nothing, p->prompt.token_count, p->dropped, &p->places);
    }
    if (g->prompt_count > 1) jo_text(o, "]}");
}

/* "finish_reason":..,"stop_reason":.. */
static void reasons(struct json_out *o, const struct choice *c)
{
    jo_text(o, c->finish == FIN_LENGTH ? ",\"finish_reason\":\"length\",\"stop_reason\":" : ",\"finish_reason\":\"stop\",\"stop_reason\":");
    if (c->stop_string >= 0) {
        const struct stop_string *s = &c->gen->p.stops[c->stop_string];
        jo_string(o, s->text, s->len);
    } else if (c->stop_is_id) {
        jo_uint(o, c->stop_id);
    } else {
        jo_text(o, "null");
    }
}

static void logprobs_field(struct json_out *o, struct choice *c, bool any)
{
    jo_text(o, ",\"logprobs\":");
    if (any && c->gen->p.logprobs) {
        logprobs_take(&c->logprobs, o);
    } else {
        jo_text(o, "null");
    }
}

static void prompt_logprobs(struct json_out *o, const struct gen *g, const struct gen_prompt *p)
{
    jo_text(o, ",\"prompt_logprobs\":[null");
    for (uint32_t i = 1; i < p->prompt.token_count; i++) {
        jo_text(o, ",");
        if (p->scores) {
            logprobs_prompt_entry(o, g->r->srv->model->tok, &p->scores[i], g->p.prompt_logprobs_top);
        } else {
            jo_text(o, "null");
        }
    }
    jo_text(o, "]");
}

static void prompt_ids(struct json_out *o, const struct gen_prompt *p)
{
    jo_text(o, ",\"prompt_token_ids\":");
    jo_ids(o, p->prompt.tokens, p->prompt.token_count);
}

enum status gen_prompt_logprobs(struct choice *c)
{
    struct gen *g = c->gen;
    const struct gen_prompt *p = c->prompt;
    if (c->prompt_logged || g->kind != GEN_COMPLETION || !g->p.echo || !g->p.logprobs) return ST_OK;
    c->prompt_logged = true;
    struct detok d;
    struct buf text;
    size_t offset = 0;
    buf_init(&text, SIZE_MAX / 4);
    detok_init(&d, g->r->srv->model->tok, g->p.skip_special);
    enum status st = ST_OK;
    for (uint32_t i = 0; i < p->prompt.token_count && !st; i++) {
        if (i && p->scores) {
            st = logprobs_add(&c->logprobs, &p->scores[i], offset);
        } else {
            st = logprobs_add_null(&c->logprobs, p->prompt.tokens[i], offset);
        }
        text.len = 0;
        if (!st) st = detok_push(&d, p->prompt.tokens[i], &text);
        if (!st) offset += utf8_count(text.data ? text.data : "", text.len);
    }
    buf_fini(&text);
    return st;
}

/* ---- the whole answer ---- */

static void whole_text(struct json_out *o, const struct choice *c)
{
    const struct gen_prompt *p = c->prompt;
    const char *text = c->text.data ? c->text.data : "";
    if (!c->gen->p.echo || !p->text) {
        jo_string(o, text, c->text.len);
        return;
    }
    struct buf both;
    buf_init(&both, SIZE_MAX / 4);
    if (buf_add(&both, p->text, p->text_len) || buf_add(&both, text, c->text.len)) o->st = ST_NOMEM;
    jo_string(o, both.data ? both.data : "", both.len);
    buf_fini(&both);
}

static void choice_write(struct json_out *o, struct choice *c)
{
    struct gen *g = c->gen;
    if (c->index) jo_text(o, ",");
    jo_text(o, "{\"index\":");
    jo_uint(o, c->index);
    if (g->kind == GEN_CHAT) {
        jo_text(o, ",\"message\":{\"role\":");
        jo_cstring(o, g->answer_role ? g->answer_role : "assistant");
        jo_text(o, ",\"content\":");
        whole_text(o, c);
        jo_text(o, ",\"refusal\":null,\"annotations\":[]}");
    } else {
        jo_text(o, ",\"text\":");
        whole_text(o, c);
        enum status st = gen_prompt_logprobs(c);
        if (st && !o->st) o->st = st;
    }
    logprobs_field(o, c, true);
    reasons(o, c);
    if (g->p.return_token_ids) {
        jo_text(o, ",\"token_ids\":");
        jo_ids(o, c->ids, c->id_count);
        if (g->kind == GEN_COMPLETION) prompt_ids(o, c->prompt);
    }
    if (g->kind == GEN_COMPLETION && g->p.prompt_logprobs) prompt_logprobs(o, g, c->prompt);
    jo_text(o, "}");
}

void gen_write_answer(struct gen *g)
{
    struct request *r = g->r;
    struct json_out o = {.buf = &r->out};
    preamble(&o, g, false);
    for (uint32_t i = 0; i < g->choice_count; i++) choice_write(&o, &g->choices[i]);
    jo_text(&o, "],\"usage\":");
    usage_full(&o, g);
    /* With one prompt, what belongs to it also stands at the top. */
    if (g->p.return_token_ids && g->prompt_count == 1) prompt_ids(&o, &g->prompts[0]);
    if (g->p.prompt_logprobs && g->prompt_count == 1) prompt_logprobs(&o, g, &g->prompts[0]);
    cache_info(&o, g);
    jo_text(&o, "}");
    if (o.st) {
        (void)api_fail(&r->error, 500, "internal_error", NULL, "The answer is too large.");
        request_fail(r);
    } else {
        request_answer(r, 200);
    }
}

/* ---- chunks ---- */

static void chunk_begin(struct json_out *o, struct choice *c)
{
    sse_begin(o);
    preamble(o, c->gen, true);
    jo_text(o, "{\"index\":");
    jo_uint(o, c->index);
}

/* counted: its tokens are in the running usage. finish: it carries a finish_reason. */
static void chunk_end(struct json_out *o, struct gen *g, bool counted, bool finish)
{
    jo_text(o, "]");
    if (g->p.continuous_usage) {
        struct usage u = usage_of(g);
        if (!counted) u.completion = 0;
        jo_text(o, ",\"usage\":");
        usage_short(o, &u);
        jo_text(o, "}");
    } else if (g->p.include_usage) {
        jo_text(o, ",\"usage\":null");
    }
    if (g->p.return_token_ids && !g->prompt_ids_sent && g->prompt_count == 1) prompt_ids(o, &g->prompts[0]);
    g->prompt_ids_sent = true;
    /* With a usage chunk it goes there; else into the last chunk that there is: a chunk of its own without choices would break clients that
     * read choices[0]. */
    if (finish && !g->p.include_usage && g->finishes_shown == g->choice_count) cache_info(o, g);
    jo_text(o, "}");
    sse_end(o);
    if (o->st) gen_abort(g->r, 500, "internal_error", "The answer is too large.");
}

void gen_write_head_chunks(struct gen *g)
{
    for (uint32_t i = 0; i < g->choice_count && g->kind == GEN_CHAT; i++) {
        struct json_out o = {.buf = &g->r->out};
        chunk_begin(&o, &g->choices[i]);
        jo_text(&o, ",\"delta\":{\"role\":");
        jo_cstring(&o, g->answer_role ? g->answer_role : "assistant");
        jo_text(&o, ",\"content\":\"\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":null}");
        chunk_end(&o, g, false, false);
    }
}

void gen_write_delta(struct choice *c, bool final)
{
    struct gen *g = c->gen;
    struct json_out o = {.buf = &g->r->out};
    const struct gen_prompt *p = c->prompt;
    size_t to = c->text.len > c->held ? c->text.len - c->held : 0;
    if (to < c->shown) to = c->shown;
    const char *text = c->text.data ? c->text.data + c->shown : "";
    bool echo = !c->started && g->p.echo && p->text;
    if (g->kind == GEN_COMPLETION && gen_prompt_logprobs(c)) o.st = ST_NOMEM;
    chunk_begin(&o, c);
    jo_text(&o, g->kind == GEN_CHAT ? ",\"delta\":{\"content\":" : ",\"text\":");
    if (echo) {
        struct buf both;
        buf_init(&both, SIZE_MAX / 4);
        if (buf_add(&both, p->text, p->text_len) || buf_add(&both, text, to - c->shown)) o.st = ST_NOMEM;
        jo_string(&o, both.data ? both.data : "", both.len);
        buf_fini(&both);
    } else {
        jo_string(&o, text, to - c->shown);
    }
    if (g->kind == GEN_CHAT) jo_text(&o, "}");
    logprobs_field(&o, c, true);
    if (final) {
        reasons(&o, c);
    } else {
        jo_text(&o, ",\"finish_reason\":null");
    }
    if (g->p.return_token_ids) {
        jo_text(&o, ",\"token_ids\":");
        jo_ids(&o, c->ids + c->ids_shown, c->id_count - c->ids_shown);
        if (g->kind == GEN_COMPLETION && !c->started) prompt_ids(&o, p);
    }
    jo_text(&o, "}");
    c->started = true;
    c->dirty = false;
    c->shown = to;
    c->ids_shown = c->id_count;
    chunk_end(&o, g, true, final);
}

void gen_write_finish(struct choice *c)
{
    struct json_out o = {.buf = &c->gen->r->out};
    chunk_begin(&o, c);
    jo_text(&o, c->gen->kind == GEN_CHAT ? ",\"delta\":{},\"logprobs\":null" : ",\"text\":\"\",\"logprobs\":null");
    reasons(&o, c);
    jo_text(&o, "}");
    chunk_end(&o, c->gen, true, true);
}

void gen_write_tail(struct gen *g)
{
    struct json_out o = {.buf = &g->r->out};
    if (g->p.include_usage) {
        sse_begin(&o);
        preamble(&o, g, true);
        jo_text(&o, "],\"usage\":");
        usage_full(&o, g);
        cache_info(&o, g);
        jo_text(&o, "}");
        sse_end(&o);
    }
    sse_done(&o);
    if (o.st) gen_abort(g->r, 500, "internal_error", "The answer is too large.");
}
