/* PaddleOCR-VL: SigLIP at the image's own size, with 2-D rotary and positions interpolated between the
 * patches' centres; ERNIE 4.5 as decoder, with mRoPE. transformers models/paddleocr_vl. */
#include "engine/families/gemma.h"
#include "engine/families/qwen.h"

#include <stdio.h>
#include <string.h>

static const struct hf_text PADDLEOCR_TEXT = {
    .vocab_size = 103424,
    .hidden_size = 1024,
    .intermediate_size = 3072,
    .num_hidden_layers = 18,
    .num_attention_heads = 16,
    .num_key_value_heads = 2,
    .head_dim = 128,
    .max_position_embeddings = 131072,
    .rms_norm_eps = 1e-5,
    .activation = HF_SILU,
    QWEN_ROPE(5e5, .mrope_section = {16, 24, 24}),
};
static const struct hf_vision PADDLEOCR_VISION = {
    .hidden_size = 1152,
    .intermediate_size = 4304,
    .num_hidden_layers = 27,
    .num_attention_heads = 16,
    .num_channels = 3,
    .patch_size = 14,
    .image_size = 384,
    .layer_norm_eps = 1e-6,
    .activation = HF_GELU_TANH,
    .spatial_merge_size = 2,
    .rope_theta = 1e4,
};

static void check_heads(struct hf_reader *r, const struct hf_vision *v)
{
    uint32_t head = v->hidden_size / v->num_attention_heads;
    if (!r->st && (v->hidden_size % v->num_attention_heads || head > SIZE_MAX_HEAD_DIM || head % 4))
        hf_error(r, ST_FORMAT, "num_attention_heads",
                 "must divide the tower's width into heads of a multiple of 4");
}

static void read_tower(struct hf_reader *r, uint32_t obj, struct hf_vision *v)
{
    r->scope = "vision_config.";
    hf_u32(r, obj, "hidden_size", 1, SIZE_MAX_HIDDEN, &v->hidden_size);
    hf_u32(r, obj, "intermediate_size", 1, SIZE_MAX_FF, &v->intermediate_size);
    hf_u32(r, obj, "num_hidden_layers", 1, HF_LAYERS_MAX, &v->num_hidden_layers);
    hf_u32(r, obj, "num_attention_heads", 1, SIZE_MAX_HEADS, &v->num_attention_heads);
    hf_u32(r, obj, "num_channels", 3, 3, &v->num_channels);
    hf_u32(r, obj, "patch_size", 1, SIZE_MAX_PATCH, &v->patch_size);
    hf_u32(r, obj, "image_size", 1, SIZE_MAX_IMAGE, &v->image_size); /* of the position table */
    hf_u32(r, obj, "spatial_merge_size", 1, 8, &v->spatial_merge_size);
    hf_double(r, obj, "layer_norm_eps", 0, 1, &v->layer_norm_eps);
    hf_activation(r, obj, "hidden_act", v->activation);
    hf_double(r, json_get_live(r->d, obj, "rope_parameters"), "rope_theta", 1, 1e12, &v->rope_theta);
    check_heads(r, v);
    if (!r->st && v->image_size < v->patch_size) hf_error(r, ST_FORMAT, "image_size", "must hold a patch");
    r->scope = "";
}

/* Released files have the text's keys at the top. */
static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    struct family_type text = *type;
    bool vision = c->has_vision, bias = false, inner = true;
    text.place = HF_FLAT;
    c->has_vision = false;
    qwen_read(r, &text, c);
    c->has_vision = vision;
    hf_bool(r, r->text, "use_bias", &bias);
    if (bias) hf_error(r, ST_UNSUPPORTED, "use_bias", "only false is served");
    c->text.tie_word_embeddings = true;
    if (r->text != 0) hf_bool(r, r->text, "tie_word_embeddings", &inner);
    hf_bool(r, 0, "tie_word_embeddings", &c->text.tie_word_embeddings);
    c->text.tie_word_embeddings |= inner;
    if (c->eos_count == 0) c->eos_ids[c->eos_count++] = 2;
    if (!vision) return;
    read_tower(r, r->vision, &c->vision);
    hf_u32(r, 0, "image_token_id", 0, SIZE_MAX_VOCAB - 1, &c->image_id);
    if (c->image_id >= c->text.vocab_size)
        hf_error(r, ST_FORMAT, "image_token_id", "must be below vocab_size");
}

static bool canonical(const char *name, char out[DESC_NAME_MAX])
{
    const char *x = family_after(name, "mlp_AR.");
    if (!x) x = family_after(name, "model.projector.");
    int n = x ? snprintf(out, DESC_NAME_MAX, "projector.%s", x) : 0;
    return x ? n > 0 && n < (int)DESC_NAME_MAX : family_canonical(name, out);
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    const struct hf_vision *v = &c->vision;
    qwen_describe_decoder(r, c, d);
    if (r->st) return;
    d->eos_count = c->eos_count;
    d->canonical = canonical;
    if (!c->has_vision) return;
    d->has_vision = true;
    d->vision = (struct desc_vision){
        .patch = v->patch_size,
        .hidden = v->hidden_size,
        .ff = v->intermediate_size,
        .layers = v->num_hidden_layers,
        .heads = v->num_attention_heads,
        .eps = (float)v->layer_norm_eps,
        .mlp = VISION_GELU_TANH,
        .patch_bias = true,
        .depth = 1,
        .rope_theta = v->rope_theta,
        .position = true,
        .position_side = v->image_size / v->patch_size,
        .position_lookup = LOOKUP_CENTRES,
        .end = VISION_MERGE,
        .merge = v->spatial_merge_size,
        .merge_eps = 1e-5f,
        .names = {.patch = "vision.vision_model.embeddings.patch_embedding",
                  .position = "vision.vision_model.embeddings.position_embedding",
                  .norm1 = "vision.vision_model.encoder.layers.#.layer_norm1",
                  .norm2 = "vision.vision_model.encoder.layers.#.layer_norm2",
                  .q = "vision.vision_model.encoder.layers.#.self_attn.q_proj",
                  .k = "vision.vision_model.encoder.layers.#.self_attn.k_proj",
                  .v = "vision.vision_model.encoder.layers.#.self_attn.v_proj",
                  .o = "vision.vision_model.encoder.layers.#.self_attn.out_proj",
                  .fc1 = "vision.vision_model.encoder.layers.#.mlp.fc1",
                  .fc2 = "vision.vision_model.encoder.layers.#.mlp.fc2",
                  .post_norm = "vision.vision_model.post_layernorm",
                  .merge_pre_norm = "projector.pre_norm",
                  .merge_fc1 = "projector.linear_1",
                  .merge_fc2 = "projector.linear_2"},
    };
    /* The template writes <|IMAGE_START|> and <|IMAGE_END|> around the placeholder. */
    d->image = (struct model_image_rule){.present = true,
                                         .marker = "<|IMAGE_PLACEHOLDER|>",
                                         .prefix = "",
                                         .suffix = "",
                                         .placeholder = "<|IMAGE_PLACEHOLDER|>",
                                         .placeholder_id = c->image_id,
                                         .grid = true};
}

static const struct family_images images = {
    .image = {NATIVE_IMAGES, .patch = 14, .merge = 2, .depth = 1, .area_min = 384 * 384,
              .area_max = 1536 * 1536, .small = SMALL_BY_SIDE},
};

/* ---- GGUF files ---- */

static void gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    uint32_t places = 0;
    gguf_read_f64(k, "clip.vision.attention.layer_norm_epsilon", 0, 1, &v->layer_norm_eps);
    gguf_read_u32(k, "clip.vision.spatial_merge_size", false, 1, 8, &v->spatial_merge_size);
    gguf_set_u32(k, "v.position_embd.weight", gguf_rows(k, "v.position_embd.weight"), 1, QWEN_POSITIONS_MAX,
                 &places);
    if (!gguf_token(k, "<|IMAGE_PLACEHOLDER|>", &c->image_id))
        gguf_error(k, ST_FORMAT, "tokenizer.ggml.tokens", "has no token for images");
    qwen_position_side(&k->r, places, v);
    v->image_size = v->position_side * v->patch_size;
    check_heads(&k->r, v);
}

static void gguf_sizes(struct gguf_keys *k, struct image_config *out)
{
    qwen_gguf_areas(k, 147384, 2822400, out); /* of the released file */
}

static const struct gguf_name tower_names[] = {
    SIGLIP_GGUF("visual.vision_model."),
    {"mm.input_norm", "mlp_AR.pre_norm"},
    {"mm.1", "mlp_AR.linear_1"},
    {"mm.2", "mlp_AR.linear_2"},
    {NULL, NULL},
};
static const struct family_gguf files[] = {
    {.arch = "paddleocr",
     .model_type = "paddleocr_vl",
     .text = qwen_gguf_text,
     .projector = "paddleocr",
     .tower_type = "paddleocr_vl",
     .tower_names = tower_names,
     .tower = gguf_tower,
     .images = gguf_sizes},
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
