/* What a family says of GGUF files of its models, and what it reads their metadata with, straight into the
 * structs that config.json is read into. Keys and names are those that llama.cpp's conversion writes (its
 * folder conversion, gguf/tensor_mapping.py, src/llama-model.cpp for what it leaves out). */
#ifndef KVASIR_FAMILIES_GGUF_KEYS_H
#define KVASIR_FAMILIES_GGUF_KEYS_H

#include "config/hf/reader.h"
#include "engine/checkpoint/gguf_files.h"

struct family_gguf;
struct family_prompt;
struct image_config;
struct model_desc;
struct stf_files;

struct gguf_keys {
    const struct gguf_files *f;
    const struct family_gguf *rule;
    struct hf_reader r; /* without a document: the first error; after it every read does nothing */
};

/* Names: '#' stands for a number, '*' for the place in a tensor that holds several (safetensors.h), '@' in
 * `to` for which of the layers with a DeepStack feature the number is. A row fits a whole name, or one that
 * goes on with
 * '.', which is then kept. */
struct gguf_name {
    const char *from, *to;
};
/* One kind of file, and the tower that goes with it. */
struct family_gguf {
    const char *arch;       /* general.architecture */
    const char *model_type; /* as in config.json, of the model alone; NULL: it is another row's */
    const char *projector;  /* clip.projector_type of the tower; NULL: there are none */
    const char *tower_type; /* model_type with it */
    bool norms_plus_one;    /* norms are stored with the 1 added that the description adds */
    const struct gguf_name *names,
        *tower_names; /* behind the last an empty one; they win over the common ones */
    /* What not all have, after that. */
    void (*text)(struct gguf_keys *k, struct hf_text *t);
    void (*tower)(struct gguf_keys *k, struct hf_config *c);
    /* All but mean and deviation, over the class defaults; videos NULL: as for images. */
    void (*images)(struct gguf_keys *k, struct image_config *out);
    void (*videos)(struct gguf_keys *k, struct image_config *out);
    const char *const *stops; /* tokens that end an answer beside the file's; NULL behind the last */
    const char *const *never; /* tokens that no answer has, where the file has no list of them; likewise */
};

/* Keys: "clip.*" is the tower's, "tokenizer.*" and "general.*" the model's, and all others are the model's
 * behind the name of its architecture. Tensors: "v.*" and "mm.*" are the tower's. */
void gguf_error(struct gguf_keys *k, enum status st, const char *key, const char *what);
const struct gguf_value *gguf_key(const struct gguf_keys *k, const char *key); /* NULL: there is none */

/* Absent (an error with `need`) leaves *v, and false; so does what is of another kind or out of range, which
 * is an error. */
bool gguf_read_u32(struct gguf_keys *k, const char *key, bool need, uint32_t lo, uint32_t hi, uint32_t *v);
bool gguf_read_f64(struct gguf_keys *k, const char *key, double lo, double hi, double *v);
/* One number for all layers or one for each: that of layer n. */
bool gguf_layer_u32(struct gguf_keys *k, const char *key, uint32_t n, uint32_t lo, uint32_t hi, uint32_t *v);
/* What follows from the key or tensor `name`; an error if it is out of range. */
void gguf_set_u32(struct gguf_keys *k, const char *name, uint64_t x, uint32_t lo, uint32_t hi, uint32_t *v);
/* A list of one for each layer: true for those that slide. */
void gguf_layer_types(struct gguf_keys *k, const char *key, struct hf_text *t);
/* rope.freq_base and rope.scaling.*; what is absent stays as it is. */
void gguf_rope(struct gguf_keys *k, struct hf_rope *p);

/* Length of the tensor's innermost and next dimension; 0: no such tensor. */
uint32_t gguf_columns(const struct gguf_keys *k, const char *tensor);
uint32_t gguf_rows(const struct gguf_keys *k, const char *tensor);
/* Width of the tower's MLPs, by its tensors: files of some conversions state another number. */
uint32_t gguf_tower_width(const struct gguf_keys *k);
/* The id of a token with that text. false: the vocabulary has none. */
bool gguf_token(const struct gguf_keys *k, const char *text, uint32_t *id);

/* ---- from_gguf.c: what a directory has in its JSON files, for families.c and images.c ---- */

/* As family_load; *d is zero. */
enum status gguf_config(const char *model, const char *mmproj, struct hf_config *c, struct model_desc *d,
                        struct err *err) KV_MUST_CHECK;
enum status gguf_generation(const char *model, struct hf_generation *g, struct err *err) KV_MUST_CHECK;
enum status gguf_prompt(const char *model, const struct family_prompt **out, struct err *err) KV_MUST_CHECK;
/* Over the class defaults in *out. ST_NOT_FOUND: there is no tower. */
enum status gguf_images(const char *model, const char *mmproj, bool videos, struct image_config *out,
                        struct err *err) KV_MUST_CHECK;
enum status gguf_open_tensors(const char *model, const char *mmproj, struct stf_files **out,
                              struct err *err) KV_MUST_CHECK;

#endif
