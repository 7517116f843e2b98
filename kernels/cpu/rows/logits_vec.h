/* Statistics and the largest values of logit rows, written once in terms of vops_*.h. A row is cut into
 * chunks whose size depends on V alone, so that a single row keeps all threads busy; the chunks' results are
 * merged in order. */
#include "kernels/cpu/internal.h"

#include <math.h>

#define STATS_CHUNK  8192u
#define STATS_CHUNKS 4096u /* most chunks of one row */

struct chunk_stats {
    float max, sum; /* sum of exp(x - max); if all are NaN or -infinity: NaN if there is a NaN, else 0 */
    uint32_t argmax, before; /* ids that rank before the target */
};

struct vec_stats {
    const struct be_logits_args *a;
    struct chunk_stats *parts; /* [rows][chunks] */
    uint32_t row0, size, chunks;
};

static uint32_t stats__chunk(uint32_t v)
{
    uint32_t even = (v / STATS_CHUNKS + 1 + 63) / 64 * 64;
    return u32_max(STATS_CHUNK, even);
}

static void stats__softcap_range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct vec_stats *j = ctx;
    struct vf cap = vf_set1(j->a->softcap);
    for (uint32_t item = begin; item < end; item++) {
        uint32_t from = item % j->chunks * j->size, to = from + u32_min(j->size, j->a->v - from);
        float *x = j->a->logits + (size_t)(j->row0 + item / j->chunks) * j->a->v;
        for (uint32_t i = from; i < to; i += VL) {
            struct vf v = vf_load_n(x + i, to - i);
            vf_store_n(x + i, vf_mul(cap, vf_tanh(vf_div(v, cap))), to - i);
        }
    }
}

static struct chunk_stats stats__chunk_of(const float *x, uint32_t from, uint32_t to, uint32_t target)
{
    struct chunk_stats s = {.max = -INFINITY, .argmax = from};
    struct vf low = vf_set1(-INFINITY), m0 = low, m1 = low;
    uint32_t i = from;
    for (; i + 2 * VL <= to; i += 2 * VL) {
        m0 = vf_max(vf_load(x + i), m0); /* the second operand stays when the first is NaN */
        m1 = vf_max(vf_load(x + i + VL), m1);
    }
    for (; i < to; i += VL) m0 = vf_max(vf_first_n(vf_load_n(x + i, to - i), low, to - i), m0);
    s.max = vf_hmax(vf_max(m0, m1));
    struct vf top = vf_set1(s.max);
    for (i = from; i < to; i += VL) {
        uint32_t hit = vf_eq(vf_first_n(vf_load_n(x + i, to - i), low, to - i), top);
        if (!hit) continue;
        s.argmax = i + (uint32_t)__builtin_ctz(hit);
        break;
    }
    if (s.max > -INFINITY) {
        struct vf s0 = vf_set1(0), s1 = s0;
        for (i = from; i + 2 * VL <= to; i += 2 * VL) {
            s0 = vf_add(s0, vf_exp(vf_sub(vf_load(x + i), top)));
            s1 = vf_add(s1, vf_exp(vf_sub(vf_load(x + i + VL), top)));
        }
        for (; i < to; i += VL)
            s0 = vf_add(s0, vf_first_n(vf_exp(vf_sub(vf_load_n(x + i, to - i), top)), vf_set1(0), to - i));
        s.sum = vf_sum(vf_add(s0, s1));
    } else {
        for (i = from; i < to; i++)
            if (x[i] != x[i]) s.sum = x[i];
    }
    if (target == UINT32_MAX) return s;
    struct vf want = vf_set1(x[target]);
    for (i = from; i < to; i += VL) {
        struct vf v = vf_first_n(vf_load_n(x + i, to - i), low, to - i);
        uint32_t eq = to - i < VL ? vf_eq(v, want) & ((1u << (to - i)) - 1) : vf_eq(v, want);
        uint32_t lower =
            i + VL <= target
                ? ~0u
                : (i >= target ? 0 : (1u << (target - i)) - 1); /* lanes whose id is below the target's */
        s.before += (uint32_t)__builtin_popcount(vf_gt(v, want)) + (uint32_t)__builtin_popcount(eq & lower);
    }
    return s;
}

static void stats__range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct vec_stats *j = ctx;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t row = j->row0 + item / j->chunks, from = item % j->chunks * j->size;
        j->parts[item] = stats__chunk_of(j->a->logits + (size_t)row * j->a->v, from,
                                         from + u32_min(j->size, j->a->v - from),
                                         j->a->targets ? j->a->targets[row] : UINT32_MAX);
    }
}

/* log(x) for normal x > 0 to a few units of the last place, the same on every machine (the C library's may
 * differ between CPUs). */
static double stats__log(double x)
{
    int e;
    double m = frexp(x, &e); /* [0.5, 1) */
    if (m < 0.70710678118654752440) {
        m *= 2;
        e--;
    }
    double s = (m - 1) / (m + 1), z = s * s, p = 1.0 / 23;
    for (int n = 21; n >= 1; n -= 2) p = p * z + 1.0 / n;
    return 2 * s * p + e * 0.69314718055994530942;
}

static void stats__combine(const struct vec_stats *j, uint32_t row)
{
    const struct chunk_stats *p = j->parts + (size_t)(row - j->row0) * j->chunks;
    struct be_logit_stats out = {.max = -INFINITY};
    uint32_t before = 0;
    for (uint32_t i = 0; i < j->chunks; i++) {
        before += p[i].before;
        if (p[i].max > out.max) {
            out.max = p[i].max;
            out.argmax = p[i].argmax;
        }
    }
    double sum = 0;
    for (uint32_t i = 0; i < j->chunks; i++) {
        if (p[i].max == -INFINITY && p[i].sum == 0) continue;
        float scale[VL];
        vf_store(scale, vf_exp(vf_set1(p[i].max - out.max)));
        sum += (double)p[i].sum * (double)scale[0];
    }
    out.lse = out.max == -INFINITY ? -INFINITY : (float)((double)out.max + stats__log(sum));
    if (j->a->targets && j->a->targets[row] != UINT32_MAX) {
        out.target = j->a->logits[(size_t)row * j->a->v + j->a->targets[row]];
        out.target_rank = 1 + before;
    }
    j->a->stats[row] = out;
}

void SET(logit_stats)(struct backend *b, const struct be_logits_args *a)
{
    struct vec_stats job = {
        .a = a, .parts = (struct chunk_stats *)(void *)b->thread_scratch, .size = stats__chunk(a->v)};
    job.chunks = (a->v - 1) / job.size + 1;
    for (uint32_t r = 0; a->targets && r < a->r; r++)
        ASSERT(a->targets[r] == UINT32_MAX || a->targets[r] < a->v);
    uint32_t rows_max = (uint32_t)(b->thread_scratch_bytes / (job.chunks * sizeof(struct chunk_stats)));
    for (job.row0 = 0; job.row0 < a->r; job.row0 += rows_max) {
        uint32_t rows = u32_min(rows_max, a->r - job.row0);
        if (a->softcap > 0) cpu_pool_run(b->pool, rows * job.chunks, 1, stats__softcap_range, &job);
        cpu_pool_run(b->pool, rows * job.chunks, 1, stats__range, &job);
        for (uint32_t r = 0; r < rows; r++) stats__combine(&job, job.row0 + r);
    }
}

/* ---- top k */

struct vec_topk {
    const struct be_topk_args *a;
    struct backend *b;
    uint32_t parts; /* chunks of a row, each with its own k best; the result doesn't depend on which chunk
                       found an id */
};

struct best {
    float value[BE_TOPK_MAX];
    uint32_t id[BE_TOPK_MAX];
    uint32_t held;
};

/* Keeps the k largest in order; ids come in ascending order, so ties keep the lower id first. */
static void topk__offer(struct best *s, uint32_t k, float v, uint32_t id)
{
    if (s->held == k && !(v > s->value[k - 1])) return;
    uint32_t at = s->held < k ? s->held++ : k - 1;
    for (; at > 0 && s->value[at - 1] < v; at--) {
        s->value[at] = s->value[at - 1];
        s->id[at] = s->id[at - 1];
    }
    s->value[at] = v;
    s->id[at] = id;
}

static float topk__key(float x)
{
    return x == x ? x : -INFINITY; /* NaN ranks last */
}

static struct best *topk__slot(const struct vec_topk *j, uint32_t item)
{
    return (struct best *)(void *)j->b->thread_scratch + item;
}

static void topk__range(void *ctx, uint32_t begin, uint32_t end, uint32_t worker)
{
    (void)worker;
    const struct vec_topk *j = ctx;
    uint32_t k = j->a->k, v = j->a->v;
    for (uint32_t item = begin; item < end; item++) {
        const float *x = j->a->logits + (size_t)(item / j->parts) * v;
        uint32_t part = item % j->parts, to = (uint32_t)((uint64_t)v * (part + 1) / j->parts),
                 i = (uint32_t)((uint64_t)v * part / j->parts);
        struct best local = {.held = 0}, *s = j->parts == 1 ? &local : topk__slot(j, item);
        s->held = 0;
        for (; i < to && s->held < k; i++) topk__offer(s, k, topk__key(x[i]), i);
        for (; i < to; i += VL) {
            uint32_t hit = vf_gt(vf_first_n(vf_load_n(x + i, to - i), vf_set1(-INFINITY), to - i),
                                 vf_set1(s->value[k - 1]));
            for (; hit; hit &= hit - 1) {
                uint32_t at = i + (uint32_t)__builtin_ctz(hit);
                topk__offer(s, k, x[at], at);
            }
        }
        if (j->parts > 1) continue;
        memcpy(j->a->ids + (size_t)item * k, s->id, k * sizeof(uint32_t));
        memcpy(j->a->values + (size_t)item * k, s->value, k * sizeof(float));
    }
}

void SET(topk)(struct backend *b, const struct be_topk_args *a)
{
    struct vec_topk job = {.a = a, .b = b, .parts = a->r >= b->threads || a->v < 16384 ? 1 : b->threads};
    ASSERT(job.parts == 1 ||
           (size_t)a->r * job.parts * sizeof(struct best) <= b->thread_scratch_bytes * b->threads);
    cpu_pool_run(b->pool, a->r * job.parts, 1, topk__range, &job);
    for (uint32_t r = 0; job.parts > 1 && r < a->r; r++) {
        struct best all = {.held = 0};
        for (uint32_t p = 0; p < job.parts; p++) {
            const struct best *s = topk__slot(&job, r * job.parts + p);
            for (uint32_t i = 0; i < s->held; i++) topk__offer(&all, a->k, s->value[i], s->id[i]);
        }
        memcpy(a->ids + (size_t)r * a->k, all.id, a->k * sizeof(uint32_t));
        memcpy(a->values + (size_t)r * a->k, all.value, a->k * sizeof(float));
    }
}
