/* The blocking of linear over rows and threads (linear.h). Plain C: instruction sets only appear behind
 * struct linear_set. */
#include "kernels/cpu/linear/linear.h"

static void linear__pack_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct linear_job *j = ctx;
    uint32_t unit = j->set->pack_rows;
    j->set->pack(j, begin * unit, u32_min(end * unit, j->m));
}

static void linear__pairs_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    const struct linear_job *j = ctx;
    j->set->pairs(j, begin, end, j->scratch + worker * j->scratch_bytes);
}

/* Weights in a work item of few rows, some 60 us: each work item begins with a gap until its first bytes have
 * arrived. */
#define LINEAR_ITEM_BYTES ((size_t)1 << 20)

/* Rows of fewer bytes are rearranged by the calling thread: waking the others takes longer. */
#define LINEAR_PACK_ALONE ((size_t)32 << 10)

/* Pairs in a work item: few enough that the threads end together, enough bytes that claiming one is
 * negligible. */
static uint32_t linear__grain(const struct backend *b, const struct linear_set *set,
                              const struct be_weight *w, uint32_t m)
{
    size_t pair_bytes = 2 * w->panel_bytes;
    if (set->rows_bytes && (size_t)m * w->kpad * be_dtype_bytes(w->type) > set->rows_bytes) {
        /* The rows do not stay in the cache: each work item reads them again, so work items are as wide as
         * possible, their number a multiple of the threads. */
        uint32_t rounds = (w->pairs - 1) / (b->threads * set->pairs_max) + 1;
        return (w->pairs - 1) / (rounds * b->threads) + 1;
    }
    uint32_t most = u32_max(1, w->pairs / (b->threads * 5));
    if (m > 32 || (set->pack && m >= set->pack_min)) most = u32_min(most, set->pairs_max);
    if (m > 32) return most;
    uint32_t want = (uint32_t)((LINEAR_ITEM_BYTES + pair_bytes - 1) / pair_bytes);
    return u32_max(1, u32_min(want, most));
}

uint32_t linear_block_rows(const struct linear_set *set, size_t row_bytes)
{
    size_t fit = set->rows_bytes / row_bytes / 32 * 32;
    return fit >= CPU_M_BLOCK / 2 && fit < CPU_M_BLOCK ? (uint32_t)fit : CPU_M_BLOCK;
}

/* ---- many rows: each thread takes blocks of rows with all columns, and rearranges its own rows. Rows that
 * another core has just written are slow to read, and with enough rows a block reading all weights by itself
 * costs less than that. */

#define LINEAR_OWN_ROWS 256u /* of a block: fewer would read the weights too often */

struct linear_own {
    struct linear_job job; /* of the whole call */
    uint32_t step;         /* rows of a block */
    size_t pack_bytes;     /* of one thread's part of the rearranged rows */
};

static void linear__own_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    const struct linear_own *o = ctx;
    for (uint32_t block = begin; block < end; block++) {
        struct linear_job j = o->job;
        j.row0 = block * o->step;
        j.m = u32_min(o->step, j.a->t - j.row0);
        j.x = (const char *)j.a->x + (size_t)j.row0 * j.w->kpad * be_dtype_bytes(j.w->type);
        j.packed = NULL;
        if (j.m >= j.set->pack_min) {
            j.packed = o->job.packed + worker * o->pack_bytes;
            j.set->pack(&j, 0, j.m);
        }
        for (uint32_t p = 0; p < j.w->pairs; p += j.set->pairs_max)
            j.set->pairs(&j, p, u32_min(p + j.set->pairs_max, j.w->pairs),
                         j.scratch + worker * j.scratch_bytes);
    }
}

/* false: the shape is better divided by columns. */
static bool linear__by_rows(struct backend *b, const struct be_linear_args *a, const struct linear_set *set,
                            const struct linear_job *whole)
{
    size_t row_bytes = (size_t)a->w->kpad * be_dtype_bytes(a->w->type);
    if (b->threads == 1 || !set->rows_bytes || a->t < b->threads * LINEAR_OWN_ROWS ||
        LINEAR_OWN_ROWS * row_bytes > set->rows_bytes)
        return false;
    uint32_t rounds = (a->t - 1) / (b->threads * (LINEAR_OWN_ROWS + 32)) + 1;
    struct linear_own o = {.job = *whole, .step = ((a->t - 1) / (rounds * b->threads) / 32 + 1) * 32};
    o.pack_bytes = o.step * row_bytes;
    if (o.pack_bytes * b->threads > b->rows_scratch_bytes) return false;
    o.job.packed = b->rows_scratch;
    cpu_pool_run(b->pool, (a->t - 1) / o.step + 1, 1, linear__own_range, &o);
    return true;
}

void cpu_linear(struct backend *b, const struct be_linear_args *a, const struct linear_set *set)
{
    struct linear_job j = {.a = a,
                           .w = a->w,
                           .set = set,
                           .scratch = b->thread_scratch,
                           .scratch_bytes = b->thread_scratch_bytes};
    if (linear__by_rows(b, a, set, &j)) return;
    size_t row_bytes = (size_t)a->w->kpad * be_dtype_bytes(a->w->type);
    /* Blocks of about equal size: 600 rows are two of 300, not 512 and 88. */
    uint32_t blocks = (a->t - 1) / linear_block_rows(set, row_bytes) + 1,
             step = ((a->t - 1) / blocks / 32 + 1) * 32;
    for (j.row0 = 0; j.row0 < a->t; j.row0 += j.m) {
        j.m = u32_min(step, a->t - j.row0);
        j.x = (const char *)a->x + j.row0 * row_bytes;
        j.packed = NULL;
        if (set->pack && j.m >= set->pack_min) {
            j.packed = b->rows_scratch;
            if (j.m * row_bytes < LINEAR_PACK_ALONE) set->pack(&j, 0, j.m);
            else cpu_pool_run(b->pool, (j.m - 1) / set->pack_rows + 1, 2, linear__pack_range, &j);
        }
        cpu_pool_run(b->pool, a->w->pairs, linear__grain(b, set, a->w, j.m), linear__pairs_range, &j);
    }
}

/* ---- several products: of few rows each, work items of all of them in one go over the pool ---- */

#define LINEARS_ROWS 16u
#define LINEARS_ITEM ((size_t)64 << 10) /* bytes of weights */

struct linears {
    const struct be_linear_args *a;
    struct backend *b;
    const struct linear_set *set;
    uint32_t slices, grain; /* work items of a product; pairs of a work item */
};

/* Whether each work item may rearrange the rows for itself. */
static bool linears__few(const struct linear_set *set, const struct be_linear_args *a)
{
    return set && a->t <= LINEARS_ROWS &&
           (size_t)a->t * a->w->kpad * u32_max(set->pack_elem, 4) <= CPU_THREAD_SCRATCH / 2;
}

static void linears__range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    const struct linears *l = ctx;
    for (uint32_t i = begin; i < end; i++) {
        const struct be_linear_args *a = &l->a[i / l->slices];
        uint32_t pair = i % l->slices * l->grain;
        char *scratch = cpu_thread_scratch(l->b, worker);
        struct linear_job j = {.a = a, .w = a->w, .m = a->t, .x = a->x, .set = l->set};
        if (a->t == 0 || pair >= a->w->pairs || !linears__few(l->set, a)) continue;
        if (l->set->pack && j.m >= l->set->pack_min) {
            j.packed = scratch + CPU_THREAD_SCRATCH / 2;
            l->set->pack(&j, 0, j.m);
        }
        l->set->pairs(&j, pair, u32_min(pair + l->grain, a->w->pairs), scratch);
    }
}

void cpu_linears(struct backend *b, const struct be_linear_args *a, uint32_t count)
{
    bool bf16 = b->act == BE_BF16;
    struct linears l = {
        .a = a, .b = b, .set = bf16 ? b->kern->set_bf16 : b->kern->set_f32, .grain = UINT32_MAX};
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (a[i].t == 0) continue;
        if (!linears__few(l.set, &a[i])) {
            (bf16 ? b->kern->linear_bf16 : b->kern->linear_f32)(b, &a[i]);
            continue;
        }
        most = u32_max(most, a[i].w->pairs);
        l.grain = u32_min(l.grain, (uint32_t)(LINEARS_ITEM / (2 * a[i].w->panel_bytes)) + 1);
    }
    if (!most) return;
    l.slices = (most - 1) / l.grain + 1;
    cpu_pool_run(b->pool, count * l.slices, 1, linears__range, &l);
}
