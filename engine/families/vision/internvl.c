/* InternVL (2.5, 3, 3.5, as released and as converted for transformers) and Qianfan-OCR: a ViT with a class
 * row and scaled layers over tiles of one size, merged by a pixel shuffle; of 300M parameters, or 6B with RMS
 * norms, of q and k too. transformers models/internvl, qianfan_ocr, got_ocr2 (image processor). */
#include "engine/families/gemma.h"
#include "engine/families/standard.h"

#include <stdio.h>
#include <string.h>

static const struct family_inner decoders[] = {{"qwen2", &family_qwen2},
                                               {"qwen3", &family_qwen3},
                                               {"qwen3_moe", &family_qwen3},
                                               {"llama", &family_llama},
                                               {NULL, NULL}},
                                 qianfan_decoders[] = {
                                     {"qwen3", &family_qwen3}, {"qwen2", &family_qwen2}, {NULL, NULL}};

/* Before a GGUF file's keys; a directory's text_config has a family of its own. */
static const struct hf_text INTERNVL_TEXT = {SILU(1e-6), STANDARD_ROPE(1e6)};
#define TOWER                                                                                                \
    .hidden_size = 1024, .intermediate_size = 4096, .num_hidden_layers = 24, .num_attention_heads = 16,      \
    .num_channels = 3, .image_size = 448, .patch_size = 14, .layer_norm_eps = 1e-6, .activation = HF_GELU
static const struct hf_vision INTERNVL_VISION = {TOWER};
static const struct hf_vision QIANFAN_VISION = {TOWER, .attention_bias = true};
static const struct hf_vision CHAT_VISION = {TOWER_SIZES(3200, 12800, 48, 25, 14), .image_size = 224,
                                             .activation = HF_GELU, .qk_norm = true, .rms = true};

static const struct family_inner *served(const char *type)
{
    return strcmp(type, "qianfan_ocr") == 0 ? qianfan_decoders : decoders;
}

/* Keys that have one value in all released models. */
static void read_fixed(struct hf_reader *r, struct hf_vision *v)
{
    bool places = true, pooled = true;
    uint32_t norm = json_get_live(r->d, r->vision, "norm_type"),
             select = json_get_live(r->d, 0, "vision_feature_select_strategy");
    double layer = -1;
    hf_bool(r, r->vision, "use_qk_norm", &v->qk_norm);
    hf_bool(r, r->vision, "use_absolute_position_embeddings", &places);
    hf_bool(r, r->vision, "use_mean_pooling", &pooled);
    hf_double(r, 0, "vision_feature_layer", -1e3, 1e3, &layer);
    hf_activation(r, 0, "projector_hidden_act", HF_GELU);
    if (norm != JSON_NONE) v->rms = json_str_eq(r->d, norm, "rms_norm");
    if (!v->rms && norm != JSON_NONE && !json_str_eq(r->d, norm, "layer_norm"))
        hf_error(r, ST_UNSUPPORTED, "norm_type", "only layer_norm and rms_norm are served");
    if (!places) hf_error(r, ST_UNSUPPORTED, "use_absolute_position_embeddings", "only true is served");
    if (layer != -1) hf_error(r, ST_UNSUPPORTED, "vision_feature_layer", "only -1 is served");
    if (select != JSON_NONE && !json_str_eq(r->d, select, "default"))
        hf_error(r, ST_UNSUPPORTED, "vision_feature_select_strategy", "only default is served");
    v->final_norm = !pooled;
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    double ratio = 0.5;
    if (!family_read_parts(r, served(type->name), strcmp(type->name, "qianfan_ocr") != 0, c)) return;
    siglip_read(r, r->vision, v);
    hf_bool(r, r->vision, "attention_bias", &v->attention_bias);
    read_fixed(r, v);
    hf_double(r, 0, "downsample_ratio", 0.0625, 1, &ratio);
    v->spatial_merge_size = (uint32_t)(1 / ratio);
    if (!r->st && v->image_size / v->patch_size % v->spatial_merge_size)
        hf_error(r, ST_FORMAT, "downsample_ratio", "must divide the patches per side of a tile");
    hf_u32(r, 0, "image_token_id", 0, SIZE_MAX_VOCAB - 1, &c->image_id);
}

/* As released: other names of the tower's keys; the tie in llm_config counts; <IMG_CONTEXT> is where the
 * tokenizers of Qwen2.5 and Qwen3 have it, and a turn ends with <|im_end|>, whatever eos_token_id says. */
static void read_chat(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    const uint32_t end = 151645;
    uint32_t side = 0, ps = json_get_live(r->d, 0, "ps_version");
    double layer = -1;
    hf_bool(r, r->vision, "qk_normalization", &c->vision.qk_norm);
    hf_bool(r, r->vision, "qkv_bias", &c->vision.attention_bias);
    read(r, type, c);
    c->text.tie_word_embeddings = true;
    hf_bool(r, r->text, "tie_word_embeddings", &c->text.tie_word_embeddings);
    if (family_after(c->text_type, "qwen3") && json_get_live(r->d, 0, "image_token_id") == JSON_NONE)
        c->image_id = 151671;
    hf_u32(r, 0, "force_image_size", 1, SIZE_MAX_IMAGE, &side);
    hf_double(r, 0, "select_layer", -1e3, 1e3, &layer);
    if (side && side != c->vision.image_size)
        hf_error(r, ST_UNSUPPORTED, "force_image_size", "must be that of the tower");
    if (layer != -1) hf_error(r, ST_UNSUPPORTED, "select_layer", "only -1 is served");
    if (!json_str_eq(r->d, ps, "v2")) hf_error(r, ST_UNSUPPORTED, "ps_version", "only v2 is served");
    bool ends = c->text.vocab_size <= end || c->eos_count == HF_EOS_MAX;
    for (uint32_t i = 0; i < c->eos_count; i++) ends = ends || c->eos_ids[i] == end;
    if (!ends) c->eos_ids[c->eos_count++] = end;
}

/* The names of the conversions for transformers (vision_tower.encoder.layer.#.attention.q_proj, ...) and of
 * Qianfan-OCR (vision_model.encoder.layers.#.attn.qkv, mlp1.0, ...). */
static bool canonical(const char *name, char out[DESC_NAME_MAX])
{
    static const char *const parts[][2] = {
        {".encoder.layer.", ".layers."},
        {".encoder.layers.", ".layers."},
        {".attn.proj.", ".attention.projection_layer."},
        {".attn.", ".attention."},
        {".norm1.", ".layernorm_before."},
        {".norm2.", ".layernorm_after."},
        {".ls1", ".lambda_1"},
        {".ls2", ".lambda_2"},
        {".class_embedding", ".cls_token"},
        {".patch_embedding.", ".patch_embeddings.projection."},
    };
    static const char *const mlp1[][2] = {{"mlp1.0", "projector.layer_norm"},
                                          {"mlp1.1", "projector.linear_1"},
                                          {"mlp1.3", "projector.linear_2"}};
    const char *rest = family_after(name, "vision_model.");
    int n = rest ? snprintf(out, DESC_NAME_MAX, "vision.%s", rest) : 0;
    for (size_t i = 0; i < sizeof mlp1 / sizeof *mlp1 && !n; i++)
        if ((rest = family_after(name, mlp1[i][0])))
            n = snprintf(out, DESC_NAME_MAX, "%s%s", mlp1[i][1], rest);
    if (n < 0 || n >= (int)DESC_NAME_MAX || (!n && !gemma_canonical(name, out))) return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char *at = strstr(out, parts[i][0]), tail[DESC_NAME_MAX];
        if (!at) continue;
        memcpy(tail, at + strlen(parts[i][0]), strlen(at + strlen(parts[i][0])) + 1);
        n = snprintf(at, DESC_NAME_MAX - (size_t)(at - out), "%s%s", parts[i][1], tail);
        if (n < 0 || (size_t)n >= DESC_NAME_MAX - (size_t)(at - out)) return false;
    }
    if (strcmp(out, "vision.embeddings.position_embedding") == 0) strcat(out, "s");
    return true;
}

static int layout(char out[MODEL_TEXT_BYTES], const struct image_place *at)
{
    return snprintf(out, MODEL_TEXT_BYTES, "%s", at->n == 0 ? "<img>" : at->n == at->count ? "</img>" : "");
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    if (!family_describe_text(r, served(c->model_type), c, d)) return;
    const struct hf_vision *v = &c->vision;
    uint32_t side = v->image_size / v->patch_size, merge = v->spatial_merge_size;
    struct desc_vision *t = &d->vision;
    d->canonical = canonical;
    d->has_vision = true;
    *t = siglip_tower(c);
    t->position_side = side;
    t->qkv_no_bias = !v->attention_bias;
    t->rms = v->rms;
    if (v->qk_norm) {
        t->qk_norm_all = 1e-6f;
        t->names.q_norm = "vision.layers.#.attention.q_norm";
        t->names.k_norm = "vision.layers.#.attention.k_norm";
    }
    t->end = VISION_MERGE;
    t->merge = merge;
    t->merge_ff = d->hidden;
    t->merge_eps = 1e-5f;
    t->tokens = side / merge * (side / merge);
    t->names.class_row = "vision.embeddings.cls_token";
    t->names.position = "vision.embeddings.position_embeddings";
    t->names.patch = "vision.embeddings.patch_embeddings.projection";
    t->names.norm1 = "vision.layers.#.layernorm_before";
    t->names.norm2 = "vision.layers.#.layernorm_after";
    t->qkv_fused = true; /* unless files hold them apart */
    t->names.q = "vision.layers.#.attention.qkv";
    t->names.q_alone = "vision.layers.#.attention.q_proj";
    t->names.k = "vision.layers.#.attention.k_proj";
    t->names.v = "vision.layers.#.attention.v_proj";
    t->names.o = "vision.layers.#.attention.projection_layer";
    t->names.scale1 = "vision.layers.#.lambda_1";
    t->names.scale2 = "vision.layers.#.lambda_2";
    t->names.fc1 = "vision.layers.#.mlp.fc1";
    t->names.fc2 = "vision.layers.#.mlp.fc2";
    t->names.post_norm = v->final_norm ? "vision.layernorm" : NULL;
    t->post_layer_norm = true;
    t->names.merge_norm = "projector.layer_norm";
    t->names.merge_fc1 = "projector.linear_1";
    t->names.merge_fc2 = "projector.linear_2";
    bool qianfan = strcmp(c->model_type, "qianfan_ocr") == 0;
    d->image = (struct model_image_rule){
        .present = true,
        .marker = qianfan ? "<image>" : "<IMG_CONTEXT>",
        .parts = {qianfan ? "<image>\n" : "<IMG_CONTEXT>\n"},
        .placeholder = "<IMG_CONTEXT>",
        .placeholder_id = c->image_id,
        .tokens = t->tokens,
        .layout = layout,
    };
}

/* ---- images ---- */

/* crop_to_patches counts for nothing: the processor sets it. */
static void read_images(struct hf_reader *r, uint32_t obj, struct image_config *out)
{
    uint32_t size = json_get_live(r->d, obj, "size");
    hf_u32(r, size, "height", 1, SIZE_MAX_IMAGE, &out->height);
    hf_u32(r, size, "width", 1, SIZE_MAX_IMAGE, &out->width);
    hf_u32(r, obj, "min_patches", 1, 256, &out->tiles.min);
    hf_u32(r, obj, "max_patches", 1, 256, &out->tiles.max);
    if (out->width != out->height) hf_error(r, ST_UNSUPPORTED, "size", "must have equal height and width");
    out->tiles.side = out->width;
}

static const struct family_images IMAGES = {
    .image = {CLIP_IMAGES, .width = 384, .height = 384,
              .tiles = {.rule = TILES_CLOSEST, .side = 384, .min = 1, .max = 12, .whole = true}},
    .read = read_images,
};

/* In config.json; the processor's file is not the one that InternVL's own code goes by. */
static void read_chat_images(struct hf_reader *r, uint32_t obj, struct image_config *out)
{
    bool dynamic = false;
    hf_side(r, json_get_live(r->d, obj, "vision_config"), "image_size", SIZE_MAX_IMAGE, &out->width);
    hf_bool(r, obj, "dynamic_image_size", &dynamic);
    hf_bool(r, obj, "use_thumbnail", &out->tiles.whole);
    hf_u32(r, obj, "min_dynamic_patch", 1, 256, &out->tiles.min);
    hf_u32(r, obj, "max_dynamic_patch", 1, 256, &out->tiles.max);
    if (!dynamic) out->tiles.max = out->tiles.min = 1;
    out->height = out->tiles.side = out->width;
}

static const struct family_images CHAT_IMAGES = {
    .image = {TORCH_IMAGES, .filter = IMAGE_BICUBIC, .mean = {0.485f, 0.456f, 0.406f},
              .std = {0.229f, 0.224f, 0.225f}, .width = 224,
              .tiles = {.rule = TILES_CLOSEST, .min = 1, .max = 6}},
    .file = "config.json",
    .read = read_chat_images,
};

/* Of the conversion, for releases without a template. */
static const struct family_prompt CHAT_PROMPT = {
    .turns = true,
    .chat_template =
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% if message['content'] is string %}{{ message['content'] }}"
        "{% else %}{% for part in message['content'] %}"
        "{{ '<IMG_CONTEXT>\n' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"};

/* ---- GGUF files ---- */

static void gguf_qwen2(struct gguf_keys *k, struct hf_text *t)
{
    t->o_bias = false;
    standard_gguf_text(k, t);
}

static void gguf_qwen3(struct gguf_keys *k, struct hf_text *t)
{
    t->qk_norm = true;
    standard_gguf_text(k, t);
}

static void gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    v->spatial_merge_size = 2;
    v->attention_bias = gguf_columns(k, "v.blk.0.attn_q.bias") != 0;
    v->qk_norm = gguf_columns(k, "v.blk.0.attn_q_norm.weight") != 0;
    v->rms = gguf_columns(k, "v.blk.0.ln1.bias") == 0;
    gguf_read_f64(k, "clip.vision.attention.layer_norm_epsilon", 0, 1, &v->layer_norm_eps);
    gguf_read_u32(k, "clip.vision.image_size", true, 1, SIZE_MAX_IMAGE, &v->image_size);
    gguf_read_u32(k, "clip.vision.projector.scale_factor", false, 1, 16, &v->spatial_merge_size);
    gguf_image_token(k, "<IMG_CONTEXT>", c);
    siglip_check(&k->r, v);
}

static void gguf_sizes(struct gguf_keys *k, struct image_config *out)
{
    gguf_read_u32(k, "clip.vision.image_size", true, 1, SIZE_MAX_IMAGE, &out->width);
    gguf_read_u32(k, "clip.vision.preproc_min_tiles", false, 1, 256, &out->tiles.min);
    gguf_read_u32(k, "clip.vision.preproc_max_tiles", false, 1, 256, &out->tiles.max);
    out->height = out->tiles.side = out->width;
}

#define LAYER "vision_tower.encoder.layer.#."
static const struct gguf_name tower_names[] = {
    {"v.class_embd", "vision_tower.embeddings.cls_token"},
    {"v.position_embd.weight", "vision_tower.embeddings.position_embeddings"},
    {"v.patch_embd", "vision_tower.embeddings.patch_embeddings.projection"},
    {"v.blk.#.ln1", LAYER "layernorm_before"},
    {"v.blk.#.ln2", LAYER "layernorm_after"},
    {"v.blk.#.ls1.weight", LAYER "lambda_1"},
    {"v.blk.#.ls2.weight", LAYER "lambda_2"},
    {"v.blk.#.attn_q", LAYER "attention.q_proj"},
    {"v.blk.#.attn_k", LAYER "attention.k_proj"},
    {"v.blk.#.attn_v", LAYER "attention.v_proj"},
    {"v.blk.#.attn_q_norm", LAYER "attention.q_norm"},
    {"v.blk.#.attn_k_norm", LAYER "attention.k_norm"},
    {"v.blk.#.attn_out", LAYER "attention.projection_layer"},
    {"v.blk.#.ffn_up", LAYER "mlp.fc1"},
    {"v.blk.#.ffn_down", LAYER "mlp.fc2"},
    {"v.post_ln", "vision_tower.layernorm"},
    {"mm.model.mlp.0", "multi_modal_projector.layer_norm"},
    {"mm.model.mlp.1", "multi_modal_projector.linear_1"},
    {"mm.model.mlp.3", "multi_modal_projector.linear_2"},
    {NULL, NULL},
};
#define INTERNVL_GGUF                                                                                        \
    GGUF_TOWER("internvl", "internvl", tower_names, gguf_tower, gguf_sizes), .stops = standard_gguf_stops
static const struct family_gguf files[] = {
    {.arch = "qwen2", .text = gguf_qwen2, INTERNVL_GGUF},
    {.arch = "qwen3", .text = gguf_qwen3, INTERNVL_GGUF},
    {NULL},
};

const struct family family_internvl = {
    .types = {{"internvl", HF_NESTED, &INTERNVL_TEXT, &INTERNVL_VISION},
              {"qianfan_ocr", HF_NESTED, &INTERNVL_TEXT, &QIANFAN_VISION}},
    .read = read,
    .describe = describe,
    .image_id = 151667,
    .images = &IMAGES,
    .gguf = files,
};

const struct family family_internvl_chat = {
    .types = {{"internvl_chat", HF_NESTED, &INTERNVL_TEXT, &CHAT_VISION}},
    .read = read_chat,
    .describe = describe,
    .image_id = 151667,
    .images = &CHAT_IMAGES,
    .prompt = &CHAT_PROMPT,
};
