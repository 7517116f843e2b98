/* Shared by the tensor-core kernels of attn.cu and attn_sm90.cu: the job, a block's rows, a row's visible
 * keys, splits, merging and stores. See attn.cu for the order of a row's sums. */
#ifndef KVASIR_CUDA_ATTN_CUH
#define KVASIR_CUDA_ATTN_CUH

#include "kernels/cuda/internal.h"

#define KEYS       CUDA_KV_SLOTS
#define SPLIT_MIN  512u
#define SPLITS_MAX 32u
#define LOG2E      1.4426950408889634f
#define PLAIN_DIM  512u

/* Sequences of a launch. */
enum attn_which { ATTN_ALL, ATTN_SINGLES /* of one row */, ATTN_CHUNKS /* of more */ };

struct attn_job {
    be_rows rows;
    be_kv kv;
    uint32_t heads, per_kv, dpad, ld;
    size_t head_bytes;
    const void *q;
    void *out;
    float scale, softcap;
    enum attn_which which;
    float *part; /* [rows * H][SPLITS_MAX][D + 2]: output, largest score, sum. rows: of the batch, or with
                    ATTN_SINGLES sequences */
};

static __host__ __device__ __forceinline__ uint32_t attn_split_len(uint32_t hi)
{
    uint32_t len = SPLIT_MIN;
    while (hi / len >= SPLITS_MAX) len *= 2;
    return len;
}
static __device__ __forceinline__ const char *attn_head(const struct attn_job &j, uint32_t block_offset,
                                                        uint32_t g)
{
    return static_cast<const char *>(j.kv.arena) + (size_t)block_offset * BE_KV_GRAIN + j.kv.layer_offset +
           g * j.head_bytes;
}

/* ---- which rows a block has */

struct attn_item {
    uint32_t first, rows,
        row0;      /* first row of the sequence, its (token, head) rows, the tile's first of them */
    uint32_t part; /* row of j.part of the sequence's first row */
    const uint32_t *table;
};
/* Tile number `tile` of all sequences' tiles of `width` rows; false: there are fewer. Called by the whole
 * warp. */
static __device__ __forceinline__ bool attn_find(const struct attn_job &j, uint32_t tile, uint32_t width,
                                                 attn_item *out)
{
    uint32_t lane = threadIdx.x % 32, before = 0;
    for (uint32_t s0 = 0; s0 < j.rows.seq_count; s0 += 32) {
        uint32_t s = s0 + lane, count = s < j.rows.seq_count ? j.rows.seq_row[s + 1] - j.rows.seq_row[s] : 0;
        if (j.which != ATTN_ALL && (count == 1) != (j.which == ATTN_SINGLES)) count = 0;
        uint32_t own = (count * j.per_kv + width - 1) / width, sum = own;
        CU_UNROLL
        for (int o = 1; o < 32; o *= 2) {
            uint32_t v = __shfl_up_sync(CU_FULL, sum, (unsigned)o);
            if (lane >= (uint32_t)o) sum += v;
        }
        uint32_t mask = __ballot_sync(CU_FULL, before + sum > tile);
        if (mask) {
            int at = __ffs((int)mask) - 1;
            uint32_t start = __shfl_sync(CU_FULL, before + sum - own, at);
            uint32_t seq = s0 + (uint32_t)at;
            out->first = j.rows.seq_row[seq];
            out->rows = (j.rows.seq_row[seq + 1] - out->first) * j.per_kv;
            out->row0 = (tile - start) * width;
            out->part = j.which == ATTN_SINGLES ? seq : out->first;
            out->table = j.rows.tables + j.rows.seq_table[seq];
            return true;
        }
        before += __shfl_sync(CU_FULL, sum, 31);
    }
    return false;
}

/* A row's visible keys; with SPLIT those in split `slot` (counted from the one with lo). lo > hi: none. */
struct attn_view {
    uint32_t lo, hi, len;
    bool alone; /* all visible keys are in one split */
};
template <bool SPLIT>
static __device__ __forceinline__ attn_view attn_see(const struct attn_job &j, uint32_t row, uint32_t slot)
{
    attn_view v = {j.rows.lo[row], j.rows.hi[row], 0, false};
    v.len = attn_split_len(v.hi);
    v.alone = v.lo / v.len == v.hi / v.len;
    if (!SPLIT) return v;
    uint32_t at = v.lo / v.len + slot;
    if (at > v.hi / v.len) {
        v.lo = 1;
        v.hi = 0;
        return v;
    }
    if (v.lo < at * v.len) v.lo = at * v.len;
    if (v.hi - at * v.len >= v.len) v.hi = at * v.len + v.len - 1;
    return v;
}

/* Merging split (max, sum) into the total: factors of the total's and of the split's outputs. The same in
 * both kernels. */
static __device__ __forceinline__ void attn_merge(float *max, float *sum, float split_max, float split_sum,
                                                  float *fa, float *fb)
{
    float top = fmaxf(*max, split_max);
    *fa = *max == top ? 1.0f : cu_ex2(*max - top);
    *fb = split_max == top ? 1.0f : cu_ex2(split_max - top);
    *sum = *sum * *fa + split_sum * *fb;
    *max = top;
}

/* The total of finished splits: largest score and sum per row here, outputs in shared memory. */
struct attn_total {
    float max[2], sum[2];
    bool any[2];
};

/* Ends a split of row i: merges its state into the total and clears it. */
template <class STATE>
static __device__ __forceinline__ void attn_end_split(int i, float sum, STATE &st, attn_total &tot,
                                                      float *mine)
{
    float fa = 0, fb = 1;
    if (tot.any[i]) {
        attn_merge(&tot.max[i], &tot.sum[i], st.max[i], sum, &fa, &fb);
    } else {
        tot.max[i] = st.max[i];
        tot.sum[i] = sum;
    }
    CU_UNROLL
    for (int n = 0; n < STATE::COLS / 8; n++) {
        CU_UNROLL
        for (int c = 0; c < 2; c++) {
            float v = st.at(n, 2 * i + c);
            mine[n * 8 + c] = tot.any[i] ? mine[n * 8 + c] * fa + v * fb : v;
        }
    }
    tot.any[i] = true;
    st.clear(i);
}

static __device__ __forceinline__ float attn_quad_sum(float v)
{
    v += __shfl_xor_sync(CU_FULL, v, 1);
    return v + __shfl_xor_sync(CU_FULL, v, 2);
}

/* Stores row i's output columns of this thread: divided by the sum, as act, or unscaled to its split. */
template <bool SPLIT, class STATE>
static __device__ __forceinline__ void attn_store(const struct attn_job &j, STATE &st, int i, float sum,
                                                  uint32_t token, uint32_t part, uint32_t head, uint32_t dv0,
                                                  uint32_t slot, bool alone)
{
    uint32_t d = j.kv.head_dim, lane = threadIdx.x % 32;
    if (SPLIT && !alone) {
        float *p = j.part + (((size_t)part * j.heads + head) * SPLITS_MAX + slot) * (d + 2);
        CU_UNROLL
        for (int n = 0; n < STATE::COLS / 8; n++) {
            uint32_t c = dv0 + (uint32_t)n * 8 + lane % 4 * 2;
            if (c < d) p[c] = st.at(n, 2 * i);
            if (c < d) p[c + 1] = st.at(n, 2 * i + 1);
        }
        if (dv0 == 0 && lane % 4 == 0) {
            p[d] = st.max[i];
            p[d + 1] = sum;
        }
    } else {
        float inv = 1.0f / sum;
        uint16_t *out = static_cast<uint16_t *>(j.out) + (size_t)token * j.ld + (size_t)head * d;
        CU_UNROLL
        for (int n = 0; n < STATE::COLS / 8; n++) {
            uint32_t c =
                dv0 + (uint32_t)n * 8 + lane % 4 * 2; /* even, as d is: both columns exist, or neither */
            if (c < d)
                *reinterpret_cast<uint32_t *>(out + c) =
                    cu_pack_bf16(st.at(n, 2 * i) * inv, st.at(n, 2 * i + 1) * inv);
        }
    }
    if (head + 1 == j.heads && dv0 == 0 && slot == 0)
        for (uint32_t c = j.heads * d + lane % 4; c < j.ld; c += 4)
            static_cast<uint16_t *>(j.out)[(size_t)token * j.ld + c] = 0;
}

/* attn_sm90.cu: the same operation with Hopper instructions. */
bool cuda_attn_sm90_init(struct backend *b);
/* j: all filled except which. whole: every block walks all keys, however few rows there are; any choice gives
 * the same bits. trouble: as in gemm_sm90.cuh. */
void cuda_attn_sm90(struct backend *b, const struct attn_job &j, bool whole, uint32_t *trouble);
/* attn.cu: merges the splits of rows that have several, after a kernel that wrote them. */
void cuda_attn_combine(struct backend *b, const struct attn_job &j);

#endif
