/* Arithmetic and traffic of a loaded model, for `kvasir bench`. Multiply and add count as 2. */
#include "engine/internal.h"

#include <math.h>

#define SIDE_TYPICAL 1024.0 /* pixels: image side used for a tower that takes any size */

static uint32_t image_side(const struct desc_vision *v)
{
    double unit = (double)v->patch * v->merge, n = rint(SIDE_TYPICAL / unit);
    if (v->image_size) return v->image_size;
    return (uint32_t)((n > 1 ? n : 1) * unit);
}

/* Pairs of patches that see each other in a layer with windows of `window` tokens per side; a frame has side
 * x side tokens. */
static double windowed_pairs(const struct desc_vision *v, uint32_t side)
{
    double per_axis = 0, patches = (double)v->merge * v->merge;
    for (uint32_t at = 0; at < side; at += v->window) {
        double n = side - at < v->window ? side - at : v->window;
        per_axis += n * n;
    }
    return per_axis * per_axis * patches * patches;
}

uint32_t merger_products(const struct net *net, uint32_t part, struct merger_product out[MERGER_PRODUCTS])
{
    const struct desc_vision *v = &net->desc.vision;
    const struct vision_merger_weights *w = part ? &net->w.vision.deepstack[part - 1] : &net->w.vision.merger;
    double side = desc_merge_side(v), wide = side * side * v->hidden, c = net->desc.hidden;
    uint32_t n = 0;
    if (w->conv) out[n++] = (struct merger_product){w->conv, wide * v->merge_conv};
    if (w->conv) wide = v->merge_conv;
    if (w->proj) out[n++] = (struct merger_product){w->proj, wide * v->merge_conv};
    if (w->proj) wide = v->merge_conv;
    double ff = !w->fc2 ? c : v->merge_ff ? v->merge_ff : wide, parts = !part && v->names.merge_up ? 2 : 1;
    out[n++] = (struct merger_product){w->fc1, wide * ff * parts};
    if (w->fc2) out[n++] = (struct merger_product){w->fc2, ff * c};
    return n;
}

static double vision_flops(const struct net *net, uint32_t pixels)
{
    const struct desc_vision *v = &net->desc.vision;
    bool glu = v->mlp == VISION_GLU_SILU || v->mlp == VISION_GLU_GELU;
    double side = pixels / v->patch, s = side * side, c = v->hidden, mats = glu ? 3 : 2;
    double tokens = v->tokens ? v->tokens : s / ((double)v->merge * v->merge);
    double flops = s * 2 * 3 * v->depth * v->patch * v->patch * c;
    if (v->names.class_row) s++;
    for (uint32_t n = 0; n < v->layers; n++) {
        bool windows = v->window && !(v->full_layers[n / 8] >> n % 8 & 1);
        if (v->halve && n == v->halve) { /* attention of four; a product of four rows */
            flops += s * 2 * 4 * c * c + s * 4 * 4 * c + s / 4 * 2 * (4 * c * 4 * v->ff + 4 * v->ff * c);
            s /= 4;
        }
        flops += s * 2 * (4 * c * c + mats * c * v->ff);
        flops += 4 * c * (windows ? windowed_pairs(v, pixels / v->patch / v->merge) : s * s);
    }
    if (v->end != VISION_MERGE) return flops + tokens * 2 * c * net->desc.hidden;
    struct merger_product p[MERGER_PRODUCTS];
    for (uint32_t part = 0; part < 1 + v->deepstack_count; part++)
        for (uint32_t i = 0, n = merger_products(net, part, p); i < n; i++)
            flops += tokens * 2 * p[i].numbers;
    return flops;
}

static double layer_bytes(const struct engine *e, const struct layer_weights *w)
{
    const struct be_weight *all[] = {w->qkv,   w->o,        w->glu,      w->down,       w->router,
                                     w->gates, w->ple_gate, w->token_up, w->shared_gate};
    double n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) n += (double)e->ops->weight_bytes(all[i]);
    return n;
}

enum status engine_costs(struct engine *e, struct engine_costs *out, struct err *err)
{
    const struct model_desc *d = &e->net.desc;
    struct engine_costs c = {.group_count = e->kv.table_groups, .threads = e->becaps.threads};
    struct be_ceiling ceiling;
    for (uint32_t g = 0; g < c.group_count; g++) c.groups[g].window = e->kv.groups[g].window;
    for (uint32_t n = 0; n < d->layer_count; n++) {
        const struct desc_layer *l = &d->layers[n];
        const struct layer_weights *w = &e->net.w.layers[n];
        bool delta = desc_recurrent(l);
        double q = desc_mixed_columns(d, n), gates = delta ? 2.0 * d->delta.value_heads : 0;
        double mlp = l->experts ? (double)l->experts + 3.0 * l->experts_used * l->ff : 3.0 * l->ff;
        mlp += 3.0 * l->shared_ff + 3.0 * d->ple;
        c.linear_flops_per_token += 2 * (double)d->hidden * (desc_in_columns(d, n) + gates + q + mlp);
        if (n >= e->net.prune_layer) {
            c.out_flops_per_token += 2 * (double)d->hidden * (n > e->net.prune_layer ? q + q + mlp : q + mlp);
            if (!delta) c.groups[e->kv.layer_group[n]].out_flops_per_pair += 4 * q;
        }
        c.weight_bytes += layer_bytes(e, w);
        for (uint32_t k = 0; k < l->experts; k++)
            c.expert_bytes +=
                (double)(e->ops->weight_bytes(w->expert_glu[k]) + e->ops->weight_bytes(w->expert_down[k]));
        if (l->experts) {
            c.experts = l->experts;
            c.experts_used = l->experts_used;
        }
        if (delta) {
            c.state_flops_per_token += 8 * q * d->delta.key_dim;
            continue;
        }
        c.groups[e->kv.layer_group[n]].flops_per_pair += 4 * q;
        c.groups[e->kv.layer_group[n]].bytes_per_key +=
            (double)e->ops->kv_layer_bytes(e->be, e->kv.type, l->kv_heads, l->head_dim) / BE_BLOCK_TOKENS;
    }
    if (e->kv.table_groups < e->kv.group_count)
        c.state_bytes = 2 * (double)e->kv.groups[e->kv.table_groups].block_bytes;
    c.head_flops_per_row = 2 * (double)d->hidden * d->vocab;
    c.weight_bytes += (double)e->ops->weight_bytes(e->net.w.head);
    if (d->ple) c.weight_bytes += (double)e->ops->weight_bytes(e->net.w.ple_project);
    if (d->has_vision) {
        c.vision_side = image_side(&d->vision);
        c.vision_flops = vision_flops(&e->net, c.vision_side);
    }
    if (e->ops->ceiling(e->be, &ceiling) != BE_OK)
        return err_set(err, ST_DEVICE, "the machine's ceilings can't be measured: %s",
                       e->ops->last_error(e->be));
    c.matrix_flops = ceiling.matrix_flops;
    c.read_bytes_per_s = ceiling.read_bytes_per_s;
    *out = c;
    return ST_OK;
}
