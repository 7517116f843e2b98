/* Qwen2-VL: LayerNorm tower with quick-GELU MLPs, every patch sees its whole frame. transformers
 * models/qwen2_vl; specs qwen-vl 3. */
#include "engine/families/qwen.h"

enum status qwen2_vl_describe(const struct hf_config *c, struct model_desc *out, struct err *err)
{
    enum status st = qwen_describe_decoder(c, out, err);
    if (st || !c->has_vision) return st;
    qwen_describe_tower(c, out);
    qwen_describe_images(c, out);
    struct desc_vision *v = &out->vision;
    v->mlp = VISION_QUICK_GELU;
    v->names.fc1 = "vision.blocks.#.mlp.fc1";
    v->names.fc2 = "vision.blocks.#.mlp.fc2";
    v->names.merge_norm = "vision.merger.ln_q";
    v->names.merge_fc1 = "vision.merger.mlp.0";
    v->names.merge_fc2 = "vision.merger.mlp.2";
    return ST_OK;
}
