/* Images from http(s) URLs. One thread drives all transfers (libcurl's multi interface), so that slow hosts
 * block neither a worker nor the event loop; names are resolved in libcurl's own threads.
 *
 *   fetch_job_new, fetch_job_add   a worker: the URLs of one request
 *   fetch_start                    the loop passes it to the thread; wake() when a job is done
 *   fetch_take                     the loop takes it back
 *   fetch_find, fetch_job_free     a worker again
 *
 * What is fetched: see rules.h and address.h; the address is checked when its socket is created, so it is the
 * one connected to, and every redirect is checked like the first URL. No proxy, cookies, credentials or
 * compression. */
#ifndef KVASIR_FETCH_H
#define KVASIR_FETCH_H

#include "config/base/status.h"
#include "server/media/image_decode.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FETCH_URLS_MAX 64u /* per request */
#define FETCHES_MAX    24u /* transfers at once; the others wait their turn */
#define FETCH_FILES    96u /* their descriptors: two sockets and a resolver pair each */

struct fetch_options {
    const char *hosts;       /* --allow-remote-media */
    const char *networks;    /* --allow-private-media, or NULL */
    uint64_t seconds;        /* per URL, redirects included */
    size_t bytes_max;        /* per file */
    void (*wake)(void *arg); /* any thread */
    void *wake_arg;
};

struct share;
struct fetcher;
enum status fetcher_create(const struct fetch_options *o, struct fetcher **out, struct err *err);
void fetcher_destroy(struct fetcher *f); /* all jobs must be taken back; NULL is fine */

/* The result for one URL. */
struct fetch_file {
    char *url;
    size_t url_len;
    uint8_t *bytes; /* owned; with IMAGE_OK */
    size_t len;
    bool done; /* false: cancelled, because another URL of the job failed or the client left */
    enum image_error error;
    struct err err;
};

struct fetch_job;
struct fetch_job *fetch_job_new(struct fetcher *f); /* NULL: out of memory */
/* The same URL is fetched once. ST_TOO_LARGE: over FETCH_URLS_MAX. */
enum status fetch_job_add(struct fetch_job *j, const char *url, size_t len) KV_MUST_CHECK;
const struct fetch_file *fetch_find(const struct fetch_job *j, const char *url, size_t len);
void fetch_job_free(struct fetch_job *j); /* not while the thread has it; NULL is fine */

/* Event loop's thread. */
void fetch_start(struct fetch_job *j, struct share *share, void *user); /* share: until it is freed */
void fetch_cancel(struct fetch_job *j);                                 /* it will be done soon */
struct fetch_job *fetch_take(struct fetcher *f, void **user);           /* a finished job; NULL: none */

struct fetch_stats {
    uint64_t fetched, failed; /* URLs; cancelled ones count as neither */
    uint64_t bytes;           /* of fetched URLs */
};
void fetch_stats(struct fetcher *f, struct fetch_stats *out); /* any thread */

#endif
