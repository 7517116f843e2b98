/* Image files by URL: data:, http(s): and file:. http(s) files are fetched between the two steps of a
 * request's job: the first step, on a worker, reads the request and finds the URLs; fetch/fetch.h fetches;
 * the second step, again on a worker, builds the prompt. */
#ifndef KVASIR_GENERATE_REMOTE_H
#define KVASIR_GENERATE_REMOTE_H

#include "server/chat/messages.h"
#include "server/input/input.h"

/* First step: adds the URLs of g->q.messages that must be fetched to g->prep.remote. Second step: fails if
 * one could not be fetched. */
enum status gen_remote(struct generation *g);
void gen_remote_end(struct generation *g); /* the files are no longer needed */
/* The bytes of one URL; *bytes is malloc'd, set with IMAGE_OK. */
enum image_error gen_file(const struct generation *g, struct text url, const struct image_limits *limits,
                          uint8_t **bytes, size_t *n, struct err *err);

#endif
