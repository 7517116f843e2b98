/* How a family describes GGUF files of its models, and the readers of their metadata, which fill the same
 * structs as config.json. Keys and names are those of llama.cpp's conversion (its folder conversion,
 * gguf/tensor_mapping.py, src/llama-model.cpp for defaults). */
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
    struct hf_reader r; /* without a document: holds the first error; after it every read is a no-op */
};

/* Names: '#' matches a number, '*' the index in a tensor that holds several (safetensors.h), '@' in `to` is
 * the index of that number among the layers with a DeepStack feature. A row matches a whole name, or one that
 * continues with '.', which is kept. */
struct gguf_name {
    const char *from, *to;
};
/* One kind of file, and the tower that goes with it. */
struct family_gguf {
    const char *arch;       /* general.architecture */
    const char *model_type; /* as in config.json, of the model alone; NULL: given by another row */
    const char *projector;  /* clip.projector_type of the tower; NULL: none */
    const char *tower_type; /* model_type with it */
    bool encoder;           /* attention in both directions */
    bool norms_plus_one;    /* norms are stored with the description's 1 already added */
    const struct gguf_name *names, *tower_names; /* ends with an empty one; they override the common ones */
    /* Keys that not all models have, after the common ones. */
    void (*text)(struct gguf_keys *k, struct hf_text *t);
    void (*tower)(struct gguf_keys *k, struct hf_config *c);
    /* All except mean and deviation, over the class defaults; videos NULL: as for images. */
    void (*images)(struct gguf_keys *k, struct image_config *out);
    void (*videos)(struct gguf_keys *k, struct image_config *out);
    const char *const *stops; /* stop tokens in addition to the file's; ends with NULL */
    const char *const *never; /* tokens never generated, if the file has no list of them; ends with NULL */
};
#define GGUF_TEXT(kind, type, keys) .arch = (kind), .model_type = (type), .text = (keys)
#define GGUF_TOWER(kind, type, rows, keys, sizes)                                                            \
    .projector = (kind), .tower_type = (type), .tower_names = (rows), .tower = (keys), .images = (sizes)

/* Keys: "clip.*" is the tower's, "tokenizer.*" and "general.*" the model's, and all others are the model's,
 * after the name of its architecture. Tensors: "v.*" and "mm.*" are the tower's. */
void gguf_error(struct gguf_keys *k, enum status st, const char *key, const char *what);
const struct gguf_value *gguf_key(const struct gguf_keys *k, const char *key); /* NULL: not found */

/* Absent (an error with `need`): keeps *v, returns false; the same for a wrong kind or range, which is an
 * error. */
bool gguf_read_u32(struct gguf_keys *k, const char *key, bool need, uint32_t lo, uint32_t hi, uint32_t *v);
bool gguf_read_f64(struct gguf_keys *k, const char *key, double lo, double hi, double *v);
/* One number for all layers or one per layer: that of layer n. */
bool gguf_layer_u32(struct gguf_keys *k, const char *key, uint32_t n, uint32_t lo, uint32_t hi, uint32_t *v);
/* Sets a value derived from the key or tensor `name`; an error if it is out of range. */
void gguf_set_u32(struct gguf_keys *k, const char *name, uint64_t x, uint32_t lo, uint32_t hi, uint32_t *v);
/* A list with one per layer: true for those of that kind, the others are full attention. */
void gguf_layer_types(struct gguf_keys *k, const char *key, enum hf_layer_type kind, struct hf_text *t);
/* rope.freq_base and rope.scaling.*; absent keys change nothing. */
void gguf_rope(struct gguf_keys *k, struct hf_rope *p);

/* Length of the tensor's innermost and next dimension; 0: no such tensor. */
uint32_t gguf_columns(const struct gguf_keys *k, const char *tensor);
uint32_t gguf_rows(const struct gguf_keys *k, const char *tensor);
/* A tensor of n F32 numbers; false: none, or an error. */
bool gguf_floats(struct gguf_keys *k, const char *tensor, uint32_t n, float *out);
/* Width of the tower's MLPs, from its tensors: some conversions state a wrong number. */
uint32_t gguf_tower_width(const struct gguf_keys *k);
/* The id of the token with that text; false: none. */
bool gguf_token(const struct gguf_keys *k, const char *text, uint32_t *id);
/* The same, of images; without it an error. */
void gguf_image_token(struct gguf_keys *k, const char *text, struct hf_config *c);

/* ---- from_gguf.c: the counterpart of a directory's JSON files, for families.c and images.c ---- */

/* As family_load; *d is zero. */
enum status gguf_config(const char *model, const char *mmproj, struct hf_config *c, struct model_desc *d,
                        struct err *err) KV_MUST_CHECK;
enum status gguf_generation(const char *model, struct hf_generation *g, struct err *err) KV_MUST_CHECK;
enum status gguf_prompt(const char *model, const struct family_prompt **out, struct err *err) KV_MUST_CHECK;
/* Over the class defaults in *out. ST_NOT_FOUND: no tower. */
enum status gguf_images(const char *model, const char *mmproj, bool videos, struct image_config *out,
                        struct err *err) KV_MUST_CHECK;
enum status gguf_open_tensors(const char *model, const char *mmproj, struct stf_files **out,
                              struct err *err) KV_MUST_CHECK;

#endif
