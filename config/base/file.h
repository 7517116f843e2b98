/* A whole file as text. */
#ifndef KVASIR_FILE_H
#define KVASIR_FILE_H

#include "config/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* For reading, and never waiting: of a FIFO, ST_FORMAT. size may be NULL. Errors as file_text. */
enum status file_open(const char *path, int *fd, uint64_t *size, struct err *err) KV_MUST_CHECK;
/* The error of an mmap that failed, by errno. */
enum status file_unmapped(const char *path, uint64_t size, struct err *err) KV_MUST_CHECK;

/* *text is NUL-terminated and owned by the caller. ST_NOT_FOUND, ST_TOO_LARGE (over max bytes), ST_FORMAT
 * (not a regular file), ST_IO, ST_NOMEM. */
enum status file_text(const char *path, size_t max, char **text, size_t *len, struct err *err) KV_MUST_CHECK;
/* And from a pipe, as the shell's <(command) gives: its writer has so many milliseconds for all of it. */
enum status file_text_piped(const char *path, size_t max, unsigned ms, char **text, size_t *len,
                            struct err *err) KV_MUST_CHECK;
#define FILE_PIPE_MS  10000u      /* at the start; later, nothing may wait */
#define FILE_FLAG_MAX (16u << 20) /* of a file that an operator writes */
/* The next line of a text, which it cuts there; NULL: none is left. */
char *file_line(char **at, const char *end);

/* DIR/NAME, owned by the caller. NULL: out of memory. */
char *file_join(const char *dir, const char *name);
/* Reads DIR/NAME. *path (path may be NULL) receives that path, owned by the caller, also on error. */
enum status file_text_in(const char *dir, const char *name, size_t max, char **path, char **text, size_t *len,
                         struct err *err) KV_MUST_CHECK;

#endif
