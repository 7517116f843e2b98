/* Paths, and the checks that need the head of a request only. Event loop's thread. */
#ifndef KVASIR_ROUTES_H
#define KVASIR_ROUTES_H

#include "server/http/request.h"

/* Checks after the headers, in the order of docs/http.md ("Errors"): false with r->response.error filled. */
bool routes_admit(struct request *r);

#endif
