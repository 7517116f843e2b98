/* Qwen3-VL, dense and with experts: learnt positions looked up bilinearly, DeepStack taps, videos as time
 * stamps and single frames. transformers models/qwen3_vl, qwen3_vl_moe; specs qwen-vl 3.7, 3.8, 5.1. */
#include "engine/families/qwen.h"

_Static_assert(DESC_TAPS_MAX >= HF_TAPS_MAX, "every tap of a configuration fits");

enum status qwen3_vl_describe(const struct hf_config *c, struct model_desc *out, struct err *err)
{
    enum status st = qwen_describe_decoder(c, out, err);
    if (st || !c->has_vision) return st;
    qwen_describe_tower(c, out);
    qwen_describe_images(c, out);
    struct desc_vision *v = &out->vision;
    v->mlp = VISION_GELU_TANH; /* the blocks; the mergers have the exact GELU */
    v->patch_bias = true;
    v->position = true;
    v->position_side = c->vision.position_side;
    v->tap_count = c->vision.deepstack_count;
    for (uint32_t i = 0; i < v->tap_count; i++) v->taps[i] = c->vision.deepstack[i];
    v->names.position = "vision.pos_embed";
    v->names.fc1 = "vision.blocks.#.mlp.linear_fc1";
    v->names.fc2 = "vision.blocks.#.mlp.linear_fc2";
    v->names.merge_norm = "vision.merger.norm";
    v->names.merge_fc1 = "vision.merger.linear_fc1";
    v->names.merge_fc2 = "vision.merger.linear_fc2";
    v->names.tap_norm = "vision.deepstack_merger_list.#.norm";
    v->names.tap_fc1 = "vision.deepstack_merger_list.#.linear_fc1";
    v->names.tap_fc2 = "vision.deepstack_merger_list.#.linear_fc2";
    if (out->image.video_marker) {
        /* transformers 5 puts the stamped groups in place of the pad alone and leaves the template's start
         * and end around them; up to 4.57 (and in specs qwen-vl 5.1) they replaced all three. We write what
         * the current processor writes. */
        out->image.video_marker = "<|video_pad|>";
        out->image.video_prefix = "<|vision_start|>";
        out->image.video_suffix = "<|vision_end|>";
        out->image.video_stamps = true;
    }
    return ST_OK;
}
