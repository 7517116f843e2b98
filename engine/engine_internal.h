/* The engine's insides, shared by engine*.c, decoder.c and vision.c only. Engine thread. */
#ifndef KVASIR_ENGINE_INTERNAL_H
#define KVASIR_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/model_desc.h"
#include "engine/sampler.h"
#include "engine/weights.h"
#include "kernels/backend.h"

#define LOGIT_ROWS_MAX 64u /* rows of logits at a time: 64 x 262,208 x 4 bytes = 67 MB */

/* ---- KV layout: a block of a group holds BE_BLOCK_TOKENS tokens of all its layers ----
 *
 *   arena  | unit 0 | unit 1 | ...                                  unit = BE_KV_UNIT bytes; a block begins at a unit
 *   block  | layer a | layer b | ... | padding to a unit |          layer_offset[n] = where layer n's part begins */
struct kv_layout {
    uint32_t group_count;
    struct engine_kv_group groups[ENGINE_GROUPS_MAX];
    uint32_t *layer_group; /* [layer_count], owned */
    size_t *layer_offset;  /* [layer_count] bytes, owned */
};

/* ---- memory plan ---- */
struct engine_plan {
    enum be_dtype act;
    uint32_t context_max, batch_tokens_max, sequences_max, blocks_max; /* blocks_max: of one sequence, per group */
    uint64_t weight_bytes, scratch_bytes, vision_bytes, kv_bytes;      /* backend memory */
    uint64_t kv_wanted;                                                /* what all sequences at full context would take */
    uint64_t available;                                                /* memory that the plan started from */
};

/* Scratch of one decoder step, worst case T = batch_tokens_max. Backend addresses into one block. */
struct decoder_scratch {
    void *block;
    float *resid;      /* [T, C] */
    float *tail_resid; /* [T, C] the rows whose logits are wanted, packed */
    float *proj;       /* [T, C] */
    float *qkv;        /* [T, (H+2G)D]; after the last layer's qkv: its wanted queries, act [., H D] */
    void *h;           /* act [T, ld(C)] */
    void *q;           /* act [T, H D] */
    void *attn;        /* act [T, ld(H D)] */
    void *mlp;         /* act [T, ld(ff)] */
    float *cos[DESC_ROPES_MAX], *sin[DESC_ROPES_MAX]; /* [T, dim/2] */
    void *head_in;                                    /* act [LOGIT_ROWS_MAX, ld(C)] */
    float *logits;                                    /* [LOGIT_ROWS_MAX, V] */
    struct be_logit_stats *stats;                     /* [LOGIT_ROWS_MAX] */
    uint32_t *targets;                                /* [LOGIT_ROWS_MAX] */
    uint32_t *top_ids;                                /* [LOGIT_ROWS_MAX, BE_TOPK_MAX] */
    float *top_values;
    uint32_t *step; /* [step_words] the step's index arrays */
};

/* Scratch of the vision tower: S patches, one picture at a time. */
struct vision_scratch {
    void *block;
    void *patches;   /* act [S, ld(3pp)] */
    float *qkv;      /* [S, 3 Cv] */
    void *h, *attn;  /* act [S, ld(Cv)] */
    void *q;         /* act [S, Cv] */
    void *mlp;       /* act [S, ld(ff)] */
    float *dense;    /* [S, Cv] */
    float *pooled;   /* [tokens, Cv] */
    void *kv;        /* one layer's keys and values of one picture */
    float *lut;      /* [3*256] */
    uint8_t *rgb;    /* [image_size, image_size, 3] */
    uint32_t *index; /* pos, lo, hi, seq_row, seq_table, table */
    struct be_rows rows;
};

/* One token run's row whose logits are wanted. */
struct wanted {
    uint32_t run;
    uint32_t row;  /* of the step */
    uint32_t next; /* position of the token that it predicts */
    bool sample, score;
};

/* Index arrays of the step in flight; addresses are the backend's. */
struct step {
    uint32_t t, seq_count, wanted_count;
    const uint32_t *ids;
    const int32_t *rope_pos;
    struct be_rows rows[ENGINE_GROUPS_MAX];
    const uint32_t *wanted_rows; /* [wanted_count] */
    struct be_rows tail;         /* the wanted rows as a batch of their own, for the last layer's group */
};

struct engine {
    const struct be_ops *ops;
    struct backend *be;
    struct be_caps becaps;
    char *dir, *model_type;
    char device[256], backend_name[64];
    struct model_desc desc;
    struct weights w;
    struct weights_survey survey;
    float embed_scale;
    float *inv_freq[DESC_ROPES_MAX]; /* backend, [dim/2] */
    struct kv_layout kv;
    void *arena;
    uint64_t arena_units;
    struct engine_plan plan;
    struct decoder_scratch s;
    struct vision_scratch v;
    struct model_info info;
    struct sampler *sampler;
    uint32_t *host_step; /* [step_words] */
    size_t step_words;
    struct wanted *wanted; /* [batch_tokens_max] */
    float *host_row;       /* [V], when the backend's memory can't be read by the host */
    uint32_t *host_top_ids;
    float *host_top_values;
    struct step step;
    struct engine_batch *in_flight;
};

struct engine_features {
    struct image_u8 pixels; /* host copy; freed once the patches are embedded */
    uint32_t layers_done;
    bool done;
    float *resid; /* [S, Cv] backend; freed when done */
    float *rows;  /* [tokens, C] backend */
    size_t bytes; /* backend memory that it holds now */
};

/* engine_plan.c */
enum status kv_layout_make(const struct model_desc *d, const struct be_ops *ops, struct backend *be, struct kv_layout *out,
                           struct err *err) KV_MUST_CHECK;
void kv_layout_free(struct kv_layout *k);
enum status engine__plan(const struct engine_options *opt, struct engine *e, struct err *err) KV_MUST_CHECK;
enum status engine__alloc(struct engine *e, struct err *err) KV_MUST_CHECK;
void engine__release(struct engine *e);
/* engine.c: configuration, description, survey, backend, plan; nothing large is allocated or read. */
enum status engine__prepare(const struct engine_options *opt, struct engine *e, struct stf_files **files,
                            struct err *err) KV_MUST_CHECK;

/* decoder.c: embeds the rows of the step and runs all layers; leaves the wanted rows' residuals in s.tail_resid. */
void decoder_run(struct engine *e, const struct engine_batch *b);
/* Logits and their statistics of wanted rows [first, first + count), count <= LOGIT_ROWS_MAX, with the k largest (k may be 0). */
void decoder_logits(struct engine *e, uint32_t first, uint32_t count, const uint32_t *targets, uint32_t k);

/* vision.c: `layers` more layers of the tower (0 = all that are left), with the embedding before the first and the pooling after
 * the last. */
void vision_run(struct engine *e, struct engine_features *f, uint32_t layers);

#endif
