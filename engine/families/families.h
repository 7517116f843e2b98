/* A family of models is one record in one file, engine/families/<family>.c, and its goldens; nothing else
 * knows its name but the list in families.c. All of it is pure. The record, in the order in which it is used:
 *
 *   types     the model_types of config.json that it answers to, with the defaults of their class in
 *             transformers (released files leave out what equals them: they are part of the format)
 *   read      the keys of config.json -> struct hf_config, by config/hf/reader.h; refuses what is not served
 *   describe  that, and keys that this family alone has -> model_desc: layers, ropes, tensor names, the
 *             tower; in .image how a picture is written into a prompt and which rule its span has
 *   pictures  the defaults of its picture and video processor classes
 *   prompt    what its processor class does to text, where that stands in no file
 *   gguf      what the same model is called in GGUF files (gguf_keys.h)
 *
 * docs/adding-a-family.md goes through it step by step. */
#ifndef KVASIR_FAMILIES_H
#define KVASIR_FAMILIES_H

#include "config/hf/config.h"
#include "engine/model/model_desc.h"
#include "engine/tokenizer/tokenizer.h"

struct hf_reader;
struct family_gguf;

enum hf_place {
    HF_FLAT,   /* the text's keys stand at the top */
    HF_NESTED, /* they stand in text_config */
    HF_EITHER, /* in text_config if there is one */
};
struct family_type {
    const char *name; /* model_type; at most 31 characters */
    enum hf_place place;
    const struct hf_text *text;     /* class defaults */
    const struct hf_vision *vision; /* NULL: no pictures */
    bool drafter;                   /* of another model; not served by itself */
};

/* .video_area_min and so on of `image` are the defaults for videos; what else differs in their class stands
 * beside. */
struct family_pictures {
    struct image_config image;
    float video_mean[3], video_std[3];
    uint32_t video_patch; /* 0: the model takes no videos */
};

/* Of a family whose processor writes prompts by a rule of its own. */
struct family_prompt {
    const char *chat_template; /* the rule as a template, for checkpoints without one */
    const struct tok_extra *tokens;
    size_t token_count;
};

#define FAMILY_TYPES_MAX 8u
struct family {
    struct family_type types[FAMILY_TYPES_MAX]; /* at least one empty behind the last */
    /* c->has_vision is set, and *c holds the type's defaults; where they hang on another key, as a model_type
     * inside text_config, this overwrites them. */
    void (*read)(struct hf_reader *r, const struct family_type *type, struct hf_config *c);
    /* After `read` without a fault. *d is zero. */
    void (*describe)(struct hf_reader *r, const struct hf_config *c, struct model_desc *d);
    const struct family_pictures *pictures; /* NULL: none of its types takes pictures */
    const struct family_prompt *prompt;     /* NULL: all that there is to say stands in the checkpoint */
    const struct family_gguf *gguf; /* behind the last one without a name; NULL: there are no such files */
};

/* For `describe`: *d as of most decoders, with the usual tensor names and every layer from c->text (scale by
 * the head size; one rope, that of full attention). A family overwrites what differs and adds the rest,
 * .canonical at least. false: out of memory. */
bool family_decoder(struct hf_reader *r, const struct hf_config *c, struct model_desc *d) KV_MUST_CHECK;
/* What stands behind `prefix`; NULL: s does not begin with it. */
const char *family_after(const char *s, const char *prefix);

/* What the family of a checkpoint says about prompts; NULL in *out: nothing. */
enum status family_prompt_load(const char *model, const struct family_prompt **out,
                               struct err *err) KV_MUST_CHECK;

/* The family that answers to a model_type; NULL: none. */
const struct family *family_find(const char *model_type);
/* All kinds of GGUF files one after the other; NULL behind the last. */
const struct family_gguf *family_gguf_at(size_t idx);

/* config.json of a checkpoint (engine/checkpoint/files.h), and the description of what was read: *d is
 * overwritten, its layers are the caller's (model_desc_free); empty after a fault. ST_UNSUPPORTED: a family
 * or an option that we don't have, in one line; ST_FORMAT: a key of the wrong kind or range. */
enum status family_load(const char *model, const char *mmproj, struct hf_config *c, struct model_desc *d,
                        struct err *err) KV_MUST_CHECK;
/* The same from text; `name` is used in messages. */
enum status family_parse(const char *text, size_t len, const char *name, struct hf_config *c,
                         struct model_desc *d, struct err *err) KV_MUST_CHECK;
enum status family_parse_prompt(const char *text, size_t len, const char *name,
                                const struct family_prompt **out, struct err *err) KV_MUST_CHECK;

#endif
