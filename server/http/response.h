/* The answer of a request and its size in memory. The memory of all answers together is limited too, because
 * there may be thousands. Event loop's thread; while a worker has the request, the error, the type and the
 * text are the worker's. */
#ifndef KVASIR_RESPONSE_H
#define KVASIR_RESPONSE_H

#include "config/base/buf.h"
#include "server/http/errors.h"

struct response {
    struct api_error error; /* http != 0: this is the answer */
    enum error_shape shape; /* in which it is written: of which API the request is */
    unsigned retry_after;   /* seconds, for an error of status 429 or 503; 0 = 1 */
    int status;
    const char *content_type; /* static; NULL = application/json */
    const char *allow;        /* value of the Allow header, or NULL */
    const char *policy;       /* it is a page with this Content-Security-Policy; else NULL */
    struct buf out;           /* body of the answer, or, streaming, the events that wait */
    size_t bytes;             /* what the answer holds in memory: its share of *all */
    size_t *all;
    size_t accounted; /* of it, out */
};

void response_open(struct response *a, size_t *all);
void response_close(struct response *a);
/* It holds `now` bytes where it held *was. */
void response_account(struct response *a, size_t *was, size_t now);
void response_account_body(struct response *a); /* out has changed */

#endif
