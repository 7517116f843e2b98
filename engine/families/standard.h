/* What most families share: the keys, the decoder and the names that Llama and Qwen have, and the parts of
 * towers that others take from Qwen's. In text/qwen.c, standard.c and the files of the named models. */
#ifndef KVASIR_FAMILIES_STANDARD_H
#define KVASIR_FAMILIES_STANDARD_H

#include "config/hf/reader.h"
#include "engine/families/families.h"
#include "engine/families/gguf_keys.h"

#define SILU(eps) .rms_norm_eps = (eps), .activation = HF_SILU
#define STANDARD_ROPE(base, ...)                                                                             \
    .rope = {[HF_FULL] = {.type = HF_ROPE_DEFAULT, .theta = (base), .factor = 1, __VA_ARGS__}}

#define CLIP_MEAN 0.48145466f, 0.4578275f, 0.40821073f
#define CLIP_STD  0.26862954f, 0.26130258f, 0.27577711f
/* torchvision's image processors, by the constants that they normalize with. */
#define TORCH_IMAGES                                                                                         \
    .mode = IMAGE_TORCH_U8, .do_resize = true, .do_rescale = true, .do_normalize = true,                     \
    .rescale_factor = 1.0 / 255.0, .on_white = true
#define CLIP_IMAGES   TORCH_IMAGES, .filter = IMAGE_BICUBIC, .mean = {CLIP_MEAN}, .std = {CLIP_STD}
#define HALF_IMAGES   TORCH_IMAGES, .mean = {0.5f, 0.5f, 0.5f}, .std = {0.5f, 0.5f, 0.5f}
#define NATIVE_IMAGES CLIP_IMAGES, .dynamic = true

/* Decoders that models with images contain. */
extern const struct family family_llama, family_lfm2, family_qwen2, family_qwen3, family_qwen3_5;

/* family.read. Of the type's defaults these say which keys there are: text.qk_norm (attention_bias),
 * text.sliding_window, text.num_experts, vision.intermediate_size (0: by mlp_ratio, and hidden_size is the
 * width after the merger), window_size, tokens_per_second, position_side, deepstack_count; place: HF_EITHER
 * has no head_dim, HF_NESTED ties as Qwen3-VL does. */
void standard_read(struct hf_reader *r, const struct family_type *type, struct hf_config *c);
/* rope_type (or `type`) of that object and the keys of the type; absent or "default": *p stays. */
void standard_rope_type(struct hf_reader *r, uint32_t dict, const struct hf_text *t, struct hf_rope *p);
/* The decoder: family.describe of the text models. */
void standard_describe_decoder(struct hf_reader *r, const struct hf_config *c, struct model_desc *d);
/* The parts of the tower that Qwen's have in common (merging end, fused qkv, 2-D rotary), with the names of
 * these tensors. */
void standard_describe_tower(const struct hf_config *c, struct model_desc *d);
/* Of heads that rotate in two dimensions. */
void standard_check_heads(struct hf_reader *r, const struct hf_vision *v);
/* What must hold of a tower that has been read; `first`: of Qwen2-VL. */
void standard_check_vision(struct hf_reader *r, const struct hf_text *t, const struct hf_vision *v,
                           bool first);
/* position_side of a table with so many rows. */
#define STANDARD_POSITIONS_MAX (1u << 20)
void standard_position_side(struct hf_reader *r, uint32_t rows, struct hf_vision *v);

/* GGUF files. */
extern const char *const standard_gguf_stops[];
void standard_gguf_text(struct gguf_keys *k, struct hf_text *t);
/* First, where a part of a head may rotate and the drafter's layers follow. */
void standard_gguf_rotary(struct gguf_keys *k, struct hf_text *t);
void llama_gguf_text(struct gguf_keys *k, struct hf_text *t);
void llama_gguf_ministral3(struct gguf_keys *k, struct hf_text *t);
/* position_side of the tower's table; image_size of such an image. */
void standard_gguf_positions(struct gguf_keys *k, struct hf_vision *v);
void standard_gguf_patches(struct gguf_keys *k, struct image_config *out);
/* The same, with areas: the given ones if the file has none. */
void standard_gguf_areas(struct gguf_keys *k, uint32_t least, uint32_t most, struct image_config *out);
#define STANDARD_GGUF_TOWER                                                                                  \
    {"v.patch_embd", "visual.patch_embed.proj"}, {"v.blk.#.ln1", "visual.blocks.#.norm1"},                   \
        {"v.blk.#.ln2", "visual.blocks.#.norm2"}, {"v.blk.#.attn_qkv", "visual.blocks.#.attn.qkv"},          \
        {"v.blk.#.attn_q", "visual.blocks.#.attn.q"}, {"v.blk.#.attn_k", "visual.blocks.#.attn.k"},          \
        {"v.blk.#.attn_v", "visual.blocks.#.attn.v"},                                                        \
    {                                                                                                        \
        "v.blk.#.attn_out", "visual.blocks.#.attn.proj"                                                      \
    }

/* Of LFM2. */
extern const struct gguf_name lfm2_gguf_names[];
void lfm2_gguf_text(struct gguf_keys *k, struct hf_text *t);

#endif
