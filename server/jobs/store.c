/* See jobs.h. The directory of --data-dir:
 *
 *   file-HEX  file-HEX.json          a file and its record; a file without a record was not finished
 *   file-HEX-output  file-HEX-error  what batch_HEX writes; they get their records when it ends
 *   batch_HEX.json                   a batch */
#include "server/jobs/internal.h"

#include "config/base/file.h"
#include "config/base/list.h"
#include "config/base/log.h"
#include "config/base/work_lock.h"
#include "server/json/parser.h"
#include "server/json/value.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RECORD_MOST (1u << 20)
#define SAVE_NAME   ".save"
static const char *const prefixes[JOBS_KINDS] = {"file-", "batch_"};

static enum status io_failed(struct err *err, const char *what)
{
    return err_set(err, ST_IO, "--data-dir: %.60s: %s", what, strerror(errno));
}

/* ---- items ---- */

struct item *jobs__find(const struct jobs *j, enum jobs_kind kind, const jobs_owner owner, const char *id)
{
    for (size_t i = 0; i < j->count[kind]; i++) {
        struct item *x = j->items[kind][i];
        if (x->record && strcmp(x->id, id) == 0 && memcmp(x->owner, owner, sizeof x->owner) == 0) return x;
    }
    return NULL;
}

struct item *jobs__add(struct jobs *j, enum jobs_kind kind, const jobs_owner owner)
{
    unsigned char raw[16];
    char hex[33];
    struct item *x = calloc(1, sizeof *x);
    if (!x || !LIST_RESERVE(j->items[kind], j->cap[kind], j->count[kind] + 1)) {
        free(x);
        return NULL;
    }
    randombytes_buf(raw, sizeof raw);
    sodium_bin2hex(hex, sizeof hex, raw, sizeof raw);
    *x = (struct item){.kind = kind, .created = (int64_t)time(NULL), .fd = -1};
    snprintf(x->id, sizeof x->id, "%s%s", prefixes[kind], hex);
    memcpy(x->owner, owner, sizeof x->owner);
    j->items[kind][j->count[kind]++] = x;
    return x;
}

void jobs__remove(struct jobs *j, struct item *x)
{
    struct item **at = j->items[x->kind];
    size_t i = 0;
    while (at[i] != x) i++;
    memmove(at + i, at + i + 1, (--j->count[x->kind] - i) * sizeof *at);
    if (x->kind == JOBS_BATCH && x->record) j->statuses[x->status]--;
    if (x->fd >= 0) close(x->fd);
    json_decref(x->record);
    free(x);
}

void jobs__unlink(struct jobs *j, const char *id)
{
    char name[JOBS_ID_BYTES + 8];
    snprintf(name, sizeof name, "%s.json", id);
    (void)unlinkat(j->dir, name, 0); /* first: a file without a record is deleted at the next start */
    (void)unlinkat(j->dir, id, 0);
}

static enum status text_save(const struct jobs *j, const char *name, const struct buf *text, struct err *err)
{
    int fd = openat(j->dir, SAVE_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write(fd, text->data, text->len) == (ssize_t)text->len && !fsync(fd) &&
              !renameat(j->dir, SAVE_NAME, j->dir, name) && !fsync(j->dir);
    enum status st = ok ? ST_OK : io_failed(err, name);
    if (fd >= 0) close(fd);
    return st;
}

enum status jobs__save(struct jobs *j, const struct item *x, struct err *err)
{
    char name[JOBS_ID_BYTES + 8];
    struct buf text;
    struct json_writer o = {.buf = &text};
    buf_init(&text, RECORD_MOST);
    jw_value(&o, x->record);
    snprintf(name, sizeof name, "%s.json", x->id);
    enum status st = o.st ? err_nomem(err, NULL) : text_save(j, name, &text, err);
    buf_fini(&text);
    return st;
}

/* Takes the references of object. False: no memory; x has no record. */
static bool record_make(struct item *x, int64_t keep, json_t *object)
{
    char hex[2 * sizeof x->owner + 1];
    sodium_bin2hex(hex, sizeof hex, x->owner, sizeof x->owner);
    x->object = object;
    x->record =
        object ? json_pack("{s:s,s:I,s:o}", "owner", hex, "keep", (json_int_t)keep, "object", object) : NULL;
    return x->record;
}

static bool file_record(struct item *x, const char *name, const char *purpose, int64_t keep)
{
    json_t *text = json_string(name);
    if (!text) text = json_string("file"); /* it is no UTF-8 */
    json_t *expires = keep ? json_integer(x->created + keep) : json_null();
    return record_make(x, keep,
                       json_pack("{s:s,s:s,s:I,s:I,s:o,s:s,s:s,s:o,s:n}", "id", x->id, "object", "file",
                                 "bytes", (json_int_t)x->bytes, "created_at", (json_int_t)x->created,
                                 "filename", text, "purpose", purpose, "status", "processed", "expires_at",
                                 expires, "status_details"));
}

enum status jobs__file_made(struct jobs *j, const struct item *batch, const char *id, struct err *err)
{
    struct stat at;
    char name[JOBS_ID_BYTES + 8];
    if (jobs__find(j, JOBS_FILE, batch->owner, id)) return ST_OK; /* by a process that was killed then */
    if (fstatat(j->dir, id, &at, 0)) return io_failed(err, id);
    struct item *x = jobs__add(j, JOBS_FILE, batch->owner);
    if (!x) return err_nomem(err, NULL);
    snprintf(x->id, sizeof x->id, "%s", id);
    snprintf(name, sizeof name, "%s.jsonl", id);
    x->bytes = (uint64_t)at.st_size;
    int64_t keep = json_integer_value(json_object_get(batch->record, "keep"));
    enum status st =
        file_record(x, name, "batch_output", keep) ? jobs__save(j, x, err) : err_nomem(err, NULL);
    if (st) jobs__remove(j, x);
    return st;
}

/* ---- errors ---- */

enum status jobs__not_found(enum jobs_kind kind, const char *id, struct api_error *e)
{
    return api_fail(e, 404, kind == JOBS_FILE ? "file_not_found" : "batch_not_found", "id",
                    "No such %s object: %.100s", kind == JOBS_FILE ? "File" : "Batch", id);
}

static enum status fail_status(struct api_error *e, enum status st, const struct err *err)
{
    if (st != ST_IO) return api_fail_status(e, st, NULL, err);
    log_error("%s", err->msg);
    return api_fail(e, 500, "data_dir_failed", NULL, "The server's data directory can't be written.");
}

/* ---- files ---- */

/* What the owner has of files, and how many. */
static uint64_t held(const struct jobs *j, const jobs_owner owner, size_t *count)
{
    uint64_t bytes = 0;
    *count = 0;
    for (size_t i = 0; i < j->count[JOBS_FILE]; i++) {
        const struct item *x = j->items[JOBS_FILE][i];
        if (memcmp(x->owner, owner, sizeof x->owner) != 0) continue;
        bytes += x->bytes;
        (*count)++;
    }
    return bytes;
}

enum status jobs_upload(struct jobs *j, const jobs_owner owner, struct item **out, struct api_error *e)
{
    size_t count;
    struct item *x = NULL;
    enum status st = ST_OK;
    work_lock(&j->lock);
    (void)held(j, owner, &count);
    if (count >= JOBS_FILES_MOST)
        st = api_fail(e, 400, "file_count_exceeded", NULL, "There are %u files already: delete some first.",
                      JOBS_FILES_MOST);
    else if (!(x = jobs__add(j, JOBS_FILE, owner))) st = api_nomem(e);
    else if ((x->fd = openat(j->dir, x->id, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0) {
        st = fail_status(e, ST_IO, &(struct err){"--data-dir: a file can't be made"});
        jobs__remove(j, x);
    }
    work_unlock(&j->lock);
    if (!st) *out = x;
    return st;
}

enum status jobs_upload_add(struct jobs *j, struct item *file, const void *data, size_t len,
                            struct api_error *e)
{
    size_t count;
    work_lock(&j->lock);
    bool fits = held(j, file->owner, &count) + len <= j->opt.quota;
    if (fits) file->bytes += len;
    work_unlock(&j->lock);
    if (!fits)
        return api_fail(e, 400, "quota_exceeded", "file",
                        "Your files would have more than %llu bytes (--data-quota): delete some first.",
                        (unsigned long long)j->opt.quota);
    for (const char *p = data; len;) {
        ssize_t n = write(file->fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail_status(e, ST_IO, &(struct err){"--data-dir: an upload can't be written"});
        p += n;
        len -= (size_t)n;
    }
    return ST_OK;
}

enum status jobs_upload_end(struct jobs *j, struct item *file, const char *name, const char *purpose,
                            int64_t keep, struct buf *out, struct api_error *e)
{
    struct err err = {0};
    struct json_writer o = {.buf = out};
    enum status st = fsync(file->fd) ? io_failed(&err, file->id) : ST_OK;
    work_lock(&j->lock);
    close(file->fd);
    file->fd = -1;
    if (!st) st = file_record(file, name, purpose, keep) ? jobs__save(j, file, &err) : ST_NOMEM;
    if (!st) jw_value(&o, file->object);
    if (st) jobs__unlink(j, file->id);
    if (st) jobs__remove(j, file);
    work_unlock(&j->lock);
    if (!st) st = o.st;
    return st ? fail_status(e, st, &err) : ST_OK;
}

void jobs_upload_drop(struct jobs *j, struct item *file)
{
    if (!file) return;
    work_lock(&j->lock);
    jobs__unlink(j, file->id);
    jobs__remove(j, file);
    work_unlock(&j->lock);
}

enum status jobs_content(struct jobs *j, const jobs_owner owner, const char *id, int *fd, struct api_error *e)
{
    work_lock(&j->lock);
    struct item *x = jobs__find(j, JOBS_FILE, owner, id);
    *fd = x ? openat(j->dir, x->id, O_RDONLY | O_CLOEXEC) : -1;
    work_unlock(&j->lock);
    if (!x) return jobs__not_found(JOBS_FILE, id, e);
    return *fd < 0 ? fail_status(e, ST_IO, &(struct err){"--data-dir: a file can't be read"}) : ST_OK;
}

/* Whether a batch that hasn't ended reads or writes it. */
static bool in_use(const struct jobs *j, const struct item *file)
{
    for (size_t i = 0; i < j->count[JOBS_BATCH]; i++) {
        const struct item *b = j->items[JOBS_BATCH][i];
        const char *input = json_string_value(json_object_get(b->object, "input_file_id"));
        if (b->status < BATCH_ENDED &&
            ((input && strcmp(input, file->id) == 0) ||
             strncmp(file->id + strlen("file-"), b->id + strlen("batch_"), 32) == 0))
            return true;
    }
    return false;
}

enum status jobs_delete(struct jobs *j, const jobs_owner owner, const char *id, struct buf *out,
                        struct api_error *e)
{
    struct json_writer o = {.buf = out};
    enum status st = ST_OK;
    work_lock(&j->lock);
    struct item *x = jobs__find(j, JOBS_FILE, owner, id);
    if (!x) {
        st = jobs__not_found(JOBS_FILE, id, e);
    } else if (in_use(j, x)) {
        st = api_fail(e, 409, "file_in_use", "id", "A batch that has not ended needs this file.");
    } else {
        jw_put(&o, "{\"id\":%s,\"object\":\"file\",\"deleted\":true}", x->id);
        jobs__unlink(j, x->id);
        jobs__remove(j, x);
    }
    work_unlock(&j->lock);
    return st ? st : o.st ? api_nomem(e) : ST_OK;
}

void jobs__expire(struct jobs *j)
{
    int64_t now = (int64_t)time(NULL);
    work_lock(&j->lock);
    for (size_t i = j->count[JOBS_FILE]; i-- > 0;) {
        struct item *x = j->items[JOBS_FILE][i];
        int64_t at = json_integer_value(json_object_get(x->object, "expires_at"));
        if (!at || at > now || in_use(j, x)) continue;
        jobs__unlink(j, x->id);
        jobs__remove(j, x);
    }
    work_unlock(&j->lock);
}

/* ---- objects ---- */

enum status jobs_get(struct jobs *j, enum jobs_kind kind, const jobs_owner owner, const char *id,
                     struct buf *out, struct api_error *e)
{
    struct json_writer o = {.buf = out};
    work_lock(&j->lock);
    struct item *x = jobs__find(j, kind, owner, id);
    if (x) jw_value(&o, x->object);
    work_unlock(&j->lock);
    return !x ? jobs__not_found(kind, id, e) : o.st ? api_nomem(e) : ST_OK;
}

enum status jobs_list(struct jobs *j, enum jobs_kind kind, const jobs_owner owner,
                      const struct jobs_page *page, struct buf *out, struct api_error *e)
{
    struct json_writer o = {.buf = out};
    const struct item *first = NULL, *last = NULL;
    bool begun = !page->after, more = false;
    size_t shown = 0;
    jw_text(&o, "{\"object\":\"list\",\"data\":[");
    work_lock(&j->lock);
    for (size_t i = 0, n = j->count[kind]; i < n && !more; i++) {
        const struct item *x = j->items[kind][page->ascending ? i : n - 1 - i];
        const char *purpose = json_string_value(json_object_get(x->object, "purpose"));
        if (!x->record || memcmp(x->owner, owner, sizeof x->owner) != 0) continue;
        if (!begun) {
            begun = strcmp(x->id, page->after) == 0;
            continue;
        }
        if (page->purpose && (!purpose || strcmp(purpose, page->purpose) != 0)) continue;
        if ((more = shown == page->most)) break;
        if (shown++) jw_text(&o, ",");
        else first = x;
        jw_value(&o, x->object);
        last = x;
    }
    jw_put(&o, "],\"first_id\":%s,\"last_id\":%s", first ? first->id : NULL, last ? last->id : NULL);
    work_unlock(&j->lock);
    jw_text(&o, more ? ",\"has_more\":true}" : ",\"has_more\":false}");
    if (!begun) return api_fail(e, 400, "invalid_value", "after", "There is no such object.");
    return o.st ? api_nomem(e) : ST_OK;
}

/* ---- life cycle ---- */

static int by_age(const void *a, const void *b)
{
    const struct item *x = *(struct item *const *)a, *y = *(struct item *const *)b;
    return x->created != y->created ? (x->created < y->created ? -1 : 1) : strcmp(x->id, y->id);
}

/* A record that can't be read is left alone, with its file. */
static void load_one(struct jobs *j, const char *name)
{
    const char *dot = strrchr(name, '.');
    enum jobs_kind kind = strncmp(name, "batch_", 6) == 0 ? JOBS_BATCH : JOBS_FILE;
    char *text = NULL;
    size_t len = 0, bytes = 0;
    json_t *v = NULL;
    jobs_owner owner = {0};
    struct stat at = {0};
    if (!dot || strcmp(dot, ".json") != 0 || (size_t)(dot - name) >= JOBS_ID_BYTES) return;
    struct err err = {0};
    enum status st = file_text_in(j->opt.dir, name, RECORD_MOST, NULL, &text, &len, &err);
    if (!st) st = json_from_text(text, len, &v);
    free(text);
    json_t *object = json_object_get(v, "object");
    const char *id = json_string_value(json_object_get(object, "id")),
               *hex = json_string_value(json_object_get(v, "owner")),
               *status = json_string_value(json_object_get(object, "status"));
    bool ok = !st && id && hex && strlen(id) == (size_t)(dot - name) && strncmp(id, name, strlen(id)) == 0 &&
              !sodium_hex2bin(owner, sizeof owner, hex, strlen(hex), NULL, &bytes, NULL) &&
              bytes == sizeof owner && (kind == JOBS_BATCH || !fstatat(j->dir, id, &at, 0));
    int which = 0;
    while (ok && kind == JOBS_BATCH && which < JOBS_STATUSES &&
           (!status || strcmp(status, jobs_statuses[which]) != 0))
        which++;
    struct item *x = ok && which < JOBS_STATUSES ? jobs__add(j, kind, owner) : NULL;
    if (!x) {
        log_warn("--data-dir: %.100s can't be read: it is left out", name);
        json_decref(v);
        return;
    }
    snprintf(x->id, sizeof x->id, "%s", id);
    x->record = v;
    x->object = object;
    x->created = json_integer_value(json_object_get(object, "created_at"));
    x->bytes = (uint64_t)at.st_size;
    x->status = (enum batch_status)which;
    if (kind == JOBS_BATCH) j->statuses[which]++;
}

/* What an upload that was killed has left. */
static void clean_one(struct jobs *j, const char *name)
{
    char record[300];
    snprintf(record, sizeof record, "%s.json", name);
    struct item as = {0};
    snprintf(as.id, sizeof as.id, "%s", name);
    bool ours = strncmp(name, "file-", 5) == 0 && !strchr(name, '.') && faccessat(j->dir, record, F_OK, 0);
    if (ours && !in_use(j, &as)) (void)unlinkat(j->dir, name, 0);
}

static enum status load(struct jobs *j, struct err *err)
{
    void (*const passes[])(struct jobs *, const char *) = {load_one, clean_one};
    for (int i = 0; i < 2; i++) {
        DIR *d = opendir(j->opt.dir);
        if (!d) return io_failed(err, "it can't be listed");
        for (struct dirent *e; (e = readdir(d));) passes[i](j, e->d_name);
        closedir(d);
    }
    for (int k = 0; k < JOBS_KINDS; k++)
        if (j->count[k]) qsort(j->items[k], j->count[k], sizeof *j->items[k], by_age);
    return ST_OK;
}

enum status jobs_open(const struct jobs_options *o, struct jobs **out, struct err *err)
{
    struct jobs *j = calloc(1, sizeof *j);
    if (!j || pthread_mutex_init(&j->lock, NULL)) {
        free(j);
        return err_nomem(err, NULL);
    }
    j->opt = *o;
    (void)mkdir(o->dir, 0700);
    j->dir = open(o->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum status st =
        j->dir < 0 ? err_set(err, ST_INVALID, "--data-dir %.200s: %s", o->dir, strerror(errno)) : ST_OK;
    if (!st && flock(j->dir, LOCK_EX | LOCK_NB))
        st = err_set(err, ST_INVALID, "--data-dir %.200s: another server uses it", o->dir);
    if (!st) st = load(j, err);
    if (st) jobs_close(j);
    else *out = j;
    return st;
}

void jobs_stop(struct jobs *j)
{
    if (!j) return;
    atomic_store(&j->stopping, true);
    posts_wake(j->posts);
}

void jobs_close(struct jobs *j)
{
    if (!j) return;
    jobs_stop(j);
    if (j->started) pthread_join(j->thread, NULL);
    posts_free(j->posts);
    for (int k = 0; k < JOBS_KINDS; k++) {
        while (j->count[k]) jobs__remove(j, j->items[k][j->count[k] - 1]);
        free(j->items[k]);
    }
    if (j->dir >= 0) close(j->dir);
    pthread_mutex_destroy(&j->lock);
    free(j);
}
