/* Adapters (LoRA): opening one on any thread. It is packed by a backend of its own, without threads, so that
 * no step waits; see engine/adapter_files.c for the files, engine/checkpoint/adapter_weights.c for what they
 * are to the model, engine/adapter_rows.c for the arithmetic. */
#include "engine/internal.h"

#include "config/base/work_lock.h"
#include "config/gguf/gguf.h"
#include "engine/adapter_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The description as the adapter's files store rows, if the model's are of the other kind. */
static enum status as_stored(const struct model_desc *d, bool model_gguf, const struct adapter_files *f,
                             struct model_desc *out, struct err *err)
{
    *out = *d;
    if (f->gguf == model_gguf) return ST_OK;
    out->qk_pairs ^= d->qk_pairs_differ;
    out->vision.qk_pairs ^= d->vision.qk_pairs_differ;
    for (size_t i = 0; i < f->count; i++)
        if (strstr(f->pairs[i].name, ".linear_attn."))
            return err_set(err, ST_UNSUPPORTED,
                           "tensor %s: in the model's files its rows have another order; an adapter of their "
                           "kind is served (%s)",
                           f->pairs[i].a->name, model_gguf ? "GGUF" : "safetensors");
    return ST_OK;
}

static enum status no_memory(struct engine *e, enum be_result r, struct err *err)
{
    return r == BE_DEVICE ? err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->adapters.be))
                          : err_nomem(err, "adapters");
}

/* What all adapters share. */
static enum status make_room(struct engine *e, struct err *err)
{
    struct adapter_room *a = &e->adapters;
    struct be_params params = e->params;
    params.threads = 1;
    params.own_gemm = true;
    if (a->zeros) return ST_OK;
    enum status st = adapter_sizes_of(&e->net.desc, &a->sizes, err);
    if (st) return st;
    size_t row = a->sizes.n * sizeof(float);
    const size_t bytes[4] = {ADAPTER_ROWS * be_ld(a->sizes.k) * be_dtype_bytes(e->plan.act),
                             ADAPTER_ROWS * row, row, ADAPTER_ROWS * sizeof *a->zeros};
    void *p[4] = {NULL};
    float *nothing = malloc(row);
    enum be_result r = !nothing ? BE_NOMEM : a->be ? BE_OK : e->ops->open(&params, &a->be);
    for (int i = 0; i < 4 && r == BE_OK; i++) r = e->ops->alloc(a->be, bytes[i], &p[i]);
    if (r == BE_OK) {
        for (uint32_t i = 0; i < a->sizes.n; i++) nothing[i] = -0.0f;
        e->ops->upload(a->be, p[2], nothing, row);
        a->down = p[0];
        a->add = p[1];
        a->nothing = p[2];
        a->zeros = p[3];
    }
    for (int i = 0; i < 4 && r != BE_OK; i++)
        if (p[i]) e->ops->free(a->be, p[i]);
    free(nothing);
    return r == BE_OK ? ST_OK : a->be ? no_memory(e, r, err) : err_nomem(err, "adapters");
}

static void fill_info(const struct engine *e, const struct adapter_files *f, struct adapter *a)
{
    const struct adapter_weights *w = &a->w;
    size_t act = be_dtype_bytes(e->plan.act);
    a->info.matrices = w->count;
    a->info.rank_max = w->rank_max;
    a->info.touches_images = w->touches_images;
    for (size_t i = 0, n = 0; i < f->count; i++) {
        const char *dot = strrchr(f->pairs[i].name, '.'), *leaf = dot ? dot + 1 : f->pairs[i].name;
        a->info.scale_max = fmax(a->info.scale_max, f->pairs[i].scale);
        if (!strstr(a->info.targets, leaf) && n + strlen(leaf) + 2 < sizeof a->info.targets)
            n +=
                (size_t)snprintf(a->info.targets + n, sizeof a->info.targets - n, "%s%s", n ? " " : "", leaf);
    }
    memcpy(a->info.digest, w->digest, sizeof w->digest);
    memcpy(a->info.base, f->base, sizeof a->info.base);
    for (uint32_t i = 0; i < w->count; i++) {
        const struct adapter_matrix *m = &w->matrices[i];
        a->info.bytes += m->a ? e->ops->weight_bytes(m->a) + e->ops->weight_bytes(m->b)
                              : be_ld(m->rank) * (be_ld(m->k) + be_ld(m->n)) * act;
    }
}

/* be NULL: only checks it. */
static enum status load(struct engine *e, const char *path, struct backend *be, struct adapter *a,
                        struct err *err)
{
    struct adapter_files f;
    struct model_desc desc;
    enum status st = adapter_files_open(path, &e->net.desc, &f, err);
    if (!st) st = as_stored(&e->net.desc, gguf_is(e->dir), &f, &desc, err);
    if (!st)
        st = adapter_weights_load(&desc, be ? &e->net.w : NULL, f.pairs, f.count, &e->adapters.sizes,
                                  be ? e->ops : NULL, be, &a->w, err);
    if (!st && be && e->ops->sync(be) != BE_OK) st = no_memory(e, BE_DEVICE, err);
    if (!st) fill_info(e, &f, a);
    adapter_files_close(&f);
    return st ? err_prefix(err, st, "adapter %s", path) : ST_OK;
}

enum status adapter_check(struct engine *e, const char *path, struct adapter_info *out, struct err *err)
{
    struct adapter a = {.info = {.bytes = 0}};
    enum status st = adapter_sizes_of(&e->net.desc, &e->adapters.sizes, err);
    if (!st) st = load(e, path, NULL, &a, err);
    *out = a.info;
    adapter_weights_free(&a.w, NULL, NULL);
    return st;
}

enum status adapter_open(struct engine *e, const char *path, struct adapter **out, struct err *err)
{
    struct adapter *a = calloc(1, sizeof *a);
    if (!a) return err_nomem(err, path);
    work_lock(&e->adapters.lock);
    enum status st = make_room(e, err);
    if (!st) st = load(e, path, e->adapters.be, a, err);
    work_unlock(&e->adapters.lock);
    if (st) adapter_free(e, a);
    else *out = a;
    return st;
}

const struct adapter_info *adapter_info(const struct adapter *a)
{
    return &a->info;
}

void adapter_free(struct engine *e, struct adapter *a)
{
    if (!a) return;
    work_lock(&e->adapters.lock);
    adapter_weights_free(&a->w, e->ops, e->adapters.be);
    work_unlock(&e->adapters.lock);
    free(a);
}

void adapters_close(struct engine *e)
{
    struct adapter_room *a = &e->adapters;
    if (!a->be) return;
    void *const all[] = {a->down, a->add, a->nothing, a->zeros};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) e->ops->free(a->be, all[i]);
    e->ops->close(a->be);
}
