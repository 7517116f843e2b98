/* See families.h: the list, the lookup, and the common part of reading config.json. */
#include "engine/families/families.h"

#include "config/base/file.h"
#include "config/gguf/gguf.h"
#include "config/hf/reader.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/families/gguf_keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

_Static_assert(MODEL_EOS_MAX >= HF_EOS_MAX, "every stop id of a configuration fits");

/* A new family: its name here, for its record `family_<name>`. */
#define FAMILIES(X)                                                                                          \
    X(gemma)                                                                                                 \
    X(gemma2)                                                                                                \
    X(gemma3)                                                                                                \
    X(gemma4)                                                                                                \
    X(paligemma)                                                                                             \
    X(qwen2)                                                                                                 \
    X(qwen3)                                                                                                 \
    X(qwen2_vl)                                                                                              \
    X(qwen2_5_vl)                                                                                            \
    X(qwen3_vl)                                                                                              \
    X(qwen3_5)                                                                                               \
    X(llama)                                                                                                 \
    X(olmo)                                                                                                  \
    X(lfm2)                                                                                                  \
    X(idefics3)                                                                                              \
    X(mistral3)                                                                                              \
    X(lighton_ocr)                                                                                           \
    X(paddleocr_vl)                                                                                          \
    X(glm4v)                                                                                                 \
    X(glm_ocr)                                                                                               \
    X(internvl)                                                                                              \
    X(internvl_chat)                                                                                         \
    X(colpali)                                                                                               \
    X(colqwen2)                                                                                              \
    X(lfm2_vl)                                                                                               \
    X(granite_docling)                                                                                       \
    X(minicpmv4_6)

#define DECLARE(name) extern const struct family family_##name;
#define ADDRESS(name) &family_##name,
FAMILIES(DECLARE)
static const struct family *const families[] = {FAMILIES(ADDRESS)};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

const struct family *family_find(const char *model_type, const struct family_type **type)
{
    for (int f = 0; f < FAMILY_COUNT; f++)
        for (*type = families[f]->types; (*type)->name; ++*type)
            if (strcmp((*type)->name, model_type) == 0) return families[f];
    return NULL;
}

void family_defaults(const struct family *family, const struct family_type *type, bool has_vision,
                     struct hf_config *c)
{
    *c = (struct hf_config){.text = *type->text,
                            .has_vision = has_vision,
                            .image_id = has_vision && family->image_id ? family->image_id : HF_NO_ID,
                            .video_id = has_vision && family->video_id ? family->video_id : HF_NO_ID,
                            .audio_id = HF_NO_ID,
                            .bos_id = family->bos_id ? family->bos_id : HF_NO_ID};
    snprintf(c->model_type, sizeof c->model_type, "%s", type->name);
    if (has_vision) c->vision = *type->vision;
}

const struct family_gguf *family_gguf_at(size_t idx)
{
    for (int f = 0; f < FAMILY_COUNT; f++)
        for (const struct family_gguf *g = families[f]->gguf; g && g->arch; g++)
            if (idx-- == 0) return g;
    return NULL;
}

/* LightOnOCR is released with the model_type of Mistral 3. */
static bool is_lighton(const struct json_doc *d)
{
    char class[64] = "";
    size_t len = 0;
    (void)json_str_copy(d, json_at(d, json_get_live(d, 0, "architectures"), 0), class, sizeof class, &len);
    return strncasecmp(class, "LightOnOCR", len < 10 ? len + 1 : 10) == 0;
}

static const struct family *find_type(struct hf_reader *r, const struct family_type **type)
{
    char name[64] = "", served[640] = "";
    size_t len = 0, used = 0;
    uint32_t node = json_get_live(r->d, 0, "model_type");
    if (node != JSON_NONE && !json_str_copy(r->d, node, name, sizeof name - 1, &len)) len = 0;
    name[len < sizeof name ? len : 0] = '\0';
    const struct family *family =
        family_find(strcmp(name, "mistral3") == 0 && is_lighton(r->d) ? "lighton_ocr" : name, type);
    if (family && strlen(name) == len) return family;
    for (int f = 0; f < FAMILY_COUNT; f++)
        for (const struct family_type *t = families[f]->types; t->name; t++) {
            if (t->drafter) continue;
            int n = snprintf(served + used, sizeof served - used, "%s%s", used ? ", " : "", t->name);
            if (n > 0 && (size_t)n < sizeof served - used) used += (size_t)n;
        }
    if (node == JSON_NONE)
        r->st = err_set(r->err, ST_FORMAT, "%s: no model_type (served: %s)", r->file, served);
    else
        r->st = err_set(r->err, ST_UNSUPPORTED, "model_type \"%s\" is not served; served: %s (%s)", name,
                        served, r->file);
    return NULL;
}

/* The object of that name; JSON_NONE if it is absent or after an error. */
static uint32_t find_object(struct hf_reader *r, const char *key, bool required)
{
    uint32_t n = json_get_live(r->d, 0, key);
    if (n == JSON_NONE && required) hf_error(r, ST_FORMAT, key, "is missing");
    if (n == JSON_NONE || json_kind(r->d, n) == JSON_OBJECT) return n;
    hf_error(r, ST_FORMAT, key, "must be an object");
    return JSON_NONE;
}

static bool is_name(const struct hf_reader *r, uint32_t node, const char *name)
{
    size_t len;
    const char *text = json_raw(r->d, node, &len);
    return json_kind(r->d, node) == JSON_STRING && len == strlen(name) && strncasecmp(text, name, len) == 0;
}

/* Absent, or [128, 128]. */
static void check_block(struct hf_reader *r, uint32_t block)
{
    uint64_t rows = 0, cols = 0;
    if (block == JSON_NONE || is_name(r, block, "128x128")) return;
    if (!json_uint(r->d, json_at(r->d, block, 0), &rows) ||
        !json_uint(r->d, json_at(r->d, block, 1), &cols) || rows != 128 || cols != 128)
        hf_error(r, ST_UNSUPPORTED, "quantization_config", "only blocks of 128 x 128 are served");
}

static struct desc_packing read_groups(struct hf_reader *r, uint32_t groups)
{
    if (json_kind(r->d, groups) != JSON_OBJECT) return (struct desc_packing){0};
    struct desc_packing p = {.zeros = json_count(r->d, groups) > 0};
    uint32_t key = json_first(r->d, groups);
    bool same = true;
    for (uint32_t i = 0; i < json_count(r->d, groups); i++) {
        uint32_t group = json_next(r->d, key), w = json_get_live(r->d, group, "weights");
        uint64_t size = 0;
        bool symmetric = true;
        (void)json_bool(r->d, json_get_live(r->d, w, "symmetric"), &symmetric);
        if (json_str_eq(r->d, json_get_live(r->d, w, "type"), "int")) hf_u32(r, w, "num_bits", 1, 8, &p.bits);
        p.zeros = p.zeros && !symmetric;
        check_block(r, json_get_live(r->d, w, "block_structure"));
        if (json_uint(r->d, json_get_live(r->d, w, "group_size"), &size) && size > 0 && size <= UINT32_MAX) {
            same = same && (p.group == 0 || p.group == size);
            p.group = (uint32_t)size;
        }
        key = json_next(r->d, group);
    }
    if (!same) p.group = 0;
    return p;
}

/* AutoRound has layouts of its own and of other methods, which its packing_format names. */
struct packing_name {
    const char *name, *method;
    bool rounded, zeros_plain;
};

static const struct packing_name *read_method(struct hf_reader *r, uint32_t dict)
{
    static const struct packing_name served[] = {{.name = "fp8", .method = "fp8"},
                                                 {.name = "compressed-tensors", .method = ""},
                                                 {.name = "awq", .method = "awq"},
                                                 {.name = "gptq", .method = "gptq"},
                                                 {"auto", "gptq", .rounded = true},
                                                 {"gptq", "gptq", .rounded = true},
                                                 {"auto_gptq", "gptq", .rounded = true},
                                                 {"awq", "awq", .rounded = true},
                                                 {"auto_awq", "awq", .rounded = true},
                                                 {"auto_round", "gptq", .rounded = true, .zeros_plain = true},
                                                 {"gptqmodel", "gptq", .rounded = true, .zeros_plain = true}};
    uint32_t method = json_get_live(r->d, dict, "quant_method"),
             type = json_get_live(r->d, dict, "data_type"),
             format = json_get_live(r->d, dict, "packing_format");
    bool rounded = json_str_eq(r->d, method, "auto-round") || json_str_eq(r->d, method, "intel/auto-round");
    char text[48] = "auto";
    const char *name = text;
    size_t len = strlen(text);
    uint64_t act_bits = 16;
    if (!rounded) format = method;
    if (format != JSON_NONE && !json_str_copy(r->d, format, text, sizeof text - 1, &len)) len = 0;
    text[len] = '\0';
    if (rounded && strncmp(text, "auto_round:", 11) == 0) name += 11;
    (void)json_uint(r->d, json_get_live(r->d, dict, "act_bits"), &act_bits);
    if (rounded && (act_bits < 16 || (type != JSON_NONE && !json_str_eq(r->d, type, "int")) ||
                    json_get_live(r->d, dict, "rotation_config") != JSON_NONE ||
                    json_get_live(r->d, dict, "spinquant_config") != JSON_NONE))
        hf_error(r, ST_UNSUPPORTED, "quantization_config",
                 "of auto-round only integer weights are served, without quantized activations or rotations");
    for (size_t i = 0; i < sizeof served / sizeof *served; i++)
        if (served[i].rounded == rounded && strcmp(name, served[i].name) == 0) return &served[i];
    hf_error(r, ST_UNSUPPORTED, "quantization_config",
             rounded ? "auto-round's packing_format must be auto_gptq, auto_awq, gptqmodel or auto_round"
                     : "quant_method must be fp8, compressed-tensors, awq, gptq or auto-round");
    return NULL;
}

/* The list (or object) of modules that stay floats. */
static void read_kept(const struct hf_reader *r, uint32_t kept, struct desc_packing *p)
{
    if (kept == JSON_NONE) return;
    uint64_t at = r->d->nodes[kept].at, rest = r->d->len - at;
    snprintf(p->kept, sizeof p->kept, "%.*s", (int)(rest < sizeof p->kept ? rest : sizeof p->kept),
             r->d->text + at);
    p->kept[strcspn(p->kept, "]")] = 0;
}

/* Tensors determine their packing (engine/checkpoint/packed.h); this lists the supported methods. */
static struct desc_packing read_quantization(struct hf_reader *r, uint32_t dict)
{
    const struct packing_name *name = dict == JSON_NONE ? NULL : read_method(r, dict);
    if (!name || r->st) return (struct desc_packing){0};
    uint32_t bits = 4, method = json_get_live(r->d, dict, "quant_method");
    bool awq = strcmp(name->method, "awq") == 0, gptq = strcmp(name->method, "gptq") == 0;
    check_block(r, json_get_live(r->d, dict, "weight_block_size"));
    if (awq || gptq) hf_u32(r, dict, "bits", 4, gptq ? 8 : 4, &bits);
    /* Other packings of the same method have tensors that look alike. */
    uint32_t saved = json_get_live(r->d, dict, "checkpoint_format"),
             version = json_get_live(r->d, dict, "version"), format = json_get_live(r->d, dict, "format");
    bool v2 = gptq && is_name(r, saved, "gptq_v2");
    if ((saved != JSON_NONE && !v2 && !is_name(r, saved, awq ? "gemm" : "gptq")) ||
        (awq && version != JSON_NONE && !is_name(r, version, "gemm")) ||
        (awq && format != JSON_NONE && !is_name(r, format, "gemm")))
        hf_error(r, ST_UNSUPPORTED, "quantization_config",
                 "only checkpoint_format gptq, gptq_v2 and AWQ's version gemm are served");
    struct desc_packing p = read_groups(r, json_get_live(r->d, dict, "config_groups"));
    p.zeros_plain = v2 || name->zeros_plain;
    if (awq || gptq) p.bits = bits;
    size_t len;
    const char *text = json_raw(r->d, method, &len);
    snprintf(p.method, sizeof p.method, "%.*s", (int)len, text);
    read_kept(r,
              json_get_live(r->d, dict,
                            name->rounded ? "extra_config"
                            : awq || gptq ? "modules_to_not_convert"
                                          : "ignore"),
              &p);
    return p;
}

/* The configuration under family->around, which is a document of its own. */
static void parse_around(struct hf_reader *r, const struct family *family, const struct family_type *type,
                         struct hf_config *c, struct model_desc *d)
{
    const struct json_doc *doc = r->d;
    uint32_t node = find_object(r, family->around, true);
    if (r->st) return;
    uint32_t next = json_next(doc, node), name = json_get_live(doc, node, "model_type");
    const char *const *inner = family->inner;
    while (*inner && name != JSON_NONE && !json_str_eq(doc, name, *inner)) inner++;
    if (!*inner) hf_error(r, ST_UNSUPPORTED, "model_type", "of the model inside is not served there");
    /* Its end: the last brace before the next key, or before the document's own. */
    uint64_t from = doc->nodes[node].at, to = next < doc->node_count ? doc->nodes[next].at : doc->len;
    for (int ends = next < doc->node_count ? 1 : 2; ends && to > from; ends -= doc->text[to] == '}') to--;
    if (!r->st) r->st = family_parse(doc->text + from, to + 1 - from, r->file, c, d, r->err);
    if (!r->st) family->describe(r, c, d);
    snprintf(c->model_type, sizeof c->model_type, "%s", type->name);
}

/* Classes of transformers that put a linear layer, `score`, on the last token that is no padding. */
static void read_classifier(const struct hf_reader *r, const struct family_type *type, struct model_desc *d)
{
    static const char mark[] = "ForSequenceClassification";
    struct model_retrieval *to = &d->retrieval;
    size_t len = 0;
    int64_t pad = (int64_t)type->pad - 1;
    uint32_t own = json_get(r->d, r->text, "pad_token_id"), first = json_get_live(r->d, 0, "architectures");
    if (!json_str_copy(r->d, json_at(r->d, first, 0), to->classifier, sizeof to->classifier - 1, &len) ||
        len < sizeof mark || strcmp(to->classifier + len - (sizeof mark - 1), mark) != 0)
        len = 0;
    to->classifier[len] = '\0';
    if (len) to->system = to->instruction = NULL;                 /* of other models on that base */
    if (own != JSON_NONE && !json_int(r->d, own, &pad)) pad = -1; /* null is none, too */
    to->pad_id = pad < 0 || pad >= (int64_t)HF_NO_ID ? HF_NO_ID : (uint32_t)pad;
}

static enum status parse_doc(const struct json_doc *doc, const char *name, struct hf_config *c,
                             struct model_desc *d, struct err *err)
{
    struct hf_reader r = {.d = doc, .file = name, .scope = "", .err = err, .vision = JSON_NONE};
    if (json_kind(doc, 0) != JSON_OBJECT) return err_set(err, ST_FORMAT, "%s: not a JSON object", name);
    const struct family_type *type;
    const struct family *family = find_type(&r, &type);
    if (!family) return r.st;
    struct desc_packing packing = read_quantization(&r, json_get_live(doc, 0, "quantization_config"));
    if (family->around) {
        parse_around(&r, family, type, c, d);
        if (r.st) model_desc_free(d);
        return r.st;
    }
    const char *text = json_get_live(doc, 0, "llm_config") == JSON_NONE ? "text_config" : "llm_config";
    uint32_t nested = type->place == HF_FLAT ? JSON_NONE : find_object(&r, text, type->place == HF_NESTED);
    r.text = nested == JSON_NONE ? 0 : nested;
    if (type->vision) r.vision = find_object(&r, "vision_config", false);
    family_defaults(family, type, r.vision != JSON_NONE, c);
    hf_ids(&r, 0, "eos_token_id", c->eos_ids, &c->eos_count);
    if (r.text != 0 && c->eos_count == 0) hf_ids(&r, r.text, "eos_token_id", c->eos_ids, &c->eos_count);
    if (!r.st) family->read(&r, type, c);
    if (!r.st) family->describe(&r, c, d);
    if (!r.st) read_classifier(&r, type, d);
    d->packing = packing;
    if (r.st) model_desc_free(d);
    return r.st;
}

enum status family_parse(const char *text, size_t len, const char *name, struct hf_config *c,
                         struct model_desc *d, struct err *err)
{
    struct json_doc doc = {0};
    enum status st = json_parse(text, len, name, &doc, err);
    *d = (struct model_desc){0};
    if (st) return st;
    st = parse_doc(&doc, name, c, d, err);
    json_free(&doc);
    return st;
}

enum status family_load_prompt(const char *model, const struct family_prompt **out, struct err *err)
{
    struct json_doc doc = {0};
    char *path;
    *out = NULL;
    if (gguf_is(model)) return gguf_prompt(model, out, err);
    enum status st = json_load(model, "config.json", HF_FILE_BYTES_MAX, &doc, &path, err);
    struct hf_reader r = {.d = &doc, .file = path, .scope = "", .err = err, .st = st};
    const struct family_type *type;
    const struct family *family = st ? NULL : find_type(&r, &type);
    if (family) *out = family->prompt;
    json_free(&doc);
    free(path);
    return r.st;
}

/* ---- a directory, or GGUF files ---- */

static enum status no_tower(const char *dir, const char *mmproj, struct err *err)
{
    if (!mmproj) return ST_OK;
    return err_set(err, ST_INVALID, "%s: only a GGUF file has its tower in a file of its own", dir);
}

enum status family_load(const char *model, const char *mmproj, struct hf_config *c, struct model_desc *d,
                        struct err *err)
{
    char *path = NULL, *text = NULL;
    size_t len;
    *d = (struct model_desc){0};
    if (gguf_is(model)) return gguf_config(model, mmproj, c, d, err);
    enum status st = no_tower(model, mmproj, err);
    if (!st) st = file_text_in(model, "config.json", HF_FILE_BYTES_MAX, &path, &text, &len, err);
    if (!st) st = family_parse(text, len, path, c, d, err);
    free(text);
    free(path);
    return st;
}

enum status family_load_generation(const char *model, struct hf_generation *g, struct err *err)
{
    return gguf_is(model) ? gguf_generation(model, g, err) : hf_generation_load(model, g, err);
}

enum status family_open(const char *model, const char *mmproj, struct stf_files **out, struct err *err)
{
    if (gguf_is(model)) return gguf_open_tensors(model, mmproj, out, err);
    enum status st = no_tower(model, mmproj, err);
    return st ? st : stf_open(model, out, err);
}
