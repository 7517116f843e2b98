/* The configuration of a checkpoint as plain structs, after config.json and generation_config.json of Hugging
 * Face: both spellings (first releases, transformers v5), every absent key filled with the class default of
 * its model_type, every number range-checked, so that later code can trust the sizes. Knows no family:
 * engine/families fills struct hf_config, from JSON through reader.h or from a GGUF file's metadata through
 * gguf_keys.h. */
#ifndef KVASIR_HF_CONFIG_H
#define KVASIR_HF_CONFIG_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HF_LAYERS_MAX      512u
#define HF_EOS_MAX         16u
#define HF_SUPPRESS_MAX    64u
#define HF_NO_ID           UINT32_MAX
#define HF_DEEPSTACK_MAX   8u
#define HF_CONV_KERNEL_MAX 16u
#define HF_TOPK_MAX        64u /* experts per token */

enum hf_activation { HF_GELU_TANH = 0, HF_SILU, HF_QUICK_GELU, HF_GELU /* erf */ };
enum hf_layer_type { HF_FULL = 0, HF_SLIDING, HF_LINEAR /* recurrent */, HF_CONV };
enum hf_rope_type { HF_ROPE_DEFAULT = 0, HF_ROPE_LINEAR, HF_ROPE_YARN, HF_ROPE_LLAMA3 };

struct hf_rope {
    enum hf_rope_type type;
    double theta;
    /* HF_ROPE_LINEAR: divides all frequencies; HF_ROPE_YARN, HF_ROPE_LLAMA3: divides the low ones; else 1 */
    double factor;
    /* HF_ROPE_YARN; HF_ROPE_LLAMA3: beta_fast is high_freq_factor, beta_slow low_freq_factor */
    double original_max, beta_fast, beta_slow, attention_factor;
    bool truncate;
    double llama_4_scaling_beta; /* of queries; 0 = none */
    /* M-RoPE (time, row, column): frequencies per axis, summing to head_dim / 2; all 0: one axis. */
    uint32_t mrope_section[3];
    bool mrope_interleaved;
    double partial; /* fraction of a head's pairs that is rotated (partial rotary) */
};

/* Names are the keys of config.json. */
struct hf_text {
    uint32_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    uint32_t max_position_embeddings, sliding_window;
    double rms_norm_eps;
    bool qkv_bias, o_bias; /* key attention_bias, or fixed by the class */
    bool mlp_bias, conv_bias;
    bool qk_norm; /* no key: fixed by the class */
    bool tie_word_embeddings;
    enum hf_activation activation;
    struct hf_rope rope[2];             /* HF_FULL, HF_SLIDING */
    uint8_t layer_types[HF_LAYERS_MAX]; /* enum hf_layer_type */
    /* Mixture of experts: num_experts 0 = none, else 1 <= num_experts_per_tok <= num_experts. */
    uint32_t num_experts, num_experts_per_tok, moe_intermediate_size;
    uint32_t shared_expert_intermediate_size; /* 0 = none */
    bool norm_topk_prob;
    bool sparse[HF_LAYERS_MAX]; /* the layer has experts instead of a plain MLP */
    /* Recurrent layers; conv_kernel 0 = the class has none. */
    uint32_t linear_conv_kernel_dim, linear_num_key_heads, linear_num_value_heads, linear_key_head_dim,
        linear_value_head_dim;
    uint32_t mtp_num_hidden_layers;     /* of a drafter in the same checkpoint */
    uint8_t no_rope[HF_LAYERS_MAX / 8]; /* bit n%8 of [n/8]: layer n has no RoPE */
    /* all or none; 0 = none */
    double embedding_multiplier, attention_multiplier, residual_multiplier, logits_scaling;
    /* Only in some classes. */
    double query_pre_attn_scalar, attn_logit_softcapping, final_logit_softcapping; /* caps: 0 = none */
    bool attention_k_eq_v, use_double_wide_mlp;
    uint32_t num_kv_shared_layers, hidden_size_per_layer_input, pad_token_id;
    uint32_t layer_head_dim[HF_LAYERS_MAX], layer_kv_heads[HF_LAYERS_MAX];
};
struct hf_vision {
    uint32_t hidden_size; /* width of the tower, also where the key is `embed_dim` */
    uint32_t intermediate_size, num_hidden_layers, num_attention_heads, num_channels, patch_size;
    uint32_t image_size; /* pixels per side; 0 = any */
    double layer_norm_eps;
    enum hf_activation activation;
    /* Towers whose patches are merged into tokens. */
    uint32_t out_hidden_size, spatial_merge_size, temporal_patch_size;
    uint32_t position_side; /* square root of num_position_embeddings; 0 = no table */
    uint32_t window_size;   /* pixels per side of an attention window; 0 = none */
    double rope_theta, tokens_per_second;
    bool fullatt[HF_LAYERS_MAX]; /* with window_size: the layer attends to whole frames */
    uint32_t deepstack[HF_DEEPSTACK_MAX], deepstack_count;
    bool use_clipped_linears, standardize;
    bool attention_bias;   /* of q, k and v, where that is a key */
    bool qk_norm, rms;     /* norms of q and k; RMS norms instead of LayerNorm: where that is a choice */
    uint32_t insert_layer; /* after which 2 x 2 patches become one row */
    bool final_norm;       /* after the last layer, where that is a choice */
    bool projector_norm;
    /* No key: fixed by the class, with multimodal_projector_bias. */
    bool patch_merger, projector_bias, break_rows /* a token between the rows of an image */;
};
struct hf_config {
    char model_type[32];
    char text_type[32]; /* of text_config, if another family reads it; "": as model_type implies */
    struct hf_text text;
    bool has_vision;
    struct hf_vision vision;
    uint32_t mm_tokens_per_image;
    bool encoder;                          /* text attends in both directions */
    bool bidirectional_images;             /* an image's tokens attend to each other in both directions */
    uint32_t image_id, video_id, audio_id; /* placeholder tokens; HF_NO_ID = none */
    uint32_t bos_id;                       /* HF_NO_ID = none */
    uint32_t eos_ids[HF_EOS_MAX];
    uint32_t eos_count; /* 0 = none in the file */
    /* Draft models: hidden size of the target model. */
    uint32_t backbone_hidden_size, num_centroids, centroid_intermediate_top_k; /* 0 centroids = none */
};

/* generation_config.json: `has_*` says which keys are present. */
struct hf_generation {
    bool has_do_sample, has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty;
    bool do_sample;
    double temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
    uint32_t eos_ids[HF_EOS_MAX];
    uint32_t eos_count;
    uint32_t suppress_ids[HF_SUPPRESS_MAX]; /* suppress_tokens: never sampled */
    uint32_t suppress_count;
};
/* All absent if the directory has no such file. */
enum status hf_generation_load(const char *dir, struct hf_generation *out, struct err *err) KV_MUST_CHECK;

#endif
