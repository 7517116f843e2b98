/* Gemma 4: text and images (E2B, E4B with per-layer embeddings; 26B-A4B is a MoE; 31B; the 12B, which has
 * no tower). Audio is not served. Formulas and names: transformers models/gemma4 and models/gemma4_unified.
 * Pitfalls are noted at the lines concerned. */
#include "engine/families/standard.h"

#include "config/base/log.h"
#include "config/hf/reader.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- config.json ---- */

#define TEXT(...)                                                                                            \
    {                                                                                                        \
        .vocab_size = 262144, .hidden_size = 2304, .intermediate_size = 9216, .num_hidden_layers = 30,       \
        .num_attention_heads = 8, .num_key_value_heads = 4, .head_dim = 256, .rms_norm_eps = 1e-6,           \
        .tie_word_embeddings = true, .qk_norm = true, .activation = HF_GELU_TANH, __VA_ARGS__                \
    }
static const struct hf_text GEMMA4_TEXT =
    TEXT(.max_position_embeddings = 131072, .sliding_window = 512, .hidden_size_per_layer_input = 256);
static const struct hf_text UNIFIED_TEXT = TEXT(.max_position_embeddings = 262144, .sliding_window = 1024);

static const struct hf_vision TOWER = {
    .hidden_size = 768,
    .intermediate_size = 3072,
    .num_hidden_layers = 16,
    .num_attention_heads = 12,
    .num_channels = 3,
    .patch_size = 16,
    .spatial_merge_size = 3,
    .layer_norm_eps = 1e-6,
    .rope_theta = 100,
    .position_side = 10240, /* of an axis */
};
static const struct hf_vision UNIFIED_VISION = {
    .hidden_size = 3840,
    .num_channels = 3,
    .patch_size = 16,
    .spatial_merge_size = 3,
    .layer_norm_eps = 1e-6,
    .position_side = 1120,
};

static bool is_unified(const struct hf_config *c)
{
    return family_after(c->model_type, "gemma4_unified") != NULL;
}

static bool is_drafter(const struct hf_config *c)
{
    return strstr(c->model_type, "_assistant") != NULL;
}

static void check_tower(struct hf_reader *r, const struct hf_vision *v, uint32_t head, uint32_t kv_heads)
{
    if (head % 4 || head * v->num_attention_heads != v->hidden_size || kv_heads != v->num_attention_heads)
        hf_error(r, ST_UNSUPPORTED, "head_dim",
                 "only heads of a multiple of 4 that make up hidden_size are served, each with its own keys");
}

static void read_tower(struct hf_reader *r, struct hf_vision *v)
{
    uint32_t head = 64, kv_heads = v->num_attention_heads,
             rope = json_get_live(r->d, r->vision, "rope_parameters"),
             type = json_get_live(r->d, rope, "rope_type");
    hf_u32(r, r->vision, "hidden_size", 1, SIZE_MAX_HIDDEN, &v->hidden_size);
    hf_u32(r, r->vision, "intermediate_size", 1, SIZE_MAX_FF, &v->intermediate_size);
    hf_u32(r, r->vision, "num_hidden_layers", 1, HF_LAYERS_MAX, &v->num_hidden_layers);
    hf_u32(r, r->vision, "num_attention_heads", 1, SIZE_MAX_HEADS, &v->num_attention_heads);
    hf_u32(r, r->vision, "num_key_value_heads", 1, SIZE_MAX_HEADS, &kv_heads);
    hf_u32(r, r->vision, "head_dim", 2, SIZE_MAX_HEAD_DIM, &head);
    hf_u32(r, r->vision, "position_embedding_size", 1, 1u << 16, &v->position_side);
    hf_double(r, rope, "rope_theta", 1.0, 1e12, &v->rope_theta);
    hf_activation(r, r->vision, "hidden_activation", HF_GELU_TANH);
    hf_bool(r, r->vision, "use_clipped_linears", &v->use_clipped_linears);
    hf_bool(r, r->vision, "standardize", &v->standardize);
    bool bias = false;
    hf_bool(r, r->vision, "attention_bias", &bias); /* the classes have none, whatever it says */
    if (type != JSON_NONE && !json_str_eq(r->d, type, "axial") && !json_str_eq(r->d, type, "default"))
        hf_error(r, ST_UNSUPPORTED, "rope_type", "only axial is served");
    check_tower(r, v, head, kv_heads);
}

static void read_vision(struct hf_reader *r, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    r->scope = "vision_config.";
    hf_u32(r, r->vision, "patch_size", 1, SIZE_MAX_PATCH, &v->patch_size);
    hf_u32(r, r->vision, "pooling_kernel_size", 1, 64, &v->spatial_merge_size);
    hf_double(r, r->vision, "rms_norm_eps", 0, 1, &v->layer_norm_eps);
    if (is_unified(c)) {
        uint32_t out = v->hidden_size;
        hf_u32(r, r->vision, "mm_embed_dim", 1, SIZE_MAX_HIDDEN, &v->hidden_size);
        hf_u32(r, r->vision, "mm_posemb_size", 1, 1u << 16, &v->position_side);
        hf_u32(r, r->vision, "output_proj_dims", 1, SIZE_MAX_HIDDEN, &out);
        if (!r->st && out != v->hidden_size)
            hf_error(r, ST_UNSUPPORTED, "output_proj_dims", "only that of mm_embed_dim is served");
        if (!r->st && v->patch_size * v->spatial_merge_size > SIZE_MAX_PATCH / 3)
            hf_error(r, ST_UNSUPPORTED, "patch_size", "is too large together with pooling_kernel_size");
    } else {
        read_tower(r, v);
    }
    r->scope = "";
    hf_u32(r, 0, "image_token_id", 0, SIZE_MAX_VOCAB - 1, &c->image_id);
    hf_u32(r, 0, "video_token_id", 0, SIZE_MAX_VOCAB - 1, &c->video_id);
    c->audio_id = 258881; /* of the class */
    hf_u32(r, 0, "audio_token_id", 0, SIZE_MAX_VOCAB - 1, &c->audio_id);
    if (!r->st && json_kind(r->d, json_get_live(r->d, 0, "audio_config")) == JSON_OBJECT)
        log_info("%s: the model can listen; sound is not served, and its tower is not loaded", r->file);
}

/* One entry of rope_parameters; `name` is the type of layer. */
static void read_rope(struct hf_reader *r, const char *name, bool full, struct hf_text *t)
{
    struct hf_rope *rope = &t->rope[full ? HF_FULL : HF_SLIDING];
    uint32_t params = json_get_live(r->d, r->text, "rope_parameters"),
             dict = json_get_live(r->d, params, name), type = json_get_live(r->d, dict, "rope_type");
    *rope = (struct hf_rope){.theta = 1e4, .factor = 1, .partial = 1};
    if (params == JSON_NONE && full) { /* the class's own */
        rope->theta = 1e6;
        rope->partial = 0.25;
    } else if (params != JSON_NONE && json_kind(r->d, dict) != JSON_OBJECT) {
        hf_error(r, ST_FORMAT, "rope_parameters", "must have an object for each type of layer");
    } else {
        hf_double(r, dict, "rope_theta", 1.0, 1e12, &rope->theta);
        if (type != JSON_NONE && json_str_eq(r->d, type, "proportional")) {
            hf_double(r, dict, "partial_rotary_factor", 0, 1, &rope->partial);
            hf_double(r, dict, "factor", 1e-6, 1e6, &rope->factor);
        } else {
            standard_rope_type(r, dict, t, rope);
        }
    }
}

/* Differences between layers: per_layer_config of transformers 5, else the release's keys, which concern only
 * layers of full attention. */
static void read_layers(struct hf_reader *r, struct hf_text *t)
{
    uint32_t all = json_get_live(r->d, r->text, "per_layer_config"), head_dim = 512,
             kv_heads = t->num_key_value_heads;
    bool has[2] = {false, false};
    if (all != JSON_NONE && json_kind(r->d, all) != JSON_OBJECT)
        hf_error(r, ST_FORMAT, "per_layer_config", "must be an object");
    hf_u32(r, r->text, "global_head_dim", 0, SIZE_MAX_HEAD_DIM, &head_dim);
    if (head_dim == 0) head_dim = t->head_dim;
    hf_bool(r, r->text, "attention_k_eq_v", &t->attention_k_eq_v);
    if (t->attention_k_eq_v) hf_u32(r, r->text, "num_global_key_value_heads", 1, SIZE_MAX_HEADS, &kv_heads);
    for (uint32_t n = 0; n < t->num_hidden_layers && !r->st; n++) {
        bool global = all == JSON_NONE && t->layer_types[n] == HF_FULL;
        char key[16];
        snprintf(key, sizeof key, "%u", n);
        uint32_t own = json_get_live(r->d, all, key);
        t->layer_head_dim[n] = global ? head_dim : t->head_dim;
        t->layer_kv_heads[n] = global ? kv_heads : t->num_key_value_heads;
        hf_u32(r, own, "head_dim", 2, SIZE_MAX_HEAD_DIM, &t->layer_head_dim[n]);
        hf_u32(r, own, "num_key_value_heads", 1, SIZE_MAX_HEADS, &t->layer_kv_heads[n]);
        has[t->layer_types[n]] = true;
    }
    if (has[HF_FULL]) read_rope(r, "full_attention", true, t);
    if (has[HF_SLIDING]) read_rope(r, "sliding_attention", false, t);
}

static void check_experts(struct hf_reader *r, const struct hf_text *t)
{
    if (t->num_experts == 0 || t->num_experts_per_tok == 0 || t->moe_intermediate_size == 0 ||
        t->num_experts_per_tok > t->num_experts)
        hf_error(r, ST_FORMAT, "enable_moe_block",
                 "needs num_experts, top_k_experts of at most as many, and moe_intermediate_size");
}

/* Experts, and per-layer embeddings. */
static void read_extras(struct hf_reader *r, struct hf_text *t)
{
    bool experts = false;
    uint32_t vocab = 262144;
    hf_bool(r, r->text, "enable_moe_block", &experts);
    if (experts) {
        hf_u32(r, r->text, "num_experts", 1, SIZE_MAX_EXPERTS, &t->num_experts);
        hf_u32(r, r->text, "top_k_experts", 1, HF_TOPK_MAX, &t->num_experts_per_tok);
        hf_u32(r, r->text, "moe_intermediate_size", 1, SIZE_MAX_FF, &t->moe_intermediate_size);
        check_experts(r, t);
    }
    hf_u32(r, r->text, "hidden_size_per_layer_input", 0, SIZE_MAX_HIDDEN, &t->hidden_size_per_layer_input);
    hf_u32(r, r->text, "vocab_size_per_layer_input", 1, SIZE_MAX_VOCAB, &vocab);
    hf_u32(r, r->text, "pad_token_id", 0, SIZE_MAX_VOCAB - 1, &t->pad_token_id);
    if (t->hidden_size_per_layer_input && vocab != t->vocab_size)
        hf_error(r, ST_UNSUPPORTED, "vocab_size_per_layer_input", "only that of vocab_size is served");
}

static void read_drafter(struct hf_reader *r, struct hf_config *c)
{
    bool clusters = false;
    c->backbone_hidden_size = 1536;
    c->num_centroids = 2048;
    c->centroid_intermediate_top_k = 32;
    hf_u32(r, 0, "backbone_hidden_size", 1, SIZE_MAX_HIDDEN, &c->backbone_hidden_size);
    hf_bool(r, 0, "use_ordered_embeddings", &clusters);
    hf_u32(r, 0, "num_centroids", 1, 1u << 20, &c->num_centroids);
    hf_u32(r, 0, "centroid_intermediate_top_k", 1, DESC_CENTROIDS_USED_MAX, &c->centroid_intermediate_top_k);
    if (!clusters) c->num_centroids = 0;
}

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    struct hf_text *t = &c->text;
    hf_text_sizes(r, r->text, t);
    hf_text_heads(r, r->text, t);
    hf_u32(r, r->text, "sliding_window", 1, 1u << 30, &t->sliding_window);
    hf_bool(r, r->text, "attention_bias", &t->qkv_bias);
    t->o_bias = t->qkv_bias;
    hf_bool(r, r->text, "tie_word_embeddings", &t->tie_word_embeddings);
    if (type->place == HF_NESTED) hf_bool(r, 0, "tie_word_embeddings", &t->tie_word_embeddings);
    hf_activation(r, r->text, "hidden_activation", HF_GELU_TANH);
    if (!hf_layer_types(r, r->text, HF_SLIDING, t))
        for (uint32_t n = 0; n < t->num_hidden_layers && !r->st; n++)
            t->layer_types[n] = (n + 1) % 6 == 0 ? HF_FULL : HF_SLIDING;
    t->layer_types[t->num_hidden_layers - 1] = HF_FULL; /* whatever the file says */
    hf_u32(r, r->text, "bos_token_id", 0, SIZE_MAX_VOCAB - 1, &c->bos_id);
    uint32_t seen = json_get(r->d, r->text, "use_bidirectional_attention");
    bool stated = seen != JSON_NONE && json_kind(r->d, seen) != JSON_NULL;
    if (stated && !json_str_eq(r->d, seen, "vision"))
        hf_error(r, ST_UNSUPPORTED, "use_bidirectional_attention",
                 "only null and vision are served: \"all\" is an encoder, not a generator");
    c->bidirectional_images = stated || (is_unified(c) && seen == JSON_NONE);
    if (c->has_vision) read_vision(r, c);
    hf_double(r, r->text, "final_logit_softcapping", 1e-6, 1e9, &t->final_logit_softcapping);
    read_layers(r, t);
    if (is_drafter(c)) {
        read_drafter(r, c);
        return;
    }
    hf_u32(r, r->text, "num_kv_shared_layers", 0, t->num_hidden_layers - 1, &t->num_kv_shared_layers);
    hf_bool(r, r->text, "use_double_wide_mlp", &t->use_double_wide_mlp);
    if (!is_unified(c)) read_extras(r, t);
}

/* ---- description ---- */

/* Spellings in files: model.language_model.X (with a tower), model.X (text alone), and both without `model.`.
 * The 12B's patch embedding is vision_embedder.Y in the release and embed_vision.Y if saved again. First
 * releases of the experts have `moe.` for `experts.`, with per_expert_scale in it. */
static bool canonical(const char *name, char out[DESC_NAME_MAX])
{
    const char *s = name, *x = family_after(s, "model.");
    if (x) s = x;
    if (family_after(s, "audio_tower.") || family_after(s, "embed_audio.")) return false;
    const char *part = "text.";
    if ((x = family_after(s, "lm_head."))) part = "head.";
    else if ((x = family_after(s, "vision_tower."))) part = "vision.";
    else if ((x = family_after(s, "embed_vision.multimodal_embedder."))) part = "projector.";
    else if ((x = family_after(s, "embed_vision.")))
        part = family_after(x, "embedding_") ? "projector." : "embedder.";
    else if ((x = family_after(s, "vision_embedder."))) part = "embedder.";
    else if (!(x = family_after(s, "language_model.model.")) && !(x = family_after(s, "language_model.")))
        x = s;
    if ((s = family_after(x, "lm_head."))) {
        part = "head.";
        x = s;
    }
    const char *moe = strcmp(part, "text.") == 0 ? strstr(x, ".moe.") : NULL;
    const char *rest = moe ? moe + strlen(".moe.") : "";
    int n = moe ? snprintf(out, DESC_NAME_MAX, "%s%.*s.%s.%s", part, (int)(moe - x), x,
                           strcmp(rest, "per_expert_scale") == 0 ? "router" : "experts", rest)
                : snprintf(out, DESC_NAME_MAX, "%s%s", part, x);
    return n > 0 && n < (int)DESC_NAME_MAX;
}

/* The exponents' denominator is the whole head, of which only the first pairs rotate. */
static void describe_rope(const struct hf_rope *from, struct desc_rope *rope)
{
    *rope = family_rope(from, rope->dim);
    rope->unrotated_pairs = rope->dim / 2 - (uint32_t)floor(from->partial * rope->dim / 2);
}

static void describe_heads(struct hf_reader *r, const struct hf_text *t, struct model_desc *d)
{
    for (uint32_t n = 0; n < d->layer_count && !r->st; n++) {
        struct desc_layer *l = &d->layers[n];
        l->head_dim = t->layer_head_dim[n];
        l->kv_heads = t->layer_kv_heads[n];
        if (l->head_dim % 2) hf_error(r, ST_FORMAT, "head_dim", "must be even");
        if (l->heads % l->kv_heads)
            hf_error(r, ST_FORMAT, "num_attention_heads", "must be a multiple of num_key_value_heads");
        /* One rotary table for each type of layer. */
        struct desc_rope *rope = &d->ropes[l->rope];
        if (rope->dim && rope->dim != l->head_dim)
            hf_error(r, ST_UNSUPPORTED, "per_layer_config", "layers of one type must have heads of one size");
        rope->dim = l->head_dim;
    }
}

/* The last layers read the keys of the last earlier layer of their type. */
static void describe_sharing(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    uint32_t first = d->layer_count - c->text.num_kv_shared_layers;
    for (uint32_t n = first; n < d->layer_count && !r->st; n++) {
        struct desc_layer *l = &d->layers[n];
        uint32_t owner = first;
        while (owner > 0 && c->text.layer_types[owner - 1] != c->text.layer_types[n]) owner--;
        if (owner == 0) {
            hf_error(r, ST_FORMAT, "num_kv_shared_layers", "leaves no layer of that type with keys");
            return;
        }
        l->kv_owner = owner - 1;
        const struct desc_layer *o = &d->layers[l->kv_owner];
        if (o->kv_heads != l->kv_heads || o->head_dim != l->head_dim)
            hf_error(r, ST_FORMAT, "per_layer_config", "layers that share keys must have the same heads");
        if (c->text.use_double_wide_mlp) l->ff *= 2;
    }
}

static void describe_experts(const struct hf_text *t, struct model_desc *d)
{
    if (t->num_experts == 0) return;
    d->expert_layout = EXPERTS_OUT_IN;
    d->names.router = "text.layers.#.router.proj";
    d->names.router_norm = "text.layers.#.router.scale";
    d->names.router_scale = "text.layers.#.router.per_expert_scale";
    d->names.expert_gate_up = "text.layers.#.experts.gate_up_proj";
    d->names.expert_down_all = "text.layers.#.experts.down_proj";
    d->names.expert_norm = "text.layers.#.pre_feedforward_layernorm_2";
    d->names.experts_norm = "text.layers.#.post_feedforward_layernorm_2";
    d->names.shared_norm = "text.layers.#.post_feedforward_layernorm_1";
    for (uint32_t n = 0; n < d->layer_count; n++) {
        struct desc_layer *l = &d->layers[n];
        l->shared_ff = l->ff;
        l->ff = t->moe_intermediate_size;
        l->experts = t->num_experts;
        l->experts_used = t->num_experts_per_tok;
        l->experts_renorm = true;
    }
}

/* Per-layer embeddings. An image's tokens read the row of the padding token. */
static void describe_ple(const struct hf_text *t, struct model_desc *d)
{
    d->ple = t->hidden_size_per_layer_input;
    if (d->ple == 0) return;
    d->token_scale = sqrt((double)d->ple);
    d->names.ple_table = "text.embed_tokens_per_layer";
    d->names.ple_project = "text.per_layer_model_projection";
    d->names.token_norm = "text.per_layer_projection_norm";
    d->names.ple_gate = "text.layers.#.per_layer_input_gate";
    d->names.token_up = "text.layers.#.per_layer_projection";
    d->names.token_post_norm = "text.layers.#.post_per_layer_input_norm";
}

static int stamp(char out[MODEL_TEXT_BYTES], double seconds)
{
    uint32_t s = seconds > 0 && seconds < 1e9 ? (uint32_t)seconds : 0;
    return snprintf(out, MODEL_TEXT_BYTES, "%02u:%02u ", s / 60, s % 60);
}

static void describe_tower(const struct hf_config *c, struct desc_vision *v)
{
    v->clip = c->vision.use_clipped_linears;
    v->ff = c->vision.intermediate_size;
    v->layers = c->vision.num_hidden_layers;
    v->heads = c->vision.num_attention_heads;
    v->rms = v->no_bias = v->v_norm = v->centred = v->rope_halves = true;
    v->scale = 1;
    v->mlp = VISION_GLU_GELU;
    v->rope_theta = c->vision.rope_theta;
    v->end = VISION_POOL;
    v->pool = v->merge = c->vision.spatial_merge_size;
    v->pool_factor = (float)sqrt((double)v->hidden);
    v->names.patch = "vision.patch_embedder.input_proj";
    v->names.position = "vision.patch_embedder.position_embedding_table";
    v->names.norm1 = "vision.encoder.layers.#.input_layernorm";
    v->names.post_attn = "vision.encoder.layers.#.post_attention_layernorm";
    v->names.norm2 = "vision.encoder.layers.#.pre_feedforward_layernorm";
    v->names.post_mlp = "vision.encoder.layers.#.post_feedforward_layernorm";
    v->names.q = "vision.encoder.layers.#.self_attn.q_proj.linear";
    v->names.k = "vision.encoder.layers.#.self_attn.k_proj.linear";
    v->names.v = "vision.encoder.layers.#.self_attn.v_proj.linear";
    v->names.o = "vision.encoder.layers.#.self_attn.o_proj.linear";
    v->names.q_norm = "vision.encoder.layers.#.self_attn.q_norm";
    v->names.k_norm = "vision.encoder.layers.#.self_attn.k_norm";
    v->names.fc1 = "vision.encoder.layers.#.mlp.gate_proj.linear";
    v->names.up = "vision.encoder.layers.#.mlp.up_proj.linear";
    v->names.fc2 = "vision.encoder.layers.#.mlp.down_proj.linear";
    if (c->vision.standardize) {
        v->names.std_bias = "vision.std_bias";
        v->names.std_scale = "vision.std_scale";
    }
}

static void describe_vision(const struct hf_config *c, struct model_desc *d)
{
    struct desc_vision *v = &d->vision;
    d->has_vision = true;
    /* Also sampled ones, which have no features: transformers' forward embeds the padding token for each. */
    d->pads[0] = c->image_id;
    d->pads[1] = c->video_id;
    d->pads[2] = c->audio_id;
    d->pad_count = 3;
    *v = (struct desc_vision){.patch = c->vision.patch_size,
                              .hidden = c->vision.hidden_size,
                              .eps = (float)c->vision.layer_norm_eps,
                              .depth = 1,
                              .channels_last = true,
                              .position_axis = c->vision.position_side,
                              .names = {.project = "projector.embedding_projection"}};
    if (is_unified(c)) {
        v->end = VISION_EMBED;
        v->patch *= c->vision.spatial_merge_size;
        v->merge = v->heads = 1;
        v->patch_bias = v->position_pairs = true;
        v->names.patch = "embedder.patch_dense";
        v->names.position = "embedder.pos_embedding";
        v->names.patch_norm = "embedder.patch_ln1";
        v->names.dense_norm = "embedder.patch_ln2";
        v->names.position_norm = "embedder.pos_norm";
    } else {
        describe_tower(c, v);
    }
    d->image = (struct model_image_rule){
        .present = true,
        .marker = "<|image|>",
        .prefix = "<|image>",
        .suffix = "<image|>",
        .placeholder = "<|image|>",
        .placeholder_id = c->image_id,
        /* transformers 5.23, forward of the two classes: without a tower an image's tokens see each other in
         * all layers, whatever the window. */
        .rule = !c->bidirectional_images ? SPAN_CAUSAL
                : is_unified(c)          ? SPAN_BIDIRECTIONAL_ANY
                                         : SPAN_BIDIRECTIONAL_SLIDING,
        .video_marker = "<|video|>",
        .video_prefix = "<|image>",
        .video_suffix = "<image|>",
        .video_placeholder = "<|video|>",
        .video_between = " ",
        .video_placeholder_id = c->video_id,
        .video_stamp = stamp,
        .parts = {.trim = true},
    };
}

/* The draft model (models/gemma4_assistant): a text model whose layers all read the target's keys. The
 * target's softcaps don't apply. */
static void describe_drafter(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    uint32_t count = c->num_centroids;
    d->drafts_for = c->backbone_hidden_size;
    d->names.draft_in = "text.pre_projection";
    d->names.draft_out = "text.post_projection";
    if (count == 0) return;
    if (c->centroid_intermediate_top_k > count || d->vocab % count)
        hf_error(r, ST_FORMAT, "num_centroids",
                 "must divide vocab_size and be at least centroid_intermediate_top_k");
    d->centroids = count;
    d->centroids_used = c->centroid_intermediate_top_k;
    d->names.centroids = "text.masked_embedding.centroids";
    d->names.clusters = "text.masked_embedding.token_ordering";
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    const struct hf_text *t = &c->text;
    if (!family_decoder(r, c, d)) return;
    d->rope_count = 2;
    d->ropes[HF_FULL] = d->ropes[HF_SLIDING] = (struct desc_rope){.factor = 1};
    d->embed_scale = sqrt((double)t->hidden_size);
    d->final_softcap = (float)t->final_logit_softcapping;
    d->names.post_attn_norm = "text.layers.#.post_attention_layernorm";
    d->names.pre_mlp_norm = "text.layers.#.pre_feedforward_layernorm";
    d->names.post_mlp_norm = "text.layers.#.post_feedforward_layernorm";
    d->names.layer_scale = "text.layers.#.layer_scalar";
    d->canonical = canonical;
    if (d->eos_count == 0) d->eos_ids[d->eos_count++] = 1; /* the class default */
    for (uint32_t n = 0; n < d->layer_count; n++) {
        struct desc_layer *l = &d->layers[n];
        l->scale = 1; /* q_norm and k_norm have it */
        l->rope = t->layer_types[n];
        l->v_norm = true;
        l->v_from_k = t->attention_k_eq_v && t->layer_types[n] == HF_FULL;
    }
    describe_heads(r, t, d);
    if (d->ropes[HF_FULL].dim) describe_rope(&t->rope[HF_FULL], &d->ropes[HF_FULL]);
    if (d->ropes[HF_SLIDING].dim) describe_rope(&t->rope[HF_SLIDING], &d->ropes[HF_SLIDING]);
    else d->rope_count = 1;
    if (is_drafter(c)) {
        describe_drafter(r, c, d);
        return;
    }
    describe_sharing(r, c, d);
    d->pad_id = t->pad_token_id;
    if (d->pad_id >= t->vocab_size) hf_error(r, ST_FORMAT, "pad_token_id", "must be below vocab_size");
    if (c->has_vision) describe_vision(c, d);
    if (is_unified(c)) return;
    describe_experts(t, d);
    describe_ple(t, d);
}

/* ---- images ---- */

static const uint32_t BUDGETS[] = {70, 140, 280, 560, 1120, 0};

static const struct family_images IMAGES = {
    .image = {.filter = IMAGE_BICUBIC,
              .mode = IMAGE_TORCH_U8,
              .do_resize = true,
              .do_rescale = true,
              .do_normalize = false,
              .rescale_factor = 1.0 / 255.0,
              .mean = {0, 0, 0},
              .std = {1, 1, 1},
              .dynamic = true,
              .patch = 16,
              .merge = 3,
              .depth = 1,
              .area_min = 1,
              .area_max = 280 * 48 * 48,
              .budgets = BUDGETS,
              .video_uniform = true,
              .video_area_min = 1,
              .video_area_max = 70 * 48 * 48,
              .video_fps = 24, /* for frames without a rate */
              .video_frames_min = 1,
              .video_frames_max = 32},
    .video_mean = {0, 0, 0},
    .video_std = {1, 1, 1},
    .video_patch = 16,
};

/* ---- GGUF files ---- */

/* The share of a head's pairs that rotate in layers of full attention, from a table of divisors: those of the
 * other pairs are huge. */
static double turning(struct gguf_keys *k)
{
    const struct gguf *in;
    const struct gguf_tensor *t = gguf_files_find(k->f, "rope_freqs.weight", &in);
    uint32_t pairs = t && t->rank == 1 && t->type == 0 ? gguf_columns(k, "rope_freqs.weight") : 0, turn = 0;
    if (!pairs || (gguf_file_bytes(in) - t->offset) / sizeof(float) < pairs)
        return 0.25; /* of every release */
    for (uint32_t i = 0; i < pairs; i++) {
        float x;
        memcpy(&x, (const char *)gguf_map(in) + t->offset + i * sizeof x, sizeof x);
        turn += x < 1e20f;
    }
    return (double)turn / pairs;
}

static void gguf_experts(struct gguf_keys *k, struct hf_text *t)
{
    gguf_read_u32(k, "expert_count", false, 0, SIZE_MAX_EXPERTS, &t->num_experts);
    if (t->num_experts == 0) return;
    gguf_read_u32(k, "expert_used_count", true, 1, HF_TOPK_MAX, &t->num_experts_per_tok);
    gguf_read_u32(k, "expert_feed_forward_length", true, 1, SIZE_MAX_FF, &t->moe_intermediate_size);
    check_experts(&k->r, t);
}

/* The general keys have the head size of full attention. The number of key heads is per layer. */
static void gguf_layers(struct gguf_keys *k, struct hf_text *t)
{
    uint32_t head[2] = {[HF_FULL] = 512, [HF_SLIDING] = 256}, last = t->num_hidden_layers - 1, full = last,
             ff[2] = {0, 0};
    char name[64];
    gguf_read_u32(k, "attention.key_length", false, 2, SIZE_MAX_HEAD_DIM, &head[HF_FULL]);
    gguf_read_u32(k, "attention.key_length_swa", false, 2, SIZE_MAX_HEAD_DIM, &head[HF_SLIDING]);
    t->head_dim = head[HF_SLIDING];
    gguf_layer_types(k, "attention.sliding_window_pattern", HF_SLIDING, t);
    t->layer_types[last] = HF_FULL; /* whatever the file says */
    for (uint32_t n = 0; n < t->num_hidden_layers; n++) {
        t->layer_head_dim[n] = head[t->layer_types[n]];
        t->layer_kv_heads[n] = t->num_key_value_heads;
        gguf_layer_u32(k, "attention.head_count_kv", n, 1, SIZE_MAX_HEADS, &t->layer_kv_heads[n]);
        if (t->layer_types[n] == HF_FULL && n < full) full = n;
    }
    snprintf(name, sizeof name, "blk.%u.attn_v.weight", full);
    t->attention_k_eq_v = !gguf_columns(k, name);
    gguf_read_u32(k, "attention.shared_kv_layers", false, 0, last, &t->num_kv_shared_layers);
    if (gguf_layer_u32(k, "feed_forward_length", 0, 1, SIZE_MAX_FF, &ff[0]) &&
        gguf_layer_u32(k, "feed_forward_length", last, 1, SIZE_MAX_FF, &ff[1]))
        t->use_double_wide_mlp = ff[1] > ff[0];
}

static void gguf_text(struct gguf_keys *k, struct hf_text *t)
{
    struct hf_rope *full = &t->rope[HF_FULL], *sliding = &t->rope[HF_SLIDING];
    gguf_layers(k, t);
    gguf_read_u32(k, "attention.sliding_window", true, 1, 1u << 30, &t->sliding_window);
    t->hidden_size_per_layer_input = 0;
    gguf_read_u32(k, "embedding_length_per_layer_input", false, 0, SIZE_MAX_HIDDEN,
                  &t->hidden_size_per_layer_input);
    gguf_read_u32(k, "tokenizer.ggml.padding_token_id", false, 0, SIZE_MAX_VOCAB - 1, &t->pad_token_id);
    gguf_read_f64(k, "final_logit_softcapping", 1e-6, 1e9, &t->final_logit_softcapping);
    *full = (struct hf_rope){.theta = 1e6, .factor = 1, .partial = turning(k)};
    *sliding = (struct hf_rope){.theta = 1e4, .factor = 1, .partial = 1};
    gguf_read_f64(k, "rope.freq_base", 1, 1e12, &full->theta);
    gguf_read_f64(k, "rope.freq_base_swa", 1, 1e12, &sliding->theta);
    gguf_experts(k, t);
}

static const struct gguf_name GGUF_NAMES[] = {
    {"per_layer_token_embd", "model.embed_tokens_per_layer"},
    {"per_layer_model_proj", "model.per_layer_model_projection"},
    {"per_layer_proj_norm", "model.per_layer_projection_norm"},
    {"blk.#.post_attention_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.ffn_norm", "model.layers.#.pre_feedforward_layernorm"},
    {"blk.#.pre_ffw_norm_2", "model.layers.#.pre_feedforward_layernorm_2"},
    {"blk.#.post_ffw_norm", "model.layers.#.post_feedforward_layernorm"},
    {"blk.#.post_ffw_norm_1", "model.layers.#.post_feedforward_layernorm_1"},
    {"blk.#.post_ffw_norm_2", "model.layers.#.post_feedforward_layernorm_2"},
    {"blk.#.layer_output_scale.weight", "model.layers.#.layer_scalar"},
    {"blk.#.inp_gate", "model.layers.#.per_layer_input_gate"},
    {"blk.#.proj", "model.layers.#.per_layer_projection"},
    {"blk.#.post_norm", "model.layers.#.post_per_layer_input_norm"},
    {"blk.#.ffn_gate_inp.scale", "model.layers.#.router.scale"},
    {"blk.#.ffn_gate_inp", "model.layers.#.router.proj"},
    {"blk.#.ffn_down_exps.scale", "model.layers.#.router.per_expert_scale"},
    {"blk.#.ffn_gate_up_exps.weight", "model.layers.#.experts.gate_up_proj"},
    {"blk.#.ffn_down_exps.weight", "model.layers.#.experts.down_proj"},
    {NULL, NULL},
};
/* The tower's file states neither how many patches are pooled nor a budget of tokens: the released ones. Nor
 * the mask of an image's tokens: bidirectional in all models except those with per-layer embeddings (E2B,
 * E4B). */
static void gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    gguf_read_u32(k, "clip.vision.projector.scale_factor", false, 1, 64, &v->spatial_merge_size);
    gguf_read_f64(k, "clip.vision.attention.layer_norm_epsilon", 0, 1, &v->layer_norm_eps);
    gguf_set_u32(k, "v.position_embd.weight", gguf_rows(k, "v.position_embd.weight"), 1, 1u << 16,
                 &v->position_side);
    v->standardize = gguf_columns(k, "v.std_scale");
    v->use_clipped_linears = gguf_columns(k, "v.blk.0.attn_q.input_max");
    check_tower(&k->r, v, gguf_columns(k, "v.blk.0.attn_q_norm.weight"), v->num_attention_heads);
    c->bidirectional_images = c->text.hidden_size_per_layer_input == 0;
    gguf_token(k, "<|image|>", &c->image_id);
    gguf_token(k, "<|video|>", &c->video_id);
    gguf_token(k, "<|audio|>", &c->audio_id);
}

/* The class's default number of tokens. */
static void read_gguf_images(struct gguf_keys *k, struct image_config *out)
{
    uint64_t unit = (uint64_t)out->patch * out->merge, tokens = out->area_max / (unit * unit);
    gguf_read_u32(k, "clip.vision.patch_size", true, 1, SIZE_MAX_PATCH, &out->patch);
    gguf_read_u32(k, "clip.vision.projector.scale_factor", false, 1, 64, &out->merge);
    unit = (uint64_t)out->patch * out->merge;
    out->area_max = tokens * unit * unit;
}

#define GGUF_LAYER "model.vision_tower.encoder.layers.#."
static const struct gguf_name TOWER_NAMES[] = {
    {"v.patch_embd", "model.vision_tower.patch_embedder.input_proj"},
    {"v.position_embd.weight", "model.vision_tower.patch_embedder.position_embedding_table"},
    {"v.std_bias", "model.vision_tower.std_bias"},
    {"v.std_scale", "model.vision_tower.std_scale"},
    {"v.blk.#.ln1", GGUF_LAYER "input_layernorm"},
    {"v.blk.#.attn_post_norm", GGUF_LAYER "post_attention_layernorm"},
    {"v.blk.#.ln2", GGUF_LAYER "pre_feedforward_layernorm"},
    {"v.blk.#.ffn_post_norm", GGUF_LAYER "post_feedforward_layernorm"},
    {"v.blk.#.attn_q_norm", GGUF_LAYER "self_attn.q_norm"},
    {"v.blk.#.attn_k_norm", GGUF_LAYER "self_attn.k_norm"},
    /* bounds are next to the matrix */
    {"v.blk.#.attn_q.weight", GGUF_LAYER "self_attn.q_proj.linear.weight"},
    {"v.blk.#.attn_q", GGUF_LAYER "self_attn.q_proj"},
    {"v.blk.#.attn_k.weight", GGUF_LAYER "self_attn.k_proj.linear.weight"},
    {"v.blk.#.attn_k", GGUF_LAYER "self_attn.k_proj"},
    {"v.blk.#.attn_v.weight", GGUF_LAYER "self_attn.v_proj.linear.weight"},
    {"v.blk.#.attn_v", GGUF_LAYER "self_attn.v_proj"},
    {"v.blk.#.attn_out.weight", GGUF_LAYER "self_attn.o_proj.linear.weight"},
    {"v.blk.#.attn_out", GGUF_LAYER "self_attn.o_proj"},
    {"v.blk.#.ffn_gate.weight", GGUF_LAYER "mlp.gate_proj.linear.weight"},
    {"v.blk.#.ffn_gate", GGUF_LAYER "mlp.gate_proj"},
    {"v.blk.#.ffn_up.weight", GGUF_LAYER "mlp.up_proj.linear.weight"},
    {"v.blk.#.ffn_up", GGUF_LAYER "mlp.up_proj"},
    {"v.blk.#.ffn_down.weight", GGUF_LAYER "mlp.down_proj.linear.weight"},
    {"v.blk.#.ffn_down", GGUF_LAYER "mlp.down_proj"},
    {"mm.input_projection", "model.embed_vision.embedding_projection"},
    {NULL, NULL},
};

/* The second ends the output after a tool call. */
static const char *const GGUF_STOPS[] = {"<turn|>", "<|tool_response>", "<eos>", NULL};
static const char *const GGUF_NEVER[] = {"<image|>", "<audio|>", NULL};
static const struct family_gguf gguf_kinds[] = {
    {GGUF_TEXT("gemma4", "gemma4_text", gguf_text),
     GGUF_TOWER("gemma4v", "gemma4", TOWER_NAMES, gguf_tower, read_gguf_images), .names = GGUF_NAMES,
     .stops = GGUF_STOPS, .never = GGUF_NEVER},
    {NULL},
};

const struct family family_gemma4 = {
    .types = {{"gemma4", HF_NESTED, &GEMMA4_TEXT, &TOWER},
              {"gemma4_text", HF_FLAT, &GEMMA4_TEXT, NULL},
              {"gemma4_unified", HF_NESTED, &UNIFIED_TEXT, &UNIFIED_VISION},
              {"gemma4_unified_text", HF_FLAT, &UNIFIED_TEXT, NULL},
              {"gemma4_assistant", HF_NESTED, &GEMMA4_TEXT, NULL, true},
              {"gemma4_unified_assistant", HF_NESTED, &UNIFIED_TEXT, NULL, true}},
    .read = read,
    .describe = describe,
    .bos_id = 2,
    .image_id = 258880,
    .video_id = 258884,
    .images = &IMAGES,
    .gguf = gguf_kinds,
};
