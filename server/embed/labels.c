/* POST /v1/score with label_token_ids (SGLang's) and POST /generative_scoring (vLLM's): how likely each of
 * some tokens is as the next one after a query and an item. Texts are joined and then tokenized, as SGLang
 * has it. */
#include "server/embed/embed.h"
#include "server/json/fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct labels_state {
    bool softmax, item_first;
    uint32_t labels;
};

static bool of_vllm(const struct generation *g)
{
    return g->dialect->own != NULL;
}

/* Query and item in the request's order: two texts, or two lists of token ids. NULL: no memory. */
static json_t *joined(const json_t *first, const json_t *second)
{
    struct buf b;
    json_t *ids = json_is_array(first) ? json_copy((json_t *)(uintptr_t)first) : NULL;
    if (ids && !json_array_extend(ids, (json_t *)(uintptr_t)second)) return ids;
    json_decref(ids);
    buf_init(&b, SIZE_MAX / 4);
    return embed_text_end(&b,
                          json_is_string(first) && !embed_text_add(&b, first) && !embed_text_add(&b, second));
}

static enum status prompts(struct generation *g, const json_t *query, const json_t *items)
{
    const struct labels_state *s = g->dialect_state;
    /* A text of 16 bytes has a token, or will be refused as well. */
    uint64_t each = json_is_array(query) ? json_array_size(query) : json_string_length(query) / 16;
    if (gen_tokens_check(g, each * json_array_size(items))) return ST_INVALID;
    json_t *all = json_array();
    enum status st = all ? ST_OK : gen_nomem(g);
    for (size_t i = 0; i < json_array_size(items) && !st; i++) {
        const json_t *one = json_array_get(items, i);
        if (json_is_array(one) ? !json_is_array(query) : !json_is_string(one) || !json_is_string(query))
            st = api_fail(g->e, 400, "invalid_type", "items",
                          "query and items must be texts, or all be arrays of token ids.");
        else if (json_array_append_new(all, joined(s->item_first ? one : query, s->item_first ? query : one)))
            st = gen_nomem(g);
    }
    if (!st) st = gen_read_completion(g, all, NULL);
    json_decref(all);
    return st;
}

static enum status read_labels(struct generation *g, json_t *root)
{
    static const char *const required[] = {"query", "items", "label_token_ids"};
    struct labels_state *s = g->dialect_state = calloc(1, sizeof *s);
    struct prompt_input labels = {0};
    if (!s) return gen_nomem(g);
    s->softmax = of_vllm(g);
    g->q.source = "items";
    for (size_t i = 0; i < 3; i++)
        if (!field(root, required[i]))
            return api_fail(g->e, 400, "missing_required_parameter", required[i], "%s is missing.",
                            required[i]);
    if (embed_read(g, root, API_SCORE) || field_bool(g->e, root, "apply_softmax", &s->softmax) ||
        field_bool(g->e, root, "item_first", &s->item_first) ||
        gen_ids_read(g, &g->q.arena, field(root, "label_token_ids"), "label_token_ids", &labels) ||
        embed_next(g, labels.ids, labels.id_count))
        return ST_INVALID;
    s->labels = (uint32_t)labels.id_count;
    json_t *items = embed_list(field(root, "items"));
    enum status st = items ? prompts(g, field(root, "query"), items) : gen_nomem(g);
    json_decref(items);
    return st;
}

/* Of label k after item i. */
static double score(const struct generation *g, uint32_t i, uint32_t k)
{
    const struct labels_state *s = g->dialect_state;
    const struct choice *of = &g->choices[i * s->labels];
    double sum = 0;
    if (!s->softmax) return exp(of[k].likelihood);
    for (uint32_t j = 0; j < s->labels; j++) sum += exp(of[j].likelihood - of[k].likelihood);
    return 1 / sum;
}

static void respond(struct json_writer *o, struct choice *first)
{
    const struct generation *g = first->gen;
    const struct labels_state *s = g->dialect_state;
    if (of_vllm(g)) embed_head(o, g, g->dialect->own, "data");
    else jw_put(o, "{\"object\":\"scoring\",\"model\":%s,\"scores\":[", gen_model(g));
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        if (i) jw_text(o, ",");
        if (of_vllm(g)) jw_put(o, "{\"index\":%u,\"object\":\"score\",\"score\":", i);
        else jw_text(o, "[");
        for (uint32_t k = 0; k < (of_vllm(g) ? 1 : s->labels); k++) {
            if (k) jw_text(o, ",");
            jw_float32(o, (float)score(g, i, k));
        }
        jw_text(o, of_vllm(g) ? "}" : "]");
    }
    embed_tail(o, g);
}

const struct dialect dialect_labels = {
    .kind = GEN_VECTORS, .read = read_labels, .source = "items", .response = respond};
static const char vllm_id[] = "generative-scoring-";
const struct dialect dialect_generative_scoring = {
    .kind = GEN_VECTORS, .read = read_labels, .source = "items", .response = respond, .own = vllm_id};
