/* Vector attention: the common part of attn/avx2.c, attn/avx512.c and attn/amx.c. Each includes this once,
 * after defining
 *
 *   VL, struct vf, vf_...       simd/vops_avx2.h or vops_avx512.h
 *   vf_keep(v, base, lo, hi)    lane i stays where lo <= base + i <= hi, else becomes -infinity
 *   vf_exp2(v, fine)            2^v; 0 for -infinity. fine: to f32 precision; else to about 3e-6, ample
 *                               before rounding to bf16
 *   vf_softcap(v)               tanh
 *   ATTN_WIDE                   optional: the set multiplies f32, so in a work item queries and probabilities
 *                               are f32 too, of bf16 values. Then also vf_load_bf16(p), vf_round_bf16(v)
 *   attn__walk                  see the prototype below; attn/vec.h has the plain one
 *
 * The work is cut into work items of up to ATTN_ROWS rows, a row being one (query, query head) of one kv
 * head. The keys are walked in tiles of ATTN_TILE blocks whose borders are absolute positions. Per tile and
 * row: scores, the row's largest score, a rescale of the accumulated sums if that grew, probabilities, sums.
 * A row's bits don't depend on its neighbours: a key that it doesn't see has probability 0, and adding 0 * v
 * to a sum that began at +0 changes nothing; the rescale multiplies by 1 when it isn't needed. So it doesn't
 * matter that a work item walks the union of its rows' keys. */
#ifndef KVASIR_CPU_ATTN_DRIVER_H
#define KVASIR_CPU_ATTN_DRIVER_H

#include "kernels/cpu/attn/unpack.h"
#include "kernels/cpu/internal.h"

#include <math.h>

#ifndef ATTN_ROWS
#define ATTN_ROWS 32u /* a file may choose larger work items */
#endif
#ifndef ATTN_GROUP
#define ATTN_GROUP 32u /* rows that pass a tile together; a file may choose more */
#endif
#ifndef ATTN_TILE
#define ATTN_TILE 8u /* blocks; a file may choose another size */
#endif
#ifndef ATTN_WIDE
#define ATTN_WIDE 0
#endif
#ifndef ATTN_STRIDE
#define ATTN_STRIDE                                                                                          \
    ATTN_KEYS /* stride between rows of scores and probabilities; a file may choose a larger one */
#endif
#define ATTN_FEW_ROWS 256u
#define ATTN_KEYS     (ATTN_TILE * KV_SLOTS) /* 256 keys */
#define ATTN_INLINE   static inline __attribute__((always_inline))

struct attn_job {
    const struct be_attn_args *a;
    enum be_dtype act;
    uint32_t per_kv;    /* query heads of one kv head */
    uint32_t item_rows; /* <= ATTN_ROWS */
    uint32_t dpad;
    /* floats of a row of o: dpad, more if the walk keeps something after the head's columns */
    uint32_t o_stride;
};

/* The work item in progress; the arrays are in the thread's scratch. */
struct attn_work_item {
    const struct attn_job *j;
    uint32_t rows, kv_head, first_row, first_flat; /* flat = (query - first_row) * per_kv + head */
    uint32_t lo[ATTN_ROWS], hi[ATTN_ROWS];
    uint32_t lo_min, hi_max;
    float max[ATTN_ROWS]; /* largest score so far times scale * log2(e); -infinity at first */
    float *sum;           /* [ATTN_ROWS][VL]: lane i holds the probabilities of keys at positions i mod VL */
    char *q;              /* [ATTN_ROWS][dpad], zero padded; act, or f32 if ATTN_WIDE */
    float *s; /* f32 [2][ATTN_GROUP][ATTN_STRIDE] scores of a tile; the second half is for a pipelined walk */
    char *p;  /* [2][ATTN_GROUP][ATTN_STRIDE] probabilities, like q */
    float *o; /* f32 [ATTN_ROWS][o_stride] */
    char *unpacked; /* attn__unpacked bytes, of a cache of quants */
    /* This thread's next work item, to prefetch its first keys; table NULL: unknown. */
    struct attn_next {
        const uint32_t *table;
        uint32_t kv_head, first, last; /* blocks */
    } then;
};

/* Bytes of an element of q and p. */
ATTN_INLINE size_t attn__elem(const struct attn_job *j)
{
    return ATTN_WIDE ? 4 : be_dtype_bytes(j->act);
}
/* Walks all keys that the work item's rows see; leaves max, sum and o. `table` is the sequence's block table.
 */
static void attn__walk(struct attn_work_item *w, const uint32_t *table);
/* The sum of a row's probabilities after the walk; floats of a row of o. */
ATTN_INLINE float attn__row_sum(const struct attn_work_item *w, uint32_t r);
ATTN_INLINE uint32_t attn__o_stride(uint32_t dpad, uint32_t d);
/* Bytes that the walk needs for blocks unpacked from quants. */
ATTN_INLINE size_t attn__unpacked(const struct attn_job *j);
/* Rows of a large work item, at most ATTN_ROWS. */
ATTN_INLINE uint32_t attn__item_rows(const struct attn_job *j);

/* The work item's rows in order: row of the batch, query head. */
struct attn_at {
    uint32_t t, h;
};
ATTN_INLINE struct attn_at attn__first(const struct attn_work_item *w)
{
    uint32_t per_kv = w->j->per_kv;
    return (struct attn_at){w->first_row + w->first_flat / per_kv,
                            w->kv_head * per_kv + w->first_flat % per_kv};
}
ATTN_INLINE void attn__step(const struct attn_work_item *w, struct attn_at *at)
{
    if (++at->h < (w->kv_head + 1) * w->j->per_kv) return;
    at->h -= w->j->per_kv;
    at->t++;
}
/* Rows of one head are strided by H*D, which defeats the hardware prefetcher, so prefetch in software. */
#define ATTN_AHEAD 16u
ATTN_INLINE void attn__prefetch_row(const void *row, size_t bytes, const bool write)
{
    for (size_t i = 0; i < bytes; i += 64) {
        if (write) __builtin_prefetch((const char *)row + i, 1);
        else __builtin_prefetch((const char *)row + i, 0);
    }
}

ATTN_INLINE void attn__load_row(const struct attn_job *j, char *q, const char *src, size_t d)
{
#if ATTN_WIDE
    if (j->act == BE_BF16) {
        size_t i = 0;
        for (; i + VL <= d; i += VL)
            vf_store((float *)(void *)q + i, vf_load_bf16((const uint16_t *)(const void *)src + i));
        for (; i < d; i++) ((float *)(void *)q)[i] = bf16_to_f32(((const uint16_t *)(const void *)src)[i]);
        return;
    }
#endif
    memcpy(q, src, d * be_dtype_bytes(j->act));
}

/* Query rows of the work item into w->q, zero padded; rows up to the next multiple of 16 are zero and see
 * nothing. */
static void attn__load(struct attn_work_item *w)
{
    const struct attn_job *j = w->j;
    const struct be_attn_args *a = j->a;
    size_t e = attn__elem(j), d = a->kv.head_dim, bytes = d * be_dtype_bytes(j->act);
    uint32_t all = (w->rows + 15) / 16 * 16;
    struct attn_at at = attn__first(w), ahead = at;
    w->lo_min = UINT32_MAX;
    w->hi_max = 0;
    for (uint32_t r = 0, asked = 0; r < w->rows; r++, attn__step(w, &at)) {
        for (; asked < u32_min(w->rows, r + ATTN_AHEAD); asked++, attn__step(w, &ahead))
            attn__prefetch_row((const char *)a->q + ((size_t)ahead.t * a->heads + ahead.h) * bytes, bytes,
                               false);
        char *q = w->q + r * j->dpad * e;
        attn__load_row(j, q, (const char *)a->q + ((size_t)at.t * a->heads + at.h) * bytes, d);
        memset(q + d * e, 0, (j->dpad - d) * e);
        w->lo[r] = a->rows->lo[at.t];
        w->hi[r] = a->rows->hi[at.t];
        w->lo_min = u32_min(w->lo_min, w->lo[r]);
        w->hi_max = u32_max(w->hi_max, w->hi[r]);
        w->max[r] = -INFINITY;
    }
    memset(w->q + w->rows * j->dpad * e, 0, (all - w->rows) * j->dpad * e);
    memset(w->o, 0, (size_t)all * j->o_stride * 4);
    memset(w->sum, 0, (size_t)all * VL * 4);
}

static void attn__finish(struct attn_work_item *w)
{
    const struct attn_job *j = w->j;
    const struct be_attn_args *a = j->a;
    uint32_t d = a->kv.head_dim;
    size_t ld = be_ld((size_t)a->heads * d), e = be_dtype_bytes(j->act), bytes = d * e;
    struct attn_at at = attn__first(w), ahead = at;
    for (uint32_t r = 0, asked = 0; r < w->rows; r++, attn__step(w, &at)) {
        for (; asked < u32_min(w->rows, r + ATTN_AHEAD); asked++, attn__step(w, &ahead))
            attn__prefetch_row((char *)a->out + (ahead.t * ld + (size_t)ahead.h * d) * e, bytes, true);
        float *o = w->o + (size_t)r * j->o_stride;
        struct vf f = vf_set1(1.0f / attn__row_sum(w, r));
        char *out = (char *)a->out + (at.t * ld + (size_t)at.h * d) * e;
        if (e == 4) {
            for (uint32_t i = 0; i < j->dpad; i += VL) vf_store(o + i, vf_mul(vf_load(o + i), f));
            memcpy(out, o, bytes);
        } else {
            uint16_t tmp[1024 + 64];
            for (uint32_t i = 0; i < j->dpad; i += VL) vf_store_bf16(tmp + i, vf_mul(vf_load(o + i), f));
            memcpy(out, tmp, bytes);
        }
        if (at.h + 1 == a->heads) memset(out + bytes, 0, (ld - (size_t)a->heads * d) * e);
    }
}

/* Work items of one sequence for one kv head. */
ATTN_INLINE uint32_t attn__work_items(const struct attn_job *j, uint32_t seq)
{
    const struct be_rows *r = j->a->rows;
    uint32_t flat = (r->seq_row[seq + 1] - r->seq_row[seq]) * j->per_kv;
    return (flat + j->item_rows - 1) / j->item_rows;
}

/* Finds the rows of work item `item`. Returns its sequence. */
static uint32_t attn__place(struct attn_work_item *w, uint32_t item)
{
    const struct attn_job *j = w->j;
    const struct be_rows *r = j->a->rows;
    uint32_t seq = 0, left = item;
    for (uint32_t n; left >= (n = attn__work_items(j, seq) * j->a->kv.kv_heads); seq++) left -= n;
    uint32_t items = attn__work_items(j, seq), flat = (r->seq_row[seq + 1] - r->seq_row[seq]) * j->per_kv;
    w->kv_head = left / items;
    w->first_row = r->seq_row[seq];
    w->first_flat = (items - 1 - left % items) *
                    j->item_rows; /* those with most keys first, so that no thread ends with a large one */
    w->rows = u32_min(j->item_rows, flat - w->first_flat);
    return seq;
}

static struct attn_next attn__then(const struct attn_job *j, uint32_t item)
{
    const struct be_rows *r = j->a->rows;
    struct attn_work_item w = {.j = j};
    uint32_t seq = attn__place(&w, item);
    struct attn_at at = attn__first(&w);
    return (struct attn_next){.table = r->tables + r->seq_table[seq],
                              .kv_head = w.kv_head,
                              .first = r->lo[at.t] / KV_SLOTS,
                              .last = r->hi[at.t] / KV_SLOTS};
}

static void attn__range(void *ctx, uint32_t begin, uint32_t end, struct backend *b, uint32_t worker)
{
    const struct attn_job *j = ctx;
    const struct be_attn_args *a = j->a;
    const struct be_rows *r = a->rows;
    size_t e = attn__elem(j);
    char *scratch = cpu_thread_scratch(b, worker);
    uint32_t rows = (j->item_rows + 15) / 16 * 16;
    struct attn_work_item w = {.j = j};
    w.s = (float *)(void *)scratch;
    w.p = scratch + 2 * sizeof(float) * ATTN_GROUP * ATTN_STRIDE;
    w.q = w.p + 2 * e * ATTN_GROUP * ATTN_STRIDE;
    w.o = (float *)(void *)(w.q + e * rows * j->dpad);
    w.sum = w.o + (size_t)rows * j->o_stride;
    size_t used = ((size_t)((char *)(w.sum + (size_t)rows * VL) - scratch) + 63) / 64 * 64;
    w.unpacked = scratch + used;
    if (a->kv.type != BE_KV_ACT) used += attn__unpacked(j);
    ASSERT(used <= b->thread_scratch_bytes);
    for (uint32_t item = begin; item < end; item++) {
        uint32_t seq = attn__place(&w, item);
        w.then = item + 1 < end ? attn__then(j, item + 1) : (struct attn_next){.table = NULL};
        attn__load(&w);
        const uint32_t *table = r->tables + r->seq_table[seq];
        attn__walk(&w, table);
        attn__finish(&w);
    }
}

struct attn_call {
    struct attn_job job;
    uint32_t grain; /* work items that a thread takes at a time */
    struct backend *b;
};

/* Fills the job and returns the number of work items. Small batches are cut finer so that every thread has
 * work; the cut changes no bit. */
static uint32_t attn__plan(struct backend *b, const struct be_attn_args *a, struct attn_call *c)
{
    *c = (struct attn_call){.b = b, .job = {.a = a, .act = b->act, .per_kv = a->heads / a->kv.kv_heads}};
    c->job.dpad = kv_dpad(b->act, a->kv.head_dim);
    c->job.o_stride = attn__o_stride(c->job.dpad, a->kv.head_dim);
    c->job.item_rows = attn__item_rows(&c->job);
    ASSERT(a->scale > 0 && a->kv.head_dim <= 1024);
    for (;;) {
        uint32_t n = 0;
        for (uint32_t s = 0; s < a->rows->seq_count; s++) n += attn__work_items(&c->job, s) * a->kv.kv_heads;
        /* Few large work items would leave threads waiting for the last one; small ones are not worth cutting
         * for that, as each reads all keys. */
        uint32_t want = c->job.item_rows > ATTN_FEW_ROWS ? 4 * b->threads : b->threads;
        if (n >= want || c->job.item_rows == 1 || a->rows->t * c->job.per_kv < b->threads) {
            /* A decode-only step: a thread takes several, to prefetch the next one's keys. */
            c->grain = a->rows->t == a->rows->seq_count ? u32_max(1, n / (4 * b->threads)) : 1;
            return n;
        }
        c->job.item_rows /= 2;
    }
}

#endif
