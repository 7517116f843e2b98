/* Files of pictures from wherever a URL says: data: URIs, http(s), file:. Those from http(s) are fetched
 * between two runs of a request's job: the first one, on a worker, finds the URLs and ends; fetch/fetch.h
 * fetches; the second one begins anew with the body, so that nothing but the body is held meanwhile, and
 * finds the files. */
#ifndef KVASIR_GENERATE_REMOTE_H
#define KVASIR_GENERATE_REMOTE_H

#include "server/chat/messages.h"
#include "server/generate/generate.h"

/* ST_AGAIN: URLs have to be fetched; no error is set. ST_OK: none, or all are there. */
enum status gen_remote(struct gen *g, const struct chat_messages *messages);
void gen_remote_end(struct gen *g); /* the files are no longer needed */
/* The bytes of one URL; *bytes is malloc'd, set with IMAGE_OK. */
enum image_fault gen_file(const struct gen *g, const char *url, size_t len, const struct image_limits *limits,
                          uint8_t **bytes, size_t *n, struct err *err);

#endif
