/* LFM2-VL and LFM2.5-VL: LFM2 with a SigLIP 2 tower for images of any shape, or tiles of 512 pixels.
 * transformers models/lfm2_vl, siglip2. */
#include "engine/families/gemma.h"
#include "engine/families/standard.h"

#include <stdio.h>

static const struct family_inner decoders[] = {{"lfm2", &family_lfm2}, {NULL, NULL}};

/* Before a GGUF file's keys; a directory's text_config has a family of its own. */
static const struct hf_text LFM2_TEXT = {SILU(1e-5), .qk_norm = true, STANDARD_ROPE(1e6)};
static const struct hf_vision LFM2_VISION = {
    .hidden_size = 768,
    .intermediate_size = 3072,
    .num_hidden_layers = 12,
    .num_attention_heads = 12,
    .num_channels = 3,
    .patch_size = 16,
    .layer_norm_eps = 1e-6,
    .activation = HF_GELU_TANH,
};

static void check_places(struct hf_reader *r, const struct hf_vision *v)
{
    if (!r->st && v->position_side > VISION_ANTIALIAS_SIDE_MAX)
        hf_error(r, ST_UNSUPPORTED, "num_patches", "at most 4,096 are served");
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    uint32_t places = 256;
    (void)type;
    if (!family_read_parts(r, decoders, true, c)) return;
    hf_bool(r, 0, "tie_embedding", &c->text.tie_word_embeddings);
    siglip_read(r, r->vision, v);
    v->image_size = 0; /* any */
    hf_u32(r, r->vision, "num_patches", 1, STANDARD_POSITIONS_MAX, &places);
    standard_position_side(r, places, v);
    check_places(r, v);
    v->spatial_merge_size = 2;
    v->out_hidden_size = 2560;
    v->projector_bias = v->projector_norm = true;
    hf_u32(r, 0, "downsample_factor", 1, 8, &v->spatial_merge_size);
    hf_u32(r, 0, "projector_hidden_size", 1, SIZE_MAX_HIDDEN, &v->out_hidden_size);
    hf_bool(r, 0, "projector_bias", &v->projector_bias);
    hf_bool(r, 0, "projector_use_layernorm", &v->projector_norm);
    hf_activation(r, 0, "projector_hidden_act", HF_GELU);
    hf_u32(r, 0, "image_token_id", 0, SIZE_MAX_VOCAB - 1, &c->image_id);
    hf_u32(r, 0, "image_token_index", 0, SIZE_MAX_VOCAB - 1, &c->image_id);
}

static int layout(char out[MODEL_TEXT_BYTES], const struct image_place *at)
{
    const char *start = at->n ? "" : "<|image_start|>";
    uint32_t tiles = at->rows * at->columns;
    if (at->n == at->count) return snprintf(out, MODEL_TEXT_BYTES, "<|image_end|>");
    if (tiles == 1) return snprintf(out, MODEL_TEXT_BYTES, "%s", start);
    if (at->n == tiles) return snprintf(out, MODEL_TEXT_BYTES, "<|img_thumbnail|>");
    return snprintf(out, MODEL_TEXT_BYTES, "%s<|img_row_%u_col_%u|>", start, at->n / at->columns + 1,
                    at->n % at->columns + 1);
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    if (!family_describe_text(r, decoders, c, d)) return;
    const struct hf_vision *v = &c->vision;
    struct desc_vision *t = &d->vision;
    d->canonical = gemma_canonical;
    d->has_vision = true;
    *t = siglip_tower(c);
    t->channels_last = true;
    t->position_side = v->position_side;
    t->position_lookup = LOOKUP_ANTIALIAS;
    t->end = VISION_MERGE;
    t->merge = v->spatial_merge_size;
    t->merge_ff = v->out_hidden_size;
    t->merge_no_bias = !v->projector_bias;
    t->merge_eps = 1e-5f;
    t->names.merge_norm = v->projector_norm ? "projector.layer_norm" : NULL;
    t->names.merge_fc1 = "projector.linear_1";
    t->names.merge_fc2 = "projector.linear_2";
    d->image = (struct model_image_rule){IMAGE_RULE("<image>", c->image_id), .layout = layout};
}

/* ---- images ---- */

/* do_resize counts for nothing: the processor sets it. */
static void read_images(struct hf_reader *r, uint32_t obj, struct image_config *out)
{
    struct image_tiles *t = &out->tiles;
    bool split = true;
    uint32_t least = 64, most = 256;
    hf_u32(r, obj, "encoder_patch_size", 1, SIZE_MAX_PATCH, &out->patch);
    hf_u32(r, obj, "downsample_factor", 1, 8, &out->merge);
    hf_u32(r, obj, "min_image_tokens", 1, 1u << 16, &least);
    hf_u32(r, obj, "max_image_tokens", 1, 1u << 16, &most);
    hf_u32(r, obj, "tile_size", 1, SIZE_MAX_IMAGE, &t->side);
    hf_u32(r, obj, "min_tiles", 1, 256, &t->min);
    hf_u32(r, obj, "max_tiles", 1, 256, &t->max);
    hf_bool(r, obj, "use_thumbnail", &t->whole);
    hf_bool(r, obj, "do_image_splitting", &split);
    hf_double(r, obj, "max_pixels_tolerance", 1e-6, 1e6, &t->tolerance);
    if (!split) t->max = 1;
    uint64_t token = (uint64_t)out->patch * out->merge * out->patch * out->merge;
    out->area_min = least * token;
    out->area_max = most * token;
    if (least > most || (split && t->min > t->max))
        hf_error(r, ST_FORMAT, "min_image_tokens",
                 "must not be over the largest; nor min_tiles over max_tiles");
    else if (t->side % (out->patch * out->merge))
        hf_error(r, ST_UNSUPPORTED, "tile_size",
                 "must be a multiple of encoder_patch_size * downsample_factor");
}

static const struct family_images IMAGES = {
    .image =
        {HALF_IMAGES, .filter = IMAGE_BILINEAR, .dynamic = true, .patch = 16, .merge = 2, .depth = 1,
         .area_min = 64 * 32 * 32, .area_max = 256 * 32 * 32, .small = SMALL_ROUNDED,
         .tiles = {.rule = TILES_CLOSEST, .side = 512, .min = 2, .max = 10, .whole = true, .tolerance = 2}},
    .read = read_images,
};

/* ---- GGUF files ---- */

static void gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    v->spatial_merge_size = 2;
    v->projector_bias = gguf_columns(k, "mm.1.bias") != 0;
    v->projector_norm = gguf_columns(k, "mm.input_norm.weight") != 0;
    gguf_read_f64(k, "clip.vision.attention.layer_norm_epsilon", 0, 1, &v->layer_norm_eps);
    gguf_read_u32(k, "clip.vision.projector.scale_factor", false, 1, 8, &v->spatial_merge_size);
    standard_gguf_positions(k, v);
    v->image_size = 0; /* any */
    gguf_set_u32(k, "mm.1.weight", gguf_rows(k, "mm.1.weight"), 1, SIZE_MAX_HIDDEN, &v->out_hidden_size);
    gguf_image_token(k, "<image>", c);
    check_places(&k->r, v);
    siglip_check(&k->r, v);
}

/* The numbers and sizes of tiles of all released models are the class's. */
static void gguf_sizes(struct gguf_keys *k, struct image_config *out)
{
    gguf_read_u32(k, "clip.vision.patch_size", true, 1, SIZE_MAX_PATCH, &out->patch);
    gguf_read_u32(k, "clip.vision.projector.scale_factor", false, 1, 8, &out->merge);
}

static const struct gguf_name tower_names[] = {
    SIGLIP_GGUF("vision_tower.vision_model."),
    {"mm.input_norm", "multi_modal_projector.layer_norm"},
    {"mm.1", "multi_modal_projector.linear_1"},
    {"mm.2", "multi_modal_projector.linear_2"},
    {NULL, NULL},
};
static const struct family_gguf files[] = {
    {GGUF_TEXT("lfm2", NULL, lfm2_gguf_text),
     GGUF_TOWER("lfm2", "lfm2_vl", tower_names, gguf_tower, gguf_sizes), .names = lfm2_gguf_names,
     .stops = standard_gguf_stops},
    {NULL},
};

const struct family family_lfm2_vl = {
    .types = {{"lfm2_vl", HF_NESTED, &LFM2_TEXT, &LFM2_VISION}},
    .read = read,
    .describe = describe,
    .image_id = 396,
    .images = &IMAGES,
    .gguf = files,
};
