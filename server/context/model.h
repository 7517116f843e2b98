/* A loaded checkpoint: what server/model_load.c opens and every request reads. Immutable once published. */
#ifndef KVASIR_MODEL_H
#define KVASIR_MODEL_H

#include "engine/engine.h"

#include <stdbool.h>

struct model {
    struct engine *engine;
    struct scheduler *sched;
    struct kv_events *events; /* NULL: cache events are off */
    struct tokenizer *tok;
    struct template *tmpl;   /* NULL: none in the checkpoint */
    struct template *pairs;  /* of rerank and score; NULL: tmpl */
    bool bare_pairs;         /* it only joins them */
    struct pooling *pooling; /* of embeddings and scores: server/embed/pooling.h */
    uint32_t embedding_width;
    bool own_prompts; /* tmpl is the family processor's prompt format: one message, no turns */
    const struct model_info *info;
    struct engine_caps caps;
};

#endif
