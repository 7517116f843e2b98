/* The files of an adapter (LoRA): a directory as PEFT saves it, or a GGUF file as llama.cpp's converter
 * writes it. Knows the description's names, no weights. */
#ifndef KVASIR_ADAPTER_FILES_H
#define KVASIR_ADAPTER_FILES_H

#include "engine/checkpoint/adapter_weights.h"

struct adapter_files {
    struct stf_files *files;
    struct adapter_pair *pairs; /* [count] by name; they point into the files */
    size_t count;
    bool gguf;
    char base[256]; /* the base model's name; "": it says none */
};

/* ST_UNSUPPORTED names what is not served; ST_FORMAT: what is malformed, or not the model's. */
enum status adapter_files_open(const char *path, const struct model_desc *desc, struct adapter_files *out,
                               struct err *err) KV_MUST_CHECK;
void adapter_files_close(struct adapter_files *f);

#endif
