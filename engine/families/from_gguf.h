/* A checkpoint out of GGUF files: its configuration as the text of the files that a directory has, and its
 * tensors under the names that they have there. What differs between families stands in their records. */
#ifndef KVASIR_FROM_GGUF_H
#define KVASIR_FROM_GGUF_H

#include "engine/checkpoint/gguf_files.h"

#include <stddef.h>

struct family_gguf;
struct stf_files;

/* config.json, generation_config.json and, with a tower, preprocessor_config.json and
 * video_preprocessor_config.json. *text is the caller's. ST_NOT_FOUND: another name; ST_UNSUPPORTED: an
 * architecture or an option that we don't have, in one line. */
enum status gguf_config_text(const struct gguf_files *f, const char *name, char **text, size_t *len,
                             struct err *err) KV_MUST_CHECK;
/* *f is taken, and empty afterwards. */
enum status gguf_open_tensors(struct gguf_files *f, struct stf_files **out, struct err *err) KV_MUST_CHECK;

#endif
