/* What the Qwen files share of GGUF. See gguf_keys.h, qwen.h. */
#include "engine/families/qwen.h"

#include <stdio.h>

const struct gguf_name qwen_gguf_experts[] = {
    {"blk.#.ffn_gate_inp", "model.layers.#.mlp.gate"},
    {"blk.#.ffn_gate_exps", "model.layers.#.mlp.experts.*.gate_proj"},
    {"blk.#.ffn_up_exps", "model.layers.#.mlp.experts.*.up_proj"},
    {"blk.#.ffn_down_exps", "model.layers.#.mlp.experts.*.down_proj"},
    {NULL, NULL},
};
/* An instruction-tuned model ends with the first, a base model with the second; either stops both. */
const char *const qwen_gguf_stops[] = {"<|im_end|>", "<|endoftext|>", NULL};

/* Frequencies per axis, of models that take pictures: the fourth is none of theirs. */
static void put_rope(struct gguf_keys *k)
{
    const struct gguf_value *v = gguf_key(k, "rope.dimension_sections");
    char more[96] = "";
    if (v && (v->kind != GGUF_ARRAY || v->item == GGUF_STRING || v->count < 3))
        gguf_fault(k, ST_FORMAT, "rope.dimension_sections", "must be a list of numbers");
    else if (v)
        snprintf(more, sizeof more, ",\"mrope_section\":[%.6g,%.6g,%.6g]", gguf_item(v, 0), gguf_item(v, 1),
                 gguf_item(v, 2));
    gguf_copy_f64(k, "rope_theta", "rope.freq_base");
    gguf_put_rope_scaling(k, more);
}

/* Layers without a router have none. */
static void put_dense(struct gguf_keys *k)
{
    bool any = false;
    gguf_put(k, ",\"mlp_only_layers\":[");
    for (uint32_t n = 0, layers = gguf_layers(k); n < layers; n++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", n);
        if (gguf_columns(k, name)) continue;
        gguf_put(k, any ? ",%u" : "%u", n);
        any = true;
    }
    gguf_put(k, "]");
}

void qwen_gguf_text(struct gguf_keys *k)
{
    uint32_t experts = 0;
    bool renorm = true;
    put_rope(k);
    if (!gguf_key_u32(k, "expert_count", &experts) || experts == 0) return;
    (void)gguf_bool(gguf_key(k, "expert_weights_norm"), &renorm);
    gguf_put_u32(k, "num_experts", experts);
    gguf_copy_u32(k, "num_experts_per_tok", "expert_used_count", true);
    uint32_t ff = gguf_columns(k, "blk.0.ffn_down_exps.weight");
    (void)gguf_key_u32(k, "expert_feed_forward_length", &ff);
    gguf_put_u32(k, "moe_intermediate_size", ff);
    gguf_put(k, ",\"norm_topk_prob\":%s", renorm ? "true" : "false"); /* of every released model */
    put_dense(k);
}

void qwen_gguf_tower(struct gguf_keys *k)
{
    uint32_t v = 0, merge = 2;
    (void)gguf_tower_u32(k, "vision.spatial_merge_size", false, &merge);
    gguf_put_u32(k, "spatial_merge_size", merge);
    gguf_put(k, ",\"temporal_patch_size\":2");
    if (gguf_tower_u32(k, "vision.block_count", true, &v)) gguf_put_u32(k, "depth", v);
    if (gguf_tower_u32(k, "vision.attention.head_count", true, &v)) gguf_put_u32(k, "num_heads", v);
    if (gguf_tower_u32(k, "vision.patch_size", true, &v)) gguf_put_u32(k, "patch_size", v);
}

void qwen_gguf_top(struct gguf_keys *k)
{
    gguf_put_token(k, "image_token_id", "<|image_pad|>");
    gguf_put_token(k, "video_token_id", "<|video_pad|>");
    gguf_put_token(k, "vision_start_token_id", "<|vision_start|>");
    gguf_put_token(k, "vision_end_token_id", "<|vision_end|>");
}

void qwen_gguf_pictures(struct gguf_keys *k)
{
    uint32_t patch = 14, merge = 2;
    (void)gguf_tower_u32(k, "vision.patch_size", true, &patch);
    (void)gguf_tower_u32(k, "vision.spatial_merge_size", false, &merge);
    gguf_put(k, ",\"patch_size\":%u,\"temporal_patch_size\":2,\"merge_size\":%u", patch, merge);
}
