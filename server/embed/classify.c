/* POST /classify: the probabilities of a classifier's labels, as vLLM answers. */
#include "server/embed/embed.h"
#include "server/embed/pooling.h"

#include "engine/model/model_info.h"

#include <stdlib.h>

struct classify_state {
    bool raw; /* the numbers as they are */
};

static enum status read_body(struct generation *g, json_t *root)
{
    if (!g->ctx->model->pooling->classifier)
        return api_fail(g->e, 400, "unsupported_model", "model",
                        "This model is not a classifier: its architecture is no "
                        "...ForSequenceClassification class.");
    struct classify_state *s = g->dialect_state = calloc(1, sizeof *s);
    if (!s) return gen_nomem(g);
    g->q.pooling = POOL_LAST;
    return embed_activation(g, root, &s->raw) ? ST_INVALID : embed_inputs(g, root, API_CLASSIFY);
}

static void response(struct json_writer *o, struct choice *first)
{
    struct generation *g = first->gen;
    const struct pooling *p = g->ctx->model->pooling;
    const struct classify_state *s = g->dialect_state;
    embed_head(o, g, "classify-", "data");
    for (uint32_t i = 0; i < g->choice_count; i++) {
        char room[24];
        uint32_t rows, best = 0;
        float *v = embed_vectors(g, i, p->width, &rows);
        if (!s->raw) pooling_activate(p->classes, v, p->width);
        for (uint32_t k = 1; k < p->width; k++)
            if (v[k] > v[best]) best = k;
        const char *label = pooling_label(p, best, room);
        jw_put(o, i ? ",{\"index\":%u,\"label\":" : "{\"index\":%u,\"label\":", i);
        if (label) jw_cstring(o, label);
        else jw_text(o, "null");
        jw_put(o, ",\"num_classes\":%u,\"probs\":[", p->width);
        for (uint32_t k = 0; k < p->width; k++) {
            if (k) jw_text(o, ",");
            jw_float32(o, v[k]);
        }
        jw_text(o, "]}");
    }
    embed_tail(o, g);
}

const struct dialect dialect_classify = {
    .kind = GEN_VECTORS, .read = read_body, .source = "input", .response = response};
