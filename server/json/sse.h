/* Server-sent events: "data: " + one line of JSON + "\n\n"; in APIs with named events after an "event: "
 * line. */
#ifndef KVASIR_JSON_SSE_H
#define KVASIR_JSON_SSE_H

#include "server/json/writer.h"

#define SSE_END "\n\n"
void sse_begin(struct json_writer *o);                         /* "data: " */
void sse_begin_named(struct json_writer *o, const char *name); /* "event: NAME", "data: " */
void sse_end(struct json_writer *o);                           /* "\n\n" */
void sse_done(struct json_writer *o);                          /* the last event */

#endif
