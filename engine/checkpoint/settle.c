/* What of a description only the checkpoint's tensors can tell. See weights.h. */
#include "config/base/log.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/weights.h"

#include <string.h>

/* The tensor STEM.weight of the description; NULL: the files have none. */
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

static bool same_shape(const struct stf_tensor *a, const struct stf_tensor *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0;
}

/* A fine-tune whose config.json still says that logits use the embedding, while its files hold a head of
 * other values: the files count, as in transformers (tie_weights). */
static void settle_tie(struct model_desc *d, const struct stf_files *files)
{
    const struct stf_tensor *head = d->tied ? find_weight(d, files, d->names.head) : NULL,
                            *embed = head ? find_weight(d, files, d->names.embed) : NULL;
    if (!embed || !same_shape(head, embed)) return;
    if (head->dtype == embed->dtype && memcmp(head->data, embed->data, (size_t)head->bytes) == 0) return;
    log_warn("config.json ties the head to the embedding, but %s differs from %s: not tied", head->name,
             embed->name);
    d->tied = false;
}

static void settle_qkv(struct model_desc *d, const struct stf_files *files)
{
    struct desc_vision *v = &d->vision;
    if (!v->qkv_fused || !v->names.q_alone || !find_weight(d, files, v->names.q_alone)) return;
    v->qkv_fused = false;
    v->names.q = v->names.q_alone;
}

void model_desc_settle(struct model_desc *d, const struct stf_files *files)
{
    char name[DESC_NAME_MAX];
    enum desc_experts layout;
    if (files) settle_tie(d, files);
    if (files && d->has_vision) settle_qkv(d, files);
    for (size_t i = 0; files && i < stf_count(files); i++) {
        const struct stf_tensor *t = stf_at(files, i);
        if (!d->canonical(t->name, name) || !model_desc_experts(d, name, t->rank, t->shape, &layout))
            continue;
        d->expert_layout = layout;
        return; /* if others disagree, loading names them */
    }
}
