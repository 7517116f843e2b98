/* Packing a weight: the source is copied unchanged to the device, in chunks, through pinned memory; a kernel
 * converts each element and stores it in the layout of struct be_weight. The call returns as soon as the
 * source has been read. */
#include "kernels/cuda/internal.h"

/* ---- stages */

struct cuda_stage *cuda_stage_next(struct backend *b)
{
    struct cuda_stage *s = &b->stages[b->stage_next++ % CUDA_STAGES];
    if (b->failed) return nullptr;
    if (!s->used) return s;
    cudaError_t e = cudaEventQuery(s->done); /* usually it was read long ago */
    if (e == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* that is no error */
        e = cudaEventSynchronize(s->done);
    }
    return cuda_check(b, e, "waiting for a copy") ? s : nullptr;
}

void cuda_stage_sent(struct backend *b, struct cuda_stage *s)
{
    s->used = CU_TRY(b, cudaEventRecord(s->done, b->stream));
}

/* ---- one chunk: elements [first, first + count) of a part's source, in its order */

struct pack_job {
    const void *src; /* the chunk */
    void *dst;
    size_t first, count;
    uint32_t n, k, kpad; /* of the part */
    uint32_t row0;       /* output of the part's first row */
    uint32_t glu_part;   /* glu: 0 gate, 1 up */
    uint32_t atoms;      /* of the weight */
    bool glu, transposed;
};

/* Stores element i of the chunk. */
static __device__ __forceinline__ size_t pack_place(const struct pack_job &j, size_t i)
{
    size_t at = j.first + i;
    uint32_t row = (uint32_t)(j.transposed ? at % j.n : at / j.k),
             k = (uint32_t)(j.transposed ? at / j.n : at % j.k);
    uint32_t to = j.glu ? row / 8 * 16 + j.glu_part * 8 + row % 8 : j.row0 + row;
    return j.atoms ? cu_tiled_at(to, k, j.atoms) : (size_t)to * j.kpad + k;
}

template <class SRC> static __device__ __forceinline__ float pack_value(SRC v);
template <> __device__ __forceinline__ float pack_value<float>(float v)
{
    return v;
}
template <> __device__ __forceinline__ float pack_value<__half>(__half v)
{
    return __half2float(v);
}
template <> __device__ __forceinline__ float pack_value<uint16_t>(uint16_t v)
{
    return cu_bf16_value(v);
}

template <class SRC, bool BF> __global__ __launch_bounds__(256) void pack_weight_k(pack_job j)
{
    for (size_t i = (size_t)blockIdx.x * 256 + threadIdx.x; i < j.count; i += (size_t)gridDim.x * 256) {
        SRC v = static_cast<const SRC *>(j.src)[i];
        cu_act_put<BF>(j.dst, pack_place(j, i), pack_value(v));
    }
}

/* bf16 to bf16: no conversion, so NaN payloads are kept. */
__global__ __launch_bounds__(256) void pack_weight_same_k(pack_job j)
{
    for (size_t i = (size_t)blockIdx.x * 256 + threadIdx.x; i < j.count; i += (size_t)gridDim.x * 256) {
        static_cast<uint16_t *>(j.dst)[pack_place(j, i)] = static_cast<const uint16_t *>(j.src)[i];
    }
}

static void pack__chunk(struct backend *b, enum be_dtype src, const struct pack_job &j)
{
    uint32_t blocks = cu_div_up(j.count, 256 * 8);
    bool bf = b->act == BE_BF16;
    if (src == BE_F32 && bf) CU_LAUNCH((pack_weight_k<float, true>), blocks, 256, 0, b->stream, j);
    else if (src == BE_F32) CU_LAUNCH((pack_weight_k<float, false>), blocks, 256, 0, b->stream, j);
    else if (src == BE_F16 && bf) CU_LAUNCH((pack_weight_k<__half, true>), blocks, 256, 0, b->stream, j);
    else if (src == BE_F16) CU_LAUNCH((pack_weight_k<__half, false>), blocks, 256, 0, b->stream, j);
    else if (bf) CU_LAUNCH(pack_weight_same_k, blocks, 256, 0, b->stream, j);
    else CU_LAUNCH((pack_weight_k<uint16_t, false>), blocks, 256, 0, b->stream, j);
    cuda_launched(b, "weight_pack");
}

static void pack__part(struct backend *b, const struct be_weight_desc *d, uint32_t part, struct be_weight *w)
{
    const struct be_weight_src *s = &d->src[part];
    size_t elem = be_dtype_bytes(s->dtype), all = (size_t)s->n * d->k, chunk = CUDA_STAGE_BYTES / elem;
    struct pack_job j = {};
    j.dst = w->data;
    j.n = s->n;
    j.k = d->k;
    j.kpad = w->kpad;
    j.glu = d->glu;
    j.glu_part = part;
    j.atoms = w->atoms;
    j.transposed = s->transposed;
    for (uint32_t i = 0; i < part; i++) j.row0 += d->src[i].n;
    for (j.first = 0; j.first < all; j.first += chunk) {
        struct cuda_stage *stage = cuda_stage_next(b);
        if (!stage) return;
        j.count = all - j.first < chunk ? all - j.first : chunk;
        j.src = stage->dev;
        memcpy(stage->host, static_cast<const char *>(s->data) + j.first * elem, j.count * elem);
        CU_TRY(b,
               cudaMemcpyAsync(stage->dev, stage->host, j.count * elem, cudaMemcpyHostToDevice, b->stream));
        pack__chunk(b, s->dtype, j);
        cuda_stage_sent(b, stage);
    }
}

/* Bias in row order: through a stage, as many as fit at a time. */
static void pack__bias(struct backend *b, const struct be_weight_desc *d, struct be_weight *w)
{
    uint32_t chunk = (uint32_t)(CUDA_STAGE_BYTES / sizeof(float));
    for (uint32_t first = 0; first < w->wrows; first += chunk) {
        struct cuda_stage *stage = cuda_stage_next(b);
        if (!stage) return;
        float *to = static_cast<float *>(stage->host);
        uint32_t count = w->wrows - first < chunk ? w->wrows - first : chunk;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t row = first + i, out = w->glu ? row / 16 * 8 + row % 8 : row,
                     n = w->glu ? w->n / 2 : w->n;
            to[i] = out < n ? d->bias[out + (w->glu && row % 16 >= 8 ? n : 0)] : 0.0f;
        }
        CU_TRY(b, cudaMemcpyAsync(w->bias + first, to, count * sizeof(float), cudaMemcpyHostToDevice,
                                  b->stream));
        cuda_stage_sent(b, stage);
    }
}

/* ---- memory of the data. The device hands out large memory in units of 2 MB, a third of an expert's 3 or 6
 * MB; so weights of such sizes are packed into slabs. A slab is freed with its last weight. */

#define SLAB_BYTES ((size_t)256 << 20)
#define SLAB_FROM  ((size_t)1 << 20)
#define SLAB_TO    ((size_t)32 << 20)

struct cuda_slab {
    char *mem;
    size_t used;
    uint32_t weights;
};

static bool pack__malloc(struct backend *b, void **p, size_t bytes)
{
    *p = nullptr;
    if (b->failed) return false;
    cudaError_t e = cudaMalloc(p, bytes);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* that one is the caller's to handle */
        snprintf(b->error, sizeof b->error, "out of device memory: a weight of %zu bytes", bytes);
        return false;
    }
    return cuda_check(b, e, "cudaMalloc");
}

static bool pack__alloc_data(struct backend *b, struct be_weight *w, size_t bytes)
{
    if (bytes < SLAB_FROM || bytes > SLAB_TO) return pack__malloc(b, &w->data, bytes);
    if (!b->slab || SLAB_BYTES - b->slab->used < bytes) {
        struct cuda_slab *s = static_cast<struct cuda_slab *>(calloc(1, sizeof *s));
        void *mem = nullptr;
        if (!s || !pack__malloc(b, &mem, SLAB_BYTES)) {
            free(s);
            return !b->failed && pack__malloc(b, &w->data, bytes); /* this one alone may fit */
        }
        s->mem = static_cast<char *>(mem);
        b->slab = s; /* the previous one now belongs to its weights alone */
    }
    w->slab = b->slab;
    w->slab->weights++;
    w->data = w->slab->mem + w->slab->used;
    w->slab->used += (bytes + 255) / 256 * 256;
    return true;
}

static bool pack__valid(const struct backend *b, const struct be_weight_desc *d, uint64_t *n)
{
    if (d->k == 0 || d->src_count < 1 || d->src_count > 3) return false;
    if (d->glu && (d->src_count != 2 || d->src[0].n != d->src[1].n)) return false;
    *n = 0;
    for (uint32_t s = 0; s < d->src_count; s++) {
        if (d->src[s].n == 0 || d->src[s].quants) return false;
        *n += d->src[s].n;
    }
    return *n < UINT32_MAX - 128 && d->k < UINT32_MAX - 256 && (b->act == BE_F32 || b->act == BE_BF16);
}

enum be_result cuda_weight_pack(struct backend *b, const struct be_weight_desc *d, struct be_weight **out)
{
    uint64_t n;
    if (!pack__valid(b, d, &n)) {
        snprintf(b->error, sizeof b->error, "weight of %u inputs and %u parts is not supported", d->k,
                 d->src_count);
        return BE_UNSUPPORTED;
    }
    struct be_weight *w = static_cast<struct be_weight *>(calloc(1, sizeof *w));
    if (!w) return BE_NOMEM;
    w->type = b->act;
    w->k = d->k;
    w->kpad = (uint32_t)be_ld(d->k);
    w->n = (uint32_t)n;
    w->glu = d->glu;
    w->wrows = (uint32_t)(d->glu ? 2 * be_ld(n / 2) : be_ld(n));
    uint32_t atoms = b->hopper ? 2 * cu_div_up(d->k, 128) : 0; /* needs more memory than cuBLASLt's layout */
    size_t data = (size_t)w->wrows * (atoms ? atoms * 64 : w->kpad) * be_dtype_bytes(w->type),
           bias = d->bias ? w->wrows * sizeof(float) : 0;
    void *p = nullptr;
    w->bytes = data + bias;
    if ((bias && !pack__malloc(b, &p, bias)) ||
        (w->bias = static_cast<float *>(p), !pack__alloc_data(b, w, data))) {
        w->bias = static_cast<float *>(p);
        cuda_weight_free(b, w);
        return b->failed ? BE_DEVICE : BE_NOMEM;
    }
    if (!d->grouped) w->lt = cuda_lt_find(b, w);
    if (!w->lt) w->atoms = atoms;
    CU_TRY(b, cudaMemsetAsync(w->data, 0, data, b->stream));
    for (uint32_t s = 0; s < d->src_count && d->src[0].data; s++) pack__part(b, d, s, w);
    if (bias && d->src[0].data) pack__bias(b, d, w);
    if (b->failed) {
        cuda_weight_free(b, w);
        return BE_DEVICE;
    }
    *out = w;
    return BE_OK;
}

/* Freeing device memory waits for running kernels, so none loses memory that it reads. The part of a slab is
 * not reused. */
void cuda_weight_free(struct backend *b, struct be_weight *w)
{
    if (!w) return;
    if (w->slab) {
        struct cuda_slab *s = w->slab;
        if (--s->weights == 0) {
            if (b->slab == s) b->slab = nullptr;
            (void)cudaFree(s->mem);
            free(s);
        }
    } else if (w->data) {
        (void)cudaFree(w->data);
    }
    if (w->bias) (void)cudaFree(w->bias);
    free(w);
}
