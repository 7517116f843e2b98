/* Shared by all Qwen files: the keys, the decoder, the names, the common parts of the three towers. Class
 * defaults are those of transformers 5.23's configuration classes; released files that differ (rms_norm_eps
 * 1e-6, tokens_per_second 2, a tower of 1280) say so themselves. The parts of other
 * models that are like theirs are here, too. */
#ifndef KVASIR_FAMILIES_QWEN_H
#define KVASIR_FAMILIES_QWEN_H

#include "config/hf/reader.h"
#include "engine/families/families.h"
#include "engine/families/gguf_keys.h"

#define QWEN_MERGE                                                                                           \
    .out_hidden_size = 3584, .spatial_merge_size = 2, .temporal_patch_size = 2, .rope_theta = 1e4
#define QWEN3_TOWER                                                                                          \
    TOWER_SIZES(1152, 4304, 27, 16, 16), QWEN_MERGE, .activation = HF_GELU_TANH, .position_side = 48
#define SILU(eps) .rms_norm_eps = (eps), .activation = HF_SILU
#define QWEN_ROPE(base, ...)                                                                                 \
    .rope = {[HF_FULL] = {.type = HF_ROPE_DEFAULT, .theta = (base), .factor = 1, __VA_ARGS__}}

#define CLIP_MEAN 0.48145466f, 0.4578275f, 0.40821073f
#define CLIP_STD  0.26862954f, 0.26130258f, 0.27577711f
/* Qwen2VLImageProcessor (of all generations; checkpoints override most of it), and the common part of
 * Qwen2VLVideoProcessor and Qwen3VLVideoProcessor. fps: the class has none; the model's own tools use 2. */
#define TORCH_IMAGES                                                                                         \
    .mode = IMAGE_TORCH_U8, .do_resize = true, .do_rescale = true, .do_normalize = true,                     \
    .rescale_factor = 1.0 / 255.0, .on_white = true
#define CLIP_IMAGES   TORCH_IMAGES, .filter = IMAGE_BICUBIC, .mean = {CLIP_MEAN}, .std = {CLIP_STD}
#define HALF_IMAGES   TORCH_IMAGES, .mean = {0.5f, 0.5f, 0.5f}, .std = {0.5f, 0.5f, 0.5f}
#define NATIVE_IMAGES CLIP_IMAGES, .dynamic = true
#define QWEN_IMAGES                                                                                          \
    NATIVE_IMAGES, .patch = 14, .merge = 2, .depth = 2, .area_min = 56 * 56, .area_max = 28 * 28 * 1280,     \
                   .video_fps = 2.0, .video_frames_min = 4, .video_frames_max = 768

/* Decoders of other models, too. */
extern const struct family family_llama, family_lfm2, family_qwen2, family_qwen3, family_qwen3_5;

/* Of Qwen2-VL and Qwen2.5-VL. */
extern const struct hf_text qwen2_vl_text;
extern const struct family_images qwen2_vl_images;

/* family.read of all. Of the type's defaults these say which keys there are: text.qk_norm (attention_bias),
 * text.sliding_window, text.num_experts, vision.intermediate_size (0: by mlp_ratio, and hidden_size is the
 * width after the merger), window_size, tokens_per_second, position_side, deepstack_count; place: HF_EITHER
 * has no head_dim, HF_NESTED ties as Qwen3-VL does. */
void qwen_read(struct hf_reader *r, const struct family_type *type, struct hf_config *c);
/* rope_type (or `type`) of that object and the keys of the type; absent or "default": *p stays. */
void qwen_rope_type(struct hf_reader *r, uint32_t dict, const struct hf_text *t, struct hf_rope *p);
/* Columns of a head that rotate: the first. */
uint32_t qwen_rotary(const struct hf_text *t);
/* Checks what recurrent layers have; sets layer_types unless they were listed: every interval-th is full
 * attention. */
void qwen_recurrent(struct hf_reader *r, bool listed, uint32_t interval, struct hf_text *t);
/* The decoder of every generation: family.describe of the text models. */
void qwen_describe_decoder(struct hf_reader *r, const struct hf_config *c, struct model_desc *d);
/* The parts of the tower that all generations have (merging end, fused qkv, 2-D rotary), with the names of
 * these tensors. */
void qwen_describe_tower(const struct hf_config *c, struct model_desc *d);
/* The tower, images and videos of Qwen3-VL. */
void qwen3_vl_describe_images(const struct hf_config *c, struct model_desc *d);
extern const struct family_images qwen3_vl_images;
/* How an image is written; a video is one run of placeholder tokens (Qwen2-VL, Qwen2.5-VL). */
void qwen_describe_images(const struct hf_config *c, struct model_desc *d);

/* Of heads that rotate in two dimensions. */
void qwen_check_heads(struct hf_reader *r, const struct hf_vision *v);
/* What must hold of a tower that has been read; `first`: of Qwen2-VL. */
void qwen_check_vision(struct hf_reader *r, const struct hf_text *t, const struct hf_vision *v, bool first);
/* position_side of a table with so many rows. */
#define QWEN_POSITIONS_MAX (1u << 20)
void qwen_position_side(struct hf_reader *r, uint32_t rows, struct hf_vision *v);

/* GGUF files of all of them. */
#define QWEN_GGUF_EXPERTS                                                                                    \
    {"blk.#.ffn_gate_inp", "model.layers.#.mlp.gate"},                                                       \
        {"blk.#.ffn_gate_exps", "model.layers.#.mlp.experts.*.gate_proj"},                                   \
        {"blk.#.ffn_up_exps", "model.layers.#.mlp.experts.*.up_proj"},                                       \
        {"blk.#.ffn_gate_inp_shexp", "model.layers.#.mlp.shared_expert_gate"},                               \
        {"blk.#.ffn_gate_shexp", "model.layers.#.mlp.shared_expert.gate_proj"},                              \
        {"blk.#.ffn_up_shexp", "model.layers.#.mlp.shared_expert.up_proj"},                                  \
        {"blk.#.ffn_down_shexp", "model.layers.#.mlp.shared_expert.down_proj"},                              \
    {                                                                                                        \
        "blk.#.ffn_down_exps", "model.layers.#.mlp.experts.*.down_proj"                                      \
    }
extern const struct gguf_name qwen_gguf_experts[];
extern const char *const qwen_gguf_stops[];
void qwen_gguf_text(struct gguf_keys *k, struct hf_text *t);
/* First, where a part of a head may rotate and the drafter's layers follow. */
void qwen_gguf_rotary(struct gguf_keys *k, struct hf_text *t);
void llama_gguf_text(struct gguf_keys *k, struct hf_text *t);
void llama_gguf_ministral3(struct gguf_keys *k, struct hf_text *t);
/* Of the towers: the keys that all have, and the names except those of the merger and the MLPs. */
void qwen_gguf_tower(struct gguf_keys *k, struct hf_config *c);
/* position_side of the tower's table; image_size of such an image. */
void qwen_gguf_positions(struct gguf_keys *k, struct hf_vision *v);
void qwen_gguf_patches(struct gguf_keys *k, struct image_config *out);
/* The same, with areas: the given ones if the file has none. */
void qwen_gguf_areas(struct gguf_keys *k, uint32_t least, uint32_t most, struct image_config *out);
void qwen2_vl_gguf_images(struct gguf_keys *k, struct image_config *out); /* and of Qwen2.5-VL */
#define QWEN_GGUF_TOWER                                                                                      \
    {"v.patch_embd", "visual.patch_embed.proj"}, {"v.blk.#.ln1", "visual.blocks.#.norm1"},                   \
        {"v.blk.#.ln2", "visual.blocks.#.norm2"}, {"v.blk.#.attn_qkv", "visual.blocks.#.attn.qkv"},          \
        {"v.blk.#.attn_q", "visual.blocks.#.attn.q"}, {"v.blk.#.attn_k", "visual.blocks.#.attn.k"},          \
        {"v.blk.#.attn_v", "visual.blocks.#.attn.v"},                                                        \
    {                                                                                                        \
        "v.blk.#.attn_out", "visual.blocks.#.attn.proj"                                                      \
    }
#define QWEN2_GGUF_MERGER                                                                                    \
    {"v.post_ln", "visual.merger.ln_q"}, {"mm.0", "visual.merger.mlp.0"},                                    \
    {                                                                                                        \
        "mm.2", "visual.merger.mlp.2"                                                                        \
    }

/* Of Qwen3.5, dense. */
extern const struct hf_text qwen3_5_text;
extern const struct gguf_name qwen3_5_gguf_names[];
void qwen3_5_gguf_text(struct gguf_keys *k, struct hf_text *t);

/* Of LFM2. */
extern const struct gguf_name lfm2_gguf_names[];
void lfm2_gguf_text(struct gguf_keys *k, struct hf_text *t);

/* Of Qwen3-VL's tower. */
extern const struct gguf_name qwen3_vl_gguf_tower_names[];
void qwen3_vl_gguf_tower(struct gguf_keys *k, struct hf_config *c);
void qwen3_vl_gguf_images(struct gguf_keys *k, struct image_config *out);
void qwen3_vl_gguf_videos(struct gguf_keys *k, struct image_config *out);
#define QWEN3_VL_GGUF(kind, type, keys)                                                                      \
    GGUF_TEXT(kind, type, keys),                                                                             \
        GGUF_TOWER("qwen3vl_merger", type, qwen3_vl_gguf_tower_names, qwen3_vl_gguf_tower,                   \
                   qwen3_vl_gguf_images),                                                                    \
        .videos = qwen3_vl_gguf_videos, .stops = qwen_gguf_stops

#endif
