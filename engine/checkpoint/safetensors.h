/* The tensors of a checkpoint directory: model.safetensors, or the shards that model.safetensors.index.json
 * names. Files are mapped read-only; every dtype, shape and offset is checked against the file at open, so a
 * tensor's bytes can be read without further checks. Knows nothing of models. Immutable after open except for
 * the paging hints; any thread may read. */
#ifndef KVASIR_SAFETENSORS_H
#define KVASIR_SAFETENSORS_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum stf_dtype {
    STF_F64 = 0,
    STF_F32,
    STF_F16,
    STF_BF16,
    STF_I64,
    STF_I32,
    STF_I16,
    STF_I8,
    STF_U64,
    STF_U32,
    STF_U16,
    STF_U8,
    STF_BOOL,
    STF_F8_E4M3,
    STF_F8_E5M2,
    STF_GGML /* blocks of a GGUF file: stf_tensor.ggml */
};
#define STF_RANK_MAX 8u

struct stf_tensor {
    const char *name; /* owned by the files */
    enum stf_dtype dtype;
    uint32_t ggml;                /* STF_GGML: type (ggml.h) */
    uint32_t rank;                /* 0 = a scalar */
    uint64_t shape[STF_RANK_MAX]; /* row-major, outermost first */
    uint64_t bytes;               /* product of shape times the dtype's size */
    /* [bytes] in the mapping; aligned as the file has it: read with memcpy or unaligned loads */
    const void *data;
    uint32_t file; /* index of its file */
};

struct stf_files;

/* ST_NOT_FOUND: no such file (named); ST_FORMAT: a header, an offset or the index is wrong (file, tensor and
 * numbers named). */
enum status stf_open(const char *dir, struct stf_files **out, struct err *err) KV_MUST_CHECK;
/* One file by its path. */
enum status stf_open_file(const char *path, struct stf_files **out, struct err *err) KV_MUST_CHECK;
/* Tensors of GGUF files: with shapes outermost first, under the names that `name` gives them. It returns
 * false for tensors to leave out. A '*' in the name: the tensor holds as many as its outermost dimension
 * says, each of which gets a name with its number for the '*' (experts). NAME and NAME.1 are the two frames
 * of a patch weight: one tensor [out, channels, 2, rows, columns]. Takes ownership of *g and leaves it empty.
 * ST_FORMAT: a tensor lies outside the file or overlaps another; ST_UNSUPPORTED: unknown type. */
#define STF_NAME_MAX 512u
struct gguf_files;
struct stf_naming {
    bool (*name)(const void *arg, const char *from, bool tower, char out[STF_NAME_MAX]);
    const void *arg;
    bool norms_plus_one;
};
enum status stf_open_gguf(struct gguf_files *g, const struct stf_naming *naming, struct stf_files **out,
                          struct err *err) KV_MUST_CHECK;
void stf_close(struct stf_files *f); /* NULL is fine */
/* Whether norms whose description says 1 + w are stored with the 1 added. */
bool stf_norms_plus_one(const struct stf_files *f);

size_t stf_count(const struct stf_files *f);
const struct stf_tensor *stf_at(const struct stf_files *f, size_t idx);         /* in order of name */
const struct stf_tensor *stf_find(const struct stf_files *f, const char *name); /* NULL if there is none */
const char *stf_file_name(const struct stf_files *f, const struct stf_tensor *t);
const char *stf_dtype_name(enum stf_dtype d);

/* The path of the file that is mapped at `address`; NULL: none. For a SIGBUS handler (async-signal-safe): the
 * file was truncated, or the disk failed, during a read. */
const char *stf_file_at(const void *address);

/* All values as float32 into dst [elements]; false (nothing written) for a dtype other than F32, BF16 and
 * F16. */
bool stf_to_f32(const struct stf_tensor *t, float *dst);

/* Paging hints: the tensor will be read soon; its pages may go. */
void stf_willneed(const struct stf_files *f, const struct stf_tensor *t);
void stf_done(const struct stf_files *f, const struct stf_tensor *t);

#endif
