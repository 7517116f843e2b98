/* Which algorithms of cuBLASLt are batch-invariant (a row's bits don't depend on its batch), and how fast
 * they are. For the weight shapes of Gemma 3 4B and Qwen3-VL-8B (bf16, f32 sums, output f32 or bf16). Needs a
 * GPU and nvcc alone; scripts/device-check.sh cublaslt builds and runs it. Not a test.
 *
 *   probe_cublaslt [SECONDS]     per shape and output type, default 2
 *
 * Candidates: what the heuristic proposes for each count of rows, then ids, tiles, stages and custom options
 * one after the other; without split-K, reduction, swizzle and workspace. Those that are accepted for every
 * count are timed once with 8 and 512 rows, and the fastest are checked: rows of a batch of 2048 against the
 * same rows as batches of 1, 7, 8, 64 and 513 from several places. An algorithm with no difference is
 * invariant. Algorithms that agree on the whole batch are one class: a product may take another of its class
 * for each count of rows.
 *
 * Times: medians of CUDA events around calls in a row; copies of the weight in turn, 256 MiB at least. */
#include <algorithm>
#include <chrono>
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <map>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>

#define ROWS  2048
#define TRIED 40u /* algorithms of a shape that are checked */
#define SHOWN 4u  /* classes that are printed */
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        int e_ = (int)(call);                                                                                \
        if (e_) {                                                                                            \
            printf("%s: error %d\n", #call, e_);                                                             \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static const struct shape {
    const char *name;
    int k, n;
} shapes[] = {{"gemma3-4b qkv", 2560, 4096},        {"gemma3-4b o", 2048, 2560},
              {"gemma3-4b gate|up", 2560, 20480},   {"gemma3-4b down", 10240, 2560},
              {"qwen3-vl-8b qkv", 4096, 6144},      {"qwen3-vl-8b o", 4096, 4096},
              {"qwen3-vl-8b gate|up", 4096, 24576}, {"qwen3-vl-8b down", 12288, 4096}};
static const int timed[] = {1, 8, 64, 512, ROWS};
#define TIMED 5

__global__ void fill_k(__nv_bfloat16 *p, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = ((uint32_t)i ^ seed) * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        h ^= h >> 13;
        p[i] =
            __float2bfloat16(((float)(h & 0xffff) + (float)(h >> 16) - 65535.0f) / 65536.0f); /* triangular */
    }
}
/* out[0]: words that differ; out[1]: a sum over a's words that depends on their places. */
__global__ void compare_k(const uint16_t *a, const uint16_t *b, size_t n, unsigned long long *out)
{
    unsigned long long differ = 0, sum = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        differ += a[i] != b[i];
        sum += (a[i] + 1ull) * ((i + 1) * 0x9e3779b97f4a7c15ull);
    }
    if (differ) atomicAdd(out, differ);
    atomicAdd(out + 1, sum);
}

struct algo {
    cublasLtMatmulAlgo_t a;
    double quick[2], us[TIMED]; /* quick: of one call with 8 and 512 rows */
    unsigned long long bits;    /* of the whole batch */
    bool same;
};
static cublasLtHandle_t lt;
static cudaStream_t st;
static cudaEvent_t begin, end;

struct product {
    struct shape s;
    cudaDataType_t type;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t lw, lx[ROWS + 1], ly[ROWS + 1]; /* by rows */
    __nv_bfloat16 *w, *x;
    char *y, *z, *work;
    unsigned long long *out;
    size_t copies, size, elem;
};
static bool layouts(product &p, int m)
{
    if (p.lx[m]) return true;
    TRY(cublasLtMatrixLayoutCreate(&p.lx[m], CUDA_R_16BF, (uint64_t)p.s.k, (uint64_t)m, p.s.k));
    TRY(cublasLtMatrixLayoutCreate(&p.ly[m], p.type, (uint64_t)p.s.n, (uint64_t)m, p.s.n));
    return true;
}
/* Rows [at, at + m) of x into y. */
static bool multiply(product &p, const cublasLtMatmulAlgo_t *a, size_t copy, int at, int m, char *y,
                     size_t work)
{
    const float one = 1, zero = 0;
    layouts(p, m);
    return cublasLtMatmul(lt, p.desc, &one, p.w + copy * p.size, p.lw, p.x + (size_t)at * p.s.k, p.lx[m],
                          &zero, y, p.ly[m], y, p.ly[m], a, p.work, work, st) == CUBLAS_STATUS_SUCCESS;
}
/* Microseconds of a call, or 0. */
static double time_of(product &p, const cublasLtMatmulAlgo_t *a, int m, int chunks, size_t work)
{
    std::vector<float> ms;
    size_t calls = chunks == 1 ? 1 : m <= 64 ? std::max<size_t>(p.copies, 20) : std::max<size_t>(p.copies, 4);
    if (!multiply(p, a, 0, 0, m, p.y, work)) return 0;
    for (int r = 0; r < chunks; r++) {
        cudaEventRecord(begin, st);
        for (size_t i = 0; i < calls; i++) multiply(p, a, (i + 1) % p.copies, 0, m, p.y, work);
        cudaEventRecord(end, st);
        if (cudaEventSynchronize(end) != cudaSuccess) return 0;
        float t;
        cudaEventElapsedTime(&t, begin, end);
        ms.push_back(t);
    }
    std::sort(ms.begin(), ms.end());
    return (double)ms[ms.size() / 2] * 1000 / (double)calls;
}
static unsigned long long differing(product &p, const char *a, const char *b, size_t rows,
                                    unsigned long long *sum)
{
    unsigned long long out[2] = {0, 0};
    TRY(cudaMemsetAsync(p.out, 0, sizeof out, st));
    compare_k<<<528, 256, 0, st>>>((const uint16_t *)a, (const uint16_t *)b, rows * p.s.n * p.elem / 2,
                                   p.out);
    TRY(cudaMemcpyAsync(out, p.out, sizeof out, cudaMemcpyDeviceToHost, st));
    TRY(cudaStreamSynchronize(st));
    if (sum) *sum = out[1];
    return out[0];
}
static void check(product &p, algo &c)
{
    static const int cases[][2] = {
        {0, 1},    {5, 1},  {511, 1},   {2047, 1}, {3, 7},      {700, 7}, {8, 8},
        {2040, 8}, {0, 64}, {1000, 64}, {0, 513},  {1500, 513}, {0, 512}}; /* at, rows */
    c.same = multiply(p, &c.a, 0, 0, ROWS, p.y, 0);
    if (c.same) differing(p, p.y, p.y, ROWS, &c.bits);
    for (auto &t : cases)
        c.same = c.same && multiply(p, &c.a, 0, t[0], t[1], p.z, 0) &&
                 !differing(p, p.y + (size_t)t[0] * p.s.n * p.elem, p.z, (size_t)t[1], nullptr);
}

/* ---- candidates */

static void set(cublasLtMatmulAlgo_t &a, cublasLtMatmulAlgoConfigAttributes_t what, uint32_t v)
{
    (void)cublasLtMatmulAlgoConfigSetAttribute(&a, what, &v, sizeof v);
}
static std::string name_of(const cublasLtMatmulAlgo_t &a)
{
    uint32_t v[7] = {};
    const cublasLtMatmulAlgoConfigAttributes_t what[] = {CUBLASLT_ALGO_CONFIG_ID,
                                                         CUBLASLT_ALGO_CONFIG_TILE_ID,
                                                         CUBLASLT_ALGO_CONFIG_STAGES_ID,
                                                         CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
                                                         CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID,
                                                         CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID};
    for (int i = 0; i < 6; i++) { /* the last two are of 16 bits */
        size_t got;
        (void)cublasLtMatmulAlgoConfigGetAttribute(&a, what[i], v + i, i < 4 ? 4 : 2, &got);
    }
    char text[96];
    snprintf(text, sizeof text, "%u:t%u,s%u,c%u,i%u,x%u", v[0], v[1], v[2], v[3], v[4], v[5]);
    return text;
}
static void add(product &p, cublasLtMatmulAlgo_t a, std::map<std::string, algo> &all)
{
    set(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 1);
    set(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_REDUCTION_SCHEME_NONE);
    set(a, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 0);
    std::string name = name_of(a);
    if (all.count(name)) return;
    for (int m : {1, 7, 8, 64, 512, 513, ROWS}) {
        cublasLtMatmulHeuristicResult_t r;
        layouts(p, m);
        if (cublasLtMatmulAlgoCheck(lt, p.desc, p.lw, p.lx[m], p.ly[m], p.ly[m], &a, &r) !=
                CUBLAS_STATUS_SUCCESS ||
            r.workspaceSize)
            return;
    }
    algo c = {};
    c.a = a;
    c.quick[0] = time_of(p, &a, 8, 1, 0);
    c.quick[1] = time_of(p, &a, 512, 1, 0);
    if (c.quick[0] > 0 && c.quick[1] > 0) all[name] = c;
}
static int proposals(product &p, int m, size_t work, cublasLtMatmulHeuristicResult_t *got, int most)
{
    cublasLtMatmulPreference_t pref;
    int count = 0;
    TRY(cublasLtMatmulPreferenceCreate(&pref));
    TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work,
                                             sizeof work));
    layouts(p, m);
    (void)cublasLtMatmulAlgoGetHeuristic(lt, p.desc, p.lw, p.lx[m], p.ly[m], p.ly[m], pref, most, got,
                                         &count);
    cublasLtMatmulPreferenceDestroy(pref);
    return count;
}
static std::vector<uint32_t> ids_of(const cublasLtMatmulAlgo_t &a, cublasLtMatmulAlgoCapAttributes_t what)
{
    uint32_t v[512];
    size_t bytes = 0;
    if (cublasLtMatmulAlgoCapGetAttribute(&a, what, v, sizeof v, &bytes) != CUBLAS_STATUS_SUCCESS || !bytes)
        return {0};
    return std::vector<uint32_t>(v, v + bytes / 4);
}
static void enumerate(product &p, double seconds, std::map<std::string, algo> &all)
{
    int ids[256], count = 0;
    auto t0 = std::chrono::steady_clock::now();
    TRY(cublasLtMatmulAlgoGetIds(lt, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, p.type, p.type,
                                 256, ids, &count));
    std::sort(ids, ids + count, std::greater<int>()); /* the newest first */
    for (int i = 0; i < count; i++) {
        cublasLtMatmulAlgo_t a;
        int32_t customs = 0;
        size_t bytes;
        if (cublasLtMatmulAlgoInit(lt, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, p.type,
                                   p.type, ids[i], &a) != CUBLAS_STATUS_SUCCESS)
            continue;
        (void)cublasLtMatmulAlgoCapGetAttribute(&a, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &customs, 4, &bytes);
        for (uint32_t tile : ids_of(a, CUBLASLT_ALGO_CAP_TILE_IDS))
            for (uint32_t stage : ids_of(a, CUBLASLT_ALGO_CAP_STAGES_IDS))
                for (uint32_t custom = 0; custom <= (uint32_t)customs; custom++) {
                    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count() >
                        seconds)
                        return;
                    set(a, CUBLASLT_ALGO_CONFIG_TILE_ID, tile);
                    set(a, CUBLASLT_ALGO_CONFIG_STAGES_ID, stage);
                    set(a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, custom);
                    add(p, a, all);
                }
    }
}

/* ---- */

static void print_times(product &p, const char *what, const double *us)
{
    printf("  %-44s", what);
    for (int i = 0; i < TIMED; i++) printf(" %9.1f", us[i]);
    printf("   %6.0f GB/s %6.0f TFLOP/s\n", us[0] > 0 ? (double)p.size * 2 / us[0] / 1e3 : 0.0,
           us[TIMED - 1] > 0 ? 2.0 * ROWS * (double)p.size / us[TIMED - 1] / 1e6 : 0.0);
}
/* The fastest at few rows and at many. */
static std::vector<std::string> fastest(const std::map<std::string, algo> &all)
{
    std::vector<std::string> out;
    for (int many = 0; many < 2; many++) {
        std::vector<std::pair<double, std::string>> order;
        for (auto &c : all) order.push_back({c.second.quick[many], c.first});
        std::sort(order.begin(), order.end());
        for (size_t i = 0; i < order.size() && i < TRIED / 2; i++)
            if (std::find(out.begin(), out.end(), order[i].second) == out.end())
                out.push_back(order[i].second);
    }
    return out;
}
struct algo_class {
    double best[TIMED], score;
    std::string which[TIMED];
    size_t count;
    unsigned long long bits;
};
static void report(product &p, std::map<std::string, algo> &all, size_t proposed)
{
    std::map<unsigned long long, algo_class> classes;
    double any[TIMED], least[TIMED];
    size_t same = 0;
    std::vector<std::string> tried = fastest(all);
    for (int i = 0; i < TIMED; i++) least[i] = 1e30;
    for (auto &name : tried) {
        algo &c = all[name];
        check(p, c);
        if (!c.same) continue;
        same++;
        algo_class &g = classes[c.bits];
        g.bits = c.bits;
        g.count++;
        for (int i = 0; i < TIMED; i++) {
            double us = c.us[i] = time_of(p, &c.a, timed[i], 5, 0);
            if (us > 0 && (g.which[i].empty() || us < g.best[i])) g.best[i] = us, g.which[i] = name;
            if (us > 0 && us < least[i]) least[i] = us;
        }
    }
    printf("%s, %d -> %d, %s: %zu algorithms (%zu proposed), %zu checked, %zu invariant, %zu classes\n",
           p.s.name, p.s.k, p.s.n, p.elem == 4 ? "f32" : "bf16", all.size(), proposed, tried.size(), same,
           classes.size());
    for (int i = 0; i < TIMED; i++) {
        cublasLtMatmulHeuristicResult_t r;
        size_t work = (size_t)32 << 20;
        any[i] = proposals(p, timed[i], work, &r, 1) ? time_of(p, &r.algo, timed[i], 5, work) : 0;
    }
    print_times(p, "the heuristic's choice, not invariant", any);
    std::vector<algo_class> order;
    for (auto &g : classes) order.push_back(g.second);
    for (auto &g : order)
        for (int i = 0; i < TIMED; i++) g.score += g.which[i].empty() ? 100 : g.best[i] / least[i];
    std::sort(order.begin(), order.end(),
              [](const algo_class &x, const algo_class &y) { return x.score < y.score; });
    for (size_t c = 0; c < order.size() && c < SHOWN; c++) {
        char text[64];
        snprintf(text, sizeof text, "class %08x of %zu: best of each",
                 (unsigned)(order[c].bits ^ order[c].bits >> 32), order[c].count);
        print_times(p, text, order[c].best);
        for (int i : {0, TIMED - 1})
            print_times(p, ("  " + order[c].which[i]).c_str(), all[order[c].which[i]].us);
    }
    fflush(stdout);
}
static void probe(const shape &s, cudaDataType_t type, double seconds)
{
    static product p;
    const cublasOperation_t t = CUBLAS_OP_T;
    std::map<std::string, algo> all;
    p = {};
    p.s = s;
    p.type = type;
    p.elem = type == CUDA_R_32F ? 4 : 2;
    p.size = (size_t)s.k * s.n;
    p.copies = std::min<size_t>(32, ((size_t)256 << 20) / (p.size * 2) + 2);
    TRY(cublasLtMatmulDescCreate(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY(cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t));
    TRY(cublasLtMatrixLayoutCreate(&p.lw, CUDA_R_16BF, (uint64_t)s.k, (uint64_t)s.n, s.k));
    TRY(cudaMalloc(&p.w, p.size * 2 * p.copies));
    TRY(cudaMalloc(&p.x, (size_t)ROWS * s.k * 2));
    TRY(cudaMalloc(&p.y, (size_t)ROWS * s.n * p.elem));
    TRY(cudaMalloc(&p.z, (size_t)ROWS * s.n * p.elem));
    TRY(cudaMalloc(&p.work, (size_t)32 << 20));
    TRY(cudaMalloc(&p.out, 16));
    for (size_t i = 0; i < p.copies; i++) fill_k<<<528, 256, 0, st>>>(p.w + i * p.size, p.size, 1);
    fill_k<<<528, 256, 0, st>>>(p.x, (size_t)ROWS * s.k, 2);
    TRY(cudaStreamSynchronize(st));
    for (int m : timed) {
        cublasLtMatmulHeuristicResult_t got[16];
        int count = proposals(p, m, 0, got, 16);
        for (int i = 0; i < count; i++) add(p, got[i].algo, all);
    }
    size_t proposed = all.size();
    enumerate(p, seconds, all);
    report(p, all, proposed);
    for (int m = 0; m <= ROWS; m++)
        if (p.lx[m]) cublasLtMatrixLayoutDestroy(p.lx[m]), cublasLtMatrixLayoutDestroy(p.ly[m]);
    cublasLtMatrixLayoutDestroy(p.lw);
    cublasLtMatmulDescDestroy(p.desc);
    for (void *q : {(void *)p.w, (void *)p.x, (void *)p.y, (void *)p.z, (void *)p.work, (void *)p.out})
        cudaFree(q);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 2;
    TRY(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    TRY(cudaEventCreate(&begin));
    TRY(cudaEventCreate(&end));
    TRY(cublasLtCreate(&lt));
    printf("cuBLASLt %zu; microseconds at rows %49s %9d %9d %9d %9d %9d\n", cublasLtGetVersion(), "",
           timed[0], timed[1], timed[2], timed[3], timed[4]);
    for (cudaDataType_t type : {CUDA_R_32F, CUDA_R_16BF})
        for (const shape &s : shapes) probe(s, type, seconds);
    return 0;
}
