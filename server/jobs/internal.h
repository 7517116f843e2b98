/* Shared by store.c and batch.c; nobody else includes it. */
#ifndef KVASIR_JOBS_INTERNAL_H
#define KVASIR_JOBS_INTERNAL_H

#include "server/jobs/jobs.h"
#include "server/jobs/post.h"

#include <pthread.h>
#include <stdatomic.h>

enum batch_status {
    BATCH_VALIDATING,
    BATCH_IN_PROGRESS,
    BATCH_FINALIZING,
    BATCH_CANCELLING,
    BATCH_ENDED, /* this and those after it */
    BATCH_COMPLETED = BATCH_ENDED,
    BATCH_FAILED,
    BATCH_EXPIRED,
    BATCH_CANCELLED,
};

struct run; /* batch.c */
/* A file or a batch. */
struct item {
    enum jobs_kind kind;
    char id[JOBS_ID_BYTES];
    jobs_owner owner;
    json_t *record; /* what is in ID.json: {"owner":..,"keep":..,"object":..}; NULL: an upload */
    json_t *object; /* of it: as the API shows it */
    int64_t created;
    uint64_t bytes; /* of a file */
    int fd;         /* of an upload; else -1 */
    enum batch_status status;
    struct run *run; /* of a batch: the thread's */
};

struct jobs {
    struct jobs_options opt;
    int dir; /* locked */
    struct posts *posts;
    pthread_t thread;
    bool started;
    atomic_bool stopping;
    pthread_mutex_t lock;            /* work_lock: of all below */
    struct item **items[JOBS_KINDS]; /* the oldest first */
    size_t count[JOBS_KINDS], cap[JOBS_KINDS];
    _Atomic uint64_t statuses[JOBS_STATUSES], answered, failed;
};

/* Under the lock. */
struct item *jobs__find(const struct jobs *j, enum jobs_kind kind, const jobs_owner owner, const char *id);
struct item *jobs__add(struct jobs *j, enum jobs_kind kind, const jobs_owner owner); /* NULL: no memory */
void jobs__remove(struct jobs *j, struct item *x); /* and frees it, but not on the disk */
enum status jobs__save(struct jobs *j, const struct item *x, struct err *err) KV_MUST_CHECK;
/* Deletes the file of that name, and its record. */
void jobs__unlink(struct jobs *j, const char *id);
enum status jobs__not_found(enum jobs_kind kind, const char *id, struct api_error *e);
/* A file of a batch, whose content is there. */
enum status jobs__file_made(struct jobs *j, const struct item *batch, const char *id,
                            struct err *err) KV_MUST_CHECK;
void jobs__expire(struct jobs *j); /* deletes files whose time has come; takes the lock itself */

#endif
