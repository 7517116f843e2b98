/* Ragged paged attention. A sequence's rows of one kv head are (token, query head of the group) pairs, token
 * by token; 16 of them are a warp's tile of the tensor cores. bf16, per row:
 *
 *   - keys are walked in tiles of one KV block (32 absolute positions), ascending, with an online softmax in
 *     powers of two;
 *   - tiles form splits of attn_split_len(hi) positions, by absolute position: each split begins with an
 *     empty state, and the splits' states are merged in ascending order. At most 32 splits, whatever the
 *     context.
 *
 * Both depend only on what a row sees, so the bits are the same wherever the row is computed: in the kernel
 * that walks all keys (prefill, large batches; merging in shared memory), or in the one that gives every
 * split a block (few rows; merging in a second kernel). In a batch of many rows, single rows go one way and
 * chunks the other. A tile that is fully masked for a row changes none of its bits. f32, for exact checks:
 * one warp per row and head, plain sums, no splits. */
#include "kernels/cuda/attn.cuh"

/* ---- the tensor-core kernel: W warps of 16 rows. DT: head size that q.k runs over, DV: output columns of a
 * block (DT > DV: several blocks share a head, each with all the scores). */

template <int DT, int DV, int W, bool SPLIT> struct attn_smem {
    static const uint32_t QLD = DT + 8, VLD = DV + 8, TLD = DV + 8; /* so that eight rows touch all banks */
    uint16_t *q, *k, *v; /* [16 W][QLD], [2][KEYS][QLD], [2][KEYS][VLD] */
    float *total;        /* [16 W][TLD]; a thread touches its own elements only */
    size_t bytes;
    __host__ __device__ explicit attn_smem(void *base)
    {
        cu_carve cv(base);
        q = cv.take<uint16_t>(W * 16 * QLD);
        k = cv.take<uint16_t>(2 * KEYS * QLD);
        v = cv.take<uint16_t>(2 * KEYS * VLD);
        total = SPLIT ? nullptr : cv.take<float>(W * 16 * TLD);
        bytes = cv.bytes();
    }
};

/* Copies block kb of keys and values into a stage. A block that is not kept becomes zeros; no row sees it. */
template <int DT, int DV, int W, bool SPLIT>
static __device__ __forceinline__ void attn_load(const struct attn_job &j,
                                                 const attn_smem<DT, DV, W, SPLIT> &sm, const uint32_t *table,
                                                 uint32_t kb, uint32_t g, uint32_t dv0, uint32_t stage)
{
    uint32_t block_offset = table[kb];
    bool kept = block_offset != BE_NO_BLOCK;
    const uint16_t *k = reinterpret_cast<const uint16_t *>(attn_head(j, kept ? block_offset : 0, g)),
                   *v = k + KEYS * j.dpad;
    for (uint32_t i = threadIdx.x; i < KEYS * (DT / 8); i += W * 32) {
        uint32_t r = i / (DT / 8), c = i % (DT / 8) * 8;
        bool ok = kept && c < j.dpad;
        cu_cp_async16(sm.k + (stage * KEYS + r) * sm.QLD + c, k + (ok ? r * j.dpad + c : 0), ok);
    }
    for (uint32_t i = threadIdx.x; i < KEYS * (DV / 8); i += W * 32) {
        uint32_t r = i / (DV / 8), c = i % (DV / 8) * 8;
        bool ok = kept && dv0 + c < j.dpad;
        cu_cp_async16(sm.v + (stage * KEYS + r) * sm.VLD + c, v + (ok ? r * j.dpad + dv0 + c : 0), ok);
    }
}

/* A thread's part of two rows (lane / 4, and 8 further on): largest score so far, its own share of the sum,
 * output columns. */
template <int DV> struct attn_state {
    static const int COLS = DV;
    float max[2], sum[2], o[DV / 8][4];
    __device__ __forceinline__ float &at(int n, int i)
    {
        return o[n][i];
    }
    __device__ __forceinline__ void clear(int i)
    {
        max[i] = CU_NEG_INF;
        sum[i] = 0;
        CU_UNROLL
        for (int n = 0; n < DV / 8; n++) o[n][2 * i] = o[n][2 * i + 1] = 0;
    }
};

/* Scores of one tile, in powers of two; masked keys are -infinity. */
template <int DT>
static __device__ __forceinline__ void attn_scores(const struct attn_job &j, const uint16_t *q,
                                                   const uint16_t *k, uint32_t first,
                                                   const attn_view (&see)[2], float (&s)[4][4])
{
    uint32_t lane = threadIdx.x % 32;
    const uint32_t ld = DT + 8;
    CU_UNROLL
    for (int n = 0; n < 4; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    CU_UNROLL
    for (uint32_t d = 0; d < DT; d += 16) {
        uint32_t a[4], r[4];
        cu_ldmatrix_x4(a, q + lane % 16 * ld + d + lane / 16 * 8);
        CU_UNROLL
        for (int n = 0; n < 4; n += 2) {
            cu_ldmatrix_x4(r, k + ((uint32_t)n * 8 + lane / 16 * 8 + lane % 8) * ld + d + lane / 8 % 2 * 8);
            uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
            cu_mma_bf16_16816(s[n], a, b0, s[n]);
            cu_mma_bf16_16816(s[n + 1], a, b1, s[n + 1]);
        }
    }
    CU_UNROLL
    for (int n = 0; n < 4; n++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++) {
            uint32_t key = first + (uint32_t)n * 8 + lane % 4 * 2 + (uint32_t)i % 2;
            float v = s[n][i] * j.scale;
            if (j.softcap > 0) v = j.softcap * tanhf(v / j.softcap);
            s[n][i] = key >= see[i / 2].lo && key <= see[i / 2].hi ? v * LOG2E : CU_NEG_INF;
        }
    }
}

/* Adds one tile of keys to the state. */
template <int DV>
static __device__ __forceinline__ void attn_tile(float (&s)[4][4], const uint16_t *v, attn_state<DV> &st)
{
    uint32_t lane = threadIdx.x % 32;
    const uint32_t ld = DV + 8;
    CU_UNROLL
    for (int i = 0; i < 2; i++) {
        float top = CU_NEG_INF;
        CU_UNROLL
        for (int n = 0; n < 4; n++) top = fmaxf(top, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
        top = fmaxf(top, __shfl_xor_sync(CU_FULL, top, 1));
        top = fmaxf(top, __shfl_xor_sync(CU_FULL, top, 2));
        top = fmaxf(top, st.max[i]);
        float rescale = top == st.max[i] ? 1.0f : cu_ex2(st.max[i] - top),
              shift = top == CU_NEG_INF ? 0.0f : top, sum = 0;
        st.max[i] = top;
        CU_UNROLL
        for (int n = 0; n < 4; n++) {
            CU_UNROLL
            for (int k = 2 * i; k < 2 * i + 2; k++) {
                s[n][k] = cu_ex2(s[n][k] - shift);
                sum += s[n][k];
            }
        }
        st.sum[i] = st.sum[i] * rescale + sum;
        CU_UNROLL
        for (int n = 0; n < DV / 8; n++) {
            st.o[n][2 * i] *= rescale;
            st.o[n][2 * i + 1] *= rescale;
        }
    }
    CU_UNROLL
    for (uint32_t kk = 0; kk < 2; kk++) {
        uint32_t a[4] = {cu_pack_bf16(s[2 * kk][0], s[2 * kk][1]), cu_pack_bf16(s[2 * kk][2], s[2 * kk][3]),
                         cu_pack_bf16(s[2 * kk + 1][0], s[2 * kk + 1][1]),
                         cu_pack_bf16(s[2 * kk + 1][2], s[2 * kk + 1][3])};
        CU_UNROLL
        for (int n = 0; n < DV / 8; n += 2) {
            uint32_t r[4];
            cu_ldmatrix_x4_trans(r, v + (kk * 16 + lane % 16) * ld + (uint32_t)n * 8 + lane / 16 * 8);
            uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
            cu_mma_bf16_16816(st.o[n], a, b0, st.o[n]);
            cu_mma_bf16_16816(st.o[n + 1], a, b1, st.o[n + 1]);
        }
    }
}

/* All keys that the block's rows see, in ascending tiles; a warp skips those that none of its rows sees. */
template <int DT, int DV, int W, bool SPLIT> __global__ __launch_bounds__(W * 32) void attn_k(attn_job j)
{
    typedef attn_smem<DT, DV, W, SPLIT> smem_t;
    CU_DYN_SHARED(base);
    smem_t sm(base);
    attn_item it;
    if (!attn_find(j, blockIdx.x, 16 * W, &it)) return;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = SPLIT ? blockIdx.z : 0;
    uint32_t g = blockIdx.y / (DT / DV), dv0 = blockIdx.y % (DT / DV) * DV, d = j.kv.head_dim;
    uint32_t from = UINT32_MAX, to = 0, last = (it.row0 + 16 * W < it.rows ? it.row0 + 16 * W : it.rows) - 1;
    for (uint32_t t = it.row0 / j.per_kv + lane; t <= last / j.per_kv; t += 32) {
        attn_view v = attn_see<SPLIT>(j, it.first + t, slot);
        if (v.lo <= v.hi && v.lo < from) from = v.lo;
        if (v.lo <= v.hi && v.hi > to) to = v.hi;
    }
    from = __reduce_min_sync(CU_FULL, from);
    to = __reduce_max_sync(CU_FULL, to);
    if (from > to) return;
    uint32_t kb = from / KEYS, kb_end = to / KEYS + 1, token[2], head[2];
    attn_load<DT, DV, W, SPLIT>(j, sm, it.table, kb, g, dv0, 0);
    cu_cp_async_commit();
    for (uint32_t i = threadIdx.x; i < W * 16 * (DT / 2); i += W * 32) {
        uint32_t r = i / (DT / 2), c = i % (DT / 2) * 2, row = it.row0 + r, v = 0;
        if (row < it.rows && c < d)
            v = *reinterpret_cast<const uint32_t *>(
                static_cast<const uint16_t *>(j.q) +
                ((size_t)(it.first + row / j.per_kv) * j.heads + g * j.per_kv + row % j.per_kv) * d + c);
        *reinterpret_cast<uint32_t *>(sm.q + r * smem_t::QLD + c) = v;
    }
    attn_view see[2];
    attn_state<DV> st;
    attn_total tot = {};
    bool mine[2];
    CU_UNROLL
    for (int i = 0; i < 2; i++) {
        uint32_t row = it.row0 + warp * 16 + lane / 4 + 8 * (uint32_t)i;
        mine[i] = row < it.rows;
        token[i] = it.first + (mine[i] ? row / j.per_kv : 0);
        head[i] = g * j.per_kv + row % j.per_kv;
        see[i] = attn_see<SPLIT>(j, token[i], slot);
        if (!mine[i]) see[i].lo = 1, see[i].hi = 0;
        st.clear(i);
    }
    uint32_t w_from = __reduce_min_sync(CU_FULL, see[0].lo <= see[0].hi ? see[0].lo : UINT32_MAX);
    w_from = min(w_from, __reduce_min_sync(CU_FULL, see[1].lo <= see[1].hi ? see[1].lo : UINT32_MAX));
    uint32_t w_to = max(__reduce_max_sync(CU_FULL, see[0].lo <= see[0].hi ? see[0].hi : 0),
                        __reduce_max_sync(CU_FULL, see[1].lo <= see[1].hi ? see[1].hi : 0));
    float *total = SPLIT ? nullptr : sm.total + (warp * 16 + lane / 4) * smem_t::TLD + lane % 4 * 2;
    for (uint32_t stage = 0; kb < kb_end; kb++, stage ^= 1) {
        if (kb + 1 < kb_end) attn_load<DT, DV, W, SPLIT>(j, sm, it.table, kb + 1, g, dv0, stage ^ 1);
        cu_cp_async_commit();
        cu_cp_async_wait<1>();
        __syncthreads();
        uint32_t end = (kb + 1) * KEYS;
        if (w_from <= w_to && kb >= w_from / KEYS && kb <= w_to / KEYS) {
            float s[4][4];
            attn_scores<DT>(j, sm.q + warp * 16 * smem_t::QLD, sm.k + stage * KEYS * smem_t::QLD, kb * KEYS,
                            see, s);
            attn_tile<DV>(s, sm.v + stage * KEYS * smem_t::VLD, st);
        }
        if (!SPLIT && end % SPLIT_MIN == 0) {
            float sum[2] = {attn_quad_sum(st.sum[0]), attn_quad_sum(st.sum[1])};
            CU_UNROLL
            for (int i = 0; i < 2;
                 i++) /* the row's split ends here, and it saw some of it, and will see more */
                if (end % see[i].len == 0 && see[i].lo < end && see[i].hi >= end)
                    attn_end_split(i, sum[i], st, tot, total + 8 * i * smem_t::TLD);
        }
        __syncthreads(); /* all are done with the stage to be filled next */
    }
    /* All copies have landed: the group committed last is empty. */
    float sum[2] = {attn_quad_sum(st.sum[0]), attn_quad_sum(st.sum[1])};
    CU_UNROLL
    for (int i = 0; i < 2; i++) {
        if (!mine[i] || see[i].lo > see[i].hi) continue;
        if (!SPLIT && tot.any[i]) {
            float fa, fb;
            attn_merge(&tot.max[i], &tot.sum[i], st.max[i], sum[i], &fa, &fb);
            sum[i] = tot.sum[i];
            CU_UNROLL
            for (int n = 0; n < DV / 8; n++) {
                CU_UNROLL
                for (int c = 0; c < 2; c++)
                    st.o[n][2 * i + c] =
                        total[8 * i * smem_t::TLD + n * 8 + c] * fa + st.o[n][2 * i + c] * fb;
            }
        }
        attn_store<SPLIT>(j, st, i, sum[i], token[i], it.part + (token[i] - it.first), head[i], dv0, slot,
                          see[i].alone);
    }
}

/* Rows of several splits: merges them as attn_k does. A block per row of j.part and head. */
__global__ __launch_bounds__(128) void attn_combine_k(attn_job j)
{
    uint32_t d = j.kv.head_dim, token = blockIdx.x / j.heads, head = blockIdx.x % j.heads;
    if (j.which == ATTN_SINGLES) { /* a block per sequence and head */
        uint32_t seq = token;
        token = j.rows.seq_row[seq];
        if (j.rows.seq_row[seq + 1] - token != 1) return;
    }
    uint32_t hi = j.rows.hi[token], len = attn_split_len(hi), count = hi / len - j.rows.lo[token] / len + 1;
    if (count == 1) return;
    const float *p = j.part + (size_t)blockIdx.x * SPLITS_MAX * (d + 2);
    for (uint32_t c = threadIdx.x; c < d; c += 128) {
        float o = p[c], max = p[d], sum = p[d + 1];
        for (uint32_t s = 1; s < count; s++) {
            const float *q = p + (size_t)s * (d + 2);
            float fa, fb;
            attn_merge(&max, &sum, q[d], q[d + 1], &fa, &fb);
            o = o * fa + q[c] * fb;
        }
        static_cast<uint16_t *>(j.out)[(size_t)token * j.ld + (size_t)head * d + c] =
            cu_bf16_bits(o * (1.0f / sum));
    }
}

void cuda_attn_combine(struct backend *b, const struct attn_job &j)
{
    CU_LAUNCH(attn_combine_k, (j.which == ATTN_SINGLES ? j.rows.seq_count : j.rows.t) * j.heads, 128, 0,
              b->stream, j);
    cuda_launched(b, "attn");
}

/* ---- f32: a warp is one row and query head; lanes are keys for the scores, output columns for the values */

__global__ __launch_bounds__(128) void attn_plain_k(attn_job j)
{
    CU_SHARED(sq, float[4][PLAIN_DIM]);
    CU_SHARED(sp, float[4][KEYS]);
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = j.kv.head_dim;
    size_t item = (size_t)blockIdx.x * 4 + warp;
    if (item >= (size_t)j.rows.t * j.heads) return;
    uint32_t t = (uint32_t)(item / j.heads), head = (uint32_t)(item % j.heads), lo = j.rows.lo[t],
             hi = j.rows.hi[t];
    const uint32_t *table = j.rows.tables + j.rows.seq_table[cu_row_seq(j.rows.seq_row, j.rows.seq_count, t)];
    for (uint32_t i = lane; i < d; i += 32) sq[warp][i] = static_cast<const float *>(j.q)[item * d + i];
    __syncwarp();
    float max = CU_NEG_INF, sum = 0, o[PLAIN_DIM / 32];
    CU_UNROLL
    for (uint32_t n = 0; n < PLAIN_DIM / 32; n++) o[n] = 0;
    for (uint32_t kb = lo / KEYS; kb <= hi / KEYS; kb++) {
        const float *k = reinterpret_cast<const float *>(attn_head(j, table[kb], head / j.per_kv)),
                    *v = k + KEYS * j.dpad;
        uint32_t key = kb * KEYS + lane, first = lo > kb * KEYS ? lo % KEYS : 0,
                 last = hi - kb * KEYS < KEYS ? hi % KEYS : KEYS - 1;
        float s = CU_NEG_INF;
        if (key >= lo && key <= hi) {
            float dot = 0;
            for (uint32_t i = 0; i < d; i++) dot = fmaf(sq[warp][i], k[lane * j.dpad + i], dot);
            s = dot * j.scale;
            if (j.softcap > 0) s = j.softcap * tanhf(s / j.softcap);
        }
        float top = fmaxf(max, cu_warp_max(s)), shift = top == CU_NEG_INF ? 0.0f : top,
              rescale = top == max ? 1.0f : expf(max - top), p = expf(s - shift);
        max = top;
        sum = sum * rescale + cu_warp_sum(p);
        sp[warp][lane] = p;
        __syncwarp();
        CU_UNROLL
        for (uint32_t n = 0; n < PLAIN_DIM / 32; n++) {
            uint32_t c = n * 32 + lane;
            if (c >= d) continue;
            float acc = o[n] * rescale;
            for (uint32_t i = first; i <= last; i++) acc = fmaf(sp[warp][i], v[i * j.dpad + c], acc);
            o[n] = acc;
        }
        __syncwarp();
    }
    float *out = static_cast<float *>(j.out) + (size_t)t * j.ld;
    CU_UNROLL
    for (uint32_t n = 0; n < PLAIN_DIM / 32; n++)
        if (n * 32 + lane < d) out[(size_t)head * d + n * 32 + lane] = o[n] / sum;
    if (head + 1 == j.heads)
        for (uint32_t c = j.heads * d + lane; c < j.ld; c += 32) out[c] = 0;
}

/* ---- launching */

enum attn_way { ATTN_WIDE, ATTN_NARROW, ATTN_SPLIT }; /* 64 or 16 rows to a block, or 16 rows of one split */

template <int DT, int DV> static size_t attn_bytes(enum attn_way way)
{
    return way == ATTN_WIDE     ? attn_smem<DT, DV, 4, false>(nullptr).bytes
           : way == ATTN_NARROW ? attn_smem<DT, DV, 1, false>(nullptr).bytes
                                : attn_smem<DT, DV, 1, true>(nullptr).bytes;
}
/* Sets up all kernels of a head size that fit into this device's shared memory. */
template <int DT, int DV> static bool attn_allow(struct backend *b)
{
    size_t wide = attn_bytes<DT, DV>(ATTN_WIDE), narrow = attn_bytes<DT, DV>(ATTN_NARROW),
           split = attn_bytes<DT, DV>(ATTN_SPLIT);
    return (wide > b->smem_max || cuda_allow_smem(b, attn_k<DT, DV, 4, false>, wide)) &&
           (narrow > b->smem_max || cuda_allow_smem(b, attn_k<DT, DV, 1, false>, narrow)) &&
           (split > b->smem_max || cuda_allow_smem(b, attn_k<DT, DV, 1, true>, split));
}
bool cuda_attn_init(struct backend *b)
{
    return attn_allow<32, 32>(b) && attn_allow<64, 64>(b) && attn_allow<80, 80>(b) && attn_allow<96, 96>(b) &&
           attn_allow<128, 128>(b) && attn_allow<256, 256>(b) && attn_allow<512, 256>(b);
}
bool cuda_attn_supports(const struct backend *b, uint32_t d)
{
    if (b->act == BE_F32) return d <= PLAIN_DIM;
    return d <= 256 ? attn_bytes<256, 256>(ATTN_NARROW) <= b->smem_max
                    : d <= 512 && attn_bytes<512, 256>(ATTN_NARROW) <= b->smem_max;
}

template <int DT, int DV>
static void attn_launch(struct backend *b, const struct attn_job &j, enum attn_way way)
{
    size_t smem = attn_bytes<DT, DV>(way), rows = (size_t)j.rows.t * j.per_kv;
    uint32_t singles = j.rows.seq_count * cu_div_up(j.per_kv, 16);
    /* A sequence has at most one partly filled tile. */
    dim3 grid(j.which == ATTN_SINGLES ? singles
                                      : (uint32_t)(rows / (way == ATTN_WIDE ? 64 : 16)) + j.rows.seq_count,
              j.kv.kv_heads * (DT / DV), way == ATTN_SPLIT ? SPLITS_MAX : 1);
    if (way == ATTN_WIDE) CU_LAUNCH((attn_k<DT, DV, 4, false>), grid, 128, smem, b->stream, j);
    else if (way == ATTN_NARROW) CU_LAUNCH((attn_k<DT, DV, 1, false>), grid, 32, smem, b->stream, j);
    else CU_LAUNCH((attn_k<DT, DV, 1, true>), grid, 32, smem, b->stream, j);
    cuda_launched(b, "attn");
    if (way != ATTN_SPLIT) return;
    cuda_attn_combine(b, j);
}

/* The host doesn't know how the rows are spread over sequences, only how many there are of both. */
template <int DT, int DV> static void attn_run(struct backend *b, struct attn_job j)
{
    size_t split_rows =
        b->scratch_bytes / ((size_t)j.heads * SPLITS_MAX * (j.kv.head_dim + 2) * sizeof(float));
    bool narrow = (size_t)j.rows.t * j.per_kv <= (size_t)16 * j.rows.seq_count ||
                  attn_bytes<DT, DV>(ATTN_WIDE) > b->smem_max;
    if (j.rows.t <= split_rows) {
        attn_launch<DT, DV>(b, j, ATTN_SPLIT);
        return;
    }
    if (j.rows.seq_count > 1 && j.rows.seq_count <= split_rows) {
        j.which = ATTN_SINGLES;
        attn_launch<DT, DV>(b, j, ATTN_SPLIT);
        j.which = ATTN_CHUNKS;
    }
    attn_launch<DT, DV>(b, j, narrow ? ATTN_NARROW : ATTN_WIDE);
}

void cuda_attn(struct backend *b, const struct be_attn_args *a)
{
    uint32_t d = a->kv.head_dim;
    struct attn_job j = {};
    j.rows = *a->rows;
    j.kv = a->kv;
    j.heads = a->heads;
    j.per_kv = a->heads / a->kv.kv_heads;
    j.dpad = cuda_kv_dpad(b->act, d);
    j.ld = (uint32_t)be_ld((size_t)a->heads * d);
    j.head_bytes = cuda_kv_head_bytes(b->act, d);
    j.q = a->q;
    j.out = a->out;
    j.scale = a->scale;
    j.softcap = a->softcap;
    j.part = static_cast<float *>(b->scratch);
    if (b->act == BE_F32) {
        CU_LAUNCH(attn_plain_k, cu_div_up((size_t)a->rows->t * a->heads, 4), 128, 0, b->stream, j);
        cuda_launched(b, "attn");
    } else if (b->hopper) {
        cuda_attn_sm90(b, j, false, nullptr);
    } else if (d <= 32) {
        attn_run<32, 32>(b, j);
    } else if (d <= 64) {
        attn_run<64, 64>(b, j);
    } else if (d <= 80) {
        attn_run<80, 80>(b, j);
    } else if (d <= 96) {
        attn_run<96, 96>(b, j);
    } else if (d <= 128) {
        attn_run<128, 128>(b, j);
    } else if (d <= 256) {
        attn_run<256, 256>(b, j);
    } else {
        attn_run<512, 256>(b, j);
    }
}
