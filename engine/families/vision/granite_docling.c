/* Granite-Docling (granite-for-docling): a SigLIP tower over tiles of a page, whose merger adds places, and
 * DeepStack features for a Granite decoder. The coarse path of the connector, unless the processor's
 * settings say the fine one. transformers models/granite_docling. */
#include "engine/families/gemma.h"
#include "engine/families/standard.h"

#include <stdio.h>
#include <string.h>

static const struct family_inner decoders[] = {
    {"granite_docling_text", &family_llama}, {"granite", &family_llama}, {NULL, NULL}};

static const struct hf_text NO_TEXT; /* its own family's defaults count */
static const struct hf_vision DOCLING_VISION = {TOWER_SIZES(768, 3072, 12, 12, 16),
                                                .image_size = 512,
                                                .activation = HF_GELU_TANH,
                                                .out_hidden_size = 1024,
                                                .spatial_merge_size = 4,
                                                .deepstack = {3, 7, 10},
                                                .deepstack_count = 3};

static void check(struct hf_reader *r, const struct hf_config *c)
{
    const struct hf_vision *v = &c->vision;
    bool ascending = v->deepstack_count <= c->text.num_hidden_layers;
    for (uint32_t i = 0; i < v->deepstack_count; i++)
        ascending = ascending && v->deepstack[i] < v->num_hidden_layers &&
                    (i == 0 || v->deepstack[i] > v->deepstack[i - 1]);
    if (!ascending)
        hf_error(r, ST_FORMAT, "vision_config.deepstack_visual_indexes",
                 "must be ascending, below num_hidden_layers, and no more than text layers");
    if (v->image_size / v->patch_size % v->spatial_merge_size)
        hf_error(r, ST_FORMAT, "vision_config.scale_factor", "must divide the patches per side of a tile");
    if (v->out_hidden_size != c->text.hidden_size || v->out_hidden_size % 4)
        hf_error(r, ST_FORMAT, "vision_config.out_hidden_size",
                 "must be the hidden_size of the text model, a multiple of 4");
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    (void)type;
    if (!family_read_parts(r, decoders, true, c)) return;
    siglip_read(r, r->vision, v);
    hf_u32(r, r->vision, "out_hidden_size", 4, SIZE_MAX_HIDDEN, &v->out_hidden_size);
    hf_u32(r, r->vision, "scale_factor", 1, 16, &v->spatial_merge_size);
    hf_list(r, r->vision, "deepstack_visual_indexes", HF_LAYERS_MAX - 1, HF_DEEPSTACK_MAX, v->deepstack,
            &v->deepstack_count);
    hf_u32(r, 0, "image_token_id", 0, SIZE_MAX_VOCAB - 1, &c->image_id);
    if (!r->st) check(r, c);
}

/* The other path of the connector, the router that chooses one, and prediction heads are not used. */
static bool canonical(const char *name, char out[DESC_NAME_MAX])
{
    static const char *const parts[][2] = {
        {"model.text_model.", "text."}, {"model.vision_model.", "vision."}, {"lm_head.", "head."}, {NULL}};
    return family_rename(name, parts, out);
}

/* Each tile after its row and column; then, if there are several, the whole. */
static int layout(char out[MODEL_TEXT_BYTES], const struct image_place *at)
{
    static const char fake[] = "<fake_token_around_image>";
    if (at->n == at->count) return snprintf(out, MODEL_TEXT_BYTES, "%s", at->count == 1 ? "\n" : fake);
    if (at->n == at->rows * at->columns) return snprintf(out, MODEL_TEXT_BYTES, "\n\n%s<global-img>", fake);
    return snprintf(out, MODEL_TEXT_BYTES, "%s%s<row_%u_col_%u>",
                    at->n && at->n % at->columns == 0 ? "\n" : "", fake, at->n / at->columns + 1,
                    at->n % at->columns + 1);
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    if (!family_describe_text(r, decoders, c, d)) return;
    const struct hf_vision *v = &c->vision;
    uint32_t side = v->image_size / v->patch_size, merge = v->spatial_merge_size;
    struct desc_vision *t = &d->vision;
    d->canonical = canonical;
    d->has_vision = true;
    *t = siglip_tower(c);
    t->position_side = side;
    t->end = VISION_MERGE;
    t->merge = merge;
    t->merge_eps = 1e-5f;
    t->merge_conv = t->merge_ff = d->hidden;
    t->merge_no_bias = true;
    t->merge_places = true;
    /* What a word's embedding is multiplied by, and the stream's own unit. */
    t->merge_scale = (float)d->embed_scale;
    t->deepstack_scale = (float)(1 / c->text.residual_multiplier);
    t->tokens = side / merge * (side / merge);
    t->deepstack_count = v->deepstack_count;
    memcpy(t->deepstack, v->deepstack, v->deepstack_count * sizeof *t->deepstack);
    t->names.merge_pre_norm = "vision.connector.ln_in";
    t->names.merge_proj = "vision.connector.coarse.projection";
    t->names.merge_proj_norm = "vision.connector.ln_mid";
    t->names.merge_fc1 = "vision.connector.mlp_fc2";
    t->names.merge_out_norm = "vision.connector.ln_out";
    t->names.deepstack_norm = "vision.connector.coarse.deepstack_mergers.#.layer_norm";
    t->names.deepstack_fc1 = "vision.connector.coarse.deepstack_mergers.#.linear_1";
    t->names.deepstack_fc2 = "vision.connector.coarse.deepstack_mergers.#.linear_2";
    d->image =
        (struct model_image_rule){IMAGE_RULE("<image>", c->image_id), .tokens = t->tokens, .layout = layout};
}

/* Four times as many tokens of a tile. */
static void take_fine(const struct image_config *images, struct model_desc *d)
{
    struct desc_vision *t = &d->vision;
    if (!images->fine || t->merge % 2) return;
    t->merge /= 2;
    d->image.tokens = t->tokens *= 4;
    t->names.merge_proj = "vision.connector.fine.projection";
    t->names.deepstack_norm = "vision.connector.fine.deepstack_mergers.#.layer_norm";
    t->names.deepstack_fc1 = "vision.connector.fine.deepstack_mergers.#.linear_1";
    t->names.deepstack_fc2 = "vision.connector.fine.deepstack_mergers.#.linear_2";
}

/* ---- images ---- */

static void read_images(struct hf_reader *r, uint32_t obj, struct image_config *out)
{
    uint32_t size = json_get_live(r->d, obj, "size");
    struct image_tiles *t = &out->tiles;
    bool cut = true;
    hf_u32(r, size, "height", 1, SIZE_MAX_IMAGE, &out->height);
    hf_u32(r, size, "width", 1, SIZE_MAX_IMAGE, &out->width);
    hf_u32(r, obj, "min_patches", 1, 256, &out->tiles.min);
    hf_u32(r, obj, "max_patches", 1, 256, &out->tiles.max);
    hf_bool(r, obj, "crop_to_patches", &cut);
    hf_bool(r, obj, "fine_route", &out->fine);
    hf_u32(r, obj, "dense_max_patches", 0, 256, &t->dense_max);
    hf_double(r, obj, "dense_max_scale", 0, 1e6, &t->dense_scale);
    hf_double(r, obj, "dense_min_aspect", 0, 1e6, &t->dense_above);
    hf_double(r, obj, "dense_max_aspect", 0, 1e6, &t->dense_most);
    if (t->max <= 1 || (t->dense_scale <= 0 && t->dense_above <= 0)) t->dense_max = 0;
    if (out->width != out->height) hf_error(r, ST_UNSUPPORTED, "size", "must have equal height and width");
    if (!cut) t->max = 1, t->dense_max = 0;
    out->tiles.side = out->width;
}

static const struct family_images IMAGES = {
    .image =
        {CLIP_IMAGES, .width = 512, .height = 512,
         .tiles = {.rule = TILES_CLOSEST, .side = 512, .min = 1, .max = 32, .axis_max = 16, .whole = true}},
    .read = read_images,
};

const struct family family_granite_docling = {
    .types = {{"granite_docling", HF_NESTED, &NO_TEXT, &DOCLING_VISION}},
    .read = read,
    .describe = describe,
    .processed = take_fine,
    .image_id = 100337,
    .images = &IMAGES,
};
