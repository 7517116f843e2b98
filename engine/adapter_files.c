/* See adapter_files.h. PEFT's rules: peft/tuners/lora/model.py (rank, alpha), tuners_utils.py
 * (target_modules), utils/other.py (get_pattern_key); llama.cpp's: src/llama-adapter.cpp. */
#include "engine/adapter_files.h"

#include "config/base/file.h"
#include "config/base/json.h"
#include "config/gguf/gguf.h"
#include "config/hf/reader.h"
#include "engine/families/families.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct peft {
    struct json_doc doc;
    double rank, alpha;
    bool rslora;
    uint32_t ranks, alphas, targets; /* nodes */
};

/* ---- adapter_config.json ---- */

/* Whether the key is there and says something: not null, false, 0, "" or an empty list. */
static bool said(const struct json_doc *d, const char *key)
{
    uint32_t node = json_get_live(d, 0, key);
    double number = 1;
    switch (json_kind(d, node)) {
    case JSON_NULL:
    case JSON_FALSE: return false;
    case JSON_NUMBER: return !json_double(d, node, &number) || number != 0;
    case JSON_ARRAY:
    case JSON_OBJECT: return json_count(d, node) > 0;
    case JSON_STRING: return !json_str_eq(d, node, "");
    case JSON_TRUE: return true;
    }
    return true;
}

/* What would have to be computed otherwise, or changes the base's weights. */
static enum status refuse(const struct json_doc *d, struct err *err)
{
    static const char *const keys[] = {
        "use_dora",       "modules_to_save",   "trainable_token_indices", "target_parameters", "lora_bias",
        "fan_in_fan_out", "layer_replication", "alora_invocation_tokens", "use_qalora",        "use_bdlora",
        "arrow_config",   "kasa_config",       "monteclora_config"};
    static const char *const starts[] = {"gaussian", "orthogonal", "eva", "true", "false"};
    uint32_t type = json_get_live(d, 0, "peft_type"), bias = json_get_live(d, 0, "bias"),
             start = json_get_live(d, 0, "init_lora_weights");
    bool plain = json_kind(d, start) != JSON_STRING;
    if (type != JSON_NONE && !json_str_eq(d, type, "LORA"))
        return err_set(err, ST_UNSUPPORTED, "peft_type: only LORA is served");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (said(d, keys[i])) return err_set(err, ST_UNSUPPORTED, "%s is not served", keys[i]);
    if (bias != JSON_NONE && !json_str_eq(d, bias, "none"))
        return err_set(err, ST_UNSUPPORTED, "bias: only none is served");
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) plain |= json_str_eq(d, start, starts[i]);
    if (!plain)
        return err_set(
            err, ST_UNSUPPORTED,
            "init_lora_weights: it changes the base model's weights; convert the adapter to a plain "
            "one (path_initial_model_for_weight_conversion)");
    return ST_OK;
}

static enum status read_config(const char *dir, struct peft *p, struct adapter_files *f, struct err *err)
{
    char *path = NULL;
    size_t len = 0;
    enum status st = json_load(dir, "adapter_config.json", HF_FILE_BYTES_MAX, &p->doc, &path, err);
    if (st) {
        free(path);
        return st;
    }
    const struct json_doc *d = &p->doc;
    p->rank = p->alpha = 8; /* PEFT's defaults */
    p->ranks = json_get_live(d, 0, "rank_pattern");
    p->alphas = json_get_live(d, 0, "alpha_pattern");
    p->targets = json_get_live(d, 0, "target_modules");
    (void)json_double(d, json_get_live(d, 0, "r"), &p->rank);
    (void)json_double(d, json_get_live(d, 0, "lora_alpha"), &p->alpha);
    (void)json_bool(d, json_get_live(d, 0, "use_rslora"), &p->rslora);
    if (json_str_copy(d, json_get_live(d, 0, "base_model_name_or_path"), f->base, sizeof f->base - 1, &len))
        f->base[len] = '\0';
    if (json_kind(d, 0) != JSON_OBJECT) st = err_set(err, ST_FORMAT, "is not an object");
    if (!st) st = refuse(d, err);
    if (st) (void)err_prefix(err, st, "%s", path);
    free(path);
    return st;
}

/* ---- rank_pattern, alpha_pattern: Python's regular expressions, without groups ---- */

struct matcher {
    uint32_t steps; /* left; a hostile pattern ends */
    bool unknown;   /* something that isn't known here */
};

/* One item of the pattern at p: its length, and whether it matches c. */
static size_t item(struct matcher *m, const char *p, char c, bool *hit)
{
    bool digit = isdigit((unsigned char)c), word = isalnum((unsigned char)c) || c == '_';
    if (strchr("()[]{}|", *p)) m->unknown = true;
    *hit = c && (*p == '.' || *p == c);
    if (*p != '\\') return 1;
    *hit = c && (p[1] == 'd' ? digit : p[1] == 'w' ? word : p[1] == c);
    if (isalnum((unsigned char)p[1]) && p[1] != 'd' && p[1] != 'w') m->unknown = true;
    return p[1] ? 2 : 1;
}

static bool match_here(struct matcher *m, const char *p, const char *s)
{
    while (*p == '^' || (*p == '$' && !p[1])) p++;
    if (!*p || m->steps == 0 || m->unknown) return !*p && !*s;
    m->steps--;
    bool hit;
    size_t len = item(m, p, *s, &hit);
    const char *rest = p + len;
    if (m->unknown) return false;
    if (*rest != '*' && *rest != '+' && *rest != '?') return hit && match_here(m, rest, s + 1);
    char times = *rest++;
    if (*rest == '?' && times != '?') rest++; /* the least: the same, as all of s must match */
    uint32_t n = 0;
    if (times != '+' && match_here(m, rest, s)) return true;
    while (hit && !(times == '?' && n)) {
        if (match_here(m, rest, ++s)) return true;
        (void)item(m, p, *s, &hit);
        n++;
    }
    return false;
}

/* The first pattern of an object whose match ends the module's path, at its start or after a dot; else *v is
 * left as it is. */
static enum status by_pattern(const struct json_doc *d, uint32_t object, const char *what, const char *module,
                              double *v, struct err *err)
{
    uint32_t key = json_first(d, object), left = json_count(d, object);
    for (uint32_t value; left > 0; left--, key = json_next(d, value)) {
        char pattern[512];
        size_t len = 0;
        value = json_next(d, key);
        struct matcher m = {.steps = 1u << 16};
        bool known = json_str_copy(d, key, pattern, sizeof pattern - 1, &len), hit = false;
        pattern[known ? len : 0] = '\0';
        for (const char *s = module; s && known && !hit; s = strchr(s, '.') ? strchr(s, '.') + 1 : NULL)
            hit = (*pattern != '^' || s == module) && match_here(&m, pattern, s);
        if (!known || m.unknown || m.steps == 0)
            return err_set(err, ST_UNSUPPORTED,
                           "%s: \"%s\" is not served: names, and of regular expressions . * + ? \\d \\w are",
                           what, pattern);
        if (hit)
            return json_double(d, value, v) ? ST_OK : err_set(err, ST_FORMAT, "%s: must have numbers", what);
    }
    return ST_OK;
}

/* Whether target_modules names the module; a regular expression is not looked at: what is in the file
 * counts. */
static bool targeted(const struct peft *p, const char *module)
{
    const struct json_doc *d = &p->doc;
    if (json_kind(d, p->targets) != JSON_ARRAY) return true;
    for (uint32_t n = json_first(d, p->targets), i = 0; i < json_count(d, p->targets);
         n = json_next(d, n), i++)
        for (const char *s = module; s; s = strchr(s, '.') ? strchr(s, '.') + 1 : NULL)
            if (json_str_eq(d, n, s)) return true;
    return false;
}

static enum status scale_of(const struct peft *p, const char *module, const struct stf_tensor *a, double *out,
                            struct err *err)
{
    double rank = p->rank, alpha = p->alpha;
    enum status st = by_pattern(&p->doc, p->ranks, "rank_pattern", module, &rank, err);
    if (!st) st = by_pattern(&p->doc, p->alphas, "alpha_pattern", module, &alpha, err);
    if (st) return st;
    if (!(rank >= 1) || !(fabs(alpha) <= 1e9) || a->rank < 1 || (double)a->shape[0] != rank)
        return err_set(err, ST_FORMAT,
                       "adapter_config.json says rank %g and alpha %g, tensor %s has rank %llu", rank, alpha,
                       a->name, a->rank ? (unsigned long long)a->shape[0] : 0ull);
    if (!targeted(p, module))
        return err_set(err, ST_FORMAT, "tensor %s: target_modules does not name it", a->name);
    *out = alpha / (p->rslora ? sqrt(rank) : rank);
    return ST_OK;
}

/* ---- tensors ---- */

/* "base_model.model.X.lora_A.weight", "X.lora_B.NAME.weight" -> X; in GGUF files "X.weight.lora_a". */
static bool split_name(const char *name, bool gguf, char module[DESC_NAME_MAX], bool *is_b)
{
    const char *start = family_after(name, "base_model.model."),
               *at = strstr(start ? start : name, gguf ? ".weight.lora_" : ".lora_"), *rest;
    if (!start) start = name;
    size_t len = at ? (size_t)(at - start) : 0;
    if (!at || len + 16 > DESC_NAME_MAX) return false;
    rest = at + (gguf ? sizeof ".weight.lora_" - 1 : sizeof ".lora_" - 1);
    *is_b = *rest == 'B' || *rest == 'b';
    snprintf(module, DESC_NAME_MAX, "%.*s", (int)len, start);
    if (gguf) return strcmp(rest, "a") == 0 || strcmp(rest, "b") == 0;
    const char *dot = strrchr(rest, '.');
    return (*rest == 'A' || *rest == 'B') && rest[1] == '.' && dot && strcmp(dot, ".weight") == 0 &&
           !memchr(rest + 2, '.', dot > rest + 2 ? (size_t)(dot - rest - 2) : 0);
}

/* The description's name of a module, as the classes of several versions call it. */
static bool canonical(const struct model_desc *d, const char *module, char out[DESC_NAME_MAX])
{
    static const char *const spellings[][2] = {
        {"", ""},
        {"", "model."},
        {"model.", ""},
        {"model.model.", "model."},
        {"model.language_model.", "model."},
        {"model.language_model.model.", "model.language_model."},
        {"language_model.model.", "model.text_model."},
    };
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        char name[DESC_NAME_MAX + 32], *end;
        const char *rest = family_after(module, spellings[i][0]);
        if (!rest) continue;
        snprintf(name, sizeof name, "%s%s.weight", spellings[i][1], rest);
        if (!d->canonical(name, out)) continue;
        if ((end = strstr(out, ".weight")) && !end[7]) *end = '\0';
        return true;
    }
    return false;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct adapter_pair *)a)->name, ((const struct adapter_pair *)b)->name);
}

/* Puts the halves together that have the same name, after sorting. */
static enum status pair_up(struct adapter_files *f, struct err *err)
{
    size_t n = 0;
    qsort(f->pairs, f->count, sizeof *f->pairs, by_name);
    for (size_t i = 0; i < f->count; i++) {
        struct adapter_pair *last = n ? &f->pairs[n - 1] : NULL, *p = &f->pairs[i];
        if (!last || strcmp(last->name, p->name) != 0) {
            f->pairs[n++] = *p;
            continue;
        }
        if ((p->a && last->a) || (p->b && last->b))
            return err_set(err, ST_FORMAT, "tensors %s and %s are the same part of the model (%s)",
                           p->a ? p->a->name : p->b->name, last->a ? last->a->name : last->b->name, p->name);
        if (p->a) last->a = p->a;
        else last->b = p->b;
        if (p->a) last->scale = p->scale;
    }
    f->count = n;
    for (size_t i = 0; i < n; i++)
        if (!f->pairs[i].a || !f->pairs[i].b)
            return err_set(err, ST_FORMAT, "tensor %s: its other matrix is missing",
                           f->pairs[i].a ? f->pairs[i].a->name : f->pairs[i].b->name);
    return ST_OK;
}

/* Why a tensor is not one of a pair. */
static enum status other_tensor(const struct stf_tensor *t, struct err *err)
{
    const char *what = strstr(t->name, "lora_embedding") || strstr(t->name, "embed") ? "trained embeddings"
                       : strstr(t->name, "magnitude")                                ? "DoRA"
                       : strstr(t->name, ".bias")                                    ? "a trained bias"
                                                                                     : "modules_to_save";
    return err_set(err, ST_UNSUPPORTED, "tensor %s: %s: only lora_A and lora_B of linears are served",
                   t->name, what);
}

/* gguf_alpha: with p NULL. */
static enum status read_pairs(struct adapter_files *f, const struct model_desc *desc, const struct peft *p,
                              double gguf_alpha, struct err *err)
{
    size_t n = stf_count(f->files);
    enum status st = ST_OK;
    f->pairs = calloc(n ? n : 1, sizeof *f->pairs);
    if (!f->pairs) return err_nomem(err, "an adapter");
    for (size_t i = 0; i < n && !st; i++) {
        const struct stf_tensor *t = stf_at(f->files, i);
        struct adapter_pair *pair = &f->pairs[f->count];
        char module[DESC_NAME_MAX];
        bool is_b;
        if (!split_name(t->name, f->gguf, module, &is_b)) return other_tensor(t, err);
        if (weights_carried_along(t->name)) continue; /* of a part that is not served */
        if (!canonical(desc, module, pair->name))
            return err_set(err, ST_FORMAT, "tensor %s: this model has no such part", t->name);
        if (is_b) pair->b = t;
        else pair->a = t;
        if (!is_b && p) st = scale_of(p, module, t, &pair->scale, err);
        else if (!is_b)
            pair->scale = gguf_alpha != 0 && t->rank && t->shape[0] ? gguf_alpha / (double)t->shape[0] : 1;
        f->count++;
    }
    return st ? st : pair_up(f, err);
}

/* ---- both kinds ---- */

static enum status open_gguf(const char *path, const struct model_desc *desc, struct adapter_files *f,
                             struct err *err)
{
    struct gguf *g = NULL;
    struct gguf_text type = {0}, kind = {0}, base = {0};
    double alpha = 0;
    enum status st = gguf_open(path, &g, err);
    if (st) return st;
    bool adapter = gguf_string(gguf_get(g, "general.type"), &type) && gguf_text_is(type, "adapter"),
         lora = gguf_string(gguf_get(g, "adapter.type"), &kind) && gguf_text_is(kind, "lora");
    (void)gguf_f64(gguf_get(g, "adapter.lora.alpha"), &alpha);
    if (gguf_string(gguf_get(g, "general.base_model.0.name"), &base))
        snprintf(f->base, sizeof f->base, "%.*s", base.len < 255 ? (int)base.len : 255, base.p);
    if (!adapter || !lora)
        st = err_set(err, ST_UNSUPPORTED, "%s",
                     adapter ? "adapter.type: only lora is served"
                             : "general.type is not adapter: it is no adapter");
    if (!st && (gguf_get(g, "adapter.alora.invocation_tokens") || !(fabs(alpha) <= 1e9)))
        st = err_set(err, ST_UNSUPPORTED, "adapter.alora.invocation_tokens, or such an alpha, is not served");
    gguf_close(g);
    if (!st) st = family_open(path, NULL, &f->files, err);
    return st ? st : read_pairs(f, desc, NULL, alpha, err);
}

static enum status open_peft(const char *path, const struct model_desc *desc, struct adapter_files *f,
                             struct err *err)
{
    struct peft p = {.rank = 0};
    char *name = file_join(path, "adapter_model.safetensors");
    enum status st = name ? read_config(path, &p, f, err) : err_nomem(err, path);
    if (!st) st = stf_open_file(name, &f->files, err);
    if (!st) st = read_pairs(f, desc, &p, 0, err);
    json_free(&p.doc);
    free(name);
    return st;
}

enum status adapter_files_open(const char *path, const struct model_desc *desc, struct adapter_files *out,
                               struct err *err)
{
    struct adapter_files f = {.gguf = gguf_is(path)};
    enum status st = (f.gguf ? open_gguf : open_peft)(path, desc, &f, err);
    if (st) adapter_files_close(&f);
    *out = f;
    return st;
}

void adapter_files_close(struct adapter_files *f)
{
    stf_close(f->files);
    free(f->pairs);
    *f = (struct adapter_files){.count = 0};
}
