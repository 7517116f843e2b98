/* Speed of linear by kernel set, shape and number of rows, as a share of what the machine can do (be_ops.ceiling): the better of matrix peak and
 * read bandwidth that the shape could reach. Not a test: nothing here fails.
 *
 *   bench_kernels [set|all] [bf16|f32] [threads] [only rows, 0 = all] [only shape, substring]
 *
 * Printed is the median of the runs and, in brackets, the best: on a shared machine the truth lies between them; a best above 100 % of the read bandwidth
 * means that a copy of a small weight was still in a cache.
 * With one thread its processor time is taken, so that other work on a shared machine counts less; with more, the time on the wall.
 *
 * Copies of the weight are used in turn (BENCH_BYTES in all), so that a decode step finds none of it in the caches. */
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
static const uint32_t row_counts[] = {1, 8, 16, 32, 64, 128, 512, 2048};

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

static void bench_shape(struct backend *b, enum be_dtype act, const struct shape *s, uint32_t only, const struct be_ceiling *ceil)
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
    d.src[0] = (struct be_weight_src){src, BE_BF16, false, s->n};
    d.src[1] = (struct be_weight_src){src + (s->glu ? elems / 2 : 0), BE_BF16, false, s->n};
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
        memcpy(rows + i * be_dtype_bytes(act), act == BE_F32 ? (void *)&wide : (void *)&v, be_dtype_bytes(act));
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
        int runs = 0;
        while (runs < 5 || (spent < BENCH_SECONDS && runs < BENCH_RUNS)) {
            a.w = w[at++ % copies];
            double start = now();
            ops->linear(b, &a);
            times[runs] = now() - start;
            spent += times[runs++];
        }
        qsort(times, (size_t)runs, sizeof *times, by_value);
        double median = times[runs / 2], best = times[0], flops = 2.0 * (double)elems * t, bytes = (double)ops->weight_bytes(w[0]);
        double limit = flops / ceil->matrix_flops > bytes / ceil->read_bytes_per_s ? flops / ceil->matrix_flops : bytes / ceil->read_bytes_per_s;
        printf("  T=%-5u %9.1f us  read %5.1f GB/s %3.0f%% (%3.0f%%)  %7.3f TFLOP/s %3.0f%% (%3.0f%%)  of the possible %3.0f%% (%3.0f%%)\n", t, median * 1e6,
               bytes / median * 1e-9, 100 * bytes / median / ceil->read_bytes_per_s, 100 * bytes / best / ceil->read_bytes_per_s, flops / median * 1e-12,
               100 * flops / median / ceil->matrix_flops, 100 * flops / best / ceil->matrix_flops, 100 * limit / median, 100 * limit / best);
    }
    for (uint32_t i = 0; i < copies; i++) ops->weight_free(b, w[i]);
    ops->free(b, x);
    ops->free(b, out);
    free(src);
}

int main(int argc, char **argv)
{
    static const char *sets[] = {"amx", "avx512", "avx2", "reference"};
    const char *want = argc > 1 ? argv[1] : "all";
    enum be_dtype act = argc > 2 && !strcmp(argv[2], "f32") ? BE_F32 : BE_BF16;
    uint32_t threads = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0, only = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 0;
    if (threads == 1) bench_clock = CLOCK_THREAD_CPUTIME_ID;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if ((strcmp(want, "all") != 0 && strcmp(want, sets[i]) != 0) || !be_cpu_has(sets[i])) continue;
        struct be_params p = {.act = act, .threads = threads, .kernels = sets[i]};
        struct backend *b;
        struct be_ceiling ceil;
        if (be_cpu_ops()->open(&p, &b) != BE_OK || be_cpu_ops()->ceiling(b, &ceil) != BE_OK) return 1;
        struct be_caps caps;
        be_cpu_ops()->caps(b, &caps);
        printf("%s %s on %s: peak %.3f TFLOP/s, read %.1f GB/s\n", caps.name, act == BE_F32 ? "f32" : "bf16", caps.device, ceil.matrix_flops * 1e-12,
               ceil.read_bytes_per_s * 1e-9);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            if (argc <= 5 || strstr(shapes[s].name, argv[5])) bench_shape(b, act, &shapes[s], only, &ceil);
        be_cpu_ops()->close(b);
    }
    return 0;
}
