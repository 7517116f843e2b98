/* Attention of every kernel set that the CPU has against the plain C one, over head counts and sizes,
 * windows, groups, images, ragged batches and what keys and values are kept as; and bit-equality inside a
 * set: rows alone, cut into chunks, alongside other sequences, with any number of threads.
 *
 *     test_backend_attn [--bench [set]]      --bench prints processor times of real shapes on one thread
 * instead */
#include "kernels/backend.h"
#include "tests/lib/backend_sets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

struct shape {
    uint32_t heads, kv_heads, dim, window;
    float softcap;
    float gain;     /* of the scale, 0 = 1: how far apart the scores lie */
    uint32_t group; /* not 0: runs of this many rows see each other and nothing else; the last run of a
                       sequence may be shorter */
};
static const struct shape shapes[] = {
    {4, 1, 256, 0, 0, 0, 0},   {4, 1, 256, 300, 0, 0, 0}, {3, 1, 24, 9, 0, 0, 0},    {8, 4, 64, 0, 0, 0, 0},
    {16, 16, 72, 0, 0, 0, 0},  {2, 2, 20, 0, 0, 0, 0},    {6, 2, 128, 33, 50, 0, 0}, {5, 5, 10, 1, 0, 0, 0},
    {12, 2, 80, 64, 0, 0, 0},  {40, 1, 16, 0, 0, 0, 0},   {2, 1, 512, 100, 0, 0, 0}, {4, 2, 72, 0, 0, 12, 0},
    {4, 1, 256, 40, 0, 12, 0}, {4, 1, 256, 0, 0, 12, 0},  {3, 1, 128, 0, 0, 12, 0},  {2, 2, 64, 0, 0, 12, 0},
    {2, 2, 80, 0, 0, 0, 64},   {3, 3, 8, 0, 0, 0, 4},     {2, 2, 20, 0, 0, 0, 16},   {1, 1, 40, 0, 0, 0, 64},
    {2, 1, 24, 0, 0, 12, 12},  {1, 1, 80, 0, 0, 12, 256}, {2, 2, 72, 0, 0, 0, 1000}, {1, 1, 44, 0, 30, 0, 7},
};
#define sets backend_sets /* "reference" is what the others are measured by */

/* Sequences of one batch: tokens in all, of which those from `first` on are asked about, and an image
 * [begin, end) whose rows see each other. The brief ones (KVASIR_TEST_SHORT on the emulated device) reach
 * beyond the 512 keys where a split ends with few rows. */
struct seq {
    uint32_t tokens, image_begin, image_end, first;
};
static const struct seq all_seqs[] = {{1, 0, 0, 0},   {45, 3, 19, 0}, {700, 250, 330, 0},
                                      {33, 0, 32, 0}, {2, 0, 0, 0},   {290, 0, 0, 0}};
static const struct seq brief_seqs[] = {{1, 0, 0, 0},    {40, 3, 19, 0}, {530, 500, 515, 505},
                                        {33, 0, 32, 30}, {2, 0, 0, 0},   {70, 0, 0, 62}};
static const struct seq *seqs = all_seqs;
static uint32_t tokens; /* of all sequences */
#define SEQS    (sizeof all_seqs / sizeof *all_seqs)
#define TOKENS  1071u /* at most */
#define PATTERN 0x7fc1
_Static_assert(sizeof all_seqs == sizeof brief_seqs, "as many");

static bool on_emulator_in_brief(void)
{
    return !BACKEND_ON_CPU && getenv("KVASIR_TEST_SHORT") != NULL;
}

struct world {
    const struct be_ops *ops;
    struct backend *b;
    const struct shape *sh;
    enum be_dtype act;
    void *arena, *q;
    struct be_kv kv;
    uint32_t units; /* of a block */
    uint32_t tables[TOKENS / BE_BLOCK_TOKENS + 2 * SEQS], table_at[SEQS], first_row[SEQS + 1];
};

static float noise(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return (float)(*s >> 8) * (2.0f / 16777216.0f) - 1.0f;
}

static void fill_rows(const struct world *w, uint32_t seq, uint32_t from, uint32_t to, uint32_t row,
                      uint32_t *pos, uint32_t *lo, uint32_t *hi)
{
    for (uint32_t p = from; p < to; p++, row++) {
        pos[row] = p;
        if (w->sh->group) {
            uint32_t first = p / w->sh->group * w->sh->group, end = first + w->sh->group;
            lo[row] = first;
            hi[row] = (end < seqs[seq].tokens ? end : seqs[seq].tokens) - 1;
            continue;
        }
        lo[row] = w->sh->window && p + 1 > w->sh->window ? p + 1 - w->sh->window : 0;
        hi[row] = p >= seqs[seq].image_begin && p < seqs[seq].image_end ? seqs[seq].image_end - 1 : p;
    }
}

/* Writes all keys and values of all sequences into the cache, from seeded noise, and leaves the queries in
 * w->q. */
static void world_open(struct world *w, const struct shape *sh, enum be_dtype act, enum be_kv_type type,
                       const char *set, uint32_t threads)
{
    memset(w, 0, sizeof *w);
    w->ops = be_cpu_ops();
    w->sh = sh;
    w->act = act;
    const struct be_params p = {.act = act, .threads = threads, .kernels = set};
    assert_int_equal(w->ops->open(&p, &w->b), BE_OK);
    size_t layer = w->ops->kv_layer_bytes(w->b, type, sh->kv_heads, sh->dim);
    assert_true(layer > 0);
    w->units = (uint32_t)((layer + BE_KV_GRAIN - 1) / BE_KV_GRAIN);
    uint32_t blocks = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        w->table_at[s] = blocks;
        w->first_row[s + 1] = w->first_row[s] + seqs[s].tokens;
        for (uint32_t i = 0; i < (seqs[s].tokens + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS; i++) blocks++;
    }
    tokens = w->first_row[SEQS];
    assert_true(tokens <= TOKENS);
    for (uint32_t i = 0; i < blocks; i++)
        w->tables[i] = (blocks - 1 - i) * w->units; /* scattered: last block first */
    size_t arena = (size_t)blocks * w->units * BE_KV_GRAIN;
    assert_int_equal(w->ops->alloc(w->b, arena, &w->arena), BE_OK);
    memset(w->arena, act == BE_F32 ? 0x3f : 0x3f, arena); /* a used arena: finite rubbish */
    w->kv = (struct be_kv){.arena = w->arena, .kv_heads = sh->kv_heads, .head_dim = sh->dim, .type = type};
    uint32_t width = (sh->heads + 2 * sh->kv_heads) * sh->dim, seed = 7;
    float *qkv = malloc((size_t)tokens * width * sizeof *qkv);
    for (size_t i = 0; i < (size_t)tokens * width; i++) qkv[i] = noise(&seed) * 1.7f;
    assert_int_equal(w->ops->alloc(w->b, (size_t)tokens * sh->heads * sh->dim * be_dtype_bytes(act), &w->q),
                     BE_OK);
    static uint32_t pos[TOKENS], lo[TOKENS], hi[TOKENS];
    for (uint32_t s = 0; s < SEQS; s++) fill_rows(w, s, 0, seqs[s].tokens, w->first_row[s], pos, lo, hi);
    const struct be_rows rows = {.t = tokens,
                                 .seq_count = SEQS,
                                 .seq_row = w->first_row,
                                 .seq_table = w->table_at,
                                 .tables = w->tables,
                                 .pos = pos,
                                 .lo = lo,
                                 .hi = hi};
    const struct be_qkv_args a = {.rows = &rows, .heads = sh->heads, .kv = w->kv, .qkv = qkv, .q = w->q};
    w->ops->qkv(w->b, &a);
    free(qkv);
}

static void world_close(struct world *w)
{
    w->ops->free(w->b, w->arena);
    w->ops->free(w->b, w->q);
    w->ops->close(w->b);
}

static uint32_t clipped(uint32_t s, uint32_t p)
{
    return p < seqs[s].first ? seqs[s].first : p < seqs[s].tokens ? p : seqs[s].tokens;
}

/* Attention of tokens [from, to) of the sequences in [s0, s1) (clipped to what is asked about) into out (act
 * rows of all tokens, stride be_ld). */
static void attend(const struct world *w, uint32_t s0, uint32_t s1, uint32_t from, uint32_t to, void *out)
{
    size_t e = be_dtype_bytes(w->act), ld = be_ld((size_t)w->sh->heads * w->sh->dim),
           qrow = (size_t)w->sh->heads * w->sh->dim * e;
    static uint32_t pos[TOKENS], lo[TOKENS], hi[TOKENS];
    uint32_t starts[SEQS + 1] = {0}, t = 0;
    char *q = malloc(tokens * qrow + 64), *o = malloc(tokens * ld * e + 128);
    for (uint32_t s = s0; s < s1; s++) {
        uint32_t a = clipped(s, from), b = clipped(s, to);
        fill_rows(w, s, a, b, t, pos, lo, hi);
        memcpy(q + t * qrow, (const char *)w->q + (w->first_row[s] + a) * qrow, (b - a) * qrow);
        t += b - a;
        starts[s - s0 + 1] = t;
    }
    if (t > 0) {
        char *sentinel = o + (size_t)t * ld * e;
        memset(o, 0x5a, (size_t)t * ld * e + 64);
        const struct be_rows rows = {.t = t,
                                     .seq_count = s1 - s0,
                                     .seq_row = starts,
                                     .seq_table = w->table_at + s0,
                                     .tables = w->tables,
                                     .pos = pos,
                                     .lo = lo,
                                     .hi = hi};
        const struct be_attn_args args = {.rows = &rows,
                                          .heads = w->sh->heads,
                                          .kv = w->kv,
                                          .q = q,
                                          .scale = (w->sh->gain > 0 ? w->sh->gain : 0.9f) /
                                                   sqrtf((float)w->sh->dim),
                                          .softcap = w->sh->softcap,
                                          .out = o};
        w->ops->attn(w->b, &args);
        for (int i = 0; i < 64; i++) assert_int_equal(sentinel[i], 0x5a);
        for (uint32_t s = s0, r = 0; s < s1; s++) {
            uint32_t a = clipped(s, from), b = clipped(s, to);
            memcpy((char *)out + (w->first_row[s] + a) * ld * e, o + r * ld * e, (b - a) * ld * e);
            r += b - a;
        }
    }
    free(q);
    free(o);
}

static float value(const void *p, enum be_dtype act, size_t i)
{
    if (act == BE_F32) return ((const float *)p)[i];
    uint32_t u = (uint32_t)((const uint16_t *)p)[i] << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static void check_shape(const struct shape *sh, enum be_dtype act, enum be_kv_type type, const char *set)
{
    size_t ld = be_ld((size_t)sh->heads * sh->dim), bytes = (size_t)TOKENS * ld * be_dtype_bytes(act);
    void *want = calloc(1, bytes), *whole = calloc(1, bytes), *part = calloc(1, bytes);
    struct world w;
    world_open(&w, sh, act, type, "reference", 2);
    attend(&w, 0, SEQS, 0, 1000, want);
    world_close(&w);
    world_open(&w, sh, act, type, set, 1);
    attend(&w, 0, SEQS, 0, 1000, whole);
    /* Values are within +-1.7. f32: order of sums and the exponential, 1e-5; bf16: probabilities are rounded
     * to 8 bits before they meet the values, and the result once more (2^-9 each, on averages of such
     * values). */
    double bound = act == BE_F32 ? 2e-5 : 2.5e-2, worst = 0;
    for (size_t i = 0; i < (size_t)TOKENS * ld; i++) {
        double d = fabs((double)value(want, act, i) - (double)value(whole, act, i));
        if (!(d <= worst) && !isnan(worst)) worst = d; /* a NaN stays */
        if (i % ld >= (size_t)sh->heads * sh->dim) assert_true(value(whole, act, i) == 0.0f);
    }
    if (!(worst <= bound))
        print_message("%s type %d, %u/%u heads of %u, window %u, groups of %u, gain %g: off by %g\n", set,
                      (int)type, sh->heads, sh->kv_heads, sh->dim, sh->window, sh->group, (double)sh->gain,
                      worst);
    assert_true(worst <= bound);
    world_close(&w);
    bool brief = getenv("KVASIR_TEST_SHORT") != NULL;
    uint32_t most = !BACKEND_ON_CPU ? 1 : brief ? 2 : 3;
    for (uint32_t threads = BACKEND_ON_CPU && test_briefly() ? 2 : 1; threads <= most; threads++) {
        world_open(&w, sh, act, type, set, threads);
        static const uint32_t chunks[] = {1, 7, 64, 1000};
        for (uint32_t c = threads == 1 ? brief : 2; c < 4; c++) {
            if (c == 2 && on_emulator_in_brief()) continue;
            memset(part, 0, bytes);
            for (uint32_t from = 0; from < 1000; from += chunks[c])
                attend(&w, 0, SEQS, from, from + chunks[c], part);
            assert_memory_equal(part, whole, bytes);
        }
        memset(part, 0, bytes);
        for (uint32_t s = 0; s < SEQS; s++) attend(&w, s, s + 1, 0, 1000, part);
        assert_memory_equal(part, whole, bytes);
        world_close(&w);
    }
    free(want);
    free(whole);
    free(part);
}

static bool brief_too(const struct shape *sh)
{
    return sh->dim == 512 || (sh->dim == 128 && sh->softcap > 0) || (sh->dim == 72 && sh->gain > 0) ||
           (sh->dim == 44);
}

static void test_sets(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < (uint32_t)TEST_SETS; k++) {
        if (strcmp(sets[k], "reference") == 0) continue;
        if (!be_cpu_has(sets[k])) {
            if (BACKEND_ON_CPU) print_message("this CPU has no %s\n", sets[k]);
            continue;
        }
        if (on_emulator_in_brief()) seqs = brief_seqs;
        /* Under a sanitizer (KVASIR_TEST_SHORT) only the shapes with the oddest sizes; on the device also
         * some of each kind of kernel. */
        for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            bool rest = shapes[i].dim > 24;
            if (getenv("KVASIR_TEST_SHORT") && rest && (BACKEND_ON_CPU || !brief_too(&shapes[i]))) continue;
            if (BACKEND_ON_CPU && test_briefly() && (i + k) % 2) continue; /* each shape on every other set */
            if (!rest || !on_emulator_in_brief()) check_shape(&shapes[i], BE_F32, BE_KV_ACT, sets[k]);
            check_shape(&shapes[i], BE_BF16, BE_KV_ACT, sets[k]);
            if (!BACKEND_ON_CPU || (getenv("KVASIR_TEST_SHORT") && i % 2)) continue;
            if (!rest) check_shape(&shapes[i], BE_F32, BE_KV_INT8, sets[k]);
            check_shape(&shapes[i], BE_BF16, BE_KV_INT8, sets[k]);
        }
    }
    assert_true(be_cpu_has("reference"));
}

/* ---- a long sequence: rows on both sides of position 16384, where the device cuts the keys into longer
 * pieces; some see all keys, some the last few thousand. Bits alone, in chunks and together; values against
 * plain C. */

enum {
    LONG_FIRST = 16370,
    LONG_ROWS = 30,
    LONG_KEYS = LONG_FIRST + LONG_ROWS,
    LONG_HEADS = 40,
    LONG_DIM = 16
};

struct long_world {
    const struct be_ops *ops;
    struct backend *b;
    struct be_kv kv;
    uint32_t tables[(LONG_KEYS + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS], pos[LONG_KEYS], lo[LONG_KEYS],
        hi[LONG_KEYS];
    uint16_t q[LONG_ROWS * LONG_HEADS * LONG_DIM];
};

static void long_open(struct long_world *w, const char *set)
{
    enum { BLOCKS = sizeof w->tables / sizeof *w->tables, CHUNK = 4096 };
    w->ops = be_cpu_ops();
    const struct be_params p = {.act = BE_BF16, .threads = 2, .kernels = set};
    assert_int_equal(w->ops->open(&p, &w->b), BE_OK);
    uint32_t units = (uint32_t)((w->ops->kv_layer_bytes(w->b, BE_KV_ACT, 1, LONG_DIM) + BE_KV_GRAIN - 1) /
                                BE_KV_GRAIN),
             seed = 11, zero = 0;
    void *arena = NULL;
    assert_int_equal(w->ops->alloc(w->b, (size_t)BLOCKS * units * BE_KV_GRAIN, &arena), BE_OK);
    w->kv = (struct be_kv){.arena = arena, .kv_heads = 1, .head_dim = LONG_DIM};
    for (uint32_t i = 0; i < BLOCKS; i++) w->tables[i] = (i * 7 % BLOCKS) * units;
    assert_int_not_equal(BLOCKS % 7, 0);
    for (uint32_t i = 0; i < LONG_KEYS; i++) {
        w->pos[i] = w->hi[i] = i;
        w->lo[i] = i % 3 == 1 ? i - 5000 : 0;
    }
    float *qkv = malloc(sizeof *qkv * CHUNK * 3 * LONG_DIM);
    uint16_t *q = malloc(sizeof *q * CHUNK * LONG_DIM);
    assert_true(qkv && q);
    for (uint32_t first = 0; first < LONG_KEYS; first += CHUNK) {
        uint32_t t = LONG_KEYS - first < CHUNK ? LONG_KEYS - first : CHUNK, starts[2] = {0, t};
        for (uint32_t i = 0; i < t * 3 * LONG_DIM; i++) qkv[i] = noise(&seed) * 1.7f;
        const struct be_rows rows = {
            t, 1, starts, &zero, w->tables, w->pos + first, w->lo + first, w->hi + first};
        const struct be_qkv_args a = {.rows = &rows, .heads = 1, .kv = w->kv, .qkv = qkv, .q = q};
        w->ops->qkv(w->b, &a);
    }
    for (size_t i = 0; i < sizeof w->q / sizeof *w->q; i++) {
        float v = noise(&seed);
        uint32_t u;
        memcpy(&u, &v, 4);
        w->q[i] = (uint16_t)(u >> 16);
    }
    free(qkv);
    free(q);
}

/* Rows [from, from + t) of the LONG_ROWS. */
static void long_attend(const struct long_world *w, uint32_t from, uint32_t t, uint16_t *out)
{
    uint32_t starts[2] = {0, t}, zero = 0, at = LONG_FIRST + from;
    const struct be_rows rows = {t, 1, starts, &zero, w->tables, w->pos + at, w->lo + at, w->hi + at};
    const struct be_attn_args a = {.rows = &rows,
                                   .heads = LONG_HEADS,
                                   .kv = w->kv,
                                   .q = w->q + (size_t)from * LONG_HEADS * LONG_DIM,
                                   .scale = 0.7f,
                                   .out = out};
    w->ops->attn(w->b, &a);
}

static void test_long(void **state)
{
    (void)state;
    enum {
        ROW = LONG_HEADS * LONG_DIM,
        CELLS = LONG_ROWS * ROW
    }; /* a multiple of BE_ROW_ALIGN: no padding */
    static struct long_world w;
    static uint16_t want[CELLS], whole[CELLS], part[CELLS];
    if (test_briefly() || (!BACKEND_ON_CPU && getenv("KVASIR_TEST_SHORT"))) skip(); /* takes minutes there */
    long_open(&w, "reference");
    long_attend(&w, 0, LONG_ROWS, want);
    w.ops->free(w.b, w.kv.arena);
    w.ops->close(w.b);
    for (uint32_t k = 0; k < (uint32_t)TEST_SETS; k++) {
        if (!be_cpu_has(sets[k])) continue;
        long_open(&w, sets[k]);
        long_attend(&w, 0, LONG_ROWS, whole);
        /* Averages over thousands of values within 1.7: small, and so is what rounding the probabilities does
         * to them. */
        for (size_t i = 0; i < CELLS; i++)
            assert_true(fabs((double)value(want, BE_BF16, i) - (double)value(whole, BE_BF16, i)) <= 4e-3);
        static const uint32_t cuts[] = {1, 7};
        for (uint32_t c = 0; c < 2; c++) {
            memset(part, 0, sizeof part);
            for (uint32_t at = 0; at < LONG_ROWS; at += cuts[c])
                long_attend(&w, at, LONG_ROWS - at < cuts[c] ? LONG_ROWS - at : cuts[c],
                            part + (size_t)at * ROW);
            assert_memory_equal(part, whole, sizeof part);
        }
        w.ops->free(w.b, w.kv.arena);
        w.ops->close(w.b);
    }
}

/* ---- --bench */

/* Processor time of one thread: neighbours on the machine's cores don't count. */
static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void bench_one(const char *set, uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t from,
                      uint32_t t, uint32_t group)
{
    const struct be_ops *ops = be_cpu_ops();
    const struct be_params p = {.act = BE_BF16, .threads = 1, .kernels = set};
    struct backend *b;
    if (ops->open(&p, &b) != BE_OK) return;
    uint32_t all = from + t, blocks = (all + 31) / 32,
             units = (uint32_t)((ops->kv_layer_bytes(b, BE_KV_ACT, kv_heads, dim) + BE_KV_GRAIN - 1) /
                                BE_KV_GRAIN);
    void *arena, *q, *out;
    uint32_t *table = malloc(blocks * 4), *pos = malloc(t * 4), *lo = malloc(t * 4), *hi = malloc(t * 4),
             starts[2] = {0, t}, at = 0;
    if (ops->alloc(b, (size_t)blocks * units * BE_KV_GRAIN, &arena) ||
        ops->alloc(b, (size_t)t * heads * dim * 2, &q) ||
        ops->alloc(b, t * be_ld((size_t)heads * dim) * 2, &out))
        exit(1);
    for (uint32_t i = 0; i < blocks; i++) table[i] = i * units;
    /* bf16 noise within +-1.5, so that scores differ and the largest changes on the way */
    uint32_t seed = 3;
    for (size_t i = 0; i < (size_t)blocks * units * BE_KV_GRAIN / 2; i++)
        ((uint16_t *)arena)[i] = (uint16_t)(0x3f00 | (noise(&seed) > 0 ? 0x8000 : 0) | (seed >> 9 & 0xbf));
    for (size_t i = 0; i < (size_t)t * heads * dim; i++)
        ((uint16_t *)q)[i] = (uint16_t)(0x3f00 | (noise(&seed) > 0 ? 0x8000 : 0) | (seed >> 9 & 0xbf));
    for (uint32_t i = 0; i < t; i++) {
        pos[i] = from + i;
        lo[i] = group ? (from + i) / group * group : 0;
        hi[i] = group ? (lo[i] + group < all ? lo[i] + group : all) - 1 : from + i;
    }
    const struct be_rows rows = {.t = t,
                                 .seq_count = 1,
                                 .seq_row = starts,
                                 .seq_table = &at,
                                 .tables = table,
                                 .pos = pos,
                                 .lo = lo,
                                 .hi = hi};
    const struct be_attn_args a = {.rows = &rows,
                                   .heads = heads,
                                   .kv = {.arena = arena, .kv_heads = kv_heads, .head_dim = dim},
                                   .q = q,
                                   .scale = 1 / sqrtf((float)dim),
                                   .out = out};
    double best = 1e9, flops = 0;
    for (uint32_t i = 0; i < t; i++) flops += 4.0 * heads * dim * (hi[i] - lo[i] + 1);
    for (int i = 0; i < 5; i++) {
        double s = now_s();
        ops->attn(b, &a);
        s = now_s() - s;
        best = s < best ? s : best;
    }
    printf("%-9s %2u/%2u heads of %3u, %4u queries after %4u, groups of %4u: %8.3f ms  %.3f TFLOP/s  %.2f "
           "GB/s of KV\n",
           set, heads, kv_heads, dim, t, from, group, best * 1e3, flops / best * 1e-12,
           (double)all * kv_heads * dim * 4 / best * 1e-9);
    ops->free(b, arena);
    ops->free(b, q);
    ops->free(b, out);
    ops->close(b);
    free(table);
    free(pos);
    free(lo);
    free(hi);
}

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        for (uint32_t k = 0; k < (uint32_t)TEST_SETS; k++) {
            if (!be_cpu_has(sets[k]) || (argc > 2 && strcmp(argv[2], sets[k]) != 0)) continue;
            bench_one(sets[k], 4, 1, 256, 0, 512, 0);
            bench_one(sets[k], 4, 1, 256, 0, 2048, 0);
            bench_one(sets[k], 8, 4, 256, 0, 2048, 0);
            bench_one(sets[k], 4, 1, 256, 2047, 1, 0);
            bench_one(sets[k], 16, 2, 128, 0, 2048, 0);
            bench_one(sets[k], 14, 2, 64, 0, 2048, 0);
            bench_one(sets[k], 16, 16, 72, 0, 4096, 4096);
            bench_one(sets[k], 16, 16, 64, 0, 4096, 4096);
            bench_one(sets[k], 16, 16, 80, 0, 4096, 4096);
            bench_one(sets[k], 16, 16, 80, 0, 4096, 256);
            bench_one(sets[k], 16, 16, 80, 0, 4096, 64);
            bench_one(sets[k], 16, 16, 80, 0, 4096, 16);
            bench_one(sets[k], 16, 16, 80, 0, 4096, 4);
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sets), cmocka_unit_test(test_long)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
