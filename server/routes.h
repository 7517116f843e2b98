/* Paths and API keys. Event loop's thread. */
#ifndef KVASIR_ROUTES_H
#define KVASIR_ROUTES_H

#include "server/http/request.h"

/* Checks after the headers, in the order of docs/http.md ("Errors"): false with r->response.error filled. */
bool routes_admit(struct request *r);
/* --api-key and --api-key-file. *out is NULL if there are neither. */
/* pipe_ms: what a pipe given as --api-key-file may take */
enum status auth_load(const struct options *o, unsigned pipe_ms, struct auth **out,
                      struct err *err) KV_MUST_CHECK;
void auth_free(struct auth *a);

#endif
