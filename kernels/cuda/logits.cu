/* Statistics and the largest values of logit rows. A row is cut into chunks by its length alone; each chunk
 * is processed by a block, and a last block merges the chunks in ascending order. No value depends on how
 * many rows there are. */
#include "kernels/cuda/internal.h"

#define CHUNK_MIN  4096u
#define CHUNKS_MAX 128u
#define THREADS    256u
#define WARPS      8

/* Elements of a chunk. */
static uint32_t logits__chunk(uint32_t v)
{
    uint32_t len = CHUNK_MIN;
    while ((v + (uint64_t)len - 1) / len > CHUNKS_MAX) len *= 2;
    return len;
}

/* ---- statistics */

struct stats_chunk {
    float max, sum; /* sum of exp(x - max) */
    uint32_t arg, rank;
};
struct stats_job {
    be_logits_args a;
    struct stats_chunk *part; /* [R][chunks] */
    uint32_t chunk, chunks;
};

/* The larger value, at equal values the lower id: over the block, the same for all threads. id UINT32_MAX:
 * none. */
static __device__ void stats_best(float *v, uint32_t *id, float *rv, uint32_t *rid)
{
    CU_UNROLL
    for (int o = 16; o; o >>= 1) {
        float w = __shfl_xor_sync(CU_FULL, *v, o);
        uint32_t k = __shfl_xor_sync(CU_FULL, *id, o);
        if (w > *v || (w == *v && k < *id)) {
            *v = w;
            *id = k;
        }
    }
    if (threadIdx.x % 32 == 0) {
        rv[threadIdx.x / 32] = *v;
        rid[threadIdx.x / 32] = *id;
    }
    __syncthreads();
    *v = rv[0];
    *id = rid[0];
    for (int w = 1; w < WARPS; w++) {
        if (rv[w] > *v || (rv[w] == *v && rid[w] < *id)) {
            *v = rv[w];
            *id = rid[w];
        }
    }
    __syncthreads();
}

/* Softcap in place, largest value, sum of exponentials of one chunk. */
__global__ __launch_bounds__(256) void stats_chunk_k(stats_job j)
{
    CU_SHARED(rv, float[WARPS]);
    CU_SHARED(rid, uint32_t[WARPS]);
    uint32_t first = blockIdx.x * j.chunk, end = j.a.v - first < j.chunk ? j.a.v : first + j.chunk,
             arg = UINT32_MAX;
    float *x = j.a.logits + (size_t)blockIdx.y * j.a.v, cap = j.a.softcap, best = CU_NEG_INF, sum = 0;
    for (uint32_t i = first + threadIdx.x; i < end; i += THREADS) {
        float v = x[i];
        if (cap > 0) x[i] = v = cap * tanhf(v / cap);
        if (v > best) {
            best = v;
            arg = i;
        }
    }
    stats_best(&best, &arg, rv, rid);
    float shift = best == CU_NEG_INF ? 0.0f : best;
    for (uint32_t i = first + threadIdx.x; i < end; i += THREADS)
        sum += expf(x[i] - shift); /* its own writes */
    sum = cu_block_sum<WARPS>(sum, rv);
    if (threadIdx.x == 0) j.part[(size_t)blockIdx.y * j.chunks + blockIdx.x] = {best, sum, arg, 0};
}

/* How many of a chunk rank before the target; the softcap has been applied everywhere. */
__global__ __launch_bounds__(256) void stats_rank_k(stats_job j)
{
    CU_SHARED(count, uint32_t[WARPS]);
    uint32_t target = j.a.targets[blockIdx.y];
    if (target >= j.a.v) return;
    uint32_t first = blockIdx.x * j.chunk, end = j.a.v - first < j.chunk ? j.a.v : first + j.chunk, n = 0;
    const float *x = j.a.logits + (size_t)blockIdx.y * j.a.v;
    float v = x[target];
    for (uint32_t i = first + threadIdx.x; i < end; i += THREADS) n += x[i] > v || (x[i] == v && i < target);
    n = __reduce_add_sync(CU_FULL, n);
    if (threadIdx.x % 32 == 0) count[threadIdx.x / 32] = n;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < WARPS; w++) n += count[w];
    j.part[(size_t)blockIdx.y * j.chunks + blockIdx.x].rank = n;
}

/* A block per row, a thread per chunk; one thread adds up the chunks in ascending order, in double. */
__global__ __launch_bounds__(128) void stats_row_k(stats_job j)
{
    CU_SHARED(part, struct stats_chunk[CHUNKS_MAX]);
    CU_SHARED(term, double[CHUNKS_MAX]);
    size_t row = blockIdx.x;
    uint32_t c = threadIdx.x, arg = 0, rank = 1, target = j.a.targets ? j.a.targets[row] : UINT32_MAX;
    float best = CU_NEG_INF;
    double sum = 0;
    if (c < j.chunks) part[c] = j.part[row * j.chunks + c];
    __syncthreads();
    for (uint32_t i = 0; i < j.chunks; i++) {
        rank += part[i].rank;
        if (part[i].max > best) {
            best = part[i].max;
            arg = part[i].arg;
        }
    }
    if (c < j.chunks)
        term[c] = part[c].sum == 0 ? 0 : (double)part[c].sum * exp((double)part[c].max - (double)best);
    __syncthreads();
    if (c) return;
    for (uint32_t i = 0; i < j.chunks; i++) sum += term[i];
    bool has = target < j.a.v;
    struct be_logit_stats s;
    s.max = best;
    s.argmax = arg;
    s.lse = best == CU_NEG_INF ? CU_NEG_INF : (float)((double)best + log(sum));
    s.target = has ? j.a.logits[row * j.a.v + target] : 0;
    s.target_rank = has ? rank : 0;
    s.drawn = s.drawn_rank = UINT32_MAX;
    s.drawn_value = 0;
    j.a.stats[row] = s;
}

/* ---- drawing. A block is a row; each of its warps adds up consecutive elements, by the row's length alone.
 * One warp finds the part, and in it the 32 elements, that hold the token. */

#define DRAW_WARPS 32u

static __device__ __forceinline__ float draw_weight(const float *x, uint32_t i, uint32_t end, float max,
                                                    float inverse)
{
    return i < end ? expf((x[i] - max) * inverse) : 0.0f;
}
static __device__ __forceinline__ double draw_warp_sum(double v)
{
    CU_UNROLL
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(CU_FULL, v, o);
    return v;
}

__global__ __launch_bounds__(DRAW_WARPS * 32) void draw_k(stats_job j)
{
    CU_SHARED(sums, double[DRAW_WARPS]);
    CU_SHARED(ranks, uint32_t[DRAW_WARPS]);
    CU_SHARED(drawn, uint32_t[1]);
    const struct be_draw d = j.a.draws[blockIdx.x];
    if (!(d.inverse > 0)) return;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, v = j.a.v,
                   part = (v + DRAW_WARPS * 32 - 1) / (DRAW_WARPS * 32) * 32;
    const float *x = j.a.logits + (size_t)blockIdx.x * v;
    struct be_logit_stats *s = j.a.stats + blockIdx.x;
    const float max = s->max;
    double sum = 0;
    for (uint32_t i = lane; i < part; i += 32)
        sum += (double)draw_weight(x, warp * part + i, v, max, d.inverse);
    sum = draw_warp_sum(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (warp == 0) { /* all lanes calculate the same */
        double total = 0, before = 0;
        uint32_t first = 0, group = 0, id = 0;
        for (uint32_t w = 0; w < DRAW_WARPS; w++) total += sums[w];
        const double target = (double)d.u * total;
        for (uint32_t w = 0; w < DRAW_WARPS; before += sums[w++]) {
            if (sums[w] > 0) first = w * part;
            if (before + sums[w] > target) break;
        }
        for (uint32_t i = first; i < first + part && i < v; i += 32) {
            double all = draw_warp_sum((double)draw_weight(x, i + lane, v, max, d.inverse));
            if (all > 0) group = i;
            if (before + all > target) break;
            before += all;
        }
        float weight = draw_weight(x, group + lane, v, max, d.inverse);
        for (int k = 0; k < 32; k++) {
            float one = __shfl_sync(CU_FULL, weight, k);
            before += (double)one;
            if (one > 0) id = group + (uint32_t)k;
            if (one > 0 && before > target) break;
        }
        if (lane == 0) drawn[0] = id;
    }
    __syncthreads();
    const uint32_t id = drawn[0];
    const float value = x[id];
    uint32_t rank = 0;
    for (uint32_t i = threadIdx.x; i < v; i += DRAW_WARPS * 32)
        rank += x[i] > value || (x[i] == value && i < id);
    rank = __reduce_add_sync(CU_FULL, rank);
    if (lane == 0) ranks[warp] = rank;
    __syncthreads();
    if (threadIdx.x) return;
    for (uint32_t w = 1; w < DRAW_WARPS; w++) rank += ranks[w];
    s->drawn = id;
    s->drawn_rank = rank + 1;
    s->drawn_value = value;
}

void cuda_logit_stats(struct backend *b, const struct be_logits_args *a)
{
    struct stats_job j = {*a, static_cast<struct stats_chunk *>(b->scratch), logits__chunk(a->v), 0};
    j.chunks = cu_div_up(a->v, j.chunk);
    uint32_t most = (uint32_t)(b->scratch_bytes / (sizeof(struct stats_chunk) * j.chunks));
    if (most > 65535) most = 65535;
    for (uint32_t first = 0; first < a->r; first += most) {
        uint32_t rows = a->r - first < most ? a->r - first : most;
        j.a.logits = a->logits + (size_t)first * a->v;
        j.a.targets = a->targets ? a->targets + first : nullptr;
        j.a.draws = a->draws ? a->draws + first : nullptr;
        j.a.stats = a->stats + first;
        dim3 grid(j.chunks, rows);
        CU_LAUNCH(stats_chunk_k, grid, THREADS, 0, b->stream, j);
        cuda_launched(b, "logit_stats");
        if (a->targets) {
            CU_LAUNCH(stats_rank_k, grid, THREADS, 0, b->stream, j);
            cuda_launched(b, "logit_stats");
        }
        CU_LAUNCH(stats_row_k, rows, CHUNKS_MAX, 0, b->stream, j);
        cuda_launched(b, "logit_stats");
        if (a->draws) {
            CU_LAUNCH(draw_k, rows, DRAW_WARPS * 32, 0, b->stream, j);
            cuda_launched(b, "logit_stats");
        }
    }
}

__global__ __launch_bounds__(256) void take_ids_k(const struct be_logit_stats *stats, uint32_t t,
                                                  uint32_t *ids)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= t) return;
    const struct be_logit_stats *s = stats + ids[i];
    ids[i] = s->drawn == UINT32_MAX ? s->argmax : s->drawn;
}

void cuda_take_ids(struct backend *b, const struct be_logit_stats *stats, uint32_t t, uint32_t *ids)
{
    if (b->failed) return;
    CU_LAUNCH(take_ids_k, cu_div_up(t, THREADS), THREADS, 0, b->stream, stats, t, ids);
    cuda_launched(b, "take_ids");
}

/* ---- the k largest. A block finds the k largest of its chunk by their bits, highest byte first, and writes
 * them in their order; another does the same with the chunks' results, and sorts. Values become integers of
 * the same order; NaN counts as -infinity, -0 as +0. */

#define BINS 256u

struct topk_job {
    const float *logits;
    uint32_t v, k, chunk, chunks, stride; /* stride: candidates kept per chunk, min(k, chunk) */
    uint32_t *keys, *ids; /* [R][chunks * stride] candidates; key 0 with id UINT32_MAX: none */
    uint32_t *out_ids;
    float *out_values;
};

static __device__ __forceinline__ uint32_t topk_key(float x)
{
    if (x != x) x = CU_NEG_INF;
    if (x == 0) x = 0.0f;
    uint32_t u = __float_as_uint(x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
static __device__ __forceinline__ float topk_value(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* Candidate i of a row's chunk (keys NULL: of the logits themselves). A key of 0 (below -infinity) means
 * none. */
struct topk_source {
    const float *logits;
    const uint32_t *keys;
    uint32_t first, count;
    __device__ __forceinline__ uint32_t key(uint32_t i) const
    {
        return keys ? keys[first + i] : topk_key(logits[first + i]);
    }
};
struct topk_shared {
    uint32_t bins[BINS], warp[2][WARPS], digit, left;
};

/* The k-th largest key (k <= candidates), and how many candidates equal to it belong to the k largest. All
 * threads get both. */
static __device__ uint32_t topk_threshold(const topk_source &s, uint32_t k, struct topk_shared &sh,
                                          uint32_t *equal)
{
    uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        sh.bins[threadIdx.x] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < s.count; i += THREADS) {
            uint32_t key = s.key(i);
            if (shift == 24 || key >> (shift + 8) == prefix) atomicAdd(&sh.bins[key >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t d = BINS - 1, left = k;
            while (d > 0 && sh.bins[d] < left) left -= sh.bins[d--];
            sh.digit = d;
            sh.left = left;
        }
        __syncthreads();
        prefix = prefix << 8 | sh.digit; /* written again after two more barriers */
        k = sh.left;
    }
    *equal = k;
    return prefix;
}

/* Calls put(place, i) for the k largest candidates in ascending i: all above the threshold, and the first
 * `equal` of those at it.
 */
template <class PUT>
static __device__ void topk_compact(const topk_source &s, uint32_t threshold, uint32_t equal,
                                    struct topk_shared &sh, PUT put)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = (1u << lane) - 1, above_before = 0,
             same_before = 0;
    for (uint32_t i0 = 0; i0 < s.count; i0 += THREADS) {
        uint32_t i = i0 + threadIdx.x, key = i < s.count ? s.key(i) : 0;
        bool above = i < s.count && key > threshold, same = i < s.count && key == threshold;
        uint32_t am = __ballot_sync(CU_FULL, above), em = __ballot_sync(CU_FULL, same);
        if (lane == 0) {
            sh.warp[0][warp] = (uint32_t)__popc(am);
            sh.warp[1][warp] = (uint32_t)__popc(em);
        }
        __syncthreads();
        uint32_t a = above_before + (uint32_t)__popc(am & below),
                 e = same_before + (uint32_t)__popc(em & below);
        for (uint32_t w = 0; w < WARPS; w++) {
            a += w < warp ? sh.warp[0][w] : 0;
            e += w < warp ? sh.warp[1][w] : 0;
            above_before += sh.warp[0][w];
            same_before += sh.warp[1][w];
        }
        /* Those at the threshold that come before this one and are selected count too. */
        if (above || (same && e < equal)) put(a + (e < equal ? e : equal), i);
        __syncthreads();
    }
}

__global__ __launch_bounds__(256) void topk_chunk_k(topk_job j)
{
    CU_SHARED(sh, topk_shared);
    uint32_t first = blockIdx.x * j.chunk, count = j.v - first < j.chunk ? j.v - first : j.chunk,
             k = j.k < count ? j.k : count, equal;
    topk_source s = {j.logits + (size_t)blockIdx.y * j.v, nullptr, first, count};
    size_t base = ((size_t)blockIdx.y * j.chunks + blockIdx.x) * j.stride;
    uint32_t threshold = topk_threshold(s, k, sh, &equal);
    topk_compact(s, threshold, equal, sh, [&](uint32_t place, uint32_t i) {
        j.keys[base + place] = s.key(i);
        j.ids[base + place] = first + i;
    });
    for (uint32_t i = k + threadIdx.x; i < j.stride; i += THREADS) {
        j.keys[base + i] = 0;
        j.ids[base + i] = UINT32_MAX;
    }
}

/* Candidates of a row are in ascending order of ids, so the first of equal ones have the lowest ids. */
__global__ __launch_bounds__(256) void topk_row_k(topk_job j)
{
    CU_SHARED(sh, topk_shared);
    CU_SHARED(order, unsigned long long[BE_TOPK_MAX]);
    uint32_t all = j.chunks * j.stride, equal;
    topk_source s = {nullptr, j.keys + (size_t)blockIdx.x * all, 0, all};
    const uint32_t *ids = j.ids + (size_t)blockIdx.x * all;
    order[threadIdx.x] = 0;
    __syncthreads();
    uint32_t threshold = topk_threshold(s, j.k, sh, &equal);
    topk_compact(s, threshold, equal, sh, [&](uint32_t place, uint32_t i) {
        order[place] = (unsigned long long)s.key(i) << 32 | (uint32_t)~ids[i];
    });
    __syncthreads();
    /* Bitonic sort, descending: larger key first, then the lower id. */
    for (uint32_t size = 2; size <= BE_TOPK_MAX; size *= 2) {
        for (uint32_t step = size / 2; step > 0; step /= 2) {
            uint32_t i = threadIdx.x, o = i ^ step;
            if (o > i) {
                unsigned long long x = order[i], y = order[o];
                bool down = (i & size) == 0;
                if (down ? x < y : x > y) {
                    order[i] = y;
                    order[o] = x;
                }
            }
            __syncthreads();
        }
    }
    if (threadIdx.x < j.k) {
        unsigned long long x = order[threadIdx.x];
        size_t at = (size_t)blockIdx.x * j.k + threadIdx.x;
        j.out_ids[at] = ~(uint32_t)x;
        j.out_values[at] = topk_value((uint32_t)(x >> 32));
    }
}

void cuda_topk(struct backend *b, const struct be_topk_args *a)
{
    static_assert(BE_TOPK_MAX == THREADS && BINS == THREADS, "a thread per place and per bin");
    struct topk_job j = {};
    j.v = a->v;
    j.k = a->k;
    j.chunk = logits__chunk(a->v);
    j.chunks = cu_div_up(a->v, j.chunk);
    j.stride = j.k < j.chunk ? j.k : j.chunk;
    size_t row = (size_t)j.chunks * j.stride;
    uint32_t most = (uint32_t)(b->scratch_bytes / (row * 8));
    CU_ASSERT(most > 0);
    if (most > 65535) most = 65535;
    for (uint32_t first = 0; first < a->r; first += most) {
        uint32_t rows = a->r - first < most ? a->r - first : most;
        j.logits = a->logits + (size_t)first * a->v;
        j.keys = static_cast<uint32_t *>(b->scratch);
        j.ids = j.keys + rows * row;
        j.out_ids = a->ids + (size_t)first * a->k;
        j.out_values = a->values + (size_t)first * a->k;
        CU_LAUNCH(topk_chunk_k, dim3(j.chunks, rows), THREADS, 0, b->stream, j);
        cuda_launched(b, "topk");
        CU_LAUNCH(topk_row_k, rows, THREADS, 0, b->stream, j);
        cuda_launched(b, "topk");
    }
}
