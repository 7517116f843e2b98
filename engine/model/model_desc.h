/* A model as a description: what engine/decoder.c and engine/vision.c run, and which tensors
 * engine/checkpoint/weights.c loads. A family's file (in engine/families) fills it from the
 * checkpoint's configuration; nothing else knows a family. Plain data, immutable after load.
 *
 * One decoder layer, as the decoder runs it. x is the f32 residual stream; a norm whose name is NULL is
 * skipped:
 *   h = rms(x, input_norm)
 *   q|k|v = h Wqkv (+ bias);  q, k = rope(rms(q, q_norm), rms(k, k_norm)), a norm per head or with
 *        qk_norm_all over all heads;  v = rms(v) with v_norm
 *   a = attention(q, keys, values visible under `window`), times sigmoid of the gate that follows each
 *        head's q if `gated`
 *        or, with MIXER_DELTA, a gated delta net (kernels/backend.h: conv, delta):
 *          q|k|v|z = h Wqkv;  beta|a = h Wgates;  q|k|v = conv(q|k|v);  o = delta rule;
 *          a = rms(o, delta_norm) * silu(z), per value head
 *        or, with MIXER_CONV, a gated short convolution:  b|c|x = h Wqkv (+ bias);  a = c * conv(b * x) (+
 *        bias), without SiLU
 *   x += rms(a Wo (+ bias), post_attn_norm)
 *   h = rms(x, pre_mlp_norm)
 *   x += rms(m, post_mlp_norm),  m = (gate(h Wg (+ bias)) * (h Wu (+ bias))) Wd (+ bias)
 *        or, in a mixture of experts, the weighted sum of that over the row's experts;
 *        or, with an MLP parallel to the experts,
 *          rms(MLP(h), shared_norm) + rms(experts(rms(x, expert_norm)), experts_norm),
 *          its router reads rms(x, router_norm / sqrt(C)), and router_scale multiplies its weights;
 *        or, with shared_gate, MLP(h) * sigmoid(h Wshared_gate) + experts(h)
 *   with ple:  x += rms((gelu_tanh(x Wg) * p) Wu, token_post_norm), p: the layer's part of the token's own
 *        input, of E = table[id] * token_scale and F = x0 Wp / sqrt(C) (x0: the stream before the first
 *        layer):  p = (E + rms(F, token_norm)) / sqrt(2), a norm for each layer's part
 *   x *= layer_scale
 *   x += DeepStack feature n of the image whose placeholder token the row is, for n < vision.deepstack_count
 *
 * A draft model (drafts_for > 0) proposes what follows a token of another model, one draft token at a time:
 *   x = [E(token) | g] Wpre      E: the other model's scaled embedding; g: what its head read when the token
 *                                was drawn, then y Wpost of the draft token before
 *   its layers have no keys: they read those of the other model's last layers with the same window, before
 *   the first draft token and all from its position
 *   y = rms(x, final_norm); the draft token is the largest of y Whead, with centroids only among the tokens
 *        of the `centroids_used` clusters whose y Wcentroids are largest
 *
 * A draft model in the target's checkpoint (own_keys) has keys and values of its own, one row for each of the
 * target's: x = [rms(E(token at p), embed_norm) | rms(y of the position before, hidden_norm)] Wpre, y being
 * what the target's head reads there, or of a draft token this model's own; the target's head follows. */
#ifndef KVASIR_MODEL_DESC_H
#define KVASIR_MODEL_DESC_H

#include "config/base/status.h"
#include "config/hf/config.h"
#include "engine/model/model_info.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DESC_ROPES_MAX            4u
#define DESC_NAME_MAX             512u
#define DESC_DEEPSTACK_MAX        8u
#define DESC_CENTROIDS_USED_MAX   256u
#define VISION_ANTIALIAS_SIDE_MAX 64u /* position_side with LOOKUP_ANTIALIAS */

enum desc_activation { ACT_GELU_TANH = 0, ACT_SILU };

/* angle of frequency i < dim/2 = position[axis(i)] * inv_freq[i]; cos and sin are multiplied by `attention`.
 *   plain:  inv_freq[i] = theta^(-2i/dim) / factor
 *   ramp:   that where a pair rotates less than beta_slow times over `original` positions, theta^(-2i/dim)
 *           where it rotates more than beta_fast times, blended between: linear in i (yarn) or in the
 *           rotations (llama3)
 * Axis of frequency i, sections s (all 0: one axis):
 *   chunked:      0 for i < s0, 1 for i < s0 + s1, else 2
 *   interleaved:  a for i % 3 == a and i < 3 s[a] with a = 1, 2, else 0 */
enum desc_ramp { RAMP_NONE = 0, RAMP_YARN, RAMP_LLAMA3 };
struct desc_rope {
    double theta, factor;
    uint32_t dim;             /* = head_dim of the layers that use it, or less: its first columns */
    uint32_t unrotated_pairs; /* the last so many frequencies are 0: those pairs don't rotate */
    enum desc_ramp ramp;
    bool truncate; /* of a yarn ramp: its ends are whole numbers */
    double original, beta_fast, beta_slow;
    double attention; /* 0 counts as 1 */
    float query_beta; /* > 0: queries at p are multiplied by 1 + query_beta log(1 + floor(p / original)) */
    uint32_t sections[3];
    bool interleaved;
};

enum desc_mixer { MIXER_ATTENTION = 0, MIXER_DELTA, MIXER_CONV };
/* Of all layers with MIXER_DELTA; conv_k also of those with MIXER_CONV, the rest is 0 then. */
struct desc_delta {
    uint32_t key_heads, value_heads, key_dim, value_dim, conv_k;
    bool tiled;       /* value head h has key head h % key_heads, else h * key_heads / value_heads */
    bool decay_plain; /* decays are stored as -exp(A_log), not as A_log */
    bool conv_bias;   /* with MIXER_CONV, also of its two products */
};

struct desc_layer {
    enum desc_mixer mixer;              /* else than attention: of its fields only kv_owner (itself) counts */
    uint32_t heads, kv_heads, head_dim; /* query head h reads kv head h * kv_heads / heads */
    float scale, softcap;               /* of attention scores; softcap 0 = none */
    uint32_t kv_owner; /* the layer whose keys and values it reads: itself, or an earlier one of the same
                          window; of a draft model: a layer of the target, set once that is known */
    uint32_t window;   /* 0 = full attention; else a query at p sees keys > p - window */
    uint32_t rope;     /* index into desc.ropes */
    bool qkv_bias, o_bias, mlp_bias;
    bool gated;
    bool v_norm;        /* RMS norm of the values, without a weight */
    bool v_from_k;      /* no Wv: the values are h Wk, before norm and RoPE */
    uint32_t ff;        /* of the MLP, or of each expert */
    uint32_t shared_ff; /* of an MLP parallel to the experts; 0 = none */
    enum desc_activation gate;
    uint32_t experts, experts_used; /* 0 = a plain MLP */
    bool experts_renorm;            /* the weights of the selected experts are divided by their sum */
};

/* How the experts' matrices are stored. */
enum desc_experts {
    EXPERTS_EACH = 0, /* names with two '#' (layer, expert): gate, up [I, C], down [C, I] */
    EXPERTS_IN_OUT,   /* one tensor for all: gate_up [E, C, 2I] (gate columns first), down [E, I, C]; whole
                         names */
    EXPERTS_OUT_IN,   /* one tensor for all: gate_up [E, 2I, C] (gate rows first), down [E, C, I]; whole names
                       */
};

/* Names of a layer's tensors in canonical form; '#' is the layer's number. Stems: ".weight" or ".bias" is
 * appended. NULL: no such tensor. */
struct desc_names {
    const char *embed, *head, *final_norm;
    const char *input_norm, *q, *k, *v, *o, *q_norm, *k_norm, *post_attn_norm, *pre_mlp_norm, *gate, *up,
        *down, *post_mlp_norm;
    const char *gate_up; /* instead of gate and up: one tensor, the gate's rows first */
    const char *conv, *delta_qkv, *delta_z, *delta_beta, *delta_a, *delta_norm, *delta_out; /* stems */
    const char *delta_decay, *delta_dt_bias;                                                /* whole names */
    const char *shared_gate;
    const char *router;                                                                /* stem */
    const char *router_norm, *router_scale, *expert_norm, *experts_norm, *shared_norm; /* with a shared MLP;
                                                                                          the first two are
                                                                                          whole names */
    const char *ple_table, *ple_project, *token_norm, *ple_gate, *token_up, *token_post_norm;
    const char *layer_scale;                      /* a whole name */
    const char *draft_in, *draft_out, *centroids; /* of a draft model: Wpre, Wpost */
    const char *embed_norm, *hidden_norm;
    const char *clusters;                              /* [V] int64, a whole name: tokens by cluster */
    const char *expert_gate, *expert_up, *expert_down; /* EXPERTS_EACH: stems */
    const char *expert_gate_up, *expert_down_all;      /* else: whole names */
};

/* A tower of pre-norm transformer layers over the patches of one image:
 *   h = patch W (+ b);  h = N(h), if there is pre_norm;  h += position
 *   each layer:  h += P(attn(N(h), 2-D rotary));  h += P(mlp(N(h)))
 *        N: LayerNorm with bias or RMS norm;  P: RMS norm, or the columns times scale1, scale2, or nothing
 * after the first `halve` layers 2 x 2 patches become one row:
 *        h += attn(LN(h)) among the four;  h = their mean + fc2(gelu_tanh(fc1(LN(their concatenation))))
 * with class_row one more row after the patches, which they see and no token comes of,
 * then one of four ends:
 *   linear (fixed size):  h = LN(h); a token is a patch; projection with bias to the decoder's width
 *   pool   h = LN(h), if there is post_norm; mean over pool x pool cells (times pool_factor, less std_bias,
 *          times std_scale); RMS norm; projection to the decoder's width
 *   merge  (patches lie in runs of merge x merge that form a token), each step but fc1 if it has a name:
 *          h = N(h) with post_norm, h = N(h) with merge_pre_norm;  x = the run's h, concatenated;
 *          x = LN(x) with merge_norm;  x = x Wconv, a convolution of stride `merge`;
 *          x = x Wproj;  x = gelu_erf(LN(x + sines of the token's column and row with merge_places)) with
 *          merge_proj_norm;  x = fc2(gelu_erf(fc1(x))), or SwiGLU with merge_up;  x = LN(x) with
 *          merge_out_norm;
 *          the LayerNorm over the run, fc1 and fc2 alone, with names of their own, after each layer in
 *          `deepstack`
 *   embed  (no layers): h = LN(LN(LN(patch) W + b) + position); RMS norm; projection */
enum desc_vision_end { VISION_POOL = 0, VISION_MERGE, VISION_EMBED, VISION_LINEAR };
/* How a patch's place becomes one in the position table; places after its end count as the last. */
enum desc_lookup {
    LOOKUP_CORNERS = 0, /* bilinear, the corners aligned */
    LOOKUP_CENTRES,     /* bilinear, the patches' centres */
    LOOKUP_BICUBIC,     /* 16 entries, the patches' centres */
    LOOKUP_BUCKETS,     /* one entry, where the patch's corner lies */
    LOOKUP_QUOTIENT,    /* the same, by a quotient instead of steps */
    LOOKUP_ANTIALIAS,   /* bilinear, the patches' centres; of all entries that a patch covers */
};
enum desc_vision_mlp {
    VISION_GELU_TANH = 0,
    VISION_GELU_ERF,
    VISION_QUICK_GELU,
    VISION_GLU_SILU,
    VISION_GLU_GELU,
    VISION_GLU_GELU_ERF
};
struct desc_vision {
    uint32_t image_size; /* pixels per side; 0 = any (multiples of patch * merge) */
    uint32_t patch, hidden, ff, layers, heads;
    float eps;
    bool rms;             /* RMS norms without bias instead of LayerNorm */
    bool post_layer_norm; /* post_norm is LayerNorm all the same */
    enum desc_vision_mlp mlp;
    bool patch_bias;
    bool no_bias;     /* of the layers' products and the projection */
    bool qkv_no_bias; /* of the products for queries, keys and values */
    bool qkv_fused;   /* one tensor for q, k, v (names.q) */
    bool qk_pairs;    /* as model_desc.qk_pairs */
    bool qk_pairs_differ;
    bool v_norm;            /* as desc_layer.v_norm */
    float qk_norm_all;      /* > 0: eps of the norms of q and k, which are over all heads (0: per head) */
    bool clip;              /* inputs and outputs of the layers' products are clamped */
    float scale;            /* of attention scores; 0: by the head size */
    uint32_t depth;         /* frames per patch: a still image is repeated that many times */
    double rope_theta;      /* 2-D rotary over (row, column); 0 = none */
    bool rope_halves;       /* the head's first half rotates by the column, the second by the row, each with
                               its own pairs (false: pairs over the whole head, the row's first) */
    bool rope_between;      /* each frequency of the column lies between two of the row's (false: the same) */
    bool centred;           /* the tower maps [0, 1] to [-1, 1] */
    bool channels_last;     /* the patch weight is [C, patch, patch, 3], flat (false: [C, 3, ...]) */
    uint32_t position_axis; /* > 0: a table of so many columns and one of so many rows, whose entries are
                               added: [2, axis, C], or with position_pairs [axis, 2, C] */
    bool position_pairs;
    uint32_t position_side; /* > 0: the position table is side x side, looked up by position_lookup; 0 with
                               image_size: one row per patch */
    enum desc_lookup position_lookup;
    bool position;
    uint32_t window; /* tokens per side of an attention window; 0 = a patch attends to its whole frame */
    uint8_t full_layers[64]; /* bit n%8 of [n/8]: layer n attends to the whole frame despite the window */
    enum desc_vision_end end;
    uint32_t pool;       /* VISION_POOL: cells per side that are averaged */
    uint32_t tokens;     /* output rows of an image of fixed size */
    uint32_t merge;      /* VISION_MERGE, or any size: patches per side of a token */
    uint32_t merge_conv; /* > 0: columns after Wconv, whose weight is [columns, C, merge, merge] or the same
                            flat, and after Wproj */
    bool merge_conv_bias;
    uint32_t merge_ff;  /* between the merger's two products; 0: as wide as their input */
    bool merge_no_bias; /* of the merger at the end */
    bool merge_places;
    uint32_t halve;                     /* 0: never */
    float merge_scale, deepstack_scale; /* of rows; 0 counts as 1 */
    float merge_eps;                    /* of merge_pre_norm and merge_norm; 0: eps */
    float pool_factor;                  /* 0 counts as 1 */
    uint32_t deepstack_count,
        deepstack[DESC_DEEPSTACK_MAX]; /* layers after whose output a DeepStack feature is taken; DeepStack
                          feature k is added to the decoder's stream after its layer k */
    struct {
        const char *patch, *position, *norm1, *norm2, *q, *k, *v, *o, *fc1, *fc2,
            *post_norm; /* VISION_GLU_SILU: fc1 = gate, fc2 = down */
        const char *up;
        const char *scale1, *scale2; /* whole names: [C], of what attention and the MLP add */
        const char *merge_out_norm;
        const char *halve_norm1, *halve_q, *halve_k, *halve_v, *halve_o, *halve_norm2, *halve_fc1, *halve_fc2;
        const char *class_row;  /* a whole name, as `position` is then: its place is the table's first */
        const char *q_alone;    /* with qkv_fused: q's name if files hold q, k and v separately; NULL: none
                                   does */
        const char *soft_norm;  /* before the projection; NULL: without a weight */
        const char *projection; /* a whole name, [in, out]; NULL: project, a stem */
        const char *project;
        const char *q_norm, *k_norm, *post_attn, *post_mlp, *std_bias, *std_scale; /* std_: whole names */
        const char *patch_norm, *dense_norm, *position_norm;                       /* VISION_EMBED */
        const char *pre_norm;
        const char *merge_pre_norm, *merge_norm, *merge_conv, *merge_proj, *merge_proj_norm, *merge_fc1,
            *merge_up, *merge_fc2; /* merge_up: fc1 = gate, fc2 = down */
        const char *deepstack_norm, *deepstack_fc1,
            *deepstack_fc2; /* '#' = number of the DeepStack feature */
    } names;
};

/* What quantization_config adds to the tensors of packed matrices (engine/checkpoint/packed.h). */
struct desc_packing {
    char method[24];  /* its quant_method; "": none */
    char kept[2048];  /* what begins with the list of modules that stay floats */
    uint32_t bits;    /* of integers; 0 = unknown */
    uint32_t group;   /* numbers of a row that share a scale; 0 = unknown, or not the same everywhere */
    bool zeros;       /* all matrices have zero points */
    bool zeros_plain; /* GPTQ's are stored as they are (gptq_v2), not one less */
};

struct model_desc {
    struct desc_packing packing;
    uint32_t vocab, hidden, layer_count, context_max;
    struct desc_layer *layers; /* [layer_count], owned */
    struct desc_delta delta;
    uint32_t rope_count;
    uint32_t rope_first; /* rope position of the first token */
    struct desc_rope ropes[DESC_ROPES_MAX];
    float norm_eps;
    bool norm_plus_one;    /* RMS weights are stored as w and used as 1 + w */
    double embed_scale;    /* embeddings are multiplied by this, rounded as engine.c says */
    bool embed_scale_kept; /* not rounded */
    float logit_scale;     /* of the final norm's output; 0 counts as 1 */
    float final_softcap;   /* 0 = none */
    bool qk_norm_all;      /* the norms of q and k are [heads * head_dim] */
    bool qk_pairs; /* rows of q and k are stored for rotary in pairs (2i, 2i + 1): reordered on loading */
    bool
        qk_pairs_differ; /* and not in a file of the other kind (a directory, GGUF), or the other way round */
    bool tied;           /* logits use the embedding */
    uint32_t ple;        /* width of a layer's per-layer embedding; 0 = none */
    double token_scale;  /* rounded as embed_scale is */
    uint32_t pad_id;     /* row of the table used for an image's tokens */
    uint32_t pads[3];    /* [pad_count] tokens that are embedded as pad_id */
    uint32_t pad_count;
    struct desc_names names;
    enum desc_experts expert_layout;
    uint32_t drafts_for; /* > 0: a draft model, for a target of that width */
    bool own_keys;       /* of a draft model */
    /* The draft model in the same checkpoint; NULL: there can be none. false: out of memory. */
    bool (*drafter)(const struct model_desc *target, struct model_desc *out);
    uint32_t centroids, centroids_used; /* of a draft model's head; 0: none */
    bool encoder; /* prompts are SPAN_PREFIX_LM, with windows that reach as far ahead as back */
    bool has_vision;
    struct desc_vision vision;
    struct model_image_rule image; /* all but .config */
    struct model_retrieval retrieval;
    uint32_t bos_id, eos_ids[MODEL_EOS_MAX], eos_count;
    /* Maps a tensor's name in the file to its canonical name; false = a tensor that is not needed. */
    bool (*canonical)(const char *name, char out[DESC_NAME_MAX]);
};

void model_desc_free(struct model_desc *d);

/* Whether layer n writes its own keys and values. */
static inline bool desc_owns_keys(const struct model_desc *d, uint32_t n)
{
    return d->own_keys || (!d->drafts_for && d->layers[n].kv_owner == n);
}

/* Rows of the tower's end that form a token, per side. */
static inline uint32_t desc_merge_side(const struct desc_vision *v)
{
    return v->halve ? v->merge / 2 : v->merge;
}

/* Whether layers have states instead of keys and values. */
static inline bool desc_recurrent(const struct desc_layer *l)
{
    return l->mixer != MIXER_ATTENTION;
}
/* Columns of the convolution: q, k and v; or the width. */
static inline uint32_t desc_conv_columns(const struct model_desc *d)
{
    const struct desc_delta *g = &d->delta;
    return g->value_heads ? 2 * g->key_heads * g->key_dim + g->value_heads * g->value_dim : d->hidden;
}
/* Columns of a layer's first product (Wqkv), and of what its mixer leaves for Wo. */
static inline uint32_t desc_in_columns(const struct model_desc *d, uint32_t n)
{
    const struct desc_layer *l = &d->layers[n];
    uint32_t own = !desc_owns_keys(d, n) ? 0 : l->v_from_k ? 1 : 2;
    if (l->mixer == MIXER_DELTA) return desc_conv_columns(d) + d->delta.value_heads * d->delta.value_dim;
    if (l->mixer == MIXER_CONV) return 3 * d->hidden;
    return ((l->gated ? 2 : 1) * l->heads + own * l->kv_heads) * l->head_dim;
}
static inline uint32_t desc_mixed_columns(const struct model_desc *d, uint32_t n)
{
    const struct desc_layer *l = &d->layers[n];
    return l->mixer == MIXER_DELTA  ? d->delta.value_heads * d->delta.value_dim
           : l->mixer == MIXER_CONV ? d->hidden
                                    : l->heads * l->head_dim;
}

/* f32 frequencies as transformers computes them; out [dim/2]. */
void desc_rope_frequencies(const struct desc_rope *r, float *out);

/* Whether name is `pattern`, with a number for each '#', then `suffix`. */
bool desc_name_matches(const char *name, const char *pattern, const char *suffix);
/* The layout implied by a tensor (canonical name); false: none. One model can be released as EXPERTS_IN_OUT
 * and saved by transformers 5 as EXPERTS_OUT_IN. */
bool model_desc_experts(const struct model_desc *d, const char *name, uint32_t rank, const uint64_t *shape,
                        enum desc_experts *layout);

#endif
