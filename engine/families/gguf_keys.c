/* See gguf_keys.h. */
#include "engine/families/gguf_keys.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/families/families.h"

#define KEY_BYTES 160u

void gguf_fault(struct gguf_keys *k, enum status st, const char *key, const char *what)
{
    if (!k->st) k->st = err_set(k->err, st, "%s: %s: %s", gguf_path(k->f->parts[0]), key, what);
}

const struct gguf_value *gguf_key(const struct gguf_keys *k, const char *key)
{
    char name[KEY_BYTES];
    snprintf(name, sizeof name, "%s.%s", k->rule->arch, key);
    return gguf_get(k->f->parts[0], name);
}

const struct gguf_value *gguf_tower_key(const struct gguf_keys *k, const char *key)
{
    char name[KEY_BYTES];
    snprintf(name, sizeof name, "clip.%s", key);
    return k->f->tower ? gguf_get(k->f->tower, name) : NULL;
}

bool gguf_key_u32(struct gguf_keys *k, const char *key, uint32_t *v)
{
    const struct gguf_value *value = gguf_key(k, key);
    if (!value) return false;
    if (gguf_u32(value, v)) return true;
    gguf_fault(k, ST_FORMAT, key, "must be an integer");
    return false;
}

bool gguf_key_f64(struct gguf_keys *k, const char *key, double *v)
{
    const struct gguf_value *value = gguf_key(k, key);
    if (!value) return false;
    if (gguf_f64(value, v) && isfinite(*v)) return true;
    gguf_fault(k, ST_FORMAT, key, "must be a number");
    return false;
}

bool gguf_tower_u32(struct gguf_keys *k, const char *key, bool need, uint32_t *v)
{
    const struct gguf_value *value = gguf_tower_key(k, key);
    if (value && gguf_u32(value, v)) return true;
    if ((value || need) && !k->st)
        k->st = err_set(k->err, ST_FORMAT, "%s: clip.%s: %s", gguf_path(k->f->tower), key,
                        value ? "must be an integer" : "is missing");
    return false;
}

bool gguf_key_layer(struct gguf_keys *k, const char *key, uint32_t n, uint32_t *v)
{
    const struct gguf_value *value = gguf_key(k, key);
    if (!value || value->kind != GGUF_ARRAY) return gguf_key_u32(k, key, v);
    double x = n < value->count ? gguf_item(value, n) : -1;
    if (value->item == GGUF_STRING || !(x >= 0 && x <= UINT32_MAX)) {
        gguf_fault(k, ST_FORMAT, key, "must have a number for each layer");
        return false;
    }
    *v = (uint32_t)x;
    return true;
}

uint32_t gguf_layers(struct gguf_keys *k)
{
    uint32_t n = 0;
    (void)gguf_key_u32(k, "block_count", &n);
    return n < HF_LAYERS_MAX ? n : HF_LAYERS_MAX;
}

static uint32_t dimension(const struct gguf_tensor *t, uint32_t d)
{
    return t && d < t->rank && t->shape[d] <= UINT32_MAX ? (uint32_t)t->shape[d] : 0;
}

uint32_t gguf_columns(const struct gguf_keys *k, const char *tensor)
{
    return dimension(gguf_files_find(k->f, tensor, NULL), 0);
}

uint32_t gguf_rows(const struct gguf_keys *k, const char *tensor)
{
    return dimension(gguf_files_find(k->f, tensor, NULL), 1);
}

uint32_t gguf_tower_columns(const struct gguf_keys *k, const char *tensor)
{
    return k->f->tower ? dimension(gguf_find(k->f->tower, tensor), 0) : 0;
}

uint32_t gguf_tower_rows(const struct gguf_keys *k, const char *tensor)
{
    return k->f->tower ? dimension(gguf_find(k->f->tower, tensor), 1) : 0;
}

uint32_t gguf_tower_width(const struct gguf_keys *k)
{
    uint32_t rows = gguf_tower_rows(k, "v.blk.0.ffn_up.weight"),
             columns = gguf_tower_columns(k, "v.blk.0.ffn_up.weight");
    return columns == gguf_tower_columns(k, "v.blk.0.attn_out.weight") ? rows : columns;
}

bool gguf_token(const struct gguf_keys *k, const char *text, uint32_t *id)
{
    const struct gguf_value *v = gguf_get(k->f->parts[0], "tokenizer.ggml.tokens");
    const void *at = NULL;
    struct gguf_text token;
    for (uint32_t i = 0; gguf_next_string(v, &at, &token); i++)
        if (gguf_text_is(token, text)) {
            *id = i;
            return true;
        }
    return false;
}

void gguf_put(struct gguf_keys *k, const char *fmt, ...)
{
    va_list ap;
    char *text;
    if (k->st) return;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n >= 0) {
        k->st = buf_add(&k->b, text, (size_t)n);
        free(text);
    }
    if (n < 0 || k->st) k->st = err_set(k->err, ST_NOMEM, "out of memory for the configuration");
}

void gguf_put_u32(struct gguf_keys *k, const char *name, uint32_t v)
{
    gguf_put(k, ",\"%s\":%u", name, v);
}

/* Files hold floats: the shortest text that is the same float. */
void gguf_put_f64(struct gguf_keys *k, const char *name, double v)
{
    char text[40];
    bool is_float = (double)(float)v == v;
    int digits = 6;
    do snprintf(text, sizeof text, "%.*g", digits++, v);
    while (digits <= 17 && (is_float ? strtof(text, NULL) != (float)v : strtod(text, NULL) != v));
    gguf_put(k, ",\"%s\":%s", name, text);
}

void gguf_copy_u32(struct gguf_keys *k, const char *name, const char *key, bool need)
{
    uint32_t v;
    if (gguf_key_u32(k, key, &v)) gguf_put_u32(k, name, v);
    else if (need) gguf_fault(k, ST_FORMAT, key, "is missing");
}

void gguf_copy_f64(struct gguf_keys *k, const char *name, const char *key)
{
    double v;
    if (gguf_key_f64(k, key, &v)) gguf_put_f64(k, name, v);
}

void gguf_put_token(struct gguf_keys *k, const char *name, const char *text)
{
    uint32_t id;
    if (gguf_token(k, text, &id)) gguf_put_u32(k, name, id);
}

void gguf_put_list(struct gguf_keys *k, const char *name, const struct gguf_value *v, uint64_t count)
{
    gguf_put(k, ",\"%s\":[", name);
    for (uint64_t i = 0; i < count && !k->st; i++) {
        double x = gguf_item(v, i);
        if (!isfinite(x)) gguf_fault(k, ST_FORMAT, name, "must be a list of numbers");
        gguf_put(k, i ? ",%.9g" : "%.9g", x);
    }
    gguf_put(k, "]");
}

void gguf_put_layer_types(struct gguf_keys *k, const char *key)
{
    const struct gguf_value *v = gguf_key(k, key);
    uint32_t n = gguf_layers(k);
    if (!v || v->kind != GGUF_ARRAY || v->item == GGUF_STRING || v->count < n) {
        gguf_fault(k, ST_FORMAT, key, "must be a list of one for each layer");
        return;
    }
    gguf_put(k, ",\"layer_types\":[");
    for (uint32_t i = 0; i < n; i++)
        gguf_put(k, "%s\"%s_attention\"", i ? "," : "", gguf_item(v, i) != 0 ? "sliding" : "full");
    gguf_put(k, "]");
}

void gguf_put_rope_scaling(struct gguf_keys *k, const char *more)
{
    struct gguf_text type = {"none", 4};
    const struct gguf_value *v = gguf_key(k, "rope.scaling.type");
    double linear = 0;
    if (v && !gguf_string(v, &type)) gguf_fault(k, ST_FORMAT, "rope.scaling.type", "must be a text");
    if (!v && gguf_key_f64(k, "rope.scale_linear", &linear) && linear != 1) /* its name in old files */
        gguf_put(k, ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":%.9g%s}", linear, more);
    else if (gguf_text_is(type, "none") && *more)
        gguf_put(k, ",\"rope_scaling\":{\"rope_type\":\"default\"%s}", more);
    else if (gguf_text_is(type, "linear") || gguf_text_is(type, "yarn")) {
        gguf_put(k, ",\"rope_scaling\":{\"rope_type\":\"%.*s\"%s", (int)type.len, type.p, more);
        gguf_copy_f64(k, "factor", "rope.scaling.factor");
        gguf_copy_f64(k, "original_max_position_embeddings", "rope.scaling.original_context_length");
        gguf_copy_f64(k, "attention_factor", "rope.scaling.yarn_attn_factor");
        gguf_copy_f64(k, "beta_fast", "rope.scaling.yarn_beta_fast");
        gguf_copy_f64(k, "beta_slow", "rope.scaling.yarn_beta_slow");
        gguf_put(k, "}");
    } else if (!gguf_text_is(type, "none")) {
        gguf_fault(k, ST_UNSUPPORTED, "rope.scaling.type", "only none, linear and yarn are served");
    }
}
