/* Shared by safetensors.c and gguf_tensors.c: the lists of tensors and of their files. */
#ifndef KVASIR_SAFETENSORS_INTERNAL_H
#define KVASIR_SAFETENSORS_INTERNAL_H

#include "engine/checkpoint/safetensors.h"

struct gguf;

struct mapped {
    char *name; /* path as opened, owned */
    void *map;
    size_t len;
    struct gguf *gguf; /* owns the mapping; itself owned; NULL: the mapping is ours */
};
struct stf_files {
    struct mapped *files;
    uint32_t file_count, file_cap;
    struct stf_tensor *tensors; /* sorted by name */
    size_t count, cap;
    void *made; /* a tensor that was assembled, owned; NULL: none */
    bool norms_plus_one;
};

/* The tensor's name becomes the list's. */
enum status stf__add_tensor(struct stf_files *f, const struct stf_tensor *t, struct err *err) KV_MUST_CHECK;
int stf__by_address(const void *a, const void *b);
/* Sorts all tensors by name; a duplicate is an error that names it and both files. */
enum status stf__sort_names(struct stf_files *f, struct err *err) KV_MUST_CHECK;
/* For stf_file_at; stf_close removes it. */
void stf__mapping_add(const struct mapped *m);

#endif
