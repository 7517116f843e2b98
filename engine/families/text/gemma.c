/* Gemma 1 (2B, 7B) and Gemma 2 (2B, 9B, 27B), text; and as decoders of paligemma.c. Formulas and names:
 * transformers models/gemma and models/gemma2. */
#include "engine/families/gemma.h"
#include "engine/families/standard.h"

#include <math.h>

const struct hf_text gemma_text = {
    TEXT_SIZES(256000, 3072, 24576, 28, 16, 16, 8192), GEMMA_COMMON,
    .rope = {[HF_FULL] = {.type = HF_ROPE_DEFAULT, .theta = 1e4, .factor = 1}}};
const struct hf_text gemma2_text = {
    TEXT_SIZES(256000, 2304, 9216, 26, 8, 4, 8192),
    GEMMA_COMMON,
    .sliding_window = 4096,
    .query_pre_attn_scalar = 256,
    .attn_logit_softcapping = 50,
    .final_logit_softcapping = 30,
    .rope = {[HF_FULL] = {.type = HF_ROPE_DEFAULT, .theta = 1e4, .factor = 1}}};

/* One table for all layers. */
static void read_rope(struct hf_reader *r, uint32_t obj, struct hf_text *t)
{
    static const char *const dicts[] = {"rope_parameters", "rope_scaling"};
    struct hf_rope *p = &t->rope[HF_FULL];
    hf_double(r, obj, "rope_theta", 1.0, 1e12, &p->theta);
    for (size_t i = 0; i < 2; i++) {
        uint32_t dict = json_get_live(r->d, obj, dicts[i]);
        if (dict != JSON_NONE && json_kind(r->d, dict) != JSON_OBJECT)
            hf_error(r, ST_FORMAT, dicts[i], "must be an object");
        hf_double(r, dict, "rope_theta", 1.0, 1e12, &p->theta);
        standard_rope_type(r, dict, t, p);
    }
}

static void alternate(struct hf_text *t)
{
    for (uint32_t n = 0; n < t->num_hidden_layers; n++) t->layer_types[n] = n % 2 ? HF_FULL : HF_SLIDING;
}

/* Even layers slide if the file does not say. A window of null would leave transformers without a mask for
 * them. */
static void read_windows(struct hf_reader *r, uint32_t obj, struct hf_text *t)
{
    uint32_t window = json_get(r->d, obj, "sliding_window");
    hf_u32(r, obj, "sliding_window", 1, 1u << 30, &t->sliding_window);
    if (!hf_layer_types(r, obj, HF_SLIDING, t)) alternate(t);
    if (window != JSON_NONE && json_kind(r->d, window) == JSON_NULL)
        hf_error(r, ST_UNSUPPORTED, "sliding_window", "null is not served");
}

/* Released files of Gemma 1 say gelu but mean the tanh form, as in the class. */
static void read_activation(struct hf_reader *r, uint32_t obj, enum hf_activation *v)
{
    uint32_t n = json_get_live(r->d, obj, "hidden_act");
    if (n == JSON_NONE || !json_str_eq(r->d, n, "gelu")) hf_gate(r, obj, "hidden_act", v);
}

/* null: no cap. */
static void read_softcap(struct hf_reader *r, uint32_t obj, const char *key, double *cap)
{
    uint32_t n = json_get(r->d, obj, key);
    if (n != JSON_NONE && json_kind(r->d, n) == JSON_NULL) *cap = 0;
    hf_double(r, obj, key, 1e-6, 1e9, cap);
}

void gemma_read_text(struct hf_reader *r, uint32_t obj, const struct hf_text *defaults, struct hf_text *t)
{
    *t = *defaults;
    hf_text_sizes(r, obj, t);
    hf_text_heads(r, obj, t);
    hf_bool(r, obj, "attention_bias", &t->qkv_bias);
    t->o_bias = t->qkv_bias;
    read_rope(r, obj, t);
    if (defaults != &gemma2_text) {
        read_activation(r, obj, &t->activation);
        return;
    }
    hf_gate(r, obj, "hidden_activation", &t->activation);
    read_windows(r, obj, t);
    hf_double(r, obj, "query_pre_attn_scalar", 1e-6, 1e9, &t->query_pre_attn_scalar);
    read_softcap(r, obj, "attn_logit_softcapping", &t->attn_logit_softcapping);
    read_softcap(r, obj, "final_logit_softcapping", &t->final_logit_softcapping);
}

bool gemma_describe_text(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    const struct hf_text *t = &c->text;
    if (!family_decoder(r, c, d)) return false;
    d->norm_plus_one = true;
    d->embed_scale = sqrt((double)t->hidden_size);
    d->canonical = gemma_canonical;
    d->final_softcap = (float)t->final_logit_softcapping;
    if (d->eos_count == 0) d->eos_ids[d->eos_count++] = 1;              /* the class default */
    if (t->query_pre_attn_scalar == 0) return true;                     /* the first generation */
    d->names.post_attn_norm = "text.layers.#.post_attention_layernorm"; /* of the first generation: the norm
                                                                           after it */
    d->names.pre_mlp_norm = "text.layers.#.pre_feedforward_layernorm";
    d->names.post_mlp_norm = "text.layers.#.post_feedforward_layernorm";
    for (uint32_t n = 0; n < d->layer_count; n++) {
        d->layers[n].scale = (float)(1.0 / sqrt(t->query_pre_attn_scalar)); /* 27B: 144^-0.5 */
        d->layers[n].softcap = (float)t->attn_logit_softcapping;
    }
    return true;
}

/* ---- text alone ---- */

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    gemma_read_text(r, r->text, type->text, &c->text);
    hf_bool(r, r->text, "tie_word_embeddings", &c->text.tie_word_embeddings);
    hf_u32(r, r->text, "bos_token_id", 0, SIZE_MAX_VOCAB - 1, &c->bos_id);
    bool encoder = false;
    hf_bool(r, r->text, "use_bidirectional_attention", &encoder);
    if (encoder)
        hf_error(r, ST_UNSUPPORTED, "use_bidirectional_attention", "this is an encoder, not a generator");
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    (void)gemma_describe_text(r, c, d);
}

/* ---- GGUF files ---- */

static void gguf_text_first(struct gguf_keys *k, struct hf_text *t)
{
    gguf_read_f64(k, "rope.freq_base", 1, 1e12, &t->rope[HF_FULL].theta);
}

/* Only the 27B scales by its width, not by the size of its heads, and files do not say so. */
static void gguf_text_second(struct gguf_keys *k, struct hf_text *t)
{
    gguf_text_first(k, t);
    gguf_read_u32(k, "attention.sliding_window", false, 1, 1u << 30, &t->sliding_window);
    gguf_read_f64(k, "attn_logit_softcapping", 1e-6, 1e9, &t->attn_logit_softcapping);
    gguf_read_f64(k, "final_logit_softcapping", 1e-6, 1e9, &t->final_logit_softcapping);
    alternate(t);
    gemma_gguf_scale(k, t, 46);
}

static const struct family_gguf gguf_first[] = {
    {GGUF_TEXT("gemma", "gemma", gguf_text_first), .norms_plus_one = true, .stops = gemma_gguf_stops},
    {NULL},
};
static const struct family_gguf gguf_second[] = {
    {GGUF_TEXT("gemma2", "gemma2", gguf_text_second), .norms_plus_one = true, .names = gemma_gguf_names,
     .stops = gemma_gguf_stops},
    {NULL},
};

const struct family family_gemma = {
    .types = {{"gemma", HF_FLAT, &gemma_text, NULL, .pad = 1}},
    .read = read,
    .describe = describe,
    .bos_id = 2,
    .gguf = gguf_first,
};

const struct family family_gemma2 = {
    .types = {{"gemma2", HF_FLAT, &gemma2_text, NULL, .pad = 1}},
    .read = read,
    .describe = describe,
    .bos_id = 2,
    .gguf = gguf_second,
};
