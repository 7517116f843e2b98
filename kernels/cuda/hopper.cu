/* Choosing the Hopper path (gemm_sm90.cu, attn_sm90.cu) when a backend opens: bf16 on compute capability 9.0,
 * and only if be_params.hopper requests it: on an H100 it is faster in prefill, and slower in attention of
 * decode with many sequences (tests/device-results.md).
 *
 * The self-check: products and attention over small integers, whose results are known exactly, through every
 * kernel. Waits are bounded, so that a bug in the barriers ends the check, not the process. On failure the
 * portable kernels are used, with a line on stderr. */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/gemm_sm90.cuh"

struct check {
    struct backend *b;
    unsigned char *mem; /* device */
    size_t used;
    uint32_t *trouble; /* device: 0 while no wait took too long */
    bool late;         /* its value at the last download */
    uint32_t seed;
};
#define CHECK_BYTES ((size_t)8 << 20)
#define TEXT_(x)    #x
#define TEXT(x)     TEXT_(x)
#define LATE(what)  "a wait of its " what " took longer than " TEXT(CU_WAIT_CHECK_S) " s"

/* A small integer of -range..range. */
static int check__int(struct check *c, int range)
{
    c->seed = c->seed * 1664525u + 1013904223u;
    return (int)(c->seed >> 16) % (2 * range + 1) - range;
}
static uint16_t check__bf16(int v) /* exact for |v| <= 256 */
{
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}
static void *check__place(struct check *c, size_t bytes)
{
    void *p = c->mem + c->used;
    c->used += (bytes + 255) / 256 * 256;
    CU_ASSERT(c->used <= CHECK_BYTES);
    return p;
}
static void *check__upload(struct check *c, const void *host, size_t bytes)
{
    void *p = check__place(c, bytes);
    CU_TRY(c->b, cudaMemcpyAsync(p, host, bytes, cudaMemcpyHostToDevice, c->b->stream));
    CU_TRY(c->b, cudaStreamSynchronize(c->b->stream)); /* the host memory can be reused */
    return p;
}
/* Waits too. False after an error, or when a wait took too long. */
static bool check__download(struct check *c, void *host, const void *dev, size_t bytes)
{
    uint32_t trouble = 0;
    bool ok = CU_TRY(c->b, cudaMemcpyAsync(host, dev, bytes, cudaMemcpyDeviceToHost, c->b->stream)) &&
              CU_TRY(c->b, cudaMemcpyAsync(&trouble, c->trouble, sizeof trouble, cudaMemcpyDeviceToHost,
                                           c->b->stream)) &&
              CU_TRY(c->b, cudaStreamSynchronize(c->b->stream));
    c->late = trouble != 0;
    return ok && !c->late;
}

/* ---- products */

#define CHECK_K 328u /* neither a multiple of a stage nor of a row's padding */
#define CHECK_N 200u
#define CHECK_T 130u

struct check_product {
    struct be_weight *w;
    float *weight, *want, *got; /* [N][K], [T][N] */
    uint16_t *x;                /* [T][be_ld(K)] */
};

/* out[place] for each of `count` rows is row from[place] of the product, in every bit. */
static bool check__same(struct check *c, const struct check_product *p, const float *out,
                        const uint32_t *from, uint32_t count)
{
    if (!check__download(c, p->got, out, (size_t)count * CHECK_N * sizeof(float))) return false;
    for (uint32_t i = 0; i < count; i++)
        if (memcmp(p->got + (size_t)i * CHECK_N, p->want + (size_t)(from ? from[i] : i) * CHECK_N,
                   CHECK_N * sizeof(float)) != 0)
            return false;
    return true;
}
static struct gemm_job check__job(const struct check_product *p, const void *x, float *out)
{
    struct gemm_job j = {};
    j.w = p->w->data;
    j.x = x;
    j.out = out;
    j.kpad = p->w->kpad;
    j.wrows = p->w->wrows;
    j.n = j.ld = CHECK_N;
    j.epilogue = BE_EPI_F32;
    return j;
}
static bool check__dense(struct check *c, const struct check_product *p, const void *x, float *out)
{
    static const uint32_t counts[][2] = {{8, 1},   {8, 11},        {32, 33},
                                         {64, 70}, {128, CHECK_T}, {256, CHECK_T}}; /* width, tokens */
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint32_t width = counts[i][0], t = counts[i][1];
        struct gemm_job j = check__job(p, x, out);
        j.t = t;
        CU_TRY(c->b, cudaMemsetAsync(out, 0xff, (size_t)t * CHECK_N * sizeof(float), c->b->stream));
        cuda_gemm_sm90(c->b, j, width, cu_div_up(t, width), false, c->trouble);
        if (!check__same(c, p, out, nullptr, t)) return false;
    }
    return true;
}
/* Two experts with the same weight; two pairs to a row, in a mixed order. */
static bool check__grouped(struct check *c, const struct check_product *p, const void *x, float *out)
{
    static const uint32_t widths[] = {8, 32, 64, 128};
    const uint32_t pairs = 2 * CHECK_T, first[3] = {0, pairs / 3, pairs};
    uint32_t sorted[2 * CHECK_T], from[2 * CHECK_T];
    for (uint32_t i = 0; i < pairs; i++) {
        sorted[i] = i * 7 % pairs; /* 7 and 260 have no common divisor */
        from[i] = sorted[i] / 2;
    }
    struct gemm_expert experts[2] = {{p->w->data, nullptr}, {p->w->data, nullptr}};
    const void *d_experts = check__upload(c, experts, sizeof experts),
               *d_first = check__upload(c, first, sizeof first),
               *d_sorted = check__upload(c, sorted, sizeof sorted);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        uint32_t w = widths[i], tile[3] = {0, cu_div_up(first[1], w),
                                           cu_div_up(first[1], w) + cu_div_up(pairs - first[1], w)};
        struct gemm_job j = check__job(p, x, out);
        j.experts = static_cast<const struct gemm_expert *>(d_experts);
        j.first = static_cast<const uint32_t *>(d_first);
        j.pairs = static_cast<const uint32_t *>(d_sorted);
        j.tile = static_cast<const uint32_t *>(check__upload(c, tile, sizeof tile));
        j.expert_count = 2;
        j.per_row = 2;
        CU_TRY(c->b, cudaMemsetAsync(out, 0xff, (size_t)pairs * CHECK_N * sizeof(float), c->b->stream));
        cuda_gemm_sm90(c->b, j, w, tile[2] + 1, true, c->trouble); /* one tile more than exists */
        if (!check__same(c, p, out, from, pairs)) return false;
    }
    return true;
}
static bool check__products_in(struct check *c, struct check_product *p)
{
    const uint32_t ld = (uint32_t)be_ld(CHECK_K);
    for (size_t i = 0; i < (size_t)CHECK_N * CHECK_K; i++) p->weight[i] = (float)check__int(c, 8);
    for (size_t i = 0; i < (size_t)CHECK_T * CHECK_K; i++)
        p->x[i / CHECK_K * ld + i % CHECK_K] = check__bf16(check__int(c, 8));
    for (uint32_t t = 0; t < CHECK_T; t++)
        for (uint32_t n = 0; n < CHECK_N; n++) {
            float sum = 0; /* below 2^24: exact in any order */
            for (uint32_t k = 0; k < CHECK_K; k++) {
                uint32_t u = (uint32_t)p->x[t * ld + k] << 16;
                float v;
                memcpy(&v, &u, 4);
                sum += v * p->weight[n * CHECK_K + k];
            }
            p->want[t * CHECK_N + n] = sum;
        }
    struct be_weight_desc d = {};
    d.k = CHECK_K;
    d.src_count = 1;
    d.src[0].data = p->weight;
    d.src[0].dtype = BE_F32;
    d.src[0].n = CHECK_N;
    if (cuda_weight_pack(c->b, &d, &p->w) != BE_OK) return false;
    const void *x = check__upload(c, p->x, (size_t)CHECK_T * ld * sizeof *p->x);
    float *out = static_cast<float *>(check__place(c, (size_t)2 * CHECK_T * CHECK_N * sizeof(float)));
    return check__dense(c, p, x, out) && check__grouped(c, p, x, out);
}
static bool check__products(struct check *c)
{
    struct check_product p = {};
    p.weight = static_cast<float *>(calloc((size_t)CHECK_N * CHECK_K, sizeof(float)));
    p.want = static_cast<float *>(calloc((size_t)CHECK_T * CHECK_N, sizeof(float)));
    p.got = static_cast<float *>(calloc((size_t)2 * CHECK_T * CHECK_N, sizeof(float)));
    p.x = static_cast<uint16_t *>(calloc((size_t)CHECK_T * be_ld(CHECK_K), sizeof(uint16_t)));
    bool ok = p.weight && p.want && p.got && p.x && check__products_in(c, &p);
    cuda_weight_free(c->b, p.w);
    free(p.weight);
    free(p.want);
    free(p.got);
    free(p.x);
    return ok;
}

/* ---- attention: keys are rows of +-1, a query equals its target key, and the scale is so large that every
 * other key's probability is zero. So the output is that key's value. */

#define CHECK_BLOCKS 19u /* of keys: more than one split */
#define CHECK_ROWS   35u
#define CHECK_PER_KV 2u

struct check_attention {
    uint32_t d;
    uint16_t *kv, *q, *out; /* [block][K | V][32][d], [rows][2][d], [rows][2 d, padded] */
    uint32_t table[CHECK_BLOCKS], target[CHECK_ROWS][CHECK_PER_KV]; /* table: in units of the arena */
    uint32_t lo[CHECK_ROWS], hi[CHECK_ROWS];
};

static void check__fill(struct check *c, struct check_attention *a)
{
    const uint32_t d = a->d, block = 2 * CUDA_KV_SLOTS * d, keys = CHECK_BLOCKS * CUDA_KV_SLOTS;
    for (uint32_t i = 0; i < CHECK_BLOCKS; i++) {
        uint32_t at = i * 7 % CHECK_BLOCKS; /* blocks are in a mixed order */
        a->table[i] = at * block * 2 / BE_KV_GRAIN;
        for (uint32_t e = 0; e < block; e++)
            a->kv[(size_t)at * block + e] =
                check__bf16(e < block / 2 ? check__int(c, 50) > 0 ? 1 : -1 : check__int(c, 100));
    }
    for (uint32_t t = 0; t < CHECK_ROWS; t++) {
        a->lo[t] = t % 3 ? 0 : t * 9;
        a->hi[t] = t % 2 ? keys - 1 - t : 530 + t % 16;
        for (uint32_t h = 0; h < CHECK_PER_KV; h++) {
            uint32_t key = a->lo[t] + (t * 61 + h * 97) % (a->hi[t] - a->lo[t] + 1);
            a->target[t][h] = key;
            memcpy(a->q + ((size_t)t * CHECK_PER_KV + h) * d,
                   a->kv + (size_t)a->table[key / CUDA_KV_SLOTS] * BE_KV_GRAIN / 2 +
                       (size_t)(key % CUDA_KV_SLOTS) * d,
                   d * 2);
        }
    }
}
static bool check__attention_in(struct check *c, struct check_attention *a)
{
    const uint32_t d = a->d, ld = (uint32_t)be_ld((size_t)CHECK_PER_KV * d), ends[2] = {0, CHECK_ROWS},
                   zero = 0;
    const size_t kv = (size_t)CHECK_BLOCKS * 2 * CUDA_KV_SLOTS * d * 2,
                 q = (size_t)CHECK_ROWS * CHECK_PER_KV * d * 2, out = (size_t)CHECK_ROWS * ld * 2;
    struct attn_job j = {};
    check__fill(c, a);
    j.kv.arena = check__upload(c, a->kv, kv);
    j.kv.kv_heads = 1;
    j.kv.head_dim = j.dpad = d;
    j.head_bytes = cuda_kv_head_bytes(BE_BF16, d);
    j.q = check__upload(c, a->q, q);
    j.heads = j.per_kv = CHECK_PER_KV;
    j.ld = ld;
    j.scale = 64;
    j.part = static_cast<float *>(c->b->scratch);
    j.rows.t = CHECK_ROWS;
    j.rows.seq_count = 1;
    j.rows.seq_row = static_cast<const uint32_t *>(check__upload(c, ends, sizeof ends));
    j.rows.seq_table = static_cast<const uint32_t *>(check__upload(c, &zero, sizeof zero));
    j.rows.tables = static_cast<const uint32_t *>(check__upload(c, a->table, sizeof a->table));
    j.rows.lo = static_cast<const uint32_t *>(check__upload(c, a->lo, sizeof a->lo));
    j.rows.hi = static_cast<const uint32_t *>(check__upload(c, a->hi, sizeof a->hi));
    j.out = check__place(c, out);
    for (int whole = 0; whole < 2; whole++) {
        CU_TRY(c->b, cudaMemsetAsync(j.out, 0xff, out, c->b->stream));
        cuda_attn_sm90(c->b, j, whole, c->trouble);
        if (!check__download(c, a->out, j.out, out)) return false;
        for (uint32_t t = 0; t < CHECK_ROWS; t++)
            for (uint32_t h = 0; h < CHECK_PER_KV; h++) {
                uint32_t key = a->target[t][h];
                const uint16_t *v = a->kv + (size_t)a->table[key / CUDA_KV_SLOTS] * BE_KV_GRAIN / 2 +
                                    (size_t)(CUDA_KV_SLOTS + key % CUDA_KV_SLOTS) * d;
                if (memcmp(a->out + (size_t)t * ld + h * d, v, d * 2) != 0) return false;
            }
    }
    return true;
}
static bool check__attention(struct check *c, uint32_t d)
{
    struct check_attention a = {};
    a.d = d;
    a.kv = static_cast<uint16_t *>(calloc((size_t)CHECK_BLOCKS * 2 * CUDA_KV_SLOTS * d, 2));
    a.q = static_cast<uint16_t *>(calloc((size_t)CHECK_ROWS * CHECK_PER_KV * d, 2));
    a.out = static_cast<uint16_t *>(calloc((size_t)CHECK_ROWS * be_ld((size_t)CHECK_PER_KV * d), 2));
    bool ok = a.kv && a.q && a.out && check__attention_in(c, &a);
    free(a.kv);
    free(a.q);
    free(a.out);
    return ok;
}

/* ---- */

/* NULL if all is right, else what is wrong. */
static const char *hopper__check(struct backend *b)
{
    static const uint32_t dims[] = {64, 96, 128, 256, 512};
    struct check c = {};
    void *mem = nullptr;
    const char *wrong = nullptr;
    c.b = b;
    c.seed = 1;
    if (!CU_TRY(b, cudaMalloc(&mem, CHECK_BYTES))) return "no memory for its self-check";
    c.mem = static_cast<unsigned char *>(mem);
    c.trouble = static_cast<uint32_t *>(check__place(&c, sizeof *c.trouble));
    CU_TRY(b, cudaMemsetAsync(c.trouble, 0, sizeof *c.trouble, b->stream));
    if (!check__products(&c)) wrong = c.late ? LATE("products") : "products are wrong";
    for (size_t i = 0; !wrong && i < sizeof dims / sizeof *dims; i++) {
        c.used = 256; /* after the word `trouble` */
        if (!check__attention(&c, dims[i])) wrong = c.late ? LATE("attention") : "attention is wrong";
    }
    (void)cudaFree(mem);
    return wrong;
}

void cuda_hopper_init(struct backend *b)
{
    if (!b->hopper_wanted || b->cc != 90 || b->act != BE_BF16) return;
    static bool checked; /* once per process: there is one device */
    b->hopper = true;
    const char *wrong = !cuda_gemm_sm90_init(b) || !cuda_attn_sm90_init(b) ? "its kernels can't be set up"
                        : checked                                          ? nullptr
                                                                           : hopper__check(b);
    checked = !wrong;
    if (!wrong) return;
    b->hopper = false;
    fprintf(stderr, "kvasir: the Hopper kernels are not used: %s%s%s\n", wrong, b->failed ? ": " : "",
            b->failed ? b->error : "");
    (void)cudaGetLastError();
    if (b->failed && cudaStreamSynchronize(b->stream) == cudaSuccess)
        b->failed = false; /* else the device is lost, and open fails */
}
