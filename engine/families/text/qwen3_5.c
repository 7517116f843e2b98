/* Qwen3.5 and later (3.6, 3.8), dense and mixture of experts: gated delta nets, with full attention with an
 * output gate between them; RMS weights are 1 + w; the tower of Qwen3-VL without DeepStack. transformers
 * models/qwen3_5, qwen3_5_moe. */
#include "engine/families/qwen.h"

#include <stdio.h>
#include <stdlib.h>

#define COMMON                                                                                               \
    .head_dim = 256, SILU(1e-6), .qk_norm = true, .linear_conv_kernel_dim = 4, .linear_num_key_heads = 16,   \
    .linear_num_value_heads = 32, .linear_key_head_dim = 128, .linear_value_head_dim = 128,                  \
    STANDARD_ROPE(1e4, .partial = 0.25, .mrope_section = {11, 11, 10}, .mrope_interleaved = true)
const struct hf_text qwen3_5_text = {TEXT_SIZES(248320, 4096, 12288, 32, 16, 4, 32768), COMMON};
/* No layer has intermediate_size; norm_topk_prob always holds. */
static const struct hf_text QWEN3_5_MOE_TEXT = {
    TEXT_SIZES(248320, 2048, 1, 40, 16, 2, 32768), EXPERT_SIZES(256, 8, 512),
    .shared_expert_intermediate_size = 512, .norm_topk_prob = true, COMMON};
static const struct hf_vision VISION = {QWEN3_TOWER};

#define END_OF_TURN 248046u /* <|im_end|> */

static void describe_delta(const struct hf_text *t, bool gguf, struct model_desc *out)
{
    out->delta = (struct desc_delta){
        .key_heads = t->linear_num_key_heads,
        .value_heads = t->linear_num_value_heads,
        .key_dim = t->linear_key_head_dim,
        .value_dim = t->linear_value_head_dim,
        .conv_k = t->linear_conv_kernel_dim,
        .tiled = gguf, /* as llama.cpp's conversion has them */
        .decay_plain = gguf,
    };
    out->names.conv = "text.layers.#.linear_attn.conv1d";
    out->names.delta_qkv = "text.layers.#.linear_attn.in_proj_qkv";
    out->names.delta_z = "text.layers.#.linear_attn.in_proj_z";
    out->names.delta_beta = "text.layers.#.linear_attn.in_proj_b";
    out->names.delta_a = "text.layers.#.linear_attn.in_proj_a";
    out->names.delta_decay = "text.layers.#.linear_attn.A_log";
    out->names.delta_dt_bias = "text.layers.#.linear_attn.dt_bias";
    out->names.delta_norm = "text.layers.#.linear_attn.norm";
    out->names.delta_out = "text.layers.#.linear_attn.out_proj";
}

/* ---- the drafter in the checkpoint: mtp.*, one full attention layer ---- */

static bool canonical_drafter(const char *name, char out[DESC_NAME_MAX])
{
    const char *x = family_after(name, "mtp.");
    return x && snprintf(out, DESC_NAME_MAX, "text.%s", x) < (int)DESC_NAME_MAX;
}

static bool describe_drafter(const struct model_desc *target, struct model_desc *out)
{
    uint32_t n = target->layer_count - 1;
    while (n > 0 && target->layers[n].mixer != MIXER_ATTENTION) n--;
    *out = *target;
    out->layer_count = 1;
    out->layers = malloc(sizeof *out->layers);
    if (!out->layers) return false;
    out->layers[0] = target->layers[n];
    out->has_vision = false;
    out->drafts_for = target->hidden;
    out->own_keys = true;
    out->names.draft_in = "text.fc";
    out->names.embed_norm = "text.pre_fc_norm_embedding";
    out->names.hidden_norm = "text.pre_fc_norm_hidden";
    out->canonical = canonical_drafter;
    return true;
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *out)
{
    const struct hf_text *t = &c->text;
    standard_describe_decoder(r, c, out);
    if (r->st) return;
    out->norm_plus_one = true;
    out->expert_layout = EXPERTS_OUT_IN;
    if (c->eos_count == 0) {
        out->eos_count = out->vocab > END_OF_TURN;
        out->eos_ids[0] = END_OF_TURN;
    }
    describe_delta(t, r->d == NULL, out);
    for (uint32_t n = 0; n < out->layer_count; n++) {
        struct desc_layer *l = &out->layers[n];
        if (t->layer_types[n] == HF_LINEAR) l->mixer = MIXER_DELTA;
        else l->gated = true;
    }
    if (t->mtp_num_hidden_layers == 1) out->drafter = describe_drafter;
    if (c->has_vision) qwen3_vl_describe_images(c, out);
}

/* ---- GGUF files ---- */

void qwen3_5_gguf_text(struct gguf_keys *k, struct hf_text *t)
{
    static const char recurrent[] = "attention.recurrent_layers";
    uint32_t inner = 0, interval = 4;
    standard_gguf_rotary(k, t);
    standard_gguf_text(k, t);
    gguf_read_u32(k, "ssm.conv_kernel", true, 2, HF_CONV_KERNEL_MAX, &t->linear_conv_kernel_dim);
    gguf_read_u32(k, "ssm.state_size", true, 1, SIZE_MAX_HEAD_DIM, &t->linear_key_head_dim);
    gguf_read_u32(k, "ssm.group_count", true, 1, SIZE_MAX_HEADS, &t->linear_num_key_heads);
    gguf_read_u32(k, "ssm.time_step_rank", true, 1, SIZE_MAX_HEADS, &t->linear_num_value_heads);
    gguf_read_u32(k, "ssm.inner_size", true, 1, SIZE_MAX_HEADS * SIZE_MAX_HEAD_DIM, &inner);
    gguf_read_u32(k, "full_attention_interval", false, 1, HF_LAYERS_MAX, &interval);
    if (!k->r.st)
        gguf_set_u32(k, "ssm.inner_size", inner / t->linear_num_value_heads, 1, SIZE_MAX_HEAD_DIM,
                     &t->linear_value_head_dim);
    bool listed = gguf_key(k, recurrent) != NULL;
    if (listed) gguf_layer_types(k, recurrent, HF_LINEAR, t);
    qwen_recurrent(&k->r, listed, interval, t);
}

#define LINEAR "model.layers.#.linear_attn."
#define NAMES                                                                                                \
    {"blk.#.attn_qkv", LINEAR "in_proj_qkv"}, {"blk.#.attn_gate", LINEAR "in_proj_z"},                       \
        {"blk.#.ssm_beta", LINEAR "in_proj_b"}, {"blk.#.ssm_alpha", LINEAR "in_proj_a"},                     \
        {"blk.#.ssm_a", LINEAR "A_log"}, {"blk.#.ssm_dt.bias", LINEAR "dt_bias"},                            \
        {"blk.#.ssm_dt", LINEAR "dt_bias"}, /* Ollama's */                                                   \
        {"blk.#.ssm_conv1d", LINEAR "conv1d"}, {"blk.#.ssm_norm", LINEAR "norm"},                            \
        {"blk.#.ssm_out", LINEAR "out_proj"}, {"blk.#.nextn.eh_proj", "model.fc"},                           \
        {"blk.#.nextn.enorm", "model.pre_fc_norm_embedding"},                                                \
        {"blk.#.nextn.hnorm", "model.pre_fc_norm_hidden"}, {"blk.#.nextn.shared_head_norm", "model.norm"},   \
    {                                                                                                        \
        "blk.#.post_attention_norm", "model.layers.#.post_attention_layernorm"                               \
    }
const struct gguf_name qwen3_5_gguf_names[] = {NAMES, {NULL, NULL}};
static const struct gguf_name expert_names[] = {
    NAMES,
    QWEN_GGUF_EXPERTS,
    {NULL, NULL},
};
static const struct family_gguf gguf_kinds[] = {
    {QWEN3_VL_GGUF("qwen35", "qwen3_5", qwen3_5_gguf_text), .norms_plus_one = true,
     .names = qwen3_5_gguf_names},
    {QWEN3_VL_GGUF("qwen35moe", "qwen3_5_moe", qwen3_5_gguf_text), .norms_plus_one = true,
     .names = expert_names},
    {NULL},
};

const struct family family_qwen3_5 = {
    .types = {{"qwen3_5", HF_NESTED, &qwen3_5_text, &VISION},
              {"qwen3_5_moe", HF_NESTED, &QWEN3_5_MOE_TEXT, &VISION},
              {"qwen3_5_text", HF_FLAT, &qwen3_5_text, NULL},
              {"qwen3_5_moe_text", HF_FLAT, &QWEN3_5_MOE_TEXT, NULL}},
    .read = standard_read,
    .describe = describe,
    .images = &qwen3_vl_images,
    .gguf = gguf_kinds,
    .image_id = 248056,
    .video_id = 248057,
};
