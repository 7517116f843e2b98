/* A loaded checkpoint: what server/model_load.c opens and every request reads. Immutable once published. */
#ifndef KVASIR_MODEL_H
#define KVASIR_MODEL_H

#include "engine/engine.h"

#include <stdbool.h>

struct model {
    struct engine *engine;
    struct scheduler *sched;
    struct kv_events *events; /* NULL: nobody is told of the cache */
    struct tokenizer *tok;
    struct template *tmpl; /* NULL: the checkpoint has none */
    bool own_prompts;      /* tmpl is the rule of the family's processor: one message, no turns */
    const struct model_info *info;
    struct engine_caps caps;
};

#endif
