/* Gemma 3 (text 270M, 1B; text and pictures 4B, 12B, 27B with a SigLIP tower; their fine-tunes). Formulas and
 * names: transformers models/gemma3 and models/siglip. What is easy to get wrong stands beside the line that
 * gets it right. */
#include "engine/families/gemma.h"

#include "config/base/log.h"

#include <math.h>

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

/* The number of soft tokens is a square that divides the patch grid: an average pool makes the one from the
 * other. */
static void check_image_tokens(struct hf_reader *r, const struct hf_config *c)
{
    uint32_t side = 1, grid = c->vision.image_size / c->vision.patch_size;
    while (side * side < c->mm_tokens_per_image) side++;
    if (side * side != c->mm_tokens_per_image || side > grid || grid % side)
        hf_fault(r, ST_FORMAT, "mm_tokens_per_image", "must be a square whose side divides the patch grid");
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    read_text(r, r->text, &c->text);
    if (type->place == HF_NESTED) hf_bool(r, 0, "tie_word_embeddings", &c->text.tie_word_embeddings);
    c->bos_id = 2;
    hf_u32(r, r->text, "bos_token_id", 0, SIZE_MAX_VOCAB - 1, &c->bos_id);
    if (!c->has_vision) return;
    siglip_read(r, r->vision, &c->vision);
    c->mm_tokens_per_image = 256;
    c->boi_id = 255999;
    c->eoi_id = 256000;
    c->image_id = 262144;
    hf_u32(r, 0, "mm_tokens_per_image", 1, 1u << 16, &c->mm_tokens_per_image);
    gemma_id(r, "boi_token_index", "boi_token_id", &c->boi_id);
    gemma_id(r, "eoi_token_index", "eoi_token_id", &c->eoi_id);
    gemma_id(r, "image_token_index", "image_token_id", &c->image_id);
    if (!r->st) check_image_tokens(r, c);
}

/* ---- description ---- */

static void describe_vision(const struct hf_config *c, struct model_desc *d)
{
    uint32_t side = 1;
    while (side * side < c->mm_tokens_per_image) side++;
    d->has_vision = true;
    d->vision = siglip_tower(c);
    d->vision.end = VISION_POOL;
    d->vision.pool = c->vision.image_size / c->vision.patch_size / side;
    d->vision.tokens = c->mm_tokens_per_image;
    d->vision.names.soft_norm = "projector.mm_soft_emb_norm";
    d->vision.names.projection = "projector.mm_input_projection_weight";
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
    d->canonical = gemma_canonical;
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

/* ---- GGUF files ---- */

/* A released file has the window and not which layers it is for; without a window all are full. */
static void gguf_windows(struct gguf_keys *k)
{
    const struct gguf_value *pattern = gguf_key(k, "attention.sliding_window_pattern");
    uint32_t step = 6, window = 0;
    bool slides = gguf_key_u32(k, "attention.sliding_window", &window) && window > 0;
    if (slides) gguf_put_u32(k, "sliding_window", window);
    if (!slides) step = 1;
    else if (pattern && pattern->kind != GGUF_ARRAY)
        (void)gguf_key_u32(k, "attention.sliding_window_pattern", &step);
    else if (pattern) {
        gguf_put_layer_types(k, "attention.sliding_window_pattern");
        return;
    }
    gguf_put_u32(k, "sliding_window_pattern", step);
}

static void gguf_text(struct gguf_keys *k)
{
    double local = 1e4;
    (void)gguf_key_f64(k, "rope.freq_base_swa", &local);
    gguf_copy_f64(k, "rope_theta", "rope.freq_base");
    gguf_put_f64(k, "rope_local_base_freq", local);
    /* Ollama's files say nothing of the scaling that 4B and more have. */
    uint32_t context = 0, picture;
    bool ollama = !gguf_key(k, "rope.scaling.type") && gguf_key_u32(k, "mm.tokens_per_image", &picture) &&
                  gguf_key_u32(k, "context_length", &context) && context >= 131072;
    if (ollama) gguf_put(k, ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}");
    else gguf_put_rope_scaling(k, "");
    gguf_copy_f64(k, "final_logit_softcapping", "final_logit_softcapping");
    gguf_windows(k);
    gemma_gguf_scale(k, 62);
}

static void gguf_tower(struct gguf_keys *k)
{
    uint32_t v = 0;
    double eps = 1e-6;
    (void)gguf_f64(gguf_tower_key(k, "vision.attention.layer_norm_epsilon"), &eps);
    gguf_put_f64(k, "layer_norm_eps", eps);
    if (gguf_tower_u32(k, "vision.embedding_length", true, &v)) gguf_put_u32(k, "hidden_size", v);
    if (gguf_tower_u32(k, "vision.block_count", true, &v)) gguf_put_u32(k, "num_hidden_layers", v);
    if (gguf_tower_u32(k, "vision.attention.head_count", true, &v)) gguf_put_u32(k, "num_attention_heads", v);
    if (gguf_tower_u32(k, "vision.image_size", true, &v)) gguf_put_u32(k, "image_size", v);
    if (gguf_tower_u32(k, "vision.patch_size", true, &v)) gguf_put_u32(k, "patch_size", v);
    gguf_put_u32(k, "intermediate_size", gguf_tower_width(k));
}

/* A vocabulary without the token that stands for a picture's rows, as the files of the first conversions
 * have: another one that nobody writes. */
static void gguf_top(struct gguf_keys *k)
{
    uint32_t size = 0, patch = 1, scale = 4, id, rows = gguf_rows(k, "token_embd.weight");
    if (!gguf_tower_u32(k, "vision.image_size", true, &size) ||
        !gguf_tower_u32(k, "vision.patch_size", true, &patch))
        return;
    (void)gguf_tower_u32(k, "vision.projector.scale_factor", false, &scale);
    uint32_t side = patch && scale ? size / patch / scale : 0;
    gguf_put_u32(k, "mm_tokens_per_image", side < 256 ? side * side : 0);
    gguf_put_token(k, "boi_token_index", "<start_of_image>");
    gguf_put_token(k, "eoi_token_index", "<end_of_image>");
    if ((gguf_token(k, "<image_soft_token>", &id) && id < rows) || gguf_token(k, "<unused99>", &id))
        gguf_put_u32(k, "image_token_index", id);
}

static void gguf_pictures(struct gguf_keys *k)
{
    uint32_t size = 0;
    if (gguf_tower_u32(k, "vision.image_size", true, &size))
        gguf_put(k, ",\"size\":{\"height\":%u,\"width\":%u}", size, size);
}

static const struct gguf_name TOWER_NAMES[] = {
    {"v.patch_embd", "vision_tower.vision_model.embeddings.patch_embedding"},
    {"v.position_embd", "vision_tower.vision_model.embeddings.position_embedding"},
    {"v.blk.#.ln1", "vision_tower.vision_model.encoder.layers.#.layer_norm1"},
    {"v.blk.#.ln2", "vision_tower.vision_model.encoder.layers.#.layer_norm2"},
    {"v.blk.#.attn_q", "vision_tower.vision_model.encoder.layers.#.self_attn.q_proj"},
    {"v.blk.#.attn_k", "vision_tower.vision_model.encoder.layers.#.self_attn.k_proj"},
    {"v.blk.#.attn_v", "vision_tower.vision_model.encoder.layers.#.self_attn.v_proj"},
    {"v.blk.#.attn_out", "vision_tower.vision_model.encoder.layers.#.self_attn.out_proj"},
    {"v.blk.#.ffn_up", "vision_tower.vision_model.encoder.layers.#.mlp.fc1"},
    {"v.blk.#.ffn_down", "vision_tower.vision_model.encoder.layers.#.mlp.fc2"},
    {"v.post_ln", "vision_tower.vision_model.post_layernorm"},
    {"mm.soft_emb_norm", "multi_modal_projector.mm_soft_emb_norm"},
    {"mm.input_projection.weight", "multi_modal_projector.mm_input_projection_weight"},
    {NULL, NULL},
};

static const struct family_gguf gguf_kinds[] = {
    {.arch = "gemma3",
     .model_type = "gemma3_text",
     .norms_plus_one = true,
     .names = gemma_gguf_names,
     .text = gguf_text,
     .stops = gemma_gguf_stops},
    {.arch = "gemma3",
     .projector = "gemma3",
     .model_type = "gemma3",
     .nested = true,
     .norms_plus_one = true,
     .names = gemma_gguf_names,
     .tower_names = TOWER_NAMES,
     .text = gguf_text,
     .top = gguf_top,
     .tower = gguf_tower,
     .pictures = gguf_pictures,
     .stops = gemma_gguf_stops},
    {NULL},
};

const struct family family_gemma3 = {
    .types = {{"gemma3", HF_NESTED, &GEMMA3_TEXT, &siglip_defaults},
              {"gemma3_text", HF_FLAT, &GEMMA3_TEXT, NULL}},
    .read = read,
    .describe = describe,
    .pictures = &PICTURES,
    .gguf = gguf_kinds,
};
