/* See standard.h: the keys of config.json and GGUF metadata that most families have, and those of the Qwen
 * models. Their differences follow from the class defaults in their own files. */
#include "engine/families/qwen.h"

#include "config/base/log.h"

#include <math.h>
#include <stdio.h>

/* ---- RoPE ---- */

static double mscale_of(double factor, double mscale)
{
    return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* transformers' _compute_yarn_parameters: the values of absent keys (0 and null count as absent). */
static void resolve_yarn(struct hf_reader *r, const struct hf_text *t, struct hf_rope *p, double mscale,
                         double all_dim)
{
    p->truncate = true;
    if (p->original_max == 0) p->original_max = t->max_position_embeddings;
    if (p->theta < 2) hf_error(r, ST_FORMAT, "rope_theta", "must be 2 or more with yarn");
    if (p->beta_fast == 0) p->beta_fast = 32;
    if (p->beta_slow == 0) p->beta_slow = 1;
    if (p->beta_fast < p->beta_slow) hf_error(r, ST_FORMAT, "beta_fast", "must not be below beta_slow");
    if (p->attention_factor == 0)
        p->attention_factor = mscale > 0 && all_dim > 0
                                  ? mscale_of(p->factor, mscale) / mscale_of(p->factor, all_dim)
                                  : mscale_of(p->factor, 1);
}

static void read_yarn(struct hf_reader *r, uint32_t dict, const struct hf_text *t, struct hf_rope *p)
{
    double mscale = 0, all_dim = 0;
    p->factor = 0;
    hf_double(r, dict, "factor", 1, 1e6, &p->factor);
    hf_double(r, dict, "original_max_position_embeddings", 1, SIZE_MAX_POSITIONS, &p->original_max);
    hf_double(r, dict, "beta_fast", 0, 1e6, &p->beta_fast);
    hf_double(r, dict, "beta_slow", 0, 1e6, &p->beta_slow);
    hf_double(r, dict, "attention_factor", 1e-6, 1e6, &p->attention_factor);
    hf_double(r, dict, "mscale", 0, 1e6, &mscale);
    hf_double(r, dict, "mscale_all_dim", 0, 1e6, &all_dim);
    if (p->factor == 0) hf_error(r, ST_FORMAT, "factor", "is missing from the RoPE parameters of type yarn");
    resolve_yarn(r, t, p, mscale, all_dim);
    hf_bool(r, dict, "truncate", &p->truncate);
}

static void read_llama3(struct hf_reader *r, uint32_t dict, struct hf_rope *p)
{
    p->factor = 0;
    hf_double(r, dict, "factor", 1, 1e6, &p->factor);
    hf_double(r, dict, "low_freq_factor", 1e-6, 1e6, &p->beta_slow);
    hf_double(r, dict, "high_freq_factor", 1e-6, 1e6, &p->beta_fast);
    hf_double(r, dict, "original_max_position_embeddings", 1, SIZE_MAX_POSITIONS, &p->original_max);
    if (p->factor == 0 || p->beta_slow == 0 || p->original_max == 0 || p->beta_fast <= p->beta_slow)
        hf_error(r, ST_FORMAT, "rope_type",
                 "llama3 needs factor, low_freq_factor, a larger high_freq_factor and "
                 "original_max_position_embeddings");
}

void standard_rope_type(struct hf_reader *r, uint32_t dict, const struct hf_text *t, struct hf_rope *p)
{
    uint32_t type = json_get_live(r->d, dict, "rope_type");
    if (type == JSON_NONE) type = json_get_live(r->d, dict, "type");
    /* "mrope" is the default type's name in the first releases; "dynamic" changes nothing up to
     * max_position_embeddings, which is the context. */
    if (type == JSON_NONE || json_str_eq(r->d, type, "default") || json_str_eq(r->d, type, "mrope") ||
        json_str_eq(r->d, type, "dynamic"))
        return;
    if (json_str_eq(r->d, type, "linear")) {
        p->type = HF_ROPE_LINEAR;
        p->factor = 0;
        hf_double(r, dict, "factor", 1e-6, 1e6, &p->factor);
        if (p->factor == 0)
            hf_error(r, ST_FORMAT, "factor", "is missing from the RoPE parameters of type linear");
    } else if (json_str_eq(r->d, type, "yarn")) {
        p->type = HF_ROPE_YARN;
        read_yarn(r, dict, t, p);
    } else if (json_str_eq(r->d, type, "llama3")) {
        p->type = HF_ROPE_LLAMA3;
        read_llama3(r, dict, p);
    } else {
        hf_error(r, ST_UNSUPPORTED, "rope_type",
                 "only default, mrope, dynamic, linear, llama3 and yarn are served");
    }
}

static void check_sections(struct hf_reader *r, const struct hf_text *t, uint32_t count, const uint32_t *s)
{
    if (!r->st && (count != 3 || s[0] == 0 || s[0] + s[1] + s[2] != qwen_rotary(t) / 2))
        hf_error(r, ST_FORMAT, "mrope_section",
                 "must be three integers, the first not 0, whose sum is half the rotated columns of a head");
}

static void read_sections(struct hf_reader *r, uint32_t dict, const struct hf_text *t, struct hf_rope *p)
{
    bool stated = p->mrope_interleaved;
    uint32_t count = 3;
    hf_list(r, dict, "mrope_section", SIZE_MAX_HEAD_DIM, 3, p->mrope_section, &count);
    hf_bool(r, dict, "mrope_interleaved", &stated);
    check_sections(r, t, count, p->mrope_section);
    /* The flag is not read by transformers' classes: each has one layout. */
    if (!r->st && stated != p->mrope_interleaved)
        log_warn("%s: mrope_interleaved is %s, which this family does not have: ignored", r->file,
                 stated ? "true" : "false");
}

/* `rope_parameters` is the spelling of transformers 5, `rope_scaling` the one before. A file with both is a
 * new one with the old key added: that key counts, as in transformers, but theta is looked up in both
 * (transformers would fall back to the class default). */
static void read_rope(struct hf_reader *r, const struct family_type *type, uint32_t obj, struct hf_text *t)
{
    struct hf_rope *p = &t->rope[HF_FULL];
    uint32_t params = json_get_live(r->d, obj, "rope_parameters"),
             scaling = json_get_live(r->d, obj, "rope_scaling"),
             full = json_get_live(r->d, params, "full_attention");
    if (params != JSON_NONE && json_kind(r->d, params) != JSON_OBJECT)
        hf_error(r, ST_FORMAT, "rope_parameters", "must be an object");
    if (scaling != JSON_NONE && json_kind(r->d, scaling) != JSON_OBJECT)
        hf_error(r, ST_FORMAT, "rope_scaling", "must be an object");
    if (full != JSON_NONE) params = full; /* one object for each kind of layer */
    uint32_t dict = scaling != JSON_NONE && json_count(r->d, scaling) > 0 ? scaling : params;
    hf_double(r, obj, "rope_theta", 1.0, 1e12, &p->theta);
    hf_double(r, params, "rope_theta", 1.0, 1e12, &p->theta);
    hf_double(r, dict, "rope_theta", 1.0, 1e12, &p->theta);
    bool some = p->partial > 0;
    double partial = some ? p->partial : 1; /* may be next to the other keys or among them */
    hf_double(r, obj, "partial_rotary_factor", 0, 1, &partial);
    hf_double(r, dict, "partial_rotary_factor", 0, 1, &partial);
    if (some) p->partial = partial;
    else if (partial != 1) hf_error(r, ST_UNSUPPORTED, "partial_rotary_factor", "only 1 is served");
    if (!r->st && some && (p->partial <= 0 || qwen_rotary(t) == 0 || qwen_rotary(t) % 2))
        hf_error(r, ST_FORMAT, "partial_rotary_factor", "must rotate an even number of a head's columns");
    standard_rope_type(r, dict, t, p);
    if (type->vision) read_sections(r, dict, t, p);
    t->rope[HF_SLIDING] = *p; /* one table for both kinds of layers */
}

/* ---- text ---- */

uint32_t qwen_rotary(const struct hf_text *t)
{
    double partial = t->rope[HF_FULL].partial;
    return partial > 0 ? (uint32_t)(t->head_dim * partial) : t->head_dim;
}

void qwen_recurrent(struct hf_reader *r, bool listed, uint32_t interval, struct hf_text *t)
{
    bool full = false;
    if (!r->st && t->linear_num_value_heads % t->linear_num_key_heads)
        hf_error(r, ST_FORMAT, "linear_num_value_heads", "must be a multiple of linear_num_key_heads");
    for (uint32_t n = 0; n < t->num_hidden_layers; n++) {
        if (!listed) t->layer_types[n] = (n + 1) % interval ? HF_LINEAR : HF_FULL;
        full |= t->layer_types[n] == HF_FULL;
    }
    if (!full) hf_error(r, ST_UNSUPPORTED, "layer_types", "must have full_attention");
}

static void read_recurrent(struct hf_reader *r, uint32_t obj, struct hf_text *t)
{
    uint32_t interval = 4;
    hf_u32(r, obj, "linear_conv_kernel_dim", 2, HF_CONV_KERNEL_MAX, &t->linear_conv_kernel_dim);
    hf_u32(r, obj, "linear_num_key_heads", 1, SIZE_MAX_HEADS, &t->linear_num_key_heads);
    hf_u32(r, obj, "linear_num_value_heads", 1, SIZE_MAX_HEADS, &t->linear_num_value_heads);
    hf_u32(r, obj, "linear_key_head_dim", 1, SIZE_MAX_HEAD_DIM, &t->linear_key_head_dim);
    hf_u32(r, obj, "linear_value_head_dim", 1, SIZE_MAX_HEAD_DIM, &t->linear_value_head_dim);
    hf_u32(r, obj, "full_attention_interval", 1, HF_LAYERS_MAX, &interval);
    hf_u32(r, obj, "mtp_num_hidden_layers", 0, HF_LAYERS_MAX, &t->mtp_num_hidden_layers);
    qwen_recurrent(r, hf_layer_types(r, obj, HF_LINEAR, t), interval, t);
}

/* Which layers have a window: Qwen2, Qwen3, Qwen2-VL, Qwen2.5-VL by layer_types or max_window_layers;
 * Qwen3-MoE all or none; Qwen2-MoE by layer_types or every other one below max_window_layers; Qwen3-VL none.
 * Released files have use_sliding_window false. */
static void read_windows(struct hf_reader *r, const struct family_type *type, uint32_t obj, struct hf_text *t)
{
    bool use = false, experts = type->text->num_experts > 0, all = experts && t->qk_norm;
    if (type->text->linear_conv_kernel_dim) {
        read_recurrent(r, obj, t);
        return;
    }
    uint32_t first = type->vision ? 80 : 28, key = json_get(r->d, obj, "sliding_window");
    if (type->text->sliding_window == 0) return;
    hf_bool(r, obj, "use_sliding_window", &use);
    hf_u32(r, obj, "sliding_window", use ? 1 : 0, 1u << 30, &t->sliding_window);
    hf_u32(r, obj, "max_window_layers", 0, 1u << 20, &first);
    bool window = use && (key == JSON_NONE || json_kind(r->d, key) != JSON_NULL);
    if (!all && hf_layer_types(r, obj, HF_SLIDING, t)) {
        for (uint32_t n = 0; n < t->num_hidden_layers; n++)
            if (t->layer_types[n] == HF_SLIDING && !window)
                hf_error(r, ST_FORMAT, "layer_types",
                         "has sliding_attention where use_sliding_window is off");
        return;
    }
    for (uint32_t n = 0; n < t->num_hidden_layers; n++)
        t->layer_types[n] =
            window && (all || (experts ? n % 2 == 0 && n < first : n >= first)) ? HF_SLIDING : HF_FULL;
}

static void check_experts(struct hf_reader *r, const struct hf_text *t)
{
    if (t->num_experts > 0 && t->num_experts_per_tok > t->num_experts)
        hf_error(r, ST_FORMAT, "num_experts_per_tok", "must not be over num_experts");
}

static void read_experts(struct hf_reader *r, const struct family_type *type, uint32_t obj, struct hf_text *t)
{
    uint32_t step = 1, dense[HF_LAYERS_MAX], dense_count = 0;
    if (type->text->num_experts == 0) return;
    hf_u32(r, obj, "num_local_experts", 0, SIZE_MAX_EXPERTS,
           &t->num_experts); /* how transformers 5 saves num_experts */
    hf_u32(r, obj, "num_experts", 0, SIZE_MAX_EXPERTS, &t->num_experts);
    hf_u32(r, obj, "num_experts_per_tok", 1, HF_TOPK_MAX, &t->num_experts_per_tok);
    hf_u32(r, obj, "moe_intermediate_size", 1, SIZE_MAX_FF, &t->moe_intermediate_size);
    if (type->text->shared_expert_intermediate_size)
        hf_u32(r, obj, "shared_expert_intermediate_size", 1, SIZE_MAX_FF,
               &t->shared_expert_intermediate_size);
    if (!type->text->linear_conv_kernel_dim) {
        hf_u32(r, obj, "decoder_sparse_step", 1, HF_LAYERS_MAX, &step);
        hf_list(r, obj, "mlp_only_layers", 1u << 20, HF_LAYERS_MAX, dense, &dense_count);
    }
    if (!type->text->norm_topk_prob) hf_bool(r, obj, "norm_topk_prob", &t->norm_topk_prob);
    check_experts(r, t);
    for (uint32_t n = 0; n < t->num_hidden_layers; n++)
        t->sparse[n] = t->num_experts > 0 && (n + 1) % step == 0;
    for (uint32_t i = 0; i < dense_count; i++)
        if (dense[i] < t->num_hidden_layers) t->sparse[dense[i]] = false;
    for (uint32_t n = 0; n < t->num_hidden_layers && t->shared_expert_intermediate_size; n++)
        if (!t->sparse[n])
            hf_error(r, ST_UNSUPPORTED, "decoder_sparse_step", "layers without experts are not served here");
}

static void resolve_head_dim(struct hf_reader *r, struct hf_text *t)
{
    if (t->head_dim == 0 && !r->st) {
        t->head_dim = t->hidden_size / t->num_attention_heads;
        if (t->hidden_size % t->num_attention_heads || t->head_dim > SIZE_MAX_HEAD_DIM || t->head_dim == 0)
            hf_error(r, ST_FORMAT, "num_attention_heads",
                     "must divide hidden_size into heads of at most 1024");
    }
    hf_check_heads(r, t);
}

static void read_heads(struct hf_reader *r, const struct family_type *type, uint32_t obj, struct hf_text *t)
{
    hf_u32(r, obj, "num_attention_heads", 1, SIZE_MAX_HEADS, &t->num_attention_heads);
    uint32_t kv = json_get(r->d, obj, "num_key_value_heads");
    if ((kv != JSON_NONE && json_kind(r->d, kv) == JSON_NULL) || t->num_key_value_heads == 0)
        t->num_key_value_heads = t->num_attention_heads;
    hf_u32(r, obj, "num_key_value_heads", 1, SIZE_MAX_HEADS, &t->num_key_value_heads);
    /* Qwen2-VL and Qwen2.5-VL have no such key; elsewhere it can be anything: Qwen3-4B has 32 heads of 128 at
     * a width of 2560. */
    if (type->place != HF_EITHER) hf_u32(r, obj, "head_dim", 2, SIZE_MAX_HEAD_DIM, &t->head_dim);
    resolve_head_dim(r, t);
}

/* Where the tie is stated: text models at the top. Qwen2-VL and Qwen2.5-VL in either place (files before
 * transformers 5 have it in text_config). Qwen3-VL at the top, else in text_config; not so with experts,
 * whose class writes a meaningless true there. */
static void read_tie(struct hf_reader *r, const struct family_type *type, uint32_t obj, struct hf_text *t)
{
    bool top = false, inner = false, stated = json_get_live(r->d, 0, "tie_word_embeddings") != JSON_NONE;
    hf_bool(r, 0, "tie_word_embeddings", &top);
    if (obj != 0) hf_bool(r, obj, "tie_word_embeddings", &inner);
    if (type->place == HF_NESTED && (stated || type->text->num_experts > 0)) inner = false;
    t->tie_word_embeddings = top || inner;
}

static void read_text(struct hf_reader *r, const struct family_type *type, uint32_t obj, struct hf_text *t)
{
    r->scope = obj != 0 ? "text_config." : "";
    hf_text_sizes(r, obj, t);
    if (t->linear_conv_kernel_dim) hf_activation(r, obj, "hidden_act", HF_SILU); /* of the convolution, too */
    else hf_gate(r, obj, "hidden_act", &t->activation);
    if (t->qk_norm) { /* from Qwen3 on; before it q, k and v always had one and o never */
        hf_bool(r, obj, "attention_bias", &t->qkv_bias);
        t->o_bias = t->qkv_bias;
    } else if (t->num_experts) {
        hf_bool(r, obj, "qkv_bias", &t->qkv_bias);
    }
    read_heads(r, type, obj, t);
    read_rope(r, type, obj, t);
    read_windows(r, type, obj, t);
    read_experts(r, type, obj, t);
    read_tie(r, type, obj, t);
    r->scope = "";
}

/* ---- vision ---- */

void standard_position_side(struct hf_reader *r, uint32_t rows, struct hf_vision *v)
{
    uint32_t side = 1;
    while (side * side < rows) side++;
    if (side * side != rows) hf_error(r, ST_FORMAT, "num_position_embeddings", "must be a square");
    v->position_side = side;
}

static void read_position(struct hf_reader *r, uint32_t obj, struct hf_vision *v)
{
    uint32_t rows = v->position_side * v->position_side;
    if (v->position_side == 0) return;
    hf_u32(r, obj, "num_position_embeddings", 1, STANDARD_POSITIONS_MAX, &rows);
    standard_position_side(r, rows, v);
}

static void read_windows_of_tower(struct hf_reader *r, uint32_t obj, struct hf_vision *v)
{
    uint32_t full[HF_LAYERS_MAX], count = 0;
    if (v->window_size == 0) return;
    hf_u32(r, obj, "window_size", 1, 1u << 16, &v->window_size);
    if (hf_list(r, obj, "fullatt_block_indexes", 1u << 20, HF_LAYERS_MAX, full, &count)) {
        for (uint32_t n = 0; n < HF_LAYERS_MAX; n++) v->fullatt[n] = false;
        for (uint32_t i = 0; i < count; i++)
            if (full[i] < HF_LAYERS_MAX) v->fullatt[full[i]] = true;
    }
}

void standard_check_heads(struct hf_reader *r, const struct hf_vision *v)
{
    uint32_t head = v->hidden_size / v->num_attention_heads;
    if (!r->st && (v->hidden_size % v->num_attention_heads || head > SIZE_MAX_HEAD_DIM || head % 4))
        hf_error(r, ST_FORMAT, "num_attention_heads",
                 "must divide the tower's width into heads of a multiple of 4");
}

void standard_check_vision(struct hf_reader *r, const struct hf_text *t, const struct hf_vision *v,
                           bool first)
{
    uint32_t head = v->hidden_size / v->num_attention_heads;
    bool deepstack = v->deepstack_count <= t->num_hidden_layers;
    for (uint32_t i = 0; i < v->deepstack_count; i++)
        deepstack = deepstack && v->deepstack[i] < v->num_hidden_layers &&
                    (i == 0 || v->deepstack[i] > v->deepstack[i - 1]);
    if (v->window_size && v->window_size / v->spatial_merge_size / v->patch_size == 0)
        hf_error(r, ST_FORMAT, "window_size", "must hold one token (patch_size * spatial_merge_size)");
    else if (!deepstack)
        hf_error(r, ST_FORMAT, "deepstack_visual_indexes",
                 "must be ascending, below depth, and no more than text layers");
    else if (v->hidden_size % v->num_attention_heads || head > SIZE_MAX_HEAD_DIM || head % 4 || head == 0)
        hf_error(r, ST_FORMAT, "num_heads", "must divide the tower's width into heads of a multiple of 4");
    else if (v->out_hidden_size != t->hidden_size)
        hf_error(r, ST_FORMAT, first ? "hidden_size" : "out_hidden_size",
                 "must be the hidden_size of the text model");
}

static void read_vision(struct hf_reader *r, uint32_t obj, const struct hf_text *t, struct hf_vision *v)
{
    bool first = v->intermediate_size == 0;
    r->scope = "vision_config.";
    hf_u32(r, obj, "depth", 1, HF_LAYERS_MAX, &v->num_hidden_layers);
    /* In Qwen2-VL hidden_size is the width after the merger, later it is the tower's. */
    hf_u32(r, obj, first ? "embed_dim" : "hidden_size", 1, SIZE_MAX_HIDDEN, &v->hidden_size);
    hf_u32(r, obj, first ? "hidden_size" : "out_hidden_size", 1, SIZE_MAX_HIDDEN, &v->out_hidden_size);
    if (first) {
        double ratio = 4;
        hf_double(r, obj, "mlp_ratio", 0.01, 64, &ratio);
        double ff = ratio * v->hidden_size;
        if (ff < 1 || ff > SIZE_MAX_FF)
            hf_error(r, ST_FORMAT, "mlp_ratio", "gives an MLP with 0 or too many columns");
        if (!r->st) v->intermediate_size = (uint32_t)ff;
    } else {
        hf_u32(r, obj, "intermediate_size", 1, SIZE_MAX_FF, &v->intermediate_size);
    }
    hf_u32(r, obj, "num_heads", 1, SIZE_MAX_HEADS, &v->num_attention_heads);
    hf_u32(r, obj, "in_chans", 3, 3, &v->num_channels);
    hf_u32(r, obj, "in_channels", 3, 3, &v->num_channels);
    hf_side(r, obj, "spatial_patch_size", SIZE_MAX_PATCH, &v->patch_size);
    hf_side(r, obj, "patch_size", SIZE_MAX_PATCH, &v->patch_size);
    hf_side(r, obj, "temporal_patch_size", 16, &v->temporal_patch_size);
    hf_u32(r, obj, "spatial_merge_size", 1, 8, &v->spatial_merge_size);
    hf_activation(r, obj, "hidden_act", v->activation);
    if (v->tokens_per_second > 0) hf_double(r, obj, "tokens_per_second", 0.001, 1000, &v->tokens_per_second);
    hf_double(r, obj, "rope_theta", 1, 1e12,
              &v->rope_theta); /* the spelling before transformers 5, as in the text */
    hf_double(r, json_get_live(r->d, obj, "rope_parameters"), "rope_theta", 1, 1e12, &v->rope_theta);
    read_position(r, obj, v);
    read_windows_of_tower(r, obj, v);
    if (v->deepstack_count > 0)
        hf_list(r, obj, "deepstack_visual_indexes", HF_LAYERS_MAX - 1, HF_DEEPSTACK_MAX, v->deepstack,
                &v->deepstack_count);
    standard_check_vision(r, t, v, first);
    r->scope = "";
}

/* A special id: at the top, else among the text's keys. */
static void read_id(struct hf_reader *r, uint32_t text, const char *key, uint32_t *id)
{
    if (text != 0) hf_u32(r, text, key, 0, SIZE_MAX_VOCAB - 1, id);
    hf_u32(r, 0, key, 0, SIZE_MAX_VOCAB - 1, id);
}

static void check_images(struct hf_reader *r, struct hf_config *c)
{
    if (c->image_id >= c->text.vocab_size)
        hf_error(r, ST_FORMAT, "image_token_id", "must be below vocab_size");
    if (c->video_id >= c->text.vocab_size) c->video_id = HF_NO_ID; /* a cut-down vocabulary without videos */
}

void standard_read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    uint32_t text = r->text;
    read_text(r, type, text, &c->text);
    read_id(r, text, "bos_token_id", &c->bos_id);
    if (!c->has_vision) return;
    read_id(r, text, "image_token_id", &c->image_id);
    read_id(r, text, "video_token_id", &c->video_id);
    read_vision(r, r->vision, &c->text, &c->vision);
    check_images(r, c);
}

/* ---- GGUF files ---- */

const struct gguf_name qwen_gguf_experts[] = {
    QWEN_GGUF_EXPERTS,
    {NULL, NULL},
};
/* An instruction-tuned model ends with the first, a base model with the second; either stops both. */
const char *const standard_gguf_stops[] = {"<|im_end|>", "<|endoftext|>", NULL};

/* The class's default tells whether there are three axes. */
static void gguf_sections(struct gguf_keys *k, const struct hf_text *t, struct hf_rope *p)
{
    static const char key[] = "rope.dimension_sections";
    const struct gguf_value *v = gguf_key(k, key);
    if (p->mrope_section[0] == 0) return;
    if (v && (v->kind != GGUF_ARRAY || v->item == GGUF_STRING || v->count < 3))
        gguf_error(k, ST_FORMAT, key, "must be a list of numbers");
    for (uint32_t i = 0; v && i < 3; i++) /* a fourth is none of theirs */
        gguf_layer_u32(k, key, i, 0, SIZE_MAX_HEAD_DIM, &p->mrope_section[i]);
    check_sections(&k->r, t, 3, p->mrope_section);
}

void standard_gguf_rotary(struct gguf_keys *k, struct hf_text *t)
{
    uint32_t rotary = 0;
    gguf_read_u32(k, "nextn_predict_layers", false, 0, t->num_hidden_layers - 1, &t->mtp_num_hidden_layers);
    t->num_hidden_layers -= t->mtp_num_hidden_layers;
    resolve_head_dim(&k->r, t);
    if (gguf_read_u32(k, "rope.dimension_count", true, 2, t->head_dim, &rotary))
        t->rope[HF_FULL].partial = (rotary + 0.5) / t->head_dim; /* qwen_rotary() rounds down */
    if (rotary % 2) gguf_error(k, ST_FORMAT, "rope.dimension_count", "must be even");
}

void standard_gguf_text(struct gguf_keys *k, struct hf_text *t)
{
    struct hf_rope *p = &t->rope[HF_FULL];
    resolve_head_dim(&k->r, t);
    gguf_rope(k, p);
    if (p->type == HF_ROPE_YARN) resolve_yarn(&k->r, t, p, 0, 0);
    gguf_sections(k, t, p);
    t->rope[HF_SLIDING] = *p;
    if (t->num_experts == 0) return;
    t->norm_topk_prob = t->qk_norm; /* of every released model */
    (void)gguf_bool(gguf_key(k, "expert_weights_norm"), &t->norm_topk_prob);
    gguf_read_u32(k, "expert_count", true, 1, SIZE_MAX_EXPERTS, &t->num_experts);
    gguf_read_u32(k, "expert_used_count", true, 1, HF_TOPK_MAX, &t->num_experts_per_tok);
    gguf_set_u32(k, "blk.0.ffn_down_exps.weight", gguf_columns(k, "blk.0.ffn_down_exps.weight"), 0,
                 SIZE_MAX_FF, &t->moe_intermediate_size);
    gguf_read_u32(k, "expert_feed_forward_length", t->moe_intermediate_size == 0, 1, SIZE_MAX_FF,
                  &t->moe_intermediate_size);
    if (t->shared_expert_intermediate_size)
        gguf_set_u32(k, "blk.0.ffn_down_shexp.weight", gguf_columns(k, "blk.0.ffn_down_shexp.weight"), 1,
                     SIZE_MAX_FF, &t->shared_expert_intermediate_size);
    check_experts(&k->r, t);
    for (uint32_t n = 0; n < t->num_hidden_layers; n++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", n);
        t->sparse[n] = gguf_columns(k, name);
    }
}

void standard_gguf_positions(struct gguf_keys *k, struct hf_vision *v)
{
    static const char table[] = "v.position_embd.weight";
    uint32_t rows = 0;
    gguf_set_u32(k, table, gguf_rows(k, table), 1, STANDARD_POSITIONS_MAX, &rows);
    standard_position_side(&k->r, rows, v);
    v->image_size = v->position_side * v->patch_size;
}

void qwen_gguf_tower(struct gguf_keys *k, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    gguf_read_u32(k, "clip.vision.spatial_merge_size", false, 1, 8, &v->spatial_merge_size);
    gguf_set_u32(k, "mm.2.weight", gguf_rows(k, "mm.2.weight"), 1, SIZE_MAX_HIDDEN, &v->out_hidden_size);
    gguf_token(k, "<|image_pad|>", &c->image_id);
    gguf_token(k, "<|video_pad|>", &c->video_id);
    standard_check_vision(&k->r, &c->text, v, false);
    check_images(&k->r, c);
}

void standard_gguf_patches(struct gguf_keys *k, struct image_config *out)
{
    gguf_read_u32(k, "clip.vision.patch_size", true, 1, SIZE_MAX_PATCH, &out->patch);
    gguf_read_u32(k, "clip.vision.spatial_merge_size", false, 1, 8, &out->merge);
}

void standard_gguf_areas(struct gguf_keys *k, uint32_t least, uint32_t most, struct image_config *out)
{
    standard_gguf_patches(k, out);
    gguf_read_u32(k, "clip.vision.image_min_pixels", false, 1, UINT32_MAX, &least);
    gguf_read_u32(k, "clip.vision.image_max_pixels", false, least, UINT32_MAX, &most);
    out->area_min = least;
    out->area_max = most;
}

/* Areas of the released files. */
void qwen2_vl_gguf_images(struct gguf_keys *k, struct image_config *out)
{
    standard_gguf_areas(k, 56 * 56, 28 * 28 * 16384, out);
}
