/* See reader.h. */
#include "config/hf/reader.h"

#include <stdio.h>

void hf_error(struct hf_reader *r, enum status st, const char *key, const char *what)
{
    if (!r->st) r->st = err_set(r->err, st, "%s: %s%s: %s", r->file, r->scope, key, what);
}

bool hf_u32(struct hf_reader *r, uint32_t obj, const char *key, uint32_t lo, uint32_t hi, uint32_t *v)
{
    uint32_t n = json_get_live(r->d, obj, key);
    if (n == JSON_NONE || r->st) return false;
    int64_t x;
    char what[96];
    snprintf(what, sizeof what, "must be an integer from %u to %u", lo, hi);
    if (!json_int(r->d, n, &x) || x < (int64_t)lo || x > (int64_t)hi) hf_error(r, ST_FORMAT, key, what);
    else *v = (uint32_t)x;
    return !r->st;
}

bool hf_double(struct hf_reader *r, uint32_t obj, const char *key, double lo, double hi, double *v)
{
    uint32_t n = json_get_live(r->d, obj, key);
    if (n == JSON_NONE || r->st) return false;
    double x;
    char what[96];
    snprintf(what, sizeof what, "must be a number from %g to %g", lo, hi);
    if (!json_double(r->d, n, &x) || !(x >= lo && x <= hi)) hf_error(r, ST_FORMAT, key, what);
    else *v = x;
    return !r->st;
}

bool hf_bool(struct hf_reader *r, uint32_t obj, const char *key, bool *v)
{
    uint32_t n = json_get_live(r->d, obj, key);
    if (n == JSON_NONE || r->st) return false;
    if (!json_bool(r->d, n, v)) hf_error(r, ST_FORMAT, key, "must be true or false");
    return !r->st;
}

void hf_ids(struct hf_reader *r, uint32_t obj, const char *key, uint32_t *ids, uint32_t *count)
{
    uint32_t n = json_get_live(r->d, obj, key);
    if (n == JSON_NONE || r->st) return;
    bool list = json_kind(r->d, n) == JSON_ARRAY;
    uint32_t left = list ? json_count(r->d, n) : 1, at = list ? json_first(r->d, n) : n;
    for (; left > 0; left--, at = json_next(r->d, at)) {
        int64_t x;
        if (!json_int(r->d, at, &x) || x < 0 || x >= (int64_t)SIZE_MAX_VOCAB) {
            hf_error(r, ST_FORMAT, key, "must be a token id or a list of them");
            return;
        }
        bool known = false;
        for (uint32_t i = 0; i < *count; i++) known |= ids[i] == (uint32_t)x;
        if (known) continue;
        if (*count == HF_EOS_MAX) {
            hf_error(r, ST_FORMAT, key, "too many ids");
            return;
        }
        ids[(*count)++] = (uint32_t)x;
    }
}

void hf_side(struct hf_reader *r, uint32_t obj, const char *key, uint32_t hi, uint32_t *v)
{
    uint32_t n = json_get_live(r->d, obj, key), s[2], count = 0;
    if (n == JSON_NONE || json_kind(r->d, n) != JSON_ARRAY) {
        hf_u32(r, obj, key, 1, hi, v);
        return;
    }
    if (!hf_list(r, obj, key, hi, 2, s, &count)) return;
    if (count == 0 || s[0] == 0 || (count == 2 && s[0] != s[1]))
        hf_error(r, ST_FORMAT, key, "must be one size for both sides");
    else *v = s[0];
}

void hf_activation(struct hf_reader *r, uint32_t obj, const char *key, enum hf_activation want)
{
    static const char *const names[] = {[HF_GELU_TANH] = "gelu_pytorch_tanh",
                                        [HF_SILU] = "silu",
                                        [HF_QUICK_GELU] = "quick_gelu",
                                        [HF_GELU] = "gelu"};
    uint32_t n = json_get_live(r->d, obj, key);
    char what[64];
    if (n == JSON_NONE || r->st || json_str_eq(r->d, n, names[want])) return;
    snprintf(what, sizeof what, "only %s is served", names[want]);
    hf_error(r, ST_UNSUPPORTED, key, what);
}

void hf_gate(struct hf_reader *r, uint32_t obj, const char *key, enum hf_activation *v)
{
    static const char *const names[] = {"silu", "swish", "gelu_pytorch_tanh", "gelu_new", "gelu_fast"};
    uint32_t n = json_get_live(r->d, obj, key);
    size_t i = 0;
    while (n != JSON_NONE && i < 5 && !json_str_eq(r->d, n, names[i])) i++;
    if (i == 5) hf_error(r, ST_UNSUPPORTED, key, "only silu and gelu_pytorch_tanh are served");
    else if (n != JSON_NONE) *v = i < 2 ? HF_SILU : HF_GELU_TANH;
}

void hf_text_sizes(struct hf_reader *r, uint32_t obj, struct hf_text *t)
{
    hf_u32(r, obj, "vocab_size", 1, SIZE_MAX_VOCAB, &t->vocab_size);
    hf_u32(r, obj, "hidden_size", 1, SIZE_MAX_HIDDEN, &t->hidden_size);
    hf_u32(r, obj, "intermediate_size", 1, SIZE_MAX_FF, &t->intermediate_size);
    hf_u32(r, obj, "num_hidden_layers", 1, HF_LAYERS_MAX, &t->num_hidden_layers);
    hf_u32(r, obj, "max_position_embeddings", 1, SIZE_MAX_POSITIONS, &t->max_position_embeddings);
    hf_double(r, obj, "rms_norm_eps", 0, 1, &t->rms_norm_eps);
}

void hf_check_heads(struct hf_reader *r, const struct hf_text *t)
{
    if (r->st) return;
    if (t->head_dim % 2) hf_error(r, ST_FORMAT, "head_dim", "must be even");
    if (t->num_attention_heads % t->num_key_value_heads)
        hf_error(r, ST_FORMAT, "num_attention_heads", "must be a multiple of num_key_value_heads");
}

void hf_text_heads(struct hf_reader *r, uint32_t obj, struct hf_text *t)
{
    hf_u32(r, obj, "num_attention_heads", 1, SIZE_MAX_HEADS, &t->num_attention_heads);
    hf_u32(r, obj, "num_key_value_heads", 1, SIZE_MAX_HEADS, &t->num_key_value_heads);
    hf_u32(r, obj, "head_dim", 2, SIZE_MAX_HEAD_DIM, &t->head_dim);
    hf_check_heads(r, t);
}

bool hf_list(struct hf_reader *r, uint32_t obj, const char *key, uint32_t hi, uint32_t cap, uint32_t *out,
             uint32_t *count)
{
    uint32_t list = json_get_live(r->d, obj, key), n = 0;
    char what[96];
    if (list == JSON_NONE || r->st) return false;
    snprintf(what, sizeof what, "must be a list of at most %u integers from 0 to %u", cap, hi);
    if (json_kind(r->d, list) != JSON_ARRAY || json_count(r->d, list) > cap) {
        hf_error(r, ST_FORMAT, key, what);
        return false;
    }
    uint32_t left = json_count(r->d, list), at = json_first(r->d, list);
    for (; left > 0; left--, at = json_next(r->d, at)) {
        int64_t x;
        if (!json_int(r->d, at, &x) || x < 0 || x > (int64_t)hi) {
            hf_error(r, ST_FORMAT, key, what);
            return false;
        }
        out[n++] = (uint32_t)x;
    }
    *count = n;
    return true;
}

bool hf_layer_types(struct hf_reader *r, uint32_t obj, enum hf_layer_type other, struct hf_text *t)
{
    const char *name = other == HF_LINEAR ? "linear_attention"
                       : other == HF_CONV ? "conv"
                                          : "sliding_attention";
    char what[64];
    uint32_t list = json_get_live(r->d, obj, "layer_types");
    if (list == JSON_NONE || r->st) return false;
    if (json_kind(r->d, list) != JSON_ARRAY || json_count(r->d, list) != t->num_hidden_layers) {
        hf_error(r, ST_FORMAT, "layer_types", "must be a list of num_hidden_layers strings");
        return false;
    }
    uint32_t at = json_first(r->d, list);
    for (uint32_t n = 0; n < t->num_hidden_layers; n++, at = json_next(r->d, at)) {
        if (json_str_eq(r->d, at, "full_attention")) t->layer_types[n] = HF_FULL;
        else if (json_str_eq(r->d, at, name)) t->layer_types[n] = (uint8_t)other;
        else {
            snprintf(what, sizeof what, "only full_attention and %s are served", name);
            hf_error(r, ST_UNSUPPORTED, "layer_types", what);
            return false;
        }
    }
    return true;
}
