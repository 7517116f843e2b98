/* The files of a checkpoint, whatever it is: a directory, or a GGUF file, which has the text of such files in
 * other words. */
#ifndef KVASIR_CHECKPOINT_FILES_H
#define KVASIR_CHECKPOINT_FILES_H

#include "config/base/status.h"

#include <stddef.h>

struct json_doc;
struct stf_files;

/* The text of the file `name` of a checkpoint, config.json for one; the caller's, with a zero behind it.
 * ST_NOT_FOUND: it has none; ST_TOO_LARGE: over max bytes in a file; ST_UNSUPPORTED, ST_FORMAT: what stands
 * in a GGUF file is not served, or wrong. */
enum status checkpoint_text(const char *model, const char *name, size_t max, char **text, size_t *len,
                            struct err *err) KV_MUST_CHECK;
/* The same where the tower that is to go with a GGUF file counts too; mmproj NULL: none. */
enum status checkpoint_pair_text(const char *model, const char *mmproj, const char *name, size_t max,
                                 char **text, size_t *len, struct err *err) KV_MUST_CHECK;
enum status checkpoint_json(const char *model, const char *mmproj, const char *name, size_t max,
                            struct json_doc *out, struct err *err) KV_MUST_CHECK;
/* How messages call the file; malloc'd, NULL: out of memory. */
char *checkpoint_where(const char *model, const char *name);
/* Its tensors, under the names of a directory's. */
enum status checkpoint_open(const char *model, const char *mmproj, struct stf_files **out,
                            struct err *err) KV_MUST_CHECK;

#endif
