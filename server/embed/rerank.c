/* POST /v1/rerank and /v1/score: how well a document matches a query. Classifiers answer with their number.
 * Rerankers that are language models answer with the share of "yes" in the probabilities of "yes" and "no" as
 * the next token. With multi-vector embeddings it is late interaction: of each of the query's vectors the
 * largest product with one of the document's, summed. */
#include "server/embed/embed.h"
#include "server/embed/pooling.h"
#include "server/json/fields.h"

#include "server/chat/template.h"

#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/context/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SYSTEM                                                                                               \
    "Judge whether the Document meets the requirements based on the Query and the Instruct "                 \
    "provided. Note that the answer can only be \"yes\" or \"no\"."
#define INSTRUCTION "Given a web search query, retrieve relevant passages that answer the query"

/* What makes a prompt of a pair: for those language models; for classifiers without a template for pairs, as
 * vLLM has it. A template's last newline is dropped. */
static const char QUESTION[] = "<|im_start|>system\n" SYSTEM "<|im_end|>\n<|im_start|>user\n"
                               "<Instruct>: {{ instruction | default('" INSTRUCTION "') }}\n"
                               "<Query>: {{ messages[0].content }}\n<Document>: {{ messages[1].content }}"
                               "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n\n";
static const char BARE[] = "{{ messages[0].content }}{{ messages[1].content }}";

struct rerank_state {
    uint32_t top;            /* of a rerank, which is sorted: most results; else 0 */
    bool texts;              /* documents are returned */
    bool late;               /* the prompts are the queries, then the documents */
    bool raw;                /* a classifier's number as it is */
    uint32_t queries, count; /* 1 or as many as documents; documents */
    json_t *documents;       /* their texts, or nulls; owned */
};

/* A prompt's first sample is "yes", its second "no". */
static enum status answers(struct generation *g)
{
    static const char *const words[] = {"yes", "no"};
    const struct model *m = g->ctx->model;
    uint32_t *ids = arena_alloc(&g->q.arena, 2, sizeof *ids);
    for (int i = 0; ids && i < 2; i++) {
        int64_t own = i ? m->pooling->false_id : m->pooling->true_id;
        if (m->pooling->scores && own >= 0 && own < (int64_t)m->caps.vocab_size) ids[i] = (uint32_t)own;
        else if (!tok_id_of(m->tok, words[i], strlen(words[i]), &ids[i]))
            return api_fail(g->e, 400, "unsupported_model", "model",
                            "This model can't rerank: its vocabulary has no token \"%s\".", words[i]);
    }
    return ids ? embed_next(g, ids, 2) : gen_nomem(g);
}

/* A string, or an object with a member `text` as Cohere and Jina have it. */
static const json_t *text_of(const json_t *v)
{
    const json_t *text = json_is_object(v) ? json_object_get(v, "text") : v;
    return json_is_string(text) ? text : NULL;
}

enum status embed_pairs_load(struct model *m, bool own, struct err *err)
{
    size_t len = 0;
    const char *source = m->tmpl ? template_source(m->tmpl, &len) : "";
    bool roles = own || ((memmem(source, len, "'query'", 7) || memmem(source, len, "\"query\"", 7)) &&
                         (memmem(source, len, "'document'", 10) || memmem(source, len, "\"document\"", 10)));
    bool classifier = m->pooling->classifier;
    if (classifier && m->tmpl && roles) return ST_OK;
    m->bare_pairs = classifier;
    return template_create(classifier ? BARE : QUESTION, strlen(classifier ? BARE : QUESTION), NULL, 0, NULL,
                           &m->pairs, err);
}

/* One relevance from a classifier. */
static enum status classifier(struct generation *g, json_t *root, struct rerank_state *s)
{
    const struct model *m = g->ctx->model;
    const struct pooling *p = m->pooling;
    if (p->width != 1 || p->unsupported[0])
        return api_fail(g->e, 400, "unsupported_model", "model", "%s of this model has %s: use /classify.",
                        m->info->retrieval.classifier,
                        p->unsupported[0] ? p->unsupported : "several classes, not one relevance");
    if (m->bare_pairs && (field(root, "instruction") || field(root, "chat_template_kwargs")))
        return api_fail(g->e, 400, "unsupported_parameter",
                        field(root, "instruction") ? "instruction" : "chat_template_kwargs",
                        "This model has no template for pairs, which are joined as they are: put the "
                        "instruction into the query, or start the server with --chat-template FILE.");
    g->q.pooling = POOL_LAST;
    return embed_activation(g, root, &s->raw);
}

static enum status common(struct generation *g, json_t *root, unsigned api, const json_t **instruction)
{
    json_t *v = field(root, "instruction");
    *instruction = v;
    if (v && !json_is_string(v))
        return api_fail(g->e, 400, "invalid_type", "instruction", "instruction must be a string.");
    struct rerank_state *s = g->dialect_state = calloc(1, sizeof *s);
    if (!s) return gen_nomem(g);
    s->late = g->ctx->model->pooling->kind == POOL_ALL;
    const struct model *m = g->ctx->model;
    bool head = m->pooling->classifier;
    g->q.add_special_tokens = head || m->info->retrieval.instruction; /* as the scripts have it */
    if (embed_read(g, root, api) || (head ? classifier(g, root, s) : s->late ? ST_OK : answers(g)))
        return ST_INVALID;
    json_t *variables = field(root, "chat_template_kwargs");
    if (variables && !json_is_object(variables))
        return api_fail(g->e, 400, "invalid_type", "chat_template_kwargs",
                        "chat_template_kwargs must be an object.");
    g->q.variables = variables ? json_copy(variables) : json_object();
    if (!g->q.variables || (v && json_object_set(g->q.variables, "instruction", v))) return gen_nomem(g);
    if (s->late) g->q.pooling = POOL_ALL;
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
static enum status pair_chats(struct generation *g, const json_t *instruction, const struct pairs *p)
{
    struct chat_reader r;
    struct buf b;
    buf_init(&b, SIZE_MAX / 4);
    bool ok =
        !buf_adds(&b, "<Instruct>: ") && !(instruction && json_string_length(instruction)
                                               ? embed_text_add(&b, instruction)
                                               : buf_adds(&b, g->ctx->model->info->retrieval.instruction));
    json_t *instruct = embed_text_end(&b, ok);
    enum status st = embed_begin(g, 2, &r);
    for (size_t i = 0; i < json_array_size(p->documents) && !st; i++) {
        st = embed_message(g, &r, CHAT_SYSTEM, SYSTEM);
        if (!st) st = embed_message(g, &r, CHAT_USER, NULL);
        if (!st) st = instruct ? chat_text_add(&r, instruct, 0) : gen_nomem(g);
        if (!st) st = chat_copy_add(&r, TEXT_OF("<Query>:"), 0);
        if (!st) st = query_add(&r, p, i);
        if (!st) st = chat_copy_add(&r, TEXT_OF("\n<Document>:"), 0);
        if (!st) st = embed_item(&r, p->name, (int32_t)i, json_array_get(p->documents, i));
    }
    json_decref(instruct);
    return st ? st : gen_read_added(g);
}

static enum status late_chats(struct generation *g, const struct pairs *p)
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

/* By the template for pairs. */
static enum status pairs_read(struct generation *g, const struct pairs *p)
{
    struct chat_reader r;
    g->q.pairs = true;
    enum status st = embed_begin(g, 2, &r);
    for (size_t i = 0; i < json_array_size(p->documents) && !st; i++) {
        st = embed_message(g, &r, CHAT_QUERY, NULL);
        if (!st) st = query_add(&r, p, i);
        if (!st) st = embed_message(g, &r, CHAT_DOCUMENT, NULL);
        if (!st) st = embed_item(&r, p->name, (int32_t)i, json_array_get(p->documents, i));
    }
    return st ? st : gen_read_added(g);
}

static enum status prompts_set(struct generation *g, const json_t *instruction, const struct pairs *p)
{
    const struct model *m = g->ctx->model;
    struct rerank_state *s = g->dialect_state;
    size_t n = json_array_size(p->documents);
    if (!n) return api_fail(g->e, 400, "empty_array", p->name, "%s is empty.", p->name);
    if (n > LIMIT_PROMPTS)
        return api_fail(g->e, 400, "invalid_value", p->name, "Too many documents: at most %u.",
                        LIMIT_PROMPTS);
    s->count = (uint32_t)n;
    s->queries = (uint32_t)json_array_size(p->queries);
    s->documents = json_array();
    for (size_t i = 0; i < n; i++) {
        const json_t *text = text_of(json_array_get(p->documents, i));
        json_t *kept = text ? json_incref((json_t *)(uintptr_t)text) : json_null();
        if (json_array_append_new(s->documents, kept)) return gen_nomem(g);
    }
    if (s->late) return late_chats(g, p);
    return m->info->retrieval.instruction && m->tmpl ? pair_chats(g, instruction, p) : pairs_read(g, p);
}

static enum status read_rerank(struct generation *g, json_t *root)
{
    const json_t *instruction;
    json_t *query = field(root, "query"), *documents = field(root, "documents");
    int64_t top = LIMIT_PROMPTS;
    if (!json_is_string(query) && !json_is_object(query))
        return api_fail(g->e, 400, query ? "invalid_type" : "missing_required_parameter", "query",
                        "query must be a string.");
    if (!json_is_array(documents))
        return api_fail(g->e, 400, documents ? "invalid_type" : "missing_required_parameter", "documents",
                        "documents must be an array of strings.");
    if (common(g, root, API_RERANK, &instruction)) return ST_INVALID;
    struct rerank_state *s = g->dialect_state;
    s->texts = true;
    if (field_int(g->e, root, "top_n", 1, LIMIT_PROMPTS, &top, NULL) ||
        field_bool(g->e, root, "return_documents", &s->texts))
        return ST_INVALID;
    s->top = (uint32_t)top;
    json_t *queries = embed_list(query);
    if (!queries) return gen_nomem(g);
    struct pairs p = {"query", "documents", queries, documents};
    enum status st = prompts_set(g, instruction, &p);
    json_decref(queries);
    return st;
}

static enum status read_score(struct generation *g, json_t *root)
{
    static const char *const names[][2] = {
        {"text_1", "text_2"}, {"queries", "documents"}, {"queries", "items"}, {"data_1", "data_2"}};
    const json_t *instruction;
    if (field(root, "label_token_ids")) {
        g->dialect = &dialect_labels;
        return g->dialect->read(g, root);
    }
    size_t k = field(root, "queries") ? field(root, "items") ? 2 : 1 : field(root, "data_1") ? 3 : 0;
    for (size_t i = 0; i < 2; i++)
        if (!field(root, names[k][i]))
            return api_fail(g->e, 400, "missing_required_parameter", names[k][i], "%s is missing.",
                            names[k][i]);
    if (common(g, root, API_SCORE, &instruction)) return ST_INVALID;
    struct pairs p = {.query_name = names[k][0], .name = names[k][1]};
    p.queries = embed_list(field(root, p.query_name));
    p.documents = embed_list(field(root, p.name));
    size_t n = json_array_size(p.queries);
    enum status st = !p.queries || !p.documents ? gen_nomem(g)
                     : n != 1 && n != json_array_size(p.documents)
                         ? api_fail(g->e, 400, "invalid_value", p.query_name,
                                    "%s must be one, or as many as %s.", p.query_name, p.name)
                         : prompts_set(g, instruction, &p);
    json_decref(p.queries);
    json_decref(p.documents);
    return st;
}

/* Late interaction of two choices with vectors of length n. */
static double interaction(const struct generation *g, uint32_t query, uint32_t document, uint32_t n)
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
static double score(const struct generation *g, uint32_t i)
{
    const struct rerank_state *s = g->dialect_state;
    const struct pooling *p = g->ctx->model->pooling;
    if (p->classifier) {
        float v = *(const float *)(const void *)g->choices[i].text.data;
        pooling_activate(s->raw ? ACTIVATION_NONE : p->score, &v, 1);
        return (double)v;
    }
    if (s->late) return interaction(g, s->queries == 1 ? 0 : i, s->queries + i, p->width);
    return 1 / (1 + exp(g->choices[2 * i + 1].logprob - g->choices[2 * i].logprob));
}

static void scale(struct generation *g)
{
    const struct rerank_state *s = g->dialect_state;
    uint32_t rows;
    for (uint32_t i = 0; s->late && i < g->choice_count; i++)
        (void)embed_vectors(g, i, g->ctx->model->pooling->width, &rows);
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

static void respond(struct json_writer *o, struct choice *first)
{
    struct generation *g = first->gen;
    const struct rerank_state *s = g->dialect_state;
    struct ranked *all = malloc(s->count * sizeof *all);
    if (!all) {
        o->st = ST_NOMEM;
        return;
    }
    scale(g);
    for (uint32_t i = 0; i < s->count; i++) all[i] = (struct ranked){score(g, i), i};
    if (s->top) qsort(all, s->count, sizeof *all, by_score);
    embed_head(o, g, s->top ? "rerank-" : "score-", s->top ? "results" : "data");
    for (uint32_t i = 0; i < s->count && (!s->top || i < s->top); i++) {
        const json_t *text = s->texts ? json_array_get(s->documents, all[i].index) : NULL;
        jw_text(o, i ? ",{" : "{");
        if (!s->top) jw_text(o, "\"object\":\"score\",");
        jw_put(o, "\"index\":%u", all[i].index);
        if (json_is_string(text)) {
            jw_text(o, ",\"document\":{\"text\":");
            jw_string(o, json_string_value(text), json_string_length(text));
            jw_text(o, "}");
        }
        jw_text(o, s->top ? ",\"relevance_score\":" : ",\"score\":");
        jw_float32(o, (float)all[i].score);
        jw_text(o, "}");
    }
    embed_tail(o, g);
    free(all);
}

static void state_end(struct generation *g)
{
    struct rerank_state *s = g->dialect_state;
    if (s) json_decref(s->documents);
}

const struct dialect dialect_rerank = {
    .kind = GEN_VECTORS, .read = read_rerank, .source = "documents", .response = respond, .end = state_end};
const struct dialect dialect_score = {
    .kind = GEN_VECTORS, .read = read_score, .source = "text_2", .response = respond, .end = state_end};
