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
 * The rules for results are in kernels/backend.h (THE RULE).
 *
 * On ARM64 the files of avx2 are the set `neon` (simd/lanes8.h); the Makefile leaves out those of avx512 and
 * amx. */
#ifndef KVASIR_CPU_INTERNAL_H
#define KVASIR_CPU_INTERNAL_H

#include "config/base/assert.h"
#include "kernels/backend.h"
#include "kernels/cpu/kv_q8.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A packed weight: output columns in lanes.
 *
 *   bf16: [panel][kpad / 2][16 columns][2]   f32: [panel][k][16 columns]
 * Columns and k outside the matrix are zero.
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

typedef void cpu_linear_fn(struct backend *b, const struct be_linear_args *a);
typedef void cpu_attn_fn(struct backend *b, const struct be_attn_args *a);
/* A loop of `steps` rounds of the set's multiply-add on registers; returns the operations done (2 per
 * multiply-add). One thread. */
typedef double cpu_peak_fn(uint64_t steps);
/* Reads every byte of a 64-byte aligned stretch; the result only keeps the loads alive. One thread. */
typedef uint64_t cpu_read_fn(const void *p, size_t bytes);
/* dst[i * 16 + c] = src[c][i]: how cpu/pack.c builds a panel. */
typedef void cpu_transpose16_fn(const uint32_t *const src[16], size_t words, uint32_t *dst);
/* ---- the functions of the sets: called only through the tables of cpu/sets.c; the plain C ones (ref_) may
 * be used by every set. All sets have those of CPU_EACH_OP; amx takes avx512's. */
#define CPU_EACH_OP(X)                                                                                       \
    X(embed, embed)                                                                                          \
    X(norm, norm)                                                                                            \
    X(rope, rope)                                                                                            \
    X(qkv, qkv)                                                                                              \
    X(patchify, patchify)                                                                                    \
    X(pool, pool)                                                                                            \
    X(interpolate, interpolate)                                                                              \
    X(pack, pack)                                                                                            \
    X(gate, gate)                                                                                            \
    X(conv, conv)                                                                                            \
    X(delta, delta)                                                                                          \
    X(clamp, clamp)                                                                                          \
    X(route, route)                                                                                          \
    X(logit_stats, logits)                                                                                   \
    X(topk, topk)
#define CPU_OP(op, args)                                                                                     \
    typedef void cpu_##op##_fn(struct backend *b, const struct be_##args##_args *a);                         \
    cpu_##op##_fn ref_##op, avx2_##op, avx512_##op;
CPU_EACH_OP(CPU_OP)
cpu_linear_fn ref_linear_bf16, ref_linear_f32, ref_linear_quants, avx2_linear_bf16, avx2_linear_f32,
    avx2_linear_quants, avx512_linear_bf16, avx512_linear_f32, avx512_linear_quants, amx_linear_bf16,
    amx_linear_quants, neon_dot_linear_quants;
cpu_attn_fn ref_attn, avx2_attn, avx512_attn, amx_attn_bf16; /* f32 and bf16, but for amx */
cpu_peak_fn ref_peak, avx2_peak, avx512_peak_bf16, avx512_peak_f32, amx_peak_bf16;
cpu_read_fn ref_read, avx2_read, avx512_read;
cpu_transpose16_fn avx2_transpose16, avx512_transpose16;
cpu_embed_fn cpu_embed_quants; /* of every set */
void ref_experts(struct backend *b, const struct be_experts_args *a);
float ref_gelu_tanh(float z); /* linear/ref.c */

/* One instruction set's functions. Arguments were checked by the launcher in cpu/backend.c; t, r, count > 0.
 */
struct linear_set;
struct cpu_kernels {
    const char *name;
    const char *sums; /* the set whose bits these are: its own name, but for neon */
    cpu_linear_fn *linear_bf16, *linear_f32, *linear_quants;
    cpu_attn_fn *attn_bf16, *attn_f32;
#define CPU_FIELD(op, args) cpu_##op##_fn *op;
    CPU_EACH_OP(CPU_FIELD)
    const struct linear_set *set_bf16, *set_f32, *set_quants; /* used by experts (linear.h); NULL: plain C */
    cpu_peak_fn *peak_bf16, *peak_f32;
    cpu_read_fn *read;
    cpu_transpose16_fn *transpose16; /* NULL = plain C */
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
extern const struct cpu_kernels cpu_kernels_neon, cpu_kernels_neon_dot; /* of ARM64 */
extern const struct cpu_kernels cpu_kernels_avx512;
extern const struct cpu_kernels cpu_kernels_amx;
extern const struct linear_set avx2_linear_set_bf16, avx2_linear_set_f32, avx2_linear_set_quants,
    avx512_linear_set_bf16, avx512_linear_set_f32, avx512_linear_set_quants, amx_linear_set_bf16,
    amx_linear_set_quants, neon_dot_linear_set_quants;

/* cpu/dispatch.c: the set of that name if the machine has it ("auto" and NULL: the best), else NULL. */
const struct cpu_kernels *cpu_find_kernels(const char *name);

/* linear/linear.c */
void cpu_linears(struct backend *b, const struct be_linear_args *a, uint32_t count);

/* linear/experts.c. Bytes of be_experts_args.scratch; SIZE_MAX on overflow. */
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
