/* What requests are read, prepared and run with, whatever brought them: the options, the model, and what
 * requests share. One per process, in struct server, which fills it before the first request; everyone else
 * has it const. */
#ifndef KVASIR_CONTEXT_H
#define KVASIR_CONTEXT_H

#include "config/options.h"
#include "server/context/model.h"

#include <stddef.h>

struct adapters; /* server/context/adapters.h */
struct lora;

struct context {
    const struct options *opt;    /* borrowed */
    const struct model *model;    /* NULL until loaded */
    char *model_dir, *model_name; /* the first name; the others follow its NUL */
    const char *model_names_end;
    /* any thread: */
    struct image_hash_cache *image_hashes;       /* file hash -> content keys */
    struct grammars *grammars;                   /* compiled ones */
    const struct grammar_memory *grammar_memory; /* their memory */
    struct response_store *responses;            /* for /v1/responses */
    struct local_dir *media_dir;                 /* --allowed-media-dir, or NULL */
    struct fetcher *fetcher;                     /* --allow-remote-media, or NULL */
    struct adapters *adapters;                   /* LoRA: further models */
    struct receipt_key *receipt_key;             /* --receipt-key, or NULL */
    struct request_log *request_log;             /* --request-log, or NULL */
};

/* "a, b" -> "a\0b\0", in place; returns its end. If it is not a list: one name, whatever it contains. */
const char *model_names_split(char *names, bool list);
const char *model_name_find(const struct context *x, const char *name, size_t len); /* ours; NULL: none */

/* Over all models: the base model's names, then the adapters. Starts from zeros, and goes on to the end. */
struct model_iter {
    const char *name;
    struct lora *lora; /* NULL: the base model */
};
bool models_next(const struct context *x, struct model_iter *it);

#endif
