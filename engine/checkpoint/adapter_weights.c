/* See adapter_weights.h. The walk over the description (weights_internal.h) runs as an inventory without
 * files on a copy of the weights' lists, and stops at each product. */
#include "engine/checkpoint/adapter_weights.h"

#include "config/base/sha256.h"
#include "engine/checkpoint/weights_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct adapter_walk {
    struct adapter_pair *pairs; /* [pair_count] */
    size_t pair_count;
    const struct adapter_sizes *limits; /* NULL: only the sizes are wanted */
    struct adapter_sizes sizes;
    struct sha256 digest;
    struct adapter_weights out;
    uint32_t room; /* of out.matrices */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct adapter_pair *)a)->name, ((const struct adapter_pair *)b)->name);
}

static int by_base(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct adapter_matrix *)a)->base,
              y = (uintptr_t)((const struct adapter_matrix *)b)->base;
    return x < y ? -1 : x > y;
}

/* Of part i; NULL: none. */
static struct adapter_pair *find_pair(const struct loader *ld, const struct linear_spec *s, uint32_t i)
{
    const struct desc_names *n = &ld->desc->names;
    struct adapter_walk *w = ld->adapter;
    const char *stem = s->part[i].stem;
    struct adapter_pair key;
    if (s->whole_name || !w->pair_count) return NULL;
    if (ld->desc->tied && strcmp(stem, n->embed) == 0) stem = n->head; /* only the head multiplies by it */
    load_expand(stem, s->layer, s->expert, "", key.name);
    return bsearch(&key, w->pairs, w->pair_count, sizeof key, by_name);
}

static bool is_matrix(const struct stf_tensor *t, uint64_t rows, uint64_t columns)
{
    return t->rank == 2 && t->shape[0] == rows && t->shape[1] == columns;
}

static enum status check_pair(const struct loader *ld, const struct linear_spec *s, uint32_t i,
                              const struct adapter_pair *p)
{
    uint64_t n = s->part[i].of ? s->part[i].of : s->part[i].n, r = p->a->rank == 2 ? p->a->shape[0] : 0;
    const struct stf_tensor *both[2] = {p->a, p->b};
    for (int k = 0; k < 2; k++)
        if (both[k]->dtype != STF_F32 && both[k]->dtype != STF_F16 && both[k]->dtype != STF_BF16)
            return err_set(ld->err, ST_UNSUPPORTED, "tensor %s: only F32, F16 and BF16 are served",
                           both[k]->name);
    if (ld->alike || (p->a->rank != 2 && s->rank) || s->scale)
        return err_set(ld->err, ST_UNSUPPORTED, "tensor %s: no adapter of %s is served", p->a->name,
                       ld->alike  ? "experts"
                       : s->scale ? "a product whose columns are scaled"
                                  : "a convolution");
    if (r == 0 || !is_matrix(p->a, r, s->k) || !is_matrix(p->b, n, r))
        return err_set(ld->err, ST_FORMAT,
                       "tensors %s and %s: shapes [rank, %u] and [%llu, rank] are wanted: is the adapter of "
                       "another model?",
                       p->a->name, p->b->name, s->k, (unsigned long long)n);
    return ST_OK;
}

static enum status check_finite(const struct stf_tensor *t, const float *v, size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(v[i]) <= 1e38f))
            return err_set(err, ST_FORMAT, "tensor %s holds a number that is not finite", t->name);
    return ST_OK;
}

/* Rows [at, at + r) of A, and the block of B, rows [first, first + n), columns [at, at + r). */
static enum status fill(const struct loader *ld, const struct linear_spec *s, uint32_t i,
                        const struct adapter_pair *p, uint32_t at, uint32_t first, uint32_t rank, float *a,
                        float *b)
{
    const struct part *part = &s->part[i];
    uint32_t r = (uint32_t)p->a->shape[0], k = s->k, n = (uint32_t)p->b->shape[0];
    size_t most = r * (size_t)(n > k ? n : k);
    double scale = p->scale * (s->times > 0 ? (double)s->times : 1);
    float *v = malloc(most * sizeof *v);
    if (!v) return err_nomem(ld->err, p->a->name);
    (void)stf_to_f32(p->a, v); /* check_pair */
    enum status st = check_finite(p->a, v, (size_t)r * k, ld->err);
    for (uint32_t y = 0; y < r && !st; y++)
        for (uint32_t x = 0; x < k; x++)
            a[(size_t)(at + y) * k + x] =
                v[(size_t)y * k +
                  (part->order == ORDER_PLANES ? load_stored_at(part->order, x, k, s->head_dim, 0) : x)];
    (void)stf_to_f32(p->b, v);
    for (size_t x = 0; x < (size_t)n * r; x++) v[x] = (float)((double)v[x] * scale);
    if (!st) st = check_finite(p->b, v, (size_t)n * r, ld->err);
    for (uint32_t y = 0; y < part->n && !st; y++) {
        uint32_t from = part->first + (part->order == ORDER_PLANES
                                           ? y
                                           : load_stored_at(part->order, y, part->n, s->head_dim, s->rotary));
        memcpy(b + (size_t)(first + y) * rank + at, v + (size_t)from * r, r * sizeof *v);
    }
    free(v);
    return st;
}

static enum status pack(const struct loader *ld, const float *values, uint32_t n, uint32_t k,
                        const char *name, struct be_weight **out)
{
    struct be_weight_desc d = {.k = k, .src_count = 1, .src[0] = {.data = values, .dtype = BE_F32, .n = n}};
    enum be_result r = ld->ops ? ld->ops->weight_pack(ld->be, &d, out) : BE_OK;
    if (r == BE_NOMEM) return err_nomem(ld->err, name);
    return r == BE_OK ? ST_OK
                      : err_set(ld->err, ST_DEVICE, "tensor %s: %s", name, ld->ops->last_error(ld->be));
}

/* The matrices of a product whose parts have pairs of `rank` in all. */
static enum status add_matrix(struct loader *ld, const struct linear_spec *s,
                              struct adapter_pair *const *pair, struct adapter_matrix *m)
{
    struct adapter_walk *w = ld->adapter;
    float *a = calloc((size_t)m->rank * m->k, sizeof *a), *b = calloc((size_t)m->n * m->rank, sizeof *b);
    enum status st = a && b ? ST_OK : err_nomem(ld->err, s->part[0].stem);
    const char *name = "";
    for (uint32_t i = 0, at = 0, first = 0; i < s->part_count && !st; first += s->part[i++].n) {
        if (!pair[i]) continue;
        name = pair[i]->a->name;
        st = fill(ld, s, i, pair[i], at, first, m->rank, a, b);
        at += (uint32_t)pair[i]->a->shape[0];
    }
    if (!st) {
        const uint32_t sizes[4] = {s->layer, m->k, m->n, m->rank};
        sha256_add(&w->digest, s->part[0].stem, strlen(s->part[0].stem) + 1);
        sha256_add(&w->digest, sizes, sizeof sizes);
        sha256_add(&w->digest, a, (size_t)m->rank * m->k * sizeof *a);
        sha256_add(&w->digest, b, (size_t)m->n * m->rank * sizeof *b);
        st = pack(ld, a, m->rank, m->k, name, &m->a);
    }
    if (!st) st = pack(ld, b, m->n, m->rank, name, &m->b);
    free(a);
    free(b);
    return st;
}

static enum status grow(struct adapter_walk *w, struct err *err)
{
    if (w->out.count < w->room) return ST_OK;
    uint32_t room = 2 * w->room + 16;
    void *p = realloc(w->out.matrices, room * sizeof *w->out.matrices);
    if (!p) return err_nomem(err, "an adapter");
    w->out.matrices = p;
    w->room = room;
    return ST_OK;
}

static void each(struct loader *ld, const struct linear_spec *s, const struct be_weight *base)
{
    struct adapter_walk *w = ld->adapter;
    struct adapter_matrix m = {.base = base, .k = s->k, .glu = s->glu};
    struct adapter_pair *pair[3] = {NULL};
    uint64_t rank = 0;
    bool whole = ld->fine && !ld->tower; /* embedding and head */
    for (uint32_t i = 0; i < s->part_count && !ld->st; i++) {
        m.n += s->part[i].n;
        pair[i] = find_pair(ld, s, i);
        if (!pair[i]) continue;
        pair[i]->used = true;
        ld->st = check_pair(ld, s, i, pair[i]);
        if (ld->st) return;
        rank += pair[i]->a->shape[0];
        if (pair[i]->a->shape[0] > w->out.rank_max) w->out.rank_max = (uint32_t)pair[i]->a->shape[0];
        if (w->limits && rank > w->limits->k)
            ld->st = err_set(ld->err, ST_UNSUPPORTED, "tensor %s: the ranks of a product may be %u in all",
                             pair[i]->a->name, w->limits->k);
    }
    if (s->k > w->sizes.k) w->sizes.k = s->k;
    if (m.n > w->sizes.n && !whole) w->sizes.n = m.n;
    if (ld->st || rank == 0) return;
    m.rank = (uint32_t)rank;
    w->out.touches_images |= ld->tower;
    ld->st = grow(w, ld->err);
    if (ld->st) return;
    ld->st = add_matrix(ld, s, pair, &m);
    w->out.matrices[w->out.count++] = m;
}

/* A copy of the lists, which the walk writes to. */
static enum status copy_lists(const struct model_desc *d, const struct weights *w, struct weights *out,
                              struct err *err)
{
    size_t layers = d->layer_count * sizeof *out->layers,
           tower = d->has_vision ? (d->vision.layers + 1ull) * sizeof *out->vision.layers : 0;
    *out = w ? *w : (struct weights){0};
    out->layers = calloc(1, layers);
    out->vision.layers = tower ? calloc(1, tower) : NULL;
    if (!out->layers || (tower && !out->vision.layers)) return err_nomem(err, "the list of layers");
    if (w) memcpy(out->layers, w->layers, layers);
    if (w && tower) memcpy(out->vision.layers, w->vision.layers, tower);
    return ST_OK;
}

static enum status walk(const struct model_desc *desc, const struct weights *w, struct adapter_walk *walk,
                        const struct be_ops *ops, struct backend *be, struct err *err)
{
    struct weights copy;
    struct weights_inventory unused = {0};
    struct loader ld = {.desc = desc,
                        .inventory = &unused,
                        .format = {.act = BE_F32},
                        .each = each,
                        .adapter = walk,
                        .ops = ops,
                        .be = be,
                        .err = err};
    ld.st = copy_lists(desc, w, &copy, err);
    if (!ld.st) load_walk(&ld, &copy);
    free(copy.layers);
    free(copy.vision.layers);
    return ld.st;
}

enum status adapter_sizes_of(const struct model_desc *desc, struct adapter_sizes *out, struct err *err)
{
    struct adapter_walk w = {0};
    enum status st = walk(desc, NULL, &w, NULL, NULL, err);
    *out = w.sizes;
    return st;
}

/* false: a pair that does nothing here. */
static bool wanted(const struct model_desc *d, const struct adapter_pair *p)
{
    char name[DESC_NAME_MAX + 8];
    snprintf(name, sizeof name, "%s.weight", p->name);
    return !load_shared_away(d, name);
}

enum status adapter_weights_load(const struct model_desc *desc, const struct weights *w,
                                 struct adapter_pair *pairs, size_t count, const struct adapter_sizes *limits,
                                 const struct be_ops *ops, struct backend *be, struct adapter_weights *out,
                                 struct err *err)
{
    struct adapter_walk a = {.pairs = pairs, .pair_count = count, .limits = limits};
    sha256_init(&a.digest);
    enum status st = walk(desc, w, &a, ops, be, err);
    for (size_t i = 0; i < count && !st; i++)
        if (!pairs[i].used && wanted(desc, &pairs[i]))
            st =
                err_set(err, ST_FORMAT, "tensor %s: not a product of this model that adapters are served for",
                        pairs[i].a->name);
    if (!st && !a.out.count) st = err_set(err, ST_FORMAT, "nothing in it is a part of this model");
    if (st) {
        adapter_weights_free(&a.out, ops, be);
        return st;
    }
    if (ops) qsort(a.out.matrices, a.out.count, sizeof *a.out.matrices, by_base);
    sha256_end(&a.digest, a.out.digest);
    *out = a.out;
    return ST_OK;
}

void adapter_weights_free(struct adapter_weights *a, const struct be_ops *ops, struct backend *be)
{
    for (uint32_t i = 0; i < a->count && ops; i++) {
        if (a->matrices[i].a) ops->weight_free(be, a->matrices[i].a);
        if (a->matrices[i].b) ops->weight_free(be, a->matrices[i].b);
    }
    free(a->matrices);
    *a = (struct adapter_weights){0};
}
