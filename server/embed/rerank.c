/* POST /v1/rerank and /v1/score: how well a document matches a query. Rerankers that are language models
 * answer with the share of "yes" in the probabilities of "yes" and "no" as the next token. With multi-vector
 * embeddings it is late interaction: of each of the query's vectors the largest product with one of the
 * document's, summed. */
#include "server/embed/embed.h"
#include "server/embed/pooling.h"
#include "server/json/fields.h"

#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/http/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SYSTEM                                                                                               \
    "Judge whether the Document meets the requirements based on the Query and the Instruct "                 \
    "provided. Note that the answer can only be \"yes\" or \"no\"."
#define PREFIX      "<|im_start|>system\n" SYSTEM "<|im_end|>\n<|im_start|>user\n"
#define SUFFIX      "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
#define INSTRUCTION "Given a web search query, retrieve relevant passages that answer the query"

struct rerank_state {
    struct sampling_bias only[2]; /* of a prompt's first sample: "yes"; of its second: "no" */
    uint32_t top;                 /* of a rerank: most results */
    bool texts;                   /* documents are returned */
    bool late;                    /* the prompts are the queries, then the documents */
    uint32_t queries, count;      /* 1 or as many as documents; documents */
    json_t *documents;            /* their texts, or nulls; owned */
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
    s->late = g->r->srv->model->pooling->kind == POOL_ALL;
    g->p.add_special_tokens = g->r->srv->model->info->retrieval.instruction; /* as the scripts have it */
    if (embed_read(g, root) || (!s->late && answers(g, s))) return ST_INVALID;
    if (s->late) {
        g->p.pooling = POOL_ALL;
        return ST_OK;
    }
    g->p.n = 2;
    g->p.max_tokens = 1;
    g->p.ignore_eos = true;
    g->p.sampling.logprobs = 0;
    g->p.only = s->only;
    return ST_OK;
}

/* The two lists of a request, under its names for them. */
struct pairs {
    const char *query_name, *name; /* static */
    json_t *queries, *documents;
};

static enum status query_add(struct chat_reader *r, const struct pairs *p, size_t i)
{
    bool same = json_array_size(p->queries) == 1;
    return embed_item(r, p->query_name, same ? -1 : (int32_t)i, json_array_get(p->queries, same ? 0 : i));
}

/* With images: the question of the rerankers' own script. */
static enum status pair_chats(struct gen *g, const json_t *instruction, const struct pairs *p)
{
    struct chat_reader r;
    struct buf b;
    buf_init(&b, SIZE_MAX / 4);
    bool ok =
        !buf_adds(&b, "<Instruct>: ") && !(instruction && json_string_length(instruction)
                                               ? embed_text_add(&b, instruction)
                                               : buf_adds(&b, g->r->srv->model->info->retrieval.instruction));
    json_t *instruct = embed_text_end(&b, ok);
    enum status st = embed_begin(g, 2, &r);
    for (size_t i = 0; i < json_array_size(p->documents) && !st; i++) {
        st = embed_message(g, &r, CHAT_SYSTEM, SYSTEM);
        if (!st) st = embed_message(g, &r, CHAT_USER, NULL);
        if (!st) st = chat_text_add(&r, json_incref(instruct), 0);
        if (!st) st = chat_text_add(&r, json_string("<Query>:"), 0);
        if (!st) st = query_add(&r, p, i);
        if (!st) st = chat_text_add(&r, json_string("\n<Document>:"), 0);
        if (!st) st = embed_item(&r, p->name, (int32_t)i, json_array_get(p->documents, i));
    }
    json_decref(instruct);
    return st ? st : gen_read_added(g);
}

static enum status late_chats(struct gen *g, const struct pairs *p)
{
    struct chat_reader r;
    size_t queries = json_array_size(p->queries), n = json_array_size(p->documents);
    enum status st = embed_begin(g, 1, &r);
    for (size_t i = 0; i < queries + n && !st; i++) {
        st = embed_message(g, &r, CHAT_USER, NULL);
        if (!st)
            st = i < queries ? query_add(&r, p, i)
                             : embed_item(&r, p->name, (int32_t)(i - queries),
                                          json_array_get(p->documents, i - queries));
    }
    return st ? st : gen_read_added(g);
}

/* The prompts take the place of `field` in the body, so that errors name the document. */
static enum status pair_texts(struct gen *g, json_t *root, const char *field, const json_t *instruction,
                              const struct pairs *p)
{
    struct api_error *e = &g->r->response.error;
    size_t same = json_array_size(p->queries) == 1, n = json_array_size(p->documents);
    const json_t *first = same ? text_of(json_array_get(p->queries, 0)) : NULL;
    if ((json_string_length(instruction) + json_string_length(first)) * n > LIMIT_PARSE_BYTES)
        return api_fail(e, 400, "invalid_value", p->query_name,
                        "%s and instruction, repeated for each of %zu documents, take more than %u MiB.",
                        p->query_name, n, LIMIT_PARSE_BYTES >> 20);
    json_t *all = json_array();
    for (size_t i = 0; all && i < n; i++) {
        const json_t *query = text_of(json_array_get(p->queries, same ? 0 : i));
        const json_t *text = text_of(json_array_get(p->documents, i));
        if (!query || !text) {
            json_decref(all);
            return api_fail(e, 400, "invalid_type", query ? p->name : p->query_name,
                            "%s[%zu] must be a string, or an object with a text: this model takes no images.",
                            query ? p->name : p->query_name, i);
        }
        if (json_array_append_new(all, prompt_text(instruction, query, text))) {
            json_decref(all);
            all = NULL;
        }
    }
    return all && !json_object_set_new(root, field, all) ? ST_OK : api_nomem(e);
}

static enum status prompts_set(struct gen *g, json_t *root, const char *field, const json_t *instruction,
                               const struct pairs *p)
{
    struct api_error *e = &g->r->response.error;
    const struct model *m = g->r->srv->model;
    struct rerank_state *s = g->dialect_state;
    size_t n = json_array_size(p->documents);
    if (!n) return api_fail(e, 400, "empty_array", p->name, "%s is empty.", p->name);
    if (n > LIMIT_PROMPTS)
        return api_fail(e, 400, "invalid_value", p->name, "Too many documents: at most %u.", LIMIT_PROMPTS);
    s->count = (uint32_t)n;
    s->queries = (uint32_t)json_array_size(p->queries);
    s->documents = json_array();
    for (size_t i = 0; i < n; i++) {
        const json_t *text = text_of(json_array_get(p->documents, i));
        json_t *kept = text ? json_incref((json_t *)(uintptr_t)text) : json_null();
        if (json_array_append_new(s->documents, kept)) return api_nomem(e);
    }
    if (s->late) return late_chats(g, p);
    return m->info->retrieval.instruction && m->tmpl ? pair_chats(g, instruction, p)
                                                     : pair_texts(g, root, field, instruction, p);
}

static enum status read_rerank(struct gen *g, json_t *root)
{
    struct api_error *e = &g->r->response.error;
    const json_t *instruction;
    json_t *query = field(root, "query"), *documents = field(root, "documents");
    int64_t top = LIMIT_PROMPTS;
    if (!json_is_string(query) && !json_is_object(query))
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
    struct pairs p = {"query", "documents", queries, documents};
    enum status st = prompts_set(g, root, "documents", instruction, &p);
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
    struct pairs p = {.query_name = names[k][0], .name = names[k][1]};
    p.queries = as_array(field(root, p.query_name));
    p.documents = as_array(field(root, p.name));
    size_t n = json_array_size(p.queries);
    enum status st = !p.queries || !p.documents ? api_nomem(e)
                     : n != 1 && n != json_array_size(p.documents)
                         ? api_fail(e, 400, "invalid_value", p.query_name,
                                    "%s must be one, or as many as %s.", p.query_name, p.name)
                         : prompts_set(g, root, "text_2", instruction, &p);
    json_decref(p.queries);
    json_decref(p.documents);
    return st;
}

/* Late interaction of two choices with vectors of length n. */
static double interaction(const struct gen *g, uint32_t query, uint32_t document, uint32_t n)
{
    const struct buf *texts[] = {&g->choices[query].text, &g->choices[document].text};
    const float *v[] = {(const float *)(void *)texts[0]->data, (const float *)(void *)texts[1]->data};
    size_t count[] = {texts[0]->len / sizeof(float) / n, texts[1]->len / sizeof(float) / n};
    double sum = 0;
    for (size_t q = 0; q < count[0]; q++) {
        double best = -INFINITY;
        for (size_t d = 0; d < count[1]; d++) {
            double product = 0;
            for (uint32_t i = 0; i < n; i++) product += (double)v[0][q * n + i] * (double)v[1][d * n + i];
            if (product > best) best = product;
        }
        sum += best;
    }
    return sum;
}

/* Of document i. */
static double score(const struct gen *g, uint32_t i)
{
    const struct rerank_state *s = g->dialect_state;
    if (s->late)
        return interaction(g, s->queries == 1 ? 0 : i, s->queries + i, g->r->srv->model->pooling->width);
    return 1 / (1 + exp((double)g->choices[2 * i + 1].logprob - (double)g->choices[2 * i].logprob));
}

static void scale(struct gen *g)
{
    const struct rerank_state *s = g->dialect_state;
    uint32_t rows;
    for (uint32_t i = 0; s->late && i < g->choice_count; i++)
        (void)embed_vectors(g, i, g->r->srv->model->pooling->width, &rows);
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
    struct ranked *all = malloc(s->count * sizeof *all);
    if (!all) {
        o->st = ST_NOMEM;
        return;
    }
    scale(g);
    for (uint32_t i = 0; i < s->count; i++) all[i] = (struct ranked){score(g, i), i};
    qsort(all, s->count, sizeof *all, by_score);
    jw_text(o, "{");
    embed_head(o, g, "rerank-", "list");
    jw_text(o, ",\"results\":[");
    for (uint32_t i = 0; i < s->count && i < s->top; i++) {
        jw_text(o, i ? ",{\"index\":" : "{\"index\":");
        jw_uint(o, all[i].index);
        const json_t *text = json_array_get(s->documents, all[i].index);
        if (s->texts && json_is_string(text)) {
            jw_text(o, ",\"document\":{\"text\":");
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
    const struct rerank_state *s = g->dialect_state;
    scale(g);
    jw_text(o, "{");
    embed_head(o, g, "score-", "list");
    jw_text(o, ",\"data\":[");
    for (uint32_t i = 0; i < s->count; i++) {
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
    .read = read_score, .source = "text_2", .response = respond_score, .on_worker = true, .end = state_end};
