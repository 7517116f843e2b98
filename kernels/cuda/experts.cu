/* Routing, and the experts' products (gemm.cuh) over pairs of a row and an expert. Nothing waits for the
 * host:
 *
 *   table    where the experts' weights lie (they come as kernel arguments, some at a time)
 *   sort     pairs by expert, in ascending order inside one; first[e] = pairs of experts below e
 *   tiles    tile[e] = tiles of the experts below e
 *   up       hidden[sorted place] = epilogue of the expert's glu weight times the pair's row
 *   down     y[pair] = the expert's down weight times hidden
 *   combine  out[row] = its pairs' weight * y in ascending order of experts
 *
 * A block of up and down takes one tile of one expert; the grid has the largest possible number, and surplus
 * blocks exit at once. */
#include "kernels/cuda/gemm_sm90.cuh"

/* ---- route: one warp per row. Experts are selected by logit, so the choice does not depend on the
 * exponential. */

/* The largest of x[n] that comes after (v, id) in the order "larger first, then lower id"; NaN counts as
 * -infinity. */
static __device__ void route_next(const float *x, uint32_t n, bool any, float v, uint32_t id, float *best,
                                  uint32_t *best_id)
{
    float bv = CU_NEG_INF;
    uint32_t bi = UINT32_MAX;
    for (uint32_t i = threadIdx.x % 32; i < n; i += 32) {
        float w = x[i];
        if (w != w) w = CU_NEG_INF;
        bool after = any || w < v || (w == v && i > id);
        if (after && (bi == UINT32_MAX || w > bv)) {
            bv = w;
            bi = i;
        }
    }
    CU_UNROLL
    for (int o = 16; o; o >>= 1) {
        float w = __shfl_xor_sync(CU_FULL, bv, o);
        uint32_t k = __shfl_xor_sync(CU_FULL, bi, o);
        if (k != UINT32_MAX && (bi == UINT32_MAX || w > bv || (w == bv && k < bi))) {
            bv = w;
            bi = k;
        }
    }
    *best = bv;
    *best_id = bi;
}

__global__ __launch_bounds__(32) void route_k(be_route_args a)
{
    size_t t = blockIdx.x;
    uint32_t lane = threadIdx.x, id = 0;
    const float *x = a.logits + t * a.experts;
    float top = CU_NEG_INF, sum = 0, v = 0, chosen = 0;
    for (uint32_t i = lane; i < a.experts; i += 32) top = fmaxf(top, x[i]);
    top = cu_warp_max(top);
    for (uint32_t i = lane; i < a.experts; i += 32) sum += expf(x[i] - top);
    float inv = 1.0f / cu_warp_sum(sum);
    for (uint32_t n = 0; n < a.k; n++) {
        route_next(x, a.experts, n == 0, v, id, &v, &id);
        float w = expf(x[id] - top) * inv;
        chosen += w;
        if (lane == 0) {
            a.ids[t * a.k + n] = id;
            a.weights[t * a.k + n] = w;
        }
    }
    if (a.renorm && lane == 0)
        for (uint32_t n = 0; n < a.k; n++) a.weights[t * a.k + n] /= chosen;
    if (a.scale && lane == 0)
        for (uint32_t n = 0; n < a.k; n++) a.weights[t * a.k + n] *= a.scale[a.ids[t * a.k + n]];
}

void cuda_route(struct backend *b, const struct be_route_args *a)
{
    CU_LAUNCH(route_k, a->t, 32, 0, b->stream, *a);
    cuda_launched(b, "route");
}

/* ---- the scratch */

struct experts_layout {
    size_t glu, down, first, tile, pairs, hidden, y,
        all; /* bytes from the start; all: SIZE_MAX on overflow */
};

static size_t experts__part(size_t *at, size_t n, size_t size)
{
    size_t bytes, end, from = *at;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 2 ||
        __builtin_add_overflow(from, (bytes + 255) / 256 * 256, &end))
        end = SIZE_MAX;
    *at = from == SIZE_MAX ? SIZE_MAX : end;
    return from;
}

static struct experts_layout experts__layout(const struct backend *b, uint32_t t, uint32_t k, uint32_t c,
                                             uint32_t ff, uint32_t experts)
{
    struct experts_layout l;
    size_t at = 0, pairs = (size_t)t * k;
    l.glu = experts__part(&at, experts, sizeof(struct gemm_expert));
    l.down = experts__part(&at, experts, sizeof(struct gemm_expert));
    l.first = experts__part(&at, (size_t)experts + 1, sizeof(uint32_t));
    l.tile = experts__part(&at, (size_t)experts + 1, sizeof(uint32_t));
    l.pairs = experts__part(&at, pairs, sizeof(uint32_t));
    l.hidden = experts__part(&at, pairs, be_ld(ff) * be_dtype_bytes(b->act));
    l.y = experts__part(&at, pairs, (size_t)c * sizeof(float));
    l.all = at;
    return l;
}

size_t cuda_experts_scratch(const struct backend *b, uint32_t t, uint32_t k, uint32_t c, uint32_t ff,
                            uint32_t experts)
{
    return experts__layout(b, t, k, c, ff, experts).all;
}

/* ---- table, sort, tiles */

#define TABLE_CHUNK 64u /* experts of one launch: 2 KB of arguments */

struct experts_table {
    struct gemm_expert glu[TABLE_CHUNK], down[TABLE_CHUNK];
    struct gemm_expert *to_glu, *to_down;
    uint32_t count;
};
__global__ __launch_bounds__(64) void experts_table_k(experts_table j)
{
    if (threadIdx.x >= j.count) return;
    j.to_glu[threadIdx.x] = j.glu[threadIdx.x];
    j.to_down[threadIdx.x] = j.down[threadIdx.x];
}

/* Block e: counts the pairs of experts below e, then writes its own pairs after them, in ascending order. */
__global__ __launch_bounds__(256) void experts_sort_k(const uint32_t *ids, uint32_t pairs, uint32_t experts,
                                                      uint32_t *first, uint32_t *out)
{
    CU_SHARED(count, uint32_t[2][8]);
    uint32_t e = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = 0, equal = 0;
    for (uint32_t i = threadIdx.x; i < pairs; i += 256) {
        below += ids[i] < e;
        equal += ids[i] == e;
    }
    below = __reduce_add_sync(CU_FULL, below);
    equal = __reduce_add_sync(CU_FULL, equal);
    if (lane == 0) {
        count[0][warp] = below;
        count[1][warp] = equal;
    }
    __syncthreads();
    uint32_t at = 0, own = 0;
    for (int w = 0; w < 8; w++) {
        at += count[0][w];
        own += count[1][w];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        first[e] = at;
        if (e + 1 == experts) first[experts] = at + own;
    }
    if (own == 0) return;
    for (uint32_t i0 = 0; i0 < pairs; i0 += 256) {
        uint32_t i = i0 + threadIdx.x, mine = i < pairs && ids[i] == e,
                 mask = __ballot_sync(CU_FULL, (int)mine);
        if (lane == 0) count[0][warp] = (uint32_t)__popc(mask);
        __syncthreads();
        uint32_t place = at + (uint32_t)__popc(mask & ((1u << lane) - 1));
        for (uint32_t w = 0; w < 8; w++) {
            place += w < warp ? count[0][w] : 0;
            at += count[0][w];
        }
        if (mine) out[place] = i;
        __syncthreads();
    }
}

__global__ __launch_bounds__(32) void experts_tiles_k(const uint32_t *first, uint32_t experts, uint32_t width,
                                                      uint32_t *tile)
{
    uint32_t lane = threadIdx.x, before = 0;
    for (uint32_t e0 = 0; e0 < experts; e0 += 32) {
        uint32_t e = e0 + lane, own = e < experts ? (first[e + 1] - first[e] + width - 1) / width : 0,
                 sum = own;
        CU_UNROLL
        for (int o = 1; o < 32; o *= 2) {
            uint32_t v = __shfl_up_sync(CU_FULL, sum, (unsigned)o);
            if (lane >= (uint32_t)o) sum += v;
        }
        if (e < experts) tile[e] = before + sum - own;
        before += __shfl_sync(CU_FULL, sum, 31);
    }
    if (lane == 0) tile[experts] = before;
}

/* ---- combine: a block per row */

__global__ __launch_bounds__(256) void experts_combine_k(be_experts_args a, const float *y)
{
    CU_SHARED(order, uint32_t[BE_EXPERTS_K_MAX]);
    size_t t = blockIdx.x;
    const uint32_t *ids = a.ids + t * a.k;
    uint32_t i = threadIdx.x;
    if (i < a.k) {
        uint32_t place = 0;
        for (uint32_t n = 0; n < a.k; n++) place += ids[n] < ids[i] || (ids[n] == ids[i] && n < i);
        order[place] = i;
    }
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < a.c; c += 256) {
        float sum = 0;
        for (uint32_t n = 0; n < a.k; n++) {
            size_t pair = t * a.k + order[n];
            sum += a.weights[pair] * y[pair * a.c + c];
        }
        a.out[t * a.c + c] = sum;
    }
}

/* ---- all of it */

static void experts__product(struct backend *b, const struct gemm_job &j, uint32_t width, uint32_t tiles)
{
    if (b->hopper) cuda_gemm_sm90(b, j, width, tiles, true, nullptr);
    else gemm_run<true>(b, j, width, tiles);
}

static void experts__table(struct backend *b, const struct be_experts_args *a, struct gemm_expert *glu,
                           struct gemm_expert *down)
{
    for (uint32_t e = 0; e < a->experts; e += TABLE_CHUNK) {
        struct experts_table j = {};
        j.count = a->experts - e < TABLE_CHUNK ? a->experts - e : TABLE_CHUNK;
        j.to_glu = glu + e;
        j.to_down = down + e;
        for (uint32_t i = 0; i < j.count; i++) {
            const struct be_weight *g = a->glu[e + i], *d = a->down[e + i];
            CU_ASSERT(g && d && !g->lt && !d->lt); /* packed as be_weight_desc.grouped */
            CU_ASSERT(g->glu && g->type == b->act && g->k == a->c && g->n == 2 * a->ff);
            CU_ASSERT(!d->glu && d->type == b->act && d->k == a->ff && d->n == a->c);
            j.glu[i] = {g->data, g->bias};
            j.down[i] = {d->data, d->bias};
        }
        CU_LAUNCH(experts_table_k, 1, 64, 0, b->stream, j);
        cuda_launched(b, "experts");
    }
}

bool cuda_experts_init(struct backend *b)
{
    return gemm_init<true>(b);
}

void cuda_experts(struct backend *b, const struct be_experts_args *a)
{
    struct experts_layout l = experts__layout(b, a->t, a->k, a->c, a->ff, a->experts);
    char *s = static_cast<char *>(a->scratch);
    size_t pairs = (size_t)a->t * a->k;
    CU_ASSERT(pairs < UINT32_MAX);
    struct gemm_expert *glu = reinterpret_cast<struct gemm_expert *>(s + l.glu),
                       *down = reinterpret_cast<struct gemm_expert *>(s + l.down);
    uint32_t *first = reinterpret_cast<uint32_t *>(s + l.first),
             *tile = reinterpret_cast<uint32_t *>(s + l.tile),
             *sorted = reinterpret_cast<uint32_t *>(s + l.pairs);
    float *y = reinterpret_cast<float *>(s + l.y);
    size_t crowd = (pairs + a->experts - 1) / a->experts;
    uint32_t width = b->hopper ? cuda_gemm_sm90_width(b, crowd, (uint32_t)(2 * be_ld(a->ff)), true)
                               : gemm_width(b->act, crowd);
    size_t tiles = pairs / width + (pairs < a->experts ? pairs : a->experts);
    if (tiles > pairs) tiles = pairs;
    CU_ASSERT(tiles <= 65535);
    experts__table(b, a, glu, down);
    CU_LAUNCH(experts_sort_k, a->experts, 256, 0, b->stream, a->ids, (uint32_t)pairs, a->experts, first,
              sorted);
    cuda_launched(b, "experts");
    CU_LAUNCH(experts_tiles_k, 1, 32, 0, b->stream, first, a->experts, width, tile);
    cuda_launched(b, "experts");
    struct gemm_job j = {};
    j.experts = glu;
    j.first = first;
    j.tile = tile;
    j.pairs = sorted;
    j.expert_count = a->experts;
    j.per_row = a->k;
    j.x = a->x;
    j.out = s + l.hidden;
    j.kpad = (uint32_t)be_ld(a->c);
    j.wrows = (uint32_t)(2 * be_ld(a->ff));
    j.n = a->ff;
    j.ld = (uint32_t)be_ld(a->ff);
    j.epilogue = a->gate;
    experts__product(b, j, width, (uint32_t)tiles);
    j.experts = down;
    j.per_row = 0;
    j.x = s + l.hidden;
    j.out = y;
    j.kpad = (uint32_t)be_ld(a->ff);
    j.wrows = (uint32_t)be_ld(a->c);
    j.n = j.ld = a->c;
    j.epilogue = BE_EPI_F32;
    experts__product(b, j, width, (uint32_t)tiles);
    CU_LAUNCH(experts_combine_k, a->t, 256, 0, b->stream, *a, y);
    cuda_launched(b, "experts");
}
