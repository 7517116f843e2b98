/* PaddleOCR-VL: SigLIP at the image's own size, with 2-D rotary and positions interpolated between the
 * patches' centres; ERNIE 4.5 as decoder, with mRoPE. transformers models/paddleocr_vl. */
#include "engine/families/gemma.h"
#include "engine/families/standard.h"

static const struct hf_text PADDLEOCR_TEXT = {TEXT_SIZES(103424, 1024, 3072, 18, 16, 2, 131072), SILU(1e-5),
                                              .head_dim = 128,
                                              STANDARD_ROPE(5e5, .mrope_section = {16, 24, 24})};
static const struct hf_vision PADDLEOCR_VISION = {TOWER_SIZES(1152, 4304, 27, 16, 14), .image_size = 384,
                                                  .activation = HF_GELU_TANH, .spatial_merge_size = 2,
                                                  .rope_theta = 1e4};

/* Released files have the text's keys at the top. */
static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    struct family_type text = *type;
    bool vision = c->has_vision, inner = true;
    text.place = HF_FLAT;
    c->has_vision = false;
    standard_read(r, &text, c);
    c->has_vision = vision;
    hf_bool(r, r->text, "use_bias", &c->text.mlp_bias);
    c->text.qkv_bias = c->text.o_bias = c->text.mlp_bias;
    c->text.tie_word_embeddings = true;
    if (r->text != 0) hf_bool(r, r->text, "tie_word_embeddings", &inner);
    hf_bool(r, 0, "tie_word_embeddings", &c->text.tie_word_embeddings);
    c->text.tie_word_embeddings |= inner;
    if (c->eos_count == 0) c->eos_ids[c->eos_count++] = 2;
    if (!vision) return;
    siglip_read(r, r->vision, &c->vision); /* image_size: of the position table */
    standard_check_heads(r, &c->vision);
    hf_u32(r, r->vision, "spatial_merge_size", 1, 8, &c->vision.spatial_merge_size);
    hf_double(r, json_get_live(r->d, r->vision, "rope_parameters"), "rope_theta", 1, 1e12,
              &c->vision.rope_theta);
    hf_u32(r, 0, "image_token_id", 0, SIZE_MAX_VOCAB - 1, &c->image_id);
    if (c->image_id >= c->text.vocab_size)
        hf_error(r, ST_FORMAT, "image_token_id", "must be below vocab_size");
}

static bool canonical(const char *name, char out[DESC_NAME_MAX])
{
    static const char *const parts[][2] = {{"mlp_AR.", "projector."},
                                           {"model.projector.", "projector."},
                                           {"visual.vision_model.", "vision."},
                                           {"model.visual.vision_model.", "vision."},
                                           {NULL}};
    return family_rename(name, parts, out) || family_canonical(name, out);
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    struct desc_vision *t = &d->vision;
    standard_describe_decoder(r, c, d);
    if (r->st) return;
    d->eos_count = c->eos_count;
    d->canonical = canonical;
    if (!c->has_vision) return;
    d->has_vision = true;
    *t = siglip_tower(c);
    t->image_size = 0; /* any */
    t->position_side = c->vision.image_size / c->vision.patch_size;
    t->position_lookup = LOOKUP_CENTRES;
    t->rope_theta = c->vision.rope_theta;
    t->end = VISION_MERGE;
    t->merge = c->vision.spatial_merge_size;
    t->merge_eps = 1e-5f;
    t->names.merge_pre_norm = "projector.pre_norm";
    t->names.merge_fc1 = "projector.linear_1";
    t->names.merge_fc2 = "projector.linear_2";
    /* The template writes <|IMAGE_START|> and <|IMAGE_END|> around the placeholder. */
    d->image = (struct model_image_rule){
        IMAGE_RULE("<|IMAGE_PLACEHOLDER|>", c->image_id), .prefix = "", .suffix = "", .grid = true,
        .parts = {"<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", .order = PARTS_IMAGES_FIRST}};
}

static const struct family_images images = {
    .image = {NATIVE_IMAGES, .patch = 14, .merge = 2, .depth = 1, .area_min = 384 * 384,
              .area_max = 1536 * 1536, .small = SMALL_BY_SIDE},
};

/* ---- GGUF files ---- */

static void gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    gguf_read_f64(k, "clip.vision.attention.layer_norm_epsilon", 0, 1, &v->layer_norm_eps);
    gguf_read_u32(k, "clip.vision.spatial_merge_size", false, 1, 8, &v->spatial_merge_size);
    standard_gguf_positions(k, v);
    gguf_image_token(k, "<|IMAGE_PLACEHOLDER|>", c);
    standard_check_heads(&k->r, v);
}

static void gguf_sizes(struct gguf_keys *k, struct image_config *out)
{
    standard_gguf_areas(k, 147384, 2822400, out); /* of the released file */
}

static const struct gguf_name tower_names[] = {
    SIGLIP_GGUF("visual.vision_model."),
    {"mm.input_norm", "mlp_AR.pre_norm"},
    {"mm.1", "mlp_AR.linear_1"},
    {"mm.2", "mlp_AR.linear_2"},
    {NULL, NULL},
};
static const struct family_gguf files[] = {
    {GGUF_TEXT("paddleocr", "paddleocr_vl", standard_gguf_text),
     GGUF_TOWER("paddleocr", "paddleocr_vl", tower_names, gguf_tower, gguf_sizes)},
    {NULL},
};

const struct family family_paddleocr_vl = {
    .types = {{"paddleocr_vl", HF_EITHER, &PADDLEOCR_TEXT, &PADDLEOCR_VISION}},
    .read = read,
    .describe = describe,
    .image_id = 100295,
    .bos_id = 1,
    .images = &images,
    .gguf = files,
};
