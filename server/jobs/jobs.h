/* Files and batches of --data-dir, as OpenAI's API has them: /v1/files and /v1/batches.
 *
 *   store.c    files and batches: one small JSON file each, written by rename; an owner sees only its own
 *   batch.c    a thread that runs the lines of batches, as requests of its own to this server
 *   lines.h    a batch's input and output;  post.h  requests by libcurl
 *
 * Nothing here is lost or done twice by a kill: a batch's state is what its output files hold. Functions that
 * take an api_error run on a worker; they fill it when they return no ST_OK. */
#ifndef KVASIR_JOBS_H
#define KVASIR_JOBS_H

#include "config/base/buf.h"
#include "server/json/errors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define JOBS_OPEN         32u /* lines that run at a time, at most */
#define JOBS_OWNER_HEADER "X-Kvasir-Owner"
#define JOBS_FILES_MOST   10000u /* of a key; and its batches */
#define JOBS_BATCHES_OPEN 100u   /* of a key, that have not ended */
#define JOBS_LINES_MOST   50000u /* of a batch */
#define JOBS_ID_BYTES     56u
#define JOBS_KEEP_LEAST   3600 /* seconds of expires_after */
#define JOBS_KEEP_MOST    2592000

struct jobs;
struct item;
struct jobs_options {
    const char *dir;    /* --data-dir, made if it isn't there */
    uint64_t quota;     /* bytes of a key's files */
    uint32_t open;      /* lines that run at a time, up to JOBS_OPEN */
    uint64_t line_max;  /* bytes of a line */
    const char *socket; /* the abstract Unix socket on which requests are this process's; borrowed */
};
enum jobs_kind { JOBS_FILE, JOBS_BATCH, JOBS_KINDS };

/* Reads the directory. ST_INVALID: another process uses it; ST_IO, ST_NOMEM. */
enum status jobs_open(const struct jobs_options *o, struct jobs **out, struct err *err) KV_MUST_CHECK;
enum status jobs_start(struct jobs *j, struct err *err) KV_MUST_CHECK; /* the thread; requests can be made */
void jobs_stop(struct jobs *j);  /* the lines that run are given up. Never waits; NULL is fine */
void jobs_close(struct jobs *j); /* waits for the thread; NULL is fine */

/* owner: the SHA-256 of the key, or zeros. All write the object, or the list, as the API has it. */
typedef uint8_t jobs_owner[32];
struct jobs_page {
    size_t most;
    bool ascending;
    const char *after, *purpose; /* or NULL */
};
enum status jobs_list(struct jobs *j, enum jobs_kind kind, const jobs_owner owner,
                      const struct jobs_page *page, struct buf *out, struct api_error *e);
enum status jobs_get(struct jobs *j, enum jobs_kind kind, const jobs_owner owner, const char *id,
                     struct buf *out, struct api_error *e);
/* Of a file: its content. */
enum status jobs_content(struct jobs *j, const jobs_owner owner, const char *id, int *fd,
                         struct api_error *e);
enum status jobs_delete(struct jobs *j, const jobs_owner owner, const char *id, struct buf *out,
                        struct api_error *e);

/* A file that is being written: nobody sees it before jobs_upload_end. */
enum status jobs_upload(struct jobs *j, const jobs_owner owner, struct item **out, struct api_error *e);
enum status jobs_upload_add(struct jobs *j, struct item *file, const void *data, size_t len,
                            struct api_error *e);
/* keep: seconds after which it is deleted; 0: for ever. The file is the store's then, whatever is returned.
 * */
enum status jobs_upload_end(struct jobs *j, struct item *file, const char *name, const char *purpose,
                            int64_t keep, struct buf *out, struct api_error *e);
void jobs_upload_drop(struct jobs *j, struct item *file); /* of an upload that did not end; NULL is fine */

enum status jobs_batch_create(struct jobs *j, const jobs_owner owner, json_t *body, struct buf *out,
                              struct api_error *e);
enum status jobs_batch_cancel(struct jobs *j, const jobs_owner owner, const char *id, struct buf *out,
                              struct api_error *e);

/* Any thread, never waits. */
enum { JOBS_STATUSES = 8 };
extern const char *const jobs_statuses[JOBS_STATUSES];
struct jobs_stats {
    uint64_t batches[JOBS_STATUSES], answered, failed; /* the last two: lines since the start */
};
void jobs_stats(const struct jobs *j, struct jobs_stats *out);

#endif
