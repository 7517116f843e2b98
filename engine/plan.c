/* Memory plan of a loaded model: KV layout, scratch for the worst step, the arena; and its allocation. Sizes
 * come from the configuration, whose ranges are checked when it is read, so products of three of them fit in
 * 64 bits. */
#include "engine/internal.h"

#include "config/base/assert.h"
#include "config/base/cgroup.h"
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
#define ATOMIC_LEAST         1024u /* tokens: below this, memory does not limit whole prompts */
#define STATES_KEPT          4u    /* states of a sequence: its own and snapshots */
#define KV_SHARE             0.8   /* of the memory left by weights and scratch, by default */

static uint64_t round_up(uint64_t x, uint64_t to)
{
    return (x + to - 1) / to * to;
}

/* ---- KV layout ---- */

static void layout_group(struct kv_layout *k, const struct model_desc *d, uint32_t group,
                         const struct be_ops *ops, const struct backend *be)
{
    size_t bytes = 0;
    struct engine_kv_group *g = &k->groups[group];
    for (uint32_t n = 0; n < d->layer_count; n++) {
        uint32_t owner = d->layers[n].kv_owner;
        if (k->layer_group[n] != group) continue;
        ASSERT(owner <= n && k->layer_group[owner] == group);
        k->layer_offset[n] = owner == n ? bytes : k->layer_offset[owner];
        if (owner != n) continue;
        bytes += g->recurrent
                     ? be_conv_bytes(desc_conv_columns(d), d->delta.conv_k) +
                           be_delta_bytes(d->delta.value_heads, d->delta.key_dim, d->delta.value_dim)
                     : ops->kv_layer_bytes(be, k->type, d->layers[n].kv_heads, d->layers[n].head_dim);
        g->layers++;
    }
    g->block_bytes = round_up(bytes, BE_KV_GRAIN);
    g->block_grains = (uint32_t)(g->block_bytes / BE_KV_GRAIN);
    g->bytes_per_token = g->recurrent ? 0 : g->block_bytes / BE_BLOCK_TOKENS;
}

enum status kv_layout_make(const struct model_desc *d, const struct be_ops *ops, struct backend *be,
                           enum be_kv_type type, struct kv_layout *out, struct err *err)
{
    struct kv_layout k = {.type = type};
    struct be_caps caps;
    ops->caps(be, &caps);
    k.layer_group = calloc(d->layer_count, sizeof *k.layer_group);
    k.layer_offset = calloc(d->layer_count, sizeof *k.layer_offset);
    enum status st = k.layer_group && k.layer_offset ? ST_OK : err_nomem(err, "the list of layers");
    /* Full attention first, then one group per window, in order of first use; the recurrent one is last. */
    for (int pass = 0; pass < 2 && !st; pass++) {
        for (uint32_t n = 0; n < d->layer_count && !st; n++) {
            const struct desc_layer *l = &d->layers[n];
            if (desc_recurrent(l) || (l->window > 0) != (pass == 1)) continue;
            if (ops->kv_layer_bytes(be, type, l->kv_heads, l->head_dim) == 0)
                st = err_set(err, ST_UNSUPPORTED, "no attention kernel for head size %u", l->head_dim);
            if (st && ops->kv_layer_bytes(be, BE_KV_ACT, l->kv_heads, l->head_dim))
                st = err_set(err, ST_UNSUPPORTED,
                             "this backend keeps no keys and values in 8 bits (--kv-dtype): "
                             "--backend cpu does");
            uint32_t g = 0;
            while (g < k.group_count && k.groups[g].window != l->window) g++;
            if (g == ENGINE_GROUPS_MAX)
                st = err_set(err, ST_UNSUPPORTED, "more than %u kinds of attention windows",
                             ENGINE_GROUPS_MAX);
            if (st) break;
            if (g == k.group_count) k.groups[k.group_count++].window = l->window;
            k.layer_group[n] = g;
        }
    }
    k.table_groups = k.group_count;
    for (uint32_t n = 0; n < d->layer_count && !st; n++) {
        if (!desc_recurrent(&d->layers[n])) continue;
        if (k.table_groups == ENGINE_GROUPS_MAX)
            st = err_set(err, ST_UNSUPPORTED, "too many kinds of layers");
        else if (caps.delta_key_max && d->delta.key_dim > caps.delta_key_max)
            st = err_set(err, ST_UNSUPPORTED,
                         "linear_key_head_dim %u: this GPU has shared memory for %u at most: "
                         "--backend cpu takes any",
                         d->delta.key_dim, caps.delta_key_max);
        else k.groups[k.table_groups].recurrent = true;
        k.layer_group[n] = k.table_groups;
        k.group_count = k.table_groups + 1;
    }
    for (uint32_t g = 0; g < k.group_count && !st; g++) layout_group(&k, d, g, ops, be);
    if (st) kv_layout_free(&k);
    else *out = k;
    return st;
}

/* The target's layers, then those of a drafter with keys of its own. */
static enum status layout_all(struct engine *e, struct err *err)
{
    struct model_desc all = e->net.desc;
    uint32_t n = all.layer_count, own = e->draft.own;
    all.layers = malloc((n + own) * sizeof *all.layers);
    if (!all.layers) return err_nomem(err, "the list of layers");
    memcpy(all.layers, e->net.desc.layers, n * sizeof *all.layers);
    if (own) all.layers[n] = e->draft.net.desc.layers[0];
    all.layer_count += own;
    enum status st = kv_layout_make(&all, e->ops, e->be, e->plan.kv_type, &e->kv, err);
    free(all.layers);
    return st;
}

void kv_layout_free(struct kv_layout *k)
{
    free(k->layer_group);
    free(k->layer_offset);
    *k = (struct kv_layout){0};
}

/* ---- scratch: one walk counts, the same walk assigns addresses ---- */

struct carve {
    char *base; /* NULL: only count */
    uint64_t used;
};

static void *carve_part(struct carve *c, uint64_t bytes)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += round_up(bytes, 64);
    return p;
}

uint64_t engine__carve_net(const struct engine *e, const struct net *net, uint64_t t, uint64_t rows,
                           uint64_t vocab, void *base, struct decoder_scratch *s)
{
    struct carve all_parts = {base, 0}, *c = &all_parts;
    const struct model_desc *d = &net->desc;
    uint64_t act = be_dtype_bytes(e->plan.act), qkv = d->ple, hd = 0, ff = d->ple, experts = 0, used = 0,
             scratch = 0, token = (uint64_t)d->layer_count * d->ple, gates = 2ull * d->delta.value_heads;
    bool beside = false, gated = false, pruned = net->prune_layer + 1 < d->layer_count;
    for (uint32_t n = 0; n < d->layer_count; n++) {
        const struct desc_layer *l = &d->layers[n];
        if (desc_in_columns(d, n) > qkv) qkv = desc_in_columns(d, n);
        if (desc_mixed_columns(d, n) > hd) hd = desc_mixed_columns(d, n);
        gated |= l->gated;
        if (l->ff > ff && !l->experts) ff = l->ff;
        if (l->shared_ff > ff) ff = l->shared_ff;
        beside |= l->shared_ff > 0;
        if (!l->experts) continue;
        uint64_t s1 =
            e->ops->experts_scratch(e->be, (uint32_t)t, l->experts_used, d->hidden, l->ff, l->experts);
        if (l->experts > experts) experts = l->experts;
        if (l->experts_used > used) used = l->experts_used;
        if (s1 > scratch) scratch = s1;
    }
    s->resid = carve_part(c, t * d->hidden * 4);
    s->out_resid = carve_part(c, t * d->hidden * 4);
    s->proj = carve_part(c, t * d->hidden * 4);
    s->mix = carve_part(c, beside ? t * d->hidden * 4 : 0);
    s->token = carve_part(c, t * token * 4);
    s->out_ple = carve_part(c, t * token * 4);
    s->qkv = carve_part(c, t * qkv * 4);
    s->out_qkv = carve_part(c, gated ? t * qkv * 4 : 0);
    s->gates = carve_part(c, t * (d->names.shared_gate && !gates ? 1 : gates) * 4);
    s->h = carve_part(c, t * be_ld(d->hidden) * act);
    s->q = carve_part(c, t * be_ld(hd) * act);
    s->attn = carve_part(c, t * be_ld(hd) * act);
    s->mlp = carve_part(c, t * be_ld(ff) * act);
    if (experts) {
        s->router = carve_part(c, t * experts * 4);
        s->expert_ids = carve_part(c, t * used * 4);
        s->expert_weights = carve_part(c, t * used * 4);
        s->experts = carve_part(c, scratch);
    }
    for (uint32_t i = 0; i < d->rope_count; i++) {
        s->cos[i] = carve_part(c, t * (d->ropes[i].dim / 2) * 4);
        s->sin[i] = carve_part(c, t * (d->ropes[i].dim / 2) * 4);
        s->out_cos[i] = carve_part(c, pruned ? t * (d->ropes[i].dim / 2) * 4 : 0);
        s->out_sin[i] = carve_part(c, pruned ? t * (d->ropes[i].dim / 2) * 4 : 0);
    }
    s->head_in = carve_part(c, rows * be_ld(d->hidden) * act);
    s->logits = carve_part(c, rows * vocab * 4);
    s->stats = carve_part(c, rows * (sizeof *s->stats + BE_TOPK_MAX * 8));
    s->top = c->base ? (uint32_t *)(s->stats + rows) : NULL;
    s->step = carve_part(c, net == &e->net ? e->step_words * 4 : 0);
    return c->used;
}

static uint64_t carve_decoder(struct engine *e, void *base, struct decoder_scratch *s)
{
    return engine__carve_net(e, &e->net, e->plan.batch_tokens_max, e->plan.logit_rows, e->net.desc.vocab,
                             base, s);
}

static void carve_vision(const struct engine *e, uint64_t rows, struct carve *c, struct vision_scratch *s)
{
    const struct desc_vision *v = &e->net.desc.vision;
    uint64_t act = be_dtype_bytes(e->plan.act);
    uint64_t merged =
                 v->end == VISION_MERGE ? rows / desc_merge_side(v) / desc_merge_side(v) : 0, /* tokens */
        wide = be_ld(v->merge_ff > v->merge_conv ? v->merge_ff : v->merge_conv), h = rows * be_ld(v->hidden),
             dense = rows * v->hidden;
    if (merged * wide > h) h = merged * wide;
    if (merged * v->merge_conv > dense) dense = merged * v->merge_conv;
    s->qkv = carve_part(c, rows * 3 * v->hidden * 4);
    s->h = carve_part(c, h * act);
    s->attn = carve_part(c, h * act);
    s->mlp = carve_part(c, rows * be_ld(v->ff) * act);
    s->dense = carve_part(c, merged || v->names.post_attn ? dense * 4 : 0);
    s->gate = carve_part(c, v->clip ? rows * v->ff * 4 : 0);
    s->up = carve_part(c, v->clip || v->mlp == VISION_GLU_GELU_ERF ? rows * v->ff * 4 : 0);
}

/* ---- plan ---- */

/* Memory that the operating system reports as available, within the limits of control groups (above them the
 * process is killed); 0 if unknown. */
static uint64_t host_available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) break;
    if (f) fclose(f);
    uint64_t free = (uint64_t)kib * 1024, room = cgroup_memory_free("");
    if (room == CGROUP_NO_LIMIT || (free && free < room)) return free;
    return room ? room : 1;
}

/* Words of a step's index arrays, worst case: ids, pos, shifted pos, output rows, targets, draws, pos of the
 * output rows, lo and hi per group of both; tables, with an entry after each group's first; per array up to
 * 16 of padding; with mRoPE three more per row; of a recurrent group five per sequence and the draft tokens.
 */
static size_t step_words(const struct engine *e)
{
    size_t t = e->plan.batch_tokens_max, s = e->plan.sequences_max, g = e->kv.table_groups;
    return t * (8 + (e->net.rope_axes > 1 ? 3u : 0u) + 4 * g) + (s + 1) * (2 + 3 * g) +
           g * (s * e->plan.blocks_max + 1) + 16 * (14 + 8 * g) +
           (g < e->kv.group_count ? 5 * (s + 16) + t + 16 : 0) + (e->draft.own ? t + 16 : 0);
}

/* KV bytes with which every sequence could reach the full context. */
static uint64_t kv_needed(const struct engine *e)
{
    uint64_t blocks = 0;
    for (uint32_t g = 0; g < e->kv.group_count; g++) {
        const struct engine_kv_group *k = &e->kv.groups[g];
        uint64_t tokens = e->plan.context_max;
        if (k->window && (uint64_t)k->window + e->plan.batch_tokens_max < tokens)
            tokens = (uint64_t)k->window + e->plan.batch_tokens_max;
        blocks +=
            k->recurrent ? STATES_KEPT * k->block_bytes : (tokens / BE_BLOCK_TOKENS + 2) * k->block_bytes;
    }
    return blocks * e->plan.sequences_max;
}

/* Whether prompts are prefilled whole (prefix-LM). */
static bool sees_prefix(const struct engine *e)
{
    return e->net.desc.image.rule == SPAN_PREFIX_LM;
}

/* Tokens of the largest atomic image; 0 = none. */
static uint32_t atomic_image(const struct engine *e)
{
    const uint32_t *budget = e->info.image.config.budgets;
    if (!e->net.desc.has_vision || !e->net.desc.image.rule) return 0;
    while (budget && budget[0] && budget[1]) budget++;
    return budget ? *budget : e->net.desc.vision.tokens;
}

static enum status plan_limits(const struct engine_options *opt, struct engine *e, struct err *err)
{
    struct engine_plan *p = &e->plan;
    p->context_max = opt->context_max ? opt->context_max : e->net.desc.context_max;
    if (p->context_max > e->net.desc.context_max) {
        log_warn("--max-context %u is above the checkpoint's %u: %u is used", p->context_max,
                 e->net.desc.context_max, e->net.desc.context_max);
        p->context_max = e->net.desc.context_max;
    }
    p->batch_tokens_max = opt->batch_tokens_max ? opt->batch_tokens_max : BATCH_TOKENS_DEFAULT;
    p->sequences_max = opt->sequences_max ? opt->sequences_max : SEQUENCES_DEFAULT;
    if (p->sequences_max > SEQUENCES_MAX)
        return err_set(err, ST_INVALID, "at most %u sequences per step", SEQUENCES_MAX);
    if (p->batch_tokens_max > BATCH_TOKENS_MAX)
        return err_set(err, ST_INVALID, "at most %u tokens per step", BATCH_TOKENS_MAX);
    if (sees_prefix(e)) {
        uint32_t most = BATCH_TOKENS_MAX - p->sequences_max;
        p->span_tokens_max = p->context_max < most ? p->context_max : most;
    } else {
        p->span_tokens_max = atomic_image(e);
    }
    if (p->span_tokens_max > BATCH_TOKENS_MAX - p->sequences_max)
        return err_set(err, ST_INVALID, "at most %u tokens per step", BATCH_TOKENS_MAX);
    p->logit_rows = LOGIT_ROWS_MAX;
    if (!e->becaps.host_memory && p->sequences_max > p->logit_rows)
        p->logit_rows = p->sequences_max < LOGIT_ROWS_DEVICE ? p->sequences_max : LOGIT_ROWS_DEVICE;
    p->blocks_max = (p->context_max + BE_BLOCK_TOKENS - 1) / BE_BLOCK_TOKENS;
    return ST_OK;
}

/* Memory for images is reserved up to this size; a larger one allocates more on arrival. */
static uint32_t vision_patches_planned(const struct engine *e)
{
    enum { PLANNED = 16384 };
    uint32_t most = vision_patches_max(e);
    return e->net.desc.vision.image_size || most < PLANNED ? most : PLANNED;
}

/* Rows of the tower's scratch: a row chunk of a layer, at least a token's patches, and all tokens if they are
 * pooled. */
static uint32_t vision_rows(const struct engine *e)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint32_t most = vision_patches_max(e), rows = most < VISION_ROWS_MAX ? most : VISION_ROWS_MAX;
    uint32_t least = d->end == VISION_LINEAR ? 1 : d->tokens ? d->tokens : d->merge * d->merge;
    return rows < least ? least : rows;
}

static uint64_t decoder_scratch_bytes(struct engine *e)
{
    struct decoder_scratch s;
    e->step_words = step_words(e);
    return carve_decoder(e, NULL, &s);
}

/* Atomic spans are never cut, and no decoding sequence waits for them. Whole prompts, which may be as long as
 * the context, are limited so that the step's scratch takes at most half of `room`. */
static void plan_step(struct engine *e, uint32_t asked, uint64_t room)
{
    struct engine_plan *p = &e->plan;
    for (uint32_t all = p->span_tokens_max;; p->span_tokens_max -= p->span_tokens_max / 8) {
        uint32_t least = p->sequences_max + p->span_tokens_max;
        p->batch_tokens_max = asked > least ? asked : least;
        p->scratch_bytes = decoder_scratch_bytes(e);
        if (!sees_prefix(e) || p->scratch_bytes <= room / 2 || p->span_tokens_max < ATOMIC_LEAST) {
            if (p->span_tokens_max < all)
                log_warn("memory has room for whole prompts of %u tokens, not %u", p->span_tokens_max, all);
            break;
        }
    }
    if (p->batch_tokens_max > asked)
        log_info("a step takes up to %u tokens instead of %u, so that a %s and every sequence fit",
                 p->batch_tokens_max, asked, sees_prefix(e) ? "whole prompt" : "image");
}

enum status engine__plan(const struct engine_options *opt, struct engine *e, struct err *err)
{
    struct engine_plan *p = &e->plan;
    enum status st = plan_limits(opt, e, err);
    for (uint32_t n = 0; n < e->net.desc.layer_count; n++)
        if (desc_owns_keys(&e->net.desc, n)) e->net.prune_layer = n;
    e->net.rope_axes = 1;
    for (uint32_t i = 0; i < e->net.desc.rope_count; i++)
        if (e->net.desc.ropes[i].sections[0]) e->net.rope_axes = 3;
    if (e->draft.own) { /* which needs all rows */
        e->net.prune_layer = e->net.desc.layer_count;
        e->draft.net.rope_axes = e->net.rope_axes;
    }
    if (!st) st = layout_all(e, err);
    if (st) return st;
    if (e->net.desc.has_vision && e->net.desc.vision.layers &&
        e->ops->kv_layer_bytes(e->be, BE_KV_ACT, e->net.desc.vision.heads,
                               e->net.desc.vision.hidden / e->net.desc.vision.heads) == 0)
        return err_set(err, ST_UNSUPPORTED, "no attention kernel for the vision tower's head size %u",
                       e->net.desc.vision.hidden / e->net.desc.vision.heads);
    if (e->net.desc.has_vision) {
        struct carve v = {0};
        struct vision_scratch vs;
        carve_vision(e, vision_rows(e), &v, &vs);
        p->vision_bytes = v.used + vision_image_bytes(e, vision_patches_planned(e));
    }
    p->weight_bytes = e->net.inventory.memory_bytes;
    p->available = e->becaps.memory_bytes;
    uint64_t host = e->becaps.host_memory ? host_available() : 0;
    if (host && host < p->available) p->available = host;
    recurrent_plan(e);
    p->draft_bytes = p->replay_bytes;
    if (e->draft.on)
        p->draft_bytes += e->draft.net.inventory.memory_bytes + drafter_scratch_bytes(e) +
                          drafter_spare_grains(e) * BE_KV_GRAIN;
    p->adapter_bytes = opt->adapter_bytes;
    uint64_t fixed = p->weight_bytes + p->vision_bytes + p->draft_bytes + p->adapter_bytes;
    plan_step(e, p->batch_tokens_max, p->available > fixed ? p->available - fixed : 0);
    p->kv_needed = kv_needed(e);
    uint64_t used = fixed + p->scratch_bytes;
    if (used >= p->available)
        return err_set(err, ST_NOMEM, "weights and working memory take %llu MiB, %llu MiB are free",
                       (unsigned long long)(used >> 20), (unsigned long long)(p->available >> 20));
    uint64_t room = (uint64_t)((double)(p->available - used) * KV_SHARE);
    p->kv_bytes = opt->kv_bytes ? opt->kv_bytes : room < p->kv_needed ? room : p->kv_needed;
    bool in_gib = p->available - used >= UINT64_C(10) << 30;
    if (p->kv_bytes > p->available - used)
        return err_set(err, ST_NOMEM,
                       "--kv-memory of %llu MiB is more than the %llu MiB that weights and working memory "
                       "leave: use at most %llu%s, or auto",
                       (unsigned long long)(p->kv_bytes >> 20),
                       (unsigned long long)((p->available - used) >> 20),
                       (unsigned long long)((p->available - used) >> (in_gib ? 30 : 20)), in_gib ? "G" : "M");
    e->arena_grains = p->kv_bytes / BE_KV_GRAIN;
    if (e->arena_grains >= BE_NO_BLOCK) e->arena_grains = BE_NO_BLOCK - 1;
    p->kv_bytes = e->arena_grains * BE_KV_GRAIN;
    p->spare = p->available - used - p->kv_bytes;
    uint64_t least = 0;
    for (uint32_t g = 0; g < e->kv.group_count; g++) /* of a state two: one is read, one written */
        least += (e->kv.groups[g].recurrent ? 2 : 1) * e->kv.groups[g].block_bytes;
    if (p->kv_bytes < least)
        return err_set(err, ST_NOMEM,
                       "%llu bytes for keys and values (--kv-memory) don't hold one block of every kind: use "
                       "at least %llu",
                       (unsigned long long)p->kv_bytes, (unsigned long long)least);
    return ST_OK;
}

/* ---- allocation ---- */

enum status engine__dev_alloc(struct engine *e, uint64_t bytes, void **out, const char *what, struct err *err)
{
    enum be_result r = e->ops->alloc(e->be, (size_t)bytes, out);
    if (r == BE_OK) return ST_OK;
    *out = NULL;
    if (r == BE_DEVICE) return err_set(err, ST_DEVICE, "%s: %s", what, e->ops->last_error(e->be));
    return err_set(err, ST_NOMEM, "out of memory: %llu MiB for %s", (unsigned long long)(bytes >> 20), what);
}

static uint8_t rope_axis(const struct desc_rope *r, uint32_t i)
{
    const uint32_t *s = r->sections;
    if (!r->interleaved) return i < s[0] ? 0 : i < s[0] + s[1] ? 1 : 2;
    uint32_t a = i % 3;
    return a && i < 3 * s[a] ? (uint8_t)a : 0;
}

enum status engine__alloc_ropes(struct engine *e, struct net *net, struct err *err)
{
    for (uint32_t i = 0; i < net->desc.rope_count; i++) {
        const struct desc_rope *r = &net->desc.ropes[i];
        float freq[1024];
        uint8_t axis[1024];
        uint32_t half = r->dim / 2;
        ASSERT_CMP(half, <=, 1024);
        desc_rope_frequencies(r, freq);
        void *p;
        enum status st = engine__dev_alloc(e, half * sizeof(float), &p, "rotary frequencies", err);
        if (st) return st;
        net->inv_freq[i] = p;
        e->ops->upload(e->be, p, freq, half * sizeof(float));
        if (!r->sections[0]) continue;
        if ((st = engine__dev_alloc(e, half, &p, "rotary axes", err))) return st;
        for (uint32_t k = 0; k < half; k++) axis[k] = rope_axis(r, k);
        net->rope_axis[i] = p;
        e->ops->upload(e->be, p, axis, half);
    }
    return ST_OK;
}

bool engine__vision_room(const struct engine *e, uint32_t patches)
{
    uint32_t planned = vision_patches_planned(e);
    return patches <= planned ||
           vision_image_bytes(e, patches) <= vision_image_bytes(e, planned) + e->plan.spare;
}

uint32_t engine__vision_tokens_max(const struct engine *e)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint32_t unit = d->merge * d->merge, low = 0, high = e->plan.context_max;
    if (!e->net.desc.has_vision || d->image_size) return 0;
    if (high > UINT32_MAX / 64 / unit) high = UINT32_MAX / 64 / unit; /* vision_measure */
    uint32_t most = high;
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        if (engine__vision_room(e, middle * unit)) low = middle;
        else high = middle - 1;
    }
    return low == most ? 0 : low;
}

/* The first half of the frequencies rotates by the row, the second half by the column, both theta^(-4k/D), or
 * the column's theta^(-(4k+2)/D) with rope_between; with rope_halves the column's come first. */
static enum status alloc_vision_rope(struct engine *e, struct err *err)
{
    const struct desc_vision *d = &e->net.desc.vision;
    uint32_t half = d->hidden / d->heads / 2;
    float freq[1024], all[1024];
    uint8_t axis[1024];
    void *p = NULL, *q = NULL;
    ASSERT_CMP(half, <=, 1024);
    desc_rope_frequencies(&(struct desc_rope){.theta = d->rope_theta, .factor = 1, .dim = 2 * half}, all);
    for (uint32_t k = 0; k < half; k++) {
        axis[k] = (k >= half / 2) != d->rope_halves;
        freq[k] = all[k % (half / 2) * 2 + (d->rope_between && k >= half / 2)];
    }
    enum status st = engine__dev_alloc(e, half * sizeof(float), &p, "rotary frequencies", err);
    e->v.rope_freq = p;
    if (!st) st = engine__dev_alloc(e, half, &q, "rotary axes", err);
    e->v.rope_axis = q;
    if (st) return st;
    e->ops->upload(e->be, p, freq, half * sizeof(float));
    e->ops->upload(e->be, q, axis, half);
    return ST_OK;
}

static enum status alloc_vision(struct engine *e, struct err *err)
{
    float lut[3 * 256];
    void *p = NULL;
    enum status st = engine__dev_alloc(e, sizeof lut, &p, "the vision tower's table", err);
    e->v.lut = p;
    if (st) return st;
    image_lut(&e->info.image.config, lut);
    for (int i = 0; i < 3 * 256 && e->net.desc.vision.centred; i++) lut[i] = 2 * (lut[i] - 0.5f);
    e->ops->upload(e->be, e->v.lut, lut, sizeof lut);
    if (e->net.desc.vision.rope_theta > 0) st = alloc_vision_rope(e, err);
    struct carve c = {0};
    carve_vision(e, vision_rows(e), &c, &e->v);
    if (!st) st = engine__dev_alloc(e, c.used, &e->v.block, "the vision tower's working memory", err);
    if (st) return st;
    c = (struct carve){e->v.block, 0};
    carve_vision(e, vision_rows(e), &c, &e->v);
    e->v.rows = vision_rows(e);
    return ST_OK;
}

enum status engine__alloc(struct engine *e, struct err *err)
{
    const struct engine_plan *p = &e->plan;
    enum status st = engine__dev_alloc(e, p->scratch_bytes, &e->net.s.block, "working memory", err);
    if (!st) {
        (void)carve_decoder(e, e->net.s.block, &e->net.s);
        st = engine__alloc_ropes(e, &e->net, err);
    }
    if (!st && e->net.desc.has_vision) st = alloc_vision(e, err);
    if (!st)
        st = engine__dev_alloc(e, p->kv_bytes + drafter_spare_grains(e) * BE_KV_GRAIN, &e->arena,
                               "keys and values", err);
    uint32_t samplers = !e->ops->host_each                        ? 1
                        : e->becaps.threads < ENGINE_SAMPLERS_MAX ? e->becaps.threads
                                                                  : ENGINE_SAMPLERS_MAX;
    for (; !st && e->sampler_count < samplers; e->sampler_count += !st)
        st = sampler_create(e->net.desc.vocab, &e->samplers[e->sampler_count], err);
    if (st) return st;
    e->host_step = malloc(e->step_words * sizeof *e->host_step);
    e->output_rows = malloc(p->batch_tokens_max * sizeof *e->output_rows);
    size_t longest = e->net.desc.vocab > e->net.desc.hidden ? e->net.desc.vocab : e->net.desc.hidden;
    size_t token = (size_t)e->net.desc.layer_count * e->net.desc.ple;
    e->host_token = token ? malloc(HOST_TOKEN_ROWS * token * sizeof *e->host_token) : NULL;
    e->host_row = e->becaps.host_memory ? NULL : malloc(longest * sizeof *e->host_row);
    e->host_results = malloc(p->logit_rows * (sizeof *e->net.s.stats + BE_TOPK_MAX * 8));
    e->runs = malloc(2 * (size_t)p->sequences_max * sizeof *e->runs);
    e->adapter_linears = malloc(2 * (size_t)p->sequences_max * sizeof *e->adapter_linears);
    if (!e->host_step || !e->output_rows || !e->runs || !e->adapter_linears || (token && !e->host_token) ||
        (!e->host_row && !e->becaps.host_memory) || !e->host_results)
        return err_nomem(err, "step arrays");
    return ST_OK;
}

void engine__free_net(struct engine *e, struct net *net)
{
    for (uint32_t i = 0; i < DESC_ROPES_MAX; i++) {
        if (net->inv_freq[i]) e->ops->free(e->be, net->inv_freq[i]);
        if (net->rope_axis[i]) e->ops->free(e->be, net->rope_axis[i]);
    }
    if (net->s.block) e->ops->free(e->be, net->s.block);
    weights_free(&net->w, &net->desc, e->ops, e->be);
}

void engine__release(struct engine *e)
{
    if (e->be) {
        engine__graphs_close(e);
        if (e->v.lut) e->ops->free(e->be, e->v.lut);
        if (e->v.rope_freq) e->ops->free(e->be, e->v.rope_freq);
        if (e->v.rope_axis) e->ops->free(e->be, e->v.rope_axis);
        if (e->v.block) e->ops->free(e->be, e->v.block);
        if (e->arena) e->ops->free(e->be, e->arena);
        if (e->replay.block) e->ops->free(e->be, e->replay.block);
        drafter_close(e);
        engine__free_net(e, &e->net);
        profile_close(e);
        adapters_close(e);
        e->ops->close(e->be);
    }
    for (uint32_t i = 0; i < e->sampler_count; i++) sampler_destroy(e->samplers[i]);
    free(e->host_step);
    free(e->output_rows);
    free(e->runs);
    free(e->adapter_linears);
    pthread_mutex_destroy(&e->adapters.lock);
    free(e->host_token);
    free(e->host_row);
    free(e->host_results);
    kv_layout_free(&e->kv);
    weights_inventory_free(&e->net.inventory);
    weights_inventory_free(&e->draft.net.inventory);
    model_desc_free(&e->net.desc);
    model_desc_free(&e->draft.net.desc);
    stf_close(e->files);
    if (!e->draft.own) stf_close(e->draft.files); /* else the target's */
    free(e->draft.dir);
    free(e->dir);
    free(e->model_type);
}
