/* POST /v1/rerank and /v1/score: how well a document matches a query, as rerankers that are language models
 * answer it: the share of "yes" in the probabilities of "yes" and "no" as the next token. */
#include "server/embed/embed.h"
#include "server/embed/pooling.h"
#include "server/http/fields.h"

#include "engine/tokenizer/tokenizer.h"
#include "server/http/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX                                                                                               \
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "      \
    "Instruct "                                                                                              \
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"
#define SUFFIX      "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
#define INSTRUCTION "Given a web search query, retrieve relevant passages that answer the query"

struct rerank_state {
    struct sampling_bias only[2]; /* of a prompt's first sample: "yes"; of its second: "no" */
    uint32_t top;                 /* of a rerank: most results */
    bool texts;                   /* documents are returned */
    json_t *documents;            /* owned */
};

/* Above any difference of logits. */
#define FORCED 1e30f

static enum status answers(struct gen *g, struct rerank_state *s)
{
    static const char *const words[] = {"yes", "no"};
    const struct model *m = g->r->srv->model;
    for (int i = 0; i < 2; i++) {
        int64_t own = i ? m->pooling->false_id : m->pooling->true_id;
        s->only[i].bias = FORCED;
        if (m->pooling->scores && own >= 0 && own < (int64_t)m->caps.vocab_size)
            s->only[i].id = (uint32_t)own;
        else if (!tok_id_of(m->tok, words[i], strlen(words[i]), &s->only[i].id))
            return api_fail(&g->r->response.error, 400, "unsupported_model", "model",
                            "This model can't rerank: its vocabulary has no token \"%s\".", words[i]);
    }
    return ST_OK;
}

/* A string, or an object with a member `text` as Cohere and Jina have it. */
static const json_t *text_of(const json_t *v)
{
    const json_t *text = json_is_object(v) ? json_object_get(v, "text") : v;
    return json_is_string(text) ? text : NULL;
}

/* instruction NULL: the default. */
static json_t *prompt_text(const json_t *instruction, const json_t *query, const json_t *document)
{
    struct buf b;
    buf_init(&b, SIZE_MAX / 4);
    bool ok = !buf_adds(&b, PREFIX "<Instruct>: ") &&
              !(instruction ? embed_text_add(&b, instruction) : buf_adds(&b, INSTRUCTION)) &&
              !buf_adds(&b, "\n<Query>: ") && !embed_text_add(&b, query) && !buf_adds(&b, "\n<Document>: ") &&
              !embed_text_add(&b, document) && !buf_adds(&b, SUFFIX);
    return embed_text_end(&b, ok);
}

static enum status common(struct gen *g, json_t *root, const json_t **instruction)
{
    struct api_error *e = &g->r->response.error;
    json_t *v = field(root, "instruction");
    *instruction = v;
    if (v && !json_is_string(v))
        return api_fail(e, 400, "invalid_type", "instruction", "instruction must be a string.");
    struct rerank_state *s = g->dialect_state = calloc(1, sizeof *s);
    if (!s) return api_nomem(e);
    if (embed_read(g, root) || answers(g, s)) return ST_INVALID;
    g->p.n = 2;
    g->p.max_tokens = 1;
    g->p.ignore_eos = true;
    g->p.sampling.logprobs = 0;
    g->p.only = s->only;
    return ST_OK;
}

/* The prompts take the place of `name` in the body, so that errors name the document. */
static enum status prompts_set(struct gen *g, json_t *root, const char *name, const json_t *instruction,
                               json_t *queries, json_t *documents)
{
    struct api_error *e = &g->r->response.error;
    size_t n = json_array_size(documents), q = json_array_size(queries);
    if (!n) return api_fail(e, 400, "empty_array", name, "%s is empty.", name);
    if (n > LIMIT_PROMPTS)
        return api_fail(e, 400, "invalid_value", name, "Too many documents: at most %u.", LIMIT_PROMPTS);
    json_t *all = json_array();
    for (size_t i = 0; all && i < n; i++) {
        const json_t *query = text_of(json_array_get(queries, q == 1 ? 0 : i));
        const json_t *text = text_of(json_array_get(documents, i));
        if (!query || !text) {
            json_decref(all);
            return api_fail(e, 400, "invalid_type", name,
                            "%s[%zu] must be a string, or an object with a text.", name, i);
        }
        if (json_array_append_new(all, prompt_text(instruction, query, text))) {
            json_decref(all);
            all = NULL;
        }
    }
    struct rerank_state *s = g->dialect_state;
    s->documents = json_incref(documents);
    return all && !json_object_set_new(root, name, all) ? ST_OK : api_nomem(e);
}

static enum status read_rerank(struct gen *g, json_t *root)
{
    struct api_error *e = &g->r->response.error;
    const json_t *instruction;
    json_t *query = field(root, "query"), *documents = field(root, "documents");
    int64_t top = LIMIT_PROMPTS;
    if (!text_of(query))
        return api_fail(e, 400, query ? "invalid_type" : "missing_required_parameter", "query",
                        "query must be a string.");
    if (!json_is_array(documents))
        return api_fail(e, 400, documents ? "invalid_type" : "missing_required_parameter", "documents",
                        "documents must be an array of strings.");
    if (common(g, root, &instruction)) return ST_INVALID;
    struct rerank_state *s = g->dialect_state;
    s->texts = true;
    if (field_int(e, root, "top_n", 1, LIMIT_PROMPTS, &top, NULL) ||
        field_bool(e, root, "return_documents", &s->texts))
        return ST_INVALID;
    s->top = (uint32_t)top;
    json_t *queries = json_pack("[O]", query);
    if (!queries) return api_nomem(e);
    enum status st = prompts_set(g, root, "documents", instruction, queries, documents);
    json_decref(queries);
    return st;
}

/* One text or many; the caller owns the array. */
static json_t *as_array(json_t *v)
{
    return json_is_array(v) ? json_incref(v) : json_pack("[O]", v);
}

static enum status read_score(struct gen *g, json_t *root)
{
    struct api_error *e = &g->r->response.error;
    static const char *const names[][2] = {{"text_1", "text_2"}, {"queries", "documents"}};
    const json_t *instruction;
    size_t k = field(root, "queries") ? 1 : 0;
    for (size_t i = 0; i < 2; i++)
        if (!field(root, names[k][i]))
            return api_fail(e, 400, "missing_required_parameter", names[k][i], "%s is missing.", names[k][i]);
    if (common(g, root, &instruction)) return ST_INVALID;
    json_t *first = as_array(field(root, names[k][0])), *second = as_array(field(root, names[k][1]));
    size_t n = json_array_size(first);
    enum status st = !first || !second ? api_nomem(e)
                     : n != 1 && n != json_array_size(second)
                         ? api_fail(e, 400, "invalid_value", names[k][0],
                                    "%s must be one text, or as many as %s.", names[k][0], names[k][1])
                         : prompts_set(g, root, "text_2", instruction, first, second);
    json_decref(first);
    json_decref(second);
    return st;
}

static double score(const struct gen *g, uint32_t i)
{
    return 1 / (1 + exp((double)g->choices[2 * i + 1].logprob - (double)g->choices[2 * i].logprob));
}

struct ranked {
    double score;
    uint32_t index;
};

/* The best first; equal ones in the request's order. */
static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score)
                                : (x->index > y->index) - (x->index < y->index);
}

static void respond_rerank(struct json_writer *o, struct choice *first)
{
    struct gen *g = first->gen;
    const struct rerank_state *s = g->dialect_state;
    struct ranked *all = malloc(g->prompt_count * sizeof *all);
    if (!all) {
        o->st = ST_NOMEM;
        return;
    }
    for (uint32_t i = 0; i < g->prompt_count; i++) all[i] = (struct ranked){score(g, i), i};
    qsort(all, g->prompt_count, sizeof *all, by_score);
    jw_text(o, "{");
    embed_head(o, g, "rerank-", "list");
    jw_text(o, ",\"results\":[");
    for (uint32_t i = 0; i < g->prompt_count && i < s->top; i++) {
        jw_text(o, i ? ",{\"index\":" : "{\"index\":");
        jw_uint(o, all[i].index);
        if (s->texts) {
            jw_text(o, ",\"document\":{\"text\":");
            const json_t *text = text_of(json_array_get(s->documents, all[i].index));
            jw_string(o, json_string_value(text), json_string_length(text));
            jw_text(o, "}");
        }
        jw_text(o, ",\"relevance_score\":");
        jw_float32(o, (float)all[i].score);
        jw_text(o, "}");
    }
    jw_text(o, "],");
    embed_usage(o, g);
    gen_cache_info(o, g);
    jw_text(o, "}");
    free(all);
}

static void respond_score(struct json_writer *o, struct choice *first)
{
    struct gen *g = first->gen;
    jw_text(o, "{");
    embed_head(o, g, "score-", "list");
    jw_text(o, ",\"data\":[");
    for (uint32_t i = 0; i < g->prompt_count; i++) {
        jw_text(o, i ? ",{\"object\":\"score\",\"index\":" : "{\"object\":\"score\",\"index\":");
        jw_uint(o, i);
        jw_text(o, ",\"score\":");
        jw_float32(o, (float)score(g, i));
        jw_text(o, "}");
    }
    jw_text(o, "],");
    embed_usage(o, g);
    gen_cache_info(o, g);
    jw_text(o, "}");
}

static void state_end(struct gen *g)
{
    struct rerank_state *s = g->dialect_state;
    if (s) json_decref(s->documents);
}

const struct dialect dialect_rerank = {.read = read_rerank,
                                       .source = "documents",
                                       .response = respond_rerank,
                                       .on_worker = true,
                                       .end = state_end};
const struct dialect dialect_score = {
    .read = read_score, .source = "text_2", .response = respond_score, .end = state_end};
