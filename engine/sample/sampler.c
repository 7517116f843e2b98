/* See sampler.h. exp is implemented here so that sampling doesn't depend on the machine's C library. */
#include "engine/sample/sampler.h"

#include "config/base/assert.h"
#include "config/base/floats.h"
#include "engine/sample/sampler_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sampler {
    uint32_t vocab;
    sampler__weights_fn *weigh;
    float *logits;    /* [V] copy with penalties and bias */
    float *weights;   /* [V] exp of scaled logits; before that the logits of changed ids, and only those */
    uint32_t *order;  /* [V] ids under selection; before that the changed ones */
    uint32_t *counts; /* [V] all zero between calls: SEEN = in the history, CHANGED = by bias or ban, NEVER =
                         banned, the rest = times generated */
    uint32_t *bucket_count; /* [BUCKETS] logits by size */
    uint32_t *allowed;      /* [words] bits of what the constraint allows */
    uint32_t words;
    double *block_sums; /* [ceil(V / BLOCK)] of the weights of a whole row */
    bool *barred;       /* [ceil(V / BLOCK)] the constraint allows nothing in the block */
    double *bucket_sum; /* [BUCKETS] and the sum of their weights */
};
#define BUCKETS       (1u << 14)
#define BLOCK         SAMPLER__BLOCK
#define SEEN          0x80000000u
#define CHANGED       0x40000000u
#define NEVER         0x20000000u
#define CHANGED_SPARE 64u  /* extra entries of the list: so many of the best may be changed away */
#define NUCLEUS       128u /* entries within which top_p usually ends */
#define LIST_MAX      (4 * BE_TOPK_MAX) /* best ids after changes to try before the whole row */

enum status sampler_create(uint32_t vocab, struct sampler **out, struct err *err)
{
    struct sampler *s = calloc(1, sizeof *s);
    if (s) {
        s->vocab = vocab;
        s->weigh = sampler__weights_avx2();
        if (!s->weigh) s->weigh = sampler__weights_c;
        s->logits = malloc(vocab * sizeof *s->logits);
        s->weights = malloc(vocab * sizeof *s->weights);
        s->order = malloc(vocab * sizeof *s->order);
        s->counts = calloc(vocab, sizeof *s->counts);
        s->block_sums = malloc((vocab / BLOCK + 1) * sizeof *s->block_sums);
        s->barred = malloc((vocab / BLOCK + 1) * sizeof *s->barred);
        s->bucket_count = malloc(BUCKETS * sizeof *s->bucket_count);
        s->bucket_sum = malloc(BUCKETS * sizeof *s->bucket_sum);
        s->words = vocab / 32 + (vocab % 32 != 0);
        s->allowed = malloc(s->words * sizeof *s->allowed);
    }
    if (!s || !s->logits || !s->weights || !s->order || !s->counts || !s->block_sums || !s->bucket_count ||
        !s->bucket_sum || !s->allowed || !s->barred) {
        sampler_destroy(s);
        return err_set(err, ST_NOMEM, "out of memory for a sampler of %u ids", vocab);
    }
    *out = s;
    return ST_OK;
}

void sampler_destroy(struct sampler *s)
{
    if (!s) return;
    free(s->logits);
    free(s->weights);
    free(s->order);
    free(s->counts);
    free(s->block_sums);
    free(s->barred);
    free(s->bucket_count);
    free(s->bucket_sum);
    free(s->allowed);
    free(s);
}

/* ---- numbers ---- */

/* Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"). */
float sampling_uniform(uint64_t seed, uint64_t position)
{
    uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int r = 0; r < 10; r++) {
        uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[0] = n0;
        c[1] = (uint32_t)b;
        c[2] = n2;
        c[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (float)(c[0] >> 8) * 0x1p-24f;
}

/* Finite, so that the largest logit keeps weight 1 however low the temperature. */
static float inverse(float temperature)
{
    return temperature > 1e-30f ? 1.0f / temperature : 1e30f;
}

/* ---- the row to sample from ---- */

static bool penalises_repetition(const struct sampling_params *p)
{
    return p->repetition_penalty > 0.0f && p->repetition_penalty != 1.0f;
}

static bool cuts_by_sigma(const struct sampling_params *p)
{
    return p->temperature > 0.0f && p->top_n_sigma > 0.0f;
}

static bool modifies(const struct sampling_params *p, uint32_t banned_count)
{
    return penalises_repetition(p) || cuts_by_sigma(p) || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f || p->bias_count > 0 || banned_count > 0 || p->ngrams.size > 0 ||
           p->constraint;
}

/* Marks an id; its first mark adds it to s->order[0..*n). */
static void mark(struct sampler *s, uint32_t id, uint32_t marks, uint32_t *n)
{
    if (id >= s->vocab) return;
    if (!s->counts[id]) s->order[(*n)++] = id;
    s->counts[id] |= marks;
}

/* Marks the ids that would complete an n-gram a second time: those that follow the last size - 1 tokens where
 * these occur before. One pass over the window (Knuth, Morris, Pratt), whatever the tokens are. */
static void mark_repeated(struct sampler *s, const struct sampling_ngrams *g, const struct sampler_row *row,
                          uint32_t *n)
{
    uint32_t border[SAMPLING_NGRAM_MAX]; /* [i]: longest proper prefix of last[0..i] that it ends with */
    uint32_t from = g->generated ? row->prompt_count : 0, size = g->size - 1, k = 0;
    uint32_t count = row->history_count - from;
    if (g->window && count > g->window) count = g->window;
    if (count < g->size) return;
    const uint32_t *text = row->history + row->history_count - count, *last = text + count - size;
    border[0] = 0;
    for (uint32_t i = 1; i < size; i++) {
        while (k && last[i] != last[k]) k = border[k - 1];
        k += last[i] == last[k];
        border[i] = k;
    }
    k = 0;
    for (uint32_t i = 0; i < count; i++) { /* text[0..i) ends with last[0..k) */
        if (k == size) {
            mark(s, text[i], CHANGED | NEVER, n);
            if (!size) continue;
            k = border[k - 1];
        }
        while (k && text[i] != last[k]) k = border[k - 1];
        k += text[i] == last[k];
    }
    for (uint32_t i = 0; i < g->free_count; i++)
        if (g->free[i] < s->vocab) s->counts[g->free[i]] &= ~NEVER;
}

/* Writes ids whose logits this request changes to s->order, and their new logits to s->weights at the id.
 * Returns how many; the marks in s->counts stay until unmark(). */
static uint32_t change(struct sampler *s, const struct sampling_params *p, const struct sampler_row *row)
{
    uint32_t n = 0, *ids = s->order;
    bool penalties = penalises_repetition(p) || p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f;
    if (p->ngrams.size) mark_repeated(s, &p->ngrams, row, &n);
    for (uint32_t i = 0; penalties && i < row->history_count; i++) {
        uint32_t id = row->history[i];
        mark(s, id, SEEN, &n);
        if (id < s->vocab) s->counts[id] += i >= row->prompt_count;
    }
    for (uint32_t i = 0; i < p->bias_count; i++) mark(s, p->bias[i].id, CHANGED, &n);
    for (uint32_t i = 0; i < row->banned_count; i++) mark(s, row->banned[i], CHANGED | NEVER, &n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = ids[i], count = s->counts[id];
        float l = row->raw[id];
        if (count & SEEN && penalises_repetition(p))
            l = l > 0 ? l / p->repetition_penalty : l * p->repetition_penalty;
        bool never = count & NEVER;
        count &= ~(SEEN | CHANGED | NEVER);
        if (count) l -= p->frequency_penalty * (float)count + p->presence_penalty;
        s->weights[id] = never ? -INFINITY : l;
    }
    for (uint32_t i = 0; i < p->bias_count; i++)
        if (p->bias[i].id < s->vocab)
            s->weights[p->bias[i].id] =
                p->bias[i].bias <= -100.0f ? -INFINITY : s->weights[p->bias[i].id] + p->bias[i].bias;
    return n;
}

static void unmark(struct sampler *s, uint32_t changed)
{
    for (uint32_t i = 0; i < changed; i++) s->counts[s->order[i]] = 0;
}

/* After change(): the whole row. */
static const float *modified_row(struct sampler *s, const struct sampler_row *row, uint32_t changed)
{
    memcpy(s->logits, row->raw, s->vocab * sizeof *s->logits);
    for (uint32_t i = 0; i < changed; i++) s->logits[s->order[i]] = s->weights[s->order[i]];
    return s->logits;
}

static bool allows(const struct sampler *s, uint32_t id)
{
    return s->allowed[id >> 5] >> (id & 31) & 1;
}

/* After change(): the whole row, without what the constraint does not allow. Most masks leave few ids, or all
 * but few: whole words are filled or copied, and blocks with nothing left are marked in s->barred. */
static const float *constrained_row(struct sampler *s, const struct sampler_row *row, uint32_t changed)
{
    memset(s->barred, true, (s->vocab / BLOCK + 1) * sizeof *s->barred);
    for (uint32_t w = 0; w < s->words; w++) {
        uint32_t id = 32 * w, end = id + 32 < s->vocab ? id + 32 : s->vocab, bits = s->allowed[w];
        float *to = s->logits + id;
        if (bits) s->barred[id / BLOCK] = false;
        if (bits == UINT32_MAX) memcpy(to, row->raw + id, (end - id) * sizeof *to);
        else
            for (uint32_t i = 0; i < end - id; i++) to[i] = -INFINITY;
        for (; bits && bits != UINT32_MAX; bits &= bits - 1) {
            uint32_t i = (uint32_t)__builtin_ctz(bits);
            if (id + i < s->vocab) to[i] = row->raw[id + i];
        }
    }
    for (uint32_t i = 0; i < changed; i++)
        if (allows(s, s->order[i])) s->logits[s->order[i]] = s->weights[s->order[i]];
    return s->logits;
}

/* In the modified or constrained row: without what is more than n standard deviations of the finite logits
 * below the largest. Sums in double, in order of id. */
static void cut_by_sigma(struct sampler *s, float n, float max)
{
    double sum = 0, squares = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (!isfinite(s->logits[i])) continue;
        double below = (double)max - (double)s->logits[i];
        sum += below;
        squares += below * below;
        count++;
    }
    double mean = sum / count, variance = squares / count - mean * mean;
    double least = (double)max - (double)n * sqrt(fmax(variance, 0));
    for (uint32_t i = 0; i < s->vocab; i++)
        if ((double)s->logits[i] < least) s->logits[i] = -INFINITY;
}

/* The largest raw logit that the constraint allows. */
static uint32_t best_allowed(const struct sampler *s, const float *raw)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t id = 0; id < s->vocab; id++)
        if (allows(s, id) && (best == UINT32_MAX || raw[id] > raw[best])) best = id;
    return best == UINT32_MAX ? 0 : best;
}

/* The first of the largest. Eight chains of comparisons instead of one long chain. */
static uint32_t argmax(const float *l, uint32_t n, const bool *barred)
{
    float best = -INFINITY;
    uint32_t at = 0;
    for (uint32_t start = 0; start < n; start += BLOCK) {
        uint32_t end = n - start < BLOCK ? n : start + BLOCK, i = start;
        float lane[8], top = -INFINITY;
        if (barred && barred[start / BLOCK]) continue;
        for (uint32_t k = 0; k < 8; k++) lane[k] = -INFINITY;
        for (; i + 8 <= end; i += 8)
            for (uint32_t k = 0; k < 8; k++) lane[k] = l[i + k] > lane[k] ? l[i + k] : lane[k];
        for (; i < end; i++) top = l[i] > top ? l[i] : top;
        for (uint32_t k = 0; k < 8; k++) top = lane[k] > top ? lane[k] : top;
        if (!(top > best)) continue;
        best = top;
        for (at = start; !(l[at] == top); at++) {
        }
    }
    return at;
}

/* ---- selection: the k largest, descending, ties by lower id ---- */

static bool before(const float *l, uint32_t a, uint32_t b)
{
    return l[a] > l[b] || (!(l[b] > l[a]) && a < b);
}

static void sift(const float *l, uint32_t *h, uint32_t n, uint32_t at)
{
    for (;;) { /* the last in order is on top */
        uint32_t c = 2 * at + 1;
        if (c >= n) return;
        if (c + 1 < n && before(l, h[c], h[c + 1])) c++;
        if (!before(l, h[at], h[c])) return;
        uint32_t t = h[at];
        h[at] = h[c];
        h[c] = t;
        at = c;
    }
}

static void heapify(const float *l, uint32_t *h, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;) sift(l, h, n, i);
}

static void drain(const float *l, uint32_t *h, uint32_t n)
{
    for (; n > 1; n--) {
        uint32_t t = h[0];
        h[0] = h[n - 1];
        h[n - 1] = t;
        sift(l, h, n - 1, 0);
    }
}

static void sort_ids(const float *l, uint32_t *ids, uint32_t n)
{
    heapify(l, ids, n);
    drain(l, ids, n);
}

static void select_top(const float *l, uint32_t v, uint32_t k, uint32_t *h)
{
    for (uint32_t i = 0; i < k; i++) h[i] = i;
    heapify(l, h, k);
    for (uint32_t i = k; i < v; i++) {
        if (!(l[i] > l[h[0]])) continue; /* an equal value has a higher id than all entries */
        h[0] = i;
        sift(l, h, k, 0);
    }
    drain(l, h, k);
}

/* The best ids of the row, in order, as far as they are certain: from `n` entries of the backend's list and
 * the ids changed by change(). All other ids rank after the list's last entry, so the ids that rank before it
 * are the best of all. Their logits are then at s->weights[id]. 0: nothing is certain, or more than
 * LIST_MAX. */
static uint32_t best_of(struct sampler *s, const struct sampler_row *row, uint32_t n, uint32_t changed,
                        uint32_t *ids)
{
    if (!n || n > row->top_count) return 0;
    uint32_t m = 0, last_id = n == s->vocab ? UINT32_MAX : row->top_ids[n - 1];
    float last = n == s->vocab ? -INFINITY : row->top_values[n - 1];
    for (uint32_t i = 0; i < changed; i++) {
        uint32_t id = s->order[i];
        if (!(s->weights[id] > last || (s->weights[id] == last && id <= last_id))) continue;
        if (m == LIST_MAX - BE_TOPK_MAX) return 0;
        ids[m++] = id;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = row->top_ids[i];
        if (s->counts[id]) continue;
        s->weights[id] = row->top_values[i];
        ids[m++] = id;
    }
    if (changed) sort_ids(s->weights, ids, m);
    return m && isfinite(s->weights[ids[0]]) ? m : 0;
}

/* ---- sampling ---- */

/* Candidates are sorted: ids[i] with value(i). Cuts by top_p of `total` (the weight of everything before
 * top_p) and min_p. Returns how many stay, or 0 if `n` candidates do not suffice (never with `all`: there are
 * no others). */
static uint32_t cut(const struct sampling_params *p, const float *w, uint32_t n, double total, bool all)
{
    uint32_t kept = n;
    bool known = all;
    if (p->top_p < 1.0f) {
        double want = (double)p->top_p * total, sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            sum += (double)w[i];
            if (sum >= want) {
                kept = i + 1;
                known = true;
                break;
            }
        }
    }
    if (p->min_p > 0.0f) {
        float least = p->min_p * w[0];
        for (uint32_t i = 1; i < kept; i++)
            if (w[i] < least) {
                kept = i;
                known = true;
                break;
            }
    }
    return known ? kept : 0;
}

static uint32_t walk(const float *w, uint32_t n, double total, float u)
{
    double target = (double)u * total, sum = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)w[i];
        if (w[i] > 0) last = i;
        if (sum > target) return i;
    }
    return last; /* rounding at the end */
}

static double sum_of(const float *w, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)w[i];
    return sum;
}

double sampler__weights_c(const float *l, uint32_t vocab, float max, float inv_temperature, float *weights,
                          double *sums)
{
    return weights_body(l, vocab, max, inv_temperature, weights, sums);
}

/* Weights of a whole row in order of id; their sum, block by block. Barred blocks have none. */
static double row_weights(struct sampler *s, const float *l, float max, float temperature, const bool *barred)
{
    double total = 0;
    for (uint32_t i = 0; i < s->vocab; i += BLOCK) {
        uint32_t n = s->vocab - i < BLOCK ? s->vocab - i : BLOCK;
        double *sum = &s->block_sums[i / BLOCK];
        *sum = 0;
        if (barred && barred[i / BLOCK]) memset(s->weights + i, 0, n * sizeof *s->weights);
        else total += s->weigh(l + i, n, max, inverse(temperature), s->weights + i, sum);
    }
    return total;
}

/* Samples in order of id: first the block, then the id in it. */
static uint32_t walk_row(const struct sampler *s, double total, float u)
{
    double target = (double)u * total, sum = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < s->vocab; i += BLOCK) {
        double block = s->block_sums[i / BLOCK];
        if (block > 0) last = i;
        if (sum + block > target) break;
        sum += block;
    }
    uint32_t n = s->vocab - last < BLOCK ? s->vocab - last : BLOCK;
    double inside = 0, rest = target - sum;
    uint32_t id = last;
    for (uint32_t i = last; i < last + n; i++) {
        inside += (double)s->weights[i];
        if (!(s->weights[i] > 0)) continue;
        id = i;
        if (inside > rest) break;
    }
    return id;
}

/* ---- an unknown number of candidates: buckets of logits by size ---- */

static uint32_t bucket_of(float x)
{
    uint32_t u = bits_of(x + 0.0f);             /* -0 equals 0 and is in its bucket */
    u = u & 0x80000000u ? ~u : u | 0x80000000u; /* unsigned order is float order */
    return u >> 18;
}

/* Writes sorted ids of all logits that the smallest set with weight >= want may hold (want <= total of the
 * weights) to s->order. */
static uint32_t gather_top(struct sampler *s, const float *l, double want)
{
    memset(s->bucket_count, 0, BUCKETS * sizeof *s->bucket_count);
    memset(s->bucket_sum, 0, BUCKETS * sizeof *s->bucket_sum);
    for (uint32_t i = 0; i < s->vocab; i++) {
        uint32_t b = bucket_of(l[i]);
        s->bucket_count[b]++;
        s->bucket_sum[b] += (double)s->weights[i];
    }
    double sum = 0;
    uint32_t least = BUCKETS, n = 0;
    while (least > 0 && (sum < want * (1 + 1e-9) || sum <= 0))
        sum += s->bucket_sum[--least]; /* the margin covers a different order of summation */
    for (uint32_t i = 0; i < s->vocab; i++)
        if (bucket_of(l[i]) >= least && s->weights[i] > 0) s->order[n++] = i;
    sort_ids(l, s->order, n);
    return n;
}

/* Sorted ids of all logits whose weight is at least about `least`. */
static uint32_t gather_above(struct sampler *s, const float *l, float least)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        if (s->weights[i] >= least * 0.999f) s->order[n++] = i;
    sort_ids(l, s->order, n);
    return n;
}

struct drawn {
    uint32_t id, top_idx; /* top_idx: index in the row's top list, UINT32_MAX if it is not from there */
};

static uint32_t pick(const struct sampling_params *p, const float *w, uint32_t kept, uint64_t position)
{
    return walk(w, kept, sum_of(w, kept), sampling_uniform(p->seed, position));
}

/* From the best n ids of a row in their order (all: there are no others), with values[i] the logit of the
 * i-th. False if they do not suffice. */
static bool draw_from_list(const struct sampling_params *p, const float *values, uint32_t n, bool all,
                           uint64_t position, uint32_t *idx)
{
    float w[LIST_MAX];
    float inv = inverse(p->temperature);
    bool limited = p->top_k > 0 && p->top_k <= n;
    if (!limited && p->top_p < 1.0f) return false; /* of the weight of all */
    if (!limited && p->min_p <= 0.0f) return false;
    if (limited && p->top_k < n) n = p->top_k;
    for (uint32_t i = 0; i < n; i++) w[i] = weight_of(values[i], values[0], inv);
    uint32_t kept = cut(p, w, n, limited ? sum_of(w, n) : 0, limited || all); /* min_p alone needs no total */
    if (!kept) return false;
    *idx = pick(p, w, kept, position);
    return true;
}

/* From a whole row in host memory, whose largest is `top` and whose best are known up to best[count]: exact
 * for every setting. */
static uint32_t draw_from_row(struct sampler *s, const struct sampling_params *p, const float *l,
                              uint32_t top, const uint32_t *best, uint32_t count, uint64_t position)
{
    uint32_t v = s->vocab;
    float max = l[top];
    if (p->temperature <= 0.0f || !isfinite(max)) return top;
    bool limited = p->top_k > 0 && p->top_k < v;
    float inv = inverse(p->temperature), u = sampling_uniform(p->seed, position);
    double total = limited ? 0 : row_weights(s, l, max, p->temperature, p->constraint ? s->barred : NULL);
    if (!limited && p->top_p >= 1.0f && p->min_p <= 0.0f) return walk_row(s, total, u);
    if (!limited && count) {
        float w[LIST_MAX];
        for (uint32_t i = 0; i < count; i++) w[i] = s->weights[best[i]];
        uint32_t kept = cut(p, w, count, total, count == v);
        if (kept) return best[pick(p, w, kept, position)];
    }
    uint32_t n = p->top_k;
    if (limited) select_top(l, v, n, s->order);
    else if (p->top_p < 1.0f) n = gather_top(s, l, (double)p->top_p * total);
    else n = gather_above(s, l, p->min_p);
    /* Replaces the row's weights by those of the candidates, in their order. */
    for (uint32_t i = 0; i < n; i++) s->weights[i] = weight_of(l[s->order[i]], max, inv);
    if (limited) total = sum_of(s->weights, n);
    return s->order[pick(p, s->weights, cut(p, s->weights, n, total, true), position)];
}

/* Samples from a row after changing it. */
static uint32_t draw_changed(struct sampler *s, const struct sampling_params *p,
                             const struct sampler_row *row, uint32_t n)
{
    uint32_t ids[LIST_MAX], idx = 0, changed = change(s, p, row), all = best_of(s, row, n, changed, ids);
    uint32_t m = p->constraint ? 0 : all;
    unmark(s, changed);
    for (uint32_t i = 0; i < all && p->constraint; i++)
        if (allows(s, ids[i]) && isfinite(s->weights[ids[i]])) ids[m++] = ids[i];
    if (m) {
        float values[LIST_MAX];
        for (uint32_t i = 0; i < m; i++) values[i] = s->weights[ids[i]];
        if (p->temperature <= 0.0f || draw_from_list(p, values, m, all == s->vocab, row->position, &idx))
            return ids[idx];
    }
    const float *l = p->constraint ? constrained_row(s, row, changed) : modified_row(s, row, changed);
    uint32_t top = m ? ids[0] : argmax(l, s->vocab, p->constraint ? s->barred : NULL);
    if (!isfinite(l[top]))
        return p->constraint ? best_allowed(s, row->raw) : argmax(row->raw, s->vocab, NULL);
    if (cuts_by_sigma(p)) cut_by_sigma(s, p->top_n_sigma, l[top]);
    return draw_from_row(s, p, l, top, ids, m, row->position);
}

uint32_t sampler_top_wanted(const struct sampling_params *p, uint32_t banned_count)
{
    bool changes = modifies(p, banned_count);
    if (p->temperature <= 0.0f) return changes ? CHANGED_SPARE : 0;
    if (cuts_by_sigma(p)) return 0; /* of all logits */
    if (p->top_k > 0 && p->top_k <= BE_TOPK_MAX) {
        uint32_t n = changes ? p->top_k + CHANGED_SPARE : p->top_k;
        return n < BE_TOPK_MAX ? n : BE_TOPK_MAX;
    }
    if (p->top_k > 0) return 0;
    if (p->top_p < 1.0f) return NUCLEUS;
    return p->min_p > 0.0f ? BE_TOPK_MAX : 0;
}

bool sampler_plain(const struct sampling_params *p, uint32_t banned_count)
{
    bool cut = p->temperature > 0.0f && (p->top_k > 0 || p->top_p < 1.0f || p->min_p > 0.0f);
    return !cut && !modifies(p, banned_count);
}

struct be_draw sampler_plain_draw(const struct sampling_params *p, uint32_t banned_count, uint64_t position)
{
    if (!sampler_plain(p, banned_count) || p->temperature <= 0.0f) return (struct be_draw){0, 0};
    return (struct be_draw){inverse(p->temperature), sampling_uniform(p->seed, position)};
}

bool sampler_walks(const struct sampling_params *p, uint32_t banned_count)
{
    if (modifies(p, banned_count)) return true;
    return p->temperature > 0.0f && !(p->top_k > 0 && p->top_k <= BE_TOPK_MAX);
}

/* Rank among raw logits: from the list if it is there, else by counting. */
static uint32_t rank_of(const struct sampler *s, const struct sampler_row *row, uint32_t id)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < row->top_count; i++)
        if (row->top_ids[i] == id) return i + 1;
    for (uint32_t i = 0; i < s->vocab; i++)
        n += row->raw[i] > row->raw[id] || (row->raw[i] == row->raw[id] && i < id);
    return n;
}

static void fill_top(uint32_t top_n, const struct sampler_row *row, struct token_out *out)
{
    out->top_count = top_n == SAMPLING_NO_LOGPROBS ? 0 : top_n < row->top_count ? top_n : row->top_count;
    if (out->top_count > SAMPLING_TOP_MAX) out->top_count = SAMPLING_TOP_MAX;
    for (uint32_t i = 0; i < out->top_count; i++)
        out->top[i] = (struct token_alt){row->top_ids[i], row->top_values[i] - row->stats.lse};
}

void sampler_score(uint32_t id, uint32_t top_n, const struct sampler_row *row, struct token_out *out)
{
    out->id = id;
    out->logprob = row->stats.target - row->stats.lse;
    out->rank = row->stats.target_rank;
    fill_top(top_n, row, out);
}

bool sampler_draw(struct sampler *s, const struct sampling_params *p, const struct sampler_row *row,
                  struct token_out *out)
{
    struct drawn d = {row->stats.argmax < s->vocab ? row->stats.argmax : 0, UINT32_MAX};
    bool modified = modifies(p, row->banned_count), greedy = p->temperature <= 0.0f && !modified,
         backend = false;
    if (!greedy) {
        uint32_t n = sampler_top_wanted(p, row->banned_count);
        if (n > s->vocab) n = s->vocab;
        if (n > row->top_count || !isfinite(row->stats.max)) n = 0;
        if (!modified && n &&
            draw_from_list(p, row->top_values, n, n == s->vocab, row->position, &d.top_idx)) {
            d.id = row->top_ids[d.top_idx];
        } else if (!row->raw) {
            backend = sampler_plain_draw(p, row->banned_count, row->position).inverse > 0 &&
                      row->stats.drawn < s->vocab;
            if (!backend) return false;
            d.id = row->stats.drawn;
        } else if (modified) {
            if (p->constraint)
                p->constraint->mask(p->constraint->arg, row->history + row->prompt_count,
                                    row->history_count - row->prompt_count, s->allowed, s->words);
            d.id = draw_changed(s, p, row, n);
        } else {
            d.id = draw_from_row(s, p, row->raw, d.id, row->top_ids, n, row->position);
        }
    }
    *out = (struct token_out){.id = d.id};
    if (greedy) {
        out->logprob = row->stats.max - row->stats.lse;
        out->rank = 1;
    } else if (d.top_idx != UINT32_MAX) {
        out->logprob = row->top_values[d.top_idx] - row->stats.lse;
        out->rank = d.top_idx + 1;
    } else if (backend) {
        out->logprob = row->stats.drawn_value - row->stats.lse;
        out->rank = row->stats.drawn_rank;
    } else {
        out->logprob = row->raw[d.id] - row->stats.lse;
        if (p->logprobs != SAMPLING_NO_LOGPROBS) out->rank = rank_of(s, row, d.id);
    }
    fill_top(p->logprobs, row, out);
    return true;
}
