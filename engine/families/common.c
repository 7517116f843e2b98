/* Shared by most families' records: the usual decoder, parts of tensor names. See families.h. */
#include "engine/families/families.h"

#include "config/hf/reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool family_decoder(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    const struct hf_text *t = &c->text;
    *d = (struct model_desc){
        .vocab = t->vocab_size,
        .hidden = t->hidden_size,
        .layer_count = t->num_hidden_layers,
        .layers = calloc(t->num_hidden_layers, sizeof *d->layers),
        .context_max = t->max_position_embeddings,
        .rope_count = 1,
        .ropes = {{.theta = t->rope[HF_FULL].theta, .factor = t->rope[HF_FULL].factor, .dim = t->head_dim}},
        .norm_eps = (float)t->rms_norm_eps,
        .embed_scale = 1,
        .tied = t->tie_word_embeddings,
        .names = {.embed = "text.embed_tokens",
                  .head = "head",
                  .final_norm = "text.norm",
                  .input_norm = "text.layers.#.input_layernorm",
                  .q = "text.layers.#.self_attn.q_proj",
                  .k = "text.layers.#.self_attn.k_proj",
                  .v = "text.layers.#.self_attn.v_proj",
                  .o = "text.layers.#.self_attn.o_proj",
                  .q_norm = t->qk_norm ? "text.layers.#.self_attn.q_norm" : NULL,
                  .k_norm = t->qk_norm ? "text.layers.#.self_attn.k_norm" : NULL,
                  .pre_mlp_norm = "text.layers.#.post_attention_layernorm", /* despite its name */
                  .gate = "text.layers.#.mlp.gate_proj",
                  .up = "text.layers.#.mlp.up_proj",
                  .down = "text.layers.#.mlp.down_proj"},
        .bos_id = c->bos_id,
        .eos_count = c->eos_count,
    };
    if (!d->layers) {
        r->st = err_set(r->err, ST_NOMEM, "%s: out of memory for %u layers", r->file, d->layer_count);
        return false;
    }
    memcpy(d->eos_ids, c->eos_ids, sizeof c->eos_ids);
    for (uint32_t n = 0; n < d->layer_count; n++)
        d->layers[n] = (struct desc_layer){
            .kv_owner = n,
            .heads = t->num_attention_heads,
            .kv_heads = t->num_key_value_heads,
            .head_dim = t->head_dim,
            .scale = (float)(1.0 / sqrt((double)t->head_dim)),
            .window = t->layer_types[n] == HF_SLIDING ? t->sliding_window : 0,
            .qkv_bias = t->qkv_bias,
            .o_bias = t->o_bias,
            .ff = t->intermediate_size,
            .gate = t->activation == HF_SILU ? ACT_SILU : ACT_GELU_TANH,
        };
    return true;
}

const char *family_after(const char *s, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(s, prefix, n) == 0 ? s + n : NULL;
}
