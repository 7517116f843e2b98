/* See pooling.h. */
#include "server/embed/pooling.h"

#include "config/gguf/gguf.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/families/families.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DENSE_WIDTH_MAX 65536u

/* *out = NULL if there is no such file. */
static enum status file_load(const char *dir, const char *sub, const char *name, json_t **out,
                             struct err *err)
{
    char path[4096];
    json_error_t why;
    *out = NULL;
    int n = snprintf(path, sizeof path, "%s/%s%s%s", dir, sub, *sub ? "/" : "", name);
    if (n < 0 || (size_t)n >= sizeof path || access(path, F_OK) != 0) return ST_OK;
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    return *out ? ST_OK : err_set(err, ST_FORMAT, "%s: line %d: %s", path, why.line, why.text);
}

static bool is_set(const json_t *config, const char *name)
{
    return json_is_true(json_object_get(config, name));
}

/* The last part of a Python class's name. */
static const char *class_name(const char *type)
{
    const char *dot = strrchr(type, '.');
    return dot ? dot + 1 : type;
}

/* [out, in] -> [in, out] */
static void transpose(const float *from, uint32_t out, uint32_t in, float *to)
{
    for (uint32_t o = 0; o < out; o++)
        for (uint32_t i = 0; i < in; i++) to[(size_t)i * out + o] = from[(size_t)o * in + i];
}

/* The next layer, its tensors NAME.weight [out, width so far] and, if there is one, NAME.bias. `columns`:
 * what out must be; 0: as the tensor says. */
static enum status dense_add(const struct stf_files *files, const char *name, const char *path,
                             uint64_t columns, bool tanh, struct pooling *p, struct err *err)
{
    char weight[64], bias[64];
    snprintf(weight, sizeof weight, "%.50s.weight", name);
    snprintf(bias, sizeof bias, "%.50s.bias", name);
    const struct stf_tensor *w = stf_find(files, weight), *b = stf_find(files, bias);
    uint64_t out = w && w->rank == 2 && !columns ? w->shape[0] : columns;
    if (!w || w->rank != 2 || out < 1 || out > DENSE_WIDTH_MAX || w->shape[0] != out ||
        w->shape[1] != p->width || (b && (b->rank != 1 || b->shape[0] != out)))
        return err_set(err, ST_FORMAT, "%s: %s must be [1 to %u, %u], and %s as long", path, weight,
                       DENSE_WIDTH_MAX, p->width, bias);
    struct dense *d = &p->dense[p->dense_count++];
    *d = (struct dense){.in = p->width, .out = (uint32_t)out, .tanh = tanh};
    p->width = d->out;
    if (d->out > p->width_max) p->width_max = d->out;
    float *rows = malloc((size_t)d->in * d->out * sizeof *rows);
    d->weight = malloc((size_t)d->in * d->out * sizeof *d->weight);
    d->bias = calloc(d->out, sizeof *d->bias);
    enum status st = rows && d->weight && d->bias ? ST_OK : err_nomem(err, path);
    if (!st && (!stf_to_f32(w, rows) || (b && !stf_to_f32(b, d->bias))))
        st = err_set(err, ST_UNSUPPORTED, "%s: %s and %s must be floats", path, weight, bias);
    if (!st) transpose(rows, d->out, d->in, d->weight);
    free(rows);
    return st;
}

static enum status dense_module(const char *dir, const char *sub, struct pooling *out, struct err *err)
{
    char path[4096];
    json_t *c;
    struct stf_files *files = NULL;
    enum status st = file_load(dir, sub, "config.json", &c, err);
    const char *f = json_string_value(json_object_get(c, "activation_function"));
    json_int_t in = json_integer_value(json_object_get(c, "in_features")),
               to = json_integer_value(json_object_get(c, "out_features"));
    const char *name = f ? class_name(f) : "Tanh"; /* its class's default */
    int n = snprintf(path, sizeof path, "%s/%s/model.safetensors", dir, sub);
    if (!st && ((size_t)n >= sizeof path || in != out->width || to < 1))
        st = err_set(err, ST_FORMAT, "%s/%s/config.json: in_features must be %u, out_features 1 to %u", dir,
                     sub, out->width, DENSE_WIDTH_MAX);
    bool tanh = strcmp(name, "Tanh") == 0;
    if (!st && ((!tanh && strcmp(name, "Identity") != 0) || out->dense_count == POOLING_DENSE_MAX))
        snprintf(out->unsupported, sizeof out->unsupported, "a Dense module with %.30s", name);
    else if (!st) {
        st = stf_open_file(path, &files, err);
        if (!st) st = dense_add(files, "linear", path, (uint64_t)to, tanh, out, err);
    }
    stf_close(files);
    json_decref(c);
    return st;
}

void pooling_project(void *arg, double *pooled)
{
    const struct pooling *p = arg;
    double *sum = p->scratch;
    for (const struct dense *d = p->dense; d < p->dense + p->dense_count; d++) {
        for (uint32_t o = 0; o < d->out; o++) sum[o] = (double)d->bias[o];
        for (uint32_t i = 0; i < d->in; i++)
            for (uint32_t o = 0; o < d->out; o++)
                sum[o] += pooled[i] * (double)d->weight[(size_t)i * d->out + o];
        for (uint32_t o = 0; o < d->out; o++) pooled[o] = d->tanh ? tanh(sum[o]) : sum[o];
    }
}

static enum status pooling_module(const char *dir, const char *path, struct pooling *out, struct err *err)
{
    json_t *c;
    enum status st = file_load(dir, path, "config.json", &c, err);
    const char *mode = json_string_value(json_object_get(c, "pooling_mode"));
    if (is_set(c, "pooling_mode_mean_tokens") || (mode && strcmp(mode, "mean") == 0)) out->kind = POOL_MEAN;
    else if (!is_set(c, "pooling_mode_lasttoken") && !(mode && strcmp(mode, "lasttoken") == 0))
        snprintf(out->unsupported, sizeof out->unsupported, "a pooling that is neither mean nor last token");
    json_decref(c);
    return st;
}

static enum status score_module(const char *dir, const char *path, struct pooling *out, struct err *err)
{
    json_t *c;
    enum status st = file_load(dir, path, "config.json", &c, err);
    const json_t *yes = json_object_get(c, "true_token_id"), *no = json_object_get(c, "false_token_id");
    out->scores = json_is_integer(yes) && json_is_integer(no);
    out->true_id = json_integer_value(yes);
    out->false_id = json_integer_value(no);
    json_decref(c);
    return st;
}

static enum status modules_read(const char *dir, const json_t *modules, struct pooling *out, struct err *err)
{
    size_t i;
    json_t *m;
    enum status st = ST_OK;
    out->normalize = false;
    json_array_foreach(modules, i, m) {
        const char *type = json_string_value(json_object_get(m, "type"));
        const char *path = json_string_value(json_object_get(m, "path")),
                   *name = type ? class_name(type) : "";
        if (st) return st;
        if (!path || strstr(path, "..")) name = "without a path in the model";
        if (strcmp(name, "Pooling") == 0) st = pooling_module(dir, path, out, err);
        else if (strcmp(name, "LogitScore") == 0) st = score_module(dir, path, out, err);
        else if (strcmp(name, "Dense") == 0) st = dense_module(dir, path, out, err);
        else if (strcmp(name, "Normalize") == 0) out->normalize = true;
        else if (strcmp(name, "Transformer") != 0)
            snprintf(out->unsupported, sizeof out->unsupported, "a module of type %.40s", name);
    }
    return st;
}

/* How scores become probabilities, as vLLM has it (layers/pooler/activations.py): of a cross-encoder as
 * sentence-transformers noted it; else problem_type is for classes alone, as transformers' Trainer writes
 * "regression" for any single number. */
static void activations_read(const json_t *config, const json_t *own, struct pooling *p)
{
    const char *problem = json_string_value(json_object_get(config, "problem_type"));
    const json_t *of[] = {json_object_get(json_object_get(config, "sentence_transformers"), "activation_fn"),
                          json_object_get(config, "sbert_ce_default_activation_function"),
                          json_object_get(own, "activation_fn")};
    p->classes = p->width == 1 ? ACTIVATION_SIGMOID : ACTIVATION_SOFTMAX;
    p->score = ACTIVATION_SIGMOID;
    if (problem && strcmp(problem, "regression") == 0) p->classes = ACTIVATION_NONE;
    if (problem && strcmp(problem, "multi_label_classification") == 0) p->classes = ACTIVATION_SIGMOID;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const char *name = json_is_string(of[i]) ? class_name(json_string_value(of[i])) : NULL;
        if (!name) continue;
        if (strcmp(name, "Identity") == 0) p->score = ACTIVATION_NONE;
        else if (strcmp(name, "Sigmoid") != 0)
            snprintf(p->unsupported, sizeof p->unsupported, "the activation %.40s", name);
        return;
    }
}

/* The head of a classifier, and what config.json says of its classes: two by default, as in transformers. */
static enum status classifier_load(const struct stf_files *files, const char *dir, struct pooling *p,
                                   struct err *err)
{
    json_t *c;
    enum status st = file_load(dir, "", "config.json", &c, err);
    const json_t *labels = json_object_get(c, "id2label"), *count = json_object_get(c, "num_labels");
    json_int_t n = json_is_object(labels)   ? (json_int_t)json_object_size(labels)
                   : json_is_integer(count) ? json_integer_value(count)
                                            : 2;
    if (json_is_object(labels)) p->labels = json_incref((json_t *)(uintptr_t)labels);
    if (!st && (n < 1 || n > (json_int_t)DENSE_WIDTH_MAX))
        st = err_set(err, ST_FORMAT, "%s/config.json: id2label or num_labels must have 1 to %u classes", dir,
                     DENSE_WIDTH_MAX);
    if (!st) st = dense_add(files, "score", dir, (uint64_t)n, false, p, err);
    p->classifier = true;
    p->normalize = false;
    activations_read(c, p->config, p);
    json_decref(c);
    return st;
}

void pooling_activate(enum activation a, float *v, uint32_t n)
{
    double sum = 0, top = (double)v[0];
    for (uint32_t i = 1; i < n; i++)
        if ((double)v[i] > top) top = (double)v[i];
    for (uint32_t i = 0; i < n; i++) sum += exp((double)v[i] - top);
    for (uint32_t i = 0; i < n && a != ACTIVATION_NONE; i++)
        v[i] =
            (float)(a == ACTIVATION_SIGMOID ? 1 / (1 + exp(-(double)v[i])) : exp((double)v[i] - top) / sum);
}

const char *pooling_label(const struct pooling *p, uint32_t n, char room[24])
{
    snprintf(room, 24, p->labels ? "%u" : "LABEL_%u", n);
    return p->labels ? json_string_value(json_object_get(p->labels, room)) : room;
}

/* What the model's own files say: the layer of multi-vector embeddings, or a classifier's; of a GGUF file the
 * pooling, and the layers behind it. */
static enum status own_layers(const char *dir, const struct model_retrieval *how, struct pooling *p,
                              struct err *err)
{
    static const char *const layers[] = {"dense_2", "dense_3"};
    struct stf_files *files = NULL;
    uint32_t pooling = 0;
    if (!how->vectors && !how->classifier[0] && !gguf_is(dir)) return ST_OK;
    enum status st = family_open(dir, NULL, &files, err);
    if (!st && how->classifier[0]) {
        st = classifier_load(files, dir, p, err);
    } else if (!st && how->vectors) {
        p->kind = POOL_ALL;
        st = dense_add(files, how->vectors, dir, 0, false, p, err);
    } else if (!st && (st = gguf_pooling(dir, &pooling, err)) == ST_OK) {
        if (pooling == GGUF_POOLING_MEAN) p->kind = POOL_MEAN;
        else if (pooling == GGUF_POOLING_CLS)
            snprintf(p->unsupported, sizeof p->unsupported, "a pooling that is neither mean nor last token");
        for (size_t i = 0; i < 2 && !st; i++) {
            char name[16];
            snprintf(name, sizeof name, "%s.weight", layers[i]);
            if (stf_find(files, name)) st = dense_add(files, layers[i], dir, 0, false, p, err);
        }
    }
    stf_close(files);
    return st;
}

enum status pooling_load(const char *dir, const struct model_retrieval *how, uint32_t hidden,
                         struct pooling **out, struct err *err)
{
    json_t *modules;
    struct pooling *p = *out = malloc(sizeof *p);
    if (!p) return err_nomem(err, NULL);
    *p = (struct pooling){.kind = POOL_LAST, .width = hidden, .width_max = hidden, .normalize = true};
    enum status st = file_load(dir, "", "modules.json", &modules, err);
    if (!st) st = file_load(dir, "", "config_sentence_transformers.json", &p->config, err);
    if (!st) st = own_layers(dir, how, p, err);
    if (!st && json_is_array(modules) && !how->vectors && !p->classifier)
        st = modules_read(dir, modules, p, err);
    json_decref(modules);
    p->scratch = malloc(p->width_max * sizeof *p->scratch);
    if (!st && !p->scratch) st = err_nomem(err, dir);
    p->prompts = json_object_get(p->config, "prompts");
    p->default_prompt = json_string_value(json_object_get(p->config, "default_prompt_name"));
    return st;
}

void pooling_free(struct pooling *p)
{
    for (uint32_t i = 0; p && i < p->dense_count; i++) {
        free(p->dense[i].weight);
        free(p->dense[i].bias);
    }
    if (p) json_decref(p->labels);
    if (p) json_decref(p->config);
    if (p) free(p->scratch);
    free(p);
}
