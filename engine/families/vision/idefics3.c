/* Idefics3, SmolVLM and SmolVLM2 (and granite-docling-258M, which is one): a SigLIP tower over tiles, whose
 * patches are gathered and projected by one product. transformers models/idefics3, smolvlm. */
#include "engine/families/gemma.h"
#include "engine/families/standard.h"

#include <stdio.h>

static const struct family_inner decoders[] = {{"llama", &family_llama},   {"mistral", &family_llama},
                                               {"qwen2", &family_qwen2},   {"smollm3", &family_llama},
                                               {"granite", &family_llama}, {NULL, NULL}};

/* Before a GGUF file's keys; a directory's text_config has a family of its own. */
static const struct hf_text IDEFICS3_TEXT = {SILU(1e-5), STANDARD_ROPE(1e4)};
static const struct hf_vision IDEFICS3_VISION = {TOWER_SIZES(1152, 3072, 12, 16, 32), .image_size = 224,
                                                 .activation = HF_GELU_TANH};

static void check_shuffle(struct hf_reader *r, const struct hf_vision *v)
{
    uint32_t side = v->image_size / v->patch_size;
    if (!r->st && side % v->spatial_merge_size)
        hf_error(r, ST_FORMAT, "scale_factor", "must divide the patches per side of a tile");
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    (void)type;
    if (!family_read_parts(r, decoders, false, c)) return;
    if (json_get_live(r->d, r->text, "rms_norm_eps") == JSON_NONE) c->text.rms_norm_eps = 1e-5;
    siglip_read(r, r->vision, &c->vision);
    c->vision.spatial_merge_size = 2;
    hf_u32(r, 0, "scale_factor", 1, 16, &c->vision.spatial_merge_size);
    hf_u32(r, 0, "image_token_id", 0, SIZE_MAX_VOCAB - 1, &c->image_id);
    check_shuffle(r, &c->vision);
}

/* In files: model.text_model.X, model.vision_model.Y, model.connector.Z, lm_head. */
static bool canonical(const char *name, char out[DESC_NAME_MAX])
{
    static const char *const parts[][2] = {{"model.text_model.", "text."},
                                           {"model.vision_model.", "vision."},
                                           {"model.connector.", "projector."},
                                           {NULL}};
    return family_rename(name, parts, out) || family_canonical(name, out); /* of a GGUF file's decoder */
}

/* Each tile after its row and column; then the whole. */
static int layout(char out[MODEL_TEXT_BYTES], const struct image_place *at)
{
    static const char fake[] = "<fake_token_around_image>";
    uint32_t tiles = at->rows * at->columns;
    if (at->n == at->count) return snprintf(out, MODEL_TEXT_BYTES, "%s", fake);
    if (at->n == tiles || at->count == 1)
        return snprintf(out, MODEL_TEXT_BYTES, "%s%s<global-img>", at->n ? "\n\n" : "", fake);
    return snprintf(out, MODEL_TEXT_BYTES, "%s%s<row_%u_col_%u>",
                    at->n && at->n % at->columns == 0 ? "\n" : "", fake, at->n / at->columns + 1,
                    at->n % at->columns + 1);
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    if (!family_describe_text(r, decoders, c, d)) return;
    uint32_t side = c->vision.image_size / c->vision.patch_size, merge = c->vision.spatial_merge_size;
    d->canonical = canonical;
    d->has_vision = true;
    d->vision = siglip_tower(c);
    d->vision.position_side = side;
    d->vision.position_lookup = LOOKUP_BUCKETS;
    d->vision.end = VISION_MERGE;
    d->vision.merge = merge;
    d->vision.merge_no_bias = true;
    d->vision.tokens = side / merge * (side / merge);
    d->vision.names.merge_fc1 = "projector.modality_projection.proj";
    d->image = (struct model_image_rule){IMAGE_RULE("<image>", c->image_id), .tokens = d->vision.tokens,
                                         .layout = layout};
}

/* ---- images ---- */

static void read_images(struct hf_reader *r, uint32_t obj, struct image_config *out)
{
    uint32_t size = json_get_live(r->d, obj, "size");
    bool resize = true, split = true;
    hf_bool(r, obj, "do_resize", &resize);
    hf_bool(r, obj, "do_image_splitting", &split);
    if (size != JSON_NONE && json_get_live(r->d, size, "longest_edge") == JSON_NONE)
        hf_error(r, ST_UNSUPPORTED, "size", "must have longest_edge");
    hf_u32(r, size, "longest_edge", 1, SIZE_MAX_IMAGE, &out->tiles.longest);
    hf_u32(r, json_get_live(r->d, obj, "max_image_size"), "longest_edge", 1, SIZE_MAX_IMAGE,
           &out->tiles.side);
    if (!resize) out->tiles.longest = 0;
    out->tiles.max = split ? UINT32_MAX : 1;
    out->width = out->height = out->tiles.side;
}

static const struct family_images IMAGES = {
    .image =
        {HALF_IMAGES, .width = 364, .height = 364, .filter = IMAGE_LANCZOS,
         .tiles = {.rule = TILES_FILLED, .side = 364, .max = UINT32_MAX, .longest = 4 * 364, .whole = true}},
    .read = read_images,
};

/* ---- GGUF files ---- */

static void gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    v->spatial_merge_size = 2;
    gguf_read_f64(k, "clip.vision.attention.layer_norm_epsilon", 0, 1, &v->layer_norm_eps);
    gguf_read_u32(k, "clip.vision.image_size", true, 1, SIZE_MAX_IMAGE, &v->image_size);
    gguf_read_u32(k, "clip.vision.projector.scale_factor", false, 1, 16, &v->spatial_merge_size);
    gguf_image_token(k, "<image>", c);
    siglip_check(&k->r, v);
    check_shuffle(&k->r, v);
}

static void gguf_sizes(struct gguf_keys *k, struct image_config *out)
{
    gguf_read_u32(k, "clip.vision.image_size", true, 1, SIZE_MAX_IMAGE, &out->width);
    out->height = out->tiles.side = out->tiles.longest = out->width;
    gguf_read_u32(k, "clip.vision.preproc_image_size", false, 1, SIZE_MAX_IMAGE, &out->tiles.longest);
}

static const struct gguf_name tower_names[] = {
    SIGLIP_GGUF("model.vision_model."),
    {"mm.model.fc", "model.connector.modality_projection.proj"},
    {NULL, NULL},
};
/* The decoder's tensors have the names of a text model. */
static const char *const stops[] = {"<end_of_utterance>", NULL};
static const struct family_gguf files[] = {
    {GGUF_TEXT("llama", NULL, llama_gguf_text),
     GGUF_TOWER("idefics3", "smolvlm", tower_names, gguf_tower, gguf_sizes), .stops = stops},
    {NULL},
};

const struct family family_idefics3 = {
    .types = {{"idefics3", HF_NESTED, &IDEFICS3_TEXT, &IDEFICS3_VISION},
              {"smolvlm", HF_NESTED, &IDEFICS3_TEXT, &IDEFICS3_VISION}},
    .read = read,
    .describe = describe,
    .image_id = 128257,
    .images = &IMAGES,
    .gguf = files,
};
