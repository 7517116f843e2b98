/* Shared by most families' records: the usual decoder, parts of tensor names. See families.h. */
#include "engine/families/families.h"

#include "config/hf/reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POSITIONS_MAX 16777216.0 /* a position is exact as float32 up to here */

/* YaRN is switched on by an entry in config.json, often without raising max_position_embeddings: then the
 * model supports factor x its training length. (transformers has no limit; vLLM always takes the product,
 * even where the file says more.) */
static uint32_t context_max(const struct hf_text *t)
{
    const struct hf_rope *p = &t->rope[HF_FULL];
    double context = t->max_position_embeddings;
    if (p->type == HF_ROPE_YARN && p->factor * p->original_max > context)
        context = p->factor * p->original_max;
    return (uint32_t)(context < POSITIONS_MAX ? context : POSITIONS_MAX);
}

struct desc_rope family_rope(const struct hf_rope *p, uint32_t dim)
{
    struct desc_rope r = {
        .theta = p->theta,
        .factor = p->factor,
        .dim = dim,
        .attention = 1,
        .sections = {p->mrope_section[0], p->mrope_section[1], p->mrope_section[2]},
        .interleaved = p->mrope_interleaved,
    };
    if (p->type != HF_ROPE_YARN && p->type != HF_ROPE_LLAMA3) return r;
    r.ramp = p->type == HF_ROPE_YARN ? RAMP_YARN : RAMP_LLAMA3;
    r.truncate = p->truncate;
    r.original = p->original_max;
    r.beta_fast = p->beta_fast;
    r.beta_slow = p->beta_slow;
    if (p->type == HF_ROPE_YARN) r.attention = p->attention_factor;
    return r;
}

bool family_decoder(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    const struct hf_text *t = &c->text;
    *d = (struct model_desc){
        .vocab = t->vocab_size,
        .hidden = t->hidden_size,
        .layer_count = t->num_hidden_layers,
        .layers = calloc(t->num_hidden_layers, sizeof *d->layers),
        .context_max = context_max(t),
        .rope_count = 1,
        .ropes = {family_rope(&t->rope[HF_FULL], t->head_dim)},
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
            .mlp_bias = t->mlp_bias,
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

bool family_rename(const char *name, const char *const (*parts)[2], char out[DESC_NAME_MAX])
{
    for (; (*parts)[0]; parts++) {
        const char *rest = family_after(name, (*parts)[0]);
        int n = rest ? snprintf(out, DESC_NAME_MAX, "%s%s", (*parts)[1], rest) : 0;
        if (rest) return n > 0 && n < (int)DESC_NAME_MAX;
    }
    return false;
}

/* Layouts of released files:
 *   A  model.X                 visual.Y        lm_head                 Qwen2-VL, Qwen2.5-VL, all text models
 *   B  model.language_model.X  model.visual.Y  lm_head                 Qwen3-VL; saved by transformers 4.52+
 *   C  language_model.model.X  visual.Y        language_model.lm_head  re-exports
 *   D  language_model.X        visual.Y                                saved without the head
 *   E  layers.X, embed_tokens, norm                                    the same of a text model (embeddings)
 * Canonical: text.X, vision.Y, head.weight. */
bool family_canonical(const char *name, char out[DESC_NAME_MAX])
{
    const char *x, *part = "text.";
    size_t len = strlen(name), tail = strlen("inv_freq");
    if (len >= tail && strcmp(name + len - tail, "inv_freq") == 0) return false; /* tables in old files */
    if ((x = family_after(name, "visual.")) || (x = family_after(name, "model.visual."))) {
        part = "vision.";
    } else if ((x = family_after(name, "lm_head.")) || (x = family_after(name, "language_model.lm_head."))) {
        part = "head.";
    } else if (!(x = family_after(name, "model.language_model.")) &&
               !(x = family_after(name, "language_model.model.")) &&
               !(x = family_after(name, "language_model.")) && !(x = family_after(name, "model."))) {
        if (!family_after(name, "layers.") && !family_after(name, "embed_tokens.") &&
            !family_after(name, "norm."))
            return false;
        x = name;
    }
    int n = snprintf(out, DESC_NAME_MAX, "%s%s", part, x);
    return n > 0 && n < (int)DESC_NAME_MAX;
}

/* ---- models around another family's decoder ---- */

static const struct family *text_family(const struct family_inner *served, const char *name,
                                        const struct family_type **type)
{
    for (; served->family; served++)
        for (*type = served->family->types; (*type)->name; ++*type)
            if (strcmp(served->type, name) == 0 && strcmp((*type)->name, name) == 0) return served->family;
    return NULL;
}

void family_read_text(struct hf_reader *r, const struct family_inner *served, struct hf_config *c)
{
    const struct family_type *type;
    char name[sizeof c->text_type] = "";
    size_t len = 0;
    uint32_t node = json_get_live(r->d, r->text, "model_type");
    if (node == JSON_NONE || r->text == 0) snprintf(name, sizeof name, "%s", served[0].type);
    else if (json_str_copy(r->d, node, name, sizeof name - 1, &len)) name[len] = '\0';
    const struct family *family = text_family(served, name, &type);
    if (!family) {
        bool llm = r->text == json_get_live(r->d, 0, "llm_config");
        hf_error(r, ST_UNSUPPORTED, llm ? "llm_config.model_type" : "text_config.model_type",
                 "is not a decoder served in this model");
        return;
    }
    struct hf_reader inner = *r;
    inner.vision = JSON_NONE;
    bool vision = c->has_vision;
    c->has_vision = false;
    c->text = *type->text;
    family->read(&inner, type, c);
    c->has_vision = vision;
    snprintf(c->text_type, sizeof c->text_type, "%s", name);
    r->st = inner.st;
}

bool family_read_parts(struct hf_reader *r, const struct family_inner *served, bool tied, struct hf_config *c)
{
    if (r->vision == JSON_NONE) hf_error(r, ST_FORMAT, "vision_config", "is missing");
    if (r->st) return false;
    family_read_text(r, served, c);
    c->text.tie_word_embeddings = tied;
    hf_bool(r, 0, "tie_word_embeddings", &c->text.tie_word_embeddings);
    return !r->st;
}

bool family_describe_text(struct hf_reader *r, const struct family_inner *served, const struct hf_config *c,
                          struct model_desc *d)
{
    const struct family_type *type;
    const struct family *family = text_family(served, c->text_type[0] ? c->text_type : served[0].type, &type);
    struct hf_config inner = *c;
    inner.has_vision = false;
    family->describe(r, &inner, d);
    return !r->st;
}
