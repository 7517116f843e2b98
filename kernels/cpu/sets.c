/* The kernel sets: which function serves which operation. Plain data, compiled without wider instruction
 * flags. */
#include "kernels/cpu/internal.h"

/* Each set has its own functions of CPU_EACH_OP. */
#define OPS(set)                                                                                             \
    .embed = set##_embed, .norm = set##_norm, .rope = set##_rope, .qkv = set##_qkv,                          \
    .patchify = set##_patchify, .pool = set##_pool, .interpolate = set##_interpolate, .pack = set##_pack,    \
    .gate = set##_gate, .conv = set##_conv, .delta = set##_delta, .clamp = set##_clamp,                      \
    .route = set##_route, .logit_stats = set##_logit_stats, .topk = set##_topk

const struct cpu_kernels cpu_kernels_reference = {
    .name = "reference",
    .sums = "reference",
    OPS(ref),
    .linear_bf16 = ref_linear_bf16,
    .linear_f32 = ref_linear_f32,
    .linear_quants = ref_linear_quants,
    .attn_bf16 = ref_attn,
    .attn_f32 = ref_attn,
    .peak_bf16 = ref_peak,
    .peak_f32 = ref_peak,
    .read = ref_read,
};

/* One source, simd/lanes8.h, for x86-64's `avx2` and for ARM64's `neon`: their bits are equal. */
#define LANES8(set, quants)                                                                                  \
    {                                                                                                        \
        .name = set, .sums = "avx2", OPS(avx2), .linear_bf16 = avx2_linear_bf16,                             \
        .linear_f32 = avx2_linear_f32, .linear_quants = quants##_linear_quants, .attn_bf16 = avx2_attn,      \
        .attn_f32 = avx2_attn, .set_bf16 = &avx2_linear_set_bf16, .set_f32 = &avx2_linear_set_f32,           \
        .set_quants = &quants##_linear_set_quants, .peak_bf16 = avx2_peak, .peak_f32 = avx2_peak,            \
        .read = avx2_read, .transpose16 = avx2_transpose16,                                                  \
    }
#if defined(__aarch64__)
const struct cpu_kernels cpu_kernels_neon = LANES8("neon", avx2);
const struct cpu_kernels cpu_kernels_neon_dot = LANES8("neon", neon_dot);
#endif

#if defined(__x86_64__)
const struct cpu_kernels cpu_kernels_avx2 = LANES8("avx2", avx2);
const struct cpu_kernels cpu_kernels_avx512 = {
    .name = "avx512",
    .sums = "avx512",
    OPS(avx512),
    .linear_bf16 = avx512_linear_bf16,
    .linear_f32 = avx512_linear_f32,
    .linear_quants = avx512_linear_quants,
    .attn_bf16 = avx512_attn,
    .attn_f32 = avx512_attn,
    .set_bf16 = &avx512_linear_set_bf16,
    .set_f32 = &avx512_linear_set_f32,
    .set_quants = &avx512_linear_set_quants,
    .peak_bf16 = avx512_peak_bf16,
    .peak_f32 = avx512_peak_f32,
    .read = avx512_read,
    .transpose16 = avx512_transpose16,
};

const struct cpu_kernels cpu_kernels_amx = {
    .name = "amx",
    .sums = "amx",
    OPS(avx512),
    .linear_bf16 = amx_linear_bf16,
    .linear_f32 = avx512_linear_f32,
    .linear_quants = amx_linear_quants,
    .attn_bf16 = amx_attn_bf16,
    .attn_f32 = avx512_attn,
    .set_bf16 = &amx_linear_set_bf16,
    .set_f32 = &avx512_linear_set_f32,
    .set_quants = &amx_linear_set_quants,
    .peak_bf16 = amx_peak_bf16,
    .peak_f32 = avx512_peak_f32,
    .read = avx512_read,
    .transpose16 = avx512_transpose16,
};
#endif
