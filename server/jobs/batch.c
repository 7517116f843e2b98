/* See jobs.h. Batches: made and cancelled by workers, run by a thread of their own, which alone has their
 * lines. One batch of an owner runs at a time; owners take turns line by line. A batch that was interrupted
 * is read again, and goes on with the lines that its outputs lack. */
#include "server/jobs/internal.h"

#include "config/base/log.h"
#include "config/base/work_lock.h"
#include "server/jobs/lines.h"
#include "server/json/fields.h"
#include "server/json/value.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RUNS_MOST = 32, WINDOW_SECONDS = 86400 };

const char *const jobs_statuses[JOBS_STATUSES] = {
    [BATCH_VALIDATING] = "validating", [BATCH_IN_PROGRESS] = "in_progress", [BATCH_FINALIZING] = "finalizing",
    [BATCH_CANCELLING] = "cancelling", [BATCH_COMPLETED] = "completed",     [BATCH_FAILED] = "failed",
    [BATCH_EXPIRED] = "expired",       [BATCH_CANCELLED] = "cancelled"};

/* A batch's outputs: the answers, and the others. */
enum output { ANSWERS, ERRORS, OUTPUTS };
static const char *const output_keys[OUTPUTS] = {"output_file_id", "error_file_id"};

struct run {
    struct item *batch;
    struct lines lines;
    int in, out[OUTPUTS];
    uint32_t next, open, count[OUTPUTS]; /* lines not yet begun from here on; running; records */
    struct err broken;                   /* why it can't go on; "" = it can */
};

static void output_id(const struct item *batch, enum output which, char id[JOBS_ID_BYTES])
{
    snprintf(id, JOBS_ID_BYTES, "file-%s-%s", batch->id + strlen("batch_"),
             which == ANSWERS ? "output" : "error");
}

static void status_set(struct jobs *j, struct item *batch, enum batch_status status)
{
    char at[32];
    j->statuses[batch->status]--;
    j->statuses[status]++;
    batch->status = status;
    snprintf(at, sizeof at, "%s_at", jobs_statuses[status]);
    (void)json_object_set_new(batch->object, "status", json_string(jobs_statuses[status]));
    (void)json_object_set_new(batch->object, at, json_integer((json_int_t)time(NULL)));
}

/* ---- create, cancel (workers) ---- */

static enum status metadata_check(const json_t *metadata, struct api_error *e)
{
    const char *key;
    json_t *v;
    bool ok =
        !metadata || json_is_null(metadata) || (json_is_object(metadata) && json_object_size(metadata) <= 16);
    if (ok && metadata)
        json_object_foreach((json_t *)(uintptr_t)metadata, key, v)
            ok = ok && strlen(key) <= 64 && json_is_string(v) && json_string_length(v) <= 512;
    return ok ? ST_OK
              : api_fail(
                    e, 400, "invalid_value", "metadata",
                    "metadata must be an object of at most 16 strings: keys of 64 bytes, values of 512.");
}

/* How long its outputs are kept. */
static enum status keep_read(json_t *after, int64_t *keep, struct api_error *e)
{
    *keep = 0;
    if (!after || json_is_null(after)) return ST_OK;
    if (!json_is(json_object_get(after, "anchor"), "created_at") ||
        !json_is_integer(json_object_get(after, "seconds")))
        return api_fail(e, 400, "invalid_value", "output_expires_after",
                        "output_expires_after must have the anchor 'created_at' and seconds.");
    return field_int(e, after, "seconds", JOBS_KEEP_LEAST, JOBS_KEEP_MOST, keep, NULL);
}

/* A place for one more: that of the oldest that has ended, if need be. */
static enum status place_make(struct jobs *j, const jobs_owner owner, struct api_error *e)
{
    uint32_t all = 0, open = 0;
    struct item *oldest = NULL;
    for (size_t i = 0; i < j->count[JOBS_BATCH]; i++) {
        struct item *b = j->items[JOBS_BATCH][i];
        if (memcmp(b->owner, owner, sizeof b->owner) != 0) continue;
        all++;
        open += b->status < BATCH_ENDED;
        if (!oldest && b->status >= BATCH_ENDED && !b->run) oldest = b;
    }
    if (open >= JOBS_BATCHES_OPEN)
        return api_fail(e, 400, "batch_count_exceeded", NULL,
                        "%u batches have not ended: wait for one, or cancel it.", open);
    if (all < JOBS_FILES_MOST || !oldest) return ST_OK;
    jobs__unlink(j, oldest->id);
    jobs__remove(j, oldest);
    return ST_OK;
}

static enum status batch_add(struct jobs *j, const jobs_owner owner, json_t *body, int64_t keep,
                             struct buf *out, struct api_error *e)
{
    const char *input = json_string_value(json_object_get(body, "input_file_id"));
    struct item *file = jobs__find(j, JOBS_FILE, owner, input), *x;
    struct err err = {0};
    struct json_writer o = {.buf = out};
    if (!file) return jobs__not_found(JOBS_FILE, input, e);
    if (!json_is(json_object_get(file->object, "purpose"), "batch"))
        return api_fail(e, 400, "invalid_value", "input_file_id", "The file's purpose must be 'batch'.");
    if (place_make(j, owner, e)) return ST_INVALID;
    if (!(x = jobs__add(j, JOBS_BATCH, owner))) return api_nomem(e);
    char hex[2 * sizeof x->owner + 1];
    sodium_bin2hex(hex, sizeof hex, x->owner, sizeof x->owner);
    x->object = json_pack(
        "{s:s,s:s,s:O,s:n,s:s,s:s,s:s,s:n,s:n,s:I,s:I,s:O?,s:{s:i,s:i,s:i}}", "id", x->id, "object", "batch",
        "endpoint", json_object_get(body, "endpoint"), "errors", "input_file_id", input, "completion_window",
        "24h", "status", jobs_statuses[0], "output_file_id", "error_file_id", "created_at",
        (json_int_t)x->created, "expires_at", (json_int_t)x->created + WINDOW_SECONDS, "metadata",
        json_object_get(body, "metadata"), "request_counts", "total", 0, "completed", 0, "failed", 0);
    json_t *record =
        x->object ? json_pack("{s:s,s:I,s:o}", "owner", hex, "keep", (json_int_t)keep, "object", x->object)
                  : NULL;
    enum status st = record ? ST_OK : ST_NOMEM;
    x->record = record;
    if (record) j->statuses[BATCH_VALIDATING]++;
    if (!st) st = jobs__save(j, x, &err);
    if (!st) jw_value(&o, x->object);
    if (!st && !o.st) return ST_OK;
    jobs__unlink(j, x->id);
    jobs__remove(j, x);
    return st == ST_IO ? api_fail(e, 500, "data_dir_failed", NULL, "%s", err.msg) : api_nomem(e);
}

enum status jobs_batch_create(struct jobs *j, const jobs_owner owner, json_t *body, struct buf *out,
                              struct api_error *e)
{
    const char *endpoint = json_string_value(json_object_get(body, "endpoint"));
    int64_t keep;
    if (!json_is_string(json_object_get(body, "input_file_id")))
        return api_fail(e, 400, "missing_required_parameter", "input_file_id",
                        "Missing required parameter: 'input_file_id', a string.");
    if (!endpoint || !line_endpoint_known(endpoint))
        return api_fail(e, 400, "invalid_value", "endpoint",
                        "endpoint must be '/v1/chat/completions', '/v1/completions', '/v1/responses' or "
                        "'/v1/embeddings'.");
    if (!json_is(json_object_get(body, "completion_window"), "24h"))
        return api_fail(e, 400, "invalid_value", "completion_window", "completion_window must be '24h'.");
    if (metadata_check(json_object_get(body, "metadata"), e) ||
        keep_read(json_object_get(body, "output_expires_after"), &keep, e))
        return ST_INVALID;
    work_lock(&j->lock);
    enum status st = batch_add(j, owner, body, keep, out, e);
    work_unlock(&j->lock);
    posts_wake(j->posts);
    return st;
}

enum status jobs_batch_cancel(struct jobs *j, const jobs_owner owner, const char *id, struct buf *out,
                              struct api_error *e)
{
    struct err err = {0};
    struct json_writer o = {.buf = out};
    enum status st = ST_OK;
    work_lock(&j->lock);
    struct item *x = jobs__find(j, JOBS_BATCH, owner, id);
    if (!x) {
        st = jobs__not_found(JOBS_BATCH, id, e);
    } else if (x->status >= BATCH_FINALIZING && x->status != BATCH_CANCELLING) {
        st = api_fail(e, 409, "invalid_status", NULL, "Cannot cancel a batch with status '%s'.",
                      jobs_statuses[x->status]);
    } else {
        if (x->status != BATCH_CANCELLING) status_set(j, x, BATCH_CANCELLING);
        if (jobs__save(j, x, &err)) log_error("%s", err.msg);
        jw_value(&o, x->object);
    }
    work_unlock(&j->lock);
    posts_wake(j->posts);
    return st ? st : o.st ? api_nomem(e) : ST_OK;
}

/* ---- a run (the thread) ---- */

static void run_free(struct run *r)
{
    r->batch->run = NULL;
    lines_free(&r->lines);
    if (r->in >= 0) close(r->in);
    for (int i = 0; i < OUTPUTS; i++)
        if (r->out[i] >= 0) close(r->out[i]);
    free(r);
}

static void counts_show(const struct run *r)
{
    json_t *counts = json_object_get(r->batch->object, "request_counts");
    const uint32_t n[] = {r->lines.count, r->count[ANSWERS], r->count[ERRORS]};
    static const char *const keys[] = {"total", "completed", "failed"};
    for (int i = 0; i < 3; i++) (void)json_integer_set(json_object_get(counts, keys[i]), n[i]);
}

/* The batch ends: what its outputs hold become files first. */
static void run_end(struct jobs *j, struct run *r, enum batch_status as)
{
    struct item *b = r->batch;
    struct err err = {0};
    enum status st = ST_OK;
    posts_drop(j->posts, r);
    for (int i = 0; i < OUTPUTS; i++)
        if (r->out[i] >= 0 && fsync(r->out[i])) st = err_set(&err, ST_IO, "--data-dir: %s", strerror(errno));
    work_lock(&j->lock);
    if (as == BATCH_COMPLETED && b->status == BATCH_IN_PROGRESS) status_set(j, b, BATCH_FINALIZING);
    for (int i = 0; i < OUTPUTS; i++) {
        char id[JOBS_ID_BYTES];
        output_id(b, (enum output)i, id);
        if (!st && r->count[i]) st = jobs__file_made(j, b, id, &err);
        if (!st && r->count[i]) (void)json_object_set_new(b->object, output_keys[i], json_string(id));
        if (!r->count[i]) (void)unlinkat(j->dir, id, 0);
    }
    counts_show(r);
    if (!st) status_set(j, b, as);
    if (!st) st = jobs__save(j, b, &err);
    run_free(r); /* with an error it is begun again */
    work_unlock(&j->lock);
    if (st) log_error("%s: %s", b->id, err.msg);
    else log_info("%s: %s", b->id, jobs_statuses[as]);
}

/* The batch fails with the object's list of errors; takes its reference. */
static void run_fail(struct jobs *j, struct run *r, json_t *errors)
{
    json_t *list = json_pack("{s:s,s:o}", "object", "list", "data", errors);
    work_lock(&j->lock);
    if (list) (void)json_object_set_new(r->batch->object, "errors", list);
    work_unlock(&j->lock);
    run_end(j, r, BATCH_FAILED);
}

static void run_break(struct jobs *j, struct run *r)
{
    run_fail(
        j, r,
        json_pack("[{s:s,s:s,s:n,s:n}]", "code", "server_error", "message", r->broken.msg, "param", "line"));
}

static enum status run_read(struct jobs *j, struct run *r, json_t *errors)
{
    char input[JOBS_ID_BYTES], endpoint[32], id[JOBS_ID_BYTES];
    work_lock(&j->lock);
    snprintf(input, sizeof input, "%s",
             json_string_value(json_object_get(r->batch->object, "input_file_id")));
    snprintf(endpoint, sizeof endpoint, "%s",
             json_string_value(json_object_get(r->batch->object, "endpoint")));
    work_unlock(&j->lock);
    r->in = openat(j->dir, input, O_RDONLY | O_CLOEXEC);
    if (r->in < 0) return err_set(&r->broken, ST_IO, "the input file can't be read: %s", strerror(errno));
    r->lines = (struct lines){.fd = r->in, .most = j->opt.line_max};
    (void)sscanf(r->batch->id, "batch_%16" SCNx64, &r->lines.owner);
    enum status st = lines_read(&r->lines, endpoint, JOBS_LINES_MOST, errors, &r->broken);
    for (int i = 0; !st && !json_array_size(errors) && i < OUTPUTS; i++) {
        output_id(r->batch, (enum output)i, id);
        r->out[i] = openat(j->dir, id, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        st = r->out[i] < 0 ? err_set(&r->broken, ST_IO, "the output can't be opened: %s", strerror(errno))
                           : lines_resume(&r->lines, r->out[i], &r->count[i], &r->broken);
    }
    if (!st) lines_sort(&r->lines);
    return st;
}

static void run_begin(struct jobs *j, struct item *b)
{
    struct run *r = calloc(1, sizeof *r);
    json_t *errors = json_array();
    struct err err = {0};
    if (!r || !errors) { /* later */
        free(r);
        json_decref(errors);
        return;
    }
    *r = (struct run){.batch = b, .in = -1, .out = {-1, -1}, .lines = {.fd = -1}};
    b->run = r;
    if (run_read(j, r, errors)) {
        json_decref(errors);
        run_break(j, r);
    } else if (json_array_size(errors)) {
        run_fail(j, r, errors);
    } else {
        json_decref(errors);
        work_lock(&j->lock);
        counts_show(r);
        if (b->status == BATCH_VALIDATING) status_set(j, b, BATCH_IN_PROGRESS);
        if (jobs__save(j, b, &err)) log_error("%s", err.msg);
        work_unlock(&j->lock);
    }
}

static void record(struct jobs *j, struct run *r, struct line *line, const json_t *custom_id,
                   const struct line_answer *a)
{
    enum output to = a->body && a->status == 200 ? ANSWERS : ERRORS;
    if (r->broken.msg[0] || line_record(line, custom_id, a, r->out[to], &r->broken)) return;
    line->answered = true;
    r->count[to]++;
    (to == ANSWERS ? &j->answered : &j->failed)[0]++;
    work_lock(&j->lock);
    counts_show(r);
    work_unlock(&j->lock);
}

/* Lines that had no turn in time. */
static void run_expire(struct jobs *j, struct run *r)
{
    static const struct line_answer expired = {
        .code = "batch_expired",
        .message = "This request could not be executed before the completion window expired."};
    posts_drop(j->posts, r);
    for (uint32_t i = 0; i < r->lines.count && !r->broken.msg[0]; i++) {
        struct line_request q;
        struct line *line = &r->lines.line[i];
        if (line->answered) continue;
        if (line_load(&r->lines, line, &q)) (void)err_set(&r->broken, ST_IO, "the input file can't be read");
        else record(j, r, line, q.custom_id, &expired);
        json_decref(q.root);
    }
    if (r->broken.msg[0]) run_break(j, r);
    else run_end(j, r, BATCH_EXPIRED);
}

static void run_tend(struct jobs *j, struct run *r)
{
    work_lock(&j->lock);
    enum batch_status status = r->batch->status;
    int64_t until = json_integer_value(json_object_get(r->batch->object, "expires_at"));
    work_unlock(&j->lock);
    if (r->broken.msg[0]) run_break(j, r);
    else if (status == BATCH_CANCELLING) run_end(j, r, BATCH_CANCELLED);
    else if (r->count[ANSWERS] + r->count[ERRORS] == r->lines.count) run_end(j, r, BATCH_COMPLETED);
    else if (time(NULL) >= until) run_expire(j, r);
}

/* ---- the thread ---- */

/* The next line of who has fewest that run. */
static bool next_post(void *arg, struct post *p)
{
    struct jobs *j = arg;
    struct run *r = NULL;
    work_lock(&j->lock);
    for (size_t i = 0; i < j->count[JOBS_BATCH]; i++) {
        struct run *x = j->items[JOBS_BATCH][i]->run;
        while (x && x->next < x->lines.count && x->lines.line[x->next].answered) x->next++;
        if (!x || x->next == x->lines.count || x->broken.msg[0] || x->batch->status != BATCH_IN_PROGRESS)
            continue;
        if (!r || x->open < r->open) r = x;
    }
    work_unlock(&j->lock);
    if (!r) return false;
    if (line_post(&r->lines, &r->lines.line[r->next++], p)) {
        (void)err_set(&r->broken, ST_IO, "the input file can't be read");
        return false;
    }
    static const jobs_owner nobody;
    char hex[2 * sizeof nobody + 1];
    sodium_bin2hex(hex, sizeof hex, r->batch->owner, sizeof nobody);
    snprintf(p->header, sizeof p->header, "%s: %s", JOBS_OWNER_HEADER, hex);
    if (memcmp(r->batch->owner, nobody, sizeof nobody) == 0) p->header[0] = '\0';
    p->user = r;
    r->open++;
    return true;
}

static void post_done(void *arg, struct post *p, long status)
{
    struct run *r = p->user;
    struct line_answer a = {.status = status, .request_id = p->request_id, .body = &p->answer};
    if (!status)
        a = (struct line_answer){.code = "server_error",
                                 .message = "The server could not take this request."};
    record(arg, r, p->item, p->custom_id, &a);
    r->open--;
}

/* The i-th batch if it hasn't ended; *may_begin: no other of its owner runs. */
static struct item *live(struct jobs *j, size_t i, bool *more, bool *may_begin)
{
    uint32_t runs = 0;
    work_lock(&j->lock);
    *more = i < j->count[JOBS_BATCH];
    struct item *b = *more ? j->items[JOBS_BATCH][i] : NULL;
    if (b && b->status >= BATCH_ENDED) b = NULL;
    *may_begin = true;
    for (size_t k = 0; b && k < j->count[JOBS_BATCH]; k++) {
        const struct item *x = j->items[JOBS_BATCH][k];
        runs += x->run != NULL;
        if (x->run && memcmp(x->owner, b->owner, sizeof b->owner) == 0) *may_begin = false;
    }
    *may_begin = *may_begin && runs < RUNS_MOST;
    work_unlock(&j->lock);
    return b;
}

static void *jobs_main(void *arg)
{
    struct jobs *j = arg;
    time_t swept = 0;
    while (!atomic_load(&j->stopping)) {
        bool more = true, may_begin;
        for (size_t i = 0; more && !atomic_load(&j->stopping); i++) {
            struct item *b = live(j, i, &more, &may_begin);
            if (b && !b->run && may_begin) run_begin(j, b);
            if (b && b->run) run_tend(j, b->run);
        }
        if (time(NULL) >= swept + 60) jobs__expire(j);
        if (time(NULL) >= swept + 60) swept = time(NULL);
        (void)posts_turn(j->posts, 1000);
    }
    work_lock(&j->lock);
    for (size_t i = 0; i < j->count[JOBS_BATCH]; i++) {
        struct run *r = j->items[JOBS_BATCH][i]->run;
        if (r) posts_drop(j->posts, r);
        if (r) run_free(r);
    }
    work_unlock(&j->lock);
    return NULL;
}

enum status jobs_start(struct jobs *j, struct err *err)
{
    enum status st = posts_create(&(struct post_options){.count = j->opt.open,
                                                         .socket = j->opt.socket,
                                                         .abstract = true,
                                                         .next = next_post,
                                                         .done = post_done,
                                                         .arg = j},
                                  &j->posts, err);
    if (!st && pthread_create(&j->thread, NULL, jobs_main, j))
        st = err_set(err, ST_IO, "can't start a thread");
    j->started = !st;
    return st;
}

void jobs_stats(const struct jobs *j, struct jobs_stats *out)
{
    for (int i = 0; i < JOBS_STATUSES; i++) out->batches[i] = atomic_load(&j->statuses[i]);
    out->answered = atomic_load(&j->answered);
    out->failed = atomic_load(&j->failed);
}
