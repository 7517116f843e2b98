/* A model as a description: what engine/decoder.c and engine/vision.c run, and which tensors engine/weights.c loads. A family's
 * file (engine/models/<family>.c) fills it from the checkpoint's configuration; nothing else knows a family. Plain data,
 * immutable after load.
 *
 * One decoder layer, as the decoder runs it (x is the f32 residual stream):
 *   h = rms(x, input_norm)
 *   q|k|v = h Wqkv (+ bias);  q, k = rope(rms(q, q_norm), rms(k, k_norm))
 *   a = attention(q, keys, values visible under `window`)
 *   x += rms(a Wo (+ bias), post_attn_norm)
 *   h = rms(x, pre_mlp_norm)
 *   x += rms((gate(h Wg) * (h Wu)) Wd, post_mlp_norm) */
#ifndef KVASIR_MODEL_DESC_H
#define KVASIR_MODEL_DESC_H

#include "config/base/status.h"
#include "config/hf_config.h"
#include "engine/model_info.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DESC_ROPES_MAX 4u
#define DESC_NAME_MAX  512u

enum desc_gate { GATE_GELU_TANH = 0 };

/* inv_freq[i] = theta^(-2i/dim) / factor, i < dim/2; angle = position * inv_freq. */
struct desc_rope {
    double theta, factor;
    uint32_t dim; /* = head_dim of the layers that use it */
};

struct desc_layer {
    uint32_t heads, kv_heads, head_dim; /* query head h reads kv head h * kv_heads / heads */
    float scale, softcap;               /* of attention scores; softcap 0 = none */
    uint32_t window;                    /* 0 = full attention; else a query at p sees keys > p - window */
    uint32_t rope;                      /* index into desc.ropes */
    bool attn_bias;                     /* q, k, v and o have biases */
    uint32_t ff;
    enum desc_gate gate;
};

/* Names of a layer's tensors in canonical form; '#' stands for the layer's number. Stems: ".weight" or ".bias" is appended. */
struct desc_names {
    const char *embed, *head, *final_norm;
    const char *input_norm, *q, *k, *v, *o, *q_norm, *k_norm, *post_attn_norm, *pre_mlp_norm, *gate, *up, *down, *post_mlp_norm;
};

/* A tower of pre-norm transformer layers over the patches of one picture, every patch seeing every other:
 *   h = patch W + b + position;  h += attn(LN(h)) ;  h += fc2(gelu_tanh(fc1(LN(h))));  h = LN(h)
 * then mean over pool x pool cells, RMS norm, projection to the decoder's width. */
struct desc_vision {
    uint32_t image_size, patch, hidden, ff, layers, heads;
    float eps;
    uint32_t pool;   /* cells per side that are averaged */
    uint32_t tokens; /* rows that come out */
    struct {
        const char *patch, *position, *norm1, *norm2, *q, *k, *v, *o, *fc1, *fc2, *post_norm;
        const char *soft_norm, *projection; /* projection is a whole name: [in, out] */
    } names;
};

struct model_desc {
    uint32_t vocab, hidden, layer_count, context_max;
    struct desc_layer *layers; /* [layer_count], owned */
    uint32_t rope_count;
    struct desc_rope ropes[DESC_ROPES_MAX];
    float norm_eps;
    bool norm_plus_one;  /* RMS weights are stored as w and used as 1 + w */
    double embed_scale;  /* embeddings are multiplied by this, rounded to the type of the stored embedding */
    float final_softcap; /* 0 = none */
    bool tied;           /* logits use the embedding */
    struct desc_names names;
    bool has_vision;
    struct desc_vision vision;
    struct model_image_rule image; /* all but .config */
    uint32_t bos_id, eos_ids[MODEL_EOS_MAX], eos_count;
    /* Maps a tensor's name in the file to its canonical name; false = a tensor that is not needed. */
    bool (*canonical)(const char *name, char out[DESC_NAME_MAX]);
};

/* engine/models/<family>.c, by config.family. ST_UNSUPPORTED for what the family's file does not do. */
enum status model_describe(const struct hf_config *config, struct model_desc *out, struct err *err) KV_MUST_CHECK;
void model_desc_free(struct model_desc *d);

enum status gemma3_describe(const struct hf_config *config, struct model_desc *out, struct err *err) KV_MUST_CHECK;

#endif
