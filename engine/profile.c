/* Time by part of the model, for `kvasir bench --profile`: a table of operations between the engine and the
 * backend that waits for each operation. Without a profile there is no such table and no cost. Only one
 * engine of a process can have one: operations don't know their engine. Engine thread. */
#include "engine/internal.h"

#include "config/base/clock.h"
#include "config/base/assert.h"

#include <stdlib.h>

#define EXPERTS_COUNTED 4096u

enum {
    P_EMBED = 0,
    P_NORM,
    P_QKV,
    P_HEADS,
    P_ATTENTION,
    P_RECURRENCE,
    P_O,
    P_GLU,
    P_DOWN,
    P_EXPERTS,
    P_TOKEN_INPUT,
    P_ELEMENTS,
    P_PATCHES,
    P_PROJECT,
    P_HEAD,
    P_LOGITS,
    P_DRAFTER,
    P_MOVES,
    P_COUNT
};
_Static_assert(P_COUNT == ENGINE_PROFILE_PARTS, "room for all");

static const char *const names[P_COUNT] = {
    [P_EMBED] = "embedding",
    [P_NORM] = "norms, rotation tables",
    [P_QKV] = "q, k, v",
    [P_HEADS] = "rotation, KV write",
    [P_ATTENTION] = "attention",
    [P_RECURRENCE] = "recurrence",
    [P_O] = "o",
    [P_GLU] = "gate, up",
    [P_DOWN] = "down",
    [P_EXPERTS] = "experts, router",
    [P_TOKEN_INPUT] = "token input",
    [P_ELEMENTS] = "elementwise",
    [P_PATCHES] = "patches",
    [P_PROJECT] = "projection, mergers",
    [P_HEAD] = "head",
    [P_LOGITS] = "logits, drawing",
    [P_DRAFTER] = "drafter",
    [P_MOVES] = "copies",
};

struct known_weight {
    const struct be_weight *w;
    uint32_t part;
    double numbers; /* rows times columns */
};
struct profile {
    struct be_ops ops;         /* the engine's */
    const struct be_ops *real; /* the backend's */
    bool host_memory;          /* operations are synchronous, and their arrays can be read */
    struct engine_profile_part parts[P_COUNT];
    struct known_weight *known; /* [known_count] by address; NULL: not listed yet */
    size_t known_count;
};
static struct profile *in_use;

/* Records an operation of `part` that began at t0. Device errors are reported by the step's own sync. */
static struct engine_profile_part *done(struct backend *b, uint32_t part, double t0)
{
    struct profile *p = in_use;
    if (!p->host_memory) (void)p->real->sync(b);
    p->parts[part].seconds += now_s() - t0;
    p->parts[part].calls++;
    return &p->parts[part];
}

/* ---- the table ---- */

#define WRAP(op, type, part)                                                                                 \
    static void profile_##op(struct backend *b, const struct type *a)                                        \
    {                                                                                                        \
        double t0 = now_s();                                                                                 \
        in_use->real->op(b, a);                                                                              \
        done(b, part, t0);                                                                                   \
    }

WRAP(embed, be_embed_args, P_EMBED)
WRAP(norm, be_norm_args, P_NORM)
WRAP(rope, be_rope_args, P_NORM)
WRAP(qkv, be_qkv_args, P_HEADS)
WRAP(patchify, be_patchify_args, P_PATCHES)
WRAP(pool, be_pool_args, P_PATCHES)
WRAP(interpolate, be_interpolate_args, P_PATCHES)
WRAP(gather, be_gather_args, P_MOVES)
WRAP(pack, be_pack_args, P_ELEMENTS)
WRAP(gate, be_gate_args, P_ELEMENTS)
WRAP(conv, be_conv_args, P_RECURRENCE)
WRAP(delta, be_delta_args, P_RECURRENCE)
WRAP(clamp, be_clamp_args, P_ELEMENTS)
WRAP(route, be_route_args, P_EXPERTS)
WRAP(logit_stats, be_logits_args, P_LOGITS)
WRAP(topk, be_topk_args, P_LOGITS)

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct known_weight *)a)->w,
              y = (uintptr_t)((const struct known_weight *)b)->w;
    return x < y ? -1 : x > y;
}

static void profile_linear(struct backend *b, const struct be_linear_args *a)
{
    struct profile *p = in_use;
    const struct known_weight key = {.w = a->w}, *k = p->known_count ? bsearch(&key, p->known, p->known_count,
                                                                               sizeof *p->known, by_address)
                                                                     : NULL;
    double t0 = now_s();
    p->real->linear(b, a);
    struct engine_profile_part *part = done(b, k ? k->part : P_DRAFTER, t0);
    if (!k || a->t == 0) return;
    part->flops += 2 * k->numbers * a->t;
    part->bytes += (double)p->real->weight_bytes(a->w);
}

/* Keys and values of a sequence are counted once. */
static void count_attention(const struct profile *p, struct backend *b, const struct be_attn_args *a,
                            struct engine_profile_part *part)
{
    const struct be_rows *r = a->rows;
    double pairs = 0, keys = 0;
    for (uint32_t s = 0; s < r->seq_count; s++) {
        uint32_t lo = UINT32_MAX, hi = 0, from = r->seq_row[s], to = r->seq_row[s + 1];
        for (uint32_t t = from; t < to; t++) {
            if (r->hi[t] < r->lo[t]) continue;
            pairs += (double)(r->hi[t] - r->lo[t]) + 1;
            lo = r->lo[t] < lo ? r->lo[t] : lo;
            hi = r->hi[t] > hi ? r->hi[t] : hi;
        }
        if (lo <= hi) keys += (double)(hi - lo) + 1;
    }
    part->flops += 4 * pairs * a->heads * a->kv.head_dim;
    part->bytes += keys / BE_BLOCK_TOKENS *
                   (double)p->real->kv_layer_bytes(b, a->kv.type, a->kv.kv_heads, a->kv.head_dim);
}

static void profile_attn(struct backend *b, const struct be_attn_args *a)
{
    double t0 = now_s();
    in_use->real->attn(b, a);
    struct engine_profile_part *part = done(b, P_ATTENTION, t0);
    if (in_use->host_memory) count_attention(in_use, b, a, part);
}

/* Each selected expert is read once. */
static void count_experts(const struct profile *p, const struct be_experts_args *a,
                          struct engine_profile_part *part)
{
    uint64_t chosen[EXPERTS_COUNTED / 64] = {0};
    if (a->experts > EXPERTS_COUNTED) return;
    for (size_t i = 0; i < (size_t)a->t * a->k; i++) {
        uint32_t e = a->ids[i];
        uint64_t bit = UINT64_C(1) << e % 64;
        if (!(chosen[e / 64] & bit))
            part->bytes += (double)(p->real->weight_bytes(a->glu[e]) + p->real->weight_bytes(a->down[e]));
        chosen[e / 64] |= bit;
    }
}

static void profile_experts(struct backend *b, const struct be_experts_args *a)
{
    double t0 = now_s();
    in_use->real->experts(b, a);
    struct engine_profile_part *part = done(b, P_EXPERTS, t0);
    part->flops += 6.0 * a->t * a->k * a->c * a->ff;
    if (in_use->host_memory) count_experts(in_use, a, part);
}

static void profile_copy(struct backend *b, void *dst, const void *src, size_t bytes)
{
    double t0 = now_s();
    in_use->real->copy(b, dst, src, bytes);
    done(b, P_MOVES, t0);
}

static void profile_upload(struct backend *b, void *dst, const void *host, size_t bytes)
{
    double t0 = now_s();
    in_use->real->upload(b, dst, host, bytes);
    done(b, P_MOVES, t0);
}

static void profile_download(struct backend *b, void *host, const void *src, size_t bytes)
{
    double t0 = now_s();
    in_use->real->download(b, host, src, bytes);
    done(b, P_MOVES, t0);
}

static void profile_host_each(struct backend *b, uint32_t count, void (*fn)(void *ctx, uint32_t i), void *ctx)
{
    double t0 = now_s();
    in_use->real->host_each(b, count, fn, ctx);
    done(b, P_LOGITS, t0);
}

enum status profile_open(struct engine *e, struct err *err)
{
    if (in_use) return err_set(err, ST_UNSUPPORTED, "another engine of this process has a profile");
    struct profile *p = calloc(1, sizeof *p);
    if (!p) return err_nomem(err, "a profile");
    p->real = e->ops;
    p->host_memory = e->becaps.host_memory;
    p->ops = *e->ops;
    p->ops.linear = profile_linear;
    p->ops.embed = profile_embed;
    p->ops.norm = profile_norm;
    p->ops.rope = profile_rope;
    p->ops.qkv = profile_qkv;
    p->ops.attn = profile_attn;
    p->ops.patchify = profile_patchify;
    p->ops.pool = profile_pool;
    p->ops.interpolate = profile_interpolate;
    p->ops.gather = profile_gather;
    p->ops.pack = profile_pack;
    p->ops.gate = profile_gate;
    p->ops.conv = profile_conv;
    p->ops.delta = profile_delta;
    p->ops.clamp = profile_clamp;
    p->ops.route = profile_route;
    p->ops.experts = profile_experts;
    p->ops.logit_stats = profile_logit_stats;
    p->ops.topk = profile_topk;
    p->ops.copy = profile_copy;
    p->ops.upload = profile_upload;
    p->ops.download = profile_download;
    if (p->ops.host_each) p->ops.host_each = profile_host_each;
    /* A graph is one operation, and can't be waited for in parts. */
    p->ops.graph_begin = NULL;
    p->ops.graph_end = NULL;
    p->ops.graph_launch = NULL;
    p->ops.graph_free = NULL;
    in_use = e->profile = p;
    e->ops = &p->ops;
    return ST_OK;
}

void profile_close(struct engine *e)
{
    struct profile *p = e->profile;
    if (!p) return;
    e->ops = p->real;
    in_use = e->profile = NULL;
    free(p->known);
    free(p);
}

/* ---- the part of the model of each product ---- */

static void know(struct profile *p, const struct be_weight *w, uint32_t part, double rows, double columns)
{
    if (w) p->known[p->known_count++] = (struct known_weight){w, part, rows * columns};
}

static void know_text(struct profile *p, const struct net *net)
{
    const struct model_desc *d = &net->desc;
    double c = d->hidden;
    know(p, net->w.head, P_HEAD, d->vocab, c);
    know(p, net->w.ple_project, P_TOKEN_INPUT, (double)d->layer_count * d->ple, c);
    for (uint32_t n = 0; n < d->layer_count; n++) {
        const struct desc_layer *l = &d->layers[n];
        const struct layer_weights *w = &net->w.layers[n];
        double ff = l->experts ? l->shared_ff : l->ff;
        know(p, w->qkv, P_QKV, desc_in_columns(d, n), c);
        know(p, w->gates, P_QKV, 2 * d->delta.value_heads, c);
        know(p, w->o, P_O, c, desc_mixed_columns(d, n));
        know(p, w->shared_gate, P_EXPERTS, 1, c);
        know(p, w->glu, P_GLU, 2 * ff, c);
        know(p, w->down, P_DOWN, c, ff);
        know(p, w->router, P_EXPERTS, l->experts, c);
        know(p, w->ple_gate, P_TOKEN_INPUT, d->ple, c);
        know(p, w->token_up, P_TOKEN_INPUT, c, d->ple);
    }
}

static void know_vision(struct profile *p, const struct net *net)
{
    const struct desc_vision *v = &net->desc.vision;
    const struct vision_weights *w = &net->w.vision;
    struct merger_product products[MERGER_PRODUCTS];
    double c = v->hidden;
    bool glu = v->mlp == VISION_GLU_SILU || v->mlp == VISION_GLU_GELU;
    know(p, w->patch, P_PATCHES, c, 3.0 * v->depth * v->patch * v->patch);
    know(p, w->projection, P_PROJECT, net->desc.hidden, c);
    for (uint32_t k = 0; v->end == VISION_MERGE && k < 1 + v->deepstack_count; k++)
        for (uint32_t i = 0, n = merger_products(net, k, products); i < n; i++)
            know(p, products[i].w, P_PROJECT, products[i].numbers, 1);
    know(p, w->halve.qkv, P_QKV, 3 * c, c);
    know(p, w->halve.o, P_O, c, c);
    know(p, w->halve.fc1, P_GLU, 4 * c, 4.0 * v->ff);
    know(p, w->halve.fc2, P_DOWN, 4.0 * v->ff, c);
    for (uint32_t n = 0; n < v->layers; n++) {
        const struct vision_layer_weights *l = &w->layers[n];
        know(p, l->qkv, P_QKV, l->k ? c : 3 * c, c);
        know(p, l->k, P_QKV, c, c);
        know(p, l->v, P_QKV, c, c);
        know(p, l->o, P_O, c, c);
        know(p, l->fc1, P_GLU, glu && !l->up ? 2.0 * v->ff : v->ff, c);
        know(p, l->up, P_GLU, v->ff, c);
        know(p, l->fc2, P_DOWN, c, v->ff);
    }
}

static enum status know_weights(struct engine *e, struct profile *p, struct err *err)
{
    const struct model_desc *d = &e->net.desc;
    size_t most = 2 + 9 * (size_t)d->layer_count;
    if (d->has_vision)
        most += 6 + MERGER_PRODUCTS * (1 + (size_t)d->vision.deepstack_count) + 7 * (size_t)d->vision.layers;
    p->known = calloc(most, sizeof *p->known);
    if (!p->known) return err_nomem(err, "a profile");
    know_text(p, &e->net);
    if (d->has_vision) know_vision(p, &e->net);
    ASSERT_CMP(p->known_count, <=, most);
    qsort(p->known, p->known_count, sizeof *p->known, by_address);
    return ST_OK;
}

enum status engine_profile_start(struct engine *e, struct err *err)
{
    struct profile *p = e->profile;
    if (!p) return err_set(err, ST_UNSUPPORTED, "the engine was opened without a profile");
    enum status st = p->known ? ST_OK : know_weights(e, p, err);
    for (uint32_t i = 0; i < P_COUNT; i++) p->parts[i] = (struct engine_profile_part){.name = names[i]};
    return st;
}

void engine_profile_read(const struct engine *e, struct engine_profile_part out[ENGINE_PROFILE_PARTS])
{
    ASSERT(e->profile);
    for (uint32_t i = 0; i < P_COUNT; i++) out[i] = e->profile->parts[i];
}
