/* See from_gguf.h. */
#include "engine/families/from_gguf.h"

#include "engine/checkpoint/safetensors.h"
#include "engine/families/families.h"
#include "engine/families/gguf_keys.h"

#include <stdio.h>
#include <string.h>

#define TEXT_BYTES_MAX (1u << 20)

/* ---- which family ---- */

static enum status find_rule(const struct gguf_files *f, const struct family_gguf **out, struct err *err)
{
    const char *path = gguf_path(f->parts[0]);
    struct gguf_text arch, projector = {"", 0};
    if (!gguf_string(gguf_get(f->parts[0], "general.architecture"), &arch))
        return err_set(err, ST_FORMAT, "%s: no general.architecture", path);
    if (gguf_text_is(arch, "clip"))
        return err_set(err, ST_INVALID, "%s: a vision tower: give it with --mmproj, beside its model", path);
    if (f->tower && !gguf_string(gguf_get(f->tower, "clip.projector_type"), &projector) &&
        !gguf_string(gguf_get(f->tower, "clip.vision.projector_type"), &projector))
        return err_set(err, ST_FORMAT,
                       "%s: no clip.projector_type: not a vision tower (one inside a model's file, as Ollama "
                       "has it, is not read)",
                       gguf_path(f->tower));
    bool known = false;
    for (size_t i = 0; family_gguf_at(i); i++) {
        const struct family_gguf *r = family_gguf_at(i);
        if (!gguf_text_is(arch, r->arch)) continue;
        known = true;
        if (f->tower ? r->projector && gguf_text_is(projector, r->projector) : !r->projector) {
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
        if (family_gguf_at(i)->projector) continue;
        int n =
            snprintf(served + used, sizeof served - used, "%s%s", used ? ", " : "", family_gguf_at(i)->arch);
        if (n > 0 && (size_t)n < sizeof served - used) used += (size_t)n;
    }
    return err_set(err, ST_UNSUPPORTED, "%s: general.architecture \"%.*s\" is not one that is served (%s)",
                   path, (int)(arch.len < 64 ? arch.len : 64), arch.p, served);
}

/* ---- config.json ---- */

static void check_served(struct gguf_keys *k)
{
    bool causal = true;
    uint32_t size = 0, value = 0;
    if (gguf_bool(gguf_key(k, "attention.causal"), &causal) && !causal)
        gguf_fault(k, ST_UNSUPPORTED, "attention.causal", "this is an encoder, not a generator");
    if (gguf_key_u32(k, "attention.key_length", &size) && gguf_key_u32(k, "attention.value_length", &value) &&
        size != value)
        gguf_fault(k, ST_UNSUPPORTED, "attention.value_length",
                   "only that of attention.key_length is served");
    if (size && gguf_key_u32(k, "rope.dimension_count", &value) && value != size)
        gguf_fault(k, ST_UNSUPPORTED, "rope.dimension_count", "only that of attention.key_length is served");
}

/* The object that has the text's keys, but for its closing brace. */
static void put_text(struct gguf_keys *k)
{
    uint32_t vocab = gguf_rows(k, "token_embd.weight"), heads = 0, kv = 0, ff = 0, id;
    const struct gguf_value *tokens = gguf_get(k->f->parts[0], "tokenizer.ggml.tokens");
    if (!vocab && tokens && tokens->count <= UINT32_MAX) vocab = (uint32_t)tokens->count;
    gguf_put(k, "{\"model_type\":\"%s\"", k->rule->model_type);
    gguf_put_u32(k, "vocab_size", vocab);
    gguf_copy_u32(k, "hidden_size", "embedding_length", true);
    gguf_copy_u32(k, "num_hidden_layers", "block_count", true);
    gguf_copy_u32(k, "max_position_embeddings", "context_length", true);
    if (gguf_key_layer(k, "feed_forward_length", 0, &ff)) gguf_put_u32(k, "intermediate_size", ff);
    if (!gguf_key_layer(k, "attention.head_count", 0, &heads))
        gguf_fault(k, ST_FORMAT, "attention.head_count", "is missing");
    kv = heads;
    (void)gguf_key_layer(k, "attention.head_count_kv", 0, &kv);
    gguf_put_u32(k, "num_attention_heads", heads);
    gguf_put_u32(k, "num_key_value_heads", kv);
    gguf_copy_u32(k, "head_dim", "attention.key_length", false);
    gguf_copy_f64(k, "rms_norm_eps", "attention.layer_norm_rms_epsilon");
    if (gguf_columns(k, "blk.0.attn_q.bias")) gguf_put(k, ",\"attention_bias\":true");
    if (gguf_u32(gguf_get(k->f->parts[0], "tokenizer.ggml.bos_token_id"), &id))
        gguf_put_u32(k, "bos_token_id", id);
    if (gguf_u32(gguf_get(k->f->parts[0], "tokenizer.ggml.eos_token_id"), &id))
        gguf_put_u32(k, "eos_token_id", id);
    if (gguf_u32(gguf_get(k->f->parts[0], "tokenizer.ggml.padding_token_id"), &id))
        gguf_put_u32(k, "pad_token_id", id);
    if (k->rule->text) k->rule->text(k);
}

static void put_config(struct gguf_keys *k)
{
    const char *tie = gguf_columns(k, "output.weight") ? "false" : "true";
    check_served(k);
    if (k->rule->nested) gguf_put(k, "{\"model_type\":\"%s\",\"text_config\":", k->rule->model_type);
    put_text(k);
    if (k->rule->nested) gguf_put(k, "}");
    gguf_put(k, ",\"tie_word_embeddings\":%s", tie);
    if (k->f->tower) {
        uint32_t out = 0, hidden = 0;
        if (gguf_key_u32(k, "embedding_length", &hidden) &&
            gguf_tower_u32(k, "vision.projection_dim", false, &out) && out != hidden && !k->st)
            k->st = err_set(k->err, ST_FORMAT, "%s: made for a model of width %u; that of %s is %u",
                            gguf_path(k->f->tower), out, gguf_path(k->f->parts[0]), hidden);
        gguf_put(k, ",\"vision_config\":{\"model_type\":\"%s\"", k->rule->model_type);
        k->rule->tower(k);
        gguf_put(k, "}");
        if (k->rule->top) k->rule->top(k);
    }
    gguf_put(k, "}");
}

/* ---- the other files ---- */

static void put_suppressed(struct gguf_keys *k)
{
    const struct gguf_value *v = gguf_get(k->f->parts[0], "tokenizer.ggml.suppress_tokens");
    uint32_t id;
    bool any = false;
    if (v && v->kind == GGUF_ARRAY && v->item != GGUF_STRING) {
        gguf_put_list(k, "suppress_tokens", v, v->count);
        return;
    }
    gguf_put(k, ",\"suppress_tokens\":[");
    for (const char *const *s = k->rule->never; s && *s; s++) {
        if (!gguf_token(k, *s, &id)) continue;
        gguf_put(k, any ? ",%u" : "%u", id);
        any = true;
    }
    gguf_put(k, "]");
}

static void put_generation(struct gguf_keys *k)
{
    static const char *const ends[] = {"eos_token_id", "eot_token_id", "eom_token_id"};
    static const char *const draws[][2] = {{"temperature", "temp"},
                                           {"top_k", "top_k"},
                                           {"top_p", "top_p"},
                                           {"min_p", "min_p"},
                                           {"repetition_penalty", "penalty_repeat"}};
    char key[64];
    uint32_t id;
    bool any = false;
    double x;
    gguf_put(k, "{\"eos_token_id\":[");
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        snprintf(key, sizeof key, "tokenizer.ggml.%s", ends[i]);
        if (!gguf_u32(gguf_get(k->f->parts[0], key), &id)) continue;
        gguf_put(k, any ? ",%u" : "%u", id);
        any = true;
    }
    for (const char *const *s = k->rule->stops; s && *s; s++) {
        if (!gguf_token(k, *s, &id)) continue;
        gguf_put(k, any ? ",%u" : "%u", id);
        any = true;
    }
    gguf_put(k, "]");
    for (size_t i = 0; i < sizeof draws / sizeof *draws; i++) {
        snprintf(key, sizeof key, "general.sampling.%s", draws[i][1]);
        if (!gguf_f64(gguf_get(k->f->parts[0], key), &x)) continue;
        if (i == 0) gguf_put(k, ",\"do_sample\":true");
        gguf_put_f64(k, draws[i][0], x);
    }
    put_suppressed(k);
    gguf_put(k, "}");
}

static void put_channels(struct gguf_keys *k, const char *name, const char *key)
{
    const struct gguf_value *v = gguf_tower_key(k, key);
    if (v && v->kind == GGUF_ARRAY && v->item != GGUF_STRING && v->count == 3) gguf_put_list(k, name, v, 3);
}

static void put_pictures(struct gguf_keys *k, void (*put)(struct gguf_keys *k))
{
    gguf_put(k, "{\"image_processor_type\":\"%s\"", k->rule->model_type);
    put_channels(k, "image_mean", "vision.image_mean");
    put_channels(k, "image_std", "vision.image_std");
    put(k);
    gguf_put(k, "}");
}

enum status gguf_config_text(const struct gguf_files *f, const char *name, char **text, size_t *len,
                             struct err *err)
{
    static const char *const names[] = {"config.json", "generation_config.json", "preprocessor_config.json",
                                        "video_preprocessor_config.json"};
    struct gguf_keys k = {.f = f, .err = err};
    size_t known = 0;
    while (known < sizeof names / sizeof *names && strcmp(name, names[known]) != 0) known++;
    if (known == sizeof names / sizeof *names)
        return err_set(err, ST_NOT_FOUND, "%s: a GGUF file has no %s", gguf_path(f->parts[0]), name);
    enum status st = find_rule(f, &k.rule, err);
    if (st) return st;
    buf_init(&k.b, TEXT_BYTES_MAX);
    if (strcmp(name, "config.json") == 0) put_config(&k);
    else if (strcmp(name, "generation_config.json") == 0) put_generation(&k);
    else if (strcmp(name, "preprocessor_config.json") == 0 && f->tower) put_pictures(&k, k.rule->pictures);
    else if (strcmp(name, "video_preprocessor_config.json") == 0 && f->tower && k.rule->videos)
        put_pictures(&k, k.rule->videos);
    else k.st = err_set(err, ST_NOT_FOUND, "%s: a GGUF file has no %s", gguf_path(f->parts[0]), name);
    if (k.st) {
        buf_fini(&k.b);
        return k.st;
    }
    *text = k.b.data;
    *len = k.b.len;
    return ST_OK;
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
/* Tables that can be computed, and what hears. */
static const char *const LEFT_OUT[] = {"rope_freqs.", "rope_factors_long.", "rope_factors_short.", "a.",
                                       "mm.a."};

struct names {
    const struct gguf_files *f;
    const struct family_gguf *rule;
    const struct gguf_value *taps; /* of the tower: for each layer whether it has one; NULL: none */
    bool swapped;                  /* files of the first conversions call the tower's up down, and down up */
};

static uint32_t tap_of(const struct names *n, uint32_t layer)
{
    uint32_t tap = 0;
    for (uint32_t i = 0; n->taps && i < layer && i < n->taps->count; i++) tap += gguf_item(n->taps, i) != 0;
    return tap;
}

/* Rows of a layer's queries: what its output projection takes. */
static uint32_t query_rows(const struct names *n, uint32_t layer)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%u.attn_output.weight", layer);
    return gguf_columns(&(struct gguf_keys){.f = n->f}, name);
}

/* What `from` is by one row; false: it does not fit. */
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
    size_t at = 0;
    for (const char *p = row->to; *p && at < STF_NAME_MAX; p++) {
        int len = *p == '#'   ? snprintf(out + at, STF_NAME_MAX - at, "%u", number)
                  : *p == '@' ? snprintf(out + at, STF_NAME_MAX - at, "%u", tap_of(n, number))
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

/* The two halves of an MLP, each for the other. */
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
    snprintf(out, STF_NAME_MAX, "%s", from); /* nobody asks for it: a warning names it */
    for (char *p = out; *p; p++)
        if (*p == '*' || *p == '[') *p = '?';
    return true;
}

enum status gguf_open_tensors(struct gguf_files *f, struct stf_files **out, struct err *err)
{
    struct names n = {.f = f};
    enum status st = find_rule(f, &n.rule, err);
    if (st) {
        gguf_files_close(f);
        return st;
    }
    struct gguf_keys k = {.f = f, .rule = n.rule, .err = err};
    uint32_t width = gguf_tower_columns(&k, "v.blk.0.attn_out.weight");
    n.swapped = width && gguf_tower_columns(&k, "v.blk.0.ffn_down.weight") == width &&
                gguf_tower_columns(&k, "v.blk.0.ffn_up.weight") != width;
    n.taps = gguf_tower_key(&k, "vision.is_deepstack_layers");
    if (n.taps && (n.taps->kind != GGUF_ARRAY || n.taps->item == GGUF_STRING)) n.taps = NULL;
    return stf_open_gguf(f, &(struct stf_naming){rename_tensor, &n, n.rule->norms_plus_one}, out, err);
}
