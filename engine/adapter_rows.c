/* Products with what adapters add: y = x W + b + B (A x). The order of a row's sums depends on the row alone:
 * rows without an adapter are computed as if there were none, those with one also by two products, whatever
 * other rows those are computed with.
 *
 * Of an f32 result B (A x) is added to what the product wrote. Before an activation it is added to the sums,
 * in the product's epilogue (be_linear_args.add). */
#include "engine/internal.h"

#include "config/base/assert.h"

#include <stdlib.h>

static const struct adapter_matrix *find(const struct adapter *a, const struct be_weight *w)
{
    uint32_t lo = 0, hi = a->w.count;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)a->w.matrices[mid].base < (uintptr_t)w) lo = mid + 1;
        else hi = mid;
    }
    return lo < a->w.count && a->w.matrices[lo].base == w ? &a->w.matrices[lo] : NULL;
}

/* One that adds to rows [from, from + t) of the product; NULL: none does. */
static const struct adapter_matrix *any(const struct adapter_rows *rows, const struct be_weight *w,
                                        uint32_t from, uint32_t t)
{
    const struct adapter_matrix *m = NULL;
    from += rows->first;
    for (uint32_t i = 0; i < rows->run_count && !m; i++) {
        const struct adapter_run *r = &rows->runs[i];
        if (r->first < from + t && (from < r->first || from - r->first < r->count)) m = find(r->adapter, w);
    }
    return m;
}

static int by_weight(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct be_linear_args *)a)->w,
              y = (uintptr_t)((const struct be_linear_args *)b)->w;
    return x < y ? -1 : x > y;
}

/* Those of one adapter one after another: it is read from memory once. */
static void products(struct engine *e, struct be_linear_args *a, uint32_t n)
{
    if (n > 1) qsort(a, n, sizeof *a, by_weight);
    if (e->ops->linears) e->ops->linears(e->be, a, n);
    else
        for (uint32_t i = 0; i < n; i++) e->ops->linear(e->be, &a[i]);
}

/* `count` rows of n numbers that change nothing where they are added. */
static void fill_nothing(struct engine *e, uint32_t count, uint32_t n, float *to)
{
    if (count)
        e->ops->gather(e->be, &(struct be_gather_args){e->adapters.nothing, e->adapters.zeros, count,
                                                       n * sizeof(float), to});
}

/* B (A x) of t rows of x, the first of which is `begin` in the runs: to out [t, N], where the other rows
 * become nothing; or with `onto` added to it. */
static void add_rows(struct engine *e, const struct be_weight *w, const char *x, uint32_t begin, uint32_t t,
                     bool onto, float *out)
{
    struct be_linear_args *a = e->adapter_linears, *b = a + e->plan.sequences_max;
    size_t act = be_dtype_bytes(e->plan.act), wide = be_ld(e->adapters.sizes.k) * act;
    uint32_t n = 0, done = begin, end = begin + t, columns = 0;
    for (uint32_t i = 0; i < e->adapted->run_count; i++) {
        const struct adapter_run *r = &e->adapted->runs[i];
        const struct adapter_matrix *m = find(r->adapter, w);
        uint32_t first = r->first > begin ? r->first : begin, left = r->count - (first - r->first),
                 count = left < end - first ? left : end - first;
        if (!m || first >= end || first - r->first >= r->count) continue;
        char *down = (char *)e->adapters.down + (first - begin) * wide;
        columns = m->n;
        a[n] = (struct be_linear_args){m->a, .x = x + (first - begin) * be_ld(m->k) * act, .t = count,
                                       .epilogue = BE_EPI_ACT, .out = down};
        b[n++] = (struct be_linear_args){m->b, .x = down, .t = count,
                                         .epilogue = onto ? BE_EPI_ADD_F32 : BE_EPI_F32,
                                         .out = out + (size_t)(first - begin) * columns};
        if (!onto) fill_nothing(e, first - done, columns, out + (size_t)(done - begin) * columns);
        done = first + count;
    }
    if (!onto) fill_nothing(e, end - done, columns, out + (size_t)(done - begin) * columns);
    products(e, a, n);
    products(e, b, n);
}

void engine__linear(struct engine *e, const struct be_weight *w, const void *x, uint32_t t,
                    enum be_epilogue epi, void *out)
{
    const struct adapter_matrix *m = e->adapted ? any(e->adapted, w, 0, t) : NULL;
    size_t act = be_dtype_bytes(e->plan.act);
    bool f32 = epi <= BE_EPI_ADD_F32;
    atomic_fetch_add_explicit(&e->progress, 1, memory_order_relaxed);
    if (!m || f32)
        e->ops->linear(e->be, &(struct be_linear_args){w, .x = x, .t = t, .epilogue = epi, .out = out});
    for (uint32_t from = 0, n; m && from < t; from += n) {
        const char *rows = (const char *)x + from * be_ld(m->k) * act;
        n = t - from < ADAPTER_ROWS ? t - from : ADAPTER_ROWS;
        bool some = any(e->adapted, w, from, n);
        float *to = f32 ? (float *)out + (size_t)from * m->n : e->adapters.add;
        if (some) add_rows(e, w, rows, e->adapted->first + from, n, f32, to);
        if (!f32)
            e->ops->linear(e->be, &(struct be_linear_args){
                                      w, .x = rows, .t = n, .epilogue = epi,
                                      .out = (char *)out + from * be_ld(m->glu ? m->n / 2 : m->n) * act,
                                      .add = some ? to : NULL});
    }
}
