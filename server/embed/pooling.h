/* How a checkpoint's embeddings and relevance scores are made, as its files for sentence-transformers say:
 * modules.json (pooling, normalisation, the tokens of a score), config_sentence_transformers.json (prompts by
 * name); or the keys and layers of a GGUF file. Immutable after loading. */
#ifndef KVASIR_POOLING_H
#define KVASIR_POOLING_H

#include "config/base/status.h"
#include "engine/model/model_info.h"
#include "scheduler/scheduler.h"

#include <jansson.h>

#define POOLING_DENSE_MAX 4u

/* A linear layer on the pooled vector, or on each of them. */
struct dense {
    uint32_t in, out;
    bool tanh;
    float *weight, *bias; /* [in, out], [out]; owned */
};
/* What becomes of a classifier's numbers. */
enum activation { ACTIVATION_NONE = 0, ACTIVATION_SIGMOID, ACTIVATION_SOFTMAX };
struct pooling {
    enum sched_pooling kind; /* without modules.json: the last token's; with model_retrieval.vectors: all */
    uint32_t width;          /* of an embedding */
    struct dense dense[POOLING_DENSE_MAX];
    uint32_t dense_count, width_max; /* width_max: of the longest vector on the way */
    double *scratch;                 /* [width_max], of pooling_project */
    bool normalize;                  /* to length 1; without modules.json too */
    char unsupported[64];            /* a module that is not computed: no embeddings; "" = none */
    bool scores;                     /* a LogitScore module: the next fields */
    int64_t true_id, false_id;
    bool classifier; /* the last token's vector, by `score`: width numbers, of which the next fields tell */
    enum activation classes, score; /* to probabilities, and to a relevance if there is one number */
    json_t *labels;                 /* id2label, or NULL: LABEL_0 ...; owned */
    json_t *prompts;                /* {name: text}, or NULL; borrowed from `config` */
    const char *default_prompt;     /* a name, or NULL; borrowed from `config` */
    json_t *config;                 /* owned */
};

/* dir may be a GGUF file. hidden: width of what is pooled. ST_FORMAT names the file. */
enum status pooling_load(const char *dir, const struct model_retrieval *how, uint32_t hidden,
                         struct pooling **out, struct err *err) KV_MUST_CHECK;
/* The dense modules (arg: the struct pooling), in place. One thread at a time: sched_options.project. */
void pooling_project(void *arg, double *pooled);
void pooling_activate(enum activation a, float *v, uint32_t n);
/* Of class n; NULL: it has none. */
const char *pooling_label(const struct pooling *p, uint32_t n, char room[24]);
void pooling_free(struct pooling *p); /* NULL is fine */

#endif
