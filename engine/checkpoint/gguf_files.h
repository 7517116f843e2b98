/* The GGUF files of one checkpoint: the model's, which may be split into several, and its vision tower's.
 * Immutable after open; any thread may read. */
#ifndef KVASIR_GGUF_FILES_H
#define KVASIR_GGUF_FILES_H

#include "config/gguf/gguf.h"

#define GGUF_PARTS_MAX 256u

struct gguf_files {
    struct gguf *parts[GGUF_PARTS_MAX]; /* owned; the metadata is in the first */
    uint32_t count;
    struct gguf *tower; /* owned; NULL: none */
};

/* `model`: the file, or the first of NAME-00001-of-00003.gguf and so on; mmproj NULL: no tower. On an error
 * there is nothing to close. */
enum status gguf_files_open(const char *model, const char *mmproj, struct gguf_files *out,
                            struct err *err) KV_MUST_CHECK;
void gguf_files_close(struct gguf_files *f);
/* A tensor of the model, or NULL. *in (may be NULL): the file that has it. */
const struct gguf_tensor *gguf_files_find(const struct gguf_files *f, const char *name,
                                          const struct gguf **in);

#endif
