/* Reading keys of a configuration with range checks: shared by hf_config.c and the families' files
 * (hf_<family>.c) only. After the first fault every read does nothing, so that a family's reader is a plain
 * list of keys. */
#ifndef KVASIR_HF_READER_H
#define KVASIR_HF_READER_H

#include "config/base/json.h"
#include "config/hf/config.h"

/* Ceilings far above any model: they only keep products of two or three sizes inside 64 bits and refuse
 * nonsense early. */
#define SIZE_MAX_HIDDEN    65536u
#define SIZE_MAX_FF        (1u << 20)
#define SIZE_MAX_VOCAB     (1u << 24)
#define SIZE_MAX_HEADS     1024u
#define SIZE_MAX_HEAD_DIM  1024u
#define SIZE_MAX_POSITIONS (1u << 24) /* a position is exact as float32 up to here, as RoPE wants */
#define SIZE_MAX_IMAGE     8192u
#define SIZE_MAX_PATCH     256u
#define SIZE_MAX_EXPERTS   4096u

struct hf_reader {
    const struct json_doc *d;
    const char *file;
    const char *scope; /* stands before the key in messages: "", "vision_config." */
    struct err *err;
    enum status st; /* first fault; later reads do nothing */
};

/* Notes the fault "file: key: what" if it is the first. */
void hf__fault(struct hf_reader *r, enum status st, const char *key, const char *what);

/* Absent or null leaves *v. */
void hf__u32(struct hf_reader *r, uint32_t obj, const char *key, uint32_t lo, uint32_t hi, uint32_t *v);
void hf__double(struct hf_reader *r, uint32_t obj, const char *key, double lo, double hi, double *v);
void hf__bool(struct hf_reader *r, uint32_t obj, const char *key, bool *v);
/* An id, or a list of them, added to the ids that are there already (at most HF_EOS_MAX). */
void hf__ids(struct hf_reader *r, uint32_t obj, const char *key, uint32_t *ids, uint32_t *count);
/* Only the one named by `want` is served. */
void hf__activation(struct hf_reader *r, uint32_t obj, const char *key, enum hf_activation want);
/* A list of at most `cap` integers 0..hi. false: absent (or a fault). */
bool hf__list(struct hf_reader *r, uint32_t obj, const char *key, uint32_t hi, uint32_t cap, uint32_t *out,
              uint32_t *count);
/* layer_types: a list of num_hidden_layers strings. false: absent (or a fault). */
bool hf__layer_types(struct hf_reader *r, uint32_t obj, struct hf_text *t);

/* A row of the table of model_types. */
enum hf_place {
    HF_FLAT,   /* the text's keys stand at the top */
    HF_NESTED, /* they stand in text_config */
    HF_EITHER, /* in text_config if there is one */
};
struct hf_row {
    const char *model_type;
    enum hf_family family;
    enum hf_place place;
    const struct hf_text *text;     /* class defaults */
    const struct hf_vision *vision; /* NULL: no pictures */
    /* text, vision: their objects; vision JSON_NONE = none. *c holds the row's defaults. */
    void (*read)(struct hf_reader *r, const struct hf_row *row, uint32_t text, uint32_t vision,
                 struct hf_config *c);
};
extern const struct hf_row hf__gemma3_rows[2];
extern const struct hf_row hf__qwen_rows[7];

#endif
