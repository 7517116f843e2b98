/* See weights.h: both passes, release and counting. weights_internal.h says where the rest is. */
#include "engine/checkpoint/weights_internal.h"

#include "config/base/assert.h"
#include "config/base/floats.h"
#include "config/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void weights_row(const struct row_table *t, uint32_t id, float *out)
{
    struct stf_tensor row = t->row;
    row.data = (const char *)row.data + (size_t)id * t->stride;
    (void)stf_to_f32(&row, out); /* load_take() checked the dtype */
}

bool load_shared_away(const struct model_desc *d, const char *name)
{
    const char *const stems[] = {d->names.k, d->names.v, d->names.k_norm};
    for (uint32_t n = 0; n < d->layer_count; n++)
        for (int i = 0; i < 3 && !desc_owns_keys(d, n); i++) {
            char own[DESC_NAME_MAX];
            size_t len;
            if (!stems[i]) continue;
            load_expand(stems[i], n, 0, ".", own);
            len = strlen(own);
            if (strncmp(name, own, len) == 0) return true;
        }
    return false;
}

/* Of a draft layer (known by its eh_proj) that files number as one after the last. */
static bool after_last(const struct loader *ld, const char *name)
{
    unsigned n;
    struct named key;
    return sscanf(name, "text.layers.%u.", &n) == 1 && n == ld->desc->layer_count &&
           load_find(ld, "text.layers.#.eh_proj", n, 0, ".weight", &key);
}

static enum status alloc_layers(const struct model_desc *d, struct weights *w, struct err *err)
{
    w->layers = calloc(d->layer_count, sizeof *w->layers);
    w->vision.layers = d->has_vision ? calloc(d->vision.layers + 1ull, sizeof *w->vision.layers) : NULL;
    if (!w->layers || (d->has_vision && !w->vision.layers)) return err_nomem(err, "the list of layers");
    return ST_OK;
}

enum status weights_inventory(const struct stf_files *files, const struct model_desc *desc,
                              struct weight_format format, struct weights_inventory *out, struct err *err)
{
    *out = (struct weights_inventory){0};
    struct weights none = {0};
    struct loader ld = {.files = files, .desc = desc, .inventory = out, .format = format, .err = err};
    /* Each name is requested once, so the order has at most as many entries as there are tensors. */
    out->order = calloc(files && stf_count(files) ? stf_count(files) : 1, sizeof *out->order);
    ld.st = out->order ? load_map(&ld) : err_nomem(err, NULL);
    if (!ld.st) ld.st = alloc_layers(desc, &none, err);
    if (!ld.st) load_walk(&ld, &none);
    if (!ld.st) {
        out->stored = files ? out->order[0]->dtype : STF_BF16;
        out->slab_floats = ld.slab_used;
        out->memory_bytes += 4 * ld.slab_used;
        for (size_t i = 0; i < ld.map_count; i++)
            if (!ld.map[i].used && !(desc->tied && strncmp(ld.map[i].name, "head.", 5) == 0) &&
                !load_shared_away(desc, ld.map[i].name) && !after_last(&ld, ld.map[i].name))
                load_note_ignored(out, ld.map[i].t->name);
    }
    free(none.layers);
    free(none.vision.layers);
    free(ld.map);
    if (ld.st) weights_inventory_free(out);
    return ld.st;
}

void weights_inventory_free(struct weights_inventory *s)
{
    free(s->order);
    *s = (struct weights_inventory){0};
}

/* Uniform in about +-0.03, seeded; a period of 65,537 values so that rows differ. */
static enum status make_random(struct loader *ld)
{
    size_t n = (size_t)ld->plan->tensor_bytes_max / 2, period = 65537;
    ld->random_values = malloc(n * sizeof *ld->random_values);
    if (!ld->random_values) return err_nomem(ld->err, "random weights");
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < n && i < period; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        float v = ((float)(uint32_t)(x >> 40) * 0x1p-24f - 0.5f) * 0.06f;
        ld->random_values[i] = (uint16_t)(bits_of(v) >> 16);
    }
    for (size_t i = period; i < n; i += period)
        memcpy(ld->random_values + i, ld->random_values,
               (n - i < period ? n - i : period) * sizeof *ld->random_values);
    return ST_OK;
}

enum status weights_load(const struct stf_files *files, const struct model_desc *desc,
                         const struct weights_inventory *inventory, struct weight_format format,
                         const struct be_ops *ops, struct backend *be, struct weights_progress progress,
                         struct weights *out, uint64_t *identity, struct err *err)
{
    struct weights w = {0};
    struct loader ld = {.files = files,
                        .desc = desc,
                        .format = format,
                        .err = err,
                        .ops = ops,
                        .be = be,
                        .plan = inventory,
                        .progress = progress,
                        .digest = UINT64_C(0xcbf29ce484222325)};
    size_t slab_bytes = (size_t)inventory->slab_floats * sizeof(float);
    ld.st = load_map(&ld);
    if (!ld.st) ld.st = alloc_layers(desc, &w, err);
    enum be_result r =
        ld.st || !(ld.host = malloc(slab_bytes)) ? BE_NOMEM : ops->alloc(be, slab_bytes, &w.slab);
    if (!ld.st && r == BE_DEVICE) ld.st = err_set(err, ST_DEVICE, "%s", ops->last_error(be));
    if (!ld.st && r != BE_OK)
        ld.st = err_set(err, ST_NOMEM, "out of memory: %zu bytes for norms and positions", slab_bytes);
    if (!ld.st && !files) ld.st = make_random(&ld);
    if (!ld.st) {
        memset(ld.host, 0, slab_bytes);
        ld.slab = w.slab;
        load_walk(&ld, &w);
    }
    if (!ld.st) {
        ASSERT_CMP(ld.slab_used, ==, inventory->slab_floats);
        ops->upload(be, w.slab, ld.host, slab_bytes);
    }
    free(ld.random_values);
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
    struct be_weight *own[] = {w->ple_project, w->draft_in, w->draft_out, w->centroids};
    for (int i = 0; i < 4; i++)
        if (own[i]) fn(arg, own[i]);
    for (uint32_t n = 0; w->layers && n < d->layer_count; n++) {
        const struct layer_weights *l = &w->layers[n];
        struct be_weight *all[] = {l->qkv,   l->o,        l->glu,      l->down,       l->router,
                                   l->gates, l->ple_gate, l->token_up, l->shared_gate};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            if (all[i]) fn(arg, all[i]);
        for (uint32_t k = 0; k < d->layers[n].experts; k++) {
            if (l->expert_glu && l->expert_glu[k]) fn(arg, l->expert_glu[k]);
            if (l->expert_down && l->expert_down[k]) fn(arg, l->expert_down[k]);
        }
    }
    for (uint32_t n = 0; w->vision.layers && n <= d->vision.layers; n++) {
        const struct vision_layer_weights *l = n < d->vision.layers ? &w->vision.layers[n] : &w->vision.halve;
        struct be_weight *all[] = {l->qkv, l->o, l->fc1, l->fc2, l->k, l->v, l->up};
        for (int i = 0; i < 7; i++)
            if (all[i]) fn(arg, all[i]);
    }
    const struct vision_merger_weights *m[1 + DESC_DEEPSTACK_MAX] = {&w->vision.merger};
    for (uint32_t k = 0; k < DESC_DEEPSTACK_MAX; k++) m[1 + k] = &w->vision.deepstack[k];
    for (uint32_t k = 0; k < 1 + DESC_DEEPSTACK_MAX; k++) {
        struct be_weight *all[] = {m[k]->conv, m[k]->proj, m[k]->fc1, m[k]->fc2};
        for (int i = 0; i < 4; i++)
            if (all[i]) fn(arg, all[i]);
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
    free(w->ple_table.owned);
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

/* ---- what only the tensors tell about a description ---- */

/* The tensor STEM.weight of the description; NULL: none. */
static const struct stf_tensor *find_weight(const struct model_desc *d, const struct stf_files *files,
                                            const char *stem)
{
    char name[DESC_NAME_MAX];
    for (size_t i = 0; i < stf_count(files); i++) {
        const struct stf_tensor *t = stf_at(files, i);
        if (d->canonical(t->name, name) && desc_name_matches(name, stem, ".weight")) return t;
    }
    return NULL;
}

bool weights_hold(const struct model_desc *d, const struct stf_files *files, const char *stem)
{
    return files && find_weight(d, files, stem);
}

static bool same_shape(const struct stf_tensor *a, const struct stf_tensor *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0;
}

/* A fine-tune whose config.json says that the head is tied, while its files hold a head with other values:
 * the files count, as in transformers (tie_weights). Embedding models are saved without a head. */
static void resolve_tie(struct model_desc *d, const struct stf_files *files)
{
    const struct stf_tensor *head = find_weight(d, files, d->names.head),
                            *embed = find_weight(d, files, d->names.embed);
    if (d->retrieval.classifier[0]) { /* what generates text is not computed */
        d->tied = true;
        return;
    }
    if (!d->tied && !head && embed && strcmp(embed->name, "embed_tokens.weight") == 0) {
        log_info("the checkpoint has no lm_head: it serves embeddings, not text");
        d->tied = true;
    }
    if (!d->tied || !head || !embed || !same_shape(head, embed)) return;
    if (head->dtype == embed->dtype && memcmp(head->data, embed->data, (size_t)head->bytes) == 0) return;
    log_warn("config.json ties the head to the embedding, but %s differs from %s: not tied", head->name,
             embed->name);
    d->tied = false;
}

static void resolve_qkv(struct model_desc *d, const struct stf_files *files)
{
    struct desc_vision *v = &d->vision;
    if (!v->qkv_fused || !v->names.q_alone || !find_weight(d, files, v->names.q_alone)) return;
    v->qkv_fused = false;
    v->names.q = v->names.q_alone;
}

void model_desc_resolve(struct model_desc *d, const struct stf_files *files)
{
    char name[DESC_NAME_MAX];
    enum desc_experts layout;
    if (files) resolve_tie(d, files);
    if (files && d->has_vision) resolve_qkv(d, files);
    for (size_t i = 0; files && i < stf_count(files); i++) {
        const struct stf_tensor *t = stf_at(files, i);
        if (!d->canonical(t->name, name) || !model_desc_experts(d, name, t->rank, t->shape, &layout))
            continue;
        d->expert_layout = layout;
        return; /* if others disagree, loading names them */
    }
}
