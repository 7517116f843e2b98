/* From a checkpoint to what serves requests: weights, tokenizer, chat template, scheduler, cache events. */
#ifndef KVASIR_MODEL_LOAD_H
#define KVASIR_MODEL_LOAD_H

#include "config/base/status.h"
#include "config/options.h"
#include "server/http/model.h"

/* What the flags say about the engine. */
struct engine_options server_engine_options(const struct options *o, const char *model_dir);
/* Shows its progress in the log. wake: the scheduler's, whenever it has events. m is zero, and is to be freed
 * in any case. */
enum status model_load(const struct options *o, const char *dir, void (*wake)(void *arg), void *arg,
                       struct model *m, struct err *err) KV_MUST_CHECK;
void model_free(struct model *m);

#endif
