/* LoRA adapters that are loaded: --lora, POST /v1/load_lora_adapter. Each is a model of its name, which a
 * request picks. Whoever has one holds a reference: one that is unloaded leaves memory when its last request
 * has ended. Any thread. */
#ifndef KVASIR_ADAPTERS_H
#define KVASIR_ADAPTERS_H

#include "config/base/status.h"
#include "engine/engine.h"

#include <stdatomic.h>

struct context;
struct adapters;

#define LORA_NAME_MAX 128
struct lora {
    struct lora *next;               /* loaded later */
    char name[LORA_NAME_MAX], *path; /* path: as it was given */
    struct adapter *weights;         /* those of equal content share them */
    uint8_t digest[32];              /* of the content */
    char fingerprint[32];            /* the model's, and "_" + 10 hex of the digest */
    uint32_t id;                     /* from 1 on; no other has had it */
    int64_t created;                 /* Unix seconds */
    atomic_uint sequences, running;  /* submitted and not ended; of these those in the running batch */
    uint32_t holders;                /* under the lock, like */
    bool listed;                     /* requests find it */
};

/* max: how many may be loaded. dir: below which adapters_path finds some; NULL: none. */
enum status adapters_create(uint32_t max, const char *dir, struct adapters **out,
                            struct err *err) KV_MUST_CHECK;
void adapters_stop(struct adapters *a); /* before the engine is closed; then none is used any more */
/* Memory to set aside, by the sizes of --lora's files: twice as much, and for each that --lora-dir may bring
 * as much as for the largest of them. */
uint64_t adapters_bytes(const struct options *o);

/* Reads the adapter at `path`: seconds, if it is large. in_place: it takes the place of one of that name.
 * ST_INVALID: the name is taken or is none, or too many are loaded; else errors of adapter_open. */
enum status adapters_load(const struct context *x, struct engine *e, const char *name, const char *path,
                          bool in_place, struct err *err) KV_MUST_CHECK;
bool adapters_unload(struct adapters *a, const char *name); /* false: there is none of that name */
/* "NAME=DIR,..." of --lora, or DIR alone: its last component is the name. */
enum status adapters_load_list(const struct context *x, struct engine *e, const char *list,
                               struct err *err) KV_MUST_CHECK;
/* The directory of that name below that of adapters_create, however it is written, links resolved: owned by
 * the caller. NULL: it is not there, or elsewhere. */
char *adapters_path(const struct adapters *a, const char *name);

struct lora *lora_take(struct adapters *a, const char *name, size_t len); /* NULL: none */
void lora_release(struct adapters *a, struct lora *x);                    /* NULL is fine */
/* The next listed one after x, which it releases; NULL: the first, or none is left. */
struct lora *lora_next(struct adapters *a, struct lora *x);
/* The adapter whose namespace (sched_namespace) this is, by its last bytes: kv_lora. */
bool lora_named(void *adapters, const uint8_t space[32], char name[LORA_NAME_MAX], uint32_t *id);

#endif
