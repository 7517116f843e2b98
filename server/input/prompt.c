/* Prompts of /v1/completions (strings, with an optional suffix, and token ids), the context check, and
 * truncation. Worker thread. Chats are input/chat.c. */
#include "config/base/utf8.h"
#include "server/input/prompt.h"
#include "server/json/fields.h"
#include "server/context/limits.h"

#include "engine/model/model_info.h"
#include "engine/prompt/prompt_build.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* Above the context, so that the message for a moderate excess can name the exact number; not far, so that
 * more costs no time. What is truncated is tokenized first, and clients count to learn what to cut. */
uint32_t gen_ids_max(const struct generation *g)
{
    uint64_t context = g->ctx->model->caps.context_max;
    uint64_t m = g->q.has_truncate || g->prep.counting ? context * 16 + (1u << 20) : context * 2 + (1u << 14);
    return m > (1u << 28) ? 1u << 28 : (uint32_t)m;
}

enum status gen_too_long(struct generation *g)
{
    const char *what = g->q.kind == GEN_CHAT ? "messages" : "prompt";
    return api_fail(g->e, 400, "context_length_exceeded", gen_source(g),
                    "This model's maximum context length is %u tokens. However, your %s resulted in more "
                    "than %u tokens. Please reduce the "
                    "length of the %s.",
                    g->ctx->model->caps.context_max, what, gen_ids_max(g), what);
}

enum status gen_prompts_new(struct generation *g, size_t count)
{
    const char *name = gen_source(g);
    if (count > LIMIT_PROMPTS || count * g->q.n > LIMIT_CHOICES)
        return api_fail(g->e, 400, "invalid_value", name,
                        "Too many prompts: at most %u, and at most %u choices in all.", LIMIT_PROMPTS,
                        LIMIT_CHOICES);
    g->prompts = calloc(count, sizeof *g->prompts);
    g->prompt_count = g->prompts ? (uint32_t)count : 0;
    return g->prompts ? ST_OK : gen_nomem(g);
}

enum status gen_generates(struct generation *g)
{
    const struct model_info *info = g->ctx->model->info;
    if (info->retrieval.classifier[0])
        return api_fail(g->e, 400, "unsupported_model", "model",
                        "This model is %s and generates no text: use /classify, /v1/rerank or /v1/score.",
                        info->retrieval.classifier);
    if (!info->encoder && !info->retrieval.vectors) return ST_OK;
    return api_fail(g->e, 400, "unsupported_model", "model",
                    "This model generates no text: use /v1/embeddings.");
}

static enum status context_check(struct generation *g, const struct gen_prompt *p)
{
    uint64_t m = g->ctx->model->caps.context_max, count = p->prompt.token_count;
    const char *what = g->q.kind == GEN_CHAT ? "messages" : "prompt", *param = gen_source(g);
    if (g->q.max_tokens_fit && g->q.has_max_tokens && count < m && g->q.max_tokens > m - count) {
        g->max_tokens_cut = g->q.max_tokens - (m - count);
        g->q.max_tokens = m - count;
    }
    bool scoring = g->q.has_max_tokens && g->q.max_tokens == 0;
    if (g->q.has_max_tokens &&
        (g->q.max_tokens > m || count + g->q.max_tokens > m || (count >= m && !scoring))) {
        unsigned long long r = g->q.max_tokens; /* at most 2^63 - 1 */
        return api_fail(g->e, 400, "context_length_exceeded", param,
                        "This model's maximum context length is %llu tokens. However, you requested %llu "
                        "tokens (%llu in %s, %llu in the "
                        "completion). Please reduce the length of the %s or completion.",
                        (unsigned long long)m, (unsigned long long)count + r, (unsigned long long)count,
                        g->q.kind == GEN_CHAT ? "the messages" : "your prompt", r, what);
    }
    const struct engine_caps *caps = &g->ctx->model->caps;
    if (!g->q.pooling && gen_generates(g)) return ST_INVALID;
    if (p->prompt.span_count && p->prompt.spans[0].rule == SPAN_PREFIX_LM && count > caps->span_tokens_max) {
        return api_fail(
            g->e, 400, "context_length_exceeded", param,
            "This model has bidirectional attention over the prompt, and this server has memory for %u "
            "tokens of it. However, your %s resulted in %llu tokens. Please reduce the length of the %s.",
            caps->span_tokens_max, what, (unsigned long long)count, what);
    }
    if (count >= m && !scoring) {
        return api_fail(g->e, 400, "context_length_exceeded", param,
                        "This model's maximum context length is %llu tokens. However, your %s resulted in "
                        "%llu tokens. Please reduce the "
                        "length of the %s.",
                        (unsigned long long)m, what, (unsigned long long)count, what);
    }
    return ST_OK;
}

static enum status truncate_tokens(struct generation *g, struct gen_prompt *p)
{
    if (!g->q.has_truncate) return ST_OK;
    if (prompt_image(&p->prompt, 0) < p->prompt.span_count) {
        return api_fail(g->e, 400, "invalid_value", "truncate_prompt_tokens",
                        "truncate_prompt_tokens can't be combined with images.");
    }
    uint64_t m = g->ctx->model->caps.context_max, reserve = g->q.has_max_tokens ? g->q.max_tokens : 1;
    uint64_t keep = g->q.truncate > 0 ? (uint64_t)g->q.truncate : m > reserve ? m - reserve : 1;
    if (p->prompt.token_count <= keep) return ST_OK;
    uint32_t drop = p->prompt.token_count - (uint32_t)keep;
    memmove(p->prompt.tokens, p->prompt.tokens + drop, (size_t)keep * sizeof *p->prompt.tokens);
    p->prompt.token_count = (uint32_t)keep;
    p->dropped = drop;
    struct err err = {0};
    enum status st = prompt_apply_rule(g->ctx->model->info, &p->prompt, &err);
    return st ? gen_nomem(g) : ST_OK;
}

/* A classifier's last token is the last that is no padding; or the first, if all are. */
static void padding_cut(const struct generation *g, struct gen_prompt *p)
{
    const struct model_retrieval *how = &g->ctx->model->info->retrieval;
    struct prompt *of = &p->prompt;
    bool padded = how->classifier[0] && how->pad_id != HF_NO_ID;
    while (padded && of->token_count > 1 && of->tokens[of->token_count - 1] == how->pad_id) of->token_count--;
}

enum status gen_prompt_made(struct generation *g, struct gen_prompt *p)
{
    enum status st = truncate_tokens(g, p);
    if (st) return st;
    padding_cut(g, p);
    st = context_check(g, p);
    if (!st) return gen_tokens_check(g, g->prep.prompt_tokens += p->prompt.token_count);
    g->e->prompt_tokens = p->prompt.token_count;
    g->e->context = g->ctx->model->caps.context_max;
    return st;
}

/* ---- suffix: fill in the middle ---- */

/* Checkpoints trained for this use these tokens: "prefix" PROMPT "suffix" SUFFIX "middle" OUTPUT. */
static const char *const infill_marks[] = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"};

static bool added_token(const struct tokenizer *tok, const char *text, uint32_t *id)
{
    return tok_id_of(tok, text, strlen(text), id) && tok_is_added(tok, *id);
}

const char *gen_infill_missing(const struct tokenizer *tok)
{
    uint32_t id;
    for (size_t i = 0; i < 3; i++)
        if (!added_token(tok, infill_marks[i], &id)) return infill_marks[i];
    return NULL;
}

/* After the middle they start another file or end the text; both end the output. Not all checkpoints list
 * these tokens as EOS tokens. */
static enum status infill_ends(struct generation *g)
{
    static const char *const more[] = {"<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
                                       "<|file_separator|>"};
    enum { MARKS = sizeof infill_marks / sizeof *infill_marks, MORE = sizeof more / sizeof *more };
    struct inference_request *p = &g->q;
    if (p->ignore_eos) return ST_OK;
    uint32_t *ids = arena_alloc(&p->arena, p->stop_id_count + MARKS + MORE, sizeof *ids);
    if (!ids) return gen_nomem(g);
    if (p->stop_id_count) memcpy(ids, p->stop_ids, p->stop_id_count * sizeof *ids);
    p->stop_ids = ids;
    for (size_t i = 0; i < MARKS + MORE && p->stop_id_count < LIMIT_STOP_IDS; i++) {
        uint32_t id;
        const char *text = i < MARKS ? infill_marks[i] : more[i - MARKS];
        bool known = !added_token(g->ctx->model->tok, text, &id);
        for (uint32_t k = 0; k < p->stop_id_count && !known; k++) known = ids[k] == id;
        if (!known) ids[p->stop_id_count++] = id;
    }
    return ST_OK;
}

static enum status infill_check(struct generation *g, json_t *suffix)
{
    if (!suffix) return ST_OK;
    if (!json_is_string(suffix))
        return api_fail(g->e, 400, "invalid_type", "suffix", "suffix must be a string.");
    if (!json_string_length(suffix)) return ST_OK;
    const char *missing = gen_infill_missing(g->ctx->model->tok);
    if (missing)
        return api_fail(g->e, 400, "unsupported_parameter", "suffix",
                        "suffix is not supported: this model's vocabulary has no %s.", missing);
    if (g->q.echo) return api_fail(g->e, 400, "invalid_value", "echo", "echo can't be combined with suffix.");
    if (g->q.has_truncate)
        return api_fail(g->e, 400, "invalid_value", "truncate_prompt_tokens",
                        "truncate_prompt_tokens can't be combined with suffix.");
    bool texts = g->q.input_count > 0; /* else the prompt is parts */
    for (size_t i = 0; i < g->q.input_count; i++) texts = texts && g->q.inputs[i].text.data;
    if (!texts)
        return api_fail(g->e, 400, "invalid_value", "suffix", "suffix needs prompts that are strings.");
    if (arena_text(&g->q.messages.arena, suffix, &g->q.suffix)) return gen_nomem(g);
    return infill_ends(g);
}

/* ---- reading ---- */

/* Where prompt i is in the request. */
static void input_path(const struct generation *g, size_t i, char out[40])
{
    snprintf(out, 40, g->q.inputs_listed ? "%s[%zu]" : "%s", gen_source(g), i);
}

static enum status inputs_read(struct generation *g, json_t *v)
{
    struct inference_request *q = &g->q;
    const char *name = gen_source(g);
    q->inputs_listed = json_is_array(v) && !json_is_number(json_array_get(v, 0));
    size_t count = q->inputs_listed ? json_array_size(v) : 1;
    if (!count) return api_fail(g->e, 400, "empty_array", name, "%s is empty.", name);
    if (gen_prompts_new(g, count)) return ST_INVALID;
    if (!(q->inputs = arena_alloc(&q->messages.arena, count, sizeof *q->inputs))) return gen_nomem(g);
    for (; q->input_count < count; q->input_count++) {
        json_t *one = q->inputs_listed ? json_array_get(v, q->input_count) : v;
        struct prompt_input *in = &q->inputs[q->input_count];
        char path[40];
        input_path(g, q->input_count, path);
        enum status st =
            json_is_string(one)  ? arena_text(&q->messages.arena, one, &in->text) ? gen_nomem(g) : ST_OK
            : json_is_array(one) ? gen_ids_read(g, &q->messages.arena, one, path, in)
                                 : api_fail(g->e, 400, "invalid_type", path,
                                            "A prompt must be a string or an array of token ids.");
        if (st) return st;
    }
    return ST_OK;
}

enum status gen_read_completion(struct generation *g, json_t *v, json_t *suffix)
{
    const char *name = gen_source(g);
    if (!v) return api_fail(g->e, 400, "missing_required_parameter", name, "%s is missing.", name);
    if (!json_is_string(v) && !json_is_array(v))
        return api_fail(g->e, 400, "invalid_type", name,
                        "%s must be a string, an array of strings, or one or more arrays of token ids.",
                        name);
    bool parts = json_is_object(json_array_get(v, 0));
    if ((!parts && inputs_read(g, v)) || infill_check(g, suffix)) return ST_INVALID;
    return parts ? gen_read_parts(g, v) : ST_OK;
}

/* ---- token ids ---- */

static enum status text_prompt(struct generation *g, struct text text, const char *path, struct gen_prompt *p)
{
    const struct tokenizer *tok = g->ctx->model->tok;
    const struct text *suffix = &g->q.suffix;
    struct tok_run run = {.text = text.data, .len = text.len, .control = TOK_CONTROL_ALL};
    struct tok_run all[] = {{.text = infill_marks[0], .len = strlen(infill_marks[0])},
                            run,
                            {.text = infill_marks[1], .len = strlen(infill_marks[1])},
                            {.text = suffix->data, .len = suffix->len},
                            {.text = infill_marks[2], .len = strlen(infill_marks[2])}};
    struct tok_ids ids = {0};
    struct err err = {0};
    enum status st = tok_encode(tok, suffix->len ? all : &run, suffix->len ? 5 : 1, g->q.add_special_tokens,
                                gen_ids_max(g), &ids, &err);
    if (st == ST_TOO_LARGE) return gen_too_long(g);
    if (st) return api_fail_status(g->e, st, path, &err);
    if (!ids.count) {
        tok_ids_free(&ids);
        return api_fail(g->e, 400, "invalid_value", path, "The prompt is empty.");
    }
    p->prompt.tokens = ids.ids; /* malloc'd by the tokenizer, freed by prompt_free */
    p->prompt.token_count = (uint32_t)ids.count;
    if (g->q.echo) {
        p->text = malloc(run.len + 1);
        if (!p->text) return gen_nomem(g);
        memcpy(p->text, run.text, run.len);
        p->text[run.len] = '\0';
        p->text_len = run.len;
    }
    return ST_OK;
}

static enum status ids_prompt(struct generation *g, const struct prompt_input *in, struct gen_prompt *p)
{
    p->prompt.tokens = malloc(in->id_count * sizeof *p->prompt.tokens);
    if (!p->prompt.tokens) return gen_nomem(g);
    memcpy(p->prompt.tokens, in->ids, in->id_count * sizeof *in->ids);
    p->prompt.token_count = (uint32_t)in->id_count;
    if (!g->q.echo) return ST_OK;
    struct detok d;
    struct buf text;
    buf_init(&text, 256u << 20);
    detok_init(&d, g->ctx->model->tok, g->q.skip_special);
    enum status st = ST_OK;
    for (size_t i = 0; i < in->id_count && !st; i++) st = detok_push(&d, in->ids[i], &text);
    if (!st) st = detok_flush(&d, &text);
    if (!st) st = buf_reserve(&text, 1);
    if (st) {
        buf_fini(&text);
        return gen_nomem(g);
    }
    p->text = text.data;
    p->text_len = text.len;
    return ST_OK;
}

static enum status one_prompt(struct generation *g, size_t i)
{
    const struct prompt_input *in = &g->q.inputs[i];
    struct gen_prompt *p = &g->prompts[i];
    char path[40];
    input_path(g, i, path);
    enum status st = in->text.data ? text_prompt(g, in->text, path, p) : ids_prompt(g, in, p);
    if (st) return st;
    p->text_chars = utf8_count(p->text ? p->text : "", p->text_len);
    struct err err = {0};
    st = prompt_check(g->ctx->model->info, &p->prompt, &err); /* also rejects the image placeholder */
    if (!st) st = prompt_apply_rule(g->ctx->model->info, &p->prompt, &err);
    if (st) return api_fail_status(g->e, st, path, &err);
    return gen_prompt_made(g, p);
}

enum status gen_prompt_completion(struct generation *g)
{
    if (g->q.messages.list) return gen_prompt_parts(g);
    for (; g->prep.prompts_made < g->q.input_count; g->prep.prompts_made++) {
        if (g->prep.prompts_made && gen_job_over(g)) return ST_AGAIN;
        enum status st = one_prompt(g, g->prep.prompts_made);
        if (st) return st;
    }
    return ST_OK;
}
