/* Token ids in a request; output that it gives, for its log-probs: the fields trace_decode_token_ids and
 * continuations (sched_sequence.given). Worker thread. */
#include "server/input/parse.h"
#include "server/input/input.h"
#include "server/json/fields.h"

#include "server/context/limits.h"

#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"

#include <string.h>

enum status gen_ids_read(struct generation *g, struct arena *arena, const json_t *list, const char *path,
                         struct prompt_input *in)
{
    size_t count = json_array_size(list);
    if (!json_is_array(list))
        return api_fail(g->e, 400, "invalid_type", path, "%s must be an array of token ids.", path);
    if (!count) return api_fail(g->e, 400, "empty_array", path, "%s is empty.", path);
    if (!(in->ids = arena_alloc(arena, count, sizeof *in->ids))) return gen_nomem(g);
    for (in->id_count = 0; in->id_count < count; in->id_count++) {
        int64_t id;
        if (!json_to_int(json_array_get(list, in->id_count), &id))
            return api_fail(g->e, 400, "invalid_type", path, "%s must hold token ids, integers, only.", path);
        if (id < 0 || id >= (int64_t)g->ctx->model->info->vocab_size)
            return api_fail(g->e, 400, "invalid_value", path, "%lld is not a token id of this model.",
                            (long long)id);
        in->ids[in->id_count] = (uint32_t)id;
    }
    return ST_OK;
}

static enum status given_new(struct generation *g, const char *name, size_t count)
{
    if (g->q.given_count)
        return api_fail(g->e, 400, "invalid_value", name,
                        "trace_decode_token_ids and continuations exclude each other.");
    if (!(g->q.given = arena_alloc(&g->q.arena, count, sizeof *g->q.given))) return gen_nomem(g);
    g->q.given_count = (uint32_t)count;
    return ST_OK;
}

enum status read_trace_decode_token_ids(struct generation *g, json_t *v, const char *name)
{
    return given_new(g, name, 1) ? ST_INVALID : gen_ids_read(g, &g->q.arena, v, name, g->q.given);
}

/* A text is tokenized alone, without a BOS token. */
static enum status text_read(struct generation *g, const json_t *v, const char *path, struct prompt_input *in)
{
    struct tok_run run = {
        .text = json_string_value(v), .len = json_string_length(v), .control = TOK_CONTROL_ALL};
    struct tok_ids ids = {0};
    struct err err = {{0}};
    enum status st =
        tok_encode(g->ctx->model->tok, &run, 1, false, g->ctx->model->caps.context_max, &ids, &err);
    if (st == ST_TOO_LARGE)
        return api_fail(g->e, 400, "context_length_exceeded", path,
                        "%s has more than the context's %u tokens.", path, g->ctx->model->caps.context_max);
    if (st) return api_fail_status(g->e, st, path, &err);
    if (!ids.count) st = api_fail(g->e, 400, "invalid_value", path, "%s is empty.", path);
    else if (!(in->ids = arena_alloc(&g->q.arena, ids.count, sizeof *in->ids))) st = gen_nomem(g);
    else memcpy(in->ids, ids.ids, ids.count * sizeof *in->ids);
    in->id_count = ids.count;
    tok_ids_free(&ids);
    return st;
}

enum status read_continuations(struct generation *g, json_t *v, const char *name)
{
    size_t count = json_array_size(v);
    uint64_t tokens = 0;
    if (!json_is_array(v) || !count)
        return api_fail(g->e, 400, "invalid_type", name,
                        "%s must be an array of strings or of arrays of token ids.", name);
    if (count > LIMIT_CHOICES || g->q.n != 1)
        return api_fail(g->e, 400, "invalid_value", name,
                        g->q.n != 1 ? "%s can't be combined with n." : "%s has more than %u entries.", name,
                        LIMIT_CHOICES);
    enum status st = given_new(g, name, count);
    for (size_t i = 0; i < count && !st; i++) {
        json_t *one = json_array_get(v, i);
        struct prompt_input *in = &g->q.given[i];
        char path[40];
        snprintf(path, sizeof path, "%s[%zu]", name, i);
        st = json_is_string(one) ? text_read(g, one, path, in) : gen_ids_read(g, &g->q.arena, one, path, in);
        if (!st) st = gen_tokens_check(g, tokens += in->id_count);
    }
    g->q.n = (uint32_t)count;
    return st;
}

void gen_given_resolve(struct inference_request *q)
{
    uint64_t longest = 0;
    if (!q->given_count) return;
    for (uint32_t i = 0; i < q->given_count; i++) {
        size_t *count = &q->given[i].id_count;
        if (q->has_max_tokens && *count > q->max_tokens) *count = (size_t)q->max_tokens;
        if (*count > longest) longest = *count;
    }
    q->has_max_tokens = true;
    q->max_tokens = longest;
    q->min_tokens = 0;
    q->stop_count = 0;
}
