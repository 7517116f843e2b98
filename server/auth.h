/* API keys: their digests, of --api-key and --api-key-file. Event loop's thread. */
#ifndef KVASIR_AUTH_H
#define KVASIR_AUTH_H

#include "server/http/request.h"

/* *out is NULL if there are neither. pipe_ms: what a pipe given as --api-key-file may take. */
enum status auth_load(const struct options *o, unsigned pipe_ms, struct auth **out,
                      struct err *err) KV_MUST_CHECK;
void auth_free(struct auth *a);
/* Whether r brings a key, if one is needed; fills in what the key says of it. */
bool auth_admit(struct request *r);

#endif
