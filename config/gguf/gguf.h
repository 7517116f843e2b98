/* A GGUF file: typed metadata and a table of tensors, followed by their data. The file is mapped read-only;
 * every length, type, name and offset is checked against it before anything is returned. Knows nothing of
 * models. Format: ggml/docs/gguf.md, versions 2 and 3, little-endian. Immutable after open; any thread may
 * read. */
#ifndef KVASIR_GGUF_H
#define KVASIR_GGUF_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gguf_kind { /* numbers as in the file */
                 GGUF_U8 = 0,
                 GGUF_I8,
                 GGUF_U16,
                 GGUF_I16,
                 GGUF_U32,
                 GGUF_I32,
                 GGUF_F32,
                 GGUF_BOOL,
                 GGUF_STRING,
                 GGUF_ARRAY,
                 GGUF_U64,
                 GGUF_I64,
                 GGUF_F64
};
struct gguf_text {
    const char *p; /* [len] in the mapping, not NUL-terminated */
    size_t len;
};
struct gguf_value {
    struct gguf_text key;
    enum gguf_kind kind; /* of an array: GGUF_ARRAY */
    enum gguf_kind item; /* of an array's elements; never GGUF_ARRAY */
    uint64_t count;      /* of an array; else 1 */
    const void *data;    /* its bytes in the mapping, unaligned; of strings: the first one's length field */
    size_t bytes;        /* of data */
};
#define GGUF_RANK_MAX 4u
struct gguf_tensor {
    struct gguf_text name;
    uint32_t type; /* gguf_type(); not checked here */
    uint32_t rank;
    uint64_t shape[GGUF_RANK_MAX]; /* as in the file: innermost first */
    uint64_t offset;               /* of its data from the start of the file; at most its size */
};

/* How a tensor type stores numbers, whether or not the kernels support it. */
struct gguf_type {
    const char *name;
    uint32_t block; /* elements per block; rows are whole blocks */
    uint32_t bytes; /* per block */
};
const struct gguf_type *gguf_type(uint32_t id); /* NULL: unknown id */

struct gguf;

/* Whether the file begins with GGUF's magic (false for a directory or an unreadable file). */
bool gguf_is(const char *path);
/* ST_NOT_FOUND; ST_FORMAT, ST_UNSUPPORTED (version 1, big-endian): one line that names the file. */
enum status gguf_open(const char *path, struct gguf **out, struct err *err) KV_MUST_CHECK;
void gguf_close(struct gguf *g); /* NULL is fine */

const struct gguf_value *gguf_get(const struct gguf *g, const char *key); /* NULL: there is none */
/* false if the value is NULL or of another kind; *out is unchanged. Accepts any integer kind that fits. */
bool gguf_u32(const struct gguf_value *v, uint32_t *out);
bool gguf_f64(const struct gguf_value *v, double *out); /* floats and integers */
bool gguf_bool(const struct gguf_value *v, bool *out);
bool gguf_string(const struct gguf_value *v, struct gguf_text *out);
/* Element i < count of an array of numbers or booleans. */
double gguf_item(const struct gguf_value *v, uint64_t i);
/* Iterates over an array of strings: *at is NULL at first; false after the last. */
bool gguf_next_string(const struct gguf_value *v, const void **at, struct gguf_text *out);

bool gguf_text_is(struct gguf_text t, const char *s);

size_t gguf_tensor_count(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t idx);
const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name); /* NULL: there is none */
const char *gguf_path(const struct gguf *g);
const void *gguf_map(const struct gguf *g); /* the file from its first byte */
uint64_t gguf_file_bytes(const struct gguf *g);

#endif
