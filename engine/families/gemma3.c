/* Gemma 3 (text 270M, 1B; text and pictures 4B, 12B, 27B with a SigLIP tower; their fine-tunes). Formulas and
 * names: transformers models/gemma3 and models/siglip. What is easy to get wrong stands beside the line that
 * gets it right. */
#include "engine/families/families.h"

#include "config/base/log.h"
#include "config/hf/reader.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- config.json ---- */

static const struct hf_text GEMMA3_TEXT = {
    .vocab_size = 262208,
    .hidden_size = 2304,
    .intermediate_size = 9216,
    .num_hidden_layers = 26,
    .num_attention_heads = 8,
    .num_key_value_heads = 4,
    .head_dim = 256,
    .max_position_embeddings = 131072,
    .sliding_window = 4096,
    .rms_norm_eps = 1e-6,
    .tie_word_embeddings = true,
    .qk_norm = true,
    .activation = HF_GELU_TANH,
    .rope = {[HF_FULL] = {.type = HF_ROPE_DEFAULT, .theta = 1e6, .factor = 1},
             [HF_SLIDING] = {.type = HF_ROPE_DEFAULT, .theta = 1e4, .factor = 1}},
};
static const struct hf_vision SIGLIP = {
    .hidden_size = 768,
    .intermediate_size = 3072,
    .num_hidden_layers = 12,
    .num_attention_heads = 12,
    .num_channels = 3,
    .image_size = 224,
    .patch_size = 16,
    .layer_norm_eps = 1e-6,
    .activation = HF_GELU_TANH,
};

/* One RoPE parameter dict over what stands in *rope. */
static void read_rope_dict(struct hf_reader *r, uint32_t dict, bool types_allowed, struct hf_rope *rope)
{
    if (json_kind(r->d, dict) != JSON_OBJECT) return;
    uint32_t type = json_get_live(r->d, dict, "rope_type");
    if (type == JSON_NONE) type = json_get_live(r->d, dict, "type");
    hf_double(r, dict, "rope_theta", 1.0, 1e12, &rope->theta);
    if (type != JSON_NONE && !r->st) {
        if (json_str_eq(r->d, type, "default")) rope->type = HF_ROPE_DEFAULT;
        else if (json_str_eq(r->d, type, "linear") && types_allowed) rope->type = HF_ROPE_LINEAR;
        else
            hf_fault(r, ST_UNSUPPORTED, "rope_type",
                     types_allowed ? "only default and linear are served"
                                   : "only default is served on sliding layers");
    }
    double factor = 0;
    hf_double(r, dict, "factor", 1e-6, 1e6, &factor);
    if (factor > 0) rope->factor = factor;
    if (type != JSON_NONE && rope->type == HF_ROPE_LINEAR && factor <= 0)
        hf_fault(r, ST_FORMAT, "factor", "is missing from the RoPE parameters of type linear");
}

/* Both spellings, and the mixed files that have per-type dicts without rope_theta beside the flat keys. */
static void read_rope(struct hf_reader *r, uint32_t obj, struct hf_text *t)
{
    static const char *const names[2] = {[HF_FULL] = "full_attention", [HF_SLIDING] = "sliding_attention"};
    hf_double(r, obj, "rope_theta", 1.0, 1e12, &t->rope[HF_FULL].theta);
    hf_double(r, obj, "rope_local_base_freq", 1.0, 1e12, &t->rope[HF_SLIDING].theta);
    uint32_t params = json_get_live(r->d, obj, "rope_parameters"),
             scaling = json_get_live(r->d, obj, "rope_scaling");
    bool per_type = false;
    for (int k = 0; k < 2; k++) {
        uint32_t dict = json_get(r->d, params, names[k]);
        if (dict == JSON_NONE) continue;
        per_type = true;
        t->rope[k].factor = 1;
        read_rope_dict(r, dict, k == HF_FULL, &t->rope[k]);
    }
    if (params != JSON_NONE && !per_type && json_count(r->d, params) > 0) {
        log_warn("%s: rope_parameters has no entries per layer type: read as those of full attention",
                 r->file);
        read_rope_dict(r, params, true, &t->rope[HF_FULL]);
    }
    /* transformers (5.23) lays rope_scaling over {"rope_type": "default"}, so for this family the old
     * spelling "type" is ignored without a word; vLLM goes by it. Which one a checkpoint was made for can't
     * be told: refused. (Released files have rope_type. In the Qwen families "type" counts.) */
    uint32_t old = json_get_live(r->d, scaling, "type");
    if (json_kind(r->d, scaling) == JSON_OBJECT && json_get_live(r->d, scaling, "rope_type") == JSON_NONE &&
        old != JSON_NONE && !json_str_eq(r->d, old, "default"))
        hf_fault(r, ST_UNSUPPORTED, "rope_scaling",
                 "has \"type\", which transformers ignores for Gemma 3: write \"rope_type\", or take the "
                 "entry out");
    if (scaling != JSON_NONE) read_rope_dict(r, scaling, true, &t->rope[HF_FULL]);
    for (int k = 0; k < 2; k++)
        if (t->rope[k].type == HF_ROPE_DEFAULT) t->rope[k].factor = 1;
}

static void read_layer_types(struct hf_reader *r, uint32_t obj, struct hf_text *t)
{
    uint32_t pattern = 6;
    if (hf_layer_types(r, obj, t) || r->st) return;
    hf_u32(r, obj, "_sliding_window_pattern", 1, HF_LAYERS_MAX, &pattern);
    hf_u32(r, obj, "sliding_window_pattern", 1, HF_LAYERS_MAX, &pattern);
    for (uint32_t n = 0; n < t->num_hidden_layers; n++)
        t->layer_types[n] = (n + 1) % pattern == 0 ? HF_FULL : HF_SLIDING;
}

static void read_text(struct hf_reader *r, uint32_t obj, struct hf_text *t)
{
    hf_text_sizes(r, obj, t);
    hf_text_heads(r, obj, t);
    hf_u32(r, obj, "sliding_window", 1, 1u << 30, &t->sliding_window);
    hf_bool(r, obj, "attention_bias", &t->qkv_bias);
    t->o_bias = t->qkv_bias;
    hf_bool(r, obj, "tie_word_embeddings", &t->tie_word_embeddings);
    hf_activation(r, obj, "hidden_activation", HF_GELU_TANH);
    bool encoder = false;
    hf_bool(r, obj, "use_bidirectional_attention", &encoder);
    if (encoder)
        hf_fault(r, ST_UNSUPPORTED, "use_bidirectional_attention", "this is an encoder, not a generator");
    read_rope(r, obj, t);
    read_layer_types(r, obj, t);
}

static void read_vision(struct hf_reader *r, uint32_t obj, struct hf_vision *v)
{
    r->scope = "vision_config.";
    hf_u32(r, obj, "hidden_size", 1, SIZE_MAX_HIDDEN, &v->hidden_size);
    hf_u32(r, obj, "intermediate_size", 1, SIZE_MAX_FF, &v->intermediate_size);
    hf_u32(r, obj, "num_hidden_layers", 1, HF_LAYERS_MAX, &v->num_hidden_layers);
    hf_u32(r, obj, "num_attention_heads", 1, SIZE_MAX_HEADS, &v->num_attention_heads);
    hf_u32(r, obj, "num_channels", 3, 3, &v->num_channels);
    hf_u32(r, obj, "image_size", 1, SIZE_MAX_IMAGE, &v->image_size);
    hf_u32(r, obj, "patch_size", 1, SIZE_MAX_PATCH, &v->patch_size);
    hf_double(r, obj, "layer_norm_eps", 0, 1, &v->layer_norm_eps);
    hf_activation(r, obj, "hidden_act", HF_GELU_TANH);
    if (!r->st) {
        uint32_t head = v->hidden_size / v->num_attention_heads;
        if (v->hidden_size % v->num_attention_heads || head > SIZE_MAX_HEAD_DIM || head % 2)
            hf_fault(r, ST_FORMAT, "num_attention_heads", "must divide hidden_size into even heads");
        else if (v->image_size % v->patch_size)
            hf_fault(r, ST_FORMAT, "image_size", "must be a multiple of patch_size");
    }
    r->scope = "";
}

/* The number of soft tokens is a square that divides the patch grid: an average pool makes the one from the
 * other. */
static void check_image_tokens(struct hf_reader *r, const struct hf_config *c)
{
    uint32_t side = 1, grid = c->vision.image_size / c->vision.patch_size;
    while (side * side < c->mm_tokens_per_image) side++;
    if (side * side != c->mm_tokens_per_image || side > grid || grid % side)
        hf_fault(r, ST_FORMAT, "mm_tokens_per_image", "must be a square whose side divides the patch grid");
}

static void id_alias(struct hf_reader *r, const char *key, const char *alias, uint32_t *id)
{
    hf_u32(r, 0, alias, 0, SIZE_MAX_VOCAB - 1, id);
    hf_u32(r, 0, key, 0, SIZE_MAX_VOCAB - 1, id);
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    read_text(r, r->text, &c->text);
    if (type->place == HF_NESTED) hf_bool(r, 0, "tie_word_embeddings", &c->text.tie_word_embeddings);
    c->bos_id = 2;
    hf_u32(r, r->text, "bos_token_id", 0, SIZE_MAX_VOCAB - 1, &c->bos_id);
    if (!c->has_vision) return;
    read_vision(r, r->vision, &c->vision);
    c->mm_tokens_per_image = 256;
    c->boi_id = 255999;
    c->eoi_id = 256000;
    c->image_id = 262144;
    hf_u32(r, 0, "mm_tokens_per_image", 1, 1u << 16, &c->mm_tokens_per_image);
    id_alias(r, "boi_token_index", "boi_token_id", &c->boi_id);
    id_alias(r, "eoi_token_index", "eoi_token_id", &c->eoi_id);
    id_alias(r, "image_token_index", "image_token_id", &c->image_id);
    if (!r->st) check_image_tokens(r, c);
}

/* ---- description ---- */

/* Three layouts are in the wild, with and without the `vision_model.` segment; a rule covers them all:
 *   A  language_model.model.X  vision_tower.vision_model.Y  multi_modal_projector.Z  language_model.lm_head
 *   B  model.language_model.X  model.vision_tower.[..].Y    model.(the same)         lm_head
 *   C  model.X                                                                       lm_head
 * Canonical: text.X, vision.Y, projector.Z, head.weight. */
static bool canonical(const char *name, char out[DESC_NAME_MAX])
{
    const char *s = name, *rest = family_after(name, "model."), *x;
    if (rest && (family_after(rest, "language_model.") || family_after(rest, "vision_tower.") ||
                 family_after(rest, "multi_modal_projector.")))
        s = rest;
    const char *part = "text.";
    if ((x = family_after(s, "vision_tower."))) {
        const char *inner = family_after(x, "vision_model.");
        if (inner) x = inner;
        if (family_after(x, "head.")) return false; /* SigLIP's attention pooling: not used by this family */
        part = "vision.";
    } else if ((x = family_after(s, "multi_modal_projector."))) {
        part = "projector.";
    } else if ((x = family_after(s, "language_model.model.")) || (x = family_after(s, "language_model.")) ||
               (x = family_after(s, "model."))) {
        if (family_after(x, "lm_head.")) {
            x += strlen("lm_head.");
            part = "head.";
        }
    } else if ((x = family_after(s, "lm_head."))) {
        part = "head.";
    } else {
        return false;
    }
    int n = snprintf(out, DESC_NAME_MAX, "%s%s", part, x);
    return n > 0 && n < (int)DESC_NAME_MAX;
}

static void describe_vision(const struct hf_config *c, struct model_desc *d)
{
    uint32_t side = 1;
    while (side * side < c->mm_tokens_per_image) side++;
    d->has_vision = true;
    d->vision = (struct desc_vision){
        .image_size = c->vision.image_size,
        .patch = c->vision.patch_size,
        .hidden = c->vision.hidden_size,
        .ff = c->vision.intermediate_size,
        .layers = c->vision.num_hidden_layers,
        .heads = c->vision.num_attention_heads,
        .eps = (float)c->vision.layer_norm_eps,
        .mlp = VISION_GELU_TANH,
        .patch_bias = true,
        .depth = 1,
        .position = true,
        .end = VISION_POOL,
        .pool = c->vision.image_size / c->vision.patch_size / side,
        .tokens = c->mm_tokens_per_image,
        .names = {.patch = "vision.embeddings.patch_embedding",
                  .position = "vision.embeddings.position_embedding",
                  .norm1 = "vision.encoder.layers.#.layer_norm1",
                  .norm2 = "vision.encoder.layers.#.layer_norm2",
                  .q = "vision.encoder.layers.#.self_attn.q_proj",
                  .k = "vision.encoder.layers.#.self_attn.k_proj",
                  .v = "vision.encoder.layers.#.self_attn.v_proj",
                  .o = "vision.encoder.layers.#.self_attn.out_proj",
                  .fc1 = "vision.encoder.layers.#.mlp.fc1",
                  .fc2 = "vision.encoder.layers.#.mlp.fc2",
                  .post_norm = "vision.post_layernorm",
                  .soft_norm = "projector.mm_soft_emb_norm",
                  .projection = "projector.mm_input_projection_weight"},
    };
    d->image = (struct model_image_rule){
        .present = true,
        .marker = "<start_of_image>",
        .prefix = "\n\n<start_of_image>",
        .suffix = "<end_of_image>\n\n",
        .soft = "<image_soft_token>",
        .soft_id = c->image_id,
        .tokens = c->mm_tokens_per_image,
        .crops_before = "Here is the original image ",
        .crops_between = " and here are some crops to help you see better ",
        .rule = SPAN_WITHIN, /* its tokens see each other in both directions */
    };
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    const struct hf_text *t = &c->text;
    double scalar = 256, softcap = 0, final_softcap = 0;
    hf_double(r, r->text, "query_pre_attn_scalar", 1e-6, 1e9, &scalar);
    hf_double(r, r->text, "attn_logit_softcapping", 1e-6, 1e9, &softcap);
    hf_double(r, r->text, "final_logit_softcapping", 1e-6, 1e9, &final_softcap);
    if (!family_decoder(r, c, d)) return;
    d->rope_count = 2;
    d->ropes[1] = (struct desc_rope){
        .theta = t->rope[HF_SLIDING].theta, .factor = t->rope[HF_SLIDING].factor, .dim = t->head_dim};
    d->norm_plus_one = true;
    d->embed_scale = sqrt((double)t->hidden_size);
    d->final_softcap = (float)final_softcap;
    d->names.post_attn_norm = "text.layers.#.post_attention_layernorm";
    d->names.pre_mlp_norm = "text.layers.#.pre_feedforward_layernorm";
    d->names.post_mlp_norm = "text.layers.#.post_feedforward_layernorm";
    d->canonical = canonical;
    if (d->eos_count == 0) d->eos_ids[d->eos_count++] = 1; /* the class default */
    for (uint32_t n = 0; n < d->layer_count; n++) {
        struct desc_layer *l = &d->layers[n];
        l->scale = (float)(1.0 / sqrt(scalar)); /* 27B: head_dim 128, scale 168^-0.5 */
        l->softcap = (float)softcap;
        l->rope = t->layer_types[n] == HF_SLIDING;
    }
    if (c->has_vision) describe_vision(c, d);
}

/* ---- pictures ---- */

/* Gemma3ImageProcessor; the three crop settings are defaults of Gemma3Processor, used where the class has
 * null. Note: in transformers 5.23 Gemma3Processor passes do_pan_and_scan=false over whatever the file says;
 * we do what the file says. */
static const struct family_pictures PICTURES = {
    .image = {.width = 224,
              .height = 224,
              .filter = IMAGE_BILINEAR,
              .mode = IMAGE_TORCH_U8,
              .do_resize = true,
              .do_rescale = true,
              .do_normalize = true,
              .rescale_factor = 1.0 / 255.0,
              .mean = {0.5f, 0.5f, 0.5f},
              .std = {0.5f, 0.5f, 0.5f},
              .pan_and_scan = false,
              .pan_min_crop = 256,
              .pan_max_crops = 4,
              .pan_min_ratio = 1.2},
};

const struct family family_gemma3 = {
    .types = {{"gemma3", HF_NESTED, &GEMMA3_TEXT, &SIGLIP}, {"gemma3_text", HF_FLAT, &GEMMA3_TEXT, NULL}},
    .read = read,
    .describe = describe,
    .pictures = &PICTURES,
};
