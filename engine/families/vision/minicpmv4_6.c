/* MiniCPM-V 4.6: Qwen3.5's decoder with a SigLIP tower that makes one row of 2 x 2 after a few layers, over
 * slices that keep an image's shape. transformers models/minicpmv4_6. */
#include "engine/families/gemma.h"
#include "engine/families/qwen.h"

#include <stdio.h>

static const struct family_inner decoders[] = {{"qwen3_5_text", &family_qwen3_5}, {NULL, NULL}};

static const struct hf_vision MINICPM_VISION = {TOWER_SIZES(768, 3072, 12, 12, 16), .image_size = 224,
                                                .activation = HF_GELU_TANH, .insert_layer = 6,
                                                .spatial_merge_size = 4};

/* [2, 2], or absent. */
static void check_pair(struct hf_reader *r, uint32_t obj, const char *key)
{
    uint32_t side = 2;
    hf_side(r, obj, key, 64, &side);
    if (side != 2) hf_error(r, ST_UNSUPPORTED, key, "only [2, 2] is served");
}

/* Patches per side of a token: 4 with "16x", 2 with "4x", where the tower makes no row of 2 x 2. */
static void read_mode(struct hf_reader *r, uint32_t obj, uint32_t *side)
{
    uint32_t mode = json_get_live(r->d, obj, "downsample_mode");
    if (json_str_eq(r->d, mode, "4x")) *side = 2;
    else if (mode != JSON_NONE && !json_str_eq(r->d, mode, "16x"))
        hf_error(r, ST_UNSUPPORTED, "downsample_mode", "only 4x and 16x are served");
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    uint32_t times = 1;
    bool drop = false;
    (void)type;
    if (!family_read_parts(r, decoders, false, c)) return;
    siglip_read(r, r->vision, v);
    hf_u32(r, 0, "insert_layer_id", 0, HF_LAYERS_MAX - 1, &v->insert_layer);
    hf_u32(r, 0, "merger_times", 1, 8, &times);
    hf_bool(r, 0, "drop_vision_last_layer", &drop);
    check_pair(r, r->vision, "window_kernel_size");
    check_pair(r, 0, "merge_kernel_size");
    read_mode(r, 0, &v->spatial_merge_size);
    if (times != 1) hf_error(r, ST_UNSUPPORTED, "merger_times", "only 1 is served");
    if (drop) hf_error(r, ST_UNSUPPORTED, "drop_vision_last_layer", "only false is served");
    if (v->insert_layer >= v->num_hidden_layers)
        hf_error(r, ST_FORMAT, "insert_layer_id", "must be below the tower's num_hidden_layers");
    hf_u32(r, 0, "image_token_id", 0, SIZE_MAX_VOCAB - 1, &c->image_id);
}

/* In files: model.language_model.X, model.vision_tower.Y, model.merger.Z, lm_head. */
static bool canonical(const char *name, char out[DESC_NAME_MAX])
{
    static const char *const parts[][2] = {
        {"model.vision_tower.", "vision."}, {"model.merger.", "projector."}, {NULL}};
    return family_rename(name, parts, out) || family_canonical(name, out);
}

/* The whole, then its slices, a line for each row. */
static int layout(char out[MODEL_TEXT_BYTES], const struct image_place *at)
{
    const char *end = at->n == 1 ? "</image>" : "</slice>";
    if (at->n == 0) return snprintf(out, MODEL_TEXT_BYTES, "<image_id>%u</image_id><image>", at->index);
    return snprintf(out, MODEL_TEXT_BYTES, "%s%s%s", end,
                    at->n > 1 && at->n < at->count && (at->n - 1) % at->columns == 0 ? "\n" : "",
                    at->n < at->count ? "<slice>" : "");
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    if (!family_describe_text(r, decoders, c, d)) return;
    const struct hf_vision *v = &c->vision;
    struct desc_vision *t = &d->vision;
    d->canonical = canonical;
    d->has_vision = true;
    *t = siglip_tower(c);
    t->position_side = v->image_size / v->patch_size;
    t->position_lookup = LOOKUP_QUOTIENT;
    t->image_size = 0;
    t->end = VISION_MERGE;
    t->merge = v->spatial_merge_size;
    t->merge_eps = 1e-6f;
    t->halve = t->merge == 4 ? v->insert_layer + 1 : 0;
    t->names.halve_norm1 = "vision.vit_merger.layer_norm1";
    t->names.halve_q = "vision.vit_merger.self_attn.q_proj";
    t->names.halve_k = "vision.vit_merger.self_attn.k_proj";
    t->names.halve_v = "vision.vit_merger.self_attn.v_proj";
    t->names.halve_o = "vision.vit_merger.self_attn.out_proj";
    t->names.halve_norm2 = "vision.vit_merger.pre_norm";
    t->names.halve_fc1 = "vision.vit_merger.linear_1";
    t->names.halve_fc2 = "vision.vit_merger.linear_2";
    t->names.merge_norm = "projector.mlp.0.pre_norm";
    t->names.merge_fc1 = "projector.mlp.0.linear_1";
    t->names.merge_fc2 = "projector.mlp.0.linear_2";
    d->image = (struct model_image_rule){IMAGE_RULE("<|image_pad|>", c->image_id), .layout = layout};
}

/* ---- images ---- */

static void read_images(struct hf_reader *r, uint32_t obj, struct image_config *out)
{
    bool sliced = true, ids = true;
    hf_u32(r, obj, "patch_size", 1, SIZE_MAX_PATCH, &out->patch);
    hf_u32(r, obj, "scale_resolution", 1, SIZE_MAX_IMAGE, &out->tiles.side);
    hf_u32(r, obj, "max_slice_nums", 1, 256, &out->tiles.max);
    hf_bool(r, obj, "slice_mode", &sliced);
    hf_bool(r, obj, "use_image_id", &ids);
    if (!sliced) out->tiles.max = 1;
    if (!ids) hf_error(r, ST_UNSUPPORTED, "use_image_id", "only true is served");
    read_mode(r, obj, &out->merge);
    out->area_max = (uint64_t)out->tiles.side * out->tiles.side;
}

static const struct family_images IMAGES = {
    .image = {HALF_IMAGES, .filter = IMAGE_BICUBIC, .dynamic = true, .patch = 14, .merge = 4, .depth = 1,
              .area_min = 1, .area_max = 448 * 448, .small = SMALL_ROUNDED,
              .tiles = {.rule = TILES_SLICED, .side = 448, .max = 9, .whole = true}},
    .read = read_images,
};

/* ---- GGUF files ---- */

static void gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    static const char layer[] = "clip.vision.wa_layer_indexes";
    struct hf_vision *v = &c->vision;
    uint32_t side = 4;
    gguf_read_f64(k, "clip.vision.attention.layer_norm_epsilon", 0, 1, &v->layer_norm_eps);
    gguf_read_u32(k, "clip.vision.projector.scale_factor", false, 1, 16, &side);
    if (side != 4) gguf_error(k, ST_UNSUPPORTED, "clip.vision.projector.scale_factor", "only 4 is served");
    gguf_layer_u32(k, layer, 0, 0, v->num_hidden_layers - 1, &v->insert_layer);
    standard_gguf_positions(k, v);
    gguf_image_token(k, "<|image_pad|>", c);
    siglip_check(&k->r, v);
}

static void gguf_sizes(struct gguf_keys *k, struct image_config *out)
{
    gguf_read_u32(k, "clip.vision.patch_size", true, 1, SIZE_MAX_PATCH, &out->patch);
    gguf_read_u32(k, "clip.vision.image_size", true, 1, SIZE_MAX_IMAGE, &out->tiles.side);
    out->area_max = (uint64_t)out->tiles.side * out->tiles.side;
}

static const struct gguf_name tower_names[] = {
    SIGLIP_GGUF("model.vision_tower."),
    {"v.vit_merger.ln1", "model.vision_tower.vit_merger.layer_norm1"},
    {"v.vit_merger.attn_q", "model.vision_tower.vit_merger.self_attn.q_proj"},
    {"v.vit_merger.attn_k", "model.vision_tower.vit_merger.self_attn.k_proj"},
    {"v.vit_merger.attn_v", "model.vision_tower.vit_merger.self_attn.v_proj"},
    {"v.vit_merger.attn_out", "model.vision_tower.vit_merger.self_attn.out_proj"},
    {"v.vit_merger.ds_ln", "model.vision_tower.vit_merger.pre_norm"},
    {"v.vit_merger.ds_ffn_up", "model.vision_tower.vit_merger.linear_1"},
    {"v.vit_merger.ds_ffn_down", "model.vision_tower.vit_merger.linear_2"},
    {"mm.input_norm", "model.merger.mlp.0.pre_norm"},
    {"mm.up", "model.merger.mlp.0.linear_1"},
    {"mm.down", "model.merger.mlp.0.linear_2"},
    {NULL, NULL},
};
static const struct family_gguf files[] = {
    {GGUF_TEXT("qwen35", NULL, qwen3_5_gguf_text),
     GGUF_TOWER("minicpmv4_6", "minicpmv4_6", tower_names, gguf_tower, gguf_sizes), .norms_plus_one = true,
     .names = qwen3_5_gguf_names, .stops = standard_gguf_stops},
    {NULL},
};

const struct family family_minicpmv4_6 = {
    .types = {{"minicpmv4_6", HF_NESTED, &qwen3_5_text, &MINICPM_VISION}},
    .read = read,
    .describe = describe,
    .images = &IMAGES,
    .gguf = files,
};
