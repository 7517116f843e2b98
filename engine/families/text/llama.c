/* Llama (1 to 3, SmolLM2, TinyLlama), Mistral, SmolLM3, Granite and ERNIE 4.5: the decoder of qwen.c without
 * its biases. transformers models/llama, mistral, ministral3, smollm3, granite, granitemoehybrid,
 * ernie4_5. */
#include "engine/families/standard.h"

#include <math.h>
#include <string.h>

#define MULTIPLIERS(embedding, attention, residual, logits)                                                  \
    .embedding_multiplier = (embedding), .attention_multiplier = (attention),                                \
    .residual_multiplier = (residual), .logits_scaling = (logits)
static const struct hf_text LLAMA_TEXT = {TEXT_SIZES(32000, 4096, 11008, 32, 32, 0, 2048), SILU(1e-6),
                                          STANDARD_ROPE(1e4)};
static const struct hf_text MISTRAL_TEXT = {TEXT_SIZES(32000, 4096, 14336, 32, 32, 8, 131072), SILU(1e-6),
                                            STANDARD_ROPE(1e4)};
static const struct hf_text MINISTRAL3_TEXT = {TEXT_SIZES(131072, 4096, 14336, 34, 32, 8, 262144), SILU(1e-5),
                                               .head_dim = 128, STANDARD_ROPE(1e6)};
static const struct hf_text SMOLLM3_TEXT = {TEXT_SIZES(128256, 2048, 11008, 36, 16, 4, 32768), SILU(1e-6),
                                            .tie_word_embeddings = true, STANDARD_ROPE(2e6)};
static const struct hf_text ERNIE4_5_TEXT = {TEXT_SIZES(103424, 1024, 3072, 18, 16, 2, 131072), SILU(1e-5),
                                             .head_dim = 128, .tie_word_embeddings = true,
                                             STANDARD_ROPE(5e5)};
static const struct hf_text GRANITE_TEXT = {TEXT_SIZES(32000, 4096, 11008, 32, 32, 0, 2048),
                                            MULTIPLIERS(1, 1, 1, 1), SILU(1e-6), STANDARD_ROPE(1e4)};

/* Granite 4.0, whose MLP is the shared one of a mixture without experts. */
static const struct hf_text GRANITE_HYBRID_TEXT = {TEXT_SIZES(32000, 4096, 1024, 32, 32, 0, 2048),
                                                   MULTIPLIERS(1, 1, 1, 1), SILU(1e-6), STANDARD_ROPE(1e4)};
/* Of Granite-Docling. */
static const struct hf_text GRANITE_DOCLING_TEXT = {TEXT_SIZES(133800, 1024, 2048, 28, 16, 4, 32768),
                                                    SILU(1e-5), .tie_word_embeddings = true,
                                                    MULTIPLIERS(12, 0.015625, 0.263, 4), STANDARD_ROPE(1e4)};

static void set_no_rope(struct hf_text *t, uint32_t n, bool none)
{
    t->no_rope[n / 8] = (uint8_t)((t->no_rope[n / 8] & ~(1u << n % 8)) | (unsigned)none << n % 8);
}

/* SmolLM3: every fourth layer has no RoPE; with a sliding window, the layers without RoPE use it. */
static void read_no_rope(struct hf_reader *r, struct hf_text *t)
{
    uint32_t interval = 4, turns[HF_LAYERS_MAX], count = 0;
    bool use = false;
    hf_u32(r, r->text, "no_rope_layer_interval", 1, HF_LAYERS_MAX, &interval);
    hf_bool(r, r->text, "use_sliding_window", &use);
    hf_u32(r, r->text, "sliding_window", 1, 1u << 30, &t->sliding_window);
    bool listed = hf_list(r, r->text, "no_rope_layers", 1, HF_LAYERS_MAX, turns, &count);
    if (listed && count < t->num_hidden_layers)
        hf_error(r, ST_FORMAT, "no_rope_layers", "must have an entry for each layer");
    use = use && t->sliding_window;
    bool typed = hf_layer_types(r, r->text, HF_SLIDING, t);
    for (uint32_t n = 0; n < t->num_hidden_layers && !r->st; n++) {
        bool none = listed ? turns[n] == 0 : (n + 1) % interval == 0;
        set_no_rope(t, n, none);
        if (!typed || !use) t->layer_types[n] = use && none ? HF_SLIDING : HF_FULL;
    }
}

/* Of all layers. Mistral: absent means 4096, null none. */
static void read_window(struct hf_reader *r, uint32_t absent, struct hf_text *t)
{
    uint32_t key = json_get(r->d, r->text, "sliding_window");
    if (key == JSON_NONE ? !absent : json_kind(r->d, key) == JSON_NULL) return;
    t->sliding_window = absent;
    hf_u32(r, r->text, "sliding_window", 1, 1u << 30, &t->sliding_window);
    memset(t->layer_types, HF_SLIDING, t->num_hidden_layers);
}

static void read_hybrid(struct hf_reader *r, struct hf_text *t)
{
    uint32_t experts = 8, list = json_get_live(r->d, r->text, "layer_types"), count = json_count(r->d, list);
    bool dense = count == t->num_hidden_layers;
    t->intermediate_size = GRANITE_HYBRID_TEXT.intermediate_size;
    hf_u32(r, r->text, "shared_intermediate_size", 1, SIZE_MAX_FF, &t->intermediate_size);
    hf_u32(r, r->text, "num_local_experts", 0, UINT32_MAX, &experts);
    for (uint32_t n = 0, at = json_first(r->d, list); n < count; n++, at = json_next(r->d, at))
        dense = dense && (json_str_eq(r->d, at, "attention") || json_str_eq(r->d, at, "full_attention"));
    if (!dense || experts)
        hf_error(r, ST_UNSUPPORTED, dense ? "num_local_experts" : "layer_types",
                 "Mamba-2 layers and experts are not served (granite-4.0-h-*), only the dense models "
                 "(granite-4.0-micro, granite-4.0-1b, granite-4.0-350m)");
    if (!json_str_eq(r->d, json_get_live(r->d, r->text, "position_embedding_type"), "rope"))
        memset(t->no_rope, 0xff, sizeof t->no_rope);
}

/* Ministral 3: YaRN by default, and queries that grow with the context. */
static void read_scaling(struct hf_reader *r, struct hf_rope *p)
{
    uint32_t params = json_get_live(r->d, r->text, "rope_scaling"); /* the old spelling */
    if (params == JSON_NONE) params = json_get_live(r->d, r->text, "rope_parameters");
    if (params == JSON_NONE) {
        *p = (struct hf_rope){.type = HF_ROPE_YARN,
                              .theta = 1e6,
                              .factor = 16,
                              .original_max = 16384,
                              .beta_fast = 32,
                              .beta_slow = 1,
                              .attention_factor = 1,
                              .truncate = true,
                              .llama_4_scaling_beta = 0.1};
        return;
    }
    hf_double(r, params, "llama_4_scaling_beta", 0, 1e3, &p->llama_4_scaling_beta);
    if (p->llama_4_scaling_beta > 0 && p->original_max == 0)
        hf_double(r, params, "original_max_position_embeddings", 1, SIZE_MAX_POSITIONS, &p->original_max);
    if (!r->st && p->llama_4_scaling_beta > 0 && p->original_max == 0)
        hf_error(r, ST_FORMAT, "original_max_position_embeddings", "is missing from the RoPE parameters");
}

static void read_mistral(struct hf_reader *r, struct hf_text *t)
{
    read_window(r, 4096, t);
}

static void read_ministral3(struct hf_reader *r, struct hf_text *t)
{
    read_window(r, 0, t);
    read_scaling(r, &t->rope[HF_FULL]);
}

/* What types read that others don't. */
static const struct kind {
    const struct hf_text *text;
    const char *mlp_bias, *attention_bias; /* keys; NULL: no biases */
    void (*more)(struct hf_reader *r, struct hf_text *t);
} kinds[] = {{&MISTRAL_TEXT, NULL, NULL, read_mistral},
             {&MINISTRAL3_TEXT, NULL, NULL, read_ministral3},
             {&ERNIE4_5_TEXT, "use_bias", "use_bias", NULL},
             {&SMOLLM3_TEXT, "mlp_bias", "attention_bias", read_no_rope},
             {&GRANITE_HYBRID_TEXT, "mlp_bias", "attention_bias", read_hybrid},
             {NULL, "mlp_bias", "attention_bias", NULL}};

static void read(struct hf_reader *r, const struct family_type *type, struct hf_config *c)
{
    struct hf_text *t = &c->text;
    const struct kind *kind = kinds;
    while (kind->text && kind->text != type->text) kind++;
    standard_read(r, type, c);
    t->tie_word_embeddings = type->text->tie_word_embeddings;
    hf_bool(r, r->text, "tie_word_embeddings", &t->tie_word_embeddings);
    if (kind->mlp_bias) {
        hf_bool(r, r->text, kind->mlp_bias, &t->mlp_bias);
        hf_bool(r, r->text, kind->attention_bias, &t->qkv_bias);
        t->o_bias = t->qkv_bias;
    }
    if (kind->more) kind->more(r, t);
    if (type->text->logits_scaling == 0) return;
    hf_double(r, r->text, "embedding_multiplier", 1e-6, 1e6, &t->embedding_multiplier);
    hf_double(r, r->text, "attention_multiplier", 1e-6, 1e6, &t->attention_multiplier);
    hf_double(r, r->text, "residual_multiplier", 1e-6, 1e6, &t->residual_multiplier);
    hf_double(r, r->text, "logits_scaling", 1e-6, 1e6, &t->logits_scaling);
}

/* The residual stream is kept divided by residual_multiplier: then branches are added as they are, and RMS
 * norms see the same with their eps divided by its square. */
static void describe_multipliers(const struct hf_text *t, struct model_desc *d)
{
    double m = t->residual_multiplier;
    if (m == 0) return;
    d->embed_scale = t->embedding_multiplier / m;
    d->embed_scale_kept = true;
    d->norm_eps = (float)(t->rms_norm_eps / (m * m));
    d->logit_scale = (float)(1 / t->logits_scaling);
    for (uint32_t n = 0; n < d->layer_count; n++) d->layers[n].scale = (float)t->attention_multiplier;
}

static void describe(struct hf_reader *r, const struct hf_config *c, struct model_desc *d)
{
    const struct hf_text *t = &c->text;
    standard_describe_decoder(r, c, d);
    if (r->st) return;
    d->eos_count = c->eos_count;
    d->ropes[0].query_beta = (float)t->rope[HF_FULL].llama_4_scaling_beta;
    d->ropes[0].original = t->rope[HF_FULL].original_max;
    d->qk_pairs_differ = strcmp(c->model_type, "ernie4_5") != 0; /* llama.cpp's conversion does it */
    d->qk_pairs = r->d == NULL || !d->qk_pairs_differ;
    d->ropes[1] = d->ropes[0];
    d->ropes[1].ramp = RAMP_NONE;
    d->ropes[1].unrotated_pairs = d->ropes[0].dim / 2;
    d->ropes[1].attention = 1;
    for (uint32_t n = 0; n < d->layer_count; n++) {
        d->layers[n].rope = t->no_rope[n / 8] >> n % 8 & 1;
        if (d->layers[n].rope) d->rope_count = 2;
    }
    describe_multipliers(t, d);
    if (strcmp(c->model_type, "granitemoehybrid") != 0) return;
    d->names.gate_up = "text.layers.#.shared_mlp.input_linear";
    d->names.down = "text.layers.#.shared_mlp.output_linear";
}

/* ---- GGUF files ---- */

/* Llama 3's RoPE scaling is given only by the divisors of the frequencies. All released files have these
 * numbers; the last divisor is the factor. */
static void gguf_llama3(struct gguf_keys *k, const struct hf_text *t, struct hf_rope *p)
{
    float divisors[SIZE_MAX_HEAD_DIM / 2], scaled[SIZE_MAX_HEAD_DIM / 2], plain[SIZE_MAX_HEAD_DIM / 2];
    uint32_t half = t->head_dim / 2;
    if (!gguf_floats(k, "rope_freqs.weight", half, divisors)) return;
    struct desc_rope rope = {.theta = p->theta, .factor = 1, .dim = t->head_dim};
    desc_rope_frequencies(&rope, plain);
    p->type = HF_ROPE_LLAMA3;
    rope.ramp = RAMP_LLAMA3;
    rope.factor = p->factor = (double)divisors[half - 1];
    rope.original = p->original_max = 8192;
    rope.beta_fast = p->beta_fast = 4;
    rope.beta_slow = p->beta_slow = 1;
    desc_rope_frequencies(&rope, scaled);
    for (uint32_t i = 0; i < half; i++)
        if (!(fabsf(plain[i] / divisors[i] - scaled[i]) <= 1e-4f * scaled[i])) {
            gguf_error(k, ST_UNSUPPORTED, "rope_freqs.weight", "only the scaling of Llama 3 is served");
            return;
        }
}

void llama_gguf_text(struct gguf_keys *k, struct hf_text *t)
{
    standard_gguf_text(k, t);
    if (!k->r.st) gguf_llama3(k, t, &t->rope[HF_FULL]);
    t->rope[HF_SLIDING] = t->rope[HF_FULL];
}

/* yarn_log_multiplier is mscale_all_dim; mscale is 1 in every release. */
void llama_gguf_ministral3(struct gguf_keys *k, struct hf_text *t)
{
    struct hf_rope *p = &t->rope[HF_FULL];
    double all_dim = 0;
    llama_gguf_text(k, t);
    gguf_read_f64(k, "attention.temperature_scale", 0, 1e3, &p->llama_4_scaling_beta);
    gguf_read_f64(k, "rope.scaling.yarn_log_multiplier", 0, 1e3, &all_dim);
    if (p->type == HF_ROPE_YARN && all_dim > 0)
        p->attention_factor = (0.1 * log(p->factor) + 1) / (0.1 * all_dim * log(p->factor) + 1);
    t->rope[HF_SLIDING] = *p;
}

static void gguf_smollm3(struct gguf_keys *k, struct hf_text *t)
{
    llama_gguf_text(k, t);
    for (uint32_t n = 0; n < t->num_hidden_layers; n++) set_no_rope(t, n, (n + 1) % 4 == 0);
}

static void gguf_granite(struct gguf_keys *k, struct hf_text *t)
{
    llama_gguf_text(k, t);
    gguf_read_f64(k, "embedding_scale", 1e-6, 1e6, &t->embedding_multiplier);
    gguf_read_f64(k, "attention.scale", 1e-6, 1e6, &t->attention_multiplier);
    gguf_read_f64(k, "residual_scale", 1e-6, 1e6, &t->residual_multiplier);
    gguf_read_f64(k, "logit_scale", 1e-6, 1e6, &t->logits_scaling);
}

/* Mistral's files also have the architecture llama, and no window. */
static const struct family_gguf llama_files[] = {
    {.arch = "llama", .model_type = "llama", .text = llama_gguf_text},
    {.arch = "smollm3", .model_type = "smollm3", .text = gguf_smollm3},
    {.arch = "granite", .model_type = "granite", .text = gguf_granite},
    {.arch = "ernie4_5", .model_type = "ernie4_5", .text = llama_gguf_text},
    {NULL},
};

const struct family family_llama = {
    .types = {{"llama", HF_FLAT, &LLAMA_TEXT, NULL},
              {"mistral", HF_FLAT, &MISTRAL_TEXT, NULL},
              {"ministral3", HF_FLAT, &MINISTRAL3_TEXT, NULL, .pad = 12},
              {"smollm3", HF_FLAT, &SMOLLM3_TEXT, NULL, .pad = 128005},
              {"granite", HF_FLAT, &GRANITE_TEXT, NULL},
              {"granitemoehybrid", HF_FLAT, &GRANITE_HYBRID_TEXT, NULL},
              {"ernie4_5", HF_FLAT, &ERNIE4_5_TEXT, NULL},
              {"granite_docling_text", HF_FLAT, &GRANITE_DOCLING_TEXT, NULL}},
    .read = read,
    .describe = describe,
    .gguf = llama_files,
};
