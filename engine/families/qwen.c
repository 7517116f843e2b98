/* The decoder of Qwen2, Qwen2.5, Qwen3 (dense, experts) and of the text side of their vision models:
 * config.json -> description. Formulas and names: transformers models/qwen2, qwen3, qwen3_moe, qwen2_vl,
 * qwen3_vl_moe; specs qwen-vl 2, 5, 6. */
#include "engine/families/qwen.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POSITIONS_MAX 16777216.0 /* a position is exact as float32 up to here */

static const char *after(const char *s, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(s, prefix, n) == 0 ? s + n : NULL;
}

/* The layouts in the wild:
 *   A  model.X                  visual.Y         lm_head.weight                  released Qwen2-VL,
 * Qwen2.5-VL and all text models B  model.language_model.X   model.visual.Y   lm_head.weight Qwen3-VL; what
 * transformers 4.52 and later saved C  language_model.model.X   visual.Y language_model.lm_head.weight
 * re-exports D  language_model.X visual.Y saved without the head Canonical: text.X, vision.Y, head.weight. */
static bool canonical(const char *name, char out[DESC_NAME_MAX])
{
    const char *x, *part = "text.";
    size_t len = strlen(name), tail = strlen("inv_freq");
    if (len >= tail && strcmp(name + len - tail, "inv_freq") == 0)
        return false; /* tables that old files carry along */
    if ((x = after(name, "visual.")) || (x = after(name, "model.visual."))) {
        part = "vision.";
    } else if ((x = after(name, "lm_head.")) || (x = after(name, "language_model.lm_head."))) {
        part = "head.";
    } else if (!(x = after(name, "model.language_model.")) && !(x = after(name, "language_model.model.")) &&
               !(x = after(name, "language_model.")) && !(x = after(name, "model."))) {
        return false;
    }
    int n = snprintf(out, DESC_NAME_MAX, "%s%s", part, x);
    return n > 0 && n < (int)DESC_NAME_MAX;
}

static void describe_rope(const struct hf_text *t, struct desc_rope *r)
{
    const struct hf_rope *p = &t->rope[HF_FULL];
    *r = (struct desc_rope){
        .theta = p->theta,
        .factor = p->factor,
        .dim = t->head_dim,
        .attention = 1,
        .sections = {p->mrope_section[0], p->mrope_section[1], p->mrope_section[2]},
        .interleaved = p->mrope_interleaved,
    };
    if (p->type != HF_ROPE_YARN) return;
    r->yarn = true;
    r->yarn_truncate = p->truncate;
    r->yarn_original = p->original_max;
    r->yarn_beta_fast = p->beta_fast;
    r->yarn_beta_slow = p->beta_slow;
    r->attention = p->attention_factor;
}

/* YaRN is switched on by an entry in config.json, often without raising max_position_embeddings: then the
 * model is good for factor x the length that it was trained with. (transformers has no limit; vLLM always
 * takes the product, even where the file says more.) */
static uint32_t context_max(const struct hf_text *t)
{
    const struct hf_rope *p = &t->rope[HF_FULL];
    double context = t->max_position_embeddings;
    if (p->type == HF_ROPE_YARN && p->factor * p->original_max > context)
        context = p->factor * p->original_max;
    return (uint32_t)(context < POSITIONS_MAX ? context : POSITIONS_MAX);
}

static void describe_layer(const struct hf_config *c, uint32_t n, struct desc_layer *l)
{
    const struct hf_text *t = &c->text;
    bool always = c->family == HF_QWEN2 || c->family == HF_QWEN2_VL || c->family == HF_QWEN2_5_VL;
    *l = (struct desc_layer){
        .heads = t->num_attention_heads,
        .kv_heads = t->num_key_value_heads,
        .head_dim = t->head_dim,
        .scale = (float)(1.0 / sqrt((double)t->head_dim)),
        .window = t->layer_types[n] == HF_SLIDING ? t->sliding_window : 0,
        .qkv_bias = always || t->attention_bias,
        .o_bias = !always && t->attention_bias, /* Qwen2's o_proj never has one */
        .ff = t->intermediate_size,
        .gate = GATE_SILU,
    };
    if (!t->sparse[n]) return;
    l->ff = t->moe_intermediate_size;
    l->experts = t->num_experts;
    l->experts_used = t->num_experts_per_tok;
    l->experts_renorm = t->norm_topk_prob;
}

enum status qwen_describe_decoder(const struct hf_config *c, struct model_desc *d, struct err *err)
{
    const struct hf_text *t = &c->text;
    bool normed = c->family == HF_QWEN3 || c->family == HF_QWEN3_VL; /* per head, before the rotation */
    *d = (struct model_desc){
        .vocab = t->vocab_size,
        .hidden = t->hidden_size,
        .layer_count = t->num_hidden_layers,
        .context_max = context_max(t),
        .rope_count = 1,
        .norm_eps = (float)t->rms_norm_eps,
        .embed_scale = 1,
        .tied = t->tie_word_embeddings,
        .names =
            {.embed = "text.embed_tokens",
             .head = "head",
             .final_norm = "text.norm",
             .input_norm = "text.layers.#.input_layernorm",
             .q = "text.layers.#.self_attn.q_proj",
             .k = "text.layers.#.self_attn.k_proj",
             .v = "text.layers.#.self_attn.v_proj",
             .o = "text.layers.#.self_attn.o_proj",
             .q_norm = normed ? "text.layers.#.self_attn.q_norm" : NULL,
             .k_norm = normed ? "text.layers.#.self_attn.k_norm" : NULL,
             .pre_mlp_norm =
                 "text.layers.#.post_attention_layernorm", /* the name is Llama's: it stands before the MLP */
             .gate = "text.layers.#.mlp.gate_proj",
             .up = "text.layers.#.mlp.up_proj",
             .down = "text.layers.#.mlp.down_proj",
             .router = "text.layers.#.mlp.gate",
             .expert_gate = "text.layers.#.mlp.experts.#.gate_proj",
             .expert_up = "text.layers.#.mlp.experts.#.up_proj",
             .expert_down = "text.layers.#.mlp.experts.#.down_proj",
             .expert_gate_up = "text.layers.#.mlp.experts.gate_up_proj",
             .expert_down_all = "text.layers.#.mlp.experts.down_proj"},
        /* As released; model_desc_settle looks at the file. */
        .expert_layout = c->family == HF_QWEN3_VL ? EXPERTS_IN_OUT : EXPERTS_EACH,
        .bos_id = c->bos_id,
        .eos_count = c->eos_count,
        .canonical = canonical,
    };
    describe_rope(t, &d->ropes[0]);
    for (uint32_t i = 0; i < c->eos_count; i++) d->eos_ids[i] = c->eos_ids[i];
    if (d->eos_count == 0 && d->vocab > 151645)
        d->eos_ids[d->eos_count++] = 151645; /* <|im_end|>, the vision classes' default */
    d->layers = calloc(d->layer_count, sizeof *d->layers);
    if (!d->layers) return err_set(err, ST_NOMEM, "out of memory for %u layers", d->layer_count);
    for (uint32_t n = 0; n < d->layer_count; n++) describe_layer(c, n, &d->layers[n]);
    return ST_OK;
}

void qwen_describe_tower(const struct hf_config *c, struct model_desc *d)
{
    const struct hf_vision *v = &c->vision;
    d->has_vision = true;
    d->vision = (struct desc_vision){
        .patch = v->patch_size,
        .hidden = v->hidden_size,
        .ff = v->intermediate_size,
        .layers = v->num_hidden_layers,
        .heads = v->num_attention_heads,
        .eps = (float)v->layer_norm_eps,
        .qkv_fused = true,
        .depth = v->temporal_patch_size,
        .rope_theta = v->rope_theta,
        .end = VISION_MERGE,
        .merge = v->spatial_merge_size,
        .names = {.patch = "vision.patch_embed.proj",
                  .norm1 = "vision.blocks.#.norm1",
                  .norm2 = "vision.blocks.#.norm2",
                  .q = "vision.blocks.#.attn.qkv",
                  .o = "vision.blocks.#.attn.proj"},
    };
}

void qwen_describe_images(const struct hf_config *c, struct model_desc *d)
{
    /* The template writes <|vision_start|> and <|vision_end|> around the one pad that is repeated. */
    d->image = (struct model_image_rule){
        .present = true,
        .marker = "<|image_pad|>",
        .prefix = "",
        .suffix = "",
        .soft = "<|image_pad|>",
        .soft_id = c->image_id,
        .grid = true,
    };
    if (c->video_id == HF_NO_ID) return;
    d->image.video_marker = d->image.video_soft = "<|video_pad|>";
    d->image.video_prefix = d->image.video_suffix = "";
    d->image.video_soft_id = c->video_id;
}
