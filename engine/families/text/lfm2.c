/* LFM2 and LFM2.5: gated short convolutions between layers of grouped-query attention. transformers
 * models/lfm2. */
#include "engine/families/standard.h"

static const struct hf_text LFM2_TEXT = {TEXT_SIZES(65536, 2560, 12288, 32, 32, 8, 128000), SILU(1e-5),
                                         .qk_norm = true, .tie_word_embeddings = true, STANDARD_ROPE(1e6)};

/* Unless layer_types says it, full_attn_idxs does; without either all are full attention. */
static void read_layers(struct hf_reader *r, struct hf_text *t)
{
    uint32_t full[HF_LAYERS_MAX], count = 0;
    if (hf_layer_types(r, r->text, HF_CONV, t)) return;
    bool listed = hf_list(r, r->text, "full_attn_idxs", HF_LAYERS_MAX - 1, HF_LAYERS_MAX, full, &count);
    for (uint32_t n = 0; n < t->num_hidden_layers; n++) t->layer_types[n] = listed ? HF_CONV : HF_FULL;
    for (uint32_t i = 0; i < count; i++) t->layer_types[full[i]] = HF_FULL;
}

/* block_ff_dim wins; two thirds of it, times the multiplier, rounded up. */
static void read_width(struct hf_reader *r, struct hf_text *t)
{
    bool adjust = true;
    double times = 1;
    uint32_t unit = 256, key = json_get(r->d, r->text, "block_ffn_dim_multiplier");
    hf_u32(r, r->text, "block_ff_dim", 1, SIZE_MAX_FF, &t->intermediate_size);
    hf_bool(r, r->text, "block_auto_adjust_ff_dim", &adjust);
    hf_double(r, r->text, "block_ffn_dim_multiplier", 1e-3, 1e3, &times);
    hf_u32(r, r->text, "block_multiple_of", 1, SIZE_MAX_FF, &unit);
    if (!adjust || r->st) return;
    double ff = (double)(uint32_t)(2.0 * t->intermediate_size / 3);
    if (key == JSON_NONE || json_kind(r->d, key) != JSON_NULL)
        ff = (double)unit * (double)(((uint64_t)(times * ff) + unit - 1) / unit);
    if (ff < 1 || ff > SIZE_MAX_FF)
        hf_error(r, ST_FORMAT, "block_ff_dim", "gives an MLP with 0 or too many columns");
    else t->intermediate_size = (uint32_t)ff;
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    struct hf_text *t = &c->text;
    standard_read(r, type, c);
    t->rms_norm_eps = type->text->rms_norm_eps; /* the key of others is none of this class */
    hf_double(r, r->text, "norm_eps", 0, 1, &t->rms_norm_eps);
    t->tie_word_embeddings = type->text->tie_word_embeddings;
    hf_bool(r, r->text, "tie_word_embeddings", &t->tie_word_embeddings);
    hf_bool(r, r->text, "tie_embedding", &t->tie_word_embeddings);
    hf_bool(r, r->text, "conv_bias", &t->conv_bias);
    t->linear_conv_kernel_dim = 3;
    hf_u32(r, r->text, "conv_L_cache", 2, HF_CONV_KERNEL_MAX, &t->linear_conv_kernel_dim);
    read_width(r, t);
    read_layers(r, t);
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    standard_describe_decoder(r, c, d);
    if (r->st) return;
    d->eos_count = c->eos_count;
    d->delta.conv_k = c->text.linear_conv_kernel_dim;
    d->delta.conv_bias = c->text.conv_bias;
    d->names.final_norm = "text.embedding_norm";
    d->names.input_norm = "text.layers.#.operator_norm";
    d->names.pre_mlp_norm = "text.layers.#.ffn_norm";
    d->names.o = "text.layers.#.self_attn.out_proj";
    d->names.q_norm = "text.layers.#.self_attn.q_layernorm";
    d->names.k_norm = "text.layers.#.self_attn.k_layernorm";
    d->names.gate = "text.layers.#.feed_forward.w1";
    d->names.up = "text.layers.#.feed_forward.w3";
    d->names.down = "text.layers.#.feed_forward.w2";
    d->names.conv = "text.layers.#.conv.conv";
    d->names.delta_qkv = "text.layers.#.conv.in_proj";
    d->names.delta_out = "text.layers.#.conv.out_proj";
    for (uint32_t n = 0; n < d->layer_count; n++)
        if (c->text.layer_types[n] == HF_CONV) d->layers[n].mixer = MIXER_CONV;
}

/* ---- GGUF files ---- */

/* Layers without KV heads are convolutions. */
void lfm2_gguf_text(struct gguf_keys *k, struct hf_text *t)
{
    for (uint32_t n = 0; n < t->num_hidden_layers; n++) {
        uint32_t heads = 0;
        gguf_layer_u32(k, "attention.head_count_kv", n, 0, SIZE_MAX_HEADS, &heads);
        t->layer_types[n] = heads ? HF_FULL : HF_CONV;
    }
    gguf_read_u32(k, "shortconv.l_cache", true, 2, HF_CONV_KERNEL_MAX, &t->linear_conv_kernel_dim);
    standard_gguf_text(k, t);
}

#define LAYER "model.layers.#."
const struct gguf_name lfm2_gguf_names[] = {
    {"token_embd_norm", "model.embedding_norm"},
    {"output_norm", "model.embedding_norm"},
    {"blk.#.attn_norm", LAYER "operator_norm"},
    {"blk.#.ffn_norm", LAYER "ffn_norm"},
    {"blk.#.attn_output", LAYER "self_attn.out_proj"},
    {"blk.#.attn_q_norm", LAYER "self_attn.q_layernorm"},
    {"blk.#.attn_k_norm", LAYER "self_attn.k_layernorm"},
    {"blk.#.ffn_gate", LAYER "feed_forward.w1"},
    {"blk.#.ffn_up", LAYER "feed_forward.w3"},
    {"blk.#.ffn_down", LAYER "feed_forward.w2"},
    {"blk.#.shortconv.conv", LAYER "conv.conv"},
    {"blk.#.shortconv.in_proj", LAYER "conv.in_proj"},
    {"blk.#.shortconv.out_proj", LAYER "conv.out_proj"},
    {NULL, NULL},
};
static const struct family_gguf files[] = {
    {GGUF_TEXT("lfm2", "lfm2", lfm2_gguf_text), .names = lfm2_gguf_names, .stops = standard_gguf_stops},
    {NULL},
};

const struct family family_lfm2 = {
    .types = {{"lfm2", HF_FLAT, &LFM2_TEXT, NULL}},
    .read = read,
    .describe = describe,
    .gguf = files,
};
