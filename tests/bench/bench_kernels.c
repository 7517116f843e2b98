/* Speed of linear and of attention by kernel set, shape and number of rows, as a share of what the machine
 * can do (be_ops.ceiling): the better of matrix peak and read bandwidth that the shape could reach. Not a
 * test: nothing here fails.
 *
 *   bench_kernels [set|all] [bf16|f32] [threads] [only rows, 0 = all] [only shape, substring]
 *
 * Printed is the median of the runs and, in brackets, the best: on a shared machine the true value lies
 * between them; a best above 100 % of the read bandwidth means that a copy of a small weight was still in a
 * cache. With one thread its processor time is taken, so that other work on a shared machine counts less;
 * with more, the time on the wall.
 *
 * Copies of the weight are used in rotation (BENCH_BYTES in total), so that a decode step finds none of it in
 * the caches. */
#include "kernels/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BENCH_BYTES   ((size_t)640 << 20)
#define BENCH_COPIES  1024u
#define BENCH_SECONDS 0.25
#define BENCH_RUNS    1000

struct shape {
    const char *name;
    uint32_t k, n;
    bool glu;
    enum be_epilogue epilogue;
};
static const struct shape shapes[] = {
    {"270m gate|up", 640, 2048, true, BE_EPI_GLU_GELU_TANH},
    {"270m down", 2048, 640, false, BE_EPI_F32},
    {"270m qkv", 640, 1536, false, BE_EPI_F32},
    {"270m o", 1024, 640, false, BE_EPI_F32},
    {"1b gate|up", 1152, 6912, true, BE_EPI_GLU_GELU_TANH},
    {"1b down", 6912, 1152, false, BE_EPI_F32},
    {"4b gate|up", 2560, 10240, true, BE_EPI_GLU_GELU_TANH},
    {"4b down", 10240, 2560, false, BE_EPI_F32},
    {"vit qkv", 1152, 3456, false, BE_EPI_F32},
    {"vit fc1", 1152, 4304, false, BE_EPI_GELU_TANH},
    {"vit fc2", 4304, 1152, false, BE_EPI_ADD_F32},
    {"head", 640, 262144, false, BE_EPI_F32},
};
static const uint32_t row_counts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,   12,  14,
                                      16, 20, 24, 28, 32, 40, 48, 64, 128, 512, 2048};

static clockid_t bench_clock = CLOCK_MONOTONIC;
static double now(void)
{
    struct timespec ts;
    clock_gettime(bench_clock, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench_shape(struct backend *b, enum be_dtype act, const struct shape *s, uint32_t only,
                        const struct be_ceiling *ceil)
{
    const struct be_ops *ops = be_cpu_ops();
    size_t elems = (size_t)s->k * s->n * (s->glu ? 2 : 1);
    uint16_t *src = must(malloc(elems * 2));
    uint64_t rng = 1;
    for (size_t i = 0; i < elems; i++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        src[i] = (uint16_t)(0x3c00 + (rng >> 33 & 0x83ff)); /* small, both signs */
    }
    struct be_weight_desc d = {.k = s->k, .src_count = s->glu ? 2 : 1, .glu = s->glu};
    d.src[0] = (struct be_weight_src){src, BE_BF16, false, s->n, NULL};
    d.src[1] = (struct be_weight_src){src + (s->glu ? elems / 2 : 0), BE_BF16, false, s->n, NULL};
    struct be_weight *w[BENCH_COPIES];
    uint32_t copies = (uint32_t)(BENCH_BYTES / (elems * be_dtype_bytes(act))) + 1;
    if (copies > BENCH_COPIES) copies = BENCH_COPIES;
    double t0 = now();
    for (uint32_t i = 0; i < copies; i++)
        if (ops->weight_pack(b, &d, &w[i]) != BE_OK) must(NULL);
    double pack = (double)elems * 2 * copies / (now() - t0);
    void *x = NULL, *out = NULL;
    if (ops->alloc(b, 2048 * be_ld(s->k) * 4, &x) != BE_OK) must(NULL);
    uint32_t rows_max = s->n > 100000 ? 64 : 2048;
    if (ops->alloc(b, (size_t)rows_max * be_ld(s->n) * 4, &out) != BE_OK) must(NULL);
    /* Rows of zeros would flatter: matrix units do not draw the same power for them. */
    size_t x_bytes = 2048 * be_ld(s->k) * be_dtype_bytes(act);
    char *rows = must(malloc(x_bytes));
    for (size_t i = 0; i < x_bytes / be_dtype_bytes(act); i++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        uint16_t v = (uint16_t)(0x3c00 + (rng >> 33 & 0x83ff));
        uint32_t wide = (uint32_t)v << 16;
        memcpy(rows + i * be_dtype_bytes(act), act == BE_F32 ? (void *)&wide : (void *)&v,
               be_dtype_bytes(act));
    }
    ops->upload(b, x, rows, x_bytes);
    free(rows);
    printf("%-13s pack %5.1f GB/s\n", s->name, pack * 1e-9);
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) {
        uint32_t t = row_counts[i], at = 0;
        if (t > rows_max || (only && only != t)) continue;
        struct be_linear_args a = {.x = x, .t = t, .epilogue = s->epilogue, .out = out};
        static double times[BENCH_RUNS];
        double spent = 0;
        int chunks = 0;
        while (chunks < 5 || (spent < BENCH_SECONDS && chunks < BENCH_RUNS)) {
            a.w = w[at++ % copies];
            double start = now();
            ops->linear(b, &a);
            times[chunks] = now() - start;
            spent += times[chunks++];
        }
        qsort(times, (size_t)chunks, sizeof *times, by_value);
        double median = times[chunks / 2], best = times[0], flops = 2.0 * (double)elems * t,
               bytes = (double)ops->weight_bytes(w[0]);
        double limit = flops / ceil->matrix_flops > bytes / ceil->read_bytes_per_s
                           ? flops / ceil->matrix_flops
                           : bytes / ceil->read_bytes_per_s;
        printf("  T=%-5u %9.1f us  read %5.1f GB/s %3.0f%% (%3.0f%%)  %7.3f TFLOP/s %3.0f%% (%3.0f%%)  of "
               "the possible %3.0f%% (%3.0f%%)\n",
               t, median * 1e6, bytes / median * 1e-9, 100 * bytes / median / ceil->read_bytes_per_s,
               100 * bytes / best / ceil->read_bytes_per_s, flops / median * 1e-12,
               100 * flops / median / ceil->matrix_flops, 100 * flops / best / ceil->matrix_flops,
               100 * limit / median, 100 * limit / best);
    }
    for (uint32_t i = 0; i < copies; i++) ops->weight_free(b, w[i]);
    ops->free(b, x);
    ops->free(b, out);
    free(src);
}

/* ---- attention: `t` queries at the end of `keys` keys, or (decode) `seqs` sequences of one query each */

static const struct attention {
    const char *name;
    uint32_t heads, kv_heads, dim, seqs, t, keys, window; /* window 0 = all keys before */
    bool causal;
} attentions[] = {
    {"attn 270m prefill 512", 4, 1, 256, 1, 512, 512, 0, true},
    {"attn 270m prefill 2048 window 512", 4, 1, 256, 1, 2048, 2048, 512, true},
    {"attn 0.6b prefill 2048", 16, 8, 128, 1, 2048, 2048, 0, true},
    {"attn vit 4096 of 72", 16, 16, 72, 1, 4096, 4096, 0, false},
    {"attn vit 1024 of 64", 16, 16, 64, 1, 1024, 1024, 0, false},
    {"attn vit 64 of 80", 16, 16, 80, 1, 64, 64, 0, false},
    {"attn 270m decode 8192", 4, 1, 256, 1, 1, 8192, 0, true},
    {"attn 0.6b decode 8192", 16, 8, 128, 1, 1, 8192, 0, true},
    {"attn 3b decode 8192", 16, 2, 128, 1, 1, 8192, 0, true},
    {"attn 270m decode 8 x 1024", 4, 1, 256, 8, 1, 1024, 0, true},
    {"attn 270m decode 32 x 160", 4, 1, 256, 32, 1, 160, 0, true},
    {"attn 0.5b decode 32 x 160", 14, 2, 64, 32, 1, 160, 0, true},
};

static uint32_t *numbers(struct backend *b, uint32_t count)
{
    void *p = NULL;
    if (be_cpu_ops()->alloc(b, (size_t)count * sizeof(uint32_t), &p) != BE_OK) must(NULL);
    return p; /* the CPU's memory is ours to write */
}

static void bench_attention(struct backend *b, enum be_dtype act, const struct attention *s,
                            const struct be_ceiling *ceil)
{
    const struct be_ops *ops = be_cpu_ops();
    size_t layer = ops->kv_layer_bytes(b, BE_KV_ACT, s->kv_heads, s->dim),
           unit = (layer + BE_KV_GRAIN - 1) / BE_KV_GRAIN;
    uint32_t blocks = (s->keys + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS, all = s->heads + 2 * s->kv_heads,
             most = s->keys > s->seqs ? s->keys : s->seqs;
    uint32_t copies = (uint32_t)(BENCH_BYTES / 4 / (layer * blocks * s->seqs)) +
                      1; /* layers in turn, so that a decode step finds nothing in the caches */
    if (s->t > 1) copies = 1;
    void *arena = NULL, *q = NULL, *out = NULL, *qkv = NULL;
    if (ops->alloc(b, unit * BE_KV_GRAIN * blocks * s->seqs * copies, &arena) != BE_OK ||
        ops->alloc(b, (size_t)most * all * s->dim * 4, &qkv) != BE_OK ||
        ops->alloc(b, (size_t)most * s->heads * s->dim * 4, &q) != BE_OK ||
        ops->alloc(b, (size_t)most * be_ld((size_t)s->heads * s->dim) * 4, &out) != BE_OK)
        must(NULL);
    uint64_t rng = 1;
    for (size_t i = 0; i < (size_t)most * all * s->dim; i++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        ((float *)qkv)[i] = (float)(int32_t)(rng >> 32) * 0x1p-31f;
    }
    uint32_t *tables = numbers(b, blocks * s->seqs * copies), *pos = numbers(b, most), *lo = numbers(b, most),
             *hi = numbers(b, most);
    uint32_t *seq_row = numbers(b, s->seqs + 1), *seq_table = numbers(b, s->seqs);
    struct be_kv kv = {.arena = arena, .kv_heads = s->kv_heads, .head_dim = s->dim};
    for (uint32_t i = 0; i < blocks * s->seqs * copies; i++) tables[i] = (uint32_t)(i * unit);
    struct be_rows rows = {.t = s->keys,
                           .seq_count = 1,
                           .seq_row = seq_row,
                           .seq_table = seq_table,
                           .pos = pos,
                           .lo = lo,
                           .hi = hi};
    seq_row[1] = s->keys;
    for (uint32_t i = 0; i < s->keys; i++) pos[i] = i;
    for (uint32_t c = 0; c < copies * s->seqs; c++) {
        rows.tables = tables + (size_t)c * blocks;
        ops->qkv(b, &(struct be_qkv_args){.rows = &rows, .heads = s->heads, .kv = kv, .qkv = qkv, .q = q});
    }
    double pairs = 0;
    rows.t = s->t * s->seqs;
    rows.seq_count = s->seqs;
    for (uint32_t i = 0; i < rows.t; i++) {
        uint32_t p = s->keys - s->t + i % s->t;
        pos[i] = p;
        hi[i] = s->causal ? p : s->keys - 1;
        lo[i] = s->window && p + 1 > s->window ? p + 1 - s->window : 0;
        pairs += hi[i] - lo[i] + 1;
    }
    for (uint32_t i = 0; i < s->seqs; i++) {
        seq_row[i + 1] = (i + 1) * s->t;
        seq_table[i] = i * blocks;
    }
    static double times[BENCH_RUNS];
    double spent = 0;
    int chunks = 0;
    while (chunks < 5 || (spent < BENCH_SECONDS && chunks < BENCH_RUNS)) {
        rows.tables = tables + (size_t)((uint32_t)chunks % copies) * blocks * s->seqs;
        double start = now();
        ops->attn(b, &(struct be_attn_args){
                         .rows = &rows, .heads = s->heads, .kv = kv, .q = q, .scale = 0.0625f, .out = out});
        times[chunks] = now() - start;
        spent += times[chunks++];
    }
    qsort(times, (size_t)chunks, sizeof *times, by_value);
    double median = times[chunks / 2], best = times[0], flops = 4.0 * pairs * s->heads * s->dim;
    double bytes = (s->t > 1 ? s->keys : pairs) * s->kv_heads * s->dim * 2.0 * (double)be_dtype_bytes(act);
    printf("%-34s %9.1f us  read %5.1f GB/s %3.0f%% (%3.0f%%)  %7.3f TFLOP/s %3.0f%% (%3.0f%%)\n", s->name,
           median * 1e6, bytes / median * 1e-9, 100 * bytes / median / ceil->read_bytes_per_s,
           100 * bytes / best / ceil->read_bytes_per_s, flops / median * 1e-12,
           100 * flops / median / ceil->matrix_flops, 100 * flops / best / ceil->matrix_flops);
    void *used[] = {arena, q, out, qkv, tables, pos, lo, hi, seq_row, seq_table};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++) ops->free(b, used[i]);
}

int main(int argc, char **argv)
{
    static const char *sets[] = {"amx", "avx512", "avx2", "neon", "reference"};
    const char *want = argc > 1 ? argv[1] : "all";
    enum be_dtype act = argc > 2 && !strcmp(argv[2], "f32") ? BE_F32 : BE_BF16;
    uint32_t threads = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0,
             only = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 0;
    if (threads == 1) bench_clock = CLOCK_THREAD_CPUTIME_ID;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if ((strcmp(want, "all") != 0 && strcmp(want, sets[i]) != 0) || !be_cpu_has(sets[i])) continue;
        struct be_params p = {.act = act, .threads = threads, .kernels = sets[i]};
        struct backend *b;
        struct be_ceiling ceil;
        if (be_cpu_ops()->open(&p, &b) != BE_OK || be_cpu_ops()->ceiling(b, &ceil) != BE_OK) return 1;
        struct be_caps caps;
        be_cpu_ops()->caps(b, &caps);
        printf("%s %s on %s: peak %.3f TFLOP/s, read %.1f GB/s\n", caps.name, act == BE_F32 ? "f32" : "bf16",
               caps.device, ceil.matrix_flops * 1e-12, ceil.read_bytes_per_s * 1e-9);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            if (argc <= 5 || strstr(shapes[s].name, argv[5])) bench_shape(b, act, &shapes[s], only, &ceil);
        for (size_t s = 0; s < sizeof attentions / sizeof *attentions; s++)
            if (argc <= 5 || strstr(attentions[s].name, argv[5]))
                bench_attention(b, act, &attentions[s], &ceil);
        be_cpu_ops()->close(b);
    }
    return 0;
}
