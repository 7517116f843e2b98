/* Dispatch from a configuration to the file of its family. See model_desc.h. */
#include "engine/model_desc.h"

#include <stdlib.h>

_Static_assert(MODEL_EOS_MAX >= HF_EOS_MAX, "every stop id of a configuration fits");

enum status model_describe(const struct hf_config *config, struct model_desc *out, struct err *err)
{
    switch (config->family) {
    case HF_GEMMA3:
        return gemma3_describe(config, out, err);
    }
    return err_set(err, ST_UNSUPPORTED, "model_type %s: no such family", config->model_type);
}

void model_desc_free(struct model_desc *d)
{
    free(d->layers);
    *d = (struct model_desc){0};
}
