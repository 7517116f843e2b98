/* Qwen2.5-VL: RMS-norm tower with SwiGLU MLPs; most layers see windows of the frame, a few the whole frame; a
 * video's positions follow its clock. transformers models/qwen2_5_vl. */
#include "engine/families/qwen.h"

static const struct hf_vision QWEN2_5_VL_VISION = {
    TOWER_SIZES(3584, 3420, 32, 16, 14),
    QWEN_MERGE,
    .activation = HF_SILU,
    .window_size = 112,
    .tokens_per_second = 4,
    .fullatt = {[7] = true, [15] = true, [23] = true, [31] = true}};

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *out)
{
    standard_describe_decoder(r, c, out);
    if (r->st || !c->has_vision) return;
    standard_describe_tower(c, out);
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
    out->image.tokens_per_second = c->vision.tokens_per_second;
}

/* ---- GGUF files ---- */

/* Every so many layers see the whole frame. No file has the seconds: 2 in every release. */
static void gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    uint32_t step = 1;
    gguf_read_u32(k, "clip.vision.n_wa_pattern", true, 0, HF_LAYERS_MAX, &step);
    gguf_read_u32(k, "clip.vision.window_size", false, 1, 1u << 16, &v->window_size);
    v->tokens_per_second = 2;
    for (uint32_t n = 0; n < HF_LAYERS_MAX; n++) v->fullatt[n] = step == 0 || (n + 1) % step == 0;
    qwen_gguf_tower(k, c);
}

static const struct gguf_name TOWER_NAMES[] = {
    STANDARD_GGUF_TOWER,
    {"v.blk.#.ffn_gate", "visual.blocks.#.mlp.gate_proj"},
    {"v.blk.#.ffn_up", "visual.blocks.#.mlp.up_proj"},
    {"v.blk.#.ffn_down", "visual.blocks.#.mlp.down_proj"},
    QWEN2_GGUF_MERGER,
    {NULL, NULL},
};

static const struct family_gguf gguf_kinds[] = {
    {GGUF_TEXT("qwen2vl", NULL, standard_gguf_text),
     GGUF_TOWER("qwen2.5vl_merger", "qwen2_5_vl", TOWER_NAMES, gguf_tower, qwen2_vl_gguf_images),
     .stops = standard_gguf_stops},
    {NULL},
};

const struct family family_qwen2_5_vl = {
    .types = {{"qwen2_5_vl", HF_EITHER, &qwen2_vl_text, &QWEN2_5_VL_VISION}},
    .read = standard_read,
    .image_id = 151655,
    .video_id = 151656,
    .describe = describe,
    .images = &qwen2_vl_images,
    .gguf = gguf_kinds,
};
