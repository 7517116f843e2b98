/* See weights.h. One walk over the description serves both passes: the survey (names, shapes and sizes from
 * the headers; records the reading order) and the load (packs, in that order, with read-ahead in front and
 * released pages behind). */
#include "engine/checkpoint/weights.h"

#include "config/base/assert.h"
#include "config/base/checked.h"
#include "config/base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_AHEAD_BYTES (UINT64_C(256) << 20)
#define SAMPLE_BYTES     4096u
#define NAMED_IGNORED    3u /* how many are named in the warning */
#define SIZE_REORDER_MAX 32768u

struct named {
    char name[DESC_NAME_MAX]; /* canonical */
    const struct stf_tensor *t;
    bool used;
};
struct loader {
    const struct stf_files *files;
    const struct model_desc *desc;
    struct named *map; /* sorted by name */
    size_t map_count;
    struct weights_survey *survey; /* survey pass only; NULL while loading */
    enum be_dtype act;
    enum status st; /* first fault; everything after it does nothing */
    struct err *err;
    /* load pass */
    const struct be_ops *ops;
    struct backend *be;
    const struct weights_survey *plan;
    struct weights_progress progress;
    size_t ahead, at; /* next tensor of the plan to ask for; next to be read */
    uint64_t ahead_bytes, done_bytes, digest;
    uint16_t
        *made_up; /* [made_up_count] bf16 values that every tensor is taken from when there are no files */
    struct stf_tensor made[6]; /* the tensors of one weight */
    uint32_t made_count;
    float *host;        /* [slab_floats] image of the slab */
    float *slab;        /* backend address */
    uint64_t slab_used; /* floats, both passes */
};

/* ---- small conversions ---- */

float weights_round_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    u = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

float weights_round_f16(float x)
{
    int e;
    (void)frexpf(x, &e);
    if (e < -13) e = -13; /* subnormal: fixed step */
    float step = ldexpf(1.0f, e - 11);
    return nearbyintf(x / step) * step;
}

static enum be_dtype be_type(enum stf_dtype d)
{
    return d == STF_F32 ? BE_F32 : d == STF_BF16 ? BE_BF16 : BE_F16;
}

/* ---- names ---- */

static int by_canonical(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

/* What checkpoints carry along and no version of the model reads: tables that can be computed, and the
 * pooling head that a tower was trained with. And towers for sound, of which the family says that they are
 * not served. (A copy of the embedding as the tied head is no surprise
 * either.) */
static bool carried_along(const char *name)
{
    static const char *const ends[] = {"inv_freq", "position_ids"};
    size_t len = strlen(name);
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(ends[i]);
        if (len >= n && strcmp(name + len - n, ends[i]) == 0 && (len == n || name[len - n - 1] == '.'))
            return true;
    }
    return strstr(name, "vision_tower.vision_model.head.") != NULL || strstr(name, "audio_tower.") != NULL ||
           strstr(name, "embed_audio.") != NULL;
}

static void note_ignored(struct weights_survey *s, const char *name)
{
    size_t at = strlen(s->ignored_names), room = sizeof s->ignored_names - at;
    if (carried_along(name)) return;
    if (s->ignored++ >= NAMED_IGNORED) return;
    snprintf(s->ignored_names + at, room, "%s%.120s", at ? ", " : "", name);
    for (char *p = s->ignored_names + at; *p; p++)
        if (*p < ' ' || *p > '~') *p = '?'; /* it goes into a line of the log */
}

static enum status build_map(struct loader *ld)
{
    size_t n = ld->files ? stf_count(ld->files) : 0;
    ld->map = calloc(n ? n : 1, sizeof *ld->map);
    if (!ld->map) return err_set(ld->err, ST_NOMEM, "out of memory for %zu tensor names", n);
    for (size_t i = 0; i < n; i++) {
        const struct stf_tensor *t = stf_at(ld->files, i);
        struct named *m = &ld->map[ld->map_count];
        if (ld->desc->canonical(t->name, m->name)) {
            m->t = t;
            ld->map_count++;
        } else if (ld->survey) {
            note_ignored(ld->survey, t->name);
        }
    }
    if (ld->map_count) qsort(ld->map, ld->map_count, sizeof *ld->map, by_canonical);
    for (size_t i = 1; i < ld->map_count; i++)
        if (strcmp(ld->map[i - 1].name, ld->map[i].name) == 0)
            return err_set(ld->err, ST_FORMAT, "tensors %s and %s are the same part of the model (%s)",
                           ld->map[i - 1].t->name, ld->map[i].t->name, ld->map[i].name);
    return ST_OK;
}

/* "text.layers.#.mlp.up_proj", 7, ".weight" -> "text.layers.7.mlp.up_proj.weight"; a second '#' is the
 * expert. */
static void expand(const char *stem, uint32_t layer, uint32_t expert, const char *suffix,
                   char out[DESC_NAME_MAX])
{
    size_t at = 0;
    uint32_t number = layer;
    for (const char *s = stem; *s; s++) {
        int n = *s == '#' ? snprintf(out + at, DESC_NAME_MAX - at, "%u", number)
                          : snprintf(out + at, DESC_NAME_MAX - at, "%c", *s);
        ASSERT(n > 0 && (size_t)n < DESC_NAME_MAX - at);
        at += (size_t)n;
        if (*s == '#') number = expert;
    }
    int n = snprintf(out + at, DESC_NAME_MAX - at, "%s", suffix);
    ASSERT(n >= 0 && (size_t)n < DESC_NAME_MAX - at);
}

static void shape_text(const uint64_t *shape, uint32_t rank, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < rank; i++) {
        int n = snprintf(out + at, cap - at, "%s%llu", i ? "," : "", (unsigned long long)shape[i]);
        if (n < 0 || (size_t)n >= cap - at) return;
        at += (size_t)n;
    }
}

static void count_tensor(struct weights_survey *s, const struct stf_tensor *t)
{
    s->parameters += t->bytes / (t->dtype == STF_F32 ? 4 : 2);
    s->read_bytes += t->bytes;
    if (t->bytes > s->tensor_bytes_max) s->tensor_bytes_max = t->bytes;
}

/* A bf16 tensor of the wanted shape whose values are a stretch of the made-up ones. */
static const struct stf_tensor *make_up(struct loader *ld, uint32_t rank, const uint64_t *shape)
{
    struct stf_tensor *t = &ld->made[ld->made_count++ % 6];
    *t = (struct stf_tensor){.name = "(made up)", .dtype = STF_BF16, .rank = rank, .bytes = 2};
    for (uint32_t i = 0; i < rank; i++) t->bytes *= t->shape[i] = shape[i];
    t->data = ld->made_up;
    if (ld->survey) count_tensor(ld->survey, t);
    return t;
}

/* Everything that reading a tensor entails apart from its bytes: found, shape, dtype, counted. NULL after a
 * fault. */
static const struct stf_tensor *take(struct loader *ld, const char *stem, uint32_t layer, uint32_t expert,
                                     const char *suffix, uint32_t rank, const uint64_t *shape)
{
    if (ld->st) return NULL;
    if (!ld->files) return make_up(ld, rank, shape);
    struct named key;
    expand(stem, layer, expert, suffix, key.name);
    struct named *m =
        ld->map_count ? bsearch(&key, ld->map, ld->map_count, sizeof *ld->map, by_canonical) : NULL;
    if (!m) {
        ld->st =
            err_set(ld->err, ST_FORMAT, "the checkpoint has no tensor %s (in any known layout)", key.name);
        return NULL;
    }
    const struct stf_tensor *t = m->t;
    if (t->rank != rank || (rank && memcmp(t->shape, shape, rank * sizeof *shape) != 0)) {
        char have[96], want[96];
        shape_text(t->shape, t->rank, have, sizeof have);
        shape_text(shape, rank, want, sizeof want);
        ld->st = err_set(ld->err, ST_FORMAT, "tensor %s has shape [%s], config.json implies [%s]", t->name,
                         have, want);
        return NULL;
    }
    if (t->dtype != STF_F32 && t->dtype != STF_BF16 && t->dtype != STF_F16) {
        ld->st = err_set(ld->err, ST_UNSUPPORTED, "tensor %s is stored as %s; F32, BF16 and F16 are served",
                         t->name, stf_dtype_name(t->dtype));
        return NULL;
    }
    if (ld->survey) {
        struct weights_survey *s = ld->survey;
        m->used = true;
        s->order[s->count++] = t;
        count_tensor(s, t);
    }
    return t;
}

/* ---- reading order, progress ---- */

static void digest_bytes(struct loader *ld, const void *p, size_t n)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++) ld->digest = (ld->digest ^ b[i]) * UINT64_C(0x100000001b3);
}

static void before_read(struct loader *ld)
{
    while (ld->ahead < ld->plan->count && ld->ahead_bytes < ld->done_bytes + READ_AHEAD_BYTES) {
        const struct stf_tensor *t = ld->plan->order[ld->ahead++];
        stf_willneed(ld->files, t);
        ld->ahead_bytes += t->bytes;
    }
}

static void digest_tensor(struct loader *ld, const struct stf_tensor *t)
{
    size_t n = t->bytes < SAMPLE_BYTES ? (size_t)t->bytes : SAMPLE_BYTES;
    digest_bytes(ld, t->name, strlen(t->name) + 1);
    digest_bytes(ld, t->shape, t->rank * sizeof t->shape[0]);
    digest_bytes(ld, &t->dtype, sizeof t->dtype);
    digest_bytes(ld, t->data, n);
    digest_bytes(ld, (const char *)t->data + (t->bytes - n), n);
}

static void after_read(struct loader *ld, const struct stf_tensor *t)
{
    digest_tensor(ld, t);
    if (ld->files) stf_done(ld->files, t);
    ld->done_bytes += t->bytes;
    if (ld->progress.fn) ld->progress.fn(ld->progress.arg, ld->done_bytes, ld->plan->read_bytes);
}

/* ---- one weight, one vector ---- */

/* f32 vector of n values (any shape), in the slab; `plus` is added to each, then `times` multiplies. NULL for
 * a stem of NULL: the family has none. */
static const float *scaled_vector(struct loader *ld, const char *stem, uint32_t layer, const char *suffix,
                                  uint32_t rank, const uint64_t *shape, float plus, float times)
{
    if (!stem) return NULL;
    const struct stf_tensor *t = take(ld, stem, layer, 0, suffix, rank, shape);
    if (!t) return NULL;
    size_t n = 1;
    for (uint32_t i = 0; i < rank; i++) n *= (size_t)shape[i];
    uint64_t at = ld->slab_used;
    ld->slab_used += (n + 15) / 16 * 16; /* 64-byte alignment */
    if (ld->survey) return NULL;
    before_read(ld);
    (void)stf_to_f32(t, ld->host + at); /* take() checked the dtype */
    for (size_t i = 0; i < n && plus != 0; i++) ld->host[at + i] += plus;
    for (size_t i = 0; i < n && times != 1; i++) ld->host[at + i] *= times;
    after_read(ld, t);
    return ld->slab + at;
}

static const float *vector(struct loader *ld, const char *stem, uint32_t layer, const char *suffix,
                           uint32_t rank, const uint64_t *shape, float plus)
{
    return scaled_vector(ld, stem, layer, suffix, rank, shape, plus, 1);
}

static const float *vector1(struct loader *ld, const char *stem, uint32_t layer, const char *suffix,
                            uint32_t n, float plus)
{
    uint64_t shape[1] = {n};
    return vector(ld, stem, layer, suffix, 1, shape, plus);
}

/* Another order of rows or columns than the file has; see reorder(). */
enum order { ORDER_KEPT = 0, ORDER_HALVES, ORDER_CHANNELS };
struct part {
    const char *stem;
    uint32_t n;
    enum order order;
};
struct linear_spec {
    uint32_t layer, expert, k, part_count;
    struct part part[3];
    bool glu, bias;
    bool whole_name, transposed; /* stem is the whole name; stored as [k, n] */
    uint32_t head_dim;           /* ORDER_HALVES */
    uint32_t rank;               /* of the stored shape when it isn't [n, k]: shape[0..rank) */
    uint64_t shape[STF_RANK_MAX];
};

/* Where element i of the wanted order stands in the file.
 *   halves: heads of D rows, in each of whose halves the pairs (j, j + D/4) turn; wanted: pairs (j, j + D/2),
 *           those of the first half first
 *   channels: columns (y, x, channel); wanted: (channel, y, x) */
static uint32_t stored_at(enum order order, uint32_t i, uint32_t n, uint32_t head_dim)
{
    uint32_t d = head_dim, quarter = d / 4;
    if (order == ORDER_CHANNELS) return i % (n / 3) * 3 + i / (n / 3);
    if (order != ORDER_HALVES) return i;
    uint32_t at = i % d, pair = at % (d / 2), half = at / (d / 2);
    return i - at + pair / quarter * (d / 2) + half * quarter + pair % quarter;
}

/* [n, k] from src to dst, elements of `size` bytes: rows in order, or columns where that is of the channels.
 */
static void reorder(enum order order, uint32_t head_dim, const char *src, uint32_t n, uint32_t k, size_t size,
                    char *dst)
{
    bool columns = order == ORDER_CHANNELS;
    for (uint32_t r = 0; r < n; r++) {
        const char *row = src + (size_t)(columns ? r : stored_at(order, r, n, head_dim)) * k * size;
        char *to = dst + (size_t)r * k * size;
        if (!columns) memcpy(to, row, k * size);
        for (uint32_t c = 0; columns && c < k; c++)
            memcpy(to + c * size, row + stored_at(order, c, k, 0) * size, size);
    }
}

/* The same of a vector that was read into the slab. */
static void reorder_vector(struct loader *ld, const float *v, enum order order, uint32_t n)
{
    if (ld->survey || ld->st || !v) return;
    float copy[SIZE_REORDER_MAX], *host = ld->host + (v - ld->slab);
    ASSERT_CMP(n, <=, SIZE_REORDER_MAX);
    memcpy(copy, host, n * sizeof *copy);
    for (uint32_t i = 0; i < n; i++) host[i] = copy[stored_at(order, i, n, n)];
}

static void finish_pack(struct loader *ld, const struct be_weight_desc *d, const struct stf_tensor *const *t,
                        uint32_t count, struct be_weight **out)
{
    enum be_result r = ld->ops->weight_pack(ld->be, d, out);
    if (r == BE_NOMEM) ld->st = err_set(ld->err, ST_NOMEM, "out of memory for tensor %s", t[0]->name);
    else if (r == BE_UNSUPPORTED)
        ld->st = err_set(ld->err, ST_UNSUPPORTED, "tensor %s: no kernel for its shape", t[0]->name);
    else if (r != BE_OK)
        ld->st = err_set(ld->err, ST_DEVICE, "tensor %s: %s", t[0]->name, ld->ops->last_error(ld->be));
    for (uint32_t i = 0; i < count && !ld->st; i++) after_read(ld, t[i]);
}

static void linear(struct loader *ld, const struct linear_spec *s, struct be_weight **out)
{
    const struct stf_tensor *t[6] = {NULL};
    uint32_t total = 0, count = 0;
    struct be_weight_desc d = {.k = s->k, .src_count = s->part_count, .glu = s->glu};
    for (uint32_t i = 0; i < s->part_count; i++) {
        uint64_t plain[2] = {s->transposed ? s->k : s->part[i].n, s->transposed ? s->part[i].n : s->k};
        t[count] = take(ld, s->part[i].stem, s->layer, s->expert, s->whole_name ? "" : ".weight",
                        s->rank ? s->rank : 2, s->rank ? s->shape : plain);
        if (!t[count]) return;
        d.src[i] =
            (struct be_weight_src){t[count]->data, be_type(t[count]->dtype), s->transposed, s->part[i].n};
        total += s->part[i].n;
        count++;
    }
    for (uint32_t i = 0; i < s->part_count && s->bias; i++) {
        uint64_t shape[1] = {s->part[i].n};
        t[count] = take(ld, s->part[i].stem, s->layer, s->expert, ".bias", 1, shape);
        if (!t[count]) return;
        count++;
    }
    if (ld->survey) {
        ld->survey->memory_bytes +=
            (uint64_t)total * be_ld(s->k) * be_dtype_bytes(ld->act) + (s->bias ? 4ull * total : 0);
        return;
    }
    float *bias = NULL;
    if (s->bias) {
        bias = malloc(total * sizeof *bias);
        if (!bias) {
            ld->st = err_set(ld->err, ST_NOMEM, "out of memory for tensor %s", t[0]->name);
            return;
        }
        uint32_t at = 0;
        for (uint32_t i = 0; i < s->part_count; at += s->part[i].n, i++)
            (void)stf_to_f32(t[s->part_count + i], bias + at);
    }
    d.bias = bias;
    before_read(ld);
    void *moved[3] = {NULL};
    for (uint32_t i = 0; i < s->part_count && !ld->st; i++) {
        /* The format does not align tensors; files almost always do. */
        enum order order = s->part[i].order;
        size_t size = be_dtype_bytes(d.src[i].dtype);
        if ((uintptr_t)t[i]->data % size == 0 && order == ORDER_KEPT) continue;
        moved[i] = malloc(t[i]->bytes ? (size_t)t[i]->bytes : 1);
        if (!moved[i]) ld->st = err_set(ld->err, ST_NOMEM, "out of memory for tensor %s", t[i]->name);
        else if (order == ORDER_KEPT) d.src[i].data = memcpy(moved[i], t[i]->data, (size_t)t[i]->bytes);
        else {
            reorder(order, s->head_dim, t[i]->data, s->part[i].n, s->k, size, moved[i]);
            d.src[i].data = moved[i];
        }
    }
    if (!ld->st) finish_pack(ld, &d, t, count, out);
    for (uint32_t i = 0; i < 3; i++) free(moved[i]);
    free(bias);
}

/* ---- experts ---- */

/* One expert's matrix out of a tensor that holds all of them. `part` of a [k, n0 + n1] slice (stored inputs
 * first) is a stretch of every row, which weight_pack can't step over: it is copied out. */
struct fused {
    const struct stf_tensor *t;
    const char *slice; /* of the expert */
    uint32_t k, width; /* columns of a stored row when inputs come first */
    size_t elem;
    bool in_out;
};

static const void *fused_part(struct loader *ld, const struct fused *f, uint32_t first, uint32_t n,
                              void **copy)
{
    size_t row = (size_t)n * f->elem;
    const char *from = f->slice + (f->in_out ? (size_t)first * f->elem : (size_t)first * f->k * f->elem);
    *copy = NULL;
    if ((!f->in_out || n == f->width) && (uintptr_t)from % f->elem == 0) return from;
    size_t bytes = row * f->k;
    if (!(*copy = malloc(bytes ? bytes : 1))) {
        ld->st = err_set(ld->err, ST_NOMEM, "out of memory for tensor %s", f->t->name);
        return NULL;
    }
    if (!f->in_out) memcpy(*copy, from, bytes);
    else
        for (uint32_t r = 0; r < f->k; r++)
            memcpy((char *)*copy + r * row, from + (size_t)r * f->width * f->elem, row);
    return *copy;
}

/* All experts' matrices of `parts` outputs each, from one tensor; glu: two parts. */
static void walk_fused(struct loader *ld, uint32_t layer, const char *name, uint32_t experts, uint32_t k,
                       uint32_t parts, uint32_t n, struct be_weight **out)
{
    bool in_out = ld->desc->expert_layout == EXPERTS_IN_OUT;
    uint64_t wide = (uint64_t)parts * n, shape[3] = {experts, in_out ? k : wide, in_out ? wide : k};
    const struct stf_tensor *t = take(ld, name, layer, 0, "", 3, shape);
    if (!t) return;
    if (ld->survey) {
        ld->survey->memory_bytes += experts * wide * be_ld(k) * be_dtype_bytes(ld->act);
        return;
    }
    before_read(ld);
    size_t elem = be_dtype_bytes(be_type(t->dtype));
    for (uint32_t e = 0; e < experts && !ld->st; e++) {
        struct fused f = {t,     (const char *)t->data + (size_t)e * wide * k * elem, k, (uint32_t)wide, elem,
                          in_out};
        struct be_weight_desc d = {.k = k, .src_count = parts, .glu = parts == 2};
        void *copies[2] = {NULL};
        for (uint32_t p = 0; p < parts && !ld->st; p++)
            d.src[p] = (struct be_weight_src){fused_part(ld, &f, p * n, n, &copies[p]), be_type(t->dtype),
                                              in_out, n};
        if (!ld->st) finish_pack(ld, &d, &t, 0, &out[e]);
        free(copies[0]);
        free(copies[1]);
    }
    if (!ld->st) after_read(ld, t);
}

static void walk_experts(struct loader *ld, uint32_t n, struct layer_weights *w)
{
    const struct desc_names *a = &ld->desc->names;
    const struct desc_layer *l = &ld->desc->layers[n];
    uint32_t c = ld->desc->hidden;
    linear(ld, &(struct linear_spec){.layer = n, .k = c, .part_count = 1, .part = {{a->router, l->experts}}},
           &w->router);
    if (!ld->survey && !ld->st) {
        w->expert_glu = calloc(l->experts, sizeof *w->expert_glu);
        w->expert_down = calloc(l->experts, sizeof *w->expert_down);
        if (!w->expert_glu || !w->expert_down)
            ld->st = err_set(ld->err, ST_NOMEM, "out of memory for %u experts", l->experts);
    }
    if (ld->desc->expert_layout != EXPERTS_EACH) {
        walk_fused(ld, n, a->expert_gate_up, l->experts, c, 2, l->ff, w->expert_glu);
        walk_fused(ld, n, a->expert_down_all, l->experts, l->ff, 1, c, w->expert_down);
        return;
    }
    for (uint32_t e = 0; e < l->experts && !ld->st; e++) {
        struct be_weight *none = NULL;
        linear(ld,
               &(struct linear_spec){.layer = n,
                                     .expert = e,
                                     .k = c,
                                     .part_count = 2,
                                     .part = {{a->expert_gate, l->ff}, {a->expert_up, l->ff}},
                                     .glu = true},
               ld->survey ? &none : &w->expert_glu[e]);
        linear(ld,
               &(struct linear_spec){
                   .layer = n, .expert = e, .k = l->ff, .part_count = 1, .part = {{a->expert_down, c}}},
               ld->survey ? &none : &w->expert_down[e]);
    }
}

/* What an MLP beside the experts brings along. */
static void walk_beside(struct loader *ld, uint32_t n, struct layer_weights *w)
{
    const struct desc_names *a = &ld->desc->names;
    const struct desc_layer *l = &ld->desc->layers[n];
    uint32_t c = ld->desc->hidden;
    w->router_norm =
        scaled_vector(ld, a->router_norm, n, "", 1, (uint64_t[]){c}, 0, (float)(1 / sqrt((double)c)));
    w->router_scale = vector1(ld, a->router_scale, n, "", l->experts, 0);
    w->expert_norm = vector1(ld, a->expert_norm, n, ".weight", c, 0);
    w->experts_norm = vector1(ld, a->experts_norm, n, ".weight", c, 0);
    w->beside_norm = vector1(ld, a->beside_norm, n, ".weight", c, 0);
}

/* ---- what each layer gets of every token by itself ---- */

/* The table is not read now but row by row, later: it counts as a parameter and part of the identity, and
 * takes no memory. */
static void walk_table(struct loader *ld, const char *stem, uint64_t cols, struct row_table *out)
{
    const struct model_desc *d = ld->desc;
    struct weights_survey before = {0};
    if (ld->survey) before = *ld->survey;
    const struct stf_tensor *t = take(ld, stem, 0, 0, ".weight", 2, (uint64_t[]){d->vocab, cols});
    if (!t) return;
    if (ld->survey) {
        ld->survey->read_bytes = before.read_bytes;
        ld->survey->tensor_bytes_max = before.tensor_bytes_max;
        ld->survey->count = before.count;
        return;
    }
    out->row = *t;
    out->row.rank = 1;
    out->row.shape[0] = cols;
    out->row.bytes = t->bytes / d->vocab;
    out->stride = (size_t)out->row.bytes;
    if (ld->files) {
        digest_tensor(ld, t);
        return;
    }
    out->stride = 0;
    out->owned = malloc((size_t)out->row.bytes);
    if (!out->owned) ld->st = err_set(ld->err, ST_NOMEM, "out of memory for made-up weights");
    else out->row.data = memcpy(out->owned, ld->made_up, (size_t)out->row.bytes);
}

void weights_row(const struct row_table *t, uint32_t id, float *out)
{
    struct stf_tensor row = t->row;
    row.data = (const char *)row.data + (size_t)id * t->stride;
    (void)stf_to_f32(&row, out); /* take() checked the dtype */
}

static void walk_token_input(struct loader *ld, struct weights *w)
{
    const struct model_desc *d = ld->desc;
    linear(ld,
           &(struct linear_spec){.k = d->hidden,
                                 .part_count = 1,
                                 .part = {{d->names.token_project, d->layer_count * d->token_input}}},
           &w->token_project);
    w->token_norm = scaled_vector(ld, d->names.token_norm, 0, ".weight", 1, (uint64_t[]){d->token_input}, 0,
                                  0.70710678118654752f);
    walk_table(ld, d->names.token_table, (uint64_t)d->layer_count * d->token_input, &w->token_table);
}

static void walk_token_layer(struct loader *ld, uint32_t n, struct layer_weights *w)
{
    const struct model_desc *d = ld->desc;
    uint32_t p = d->token_input;
    linear(ld,
           &(struct linear_spec){
               .layer = n, .k = d->hidden, .part_count = 1, .part = {{d->names.token_gate, p}}},
           &w->token_gate);
    linear(
        ld,
        &(struct linear_spec){.layer = n, .k = p, .part_count = 1, .part = {{d->names.token_up, d->hidden}}},
        &w->token_up);
    w->token_post_norm = vector1(ld, d->names.token_post_norm, n, ".weight", d->hidden, 0);
}

/* ---- the walk ---- */

static void walk_layer(struct loader *ld, uint32_t n, struct layer_weights *w)
{
    const struct model_desc *d = ld->desc;
    const struct desc_names *a = &d->names;
    const struct desc_layer *l = &d->layers[n];
    uint32_t c = d->hidden, q = l->heads * l->head_dim, kv = l->kv_heads * l->head_dim,
             ff = l->experts ? l->beside_ff : l->ff;
    bool own = desc_owns_keys(d, n);
    float plus = d->norm_plus_one ? 1.0f : 0.0f;
    w->input_norm = vector1(ld, a->input_norm, n, ".weight", c, plus);
    linear(ld,
           &(struct linear_spec){.layer = n,
                                 .k = c,
                                 .part_count = !own             ? 1
                                               : l->keys_values ? 2
                                                                : 3,
                                 .part = {{a->q, q}, {a->k, kv}, {a->v, kv}},
                                 .bias = l->qkv_bias},
           &w->qkv);
    w->q_norm = vector1(ld, a->q_norm, n, ".weight", l->head_dim, plus);
    if (own) w->k_norm = vector1(ld, a->k_norm, n, ".weight", l->head_dim, plus);
    linear(ld,
           &(struct linear_spec){.layer = n, .k = q, .part_count = 1, .part = {{a->o, c}}, .bias = l->o_bias},
           &w->o);
    w->post_attn_norm = vector1(ld, a->post_attn_norm, n, ".weight", c, plus);
    w->pre_mlp_norm = vector1(ld, a->pre_mlp_norm, n, ".weight", c, plus);
    if (l->experts) walk_experts(ld, n, w);
    if (l->beside_ff) walk_beside(ld, n, w);
    if (ff) {
        linear(ld,
               &(struct linear_spec){
                   .layer = n, .k = c, .part_count = 2, .part = {{a->gate, ff}, {a->up, ff}}, .glu = true},
               &w->glu);
        linear(ld, &(struct linear_spec){.layer = n, .k = ff, .part_count = 1, .part = {{a->down, c}}},
               &w->down);
    }
    w->post_mlp_norm = vector1(ld, a->post_mlp_norm, n, ".weight", c, plus);
    if (d->token_input) walk_token_layer(ld, n, w);
    w->layer_scale = vector1(ld, a->layer_scale, n, "", 1, 0);
}

static void walk_merger(struct loader *ld, uint32_t n, const char *norm, const char *fc1, const char *fc2,
                        uint32_t norm_width, struct vision_merger_weights *m)
{
    const struct desc_vision *v = &ld->desc->vision;
    uint32_t wide = v->hidden * v->merge * v->merge;
    m->norm = vector1(ld, norm, n, ".weight", norm_width, 0);
    m->norm_bias = v->rms ? NULL : vector1(ld, norm, n, ".bias", norm_width, 0);
    linear(ld,
           &(struct linear_spec){.layer = n, .k = wide, .part_count = 1, .part = {{fc1, wide}}, .bias = true},
           &m->fc1);
    linear(ld,
           &(struct linear_spec){
               .layer = n, .k = wide, .part_count = 1, .part = {{fc2, ld->desc->hidden}}, .bias = true},
           &m->fc2);
}

/* Bounds of one product's input and output: whole names beside the weight, whose stem may end in ".linear".
 */
static void walk_bounds(struct loader *ld, uint32_t n, const char *stem, const float *out[2])
{
    static const char *const ends[4] = {".input_min", ".input_max", ".output_min", ".output_max"};
    static const char linear_end[] = ".linear";
    char base[DESC_NAME_MAX];
    size_t len = strlen(stem), tail = sizeof linear_end - 1;
    if (len > tail && strcmp(stem + len - tail, linear_end) == 0) len -= tail;
    snprintf(base, sizeof base, "%.*s", (int)len, stem);
    for (int i = 0; i < 4; i++) {
        const struct stf_tensor *t = take(ld, base, n, 0, ends[i], 0, NULL);
        if (!t) return;
        uint64_t at = ld->slab_used + (uint64_t)i % 2;
        ld->slab_used += i % 2 ? 16 : 0; /* 64-byte alignment */
        if (ld->survey) continue;
        before_read(ld);
        (void)stf_to_f32(t, ld->host + at);
        after_read(ld, t);
        if (i % 2 == 0) out[i / 2] = ld->slab + at;
    }
}

/* Each product by itself, with its bounds. */
static void walk_clipped(struct loader *ld, uint32_t n, struct vision_layer_weights *l)
{
    const struct desc_vision *v = &ld->desc->vision;
    uint32_t c = v->hidden, ff = v->ff;
    enum order order = v->rope_halves ? ORDER_HALVES : ORDER_KEPT;
    const struct {
        const char *stem;
        uint32_t n, k;
        enum order order;
        struct be_weight **out;
    } all[7] = {
        [VISION_Q] = {v->names.q, c, c, order, &l->qkv},   [VISION_K] = {v->names.k, c, c, order, &l->k},
        [VISION_V] = {v->names.v, c, c, 0, &l->v},         [VISION_O] = {v->names.o, c, c, 0, &l->o},
        [VISION_GATE] = {v->names.fc1, ff, c, 0, &l->fc1}, [VISION_UP] = {v->names.up, ff, c, 0, &l->up},
        [VISION_DOWN] = {v->names.fc2, c, ff, 0, &l->fc2}};
    for (int i = 0; i < 7; i++) {
        linear(ld,
               &(struct linear_spec){.layer = n,
                                     .k = all[i].k,
                                     .part_count = 1,
                                     .part = {{all[i].stem, all[i].n, all[i].order}},
                                     .bias = !v->no_bias,
                                     .head_dim = c / v->heads},
               all[i].out);
        walk_bounds(ld, n, all[i].stem, l->bounds[i]);
    }
}

static void walk_products(struct loader *ld, uint32_t n, struct vision_layer_weights *l)
{
    const struct desc_vision *v = &ld->desc->vision;
    uint32_t c = v->hidden;
    bool bias = !v->no_bias;
    enum order order = v->rope_halves ? ORDER_HALVES : ORDER_KEPT;
    struct linear_spec qkv = {.layer = n,
                              .k = c,
                              .part_count = 3,
                              .part = {{v->names.q, c, order}, {v->names.k, c, order}, {v->names.v, c, 0}},
                              .bias = bias,
                              .head_dim = c / v->heads};
    if (v->qkv_fused) {
        qkv.part_count = 1;
        qkv.part[0].n = 3 * c;
    }
    linear(ld, &qkv, &l->qkv);
    linear(ld,
           &(struct linear_spec){
               .layer = n, .k = c, .part_count = 1, .part = {{v->names.o, c, 0}}, .bias = bias},
           &l->o);
    struct linear_spec fc1 = {
        .layer = n, .k = c, .part_count = 1, .part = {{v->names.fc1, v->ff, 0}}, .bias = bias};
    if (v->mlp == VISION_GLU_SILU || v->mlp == VISION_GLU_GELU) {
        fc1.part_count = 2;
        fc1.part[1] = (struct part){v->names.up, v->ff, 0};
        fc1.glu = true;
    }
    linear(ld, &fc1, &l->fc1);
    linear(ld,
           &(struct linear_spec){
               .layer = n, .k = v->ff, .part_count = 1, .part = {{v->names.fc2, c, 0}}, .bias = bias},
           &l->fc2);
}

static void walk_vision_layer(struct loader *ld, uint32_t n, struct vision_layer_weights *l)
{
    const struct desc_vision *v = &ld->desc->vision;
    uint32_t c = v->hidden, d = c / v->heads;
    l->norm1 = vector1(ld, v->names.norm1, n, ".weight", c, 0);
    l->norm1_bias = v->rms ? NULL : vector1(ld, v->names.norm1, n, ".bias", c, 0);
    l->norm2 = vector1(ld, v->names.norm2, n, ".weight", c, 0);
    l->norm2_bias = v->rms ? NULL : vector1(ld, v->names.norm2, n, ".bias", c, 0);
    l->q_norm = vector1(ld, v->names.q_norm, n, ".weight", d, 0);
    l->k_norm = vector1(ld, v->names.k_norm, n, ".weight", d, 0);
    if (v->rope_halves) {
        reorder_vector(ld, l->q_norm, ORDER_HALVES, d);
        reorder_vector(ld, l->k_norm, ORDER_HALVES, d);
    }
    l->post_attn = vector1(ld, v->names.post_attn, n, ".weight", c, 0);
    l->post_mlp = vector1(ld, v->names.post_mlp, n, ".weight", c, 0);
    if (v->clip) walk_clipped(ld, n, l);
    else walk_products(ld, n, l);
}

/* The patches' product and what stands around it, and the positions. */
static void walk_patches(struct loader *ld, struct vision_weights *w)
{
    const struct desc_vision *v = &ld->desc->vision;
    uint32_t c = v->hidden, side = v->position_side ? v->position_side : v->image_size / v->patch,
             k = 3 * v->depth * v->patch * v->patch;
    struct linear_spec patch = {.k = k,
                                .part_count = 1,
                                .part = {{v->names.patch, c, ORDER_KEPT}},
                                .bias = v->patch_bias,
                                .rank = 4,
                                .shape = {c, 3, v->patch, v->patch}};
    if (v->depth > 1 || v->end == VISION_MERGE) {
        patch.rank = 5;
        memcpy(patch.shape, (uint64_t[]){c, 3, v->depth, v->patch, v->patch}, 5 * sizeof(uint64_t));
    }
    if (v->channels_last) {
        patch.rank = 2;
        memcpy(patch.shape, (uint64_t[]){c, k}, 2 * sizeof(uint64_t));
        patch.part[0].order = ORDER_CHANNELS;
    }
    w->patch_norm = vector1(ld, v->names.patch_norm, 0, ".weight", k, 0);
    w->patch_norm_bias = vector1(ld, v->names.patch_norm, 0, ".bias", k, 0);
    if (v->channels_last) {
        reorder_vector(ld, w->patch_norm, ORDER_CHANNELS, k);
        reorder_vector(ld, w->patch_norm_bias, ORDER_CHANNELS, k);
    }
    linear(ld, &patch, &w->patch);
    if (v->position)
        w->position =
            vector(ld, v->names.position, 0, ".weight", 2, (uint64_t[]){(uint64_t)side * side, c}, 0);
    if (v->position_axis) {
        uint64_t n = v->position_axis;
        w->position = vector(ld, v->names.position, 0, "", 3,
                             v->position_pairs ? (uint64_t[]){n, 2, c} : (uint64_t[]){2, n, c}, 0);
    }
    w->dense_norm = vector1(ld, v->names.dense_norm, 0, ".weight", c, 0);
    w->dense_norm_bias = vector1(ld, v->names.dense_norm, 0, ".bias", c, 0);
    w->position_norm = vector1(ld, v->names.position_norm, 0, ".weight", c, 0);
    w->position_norm_bias = vector1(ld, v->names.position_norm, 0, ".bias", c, 0);
}

static const float *ones(struct loader *ld, uint32_t n)
{
    uint64_t at = ld->slab_used;
    ld->slab_used += (n + 15ull) / 16 * 16;
    if (ld->survey || ld->st) return NULL;
    for (uint32_t i = 0; i < n; i++) ld->host[at + i] = 1;
    return ld->slab + at;
}

static void walk_vision(struct loader *ld, struct vision_weights *w)
{
    const struct desc_vision *v = &ld->desc->vision;
    uint32_t c = v->hidden;
    walk_patches(ld, w);
    for (uint32_t n = 0; n < v->layers; n++) walk_vision_layer(ld, n, &w->layers[n]);
    if (v->end == VISION_MERGE) {
        walk_merger(ld, 0, v->names.merge_norm, v->names.merge_fc1, v->names.merge_fc2, c, &w->merger);
        for (uint32_t k = 0; k < v->tap_count; k++)
            walk_merger(ld, k, v->names.tap_norm, v->names.tap_fc1, v->names.tap_fc2, c * v->merge * v->merge,
                        &w->taps[k]);
        return;
    }
    w->post_norm = vector1(ld, v->names.post_norm, 0, ".weight", c, 0);
    w->post_norm_bias = vector1(ld, v->names.post_norm, 0, ".bias", c, 0);
    w->std_bias = vector1(ld, v->names.std_bias, 0, "", c, 0);
    w->std_scale = vector1(ld, v->names.std_scale, 0, "", c, 0);
    if (v->end == VISION_LINEAR) {
        linear(ld,
               &(struct linear_spec){
                   .k = c, .part_count = 1, .part = {{v->names.project, ld->desc->hidden, 0}}, .bias = true},
               &w->projection);
        return;
    }
    w->soft_norm = v->names.soft_norm ? vector1(ld, v->names.soft_norm, 0, ".weight", c,
                                                ld->desc->norm_plus_one ? 1.0f : 0.0f)
                                      : ones(ld, c);
    bool whole = v->names.projection != NULL;
    linear(
        ld,
        &(struct linear_spec){.k = c,
                              .part_count = 1,
                              .part = {{whole ? v->names.projection : v->names.project, ld->desc->hidden, 0}},
                              .whole_name = whole,
                              .transposed = whole},
        &w->projection);
}

/* Which tokens a cluster has: numbers, not weights. Without files the tokens are in order. */
static void walk_clusters(struct loader *ld, struct weights *w)
{
    const struct model_desc *d = ld->desc;
    struct named key;
    snprintf(key.name, sizeof key.name, "%s", d->names.clusters);
    struct named *m =
        ld->map_count ? bsearch(&key, ld->map, ld->map_count, sizeof *ld->map, by_canonical) : NULL;
    if (ld->st) return;
    if (ld->files && (!m || m->t->dtype != STF_I64 || m->t->rank != 1 || m->t->shape[0] != d->vocab)) {
        ld->st = err_set(ld->err, ST_FORMAT, "the drafter has no tensor %s of %u numbers (I64)",
                         d->names.clusters, d->vocab);
        return;
    }
    if (m) m->used = true;
    if (ld->survey) return;
    w->clusters = malloc(d->vocab * sizeof *w->clusters);
    if (!w->clusters) ld->st = err_set(ld->err, ST_NOMEM, "out of memory for the clusters of the head");
    for (uint32_t i = 0; i < d->vocab && !ld->st; i++) {
        uint64_t id = i;
        if (m) memcpy(&id, (const char *)m->t->data + i * sizeof id, sizeof id);
        if (id >= d->vocab)
            ld->st = err_set(ld->err, ST_FORMAT, "tensor %s has an id beyond the vocabulary", m->t->name);
        w->clusters[i] = (uint32_t)id;
    }
}

static void walk_drafter(struct loader *ld, struct weights *w)
{
    const struct model_desc *d = ld->desc;
    const char *head = d->tied ? d->names.embed : d->names.head;
    uint32_t c = d->hidden, wide = d->drafts_for;
    linear(ld, &(struct linear_spec){.k = 2 * wide, .part_count = 1, .part = {{d->names.draft_in, c}}},
           &w->draft_in);
    linear(ld, &(struct linear_spec){.k = c, .part_count = 1, .part = {{d->names.draft_out, wide}}},
           &w->draft_out);
    if (!d->centroids) {
        linear(ld, &(struct linear_spec){.k = c, .part_count = 1, .part = {{head, d->vocab}}}, &w->head);
        return;
    }
    linear(ld, &(struct linear_spec){.k = c, .part_count = 1, .part = {{d->names.centroids, d->centroids}}},
           &w->centroids);
    walk_table(ld, head, c, &w->head_rows);
    walk_clusters(ld, w);
}

static void walk(struct loader *ld, struct weights *w)
{
    const struct model_desc *d = ld->desc;
    if (d->drafts_for) walk_drafter(ld, w);
    else
        linear(ld,
               &(struct linear_spec){.k = d->hidden, .part_count = 1, .part = {{d->names.embed, d->vocab}}},
               &w->embed);
    if (d->token_input) walk_token_input(ld, w);
    for (uint32_t n = 0; n < d->layer_count && !ld->st; n++) walk_layer(ld, n, &w->layers[n]);
    w->final_norm = vector1(ld, d->names.final_norm, 0, ".weight", d->hidden, d->norm_plus_one ? 1.0f : 0.0f);
    if (d->tied && !d->drafts_for) w->head = w->embed;
    else if (!d->drafts_for)
        linear(ld,
               &(struct linear_spec){.k = d->hidden, .part_count = 1, .part = {{d->names.head, d->vocab}}},
               &w->head);
    if (d->has_vision) walk_vision(ld, &w->vision);
}

/* Keys and values of a layer that reads another's: files of a release carry them along. */
static bool shared_away(const struct model_desc *d, const char *name)
{
    const char *const stems[] = {d->names.k, d->names.v, d->names.k_norm};
    for (uint32_t n = 0; n < d->layer_count; n++)
        for (int i = 0; i < 3 && !desc_owns_keys(d, n); i++) {
            char own[DESC_NAME_MAX];
            size_t len;
            if (!stems[i]) continue;
            expand(stems[i], n, 0, ".", own);
            len = strlen(own);
            if (strncmp(name, own, len) == 0) return true;
        }
    return false;
}

static enum status alloc_layers(const struct model_desc *d, struct weights *w, struct err *err)
{
    w->layers = calloc(d->layer_count, sizeof *w->layers);
    w->vision.layers = d->has_vision ? calloc(d->vision.layers + 1ull, sizeof *w->vision.layers) : NULL;
    if (!w->layers || (d->has_vision && !w->vision.layers))
        return err_set(err, ST_NOMEM, "out of memory for the list of layers");
    return ST_OK;
}

enum status weights_survey(const struct stf_files *files, const struct model_desc *desc, enum be_dtype act,
                           struct weights_survey *out, struct err *err)
{
    *out = (struct weights_survey){0};
    struct weights none = {0};
    struct loader ld = {.files = files, .desc = desc, .survey = out, .act = act, .err = err};
    /* A name is asked for once, so the order has at most as many entries as there are tensors. */
    out->order = calloc(files && stf_count(files) ? stf_count(files) : 1, sizeof *out->order);
    ld.st = out->order ? build_map(&ld) : err_set(err, ST_NOMEM, "out of memory");
    if (!ld.st) ld.st = alloc_layers(desc, &none, err);
    if (!ld.st) walk(&ld, &none);
    if (!ld.st) {
        out->stored = files ? out->order[0]->dtype : STF_BF16;
        out->slab_floats = ld.slab_used;
        out->memory_bytes += 4 * ld.slab_used;
        for (size_t i = 0; i < ld.map_count; i++)
            if (!ld.map[i].used && !(desc->tied && strncmp(ld.map[i].name, "head.", 5) == 0) &&
                !shared_away(desc, ld.map[i].name))
                note_ignored(out, ld.map[i].t->name);
    }
    free(none.layers);
    free(none.vision.layers);
    free(ld.map);
    if (ld.st) weights_survey_free(out);
    return ld.st;
}

void weights_survey_free(struct weights_survey *s)
{
    free(s->order);
    *s = (struct weights_survey){0};
}

/* Uniform in about +-0.03, seeded; a period of 65,537 values so that rows differ. */
static enum status make_values(struct loader *ld)
{
    size_t n = (size_t)ld->plan->tensor_bytes_max / 2, period = 65537;
    ld->made_up = malloc(n * sizeof *ld->made_up);
    if (!ld->made_up) return err_set(ld->err, ST_NOMEM, "out of memory for made-up weights");
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < n && i < period; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        float v = ((float)(uint32_t)(x >> 40) * 0x1p-24f - 0.5f) * 0.06f;
        uint32_t bits;
        memcpy(&bits, &v, 4);
        ld->made_up[i] = (uint16_t)(bits >> 16);
    }
    for (size_t i = period; i < n; i += period)
        memcpy(ld->made_up + i, ld->made_up, (n - i < period ? n - i : period) * sizeof *ld->made_up);
    return ST_OK;
}

enum status weights_load(const struct stf_files *files, const struct model_desc *desc,
                         const struct weights_survey *survey, const struct be_ops *ops, struct backend *be,
                         struct weights_progress progress, struct weights *out, uint64_t *identity,
                         struct err *err)
{
    struct weights w = {0};
    struct loader ld = {.files = files,
                        .desc = desc,
                        .err = err,
                        .ops = ops,
                        .be = be,
                        .plan = survey,
                        .progress = progress,
                        .digest = UINT64_C(0xcbf29ce484222325)};
    size_t slab_bytes = (size_t)survey->slab_floats * sizeof(float);
    ld.st = build_map(&ld);
    if (!ld.st) ld.st = alloc_layers(desc, &w, err);
    enum be_result r =
        ld.st || !(ld.host = malloc(slab_bytes)) ? BE_NOMEM : ops->alloc(be, slab_bytes, &w.slab);
    if (!ld.st && r == BE_DEVICE) ld.st = err_set(err, ST_DEVICE, "%s", ops->last_error(be));
    if (!ld.st && r != BE_OK)
        ld.st = err_set(err, ST_NOMEM, "out of memory: %zu bytes for norms and positions", slab_bytes);
    if (!ld.st && !files) ld.st = make_values(&ld);
    if (!ld.st) {
        memset(ld.host, 0, slab_bytes);
        ld.slab = w.slab;
        walk(&ld, &w);
    }
    if (!ld.st) {
        ASSERT_CMP(ld.slab_used, ==, survey->slab_floats);
        ops->upload(be, w.slab, ld.host, slab_bytes);
    }
    free(ld.made_up);
    free(ld.host);
    free(ld.map);
    if (ld.st) {
        weights_free(&w, desc, ops, be);
        return ld.st;
    }
    *out = w;
    *identity = ld.digest;
    return ST_OK;
}

/* ---- all packed weights, for release and for counting ---- */

static void each_weight(const struct weights *w, const struct model_desc *d,
                        void (*fn)(void *arg, struct be_weight *), void *arg)
{
    if (w->embed) fn(arg, w->embed);
    if (w->head && w->head != w->embed) fn(arg, w->head);
    struct be_weight *own[] = {w->token_project, w->draft_in, w->draft_out, w->centroids};
    for (int i = 0; i < 4; i++)
        if (own[i]) fn(arg, own[i]);
    for (uint32_t n = 0; w->layers && n < d->layer_count; n++) {
        const struct layer_weights *l = &w->layers[n];
        struct be_weight *all[] = {l->qkv, l->o, l->glu, l->down, l->router, l->token_gate, l->token_up};
        for (int i = 0; i < 7; i++)
            if (all[i]) fn(arg, all[i]);
        for (uint32_t k = 0; k < d->layers[n].experts; k++) {
            if (l->expert_glu && l->expert_glu[k]) fn(arg, l->expert_glu[k]);
            if (l->expert_down && l->expert_down[k]) fn(arg, l->expert_down[k]);
        }
    }
    for (uint32_t n = 0; w->vision.layers && n < d->vision.layers; n++) {
        const struct vision_layer_weights *l = &w->vision.layers[n];
        struct be_weight *all[] = {l->qkv, l->o, l->fc1, l->fc2, l->k, l->v, l->up};
        for (int i = 0; i < 7; i++)
            if (all[i]) fn(arg, all[i]);
    }
    const struct vision_merger_weights *m[1 + DESC_TAPS_MAX] = {&w->vision.merger};
    for (uint32_t k = 0; k < DESC_TAPS_MAX; k++) m[1 + k] = &w->vision.taps[k];
    for (uint32_t k = 0; k < 1 + DESC_TAPS_MAX; k++) {
        if (m[k]->fc1) fn(arg, m[k]->fc1);
        if (m[k]->fc2) fn(arg, m[k]->fc2);
    }
    if (w->vision.patch) fn(arg, w->vision.patch);
    if (w->vision.projection) fn(arg, w->vision.projection);
}

struct visit {
    const struct be_ops *ops;
    struct backend *be;
    uint64_t bytes;
};

static void free_one(void *arg, struct be_weight *w)
{
    struct visit *v = arg;
    v->ops->weight_free(v->be, w);
}

static void count_one(void *arg, struct be_weight *w)
{
    struct visit *v = arg;
    v->bytes += v->ops->weight_bytes(w);
}

void weights_free(struct weights *w, const struct model_desc *desc, const struct be_ops *ops,
                  struct backend *be)
{
    struct visit v = {ops, be, 0};
    each_weight(w, desc, free_one, &v);
    for (uint32_t n = 0; w->layers && n < desc->layer_count; n++) {
        free(w->layers[n].expert_glu);
        free(w->layers[n].expert_down);
    }
    free(w->layers);
    free(w->vision.layers);
    free(w->token_table.owned);
    free(w->head_rows.owned);
    free(w->clusters);
    if (w->slab) ops->free(be, w->slab);
    *w = (struct weights){0};
}

uint64_t weights_bytes(const struct weights *w, const struct model_desc *desc, const struct be_ops *ops,
                       uint64_t slab_floats)
{
    struct visit v = {ops, NULL, slab_floats * sizeof(float)};
    each_weight(w, desc, count_one, &v);
    return v.bytes;
}
