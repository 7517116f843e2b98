/* Models around the Pixtral tower: Mistral 3 (Mistral Small 3.1 and later, Ministral 3), Pixtral 12B (a
 * `llava` in this layout) and LightOnOCR. Images at their own size; 2-D rotary; of Mistral 3 and LightOnOCR
 * merge x merge patches become a token. transformers models/pixtral, mistral3, llava, lighton_ocr. */
#include "engine/families/standard.h"

#include <stdio.h>
#include <string.h>

static const struct family_inner mistral_texts[] = {
    {"mistral", &family_llama}, {"ministral3", &family_llama}, {NULL, NULL}};
static const struct family_inner lighton_texts[] = {
    {"qwen3", &family_qwen3}, {"qwen2", &family_qwen2}, {NULL, NULL}};

/* Before a GGUF file's keys; a directory's text_config has a family of its own. */
static const struct hf_text MISTRAL_TEXT = {SILU(1e-5), STANDARD_ROPE(1e9)},
                            LIGHTON_TEXT = {SILU(1e-6), .qk_norm = true, STANDARD_ROPE(1e6)};

#define TOWER                                                                                                \
    .hidden_size = 1024, .intermediate_size = 4096, .num_hidden_layers = 24, .num_attention_heads = 16,      \
    .num_channels = 3, .patch_size = 16, .layer_norm_eps = 1e-5, .rope_theta = 1e4, .activation = HF_SILU
static const struct hf_vision MISTRAL3_VISION = {TOWER, .spatial_merge_size = 2, .patch_merger = true,
                                                 .break_rows = true};
static const struct hf_vision PIXTRAL_VISION = {TOWER, .spatial_merge_size = 1, .projector_bias = true,
                                                .break_rows = true};
static const struct hf_vision LIGHTON_VISION = {TOWER, .spatial_merge_size = 2, .patch_merger = true};

static bool lighton(const struct hf_config *c)
{
    return !c->vision.break_rows;
}

static void read_tower(struct hf_reader *r, uint32_t obj, struct hf_vision *v)
{
    uint32_t type = json_get_live(r->d, obj, "model_type");
    r->scope = "vision_config.";
    if (type != JSON_NONE && !json_str_eq(r->d, type, "pixtral"))
        hf_error(r, ST_UNSUPPORTED, "model_type", "only the tower pixtral is served in this model");
    hf_u32(r, obj, "hidden_size", 1, SIZE_MAX_HIDDEN, &v->hidden_size);
    hf_u32(r, obj, "intermediate_size", 1, SIZE_MAX_FF, &v->intermediate_size);
    hf_u32(r, obj, "num_hidden_layers", 1, HF_LAYERS_MAX, &v->num_hidden_layers);
    hf_u32(r, obj, "num_attention_heads", 1, SIZE_MAX_HEADS, &v->num_attention_heads);
    hf_u32(r, obj, "num_channels", 3, 3, &v->num_channels);
    hf_u32(r, obj, "patch_size", 1, SIZE_MAX_PATCH, &v->patch_size);
    hf_double(r, obj, "rope_theta", 1, 1e12, &v->rope_theta); /* before transformers 5 */
    hf_double(r, json_get_live(r->d, obj, "rope_parameters"), "rope_theta", 1, 1e12, &v->rope_theta);
    v->activation = HF_GELU; /* of the class; released files say silu */
    if (json_str_eq(r->d, json_get_live(r->d, obj, "hidden_act"), "silu")) v->activation = HF_SILU;
    hf_activation(r, obj, "hidden_act", v->activation);
    r->scope = "";
}

/* Of the tower's last layer, all of it. */
static void check_features(struct hf_reader *r, const struct family_type *type)
{
    uint32_t layer = json_get_live(r->d, 0, "vision_feature_layer"),
             act = json_get_live(r->d, 0, "projector_hidden_act"),
             part = json_get_live(r->d, 0, "vision_feature_select_strategy");
    bool llava = type->vision == &PIXTRAL_VISION;
    double n = llava ? -2 : -1;
    if (layer != JSON_NONE && (!json_double(r->d, layer, &n) || n != -1)) n = 0;
    if (n != -1) hf_error(r, ST_UNSUPPORTED, "vision_feature_layer", "only -1 is served");
    if (act != JSON_NONE && !json_str_eq(r->d, act, "gelu"))
        hf_error(r, ST_UNSUPPORTED, "projector_hidden_act", "only gelu is served");
    if (llava && !json_str_eq(r->d, part, "full"))
        hf_error(r, ST_UNSUPPORTED, "vision_feature_select_strategy", "only full is served");
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    bool llava = type->vision == &PIXTRAL_VISION;
    uint32_t id = c->image_id;
    family_read_text(r, type->vision == &LIGHTON_VISION ? lighton_texts : mistral_texts, c);
    if (!llava) c->text.tie_word_embeddings = true;
    hf_bool(r, 0, "tie_word_embeddings", &c->text.tie_word_embeddings);
    if (!c->has_vision) return;
    read_tower(r, r->vision, v);
    check_features(r, type);
    standard_check_heads(r, v);
    if (!llava) hf_u32(r, 0, "spatial_merge_size", 1, 8, &v->spatial_merge_size);
    if (v->break_rows) hf_bool(r, 0, "multimodal_projector_bias", &v->projector_bias);
    hf_u32(r, 0, "image_token_index", 0, SIZE_MAX_VOCAB - 1, &id);
    hf_u32(r, 0, "image_token_id", 0, SIZE_MAX_VOCAB - 1, &id);
    if (id == HF_NO_ID) id = lighton(c) ? 151655 : llava ? 32000 : 10;
    if (id >= c->text.vocab_size) hf_error(r, ST_FORMAT, "image_token_id", "must be below vocab_size");
    c->image_id = id;
}

/* Released files and saved ones; LightOnOCR's names differ. */
static bool canonical(const char *name, char out[DESC_NAME_MAX])
{
    static const char *const parts[][2] = {{"vision_tower.", "vision."},
                                           {"vision_encoder.", "vision."},
                                           {"multi_modal_projector.", "projector."},
                                           {"vision_projection.", "projector."},
                                           {NULL}};
    const char *inner = family_after(name, "model.");
    return family_rename(inner ? inner : name, parts, out) || family_canonical(name, out);
}

static void describe_tower(const struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    const struct hf_vision *v = &c->vision;
    d->has_vision = true;
    d->vision = (struct desc_vision){
        DESC_TOWER(v),
        .rms = true,
        .mlp = v->activation == HF_SILU ? VISION_GLU_SILU : VISION_GLU_GELU_ERF,
        .no_bias = true,
        .depth = 1,
        .rope_theta = v->rope_theta,
        .rope_between = true,
        .qk_pairs = r->d == NULL, /* as llama.cpp's conversion has them */
        .qk_pairs_differ = true,
        .end = VISION_MERGE,
        .merge = v->spatial_merge_size,
        .merge_ff = c->text.hidden_size,
        .merge_no_bias = !v->projector_bias,
        .names = {.patch = "vision.patch_conv",
                  .pre_norm = "vision.ln_pre",
                  .norm1 = "vision.transformer.layers.#.attention_norm",
                  .norm2 = "vision.transformer.layers.#.ffn_norm",
                  .q = "vision.transformer.layers.#.attention.q_proj",
                  .k = "vision.transformer.layers.#.attention.k_proj",
                  .v = "vision.transformer.layers.#.attention.v_proj",
                  .o = "vision.transformer.layers.#.attention.o_proj",
                  .fc1 = "vision.transformer.layers.#.feed_forward.gate_proj",
                  .up = "vision.transformer.layers.#.feed_forward.up_proj",
                  .fc2 = "vision.transformer.layers.#.feed_forward.down_proj",
                  .merge_fc1 = "projector.linear_1",
                  .merge_fc2 = "projector.linear_2"},
    };
    if (!v->patch_merger) return;
    d->vision.merge_conv = v->hidden_size;
    d->vision.merge_eps = (float)c->text.rms_norm_eps;
    d->vision.names.merge_pre_norm = "projector.norm";
    d->vision.names.merge_conv = "projector.patch_merger.merging_layer";
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    bool ocr = c->has_vision ? lighton(c) : strcmp(c->model_type, "lighton_ocr") == 0;
    if (!family_describe_text(r, ocr ? lighton_texts : mistral_texts, c, d)) return;
    d->canonical = canonical;
    if (!c->has_vision) return;
    describe_tower(r, c, d);
    d->image =
        (struct model_image_rule){IMAGE_RULE(ocr ? "<|image_pad|>" : "[IMG]", c->image_id), .prefix = "",
                                  .suffix = ocr ? "" : "[IMG_END]", .row_break = ocr ? NULL : "[IMG_BREAK]"};
    if (strcmp(c->text_type[0] ? c->text_type : c->model_type, "ministral3") == 0)
        d->image.parts.order = PARTS_OF_PAIRS_FIRST;
}

/* ---- images ---- */

/* The processor's own sizes count, not those of the image processor. */
static void read_processor(struct hf_reader *r, struct image_config *out)
{
    hf_u32(r, 0, "patch_size", 1, SIZE_MAX_PATCH, &out->patch);
    hf_u32(r, 0, "spatial_merge_size", 1, 8, &out->merge);
}

static void set_area(struct image_config *out)
{
    uint64_t unit = image_multiple(out), high = out->highest ? out->highest : out->longest;
    out->area_max = (out->longest + unit - 1) / unit * unit * ((high + unit - 1) / unit * unit);
}

static void read_longest(struct hf_reader *r, uint32_t settings, struct image_config *out)
{
    uint32_t size = json_get_live(r->d, settings, "size");
    if (size != JSON_NONE && json_kind(r->d, size) == JSON_NUMBER)
        hf_u32(r, settings, "size", 1, SIZE_MAX_IMAGE, &out->longest);
    else if (size != JSON_NONE && !hf_u32(r, size, "longest_edge", 1, SIZE_MAX_IMAGE, &out->longest) &&
             !(hf_u32(r, size, "width", 1, SIZE_MAX_IMAGE, &out->longest) &&
               hf_u32(r, size, "height", 1, SIZE_MAX_IMAGE, &out->highest)))
        hf_error(r, ST_UNSUPPORTED, "size", "must have a longest_edge, or width and height");
    set_area(out);
}

#define IMAGES NATIVE_IMAGES, .depth = 1, .area_min = 1, .longest = 1024
static const struct family_images images = {
    .image = {IMAGES, .patch = 16, .merge = 1}, .processor = read_processor, .read = read_longest};

/* Sides become multiples of the image processor's patch size, which need not be that of a token. */
static void read_lighton_size(struct hf_reader *r, uint32_t settings, struct image_config *out)
{
    uint32_t patch = json_get_live(r->d, settings, "patch_size");
    out->multiple = 16;
    if (patch == JSON_NONE || json_kind(r->d, patch) != JSON_OBJECT)
        hf_u32(r, settings, "patch_size", 1, SIZE_MAX_PATCH, &out->multiple);
    else hf_u32(r, patch, "height", 1, SIZE_MAX_PATCH, &out->multiple);
    if (!r->st && out->multiple % out->patch)
        hf_error(r, ST_UNSUPPORTED, "patch_size", "must be a multiple of the processor's patch_size");
    read_longest(r, settings, out);
}

static const struct family_images lighton_images = {
    .image = {IMAGES, .patch = 14, .merge = 2}, .processor = read_processor, .read = read_lighton_size};

/* ---- GGUF files ---- */

/* Without a merger (Pixtral 12B) a patch is a token. */
static void gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    v->spatial_merge_size = 1;
    gguf_read_u32(k, "clip.vision.spatial_merge_size", false, 1, 8, &v->spatial_merge_size);
    v->patch_merger = gguf_columns(k, "mm.patch_merger.weight") != 0;
    v->projector_bias = gguf_columns(k, "mm.1.bias") != 0;
    gguf_image_token(k, lighton(c) ? "<|image_pad|>" : "[IMG]", c);
    standard_check_heads(&k->r, v);
}

static void gguf_sizes(struct gguf_keys *k, struct image_config *out)
{
    out->merge = 1;
    standard_gguf_patches(k, out);
    gguf_read_u32(k, "clip.vision.image_size", true, 1, SIZE_MAX_IMAGE, &out->longest);
    set_area(out);
}

#define LAYER "vision_tower.transformer.layers.#."
static const struct gguf_name tower_names[] = {
    {"v.patch_embd", "vision_tower.patch_conv"},
    {"v.pre_ln", "vision_tower.ln_pre"},
    {"v.blk.#.ln1", LAYER "attention_norm"},
    {"v.blk.#.ln2", LAYER "ffn_norm"},
    {"v.blk.#.attn_q", LAYER "attention.q_proj"},
    {"v.blk.#.attn_k", LAYER "attention.k_proj"},
    {"v.blk.#.attn_v", LAYER "attention.v_proj"},
    {"v.blk.#.attn_out", LAYER "attention.o_proj"},
    {"v.blk.#.ffn_gate", LAYER "feed_forward.gate_proj"},
    {"v.blk.#.ffn_up", LAYER "feed_forward.up_proj"},
    {"v.blk.#.ffn_down", LAYER "feed_forward.down_proj"},
    {"mm.input_norm", "multi_modal_projector.norm"},
    {"mm.patch_merger", "multi_modal_projector.patch_merger.merging_layer"},
    {"mm.1", "multi_modal_projector.linear_1"},
    {"mm.2", "multi_modal_projector.linear_2"},
    {NULL, NULL},
};
/* Mistral Small in early conversions has the architecture llama. */
#define PIXTRAL_GGUF GGUF_TOWER("pixtral", "mistral3", tower_names, gguf_tower, gguf_sizes)
static const struct family_gguf mistral_files[] = {
    {.arch = "mistral3", .model_type = "ministral3", .text = llama_gguf_ministral3, PIXTRAL_GGUF},
    {.arch = "llama", .text = llama_gguf_text, PIXTRAL_GGUF},
    {NULL},
};
static const struct family_gguf lighton_files[] = {
    {GGUF_TEXT("qwen3", NULL, standard_gguf_text),
     GGUF_TOWER("lightonocr", "lighton_ocr", tower_names, gguf_tower, gguf_sizes),
     .stops = standard_gguf_stops},
    {NULL},
};

const struct family family_mistral3 = {
    .types = {{"mistral3", HF_NESTED, &MISTRAL_TEXT, &MISTRAL3_VISION},
              {"llava", HF_NESTED, &MISTRAL_TEXT, &PIXTRAL_VISION}},
    .read = read,
    .describe = describe,
    .images = &images,
    .gguf = mistral_files,
};
const struct family family_lighton_ocr = {
    .types = {{"lighton_ocr", HF_NESTED, &LIGHTON_TEXT, &LIGHTON_VISION}},
    .read = read,
    .describe = describe,
    .images = &lighton_images,
    .gguf = lighton_files,
};
