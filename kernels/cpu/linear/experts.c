/* Experts on a vector set's linear. The rows of each expert are one block of work (more when they are many);
 * blocks are in ascending order of experts.
 *
 *   sort     rows and weights by expert, rows ascending: a counting sort
 *   gather   rows of a block, contiguous, as the set's linear needs them; skipped if they are contiguous
 *            already
 *   up       items (block, some pairs of columns) in one go over the pool; hidden rows are in sorted order,
 *            those of a block side by side
 *   pack     hidden rows, for sets and blocks that rearrange rows
 *   down     items of some pairs of columns, each over all blocks in ascending order: linear's epilogue adds
 *            weight * result to the columns of the rows
 *
 * A decode step is then two parallel loops, whatever the number of experts. Each output element is added to
 * by one thread, in ascending order of experts; and a row's sums do not depend on how rows are grouped,
 * because linear's do not. */
#include "kernels/cpu/linear/linear.h"

/* Bytes that a work item should move to be worth waking a thread. */
#define EXPERTS_ITEM_BYTES ((size_t)128 << 10)
/* Weights of a work item of few rows (see linear.c). */
#define EXPERTS_WEIGHTS ((size_t)1 << 20)

struct experts_block {
    uint32_t expert, first, m; /* sorted pairs [first, first + m) */
    const char *x;             /* rows for `up` if used unchanged */
    char *gathered;            /* or where they are gathered to or rearranged; NULL = x */
    char *packed;              /* hidden rows rearranged, or NULL */
};

struct experts_job {
    const struct be_experts_args *a;
    struct backend *b;
    const struct linear_set *set;
    enum be_dtype act;
    uint32_t *row; /* [T * k] sorted: row */
    float *weight; /* [T * k] sorted: weight of that row */
    struct experts_block *blocks;
    uint32_t block_count;
    uint32_t slices, grain; /* work items of a block in `up`; pairs of a work item */
    size_t gather_bytes, pack_bytes;
    bool any_packed;
    char *rows;   /* gathered or rearranged rows, of x and then of hidden */
    char *hidden; /* act [T * k][be_ld(ff)] */
};

/* ---- the scratch */

/* Bytes from the start. */
struct experts_layout {
    size_t next, row, weight, blocks, rows, hidden, all;
    size_t block_max;
};

/* Adds n * size bytes, in whole lines, to *at, and returns their offset; *at is SIZE_MAX on overflow. */
static size_t experts__part(size_t *at, size_t n, size_t size)
{
    size_t bytes, end, from = *at;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 2 ||
        __builtin_add_overflow(from, (bytes + 63) / 64 * 64, &end))
        end = SIZE_MAX;
    *at = from == SIZE_MAX ? SIZE_MAX : end;
    return from;
}

static const struct linear_set *experts__set(const struct backend *b, bool quants)
{
    return quants ? b->kern->set_quants : b->act == BE_BF16 ? b->kern->set_bf16 : b->kern->set_f32;
}

static struct experts_layout experts__layout(const struct backend *b, const struct linear_set *set,
                                             uint32_t t, uint32_t k, uint32_t c, uint32_t ff,
                                             uint32_t experts)
{
    struct experts_layout l = {0};
    size_t pairs = (size_t)t * k, elem = be_dtype_bytes(b->act),
           row_elem = u32_max(set->pack_elem, (uint32_t)elem), at = 0;
    /* An expert with more rows than a block holds is cut into blocks of more than half of CPU_M_BLOCK / 2. */
    l.block_max = pairs / (CPU_M_BLOCK / 4) + (pairs < experts ? pairs : experts);
    l.next = experts__part(&at, (size_t)experts + 1, sizeof(uint32_t));
    l.row = experts__part(&at, pairs, sizeof(uint32_t));
    l.weight = experts__part(&at, pairs, sizeof(float));
    l.blocks = experts__part(&at, l.block_max, sizeof(struct experts_block));
    /* Rearranged blocks are rounded up to whole units. */
    size_t spare = set->pack && set->pack_min
                       ? (set->pack_rows - 1) *
                             (pairs / set->pack_min < l.block_max ? pairs / set->pack_min : l.block_max)
                       : 0;
    l.rows = experts__part(&at, pairs + spare, be_ld(u32_max(c, ff)) * row_elem);
    l.hidden = experts__part(&at, pairs, be_ld(ff) * elem);
    l.all = at;
    return l;
}

size_t cpu_experts_scratch(const struct backend *b, uint32_t t, uint32_t k, uint32_t c, uint32_t ff,
                           uint32_t experts)
{
    const struct linear_set *set = experts__set(b, false), *quants = experts__set(b, true);
    if (set) {
        size_t all = experts__layout(b, set, t, k, c, ff, experts).all,
               of_quants = experts__layout(b, quants, t, k, c, ff, experts).all;
        return all > of_quants ? all : of_quants;
    }
    return be_ld(ff) * be_dtype_bytes(b->act) + (size_t)c * sizeof(float); /* ref_experts */
}

/* ---- sort, blocks */

static void experts__sort(const struct experts_job *j, uint32_t *next)
{
    const struct be_experts_args *a = j->a;
    uint32_t pairs = a->t * a->k;
    memset(next, 0, ((size_t)a->experts + 1) * sizeof *next);
    for (uint32_t i = 0; i < pairs; i++) next[a->ids[i] + 1]++;
    for (uint32_t e = 0; e < a->experts; e++) next[e + 1] += next[e];
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t at = next[a->ids[i]]++;
        j->row[at] = i / a->k;
        j->weight[at] = a->weights[i];
    }
}

/* Where a block's rearranged or gathered rows go: after those of earlier blocks. *at: bytes of j->rows in
 * use. */
static char *experts__place(const struct experts_job *j, const struct experts_block *k, size_t kpad,
                            bool packed, size_t *at)
{
    char *p = j->rows + *at;
    uint32_t unit = packed && j->set->pack_min ? j->set->pack_rows : 1,
             rows = (k->m + unit - 1) / unit * unit;
    *at += rows * kpad * (packed ? j->set->pack_elem : be_dtype_bytes(j->act));
    return p;
}

/* Whether rows are contiguous in x; a row may occur twice, so the ends alone don't suffice. */
static bool experts__side_by_side(const uint32_t *row, uint32_t m)
{
    for (uint32_t r = 1; r < m; r++)
        if (row[r] != row[0] + r) return false;
    return true;
}

static bool experts__packs(const struct experts_job *j, uint32_t m)
{
    return j->set->pack && m >= j->set->pack_min;
}

/* After the sort next[e] is where expert e + 1 begins. */
static void experts__cut(struct experts_job *j, const uint32_t *next, size_t block_max)
{
    const struct be_experts_args *a = j->a;
    size_t elem = be_dtype_bytes(j->act), at_x = 0, at_hidden = 0;
    uint32_t most = linear_block_rows(j->set, be_ld(u32_max(a->c, a->ff)) * elem);
    for (uint32_t e = 0, first = 0; e < a->experts; first = next[e++]) {
        uint32_t rows = next[e] - first;
        if (rows == 0) continue;
        uint32_t count = (rows - 1) / most + 1, step = ((rows - 1) / count / 32 + 1) * 32;
        for (uint32_t done = 0; done < rows; done += step) {
            ASSERT(j->block_count < block_max);
            struct experts_block *k = &j->blocks[j->block_count++];
            *k = (struct experts_block){.expert = e, .first = first + done, .m = u32_min(step, rows - done)};
            const uint32_t *row = j->row + k->first;
            if (experts__packs(j, k->m)) {
                k->gathered = experts__place(j, k, be_ld(a->c), true, &at_x);
                k->packed = experts__place(j, k, be_ld(a->ff), true, &at_hidden);
                j->any_packed = true;
            } else if (!experts__side_by_side(row, k->m)) {
                k->gathered = experts__place(j, k, be_ld(a->c), false, &at_x);
            }
            k->x = k->gathered ? k->gathered : (const char *)a->x + row[0] * be_ld(a->c) * elem;
        }
    }
    j->gather_bytes = at_x;
    j->pack_bytes = at_hidden;
}

/* ---- the parallel loops */

static struct linear_job experts__linear(const struct experts_job *j, const struct experts_block *k,
                                         const struct be_linear_args *a, char *packed)
{
    return (struct linear_job){.a = a, .w = a->w, .m = k->m, .x = a->x, .packed = packed, .set = j->set};
}

static void experts__gather_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct experts_job *j = ctx;
    size_t bytes = be_ld(j->a->c) * be_dtype_bytes(j->act);
    for (uint32_t i = begin; i < end; i++) {
        const struct experts_block *k = &j->blocks[i];
        if (!k->gathered) continue;
        const uint32_t *row = j->row + k->first;
        if (k->packed) {
            const struct be_linear_args la = {.w = j->a->glu[k->expert], .x = j->a->x, .t = k->m};
            struct linear_job l = experts__linear(j, k, &la, k->gathered);
            l.pick = row;
            j->set->pack(&l, 0, k->m);
            continue;
        }
        for (uint32_t r = 0; r < k->m; r++)
            memcpy(k->gathered + r * bytes, (const char *)j->a->x + row[r] * bytes, bytes);
    }
}

static char *experts__hidden(const struct experts_job *j, const struct experts_block *k)
{
    return j->hidden + k->first * be_ld(j->a->ff) * be_dtype_bytes(j->act);
}

static void experts__up_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    const struct experts_job *j = ctx;
    for (uint32_t i = begin; i < end; i++) {
        const struct experts_block *k = &j->blocks[i / j->slices];
        const struct be_linear_args la = {.w = j->a->glu[k->expert],
                                          .x = k->x,
                                          .t = k->m,
                                          .epilogue = j->a->gate,
                                          .out = experts__hidden(j, k)};
        struct linear_job l = experts__linear(j, k, &la, k->packed ? k->gathered : NULL);
        uint32_t pair = i % j->slices * j->grain;
        j->set->pairs(&l, pair, u32_min(pair + j->grain, la.w->pairs), cpu_thread_scratch(j->b, worker));
    }
}

static void experts__pack_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct experts_job *j = ctx;
    for (uint32_t i = begin; i < end; i++) {
        const struct experts_block *k = &j->blocks[i];
        if (!k->packed) continue;
        const struct be_linear_args la = {.w = j->a->down[k->expert], .x = experts__hidden(j, k), .t = k->m};
        struct linear_job l = experts__linear(j, k, &la, k->packed);
        j->set->pack(&l, 0, k->m);
    }
}

static void experts__down_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    const struct experts_job *j = ctx;
    const struct be_experts_args *a = j->a;
    size_t c = a->c;
    for (uint32_t i = begin; i < end; i++) {
        uint32_t pair = i * j->grain, last = u32_min(pair + j->grain, a->down[j->blocks[0].expert]->pairs);
        uint32_t col = pair * 32, cols = u32_min(last * 32, a->c) - col;
        for (uint32_t t = 0; t < a->t; t++) memset(a->out + t * c + col, 0, cols * sizeof(float));
        for (uint32_t n = 0; n < j->block_count; n++) {
            const struct experts_block *k = &j->blocks[n];
            const struct be_linear_args la = {.w = a->down[k->expert],
                                              .x = experts__hidden(j, k),
                                              .t = k->m,
                                              .epilogue = BE_EPI_ADD_F32,
                                              .out = a->out};
            struct linear_job l = experts__linear(j, k, &la, k->packed);
            l.add_row = j->row + k->first;
            l.add_weight = j->weight + k->first;
            j->set->pairs(&l, pair, last, cpu_thread_scratch(j->b, worker));
        }
    }
}

/* Pairs of columns of a work item: as many as linear's blocking allows, or for few rows EXPERTS_WEIGHTS
 * worth; but some work items for every thread. `groups` work items are worked on for each range of pairs. */
static uint32_t experts__grain(const struct experts_job *j, const struct be_weight *w, uint32_t groups)
{
    size_t want = EXPERTS_WEIGHTS / (2 * w->panel_bytes) + 1,
           even = (size_t)w->pairs * groups / ((size_t)j->b->threads * 5);
    if (want > j->set->pairs_max || (size_t)j->a->t * j->a->k / j->block_count > 32) want = j->set->pairs_max;
    if (want > even) want = even;
    if (want > 4) want -= want % 4; /* sets take up to four at once */
    return want ? (uint32_t)want : 1;
}

/* Blocks of a work item that moves bytes only. */
static uint32_t experts__move_grain(const struct experts_job *j, size_t bytes)
{
    size_t per_block = bytes / j->block_count + 1;
    return (uint32_t)(EXPERTS_ITEM_BYTES / per_block) + 1;
}

void cpu_experts(struct backend *b, const struct be_experts_args *a)
{
    ASSERT((uint64_t)a->t * a->k <= UINT32_MAX);
    const struct linear_set *set = experts__set(b, a->glu[a->ids[0]]->bits > 0);
    struct experts_layout l = experts__layout(b, set, a->t, a->k, a->c, a->ff, a->experts);
    ASSERT(l.all != SIZE_MAX && a->scratch);
    char *s = a->scratch;
    struct experts_job j = {
        .a = a, .b = b, .set = set, .act = b->act, .rows = s + l.rows, .hidden = s + l.hidden};
    j.row = (uint32_t *)(void *)(s + l.row);
    j.blocks = (struct experts_block *)(void *)(s + l.blocks);
    j.weight = (float *)(void *)(s + l.weight);
    uint32_t *next = (uint32_t *)(void *)(s + l.next);
    experts__sort(&j, next);
    experts__cut(&j, next, l.block_max);
    if (j.gather_bytes)
        cpu_pool_run(b->pool, j.block_count, experts__move_grain(&j, j.gather_bytes), experts__gather_range,
                     &j);
    const struct be_weight *w = a->glu[j.blocks[0].expert];
    j.grain = experts__grain(&j, w, j.block_count);
    j.slices = (w->pairs - 1) / j.grain + 1;
    cpu_pool_run(b->pool, j.block_count * j.slices, 1, experts__up_range, &j);
    if (j.any_packed)
        cpu_pool_run(b->pool, j.block_count, experts__move_grain(&j, j.pack_bytes), experts__pack_range, &j);
    w = a->down[j.blocks[0].expert];
    j.grain = experts__grain(&j, w, 1);
    cpu_pool_run(b->pool, (w->pairs - 1) / j.grain + 1, 1, experts__down_range, &j);
}
