/* Shared by the Gemma families. See gemma.h. */
#include "engine/families/gemma.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct hf_vision siglip_defaults = {TOWER_SIZES(768, 3072, 12, 12, 16), .image_size = 224,
                                          .activation = HF_GELU_TANH};

void siglip_check(struct hf_reader *r, const struct hf_vision *v)
{
    r->scope = "vision_config.";
    uint32_t head = v->hidden_size / v->num_attention_heads;
    if (v->hidden_size % v->num_attention_heads || head > SIZE_MAX_HEAD_DIM || head % 2)
        hf_error(r, ST_FORMAT, "num_attention_heads", "must divide hidden_size into even heads");
    else if (v->image_size && v->image_size < v->patch_size)
        hf_error(r, ST_FORMAT, "image_size", "must hold a patch");
    r->scope = "";
}

void siglip_read(struct hf_reader *r, uint32_t obj, struct hf_vision *v)
{
    r->scope = "vision_config.";
    hf_u32(r, obj, "hidden_size", 1, SIZE_MAX_HIDDEN, &v->hidden_size);
    hf_u32(r, obj, "intermediate_size", 1, SIZE_MAX_FF, &v->intermediate_size);
    hf_u32(r, obj, "num_hidden_layers", 1, HF_LAYERS_MAX, &v->num_hidden_layers);
    hf_u32(r, obj, "num_attention_heads", 1, SIZE_MAX_HEADS, &v->num_attention_heads);
    hf_u32(r, obj, "num_channels", 3, 3, &v->num_channels);
    hf_side(r, obj, "image_size", SIZE_MAX_IMAGE, &v->image_size);
    hf_side(r, obj, "patch_size", SIZE_MAX_PATCH, &v->patch_size);
    hf_double(r, obj, "layer_norm_eps", 0, 1, &v->layer_norm_eps);
    uint32_t act = json_get_live(r->d, obj, "hidden_act");
    if (act != JSON_NONE)
        v->activation = json_str_eq(r->d, act, "gelu")         ? HF_GELU
                        : json_str_eq(r->d, act, "quick_gelu") ? HF_QUICK_GELU
                                                               : HF_GELU_TANH;
    hf_activation(r, obj, "hidden_act", v->activation);
    siglip_check(r, v);
}

bool gemma_canonical(const char *name, char out[DESC_NAME_MAX])
{
    const char *s = name, *rest = family_after(name, "model."), *x;
    if (rest && (family_after(rest, "language_model.") || family_after(rest, "vision_tower.") ||
                 family_after(rest, "multi_modal_projector.")))
        s = rest;
    const char *part = "text.";
    if ((x = family_after(s, "vision_tower."))) {
        const char *inner = family_after(x, "vision_model.");
        if (inner) x = inner;
        if (family_after(x, "head.")) return false; /* SigLIP's attention pooling: not used */
        part = "vision.";
    } else if ((x = family_after(s, "multi_modal_projector."))) {
        part = "projector.";
    } else if ((x = family_after(s, "language_model.model.")) || (x = family_after(s, "language_model.")) ||
               (x = family_after(s, "model."))) {
        if (family_after(x, "lm_head.")) {
            x += strlen("lm_head.");
            part = "head.";
        }
    } else if ((x = family_after(s, "lm_head."))) {
        part = "head.";
    } else if (family_after(s, "layers.") || family_after(s, "embed_tokens.") || family_after(s, "norm.")) {
        x = s; /* a text model without a head */
    } else {
        return false;
    }
    int n = snprintf(out, DESC_NAME_MAX, "%s%s", part, x);
    return n > 0 && n < (int)DESC_NAME_MAX;
}

struct desc_vision siglip_tower(const struct hf_config *c)
{
    const struct hf_vision *v = &c->vision;
    return (struct desc_vision){
        .image_size = v->image_size,
        DESC_TOWER(v),
        .mlp = v->activation == HF_GELU         ? VISION_GELU_ERF
               : v->activation == HF_QUICK_GELU ? VISION_QUICK_GELU
                                                : VISION_GELU_TANH,
        .patch_bias = true,
        .depth = 1,
        .position = true,
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
                  .post_norm = "vision.post_layernorm"},
    };
}

/* ---- GGUF files ---- */

const struct gguf_name gemma_gguf_names[] = {
    {"blk.#.post_attention_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.ffn_norm", "model.layers.#.pre_feedforward_layernorm"},
    {"blk.#.post_ffw_norm", "model.layers.#.post_feedforward_layernorm"},
    {NULL, NULL},
};
const char *const gemma_gguf_stops[] = {"<end_of_turn>", "<eos>", NULL};

void gemma_gguf_scale(struct gguf_keys *k, struct hf_text *t, uint32_t layers)
{
    uint32_t scalar = 256;
    gguf_read_u32(k, "attention.key_length", false, 1, SIZE_MAX_HEAD_DIM, &scalar);
    if (t->num_hidden_layers == layers && !k->r.st) scalar = t->hidden_size / t->num_attention_heads;
    t->query_pre_attn_scalar = scalar;
}
