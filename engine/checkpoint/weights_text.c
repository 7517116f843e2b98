/* The walk over a decoder, a draft model, and their experts. See weights_internal.h. */
#include "engine/checkpoint/weights_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- experts ---- */

/* One expert's matrix out of a tensor that holds all of them. `part` of a [k, n0 + n1] slice (stored inputs
 * first) is a range of every row, which weight_pack can't stride over: it is copied out. */
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
        ld->st = err_nomem(ld->err, f->t->name);
        return NULL;
    }
    if (!f->in_out) memcpy(*copy, from, bytes);
    else
        for (uint32_t r = 0; r < f->k; r++)
            memcpy((char *)*copy + r * row, from + (size_t)r * f->width * f->elem, row);
    return *copy;
}

/* Expert e of [experts, ..] and of its scales, as one matrix. */
struct slices {
    struct stf_tensor weight, scales;
};

static struct stf_tensor slice_of(const struct stf_tensor *t, uint32_t e)
{
    struct stf_tensor one = *t;
    one.rank = 2;
    one.bytes /= t->shape[0];
    one.data = (const char *)t->data + e * one.bytes;
    one.shape[0] = t->shape[1];
    one.shape[1] = t->shape[2];
    return one;
}

static const struct stf_tensor *find_slice(void *arg, const char *suffix)
{
    const struct slices *s = arg;
    return strcmp(suffix, ".weight") == 0             ? &s->weight
           : strcmp(suffix, ".weight_scale_inv") == 0 ? &s->scales
                                                      : NULL;
}

/* All experts' matrices of `parts` outputs each, from one tensor; glu: two parts. */
static void walk_fused(struct loader *ld, uint32_t layer, const char *name, uint32_t experts, uint32_t k,
                       uint32_t parts, uint32_t n, struct be_weight **out)
{
    bool in_out = ld->desc->expert_layout == EXPERTS_IN_OUT;
    uint64_t wide = (uint64_t)parts * n, shape[3] = {experts, in_out ? k : wide, in_out ? wide : k};
    const struct stf_tensor *scales = NULL, *t = load_take_fp8(ld, name, layer, shape, &scales);
    if (!t) t = load_take(ld, name, layer, 0, "", 3, shape);
    if (!t) return;
    if (ld->inventory) {
        struct quant_rows rows;
        struct be_quant kind;
        bool as_quants = load_quant_of(ld, t, NULL, k, &rows, &kind);
        if (as_quants) load_note_quants(ld, &rows);
        ld->inventory->memory_bytes += load_kept_bytes(ld, as_quants ? &kind : NULL, experts * wide, k);
        return;
    }
    load_before_read(ld);
    struct quant_rows rows[2];
    struct be_quant kinds[2];
    bool quants = load_quant_of(ld, t, NULL, k, &rows[0], &kinds[0]) &&
                  load_quant_of(ld, t, NULL, k, &rows[1], &kinds[1]);
    bool blocks = t->dtype == STF_GGML;
    enum be_dtype type = blocks || scales ? ld->format.act : load_be_type(t->dtype);
    size_t elem = be_dtype_bytes(type);
    char *floats = blocks && !quants ? load_floats(ld, t, NULL) : NULL;
    const char *data = floats ? floats : t->data;
    for (uint32_t e = 0; e < experts && !ld->st; e++) {
        struct slices at;
        struct packed packed;
        if (scales) {
            at = (struct slices){slice_of(t, e), slice_of(scales, e)};
            ld->st = packed_open(find_slice, &at, &ld->desc->packing, (uint32_t)shape[1], (uint32_t)shape[2],
                                 &packed, ld->err);
        }
        char *own = scales && !quants && !ld->st ? load_floats(ld, &at.weight, &packed) : NULL;
        struct fused f = {t, own ? own : data + (size_t)e * wide * k * elem, k, (uint32_t)wide, elem, in_out};
        struct be_weight_desc d = {.k = k, .src_count = parts, .grouped = true, .glu = parts == 2};
        void *copies[2] = {NULL};
        for (uint32_t p = 0; p < parts && !ld->st; p++) {
            d.src[p] = (struct be_weight_src){.dtype = type, .transposed = in_out, .n = n};
            if (quants) {
                d.src[p].dtype = BE_QUANT;
                d.src[p].quants = &kinds[p];
                rows[p].packed = scales ? &packed : NULL;
                rows[p].width = in_out ? (uint32_t)wide : 0;
                rows[p].data = (const char *)t->data + e * (t->bytes / experts);
                rows[p].first = p * n;
            } else {
                d.src[p].data = fused_part(ld, &f, p * n, n, &copies[p]);
            }
        }
        if (!ld->st) load_pack(ld, &d, &t, 0, &out[e]);
        free(copies[0]);
        free(copies[1]);
        free(own);
    }
    free(floats);
    if (!ld->st && scales) load_after_read(ld, scales);
    if (!ld->st) load_after_read(ld, t);
}

/* Whether the matrix becomes quants. */
static bool becomes_quants(struct loader *ld, const char *stem, uint32_t layer, uint32_t expert,
                           const char *suffix, uint32_t n, uint32_t k)
{
    struct packed p;
    struct quant_rows rows;
    struct be_quant kind;
    struct err ignored;
    struct packed_at at = {ld, stem, layer, expert};
    struct named key, *m = load_find(ld, stem, layer, expert, suffix, &key);
    bool packed = packed_open(load_find_packed, &at, &ld->desc->packing, n, k, &p, &ignored) == ST_OK;
    if (!packed && !m) return ld->files == NULL;
    return load_quant_of(ld, packed ? p.t[0] : m->t, packed ? &p : NULL, k, &rows, &kind);
}

/* All matrices of a layer's experts are of one kind: quants if they all can be. */
static bool experts_as_quants(struct loader *ld, uint32_t n)
{
    const struct desc_names *a = &ld->desc->names;
    const struct desc_layer *l = &ld->desc->layers[n];
    uint32_t c = ld->desc->hidden, ff = l->ff;
    if (c % MADE_SPAN || ff % MADE_SPAN) return false;
    if (ld->desc->expert_layout != EXPERTS_EACH)
        return becomes_quants(ld, a->expert_gate_up, n, 0, "", 2 * ff, c) &&
               becomes_quants(ld, a->expert_down_all, n, 0, "", c, ff);
    bool all = true;
    for (uint32_t e = 0; e < l->experts && all; e++)
        all = becomes_quants(ld, a->expert_gate, n, e, ".weight", ff, c) &&
              becomes_quants(ld, a->expert_up, n, e, ".weight", ff, c) &&
              becomes_quants(ld, a->expert_down, n, e, ".weight", c, ff);
    return all;
}

static void walk_experts(struct loader *ld, uint32_t n, struct layer_weights *w)
{
    const struct desc_names *a = &ld->desc->names;
    const struct desc_layer *l = &ld->desc->layers[n];
    uint32_t c = ld->desc->hidden;
    ld->floats = true; /* routing depends on it */
    load_matrix(ld, a->router, n, c, l->experts, false, &w->router);
    ld->floats = false;
    if (!ld->inventory && !ld->st) {
        w->expert_glu = calloc(l->experts, sizeof *w->expert_glu);
        w->expert_down = calloc(l->experts, sizeof *w->expert_down);
        if (!w->expert_glu || !w->expert_down)
            ld->st = err_set(ld->err, ST_NOMEM, "out of memory for %u experts", l->experts);
    }
    ld->floats = !experts_as_quants(ld, n);
    ld->alike = true;
    if (ld->desc->expert_layout != EXPERTS_EACH) {
        walk_fused(ld, n, a->expert_gate_up, l->experts, c, 2, l->ff, w->expert_glu);
        walk_fused(ld, n, a->expert_down_all, l->experts, l->ff, 1, c, w->expert_down);
        ld->floats = ld->alike = false;
        return;
    }
    for (uint32_t e = 0; e < l->experts && !ld->st; e++) {
        struct be_weight *none = NULL;
        load_linear(ld,
                    &(struct linear_spec){.layer = n,
                                          .expert = e,
                                          .k = c,
                                          .part_count = 2,
                                          .part = {{a->expert_gate, l->ff}, {a->expert_up, l->ff}},
                                          .glu = true},
                    ld->inventory ? &none : &w->expert_glu[e]);
        load_linear(ld,
                    &(struct linear_spec){
                        .layer = n, .expert = e, .k = l->ff, .part_count = 1, .part = {{a->expert_down, c}}},
                    ld->inventory ? &none : &w->expert_down[e]);
    }
    ld->floats = ld->alike = false;
}

/* The tensors of an MLP parallel to the experts. */
static void walk_shared_ff(struct loader *ld, uint32_t n, struct layer_weights *w)
{
    const struct desc_names *a = &ld->desc->names;
    const struct desc_layer *l = &ld->desc->layers[n];
    uint32_t c = ld->desc->hidden;
    w->router_norm =
        load_scaled_vector(ld, a->router_norm, n, "", 1, (uint64_t[]){c}, 0, (float)(1 / sqrt((double)c)));
    w->router_scale = load_vector1(ld, a->router_scale, n, "", l->experts, 0);
    w->expert_norm = load_vector1(ld, a->expert_norm, n, ".weight", c, 0);
    w->experts_norm = load_vector1(ld, a->experts_norm, n, ".weight", c, 0);
    w->shared_norm = load_vector1(ld, a->shared_norm, n, ".weight", c, 0);
    if (!a->shared_gate) return;
    struct named key, *m = load_find(ld, a->shared_gate, n, 0, ".weight", &key);
    struct linear_spec gate = {.layer = n, .k = c, .part_count = 1, .part = {{a->shared_gate, 1}}};
    if (m && m->t->rank == 1) { /* a GGUF file */
        gate.rank = 1;
        gate.shape[0] = c;
    }
    ld->floats = true;
    load_linear(ld, &gate, &w->shared_gate);
    ld->floats = false;
}

/* ---- per-layer embeddings ---- */

/* The table is read later, row by row: it counts as parameters and for the identity, and takes no memory. */
static void walk_table(struct loader *ld, const char *stem, uint64_t cols, struct row_table *out)
{
    const struct model_desc *d = ld->desc;
    struct weights_inventory before = {0};
    if (ld->inventory) before = *ld->inventory;
    const struct stf_tensor *t = load_take(ld, stem, 0, 0, ".weight", 2, (uint64_t[]){d->vocab, cols});
    if (!t) return;
    if (ld->inventory) {
        ld->inventory->read_bytes = before.read_bytes;
        ld->inventory->tensor_bytes_max = before.tensor_bytes_max;
        ld->inventory->count = before.count;
        return;
    }
    out->row = *t;
    out->row.rank = 1;
    out->row.shape[0] = cols;
    out->row.bytes = t->bytes / d->vocab;
    out->stride = (size_t)out->row.bytes;
    if (ld->files) {
        load_digest(ld, t);
        return;
    }
    out->stride = 0;
    out->owned = malloc((size_t)out->row.bytes);
    if (!out->owned) ld->st = err_nomem(ld->err, "random weights");
    else out->row.data = memcpy(out->owned, ld->random_values, (size_t)out->row.bytes);
}

static void walk_ple(struct loader *ld, struct weights *w)
{
    const struct model_desc *d = ld->desc;
    load_matrix(ld, d->names.ple_project, 0, d->hidden, d->layer_count * d->ple, false, &w->ple_project);
    w->token_norm = load_scaled_vector(ld, d->names.token_norm, 0, ".weight", 1, (uint64_t[]){d->ple}, 0,
                                       0.70710678118654752f);
    walk_table(ld, d->names.ple_table, (uint64_t)d->layer_count * d->ple, &w->ple_table);
}

static void walk_token_layer(struct loader *ld, uint32_t n, struct layer_weights *w)
{
    const struct model_desc *d = ld->desc;
    uint32_t p = d->ple;
    load_matrix(ld, d->names.ple_gate, n, d->hidden, p, false, &w->ple_gate);
    load_matrix(ld, d->names.token_up, n, p, d->hidden, false, &w->token_up);
    w->token_post_norm = load_vector1(ld, d->names.token_post_norm, n, ".weight", d->hidden, 0);
}

/* ---- keys without their bias ---- */

#define KEY_SHIFT_POSITIONS 8192.0

/* Softmax is invariant to a vector subtracted from every key of a sequence, but rounding is not: if keys have
 * a bias of 100, bf16 leaves little of their differences. Subtracted is the mean of the bias as rotated at
 * the positions up to KEY_SHIFT_POSITIONS: for slowly rotating pairs nearly all of it, for fast ones nothing.
 * Keys far after those positions gain less, from about four times as far nothing. NULL: no bias, or it is not
 * the last operation on a key before softmax. Effect: docs/performance.md. */
static const float *load_key_shift(struct loader *ld, uint32_t n)
{
    const struct desc_layer *l = &ld->desc->layers[n];
    const struct desc_rope *r = &ld->desc->ropes[l->rope];
    uint32_t d = l->head_dim, half = d / 2, count = l->kv_heads * d;
    struct named key, *bias;
    if (!l->qkv_bias || ld->desc->names.k_norm || l->softcap > 0 || r->dim != d || half > 1024 ||
        ld->desc->qk_pairs)
        return NULL;
    uint64_t at = ld->slab_used;
    ld->slab_used += (count + 15) / 16 * 16;
    if (ld->inventory || ld->st || !ld->files) return NULL;
    bias = load_find(ld, ld->desc->names.k, n, 0, ".bias", &key);
    if (!bias) return NULL; /* load_linear() rejected it */
    float freq[1024], *out = ld->host + at;
    desc_rope_frequencies(r, freq);
    (void)stf_to_f32(bias->t, out);
    for (uint32_t i = 0; i < count; i += i % d == half - 1 ? half + 1 : 1) {
        double turn = KEY_SHIFT_POSITIONS * (double)freq[i % d], c = 1, s = 0, a = (double)out[i],
               b = (double)out[i + half];
        if (turn > 1e-6) {
            c = sin(turn) / turn;
            s = (1 - cos(turn)) / turn;
        }
        if (r->attention > 0) {
            c *= r->attention;
            s *= r->attention;
        }
        out[i] = (float)(a * c - b * s);
        out[i + half] = (float)(b * c + a * s);
    }
    return ld->slab + at;
}

/* ---- mixers ---- */

static void walk_attention(struct loader *ld, uint32_t n, struct layer_weights *w)
{
    const struct model_desc *d = ld->desc;
    const struct desc_names *a = &d->names;
    const struct desc_layer *l = &d->layers[n];
    uint32_t c = d->hidden, q = l->heads * l->head_dim, kv = l->kv_heads * l->head_dim;
    bool own = desc_owns_keys(d, n);
    float plus = d->norm_plus_one ? 1.0f : 0.0f;
    enum order order = d->qk_pairs ? ORDER_PAIRS : ORDER_KEPT;
    load_linear(
        ld,
        &(struct linear_spec){.layer = n,
                              .k = c,
                              .part_count = !own          ? 1
                                            : l->v_from_k ? 2
                                                          : 3,
                              .part = {{a->q, l->gated ? 2 * q : q, order}, {a->k, kv, order}, {a->v, kv}},
                              .head_dim = l->head_dim,
                              .rotary = d->ropes[l->rope].dim,
                              .bias = l->qkv_bias},
        &w->qkv);
    w->q_norm = load_vector1(ld, a->q_norm, n, ".weight", d->qk_norm_all ? q : l->head_dim, plus);
    if (own) w->k_norm = load_vector1(ld, a->k_norm, n, ".weight", d->qk_norm_all ? kv : l->head_dim, plus);
    if (own) w->k_shift = load_key_shift(ld, n);
    load_matrix(ld, a->o, n, q, c, l->o_bias, &w->o);
}

/* [C, 1, K], in GGUF files [C, K] -> [K, C] */
static const float *load_conv(struct loader *ld, uint32_t n)
{
    uint32_t c = desc_conv_columns(ld->desc), k = ld->desc->delta.conv_k;
    struct named key, *m = load_find(ld, ld->desc->names.conv, n, 0, ".weight", &key);
    uint64_t flat[2] = {c, k}, shape[3] = {c, 1, k};
    bool two = m && m->t->rank == 2;
    const float *v = load_vector(ld, ld->desc->names.conv, n, ".weight", two ? 2 : 3, two ? flat : shape, 0);
    if (!v || ld->inventory || ld->st) return v;
    float *host = ld->host + (v - ld->slab), *copy = malloc((size_t)c * k * sizeof *copy);
    if (!copy) {
        ld->st = err_nomem(ld->err, "a convolution");
        return NULL;
    }
    memcpy(copy, host, (size_t)c * k * sizeof *copy);
    for (uint32_t i = 0; i < c; i++)
        for (uint32_t j = 0; j < k; j++) host[(size_t)j * c + i] = copy[(size_t)i * k + j];
    free(copy);
    return v;
}

static void walk_delta(struct loader *ld, uint32_t n, struct layer_weights *w)
{
    const struct desc_names *a = &ld->desc->names;
    const struct desc_delta *g = &ld->desc->delta;
    uint32_t c = ld->desc->hidden, columns = desc_conv_columns(ld->desc),
             values = g->value_heads * g->value_dim;
    load_linear(
        ld,
        &(struct linear_spec){
            .layer = n, .k = c, .part_count = 2, .part = {{a->delta_qkv, columns}, {a->delta_z, values}}},
        &w->qkv);
    bool floats = ld->floats;
    ld->floats = true; /* small, and a state's decay depends on it */
    load_linear(
        ld,
        &(struct linear_spec){.layer = n,
                              .k = c,
                              .part_count = 2,
                              .part = {{a->delta_beta, g->value_heads}, {a->delta_a, g->value_heads}}},
        &w->gates);
    ld->floats = floats;
    w->conv = load_conv(ld, n);
    w->decay = load_vector1(ld, a->delta_decay, n, "", g->value_heads, 0);
    w->dt_bias = load_vector1(ld, a->delta_dt_bias, n, "", g->value_heads, 0);
    w->delta_norm = load_vector1(ld, a->delta_norm, n, ".weight", g->value_dim, 0);
    for (uint32_t i = 0; w->decay && !ld->inventory && !ld->st && !g->decay_plain && i < g->value_heads;
         i++) {
        float *decay = ld->host + (w->decay - ld->slab) + i;
        *decay = -expf(*decay);
    }
    load_matrix(ld, a->delta_out, n, values, c, false, &w->o);
}

static void walk_short_conv(struct loader *ld, uint32_t n, struct layer_weights *w)
{
    const struct desc_names *a = &ld->desc->names;
    uint32_t c = ld->desc->hidden;
    bool bias = ld->desc->delta.conv_bias;
    load_matrix(ld, a->delta_qkv, n, c, 3 * c, bias, &w->qkv);
    w->conv = load_conv(ld, n);
    if (bias) w->conv_bias = load_vector1(ld, a->conv, n, ".bias", c, 0);
    load_matrix(ld, a->delta_out, n, c, c, bias, &w->o);
}

/* ---- the walk ---- */

static void walk_layer(struct loader *ld, uint32_t n, struct layer_weights *w)
{
    const struct model_desc *d = ld->desc;
    const struct desc_names *a = &d->names;
    const struct desc_layer *l = &d->layers[n];
    uint32_t c = d->hidden, ff = l->experts ? l->shared_ff : l->ff;
    float plus = d->norm_plus_one ? 1.0f : 0.0f;
    w->input_norm = load_vector1(ld, a->input_norm, n, ".weight", c, plus);
    if (l->mixer == MIXER_DELTA) walk_delta(ld, n, w);
    else if (l->mixer == MIXER_CONV) walk_short_conv(ld, n, w);
    else walk_attention(ld, n, w);
    w->post_attn_norm = load_vector1(ld, a->post_attn_norm, n, ".weight", c, plus);
    w->pre_mlp_norm = load_vector1(ld, a->pre_mlp_norm, n, ".weight", c, plus);
    if (l->experts) walk_experts(ld, n, w);
    if (l->shared_ff) walk_shared_ff(ld, n, w);
    if (ff) {
        struct linear_spec glu = {.layer = n,
                                  .k = c,
                                  .part_count = 2,
                                  .part = {{a->gate, ff}, {a->up, ff}},
                                  .glu = true,
                                  .bias = l->mlp_bias};
        for (uint32_t i = 0; a->gate_up && i < 2; i++)
            glu.part[i] = (struct part){.stem = a->gate_up, .n = ff, .first = i * ff, .of = 2 * ff};
        load_linear(ld, &glu, &w->glu);
        load_matrix(ld, a->down, n, ff, c, l->mlp_bias, &w->down);
    }
    w->post_mlp_norm = load_vector1(ld, a->post_mlp_norm, n, ".weight", c, plus);
    if (d->ple) walk_token_layer(ld, n, w);
    w->layer_scale = load_vector1(ld, a->layer_scale, n, "", 1, 0);
}

/* The tokens of each cluster: ids, not weights. Without files the tokens are in order. */
static void walk_clusters(struct loader *ld, struct weights *w)
{
    const struct model_desc *d = ld->desc;
    struct named key, *m = load_find(ld, d->names.clusters, 0, 0, "", &key);
    if (ld->st) return;
    if (ld->files && (!m || m->t->dtype != STF_I64 || m->t->rank != 1 || m->t->shape[0] != d->vocab)) {
        ld->st = err_set(ld->err, ST_FORMAT, "the drafter has no tensor %s of %u numbers (I64)",
                         d->names.clusters, d->vocab);
        return;
    }
    if (m) m->used = true;
    if (ld->inventory) return;
    w->clusters = malloc(d->vocab * sizeof *w->clusters);
    if (!w->clusters) ld->st = err_nomem(ld->err, "the clusters of the head");
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
    load_matrix(ld, d->names.draft_in, 0, 2 * wide, c, false, &w->draft_in);
    if (d->own_keys) {
        float plus = d->norm_plus_one ? 1.0f : 0.0f;
        w->embed_norm = load_vector1(ld, d->names.embed_norm, 0, ".weight", c, plus);
        w->hidden_norm = load_vector1(ld, d->names.hidden_norm, 0, ".weight", c, plus);
        return;
    }
    load_matrix(ld, d->names.draft_out, 0, c, wide, false, &w->draft_out);
    if (!d->centroids) {
        load_matrix(ld, head, 0, c, d->vocab, false, &w->head);
        return;
    }
    load_matrix(ld, d->names.centroids, 0, c, d->centroids, false, &w->centroids);
    walk_table(ld, head, c, &w->head_rows);
    walk_clusters(ld, w);
}

void load_walk(struct loader *ld, struct weights *w)
{
    const struct model_desc *d = ld->desc;
    ld->fine = true;
    if (d->drafts_for) walk_drafter(ld, w);
    else load_matrix(ld, d->names.embed, 0, d->hidden, d->vocab, false, &w->embed);
    ld->fine = false;
    if (d->ple) walk_ple(ld, w);
    for (uint32_t n = 0; n < d->layer_count && !ld->st; n++) walk_layer(ld, n, &w->layers[n]);
    w->final_norm = load_scaled_vector(ld, d->names.final_norm, 0, ".weight", 1, (uint64_t[]){d->hidden},
                                       d->norm_plus_one ? 1.0f : 0.0f, d->logit_scale ? d->logit_scale : 1);
    ld->fine = true;
    if (d->tied && !d->drafts_for) w->head = w->embed;
    else if (!d->drafts_for) load_matrix(ld, d->names.head, 0, d->hidden, d->vocab, false, &w->head);
    ld->floats = ld->format.float_vision;
    ld->tower = true;
    if (d->has_vision) load_vision(ld, &w->vision);
}
