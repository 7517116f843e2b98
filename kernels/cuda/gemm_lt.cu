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
    bool glu, bias;
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
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
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
         LT_TRY(b,
                cublasLtMatmulPreferenceSetAttribute(l->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                     &l->work_bytes, sizeof l->work_bytes)) &&
         LT_TRY(b, cublasLtMatmulPreferenceSetAttribute(
                       l->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme));
    for (cublasLtMatmulPreferenceAttributes_t a : aligned)
        ok = ok &&
             LT_TRY(b, cublasLtMatmulPreferenceSetAttribute(l->preference, a, &alignment, sizeof alignment));
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
static cublasStatus_t lt__multiply(const struct backend *b, const struct cuda_lt *s,
                                   const cublasLtMatmulAlgo_t *algo, const void *w, const void *x, uint32_t t,
                                   float beta, float *y)
{
    const struct cuda_blas *l = b->blas;
    const float one = 1;
    cublasStatus_t st = lt__size(s, t, s->kpad);
    if (st) return st;
    return cublasLtMatmul(l->handle, s->desc, &one, w, s->w, x, s->x, &beta, y, s->y, y, s->y, algo, l->work,
                          l->work_bytes, b->stream);
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
bool cuda_lt_serves(const struct be_linear_args *a)
{
    const struct cuda_lt *s = a->w->lt;
    return s && !(s->same && a->t == 1 && s->m >= s->kpad && !(s->bias && a->epilogue == BE_EPI_ADD_F32));
}

void cuda_lt_linear(struct backend *b, const struct be_linear_args *a)
{
    const struct be_weight *w = a->w;
    const struct cuda_lt *s = w->lt;
    bool direct = a->epilogue <= BE_EPI_ADD_F32, bf = w->type == BE_BF16;
    size_t elem = be_dtype_bytes(w->type), fit = b->blas->sums_bytes / ((size_t)s->m * 4);
    struct gemm_job j = {};
    j.wrows = w->wrows;
    j.n = w->glu ? w->n / 2 : w->n;
    j.ld = direct ? j.n : (uint32_t)be_ld(j.n);
    j.epilogue = a->epilogue;
    uint32_t most = direct || fit >= s->rows ? s->rows
                    : fit >= 128             ? (uint32_t)fit / 128 * 128
                                             : (uint32_t)fit;
    CU_ASSERT(most);
    if (s->bias && !LT_TRY(b, cublasLtMatmulDescSetAttribute(s->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                             &w->bias, sizeof w->bias)))
        return;
    for (uint32_t first = 0; first < a->t; first += most) {
        const char *x = static_cast<const char *>(a->x) + (size_t)first * w->kpad * elem;
        j.t = a->t - first < most ? a->t - first : most;
        j.out = static_cast<char *>(a->out) + (size_t)first * j.ld * (direct ? 4 : elem);
        if (!lt__ok(b,
                    lt__multiply(b, s, &s->algo[lt__band(j.t)], w->data, x, j.t,
                                 a->epilogue == BE_EPI_ADD_F32 ? 1.0f : 0.0f,
                                 direct ? static_cast<float *>(j.out) : b->blas->sums),
                    "cublasLtMatmul"))
            return;
        if (direct) continue;
        dim3 blocks(cu_div_up(w->wrows, 512), j.t);
        if (bf) CU_LAUNCH(lt_epilogue_k<true>, blocks, 256, 0, b->stream, j, b->blas->sums, s->m);
        else CU_LAUNCH(lt_epilogue_k<false>, blocks, 256, 0, b->stream, j, b->blas->sums, s->m);
        cuda_launched(b, "linear");
    }
}

/* ---- the check of a shape, with pseudo-random operands */

static __device__ __forceinline__ uint32_t lt_mix(uint32_t h)
{
    h *= 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    return h ^ h >> 13;
}
template <bool BF> __global__ __launch_bounds__(256) void lt_fill_k(void *p, size_t n, uint32_t seed)
{
    for (size_t i = (size_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (size_t)gridDim.x * 256) {
        uint32_t h = lt_mix((uint32_t)i ^ seed);
        cu_act_put<BF>(p, i, (float)((int)(h & 0xffff) - (int)(h >> 16)) * (1.0f / 65536.0f));
    }
}
/* hash[row] of row blockIdx.x: a sum over its words that depends on their places. */
__global__ __launch_bounds__(256) void lt_hash_k(const float *y, uint32_t m, uint64_t *hash)
{
    CU_SHARED(part, uint64_t[256]);
    const float *row = y + (size_t)blockIdx.x * m;
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < m; i += 256)
        sum += (__float_as_uint(row[i]) + 1ull) * ((i + 1) * 0x9e3779b97f4a7c15ull);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (uint32_t i = 1; threadIdx.x == 0 && i < 256; i++) sum += part[i];
    if (threadIdx.x == 0) hash[blockIdx.x] = sum;
}

struct lt_check {
    struct backend *b;
    struct cuda_lt *s;
    char *x;
    void *w;
    float *y, *bias;
    uint64_t *hash, want[LT_ROWS], got[LT_ROWS];
};
static void lt__multiply_own(struct lt_check *c, const char *x, uint32_t rows)
{
    const struct cuda_lt *s = c->s;
    struct gemm_job j = {};
    j.w = c->w;
    j.bias = s->bias ? c->bias : nullptr;
    j.x = x;
    j.out = c->y;
    j.kpad = s->kpad;
    j.wrows = (uint32_t)be_ld(s->m);
    j.n = j.ld = s->m;
    j.t = rows;
    uint32_t width = gemm_width(c->b->act, rows);
    gemm_run<false>(c->b, j, width, cu_div_up(rows, width));
}
/* Hashes of the product of rows [at, at + rows), by our kernels if algo is NULL. False: it can't be
 * calculated so, or a device error. */
static bool lt__hashes(struct lt_check *c, const cublasLtMatmulAlgo_t *algo, uint32_t at, uint32_t rows,
                       uint64_t *out)
{
    struct backend *b = c->b;
    const struct cuda_lt *s = c->s;
    if (!CU_TRY(b, cudaMemsetAsync(c->y, 0xff, (size_t)rows * s->m * 4, b->stream))) return false;
    const char *x = c->x + (size_t)at * s->kpad * be_dtype_bytes(b->act);
    cublasStatus_t st = algo ? lt__multiply(b, s, algo, c->w, x, rows, 0, c->y) : CUBLAS_STATUS_SUCCESS;
    if (!algo) lt__multiply_own(c, x, rows);
    if (st == CUBLAS_STATUS_NOT_SUPPORTED || st == CUBLAS_STATUS_INVALID_VALUE) return false;
    if (!lt__ok(b, st, "cublasLtMatmul")) return false;
    CU_LAUNCH(lt_hash_k, rows, 256, 0, b->stream, c->y, s->m, c->hash);
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
        uint32_t split = 0, scheme = 0;
        size_t bytes;
        (void)cublasLtMatmulAlgoConfigGetAttribute(&got[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                                   sizeof split, &bytes);
        (void)cublasLtMatmulAlgoConfigGetAttribute(&got[i].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                   &scheme, sizeof scheme, &bytes);
        if (got[i].state == CUBLAS_STATUS_SUCCESS && got[i].workspaceSize <= l->work_bytes && split <= 1 &&
            scheme == CUBLASLT_REDUCTION_SCHEME_NONE)
            out[kept++] = got[i].algo;
    }
    return kept;
}
/* Candidates for a band. Where the library would rather split a long sum, its first proposal without that may
 * be of an old family of algorithms, and slow (on an H100 by five times): then first what it proposes for a
 * shorter sum. */
static int lt__candidates(struct lt_check *c, uint32_t band, const cublasLtMatmulAlgo_t *widest,
                          cublasLtMatmulAlgo_t out[2 * LT_PROPOSALS])
{
    const cublasLtMatmulAlgo_t *both[] = {widest, out};
    int32_t family[2] = {0, 0};
    size_t bytes;
    int n = lt__proposals(c, band_asks[band], c->s->kpad, out);
    for (int i = 0; i < 2 && n; i++)
        (void)cublasLtMatmulAlgoConfigGetAttribute(both[i], CUBLASLT_ALGO_CONFIG_ID, &family[i],
                                                   sizeof family[i], &bytes);
    if (c->s->kpad <= LT_SHORT_K || (n && family[0] == family[1])) return n;
    n = lt__proposals(c, band_asks[band], LT_SHORT_K, out);
    return n + lt__proposals(c, band_asks[band], c->s->kpad, out + n);
}
/* With -DLT_TRACE (NVCC_EXTRA): the algorithm of each band, as id:tile,stages,custom,swizzle,cluster. */
static void lt__trace(const struct cuda_lt *s)
{
#if defined(LT_TRACE)
    static const cublasLtMatmulAlgoConfigAttributes_t what[] = {CUBLASLT_ALGO_CONFIG_ID,
                                                                CUBLASLT_ALGO_CONFIG_TILE_ID,
                                                                CUBLASLT_ALGO_CONFIG_STAGES_ID,
                                                                CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
                                                                CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
                                                                CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID};
    fprintf(stderr, "cuBLASLt %ux%u%s%s:", s->m, s->kpad, s->bias ? " with bias" : "",
            s->same ? ", same" : "");
    for (uint32_t band = 0; band <= lt__band(s->rows); band++)
        for (int i = 0; i < 6; i++) {
            uint32_t v = 0;
            size_t bytes;
            (void)cublasLtMatmulAlgoConfigGetAttribute(&s->algo[band], what[i], &v, i < 5 ? 4 : 2, &bytes);
            fprintf(stderr, "%s%u", i == 0 ? " " : i == 1 ? ":" : ",", v);
        }
    fprintf(stderr, "\n");
#else
    (void)s;
#endif
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
        lt__trace(s);
        return true;
    }
    s->refused = count ? "no invariant algorithm" : "no algorithm";
    return false;
}

static bool lt__describe(struct backend *b, struct cuda_lt *s)
{
    const cublasOperation_t t = CUBLAS_OP_T;
    const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const int32_t type = CUDA_R_32F;
    cudaDataType_t act = b->act == BE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    return LT_TRY(b, cublasLtMatmulDescCreate(&s->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
           LT_TRY(b, cublasLtMatmulDescSetAttribute(s->desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t)) &&
           LT_TRY(b, cublasLtMatrixLayoutCreate(&s->w, act, s->kpad, s->m, s->kpad)) &&
           LT_TRY(b, cublasLtMatrixLayoutCreate(&s->x, act, s->kpad, 1, s->kpad)) &&
           LT_TRY(b, cublasLtMatrixLayoutCreate(&s->y, CUDA_R_32F, s->m, 1, s->m)) &&
           (!s->bias || (LT_TRY(b, cublasLtMatmulDescSetAttribute(s->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                                  &epilogue, sizeof epilogue)) &&
                         LT_TRY(b, cublasLtMatmulDescSetAttribute(
                                       s->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type))));
}
/* w: memory of a weight of that shape, overwritten; NULL: the check takes its own. */
static void lt__check(struct backend *b, struct cuda_lt *s, void *w)
{
    struct lt_check *c = static_cast<struct lt_check *>(calloc(1, sizeof *c));
    const bool bf = b->act == BE_BF16;
    const size_t elem = be_dtype_bytes(b->act), x = (size_t)s->rows * s->kpad * elem,
                 y = (size_t)s->rows * s->m * 4, hash = s->rows * sizeof(uint64_t), bias = be_ld(s->m) * 4,
                 weight = be_ld(s->m) * s->kpad, own = w ? 0 : weight * elem;
    void *mem = nullptr;
    if (!c) {
        cuda_check(b, cudaErrorMemoryAllocation, "check of cuBLASLt");
        return;
    }
    c->b = b;
    c->s = s;
    size_t at_y = (x + 255) / 256 * 256, at_hash = at_y + (y + 255) / 256 * 256,
           at_bias = at_hash + (hash + 255) / 256 * 256, at_w = at_bias + (bias + 255) / 256 * 256;
    cudaError_t e = cudaMalloc(&mem, at_w + own);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* our kernels need no check */
        s->refused = "no memory for its check";
    } else if (cuda_check(b, e, "check of cuBLASLt") && lt__describe(b, s)) {
        c->x = static_cast<char *>(mem);
        c->y = reinterpret_cast<float *>(c->x + at_y);
        c->hash = reinterpret_cast<uint64_t *>(c->x + at_hash);
        c->w = w ? w : c->x + at_w;
        void *biases = c->bias = reinterpret_cast<float *>(c->x + at_bias);
        auto fill = bf ? lt_fill_k<true> : lt_fill_k<false>;
        CU_LAUNCH(fill, 256, 256, 0, b->stream, c->w, weight, 1u);
        CU_LAUNCH(fill, 256, 256, 0, b->stream, static_cast<void *>(c->x), x / elem, 2u);
        CU_LAUNCH(lt_fill_k<false>, 64, 256, 0, b->stream, biases, be_ld(s->m), 3u);
        if (cuda_launched(b, "check of cuBLASLt") &&
            (!s->bias || LT_TRY(b, cublasLtMatmulDescSetAttribute(s->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                                  &biases, sizeof biases))) &&
            lt__choose(c))
            for (uint32_t i = 0; i < s->rows; i++)
                b->blas->bits = (b->blas->bits ^ c->want[i]) * 0x100000001b3ull;
    }
    if (mem) (void)cudaFree(mem);
    free(c);
}

const struct cuda_lt *cuda_lt_find(struct backend *b, const struct be_weight *w, bool bias)
{
    struct cuda_blas *l = b->blas;
    uint32_t m = w->glu ? w->wrows : w->n;
    if (!l) return nullptr;
    struct cuda_lt **at = &l->shapes, *s;
    for (; (s = *at) != nullptr; at = &s->next)
        if (s->kpad == w->kpad && s->m == m && s->glu == w->glu && s->bias == bias)
            return s->refused ? nullptr : s;
    *at = s = static_cast<struct cuda_lt *>(calloc(1, sizeof *s));
    if (!s) {
        cuda_check(b, cudaErrorMemoryAllocation, "cuBLASLt");
        return nullptr;
    }
    s->kpad = w->kpad;
    s->m = m;
    s->glu = w->glu;
    s->bias = bias;
    s->rows = m > LT_WIDE ? LT_ROWS_WIDE : l->rows_max;
    if (m % 4) s->refused = "rows not of 16 bytes";
    else lt__check(b, s, w->data);
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
