/* Attention (attn.cu) on Hopper: producer warps bring tiles of keys and values by cp.async, warpgroups of 64
 * rows multiply (hopper.cuh). Rows, masks, splits and their merging are those of attn.cu; a tile is TILE keys
 * (two KV blocks, or one for heads over 256), by absolute position too, so that a row's bits are the same
 * wherever it is computed: every kernel here uses the same products over the same tiles, whether it walks all
 * keys with two warpgroups to a block or gives every split a block with one.
 *
 * Shared memory is in atoms of [8 rows][64 elements], swizzled: q [warpgroup][d / 64][64 rows], k [d /
 * 64][TILE keys], v the same. Scores are q (k along the rows) by k (k along the rows); outputs are p
 * (registers) by v, whose rows run along n. A stage of the pipeline is a tile of keys and values; each
 * producer warp owns some stages. */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/hopper.cuh"

template <int D, int DV, int GROUPS> struct attn_sm90_shape {
    static const uint32_t TILE = D > 256 ? 32 : 64;
    static const uint32_t ATOMS = (D + 63) / 64, V_ATOMS = (DV + 63) / 64; /* of 64 elements in a row */
    static const uint32_t STAGES = D > 128 ? 2 : 4;
    static const uint32_t OWNERS = 4 / STAGES; /* producer warps of a stage */
    static const uint32_t THREADS = GROUPS * 128 + 128;
    static const uint32_t Q_BYTES = ATOMS * 64 * 128, K_BYTES = ATOMS * TILE * 128,
                          V_BYTES = V_ATOMS * TILE * 128;
};

struct attn_sm90_job {
    struct attn_job a;
    uint32_t tiles, parts,
        items;    /* of rows; kv heads by chunks of the output; all, by splits too where they are apart */
    float *total; /* [block][64 GROUPS][DV]: outputs of the splits that are done; a thread touches its own
                     only */
    uint32_t *trouble;
};

template <int D, int DV, int GROUPS> struct attn_sm90_smem {
    typedef attn_sm90_shape<D, DV, GROUPS> shape;
    unsigned char *q, *k, *v;
    uint64_t *full, *empty;
    uint32_t *any; /* is there work for a block of one item? */
    size_t bytes;
    __host__ __device__ explicit attn_sm90_smem(void *base)
    {
        cu_carve cv(base);
        q = cv.take<unsigned char>(GROUPS * shape::Q_BYTES, 1024);
        k = cv.take<unsigned char>(shape::STAGES * shape::K_BYTES, 1024);
        v = cv.take<unsigned char>(shape::STAGES * shape::V_BYTES, 1024);
        full = cv.take<uint64_t>(shape::STAGES);
        empty = cv.take<uint64_t>(shape::STAGES);
        any = cv.take<uint32_t>(1);
        bytes = cv.bytes();
    }
};

#if defined(CU_HOPPER_BODY)
/* ---- what a block does */

struct attn_sm90_work {
    attn_item it;
    uint32_t g, dv0, slot;
    uint32_t from, to; /* keys that its rows see, from <= to */
};
/* Keys that rows [row0, row0 + count) of the item see; from > to: none. Called by the whole warp. */
template <bool SPLIT>
static __device__ __forceinline__ void attn_sm90_range(const struct attn_job &j, const attn_item &it,
                                                       uint32_t row0, uint32_t count, uint32_t slot,
                                                       uint32_t *from, uint32_t *to)
{
    uint32_t lo = UINT32_MAX, hi = 0;
    if (row0 < it.rows) {
        uint32_t last = (row0 + count < it.rows ? row0 + count : it.rows) - 1;
        for (uint32_t t = row0 / j.per_kv + threadIdx.x % 32; t <= last / j.per_kv; t += 32) {
            attn_view v = attn_see<SPLIT>(j, it.first + t, slot);
            if (v.lo <= v.hi && v.lo < lo) lo = v.lo;
            if (v.lo <= v.hi && v.hi > hi) hi = v.hi;
        }
    }
    *from = __reduce_min_sync(CU_FULL, lo);
    *to = __reduce_max_sync(CU_FULL, hi);
}
/* Item i; false: it has nothing to do. All warps of a block get the same result. */
template <int D, int DV, int GROUPS, bool SPLIT>
static __device__ __forceinline__ bool attn_sm90_find(const struct attn_sm90_job &j, uint32_t i,
                                                      attn_sm90_work *w)
{
    uint32_t splits = SPLIT ? SPLITS_MAX : 1, part = i / splits % j.parts;
    if (!attn_find(j.a, i / splits / j.parts, 64 * GROUPS, &w->it)) return false;
    w->slot = i % splits;
    w->g = part / (D / DV);
    w->dv0 = part % (D / DV) * DV;
    attn_sm90_range<SPLIT>(j.a, w->it, w->it.row0, 64 * GROUPS, w->slot, &w->from, &w->to);
    return w->from <= w->to;
}

/* ---- producers */

/* Copies one tile into a stage, by the stage's owners. Blocks that are not kept become zeros; no row sees
 * them. */
template <int D, int DV, int GROUPS>
static __device__ __forceinline__ void
attn_sm90_load(const struct attn_job &j, const attn_sm90_smem<D, DV, GROUPS> &sm, const attn_sm90_work &w,
               uint32_t kb, uint32_t stage, uint32_t tid)
{
    typedef attn_sm90_shape<D, DV, GROUPS> shape;
    const uint32_t threads = shape::OWNERS * 32;
    unsigned char *sk = sm.k + stage * shape::K_BYTES, *sv = sm.v + stage * shape::V_BYTES;
    for (uint32_t b = 0; b < shape::TILE / KEYS; b++) {
        uint32_t block = kb * (shape::TILE / KEYS) + b,
                 block_offset = block <= w.to / KEYS ? w.it.table[block] : BE_NO_BLOCK;
        bool kept = block_offset != BE_NO_BLOCK;
        const uint16_t *k = reinterpret_cast<const uint16_t *>(attn_head(j, kept ? block_offset : 0, w.g)),
                       *v = k + KEYS * j.dpad;
        CU_UNROLL
        for (uint32_t i = tid; i < KEYS * shape::ATOMS * 8; i += threads) {
            uint32_t r = i / (shape::ATOMS * 8), c = i % (shape::ATOMS * 8), key = b * KEYS + r;
            bool ok = kept && c * 8 < j.dpad;
            cu_cp_async16(sk + (c / 8 * shape::TILE + key / 8 * 8) * 128 + cu_swizzle(key % 8, c % 8),
                          k + (ok ? r * j.dpad + c * 8 : 0), ok);
        }
        CU_UNROLL
        for (uint32_t i = tid; i < KEYS * shape::V_ATOMS * 8; i += threads) {
            uint32_t r = i / (shape::V_ATOMS * 8), c = i % (shape::V_ATOMS * 8), key = b * KEYS + r;
            bool ok = kept && w.dv0 + c * 8 < j.dpad;
            cu_cp_async16(sv + (c / 8 * shape::TILE + key / 8 * 8) * 128 + cu_swizzle(key % 8, c % 8),
                          v + (ok ? r * j.dpad + w.dv0 + c * 8 : 0), ok);
        }
    }
}

template <int D, int DV, int GROUPS, bool SPLIT>
static __device__ __forceinline__ void attn_sm90_produce(const struct attn_sm90_job &j,
                                                         const attn_sm90_smem<D, DV, GROUPS> &sm)
{
    typedef attn_sm90_shape<D, DV, GROUPS> shape;
    const uint32_t warp = threadIdx.x / 32 - GROUPS * 4, lane = threadIdx.x % 32;
    uint32_t n = 0;
    attn_sm90_work w;
    for (uint32_t i = blockIdx.x; i < j.items; i += gridDim.x) {
        if (!attn_sm90_find<D, DV, GROUPS, SPLIT>(j, i, &w)) continue;
        for (uint32_t kb = w.from / shape::TILE; kb <= w.to / shape::TILE; kb++, n++) {
            uint32_t stage = n % shape::STAGES;
            if (warp / shape::OWNERS != stage) continue;
            cu_mbar_wait(sm.empty + stage, (n / shape::STAGES & 1) ^ 1, j.trouble);
            attn_sm90_load(j.a, sm, w, kb, stage, warp % shape::OWNERS * 32 + lane);
            cu_cp_async_commit();
            cu_cp_async_wait<0>();
            cu_proxy_fence();
            __syncwarp();
            if (lane == 0) cu_mbar_arrive(sm.full + stage);
        }
    }
}

/* ---- the warpgroups that multiply. A thread has two rows (i = 0, 1), as in attn.cu. */

template <int DV> struct attn_sm90_state {
    static const int COLS = DV;
    float max[2], sum[2], o[DV / 2];
    __device__ __forceinline__ float &at(int n, int i)
    {
        return o[4 * n + i];
    }
    __device__ __forceinline__ void clear(int i)
    {
        max[i] = CU_NEG_INF;
        sum[i] = 0;
        CU_UNROLL
        for (int n = 0; n < DV / 8; n++) at(n, 2 * i) = at(n, 2 * i + 1) = 0;
    }
};

/* Masks and scales a tile's scores and turns them into probabilities; scales o to the new largest score. p:
 * bf16, as the products' registers of A. */
template <int DV, int TILE>
static __device__ __forceinline__ void attn_sm90_soften(const struct attn_job &j, float (&s)[TILE / 2],
                                                        uint32_t first, const attn_view (&see)[2],
                                                        attn_sm90_state<DV> &st, uint32_t (&p)[TILE / 16][4])
{
    const uint32_t lane = threadIdx.x % 32;
    float rescale[2];
    CU_UNROLL
    for (int e = 0; e < TILE / 2; e++) {
        uint32_t key = first + (uint32_t)e / 4 * 8 + lane % 4 * 2 + (uint32_t)e % 2;
        float v = s[e] * j.scale;
        if (j.softcap > 0) v = j.softcap * tanhf(v / j.softcap);
        s[e] = key >= see[e / 2 % 2].lo && key <= see[e / 2 % 2].hi ? v * LOG2E : CU_NEG_INF;
    }
    CU_UNROLL
    for (int i = 0; i < 2; i++) {
        float top = CU_NEG_INF, sum = 0;
        CU_UNROLL
        for (int n = 0; n < TILE / 8; n++) top = fmaxf(top, fmaxf(s[4 * n + 2 * i], s[4 * n + 2 * i + 1]));
        top = fmaxf(top, __shfl_xor_sync(CU_FULL, top, 1));
        top = fmaxf(top, __shfl_xor_sync(CU_FULL, top, 2));
        top = fmaxf(top, st.max[i]);
        float shift = top == CU_NEG_INF ? 0.0f : top;
        rescale[i] = top == st.max[i] ? 1.0f : cu_ex2(st.max[i] - top);
        st.max[i] = top;
        CU_UNROLL
        for (int n = 0; n < TILE / 8; n++) {
            CU_UNROLL
            for (int e = 4 * n + 2 * i; e < 4 * n + 2 * i + 2; e++) {
                s[e] = cu_ex2(s[e] - shift);
                sum += s[e];
            }
        }
        st.sum[i] = st.sum[i] * rescale[i] + sum;
    }
    if (__any_sync(CU_FULL, rescale[0] != 1.0f || rescale[1] != 1.0f)) { /* a factor of one changes nothing */
        CU_UNROLL
        for (int e = 0; e < DV / 2; e++) st.o[e] *= rescale[e / 2 % 2];
    }
    CU_UNROLL
    for (int k = 0; k < TILE / 16; k++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++) p[k][i] = cu_pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
}

/* Adds one tile of keys to the state of a warpgroup. q, k, v: its queries, of which `rows` are valid, and the
 * stage. */
template <int D, int DV, int GROUPS>
static __device__ __forceinline__ void attn_sm90_tile(const struct attn_job &j, const unsigned char *q,
                                                      const unsigned char *k, const unsigned char *v,
                                                      uint32_t rows, uint32_t first,
                                                      const attn_view (&see)[2], attn_sm90_state<DV> &st)
{
    typedef attn_sm90_shape<D, DV, GROUPS> shape;
    float s[shape::TILE / 2];
    uint32_t p[shape::TILE / 16][4];
    CU_UNROLL
    for (uint32_t e = 0; e < shape::TILE / 2; e++) s[e] = 0;
    cu_wgmma_keep(s);
    cu_wgmma_fence();
    CU_UNROLL
    for (uint32_t d = 0; d < D; d += 16)
        cu_wgmma(s, cu_wgmma_operand(q + d / 64 * 64 * 128 + d % 64 * 2, 0, 1024),
                 cu_wgmma_operand(k + d / 64 * shape::TILE * 128 + d % 64 * 2, 0, 1024), d != 0, rows);
    cu_wgmma_commit();
    cu_wgmma_wait<0>();
    cu_wgmma_keep(s);
    attn_sm90_soften<DV, (int)shape::TILE>(j, s, first, see, st, p);
    cu_wgmma_keep(st.o);
    cu_wgmma_fence();
    CU_UNROLL
    for (uint32_t n = 0; n < shape::TILE; n += 16)
        cu_wgmma_trans(st.o, p[n / 16], cu_wgmma_operand(v + n * 128, shape::TILE * 128, 1024), true, rows);
    cu_wgmma_commit();
    cu_wgmma_wait<0>();
    cu_wgmma_keep(st.o);
    CU_UNROLL
    for (uint32_t n = 0; n < shape::TILE / 16; n++) cu_wgmma_keep(p[n]);
}

static __device__ __forceinline__ void attn_sm90_meet(uint32_t group)
{
    if (group == 0) cu_bar_sync(1, 128);
    else cu_bar_sync(2, 128);
}

/* The queries of a warpgroup's rows. */
template <int D>
static __device__ __forceinline__ void attn_sm90_queries(const struct attn_job &j, const attn_sm90_work &w,
                                                         uint32_t row0, unsigned char *q, uint32_t group)
{
    const uint32_t d = j.kv.head_dim, atoms = (D + 63) / 64;
    attn_sm90_meet(group); /* all are done with the previous ones */
    for (uint32_t i = threadIdx.x % 128; i < 64 * atoms * 32; i += 128) {
        uint32_t r = i / (atoms * 32), c = i % (atoms * 32) * 2, row = row0 + r, v = 0;
        if (row < w.it.rows && c < d)
            v = *reinterpret_cast<const uint32_t *>(
                static_cast<const uint16_t *>(j.q) +
                ((size_t)(w.it.first + row / j.per_kv) * j.heads + w.g * j.per_kv + row % j.per_kv) * d + c);
        *reinterpret_cast<uint32_t *>(q + (c / 64 * 64 + r / 8 * 8) * 128 + cu_swizzle(r % 8, c / 8 % 8) +
                                      c % 8 * 2) = v;
    }
    cu_proxy_fence();
    attn_sm90_meet(group);
}

/* Ends a row: merges the earlier splits, and stores. */
template <bool SPLIT, int DV>
static __device__ __forceinline__ void
attn_sm90_finish(const struct attn_job &j, const attn_sm90_work &w, int i, uint32_t row, float sum,
                 bool alone, attn_sm90_state<DV> &st, attn_total &tot, const float *total)
{
    uint32_t t = row / j.per_kv, token = w.it.first + t;
    if (!SPLIT && tot.any[i]) {
        float fa, fb;
        attn_merge(&tot.max[i], &tot.sum[i], st.max[i], sum, &fa, &fb);
        sum = tot.sum[i];
        CU_UNROLL
        for (int n = 0; n < DV / 8; n++) {
            CU_UNROLL
            for (int c = 0; c < 2; c++)
                st.at(n, 2 * i + c) = total[n * 8 + c] * fa + st.at(n, 2 * i + c) * fb;
        }
    }
    attn_store<SPLIT>(j, st, i, sum, token, w.it.part + t, w.g * j.per_kv + row % j.per_kv, w.dv0, w.slot,
                      alone);
}

template <int D, int DV, int GROUPS, bool SPLIT>
static __device__ __forceinline__ void attn_sm90_consume(const struct attn_sm90_job &j,
                                                         const attn_sm90_smem<D, DV, GROUPS> &sm)
{
    typedef attn_sm90_shape<D, DV, GROUPS> shape;
    const uint32_t group = GROUPS == 1 ? 0 : threadIdx.x / 128, lane = threadIdx.x % 32,
                   mine =
                       group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4; /* its first row of the item's */
    unsigned char *q = sm.q + group * shape::Q_BYTES;
    float *total = SPLIT ? nullptr : j.total + ((size_t)blockIdx.x * 64 * GROUPS + mine) * DV + lane % 4 * 2;
    uint32_t n = 0;
    attn_sm90_work w;
    for (uint32_t i = blockIdx.x; i < j.items; i += gridDim.x) {
        if (!attn_sm90_find<D, DV, GROUPS, SPLIT>(j, i, &w)) continue;
        uint32_t from, to, row0 = w.it.row0 + mine,
                           rows = w.it.rows > w.it.row0 + group * 64 ? w.it.rows - w.it.row0 - group * 64 : 0;
        attn_sm90_range<SPLIT>(j.a, w.it, w.it.row0 + group * 64, 64, w.slot, &from, &to);
        attn_sm90_queries<D>(j.a, w, w.it.row0 + group * 64, q, group);
        attn_view see[2];
        attn_sm90_state<DV> st;
        attn_total tot = {};
        CU_UNROLL
        for (int r = 0; r < 2; r++) {
            uint32_t row = row0 + 8 * (uint32_t)r;
            see[r] = attn_see<SPLIT>(j.a, w.it.first + (row < w.it.rows ? row / j.a.per_kv : 0), w.slot);
            if (row >= w.it.rows) see[r].lo = 1, see[r].hi = 0;
            st.clear(r);
        }
        for (uint32_t kb = w.from / shape::TILE; kb <= w.to / shape::TILE; kb++, n++) {
            uint32_t stage = n % shape::STAGES, end = (kb + 1) * shape::TILE;
            cu_mbar_wait(sm.full + stage, n / shape::STAGES & 1, j.trouble);
            if (from <= to && kb >= from / shape::TILE && kb <= to / shape::TILE)
                attn_sm90_tile<D, DV, GROUPS>(j.a, q, sm.k + stage * shape::K_BYTES,
                                              sm.v + stage * shape::V_BYTES, rows, kb * shape::TILE, see, st);
            __syncwarp(); /* none of the warp may still wait for this phase when the next begins */
            if (lane == 0) cu_mbar_arrive(sm.empty + stage);
            if (SPLIT || end % SPLIT_MIN) continue;
            float sum[2] = {attn_quad_sum(st.sum[0]), attn_quad_sum(st.sum[1])};
            CU_UNROLL
            for (int r = 0; r < 2;
                 r++) /* the row's split ends here, and it saw some of it, and will see more */
                if (end % see[r].len == 0 && see[r].lo < end && see[r].hi >= end)
                    attn_end_split(r, sum[r], st, tot, total + 8 * r * DV);
        }
        float sum[2] = {attn_quad_sum(st.sum[0]), attn_quad_sum(st.sum[1])};
        CU_UNROLL
        for (int r = 0; r < 2; r++)
            if (see[r].lo <= see[r].hi)
                attn_sm90_finish<SPLIT>(j.a, w, r, row0 + 8 * (uint32_t)r, sum[r], see[r].alone, st, tot,
                                        total + 8 * r * DV);
    }
}
#endif

template <int D, int DV, int GROUPS, bool SPLIT>
__global__ __launch_bounds__(attn_sm90_shape<D, DV, GROUPS>::THREADS, 1) void attn_sm90_k(attn_sm90_job j)
{
#if defined(CU_HOPPER_BODY)
    typedef attn_sm90_shape<D, DV, GROUPS> shape;
    CU_DYN_SHARED(base);
    attn_sm90_smem<D, DV, GROUPS> sm(base);
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < shape::STAGES; s++) {
            cu_mbar_init(sm.full + s, shape::OWNERS);
            cu_mbar_init(sm.empty + s, GROUPS * 4);
        }
        cu_mbar_init_done();
    }
    if (SPLIT && threadIdx.x < 32) { /* most blocks leave here: a row has fewer splits than there can be */
        attn_sm90_work w;
        bool any = attn_sm90_find<D, DV, GROUPS, SPLIT>(j, blockIdx.x, &w);
        if (threadIdx.x == 0) *sm.any = any;
    }
    __syncthreads();
    if (SPLIT && !*sm.any) return;
    if (threadIdx.x >= GROUPS * 128) {
        if (GROUPS == 2) cu_regs_less<CU_REGS_PRODUCER>();
        attn_sm90_produce<D, DV, GROUPS, SPLIT>(j, sm);
    } else {
        if (GROUPS == 2) cu_regs_more<CU_REGS_CONSUMER>();
        attn_sm90_consume<D, DV, GROUPS, SPLIT>(j, sm);
    }
#else
    (void)j;
#endif
}

/* ---- launching */

template <int D, int DV> static bool attn_sm90_allow(struct backend *b)
{
    size_t wide = attn_sm90_smem<D, DV, 2>(nullptr).bytes, split = attn_sm90_smem<D, DV, 1>(nullptr).bytes;
    if (wide > b->smem_max + CU_GAP * 8)
        return cuda_check(b, cudaErrorNotSupported, "shared memory for the Hopper kernels");
    return cuda_allow_smem(b, attn_sm90_k<D, DV, 2, false>, wide) &&
           cuda_allow_smem(b, attn_sm90_k<D, DV, 1, true>, split);
}
bool cuda_attn_sm90_init(struct backend *b)
{
    return attn_sm90_allow<64, 64>(b) && attn_sm90_allow<96, 96>(b) && attn_sm90_allow<128, 128>(b) &&
           attn_sm90_allow<256, 256>(b) && attn_sm90_allow<512, 256>(b);
}

template <int D, int DV, int GROUPS, bool SPLIT>
static void attn_sm90_launch(struct backend *b, struct attn_sm90_job j)
{
    size_t smem = attn_sm90_smem<D, DV, GROUPS>(nullptr).bytes, rows = (size_t)j.a.rows.t * j.a.per_kv;
    /* A sequence has at most one partly filled tile. */
    j.tiles = j.a.which == ATTN_SINGLES ? j.a.rows.seq_count * cu_div_up(j.a.per_kv, 64 * GROUPS)
                                        : (uint32_t)(rows / (64 * GROUPS)) + j.a.rows.seq_count;
    j.parts = j.a.kv.kv_heads * (D / DV);
    size_t items = (size_t)j.tiles * j.parts * (SPLIT ? SPLITS_MAX : 1), most = items;
    CU_ASSERT(items < UINT32_MAX / 2);
    j.items = (uint32_t)items;
    if (!SPLIT) { /* persistent blocks, so that their totals have a fixed place */
        size_t places = b->scratch_bytes / (64 * GROUPS * DV * sizeof(float));
        most = b->sms < places ? b->sms : places;
    }
    uint32_t blocks = (uint32_t)(items < most ? items : most),
             threads = attn_sm90_shape<D, DV, GROUPS>::THREADS;
    CU_LAUNCH((attn_sm90_k<D, DV, GROUPS, SPLIT>), blocks, threads, smem, b->stream, j);
    cuda_launched(b, "attn");
    if (SPLIT) cuda_attn_combine(b, j.a);
}

/* As attn_run of attn.cu: few rows go split by split, many walk all keys. */
template <int D, int DV>
static void attn_sm90_run(struct backend *b, const struct attn_job &a, bool whole, uint32_t *trouble)
{
    size_t split_rows =
        b->scratch_bytes / ((size_t)a.heads * SPLITS_MAX * (a.kv.head_dim + 2) * sizeof(float));
    struct attn_sm90_job j = {};
    j.a = a;
    j.total = static_cast<float *>(b->scratch);
    j.trouble = trouble;
    if (!whole && a.rows.t <= split_rows) {
        attn_sm90_launch<D, DV, 1, true>(b, j);
        return;
    }
    if (!whole && a.rows.seq_count > 1 && a.rows.seq_count <= split_rows) {
        j.a.which = ATTN_SINGLES;
        attn_sm90_launch<D, DV, 1, true>(b, j);
        j.a.which = ATTN_CHUNKS;
    }
    attn_sm90_launch<D, DV, 2, false>(b, j);
}

void cuda_attn_sm90(struct backend *b, const struct attn_job &a, bool whole, uint32_t *trouble)
{
    uint32_t d = a.kv.head_dim;
    if (d <= 64) attn_sm90_run<64, 64>(b, a, whole, trouble);
    else if (d <= 96) attn_sm90_run<96, 96>(b, a, whole, trouble);
    else if (d <= 128) attn_sm90_run<128, 128>(b, a, whole, trouble);
    else if (d <= 256) attn_sm90_run<256, 256>(b, a, whole, trouble);
    else attn_sm90_run<512, 256>(b, a, whole, trouble);
}
