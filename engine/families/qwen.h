/* Shared by the Qwen files, and by those of models that contain one: besides standard.h, the common parts of
 * the three towers. Class defaults are those of transformers 5.23's configuration classes; released files
 * that differ (rms_norm_eps 1e-6, tokens_per_second 2, a tower of 1280) say so themselves. */
#ifndef KVASIR_FAMILIES_QWEN_H
#define KVASIR_FAMILIES_QWEN_H

#include "engine/families/standard.h"

#define QWEN_MERGE                                                                                           \
    .out_hidden_size = 3584, .spatial_merge_size = 2, .temporal_patch_size = 2, .rope_theta = 1e4
#define QWEN3_TOWER                                                                                          \
    TOWER_SIZES(1152, 4304, 27, 16, 16), QWEN_MERGE, .activation = HF_GELU_TANH, .position_side = 48
/* Qwen2VLImageProcessor (of all generations; checkpoints override most of it), and the common part of
 * Qwen2VLVideoProcessor and Qwen3VLVideoProcessor. fps: the class has none; the model's own tools use 2. */
#define QWEN_IMAGES                                                                                          \
    NATIVE_IMAGES, .patch = 14, .merge = 2, .depth = 2, .area_min = 56 * 56, .area_max = 28 * 28 * 1280,     \
                   .video_fps = 2.0, .video_frames_min = 4, .video_frames_max = 768

/* Of Qwen2-VL and Qwen2.5-VL. */
extern const struct hf_text qwen2_vl_text;
extern const struct family_images qwen2_vl_images;

/* Columns of a head that rotate: the first. */
uint32_t qwen_rotary(const struct hf_text *t);
/* Checks what recurrent layers have; sets layer_types unless they were listed: every interval-th is full
 * attention. */
void qwen_recurrent(struct hf_reader *r, bool listed, uint32_t interval, struct hf_text *t);
/* The tower, images and videos of Qwen3-VL. */
void qwen3_vl_describe_images(const struct hf_config *c, struct model_desc *d);
extern const struct family_images qwen3_vl_images;
/* How an image is written; a video is one run of placeholder tokens (Qwen2-VL, Qwen2.5-VL). */
void qwen_describe_images(const struct hf_config *c, struct model_desc *d);

/* GGUF files. */
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
/* Of the towers: the keys that all have, and the names except those of the merger and the MLPs. */
void qwen_gguf_tower(struct gguf_keys *k, struct hf_config *c);
void qwen2_vl_gguf_images(struct gguf_keys *k, struct image_config *out); /* and of Qwen2.5-VL */
#define QWEN2_GGUF_MERGER                                                                                    \
    {"v.post_ln", "visual.merger.ln_q"}, {"mm.0", "visual.merger.mlp.0"},                                    \
    {                                                                                                        \
        "mm.2", "visual.merger.mlp.2"                                                                        \
    }

/* Of Qwen3.5, dense. */
extern const struct hf_text qwen3_5_text;
extern const struct gguf_name qwen3_5_gguf_names[];
void qwen3_5_gguf_text(struct gguf_keys *k, struct hf_text *t);

/* Of Qwen3-VL's tower. */
extern const struct gguf_name qwen3_vl_gguf_tower_names[];
void qwen3_vl_gguf_tower(struct gguf_keys *k, struct hf_config *c);
void qwen3_vl_gguf_images(struct gguf_keys *k, struct image_config *out);
void qwen3_vl_gguf_videos(struct gguf_keys *k, struct image_config *out);
#define QWEN3_VL_GGUF(kind, type, keys)                                                                      \
    GGUF_TEXT(kind, type, keys),                                                                             \
        GGUF_TOWER("qwen3vl_merger", type, qwen3_vl_gguf_tower_names, qwen3_vl_gguf_tower,                   \
                   qwen3_vl_gguf_images),                                                                    \
        .videos = qwen3_vl_gguf_videos, .stops = standard_gguf_stops

#endif
