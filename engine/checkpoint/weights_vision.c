/* The walk over a vision tower. See weights_internal.h. */
#include "engine/checkpoint/weights_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A norm over a tower's rows. */
static const float *load_norm(struct loader *ld, const char *stem, uint32_t n, const float **bias)
{
    const struct desc_vision *v = &ld->desc->vision;
    const float *weight = load_vector1(ld, stem, n, ".weight", v->hidden, 0);
    *bias = v->rms ? NULL : load_vector1(ld, stem, n, ".bias", v->hidden, 0);
    return weight;
}

/* What lies between the concatenation and the MLP; returns the columns that are left. */
static uint32_t walk_convolution(struct loader *ld, uint32_t wide, struct vision_merger_weights *m)
{
    const struct desc_vision *v = &ld->desc->vision;
    uint32_t cells = desc_merge_side(v) * desc_merge_side(v), out = v->merge_conv;
    if (!out) return wide;
    struct linear_spec conv = {.k = wide,
                               .part_count = 1,
                               .part = {{.stem = v->names.merge_conv, .n = out, .order = ORDER_PLANES}},
                               .bias = v->merge_conv_bias,
                               .head_dim = cells};
    struct named key, *found = NULL;
    if (v->names.merge_conv) found = load_find(ld, v->names.merge_conv, 0, 0, ".weight", &key);
    if (found && found->t->rank == 4) {
        conv.rank = 4;
        memcpy(conv.shape, (uint64_t[]){out, v->hidden, v->merge, v->merge}, 4 * sizeof(uint64_t));
    }
    if (v->names.merge_conv) {
        load_linear(ld, &conv, &m->conv);
        wide = out;
    }
    if (!v->names.merge_proj) return out;
    load_matrix(ld, v->names.merge_proj, 0, wide, out, !v->merge_no_bias, &m->proj);
    m->proj_norm = load_vector1(ld, v->names.merge_proj_norm, 0, ".weight", out, 0);
    m->proj_norm_bias = load_vector1(ld, v->names.merge_proj_norm, 0, ".bias", out, 0);
    return out;
}

/* [tokens, C]: sines and cosines of a token's column, then of its row. */
static const float *sine_places(struct loader *ld, uint32_t c)
{
    const struct desc_vision *v = &ld->desc->vision;
    uint32_t side = v->image_size / v->patch / v->merge, quarter = c / 4;
    uint64_t at = ld->slab_used;
    ld->slab_used += ((uint64_t)side * side * c + 15) / 16 * 16;
    if (ld->inventory || ld->st) return NULL;
    float *out = ld->host + at;
    for (uint32_t i = 0; i < side * side; i++, out += c)
        for (uint32_t k = 0; k < quarter; k++) {
            double turn = 1.0 / pow(10000.0, (double)k / quarter);
            out[k] = (float)sin(i % side * turn);
            out[quarter + k] = (float)cos(i % side * turn);
            out[2 * quarter + k] = (float)sin(i / side * turn);
            out[3 * quarter + k] = (float)cos(i / side * turn);
        }
    return ld->slab + at;
}

static void walk_merger(struct loader *ld, uint32_t n, bool end, const char *norm, const char *fc1,
                        const char *fc2, struct vision_merger_weights *m)
{
    const struct desc_vision *v = &ld->desc->vision;
    const char *up = end ? v->names.merge_up : NULL;
    bool bias = !end || !v->merge_no_bias;
    uint32_t wide = v->hidden * desc_merge_side(v) * desc_merge_side(v);
    m->norm = load_vector1(ld, norm, n, ".weight", wide, 0);
    m->norm_bias = load_vector1(ld, norm, n, ".bias", wide, 0);
    if (end) wide = walk_convolution(ld, wide, m);
    if (end && v->merge_places) m->places = sine_places(ld, wide);
    uint32_t ff = v->merge_ff ? v->merge_ff : wide;
    load_linear(ld,
                &(struct linear_spec){.layer = n,
                                      .k = wide,
                                      .part_count = up ? 2 : 1,
                                      .part = {{fc1, fc2 ? ff : ld->desc->hidden, 0}, {up, ff, 0}},
                                      .bias = bias,
                                      .glu = up != NULL},
                &m->fc1);
    if (fc2)
        load_linear(ld,
                    &(struct linear_spec){.layer = n,
                                          .k = ff,
                                          .part_count = 1,
                                          .part = {{fc2, ld->desc->hidden, 0}},
                                          .bias = bias,
                                          .times = end ? 0 : v->deepstack_scale},
                    &m->fc2);
    if (!end || !v->names.merge_out_norm) return;
    uint64_t width[1] = {ld->desc->hidden};
    float times = v->merge_scale > 0 ? v->merge_scale : 1;
    m->out_norm = load_scaled_vector(ld, v->names.merge_out_norm, 0, ".weight", 1, width, 0, times);
    m->out_norm_bias = load_scaled_vector(ld, v->names.merge_out_norm, 0, ".bias", 1, width, 0, times);
}

/* Bounds of one product's input and output: whole names next to the weight, whose stem may end in
 * ".linear". */
static void walk_bounds(struct loader *ld, uint32_t n, const char *stem, const float *out[2])
{
    static const char *const ends[4] = {".input_min", ".input_max", ".output_min", ".output_max"};
    static const char linear_end[] = ".linear";
    char base[DESC_NAME_MAX];
    size_t len = strlen(stem), tail = sizeof linear_end - 1;
    if (len > tail && strcmp(stem + len - tail, linear_end) == 0) len -= tail;
    snprintf(base, sizeof base, "%.*s", (int)len, stem);
    for (int i = 0; i < 4; i++) {
        const struct stf_tensor *t = load_take(ld, base, n, 0, ends[i], 0, NULL);
        if (!t) return;
        uint64_t at = ld->slab_used + (uint64_t)i % 2;
        ld->slab_used += i % 2 ? 16 : 0; /* 64-byte alignment */
        if (ld->inventory) continue;
        load_before_read(ld);
        (void)stf_to_f32(t, ld->host + at);
        load_after_read(ld, t);
        if (i % 2 == 0) out[i / 2] = ld->slab + at;
    }
}

/* Each product separately, with its bounds. */
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
        load_linear(ld,
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
    enum order order = v->rope_halves ? ORDER_HALVES : v->qk_pairs ? ORDER_PAIRS : ORDER_KEPT;
    struct linear_spec qkv = {.layer = n,
                              .k = c,
                              .part_count = 3,
                              .part = {{v->names.q, c, order}, {v->names.k, c, order}, {v->names.v, c, 0}},
                              .bias = bias && !v->qkv_no_bias,
                              .head_dim = c / v->heads,
                              .rotary = c / v->heads};
    if (v->qkv_fused) {
        qkv.part_count = 1;
        qkv.part[0].n = 3 * c;
    }
    load_linear(ld, &qkv, &l->qkv);
    load_linear(ld,
                &(struct linear_spec){.layer = n,
                                      .k = c,
                                      .part_count = 1,
                                      .part = {{v->names.o, c, 0}},
                                      .bias = bias,
                                      .scale = v->names.scale1},
                &l->o);
    struct linear_spec fc1 = {
        .layer = n, .k = c, .part_count = 1, .part = {{v->names.fc1, v->ff, 0}}, .bias = bias};
    if (v->mlp == VISION_GLU_SILU || v->mlp == VISION_GLU_GELU) {
        fc1.part_count = 2;
        fc1.part[1] = (struct part){.stem = v->names.up, .n = v->ff};
        fc1.glu = true;
    }
    load_linear(ld, &fc1, &l->fc1);
    if (v->mlp == VISION_GLU_GELU_ERF) load_matrix(ld, v->names.up, n, c, v->ff, bias, &l->up);
    load_linear(ld,
                &(struct linear_spec){.layer = n,
                                      .k = v->ff,
                                      .part_count = 1,
                                      .part = {{v->names.fc2, c, 0}},
                                      .bias = bias,
                                      .scale = v->names.scale2},
                &l->fc2);
}

static void walk_vision_layer(struct loader *ld, uint32_t n, struct vision_layer_weights *l)
{
    const struct desc_vision *v = &ld->desc->vision;
    uint32_t c = v->hidden, d = v->qk_norm_all > 0 ? c : c / v->heads;
    l->norm1 = load_norm(ld, v->names.norm1, n, &l->norm1_bias);
    l->norm2 = load_norm(ld, v->names.norm2, n, &l->norm2_bias);
    l->q_norm = load_vector1(ld, v->names.q_norm, n, ".weight", d, 0);
    l->k_norm = load_vector1(ld, v->names.k_norm, n, ".weight", d, 0);
    if (v->rope_halves) {
        load_reorder_vector(ld, l->q_norm, ORDER_HALVES, d);
        load_reorder_vector(ld, l->k_norm, ORDER_HALVES, d);
    }
    l->post_attn = load_vector1(ld, v->names.post_attn, n, ".weight", c, 0);
    l->post_mlp = load_vector1(ld, v->names.post_mlp, n, ".weight", c, 0);
    if (v->clip) walk_clipped(ld, n, l);
    else walk_products(ld, n, l);
}

/* The row, and the table whose first entry is added to it. A GGUF file leaves out dimensions of 1. */
static void walk_class_row(struct loader *ld, uint64_t places, struct vision_weights *w)
{
    const struct desc_vision *v = &ld->desc->vision;
    uint32_t c = v->hidden;
    struct named key, *found = load_find(ld, v->names.class_row, 0, 0, "", &key);
    uint32_t less = found ? 3 - found->t->rank : 0;
    if (less > 2) less = 0;
    w->class_row = load_vector(ld, v->names.class_row, 0, "", 3 - less, &(uint64_t[]){1, 1, c}[less], 0);
    less = less ? 1 : 0;
    w->position = load_vector(ld, v->names.position, 0, "", 3 - less, &(uint64_t[]){1, places, c}[less], 0);
    if (ld->inventory || ld->st) return;
    float *row = ld->host + (w->class_row - ld->slab);
    for (uint32_t i = 0; i < c; i++) row[i] += ld->host[w->position - ld->slab + i];
    w->position += c;
}

/* The patch embedding with its norms, and the positions. */
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
    struct named key, *found = load_find(ld, v->names.patch, 0, 0, ".weight", &key);
    if (v->depth > 1 || (found && found->t->rank == 5)) {
        patch.rank = 5;
        memcpy(patch.shape, (uint64_t[]){c, 3, v->depth, v->patch, v->patch}, 5 * sizeof(uint64_t));
    }
    if (v->channels_last && !(found && found->t->rank == 4)) { /* a GGUF file has planes already */
        patch.rank = 2;
        memcpy(patch.shape, (uint64_t[]){c, k}, 2 * sizeof(uint64_t));
        patch.part[0].order = ORDER_PLANES;
        patch.head_dim = 3;
    }
    w->patch_norm = load_vector1(ld, v->names.patch_norm, 0, ".weight", k, 0);
    w->patch_norm_bias = load_vector1(ld, v->names.patch_norm, 0, ".bias", k, 0);
    if (v->channels_last) {
        load_reorder_vector(ld, w->patch_norm, ORDER_PLANES, k);
        load_reorder_vector(ld, w->patch_norm_bias, ORDER_PLANES, k);
    }
    load_linear(ld, &patch, &w->patch);
    if (v->names.class_row) walk_class_row(ld, side * side + 1ull, w);
    else if (v->position)
        w->position =
            load_vector(ld, v->names.position, 0, ".weight", 2, (uint64_t[]){(uint64_t)side * side, c}, 0);
    if (v->position_axis) {
        uint64_t n = v->position_axis;
        w->position = load_vector(ld, v->names.position, 0, "", 3,
                                  v->position_pairs ? (uint64_t[]){n, 2, c} : (uint64_t[]){2, n, c}, 0);
    }
    w->dense_norm = load_vector1(ld, v->names.dense_norm, 0, ".weight", c, 0);
    w->dense_norm_bias = load_vector1(ld, v->names.dense_norm, 0, ".bias", c, 0);
    w->position_norm = load_vector1(ld, v->names.position_norm, 0, ".weight", c, 0);
    w->position_norm_bias = load_vector1(ld, v->names.position_norm, 0, ".bias", c, 0);
}

static const float *ones(struct loader *ld, uint32_t n)
{
    uint64_t at = ld->slab_used;
    ld->slab_used += (n + 15ull) / 16 * 16;
    if (ld->inventory || ld->st) return NULL;
    for (uint32_t i = 0; i < n; i++) ld->host[at + i] = 1;
    return ld->slab + at;
}

/* What makes one row of 2 x 2. */
static void walk_halve(struct loader *ld, struct vision_layer_weights *l)
{
    const struct desc_vision *v = &ld->desc->vision;
    uint32_t c = v->hidden;
    l->norm1 = load_norm(ld, v->names.halve_norm1, 0, &l->norm1_bias);
    l->norm2 = load_vector1(ld, v->names.halve_norm2, 0, ".weight", 4 * c, 0);
    l->norm2_bias = load_vector1(ld, v->names.halve_norm2, 0, ".bias", 4 * c, 0);
    load_linear(ld,
                &(struct linear_spec){
                    .k = c,
                    .part_count = 3,
                    .part = {{v->names.halve_q, c, 0}, {v->names.halve_k, c, 0}, {v->names.halve_v, c, 0}},
                    .bias = true},
                &l->qkv);
    load_matrix(ld, v->names.halve_o, 0, c, c, true, &l->o);
    load_matrix(ld, v->names.halve_fc1, 0, 4 * c, 4 * v->ff, true, &l->fc1);
    load_matrix(ld, v->names.halve_fc2, 0, 4 * v->ff, c, true, &l->fc2);
}

void load_vision(struct loader *ld, struct vision_weights *w)
{
    const struct desc_vision *v = &ld->desc->vision;
    uint32_t c = v->hidden;
    walk_patches(ld, w);
    for (uint32_t n = 0; n < v->layers; n++) walk_vision_layer(ld, n, &w->layers[n]);
    if (v->halve) walk_halve(ld, &w->halve);
    w->pre_norm = load_norm(ld, v->names.pre_norm, 0, &w->pre_norm_bias);
    w->post_norm = load_norm(ld, v->names.post_norm, 0, &w->post_norm_bias);
    if (v->rms && v->post_layer_norm)
        w->post_norm_bias = load_vector1(ld, v->names.post_norm, 0, ".bias", v->hidden, 0);
    if (v->end == VISION_MERGE) {
        w->merger.pre_norm = load_norm(ld, v->names.merge_pre_norm, 0, &w->merger.pre_norm_bias);
        walk_merger(ld, 0, true, v->names.merge_norm, v->names.merge_fc1, v->names.merge_fc2, &w->merger);
        for (uint32_t k = 0; k < v->deepstack_count; k++)
            walk_merger(ld, k, false, v->names.deepstack_norm, v->names.deepstack_fc1, v->names.deepstack_fc2,
                        &w->deepstack[k]);
        return;
    }
    w->std_bias = load_vector1(ld, v->names.std_bias, 0, "", c, 0);
    w->std_scale = load_vector1(ld, v->names.std_scale, 0, "", c, 0);
    if (v->end == VISION_LINEAR) {
        load_matrix(ld, v->names.project, 0, c, ld->desc->hidden, true, &w->projection);
        return;
    }
    w->soft_norm = v->names.soft_norm ? load_vector1(ld, v->names.soft_norm, 0, ".weight", c,
                                                     ld->desc->norm_plus_one ? 1.0f : 0.0f)
                                      : ones(ld, c);
    bool whole = v->names.projection != NULL;
    load_linear(
        ld,
        &(struct linear_spec){.k = c,
                              .part_count = 1,
                              .part = {{whole ? v->names.projection : v->names.project, ld->desc->hidden, 0}},
                              .whole_name = whole,
                              .transposed = whole},
        &w->projection);
}
