/* Growable byte buffer with a mandatory ceiling. Not thread-safe. A failed append leaves the buffer
 * unchanged. */
#ifndef KVASIR_BUF_H
#define KVASIR_BUF_H

#include "config/base/status.h"

#include <stddef.h>

struct buf {
    char *data; /* owned; NUL after data[len-1] after the first append */
    size_t len; /* bytes */
    size_t cap; /* bytes allocated */
    size_t max; /* ceiling in bytes for len */
};

void buf_init(struct buf *b, size_t max);
void buf_fini(struct buf *b); /* frees; the buffer is empty and usable again afterwards */
/* ST_TOO_LARGE over the ceiling, ST_NOMEM. */
enum status buf_add(struct buf *b, const void *data, size_t len) KV_MUST_CHECK;
enum status buf_adds(struct buf *b, const char *s) KV_MUST_CHECK;
enum status buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3))) KV_MUST_CHECK;
enum status buf_reserve(struct buf *b, size_t extra) KV_MUST_CHECK;

#endif
