/* GLM-4.1V, GLM-4.6V and GLM-OCR: four norms a layer, rotary in pairs over a part of a head, mRoPE; a tower
 * at the image's own size whose merger is a convolution. transformers models/glm4v, glm46v, glm_ocr. */
#include "engine/families/standard.h"

#include <stdio.h>

static const struct hf_text GLM4V_TEXT = {TEXT_SIZES(151552, 4096, 13696, 40, 32, 2, 32768), SILU(1e-5),
                                          .qkv_bias = true,
                                          STANDARD_ROPE(1e4, .mrope_section = {8, 12, 12}, .partial = 1)};
static const struct hf_text GLM_OCR_TEXT = {TEXT_SIZES(59392, 1024, 4096, 16, 16, 8, 131072), SILU(1e-5),
                                            STANDARD_ROPE(1e4, .mrope_section = {8, 12, 12}, .partial = 1)};
#define TOWER                                                                                                \
    .num_hidden_layers = 24, .num_channels = 3, .image_size = 336, .patch_size = 14, .layer_norm_eps = 1e-5, \
    .activation = HF_SILU, .spatial_merge_size = 2, .temporal_patch_size = 2, .rope_theta = 1e4
static const struct hf_vision GLM4V_VISION = {TOWER, .hidden_size = 1536, .intermediate_size = 13696,
                                              .num_attention_heads = 12, .out_hidden_size = 4096};
static const struct hf_vision GLM_OCR_VISION = {TOWER,
                                                .hidden_size = 1024,
                                                .intermediate_size = 4096,
                                                .num_attention_heads = 16,
                                                .out_hidden_size = 1536,
                                                .attention_bias = true};

static bool is_ocr(const struct hf_config *c)
{
    return c->model_type[3] == '_';
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    uint32_t kind = json_get_live(r->d, r->text, "model_type");
    bool ocr = is_ocr(c), inner = false;
    if (kind != JSON_NONE && !json_str_eq(r->d, kind, ocr ? "glm_ocr_text" : "glm4v_text"))
        hf_error(r, ST_UNSUPPORTED, "text_config.model_type", "is not a decoder served in this model");
    standard_read(r, type, c);
    c->video_id = HF_NO_ID;
    hf_bool(r, r->text, "tie_word_embeddings", &inner);
    c->text.tie_word_embeddings = false;
    hf_bool(r, 0, "tie_word_embeddings", &c->text.tie_word_embeddings);
    c->text.tie_word_embeddings |= inner;
    if (!c->has_vision) return;
    r->scope = "vision_config.";
    hf_double(r, r->vision, "rms_norm_eps", 0, 1, &v->layer_norm_eps);
    hf_u32(r, r->vision, "image_size", 1, SIZE_MAX_IMAGE, &v->image_size); /* of the position table */
    hf_bool(r, r->vision, "attention_bias", &v->attention_bias);
    if (!r->st && v->image_size < v->patch_size) hf_error(r, ST_FORMAT, "image_size", "must hold a patch");
    if (!ocr && v->attention_bias)
        hf_error(r, ST_UNSUPPORTED, "attention_bias", "only false is served in this tower");
    r->scope = "";
}

static void describe_tower(const struct hf_config *c, struct model_desc *d)
{
    const struct hf_vision *v = &c->vision;
    bool ocr = is_ocr(c);
    standard_describe_tower(c, d);
    struct desc_vision *t = &d->vision;
    t->rms = true;
    t->mlp = VISION_GLU_SILU;
    t->patch_bias = true;
    t->no_bias = !v->attention_bias;
    t->merge_conv = v->out_hidden_size;
    t->merge_conv_bias = true;
    t->merge_no_bias = true;
    t->merge_ff = ocr ? v->out_hidden_size * v->num_channels : v->intermediate_size;
    t->names.fc1 = "vision.blocks.#.mlp.gate_proj";
    t->names.up = "vision.blocks.#.mlp.up_proj";
    t->names.fc2 = "vision.blocks.#.mlp.down_proj";
    t->names.post_norm = "vision.post_layernorm";
    t->names.merge_conv = "vision.downsample";
    t->names.merge_proj = "vision.merger.proj";
    t->names.merge_proj_norm = "vision.merger.post_projection_norm";
    t->names.merge_fc1 = "vision.merger.gate_proj";
    t->names.merge_up = "vision.merger.up_proj";
    t->names.merge_fc2 = "vision.merger.down_proj";
    if (ocr) {
        t->names.q_norm = "vision.blocks.#.attn.q_norm";
        t->names.k_norm = "vision.blocks.#.attn.k_norm";
        return;
    }
    t->ff = v->out_hidden_size; /* the class's own choice */
    t->position = true;
    t->position_side = v->image_size / v->patch_size;
    t->position_lookup = LOOKUP_BICUBIC;
    t->names.pre_norm = "vision.post_conv_layernorm";
    t->names.position = "vision.embeddings.position_embedding";
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    standard_describe_decoder(r, c, d);
    if (r->st) return;
    d->eos_count = c->eos_count;
    d->qk_pairs = r->d != NULL; /* llama.cpp's conversion reorders them */
    d->qk_pairs_differ = true;
    d->names.gate_up = "text.layers.#.mlp.gate_up_proj";
    d->names.post_attn_norm = "text.layers.#.post_self_attn_layernorm";
    d->names.post_mlp_norm = "text.layers.#.post_mlp_layernorm";
    if (!c->has_vision) return;
    describe_tower(c, d);
    /* The template writes <|begin_of_image|> and <|end_of_image|> around the placeholder. */
    d->image =
        (struct model_image_rule){IMAGE_RULE("<|image|>", c->image_id), .prefix = "", .suffix = "",
                                  .grid = true, .parts = {"<|begin_of_image|><|image|><|end_of_image|>"}};
}

/* Pixel limits count the two frames that a still image is shown as. */
static const struct family_images images = {
    .image = {NATIVE_IMAGES, .patch = 14, .merge = 2, .depth = 2, .area_frames = 2, .small = SMALL_SCALED,
              .area_min = 112 * 112, .area_max = 28 * 28 * 15000},
};

/* ---- GGUF files ---- */

static void gguf_text(struct gguf_keys *k, struct hf_text *t)
{
    t->qkv_bias = gguf_columns(k, "blk.0.attn_q.bias") != 0;
    standard_gguf_rotary(k, t);
    if (!gguf_key(k, "rope.dimension_sections"))
        gguf_error(k, ST_UNSUPPORTED, "rope.dimension_sections", "only GLM-V and GLM-OCR are served");
    standard_gguf_text(k, t);
}

/* One kind of tower for both: GLM-OCR's has norms of q and k. */
static void gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    v->attention_bias = gguf_columns(k, "v.blk.0.attn_qkv.bias") != 0;
    gguf_read_f64(k, "clip.vision.attention.layer_norm_epsilon", 0, 1, &v->layer_norm_eps);
    gguf_read_u32(k, "clip.vision.image_size", true, 1, SIZE_MAX_IMAGE, &v->image_size);
    gguf_read_u32(k, "clip.vision.spatial_merge_size", false, 1, 8, &v->spatial_merge_size);
    gguf_set_u32(k, "mm.model.fc.weight", gguf_rows(k, "mm.model.fc.weight"), 1, SIZE_MAX_HIDDEN,
                 &v->out_hidden_size);
    if (gguf_columns(k, "v.blk.0.attn_q_norm.weight"))
        snprintf(c->model_type, sizeof c->model_type, "glm_ocr");
    else gguf_set_u32(k, "mm.up.weight", gguf_rows(k, "mm.up.weight"), 1, SIZE_MAX_FF, &v->intermediate_size);
    gguf_image_token(k, "<|image|>", c);
    standard_check_vision(&k->r, &c->text, v, false);
}

static void gguf_sizes(struct gguf_keys *k, struct image_config *out)
{
    standard_gguf_areas(k, 12544, 9633792, out); /* of the released files */
}

static const struct gguf_name text_names[] = {
    {"blk.#.post_attention_norm", "model.layers.#.post_self_attn_layernorm"},
    {"blk.#.post_ffw_norm", "model.layers.#.post_mlp_layernorm"},
    {"blk.#.ffn_up", "model.layers.#.mlp.gate_up_proj"},
    {NULL, NULL},
};
static const struct gguf_name tower_names[] = {
    STANDARD_GGUF_TOWER,
    {"v.blk.#.attn_q_norm", "visual.blocks.#.attn.q_norm"},
    {"v.blk.#.attn_k_norm", "visual.blocks.#.attn.k_norm"},
    {"v.blk.#.ffn_gate", "visual.blocks.#.mlp.gate_proj"},
    {"v.blk.#.ffn_up", "visual.blocks.#.mlp.up_proj"},
    {"v.blk.#.ffn_down", "visual.blocks.#.mlp.down_proj"},
    {"v.norm_embd", "visual.post_conv_layernorm"},
    {"v.position_embd", "visual.embeddings.position_embedding"},
    {"v.post_ln", "visual.post_layernorm"},
    {"mm.patch_merger", "visual.downsample"},
    {"mm.model.fc", "visual.merger.proj"},
    {"mm.post_norm", "visual.merger.post_projection_norm"},
    {"mm.gate", "visual.merger.gate_proj"},
    {"mm.up", "visual.merger.up_proj"},
    {"mm.down", "visual.merger.down_proj"},
    {NULL, NULL},
};
static const struct family_gguf files[] = {
    {GGUF_TEXT("glm4", "glm4v", gguf_text), GGUF_TOWER("glm4v", "glm4v", tower_names, gguf_tower, gguf_sizes),
     .names = text_names},
    {NULL},
};

const struct family family_glm4v = {
    .types = {{"glm4v", HF_NESTED, &GLM4V_TEXT, &GLM4V_VISION},
              {"glm46v", HF_NESTED, &GLM4V_TEXT, &GLM4V_VISION}},
    .read = read,
    .describe = describe,
    .image_id = 151343,
    .images = &images,
    .gguf = files,
};
const struct family family_glm_ocr = {
    .types = {{"glm_ocr", HF_NESTED, &GLM_OCR_TEXT, &GLM_OCR_VISION}},
    .read = read,
    .describe = describe,
    .image_id = 59280,
    .images = &images,
};
