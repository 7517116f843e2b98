/* Loads a checkpoint and what serves requests from it: weights, tokenizer, chat template, scheduler, cache
 * events. */
#ifndef KVASIR_MODEL_LOAD_H
#define KVASIR_MODEL_LOAD_H

#include "config/base/status.h"
#include "config/options.h"
#include "engine/engine.h"
#include "server/context/model.h"

struct adapters;

/* Whether what model_load reads beside the engine's files can be read: tokenizer, chat template, pooling. A
 * directory without weights may lack them. */
enum status model_load_check(const struct options *o, const char *dir, const struct engine_inspected *engine,
                             struct err *err) KV_MUST_CHECK;
/* Logs its progress. adapters: for cache events. wake: called by the scheduler when it has events. m must be
 * zero, and must be freed even after an error. */
enum status model_load(const struct options *o, const char *dir, struct adapters *adapters,
                       void (*wake)(void *arg), void *arg, struct model *m, struct err *err) KV_MUST_CHECK;
void model_free(struct model *m);

#endif
