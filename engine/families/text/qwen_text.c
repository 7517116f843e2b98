/* Qwen2, Qwen2.5, Qwen2-MoE; Qwen3 and Qwen3-MoE: without images, the decoder of qwen.c with one rotary axis.
 */
#include "engine/families/qwen.h"

static const struct hf_text QWEN2_TEXT = {TEXT_SIZES(151936, 4096, 22016, 32, 32, 32, 32768), SILU(1e-6),
                                          .sliding_window = 4096, .qkv_bias = true, STANDARD_ROPE(1e4)};
static const struct hf_text QWEN2_MOE_TEXT = {TEXT_SIZES(151936, 2048, 5632, 24, 16, 16, 32768),
                                              EXPERT_SIZES(60, 4, 1408),
                                              SILU(1e-6),
                                              .shared_expert_intermediate_size = 5632,
                                              .sliding_window = 4096,
                                              .qkv_bias = true,
                                              STANDARD_ROPE(1e4)};
#define THIRD(...) SILU(1e-6), STANDARD_ROPE(1e4), .sliding_window = 4096, .qk_norm = true, __VA_ARGS__
static const struct hf_text QWEN3_TEXT = {TEXT_SIZES(151936, 4096, 22016, 32, 32, 32, 32768),
                                          THIRD(.head_dim = 128)};
static const struct hf_text QWEN3_MOE_TEXT = {TEXT_SIZES(151936, 2048, 6144, 24, 32, 4, 32768),
                                              THIRD(EXPERT_SIZES(128, 8, 768))};

static const struct family_gguf gguf_second[] = {
    {.arch = "qwen2", .model_type = "qwen2", .text = standard_gguf_text, .stops = standard_gguf_stops},
    {GGUF_TEXT("qwen2moe", "qwen2_moe", standard_gguf_text), .names = qwen_gguf_experts,
     .stops = standard_gguf_stops},
    {NULL},
};
static const struct family_gguf gguf_third[] = {
    {.arch = "qwen3", .model_type = "qwen3", .text = standard_gguf_text, .stops = standard_gguf_stops},
    {GGUF_TEXT("qwen3moe", "qwen3_moe", standard_gguf_text), .names = qwen_gguf_experts,
     .stops = standard_gguf_stops},
    {NULL},
};

const struct family family_qwen2 = {
    .types = {{"qwen2", HF_FLAT, &QWEN2_TEXT, NULL}, {"qwen2_moe", HF_FLAT, &QWEN2_MOE_TEXT, NULL}},
    .read = standard_read,
    .describe = standard_describe_decoder,
    .gguf = gguf_second,
};

const struct family family_qwen3 = {
    .types = {{"qwen3", HF_FLAT, &QWEN3_TEXT, NULL}, {"qwen3_moe", HF_FLAT, &QWEN3_MOE_TEXT, NULL}},
    .read = standard_read,
    .describe = standard_describe_decoder,
    .gguf = gguf_third,
};
