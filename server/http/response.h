/* The response to a request and its size in memory. The total over all responses is limited too
 * (--response-memory), because there may be thousands. Event loop's thread; while a worker has the request,
 * it owns the error, the type and the text. */
#ifndef KVASIR_RESPONSE_H
#define KVASIR_RESPONSE_H

#include "config/base/buf.h"
#include "server/json/errors.h"

#include <stdbool.h>

struct share;

struct response {
    struct api_error error; /* http != 0: this is the response */
    enum error_shape shape; /* the error format of the request's API */
    unsigned retry_after;   /* seconds, for an error of status 429 or 503; 0 = 1 */
    int status;
    const char *content_type; /* static; NULL = application/json */
    const char *allow;        /* value of the Allow header, or NULL */
    const char *etag;         /* of a file of the page; else NULL */
    bool gzip;                /* the body is compressed */
    struct buf out;           /* the body, or, when streaming, pending events */
    size_t bytes;             /* memory of the response, a part of */
    struct share *share;      /* the request's */
    size_t accounted;         /* the part of it in out */
};

/* Changes the accounted bytes from *was to `now`. */
void response_account(struct response *a, size_t *was, size_t now);

#endif
