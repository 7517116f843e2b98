/* Writes compact JSON into a struct buf. The first error stays in `st`: write everything, then check `st`
 * once. In strings U+007F, U+0085, U+2028 and U+2029 are escaped too, because some clients split lines there;
 * ill-formed UTF-8 becomes U+FFFD. Not thread-safe. */
#ifndef KVASIR_JSON_OUT_H
#define KVASIR_JSON_OUT_H

#include "config/base/buf.h"
#include "config/base/status.h"

#include <stddef.h>
#include <stdint.h>

struct json_out {
    struct buf *buf; /* borrowed */
    enum status st;  /* first failure: ST_NOMEM or ST_TOO_LARGE */
};

void jo_text(struct json_out *o, const char *text); /* as it stands: punctuation, keys */
void jo_bytes(struct json_out *o, const void *data, size_t len);
void jo_string(struct json_out *o, const char *s, size_t len); /* with quotes; U+0000 is legal */
void jo_cstring(struct json_out *o, const char *s);            /* NULL writes null */
void jo_uint(struct json_out *o, uint64_t v);
void jo_int(struct json_out *o, int64_t v);
void jo_float32(struct json_out *o,
                float v); /* shortest text that reads back to the same float; never NaN or Infinity */
void jo_ids(struct json_out *o, const uint32_t *ids, size_t count); /* [1,2,3] */

#endif
