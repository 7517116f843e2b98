/* Framing of server-sent events (openai-api §5.1): "data: " + one line of JSON + "\n\n", nothing else. Pure.
 */
#ifndef KVASIR_SSE_H
#define KVASIR_SSE_H

#include "server/http/json_out.h"

#include <stddef.h>

void sse_begin(struct json_out *o); /* "data: " */
void sse_end(struct json_out *o);   /* "\n\n" */
void sse_done(struct json_out *o);  /* the last event */
/* Bytes of `text` to hand over when at most max fit: its first event, for each makes an HTTP chunk of its
 * own; max where it doesn't fit. */
size_t sse_first_event(const char *text, size_t len, size_t max);

#endif
