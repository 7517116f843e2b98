/* A checkpoint's tensors, packed through the backend as a description wants them. Used by engine.c at load,
 * read by decoder.c and vision.c. Knows no family: names come from the description. Engine thread only. */
#ifndef KVASIR_WEIGHTS_H
#define KVASIR_WEIGHTS_H

#include "config/options.h"
#include "engine/model/model_desc.h"
#include "engine/checkpoint/safetensors.h"
#include "kernels/backend.h"

/* Vectors are f32 in backend memory; RMS weights already hold what multiplies (1 + w where the description
 * says so). */
struct layer_weights {
    struct be_weight *qkv;                        /* [(H + 2G) D, C], q|k|v; or q|k, or q, if the layer has no
                                                     more; gated: 2H. MIXER_DELTA: q|k|v|z */
    struct be_weight *gates;                      /* MIXER_DELTA: beta|a, [2 HV, C] */
    struct be_weight *shared_gate;                /* [1, C] or NULL */
    struct be_weight *o;                          /* [C, H D] */
    struct be_weight *glu;                        /* gate and up, [2 ff, C]; NULL with experts */
    struct be_weight *down;                       /* [C, ff] */
    struct be_weight *router;                     /* [E, C]; NULL without experts */
    struct be_weight **expert_glu, **expert_down; /* [E] of [2 ff, C] and [C, ff]; the lists are owned */
    const float *input_norm, *post_attn_norm, *pre_mlp_norm,
        *post_mlp_norm;                               /* [C]; the post ones may be NULL */
    const float *q_norm, *k_norm;                     /* [D] or NULL */
    const float *k_shift;                             /* [G, D] or NULL */
    const float *conv, *decay, *dt_bias, *delta_norm; /* MIXER_DELTA: [K, columns], [HV], [HV], [DV] */
    const float *conv_bias;                           /* [columns] or NULL */
    const float *router_norm, *expert_norm, *experts_norm, *shared_norm; /* [C], with a shared MLP */
    const float *router_scale;                                           /* [E] or NULL */
    struct be_weight *ple_gate, *token_up;                               /* [P, C], [C, P], with ple */
    const float *token_post_norm;                                        /* [C] */
    const float *layer_scale;                                            /* [1] or NULL */
};
/* A table of which a step reads a few rows: it stays in the file. */
struct row_table {
    struct stf_tensor row; /* one row's type and size */
    size_t stride;         /* bytes; 0: every row is the first, which is random and owned */
    void *owned;
};
struct vision_layer_weights {
    struct be_weight *qkv, *o, *fc1, *fc2;                /* with biases; fc1 of a GLU: gate and up */
    const float *norm1, *norm1_bias, *norm2, *norm2_bias; /* [Cv]; RMS: no biases */
    const float *q_norm, *k_norm, *post_attn, *post_mlp;  /* [D], [Cv], or NULL */
    /* With clip: each product by itself (qkv and fc1 are q and gate), and [2] bounds of its input and
     * output. */
    struct be_weight *k, *v, *up;
    const float *bounds[7][2]; /* by enum vision_product */
};
enum vision_product { VISION_Q = 0, VISION_K, VISION_V, VISION_O, VISION_GATE, VISION_UP, VISION_DOWN };
/* Patches merged into tokens (model_desc.h); what a merger does not have is NULL. K: columns of fc1's input.
 */
struct vision_merger_weights {
    const float *pre_norm, *pre_norm_bias;   /* [Cv] */
    const float *norm, *norm_bias;           /* [merge merge Cv] */
    struct be_weight *conv, *proj;           /* [merge_conv, merge merge Cv], [merge_conv, merge_conv] */
    const float *proj_norm, *proj_norm_bias; /* [merge_conv] */
    const float *places;                     /* [tokens, merge_conv] or NULL */
    const float *out_norm, *out_norm_bias;   /* [C] or NULL */
    struct be_weight *fc1, *fc2;             /* [merge_ff or C, K], with merge_up [2 merge_ff, K];
                                                [C, merge_ff] */
};
struct vision_weights {
    struct be_weight *patch;      /* [Cv, 3 depth p p] */
    struct be_weight *projection; /* [C, Cv]; VISION_LINEAR: with a bias */
    struct vision_merger_weights merger, deepstack[DESC_DEEPSTACK_MAX];
    const float *position;  /* [patches or table rows, Cv] */
    const float *class_row; /* [Cv], its place added; or NULL */
    const float *pre_norm, *pre_norm_bias, *post_norm, *post_norm_bias, *soft_norm; /* [Cv]; RMS: no bias */
    const float *std_bias, *std_scale;                                              /* [Cv] or NULL */
    const float *patch_norm, *patch_norm_bias; /* [3 p p], VISION_EMBED */
    const float *dense_norm, *dense_norm_bias, *position_norm, *position_norm_bias; /* [Cv] */
    struct vision_layer_weights halve;
    struct vision_layer_weights *layers; /* [desc.vision.layers] */
};
struct weights {
    struct be_weight *embed;                            /* [V, C]; NULL: a draft model's */
    struct be_weight *head;                             /* [V, C]; == embed when tied */
    const float *final_norm;                            /* [C] */
    struct layer_weights *layers;                       /* [desc.layer_count] */
    struct row_table ple_table;                         /* [V, layers P], with ple */
    struct be_weight *draft_in, *draft_out, *centroids; /* of a draft model: [C, 2 B], [B, C], [centroids,
                                                           C] */
    const float *embed_norm, *hidden_norm;              /* [C], with own_keys */
    struct row_table head_rows;                         /* [V, C] instead of head, with centroids */
    uint32_t *clusters; /* [V] tokens of the first centroid's cluster, of the second's, ...; owned */
    struct be_weight *ple_project; /* [layers P, C] */
    const float *token_norm;       /* [P], divided by sqrt(2) */
    struct vision_weights vision;
    void *slab; /* backend memory of all f32 vectors */
};

/* What a checkpoint needs, from its headers alone. */
#define WEIGHT_SHAPES_MAX 48u
struct weights_inventory {
    enum stf_dtype stored; /* of the embedding: decides the compute type */
    uint64_t parameters;   /* elements of all tensors that are used */
    uint64_t read_bytes;   /* in the files */
    uint64_t memory_bytes; /* estimated size once loaded with the given compute type */
    bool made_quants;      /* some become quants at load (weight_format.quantize) */
    char quant_types[64];  /* of the text model's that are kept as the files' quants: "Q4_K,Q6_K"; "": none */
    uint64_t slab_floats;
    uint64_t tensor_bytes_max;       /* of the largest one */
    const struct stf_tensor **order; /* [count] in reading order; owned */
    size_t count;
    struct weight_shape {
        uint32_t k, n;
        bool glu, bias;
    } shapes[WEIGHT_SHAPES_MAX]; /* distinct ones of float matrices, without experts' */
    uint32_t shape_count;
    uint32_t ignored; /* tensors of the files that the description doesn't use, though they might matter */
    char ignored_names[400]; /* the first few, comma-separated */
};
/* Float matrices become integers of so many bits, those of the image tower at least 8. */
/* How weights are kept. */
struct weight_format {
    enum be_dtype act;
    bool quants; /* the backend takes quants; else a file's blocks become floats */
    enum opt_quantize quantize;
    bool float_vision; /* the image tower has no quants */
};
/* What config.json does not say: sets expert_layout from the checkpoint's tensors (the family sets the
 * released one), clears `tied` if the files hold a head other than the embedding, and qkv_fused if the
 * tower's q, k and v are separate. files NULL: does nothing. Call it before weights_inventory. */
void model_desc_resolve(struct model_desc *d, const struct stf_files *files);
/* Whether a tensor (by its name in the files) is of a part that is not served: audio, drafters, and so on. */
bool weights_carried_along(const char *name);
/* Whether the files hold STEM.weight of the description. */
bool weights_hold(const struct model_desc *d, const struct stf_files *files, const char *stem);

/* files NULL: weights are random (for benchmarks); every tensor counts as bf16. Checks that every tensor of
 * the description exists with the right shape and a float dtype. ST_FORMAT names the tensor. */
enum status weights_inventory(const struct stf_files *files, const struct model_desc *desc,
                              struct weight_format format, struct weights_inventory *out,
                              struct err *err) KV_MUST_CHECK;
void weights_inventory_free(struct weights_inventory *s);

struct weights_progress {
    void (*fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *arg;
};
/* *identity is a 64-bit digest of names, shapes and samples of the contents. On error *out is released. */
enum status weights_load(const struct stf_files *files, const struct model_desc *desc,
                         const struct weights_inventory *inventory, struct weight_format format,
                         const struct be_ops *ops, struct backend *be, struct weights_progress progress,
                         struct weights *out, uint64_t *identity, struct err *err) KV_MUST_CHECK;
/* Row `id` as f32; out [row.shape[0]]. */
void weights_row(const struct row_table *t, uint32_t id, float *out);
void weights_free(struct weights *w, const struct model_desc *desc, const struct be_ops *ops,
                  struct backend *be);
uint64_t weights_bytes(const struct weights *w, const struct model_desc *desc, const struct be_ops *ops,
                       uint64_t slab_floats);

/* a float as bf16 and back, round to nearest even; as f16 and back for finite values in range */
float weights_round_bf16(float x);
float weights_round_f16(float x);

#endif
