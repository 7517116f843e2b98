/* The decoder of Qwen2, Qwen2.5, Qwen3 (dense, experts) and of the text side of their vision models:
 * config.json -> description. Formulas and names: transformers models/qwen2, qwen3, qwen3_moe, qwen2_vl,
 * qwen3_vl_moe. */
#include "engine/families/qwen.h"

#include <stdio.h>
#include <string.h>

void standard_describe_decoder(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    const struct hf_text *t = &c->text;
    if (!family_decoder(r, c, d)) return;
    d->ropes[0].dim = qwen_rotary(t);
    d->names.router = "text.layers.#.mlp.gate";
    d->names.expert_gate = "text.layers.#.mlp.experts.#.gate_proj";
    d->names.expert_up = "text.layers.#.mlp.experts.#.up_proj";
    d->names.expert_down = "text.layers.#.mlp.experts.#.down_proj";
    d->names.expert_gate_up = "text.layers.#.mlp.experts.gate_up_proj";
    d->names.expert_down_all = "text.layers.#.mlp.experts.down_proj";
    d->expert_layout = EXPERTS_EACH;
    if (t->num_experts && t->shared_expert_intermediate_size) {
        d->names.gate = "text.layers.#.mlp.shared_expert.gate_proj";
        d->names.up = "text.layers.#.mlp.shared_expert.up_proj";
        d->names.down = "text.layers.#.mlp.shared_expert.down_proj";
        d->names.shared_gate = "text.layers.#.mlp.shared_expert_gate";
    }
    d->canonical = family_canonical;
    if (d->eos_count == 0 && d->vocab > 151645)
        d->eos_ids[d->eos_count++] = 151645; /* <|im_end|>, the vision classes' default */
    for (uint32_t n = 0; n < d->layer_count; n++) {
        struct desc_layer *l = &d->layers[n];
        if (!t->sparse[n]) continue;
        l->ff = t->moe_intermediate_size;
        l->experts = t->num_experts;
        l->experts_used = t->num_experts_per_tok;
        l->experts_renorm = t->norm_topk_prob;
        l->shared_ff = t->shared_expert_intermediate_size;
    }
}

void standard_describe_tower(const struct hf_config *c, struct model_desc *d)
{
    const struct hf_vision *v = &c->vision;
    d->has_vision = true;
    d->vision = (struct desc_vision){
        DESC_TOWER(v),
        .qkv_fused = true,
        .depth = v->temporal_patch_size,
        .rope_theta = v->rope_theta,
        .end = VISION_MERGE,
        .merge = v->spatial_merge_size,
        .names = {.patch = "vision.patch_embed.proj",
                  .norm1 = "vision.blocks.#.norm1",
                  .norm2 = "vision.blocks.#.norm2",
                  .q = "vision.blocks.#.attn.qkv",
                  .q_alone = "vision.blocks.#.attn.q",
                  .k = "vision.blocks.#.attn.k",
                  .v = "vision.blocks.#.attn.v",
                  .o = "vision.blocks.#.attn.proj",
                  .post_norm = "vision.merger.ln_q",
                  .merge_fc1 = "vision.merger.mlp.0",
                  .merge_fc2 = "vision.merger.mlp.2"},
    };
}

void qwen_describe_images(const struct hf_config *c, struct model_desc *d)
{
    /* The template writes <|vision_start|> and <|vision_end|> around the one pad that is repeated. */
    d->image = (struct model_image_rule){IMAGE_RULE("<|image_pad|>", c->image_id), .prefix = "", .suffix = "",
                                         .grid = true,
                                         .parts = {"<|vision_start|><|image_pad|><|vision_end|>",
                                                   "<|vision_start|><|video_pad|><|vision_end|>"}};
    if (c->video_id == HF_NO_ID) return;
    d->image.video_marker = d->image.video_placeholder = "<|video_pad|>";
    d->image.video_prefix = d->image.video_suffix = "";
    d->image.video_placeholder_id = c->video_id;
}
