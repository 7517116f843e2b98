/* Products by cuBLASLt, for weights whose shape passes a check on this device; linear.cu's kernels serve the
 * others. cuBLASLt adds up f32 sums, adds the bias and, for BE_EPI_ADD_F32, the residual; other epilogues run
 * in a row kernel here, over the sums of as many rows as fit into a fixed buffer.
 *
 * An algorithm may depend on the number of rows (a band), but bits may not: so a shape is accepted only if
 * algorithms without split-K are found, one for each band, that give a row the same bits - alone, among
 * others, at other places, in every band. Candidates are the library's proposals in its own order, never a
 * measurement: the choice depends on device, driver and library alone. A product has at most as many rows as
 * were checked; more take several calls.
 *
 * One row is our kernels' if the weight has at least as many outputs as inputs - there they are faster, on an
 * H100 - and the check finds their sums equal to cuBLASLt's. */
#include "kernels/cuda/gemm.cuh"

#define LT_BANDS     4u
#define LT_PROPOSALS 16
#define LT_ROWS      2048u /* of the check; fewer for wide weights, whose products take much memory */
#define LT_ROWS_WIDE 576u
#define LT_WIDE      32768u
#define LT_REFUSED   8u /* that are named */
#define LT_FEW       8u
#define LT_SHORT_K   2048u

static const uint32_t band_end[LT_BANDS] = {LT_FEW, 128, 768, UINT32_MAX},
                      band_asks[LT_BANDS] = {LT_FEW, 64, 512, LT_ROWS};

struct cuda_lt {
    struct cuda_lt *next;
    uint32_t kpad, m; /* m: weight rows that are multiplied */
    bool bias;
    uint32_t rows;       /* checked; the most of a call */
    bool same;           /* our kernels give the same bits to few rows */
    const char *refused; /* NULL: cuBLASLt serves the shape */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y; /* column-major: (kpad x m) transposed, kpad x rows, m x rows */
    cublasLtMatmulAlgo_t algo[LT_BANDS];
};
struct cuda_blas {
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    struct cuda_lt *shapes;
    size_t work_bytes, sums_bytes;
    void *work;  /* the library's */
    float *sums; /* of products with another epilogue */
    uint32_t rows_max, served, same, refused;
    uint64_t bits; /* of the accepted shapes' check products */
    char refusals[200];
};

static bool lt__ok(struct backend *b, cublasStatus_t st, const char *call)
{
    char what[256];
    if (st == CUBLAS_STATUS_SUCCESS) return true;
    snprintf(what, sizeof what, "%s: %s", call, cublasGetStatusString(st));
    return cuda_check(b, cudaErrorUnknown, what);
}
#define LT_TRY(b, call) lt__ok((b), (call), #call)
template <class O, class A, class V>
static cublasStatus_t lt__set(cublasStatus_t (*set)(O, A, const void *, size_t), O object, A what, const V &v)
{
    return set(object, what, &v, sizeof v);
}
static uint32_t lt__config(const cublasLtMatmulAlgo_t &algo, cublasLtMatmulAlgoConfigAttributes_t what)
{
    uint32_t v = 0;
    size_t bytes;
    (void)cublasLtMatmulAlgoConfigGetAttribute(&algo, what, &v, sizeof v, &bytes);
    return v;
}

/* b->gemm, for caps. */
static void lt__say(struct backend *b)
{
    const struct cuda_blas *l = b->blas;
    size_t version = cublasLtGetVersion(), cap = sizeof b->gemm;
    int n = snprintf(
        b->gemm, cap, "cuBLASLt %zu.%zu.%zu, %u weight shapes, %u with the bits of own kernels, bits %016llx",
        version / 10000, version / 100 % 100, version % 100, l->served, l->same, (unsigned long long)l->bits);
    if (l->refused && n > 0 && (size_t)n < cap)
        snprintf(b->gemm + n, cap - (size_t)n, "; own kernels, %u:%s%s", l->refused, l->refusals,
                 l->refused > LT_REFUSED ? " ..." : "");
}

/* ---- opening */

bool cuda_lt_open(struct backend *b)
{
    bool large = b->sms >= 16; /* else it is the emulator */
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = 16;
    auto set = cublasLtMatmulPreferenceSetAttribute;
    struct cuda_blas *l = b->blas = static_cast<struct cuda_blas *>(calloc(1, sizeof *l));
    if (!l) return cuda_check(b, cudaErrorMemoryAllocation, "cuBLASLt");
    l->work_bytes = (size_t)(large ? 32 : 1) << 20;
    l->sums_bytes = (size_t)(large ? 64 : 1) << 20;
    l->rows_max = large ? LT_ROWS : LT_ROWS_WIDE;
    void *sums = nullptr;
    bool ok = CU_TRY(b, cudaMalloc(&l->work, l->work_bytes)) && CU_TRY(b, cudaMalloc(&sums, l->sums_bytes));
    l->sums = static_cast<float *>(sums);
    ok = ok && LT_TRY(b, cublasLtCreate(&l->handle)) &&
         LT_TRY(b, cublasLtMatmulPreferenceCreate(&l->preference)) &&
         LT_TRY(b, lt__set(set, l->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, l->work_bytes)) &&
         LT_TRY(b, lt__set(set, l->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, scheme)) &&
         LT_TRY(b, lt__set(set, l->preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment)) &&
         LT_TRY(b, lt__set(set, l->preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment)) &&
         LT_TRY(b, lt__set(set, l->preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment)) &&
         LT_TRY(b, lt__set(set, l->preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment));
    if (ok) lt__say(b);
    return ok;
}

void cuda_lt_close(struct backend *b)
{
    struct cuda_blas *l = b->blas;
    if (!l) return;
    for (struct cuda_lt *s = l->shapes, *next; s; s = next) {
        next = s->next;
        if (s->desc) (void)cublasLtMatmulDescDestroy(s->desc);
        for (cublasLtMatrixLayout_t layout : {s->w, s->x, s->y})
            if (layout) (void)cublasLtMatrixLayoutDestroy(layout);
        free(s);
    }
    if (l->preference) (void)cublasLtMatmulPreferenceDestroy(l->preference);
    if (l->handle) (void)cublasLtDestroy(l->handle);
    if (l->work) (void)cudaFree(l->work);
    if (l->sums) (void)cudaFree(l->sums);
    free(l);
    b->blas = nullptr;
}

/* ---- a product */

/* Rows of x, and the terms of a sum. */
static cublasStatus_t lt__size(const struct cuda_lt *s, uint64_t rows, uint64_t k)
{
    cublasStatus_t st =
        cublasLtMatrixLayoutSetAttribute(s->x, CUBLASLT_MATRIX_LAYOUT_COLS, &rows, sizeof rows);
    if (!st) st = cublasLtMatrixLayoutSetAttribute(s->y, CUBLASLT_MATRIX_LAYOUT_COLS, &rows, sizeof rows);
    if (!st) st = cublasLtMatrixLayoutSetAttribute(s->x, CUBLASLT_MATRIX_LAYOUT_ROWS, &k, sizeof k);
    return st ? st : cublasLtMatrixLayoutSetAttribute(s->w, CUBLASLT_MATRIX_LAYOUT_ROWS, &k, sizeof k);
}
static cublasStatus_t lt__multiply(const struct backend *b, const struct be_weight *w,
                                   const struct cuda_lt *s, const cublasLtMatmulAlgo_t *algo, const void *x,
                                   uint32_t t, float beta, float *y)
{
    const struct cuda_blas *l = b->blas;
    const float one = 1;
    cublasStatus_t st = lt__size(s, t, s->kpad);
    if (!st && s->bias)
        st = lt__set(cublasLtMatmulDescSetAttribute, s->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, w->bias);
    if (st) return st;
    return cublasLtMatmul(l->handle, s->desc, &one, w->data, s->w, x, s->x, &beta, y, s->y, y, s->y, algo,
                          l->work, l->work_bytes, b->stream);
}
static uint32_t lt__band(uint32_t rows)
{
    uint32_t i = 0;
    while (rows > band_end[i]) i++;
    return i;
}

/* sums [t][m] to the output; gemm_put's pairs of rows. */
template <bool BF>
__global__ __launch_bounds__(256) void lt_epilogue_k(gemm_job j, const float *sums, uint32_t m)
{
    uint32_t pair = blockIdx.x * 256 + threadIdx.x, r = pair / 8 * 16 + pair % 8;
    const float *v = sums + (size_t)blockIdx.y * m;
    if (r < j.wrows)
        gemm_put<BF>(j, nullptr, blockIdx.y, r, r < m ? v[r] : 0.0f, r + 8 < m ? v[r + 8] : 0.0f);
}

/* With a bias and a residual the order of the additions differs. */
uint32_t cuda_lt_rows(const struct backend *b, const struct be_linear_args *a)
{
    const struct cuda_lt *s = a->w->lt;
    if (!s || (s->same && a->t == 1 && s->m >= s->kpad && !(s->bias && a->epilogue == BE_EPI_ADD_F32)))
        return 0;
    size_t fit = b->blas->sums_bytes / ((size_t)s->m * 4);
    if (a->epilogue <= BE_EPI_ADD_F32 || fit >= s->rows) return s->rows;
    CU_ASSERT(fit);
    return (uint32_t)(fit >= 128 ? fit / 128 * 128 : fit);
}

void cuda_lt_linear(struct backend *b, const struct be_weight *w, const struct gemm_job &j)
{
    const struct cuda_lt *s = w->lt;
    bool direct = j.epilogue <= BE_EPI_ADD_F32;
    cublasStatus_t st =
        lt__multiply(b, w, s, &s->algo[lt__band(j.t)], j.x, j.t, j.epilogue == BE_EPI_ADD_F32 ? 1.0f : 0.0f,
                     direct ? static_cast<float *>(j.out) : b->blas->sums);
    if (!lt__ok(b, st, "cublasLtMatmul") || direct) return;
    auto epilogue = w->type == BE_BF16 ? lt_epilogue_k<true> : lt_epilogue_k<false>;
    CU_LAUNCH(epilogue, dim3(cu_div_up(w->wrows, 512), j.t), 256, 0, b->stream, j, b->blas->sums, s->m);
    cuda_launched(b, "linear");
}

/* ---- the check of a shape, with pseudo-random operands */

template <bool BF> __global__ __launch_bounds__(256) void lt_fill_k(void *p, size_t n, uint32_t seed)
{
    for (size_t i = (size_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (size_t)gridDim.x * 256) {
        uint32_t h = ((uint32_t)i ^ seed) * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        h ^= h >> 13;
        cu_act_put<BF>(p, i, (float)((int)(h & 0xffff) - (int)(h >> 16)) * (1.0f / 65536.0f));
    }
}
/* hash[row] of row blockIdx.x: a sum over its words that depends on their places. */
__global__ __launch_bounds__(32) void lt_hash_k(const float *y, uint32_t m, uint64_t *hash)
{
    CU_SHARED(part, uint64_t[32]);
    const float *row = y + (size_t)blockIdx.x * m;
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < m; i += 32)
        sum += (__float_as_uint(row[i]) + 1ull) * ((i + 1) * 0x9e3779b97f4a7c15ull);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (uint32_t i = 1; threadIdx.x == 0 && i < 32; i++) sum += part[i];
    if (threadIdx.x == 0) hash[blockIdx.x] = sum;
}

struct lt_check {
    struct backend *b;
    struct cuda_lt *s;
    struct be_weight w; /* for our kernels */
    char *x;
    float *y;
    uint64_t *hash, want[LT_ROWS], got[LT_ROWS];
};
/* Hashes of the product of rows [at, at + rows), by our kernels if algo is NULL. False: it can't be
 * calculated so, or a device error. */
static bool lt__hashes(struct lt_check *c, const cublasLtMatmulAlgo_t *algo, uint32_t at, uint32_t rows,
                       uint64_t *out)
{
    struct backend *b = c->b;
    const struct cuda_lt *s = c->s;
    if (!CU_TRY(b, cudaMemsetAsync(c->y, 0xff, (size_t)rows * s->m * 4, b->stream))) return false;
    const char *x = c->x + (size_t)at * s->kpad * be_dtype_bytes(b->act);
    cublasStatus_t st = algo ? lt__multiply(b, &c->w, s, algo, x, rows, 0, c->y) : CUBLAS_STATUS_SUCCESS;
    struct be_linear_args own = {};
    own.w = &c->w;
    own.x = x;
    own.t = rows;
    own.out = c->y;
    if (!algo) cuda_linear(b, &own);
    if (st == CUBLAS_STATUS_NOT_SUPPORTED || st == CUBLAS_STATUS_INVALID_VALUE) return false;
    if (!lt__ok(b, st, "cublasLtMatmul")) return false;
    CU_LAUNCH(lt_hash_k, rows, 32, 0, b->stream, c->y, s->m, c->hash);
    return cuda_launched(b, "check of cuBLASLt") &&
           CU_TRY(b, cudaMemcpyAsync(out, c->hash, rows * sizeof *out, cudaMemcpyDeviceToHost, b->stream)) &&
           CU_TRY(b, cudaStreamSynchronize(b->stream));
}
/* Whether the algorithm gives rows of all counts in its band the bits of `want`. */
static bool lt__same(struct lt_check *c, const cublasLtMatmulAlgo_t *algo, uint32_t band)
{
    static const uint32_t
        cases[][2] = {{0, 1},   {5, 1},    {511, 1},   {575, 1},    {3, 7},     {300, 8},
                      {0, 16},  {9, 17},   {0, 64},    {500, 65},   {17, 128},  {60, 129},
                      {0, 513}, {62, 514}, {900, 768}, {1000, 769}, {400, 1500}}; /* at, rows */
    for (auto &t : cases)
        if (t[0] + t[1] <= c->s->rows && lt__band(t[1]) == band &&
            (!lt__hashes(c, algo, t[0], t[1], c->got) ||
             memcmp(c->got, c->want + t[0], t[1] * sizeof *c->got) != 0))
            return false;
    return true;
}
/* The library's proposals for that many rows and terms without split-K, in its order. */
static int lt__proposals(struct lt_check *c, uint32_t rows, uint32_t k, cublasLtMatmulAlgo_t *out)
{
    struct cuda_blas *l = c->b->blas;
    cublasLtMatmulHeuristicResult_t got[LT_PROPOSALS];
    int count = 0, kept = 0;
    if (lt__size(c->s, rows, k) ||
        cublasLtMatmulAlgoGetHeuristic(l->handle, c->s->desc, c->s->w, c->s->x, c->s->y, c->s->y,
                                       l->preference, LT_PROPOSALS, got, &count) != CUBLAS_STATUS_SUCCESS)
        return 0;
    for (int i = 0; i < count; i++) {
        const cublasLtMatmulAlgo_t &algo = got[i].algo;
        if (got[i].state == CUBLAS_STATUS_SUCCESS && got[i].workspaceSize <= l->work_bytes &&
            lt__config(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) <= 1 &&
            lt__config(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) == CUBLASLT_REDUCTION_SCHEME_NONE)
            out[kept++] = algo;
    }
    return kept;
}
/* Candidates for a band. Where the library would rather split a long sum, its first proposal without that may
 * be of an old family of algorithms, and slow (on an H100 by five times): then first what it proposes for a
 * shorter sum. */
static int lt__candidates(struct lt_check *c, uint32_t band, const cublasLtMatmulAlgo_t *widest,
                          cublasLtMatmulAlgo_t out[2 * LT_PROPOSALS])
{
    const auto family = CUBLASLT_ALGO_CONFIG_ID;
    int n = lt__proposals(c, band_asks[band], c->s->kpad, out);
    if (c->s->kpad <= LT_SHORT_K || (n && lt__config(*widest, family) == lt__config(*out, family))) return n;
    n = lt__proposals(c, band_asks[band], LT_SHORT_K, out);
    return n + lt__proposals(c, band_asks[band], c->s->kpad, out + n);
}
/* Fills s->algo. The first proposal for the widest band says what the bits are. */
static bool lt__choose(struct lt_check *c)
{
    struct cuda_lt *s = c->s;
    cublasLtMatmulAlgo_t first[LT_PROPOSALS], other[2 * LT_PROPOSALS];
    uint32_t last = lt__band(s->rows);
    int count = lt__proposals(c, s->rows, s->kpad, first);
    for (int i = 0; i < count && !c->b->failed; i++) {
        uint32_t done = 0;
        s->algo[last] = first[i];
        if (!lt__hashes(c, &first[i], 0, s->rows, c->want) || !lt__same(c, &first[i], last)) continue;
        for (uint32_t band = 0; band < last; band++, done++) {
            int n = lt__candidates(c, band, &first[i], other), at = 0;
            while (at < n && !lt__same(c, &other[at], band)) at++;
            if (at == n) break;
            s->algo[band] = other[at];
        }
        if (done < last) continue;
        s->same = lt__same(c, nullptr, 0);
        return true;
    }
    s->refused = count ? "no invariant algorithm" : "no algorithm";
    return false;
}

static bool lt__describe(struct backend *b, struct cuda_lt *s)
{
    auto set = cublasLtMatmulDescSetAttribute;
    const cublasOperation_t t = CUBLAS_OP_T;
    const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const int32_t type = CUDA_R_32F;
    cudaDataType_t act = b->act == BE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    return LT_TRY(b, cublasLtMatmulDescCreate(&s->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
           LT_TRY(b, lt__set(set, s->desc, CUBLASLT_MATMUL_DESC_TRANSA, t)) &&
           LT_TRY(b, cublasLtMatrixLayoutCreate(&s->w, act, s->kpad, s->m, s->kpad)) &&
           LT_TRY(b, cublasLtMatrixLayoutCreate(&s->x, act, s->kpad, 1, s->kpad)) &&
           LT_TRY(b, cublasLtMatrixLayoutCreate(&s->y, CUDA_R_32F, s->m, 1, s->m)) &&
           (!s->bias || (LT_TRY(b, lt__set(set, s->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)) &&
                         LT_TRY(b, lt__set(set, s->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type))));
}
/* The content of w's memory is overwritten. */
static void lt__check(struct backend *b, struct cuda_lt *s, const struct be_weight *w)
{
    const size_t elem = be_dtype_bytes(b->act), x = (size_t)s->rows * s->kpad * elem,
                 y = (size_t)s->rows * s->m * 4, hash = s->rows * sizeof(uint64_t); /* multiples of 256 */
    void *mem = nullptr;
    struct lt_check c = {};
    c.b = b;
    c.s = s;
    c.w = *w;
    c.w.glu = false;
    c.w.n = s->m;
    cudaError_t e = cudaMalloc(&mem, x + y + hash + be_ld(s->m) * 4);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* our kernels need no check */
        s->refused = "no memory for its check";
    } else if (cuda_check(b, e, "check of cuBLASLt") && lt__describe(b, s)) {
        c.x = static_cast<char *>(mem);
        c.y = reinterpret_cast<float *>(c.x + x);
        c.hash = reinterpret_cast<uint64_t *>(c.x + x + y);
        void *biases = c.x + x + y + hash;
        c.w.bias = s->bias ? static_cast<float *>(biases) : nullptr;
        auto fill = b->act == BE_BF16 ? lt_fill_k<true> : lt_fill_k<false>;
        CU_LAUNCH(fill, 256, 256, 0, b->stream, c.w.data, be_ld(s->m) * s->kpad, 1u);
        CU_LAUNCH(fill, 256, 256, 0, b->stream, static_cast<void *>(c.x), x / elem, 2u);
        CU_LAUNCH(lt_fill_k<false>, 64, 256, 0, b->stream, biases, be_ld(s->m), 3u);
        if (cuda_launched(b, "check of cuBLASLt") && lt__choose(&c))
            for (uint32_t i = 0; i < s->rows; i++)
                b->blas->bits = (b->blas->bits ^ c.want[i]) * 0x100000001b3ull;
    }
    if (mem) (void)cudaFree(mem);
}

const struct cuda_lt *cuda_lt_find(struct backend *b, const struct be_weight *w)
{
    struct cuda_blas *l = b->blas;
    uint32_t m = w->glu ? w->wrows : w->n;
    if (!l) return nullptr;
    struct cuda_lt **at = &l->shapes, *s;
    for (; (s = *at) != nullptr; at = &s->next)
        if (s->kpad == w->kpad && s->m == m && s->bias == (w->bias != nullptr))
            return s->refused ? nullptr : s;
    *at = s = static_cast<struct cuda_lt *>(calloc(1, sizeof *s));
    if (!s) {
        cuda_check(b, cudaErrorMemoryAllocation, "cuBLASLt");
        return nullptr;
    }
    s->kpad = w->kpad;
    s->m = m;
    s->bias = w->bias;
    s->rows = m > LT_WIDE ? LT_ROWS_WIDE : l->rows_max;
    if (m % 4) s->refused = "rows not of 16 bytes";
    else lt__check(b, s, w);
    if (b->failed) return nullptr;
    size_t used = strlen(l->refusals);
    l->same += !s->refused && s->same;
    if (!s->refused) l->served++;
    else if (l->refused++ < LT_REFUSED)
        snprintf(l->refusals + used, sizeof l->refusals - used, "%s %ux%u (%s)", used ? "," : "", w->n, w->k,
                 s->refused);
    lt__say(b);
    return s->refused ? nullptr : s;
}
