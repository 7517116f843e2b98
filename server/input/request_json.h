/* A request written down, and read back as the same request: for receipts, logs of requests and batches. Not
 * the form of any API: members by their names in struct inference_request, those that are zero left out. */
#ifndef KVASIR_REQUEST_JSON_H
#define KVASIR_REQUEST_JSON_H

#include "server/input/inference_request.h"
#include "server/json/writer.h"

void request_write(struct json_writer *o, const struct inference_request *q);
/* Into a zeroed q, which the caller frees in any case. ST_FORMAT: not what request_write writes. */
enum status request_read(const json_t *from, struct inference_request *q) KV_MUST_CHECK;

#endif
