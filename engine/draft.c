/* The draft model: a small model whose layers read the target's keys and values and propose the tokens after
 * a sampled one. The target verifies the draft tokens (engine/step.c): they change how long the output takes,
 * never the output itself. Formula: engine/model/model_desc.h; operations: engine/decoder.c. Engine
 * thread. */
#include "engine/internal.h"

#include "config/base/assert.h"
#include "config/base/log.h"
#include "engine/families/families.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of a draft model; the released ones have 1,024. */
#define WIDTH_MAX 8192u

/* One row's best token among those of its clusters. */
struct draft_pick {
    const struct drafter *f;
    const float *read;        /* [C] */
    const uint32_t *clusters; /* [centroids_used] */
    uint32_t id;
};

/* ---- opening ---- */

static void config_error(const struct engine *e, struct err *err, enum status *st, const char *what,
                         uint32_t own, uint32_t target)
{
    if (!*st && own != target)
        *st = err_set(err, ST_UNSUPPORTED, "%s is no drafter for %s: its %s is %u, not %u", e->draft.dir,
                      e->dir, what, own, target);
}

/* Every layer reads the target's last layer that has the same window and its own keys. */
static enum status fit(struct engine *e, struct err *err)
{
    struct model_desc *d = &e->draft.net.desc;
    const struct model_desc *t = &e->net.desc;
    enum status st = d->hidden <= WIDTH_MAX ? ST_OK
                                            : err_set(err, ST_UNSUPPORTED, "%s: hidden_size is above %u",
                                                      e->draft.dir, WIDTH_MAX);
    config_error(e, err, &st, "backbone_hidden_size", d->drafts_for, t->hidden);
    config_error(e, err, &st, "vocab_size", d->vocab, t->vocab);
    for (uint32_t n = 0; n < d->layer_count && !st; n++) {
        struct desc_layer *l = &d->layers[n];
        uint32_t owner = t->layer_count;
        while (owner > 0 && !(desc_owns_keys(t, owner - 1) && t->layers[owner - 1].mixer == MIXER_ATTENTION &&
                              t->layers[owner - 1].window == l->window))
            owner--;
        if (owner == 0)
            return err_set(err, ST_UNSUPPORTED,
                           "%s is no drafter for %s, which has no keys with a window of %u", e->draft.dir,
                           e->dir, l->window);
        const struct desc_layer *o = &t->layers[owner - 1];
        config_error(e, err, &st, "head_dim", l->head_dim, o->head_dim);
        l->kv_owner = owner - 1;
        l->kv_heads = o->kv_heads; /* whatever the draft model's file says */
        if (!st && l->heads % l->kv_heads)
            st = err_set(err, ST_UNSUPPORTED, "%s is no drafter for %s: %u heads for %u of keys",
                         e->draft.dir, e->dir, l->heads, l->kv_heads);
    }
    return st;
}

enum status drafter_prepare(struct engine *e, const char *dir, bool random_weights, struct err *err)
{
    struct drafter *f = &e->draft;
    struct hf_config *config = calloc(1, sizeof *config);
    f->dir = strdup(dir);
    enum status st = config && f->dir ? ST_OK : err_nomem(err, NULL);
    if (!st) st = family_load(dir, NULL, config, &f->net.desc, err);
    if (!st && !f->net.desc.drafts_for)
        st = err_set(err, ST_UNSUPPORTED,
                     "--draft-model %s: this is a %s model. Only " FAMILY_DRAFTERS " can draft.", dir,
                     config->model_type);
    free(config);
    if (!st) st = fit(e, err);
    if (!st && !random_weights) st = family_open(dir, NULL, &f->files, err);
    if (!st && f->files) model_desc_resolve(&f->net.desc, f->files);
    if (!st && (st = weights_inventory(f->files, &f->net.desc, (struct weight_format){.act = e->plan.act},
                                       &f->net.inventory, err)))
        (void)err_prefix(err, st, "%s", dir);
    f->net.prune_layer = f->net.desc.layer_count; /* never: every row is an output row */
    f->net.rope_axes = 1;
    f->on = !st;
    return st;
}

enum status drafter_prepare_own(struct engine *e, struct stf_files *files, struct weight_format format,
                                struct err *err)
{
    struct drafter *f = &e->draft;
    struct model_desc *d = &f->net.desc;
    if (!files || !e->net.desc.drafter) return ST_OK;
    if (!e->net.desc.drafter(&e->net.desc, d)) return err_nomem(err, "the drafter");
    if (!weights_hold(d, files, d->names.draft_in) || !weights_hold(d, files, d->names.input_norm)) {
        model_desc_free(d);
        return ST_OK;
    }
    model_desc_resolve(d, files);                    /* its experts may be stored in another way */
    d->layers[0].kv_owner = e->net.desc.layer_count; /* after the target's, in the layout */
    f->files = files;
    f->own = true;
    enum status st = weights_inventory(files, d, format, &f->net.inventory, err);
    f->format = format;
    f->net.prune_layer = 1;
    f->on = !st;
    return st;
}

uint64_t drafter_spare_grains(const struct engine *e)
{
    const struct desc_layer *l = e->draft.net.desc.layers;
    if (!e->draft.own) return 0;
    size_t layer = e->ops->kv_layer_bytes(e->be, e->kv.type, l->kv_heads, l->head_dim);
    return (e->kv.layer_offset[l->kv_owner] + BE_KV_GRAIN - 1) / BE_KV_GRAIN +
           2ull * e->plan.sequences_max * ((layer + BE_KV_GRAIN - 1) / BE_KV_GRAIN);
}

static uint32_t top_count(const struct drafter *f)
{
    return f->net.desc.centroids ? f->net.desc.centroids_used : 1;
}

static uint32_t logit_rows(const struct engine *e)
{
    return e->plan.sequences_max < LOGIT_ROWS_MAX ? e->plan.sequences_max : LOGIT_ROWS_MAX;
}

static uint64_t carve_scratch(const struct engine *e, void *base, struct decoder_scratch *s)
{
    const struct model_desc *d = &e->draft.net.desc;
    return engine__carve_net(e, &e->draft.net,
                             e->draft.own ? e->plan.batch_tokens_max : e->plan.sequences_max, logit_rows(e),
                             d->centroids ? d->centroids : d->vocab, base, s);
}

/* Assigns the parts of f->block, or counts their bytes if it is NULL. */
static uint64_t carve_rows(const struct engine *e, struct drafter *f)
{
    uint64_t s = e->plan.sequences_max, act = be_dtype_bytes(e->plan.act), used = 0,
             own = f->own ? e->plan.batch_tokens_max : 0, t = own ? own : s;
    uint32_t wide = f->net.desc.drafts_for;
    const struct {
        void **at;
        uint64_t bytes;
    } parts[] = {{&f->drawn, s * be_ld(wide) * act},
                 {(void **)&f->wide, s * wide * sizeof(float)},
                 {&f->token, t * be_ld(wide) * act},
                 {&f->state, t * be_ld(wide) * act},
                 {&f->both, t * be_ld(2 * (size_t)wide) * act},
                 {(void **)&f->hidden, own ? (own + s + 1) * wide * sizeof(float) : 0},
                 {(void **)&f->before, own * wide * sizeof(float)},
                 {(void **)&f->everything, 2 * sizeof(float)},
                 {&f->read, s * be_ld(f->net.desc.hidden) * act}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (f->block) *parts[i].at = (char *)f->block + used;
        used += (parts[i].bytes + 63) / 64 * 64;
    }
    return used;
}

uint64_t drafter_scratch_bytes(const struct engine *e)
{
    struct decoder_scratch s;
    struct drafter f = e->draft;
    f.block = NULL;
    return carve_scratch(e, NULL, &s) + carve_rows(e, &f);
}

enum status drafter_load(struct engine *e, struct weights_progress progress, struct err *err)
{
    struct drafter *f = &e->draft;
    struct net *net = &f->net;
    struct decoder_scratch none;
    uint64_t identity; /* the output does not depend on it */
    uint32_t s = e->plan.sequences_max;
    void *block = NULL;
    struct weight_format format = f->own ? f->format : (struct weight_format){.act = e->plan.act};
    enum status st = weights_load(f->files, &net->desc, &net->inventory, format, e->ops, e->be, progress,
                                  &net->w, &identity, err);
    if (st) return st;
    log_info("event=drafter_loaded dir=\"%s\" parameters=%llu", f->own ? e->dir : f->dir,
             (unsigned long long)net->inventory.parameters);
    weights_inventory_free(&net->inventory); /* its list points into the files */
    if (f->own) f->files = NULL;             /* the target's */
    if (!net->desc.centroids) {
        stf_close(f->files);
        f->files = NULL;
    }
    st = engine__dev_alloc(e, carve_scratch(e, NULL, &none), &block, "the drafter's working memory", err);
    if (st) return st;
    (void)carve_scratch(e, block, &net->s);
    net->s.block = block;
    st = engine__alloc_ropes(e, net, err);
    if (!st) st = engine__dev_alloc(e, carve_rows(e, f), &f->block, "the drafter's rows", err);
    if (st) return st;
    (void)carve_rows(e, f);
    f->host_read = malloc(s * be_ld(net->desc.hidden) * be_dtype_bytes(e->plan.act));
    f->host_rows = malloc((size_t)s * net->desc.hidden * sizeof *f->host_rows);
    f->host_tops = malloc(s * top_count(f) * sizeof *f->host_tops);
    f->order = malloc(s * sizeof *f->order);
    f->picks = malloc(s * sizeof *f->picks);
    f->slot_at = calloc(s, sizeof *f->slot_at);
    f->slot_delta = calloc(s, sizeof *f->slot_delta);
    if (!f->host_read || !f->host_rows || !f->host_tops || !f->order || !f->picks || !f->slot_at ||
        !f->slot_delta)
        return err_nomem(err, "the drafter's rows");
    e->ops->upload(e->be, f->everything, (const float[]){-INFINITY, INFINITY}, 2 * sizeof(float));
    return ST_OK;
}

void drafter_close(struct engine *e)
{
    struct drafter *f = &e->draft;
    engine__free_net(e, &f->net);
    if (f->block) e->ops->free(e->be, f->block);
    free(f->host_read);
    free(f->host_rows);
    free(f->host_tops);
    free(f->order);
    free(f->picks);
    free(f->slot_at);
    free(f->slot_delta);
}

/* ---- drafting ---- */

/* Fills e->step for one row of each of d[order[0..n)]: it sees what is in the cache, and its position
 * stays. */
static void pack(struct engine *e, const struct engine_draft *d, uint32_t n)
{
    struct step *st = &e->step;
    const uint32_t *order = e->draft.order, *ids_dev, *pos_dev, *last_dev, *seq_dev, *table_dev;
    size_t used = 0, entries = 0, at = 0;
    *st = (struct step){.t = n, .seq_count = n, .all_output = true};
    uint32_t *ids = engine__array(e, &used, n, &ids_dev), *pos = engine__array(e, &used, n, &pos_dev),
             *last = engine__array(e, &used, n, &last_dev), *seq = engine__array(e, &used, n + 1u, &seq_dev);
    st->ids = ids_dev;
    st->rope_pos = (const int32_t *)pos_dev;
    for (uint32_t i = 0; i <= n; i++) seq[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        const struct engine_draft *q = &d[order[i]];
        ASSERT(q->position > 0 && q->position < e->plan.context_max && q->slot < e->plan.sequences_max);
        ids[i] = q->token;
        pos[i] = q->position + e->net.desc.rope_first;
        last[i] = q->position - 1;
        entries += (q->position + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS;
    }
    uint32_t *lows[ENGINE_GROUPS_MAX], *starts[ENGINE_GROUPS_MAX];
    for (uint32_t g = 0; g < e->kv.table_groups; g++) {
        struct be_rows *r = &st->rows[g];
        *r = (struct be_rows){.t = n, .seq_count = n, .seq_row = seq_dev, .pos = last_dev, .hi = last_dev};
        lows[g] = engine__array(e, &used, n, &r->lo);
        starts[g] = engine__array(e, &used, n, &r->seq_table);
    }
    uint32_t *tables = engine__array(e, &used, entries * e->kv.table_groups, &table_dev);
    for (uint32_t g = 0; g < e->kv.table_groups; g++) {
        uint32_t window = e->kv.groups[g].window;
        st->rows[g].tables = table_dev;
        for (uint32_t i = 0; i < n; i++) {
            const struct engine_draft *q = &d[order[i]];
            uint32_t lo = window && q->position > window ? q->position - window : 0,
                     blocks = (q->position + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS;
            while (lo + 1 < q->position && q->tables[g][lo / BE_BLOCK_TOKENS] == BE_NO_BLOCK)
                lo = (lo / BE_BLOCK_TOKENS + 1) * BE_BLOCK_TOKENS;
            lows[g][i] = lo;
            starts[g][i] = (uint32_t)at;
            memcpy(tables + at, q->tables[g], blocks * sizeof *tables);
            at += blocks;
        }
    }
    e->ops->upload(e->be, e->net.s.step, e->host_step, used * sizeof *e->host_step);
}

/* The same for draft token k of each with keys of the drafter's own: their rows follow the cache, in spare
 * blocks; the first of these begins as a copy of the sequence's last block. */
static void pack_own(struct engine *e, const struct engine_draft *d, uint32_t n, uint32_t k)
{
    struct step *st = &e->step;
    const struct desc_layer *l = e->draft.net.desc.layers;
    const uint32_t *order = e->draft.order, *ids_dev, *rope_dev;
    uint32_t axes = e->net.rope_axes, group = e->kv.layer_group[l->kv_owner];
    size_t used = 0, entries = 0, at = 0, offset = e->kv.layer_offset[l->kv_owner],
           bytes = e->ops->kv_layer_bytes(e->be, e->kv.type, l->kv_heads, l->head_dim);
    *st = (struct step){.t = n, .seq_count = n, .all_output = true};
    struct be_rows *r = &st->rows[group];
    *r = (struct be_rows){.t = n, .seq_count = n};
    uint32_t *ids = engine__array(e, &used, n, &ids_dev), *seq = engine__array(e, &used, n + 1u, &r->seq_row),
             *pos = engine__array(e, &used, n, &r->pos), *lo = engine__array(e, &used, n, &r->lo),
             *start = engine__array(e, &used, n, &r->seq_table);
    int32_t *rope = (int32_t *)engine__array(e, &used, (size_t)axes * n, &rope_dev);
    st->ids = ids_dev;
    st->rope_pos = (const int32_t *)rope_dev;
    r->hi = r->pos;
    for (uint32_t i = 0; i < n; i++) entries += d[order[i]].position / BE_BLOCK_TOKENS + 2;
    uint32_t *tables = engine__array(e, &used, entries, &r->tables);
    for (uint32_t i = 0; i <= n; i++) seq[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        const struct engine_draft *q = &d[order[i]];
        uint32_t blocks = q->position / BE_BLOCK_TOKENS,
                 spare =
                     (uint32_t)(e->arena_grains + 2 * order[i] * ((bytes + BE_KV_GRAIN - 1) / BE_KV_GRAIN));
        ids[i] = k ? q->out[k - 1] : q->token;
        pos[i] = q->position + k;
        lo[i] = 0;
        for (uint32_t a = 0; a < axes; a++)
            rope[a * n + i] = (int32_t)pos[i] + (axes > 1 ? e->draft.slot_delta[q->slot] : 0);
        start[i] = (uint32_t)at;
        memcpy(tables + at, q->tables[group], blocks * sizeof *tables);
        tables[at + blocks] = spare;
        tables[at + blocks + 1] = spare + (uint32_t)((bytes + BE_KV_GRAIN - 1) / BE_KV_GRAIN);
        at += blocks + 2;
        if (k == 0 && q->position % BE_BLOCK_TOKENS)
            e->ops->copy(e->be, (char *)e->arena + (size_t)spare * BE_KV_GRAIN + offset,
                         (char *)e->arena + (size_t)q->tables[group][blocks] * BE_KV_GRAIN + offset, bytes);
    }
    e->ops->upload(e->be, e->net.s.step, e->host_step, used * sizeof *e->host_step);
}

/* What the drafter reads of the token before the first draft token: kept of the last step, or zeros. */
static void start_own(struct engine *e, const struct engine_draft *d, uint32_t n)
{
    struct drafter *f = &e->draft;
    size_t c = f->net.desc.hidden;
    for (uint32_t i = 0; i < n; i++) {
        const struct engine_draft *q = &d[f->order[i]];
        uint32_t row =
            e->plan.batch_tokens_max + (f->slot_at[q->slot] == q->position ? q->slot : e->plan.sequences_max);
        e->ops->copy(e->be, f->before + i * c, f->hidden + row * c, c * sizeof(float));
    }
}

static float dot(const float *a, const float *b, uint32_t n)
{
    float sum[8] = {0}, all = 0;
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint32_t k = 0; k < 8; k++) sum[k] += a[i + k] * b[i + k];
    for (; i < n; i++) all += a[i] * b[i];
    for (uint32_t k = 0; k < 8; k++) all += sum[k];
    return all;
}

/* The largest logit among the tokens of the row's clusters. */
static void pick(void *ctx, uint32_t i)
{
    struct draft_pick *p = (struct draft_pick *)ctx + i;
    const struct model_desc *d = &p->f->net.desc;
    const struct weights *w = &p->f->net.w;
    uint32_t size = d->vocab / d->centroids;
    float row[WIDTH_MAX], best = 0;
    p->id = UINT32_MAX;
    for (uint32_t k = 0; k < d->centroids_used; k++)
        for (uint32_t j = 0; j < size; j++) {
            uint32_t id = w->clusters[(size_t)p->clusters[k] * size + j];
            weights_row(&w->head_rows, id, row);
            float all = dot(row, p->read, d->hidden);
            if (p->id == UINT32_MAX || all > best) {
                best = all;
                p->id = id;
            }
        }
}

/* act row i of the matrix as f32 */
static void act_row(const struct engine *e, const void *rows, uint32_t i, uint32_t c, float *out)
{
    struct stf_tensor t = {.dtype = e->plan.act == BE_F32 ? STF_F32 : STF_BF16, .rank = 1, .shape = {c}};
    size_t size = be_dtype_bytes(e->plan.act);
    t.bytes = c * size;
    t.data = (const char *)rows + i * be_ld(c) * size;
    (void)stf_to_f32(&t, out);
}

/* The draft token of each of t rows -> f->host_tops[0..t). */
static enum status choose(struct engine *e, uint32_t t, struct err *err)
{
    struct drafter *f = &e->draft;
    const struct model_desc *d = &f->net.desc;
    uint32_t k = top_count(f), step = logit_rows(e);
    for (uint32_t first = 0; first < t; first += step) {
        uint32_t n = t - first < step ? t - first : step;
        decoder_draft_top(e, first, n, k);
        e->ops->download(e->be, f->host_tops + first * k, f->net.s.top, (size_t)n * k * sizeof *f->host_tops);
    }
    size_t row = be_ld(d->hidden) * be_dtype_bytes(e->plan.act);
    if (d->centroids) e->ops->download(e->be, f->host_read, f->read, t * row);
    if (e->ops->sync(e->be) != BE_OK) return err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
    if (!d->centroids) return ST_OK;
    for (uint32_t i = 0; i < t; i++) {
        f->picks[i] = (struct draft_pick){
            .f = f, .read = f->host_rows + (size_t)i * d->hidden, .clusters = f->host_tops + (size_t)i * k};
        act_row(e, f->host_read, i, d->hidden, f->host_rows + (size_t)i * d->hidden);
    }
    if (e->ops->host_each) e->ops->host_each(e->be, t, pick, f->picks);
    else
        for (uint32_t i = 0; i < t; i++) pick(f->picks, i);
    for (uint32_t i = 0; i < t; i++) f->host_tops[i] = f->picks[i].id;
    return ST_OK;
}

enum status engine_draft(struct engine *e, const struct engine_draft *d, uint32_t n, struct err *err)
{
    struct drafter *f = &e->draft;
    size_t row = be_ld(f->net.desc.drafts_for) * be_dtype_bytes(e->plan.act);
    uint32_t t = n;
    ASSERT(f->on && !e->flight_count && n > 0 && n <= e->plan.sequences_max);
    /* Those with most draft tokens first: finished rows drop off the end. */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && d[f->order[at - 1]].count < d[i].count; at--) f->order[at] = f->order[at - 1];
        f->order[at] = i;
    }
    if (f->own) start_own(e, d, n);
    else pack(e, d, n);
    for (uint32_t i = 0; i < n && !f->own; i++)
        e->ops->copy(e->be, (char *)f->state + i * row, (char *)f->drawn + d[f->order[i]].slot * row, row);
    for (uint32_t k = 0; k < d[f->order[0]].count; k++) {
        while (d[f->order[t - 1]].count <= k) t--;
        if (f->own) pack_own(e, d, t, k);
        for (uint32_t g = 0; g < e->kv.table_groups && !f->own; g++)
            e->step.rows[g].t = e->step.rows[g].seq_count = t;
        decoder_draft(e, t, k == 0);
        enum status st = choose(e, t, err);
        if (st) return st;
        for (uint32_t i = 0; i < t; i++) d[f->order[i]].out[k] = f->host_tops[i];
        if (!f->own) /* ids come first */
            e->ops->upload(e->be, e->net.s.step, f->host_tops, t * sizeof *f->host_tops);
    }
    return ST_OK;
}
