/* Shared by the files of the CUDA backend: the opened backend, the packed weight, error handling, and the
 * operations in cuda_backend.cu's table. Only .cu files of kernels/cuda include it. Everything runs on one
 * stream, in call order; only download, sync, close and weight_free wait for the device.
 *
 * Errors: every call of the runtime is checked; the first failure is kept as text, and then operations are
 * no-ops. sync() reports it.
 *
 * Graphs: an operation may be recorded (graph.cu), so it only puts kernels, copies and memsets on the stream.
 * One-time setup (kernel attributes, handles, algorithm choices) happens in its _init or at an earlier call:
 * the engine runs every batch once before recording it. */
#ifndef KVASIR_CUDA_INTERNAL_H
#define KVASIR_CUDA_INTERNAL_H

#include "kernels/backend.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/kv.h"

#include <stdio.h>
#include <stdlib.h>

/* As ASSERT of config/base/assert.h, which is not in kvasir-cuda.so: programmer errors at the launchers. */
#define CU_ASSERT(cond)                                                                                      \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #cond);                     \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* A packed weight: [wrows][kpad] in the act type, row = output, k contiguous, zero outside the matrix. Plain:
 * row n is output n, wrows = be_ld(n), so that the rows are also the columns of a padded act output. With
 * glu, every 16 rows hold 8 gate rows and the 8 up rows of the same outputs: row 16 i + j is gate 8 i + j,
 * row 16 i + 8 + j is up 8 i + j, and wrows = 2 be_ld(n / 2). One thread of a tensor-core tile then holds
 * both sums of an output. */
struct be_weight {
    enum be_dtype type;
    uint32_t k, kpad; /* kpad = be_ld(k) */
    uint32_t n;       /* total outputs; with glu gate and up together */
    uint32_t wrows;
    bool glu;
    uint32_t atoms; /* 0, or the Hopper path: chunks of 64 k in a row, and the order is cu_tiled_at's */
    void *data;     /* device */
    float *bias;    /* device, [wrows] in row order, or NULL */
    size_t bytes;
    struct cuda_slab *slab;   /* that contains data, or NULL: data has its own memory */
    const struct cuda_lt *lt; /* gemm_lt.cu multiplies by it; NULL: our kernels */
};

/* Host memory that the device copies from asynchronously, and a chunk of device memory of the same size
 * (pack.cu). */
#define CUDA_STAGES       4u
#define CUDA_RESULTS      2u /* stages without device memory, for downloads in two halves */
#define CUDA_STAGE_BYTES  ((size_t)4 << 20)
#define CUDA_RESULT_BYTES ((size_t)1 << 20)
struct cuda_stage {
    void *host, *dev;
    cudaEvent_t done; /* the device has read it */
    bool used;
};

struct gemm_job; /* gemm.cuh */

struct backend {
    enum be_dtype act;
    uint32_t sms, cc; /* cc: 80, 90, ... */
    size_t smem_max;  /* most dynamic shared memory of a block */
    cudaStream_t stream;
    struct cuda_stage stages[CUDA_STAGES + CUDA_RESULTS];
    uint32_t stage_next, results_begun, results_ended;
    void *scratch; /* scratch of one operation */
    size_t scratch_bytes;
    size_t memory_bytes;
    cudaMemPool_t pool;     /* alloc and free are stream-ordered */
    bool pooled;            /* else the device has no pools: they wait for it */
    struct cuda_slab *slab; /* pack.cu: where the next weight goes, or NULL */
    struct cuda_blas *blas; /* gemm_lt.cu; NULL: all products are ours */
    bool hopper_wanted;     /* be_params.hopper */
    bool hopper;            /* bf16 products and attention by Hopper instructions; weights are tiled */
    bool failed;
    bool recording; /* between graph_begin and graph_end: an error invalidates the recording, not the
                       backend */
    bool record_failed;
    char name[32];
    char gemm[400]; /* caps.gemm */
    char device[320];
    char error[512];
};

/* cuda_backend.cu: true on success; else keeps the first error (while recording: marks the recording as
 * invalid). */
bool cuda_check(struct backend *b, cudaError_t e, const char *what);
#define CU_TRY(b, call) cuda_check((b), (call), #call)
/* After a launch. */
static inline bool cuda_launched(struct backend *b, const char *kernel)
{
    return cuda_check(b, cudaGetLastError(), kernel);
}
/* The next stage, ready to be written; NULL after an error. */
struct cuda_stage *cuda_stage_next(struct backend *b);
/* The stage's copies and kernels are on the stream. */
void cuda_stage_sent(struct backend *b, struct cuda_stage *s);

/* Raises a kernel's limit of shared memory; false after an error. */
template <class K> static inline bool cuda_allow_smem(struct backend *b, K *kernel, size_t bytes)
{
    if (bytes <= 48u * 1024) return true;
    return cuda_check(b,
                      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                      "cudaFuncSetAttribute");
}

/* pack.cu */
enum be_result cuda_weight_pack(struct backend *b, const struct be_weight_desc *d, struct be_weight **out);
void cuda_weight_free(struct backend *b, struct be_weight *w);
/* linear.cu, attn.cu, experts.cu: one-time setup of a device. */
bool cuda_linear_init(struct backend *b);
bool cuda_attn_init(struct backend *b);
bool cuda_experts_init(struct backend *b);
/* gemm_lt.cu. open: false after an error, and close frees what there is. */
bool cuda_lt_open(struct backend *b);
void cuda_lt_close(struct backend *b);
/* The shape's entry, after a check with the first weight of that shape, or NULL: our kernels serve it. w has
 * its shape and data, whose content is overwritten. */
const struct cuda_lt *cuda_lt_find(struct backend *b, const struct be_weight *w);
/* The most rows of a call of cuda_lt_linear; 0: our kernels serve the product. */
uint32_t cuda_lt_rows(const struct backend *b, const struct be_linear_args *a);
void cuda_lt_linear(struct backend *b, const struct be_weight *w, const struct gemm_job &j);
/* hopper.cu: enables the Hopper path if it is available, requested and passes its self-check; never fails. */
void cuda_hopper_init(struct backend *b);
/* attn.cu: whether there is a kernel for that head size. */
bool cuda_attn_supports(const struct backend *b, uint32_t head_dim);
/* Operations; the launchers in cuda_backend.cu have checked the arguments; row counts are positive. */
void cuda_linear(struct backend *b, const struct be_linear_args *a);
void cuda_embed(struct backend *b, const struct be_embed_args *a);
void cuda_norm(struct backend *b, const struct be_norm_args *a);
void cuda_rope(struct backend *b, const struct be_rope_args *a);
void cuda_qkv(struct backend *b, const struct be_qkv_args *a);
void cuda_kv_clear(struct backend *b, const struct be_kv *kv, uint32_t block_offset, uint32_t first);
void cuda_attn(struct backend *b, const struct be_attn_args *a);
void cuda_patchify(struct backend *b, const struct be_patchify_args *a);
void cuda_pool(struct backend *b, const struct be_pool_args *a);
void cuda_gather(struct backend *b, const struct be_gather_args *a);
void cuda_interpolate(struct backend *b, const struct be_interpolate_args *a);
void cuda_pack(struct backend *b, const struct be_pack_args *a);
void cuda_gate(struct backend *b, const struct be_gate_args *a);
void cuda_conv(struct backend *b, const struct be_conv_args *a);
void cuda_delta(struct backend *b, const struct be_delta_args *a);
uint32_t cuda_delta_key_max(const struct backend *b); /* a head's keys are in shared memory */
void cuda_clamp(struct backend *b, const struct be_clamp_args *a);
void cuda_route(struct backend *b, const struct be_route_args *a);
size_t cuda_experts_scratch(const struct backend *b, uint32_t t, uint32_t k, uint32_t c, uint32_t ff,
                            uint32_t experts);
void cuda_experts(struct backend *b, const struct be_experts_args *a);
void cuda_logit_stats(struct backend *b, const struct be_logits_args *a);
void cuda_topk(struct backend *b, const struct be_topk_args *a);
void cuda_take_ids(struct backend *b, const struct be_logit_stats *stats, uint32_t t, uint32_t *ids);

/* graph.cu */
enum be_result cuda_graph_begin(struct backend *b);
enum be_result cuda_graph_end(struct backend *b, struct be_graph **out);
void cuda_graph_launch(struct backend *b, const struct be_graph *g);
void cuda_graph_free(struct backend *b, struct be_graph *g);

/* ---- helpers for kernels */

#define CU_NEG_INF (-__int_as_float(0x7f800000))

static __device__ __forceinline__ uint16_t cu_bf16_bits(float v)
{
    return __bfloat16_as_ushort(__float2bfloat16(v));
}
static __device__ __forceinline__ float cu_bf16_value(uint16_t v)
{
    return __uint_as_float((uint32_t)v << 16);
}
template <bool BF> static __device__ __forceinline__ float cu_act_get(const void *p, size_t i)
{
    return BF ? cu_bf16_value(static_cast<const uint16_t *>(p)[i]) : static_cast<const float *>(p)[i];
}
template <bool BF> static __device__ __forceinline__ void cu_act_put(void *p, size_t i, float v)
{
    if (BF) static_cast<uint16_t *>(p)[i] = cu_bf16_bits(v);
    else static_cast<float *>(p)[i] = v;
}
/* Sequence that row `row` belongs to: the last s with seq_row[s] <= row (sequences without rows are skipped).
 * Experts and their tiles likewise. */
static __device__ __forceinline__ uint32_t cu_row_seq(const uint32_t *seq_row, uint32_t seq_count,
                                                      uint32_t row)
{
    uint32_t lo = 0, hi = seq_count;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (seq_row[mid] <= row) lo = mid;
        else hi = mid;
    }
    return lo;
}
/* Sum over a block of WARPS warps, the same for all threads: lanes as cu_warp_sum, then the warps in
 * ascending order. red: [WARPS] shared floats. */
template <int WARPS> static __device__ __forceinline__ float cu_block_sum(float v, float *red)
{
    v = cu_warp_sum(v);
    if (threadIdx.x % 32 == 0) red[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0;
    CU_UNROLL
    for (int w = 0; w < WARPS; w++) sum += red[w];
    __syncthreads();
    return sum;
}
/* Element k of row `row` in a tiled weight (hopper.cuh: atoms of 8 rows of 64 k, swizzled). */
static __device__ __forceinline__ size_t cu_tiled_at(uint32_t row, uint32_t k, uint32_t atoms)
{
    return ((size_t)(row / 8) * atoms + k / 64) * 512 + row % 8 * 64 + ((k / 8 ^ row) & 7) * 8 + k % 8;
}
static inline uint32_t cu_div_up(size_t a, size_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

#endif
