/* The endpoints (routes.def): handlers that a route starts when a request's body is complete. Each ends in
 * request_respond, request_fail or request_work (http/request.h). Event loop's thread. */
#ifndef KVASIR_API_H
#define KVASIR_API_H

struct request;

#define ROUTE(path, label, methods, needs, name) void api_##name##_start(struct request *r);
#include "server/api/routes.def"
#undef ROUTE
void api_upload_chunk(struct request *r); /* worker: loop.chunk */

#endif
