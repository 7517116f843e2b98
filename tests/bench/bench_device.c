/* Speed of a backend by kernel and by whole step, each against the machine's limits: measured copy bandwidth
 * and the peak of a large matrix product (be_ops.ceiling). Shapes of Gemma 3 4B and Qwen3-VL-8B with random
 * weights. Needs no server library; meant for a machine with a GPU (scripts/device-check.sh), and runs on the
 * CPU and on the emulated device too. Not a test: it fails only when an operation or a step does.
 *
 *   bench_device [--backend cpu|cuda] [--part kernels|steps|all] [--json FILE] [--only TEXT] [--tiny]
 *
 * --only: rows whose name contains TEXT. --tiny: sizes for the emulated device (seconds); the numbers mean
 * nothing. Bytes are the fewest that must move (every input read once, every output written once), operations
 * those of the definition; "possible" is the larger of the two least times over the time measured. Times:
 * calls in a row between two waits, the median of several such runs; weights and keys have several copies,
 * used in rotation, so that none is in the caches. */
#include "config/base/log.h"
#include "kernels/backend.h"
#include "kernels/cuda_loader.h"
#include "tests/lib/bench_steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COLD_BYTES  ((size_t)512 << 20) /* copies of a weight or of keys take at least this together */
#define COPIES_MAX  64u
#define RUNS        7
#define RUN_SECONDS 0.02

struct bench {
    const struct be_ops *ops;
    struct backend *b;
    struct bench_report report;
    bool tiny;
    size_t cold;
};

struct model {
    const char *name;
    uint32_t c, heads, kv_heads, dim, ff, vocab, window;
    enum be_epilogue gate;
    bool qk_norm;
};
static const struct model models[] = {
    {"gemma3-4b", 2560, 8, 4, 256, 10240, 262208, 1024, BE_EPI_GLU_GELU_TANH, true},
    {"qwen3-vl-8b", 4096, 32, 8, 128, 12288, 151936, 0, BE_EPI_GLU_SILU, true},
};
static const struct model tiny_models[] = {
    {"gemma3-4b", 128, 4, 2, 32, 192, 512, 64, BE_EPI_GLU_GELU_TANH, true},
    {"qwen3-vl-8b", 160, 4, 1, 16, 224, 384, 0, BE_EPI_GLU_SILU, true},
};

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}
static void *take(struct bench *k, size_t bytes)
{
    void *p = NULL;
    if (k->ops->alloc(k->b, bytes, &p) != BE_OK) {
        fprintf(stderr, "alloc of %zu bytes: %s\n", bytes, k->ops->last_error(k->b));
        exit(1);
    }
    return p;
}
static void wait_all(struct bench *k)
{
    if (k->ops->sync(k->b) == BE_OK) return;
    fprintf(stderr, "%s\n", k->ops->last_error(k->b));
    exit(1);
}
static uint32_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*s >> 33);
}

/* Random values within +-1: f32, or bf16 between 2^-7 and 1. */
static void fill_host(void *p, size_t bytes, bool f32)
{
    uint64_t rng = 7;
    for (size_t i = 0; f32 && i < bytes / 4; i++)
        ((float *)p)[i] = (float)(int32_t)(next_random(&rng) << 1) * 0x1p-31f;
    for (size_t i = 0; !f32 && i < bytes / 2; i++) {
        uint32_t r = next_random(&rng);
        ((uint16_t *)p)[i] = (uint16_t)((r & 1) << 15 | (0x3c00 + (r >> 1) % 0x380));
    }
}
/* The same on the device, repeated every 16 MiB. */
static void *take_random(struct bench *k, size_t bytes, bool f32)
{
    size_t piece = bytes < (size_t)16 << 20 ? bytes : (size_t)16 << 20;
    char *dev = take(k, bytes), *host = must(malloc(piece));
    fill_host(host, piece, f32);
    k->ops->upload(k->b, dev, host, piece);
    for (size_t at = piece; at < bytes; at += piece)
        k->ops->copy(k->b, dev + at, dev, bytes - at < piece ? bytes - at : piece);
    wait_all(k);
    free(host);
    return dev;
}
static void *take_words(struct bench *k, const uint32_t *host, size_t count)
{
    void *dev = take(k, count * 4 + 4);
    k->ops->upload(k->b, dev, host, count * 4);
    wait_all(k);
    return dev;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one call: the median over RUNS runs of as many calls as take RUN_SECONDS. `call` gets a number
 * that counts up. */
static double measure(struct bench *k, void (*call)(struct bench *k, void *arg, uint32_t n), void *arg)
{
    double times[RUNS];
    uint32_t at = 0, calls = 1;
    for (int warm = 0; warm < (k->tiny ? 1 : 3); warm++) call(k, arg, at++);
    wait_all(k);
    int chunks = k->tiny ? 1 : RUNS;
    for (int chunk = 0; chunk < chunks;) {
        double t = bench_now();
        for (uint32_t i = 0; i < calls; i++) call(k, arg, at++);
        wait_all(k);
        t = bench_now() - t;
        if (chunk == 0 && t < RUN_SECONDS && calls < 10000 && !k->tiny) { /* too short: more of them */
            calls = t > RUN_SECONDS / 100 ? (uint32_t)(calls * RUN_SECONDS / t) + 1 : calls * 16;
            continue;
        }
        times[chunk++] = t / calls;
    }
    qsort(times, (size_t)chunks, sizeof *times, by_value);
    return times[chunks / 2];
}
static bool wanted(const struct bench *k, const char *name)
{
    return !k->report.only || strstr(name, k->report.only);
}

/* ---- linear */

struct linear_work {
    struct be_weight *w[COPIES_MAX];
    uint32_t copies;
    struct be_linear_args a;
};
static void linear_call(struct bench *k, void *arg, uint32_t n)
{
    struct linear_work *l = arg;
    struct be_linear_args a = l->a;
    a.w = l->w[n % l->copies];
    k->ops->linear(k->b, &a);
}

/* Of a product of 8 rows: which kernels calculate alike. */
static void print_bits(struct bench *k, const char *name, struct linear_work *l, size_t bytes)
{
    unsigned char *out = must(malloc(bytes));
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    l->a.t = 8;
    linear_call(k, l, 0);
    wait_all(k);
    k->ops->download(k->b, out, l->a.out, bytes);
    for (size_t i = 0; i < bytes; i++) h = (h ^ out[i]) * UINT64_C(0x100000001b3);
    printf("bits   %-38s %016llx\n", name, (unsigned long long)h);
    free(out);
}

static void bench_linear(struct bench *k, const struct model *m, const char *what, uint32_t in, uint32_t out,
                         enum be_epilogue epi, uint32_t rows_max)
{
    static const uint32_t many[] = {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 8192}, few[] = {1, 8, 40, 130};
    const uint32_t *rows = k->tiny ? few : many;
    bool glu = epi >= BE_EPI_GLU_GELU_TANH;
    char name[64];
    snprintf(name, sizeof name, "%s %s", m->name, what);
    if (!wanted(k, name)) return;
    struct linear_work l = {.a = {.epilogue = epi}};
    size_t elems = (size_t)in * out * (glu ? 2 : 1);
    uint16_t *src = must(malloc(elems * 2));
    fill_host(src, elems * 2, false);
    struct be_weight_desc d = {.k = in, .src_count = glu ? 2 : 1, .glu = glu};
    d.src[0] = (struct be_weight_src){src, BE_BF16, false, out, NULL};
    d.src[1] = (struct be_weight_src){src + (glu ? elems / 2 : 0), BE_BF16, false, out, NULL};
    l.copies = (uint32_t)(k->cold / (elems * 2)) + 1;
    if (l.copies > COPIES_MAX) l.copies = COPIES_MAX;
    for (uint32_t i = 0; i < l.copies; i++)
        if (k->ops->weight_pack(k->b, &d, &l.w[i]) != BE_OK) must(NULL);
    free(src);
    void *x = take_random(k, rows_max * be_ld(in) * 2, false),
         *y = take(k, (size_t)rows_max * be_ld(out) * 4);
    l.a.x = x;
    l.a.out = y;
    for (size_t i = 0; i < (k->tiny ? 4 : 11) && rows[i] <= rows_max; i++) {
        l.a.t = rows[i];
        double t = rows[i], bytes = (double)elems * 2 + t * in * 2 + t * out * (epi == BE_EPI_F32 ? 4 : 2);
        bench_row(&k->report, "kernel", name, rows[i], measure(k, linear_call, &l), bytes,
                  2 * (double)elems * t);
    }
    print_bits(k, name, &l, 8 * (epi == BE_EPI_F32 ? (size_t)out * 4 : be_ld(out) * 2));
    for (uint32_t i = 0; i < l.copies; i++) k->ops->weight_free(k->b, l.w[i]);
    k->ops->free(k->b, x);
    k->ops->free(k->b, y);
}

/* ---- attention */

struct attn_work {
    struct be_rows rows;
    struct be_attn_args a;
    struct be_qkv_args q;
    uint32_t layers;
    size_t layer_bytes;
    void *index[6], *arena, *qin, *qout, *out, *table, *norm;
};
static void attn_call(struct bench *k, void *arg, uint32_t n)
{
    struct attn_work *w = arg;
    struct be_attn_args a = w->a;
    a.kv.layer_offset = n % w->layers * w->layer_bytes;
    k->ops->attn(k->b, &a);
}
static void qkv_call(struct bench *k, void *arg, uint32_t n)
{
    struct attn_work *w = arg;
    struct be_qkv_args a = w->q;
    a.kv.layer_offset = n % w->layers * w->layer_bytes;
    k->ops->qkv(k->b, &a);
}

/* `seqs` sequences of `context` tokens, of which the last `rows` of each are in the batch. window 0: all
 * keys; causal false: every row sees the whole sequence. */
static void attn_open(struct bench *k, struct attn_work *w, uint32_t heads, uint32_t kv_heads, uint32_t dim,
                      uint32_t seqs, uint32_t context, uint32_t rows, uint32_t window, bool causal)
{
    size_t part = k->ops->kv_layer_bytes(k->b, BE_KV_ACT, kv_heads, dim);
    uint32_t per_seq = (context + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS, blocks = per_seq * seqs,
             t = rows * seqs;
    *w = (struct attn_work){.layer_bytes = part};
    w->layers = (uint32_t)(k->cold / ((size_t)blocks * part)) + 1;
    if (w->layers > COPIES_MAX) w->layers = COPIES_MAX;
    uint32_t units = (uint32_t)((part * w->layers + BE_KV_GRAIN - 1) / BE_KV_GRAIN);
    uint32_t *v = must(calloc((size_t)3 * t + blocks + 2 * seqs + 1, 4)), *pos = v, *lo = v + t,
             *hi = v + 2 * t;
    uint32_t *tables = v + 3 * t, *first = tables + blocks, *at = first + seqs + 1;
    for (uint32_t i = 0; i < blocks; i++) tables[i] = (uint32_t)((uint64_t)i * 7919 % blocks) * units;
    if (blocks % 7919 == 0)
        for (uint32_t i = 0; i < blocks; i++) tables[i] = i * units;
    for (uint32_t s = 0; s < seqs; s++) {
        first[s + 1] = (s + 1) * rows;
        at[s] = s * per_seq;
        for (uint32_t i = 0; i < rows; i++) {
            uint32_t p = context - rows + i, r = s * rows + i;
            pos[r] = p;
            hi[r] = causal ? p : context - 1;
            lo[r] = window && p + 1 > window ? p + 1 - window : 0;
        }
    }
    const uint32_t *host[6] = {first, at, tables, pos, lo, hi};
    const size_t counts[6] = {seqs + 1u, seqs, blocks, t, t, t};
    for (int i = 0; i < 6; i++) w->index[i] = take_words(k, host[i], counts[i]);
    w->rows = (struct be_rows){t,           seqs,        w->index[0], w->index[1],
                               w->index[2], w->index[3], w->index[4], w->index[5]};
    w->arena = take_random(k, (size_t)blocks * units * BE_KV_GRAIN, false);
    size_t width = (size_t)heads * dim;
    w->qin = take_random(k, t * (heads + 2 * kv_heads) * (size_t)dim * 4, true);
    w->qout = take_random(k, t * width * 2, false);
    w->out = take(k, t * be_ld(width) * 2);
    w->table = take_random(k, t * (size_t)dim * 4, true);
    w->norm = take_random(k, dim * 4, true);
    struct be_kv kv = {.arena = w->arena, .kv_heads = kv_heads, .head_dim = dim};
    w->a = (struct be_attn_args){
        .rows = &w->rows, .heads = heads, .kv = kv, .q = w->qout, .scale = 0.1f, .out = w->out};
    w->q = (struct be_qkv_args){.rows = &w->rows,
                                .heads = heads,
                                .kv = kv,
                                .qkv = w->qin,
                                .q_norm = w->norm,
                                .k_norm = w->norm,
                                .eps = 1e-6f,
                                .cos = w->table,
                                .sin = w->table,
                                .q = w->qout};
    free(v);
}
static void attn_close(struct bench *k, struct attn_work *w)
{
    void *all[] = {w->arena, w->qin, w->qout, w->out, w->table, w->norm};
    for (int i = 0; i < 6; i++) {
        k->ops->free(k->b, all[i]);
        k->ops->free(k->b, w->index[i]);
    }
}

/* Visible (query, key) pairs of one sequence's rows. */
static double visible(uint32_t context, uint32_t rows, uint32_t window, bool causal)
{
    double n = 0;
    for (uint32_t p = context - rows; p < context; p++) {
        double keys = causal ? p + 1 : context;
        n += window && keys > window ? window : keys;
    }
    return n;
}

static void bench_attn(struct bench *k, const char *name, uint32_t heads, uint32_t kv_heads, uint32_t dim,
                       uint32_t seqs, uint32_t context, uint32_t rows, uint32_t window, bool causal)
{
    if (!wanted(k, name)) return;
    struct attn_work w;
    attn_open(k, &w, heads, kv_heads, dim, seqs, context, rows, window, causal);
    double pairs = visible(context, rows, window, causal) * seqs,
           keys = window && rows == 1 ? window : context;
    double bytes = 2.0 * seqs * (2 * keys * kv_heads + 2.0 * rows * heads) * dim;
    bench_row(&k->report, "kernel", name, rows > 1 ? rows : seqs, measure(k, attn_call, &w), bytes,
              4.0 * heads * dim * pairs);
    attn_close(k, &w);
}

static void bench_qkv(struct bench *k, const struct model *m, uint32_t rows)
{
    char name[64];
    struct attn_work w;
    snprintf(name, sizeof name, "%s qkv norm+rope+kv", m->name);
    if (!wanted(k, name)) return;
    attn_open(k, &w, m->heads, m->kv_heads, m->dim, 1, rows, rows, 0, true);
    double cells = (double)rows * (m->heads + 2.0 * m->kv_heads) * m->dim;
    bench_row(&k->report, "kernel", name, rows, measure(k, qkv_call, &w),
              cells * 6 + (double)rows * m->dim * 4, 0);
    attn_close(k, &w);
}

static void bench_attention(struct bench *k, const struct model *m)
{
    static const uint32_t batches[] = {1, 8, 32, 128}, lengths[] = {512, 1024, 2048, 4096, 8192};
    char name[64];
    uint32_t context = k->tiny ? 600 : 4096;
    for (size_t i = 0; i < (k->tiny ? 2 : 4); i++) {
        snprintf(name, sizeof name, "%s attn decode, %u keys", m->name, context);
        bench_attn(k, name, m->heads, m->kv_heads, m->dim, batches[i], context, 1, 0, true);
        if (!m->window) continue;
        snprintf(name, sizeof name, "%s attn decode, window %u", m->name, m->window);
        bench_attn(k, name, m->heads, m->kv_heads, m->dim, batches[i], context, 1, m->window, true);
    }
    for (size_t i = 0; i < (k->tiny ? 1 : 5); i++) {
        uint32_t n = k->tiny ? 100 : lengths[i];
        snprintf(name, sizeof name, "%s attn prefill", m->name);
        bench_attn(k, name, m->heads, m->kv_heads, m->dim, 1, n, n, 0, true);
        if (!m->window || n <= m->window) continue;
        snprintf(name, sizeof name, "%s attn prefill, window %u", m->name, m->window);
        bench_attn(k, name, m->heads, m->kv_heads, m->dim, 1, n, n, m->window, true);
    }
    bench_qkv(k, m, 32);
    bench_qkv(k, m, k->tiny ? 100 : 8192);
}

/* ---- rows, logits */

struct row_work {
    struct be_norm_args norm;
    struct be_embed_args embed;
    struct be_logits_args stats;
    struct be_topk_args topk;
};
static void norm_call(struct bench *k, void *arg, uint32_t n)
{
    (void)n;
    k->ops->norm(k->b, &((struct row_work *)arg)->norm);
}
static void embed_call(struct bench *k, void *arg, uint32_t n)
{
    (void)n;
    k->ops->embed(k->b, &((struct row_work *)arg)->embed);
}
static void stats_call(struct bench *k, void *arg, uint32_t n)
{
    (void)n;
    k->ops->logit_stats(k->b, &((struct row_work *)arg)->stats);
}
static void topk_call(struct bench *k, void *arg, uint32_t n)
{
    (void)n;
    k->ops->topk(k->b, &((struct row_work *)arg)->topk);
}

static void bench_rows(struct bench *k, const struct model *m)
{
    uint32_t rows[] = {1, 128, k->tiny ? 130 : 8192}, most = rows[2], lines = k->tiny ? 8 : 128;
    size_t cells = (size_t)most * m->c;
    char name[64];
    void *x = take_random(k, cells * 4, true), *res = take_random(k, cells * 4, true),
         *weight = take_random(k, m->c * 4, true);
    void *out = take(k, most * be_ld(m->c) * 2);
    struct row_work w = {.norm = {.c = m->c,
                                  .eps = 1e-6f,
                                  .x = x,
                                  .post_weight = weight,
                                  .residual = res,
                                  .weight = weight,
                                  .out = out,
                                  .out_dtype = BE_BF16}};
    snprintf(name, sizeof name, "%s norm+add+norm", m->name);
    for (int i = 0; i < 3 && wanted(k, name); i++) {
        w.norm.t = rows[i];
        bench_row(&k->report, "kernel", name, rows[i], measure(k, norm_call, &w), (double)rows[i] * m->c * 14,
                  0);
    }
    size_t logit_cells = (size_t)lines * m->vocab;
    void *logits = take_random(k, logit_cells * 4, true),
         *stats = take(k, lines * sizeof(struct be_logit_stats));
    void *ids = take(k, lines * 20 * 4), *values = take(k, lines * 20 * 4),
         *draws = take(k, lines * sizeof(struct be_draw));
    for (uint32_t i = 0; i < lines; i++)
        k->ops->upload(k->b, (struct be_draw *)draws + i, &(struct be_draw){1, (float)i / (float)lines},
                       sizeof(struct be_draw));
    w.stats = (struct be_logits_args){.logits = logits, .v = m->vocab, .stats = stats};
    w.topk = (struct be_topk_args){.logits = logits, .v = m->vocab, .k = 20, .ids = ids, .values = values};
    for (int i = 0; i < 2; i++) {
        w.stats.r = w.topk.r = i ? lines : 1;
        double bytes = (double)w.stats.r * m->vocab * 4;
        snprintf(name, sizeof name, "%s logit statistics", m->name);
        if (wanted(k, name))
            bench_row(&k->report, "kernel", name, w.stats.r, measure(k, stats_call, &w), bytes, 0);
        snprintf(name, sizeof name, "%s the same and a draw", m->name);
        w.stats.draws = draws;
        if (wanted(k, name))
            bench_row(&k->report, "kernel", name, w.stats.r, measure(k, stats_call, &w), bytes, 0);
        w.stats.draws = NULL;
        snprintf(name, sizeof name, "%s top 20", m->name);
        if (wanted(k, name))
            bench_row(&k->report, "kernel", name, w.topk.r, measure(k, topk_call, &w), bytes, 0);
    }
    void *all[] = {x, res, weight, out, logits, stats, ids, values, draws};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) k->ops->free(k->b, all[i]);
}

/* ---- experts: 128, of which a token uses 8, as Qwen3-30B-A3B */

struct expert_work {
    struct be_experts_args a;
    struct be_route_args r;
};
static void experts_call(struct bench *k, void *arg, uint32_t n)
{
    (void)n;
    struct expert_work *w = arg;
    k->ops->route(k->b, &w->r);
    k->ops->experts(k->b, &w->a);
}

static void bench_experts(struct bench *k)
{
    const char *name = "qwen3-30b-a3b route+experts";
    enum { EXPERTS = 128, USED = 8 };
    uint32_t c = k->tiny ? 64 : 2048, ff = k->tiny ? 32 : 768, most = k->tiny ? 40 : 2048;
    static const uint32_t rows[] = {1, 8, 32, 128, 512, 2048};
    static struct be_weight *glu[EXPERTS], *down[EXPERTS];
    if (!wanted(k, name)) return;
    size_t part = (size_t)c * ff;
    uint16_t *src = must(malloc(3 * part * 2));
    fill_host(src, 3 * part * 2, false);
    for (uint32_t i = 0; i < EXPERTS; i++) {
        struct be_weight_desc g = {.k = c,
                                   .src_count = 2,
                                   .grouped = true,
                                   .glu = true,
                                   .src = {{src, BE_BF16, false, ff}, {src + part, BE_BF16, false, ff}}};
        struct be_weight_desc d = {
            .k = ff, .src_count = 1, .grouped = true, .src = {{src + 2 * part, BE_BF16, false, c}}};
        if (k->ops->weight_pack(k->b, &g, &glu[i]) != BE_OK ||
            k->ops->weight_pack(k->b, &d, &down[i]) != BE_OK)
            must(NULL);
    }
    free(src);
    void *x = take_random(k, most * be_ld(c) * 2, false),
         *logits = take_random(k, (size_t)most * EXPERTS * 4, true);
    void *ids = take(k, (size_t)most * USED * 4), *weights = take(k, (size_t)most * USED * 4);
    void *scratch = take(k, k->ops->experts_scratch(k->b, most, USED, c, ff, EXPERTS)),
         *out = take(k, (size_t)most * c * 4);
    struct expert_work w = {
        .a = {.glu = glu,
              .down = down,
              .experts = EXPERTS,
              .k = USED,
              .c = c,
              .ff = ff,
              .gate = BE_EPI_GLU_SILU,
              .x = x,
              .ids = ids,
              .weights = weights,
              .scratch = scratch,
              .out = out},
        .r = {
            .logits = logits, .experts = EXPERTS, .k = USED, .renorm = true, .ids = ids, .weights = weights}};
    for (size_t i = 0; i < 6 && rows[i] <= most; i++) {
        double missed = 1, t = rows[i];
        w.a.t = w.r.t = rows[i];
        for (uint32_t n = 0; n < rows[i]; n++) missed *= 1 - (double)USED / EXPERTS;
        double bytes = (1 - missed) * EXPERTS * 3 * (double)part * 2 + t * c * 6;
        bench_row(&k->report, "kernel", name, rows[i], measure(k, experts_call, &w), bytes,
                  6 * (double)part * USED * t);
    }
    for (uint32_t i = 0; i < EXPERTS; i++) {
        k->ops->weight_free(k->b, glu[i]);
        k->ops->weight_free(k->b, down[i]);
    }
    void *all[] = {x, logits, ids, weights, scratch, out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) k->ops->free(k->b, all[i]);
}

static void bench_embed(struct bench *k, const struct model *m)
{
    char name[64];
    uint32_t rows = k->tiny ? 100 : 8192;
    snprintf(name, sizeof name, "%s embed", m->name);
    if (!wanted(k, name)) return;
    size_t elems = (size_t)m->c * m->vocab;
    uint16_t *src = must(malloc(elems * 2));
    uint32_t *ids = must(malloc(rows * 4));
    uint64_t rng = 3;
    fill_host(src, elems * 2, false);
    for (uint32_t i = 0; i < rows; i++) ids[i] = next_random(&rng) % m->vocab;
    struct be_weight *w = NULL;
    struct be_weight_desc d = {.k = m->c, .src_count = 1, .src = {{src, BE_BF16, false, m->vocab}}};
    if (k->ops->weight_pack(k->b, &d, &w) != BE_OK) must(NULL);
    void *dev = take_words(k, ids, rows), *out = take(k, (size_t)rows * m->c * 4);
    struct row_work work = {
        .embed = {.w = w, .ids = dev, .t = rows, .scale = 50.5f, .round_act = true, .out = out}};
    bench_row(&k->report, "kernel", name, rows, measure(k, embed_call, &work), (double)rows * m->c * 6, 0);
    k->ops->weight_free(k->b, w);
    k->ops->free(k->b, dev);
    k->ops->free(k->b, out);
    free(src);
    free(ids);
}

static void bench_kernels(struct bench *k)
{
    for (size_t i = 0; i < 2; i++) {
        const struct model *m = k->tiny ? &tiny_models[i] : &models[i];
        uint32_t most = k->tiny ? 130 : 8192, width = (m->heads + 2 * m->kv_heads) * m->dim;
        bench_linear(k, m, "qkv", m->c, width, BE_EPI_F32, most);
        bench_linear(k, m, "o", m->heads * m->dim, m->c, BE_EPI_F32, most);
        bench_linear(k, m, "gate|up", m->c, m->ff, m->gate, most);
        bench_linear(k, m, "down", m->ff, m->c, BE_EPI_F32, most);
        bench_linear(k, m, "head", m->c, m->vocab, BE_EPI_F32, 128);
        bench_attention(k, m);
        bench_rows(k, m);
        bench_embed(k, m);
    }
    uint32_t patches = k->tiny ? 64 : 4096;
    bench_attn(k, "vision attn, 16 heads of 72", k->tiny ? 2 : 16, k->tiny ? 2 : 16, 72, 1, patches, patches,
               0, false);
    bench_experts(k);
}

int main(int argc, char **argv)
{
    struct bench k = {.cold = COLD_BYTES};
    const char *backend = "cuda", *part = "all", *json = NULL;
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--tiny") == 0) {
            k.tiny = true;
            k.cold = 1 << 16;
            continue;
        }
        const char **slot = strcmp(argv[i], "--backend") == 0 ? &backend
                            : strcmp(argv[i], "--part") == 0  ? &part
                            : strcmp(argv[i], "--json") == 0  ? &json
                            : strcmp(argv[i], "--only") == 0  ? &k.report.only
                                                              : NULL;
        if (!slot || !v) {
            fprintf(stderr, "usage: bench_device [--backend cpu|cuda] [--part kernels|steps|all] [--json "
                            "FILE] [--only TEXT] [--tiny]\n");
            return 2;
        }
        *slot = v;
        i++;
    }
    log_set_level(LOG_WARN);
    char why[512] = "";
    k.ops = strcmp(backend, "cpu") == 0 ? be_cpu_ops() : be_cuda_load(why, sizeof why);
    if (!k.ops) {
        fprintf(stderr, "backend %s: %s\n", backend, why);
        return 2;
    }
    const char *hopper = getenv("KVASIR_CUDA_HOPPER"), *gemm = getenv("KVASIR_GEMM");
    const struct be_params params = {.act = BE_BF16,
                                     .own_gemm = gemm && strcmp(gemm, "own") == 0,
                                     .hopper = hopper && strcmp(hopper, "1") == 0};
    if (k.ops->open(&params, &k.b) != BE_OK || k.ops->ceiling(k.b, &k.report.ceiling) != BE_OK) {
        fprintf(stderr, "the backend can't be opened or measured: %s\n", k.ops->last_error(k.b));
        return 1;
    }
    struct be_caps caps;
    k.ops->caps(k.b, &caps);
    if (!bench_report_open(&k.report, json, caps.name, caps.device)) return 1;
    size_t memory = caps.memory_bytes;
    bool ok = true;
    if (strcmp(part, "steps") != 0) {
        bench_kernels(&k);
        k.ops->caps(k.b, &caps);
        if (caps.gemm) printf("products: %s\n", caps.gemm);
    }
    k.ops->close(k.b);
    if (strcmp(part, "kernels") != 0) ok = bench_steps(&k.report, backend, memory, k.tiny);
    bench_report_close(&k.report);
    return ok ? 0 : 1;
}
