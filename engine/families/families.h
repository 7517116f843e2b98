/* A family of models is one record in one file, in text/ or (with images) vision/, and its golden data; only
 * the list in families.c knows its name too. All of it is pure. The record, in the order of use:
 *
 *   types     the model_types of config.json that it answers to, with the defaults of their class in
 *             transformers (released files leave out what equals them: they are part of the format)
 *   read      the keys of config.json -> struct hf_config, by config/hf/reader.h; refuses what is not served
 *   gguf      the metadata of GGUF files -> the same struct, and the names of their tensors (gguf_keys.h)
 *   describe  that struct -> model_desc: layers, ropes, tensor names, the tower; in .image how an image is
 *             written into a prompt and which rule its span has; checks what no single key tells
 *   images  the defaults of its image and video processor classes
 *   prompt    what its processor class does to text, where that stands in no file
 *
 * docs/adding-a-family.md explains it step by step. */
#ifndef KVASIR_FAMILIES_H
#define KVASIR_FAMILIES_H

#include "config/hf/config.h"
#include "engine/model/model_desc.h"
#include "engine/tokenizer/tokenizer.h"

struct hf_reader;
struct family_gguf;
struct stf_files;

enum hf_place {
    HF_FLAT,   /* the text's keys are at the top level */
    HF_NESTED, /* they are in text_config */
    HF_EITHER, /* in text_config if present */
};
struct family_type {
    const char *name; /* model_type; at most 31 characters */
    enum hf_place place;
    const struct hf_text *text;     /* class defaults */
    const struct hf_vision *vision; /* NULL: no images */
    bool drafter;                   /* a draft model; not served by itself */
    uint32_t pad;                   /* 1 + the class's pad_token_id, where classifiers have it; 0: none */
};

/* The sizes that the defaults of every class have. */
#define TEXT_SIZES(vocab, width, ff, depth, heads, kv_heads, positions)                                      \
    .vocab_size = (vocab), .hidden_size = (width), .intermediate_size = (ff), .num_hidden_layers = (depth),  \
    .num_attention_heads = (heads), .num_key_value_heads = (kv_heads),                                       \
    .max_position_embeddings = (positions)
#define TOWER_SIZES(width, ff, depth, heads, patch)                                                          \
    .hidden_size = (width), .intermediate_size = (ff), .num_hidden_layers = (depth),                         \
    .num_attention_heads = (heads), .num_channels = 3, .patch_size = (patch), .layer_norm_eps = 1e-6

#define EXPERT_SIZES(count, used, ff)                                                                        \
    .num_experts = (count), .num_experts_per_tok = (used), .moe_intermediate_size = (ff)

/* Of model_desc.image: the token is both what a template writes and what images are put in the place of. */
#define IMAGE_RULE(token, id)                                                                                \
    .present = true, .marker = (token), .placeholder = (token), .placeholder_id = (id)

/* Of model_desc.vision: what every tower has, of a struct hf_vision. */
#define DESC_TOWER(v)                                                                                        \
    .patch = (v)->patch_size, .hidden = (v)->hidden_size, .ff = (v)->intermediate_size,                      \
    .layers = (v)->num_hidden_layers, .heads = (v)->num_attention_heads, .eps = (float)(v)->layer_norm_eps

/* .video_area_min and so on of `image` are the defaults for videos; other differences of their class
 * follow. */
struct family_images {
    struct image_config image;
    const char *file; /* that has the settings at its top; NULL: the processor's files */
    /* The top level of processor_config.json, before the settings; NULL: not read. */
    void (*processor)(struct hf_reader *r, struct image_config *out);
    /* Instead of `size` and what goes with it. */
    void (*read)(struct hf_reader *r, uint32_t settings, struct image_config *out);
    float video_mean[3], video_std[3];
    uint32_t video_patch; /* 0: the model takes no videos */
};

/* For a family whose processor has its own rule for prompts. */
struct family_prompt {
    const char *chat_template; /* the rule as a template, for checkpoints without one */
    bool always;               /* for the others, too */
    bool turns;                /* it has turns, of text and of images */
    const struct tok_extra *tokens;
    size_t token_count;
};

#define FAMILY_TYPES_MAX 10u
struct family {
    /* A model around a whole one: the key of that one's configuration, and the types it may have (ends with
     * NULL). Then `read` is not called, and `describe` changes the other's description. */
    const char *around;
    const char *const *inner;
    struct family_type types[FAMILY_TYPES_MAX]; /* at least one empty after the last */
    /* c->has_vision is set, and *c holds the type's defaults; if they depend on another key, such as a
     * model_type inside text_config, this overwrites them. */
    void (*read)(struct hf_reader *r, const struct family_type *type, struct hf_config *c);
    /* Called if reading succeeded, for either kind of file: r is for errors only. *d is zero. */
    void (*describe)(struct hf_reader *r, const struct hf_config *c, struct model_desc *d);
    /* Changes *d by the processor's settings; NULL: nothing depends on them. */
    void (*processed)(const struct image_config *images, struct model_desc *d);
    const struct family_images *images;  /* NULL: none of its types takes images */
    const struct family_prompt *prompt;  /* NULL: the checkpoint says it all */
    const struct family_gguf *gguf;      /* ends with an entry without a name; NULL: no such files */
    uint32_t bos_id, image_id, video_id; /* the classes' defaults; 0: none */
};

/* For `describe`: *d of a common decoder, with the usual tensor names and every layer from c->text (scale by
 * the head size; one rope, for full attention). A family overwrites what differs and adds the rest, at least
 * .canonical. false: out of memory. */
bool family_decoder(struct hf_reader *r, const struct hf_config *c, struct model_desc *d) KV_MUST_CHECK;
struct desc_rope family_rope(const struct hf_rope *p, uint32_t dim);
/* The rest of s after `prefix`; NULL: s does not begin with it. */
const char *family_after(const char *s, const char *prefix);
/* The first of `parts` (prefix, what it becomes; ends with an empty one) that begins the name; false: none.
 */
bool family_rename(const char *name, const char *const (*parts)[2], char out[DESC_NAME_MAX]);
/* model_desc.canonical of most: text.X, vision.Y, head.weight. */
bool family_canonical(const char *name, char out[DESC_NAME_MAX]);

/* Of a model around another family's decoder: text_config.model_type is one of `served` (ends with an empty
 * one; absent: the first), whose record reads text_config and describes the decoder. */
struct family_inner {
    const char *type;
    const struct family *family;
};
void family_read_text(struct hf_reader *r, const struct family_inner *served, struct hf_config *c);
/* Of a model with a tower: vision_config must be there; the text; the tie at the top, absent: `tied` (a head
 * in the files that differs wins). false: an error. */
bool family_read_parts(struct hf_reader *r, const struct family_inner *served, bool tied,
                       struct hf_config *c) KV_MUST_CHECK;
bool family_describe_text(struct hf_reader *r, const struct family_inner *served, const struct hf_config *c,
                          struct model_desc *d) KV_MUST_CHECK;

/* The family of a model_type, and which of its types that is; NULL: none. */
const struct family *family_find(const char *model_type, const struct family_type **type);
/* The n-th kind of GGUF file; NULL after the last. */
const struct family_gguf *family_gguf_at(size_t idx);
/* *c with the defaults of that type. */
void family_defaults(const struct family *family, const struct family_type *type, bool has_vision,
                     struct hf_config *c);

#define FAMILY_DRAFTERS "Gemma 4's MTP drafters (google/gemma-4-*-it-assistant)"

/* ---- loading ---- `model` is a directory, or a GGUF file with its tower in `mmproj` (NULL: none).
 * ST_UNSUPPORTED: an unsupported family or option, in one line; ST_FORMAT: a key of the wrong kind or
 * range. */

/* The configuration and its description: *d is overwritten, the caller owns its layers (model_desc_free);
 * after an error *d is empty, *c need not be. */
enum status family_load(const char *model, const char *mmproj, struct hf_config *c, struct model_desc *d,
                        struct err *err) KV_MUST_CHECK;
/* The same from the text of a config.json; `name` is used in messages. */
enum status family_parse(const char *text, size_t len, const char *name, struct hf_config *c,
                         struct model_desc *d, struct err *err) KV_MUST_CHECK;
/* Sampling defaults and stop ids; all absent if the checkpoint has none. */
enum status family_load_generation(const char *model, struct hf_generation *g, struct err *err) KV_MUST_CHECK;
/* The family's rule for prompts; *out NULL: none. */
enum status family_load_prompt(const char *model, const struct family_prompt **out,
                               struct err *err) KV_MUST_CHECK;
/* prompt NULL: only the files' tokens. */
enum status family_load_tokenizer(const char *model, const char *mmproj, const struct family_prompt *prompt,
                                  struct tokenizer **out, struct err *err) KV_MUST_CHECK;
/* `image_processor` of processor_config.json or, where that is absent, preprocessor_config.json; for families
 * with videos also `video_processor` of the former, else video_preprocessor_config.json, else
 * preprocessor_config.json. Absent and null keys get the defaults of the class that the family uses.
 * ST_NOT_FOUND without settings for images; ST_UNSUPPORTED for an unsupported family, filter (only 1 =
 * Lanczos, 2 = bilinear and 3 = bicubic) or step. Unsupported settings for videos only leave `video` false.
 */
enum status family_load_images(const char *model, const char *mmproj, const char *model_type,
                               struct image_config *out, struct err *err) KV_MUST_CHECK;
/* After family_load: *d by those settings, where a family has something that depends on them. */
void family_resolve(const char *model, const struct hf_config *c, struct model_desc *d);
/* A GGUF file's ARCH.pooling_type: 0 without the key. */
enum { GGUF_POOLING_MEAN = 1, GGUF_POOLING_CLS = 2 };
enum status gguf_pooling(const char *model, uint32_t *out, struct err *err) KV_MUST_CHECK;
/* The tensors, under a directory's names. */
enum status family_open(const char *model, const char *mmproj, struct stf_files **out,
                        struct err *err) KV_MUST_CHECK;

#endif
