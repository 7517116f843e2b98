/* POST /v1/embeddings, and Ollama's /api/embed and /api/embeddings. */
#include "server/embed/embed.h"
#include "server/embed/pooling.h"
#include "server/json/fields.h"
#include "server/context/limits.h"

#include "config/base/clock.h"
#include "engine/model/model_info.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

struct embeddings_state {
    uint32_t dimensions;
    bool base64;
    bool raw; /* a classifier's numbers as they are */
};

enum status embed_read(struct generation *g, json_t *root, unsigned api)
{
    if (gen_fields(g, root, api, api)) return ST_INVALID;
    g->q.has_max_tokens = true;
    g->q.sampling = (struct sampling_params){.top_p = 1,
                                             .repetition_penalty = 1,
                                             .logprobs = SAMPLING_NO_LOGPROBS,
                                             .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    return ST_OK;
}

enum status embed_next(struct generation *g, uint32_t *ids, size_t count)
{
    struct inference_request *q = &g->q;
    if (!(q->given = arena_alloc(&q->arena, count, sizeof *q->given))) return gen_nomem(g);
    for (size_t i = 0; i < count; i++) q->given[i] = (struct prompt_input){.ids = &ids[i], .id_count = 1};
    q->n = q->given_count = (uint32_t)count;
    q->max_tokens = 1;
    q->sampling.logprobs = 0;
    return ST_OK;
}

enum status embed_activation(struct generation *g, json_t *root, bool *raw)
{
    bool use = true;
    if (field_bool(g->e, root, "activation", &use) || field_bool(g->e, root, "use_activation", &use))
        return ST_INVALID;
    *raw = !use;
    return ST_OK;
}

enum status embed_text_add(struct buf *b, const json_t *text)
{
    return buf_add(b, json_string_value(text), json_string_length(text));
}

json_t *embed_text_end(struct buf *b, bool ok)
{
    json_t *text = ok ? json_stringn_nocheck(b->data, b->len) : NULL;
    buf_fini(b);
    return text;
}

json_t *embed_list(json_t *v)
{
    return json_is_array(v) ? json_incref(v) : json_pack("[O]", v);
}

void embed_head(struct json_writer *o, const struct generation *g, const char *id, const char *list)
{
    jw_text(o, "{\"id\":\"");
    jw_text(o, id);
    jw_text(o, g->caller.id); /* its alphabet needs no escape */
    jw_put(o, "\",\"object\":\"list\",\"created\":%ld,\"model\":%s,%s:[", g->caller.created, gen_model(g),
           list);
}

void embed_tail(struct json_writer *o, const struct generation *g)
{
    struct gen_usage u = gen_usage(g);
    jw_put(o,
           "],\"usage\":{\"prompt_tokens\":%lu,\"total_tokens\":%lu,"
           "\"prompt_tokens_details\":{\"cached_tokens\":%lu}}",
           u.prompt, u.prompt, u.cached);
    gen_cache_info(o, g);
    jw_text(o, "}");
}

/* The text of the prompt called prompt_name, or of the default; NULL: none. */
static enum status prompt_text(struct generation *g, json_t *root, json_t **text)
{
    const struct pooling *p = g->ctx->model->pooling;
    json_t *name = field(root, "prompt_name");
    const char *of = name ? json_string_value(name) : p->default_prompt;
    if (name && !of)
        return api_fail(g->e, 400, "invalid_type", "prompt_name", "prompt_name must be a string.");
    *text = of ? json_object_get(p->prompts, of) : NULL;
    if (!json_is_string(*text)) *text = NULL;
    if (!name || *text) return ST_OK;
    return api_fail(g->e, 400, "invalid_value", "prompt_name",
                    "config_sentence_transformers.json of this model has no prompt named '%.60s'.", of);
}

/* A prompt in front of each text, as sentence-transformers does. */
static enum status prompt_add(struct generation *g, json_t *inputs, const json_t *text)
{
    for (size_t i = 0; text && i < json_array_size(inputs); i++) {
        json_t *v = json_array_get(inputs, i);
        if (!json_is_string(v)) continue;
        struct buf b;
        buf_init(&b, SIZE_MAX / 4);
        json_t *both = embed_text_end(&b, !embed_text_add(&b, text) && !embed_text_add(&b, v));
        if (json_array_set_new(inputs, i, both)) return gen_nomem(g);
    }
    return ST_OK;
}

/* How many of them become chats: of models that have images, objects do, and strings if the family says so.
 */
static size_t chats_in(const struct model *m, const json_t *inputs)
{
    bool texts = m->info->retrieval.system || m->info->retrieval.vectors;
    size_t n = 0;
    for (size_t i = 0; m->tmpl && m->info->image.present && i < json_array_size(inputs); i++) {
        const json_t *v = json_array_get(inputs, i);
        n += json_is_object(v) || (texts && json_is_string(v));
    }
    return n;
}

/* many: the field is a list of them. */
static enum status chats(struct generation *g, json_t *inputs, bool many, const json_t *instruction)
{
    struct chat_reader r;
    const char *system = g->ctx->model->info->retrieval.system;
    json_t *shared = system ? embed_instruction(instruction, system) : NULL;
    enum status st = embed_begin(g, system ? 2 : 1, &r);
    for (size_t i = 0; i < json_array_size(inputs) && !st; i++) {
        const json_t *v = json_array_get(inputs, i), *own = json_object_get(v, "instruction");
        int32_t index = many ? (int32_t)i : -1;
        r.at = (struct chat_place){.field = "input", .index = index};
        if (own && !(system && json_is_string(own)))
            st = chat_fault(&r, "invalid_value", ".instruction", "%s",
                            system ? "instruction must be a string." : "This model takes no instruction.");
        if (system && !st) st = embed_message(g, &r, CHAT_SYSTEM, NULL);
        if (system && !st) {
            json_t *text = own ? embed_instruction(own, system) : json_incref(shared);
            st = text ? chat_text_add(&r, text, 0) : gen_nomem(g);
            json_decref(text);
        }
        if (!st) st = embed_message(g, &r, CHAT_USER, NULL);
        if (!st) st = embed_item(&r, "input", index, v);
    }
    json_decref(shared);
    return st ? st : gen_read_added(g);
}

/* vLLM's: which vectors; absent: the model's own. */
static enum status task(struct generation *g, json_t *root)
{
    json_t *v = field(root, "task");
    const struct pooling *p = g->ctx->model->pooling;
    bool all = json_is(v, "token_embed") && !p->classifier;
    g->q.pooling = all ? POOL_ALL : p->kind;
    if (p->classifier && v && !json_is(v, "classify"))
        return api_fail(g->e, 400, "invalid_value", "task", "task must be 'classify' with this model.");
    if (!v || p->classifier || all || (json_is(v, "embed") && g->q.pooling != POOL_ALL)) return ST_OK;
    return api_fail(g->e, 400, "invalid_value", "task", "task must be %s.",
                    g->q.pooling == POOL_ALL ? "'token_embed' with this model" : "'embed' or 'token_embed'");
}

static enum status inputs_read(struct generation *g, json_t *root, json_t *inputs, bool many)
{
    json_t *instruction = field(root, "instruction"), *prompt;
    if (instruction && !json_is_string(instruction))
        return api_fail(g->e, 400, "invalid_type", "instruction", "instruction must be a string.");
    if (prompt_text(g, root, &prompt)) return ST_INVALID;
    const struct model *m = g->ctx->model;
    size_t n = chats_in(m, inputs);
    if (instruction && !(n && m->info->retrieval.system))
        return api_fail(g->e, 400, "unsupported_parameter", "instruction",
                        "This model takes no instruction: put it in front of the text, or use prompt_name.");
    if (n && n < json_array_size(inputs))
        return api_fail(g->e, 400, "invalid_value", "input",
                        "Objects, or texts with a system message, can't be mixed with other inputs.");
    if (n) return chats(g, inputs, many, instruction ? instruction : prompt);
    if (prompt_add(g, inputs, prompt)) return ST_INVALID;
    return gen_read_completion(g, many ? inputs : json_array_get(inputs, 0), NULL);
}

static enum status read_input(struct generation *g, json_t *root)
{
    json_t *input = field(root, "input"), *inputs = embed_list(input);
    enum status st = inputs ? inputs_read(g, root, inputs, inputs == input) : gen_nomem(g);
    json_decref(inputs);
    return st;
}

enum status embed_inputs(struct generation *g, json_t *root, unsigned api)
{
    json_t *input = field(root, "input");
    bool chat = !input && field(root, "messages");
    if (!input && !chat)
        return api_fail(g->e, 400, "missing_required_parameter", "input", "input is missing.");
    if (!chat && !json_is_string(input) && !json_is_array(input) && !json_is_object(input))
        return api_fail(g->e, 400, "invalid_type", "input",
                        "input must be a string, an array of strings, or one or more arrays of token ids.");
    g->q.add_special_tokens = !chat;
    g->q.add_generation_prompt = false;
    if (embed_read(g, root, api)) return ST_INVALID;
    return chat ? gen_read_chat(g, root) : read_input(g, root);
}

/* classes: a classifier's are vectors, too. */
static enum status read_vectors(struct generation *g, json_t *root, bool classes)
{
    const struct model *m = g->ctx->model;
    int64_t dimensions = m->pooling->width;
    json_t *format = field(root, "encoding_format");
    if (m->pooling->unsupported[0])
        return api_fail(g->e, 400, "unsupported_model", "model",
                        "This model's embeddings are not supported: modules.json has %s.",
                        m->pooling->unsupported);
    if (m->pooling->classifier && !classes)
        return api_fail(g->e, 400, "unsupported_model", "model",
                        "This model is %s and has no embeddings: use /classify, /v1/rerank or /v1/score.",
                        m->info->retrieval.classifier);
    if (format && !json_is(format, "float") && !json_is(format, "base64"))
        return api_fail(g->e, 400, "invalid_value", "encoding_format",
                        "encoding_format must be 'float' or 'base64'.");
    struct embeddings_state *s = g->dialect_state = calloc(1, sizeof *s);
    if (!s) return gen_nomem(g);
    if (field_int(g->e, root, "dimensions", 1, m->pooling->width, &dimensions, NULL) || task(g, root) ||
        (m->pooling->classifier && embed_activation(g, root, &s->raw)))
        return ST_INVALID;
    s->dimensions = (uint32_t)dimensions;
    s->base64 = json_is(format, "base64");
    if (g->q.pooling == POOL_ALL) { /* of a token: as floats while it is computed, then as text */
        uint64_t number = s->base64 ? 6 : 16, floats = m->embedding_width * sizeof(float);
        uint64_t text = number * s->dimensions + 4;
        g->q.tokens_max = LIMIT_RESPONSE_BYTES / (text > floats ? text : floats);
    }
    return embed_inputs(g, root, API_EMBED);
}

static enum status read_body(struct generation *g, json_t *root)
{
    return read_vectors(g, root, false);
}

static enum status read_pooling(struct generation *g, json_t *root)
{
    return read_vectors(g, root, true);
}

/* The first n numbers, scaled to length 1 as torch.nn.functional.normalize does: x / max(|x|, 1e-12). */
static void normalize(float *v, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)v[i] * (double)v[i];
    double length = sqrt(sum) > 1e-12 ? sqrt(sum) : 1e-12;
    for (uint32_t i = 0; i < n; i++) v[i] = (float)((double)v[i] / length);
}

float *embed_vectors(struct generation *g, uint32_t i, uint32_t n, uint32_t *rows)
{
    const struct pooling *p = g->ctx->model->pooling;
    float *v = (float *)(void *)g->choices[i].text.data; /* gen_events left them there */
    *rows = (uint32_t)(g->choices[i].text.len / sizeof *v / p->width);
    for (uint32_t k = 0; k < *rows; k++) {
        float *row = v + (size_t)k * n;
        memmove(row, v + (size_t)k * p->width, n * sizeof *row);
        if (p->normalize || n < p->width) normalize(row, n);
    }
    return v;
}

static void base64_write(struct json_writer *o, const float *v, size_t n)
{
    size_t cap = sodium_base64_encoded_len(n * sizeof *v, sodium_base64_VARIANT_ORIGINAL);
    char *text = malloc(cap);
    if (!text) {
        o->st = ST_NOMEM;
        return;
    }
    sodium_bin2base64(text, cap, (const unsigned char *)v, n * sizeof *v, sodium_base64_VARIANT_ORIGINAL);
    jw_cstring(o, text);
    free(text);
}

/* Of input i: a vector, or a list of them. Base64: floats of 32 bits in a row, little-endian as this
 * machine's. */
static void embedding(struct json_writer *o, struct generation *g, uint32_t i)
{
    const struct embeddings_state *s = g->dialect_state;
    bool all = g->q.pooling == POOL_ALL;
    uint32_t rows, n = s->dimensions;
    const struct pooling *p = g->ctx->model->pooling;
    float *v = embed_vectors(g, i, n, &rows);
    if (p->classifier && !s->raw) pooling_activate(p->classes, v, n);
    if (s->base64) {
        base64_write(o, v, (size_t)rows * n);
        return;
    }
    if (all) jw_text(o, "[");
    for (uint32_t k = 0; k < rows; k++) {
        jw_text(o, k ? ",[" : "[");
        for (uint32_t c = 0; c < n; c++) {
            if (c) jw_text(o, ",");
            jw_float32(o, v[(size_t)k * n + c]);
        }
        jw_text(o, "]");
    }
    if (all) jw_text(o, "]");
}

static void list(struct json_writer *o, struct choice *first, const char *id, const char *object,
                 const char *name)
{
    struct generation *g = first->gen;
    embed_head(o, g, id, "data");
    for (uint32_t i = 0; i < g->choice_count; i++) {
        jw_put(o, i ? ",{\"object\":%s,\"index\":%u,%s:" : "{\"object\":%s,\"index\":%u,%s:", object, i,
               name);
        embedding(o, g, i);
        jw_text(o, "}");
    }
    embed_tail(o, g);
}

static void response(struct json_writer *o, struct choice *first)
{
    list(o, first, "embd-", "embedding", "embedding");
}

static void pooling_response(struct json_writer *o, struct choice *first)
{
    list(o, first, "pool-", "pooling", "data");
}

const struct dialect dialect_embeddings = {
    .kind = GEN_VECTORS, .read = read_body, .source = "input", .response = response};
const struct dialect dialect_pooling = {
    .kind = GEN_VECTORS,
    .read = read_pooling,
    .source = "input",
    .response = pooling_response,
};

/* ---- Ollama's ---- */

static void embed_response(struct json_writer *o, struct choice *first)
{
    struct generation *g = first->gen;
    jw_put(o, "{\"model\":%s,\"embeddings\":[", gen_model(g));
    for (uint32_t i = 0; i < g->choice_count; i++) {
        if (i) jw_text(o, ",");
        embedding(o, g, i);
    }
    jw_put(o, "],\"total_duration\":%lu,\"load_duration\":0,\"prompt_eval_count\":%lu}",
           (now_us() - g->caller.arrived_us) * 1000, gen_usage(g).prompt);
}

/* One text, called `prompt`. */
static enum status read_prompt(struct generation *g, json_t *root)
{
    json_t *text = field(root, "prompt");
    if (!json_is_string(text)) return api_fail(g->e, 400, "invalid_type", "prompt", "Must be a string.");
    return json_object_set(root, "input", text) ? gen_nomem(g) : read_body(g, root);
}

static void prompt_response(struct json_writer *o, struct choice *first)
{
    jw_text(o, "{\"embedding\":");
    embedding(o, first->gen, 0);
    jw_text(o, "}");
}

const struct dialect dialect_ollama_embed = {
    .kind = GEN_VECTORS, .read = read_body, .source = "input", .response = embed_response};
const struct dialect dialect_ollama_embeddings = {
    .kind = GEN_VECTORS,
    .read = read_prompt,
    .source = "input",
    .response = prompt_response,
};
