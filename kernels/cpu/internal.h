/* Shared by the files of the CPU backend: the opened backend, the packed weight, the table of kernels of one
 * instruction set (struct cpu_kernels), small helpers. Only files of kernels/cpu/ include it.
 *
 * A file compiled for an instruction set (Makefile, by the end of its name) may be entered through struct
 * cpu_kernels only, except by files of the same set or a larger one. Only cpu_find_kernels checks that the
 * machine has the instructions.
 *
 * To add a kernel set, for example avx10:
 *   - its functions, in files that end with its name: linear/avx10.c, attn/avx10.c, rows/avx10.c. Start from
 *     rows/: vector types in simd/vops_<set>.h, the operations themselves in rows/vec.h. All functions are
 *     declared below
 *   - its flags: a line `ISA :=` for %avx10.c.o in the Makefile
 *   - its table: sets.c. An entry may be another set's function if every machine with this set has that one
 *     too (amx takes most from avx512), or a ref_ function
 *   - dispatch.c: the check of the machine, and the place in the order of cpu_find_kernels
 *   - its name in the lists: `cpu-kernels` in config/options.c, engine/inspect.c, docs/flags.md;
 *     tests/lib/backend_sets.c and TEST_SETS (every backend and engine test then runs it),
 *     tests/sim/test_fuzz_cache.c, tests/unit/kernels/test_cuda_cpu.c, tests/bench/bench_kernels.c
 * The rules for results are in kernels/backend.h (THE RULE). For another architecture (NEON) the Makefile
 * must also leave out the x86 files: it compiles every file of this folder. */
#ifndef KVASIR_CPU_INTERNAL_H
#define KVASIR_CPU_INTERNAL_H

#include "kernels/backend.h"
#include "kernels/cpu/attn/kv_q8.h"
#include "kernels/cpu/attn/kv_layout.h"
#include "kernels/cpu/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Programmer errors at the launchers: always on. */
#define KN_ASSERT(cond)                                                                                      \
    do {                                                                                                     \
        if (__builtin_expect(!(cond), 0)) {                                                                  \
            fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #cond);                     \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* A packed weight: output columns in lanes.
 *
 *   bf16: [panel][kpad / 2][16 columns][2]   f32: [panel][k][16 columns]       columns and k outside the
 * matrix are zero
 *
 * Two neighbouring panels make a pair of 32 columns; the number of panels is even. A plain weight's pair p
 * holds outputs [32p, 32p + 32), so a pair is exactly what pads an act output row to be_ld(N). A glu weight's
 * pair p holds 16 gate columns and the 16 up columns of outputs [16p, 16p + 16), and has be_ld(n) / 16 pairs,
 * which again covers the padding. Each output has its own lane, whose sum runs over k (or pairs of k) in
 * ascending order. */
struct be_weight {
    enum be_dtype type;
    uint32_t k, kpad; /* kpad = be_ld(k) */
    uint32_t n;       /* total outputs; with glu gate and up together */
    uint32_t pairs;
    bool glu;
    /* Of quants (layout: linear/quant.h), with bits > 0: */
    uint32_t bits, group, off;
    bool min;
    bool look; /* quants of 4 bits index values[] */
    uint8_t values[16];
    float *bias; /* [pairs * 32] in packed order, or NULL */
    void *data;
    size_t panel_bytes;    /* bytes from one panel to the next */
    size_t bytes;          /* data and bias */
    struct cpu_slab *slab; /* that contains data, or NULL: data has its own memory */
};

/* One instruction set's functions. Arguments were checked by the launcher in cpu/backend.c; t, r, count > 0.
 */
struct linear_set;
struct cpu_kernels {
    const char *name;
    void (*linear_bf16)(struct backend *b, const struct be_linear_args *a);
    void (*linear_f32)(struct backend *b, const struct be_linear_args *a);
    void (*linear_quants)(struct backend *b, const struct be_linear_args *a);
    void (*embed)(struct backend *b, const struct be_embed_args *a);
    void (*norm)(struct backend *b, const struct be_norm_args *a);
    void (*rope)(struct backend *b, const struct be_rope_args *a);
    void (*qkv)(struct backend *b, const struct be_qkv_args *a);
    void (*attn_bf16)(struct backend *b, const struct be_attn_args *a);
    void (*attn_f32)(struct backend *b, const struct be_attn_args *a);
    void (*patchify)(struct backend *b, const struct be_patchify_args *a);
    void (*pool)(struct backend *b, const struct be_pool_args *a);
    void (*interpolate)(struct backend *b, const struct be_interpolate_args *a);
    void (*pack)(struct backend *b, const struct be_pack_args *a);
    void (*gate)(struct backend *b, const struct be_gate_args *a);
    void (*conv)(struct backend *b, const struct be_conv_args *a);
    void (*delta)(struct backend *b, const struct be_delta_args *a);
    void (*clamp)(struct backend *b, const struct be_clamp_args *a);
    void (*route)(struct backend *b, const struct be_route_args *a);
    const struct linear_set *set_bf16, *set_f32, *set_quants; /* used by experts (linear.h); NULL: plain C */
    void (*logit_stats)(struct backend *b, const struct be_logits_args *a);
    void (*topk)(struct backend *b, const struct be_topk_args *a);
    /* A loop of `steps` rounds of the set's multiply-add on registers; returns the operations done (2 per
     * multiply-add). One thread. */
    double (*peak_bf16)(uint64_t steps);
    double (*peak_f32)(uint64_t steps);
    /* Reads every byte of a 64-byte aligned stretch; the result only keeps the loads alive. One thread. */
    uint64_t (*read)(const void *p, size_t bytes);
    /* dst[i * 16 + c] = src[c][i]: how cpu/pack.c builds a panel. NULL = plain C. */
    void (*transpose16)(const uint32_t *const src[16], size_t words, uint32_t *dst);
};

#define CPU_THREADS_MAX 256u

struct backend {
    const struct cpu_kernels *kern;
    enum be_dtype act;
    uint32_t threads;
    struct cpu_pool *pool;
    size_t memory_bytes;
    /* Scratch of linear: the rows of one call, rearranged for the set. Grown by weight_pack, so that an
     * operation never allocates. */
    void *rows_scratch;
    size_t rows_scratch_bytes;
    struct cpu_slab *slab; /* cpu/pack.c: where the next weight goes, or NULL */
    /* Scratch per thread: [threads][thread_scratch_bytes]. */
    char *thread_scratch;
    size_t thread_scratch_bytes;
    char name[32];
    char device[160];
    char error[256];
};

/* Bytes of one thread's scratch: f32 sums of CPU_M_BLOCK rows of linear; scores, outputs and unpacked blocks
 * of attention. */
#define CPU_THREAD_SCRATCH ((size_t)3 << 20)
/* Rows that linear works on at once: a weight is read from memory once per this many rows. */
#define CPU_M_BLOCK 512u

static inline void *cpu_thread_scratch(struct backend *b, uint32_t worker)
{
    return b->thread_scratch + (size_t)worker * b->thread_scratch_bytes;
}

extern const struct cpu_kernels cpu_kernels_reference;
extern const struct cpu_kernels cpu_kernels_avx2;
extern const struct cpu_kernels cpu_kernels_avx512;
extern const struct cpu_kernels cpu_kernels_amx;
extern const struct linear_set avx2_linear_set_bf16, avx2_linear_set_f32, avx2_linear_set_quants,
    avx512_linear_set_bf16, avx512_linear_set_f32, avx512_linear_set_quants, amx_linear_set_bf16,
    amx_linear_set_quants;

/* cpu/dispatch.c: the set of that name if the machine has it ("auto" and NULL: the best), else NULL. */
const struct cpu_kernels *cpu_find_kernels(const char *name);

/* experts.c. Bytes of be_experts_args.scratch; SIZE_MAX on overflow. */
size_t cpu_experts_scratch(const struct backend *b, uint32_t t, uint32_t k, uint32_t c, uint32_t ff,
                           uint32_t experts);
void cpu_experts(struct backend *b, const struct be_experts_args *a);

/* linear/quant.c: fills w->data of a weight of quants. rows: cpu_quant_row_bytes for each thread. false: a
 * scale is outside f16. */
void cpu_quant_shape(const struct be_weight_desc *d, struct be_weight *w);
size_t cpu_quant_row_bytes(const struct be_weight *w);
bool cpu_quant_pack(struct backend *b, const struct be_weight_desc *d, struct be_weight *w, void *rows);

/* Source part and row of packed column (pair, 0..31); false = padding. */
static inline bool cpu_pack_column(const struct be_weight_desc *d, uint32_t pair, uint32_t col,
                                   uint32_t *part, uint32_t *row)
{
    if (d->glu) {
        *part = col / 16;
        *row = pair * 16 + col % 16;
        return *row < d->src[0].n;
    }
    uint32_t out = pair * 32 + col;
    for (uint32_t s = 0; s < d->src_count; s++) {
        if (out < d->src[s].n) {
            *part = s;
            *row = out;
            return true;
        }
        out -= d->src[s].n;
    }
    return false;
}

/* cpu/pack.c */
enum be_result cpu_weight_pack(struct backend *b, const struct be_weight_desc *d, struct be_weight **out);
void cpu_weight_free(struct backend *b, struct be_weight *w);

/* cpu/backend.c: zeroed, 64-byte aligned; huge pages for large ones. NULL when out of memory. */
void *cpu_mem_alloc(size_t bytes);
void cpu_mem_free(void *p);

/* ---- the plain C functions (…_ref.c), which every set may use */
void ref_linear_bf16(struct backend *b, const struct be_linear_args *a);
void ref_linear_f32(struct backend *b, const struct be_linear_args *a);
void ref_linear_quants(struct backend *b, const struct be_linear_args *a);
void cpu_embed_quants(struct backend *b, const struct be_embed_args *a); /* of every set */
void ref_embed(struct backend *b, const struct be_embed_args *a);
void ref_norm(struct backend *b, const struct be_norm_args *a);
void ref_rope(struct backend *b, const struct be_rope_args *a);
void ref_qkv(struct backend *b, const struct be_qkv_args *a);
void ref_attn(struct backend *b, const struct be_attn_args *a);
void ref_patchify(struct backend *b, const struct be_patchify_args *a);
void ref_pool(struct backend *b, const struct be_pool_args *a);
void ref_interpolate(struct backend *b, const struct be_interpolate_args *a);
void ref_pack(struct backend *b, const struct be_pack_args *a);
void ref_gate(struct backend *b, const struct be_gate_args *a);
void ref_conv(struct backend *b, const struct be_conv_args *a);
void ref_delta(struct backend *b, const struct be_delta_args *a);
void ref_clamp(struct backend *b, const struct be_clamp_args *a);
float ref_gelu_tanh(float z); /* linear/ref.c */
void ref_route(struct backend *b, const struct be_route_args *a);
void ref_experts(struct backend *b, const struct be_experts_args *a);
void ref_logit_stats(struct backend *b, const struct be_logits_args *a);
void ref_topk(struct backend *b, const struct be_topk_args *a);
/* attn/avx2.c, attn/avx512.c (f32 and bf16), attn/amx.c (bf16) */
void avx2_attn(struct backend *b, const struct be_attn_args *a);
void avx512_attn(struct backend *b, const struct be_attn_args *a);
void amx_attn_bf16(struct backend *b, const struct be_attn_args *a);
double ref_peak(uint64_t steps);
uint64_t ref_read(const void *p, size_t bytes);

/* ---- vector sets: called only through the tables of cpu/sets.c */
void amx_linear_bf16(struct backend *b, const struct be_linear_args *a);
void amx_linear_quants(struct backend *b, const struct be_linear_args *a);
double amx_peak_bf16(uint64_t steps);
void avx512_linear_bf16(struct backend *b, const struct be_linear_args *a);
void avx512_linear_f32(struct backend *b, const struct be_linear_args *a);
void avx512_linear_quants(struct backend *b, const struct be_linear_args *a);
double avx512_peak_bf16(uint64_t steps);
double avx512_peak_f32(uint64_t steps);
uint64_t avx512_read(const void *p, size_t bytes);
void avx512_transpose16(const uint32_t *const src[16], size_t words, uint32_t *dst);
void avx2_linear_bf16(struct backend *b, const struct be_linear_args *a);
void avx2_linear_f32(struct backend *b, const struct be_linear_args *a);
void avx2_linear_quants(struct backend *b, const struct be_linear_args *a);
double avx2_peak(uint64_t steps);
uint64_t avx2_read(const void *p, size_t bytes);
void avx2_transpose16(const uint32_t *const src[16], size_t words, uint32_t *dst);
void avx512_embed(struct backend *b, const struct be_embed_args *a);
void avx512_norm(struct backend *b, const struct be_norm_args *a);
void avx512_rope(struct backend *b, const struct be_rope_args *a);
void avx512_qkv(struct backend *b, const struct be_qkv_args *a);
void avx512_patchify(struct backend *b, const struct be_patchify_args *a);
void avx512_pool(struct backend *b, const struct be_pool_args *a);
void avx512_interpolate(struct backend *b, const struct be_interpolate_args *a);
void avx512_pack(struct backend *b, const struct be_pack_args *a);
void avx512_gate(struct backend *b, const struct be_gate_args *a);
void avx512_conv(struct backend *b, const struct be_conv_args *a);
void avx512_delta(struct backend *b, const struct be_delta_args *a);
void avx512_clamp(struct backend *b, const struct be_clamp_args *a);
void avx512_route(struct backend *b, const struct be_route_args *a);
void avx512_logit_stats(struct backend *b, const struct be_logits_args *a);
void avx512_topk(struct backend *b, const struct be_topk_args *a);
void avx2_embed(struct backend *b, const struct be_embed_args *a);
void avx2_norm(struct backend *b, const struct be_norm_args *a);
void avx2_rope(struct backend *b, const struct be_rope_args *a);
void avx2_qkv(struct backend *b, const struct be_qkv_args *a);
void avx2_patchify(struct backend *b, const struct be_patchify_args *a);
void avx2_pool(struct backend *b, const struct be_pool_args *a);
void avx2_interpolate(struct backend *b, const struct be_interpolate_args *a);
void avx2_pack(struct backend *b, const struct be_pack_args *a);
void avx2_gate(struct backend *b, const struct be_gate_args *a);
void avx2_conv(struct backend *b, const struct be_conv_args *a);
void avx2_delta(struct backend *b, const struct be_delta_args *a);
void avx2_clamp(struct backend *b, const struct be_clamp_args *a);
void avx2_route(struct backend *b, const struct be_route_args *a);
void avx2_logit_stats(struct backend *b, const struct be_logits_args *a);
void avx2_topk(struct backend *b, const struct be_topk_args *a);

/* ---- bf16: the upper half of an f32 */
static inline float bf16_to_f32(uint16_t v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* Round to nearest even; NaN stays NaN. */
static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Loads and stores of a row of the act type, in f32. */
static inline float act_get(const void *p, enum be_dtype act, size_t i)
{
    return act == BE_F32 ? ((const float *)p)[i] : bf16_to_f32(((const uint16_t *)p)[i]);
}
static inline void act_put(void *p, enum be_dtype act, size_t i, float v)
{
    if (act == BE_F32) {
        ((float *)p)[i] = v;
    } else {
        ((uint16_t *)p)[i] = f32_to_bf16(v);
    }
}

/* Sequence that row `row` belongs to: the last s with seq_row[s] <= row (sequences without rows are skipped).
 */
static inline uint32_t rows_seq(const struct be_rows *r, uint32_t row)
{
    uint32_t lo = 0, hi = r->seq_count;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (r->seq_row[mid] <= row) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Heads of be_qkv_args.qkv before the keys, and in a row. */
static inline uint32_t qkv_queries(const struct be_qkv_args *a)
{
    return a->heads * (a->gated ? 2u : 1u);
}
static inline uint32_t qkv_heads(const struct be_qkv_args *a)
{
    return qkv_queries(a) + a->kv.kv_heads * (a->parts == BE_QKV ? 2u : a->parts == BE_QK ? 1u : 0u);
}
static inline uint32_t qkv_rotary(const struct be_qkv_args *a)
{
    return a->rotary ? a->rotary : a->kv.head_dim;
}

/* Where layer_offset lies in a state's block; NULL without one. */
static inline float *state_at(const struct be_states *s, uint32_t block_offset, size_t layer_offset)
{
    return block_offset == BE_NO_BLOCK
               ? NULL
               : (float *)(void *)((char *)s->arena + (size_t)block_offset * BE_KV_GRAIN + layer_offset);
}

static inline uint32_t u32_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
static inline uint32_t u32_max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

#endif
