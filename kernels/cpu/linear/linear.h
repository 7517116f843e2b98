/* How a linear operation is divided, the same for all vector sets: rows in blocks of CPU_M_BLOCK; for each
 * block the rows are first rearranged for the set (all threads), then work items of neighbouring pairs of
 * panels are computed (all threads, each its own outputs). */
#ifndef KVASIR_CPU_LINEAR_H
#define KVASIR_CPU_LINEAR_H

#include "kernels/cpu/internal.h"

struct linear_job {
    const struct be_linear_args *a;
    const struct be_weight *w;
    uint32_t row0, m;     /* the block's rows: [row0, row0 + m) of the call */
    const char *x;        /* the block's first row as passed by the caller, stride kpad elements */
    const uint32_t *pick; /* or NULL; pack only: row r of the block is row pick[r] of x */
    char *packed;         /* the rearranged rows, or NULL */
    /* BE_EPI_ADD_F32 only, or NULL: row r of the block adds add_weight[r] * result to row add_row[r] of out;
     * rows in ascending order of r. */
    const uint32_t *add_row;
    const float *add_weight;
    char *scratch; /* of thread 0 */
    size_t scratch_bytes;
    const struct linear_set *set;
};

struct linear_set {
    /* Rearranges rows [begin, end) of the block, in units of pack_rows rows, into job->packed. NULL: the rows
     * are used unchanged. */
    void (*pack)(const struct linear_job *job, uint32_t begin, uint32_t end);
    uint32_t pack_rows;
    uint32_t pack_elem; /* bytes of a rearranged element */
    uint32_t pack_min;  /* blocks of fewer rows are used unchanged */
    /* Outputs of pairs [begin, end) for all rows of the block, epilogue included. scratch: CPU_THREAD_SCRATCH
     * bytes of this thread. */
    void (*pairs)(const struct linear_job *job, uint32_t begin, uint32_t end, char *scratch);
    uint32_t pairs_max; /* most pairs in a work item */
    size_t rows_bytes;  /* limit for a block's rows if at least half of CPU_M_BLOCK fit; 0 = none */
};

void cpu_linear(struct backend *b, const struct be_linear_args *a, const struct linear_set *set);

/* Rows of a block: enough to share one read of the weights, few enough to stay in the cache; the number
 * doesn't change results. */
uint32_t linear_block_rows(const struct linear_set *set, size_t row_bytes);

/* Row r of the rows to rearrange. */
static inline const char *linear_src_row(const struct linear_job *j, uint32_t r)
{
    return j->x + (size_t)(j->pick ? j->pick[r] : r) * j->w->kpad * be_dtype_bytes(j->w->type);
}

/* Address of pair `pair` of row t, and how many of its columns are real outputs. f32 rows are dense; act rows
 * are padded to be_ld. */
static inline float *linear_out_f32(const struct linear_job *j, uint32_t t, uint32_t pair)
{
    return (float *)j->a->out + (size_t)(j->row0 + t) * j->w->n + (size_t)pair * 32;
}
static inline void *linear_out_act(const struct linear_job *j, uint32_t t, uint32_t pair)
{
    uint32_t n = j->w->glu ? j->w->n / 2 : j->w->n;
    size_t at = (size_t)(j->row0 + t) * be_ld(n) + (size_t)pair * (j->w->glu ? 16 : 32);
    return (char *)j->a->out + at * be_dtype_bytes(j->w->type);
}
/* Adds be_linear_args.add to the 32 packed sums of row t of the call. */
static inline void linear_add(const struct be_linear_args *a, uint32_t pair, uint32_t t, float *sums)
{
    uint32_t parts = a->w->glu ? 2 : 1, width = 32 / parts, n = a->w->n / parts, first = pair * width;
    const float *row = a->add + (size_t)t * a->w->n;
    for (uint32_t c = 0; c < 32; c++)
        if (first + c % width < n) sums[c] += row[c / width * n + first + c % width];
}
static inline uint32_t linear_cols(const struct linear_job *j, uint32_t pair)
{
    uint32_t n = j->w->glu ? j->w->n / 2 : j->w->n, width = j->w->glu ? 16 : 32, first = pair * width;
    return first >= n ? 0 : u32_min(width, n - first);
}

#endif
