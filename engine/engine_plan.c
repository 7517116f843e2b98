/* What a loaded model needs of the backend's memory: KV layout, scratch for the worst step, the arena; and its allocation. Sizes
 * come from the configuration, whose ranges hf_config.c checked, so products of three of them fit in 64 bits. */
#include "engine/engine_internal.h"

#include "config/base/assert.h"
#include "config/base/checked.h"
#include "config/base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_TOKENS_DEFAULT 2048u
#define BATCH_TOKENS_MAX     (1u << 16)
#define SEQUENCES_DEFAULT    64u
#define SEQUENCES_MAX        4096u
#define KV_SHARE             0.8 /* of the memory that is free after weights and scratch, when nobody says how much */

static uint64_t round_up(uint64_t x, uint64_t to)
{
    return (x + to - 1) / to * to;
}

/* ---- KV layout ---- */

static void layout_group(struct kv_layout *k, const struct model_desc *d, uint32_t group, const struct be_ops *ops,
                         const struct backend *be)
{
    size_t bytes = 0;
    struct engine_kv_group *g = &k->groups[group];
    for (uint32_t n = 0; n < d->layer_count; n++) {
        if (k->layer_group[n] != group) continue;
        k->layer_offset[n] = bytes;
        bytes += ops->kv_layer_bytes(be, d->layers[n].kv_heads, d->layers[n].head_dim);
        g->layers++;
    }
    g->block_bytes = round_up(bytes, BE_KV_UNIT);
    g->block_units = (uint32_t)(g->block_bytes / BE_KV_UNIT);
    g->bytes_per_token = g->block_bytes / BE_BLOCK_TOKENS;
}

enum status kv_layout_make(const struct model_desc *d, const struct be_ops *ops, struct backend *be, struct kv_layout *out,
                           struct err *err)
{
    struct kv_layout k = {0};
    k.layer_group = calloc(d->layer_count, sizeof *k.layer_group);
    k.layer_offset = calloc(d->layer_count, sizeof *k.layer_offset);
    enum status st = k.layer_group && k.layer_offset ? ST_OK : err_set(err, ST_NOMEM, "out of memory for the list of layers");
    /* Full attention first, then one group per window, in order of first use. */
    for (int pass = 0; pass < 2 && !st; pass++) {
        for (uint32_t n = 0; n < d->layer_count && !st; n++) {
            const struct desc_layer *l = &d->layers[n];
            if ((l->window > 0) != (pass == 1)) continue;
            if (ops->kv_layer_bytes(be, l->kv_heads, l->head_dim) == 0)
                st = err_set(err, ST_UNSUPPORTED, "no attention kernel for head size %u", l->head_dim);
            uint32_t g = 0;
            while (g < k.group_count && k.groups[g].window != l->window) g++;
            if (g == ENGINE_GROUPS_MAX)
                st = err_set(err, ST_UNSUPPORTED, "more than %u kinds of attention windows", ENGINE_GROUPS_MAX);
            if (st) break;
            if (g == k.group_count) k.groups[k.group_count++].window = l->window;
            k.layer_group[n] = g;
        }
    }
    for (uint32_t g = 0; g < k.group_count && !st; g++) layout_group(&k, d, g, ops, be);
    if (st)
        kv_layout_free(&k);
    else
        *out = k;
    return st;
}

void kv_layout_free(struct kv_layout *k)
{
    free(k->layer_group);
    free(k->layer_offset);
    *k = (struct kv_layout){0};
}

/* ---- scratch: one walk counts, the same walk hands out addresses ---- */

struct carve {
    char *base; /* NULL: only count */
    uint64_t used;
};

static void *piece(struct carve *c, uint64_t bytes)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += round_up(bytes, 64);
    return p;
}

static void carve_decoder(const struct engine *e, struct carve *c, struct decoder_scratch *s)
{
    const struct model_desc *d = &e->desc;
    uint64_t t = e->plan.batch_tokens_max, act = be_dtype_bytes(e->plan.act), qkv = 0, hd = 0, ff = 0;
    for (uint32_t n = 0; n < d->layer_count; n++) {
        const struct desc_layer *l = &d->layers[n];
        uint64_t h = (uint64_t)l->heads * l->head_dim, all = h + 2ull * l->kv_heads * l->head_dim;
        if (all > qkv) qkv = all;
        if (h > hd) hd = h;
        if (l->ff > ff) ff = l->ff;
    }
    s->resid = piece(c, t * d->hidden * 4);
    s->tail_resid = piece(c, t * d->hidden * 4);
    s->proj = piece(c, t * d->hidden * 4);
    s->qkv = piece(c, t * qkv * 4);
    s->h = piece(c, t * be_ld(d->hidden) * act);
    s->q = piece(c, t * hd * act);
    s->attn = piece(c, t * be_ld(hd) * act);
    s->mlp = piece(c, t * be_ld(ff) * act);
    for (uint32_t i = 0; i < d->rope_count; i++) {
        s->cos[i] = piece(c, t * (d->ropes[i].dim / 2) * 4);
        s->sin[i] = piece(c, t * (d->ropes[i].dim / 2) * 4);
    }
    s->head_in = piece(c, LOGIT_ROWS_MAX * be_ld(d->hidden) * act);
    s->logits = piece(c, (uint64_t)LOGIT_ROWS_MAX * d->vocab * 4);
    s->stats = piece(c, LOGIT_ROWS_MAX * sizeof *s->stats);
    s->targets = piece(c, LOGIT_ROWS_MAX * 4);
    s->top_ids = piece(c, LOGIT_ROWS_MAX * BE_TOPK_MAX * 4);
    s->top_values = piece(c, LOGIT_ROWS_MAX * BE_TOPK_MAX * 4);
    s->step = piece(c, e->step_words * 4);
}

static uint32_t patch_count(const struct desc_vision *v)
{
    return (v->image_size / v->patch) * (v->image_size / v->patch);
}

static void carve_vision(const struct engine *e, struct carve *c, struct vision_scratch *s)
{
    const struct desc_vision *v = &e->desc.vision;
    uint64_t n = patch_count(v), act = be_dtype_bytes(e->plan.act), blocks = (n + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS;
    uint64_t rows = n > v->tokens ? n : v->tokens;
    uint64_t layer = round_up(e->ops->kv_layer_bytes(e->be, v->heads, v->hidden / v->heads), BE_KV_UNIT);
    s->patches = piece(c, n * be_ld(3ull * v->patch * v->patch) * act);
    s->qkv = piece(c, n * 3 * v->hidden * 4);
    s->h = piece(c, rows * be_ld(v->hidden) * act);
    s->attn = piece(c, n * be_ld(v->hidden) * act);
    s->q = piece(c, n * v->hidden * act);
    s->mlp = piece(c, n * be_ld(v->ff) * act);
    s->dense = piece(c, n * v->hidden * 4);
    s->pooled = piece(c, (uint64_t)v->tokens * v->hidden * 4);
    s->kv = piece(c, blocks * layer);
    s->lut = piece(c, 3 * 256 * 4);
    s->rgb = piece(c, (uint64_t)v->image_size * v->image_size * 3);
    s->index = piece(c, (3 * n + 3 + blocks) * 4);
}

/* ---- plan ---- */

/* Memory that the operating system says is free for use; 0 when it doesn't say. */
static uint64_t host_available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) break;
    if (f) fclose(f);
    return (uint64_t)kib * 1024;
}

/* Words of a step's index arrays, worst case: ids, pos, hi, wanted, three of the tail, lo per group; tables; per array up to 16
 * of padding. */
static size_t step_words(const struct engine *e)
{
    size_t t = e->plan.batch_tokens_max, s = e->plan.sequences_max, g = e->kv.group_count;
    return t * (7 + g) + (s + 1) * (3 + 2 * g) + g * s * e->plan.blocks_max + 16 * (12 + 3 * g);
}

/* KV bytes with which every sequence could reach the full context. */
static uint64_t kv_wanted(const struct engine *e)
{
    uint64_t blocks = 0;
    for (uint32_t g = 0; g < e->kv.group_count; g++) {
        const struct engine_kv_group *k = &e->kv.groups[g];
        uint64_t tokens = e->plan.context_max;
        if (k->window && (uint64_t)k->window + e->plan.batch_tokens_max < tokens)
            tokens = (uint64_t)k->window + e->plan.batch_tokens_max;
        blocks += (tokens / BE_BLOCK_TOKENS + 2) * k->block_bytes;
    }
    return blocks * e->plan.sequences_max;
}

static enum status plan_limits(const struct engine_options *opt, struct engine *e, struct err *err)
{
    struct engine_plan *p = &e->plan;
    p->context_max = opt->context_max ? opt->context_max : e->desc.context_max;
    if (p->context_max > e->desc.context_max) {
        log_warn("context of %u tokens asked for, the model was made for %u: using %u", p->context_max, e->desc.context_max,
                 e->desc.context_max);
        p->context_max = e->desc.context_max;
    }
    p->batch_tokens_max = opt->batch_tokens_max ? opt->batch_tokens_max : BATCH_TOKENS_DEFAULT;
    p->sequences_max = opt->sequences_max ? opt->sequences_max : SEQUENCES_DEFAULT;
    if (p->sequences_max > SEQUENCES_MAX) return err_set(err, ST_INVALID, "at most %u sequences per step", SEQUENCES_MAX);
    /* A picture is never cut, and no decoding sequence waits for it. */
    uint32_t least = e->desc.has_vision ? e->desc.vision.tokens + p->sequences_max : p->sequences_max;
    if (p->batch_tokens_max < least) {
        log_info("a step takes up to %u tokens instead of %u, so that a picture and every sequence fit", least,
                 p->batch_tokens_max);
        p->batch_tokens_max = least;
    }
    if (p->batch_tokens_max > BATCH_TOKENS_MAX) return err_set(err, ST_INVALID, "at most %u tokens per step", BATCH_TOKENS_MAX);
    p->blocks_max = (p->context_max + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS;
    return ST_OK;
}

enum status engine__plan(const struct engine_options *opt, struct engine *e, struct err *err)
{
    struct engine_plan *p = &e->plan;
    enum status st = plan_limits(opt, e, err);
    if (!st) st = kv_layout_make(&e->desc, e->ops, e->be, &e->kv, err);
    if (st) return st;
    if (e->desc.has_vision &&
        e->ops->kv_layer_bytes(e->be, e->desc.vision.heads, e->desc.vision.hidden / e->desc.vision.heads) == 0)
        return err_set(err, ST_UNSUPPORTED, "no attention kernel for the vision tower's head size %u",
                       e->desc.vision.hidden / e->desc.vision.heads);
    e->step_words = step_words(e);
    struct carve c = {0}, v = {0};
    struct decoder_scratch ds;
    struct vision_scratch vs;
    carve_decoder(e, &c, &ds);
    if (e->desc.has_vision) carve_vision(e, &v, &vs);
    p->scratch_bytes = c.used;
    p->vision_bytes = v.used;
    p->weight_bytes = e->survey.memory_bytes;
    p->kv_wanted = kv_wanted(e);
    p->available = e->becaps.memory_bytes;
    uint64_t host = e->becaps.host_memory ? host_available() : 0;
    if (host && host < p->available) p->available = host;
    uint64_t used = p->weight_bytes + p->scratch_bytes + p->vision_bytes;
    if (used >= p->available)
        return err_set(err, ST_NOMEM, "weights and scratch take %llu MiB, %llu MiB are free", (unsigned long long)(used >> 20),
                       (unsigned long long)(p->available >> 20));
    uint64_t room = (uint64_t)((double)(p->available - used) * KV_SHARE);
    p->kv_bytes = opt->kv_bytes ? opt->kv_bytes : room < p->kv_wanted ? room : p->kv_wanted;
    if (p->kv_bytes > p->available - used)
        return err_set(err, ST_NOMEM, "%llu MiB for keys and values, %llu MiB are free besides weights and scratch",
                       (unsigned long long)(p->kv_bytes >> 20), (unsigned long long)((p->available - used) >> 20));
    e->arena_units = p->kv_bytes / BE_KV_UNIT;
    if (e->arena_units >= BE_NO_BLOCK) e->arena_units = BE_NO_BLOCK - 1;
    p->kv_bytes = e->arena_units * BE_KV_UNIT;
    uint64_t least = 0;
    for (uint32_t g = 0; g < e->kv.group_count; g++) least += e->kv.groups[g].block_bytes;
    if (p->kv_bytes < least)
        return err_set(err, ST_NOMEM, "%llu bytes for keys and values don't hold one block of every kind (%llu bytes)",
                       (unsigned long long)p->kv_bytes, (unsigned long long)least);
    return ST_OK;
}

/* ---- allocation ---- */

static enum status take(struct engine *e, uint64_t bytes, void **out, const char *what, struct err *err)
{
    if (e->ops->alloc(e->be, (size_t)bytes, out) == BE_OK) return ST_OK;
    *out = NULL;
    return err_set(err, ST_NOMEM, "out of memory: %llu MiB for %s", (unsigned long long)(bytes >> 20), what);
}

static enum status alloc_ropes(struct engine *e, struct err *err)
{
    for (uint32_t i = 0; i < e->desc.rope_count; i++) {
        const struct desc_rope *r = &e->desc.ropes[i];
        float freq[1024];
        ASSERT_CMP(r->dim / 2, <=, 1024);
        /* transformers computes these in float32: exponent, power, reciprocal, division by the factor. */
        for (uint32_t k = 0; k < r->dim / 2; k++) {
            float exponent = (float)(2 * k) / (float)r->dim, power = (float)pow((double)(float)r->theta, (double)exponent);
            freq[k] = 1.0f / power / (float)r->factor;
        }
        void *p;
        enum status st = take(e, r->dim / 2 * sizeof(float), &p, "rotary frequencies", err);
        if (st) return st;
        e->inv_freq[i] = p;
        e->ops->upload(e->be, p, freq, r->dim / 2 * sizeof(float));
    }
    return ST_OK;
}

static enum status alloc_vision(struct engine *e, struct err *err)
{
    const struct desc_vision *d = &e->desc.vision;
    enum status st = take(e, e->plan.vision_bytes, &e->v.block, "the vision tower's scratch", err);
    if (st) return st;
    struct carve c = {e->v.block, 0};
    carve_vision(e, &c, &e->v);
    float lut[3 * 256];
    image_lut(&e->info.image.config, lut);
    e->ops->upload(e->be, e->v.lut, lut, sizeof lut);
    uint32_t n = patch_count(d), blocks = (n + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS;
    uint32_t unit = (uint32_t)(round_up(e->ops->kv_layer_bytes(e->be, d->heads, d->hidden / d->heads), BE_KV_UNIT) / BE_KV_UNIT);
    uint32_t *host = calloc(3 * (size_t)n + 3 + blocks, sizeof *host), *dev = e->v.index;
    if (!host) return err_set(err, ST_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) {
        host[i] = i;             /* pos */
        host[2 * n + i] = n - 1; /* hi; lo is 0 */
    }
    host[3 * n + 1] = n; /* seq_row = {0, n}, seq_table = {0} */
    for (uint32_t b = 0; b < blocks; b++) host[3 * n + 3 + b] = b * unit;
    e->ops->upload(e->be, dev, host, (3 * (size_t)n + 3 + blocks) * sizeof *host);
    free(host);
    e->v.rows = (struct be_rows){.t = n,
                                 .seq_count = 1,
                                 .seq_row = dev + 3 * n,
                                 .seq_table = dev + 3 * n + 2,
                                 .tables = dev + 3 * n + 3,
                                 .pos = dev,
                                 .lo = dev + n,
                                 .hi = dev + 2 * n};
    return ST_OK;
}

enum status engine__alloc(struct engine *e, struct err *err)
{
    const struct engine_plan *p = &e->plan;
    enum status st = take(e, p->scratch_bytes, &e->s.block, "scratch", err);
    if (!st) {
        struct carve c = {e->s.block, 0};
        carve_decoder(e, &c, &e->s);
        st = alloc_ropes(e, err);
    }
    if (!st && e->desc.has_vision) st = alloc_vision(e, err);
    if (!st) st = take(e, p->kv_bytes, &e->arena, "keys and values", err);
    if (!st) st = sampler_create(e->desc.vocab, &e->sampler, err);
    if (st) return st;
    e->host_step = malloc(e->step_words * sizeof *e->host_step);
    e->wanted = malloc(p->batch_tokens_max * sizeof *e->wanted);
    e->host_row = e->becaps.host_memory ? NULL : malloc(e->desc.vocab * sizeof *e->host_row);
    e->host_top_ids = malloc(LOGIT_ROWS_MAX * BE_TOPK_MAX * sizeof *e->host_top_ids);
    e->host_top_values = malloc(LOGIT_ROWS_MAX * BE_TOPK_MAX * sizeof *e->host_top_values);
    if (!e->host_step || !e->wanted || (!e->host_row && !e->becaps.host_memory) || !e->host_top_ids || !e->host_top_values)
        return err_set(err, ST_NOMEM, "out of memory for step arrays");
    return ST_OK;
}

void engine__release(struct engine *e)
{
    if (e->be) {
        for (uint32_t i = 0; i < DESC_ROPES_MAX; i++)
            if (e->inv_freq[i]) e->ops->free(e->be, e->inv_freq[i]);
        if (e->s.block) e->ops->free(e->be, e->s.block);
        if (e->v.block) e->ops->free(e->be, e->v.block);
        if (e->arena) e->ops->free(e->be, e->arena);
        weights_free(&e->w, &e->desc, e->ops, e->be);
        e->ops->close(e->be);
    }
    sampler_destroy(e->sampler);
    free(e->host_step);
    free(e->wanted);
    free(e->host_row);
    free(e->host_top_ids);
    free(e->host_top_values);
    kv_layout_free(&e->kv);
    weights_survey_free(&e->survey);
    model_desc_free(&e->desc);
    free(e->dir);
    free(e->model_type);
}
