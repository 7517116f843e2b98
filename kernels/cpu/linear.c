/* The blocking of linear over rows and threads (linear.h). Plain C: instruction sets only appear behind struct linear_set. */
#include "kernels/cpu/linear.h"

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

/* Pairs in a piece: few enough that the threads end together, enough bytes that claiming a piece costs nothing. */
static uint32_t linear__grain(const struct backend *b, const struct linear_set *set, const struct be_weight *w, uint32_t m)
{
    size_t pair_bytes = 2 * w->panel_bytes;
    if (set->rows_bytes && (size_t)m * w->kpad * be_dtype_bytes(w->type) > set->rows_bytes) {
        /* The rows do not stay in the cache: each piece reads them again, so pieces are as wide as may be, their number a multiple of the threads. */
        uint32_t rounds = (w->pairs - 1) / (b->threads * set->pairs_max) + 1;
        return (w->pairs - 1) / (rounds * b->threads) + 1;
    }
    uint32_t most = u32_min(set->pairs_max, u32_max(1, w->pairs / (b->threads * 5)));
    if (m > 32) return most;
    uint32_t want = (uint32_t)((((size_t)256 << 10) + pair_bytes - 1) / pair_bytes); /* 256 KB of weights: some 15 us */
    return u32_max(1, u32_min(want, most));
}

/* Rows of a block: as many as share one reading of the weights, as few as stay in the cache; how many changes no result. */
static uint32_t linear__block(const struct linear_set *set, size_t row_bytes)
{
    size_t fit = set->rows_bytes / row_bytes / 32 * 32;
    return fit >= CPU_M_BLOCK / 2 && fit < CPU_M_BLOCK ? (uint32_t)fit : CPU_M_BLOCK;
}

void cpu_linear(struct backend *b, const struct be_linear_args *a, const struct linear_set *set)
{
    struct linear_job j = {.a = a, .w = a->w, .set = set, .scratch = b->thread_scratch, .scratch_bytes = b->thread_scratch_bytes};
    size_t row_bytes = (size_t)a->w->kpad * be_dtype_bytes(a->w->type);
    /* Blocks of about equal size: 600 rows are two of 300, not 512 and 88. */
    uint32_t blocks = (a->t - 1) / linear__block(set, row_bytes) + 1, step = ((a->t - 1) / blocks / 32 + 1) * 32;
    for (j.row0 = 0; j.row0 < a->t; j.row0 += j.m) {
        j.m = u32_min(step, a->t - j.row0);
        j.x = (const char *)a->x + j.row0 * row_bytes;
        j.packed = NULL;
        if (set->pack && j.m >= set->pack_min) {
            j.packed = b->rows_scratch;
            cpu_pool_run(b->pool, (j.m - 1) / set->pack_rows + 1, 2, linear__pack_range, &j);
        }
        cpu_pool_run(b->pool, a->w->pairs, linear__grain(b, set, a->w, j.m), linear__pairs_range, &j);
    }
}
