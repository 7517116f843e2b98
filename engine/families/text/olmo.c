/* OLMo 2, OLMo 3 and EXAONE 4: the decoder of qwen.c with norms of what attention and the MLP add, and none
 * of what they read. transformers models/olmo2, olmo3, exaone4. */
#include "engine/families/standard.h"

#include <string.h>

#define TEXT(vocab, ff, kv, theta)                                                                           \
    {                                                                                                        \
        .vocab_size = (vocab), .hidden_size = 4096, .intermediate_size = (ff), .num_hidden_layers = 32,      \
        .num_attention_heads = 32, .max_position_embeddings = 2048, .rms_norm_eps = 1e-5, .qk_norm = true,   \
        .activation = HF_SILU, .num_key_value_heads = (kv), STANDARD_ROPE(theta)                             \
    }
static const struct hf_text OLMO2_TEXT = TEXT(50304, 11008, 0, 1e4), OLMO3_TEXT = TEXT(50304, 11008, 0, 5e5),
                            EXAONE4_TEXT = TEXT(102400, 16384, 32, 1e4);

/* By layer_types, else every fourth layer has no window; absent means 4096, null none. */
static void read_window(struct hf_reader *r, bool exaone, struct hf_text *t)
{
    uint32_t key = json_get(r->d, r->text, "sliding_window"), step = 4;
    if (key == JSON_NONE || json_kind(r->d, key) != JSON_NULL) t->sliding_window = 4096;
    hf_u32(r, r->text, "sliding_window", 1, 1u << 30, &t->sliding_window);
    if (!hf_layer_types(r, r->text, HF_SLIDING, t)) {
        if (exaone) hf_u32(r, r->text, "sliding_window_pattern", 1, HF_LAYERS_MAX, &step);
        for (uint32_t n = 0; n < t->num_hidden_layers; n++)
            t->layer_types[n] = t->sliding_window && (n + 1) % step ? HF_SLIDING : HF_FULL;
    }
}

/* OLMo 3: layers with a window have no scaling, and may have a base of their own. */
static void read_plain_rope(struct hf_reader *r, struct hf_text *t)
{
    uint32_t dict = json_get_live(r->d, json_get_live(r->d, r->text, "rope_parameters"), "sliding_attention"),
             type = json_get_live(r->d, dict, "rope_type");
    t->rope[HF_SLIDING] = (struct hf_rope){.theta = t->rope[HF_FULL].theta, .factor = 1};
    hf_double(r, dict, "rope_theta", 1.0, 1e12, &t->rope[HF_SLIDING].theta);
    if (type != JSON_NONE && !json_str_eq(r->d, type, "default"))
        hf_error(r, ST_UNSUPPORTED, "rope_parameters.sliding_attention.rope_type", "only default is served");
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    bool exaone = type->text == &EXAONE4_TEXT;
    standard_read(r, type, c);
    if (type->text == &OLMO2_TEXT) return;
    read_window(r, exaone, &c->text);
    if (!exaone) read_plain_rope(r, &c->text);
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    const struct hf_text *t = &c->text;
    bool exaone = strcmp(c->model_type, "exaone4") == 0;
    standard_describe_decoder(r, c, d);
    if (r->st) return;
    d->eos_count = c->eos_count;
    d->qk_norm_all = !exaone;
    d->names.input_norm = d->names.pre_mlp_norm = NULL;
    d->names.post_attn_norm = "text.layers.#.post_attention_layernorm";
    d->names.post_mlp_norm = "text.layers.#.post_feedforward_layernorm";
    d->ropes[1] = (struct desc_rope){.theta = t->rope[HF_SLIDING].theta, .factor = 1, .dim = t->head_dim};
    if (exaone) { /* with a window, the layers without one have no RoPE */
        d->ropes[1] = d->ropes[0];
        d->ropes[1].ramp = RAMP_NONE;
        d->ropes[1].unrotated_pairs = t->head_dim / 2;
        d->ropes[1].attention = 1;
    }
    for (uint32_t n = 0; n < d->layer_count; n++) {
        struct desc_layer *l = &d->layers[n];
        l->rope = t->sliding_window && (t->layer_types[n] == HF_SLIDING) != exaone;
        if (l->rope) d->rope_count = 2;
    }
}

/* ---- GGUF files ---- */

static void gguf_text(struct gguf_keys *k, struct hf_text *t)
{
    static const char pattern[] = "attention.sliding_window_pattern";
    llama_gguf_text(k, t);
    gguf_read_u32(k, "attention.sliding_window", false, 0, 1u << 30, &t->sliding_window);
    if (!t->sliding_window) return;
    for (uint32_t n = 0; n < t->num_hidden_layers; n++)
        t->layer_types[n] = (n + 1) % 4 ? HF_SLIDING : HF_FULL;
    if (gguf_key(k, pattern)) gguf_layer_types(k, pattern, HF_SLIDING, t);
}

static const struct gguf_name names[] = {
    {"blk.#.post_attention_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.post_ffw_norm", "model.layers.#.post_feedforward_layernorm"},
    {NULL, NULL},
};
/* OLMo 3's files have the architecture of OLMo 2, and a window. */
static const struct family_gguf files[] = {
    {.arch = "olmo2", .model_type = "olmo2", .names = names, .text = gguf_text},
    {.arch = "exaone4", .model_type = "exaone4", .names = names, .text = gguf_text},
    {NULL},
};

const struct family family_olmo = {
    .types = {{"olmo2", HF_FLAT, &OLMO2_TEXT, NULL, .pad = 2},
              {"olmo3", HF_FLAT, &OLMO3_TEXT, NULL, .pad = 2},
              {"exaone4", HF_FLAT, &EXAONE4_TEXT, NULL}},
    .read = read,
    .describe = describe,
    .gguf = files,
};
