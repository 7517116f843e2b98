/* What the Gemma families share: the SigLIP tower, the names of tensors, the decoders of Gemma 1 and 2.
 * SigLIP is the tower of others, too. */
#ifndef KVASIR_FAMILIES_GEMMA_H
#define KVASIR_FAMILIES_GEMMA_H

#include "config/hf/reader.h"
#include "engine/families/families.h"
#include "engine/families/gguf_keys.h"

#define GEMMA_COMMON                                                                                         \
    .head_dim = 256, .rms_norm_eps = 1e-6, .tie_word_embeddings = true, .activation = HF_GELU_TANH

/* Class defaults of SiglipVisionConfig. */
extern const struct hf_vision siglip_defaults;
void siglip_check(struct hf_reader *r, const struct hf_vision *v);
/* The keys of vision_config over the defaults, and that check. */
void siglip_read(struct hf_reader *r, uint32_t obj, struct hf_vision *v);
/* The tower without its end. */
struct desc_vision siglip_tower(const struct hf_config *c);

/* Three layouts exist, with and without the `vision_model.` segment; one rule covers them all:
 *   A  language_model.model.X  vision_tower.vision_model.Y  multi_modal_projector.Z  language_model.lm_head
 *   B  model.language_model.X  model.vision_tower.[..].Y    model.(the same)         lm_head
 *   C  model.X                                                                       lm_head
 * Canonical: text.X, vision.Y, projector.Z, head.weight. */
bool gemma_canonical(const char *name, char out[DESC_NAME_MAX]);

/* Rows of gguf_name for SigLIP's tensors, after the name of the tower's layers in `at`. */
#define SIGLIP_GGUF(at)                                                                                      \
    {"v.patch_embd", at "embeddings.patch_embedding"},                                                       \
        {"v.position_embd", at "embeddings.position_embedding"},                                             \
        {"v.blk.#.ln1", at "encoder.layers.#.layer_norm1"},                                                  \
        {"v.blk.#.ln2", at "encoder.layers.#.layer_norm2"},                                                  \
        {"v.blk.#.attn_q", at "encoder.layers.#.self_attn.q_proj"},                                          \
        {"v.blk.#.attn_k", at "encoder.layers.#.self_attn.k_proj"},                                          \
        {"v.blk.#.attn_v", at "encoder.layers.#.self_attn.v_proj"},                                          \
        {"v.blk.#.attn_out", at "encoder.layers.#.self_attn.out_proj"},                                      \
        {"v.blk.#.ffn_up", at "encoder.layers.#.mlp.fc1"},                                                   \
        {"v.blk.#.ffn_down", at "encoder.layers.#.mlp.fc2"},                                                 \
    {                                                                                                        \
        "v.post_ln", at "post_layernorm"                                                                     \
    }

/* SiglipImageProcessor, with another filter in Gemma 3's. */
#define SIGLIP_IMAGES(by)                                                                                    \
    .width = 224, .height = 224, .filter = (by), .mode = IMAGE_TORCH_U8, .do_resize = true,                  \
    .do_rescale = true, .do_normalize = true, .rescale_factor = 1.0 / 255.0, .mean = {0.5f, 0.5f, 0.5f},     \
    .std = {0.5f, 0.5f, 0.5f}
/* What PaliGemma's processors add to a vocabulary. */
extern const struct tok_extra paligemma_tokens[3];
#define PALIGEMMA_TOKENS .tokens = paligemma_tokens, .token_count = 3

/* Gemma 1 and 2, alone or within a model that takes images. */
extern const struct hf_text gemma_text, gemma2_text;
/* `defaults` is one of the two above; tie_word_embeddings is not read. */
void gemma_read_text(struct hf_reader *r, uint32_t obj, const struct hf_text *defaults, struct hf_text *t);
bool gemma_describe_text(struct hf_reader *r, const struct hf_config *c, struct model_desc *d);

/* GGUF files from Gemma 2 on: four norms to a layer. */
extern const struct gguf_name gemma_gguf_names[];
extern const char *const gemma_gguf_stops[];
/* query_pre_attn_scalar: the head size, or width / heads in the model with so many layers. */
void gemma_gguf_scale(struct gguf_keys *k, struct hf_text *t, uint32_t layers);

#endif
