/* A whole file as text. */
#ifndef KVASIR_FILE_H
#define KVASIR_FILE_H

#include "config/base/status.h"

#include <stddef.h>

/* *text is NUL-terminated and owned by the caller. ST_NOT_FOUND, ST_TOO_LARGE (over max bytes), ST_FORMAT
 * (not a regular file), ST_IO, ST_NOMEM. */
enum status file_text(const char *path, size_t max, char **text, size_t *len, struct err *err) KV_MUST_CHECK;

/* DIR/NAME, owned by the caller. NULL: out of memory. */
char *file_join(const char *dir, const char *name);
/* Reads DIR/NAME. *path (path may be NULL) receives that path, owned by the caller, also on error. */
enum status file_text_in(const char *dir, const char *name, size_t max, char **path, char **text, size_t *len,
                         struct err *err) KV_MUST_CHECK;

#endif
