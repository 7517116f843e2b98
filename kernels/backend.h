/* The hardware abstraction: a table of functions over opaque memory, implemented by `cpu/` and `cuda/`.
 * Includes no other header of the project. One thread (the engine's) calls a backend, which divides the work
 * among its threads or streams.
 *
 * THE RULE for every function: a row's result depends on that row's inputs alone, bit for bit - never on how
 * many other rows there are, how rows were cut into calls, or how many threads run. So: one fixed
 * accumulation order over K in `linear`; attention walks keys in fixed tiles by absolute position; a tile
 * that is fully masked for a row changes no bit of it; no atomics in reductions. Results may differ between
 * kernel sets (reference, avx2, avx512, amx), never inside one.
 *
 * Shape letters: T rows (tokens or patches) in the call, C hidden size, K inputs of a linear, N outputs, H
 * query heads, G kv heads, D head size, V vocabulary, R logit rows. "act" = the compute type of the model
 * (be_params.act: BE_F32 or BE_BF16).
 *
 * Memory layout: f32 matrices are dense, row stride = columns. act matrices that feed `linear` have row
 * stride be_ld(K) elements: K rounded up to 32, and its producer writes zeros into the padding. All matrices
 * start 64-byte aligned. Addresses are device addresses: the engine may add offsets to them but never
 * dereferences them (it uses upload/download; with caps.host_memory it may read after sync).
 *
 * Errors: operations can't fail by contract (`open` rejects what a device can't do, shapes are asserted);
 * device errors surface in sync().
 *
 * Graphs: a backend may record a series of operations once and replay it. Numbers and addresses in the
 * arguments are fixed; only the memory at the addresses changes between replays. So an operation may branch
 * on its arguments' numbers (t, seq_count, shapes), never on the content of arrays. */
#ifndef KVASIR_BACKEND_H
#define KVASIR_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum be_result { BE_OK = 0, BE_NOMEM, BE_UNSUPPORTED, BE_DEVICE };
enum be_dtype { BE_F32 = 0, BE_BF16 = 1, /* only as sources of weight_pack: */ BE_F16 = 2, BE_QUANT = 3 };

#define BE_ROW_ALIGN     32u  /* elements */
#define BE_BLOCK_TOKENS  32u  /* tokens in a KV block, all groups */
#define BE_KV_GRAIN      512u /* bytes: block-table entries count these from the start of the arena */
#define BE_NO_BLOCK      UINT32_MAX
#define BE_TOPK_MAX      256u
#define BE_EXPERTS_K_MAX 64u /* experts per token */

static inline size_t be_ld(size_t k)
{
    return (k + BE_ROW_ALIGN - 1) / BE_ROW_ALIGN * BE_ROW_ALIGN;
}
static inline size_t be_dtype_bytes(enum be_dtype t)
{
    return t == BE_F32 ? 4 : 2;
}

struct be_params {
    enum be_dtype act;   /* compute type: BE_F32 or BE_BF16 */
    uint32_t threads;    /* 0 = one per usable core */
    const char *kernels; /* NULL or "auto" = the best of the CPU; "reference", "avx2", "avx512", "amx", "neon"
                            (the caller handles KVASIR_CPU_KERNELS) */
    bool own_gemm; /* CUDA: all matrix products by our kernels. Else cuBLASLt serves every weight shape that
                      is batch-invariant on this device, by a check when the first such weight is packed;
                      never by a measurement: bits must not depend on noise. */
    bool hopper;   /* CUDA: kernels for compute capability 9.0, if the device has it */
};

struct be_caps {
    const char *name;   /* "cpu-amx", "cpu-avx512", ... */
    const char *sums;   /* the kernel set that has these bits, as "avx2" of "cpu-neon"; NULL: name. Part of
                           the system fingerprint */
    const char *device; /* for people: CPU brand string and threads */
    const char *gemm;   /* whose products, of the weights packed so far; part of the fingerprint; NULL: own */
    uint32_t threads;
    bool host_memory;       /* device addresses can be read by the host after sync() */
    bool quants;            /* weight_pack takes BE_QUANT */
    size_t memory_bytes;    /* limit for weights and KV (physical memory for the CPU) */
    uint32_t delta_key_max; /* largest be_delta_args.key_dim; 0: any */
};

struct backend;   /* an opened backend */
struct be_weight; /* a prepacked weight: layout private to the backend */
struct be_graph;  /* recorded operations */

/* ---- linear ---- */

/* Integers with scales instead of floats. A weight is scale * (code - off), with minima scale * code + min;
 * `group` numbers in a row of a row share them. The input row is quantized too: groups of 32 become integers
 * in [-127, 127] and a scale (max |x| / 127); integer products are summed exactly, and each group's sum is
 * added to the f32 sum of the output, groups in ascending order. */
struct be_quant {
    /* Row `row` of the part: code [k], scale [k / group], min the same. May be called by several threads. */
    void (*row)(const void *arg, uint32_t row, uint8_t *code, float *scale, float *min);
    const void *arg;
    uint32_t bits;  /* 4, 5, 6 or 8: code < 1 << bits */
    uint32_t group; /* 16 or 32 */
    uint32_t off;   /* without minima */
    bool min;
    const uint8_t *values; /* the only 16 values of the 8-bit quants, so 4 bits suffice. NULL: any */
};
struct be_weight_src {
    const void *data; /* host memory, borrowed for the call: row-major [n, k], or [k, n] if transposed. NULL
                         (CUDA): zeros, and no bias is read */
    enum be_dtype dtype; /* converted to the act type: round to nearest even */
    bool transposed;
    uint32_t n;                    /* output features of this part */
    const struct be_quant *quants; /* BE_QUANT: instead of data; of all parts or none, k a multiple of 32 */
};
struct be_weight_desc {
    uint32_t k;         /* input features */
    uint32_t src_count; /* 1..3 parts, outputs concatenated in order (q|k|v) */
    struct be_weight_src src[3];
    bool grouped;      /* for `experts` */
    bool glu;          /* exactly 2 parts of equal n: gate and up, interleaved for the GLU epilogues */
    const float *bias; /* f32 [sum n] host, or NULL; added to the f32 sum before the epilogue */
};

enum be_epilogue {
    BE_EPI_F32 = 0,       /* out f32 [T, N] */
    BE_EPI_ADD_F32,       /* out f32 [T, N] += result (out holds the residual) */
    BE_EPI_ACT,           /* out act [T, be_ld(N)], padding zeroed */
    BE_EPI_GELU_TANH,     /* out act [T, be_ld(N)] = 0.5 z (1 + tanh(sqrt(2/pi)(z + 0.044715 z^3))) */
    BE_EPI_GELU_ERF,      /* out act [T, be_ld(N)] = 0.5 z (1 + erf(z/sqrt(2))) */
    BE_EPI_QUICK_GELU,    /* out act [T, be_ld(N)] = z/(1+exp(-1.702 z)) */
    BE_EPI_GLU_GELU_TANH, /* weight made with glu: out act [T, be_ld(N/2)] = gelu_tanh(gate) * up */
    BE_EPI_GLU_SILU,      /* out act [T, be_ld(N/2)] = gate/(1+exp(-gate)) * up */
};
struct be_linear_args {
    const struct be_weight *w;
    const void *x; /* act [T, be_ld(K)] */
    uint32_t t;    /* rows; 0 is fine */
    enum be_epilogue epilogue;
    void *out;
    const float *add; /* f32 [T, N] in the order of the parts, added to the sums after the bias; only with an
                         act output. NULL: none. A row of -0.0f changes no bit. */
};

/* x[t] = w_row[ids[t]] * scale, as f32. The table is the packed weight of the tied head ([V, C]); `round_act`
 * rounds the product to the act type (transformers does). An id of UINT32_MAX leaves its row unchanged (for
 * an image's row). */
struct be_embed_args {
    const struct be_weight *w;
    const uint32_t *ids; /* [T] */
    uint32_t t;
    float scale;
    bool round_act;
    float *out; /* f32 [T, C] */
};

/* ---- mixture of experts ---- */

/* Softmax over all experts, then the k largest in descending order, ties by lower id; with renorm their
 * weights are divided by their sum. f32. Experts are ordered by logit (softmax keeps the order), so the order
 * does not depend on the kernel set; NaN counts as lowest, so the ids are always k different experts. */
struct be_route_args {
    const float *logits;    /* f32 [T, E] */
    uint32_t t, experts, k; /* 1 <= k <= E, k <= BE_EXPERTS_K_MAX */
    bool renorm;
    const float *scale; /* f32 [E] or NULL: finally each weight is multiplied by its expert's */
    uint32_t *ids;      /* [T, k] */
    float *weights;     /* f32 [T, k] */
};
/* out[t] = sum over the row's k experts, in ascending expert id, of weight *
 * down_e(gate_epilogue(glu_e(x[t]))). Products of an expert are those of `linear`, so a row's sum does not
 * depend on which other rows chose the same expert. */
struct be_experts_args {
    struct be_weight *const *glu;  /* host array [E]: weights made with glu, [2I, C] */
    struct be_weight *const *down; /* host array [E]: [C, I] */
    uint32_t experts, k, t;
    uint32_t c, ff;        /* C of x and out, I */
    enum be_epilogue gate; /* BE_EPI_GLU_* */
    const void *x;         /* act [T, be_ld(C)] */
    const uint32_t *ids;   /* [T, k] from route */
    const float *weights;  /* f32 [T, k] */
    void *scratch;         /* experts_scratch(...) bytes */
    float *out;            /* f32 [T, C], overwritten */
};

/* ---- norms ---- */

/* Three steps, each optional, so that a decoder layer's "norm, add to the residual, norm again" is one pass:
 *   a = post_weight ? rms(x)*post_weight : x                     (post_weight: RMS only)
 *   if residual: residual += a, times residual_scale[0] if set; b = residual   else  b = a
 *   if out: out = norm(b)*weight + bias                         (kind: RMS without bias, or LAYER with bias)
 * rms(v) = v / sqrt(mean(v^2) + eps). Weights multiply directly (for 1 + w the 1 is added at load). All
 * arithmetic in f32. */
enum be_norm_kind { BE_NORM_RMS = 0, BE_NORM_LAYER = 1 };
struct be_norm_args {
    enum be_norm_kind kind;
    uint32_t t, c;
    size_t stride; /* of x and of a dense out; 0 counts as C */
    float eps;
    const float *x;              /* f32 [T, C]; may be NULL if residual is set and nothing is added */
    const float *post_weight;    /* f32 [C] or NULL */
    float *residual;             /* f32 [T, C] or NULL */
    const float *residual_scale; /* f32 [1] or NULL; only if x is added to a residual */
    const float *weight;         /* f32 [C] */
    const float *bias;           /* f32 [C] or NULL */
    void *out;               /* [T, be_ld(C)] if out_dtype is the act type bf16, or act f32; NULL = none */
    enum be_dtype out_dtype; /* BE_F32 -> stride be_ld(C) too, padding zeroed */
    bool out_dense;          /* out is dense f32 [T, C] (features, pooled rows) instead of be_ld(C); it may be
                                x or the residual */
};

/* ---- positions, KV ---- */

/* cos/sin of angle = float(pos[axis[i]][t]) * inv_freq[i], times `scaling` (1, or YaRN's factor). */
struct be_rope_args {
    const int32_t *pos;    /* [axes][T] */
    uint32_t t, axes;      /* axes 1 (plain) or 3 (mRoPE) */
    uint32_t half;         /* D/2 */
    const float *inv_freq; /* f32 [half] */
    const uint8_t *axis;   /* [half], or NULL = all 0 */
    float scaling;
    float *cos, *sin; /* f32 [T, half] */
};

/* Storage type of keys and values. 8 bits: quants, and a scale for each 32 elements of a token's head,
 * computed from these alone; attention uses code * scale, rounded to the act type, for the step's own tokens
 * too. */
enum be_kv_type { BE_KV_ACT = 0, BE_KV_INT8 };
/* Where one layer's keys and values live: arena + table[p / BE_BLOCK_TOKENS] * BE_KV_GRAIN + layer_offset is
 * the layer's part of the block that holds position p. Its layout is private to the backend (kv_layer_bytes
 * gives its size); a block may be copied whole as bytes. */
struct be_kv {
    void *arena;
    size_t layer_offset; /* bytes, a multiple of 64 */
    uint32_t kv_heads, head_dim;
    enum be_kv_type type;
};
/* The rows of a ragged batch, for one KV group. Arrays are in backend memory. Rows of one sequence are
 * consecutive, in ascending position. On a backend with graphs a row may be padding, so that a batch has the
 * size of a recorded one: the table has BE_NO_BLOCK for its key. Then qkv writes its query but not the cache;
 * the other operations treat it as any row. */
struct be_rows {
    uint32_t t; /* rows */
    uint32_t seq_count;
    const uint32_t *seq_row;   /* [seq_count + 1] first row of each sequence; seq_row[seq_count] = t */
    const uint32_t *seq_table; /* [seq_count] index into `tables` where the sequence's block table starts */
    const uint32_t *tables; /* block tables: entry b is the block of positions [32b, 32b+32), or BE_NO_BLOCK
                               if not kept */
    const uint32_t *pos;    /* [T] absolute position = KV slot of the row's own key */
    const uint32_t *lo,
        *hi; /* [T] the row sees keys lo <= j <= hi (inclusive); hi may exceed pos inside an image */
};

/* From the fused projection, f32: per-head RMS norm of q and k (weights may be NULL), rotate-half RoPE with
 * cos/sin, q out as act, k - k_shift and v written to the cache (rounded to the act type, or to quants). */
enum be_qkv_parts {
    BE_QKV = 0, /* [T, (H+2G)*D] */
    BE_QK,      /* [T, (H+G)*D]: the values are the keys before norm and RoPE */
    BE_Q,       /* [T, H*D]: another layer wrote keys and values; the cache is not written */
};
struct be_qkv_args {
    const struct be_rows *rows;
    enum be_qkv_parts parts;
    uint32_t heads;   /* H */
    bool gated;       /* each head's D queries are followed by D columns of a gate, not read here */
    struct be_kv kv;  /* G, D */
    const float *qkv; /* f32 */
    bool v_norm;      /* RMS norm of v per head, without a weight */
    const float *q_norm, *k_norm; /* f32 [D] or NULL */
    float eps;
    const float *cos, *sin; /* f32 [T, rotary/2], or NULL = no RoPE */
    uint32_t rotary;        /* the first so many columns of a head rotate; 0 counts as D */
    const float *k_shift;   /* f32 [G, D], finally subtracted from k; or NULL */
    float q_beta, q_period; /* q is finally multiplied by QKV_Q_SCALE */
    void *q;                /* act [T, H*D] dense */
};

/* Of a query at that position: grows with the logarithm of the context, 1 with a beta of 0. */
#define QKV_Q_SCALE(a, pos)                                                                                  \
    ((a)->q_beta > 0 ? 1.0f + (a)->q_beta * logf(1.0f + floorf((float)(pos) / (a)->q_period)) : 1.0f)

/* Values must be finite, even masked ones: NaN in a masked V row would still propagate (0 * NaN) to rows
 * sharing the tile. Keys may be anything. o[t,h] = softmax_j(softcap(scale * q.k_j)) v_j over lo<=j<=hi;
 * query head h reads kv head h*G/H. softcap(s) = c*tanh(s/c) when c > 0. Scores, max, exp and sums in f32;
 * online softmax over key tiles fixed by absolute position. */
struct be_attn_args {
    const struct be_rows *rows;
    uint32_t heads;
    struct be_kv kv;
    const void *q; /* act [T, H*D] dense */
    float scale, softcap;
    void *out; /* act [T, be_ld(H*D)] */
};

/* ---- vision, rows, logits ---- */

/* Patches of an image, `depth` frames deep. Output row n holds patch q = order ? order[n] : n, the one at
 * cell row q / (w/ps), column q % (w/ps): out[n][((c*depth + s)*ps + ky)*ps + kx] = lut[c*256 + rgb_s[row*ps
 * + ky][col*ps + kx][c]],   rgb_s = rgb + s * frame_stride act, stride be_ld(3*depth*ps*ps). A still image
 * in a tower of depth 2 is shown twice: frame_stride 0. */
struct be_patchify_args {
    const uint8_t *rgb;            /* [height, width, 3] */
    uint32_t width, height, patch; /* pixels after the last whole patch are left out */
    const float *lut;              /* f32 [3*256] */
    void *out;
    uint32_t depth;        /* 0 counts as 1 */
    size_t frame_stride;   /* bytes */
    const uint32_t *order; /* [(h/ps)*(w/ps)] or NULL */
    bool dense;            /* out is f32, without padding */
};
/* out[t] = sum over k = 0..taps-1, in this order, of weights[t][k] * table[rows[t][k]]; f32, plain multiply
 * and add (no fused steps are required, but one kernel set always does the same). Lookup in a learned
 * position table: 4 taps bilinear, 16 bicubic. */
struct be_interpolate_args {
    const float *table;   /* f32 [S, C] */
    const uint32_t *rows; /* [T, taps] */
    const float *weights; /* f32 [T, taps] */
    uint32_t t, c, taps;
    float *out; /* f32 [T, C] dense */
};
/* out[t] = x[t], f32 dense to act with stride be_ld(C), padding zeroed. */
struct be_pack_args {
    const float *x; /* f32 [T, C] dense */
    uint32_t t, c;
    void *out;
};
/* out[t, h, i] = f(gate[t, h, i]) * N(x[t, h, i]): H heads of D columns; f(z) = z with BE_GATE_NONE; N: RMS
 * norm over a head's columns, or nothing. BE_GATE_CDF: (1 + erf(z / sqrt 2)) / 2, so that with x = gate out
 * is gelu_erf. Strides count elements. */
enum be_gate { BE_GATE_GELU_TANH = 0, BE_GATE_SILU, BE_GATE_SIGMOID, BE_GATE_NONE, BE_GATE_CDF };
struct be_gate_args {
    enum be_gate f;
    const float *gate; /* f32, head h of row t begins at t * gate_stride + h * gate_head */
    size_t gate_stride, gate_head;
    bool gate_row;         /* one number for the whole row instead, at t * gate_stride */
    const void *x;         /* row t begins at t * x_stride */
    enum be_dtype x_dtype; /* BE_F32, or the act type */
    size_t x_stride;
    const float *norm; /* f32 [D], or NULL = no norm */
    float eps;
    uint32_t t, heads, d;
    void *out; /* act [T, be_ld(H*D)], padding zeroed; may be x */
};

/* ---- recurrent layers ----
 *
 * A sequence's state lies in the arena: block_offset * BE_KV_GRAIN + the layer's offset. Rows of a sequence
 * are consecutive tokens; each is computed from the state after the one before, in one order of operations
 * whatever the rows of the call, so that the states, too, are the same bits however rows were cut into
 * calls. */
struct be_states {
    void *arena;
    uint32_t seq_count;
    /* All [seq_count]: first row, rows, after how many of these the state is written (the rows after them are
     * draft tokens), and the blocks from which and to which; BE_NO_BLOCK: from zeros, not written. A sequence
     * may have the same block for both. */
    const uint32_t *first, *count, *kept, *from, *to;
};
/* Causal depthwise convolution over rows, then SiLU, in place, j ascending:
 *   x[t, c] = silu(sum over j of weight[j, c] * x[t - K + 1 + j, c] + bias[c])
 * With `times` instead without SiLU, and of the products x * times.
 * State: the last K - 1 rows before, f32 [K - 1, C]. */
#define BE_CONV_K_MAX 16u
struct be_conv_args {
    const struct be_states *states;
    size_t layer_offset;
    float *x;           /* f32, row t begins at t * stride */
    const float *times; /* the same, or NULL */
    size_t stride;
    uint32_t c, k;       /* 2 <= k <= BE_CONV_K_MAX */
    const float *weight; /* f32 [K, C] */
    const float *bias;   /* f32 [C], or NULL */
};
/* Gated delta rule, for each value head, with its key head's q and k:
 *   q = l2(q) / sqrt(DK), k = l2(k), l2(v) = v / sqrt(sum v^2 + 1e-6)
 *   b = sigmoid(beta);  g = exp(decay * softplus(a + dt_bias))
 *   d = b (v - g S^T k);  S = g S + k d^T;  o = S^T q
 * State: S of each value head, f32 [HV, DK, DV]. o replaces v; q, k and the gates are then undefined. */
struct be_delta_args {
    const struct be_states *states;
    size_t layer_offset;
    uint32_t key_heads, value_heads, key_dim, value_dim; /* HK, HV, DK, DV */
    bool tiled; /* value head h has key head h % HK, else h * HK / HV */
    float *qkv; /* f32, row t begins at t * stride: q [HK, DK], k [HK, DK], v [HV, DV] */
    size_t stride;
    float *gates;                 /* f32 [T, 2 HV]: beta, then a */
    const float *decay, *dt_bias; /* f32 [HV]; decay < 0 */
    bool outputs;                 /* else only the states are computed */
};
/* Bytes of a layer's state; multiples of 64. */
static inline size_t be_conv_bytes(uint32_t c, uint32_t k)
{
    return ((size_t)c * (k - 1) * 4 + 63) / 64 * 64;
}
static inline size_t be_delta_bytes(uint32_t value_heads, uint32_t key_dim, uint32_t value_dim)
{
    return ((size_t)value_heads * key_dim * value_dim * 4 + 63) / 64 * 64;
}
/* out[t] = x[t] within [bounds[0], bounds[1]], in place or not. pad: zeros after out's C columns up to
 * be_ld(C). Strides count elements. */
struct be_clamp_args {
    enum be_dtype dtype; /* of x and out: BE_F32, or the act type */
    const void *x;
    size_t x_stride;
    uint32_t t, c;
    const float *bounds; /* f32 [2] */
    void *out;
    size_t out_stride;
    bool pad;
};
/* Mean over k x k cells of a [gh, gw, C] f32 grid -> f32 [(gh/k)*(gw/k), C], dense; then (mean * factor -
 * bias) * scale. */
struct be_pool_args {
    const float *x;
    uint32_t grid_h, grid_w, kernel, c;
    float *out;
    float factor;              /* 0 counts as 1 */
    const float *bias, *scale; /* f32 [C], or both NULL */
};
/* dst row i = src row rows[i]; row_bytes each. */
struct be_gather_args {
    const void *src;
    const uint32_t *rows; /* [count] */
    uint32_t count;
    size_t row_bytes;
    void *dst;
};
/* Per row of f32 [R, V]: c*tanh(x/c) in place first when softcap > 0; then the largest value and its lowest
 * id, log(sum(exp)), and for a target id its value and rank (1 + number of ids with a larger value, or an
 * equal value and a lower id). target UINT32_MAX = none.
 *
 * Backends without host_memory also draw a token where be_draw asks for it: weights exp((x - max) * inverse),
 * in order of id; the first whose cumulative weight exceeds u of the total, sums in double. */
struct be_draw {
    float inverse; /* of the temperature; 0: don't draw */
    float u;       /* [0, 1) */
};
struct be_logit_stats {
    float max;
    uint32_t argmax;
    float lse;
    float target;
    uint32_t target_rank;
    uint32_t drawn, drawn_rank; /* UINT32_MAX: none was drawn */
    float drawn_value;
};
struct be_logits_args {
    float *logits; /* f32 [R, V] */
    uint32_t r, v;
    float softcap;
    const uint32_t *targets;      /* [R] or NULL */
    const struct be_draw *draws;  /* [R] or NULL */
    struct be_logit_stats *stats; /* [R] */
};
/* The k largest of each row, descending, ties by lower id. NaN ranks last, so the ids are always k different
 * ones. */
struct be_topk_args {
    const float *logits; /* f32 [R, V] */
    uint32_t r, v, k;    /* k <= min(V, BE_TOPK_MAX) */
    uint32_t *ids;       /* [R, k] */
    float *values;       /* [R, k] */
};

/* Measured ceilings of this machine with the opened number of threads: register-resident multiply-accumulate
 * loop of the kernel set's own instruction, and a read sweep over memory far larger than the caches. */
struct be_ceiling {
    double matrix_flops; /* multiply and add counted as 2, act type */
    double read_bytes_per_s;
};

struct be_ops {
    enum be_result (*open)(const struct be_params *p, struct backend **out);
    void (*close)(struct backend *b);
    void (*caps)(const struct backend *b, struct be_caps *out);
    const char *(*last_error)(const struct backend *b);

    enum be_result (*alloc)(struct backend *b, size_t bytes,
                            void **out); /* zeroed, 64-byte aligned; large ones on huge pages if possible */
    void (*free)(struct backend *b, void *p);
    void (*upload)(struct backend *b, void *dst, const void *host, size_t bytes);
    void (*download)(struct backend *b, void *host, const void *src, size_t bytes); /* waits */
    void (*copy)(struct backend *b, void *dst, const void *src, size_t bytes);
    void (*zero)(struct backend *b, void *dst, size_t bytes);
    enum be_result (*sync)(struct backend *b);
    /* Pinned host memory: `copy` takes addresses of it, too, and does not wait. host_alloc: NULL if there is
     * none to be had. Both are NULL with host_memory. */
    void *(*host_alloc)(struct backend *b, size_t bytes);
    void (*host_free)(struct backend *b, void *p);
    /* A download in two halves, so that later operations may be queued before the first is waited for: begin
     * queues it, end waits for it alone. At most two are begun, of 1 MB each; they end in order. NULL with
     * host_memory, as is take_ids. */
    void (*download_begin)(struct backend *b, const void *src, size_t bytes);
    enum be_result (*download_end)(struct backend *b, void *host, size_t bytes);

    /* Threaded; near memory speed. BE_UNSUPPORTED: scales of quants outside f16, their storage type. */
    enum be_result (*weight_pack)(struct backend *b, const struct be_weight_desc *d, struct be_weight **out);
    void (*weight_free)(struct backend *b, struct be_weight *w);
    size_t (*weight_bytes)(const struct be_weight *w);

    /* Bytes of one layer's keys and values in one block; a multiple of 64. 0 = shape or type not
     * supported. */
    size_t (*kv_layer_bytes)(const struct backend *b, enum be_kv_type type, uint32_t kv_heads,
                             uint32_t head_dim);
    /* Zeroes a layer's slots from `first` on in the block `block_offset`: the part of a copied block that is
     * not reused. */
    void (*kv_clear)(struct backend *b, const struct be_kv *kv, uint32_t block_offset, uint32_t first);

    void (*linear)(struct backend *b, const struct be_linear_args *a);
    /* `count` of them in any order, of weights without quants and glu; none reads or writes what another
     * writes. NULL: one after another. */
    void (*linears)(struct backend *b, const struct be_linear_args *a, uint32_t count);
    void (*embed)(struct backend *b, const struct be_embed_args *a);
    void (*norm)(struct backend *b, const struct be_norm_args *a);
    void (*rope)(struct backend *b, const struct be_rope_args *a);
    void (*qkv)(struct backend *b, const struct be_qkv_args *a);
    void (*attn)(struct backend *b, const struct be_attn_args *a);
    void (*patchify)(struct backend *b, const struct be_patchify_args *a);
    void (*pool)(struct backend *b, const struct be_pool_args *a);
    void (*gather)(struct backend *b, const struct be_gather_args *a);
    void (*interpolate)(struct backend *b, const struct be_interpolate_args *a);
    void (*pack)(struct backend *b, const struct be_pack_args *a);
    void (*gate)(struct backend *b, const struct be_gate_args *a);
    void (*conv)(struct backend *b, const struct be_conv_args *a);
    void (*delta)(struct backend *b, const struct be_delta_args *a);
    void (*clamp)(struct backend *b, const struct be_clamp_args *a);
    void (*route)(struct backend *b, const struct be_route_args *a);
    /* Bytes of be_experts_args.scratch for up to t rows. */
    size_t (*experts_scratch)(const struct backend *b, uint32_t t, uint32_t k, uint32_t c, uint32_t ff,
                              uint32_t experts);
    void (*experts)(struct backend *b, const struct be_experts_args *a);
    void (*logit_stats)(struct backend *b, const struct be_logits_args *a);
    void (*topk)(struct backend *b, const struct be_topk_args *a);
    /* ids[i], an index into `stats`, becomes the id that was drawn there; where none was, the largest. */
    void (*take_ids)(struct backend *b, const struct be_logit_stats *stats, uint32_t t, uint32_t *ids);

    /* fn(ctx, i) for each i < count on the backend's own host threads, in any order and several at once;
     * returns when all are done. NULL without host_memory: the device has no use for host threads. */
    void (*host_each)(struct backend *b, uint32_t count, void (*fn)(void *ctx, uint32_t i), void *ctx);

    enum be_result (*ceiling)(struct backend *b, struct be_ceiling *out); /* takes about a second */

    /* All four are NULL if the backend has no graphs. Between begin and end operations are recorded instead
     * of run; alloc, free, upload, download, sync and ceiling may not be called. begin: BE_UNSUPPORTED or
     * BE_DEVICE, then nothing is recorded. end: returns the graph, owned by the caller until graph_free;
     * BE_UNSUPPORTED if the operations can't be recorded (the backend stays usable), BE_NOMEM, BE_DEVICE;
     * last_error says why. Memory passed to the operations must stay valid until graph_free. */
    enum be_result (*graph_begin)(struct backend *b);
    enum be_result (*graph_end)(struct backend *b, struct be_graph **out);
    void (*graph_launch)(struct backend *b,
                         const struct be_graph *g); /* same order and bits as the operations */
    void (*graph_free)(struct backend *b, struct be_graph *g);
};

/* The CPU backend's table (always available). be_cpu_has("amx"): whether this CPU has a kernel set. */
const struct be_ops *be_cpu_ops(void);
bool be_cpu_has(const char *kernels);

#endif
