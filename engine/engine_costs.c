/* Arithmetic and traffic of a loaded model, for `kvasir bench`. Multiply and add count as 2. */
#include "engine/engine_internal.h"

static double vision_flops(const struct model_desc *m)
{
    const struct desc_vision *v = &m->vision;
    double side = v->image_size / v->patch, s = side * side, c = v->hidden;
    double layer = s * 2 * (4 * c * c + 2 * c * v->ff) + s * s * 4 * c;
    return s * 2 * 3 * v->patch * v->patch * c + v->layers * layer + (double)v->tokens * 2 * c * m->hidden;
}

enum status engine_costs(struct engine *e, struct engine_costs *out, struct err *err)
{
    const struct model_desc *d = &e->desc;
    struct engine_costs c = {.group_count = e->kv.group_count, .threads = e->becaps.threads};
    struct be_ceiling ceiling;
    for (uint32_t g = 0; g < c.group_count; g++) c.groups[g].window = e->kv.groups[g].window;
    for (uint32_t n = 0; n < d->layer_count; n++) {
        const struct desc_layer *l = &d->layers[n];
        const struct layer_weights *w = &e->w.layers[n];
        double q = (double)l->heads * l->head_dim, kv = (double)l->kv_heads * l->head_dim;
        c.linear_flops_per_token += 2 * (double)d->hidden * (q + 2 * kv + q + 3.0 * l->ff);
        c.weight_bytes += (double)(e->ops->weight_bytes(w->qkv) + e->ops->weight_bytes(w->o) + e->ops->weight_bytes(w->glu) +
                                   e->ops->weight_bytes(w->down));
        c.groups[e->kv.layer_group[n]].flops_per_pair += 4 * q;
        c.groups[e->kv.layer_group[n]].bytes_per_key += 2 * kv * (double)be_dtype_bytes(e->plan.act);
    }
    c.head_flops_per_row = 2 * (double)d->hidden * d->vocab;
    c.weight_bytes += (double)e->ops->weight_bytes(e->w.head);
    if (d->has_vision) c.vision_flops = vision_flops(d);
    if (e->ops->ceiling(e->be, &ceiling) != BE_OK)
        return err_set(err, ST_DEVICE, "the machine's ceilings can't be measured: %s", e->ops->last_error(e->be));
    c.matrix_flops = ceiling.matrix_flops;
    c.read_bytes_per_s = ceiling.read_bytes_per_s;
    *out = c;
    return ST_OK;
}
