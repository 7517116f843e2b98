/* See gguf_keys.h. */
#include "engine/families/gguf_keys.h"
#include "config/base/decimal.h"

#include "engine/families/families.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES 160u

static bool of_tower(const char *name)
{
    return family_after(name, "clip.") || family_after(name, "v.") || family_after(name, "mm.");
}

void gguf_error(struct gguf_keys *k, enum status st, const char *key, const char *what)
{
    const struct gguf *g = k->f->tower && of_tower(key) ? k->f->tower : k->f->parts[0];
    if (!k->r.st) k->r.st = err_set(k->r.err, st, "%s: %s: %s", gguf_path(g), key, what);
}

const struct gguf_value *gguf_key(const struct gguf_keys *k, const char *key)
{
    char name[KEY_BYTES];
    if (family_after(key, "clip.")) return k->f->tower ? gguf_get(k->f->tower, key) : NULL;
    if (family_after(key, "tokenizer.") || family_after(key, "general."))
        return gguf_get(k->f->parts[0], key);
    snprintf(name, sizeof name, "%s.%s", k->rule->arch, key);
    return gguf_get(k->f->parts[0], name);
}

void gguf_set_u32(struct gguf_keys *k, const char *name, uint64_t x, uint32_t lo, uint32_t hi, uint32_t *v)
{
    char what[96];
    snprintf(what, sizeof what, "must be an integer from %u to %u", lo, hi);
    if (x < lo || x > hi) gguf_error(k, ST_FORMAT, name, what);
    else if (!k->r.st) *v = (uint32_t)x;
}

bool gguf_read_u32(struct gguf_keys *k, const char *key, bool need, uint32_t lo, uint32_t hi, uint32_t *v)
{
    const struct gguf_value *value = gguf_key(k, key);
    uint32_t x;
    if (!value && need) gguf_error(k, ST_FORMAT, key, "is missing");
    if (!value) return false;
    gguf_set_u32(k, key, gguf_u32(value, &x) ? x : UINT64_MAX, lo, hi, v);
    return !k->r.st;
}

/* Files hold floats: the shortest decimal of the same float is the intended number. */
static double decimal_of(double v)
{
    char text[DECIMAL_BYTES];
    if ((double)(float)v != v) return v;
    decimal_shortest(v, true, 6, text);
    return strtod(text, NULL);
}

bool gguf_read_f64(struct gguf_keys *k, const char *key, double lo, double hi, double *v)
{
    const struct gguf_value *value = gguf_key(k, key);
    char what[96];
    double x;
    if (!value) return false;
    snprintf(what, sizeof what, "must be a number from %g to %g", lo, hi);
    if (!gguf_f64(value, &x) || !((x = decimal_of(x)) >= lo && x <= hi)) gguf_error(k, ST_FORMAT, key, what);
    else if (!k->r.st) *v = x;
    return !k->r.st;
}

bool gguf_layer_u32(struct gguf_keys *k, const char *key, uint32_t n, uint32_t lo, uint32_t hi, uint32_t *v)
{
    const struct gguf_value *value = gguf_key(k, key);
    if (!value || value->kind != GGUF_ARRAY) return gguf_read_u32(k, key, false, lo, hi, v);
    double x = n < value->count ? gguf_item(value, n) : -1;
    if (value->item == GGUF_STRING || !(x >= 0 && x <= UINT32_MAX))
        gguf_error(k, ST_FORMAT, key, "must have a number for each layer");
    else gguf_set_u32(k, key, (uint64_t)x, lo, hi, v);
    return !k->r.st;
}

void gguf_layer_types(struct gguf_keys *k, const char *key, enum hf_layer_type kind, struct hf_text *t)
{
    const struct gguf_value *v = gguf_key(k, key);
    if (!v || v->kind != GGUF_ARRAY || v->item == GGUF_STRING || v->count < t->num_hidden_layers) {
        gguf_error(k, ST_FORMAT, key, "must be a list of one for each layer");
        return;
    }
    for (uint32_t n = 0; n < t->num_hidden_layers; n++)
        t->layer_types[n] = (uint8_t)(gguf_item(v, n) != 0 ? kind : HF_FULL);
}

void gguf_rope(struct gguf_keys *k, struct hf_rope *p)
{
    static const char key[] = "rope.scaling.type", factor[] = "rope.scaling.factor";
    struct gguf_text type = {"none", 4};
    const struct gguf_value *v = gguf_key(k, key);
    double linear = 1;
    gguf_read_f64(k, "rope.freq_base", 1, 1e12, &p->theta);
    if (v && !gguf_string(v, &type)) gguf_error(k, ST_FORMAT, key, "must be a string");
    if (!v) gguf_read_f64(k, "rope.scale_linear", 1e-6, 1e6, &linear); /* its name in old files */
    if (linear != 1) {
        p->type = HF_ROPE_LINEAR;
        p->factor = linear;
    }
    if (gguf_text_is(type, "none")) return;
    p->type = gguf_text_is(type, "linear") ? HF_ROPE_LINEAR : HF_ROPE_YARN;
    if (p->type == HF_ROPE_YARN && !gguf_text_is(type, "yarn"))
        gguf_error(k, ST_UNSUPPORTED, key, "only none, linear and yarn are served");
    if (!gguf_read_f64(k, factor, p->type == HF_ROPE_YARN ? 1 : 1e-6, 1e6, &p->factor))
        gguf_error(k, ST_FORMAT, factor, "is missing");
    if (p->type != HF_ROPE_YARN) return;
    gguf_read_f64(k, "rope.scaling.original_context_length", 1, SIZE_MAX_POSITIONS, &p->original_max);
    gguf_read_f64(k, "rope.scaling.yarn_attn_factor", 1e-6, 1e6, &p->attention_factor);
    gguf_read_f64(k, "rope.scaling.yarn_beta_fast", 0, 1e6, &p->beta_fast);
    gguf_read_f64(k, "rope.scaling.yarn_beta_slow", 0, 1e6, &p->beta_slow);
}

static uint32_t dimension(const struct gguf_keys *k, const char *tensor, uint32_t d)
{
    const struct gguf_tensor *t = !of_tower(tensor) ? gguf_files_find(k->f, tensor, NULL)
                                  : k->f->tower     ? gguf_find(k->f->tower, tensor)
                                                    : NULL;
    return t && d < t->rank && t->shape[d] <= UINT32_MAX ? (uint32_t)t->shape[d] : 0;
}

uint32_t gguf_columns(const struct gguf_keys *k, const char *tensor)
{
    return dimension(k, tensor, 0);
}

uint32_t gguf_rows(const struct gguf_keys *k, const char *tensor)
{
    return dimension(k, tensor, 1);
}

bool gguf_floats(struct gguf_keys *k, const char *tensor, uint32_t n, float *out)
{
    const struct gguf *in;
    const struct gguf_tensor *t = gguf_files_find(k->f, tensor, &in);
    if (!t || k->r.st) return false;
    if (t->type != 0 || t->rank != 1 || t->shape[0] != n ||
        gguf_file_bytes(in) - t->offset < n * sizeof *out) {
        gguf_error(k, ST_FORMAT, tensor, "must be F32, of half a head");
        return false;
    }
    memcpy(out, (const char *)gguf_map(in) + t->offset, n * sizeof *out);
    return true;
}

uint32_t gguf_tower_width(const struct gguf_keys *k)
{
    uint32_t columns = gguf_columns(k, "v.blk.0.ffn_up.weight");
    return columns == gguf_columns(k, "v.blk.0.attn_out.weight") ? gguf_rows(k, "v.blk.0.ffn_up.weight")
                                                                 : columns;
}

void gguf_image_token(struct gguf_keys *k, const char *text, struct hf_config *c)
{
    if (!gguf_token(k, text, &c->image_id))
        gguf_error(k, ST_FORMAT, "tokenizer.ggml.tokens", "has no token for images");
}

bool gguf_token(const struct gguf_keys *k, const char *text, uint32_t *id)
{
    const struct gguf_value *v = gguf_key(k, "tokenizer.ggml.tokens");
    const void *at = NULL;
    struct gguf_text token;
    for (uint32_t i = 0; gguf_next_string(v, &at, &token); i++)
        if (gguf_text_is(token, text)) {
            *id = i;
            return true;
        }
    return false;
}
