/* What a family says of GGUF files of its models, and what it says it with. The configuration is written as
 * the config.json that the same model has as a directory, so that there is one reader of it. Keys and names
 * are those that llama.cpp's conversion writes (its folder conversion, gguf/tensor_mapping.py,
 * src/llama-model.cpp for what it leaves out). */
#ifndef KVASIR_FAMILIES_GGUF_KEYS_H
#define KVASIR_FAMILIES_GGUF_KEYS_H

#include "config/base/buf.h"
#include "engine/checkpoint/gguf_files.h"

struct family_gguf;

/* The text that is being written, and what it is made from. After the first fault every call does nothing. */
struct gguf_keys {
    const struct gguf_files *f;
    const struct family_gguf *rule;
    struct buf b;
    enum status st;
    struct err *err;
};

/* Names: '#' stands for a number, '*' for the place in a tensor that holds several (safetensors.h), '@' in
 * `to` for which of the layers with a tap the number is. A row fits a whole name, or one that goes on with
 * '.', which is then kept. */
struct gguf_name {
    const char *from, *to;
};
/* One kind of file, or pair of files. */
struct family_gguf {
    const char *arch;       /* general.architecture */
    const char *projector;  /* clip.projector_type of the tower; NULL: the model alone */
    const char *model_type; /* of config.json */
    bool nested;            /* the text's keys stand in text_config */
    bool norms_plus_one;    /* norms are stored with the 1 added that the description adds */
    const struct gguf_name *names,
        *tower_names;                   /* behind the last an empty one; they win over the common ones */
    void (*text)(struct gguf_keys *k);  /* keys that not all have; may be NULL */
    void (*top)(struct gguf_keys *k);   /* beside text_config, with a tower; may be NULL */
    void (*tower)(struct gguf_keys *k); /* the keys of vision_config */
    /* The keys of preprocessor_config.json but mean and deviation. */
    void (*pictures)(struct gguf_keys *k);
    void (*videos)(struct gguf_keys *k); /* of video_preprocessor_config.json; NULL: it is not there */
    const char *const *stops; /* tokens that end an answer beside the file's; NULL behind the last */
    const char *const *never; /* tokens that no answer has, where the file has no list of them; likewise */
};

void gguf_fault(struct gguf_keys *k, enum status st, const char *key, const char *what);

/* "<arch>.key" of the model, "clip.key" of the tower. NULL: there is none. */
const struct gguf_value *gguf_key(const struct gguf_keys *k, const char *key);
const struct gguf_value *gguf_tower_key(const struct gguf_keys *k, const char *key);
/* As gguf_u32 and gguf_f64, of the model's key; absent: what *v was, and false. A fault if it is of another
 * kind. */
bool gguf_key_u32(struct gguf_keys *k, const char *key, uint32_t *v);
bool gguf_key_f64(struct gguf_keys *k, const char *key, double *v);
/* The same of the tower's. need: absent is a fault. */
bool gguf_tower_u32(struct gguf_keys *k, const char *key, bool need, uint32_t *v);
/* One number for all layers or one for each: that of layer n. false: absent. */
bool gguf_key_layer(struct gguf_keys *k, const char *key, uint32_t n, uint32_t *v);
uint32_t gguf_layers(struct gguf_keys *k);
/* Length of the tensor's innermost and next dimension; 0: no such tensor. */
uint32_t gguf_columns(const struct gguf_keys *k, const char *tensor);
uint32_t gguf_rows(const struct gguf_keys *k, const char *tensor);
uint32_t gguf_tower_columns(const struct gguf_keys *k, const char *tensor);
uint32_t gguf_tower_rows(const struct gguf_keys *k, const char *tensor);
/* Width of the tower's MLPs, by its tensors: files of some conversions state another number. */
uint32_t gguf_tower_width(const struct gguf_keys *k);
/* The id of a token with that text. false: the vocabulary has none. */
bool gguf_token(const struct gguf_keys *k, const char *text, uint32_t *id);

/* Each writes ,"name":value - an object begins with what opens it. */
void gguf_put(struct gguf_keys *k, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void gguf_put_u32(struct gguf_keys *k, const char *name, uint32_t v);
void gguf_put_f64(struct gguf_keys *k, const char *name, double v);
/* The model's key under another name; absent: nothing, or with `need` a fault. */
void gguf_copy_u32(struct gguf_keys *k, const char *name, const char *key, bool need);
void gguf_copy_f64(struct gguf_keys *k, const char *name, const char *key);
/* The id of the token with that text; nothing without one. */
void gguf_put_token(struct gguf_keys *k, const char *name, const char *text);
/* A list of numbers. */
void gguf_put_list(struct gguf_keys *k, const char *name, const struct gguf_value *v, uint64_t count);
/* "layer_types": a list of the key's, true for the layers that slide. */
void gguf_put_layer_types(struct gguf_keys *k, const char *key);
/* "rope_scaling" of the model's rope.scaling.*; `more` stands in it too ("" or ,"name":value). Nothing
 * without either. */
void gguf_put_rope_scaling(struct gguf_keys *k, const char *more);

#endif
