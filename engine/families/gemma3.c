/* Gemma 3 (text 270M, 1B; text and pictures 4B, 12B, 27B; their fine-tunes): config.json -> description.
 * Formulas and names: transformers models/gemma3 and models/siglip. What is easy to get wrong stands beside
 * the line that gets it right. */
#include "engine/model/model_desc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *after(const char *s, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(s, prefix, n) == 0 ? s + n : NULL;
}

/* Three layouts are in the wild, with and without the `vision_model.` segment; a rule covers them all:
 *   A  language_model.model.X   vision_tower.vision_model.Y   multi_modal_projector.Z
 * language_model.lm_head.weight B  model.language_model.X   model.vision_tower.[..].Y
 * model.multi_modal_projector.Z   lm_head.weight C  model.X lm_head.weight Canonical: text.X, vision.Y,
 * projector.Z, head.weight. */
static bool canonical(const char *name, char out[DESC_NAME_MAX])
{
    const char *s = name, *rest = after(name, "model."), *x;
    if (rest && (after(rest, "language_model.") || after(rest, "vision_tower.") ||
                 after(rest, "multi_modal_projector.")))
        s = rest;
    const char *part = "text.";
    if ((x = after(s, "vision_tower."))) {
        const char *inner = after(x, "vision_model.");
        if (inner) x = inner;
        if (after(x, "head.")) return false; /* SigLIP's attention pooling: not used by this family */
        part = "vision.";
    } else if ((x = after(s, "multi_modal_projector."))) {
        part = "projector.";
    } else if ((x = after(s, "language_model.model.")) || (x = after(s, "language_model.")) ||
               (x = after(s, "model."))) {
        if (after(x, "lm_head.")) {
            x += strlen("lm_head.");
            part = "head.";
        }
    } else if ((x = after(s, "lm_head."))) {
        part = "head.";
    } else {
        return false;
    }
    int n = snprintf(out, DESC_NAME_MAX, "%s%s", part, x);
    return n > 0 && n < (int)DESC_NAME_MAX;
}

static void describe_layer(const struct hf_text *t, uint32_t n, struct desc_layer *l)
{
    bool sliding = t->layer_types[n] == HF_SLIDING;
    *l = (struct desc_layer){
        .heads = t->num_attention_heads,
        .kv_heads = t->num_key_value_heads,
        .head_dim = t->head_dim, /* never hidden_size / heads: 4B has 2560 / 8 = 320 but 256 */
        .scale = (float)(1.0 / sqrt(t->query_pre_attn_scalar)), /* not head_dim^-0.5: 27B has head_dim 128 and
                                                                   scale 168^-0.5 */
        .softcap = (float)t->attn_logit_softcapping,
        .window = sliding ? t->sliding_window : 0,
        .rope = sliding ? 1 : 0,
        .qkv_bias = t->attention_bias,
        .o_bias = t->attention_bias,
        .ff = t->intermediate_size,
        .gate = GATE_GELU_TANH,
    };
}

static void describe_vision(const struct hf_config *c, struct model_desc *d)
{
    uint32_t side = 1;
    while (side * side < c->mm_tokens_per_image) side++;
    d->has_vision = true;
    d->vision = (struct desc_vision){
        .image_size = c->vision.image_size,
        .patch = c->vision.patch_size,
        .hidden = c->vision.hidden_size,
        .ff = c->vision.intermediate_size,
        .layers = c->vision.num_hidden_layers,
        .heads = c->vision.num_attention_heads,
        .eps = (float)c->vision.layer_norm_eps,
        .mlp = VISION_GELU_TANH,
        .patch_bias = true,
        .depth = 1,
        .position = true,
        .end = VISION_POOL,
        .pool = c->vision.image_size / c->vision.patch_size / side,
        .tokens = c->mm_tokens_per_image,
        .names = {.patch = "vision.embeddings.patch_embedding",
                  .position = "vision.embeddings.position_embedding",
                  .norm1 = "vision.encoder.layers.#.layer_norm1",
                  .norm2 = "vision.encoder.layers.#.layer_norm2",
                  .q = "vision.encoder.layers.#.self_attn.q_proj",
                  .k = "vision.encoder.layers.#.self_attn.k_proj",
                  .v = "vision.encoder.layers.#.self_attn.v_proj",
                  .o = "vision.encoder.layers.#.self_attn.out_proj",
                  .fc1 = "vision.encoder.layers.#.mlp.fc1",
                  .fc2 = "vision.encoder.layers.#.mlp.fc2",
                  .post_norm = "vision.post_layernorm",
                  .soft_norm = "projector.mm_soft_emb_norm",
                  .projection = "projector.mm_input_projection_weight"},
    };
    d->image = (struct model_image_rule){
        .present = true,
        .marker = "<start_of_image>",
        .prefix = "\n\n<start_of_image>",
        .suffix = "<end_of_image>\n\n",
        .soft = "<image_soft_token>",
        .soft_id = c->image_id,
        .tokens = c->mm_tokens_per_image,
        .atomic = true, /* its tokens see each other in both directions */
    };
}

enum status gemma3_describe(const struct hf_config *c, struct model_desc *out, struct err *err)
{
    const struct hf_text *t = &c->text;
    struct model_desc d = {
        .vocab = t->vocab_size,
        .hidden = t->hidden_size,
        .layer_count = t->num_hidden_layers,
        .context_max = t->max_position_embeddings,
        .rope_count = 2,
        .ropes = {{.theta = t->rope[HF_FULL].theta, .factor = t->rope[HF_FULL].factor, .dim = t->head_dim},
                  {.theta = t->rope[HF_SLIDING].theta,
                   .factor = t->rope[HF_SLIDING].factor,
                   .dim = t->head_dim}},
        .norm_eps = (float)t->rms_norm_eps,
        .norm_plus_one = true,
        .embed_scale = sqrt((double)t->hidden_size),
        .final_softcap = (float)t->final_logit_softcapping,
        .tied = t->tie_word_embeddings,
        .names = {.embed = "text.embed_tokens",
                  .head = "head",
                  .final_norm = "text.norm",
                  .input_norm = "text.layers.#.input_layernorm",
                  .q = "text.layers.#.self_attn.q_proj",
                  .k = "text.layers.#.self_attn.k_proj",
                  .v = "text.layers.#.self_attn.v_proj",
                  .o = "text.layers.#.self_attn.o_proj",
                  .q_norm = "text.layers.#.self_attn.q_norm",
                  .k_norm = "text.layers.#.self_attn.k_norm",
                  .post_attn_norm = "text.layers.#.post_attention_layernorm",
                  .pre_mlp_norm = "text.layers.#.pre_feedforward_layernorm",
                  .gate = "text.layers.#.mlp.gate_proj",
                  .up = "text.layers.#.mlp.up_proj",
                  .down = "text.layers.#.mlp.down_proj",
                  .post_mlp_norm = "text.layers.#.post_feedforward_layernorm"},
        .bos_id = c->bos_id,
        .eos_count = c->eos_count,
        .canonical = canonical,
    };
    for (uint32_t i = 0; i < c->eos_count; i++) d.eos_ids[i] = c->eos_ids[i];
    if (d.eos_count == 0) d.eos_ids[d.eos_count++] = 1; /* the class default */
    d.layers = calloc(d.layer_count, sizeof *d.layers);
    if (!d.layers) return err_set(err, ST_NOMEM, "out of memory for %u layers", d.layer_count);
    for (uint32_t n = 0; n < d.layer_count; n++) describe_layer(t, n, &d.layers[n]);
    if (c->has_vision) describe_vision(c, &d);
    *out = d;
    return ST_OK;
}
