/* Files of images from wherever a URL says: data: URIs, http(s), file:. Those from http(s) are fetched
 * between the two steps of a request's job: the first one, on a worker, reads the request and finds the URLs;
 * fetch/fetch.h fetches; the second one, on a worker again, makes the prompt. */
#ifndef KVASIR_GENERATE_REMOTE_H
#define KVASIR_GENERATE_REMOTE_H

#include "server/chat/messages.h"
#include "server/generate/generate.h"

/* The first step: g->remote gets the URLs of g->messages that have to be fetched. The second: an error if one
 * could not be. */
enum status gen_remote(struct gen *g);
void gen_remote_end(struct gen *g); /* the files are no longer needed */
/* The bytes of one URL; *bytes is malloc'd, set with IMAGE_OK. */
enum image_error gen_file(const struct gen *g, const char *url, size_t len, const struct image_limits *limits,
                          uint8_t **bytes, size_t *n, struct err *err);

#endif
