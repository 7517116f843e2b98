/* Qwen2-VL: LayerNorm tower with quick-GELU MLPs, every patch sees its whole frame. transformers
 * models/qwen2_vl. */
#include "engine/families/qwen.h"

const struct hf_text qwen2_vl_text = {TEXT_SIZES(152064, 8192, 29568, 80, 64, 8, 32768), SILU(1e-5),
                                      .sliding_window = 4096, .qkv_bias = true,
                                      STANDARD_ROPE(1e6, .mrope_section = {16, 24, 24})};
static const struct hf_vision QWEN2_VL_VISION = {TOWER_SIZES(1280, 0, 32, 16, 14), QWEN_MERGE,
                                                 .activation = HF_QUICK_GELU};

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *out)
{
    standard_describe_decoder(r, c, out);
    if (r->st || !c->has_vision) return;
    standard_describe_tower(c, out);
    qwen_describe_images(c, out);
    struct desc_vision *v = &out->vision;
    v->mlp = VISION_QUICK_GELU;
    v->names.fc1 = "vision.blocks.#.mlp.fc1";
    v->names.fc2 = "vision.blocks.#.mlp.fc2";
}

const struct family_images qwen2_vl_images = {
    .image = {QWEN_IMAGES, .video_area_min = 128 * 28 * 28, .video_area_max = 28 * 28 * 768},
    .video_mean = {CLIP_MEAN},
    .video_std = {CLIP_STD},
    .video_patch = 14,
};

/* ---- GGUF files ---- */

static const struct gguf_name TOWER_NAMES[] = {
    STANDARD_GGUF_TOWER,
    {"v.blk.#.ffn_up", "visual.blocks.#.mlp.fc1"},
    {"v.blk.#.ffn_down", "visual.blocks.#.mlp.fc2"},
    QWEN2_GGUF_MERGER,
    {NULL, NULL},
};

/* Without a tower, a model of the next version is the same. */
static const struct family_gguf gguf_kinds[] = {
    {GGUF_TEXT("qwen2vl", "qwen2_vl", standard_gguf_text),
     GGUF_TOWER("qwen2vl_merger", "qwen2_vl", TOWER_NAMES, qwen_gguf_tower, qwen2_vl_gguf_images),
     .stops = standard_gguf_stops},
    {NULL},
};

const struct family family_qwen2_vl = {
    .types = {{"qwen2_vl", HF_EITHER, &qwen2_vl_text, &QWEN2_VL_VISION}},
    .read = standard_read,
    .image_id = 151655,
    .video_id = 151656,
    .describe = describe,
    .images = &qwen2_vl_images,
    .gguf = gguf_kinds,
};
