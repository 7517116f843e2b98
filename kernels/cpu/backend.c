/* The CPU's table of backend.h: opening, memory, and the launchers, which check the contract and call the
 * kernel set in use. Engine thread. Knows no models or requests. */
#include "kernels/cpu/internal.h"

#include "config/base/clock.h"
#include "config/base/cgroup.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- memory: a 64-byte header before the returned memory, so that free needs no size */

#define MEM_MAGIC UINT64_C(0x6b766d656d6f7279)
#define MEM_HUGE  ((size_t)2 << 20)
/* From this size on memory is allocated in whole huge pages: at worst four times the request, but a weight of
 * just under 2 MB on ordinary pages measures five times as slow, all of it in address translation. */
#define MEM_HUGE_FROM ((size_t)512 << 10)
#define MEM_HEADER    64u

struct mem_header {
    uint64_t magic;
    void *map; /* what to unmap, or NULL: from aligned_alloc */
    size_t bytes;
};
_Static_assert(sizeof(struct mem_header) <= MEM_HEADER, "header fits");

void *cpu_mem_alloc(size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    size_t total = bytes + MEM_HEADER;
    char *base;
    struct mem_header h = {.magic = MEM_MAGIC};
    if (total >= MEM_HUGE_FROM) {
        /* Fresh anonymous pages are zero; aligned to a huge page so that the kernel can use them from the
         * first byte. */
        h.bytes = (total + 2 * MEM_HUGE - 1) / MEM_HUGE * MEM_HUGE;
        h.map =
            mmap(NULL, h.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (h.map == MAP_FAILED) return NULL;
        base = (char *)(((uintptr_t)h.map + MEM_HUGE - 1) / MEM_HUGE * MEM_HUGE);
        (void)madvise(h.map, h.bytes, MADV_HUGEPAGE); /* a hint; ordinary pages are slower, not wrong */
    } else {
        base = aligned_alloc(64, (total + 63) / 64 * 64);
        if (!base) return NULL;
        memset(base, 0, total);
    }
    memcpy(base, &h, sizeof h);
    return base + MEM_HEADER;
}

void cpu_mem_free(void *p)
{
    if (!p) return;
    char *base = (char *)p - MEM_HEADER;
    struct mem_header h;
    memcpy(&h, base, sizeof h);
    ASSERT(h.magic == MEM_MAGIC);
    if (h.map) {
        munmap(h.map, h.bytes);
    } else {
        memset(base, 0, sizeof h);
        free(base);
    }
}

/* ---- open, close, caps */

/* Cores that the process may run on, limited by the CPU quota of its control groups. */
static uint32_t cpu__usable_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    uint32_t n = CPU_COUNT(&set) < 1 ? 1 : (uint32_t)CPU_COUNT(&set), quota = cgroup_cpus("");
    return u32_min(quota && quota < n ? quota : n, CPU_THREADS_MAX);
}

/* Physical memory. The engine's plan finds out how much is free and allowed by control groups. */
static size_t cpu__memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (size_t)pages * (size_t)size : (size_t)1 << 30;
}

static void cpu__brand(char *out, size_t room)
{
    snprintf(out, room, "%s", "CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f) return;
    char line[256];
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) != 0) continue;
        char *v = strchr(line, ':');
        if (!v) break;
        v += 1 + strspn(v + 1, " \t");
        v[strcspn(v, "\r\n")] = 0;
        snprintf(out, room, "%s", v);
        break;
    }
    fclose(f);
}

static void cpu__close(struct backend *b)
{
    if (!b) return;
    cpu_pool_destroy(b->pool);
    cpu_mem_free(b->thread_scratch);
    cpu_mem_free(b->rows_scratch);
    free(b);
}

static enum be_result cpu__open(const struct be_params *p, struct backend **out)
{
    if (p->act != BE_F32 && p->act != BE_BF16) return BE_UNSUPPORTED;
    if (p->threads > CPU_THREADS_MAX) return BE_UNSUPPORTED;
    const struct cpu_kernels *kern = cpu_find_kernels(p->kernels);
    if (!kern) return BE_UNSUPPORTED;
    struct backend *b = calloc(1, sizeof *b);
    if (!b) return BE_NOMEM;
    b->kern = kern;
    b->act = p->act;
    b->threads = p->threads ? p->threads : cpu__usable_cores();
    b->memory_bytes = cpu__memory();
    b->pool = cpu_pool_create(b->threads);
    b->thread_scratch_bytes = CPU_THREAD_SCRATCH;
    b->thread_scratch = cpu_mem_alloc(b->thread_scratch_bytes * b->threads);
    if (!b->pool || !b->thread_scratch) {
        cpu__close(b);
        return BE_NOMEM;
    }
    char brand[128];
    cpu__brand(brand, sizeof brand);
    snprintf(b->device, sizeof b->device, "%s, %u thread%s", brand, b->threads, b->threads == 1 ? "" : "s");
    snprintf(b->name, sizeof b->name, "cpu-%s", kern->name);
    *out = b;
    return BE_OK;
}

static void cpu__caps(const struct backend *b, struct be_caps *out)
{
    *out = (struct be_caps){.name = b->name,
                            .sums = b->kern->sums,
                            .device = b->device,
                            .threads = b->threads,
                            .host_memory = true,
                            .quants = true,
                            .memory_bytes = b->memory_bytes};
}

static const char *cpu__last_error(const struct backend *b)
{
    return b->error;
}

static enum be_result cpu__alloc(struct backend *b, size_t bytes, void **out)
{
    void *p = cpu_mem_alloc(bytes);
    if (!p) {
        snprintf(b->error, sizeof b->error, "out of memory: %zu bytes", bytes);
        return BE_NOMEM;
    }
    *out = p;
    return BE_OK;
}

static void cpu__free(struct backend *b, void *p)
{
    (void)b;
    cpu_mem_free(p);
}

static void cpu__upload(struct backend *b, void *dst, const void *host, size_t bytes)
{
    (void)b;
    if (bytes) memcpy(dst, host, bytes);
}

static void cpu__download(struct backend *b, void *host, const void *src, size_t bytes)
{
    (void)b;
    if (bytes) memcpy(host, src, bytes);
}

static void cpu__zero(struct backend *b, void *dst, size_t bytes)
{
    (void)b;
    if (bytes) memset(dst, 0, bytes);
}

static enum be_result cpu__sync(struct backend *b)
{
    (void)b;
    return BE_OK; /* operations are synchronous */
}

static size_t cpu__weight_bytes(const struct be_weight *w)
{
    return w->bytes;
}

static size_t cpu__kv_layer_bytes(const struct backend *b, enum be_kv_type type, uint32_t kv_heads,
                                  uint32_t head_dim)
{
    if (kv_heads == 0 || head_dim == 0 || head_dim > 1024 || head_dim % 2 || kv_heads > 4096) return 0;
    return kv_heads * (type == BE_KV_ACT ? kv_head_bytes(b->act, head_dim) : kv_q8_bytes(b->act, head_dim));
}

static void cpu__kv_clear(struct backend *b, const struct be_kv *kv, uint32_t block_offset, uint32_t first)
{
    uint32_t d = kv->head_dim;
    void *layer = kv_layer(kv, block_offset);
    for (uint32_t g = 0; g < kv->kv_heads; g++) kv_clear(layer, kv->type, b->act, d, g, first);
}

/* ---- launchers */

static bool cpu__aligned(const void *p)
{
    return (uintptr_t)p % 4 == 0;
}

static void cpu__linear(struct backend *b, const struct be_linear_args *a)
{
    ASSERT(a->w && a->w->type == b->act);
    bool glu = a->epilogue == BE_EPI_GLU_GELU_TANH || a->epilogue == BE_EPI_GLU_SILU;
    ASSERT(glu == a->w->glu);
    if (a->t == 0) return;
    ASSERT(a->x && a->out && cpu__aligned(a->x) && cpu__aligned(a->out));
    ASSERT(!a->add || a->epilogue > BE_EPI_ADD_F32);
    const struct cpu_kernels *k = b->kern;
    (a->w->bits ? k->linear_quants : b->act == BE_BF16 ? k->linear_bf16 : k->linear_f32)(b, a);
}

static void cpu__linears(struct backend *b, const struct be_linear_args *a, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) ASSERT(a[i].w->type == b->act && !a[i].w->glu && !a[i].w->bits);
    cpu_linears(b, a, count);
}

static void cpu__embed(struct backend *b, const struct be_embed_args *a)
{
    ASSERT(a->w && a->w->type == b->act && !a->w->glu);
    if (a->t == 0) return;
    (a->w->bits ? cpu_embed_quants : b->kern->embed)(b, a);
}

static void cpu__norm(struct backend *b, const struct be_norm_args *a)
{
    ASSERT(a->c > 0 && (a->x || a->residual));
    ASSERT(!a->post_weight || a->x);
    ASSERT(!a->out || a->weight);
    ASSERT(!a->residual_scale || (a->x && a->residual));
    ASSERT(a->out_dtype == BE_F32 || (a->out_dtype == BE_BF16 && !a->out_dense));
    if (a->t == 0) return;
    b->kern->norm(b, a);
}

static void cpu__rope(struct backend *b, const struct be_rope_args *a)
{
    ASSERT(a->axes == 1 || a->axes == 3);
    if (a->t == 0 || a->half == 0) return;
    b->kern->rope(b, a);
}

static void cpu__check_rows(const struct backend *b, const struct be_rows *r, const struct be_kv *kv,
                            uint32_t heads)
{
    ASSERT(kv->kv_heads > 0 && heads % kv->kv_heads == 0);
    ASSERT(cpu__kv_layer_bytes(b, kv->type, kv->kv_heads, kv->head_dim) > 0 && kv->layer_offset % 64 == 0);
    ASSERT(r->t == 0 || (r->seq_count > 0 && r->seq_row[0] == 0 && r->seq_row[r->seq_count] == r->t));
}

static void cpu__qkv(struct backend *b, const struct be_qkv_args *a)
{
    cpu__check_rows(b, a->rows, &a->kv, a->heads);
    ASSERT(!a->cos == !a->sin);
    if (a->rows->t == 0) return;
    b->kern->qkv(b, a);
}

static void cpu__attn(struct backend *b, const struct be_attn_args *a)
{
    cpu__check_rows(b, a->rows, &a->kv, a->heads);
    if (a->rows->t == 0) return;
    (b->act == BE_BF16 ? b->kern->attn_bf16 : b->kern->attn_f32)(b, a);
}

static void cpu__patchify(struct backend *b, const struct be_patchify_args *a)
{
    ASSERT(a->patch > 0 && a->width >= a->patch && a->height >= a->patch);
    if (a->width == 0 || a->height == 0) return;
    b->kern->patchify(b, a);
}

static void cpu__pool_op(struct backend *b, const struct be_pool_args *a)
{
    ASSERT(a->kernel > 0 && a->grid_h % a->kernel == 0 && a->grid_w % a->kernel == 0);
    ASSERT(!a->bias == !a->scale);
    if (a->grid_h == 0 || a->grid_w == 0 || a->c == 0) return;
    b->kern->pool(b, a);
}

static void cpu__interpolate(struct backend *b, const struct be_interpolate_args *a)
{
    if (a->t == 0 || a->c == 0) return;
    b->kern->interpolate(b, a);
}

static void cpu__pack(struct backend *b, const struct be_pack_args *a)
{
    if (a->t == 0 || a->c == 0) return;
    b->kern->pack(b, a);
}

static void cpu__gate(struct backend *b, const struct be_gate_args *a)
{
    ASSERT(a->x_dtype == BE_F32 || a->x_dtype == b->act);
    ASSERT(a->x_stride >= (size_t)a->heads * a->d);
    if (a->t == 0 || a->heads == 0 || a->d == 0) return;
    b->kern->gate(b, a);
}

static void cpu__conv(struct backend *b, const struct be_conv_args *a)
{
    ASSERT(a->k >= 2 && a->k <= BE_CONV_K_MAX && a->stride >= a->c && a->layer_offset % 64 == 0);
    if (a->states->seq_count == 0 || a->c == 0) return;
    b->kern->conv(b, a);
}

static void cpu__delta(struct backend *b, const struct be_delta_args *a)
{
    ASSERT(a->key_heads > 0 && a->value_heads % a->key_heads == 0 && a->layer_offset % 64 == 0);
    ASSERT(a->key_dim > 0 && a->key_dim <= 1024 && a->value_dim > 0);
    if (a->states->seq_count == 0) return;
    b->kern->delta(b, a);
}

static void cpu__clamp(struct backend *b, const struct be_clamp_args *a)
{
    ASSERT(a->x_stride >= a->c && a->out_stride >= (a->pad ? be_ld(a->c) : a->c));
    ASSERT(a->dtype == BE_F32 || a->dtype == BE_BF16);
    if (a->t == 0 || a->c == 0) return;
    b->kern->clamp(b, a);
}

static void cpu__route(struct backend *b, const struct be_route_args *a)
{
    ASSERT(a->k >= 1 && a->k <= a->experts && a->k <= BE_EXPERTS_K_MAX);
    if (a->t == 0) return;
    b->kern->route(b, a);
}

static void cpu__experts(struct backend *b, const struct be_experts_args *a)
{
    ASSERT(a->k >= 1 && a->k <= BE_EXPERTS_K_MAX && a->c > 0 && a->ff > 0);
    ASSERT(a->gate == BE_EPI_GLU_GELU_TANH || a->gate == BE_EPI_GLU_SILU);
    if (a->t == 0) return;
    for (size_t i = 0; i < (size_t)a->t * a->k; i++) {
        ASSERT(a->ids[i] < a->experts);
        const struct be_weight *glu = a->glu[a->ids[i]], *down = a->down[a->ids[i]];
        ASSERT(glu && glu->glu && glu->type == b->act && glu->k == a->c && glu->n == 2 * a->ff);
        ASSERT(down && !down->glu && down->type == b->act && down->k == a->ff && down->n == a->c);
        ASSERT(!glu->bits == !a->glu[a->ids[0]]->bits && !down->bits == !glu->bits);
    }
    if (b->act == BE_BF16 ? b->kern->set_bf16 : b->kern->set_f32) {
        cpu_experts(b, a);
    } else {
        ref_experts(b, a);
    }
}

static void cpu__logit_stats(struct backend *b, const struct be_logits_args *a)
{
    ASSERT(a->v > 0);
    if (a->r == 0) return;
    b->kern->logit_stats(b, a);
}

static void cpu__topk(struct backend *b, const struct be_topk_args *a)
{
    ASSERT(a->k <= a->v && a->k <= BE_TOPK_MAX);
    if (a->r == 0 || a->k == 0) return;
    b->kern->topk(b, a);
}

struct cpu_each {
    void (*fn)(void *ctx, uint32_t i);
    void *ctx;
};

static void cpu__each_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct cpu_each *e = ctx;
    for (uint32_t i = begin; i < end; i++) e->fn(e->ctx, i);
}

static void cpu__host_each(struct backend *b, uint32_t count, void (*fn)(void *ctx, uint32_t i), void *ctx)
{
    struct cpu_each e = {fn, ctx};
    cpu_pool_run(b->pool, count, 1, cpu__each_range, &e);
}

/* ---- moving bytes: the same for every set */

struct cpu_copy {
    char *dst;
    const char *src;
    const uint32_t *rows;
    size_t bytes;
};
#define COPY_CHUNK ((size_t)1 << 20)

static void cpu__copy_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct cpu_copy *c = ctx;
    size_t from = begin * COPY_CHUNK, to = end * COPY_CHUNK;
    if (to > c->bytes) to = c->bytes;
    memcpy(c->dst + from, c->src + from, to - from);
}

static void cpu__copy(struct backend *b, void *dst, const void *src, size_t bytes)
{
    if (bytes == 0) return;
    struct cpu_copy c = {.dst = dst, .src = src, .bytes = bytes};
    ASSERT((bytes - 1) / COPY_CHUNK < UINT32_MAX);
    cpu_pool_run(b->pool, (uint32_t)((bytes - 1) / COPY_CHUNK + 1), 1, cpu__copy_range, &c);
}

static void cpu__gather_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct cpu_copy *c = ctx;
    for (uint32_t i = begin; i < end; i++)
        memcpy(c->dst + i * c->bytes, c->src + c->rows[i] * c->bytes, c->bytes);
}

static void cpu__gather(struct backend *b, const struct be_gather_args *a)
{
    if (a->count == 0 || a->row_bytes == 0) return;
    struct cpu_copy c = {.dst = a->dst, .src = a->src, .rows = a->rows, .bytes = a->row_bytes};
    /* Some 64 KB a chunk: below that waking a thread costs more than the copy. */
    uint32_t grain = a->row_bytes >= 65536 ? 1 : (uint32_t)(65536 / a->row_bytes);
    cpu_pool_run(b->pool, a->count, grain, cpu__gather_range, &c);
}

/* ---- ceiling */

#define CEIL_READ_BYTES ((size_t)512 << 20)
#define CEIL_READ_CHUNK ((size_t)256 << 10)
/* Best of many rounds: what the machine can do, not what other load leaves. A round reads about as much as a
 * decode step: memory sustains a rate for a millisecond that it does not sustain for ten. */
#define CEIL_ROUNDS  150
#define CEIL_READS   30
#define CEIL_STRETCH ((size_t)256 << 20)

struct cpu_ceil {
    const struct backend *b;
    const char *mem;
    size_t from; /* start of the stretch being read */
    uint64_t steps;
    uint64_t sums[CPU_THREADS_MAX];
    double ops[CPU_THREADS_MAX];
};

static void cpu__ceil_fill(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    struct cpu_ceil *c = ctx;
    memset((char *)(uintptr_t)c->mem + begin * CEIL_READ_CHUNK, 1, (end - begin) * CEIL_READ_CHUNK);
}

static void cpu__ceil_read(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    struct cpu_ceil *c = ctx;
    c->sums[worker] +=
        c->b->kern->read(c->mem + c->from + begin * CEIL_READ_CHUNK, (end - begin) * CEIL_READ_CHUNK);
}

static void cpu__ceil_peak(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    struct cpu_ceil *c = ctx;
    for (uint32_t i = begin; i < end; i++)
        c->ops[worker] += (c->b->act == BE_BF16 ? c->b->kern->peak_bf16 : c->b->kern->peak_f32)(c->steps);
}

static enum be_result cpu__ceiling(struct backend *b, struct be_ceiling *out)
{
    struct cpu_ceil *c = calloc(1, sizeof *c);
    void *mem = cpu_mem_alloc(CEIL_READ_BYTES);
    if (!c || !mem) {
        free(c);
        cpu_mem_free(mem);
        return BE_NOMEM;
    }
    c->b = b;
    c->mem = mem;
    c->steps = 6000;
    uint32_t chunks = (uint32_t)(CEIL_READ_BYTES / CEIL_READ_CHUNK);
    cpu_pool_run(b->pool, chunks, 8, cpu__ceil_fill, c);
    out->read_bytes_per_s = 0;
    out->matrix_flops = 0;
    for (uint32_t round = 0; round < CEIL_ROUNDS; round++) {
        /* Stretch after stretch, so that none is still cached when it is read again. */
        double t0;
        if (round % (CEIL_ROUNDS / CEIL_READS) == 0) {
            c->from = round / (CEIL_ROUNDS / CEIL_READS) * CEIL_STRETCH % CEIL_READ_BYTES;
            t0 = now_s();
            cpu_pool_run(b->pool, (uint32_t)(CEIL_STRETCH / CEIL_READ_CHUNK), 1, cpu__ceil_read, c);
            double rate = (double)CEIL_STRETCH / (now_s() - t0);
            if (rate > out->read_bytes_per_s) out->read_bytes_per_s = rate;
        }
        memset(c->ops, 0, sizeof c->ops);
        t0 = now_s();
        cpu_pool_run(b->pool, 8 * b->threads, 1, cpu__ceil_peak, c);
        double dt = now_s() - t0, ops = 0;
        for (uint32_t i = 0; i < b->threads; i++) ops += c->ops[i];
        if (ops / dt > out->matrix_flops) out->matrix_flops = ops / dt;
    }
    cpu_mem_free(mem);
    free(c);
    return BE_OK;
}

const struct be_ops *be_cpu_ops(void)
{
    static const struct be_ops ops = {
        .open = cpu__open,
        .close = cpu__close,
        .caps = cpu__caps,
        .last_error = cpu__last_error,
        .alloc = cpu__alloc,
        .free = cpu__free,
        .upload = cpu__upload,
        .download = cpu__download,
        .copy = cpu__copy,
        .zero = cpu__zero,
        .sync = cpu__sync,
        .weight_pack = cpu_weight_pack,
        .weight_free = cpu_weight_free,
        .weight_bytes = cpu__weight_bytes,
        .kv_layer_bytes = cpu__kv_layer_bytes,
        .kv_clear = cpu__kv_clear,
        .linear = cpu__linear,
        .linears = cpu__linears,
        .embed = cpu__embed,
        .norm = cpu__norm,
        .rope = cpu__rope,
        .qkv = cpu__qkv,
        .attn = cpu__attn,
        .patchify = cpu__patchify,
        .pool = cpu__pool_op,
        .gather = cpu__gather,
        .interpolate = cpu__interpolate,
        .pack = cpu__pack,
        .gate = cpu__gate,
        .conv = cpu__conv,
        .delta = cpu__delta,
        .clamp = cpu__clamp,
        .route = cpu__route,
        .experts_scratch = cpu_experts_scratch,
        .experts = cpu__experts,
        .logit_stats = cpu__logit_stats,
        .topk = cpu__topk,
        .host_each = cpu__host_each,
        .ceiling = cpu__ceiling,
    };
    return &ops;
}
