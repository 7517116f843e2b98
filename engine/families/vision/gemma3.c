/* Gemma 3 (text 270M, 1B; text and images 4B, 12B, 27B with a SigLIP tower; their fine-tunes). Formulas and
 * names: transformers models/gemma3 and models/siglip. Pitfalls are noted at the lines concerned. */
#include "engine/families/gemma.h"
#include "engine/families/standard.h"

#include "config/base/log.h"

#include <math.h>
#include <stdio.h>

/* ---- config.json ---- */

static const struct hf_text GEMMA3_TEXT = {
    TEXT_SIZES(262208, 2304, 9216, 26, 8, 4, 131072),
    GEMMA_COMMON,
    .sliding_window = 4096,
    .qk_norm = true,
    .query_pre_attn_scalar = 256,
    .rope = {[HF_FULL] = {.type = HF_ROPE_DEFAULT, .theta = 1e6, .factor = 1},
             [HF_SLIDING] = {.type = HF_ROPE_DEFAULT, .theta = 1e4, .factor = 1}}};

/* Both spellings, and mixed files with per-type dicts without rope_theta and the flat keys. */
static void read_rope(struct hf_reader *r, uint32_t obj, struct hf_text *t)
{
    static const char *const names[2] = {[HF_FULL] = "full_attention", [HF_SLIDING] = "sliding_attention"};
    hf_double(r, obj, "rope_theta", 1.0, 1e12, &t->rope[HF_FULL].theta);
    hf_double(r, obj, "rope_local_base_freq", 1.0, 1e12, &t->rope[HF_SLIDING].theta);
    uint32_t params = json_get_live(r->d, obj, "rope_parameters"),
             scaling = json_get_live(r->d, obj, "rope_scaling");
    bool per_type = false;
    for (int k = 0; k < 2; k++) {
        uint32_t dict = json_get_live(r->d, params, names[k]);
        per_type |= json_get(r->d, params, names[k]) != JSON_NONE;
        hf_double(r, dict, "rope_theta", 1.0, 1e12, &t->rope[k].theta);
        standard_rope_type(r, dict, t, &t->rope[k]);
    }
    if (params != JSON_NONE && !per_type && json_count(r->d, params) > 0) {
        log_warn("%s: rope_parameters has no entries per layer type: read as those of full attention",
                 r->file);
        hf_double(r, params, "rope_theta", 1.0, 1e12, &t->rope[HF_FULL].theta);
        standard_rope_type(r, params, t, &t->rope[HF_FULL]);
    }
    /* transformers (5.23) lays rope_scaling over {"rope_type": "default"}, so for this family the old
     * spelling "type" is silently ignored; vLLM uses it. Which one a checkpoint expects is unknown: rejected.
     * (Released files have rope_type. In the Qwen families "type" counts.) */
    uint32_t old = json_get_live(r->d, scaling, "type");
    if (json_kind(r->d, scaling) == JSON_OBJECT && json_get_live(r->d, scaling, "rope_type") == JSON_NONE &&
        old != JSON_NONE && !json_str_eq(r->d, old, "default"))
        hf_error(r, ST_UNSUPPORTED, "rope_scaling",
                 "has \"type\", which transformers ignores for Gemma 3: write \"rope_type\", or take the "
                 "entry out");
    hf_double(r, scaling, "rope_theta", 1.0, 1e12, &t->rope[HF_FULL].theta);
    standard_rope_type(r, scaling, t, &t->rope[HF_FULL]);
}

static void full_every(struct hf_text *t, uint32_t step)
{
    for (uint32_t n = 0; n < t->num_hidden_layers; n++)
        t->layer_types[n] = (n + 1) % step == 0 ? HF_FULL : HF_SLIDING;
}

static void read_layer_types(struct hf_reader *r, uint32_t obj, struct hf_text *t)
{
    uint32_t pattern = 6;
    if (hf_layer_types(r, obj, HF_SLIDING, t) || r->st) return;
    hf_u32(r, obj, "sliding_window_pattern", 1, HF_LAYERS_MAX, &pattern);
    full_every(t, pattern);
}

static void read_text(struct hf_reader *r, uint32_t obj, struct hf_text *t)
{
    hf_text_sizes(r, obj, t);
    hf_text_heads(r, obj, t);
    hf_u32(r, obj, "sliding_window", 1, 1u << 30, &t->sliding_window);
    hf_bool(r, obj, "attention_bias", &t->qkv_bias);
    t->o_bias = t->qkv_bias;
    hf_bool(r, obj, "tie_word_embeddings", &t->tie_word_embeddings);
    hf_gate(r, obj, "hidden_activation", &t->activation);
    read_rope(r, obj, t);
    read_layer_types(r, obj, t);
    hf_double(r, obj, "query_pre_attn_scalar", 1e-6, 1e9, &t->query_pre_attn_scalar);
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    read_text(r, r->text, &c->text);
    hf_bool(r, r->text, "use_bidirectional_attention", &c->encoder);
    if (c->encoder && c->has_vision)
        hf_error(r, ST_UNSUPPORTED, "use_bidirectional_attention", "an encoder with images is not served");
    /* attn_logit_softcapping is in no class's forward, final_logit_softcapping not in that with images. */
    if (type->place == HF_NESTED) hf_bool(r, 0, "tie_word_embeddings", &c->text.tie_word_embeddings);
    else hf_double(r, 0, "final_logit_softcapping", 1e-6, 1e9, &c->text.final_logit_softcapping);
    hf_u32(r, r->text, "bos_token_id", 0, SIZE_MAX_VOCAB - 1, &c->bos_id);
    if (!c->has_vision) return;
    siglip_read(r, r->vision, &c->vision);
    c->mm_tokens_per_image = 256;
    hf_u32(r, 0, "mm_tokens_per_image", 1, 1u << 16, &c->mm_tokens_per_image);
    hf_u32(r, 0, "image_token_id", 0, SIZE_MAX_VOCAB - 1, &c->image_id);
    hf_u32(r, 0, "image_token_index", 0, SIZE_MAX_VOCAB - 1, &c->image_id); /* wins */
}

/* ---- description ---- */

/* The processor's sentence, as in training. */
static int crops(char out[MODEL_TEXT_BYTES], const struct image_place *at)
{
    const char *between = at->n == 1 ? " and here are some crops to help you see better " : " ";
    if (at->n == 0 || at->n == at->count)
        between = at->n == 0 && at->count > 1 ? "Here is the original image " : "";
    return snprintf(out, MODEL_TEXT_BYTES, "%s%s%s", at->n ? "<end_of_image>\n\n" : "", between,
                    at->n < at->count ? "\n\n<start_of_image>" : "");
}

/* The number of placeholder tokens is a square that divides the patch grid: an average pool maps the grid to
 * it. */
static void describe_vision(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    uint32_t side = 1, grid = c->vision.image_size / c->vision.patch_size;
    while (side * side < c->mm_tokens_per_image) side++;
    if (side * side != c->mm_tokens_per_image || side > grid || grid % side)
        hf_error(r, ST_FORMAT, "mm_tokens_per_image", "must be a square whose side divides the patch grid");
    d->has_vision = true;
    d->vision = siglip_tower(c);
    d->vision.end = VISION_POOL;
    d->vision.pool = grid / side;
    d->vision.tokens = c->mm_tokens_per_image;
    d->vision.names.soft_norm = "projector.mm_soft_emb_norm";
    d->vision.names.projection = "projector.mm_input_projection_weight";
    d->image = (struct model_image_rule){
        .present = true,
        .marker = "<start_of_image>",
        .placeholder = "<image_soft_token>",
        .placeholder_id = c->image_id,
        .tokens = c->mm_tokens_per_image,
        .layout = crops,
        .parts = {.trim = true},
        .rule = SPAN_BIDIRECTIONAL, /* its tokens see each other in both directions */
    };
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    const struct hf_text *t = &c->text;
    if (!family_decoder(r, c, d)) return;
    d->rope_count = 2;
    d->ropes[1] = family_rope(&t->rope[HF_SLIDING], t->head_dim);
    d->norm_plus_one = true;
    d->embed_scale = sqrt((double)t->hidden_size);
    d->final_softcap = (float)t->final_logit_softcapping;
    d->names.post_attn_norm = "text.layers.#.post_attention_layernorm";
    d->names.pre_mlp_norm = "text.layers.#.pre_feedforward_layernorm";
    d->names.post_mlp_norm = "text.layers.#.post_feedforward_layernorm";
    d->canonical = gemma_canonical;
    if (d->eos_count == 0) d->eos_ids[d->eos_count++] = 1; /* the class default */
    for (uint32_t n = 0; n < d->layer_count; n++) {
        struct desc_layer *l = &d->layers[n];
        l->scale = (float)(1.0 / sqrt(t->query_pre_attn_scalar)); /* 27B: head_dim 128, 168^-0.5 */
        l->rope = t->layer_types[n] == HF_SLIDING;
        if (c->encoder && l->window) l->window = l->window / 2 + 1; /* of each direction */
    }
    if (c->has_vision) describe_vision(r, c, d);
    d->encoder = c->encoder;
    if (d->encoder) d->image.rule = SPAN_PREFIX_LM;
}

/* ---- images ---- */

/* Gemma3ImageProcessor; the three crop settings are defaults of Gemma3Processor, used where the class has
 * null. Note: in transformers 5.23 Gemma3Processor overrides the file with do_pan_and_scan=false; here the
 * file counts. */
static const struct family_images IMAGES = {
    .image = {SIGLIP_IMAGES(IMAGE_BILINEAR), .pan_and_scan = false, .pan_min_crop = 256, .pan_max_crops = 4,
              .pan_min_ratio = 1.2},
};

/* ---- GGUF files ---- */

/* A released file has the window but not its layers; without a window all are full. */
static void gguf_windows(struct gguf_keys *k, struct hf_text *t)
{
    static const char key[] = "attention.sliding_window_pattern";
    const struct gguf_value *pattern = gguf_key(k, key);
    uint32_t step = 6, window = 0;
    gguf_read_u32(k, "attention.sliding_window", false, 0, 1u << 30, &window);
    if (window) t->sliding_window = window;
    if (!window) step = 1;
    else if (pattern && pattern->kind == GGUF_ARRAY) {
        gguf_layer_types(k, key, HF_SLIDING, t);
        return;
    } else {
        gguf_read_u32(k, key, false, 1, HF_LAYERS_MAX, &step);
    }
    full_every(t, step);
}

static void gguf_text(struct gguf_keys *k, struct hf_text *t)
{
    struct hf_rope *full = &t->rope[HF_FULL];
    gguf_read_f64(k, "rope.freq_base_swa", 1, 1e12, &t->rope[HF_SLIDING].theta);
    gguf_rope(k, full);
    if (full->type == HF_ROPE_YARN)
        gguf_error(k, ST_UNSUPPORTED, "rope.scaling.type", "only none and linear are served");
    /* Ollama's files omit the scaling of 4B and larger. */
    if (!gguf_key(k, "rope.scaling.type") && gguf_key(k, "mm.tokens_per_image") &&
        t->max_position_embeddings >= 131072) {
        full->type = HF_ROPE_LINEAR;
        full->factor = 8;
    }
    gguf_read_f64(k, "final_logit_softcapping", 1e-6, 1e9, &t->final_logit_softcapping);
    gguf_windows(k, t);
    gemma_gguf_scale(k, t, 62);
}

/* A vocabulary without the image's placeholder token, as in early conversions: an unused one takes its
 * place. */
static void gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    uint32_t scale = 4, id;
    c->mm_tokens_per_image = 256;
    gguf_read_f64(k, "clip.vision.attention.layer_norm_epsilon", 0, 1, &v->layer_norm_eps);
    gguf_read_u32(k, "clip.vision.image_size", true, 1, SIZE_MAX_IMAGE, &v->image_size);
    gguf_read_u32(k, "clip.vision.projector.scale_factor", false, 1, 256, &scale);
    siglip_check(&k->r, v);
    uint32_t side = v->image_size / v->patch_size / scale;
    gguf_set_u32(k, "clip.vision.projector.scale_factor", side * side, 1, 1u << 16, &c->mm_tokens_per_image);
    if ((gguf_token(k, "<image_soft_token>", &id) && id < c->text.vocab_size) ||
        gguf_token(k, "<unused99>", &id))
        c->image_id = id;
}

static void read_gguf_images(struct gguf_keys *k, struct image_config *out)
{
    gguf_read_u32(k, "clip.vision.image_size", true, 1, SIZE_MAX_IMAGE, &out->width);
    out->height = out->width;
}

static const struct gguf_name TOWER_NAMES[] = {
    SIGLIP_GGUF("vision_tower.vision_model."),
    {"mm.soft_emb_norm", "multi_modal_projector.mm_soft_emb_norm"},
    {"mm.input_projection.weight", "multi_modal_projector.mm_input_projection_weight"},
    {NULL, NULL},
};

static const struct family_gguf gguf_kinds[] = {
    {GGUF_TEXT("gemma3", "gemma3_text", gguf_text),
     GGUF_TOWER("gemma3", "gemma3", TOWER_NAMES, gguf_tower, read_gguf_images), .norms_plus_one = true,
     .names = gemma_gguf_names, .stops = gemma_gguf_stops},
    {GGUF_TEXT("gemma-embedding", "gemma3_text", gguf_text), .encoder = true, .norms_plus_one = true,
     .names = gemma_gguf_names},
    {NULL},
};

const struct family family_gemma3 = {
    .types = {{"gemma3", HF_NESTED, &GEMMA3_TEXT, &siglip_defaults, .pad = 1},
              {"gemma3_text", HF_FLAT, &GEMMA3_TEXT, NULL, .pad = 1}},
    .read = read,
    .describe = describe,
    .bos_id = 2,
    .image_id = 262144,
    .images = &IMAGES,
    .gguf = gguf_kinds,
};
