/* See hf_config.h. The defaults below are those of transformers' configuration classes: released files leave out every key that
 * equals its class default, so they are part of the format. */
#include "config/hf_config.h"

#include "config/base/json.h"
#include "config/base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX (4u << 20)
/* Ceilings far above any model: they only keep products of two or three sizes inside 64 bits and refuse nonsense early. */
#define SIZE_MAX_HIDDEN    65536u
#define SIZE_MAX_FF        (1u << 20)
#define SIZE_MAX_VOCAB     (1u << 24)
#define SIZE_MAX_HEADS     1024u
#define SIZE_MAX_HEAD_DIM  1024u
#define SIZE_MAX_POSITIONS (1u << 24) /* a position is exact as float32 up to here, as RoPE wants */
#define SIZE_MAX_IMAGE     8192u
#define SIZE_MAX_PATCH     256u

/* ---- family table ---- */

struct family {
    const char *model_type;
    enum hf_family family;
    bool nested; /* text keys stand in text_config */
    const struct hf_text *text;
    const struct hf_vision *vision;
};

static const struct hf_text GEMMA3_TEXT = {
    .vocab_size = 262208,
    .hidden_size = 2304,
    .intermediate_size = 9216,
    .num_hidden_layers = 26,
    .num_attention_heads = 8,
    .num_key_value_heads = 4,
    .head_dim = 256,
    .max_position_embeddings = 131072,
    .sliding_window = 4096,
    .rms_norm_eps = 1e-6,
    .query_pre_attn_scalar = 256,
    .tie_word_embeddings = true,
    .activation = HF_GELU_TANH,
    .rope = {[HF_FULL] = {HF_ROPE_DEFAULT, 1e6, 1}, [HF_SLIDING] = {HF_ROPE_DEFAULT, 1e4, 1}},
};
static const struct hf_vision SIGLIP = {
    .hidden_size = 768,
    .intermediate_size = 3072,
    .num_hidden_layers = 12,
    .num_attention_heads = 12,
    .num_channels = 3,
    .image_size = 224,
    .patch_size = 16,
    .layer_norm_eps = 1e-6,
    .activation = HF_GELU_TANH,
};
static const struct family FAMILIES[] = {
    {"gemma3", HF_GEMMA3, true, &GEMMA3_TEXT, &SIGLIP},
    {"gemma3_text", HF_GEMMA3, false, &GEMMA3_TEXT, NULL},
};
enum { FAMILY_COUNT = sizeof FAMILIES / sizeof FAMILIES[0] };

/* ---- reading one key ---- */

struct reader {
    const struct json_doc *d;
    const char *file;
    struct err *err;
    enum status st; /* first fault; later reads do nothing */
};

static void fault(struct reader *r, enum status st, const char *key, const char *what)
{
    if (!r->st) r->st = err_set(r->err, st, "%s: %s: %s", r->file, key, what);
}

/* Absent or null leaves *v. */
static void get_u32(struct reader *r, uint32_t obj, const char *key, uint32_t lo, uint32_t hi, uint32_t *v)
{
    uint32_t n = json_get_live(r->d, obj, key);
    if (n == JSON_NONE || r->st) return;
    int64_t x;
    char what[96];
    snprintf(what, sizeof what, "must be an integer from %u to %u", lo, hi);
    if (!json_int(r->d, n, &x) || x < (int64_t)lo || x > (int64_t)hi)
        fault(r, ST_FORMAT, key, what);
    else
        *v = (uint32_t)x;
}

static void get_double(struct reader *r, uint32_t obj, const char *key, double lo, double hi, double *v)
{
    uint32_t n = json_get_live(r->d, obj, key);
    if (n == JSON_NONE || r->st) return;
    double x;
    char what[96];
    snprintf(what, sizeof what, "must be a number from %g to %g", lo, hi);
    if (!json_double(r->d, n, &x) || !(x >= lo && x <= hi))
        fault(r, ST_FORMAT, key, what);
    else
        *v = x;
}

static void get_bool(struct reader *r, uint32_t obj, const char *key, bool *v)
{
    uint32_t n = json_get_live(r->d, obj, key);
    if (n == JSON_NONE || r->st) return;
    if (!json_bool(r->d, n, v)) fault(r, ST_FORMAT, key, "must be true or false");
}

/* An integer or a list of integers, added to the ids that are there already. */
static void get_ids(struct reader *r, uint32_t obj, const char *key, uint32_t *ids, uint32_t *count)
{
    uint32_t n = json_get_live(r->d, obj, key);
    if (n == JSON_NONE || r->st) return;
    bool list = json_kind(r->d, n) == JSON_ARRAY;
    uint32_t left = list ? json_count(r->d, n) : 1, at = list ? json_first(r->d, n) : n;
    for (; left > 0; left--, at = json_next(r->d, at)) {
        int64_t x;
        if (!json_int(r->d, at, &x) || x < 0 || x >= (int64_t)SIZE_MAX_VOCAB) {
            fault(r, ST_FORMAT, key, "must be a token id or a list of them");
            return;
        }
        bool known = false;
        for (uint32_t i = 0; i < *count; i++) known |= ids[i] == (uint32_t)x;
        if (known) continue;
        if (*count == HF_EOS_MAX) {
            fault(r, ST_FORMAT, key, "too many ids");
            return;
        }
        ids[(*count)++] = (uint32_t)x;
    }
}

static void get_activation(struct reader *r, uint32_t obj, const char *key, enum hf_activation *v)
{
    uint32_t n = json_get_live(r->d, obj, key);
    if (n == JSON_NONE || r->st) return;
    if (json_str_eq(r->d, n, "gelu_pytorch_tanh"))
        *v = HF_GELU_TANH;
    else
        fault(r, ST_UNSUPPORTED, key, "only gelu_pytorch_tanh is served");
}

/* ---- text ---- */

/* One RoPE parameter dict over what stands in *rope. */
static void read_rope_dict(struct reader *r, uint32_t dict, bool types_allowed, struct hf_rope *rope)
{
    if (json_kind(r->d, dict) != JSON_OBJECT) return;
    uint32_t type = json_get_live(r->d, dict, "rope_type");
    if (type == JSON_NONE) type = json_get_live(r->d, dict, "type");
    get_double(r, dict, "rope_theta", 1.0, 1e12, &rope->theta);
    if (type != JSON_NONE && !r->st) {
        if (json_str_eq(r->d, type, "default"))
            rope->type = HF_ROPE_DEFAULT;
        else if (json_str_eq(r->d, type, "linear") && types_allowed)
            rope->type = HF_ROPE_LINEAR;
        else
            fault(r, ST_UNSUPPORTED, "rope_type",
                  types_allowed ? "only default and linear are served" : "only default is served on sliding layers");
    }
    double factor = 0;
    get_double(r, dict, "factor", 1e-6, 1e6, &factor);
    if (factor > 0) rope->factor = factor;
}

/* Both spellings, and the mixed files that have per-type dicts without rope_theta beside the flat keys. */
static void read_rope(struct reader *r, uint32_t obj, struct hf_text *t)
{
    static const char *const names[2] = {[HF_FULL] = "full_attention", [HF_SLIDING] = "sliding_attention"};
    get_double(r, obj, "rope_theta", 1.0, 1e12, &t->rope[HF_FULL].theta);
    get_double(r, obj, "rope_local_base_freq", 1.0, 1e12, &t->rope[HF_SLIDING].theta);
    uint32_t params = json_get_live(r->d, obj, "rope_parameters"), scaling = json_get_live(r->d, obj, "rope_scaling");
    bool per_type = false;
    for (int k = 0; k < 2; k++) {
        uint32_t dict = json_get(r->d, params, names[k]);
        if (dict == JSON_NONE) continue;
        per_type = true;
        t->rope[k].factor = 1;
        read_rope_dict(r, dict, k == HF_FULL, &t->rope[k]);
    }
    if (params != JSON_NONE && !per_type && json_count(r->d, params) > 0) {
        log_warn("%s: rope_parameters has no entries per layer type: read as those of full attention", r->file);
        read_rope_dict(r, params, true, &t->rope[HF_FULL]);
    }
    if (scaling != JSON_NONE) read_rope_dict(r, scaling, true, &t->rope[HF_FULL]);
    for (int k = 0; k < 2; k++)
        if (t->rope[k].type == HF_ROPE_DEFAULT) t->rope[k].factor = 1;
}

static void read_layer_types(struct reader *r, uint32_t obj, struct hf_text *t)
{
    uint32_t list = json_get_live(r->d, obj, "layer_types");
    if (r->st) return;
    if (list == JSON_NONE) {
        uint32_t pattern = 6;
        get_u32(r, obj, "_sliding_window_pattern", 1, HF_LAYERS_MAX, &pattern);
        get_u32(r, obj, "sliding_window_pattern", 1, HF_LAYERS_MAX, &pattern);
        for (uint32_t n = 0; n < t->num_hidden_layers; n++) t->layer_types[n] = (n + 1) % pattern == 0 ? HF_FULL : HF_SLIDING;
        return;
    }
    if (json_kind(r->d, list) != JSON_ARRAY || json_count(r->d, list) != t->num_hidden_layers) {
        fault(r, ST_FORMAT, "layer_types", "must be a list of num_hidden_layers strings");
        return;
    }
    uint32_t at = json_first(r->d, list);
    for (uint32_t n = 0; n < t->num_hidden_layers; n++, at = json_next(r->d, at)) {
        if (json_str_eq(r->d, at, "full_attention"))
            t->layer_types[n] = HF_FULL;
        else if (json_str_eq(r->d, at, "sliding_attention"))
            t->layer_types[n] = HF_SLIDING;
        else {
            fault(r, ST_UNSUPPORTED, "layer_types", "only full_attention and sliding_attention are served");
            return;
        }
    }
}

static void read_text(struct reader *r, uint32_t obj, struct hf_text *t)
{
    get_u32(r, obj, "vocab_size", 1, SIZE_MAX_VOCAB, &t->vocab_size);
    get_u32(r, obj, "hidden_size", 1, SIZE_MAX_HIDDEN, &t->hidden_size);
    get_u32(r, obj, "intermediate_size", 1, SIZE_MAX_FF, &t->intermediate_size);
    get_u32(r, obj, "num_hidden_layers", 1, HF_LAYERS_MAX, &t->num_hidden_layers);
    get_u32(r, obj, "num_attention_heads", 1, SIZE_MAX_HEADS, &t->num_attention_heads);
    get_u32(r, obj, "num_key_value_heads", 1, SIZE_MAX_HEADS, &t->num_key_value_heads);
    get_u32(r, obj, "head_dim", 2, SIZE_MAX_HEAD_DIM, &t->head_dim);
    get_u32(r, obj, "max_position_embeddings", 1, SIZE_MAX_POSITIONS, &t->max_position_embeddings);
    get_u32(r, obj, "sliding_window", 1, 1u << 30, &t->sliding_window);
    get_double(r, obj, "rms_norm_eps", 0, 1, &t->rms_norm_eps);
    get_double(r, obj, "query_pre_attn_scalar", 1e-6, 1e9, &t->query_pre_attn_scalar);
    get_double(r, obj, "attn_logit_softcapping", 1e-6, 1e9, &t->attn_logit_softcapping);
    get_double(r, obj, "final_logit_softcapping", 1e-6, 1e9, &t->final_logit_softcapping);
    get_bool(r, obj, "attention_bias", &t->attention_bias);
    get_bool(r, obj, "tie_word_embeddings", &t->tie_word_embeddings);
    get_activation(r, obj, "hidden_activation", &t->activation);
    bool encoder = false;
    get_bool(r, obj, "use_bidirectional_attention", &encoder);
    if (encoder) fault(r, ST_UNSUPPORTED, "use_bidirectional_attention", "this is an encoder, not a generator");
    if (!r->st && t->head_dim % 2) fault(r, ST_FORMAT, "head_dim", "must be even");
    if (!r->st && t->num_attention_heads % t->num_key_value_heads)
        fault(r, ST_FORMAT, "num_attention_heads", "must be a multiple of num_key_value_heads");
    read_rope(r, obj, t);
    read_layer_types(r, obj, t);
}

static void read_vision(struct reader *r, uint32_t obj, struct hf_vision *v)
{
    get_u32(r, obj, "hidden_size", 1, SIZE_MAX_HIDDEN, &v->hidden_size);
    get_u32(r, obj, "intermediate_size", 1, SIZE_MAX_FF, &v->intermediate_size);
    get_u32(r, obj, "num_hidden_layers", 1, HF_LAYERS_MAX, &v->num_hidden_layers);
    get_u32(r, obj, "num_attention_heads", 1, SIZE_MAX_HEADS, &v->num_attention_heads);
    get_u32(r, obj, "num_channels", 3, 3, &v->num_channels);
    get_u32(r, obj, "image_size", 1, SIZE_MAX_IMAGE, &v->image_size);
    get_u32(r, obj, "patch_size", 1, SIZE_MAX_PATCH, &v->patch_size);
    get_double(r, obj, "layer_norm_eps", 0, 1, &v->layer_norm_eps);
    get_activation(r, obj, "hidden_act", &v->activation);
    if (r->st) return;
    uint32_t head = v->hidden_size / v->num_attention_heads;
    if (v->hidden_size % v->num_attention_heads || head > SIZE_MAX_HEAD_DIM || head % 2)
        fault(r, ST_FORMAT, "vision num_attention_heads", "must divide hidden_size into even heads");
    else if (v->image_size % v->patch_size)
        fault(r, ST_FORMAT, "image_size", "must be a multiple of patch_size");
}

/* The number of soft tokens is a square that divides the patch grid: an average pool makes the one from the other. */
static void check_image_tokens(struct reader *r, const struct hf_config *c)
{
    uint32_t side = 1, grid = c->vision.image_size / c->vision.patch_size;
    while (side * side < c->mm_tokens_per_image) side++;
    if (side * side != c->mm_tokens_per_image || side > grid || grid % side)
        fault(r, ST_FORMAT, "mm_tokens_per_image", "must be a square whose side divides the patch grid");
}

static void id_alias(struct reader *r, const char *key, const char *alias, uint32_t *id)
{
    get_u32(r, 0, alias, 0, SIZE_MAX_VOCAB - 1, id);
    get_u32(r, 0, key, 0, SIZE_MAX_VOCAB - 1, id);
}

static const struct family *find_family(struct reader *r)
{
    char type[64] = "", served[256] = "";
    size_t len = 0, used = 0;
    uint32_t node = json_get_live(r->d, 0, "model_type");
    for (int i = 0; i < FAMILY_COUNT; i++)
        if (json_str_eq(r->d, node, FAMILIES[i].model_type)) return &FAMILIES[i];
    for (int i = 0; i < FAMILY_COUNT; i++) {
        int n = snprintf(served + used, sizeof served - used, "%s%s", i ? ", " : "", FAMILIES[i].model_type);
        if (n > 0 && (size_t)n < sizeof served - used) used += (size_t)n;
    }
    if (node == JSON_NONE)
        r->st = err_set(r->err, ST_FORMAT, "%s: no model_type (served: %s)", r->file, served);
    else {
        if (!json_str_copy(r->d, node, type, sizeof type - 1, &len)) len = 0;
        type[len < sizeof type ? len : 0] = '\0';
        r->st =
            err_set(r->err, ST_UNSUPPORTED, "%s: model_type \"%s\" is not a family that is served (%s)", r->file, type, served);
    }
    return NULL;
}

static enum status parse_doc(const struct json_doc *d, const char *name, struct hf_config *out, struct err *err)
{
    struct reader r = {d, name, err, ST_OK};
    if (json_kind(d, 0) != JSON_OBJECT) return err_set(err, ST_FORMAT, "%s: not a JSON object", name);
    const struct family *f = find_family(&r);
    if (!f) return r.st;
    struct hf_config *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, ST_NOMEM, "%s: out of memory", name);
    c->family = f->family;
    snprintf(c->model_type, sizeof c->model_type, "%s", f->model_type);
    c->text = *f->text;
    uint32_t text = f->nested ? json_get_live(d, 0, "text_config") : 0;
    if (f->nested && text == JSON_NONE) fault(&r, ST_FORMAT, "text_config", "is missing");
    if (f->nested && text != JSON_NONE && json_kind(d, text) != JSON_OBJECT)
        fault(&r, ST_FORMAT, "text_config", "must be an object");
    read_text(&r, text, &c->text);
    if (f->nested) get_bool(&r, 0, "tie_word_embeddings", &c->text.tie_word_embeddings);
    c->bos_id = 2;
    get_u32(&r, text, "bos_token_id", 0, SIZE_MAX_VOCAB - 1, &c->bos_id);
    get_ids(&r, 0, "eos_token_id", c->eos_ids, &c->eos_count);
    if (f->nested && c->eos_count == 0) get_ids(&r, text, "eos_token_id", c->eos_ids, &c->eos_count);
    uint32_t vision = f->vision ? json_get_live(d, 0, "vision_config") : JSON_NONE;
    if (vision != JSON_NONE) {
        if (json_kind(d, vision) != JSON_OBJECT) fault(&r, ST_FORMAT, "vision_config", "must be an object");
        c->has_vision = true;
        c->vision = *f->vision;
        read_vision(&r, vision, &c->vision);
        c->mm_tokens_per_image = 256;
        c->boi_id = 255999;
        c->eoi_id = 256000;
        c->image_id = 262144;
        get_u32(&r, 0, "mm_tokens_per_image", 1, 1u << 16, &c->mm_tokens_per_image);
        id_alias(&r, "boi_token_index", "boi_token_id", &c->boi_id);
        id_alias(&r, "eoi_token_index", "eoi_token_id", &c->eoi_id);
        id_alias(&r, "image_token_index", "image_token_id", &c->image_id);
        if (!r.st) check_image_tokens(&r, c);
    }
    if (!r.st) *out = *c;
    free(c);
    return r.st;
}

enum status hf_config_parse(const char *text, size_t len, const char *name, struct hf_config *out, struct err *err)
{
    struct json_doc d = {0};
    enum status st = json_parse(text, len, name, &d, err);
    if (st) return st;
    st = parse_doc(&d, name, out, err);
    json_free(&d);
    return st;
}

enum status hf_config_load(const char *dir, struct hf_config *out, struct err *err)
{
    char *path;
    struct json_doc d = {0};
    if (asprintf(&path, "%s/config.json", dir) < 0) return err_set(err, ST_NOMEM, "%s: out of memory", dir);
    enum status st = json_doc_load(path, CONFIG_BYTES_MAX, &d, err);
    if (!st) {
        st = parse_doc(&d, path, out, err);
        json_free(&d);
    }
    free(path);
    return st;
}

enum status hf_generation_load(const char *dir, struct hf_generation *out, struct err *err)
{
    char *path;
    struct json_doc d = {0};
    struct hf_generation g = {0};
    if (asprintf(&path, "%s/generation_config.json", dir) < 0) return err_set(err, ST_NOMEM, "%s: out of memory", dir);
    enum status st = json_doc_load(path, CONFIG_BYTES_MAX, &d, err);
    if (st == ST_NOT_FOUND) {
        free(path);
        *out = g;
        return ST_OK;
    }
    if (!st) {
        struct reader r = {&d, path, err, ST_OK};
        if (json_kind(&d, 0) != JSON_OBJECT) r.st = err_set(err, ST_FORMAT, "%s: not a JSON object", path);
        g.has_do_sample = json_get_live(&d, 0, "do_sample") != JSON_NONE;
        g.has_temperature = json_get_live(&d, 0, "temperature") != JSON_NONE;
        g.has_top_p = json_get_live(&d, 0, "top_p") != JSON_NONE;
        g.has_top_k = json_get_live(&d, 0, "top_k") != JSON_NONE;
        g.has_min_p = json_get_live(&d, 0, "min_p") != JSON_NONE;
        g.has_repetition_penalty = json_get_live(&d, 0, "repetition_penalty") != JSON_NONE;
        get_bool(&r, 0, "do_sample", &g.do_sample);
        get_double(&r, 0, "temperature", 0, 1000, &g.temperature);
        get_double(&r, 0, "top_p", 0, 1, &g.top_p);
        get_u32(&r, 0, "top_k", 0, SIZE_MAX_VOCAB, &g.top_k);
        get_double(&r, 0, "min_p", 0, 1, &g.min_p);
        get_double(&r, 0, "repetition_penalty", 1e-3, 1000, &g.repetition_penalty);
        get_ids(&r, 0, "eos_token_id", g.eos_ids, &g.eos_count);
        st = r.st;
        json_free(&d);
    }
    free(path);
    if (!st) *out = g;
    return st;
}
