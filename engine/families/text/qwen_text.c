/* Qwen2, Qwen2.5; Qwen3 and Qwen3-MoE: without images, the decoder of qwen.c with one rotary axis. */
#include "engine/families/qwen.h"

static const struct hf_text QWEN2_TEXT = {
    .vocab_size = 151936,
    .hidden_size = 4096,
    .intermediate_size = 22016,
    .num_hidden_layers = 32,
    .num_attention_heads = 32,
    .num_key_value_heads = 32,
    .max_position_embeddings = 32768,
    .sliding_window = 4096,
    .rms_norm_eps = 1e-6,
    .qkv_bias = true,
    .activation = HF_SILU,
    QWEN_ROPE(1e4),
};
static const struct hf_text QWEN3_TEXT = {
    .vocab_size = 151936,
    .hidden_size = 4096,
    .intermediate_size = 22016,
    .num_hidden_layers = 32,
    .num_attention_heads = 32,
    .num_key_value_heads = 32,
    .head_dim = 128,
    .max_position_embeddings = 32768,
    .sliding_window = 4096,
    .rms_norm_eps = 1e-6,
    .qk_norm = true,
    .activation = HF_SILU,
    QWEN_ROPE(1e4),
};
static const struct hf_text QWEN3_MOE_TEXT = {
    .vocab_size = 151936,
    .hidden_size = 2048,
    .intermediate_size = 6144,
    .num_hidden_layers = 24,
    .num_attention_heads = 32,
    .num_key_value_heads = 4,
    .max_position_embeddings = 32768,
    .sliding_window = 4096,
    .rms_norm_eps = 1e-6,
    .qk_norm = true,
    .activation = HF_SILU,
    .num_experts = 128,
    .num_experts_per_tok = 8,
    .moe_intermediate_size = 768,
    QWEN_ROPE(1e4),
};

static const struct family_gguf gguf_second[] = {
    {.arch = "qwen2", .model_type = "qwen2", .text = qwen_gguf_text, .stops = qwen_gguf_stops},
    {NULL},
};
static const struct family_gguf gguf_third[] = {
    {.arch = "qwen3", .model_type = "qwen3", .text = qwen_gguf_text, .stops = qwen_gguf_stops},
    {.arch = "qwen3moe",
     .model_type = "qwen3_moe",
     .names = qwen_gguf_experts,
     .text = qwen_gguf_text,
     .stops = qwen_gguf_stops},
    {NULL},
};

const struct family family_qwen2 = {
    .types = {{"qwen2", HF_FLAT, &QWEN2_TEXT, NULL}},
    .read = qwen_read,
    .describe = qwen_describe_decoder,
    .gguf = gguf_second,
};

const struct family family_qwen3 = {
    .types = {{"qwen3", HF_FLAT, &QWEN3_TEXT, NULL}, {"qwen3_moe", HF_FLAT, &QWEN3_MOE_TEXT, NULL}},
    .read = qwen_read,
    .describe = qwen_describe_decoder,
    .gguf = gguf_third,
};
