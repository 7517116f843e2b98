/* Qwen2.5-VL: RMS-norm tower with SwiGLU MLPs; most layers see windows of the frame, a few the whole frame; a
 * video's positions follow its clock. transformers models/qwen2_5_vl; specs qwen-vl 3.6. */
#include "engine/families/qwen.h"

enum status qwen2_5_vl_describe(const struct hf_config *c, struct model_desc *out, struct err *err)
{
    enum status st = qwen_describe_decoder(c, out, err);
    if (st || !c->has_vision) return st;
    qwen_describe_tower(c, out);
    qwen_describe_images(c, out);
    struct desc_vision *v = &out->vision;
    _Static_assert(sizeof v->full_layers * 8 >= HF_LAYERS_MAX, "every layer has its bit");
    v->rms = true;
    v->mlp = VISION_GLU_SILU;
    v->window = c->vision.window_size / c->vision.spatial_merge_size /
                c->vision.patch_size; /* rounded down twice, as there */
    for (uint32_t n = 0; n < v->layers; n++)
        if (c->vision.fullatt[n]) v->full_layers[n / 8] |= (uint8_t)(1u << n % 8);
    v->names.fc1 = "vision.blocks.#.mlp.gate_proj";
    v->names.up = "vision.blocks.#.mlp.up_proj";
    v->names.fc2 = "vision.blocks.#.mlp.down_proj";
    v->names.merge_norm = "vision.merger.ln_q";
    v->names.merge_fc1 = "vision.merger.mlp.0";
    v->names.merge_fc2 = "vision.merger.mlp.2";
    out->image.tokens_per_second = c->vision.tokens_per_second;
    return ST_OK;
}
