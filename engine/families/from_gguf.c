/* A checkpoint from GGUF files: its configuration, and its tensors under their names in a directory.
 * Differences between families are in their records. See gguf_keys.h. */

#include "engine/checkpoint/gguf_files.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/families/families.h"
#include "engine/families/gguf_keys.h"

#include <stdio.h>
#include <string.h>

/* ---- which family ---- */

static enum status find_rule(const struct gguf_files *f, const struct family_gguf **out, struct err *err)
{
    const char *path = gguf_path(f->parts[0]);
    struct gguf_text arch, projector = {"", 0};
    if (!gguf_string(gguf_get(f->parts[0], "general.architecture"), &arch))
        return err_set(err, ST_FORMAT, "%s: no general.architecture", path);
    if (gguf_text_is(arch, "clip"))
        return err_set(err, ST_INVALID,
                       "%s: a vision tower: pass it with --mmproj, with its model as --model", path);
    if (f->tower && !gguf_string(gguf_get(f->tower, "clip.projector_type"), &projector) &&
        !gguf_string(gguf_get(f->tower, "clip.vision.projector_type"), &projector))
        return err_set(
            err, ST_FORMAT,
            "--mmproj %s: this is not an mmproj file; use the mmproj-*.gguf of the model (a vision "
            "tower inside a model's file, as Ollama has it, is not read)",
            gguf_path(f->tower));
    bool known = false;
    for (size_t i = 0; family_gguf_at(i); i++) {
        const struct family_gguf *r = family_gguf_at(i);
        if (!gguf_text_is(arch, r->arch)) continue;
        known = true;
        if (f->tower ? r->projector && gguf_text_is(projector, r->projector) : r->model_type != NULL) {
            *out = r;
            return ST_OK;
        }
    }
    if (known)
        return err_set(err, ST_UNSUPPORTED,
                       "%s: a tower of kind \"%.*s\" is not served with a model of kind \"%.*s\"",
                       gguf_path(f->tower), (int)projector.len, projector.p, (int)arch.len, arch.p);
    char served[256] = "";
    size_t used = 0;
    for (size_t i = 0; family_gguf_at(i); i++) {
        if (!family_gguf_at(i)->model_type) continue;
        int n =
            snprintf(served + used, sizeof served - used, "%s%s", used ? ", " : "", family_gguf_at(i)->arch);
        if (n > 0 && (size_t)n < sizeof served - used) used += (size_t)n;
    }
    return err_set(err, ST_UNSUPPORTED, "%s: general.architecture \"%.*s\" is not one that is served (%s)",
                   path, (int)(arch.len < 64 ? arch.len : 64), arch.p, served);
}

/* ---- configuration ---- */

static void check_served(struct gguf_keys *k, bool partial)
{
    bool causal = true;
    uint32_t size = 0, value = 0;
    if (gguf_bool(gguf_key(k, "attention.causal"), &causal) && !causal && !k->rule->encoder)
        gguf_error(k, ST_UNSUPPORTED, "attention.causal", "this is an encoder, not a generator");
    if (!gguf_u32(gguf_key(k, "attention.key_length"), &size)) return;
    if (gguf_u32(gguf_key(k, "attention.value_length"), &value) && value != size)
        gguf_error(k, ST_UNSUPPORTED, "attention.value_length",
                   "only that of attention.key_length is served");
    if (!partial && gguf_u32(gguf_key(k, "rope.dimension_count"), &value) && value != size)
        gguf_error(k, ST_UNSUPPORTED, "rope.dimension_count", "only that of attention.key_length is served");
}

static void read_text(struct gguf_keys *k, struct hf_text *t)
{
    uint32_t vocab = gguf_rows(k, "token_embd.weight");
    const struct gguf_value *tokens = gguf_key(k, "tokenizer.ggml.tokens");
    gguf_set_u32(k, "token_embd.weight", vocab || !tokens ? vocab : tokens->count, 1, SIZE_MAX_VOCAB,
                 &t->vocab_size);
    gguf_read_u32(k, "embedding_length", true, 1, SIZE_MAX_HIDDEN, &t->hidden_size);
    gguf_read_u32(k, "block_count", true, 1, HF_LAYERS_MAX, &t->num_hidden_layers);
    gguf_read_u32(k, "context_length", true, 1, SIZE_MAX_POSITIONS, &t->max_position_embeddings);
    gguf_layer_u32(k, "feed_forward_length", 0, 1, SIZE_MAX_FF, &t->intermediate_size);
    if (!gguf_layer_u32(k, "attention.head_count", 0, 1, SIZE_MAX_HEADS, &t->num_attention_heads))
        gguf_error(k, ST_FORMAT, "attention.head_count", "is missing");
    uint32_t kv = 0; /* also that of a layer without attention */
    for (uint32_t n = 0; n < t->num_hidden_layers && !kv && !k->r.st; n++)
        gguf_layer_u32(k, "attention.head_count_kv", n, 0, SIZE_MAX_HEADS, &kv);
    t->num_key_value_heads = kv ? kv : t->num_attention_heads;
    gguf_read_u32(k, "attention.key_length", false, 2, SIZE_MAX_HEAD_DIM, &t->head_dim);
    gguf_read_f64(k, "attention.layer_norm_rms_epsilon", 0, 1, &t->rms_norm_eps);
    /* If the class always has it, the output has none. */
    if (!t->qkv_bias) t->qkv_bias = t->o_bias = gguf_columns(k, "blk.0.attn_q.bias") != 0;
    t->tie_word_embeddings = gguf_columns(k, "output.weight") == 0;
    if (!k->r.st) k->rule->text(k, t);
    hf_check_heads(&k->r, t);
}

static void read_tower(struct gguf_keys *k, struct hf_config *c)
{
    struct hf_vision *v = &c->vision;
    uint32_t out = c->text.hidden_size;
    (void)gguf_u32(gguf_key(k, "clip.vision.projection_dim"), &out);
    if (out != c->text.hidden_size)
        k->r.st = err_set(k->r.err, ST_FORMAT, "%s: made for a model of width %u; that of %s is %u",
                          gguf_path(k->f->tower), out, k->r.file, c->text.hidden_size);
    gguf_read_u32(k, "clip.vision.embedding_length", true, 1, SIZE_MAX_HIDDEN, &v->hidden_size);
    gguf_read_u32(k, "clip.vision.block_count", true, 1, HF_LAYERS_MAX, &v->num_hidden_layers);
    gguf_read_u32(k, "clip.vision.attention.head_count", true, 1, SIZE_MAX_HEADS, &v->num_attention_heads);
    gguf_read_u32(k, "clip.vision.patch_size", true, 1, SIZE_MAX_PATCH, &v->patch_size);
    gguf_set_u32(k, "v.blk.0.ffn_up.weight", gguf_tower_width(k), 1, SIZE_MAX_FF, &v->intermediate_size);
    if (!k->r.st) k->rule->tower(k, c);
}

static enum status open_keys(const char *model, const char *mmproj, struct gguf_files *f, struct gguf_keys *k,
                             struct err *err)
{
    *k = (struct gguf_keys){.f = f, .r = {.file = model, .scope = "", .err = err}};
    enum status st = gguf_files_open(model, mmproj, f, err);
    if (st) return st;
    st = find_rule(f, &k->rule, err);
    if (st) gguf_files_close(f);
    return st;
}

static const struct family *find_family(const struct gguf_keys *k, const struct family_type **type)
{
    return family_find(k->f->tower ? k->rule->tower_type : k->rule->model_type, type);
}

enum status gguf_config(const char *model, const char *mmproj, struct hf_config *c, struct model_desc *d,
                        struct err *err)
{
    struct gguf_files f;
    struct gguf_keys k;
    enum status st = open_keys(model, mmproj, &f, &k, err);
    if (st) return st;
    const struct family_type *type;
    const struct family *family = find_family(&k, &type);
    family_defaults(family, type, f.tower != NULL, c);
    c->encoder = k.rule->encoder;
    check_served(&k, c->text.rope[HF_FULL].partial > 0);
    read_text(&k, &c->text);
    gguf_read_u32(&k, "tokenizer.ggml.bos_token_id", false, 0, SIZE_MAX_VOCAB - 1, &c->bos_id);
    c->eos_count =
        gguf_read_u32(&k, "tokenizer.ggml.eos_token_id", false, 0, SIZE_MAX_VOCAB - 1, &c->eos_ids[0]);
    if (f.tower && !k.r.st) read_tower(&k, c);
    if (!k.r.st) family->describe(&k.r, c, d);
    if (k.r.st) model_desc_free(d);
    gguf_files_close(&f);
    return k.r.st;
}

enum status gguf_prompt(const char *model, const struct family_prompt **out, struct err *err)
{
    struct gguf_files f;
    struct gguf_keys k;
    const struct family_type *type;
    enum status st = open_keys(model, NULL, &f, &k, err);
    if (st) return st;
    *out = find_family(&k, &type)->prompt;
    gguf_files_close(&f);
    return ST_OK;
}

enum status gguf_pooling(const char *model, uint32_t *out, struct err *err)
{
    struct gguf_files f;
    struct gguf_keys k;
    enum status st = open_keys(model, NULL, &f, &k, err);
    if (st) return st;
    gguf_read_u32(&k, "pooling_type", false, 0, 4, out);
    gguf_files_close(&f);
    return k.r.st;
}

/* ---- sampling defaults ---- */

static void add_id(struct gguf_keys *k, const char *key, double id, uint32_t max, uint32_t *ids,
                   uint32_t *count)
{
    for (uint32_t i = 0; i < *count; i++)
        if (ids[i] == id) return;
    if (*count == max || !(id >= 0 && id < SIZE_MAX_VOCAB))
        gguf_error(k, ST_FORMAT, key, "must be token ids, and not too many");
    else ids[(*count)++] = (uint32_t)id;
}

static void read_stops(struct gguf_keys *k, struct hf_generation *g)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    uint32_t id;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (gguf_u32(gguf_key(k, ends[i]), &id))
            add_id(k, ends[i], id, HF_EOS_MAX, g->eos_ids, &g->eos_count);
    for (const char *const *s = k->rule->stops; s && *s; s++)
        if (gguf_token(k, *s, &id)) add_id(k, ends[0], id, HF_EOS_MAX, g->eos_ids, &g->eos_count);
}

static void read_suppressed(struct gguf_keys *k, struct hf_generation *g)
{
    static const char key[] = "tokenizer.ggml.suppress_tokens";
    const struct gguf_value *v = gguf_key(k, key);
    bool list = v && v->kind == GGUF_ARRAY && v->item != GGUF_STRING;
    uint32_t id;
    for (uint64_t i = 0; list && i < v->count && !k->r.st; i++)
        add_id(k, key, gguf_item(v, i), HF_SUPPRESS_MAX, g->suppress_ids, &g->suppress_count);
    for (const char *const *s = k->rule->never; !list && s && *s; s++)
        if (gguf_token(k, *s, &id)) add_id(k, key, id, HF_SUPPRESS_MAX, g->suppress_ids, &g->suppress_count);
}

enum status gguf_generation(const char *model, struct hf_generation *g, struct err *err)
{
    struct gguf_files f;
    struct gguf_keys k;
    enum status st = open_keys(model, NULL, &f, &k, err);
    if (st) return st;
    *g = (struct hf_generation){0};
    read_stops(&k, g);
    read_suppressed(&k, g);
    g->has_temperature = gguf_read_f64(&k, "general.sampling.temp", 0, 1000, &g->temperature);
    g->has_do_sample = g->do_sample = g->has_temperature;
    g->has_top_p = gguf_read_f64(&k, "general.sampling.top_p", 0, 1, &g->top_p);
    g->has_top_k = gguf_read_u32(&k, "general.sampling.top_k", false, 0, SIZE_MAX_VOCAB, &g->top_k);
    g->has_min_p = gguf_read_f64(&k, "general.sampling.min_p", 0, 1, &g->min_p);
    g->has_repetition_penalty =
        gguf_read_f64(&k, "general.sampling.penalty_repeat", 1e-3, 1000, &g->repetition_penalty);
    gguf_files_close(&f);
    return k.r.st;
}

/* ---- images ---- */

static void read_channels(struct gguf_keys *k, const char *key, double lo, float out[3])
{
    const struct gguf_value *v = gguf_key(k, key);
    if (!v || v->kind != GGUF_ARRAY || v->item == GGUF_STRING || v->count != 3) return;
    for (uint32_t i = 0; i < 3; i++) {
        out[i] = (float)gguf_item(v, i);
        if (!((double)out[i] >= lo && out[i] <= 1e6f))
            gguf_error(k, ST_FORMAT, key, "must be numbers in range");
    }
}

enum status gguf_images(const char *model, const char *mmproj, bool videos, struct image_config *out,
                        struct err *err)
{
    struct gguf_files f;
    struct gguf_keys k;
    enum status st = open_keys(model, mmproj, &f, &k, err);
    if (st) return st;
    read_channels(&k, "clip.vision.image_mean", -1e6, out->mean);
    read_channels(&k, "clip.vision.image_std", 1e-6, out->std);
    if (!f.tower) k.r.st = err_set(err, ST_NOT_FOUND, "%s: has no vision tower", model);
    else if (videos && k.rule->videos) k.rule->videos(&k, out);
    else k.rule->images(&k, out);
    gguf_files_close(&f);
    return k.r.st;
}

/* ---- names ---- */

static const struct gguf_name COMMON[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"blk.#.attn_norm", "model.layers.#.input_layernorm"},
    {"blk.#.attn_q", "model.layers.#.self_attn.q_proj"},
    {"blk.#.attn_k", "model.layers.#.self_attn.k_proj"},
    {"blk.#.attn_v", "model.layers.#.self_attn.v_proj"},
    {"blk.#.attn_qkv", "model.layers.#.self_attn.[]_proj"},
    {"blk.#.attn_output", "model.layers.#.self_attn.o_proj"},
    {"blk.#.attn_q_norm", "model.layers.#.self_attn.q_norm"},
    {"blk.#.attn_k_norm", "model.layers.#.self_attn.k_norm"},
    {"blk.#.ffn_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.ffn_gate", "model.layers.#.mlp.gate_proj"},
    {"blk.#.ffn_up", "model.layers.#.mlp.up_proj"},
    {"blk.#.ffn_down", "model.layers.#.mlp.down_proj"},
    {NULL, NULL},
};
/* Tables that can be computed, audio towers, and a copy of a row of the embedding. */
static const char *const LEFT_OUT[] = {"rope_freqs.", "rope_factors_long.",    "rope_factors_short.", "a.",
                                       "mm.a.",       "v.token_embd.img_break"};

struct names {
    const struct gguf_files *f;
    const struct family_gguf *rule;
    const struct gguf_value *deepstack; /* of the tower: for each layer whether it has one; NULL: none */
    bool swapped;                       /* early conversions swap the names of the tower's up and down */
    uint32_t layers;                    /* of the model: the drafter's follow */
};

static uint32_t deepstack_of(const struct names *n, uint32_t layer)
{
    uint32_t tap = 0;
    for (uint32_t i = 0; n->deepstack && i < layer && i < n->deepstack->count; i++)
        tap += gguf_item(n->deepstack, i) != 0;
    return tap;
}

/* Rows of a layer's queries: the input width of its output projection. */
static uint32_t query_rows(const struct names *n, uint32_t layer)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%u.attn_output.weight", layer);
    return gguf_columns(&(struct gguf_keys){.f = n->f}, name);
}

/* The name of `from` by one row; false: no match. */
static bool apply(const struct names *n, const struct gguf_name *row, const char *from,
                  char out[STF_NAME_MAX])
{
    const char *s = from;
    uint32_t number = 0;
    for (const char *p = row->from; *p; p++) {
        size_t digits = *p == '#' ? strspn(s, "0123456789") : 0;
        if (*p == '#' ? digits == 0 || digits > 6 : *s != *p) return false;
        for (size_t i = 0; i < digits; i++) number = number * 10 + (uint32_t)(s[i] - '0');
        s += digits ? digits : 1;
    }
    if (*s && *s != '.') return false;
    const char *to = row->to, *drafter = number < n->layers ? NULL : family_after(to, "model.");
    size_t at = 0;
    if (drafter) {
        at = (size_t)snprintf(out, STF_NAME_MAX, "mtp.");
        to = drafter;
    }
    for (const char *p = to; *p && at < STF_NAME_MAX; p++) {
        int len = *p == '#' ? snprintf(out + at, STF_NAME_MAX - at, "%u", number - (drafter ? n->layers : 0))
                  : *p == '@' ? snprintf(out + at, STF_NAME_MAX - at, "%u", deepstack_of(n, number))
                  : *p == '[' ? snprintf(out + at, STF_NAME_MAX - at, "[%u", query_rows(n, number))
                              : snprintf(out + at, STF_NAME_MAX - at, "%c", *p);
        at += (size_t)len;
    }
    if (at >= STF_NAME_MAX) return false;
    int rest = snprintf(out + at, STF_NAME_MAX - at, "%s", s);
    return rest >= 0 && (size_t)rest < STF_NAME_MAX - at;
}

static bool look_up(const struct names *n, const struct gguf_name *rows, const char *from,
                    char out[STF_NAME_MAX])
{
    for (; rows && rows->from; rows++)
        if (apply(n, rows, from, out)) return true;
    return false;
}

/* Swaps the two halves of an MLP. */
static void swap_halves(const char *from, char out[STF_NAME_MAX])
{
    static const char *const halves[2] = {".ffn_up.", ".ffn_down."};
    snprintf(out, STF_NAME_MAX, "%s", from);
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(from, halves[i]);
        if (!at) continue;
        snprintf(out, STF_NAME_MAX, "%.*s%s%s", (int)(at - from), from, halves[1 - i],
                 at + strlen(halves[i]));
        return;
    }
}

static bool rename_tensor(const void *arg, const char *from, bool tower, char out[STF_NAME_MAX])
{
    const struct names *n = arg;
    char swapped[STF_NAME_MAX];
    for (size_t i = 0; i < sizeof LEFT_OUT / sizeof *LEFT_OUT; i++)
        if (strncmp(from, LEFT_OUT[i], strlen(LEFT_OUT[i])) == 0) return false;
    if (tower) {
        if (n->swapped) {
            swap_halves(from, swapped);
            from = swapped;
        }
        if (look_up(n, n->rule->tower_names, from, out)) return true;
    } else if (look_up(n, n->rule->names, from, out) || look_up(n, COMMON, from, out)) {
        return true;
    }
    snprintf(out, STF_NAME_MAX, "%s", from); /* not used: a warning names it */
    for (char *p = out; *p; p++)
        if (*p == '*' || *p == '[') *p = '?';
    return true;
}

enum status gguf_open_tensors(const char *model, const char *mmproj, struct stf_files **out, struct err *err)
{
    struct gguf_files f;
    struct gguf_keys k;
    enum status st = open_keys(model, mmproj, &f, &k, err);
    if (st) return st;
    struct names n = {.f = &f,
                      .rule = k.rule,
                      .deepstack = gguf_key(&k, "clip.vision.is_deepstack_layers"),
                      .layers = UINT32_MAX};
    uint32_t width = gguf_columns(&k, "v.blk.0.attn_out.weight"), drafters = 0;
    if (gguf_u32(gguf_key(&k, "block_count"), &n.layers) &&
        gguf_u32(gguf_key(&k, "nextn_predict_layers"), &drafters) && drafters <= n.layers)
        n.layers -= drafters;
    n.swapped = width && gguf_columns(&k, "v.blk.0.ffn_down.weight") == width &&
                gguf_columns(&k, "v.blk.0.ffn_up.weight") != width;
    if (n.deepstack && (n.deepstack->kind != GGUF_ARRAY || n.deepstack->item == GGUF_STRING))
        n.deepstack = NULL;
    return stf_open_gguf(&f, &(struct stf_naming){rename_tensor, &n, n.rule->norms_plus_one}, out, err);
}
