/* cuBLAS and cuBLASLt in the emulated build: one product over f32 copies of the operands (emu_gemm.cpp), with
 * the argument checks of the real libraries and one they lack: every operand must lie inside one device
 * allocation. Unsupported calls are rejected, never approximated. */
#include "tests/cuda-emulator/emu_rt.h"

using namespace cuemu;

struct CuBlas {
    cudaStream_t stream;
    cublasPointerMode_t mode;
};
struct CuBlasLt {
    int unused;
};
struct CuLtMatmulDesc {
    cublasComputeType_t compute;
    cublasOperation_t ta, tb;
    uint32_t epilogue;
    const void *bias;
    int32_t bias_type; /* -1: D's */
    int32_t mode;
};
struct CuLtLayout {
    cudaDataType_t type;
    cublasLtOrder_t order;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch;
    int64_t stride;
};
struct CuLtPreference {
    uint64_t workspace;
};

namespace
{
size_t type_bytes(cudaDataType t)
{
    return t == CUDA_R_32F || t == CUDA_R_32I ? 4 : t == CUDA_R_8I ? 1 : 2;
}
bool type_known(cudaDataType t)
{
    return t == CUDA_R_32F || t == CUDA_R_16BF || t == CUDA_R_16F;
}
float load(const void *p, cudaDataType t, size_t i)
{
    if (t == CUDA_R_32F) return static_cast<const float *>(p)[i];
    if (t == CUDA_R_16BF) return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
    return __half2float(static_cast<const __half *>(p)[i]);
}
void store(void *p, cudaDataType t, size_t i, float v)
{
    if (t == CUDA_R_32F) {
        static_cast<float *>(p)[i] = v;
    } else if (t == CUDA_R_16BF) {
        static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16(v);
    } else {
        static_cast<__half *>(p)[i] = __float2half(v);
    }
}

/* One matrix of a product: element (i, j) of batch z at z * stride + i * si + j * sj elements. */
struct Operand {
    void *p;
    cudaDataType type;
    size_t rows, cols, si, sj, stride;
    size_t extent(size_t batch) const
    {
        if (!rows || !cols || !batch) return 0;
        return ((batch - 1) * stride + (rows - 1) * si + (cols - 1) * sj + 1) * type_bytes(type);
    }
    void *at(size_t z) const
    {
        return static_cast<char *>(p) + z * stride * type_bytes(type);
    }
};
/* D = epilogue(alpha A B + beta C), A m x k, B k x n, in this orientation already (transposes are strides).
 */
struct Product {
    Operand a, b, c, d;
    size_t m, n, k, batch;
    float alpha, beta;
    uint32_t epilogue;
    const void *bias;
    cudaDataType bias_type;
    size_t parts; /* of k, added in ascending order; 0: one */
};
float epilogue(const Product &g, float v, size_t row)
{
    if (g.epilogue & CUBLASLT_EPILOGUE_BIAS) v += load(g.bias, g.bias_type, row);
    if (g.epilogue & CUBLASLT_EPILOGUE_RELU) v = v > 0 ? v : 0;
    if (g.epilogue & CUBLASLT_EPILOGUE_GELU)
        v = 0.5f * v * (1.0f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));
    return v;
}
void run_product(const Product &g)
{
    std::vector<float> a(g.m * g.k), b(g.n * g.k), sum(g.m * g.n), part(g.parts > 1 ? g.m * g.n : 0);
    for (size_t z = 0; z < g.batch; z++) {
        const void *pa = g.a.at(z), *pb = g.b.at(z);
        for (size_t s = 0, parts = g.parts ? g.parts : 1; s < parts; s++) {
            size_t from = g.k * s / parts, k = g.k * (s + 1) / parts - from;
            for (size_t i = 0; i < g.m; i++)
                for (size_t p = 0; p < k; p++)
                    a[i * k + p] = load(pa, g.a.type, i * g.a.si + (from + p) * g.a.sj);
            for (size_t j = 0; j < g.n; j++)
                for (size_t p = 0; p < k; p++)
                    b[j * k + p] = load(pb, g.b.type, (from + p) * g.b.si + j * g.b.sj);
            gemm_f32(g.m, g.n, k, a.data(), b.data(), (s ? part : sum).data());
            for (size_t i = 0; s && i < sum.size(); i++) sum[i] += part[i];
        }
        for (size_t j = 0; j < g.n; j++)
            for (size_t i = 0; i < g.m; i++) {
                float v = g.alpha * sum[i * g.n + j];
                if (g.beta != 0) v += g.beta * load(g.c.at(z), g.c.type, i * g.c.si + j * g.c.sj);
                store(g.d.at(z), g.d.type, i * g.d.si + j * g.d.sj, epilogue(g, v, i));
            }
    }
    if (opt.uninit) race_host_write(g.d.p, g.d.extent(g.batch));
}
cublasStatus_t enqueue_product(const Product &g, cudaStream_t s, const char *call)
{
    if (!g.m || !g.n || !g.batch) return CUBLAS_STATUS_SUCCESS;
    if (g.k) {
        check_range(call, g.a.p, g.a.extent(g.batch), "A");
        check_range(call, g.b.p, g.b.extent(g.batch), "B");
    }
    if (g.beta != 0) check_range(call, g.c.p, g.c.extent(g.batch), "C");
    check_range(call, g.d.p, g.d.extent(g.batch), "the result");
    if (g.epilogue & CUBLASLT_EPILOGUE_BIAS)
        check_range(call, g.bias, g.m * type_bytes(g.bias_type), "the bias");
    if (reinterpret_cast<uintptr_t>(g.a.p) % 16 || reinterpret_cast<uintptr_t>(g.b.p) % 16)
        fatal("%s: operands should be aligned to 16 bytes (the library falls back to slow kernels otherwise)",
              call);
    stream_push(s, [g] { run_product(g); });
    return CUBLAS_STATUS_SUCCESS;
}
Operand column_major(const void *p, cudaDataType t, bool trans, size_t rows, size_t cols, size_t ld,
                     size_t stride)
{
    return Operand{const_cast<void *>(p), t, rows, cols, trans ? ld : 1, trans ? 1 : ld, stride};
}
bool compute_f32(cublasComputeType_t c)
{
    return c == CUBLAS_COMPUTE_32F || c == CUBLAS_COMPUTE_32F_PEDANTIC || c == CUBLAS_COMPUTE_32F_FAST_TF32;
}
} // namespace

/* ---- cuBLAS */

cublasStatus_t cublasCreate(cublasHandle_t *h)
{
    *h = nullptr;
    if (inject_blas()) return CUBLAS_STATUS_NOT_INITIALIZED;
    *h = new CuBlas{nullptr, CUBLAS_POINTER_MODE_HOST};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t h)
{
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t s)
{
    h->stream = s;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *p, size_t n)
{
    check_range("cublasSetWorkspace", p, n, "the workspace");
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode(cublasHandle_t h, cublasPointerMode_t m)
{
    if (m != CUBLAS_POINTER_MODE_HOST) return CUBLAS_STATUS_NOT_SUPPORTED;
    h->mode = m;
    return CUBLAS_STATUS_SUCCESS;
}
const char *cublasGetStatusString(cublasStatus_t s)
{
    switch (s) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "cuBLAS error";
    }
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
                                          int n, int k, const void *alpha, const void *A, cudaDataType at,
                                          int lda, long long sa, const void *B, cudaDataType bt, int ldb,
                                          long long sb, const void *beta, void *C, cudaDataType ct, int ldc,
                                          long long sc, int batch, cublasComputeType_t compute,
                                          cublasGemmAlgo_t)
{
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (inject_blas()) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (m < 0 || n < 0 || k < 0 || batch < 0 || sa < 0 || sb < 0 || sc < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (lda < 1 || ldb < 1 || ldc < 1 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!compute_f32(compute) || at != bt || (ct != at && ct != CUDA_R_32F) || !type_known(at))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    Product g = {};
    g.m = static_cast<size_t>(m);
    g.n = static_cast<size_t>(n);
    g.k = static_cast<size_t>(k);
    g.batch = static_cast<size_t>(batch);
    memcpy(&g.alpha, alpha, 4);
    memcpy(&g.beta, beta, 4);
    g.a = column_major(A, at, ta, g.m, g.k, static_cast<size_t>(lda), static_cast<size_t>(sa));
    g.b = column_major(B, bt, tb, g.k, g.n, static_cast<size_t>(ldb), static_cast<size_t>(sb));
    g.c = g.d = column_major(C, ct, false, g.m, g.n, static_cast<size_t>(ldc), static_cast<size_t>(sc));
    return enqueue_product(g, h->stream, "cublasGemmEx");
}
cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                            const void *alpha, const void *A, cudaDataType at, int lda, const void *B,
                            cudaDataType bt, int ldb, const void *beta, void *C, cudaDataType ct, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algo)
{
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, A, at, lda, 0, B, bt, ldb, 0, beta, C, ct,
                                      ldc, 0, 1, compute, algo);
}

/* ---- cuBLASLt */

/* Algorithms 0 and 1 add up k in one order, LT_HALVES in two halves - also the same for any number of rows,
 * but with other bits - and LT_VARIES in as many parts as rows leave blocks idle, as stream-K does. The
 * heuristic proposes the last two first, and for few rows of a sum of more than 2,048 terms LT_HALVES alone.
 */
enum { LT_HALVES = 2, LT_VARIES = 3, LT_ALGORITHMS = 4 };
static size_t algo_parts(uint64_t id, size_t rows)
{
    return id == LT_HALVES ? 2 : id == LT_VARIES ? (rows < 8 ? 4 : rows < 500 ? 3 : 2) : 1;
}
/* 0, or 1: the heuristic knows only LT_VARIES. */
static int lt_only_varying;
extern "C" void cuemu_lt_only_varying(int on)
{
    lt_only_varying = on;
}
/* data[0] = 1 + id, data[1 + attribute] = its value */
static bool algo_valid(const cublasLtMatmulAlgo_t *a)
{
    return a->data[0] >= 1 && a->data[0] <= LT_ALGORITHMS;
}
template <class T> static cublasStatus_t take(T *out, const void *buf, size_t n)
{
    if (n != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(out, buf, n);
    return CUBLAS_STATUS_SUCCESS;
}
template <class T> static cublasStatus_t give(T v, void *buf, size_t n, size_t *written)
{
    if (written) *written = sizeof(T);
    if (!n && !buf) return CUBLAS_STATUS_SUCCESS;
    if (n < sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(buf, &v, sizeof(T));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = nullptr;
    if (inject_blas()) return CUBLAS_STATUS_NOT_INITIALIZED;
    *h = new CuBlasLt();
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion()
{
    return 130000;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (!compute_f32(compute) || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    *d = new CuLtMatmulDesc{compute,
                            CUBLAS_OP_N,
                            CUBLAS_OP_N,
                            CUBLASLT_EPILOGUE_DEFAULT,
                            nullptr,
                            -1,
                            CUBLASLT_POINTER_MODE_HOST};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a,
                                              const void *buf, size_t n)
{
    int32_t v;
    switch (a) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
    case CUBLASLT_MATMUL_DESC_TRANSB:
        if (take(&v, buf, n) || v < 0 || v > CUBLAS_OP_C) return CUBLAS_STATUS_INVALID_VALUE;
        (a == CUBLASLT_MATMUL_DESC_TRANSA ? d->ta : d->tb) = static_cast<cublasOperation_t>(v);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(&d->epilogue, buf, n);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(&d->bias, buf, n);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return take(&d->bias_type, buf, n);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return take(&d->mode, buf, n);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    *l = new CuLtLayout{type, CUBLASLT_ORDER_COL, rows, cols, ld, 1, 0};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a,
                                                const void *buf, size_t n)
{
    switch (a) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return take(&l->type, buf, n);
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return take(&l->order, buf, n);
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return take(&l->rows, buf, n);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return take(&l->cols, buf, n);
    case CUBLASLT_MATRIX_LAYOUT_LD: return take(&l->ld, buf, n);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return take(&l->batch, buf, n);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return take(&l->stride, buf, n);
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = new CuLtPreference();
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a, const void *buf,
                                                    size_t n)
{
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return take(&p->workspace, buf, n);
    return CUBLAS_STATUS_SUCCESS; /* hints only */
}
/* The product that the descriptors describe; its pointers are set by the caller. */
static cublasStatus_t lt_product(Product *g, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t la,
                                 cublasLtMatrixLayout_t lb, cublasLtMatrixLayout_t lc,
                                 cublasLtMatrixLayout_t ld)
{
    *g = Product{};
    const uint32_t known = CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_GELU;
    if (d->mode != CUBLASLT_POINTER_MODE_HOST ||
        (d->epilogue != CUBLASLT_EPILOGUE_DEFAULT && d->epilogue & ~known))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (la->type != lb->type || !type_known(la->type) || lc->type != ld->type ||
        (ld->type != la->type && ld->type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (la->batch != ld->batch || lb->batch != ld->batch || lc->batch != ld->batch || ld->batch < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (cublasLtMatrixLayout_t l : {la, lb, lc, ld})
        if (l->ld < static_cast<int64_t>(l->order == CUBLASLT_ORDER_COL ? l->rows : l->cols) || l->ld < 1 ||
            l->stride < 0)
            return CUBLAS_STATUS_INVALID_VALUE;
    auto operand = [](cublasLtMatrixLayout_t l, bool trans) {
        size_t step = static_cast<size_t>(l->ld);
        bool flip = (l->order == CUBLASLT_ORDER_ROW) !=
                    trans; /* a row-major matrix is a transposed column-major one */
        return Operand{
            nullptr,         l->type,         trans ? l->cols : l->rows,     trans ? l->rows : l->cols,
            flip ? step : 1, flip ? 1 : step, static_cast<size_t>(l->stride)};
    };
    g->a = operand(la, d->ta != CUBLAS_OP_N);
    g->b = operand(lb, d->tb != CUBLAS_OP_N);
    g->c = operand(lc, false);
    g->d = operand(ld, false);
    g->m = g->d.rows;
    g->n = g->d.cols;
    g->k = g->a.cols;
    g->batch = static_cast<size_t>(ld->batch);
    if (g->a.rows != g->m || g->b.cols != g->n || g->b.rows != g->k || g->c.rows != g->m || g->c.cols != g->n)
        return CUBLAS_STATUS_INVALID_VALUE;
    g->epilogue = d->epilogue == CUBLASLT_EPILOGUE_DEFAULT ? 0 : d->epilogue;
    g->bias = d->bias;
    g->bias_type = d->bias_type < 0 ? ld->type : static_cast<cudaDataType>(d->bias_type);
    if (g->epilogue & CUBLASLT_EPILOGUE_BIAS &&
        (!type_known(g->bias_type) || ld->order == CUBLASLT_ORDER_ROW))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t, cublasComputeType_t compute, cudaDataType_t,
                                        cudaDataType_t at, cudaDataType_t, cudaDataType_t, cudaDataType_t,
                                        int requested, int ids[], int *returned)
{
    if (!compute_f32(compute) || !type_known(at)) return CUBLAS_STATUS_NOT_SUPPORTED;
    *returned = requested < LT_ALGORITHMS ? requested : LT_ALGORITHMS;
    for (int i = 0; i < *returned; i++) ids[i] = i;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t compute, cudaDataType_t,
                                      cudaDataType_t at, cudaDataType_t, cudaDataType_t, cudaDataType_t,
                                      int id, cublasLtMatmulAlgo_t *algo)
{
    if (!compute_f32(compute) || !type_known(at)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (id < 0 || id >= LT_ALGORITHMS) return CUBLAS_STATUS_INVALID_VALUE;
    memset(algo, 0, sizeof *algo);
    algo->data[0] = static_cast<uint64_t>(id) + 1;
    return CUBLAS_STATUS_SUCCESS;
}
/* data[1] tile, [2] split along K, [3] reduction scheme, [4] swizzling, [5] custom option, [6] stages, [7]
 * inner and cluster shape */
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t a, const void *buf,
                                                    size_t n)
{
    uint32_t v = 0;
    uint16_t shape = 0;
    if (!algo_valid(algo) || a == CUBLASLT_ALGO_CONFIG_ID) return CUBLAS_STATUS_INVALID_VALUE;
    if (a == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || a == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) {
        if (take(&shape, buf, n)) return CUBLAS_STATUS_INVALID_VALUE;
        return CUBLAS_STATUS_SUCCESS;
    }
    if (take(&v, buf, n)) return CUBLAS_STATUS_INVALID_VALUE;
    algo->data[a] = v;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t a, void *buf,
                                                    size_t n, size_t *written)
{
    if (!algo_valid(algo)) return CUBLAS_STATUS_INVALID_VALUE;
    if (a == CUBLASLT_ALGO_CONFIG_ID) return give(static_cast<int32_t>(algo->data[0] - 1), buf, n, written);
    if (a == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || a == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)
        return give(static_cast<uint16_t>(0), buf, n, written);
    uint32_t v = static_cast<uint32_t>(algo->data[a]);
    return give(a == CUBLASLT_ALGO_CONFIG_SPLITK_NUM && !v ? 1u : v, buf, n, written);
}
cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                 cublasLtMatmulAlgoCapAttributes_t a, void *buf, size_t n,
                                                 size_t *written)
{
    if (!algo_valid(algo)) return CUBLAS_STATUS_INVALID_VALUE;
    static const uint32_t ids[] = {
        15, 20, 24}; /* tiles 64x64, 128x128, 256x128 or stages, as far as the emulator cares */
    switch (a) {
    case CUBLASLT_ALGO_CAP_SPLITK_SUPPORT: return give(static_cast<int32_t>(0), buf, n, written);
    case CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK:
    case CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT: return give(0u, buf, n, written);
    case CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX: return give(static_cast<int32_t>(0), buf, n, written);
    case CUBLASLT_ALGO_CAP_TILE_IDS:
    case CUBLASLT_ALGO_CAP_STAGES_IDS: {
        if (written) *written = sizeof ids;
        if (!n) return CUBLAS_STATUS_SUCCESS;
        memcpy(buf, ids, n < sizeof ids ? n : sizeof ids);
        return CUBLAS_STATUS_SUCCESS;
    }
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t A,
                                       cublasLtMatrixLayout_t B, cublasLtMatrixLayout_t C,
                                       cublasLtMatrixLayout_t D, const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    Product g;
    cublasStatus_t st = lt_product(&g, d, A, B, C, D);
    if (!st && (!algo_valid(algo) || algo->data[CUBLASLT_ALGO_CONFIG_SPLITK_NUM] > 1 ||
                algo->data[CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME]))
        st = CUBLAS_STATUS_NOT_SUPPORTED;
    memset(result, 0, sizeof *result);
    result->algo = *algo;
    result->state = st;
    result->wavesCount = 1.0f;
    return st;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                              cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                              cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *returned)
{
    *returned = 0;
    /* Few rows: two halves come first, many: what varies. */
    static const int few[] = {LT_HALVES, 0, 1, LT_VARIES}, many[] = {LT_VARIES, 1, 0, LT_HALVES};
    bool one = lt_only_varying || (D->cols < 200 && A->rows > 2048);
    for (int i = 0; i < (one ? 1 : LT_ALGORITHMS) && *returned < requested; i++) {
        int id = lt_only_varying ? LT_VARIES : D->cols < 200 ? few[i] : many[i];
        cublasLtMatmulAlgo_t algo;
        cublasLtMatmulAlgoInit(h, d->compute, CUDA_R_32F, A->type, B->type, C->type, D->type, id, &algo);
        cublasStatus_t st = cublasLtMatmulAlgoCheck(h, d, A, B, C, D, &algo, &results[*returned]);
        if (st) return st;
        ++*returned;
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t la, const void *B, cublasLtMatrixLayout_t lb,
                              const void *beta, const void *C, cublasLtMatrixLayout_t lc, void *D,
                              cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t s)
{
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (inject_blas()) return CUBLAS_STATUS_EXECUTION_FAILED;
    Product g;
    if (cublasStatus_t st = lt_product(&g, d, la, lb, lc, ld)) return st;
    cublasLtMatmulHeuristicResult_t checked;
    if (algo)
        if (cublasStatus_t st = cublasLtMatmulAlgoCheck(h, d, la, lb, lc, ld, algo, &checked)) return st;
    if (algo) g.parts = algo_parts(algo->data[0] - 1, g.n);
    if (workspace_bytes) check_range("cublasLtMatmul", workspace, workspace_bytes, "the workspace");
    memcpy(&g.alpha, alpha, 4);
    memcpy(&g.beta, beta, 4);
    g.a.p = const_cast<void *>(A);
    g.b.p = const_cast<void *>(B);
    g.c.p = const_cast<void *>(C);
    g.d.p = D;
    return enqueue_product(g, s, "cublasLtMatmul");
}
