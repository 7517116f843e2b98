/* Qwen3-VL, dense and mixture of experts: learned positions looked up bilinearly, DeepStack features, videos
 * as time stamps and single frames. transformers models/qwen3_vl, qwen3_vl_moe. */
#include "engine/families/qwen.h"

#include <stdio.h>

/* The spec has theta 5e6 as the default; 5.23's class has 5e5. Released files state 5e6. */
#define COMMON                                                                                               \
    SILU(1e-6), .qk_norm = true, STANDARD_ROPE(5e5, .mrope_section = {24, 20, 20}, .mrope_interleaved = true)
static const struct hf_text QWEN3_VL_TEXT = {TEXT_SIZES(151936, 4096, 22016, 32, 32, 32, 128000),
                                             .head_dim = 128, COMMON};
/* norm_topk_prob always holds: this class has no such option. */
static const struct hf_text QWEN3_VL_MOE_TEXT = {TEXT_SIZES(151936, 2048, 5632, 24, 16, 16, 128000), COMMON,
                                                 EXPERT_SIZES(60, 4, 1408), .norm_topk_prob = true};
static const struct hf_vision QWEN3_VL_VISION = {QWEN3_TOWER, .deepstack = {8, 16, 24}, .deepstack_count = 3};

_Static_assert(DESC_DEEPSTACK_MAX >= HF_DEEPSTACK_MAX, "every tap of a configuration fits");

static int stamp(char out[MODEL_TEXT_BYTES], double seconds)
{
    return snprintf(out, MODEL_TEXT_BYTES, "<%.1f seconds>", seconds);
}

void qwen3_vl_describe_images(const struct hf_config *c, struct model_desc *out)
{
    standard_describe_tower(c, out);
    qwen_describe_images(c, out);
    struct desc_vision *v = &out->vision;
    v->mlp = VISION_GELU_TANH; /* the blocks; the mergers have the exact GELU */
    v->patch_bias = true;
    v->position = true;
    v->position_side = c->vision.position_side;
    v->deepstack_count = c->vision.deepstack_count;
    for (uint32_t i = 0; i < v->deepstack_count; i++) v->deepstack[i] = c->vision.deepstack[i];
    v->names.position = "vision.pos_embed";
    v->names.fc1 = "vision.blocks.#.mlp.linear_fc1";
    v->names.fc2 = "vision.blocks.#.mlp.linear_fc2";
    v->names.post_norm = "vision.merger.norm";
    v->names.merge_fc1 = "vision.merger.linear_fc1";
    v->names.merge_fc2 = "vision.merger.linear_fc2";
    v->names.deepstack_norm = "vision.deepstack_merger_list.#.norm";
    v->names.deepstack_fc1 = "vision.deepstack_merger_list.#.linear_fc1";
    v->names.deepstack_fc2 = "vision.deepstack_merger_list.#.linear_fc2";
    if (out->image.video_marker) {
        /* transformers 5 replaces only the pad by the stamped groups, inside the template's start and end; up
         * to 4.57 they replaced all three. This follows the current processor. */
        out->image.video_marker = "<|video_pad|>";
        out->image.video_prefix = "<|vision_start|>";
        out->image.video_suffix = "<|vision_end|>";
        out->image.video_stamp = stamp;
    }
}

/* Of Qwen3-VL-Embedding and -Reranker, by their scripts. */
static const struct model_retrieval RETRIEVAL = {
    .system = "Represent the user's input.",
    .instruction = "Given a search query, retrieve relevant candidates that answer the query.",
};

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *out)
{
    standard_describe_decoder(r, c, out);
    out->expert_layout = EXPERTS_IN_OUT; /* as released; model_desc_resolve looks at the file */
    if (r->st || !c->has_vision) return;
    qwen3_vl_describe_images(c, out);
    out->retrieval = RETRIEVAL;
}

const struct family_images qwen3_vl_images = {
    .image = {QWEN_IMAGES, .video_volume = true, .video_area_min = 128 * 32 * 32,
              .video_area_max = 32 * 32 * 768},
    .video_mean = {0.5f, 0.5f, 0.5f},
    .video_std = {0.5f, 0.5f, 0.5f},
    .video_patch = 16,
};

/* ---- GGUF files ---- */

void qwen3_vl_gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    static const char rows[] = "v.position_embd.weight", deepstack[] = "clip.vision.is_deepstack_layers";
    const struct gguf_value *list = gguf_key(k, deepstack);
    struct hf_vision *v = &c->vision;
    uint32_t positions = 0;
    gguf_set_u32(k, rows, gguf_rows(k, rows), 1, STANDARD_POSITIONS_MAX, &positions);
    standard_position_side(&k->r, positions, v);
    v->deepstack_count = 0;
    for (uint32_t n = 0; list && list->kind == GGUF_ARRAY && n < list->count && n < HF_LAYERS_MAX; n++) {
        if (gguf_item(list, n) == 0) continue;
        if (v->deepstack_count < HF_DEEPSTACK_MAX) v->deepstack[v->deepstack_count++] = n;
        else gguf_error(k, ST_FORMAT, deepstack, "has too many layers");
    }
    qwen_gguf_tower(k, c);
}

/* Areas of the released files. */
void qwen3_vl_gguf_images(struct gguf_keys *k, struct image_config *out)
{
    standard_gguf_areas(k, 65536, 16777216, out);
}

void qwen3_vl_gguf_videos(struct gguf_keys *k, struct image_config *out)
{
    standard_gguf_patches(k, out);
    out->area_min = 4096;
    out->area_max = 25165824;
}

const struct gguf_name qwen3_vl_gguf_tower_names[] = {
    STANDARD_GGUF_TOWER,
    {"v.position_embd", "visual.pos_embed"},
    {"v.blk.#.ffn_up", "visual.blocks.#.mlp.linear_fc1"},
    {"v.blk.#.ffn_down", "visual.blocks.#.mlp.linear_fc2"},
    {"v.post_ln", "visual.merger.norm"},
    {"mm.0", "visual.merger.linear_fc1"},
    {"mm.2", "visual.merger.linear_fc2"},
    {"v.deepstack.#.norm", "visual.deepstack_merger_list.@.norm"},
    {"v.deepstack.#.fc1", "visual.deepstack_merger_list.@.linear_fc1"},
    {"v.deepstack.#.fc2", "visual.deepstack_merger_list.@.linear_fc2"},
    {NULL, NULL},
};

static const struct family_gguf gguf_kinds[] = {
    {QWEN3_VL_GGUF("qwen3vl", "qwen3_vl", standard_gguf_text)},
    {QWEN3_VL_GGUF("qwen3vlmoe", "qwen3_vl_moe", standard_gguf_text), .names = qwen_gguf_experts},
    {NULL},
};

const struct family family_qwen3_vl = {
    .types = {{"qwen3_vl", HF_NESTED, &QWEN3_VL_TEXT, &QWEN3_VL_VISION},
              {"qwen3_vl_moe", HF_NESTED, &QWEN3_VL_MOE_TEXT, &QWEN3_VL_VISION}},
    .read = standard_read,
    .image_id = 151655,
    .video_id = 151656,
    .describe = describe,
    .images = &qwen3_vl_images,
    .gguf = gguf_kinds,
};
