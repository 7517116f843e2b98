/* The device's table of backend.h: opening, memory, transfers, errors, ceilings, and the launchers, which
 * check the contract and call the operations. One stream; engine thread. Knows no models or requests.
 *
 * upload copies the caller's data into pinned memory first, so the caller may change it at once; the stream
 * reads it later. download and sync wait. alloc and free don't, if the device has memory pools: an image's
 * memory is allocated and freed between steps. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda_loader.h"

/* ---- errors */

bool cuda_check(struct backend *b, cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return true;
    bool *failed = b->recording ? &b->record_failed : &b->failed;
    if (!*failed) {
        *failed = true;
        snprintf(b->error, sizeof b->error, "CUDA: %s: %s (%s)", what, cudaGetErrorString(e),
                 cudaGetErrorName(e));
    }
    return false;
}

/* ---- open, close, caps */

#if defined(CUEMU)
#define BACKEND_NAME "cuda-host"
#else
#define BACKEND_NAME "cuda"
#endif

/* Room for the splits of decode attention: enough for some tens of rows per layer of a large model. */
#define SCRATCH_PER_SM ((size_t)512 << 10)
#define SCRATCH_MIN    ((size_t)2 << 20)
/* Left free for the driver, graphs and the libraries. */
#define MEMORY_RESERVE ((size_t)256 << 20)

/* NULL if there is a supported device; else what is wrong, in static memory. */
extern "C" const char *be_cuda_probe(void)
{
    static char text[256];
    int count = 0, major = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e == cudaErrorInsufficientDriver) return "the NVIDIA driver is missing or too old for this build";
    if (e != cudaSuccess && e != cudaErrorNoDevice) {
        snprintf(text, sizeof text, "CUDA doesn't start: %s", cudaGetErrorString(e));
        return text;
    }
    if (e == cudaErrorNoDevice || count == 0) return "no NVIDIA GPU is visible";
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess)
        return "the GPU can't be asked";
    return major < 8 ? "the GPU is older than compute capability 8.0" : nullptr;
}

extern "C" void be_cuda_versions(int *driver, int *runtime)
{
    if (cudaDriverGetVersion(driver) != cudaSuccess) *driver = 0;
    if (cudaRuntimeGetVersion(runtime) != cudaSuccess) *runtime = 0;
    (void)cudaGetLastError();
}

/* See be_cuda_devices in cuda_loader.h. */
extern "C" uint32_t be_cuda_list(struct be_cuda_device *out, uint32_t max)
{
    int count = 0;
    uint32_t n = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    for (int i = 0; i < count && n < max; i++) {
        struct cudaDeviceProp p;
        struct be_cuda_device d = {};
        if (cudaSetDevice(i) != cudaSuccess || cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
        snprintf(d.name, sizeof d.name, "%s", p.name);
        d.major = (uint32_t)p.major;
        d.minor = (uint32_t)p.minor;
        d.multiprocessors = (uint32_t)p.multiProcessorCount;
        if (cudaMemGetInfo(&d.memory_free, &d.memory_total) != cudaSuccess) d.memory_total = p.totalGlobalMem;
        out[n++] = d;
    }
    if (count) (void)cudaSetDevice(0);
    (void)cudaGetLastError();
    return n;
}

static void cuda__close(struct backend *b)
{
    if (!b) return;
    if (b->stream) (void)cudaStreamSynchronize(b->stream);
    for (uint32_t i = 0; i < CUDA_STAGES + CUDA_RESULTS; i++) {
        struct cuda_stage *s = &b->stages[i];
        if (s->done) (void)cudaEventDestroy(s->done);
        if (s->host) (void)cudaFreeHost(s->host);
        if (s->dev) (void)cudaFree(s->dev);
    }
    cuda_lt_close(b);
    if (b->scratch) (void)cudaFree(b->scratch);
    if (b->pooled) (void)cudaMemPoolTrimTo(b->pool, 0);
    if (b->stream) (void)cudaStreamDestroy(b->stream);
    free(b);
}

/* Freed memory stays in the pool: the next image gets it without waiting. */
static bool cuda__memory_pool(struct backend *b)
{
    int there = 0;
    uint64_t keep = UINT64_MAX;
    if (!CU_TRY(b, cudaDeviceGetAttribute(&there, cudaDevAttrMemoryPoolsSupported, 0))) return false;
    if (!there) return true;
    b->pooled = true;
    return CU_TRY(b, cudaDeviceGetDefaultMemPool(&b->pool, 0)) &&
           CU_TRY(b, cudaMemPoolSetAttribute(b->pool, cudaMemPoolAttrReleaseThreshold, &keep));
}

static bool cuda__prepare(struct backend *b, bool own_gemm)
{
    struct cudaDeviceProp p;
    size_t room = 0, all = 0;
    if (!CU_TRY(b, cudaSetDevice(0)) || !CU_TRY(b, cudaGetDeviceProperties(&p, 0))) return false;
    b->sms = (uint32_t)p.multiProcessorCount;
    b->cc = (uint32_t)(p.major * 10 + p.minor);
    b->smem_max = p.sharedMemPerBlockOptin;
    if (!CU_TRY(b, cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking)) || !cuda__memory_pool(b))
        return false;
    for (uint32_t i = 0; i < CUDA_STAGES + CUDA_RESULTS; i++) {
        struct cuda_stage *s = &b->stages[i];
        bool result = i >= CUDA_STAGES;
        if (!CU_TRY(b, cudaMallocHost(&s->host, result ? CUDA_RESULT_BYTES : CUDA_STAGE_BYTES)) ||
            (!result && !CU_TRY(b, cudaMalloc(&s->dev, CUDA_STAGE_BYTES))) ||
            !CU_TRY(b, cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming)))
            return false;
    }
    b->scratch_bytes = b->sms * SCRATCH_PER_SM > SCRATCH_MIN ? b->sms * SCRATCH_PER_SM : SCRATCH_MIN;
    if (!CU_TRY(b, cudaMalloc(&b->scratch, b->scratch_bytes))) return false;
    if (!cuda_linear_init(b) || !cuda_experts_init(b) || !cuda_attn_init(b)) return false;
    if (b->cc < 80) return cuda_check(b, cudaErrorNotSupported, "compute capability below 8.0");
    snprintf(b->gemm, sizeof b->gemm, "own kernels");
    cuda_hopper_init(b); /* before cuBLASLt: its self-check packs a weight for our kernels */
    if (b->failed) return false;
    if (!own_gemm && !cuda_lt_open(b)) return false;
    if (!CU_TRY(b, cudaMemGetInfo(&room, &all))) return false;
    b->memory_bytes = room > 2 * MEMORY_RESERVE ? room - MEMORY_RESERVE : room / 2;
    snprintf(b->device, sizeof b->device, "%s, compute capability %d.%d, %u multiprocessors, %zu MiB", p.name,
             p.major, p.minor, b->sms, all >> 20);
    /* Sums may differ between generations of tensor cores. */
#if defined(CUEMU)
    snprintf(b->name, sizeof b->name, "%s", BACKEND_NAME);
#else
    snprintf(b->name, sizeof b->name, "%s-sm%u", BACKEND_NAME, b->cc);
#endif
    if (b->hopper) snprintf(b->name + strlen(b->name), sizeof b->name - strlen(b->name), "-wgmma");
    return !b->failed;
}

static char open_error[512]; /* of the last open() that failed */

static enum be_result cuda__open(const struct be_params *p, struct backend **out)
{
    snprintf(open_error, sizeof open_error, "no such compute type");
    if (p->act != BE_F32 && p->act != BE_BF16) return BE_UNSUPPORTED;
    const char *missing = be_cuda_probe();
    snprintf(open_error, sizeof open_error, "%s", missing ? missing : "out of memory");
    if (missing) return BE_UNSUPPORTED;
    struct backend *b = static_cast<struct backend *>(calloc(1, sizeof *b));
    if (!b) return BE_NOMEM;
    b->act = p->act;
    b->hopper_wanted = p->hopper;
    if (!cuda__prepare(b, p->own_gemm)) {
        snprintf(open_error, sizeof open_error, "%s", b->error);
        cuda__close(b);
        return BE_DEVICE;
    }
    *out = b;
    return BE_OK;
}

static void cuda__caps(const struct backend *b, struct be_caps *out)
{
    struct be_caps c = {};
    c.name = b->name;
    c.device = b->device;
    c.gemm = b->gemm;
    c.memory_bytes = b->memory_bytes;
    c.delta_key_max = cuda_delta_key_max(b);
    *out = c;
}

static const char *cuda__last_error(const struct backend *b)
{
    return b ? b->error : open_error;
}

/* ---- memory and transfers */

static void cuda__free(struct backend *b, void *p)
{
    if (p) CU_TRY(b, b->pooled ? cudaFreeAsync(p, b->stream) : cudaFree(p));
}

static enum be_result cuda__alloc(struct backend *b, size_t bytes, void **out)
{
    void *p = nullptr;
    if (b->failed) return BE_DEVICE;
    size_t take = bytes ? bytes : 1;
    cudaError_t e = bytes > SIZE_MAX / 2 ? cudaErrorMemoryAllocation
                    : b->pooled          ? cudaMallocAsync(&p, take, b->stream)
                                         : cudaMalloc(&p, take);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* that one is the caller's to handle */
        snprintf(b->error, sizeof b->error, "out of device memory: %zu bytes", bytes);
        return BE_NOMEM;
    }
    if (!cuda_check(b, e, "alloc") || (bytes && !CU_TRY(b, cudaMemsetAsync(p, 0, bytes, b->stream)))) {
        cuda__free(b, p);
        return BE_DEVICE;
    }
    *out = p;
    return BE_OK;
}

static void cuda__upload(struct backend *b, void *dst, const void *host, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += CUDA_STAGE_BYTES) {
        size_t n = bytes - at < CUDA_STAGE_BYTES ? bytes - at : CUDA_STAGE_BYTES;
        struct cuda_stage *s = cuda_stage_next(b);
        if (!s) return;
        memcpy(s->host, static_cast<const char *>(host) + at, n);
        CU_TRY(b,
               cudaMemcpyAsync(static_cast<char *>(dst) + at, s->host, n, cudaMemcpyHostToDevice, b->stream));
        cuda_stage_sent(b, s);
    }
}

/* A chunk is in flight while the previous one is copied out of pinned memory. After an error the host gets
 * zeros. */
static void cuda__download(struct backend *b, void *host, const void *src, size_t bytes)
{
    struct cuda_stage *before = nullptr;
    char *to = static_cast<char *>(host);
    size_t before_at = 0, before_n = 0;
    for (size_t at = 0; at < bytes || before; at += CUDA_STAGE_BYTES) {
        struct cuda_stage *s = nullptr;
        size_t n = 0;
        if (at < bytes) {
            n = bytes - at < CUDA_STAGE_BYTES ? bytes - at : CUDA_STAGE_BYTES;
            s = cuda_stage_next(b);
            if (!s || !CU_TRY(b, cudaMemcpyAsync(s->host, static_cast<const char *>(src) + at, n,
                                                 cudaMemcpyDeviceToHost, b->stream)))
                break;
            cuda_stage_sent(b, s);
        }
        if (before) {
            if (!CU_TRY(b, cudaEventSynchronize(before->done))) break;
            memcpy(to + before_at, before->host, before_n);
        }
        before = s;
        before_at = at;
        before_n = n;
    }
    if (b->failed) memset(host, 0, bytes);
}

static void cuda__copy(struct backend *b, void *dst, const void *src, size_t bytes)
{
    if (bytes && !b->failed) CU_TRY(b, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, b->stream));
}

static void cuda__zero(struct backend *b, void *dst, size_t bytes)
{
    if (bytes && !b->failed) CU_TRY(b, cudaMemsetAsync(dst, 0, bytes, b->stream));
}

static enum be_result cuda__sync(struct backend *b)
{
    if (!b->failed) CU_TRY(b, cudaStreamSynchronize(b->stream));
    return b->failed ? BE_DEVICE : BE_OK;
}

static void cuda__download_begin(struct backend *b, const void *src, size_t bytes)
{
    CU_ASSERT(bytes <= CUDA_RESULT_BYTES && b->results_begun - b->results_ended < CUDA_RESULTS);
    struct cuda_stage *s = &b->stages[CUDA_STAGES + b->results_begun++ % CUDA_RESULTS];
    if (!b->failed && CU_TRY(b, cudaMemcpyAsync(s->host, src, bytes, cudaMemcpyDeviceToHost, b->stream)))
        cuda_stage_sent(b, s);
}

static enum be_result cuda__download_end(struct backend *b, void *host, size_t bytes)
{
    CU_ASSERT(b->results_begun != b->results_ended);
    struct cuda_stage *s = &b->stages[CUDA_STAGES + b->results_ended++ % CUDA_RESULTS];
    if (b->failed || !CU_TRY(b, cudaEventSynchronize(s->done))) return BE_DEVICE;
    memcpy(host, s->host, bytes);
    return BE_OK;
}

static size_t cuda__weight_bytes(const struct be_weight *w)
{
    return w->bytes;
}

static size_t cuda__kv_layer_bytes(const struct backend *b, enum be_kv_type type, uint32_t kv_heads,
                                   uint32_t head_dim)
{
    if (type != BE_KV_ACT) return 0;
    if (kv_heads == 0 || kv_heads > 4096 || head_dim == 0 || head_dim % 2 || !cuda_attn_supports(b, head_dim))
        return 0;
    return kv_heads * cuda_kv_head_bytes(b->act, head_dim);
}

/* ---- launchers */

static void cuda__linear(struct backend *b, const struct be_linear_args *a)
{
    CU_ASSERT(a->w && a->w->type == b->act);
    CU_ASSERT((a->epilogue >= BE_EPI_GLU_GELU_TANH) == a->w->glu);
    if (a->t == 0 || b->failed) return;
    CU_ASSERT(a->x && a->out);
    cuda_linear(b, a);
}

static void cuda__embed(struct backend *b, const struct be_embed_args *a)
{
    CU_ASSERT(a->w && a->w->type == b->act && !a->w->glu);
    if (a->t && !b->failed) cuda_embed(b, a);
}

static void cuda__norm(struct backend *b, const struct be_norm_args *a)
{
    CU_ASSERT(a->c > 0 && (a->x || a->residual));
    CU_ASSERT(!a->post_weight || a->x);
    CU_ASSERT(!a->out || a->weight);
    CU_ASSERT(!a->residual_scale || (a->x && a->residual));
    CU_ASSERT(a->out_dtype == BE_F32 || (a->out_dtype == BE_BF16 && !a->out_dense));
    if (a->t && !b->failed) cuda_norm(b, a);
}

static void cuda__rope(struct backend *b, const struct be_rope_args *a)
{
    CU_ASSERT(a->axes == 1 || a->axes == 3);
    if (a->t && a->half && !b->failed) cuda_rope(b, a);
}

static void cuda__check_rows(const struct backend *b, const struct be_rows *r, const struct be_kv *kv,
                             uint32_t heads)
{
    CU_ASSERT(kv->kv_heads > 0 && heads % kv->kv_heads == 0);
    CU_ASSERT(cuda__kv_layer_bytes(b, kv->type, kv->kv_heads, kv->head_dim) > 0);
    CU_ASSERT(kv->layer_offset % 64 == 0);
    CU_ASSERT(r->t == 0 || r->seq_count > 0);
}

static void cuda__qkv(struct backend *b, const struct be_qkv_args *a)
{
    cuda__check_rows(b, a->rows, &a->kv, a->heads);
    CU_ASSERT(!a->cos == !a->sin);
    if (a->rows->t && !b->failed) cuda_qkv(b, a);
}

static void cuda__kv_clear(struct backend *b, const struct be_kv *kv, uint32_t block_offset, uint32_t first)
{
    if (!b->failed) cuda_kv_clear(b, kv, block_offset, first);
}

static void cuda__attn(struct backend *b, const struct be_attn_args *a)
{
    cuda__check_rows(b, a->rows, &a->kv, a->heads);
    if (a->rows->t && !b->failed) cuda_attn(b, a);
}

static void cuda__patchify(struct backend *b, const struct be_patchify_args *a)
{
    CU_ASSERT(a->patch > 0 && a->width >= a->patch && a->height >= a->patch);
    if (a->width && a->height && !b->failed) cuda_patchify(b, a);
}

static void cuda__pool(struct backend *b, const struct be_pool_args *a)
{
    CU_ASSERT(a->kernel > 0 && a->grid_h % a->kernel == 0 && a->grid_w % a->kernel == 0);
    CU_ASSERT(!a->bias == !a->scale);
    if (a->grid_h && a->grid_w && a->c && !b->failed) cuda_pool(b, a);
}

static void cuda__gather(struct backend *b, const struct be_gather_args *a)
{
    if (a->count && a->row_bytes && !b->failed) cuda_gather(b, a);
}

static void cuda__interpolate(struct backend *b, const struct be_interpolate_args *a)
{
    if (a->t && a->c && !b->failed) cuda_interpolate(b, a);
}

static void cuda__pack(struct backend *b, const struct be_pack_args *a)
{
    if (a->t && a->c && !b->failed) cuda_pack(b, a);
}

static void cuda__gate(struct backend *b, const struct be_gate_args *a)
{
    CU_ASSERT(a->x_dtype == BE_F32 || a->x_dtype == b->act);
    CU_ASSERT(a->x_stride >= (size_t)a->heads * a->d);
    if (a->t && a->heads && a->d && !b->failed) cuda_gate(b, a);
}

static void cuda__conv(struct backend *b, const struct be_conv_args *a)
{
    CU_ASSERT(a->k >= 2 && a->k <= BE_CONV_K_MAX && a->stride >= a->c && a->layer_offset % 64 == 0);
    if (a->states->seq_count && a->c && !b->failed) cuda_conv(b, a);
}

static void cuda__delta(struct backend *b, const struct be_delta_args *a)
{
    CU_ASSERT(a->key_heads > 0 && a->value_heads % a->key_heads == 0 && a->layer_offset % 64 == 0);
    CU_ASSERT(a->key_dim > 0 && a->value_dim > 0);
    if (a->states->seq_count && !b->failed) cuda_delta(b, a);
}

static void cuda__clamp(struct backend *b, const struct be_clamp_args *a)
{
    CU_ASSERT(a->x_stride >= a->c && a->out_stride >= (a->pad ? be_ld(a->c) : a->c));
    CU_ASSERT(a->dtype == BE_F32 || a->dtype == BE_BF16);
    if (a->t && a->c && !b->failed) cuda_clamp(b, a);
}

static void cuda__route(struct backend *b, const struct be_route_args *a)
{
    CU_ASSERT(a->k >= 1 && a->k <= a->experts && a->k <= BE_EXPERTS_K_MAX);
    if (a->t && !b->failed) cuda_route(b, a);
}

static void cuda__experts(struct backend *b, const struct be_experts_args *a)
{
    CU_ASSERT(a->k >= 1 && a->k <= BE_EXPERTS_K_MAX && a->c > 0 && a->ff > 0);
    CU_ASSERT(a->gate == BE_EPI_GLU_GELU_TANH || a->gate == BE_EPI_GLU_SILU);
    if (a->t && !b->failed) cuda_experts(b, a);
}

static void cuda__logit_stats(struct backend *b, const struct be_logits_args *a)
{
    CU_ASSERT(a->v > 0);
    if (a->r && !b->failed) cuda_logit_stats(b, a);
}

static void cuda__topk(struct backend *b, const struct be_topk_args *a)
{
    CU_ASSERT(a->k <= a->v && a->k <= BE_TOPK_MAX);
    if (a->r && a->k && !b->failed) cuda_topk(b, a);
}

/* ---- ceilings: the device's own copy over memory far larger than its caches (a byte copied is read once and
 * written once), and cuBLAS on a large square product */

struct ceilings {
    struct backend *b;
    cudaEvent_t begin, end;
    cublasHandle_t blas;
    char *mem; /* two halves of `bytes`, or three matrices of `side` */
    size_t bytes;
    int side;
};

/* Seconds of the fastest of some runs of `work`. */
static double ceil__best(struct ceilings *c, bool (*work)(struct ceilings *))
{
    double best = 1e30;
    for (int i = 0; i < 12; i++) {
        float ms = 0;
        if (!CU_TRY(c->b, cudaEventRecord(c->begin, c->b->stream)) || !work(c) ||
            !CU_TRY(c->b, cudaEventRecord(c->end, c->b->stream)) ||
            !CU_TRY(c->b, cudaEventSynchronize(c->end)) ||
            !CU_TRY(c->b, cudaEventElapsedTime(&ms, c->begin, c->end)))
            return 1e30;
        if (ms > 0 && ms * 1e-3 < best) best = ms * 1e-3;
    }
    return best;
}
static bool ceil__copy(struct ceilings *c)
{
    return CU_TRY(
        c->b, cudaMemcpyAsync(c->mem + c->bytes, c->mem, c->bytes, cudaMemcpyDeviceToDevice, c->b->stream));
}
static bool ceil__product(struct ceilings *c)
{
    bool bf = c->b->act == BE_BF16;
    size_t matrix = (size_t)c->side * (size_t)c->side * (bf ? 2 : 4);
    float one = 1, zero = 0;
    cudaDataType_t type = bf ? CUDA_R_16BF : CUDA_R_32F;
    cublasStatus_t st =
        cublasGemmEx(c->blas, CUBLAS_OP_T, CUBLAS_OP_N, c->side, c->side, c->side, &one, c->mem, type,
                     c->side, c->mem + matrix, type, c->side, &zero, c->mem + 2 * matrix, type, c->side,
                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (st != CUBLAS_STATUS_SUCCESS && !c->b->failed)
        snprintf(c->b->error, sizeof c->b->error, "cuBLAS: %s", cublasGetStatusString(st));
    return st == CUBLAS_STATUS_SUCCESS;
}

static enum be_result cuda__ceiling(struct backend *b, struct be_ceiling *out)
{
    bool large = b->sms >= 16; /* else it is the emulator, where the numbers mean nothing */
    struct ceilings c = {};
    c.b = b;
    c.bytes = large ? (size_t)512 << 20 : (size_t)1 << 20;
    c.side = large ? 8192 : 128;
    void *mem = nullptr;
    enum be_result r = cuda__alloc(b, 2 * c.bytes, &mem);
    if (r != BE_OK) return r;
    c.mem = static_cast<char *>(mem);
    if (CU_TRY(b, cudaEventCreate(&c.begin)) && CU_TRY(b, cudaEventCreate(&c.end)) &&
        cublasCreate(&c.blas) == CUBLAS_STATUS_SUCCESS &&
        cublasSetStream(c.blas, b->stream) == CUBLAS_STATUS_SUCCESS) {
        double n = c.side;
        out->read_bytes_per_s = 2.0 * (double)c.bytes / ceil__best(&c, ceil__copy);
        out->matrix_flops = 2.0 * n * n * n / ceil__best(&c, ceil__product);
    } else {
        r = BE_DEVICE;
        if (!b->failed) snprintf(b->error, sizeof b->error, "cuBLAS can't be opened");
    }
    if (c.blas) (void)cublasDestroy(c.blas);
    if (c.begin) (void)cudaEventDestroy(c.begin);
    if (c.end) (void)cudaEventDestroy(c.end);
    cuda__free(b, mem);
    return b->failed ? BE_DEVICE : r;
}

extern "C" const struct be_ops *CU_BACKEND_ENTRY(void)
{
    static struct be_ops ops;
    ops.open = cuda__open;
    ops.close = cuda__close;
    ops.caps = cuda__caps;
    ops.last_error = cuda__last_error;
    ops.alloc = cuda__alloc;
    ops.free = cuda__free;
    ops.upload = cuda__upload;
    ops.download = cuda__download;
    ops.copy = cuda__copy;
    ops.zero = cuda__zero;
    ops.sync = cuda__sync;
    ops.download_begin = cuda__download_begin;
    ops.download_end = cuda__download_end;
    ops.weight_pack = cuda_weight_pack;
    ops.weight_free = cuda_weight_free;
    ops.weight_bytes = cuda__weight_bytes;
    ops.kv_layer_bytes = cuda__kv_layer_bytes;
    ops.kv_clear = cuda__kv_clear;
    ops.linear = cuda__linear;
    ops.embed = cuda__embed;
    ops.norm = cuda__norm;
    ops.rope = cuda__rope;
    ops.qkv = cuda__qkv;
    ops.attn = cuda__attn;
    ops.patchify = cuda__patchify;
    ops.pool = cuda__pool;
    ops.gather = cuda__gather;
    ops.interpolate = cuda__interpolate;
    ops.pack = cuda__pack;
    ops.gate = cuda__gate;
    ops.conv = cuda__conv;
    ops.delta = cuda__delta;
    ops.clamp = cuda__clamp;
    ops.route = cuda__route;
    ops.experts_scratch = cuda_experts_scratch;
    ops.experts = cuda__experts;
    ops.logit_stats = cuda__logit_stats;
    ops.topk = cuda__topk;
    ops.take_ids = cuda_take_ids;
    ops.ceiling = cuda__ceiling;
    ops.graph_begin = cuda_graph_begin;
    ops.graph_end = cuda_graph_end;
    ops.graph_launch = cuda_graph_launch;
    ops.graph_free = cuda_graph_free;
    return &ops;
}
