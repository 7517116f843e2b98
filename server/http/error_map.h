/* Filling struct api_error in one line, and the one table from status codes of the lower layers to HTTP and
 * OpenAI codes. Any thread. */
#ifndef KVASIR_ERROR_MAP_H
#define KVASIR_ERROR_MAP_H

#include "config/base/buf.h"
#include "config/base/status.h"
#include "server/http/api_error.h"

/* Fills *e unless it holds an error already (http != 0), and returns ST_INVALID, so that a fault is one line:
 *   return api_fail(e, 400, "invalid_value", "temperature", "...", ...);
 * code must be a static string; param may be NULL. */
enum status api_fail(struct api_error *e, int http, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* From a status and a message of a lower layer: ST_INVALID -> 400 invalid_value, ST_TOO_LARGE -> 400
 * context_length_exceeded, ST_AGAIN -> 429, ST_DEVICE -> 500 engine_error, ... the rest -> 500
 * internal_error. */
enum status api_fail_status(struct api_error *e, enum status st, const char *param, const struct err *err);
void error_json(const struct api_error *e, struct buf *out); /* the error object */

#endif
