/* Paths and API keys. Event loop's thread. */
#ifndef KVASIR_ROUTES_H
#define KVASIR_ROUTES_H

#include "server/http/request.h"

/* Checks after the headers, in the order of docs/http.md ("Errors"): false with r->response.error filled. */
bool routes_admit(struct request *r);
struct auth *auth_load(const char *file, struct err *err); /* NULL with err set */
void auth_free(struct auth *a);

#endif
