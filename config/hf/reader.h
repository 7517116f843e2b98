/* Reading keys of a checkpoint's JSON files with range checks: for generation.c here and engine/families.
 * After the first error every read does nothing, so that a family's reader is a plain list of keys. */
#ifndef KVASIR_HF_READER_H
#define KVASIR_HF_READER_H

#include "config/base/json.h"
#include "config/hf/config.h"

/* Ceilings far above any model: they keep products of two or three sizes inside 64 bits and reject nonsense
 * early. */
#define SIZE_MAX_HIDDEN    65536u
#define SIZE_MAX_FF        (1u << 20)
#define SIZE_MAX_VOCAB     (1u << 24)
#define SIZE_MAX_HEADS     1024u
#define SIZE_MAX_HEAD_DIM  1024u
#define SIZE_MAX_POSITIONS (1u << 24) /* RoPE needs positions that are exact in float32 */
#define SIZE_MAX_IMAGE     8192u
#define SIZE_MAX_PATCH     256u
#define SIZE_MAX_EXPERTS   4096u

#define HF_FILE_BYTES_MAX (4u << 20)

struct hf_reader {
    /* NULL: the configuration is from a GGUF file, and only errors are noted here */
    const struct json_doc *d;
    const char *file;
    const char *scope; /* precedes the key in messages: "", "vision_config." */
    struct err *err;
    enum status st;        /* first error; later reads do nothing */
    uint32_t text, vision; /* config.json: the objects with the text keys and the vision keys; vision
                              JSON_NONE: no tower */
};

/* Records the error "file: key: what" if it is the first. */
void hf_error(struct hf_reader *r, enum status st, const char *key, const char *what);

/* Absent or null: *v is unchanged, returns false. */
bool hf_u32(struct hf_reader *r, uint32_t obj, const char *key, uint32_t lo, uint32_t hi, uint32_t *v);
bool hf_double(struct hf_reader *r, uint32_t obj, const char *key, double lo, double hi, double *v);
bool hf_bool(struct hf_reader *r, uint32_t obj, const char *key, bool *v);
/* Appends an id or a list of ids (at most HF_EOS_MAX in all). */
void hf_ids(struct hf_reader *r, uint32_t obj, const char *key, uint32_t *ids, uint32_t *count);
/* An integer, or a list of equal ones: [14, 14]. */
void hf_side(struct hf_reader *r, uint32_t obj, const char *key, uint32_t hi, uint32_t *v);
/* Only the value `want` is supported. */
void hf_activation(struct hf_reader *r, uint32_t obj, const char *key, enum hf_activation want);
/* Of a decoder's MLP: silu or the tanh form of GELU, by the names that transformers has for them. */
void hf_gate(struct hf_reader *r, uint32_t obj, const char *key, enum hf_activation *v);
/* Keys of every decoder: vocab_size, hidden_size, intermediate_size, num_hidden_layers,
 * max_position_embeddings, rms_norm_eps. */
void hf_text_sizes(struct hf_reader *r, uint32_t obj, struct hf_text *t);
/* Checks that heads divide into KV groups and that head_dim is even. */
void hf_check_heads(struct hf_reader *r, const struct hf_text *t);
/* num_attention_heads, num_key_value_heads, head_dim, with that check. */
void hf_text_heads(struct hf_reader *r, uint32_t obj, struct hf_text *t);
/* A list of at most `cap` integers 0..hi. false: absent (or an error). */
bool hf_list(struct hf_reader *r, uint32_t obj, const char *key, uint32_t hi, uint32_t cap, uint32_t *out,
             uint32_t *count);
/* layer_types: a list of num_hidden_layers strings, full_attention or `other`. false: absent (or an error).
 */
bool hf_layer_types(struct hf_reader *r, uint32_t obj, enum hf_layer_type other, struct hf_text *t);

#endif
