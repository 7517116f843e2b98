/* Several models: with which flags each one's server is started, and how much memory its plan takes. Before
 * the event loop. */
#ifndef KVASIR_FRONT_SPEC_H
#define KVASIR_FRONT_SPEC_H

#include "config/options.h"

struct front_spec {
    char *name, *dir, *loras;  /* loras: "NAME=DIR,..." of --lora, or NULL */
    char **args;               /* after `serve`, up to a NULL */
    size_t count, cap;         /* of args */
    uint64_t bytes, own_bytes; /* of its plan; those without KV and caches */
};
struct front_specs {
    struct front_spec *at;
    size_t count;
    uint64_t budget; /* --models-memory, never auto */
};

/* Of o->models, whose files are found (or downloaded) and inspected. ST_INVALID, ST_NOMEM: over the budget;
 * and what model_find and engine_inspect say. *out is to free in any case. */
enum status front_specs_make(const struct options *o, struct front_specs *out, struct err *err);
void front_specs_free(struct front_specs *s);

#endif
