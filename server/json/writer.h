/* Writes compact JSON into a struct buf. The first error stays in `st`: write everything, then check `st`
 * once. In strings U+007F, U+0085, U+2028 and U+2029 are escaped too, because some clients split lines there;
 * ill-formed UTF-8 becomes U+FFFD. Not thread-safe. */
#ifndef KVASIR_JSON_WRITER_H
#define KVASIR_JSON_WRITER_H

#include "config/base/buf.h"
#include "config/base/status.h"

#include <stddef.h>
#include <stdint.h>

struct json_writer {
    struct buf *buf; /* borrowed */
    enum status st;  /* first failure: ST_NOMEM or ST_TOO_LARGE */
};

void jw_text(struct json_writer *o, const char *text); /* verbatim: punctuation, keys */
/* JSON text with values in it: not printf. %s is a string, quoted and escaped (NULL: null); %u, %lu and %ld
 * are numbers: jw_put(o, "{\"id\":%s,\"index\":%u}", id, i). The compiler checks the arguments; any other
 * conversion or flag aborts. */
void jw_put(struct json_writer *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void jw_bytes(struct json_writer *o, const void *data, size_t len);
void jw_string(struct json_writer *o, const char *s, size_t len); /* with quotes; U+0000 is legal */
void jw_cstring(struct json_writer *o, const char *s);            /* NULL writes null */
void jw_uint(struct json_writer *o, uint64_t v);
void jw_int(struct json_writer *o, int64_t v);
void jw_float32(struct json_writer *o,
                float v); /* shortest decimal that round-trips; never NaN or Infinity */
/* RFC 3339 in UTC, with a fraction unless ns < 0. */
void jw_time(struct json_writer *o, int64_t seconds, long ns);
void jw_ids(struct json_writer *o, const uint32_t *ids, size_t count); /* [1,2,3] */

#endif
