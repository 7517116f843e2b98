/* What safetensors.c and gguf_tensors.c share: the list of tensors, and of the files that they stand in. */
#ifndef KVASIR_SAFETENSORS_INTERNAL_H
#define KVASIR_SAFETENSORS_INTERNAL_H

#include "engine/checkpoint/safetensors.h"

struct gguf;

struct mapped {
    char *name; /* path as opened, owned */
    void *map;
    size_t len;
    struct gguf *gguf; /* the mapping is this one's, and it is owned; NULL: a mapping of ours */
};
struct stf_files {
    struct mapped *files;
    uint32_t file_count;
    struct stf_tensor *tensors; /* sorted by name */
    size_t count, cap;
    uint64_t bytes;
    void *made; /* a tensor that had to be put together, owned; NULL: none */
    bool norms_plus_one;
};

/* The tensor's name becomes the list's. */
enum status stf__add_tensor(struct stf_files *f, const struct stf_tensor *t, struct err *err) KV_MUST_CHECK;
int stf__by_address(const void *a, const void *b);
/* Sorts all tensors by name; a name that stands twice is an error that names it and both files. */
enum status stf__sort_names(struct stf_files *f, struct err *err) KV_MUST_CHECK;
/* For stf_file_at; stf_close takes it out. */
void stf__mapping_add(const struct mapped *m);

#endif
