/* Files and batches (server/jobs/): /v1/files and /v1/batches, with what is below them. On workers: they read
 * and write the disk. An upload is parsed as it comes, a chunk at a time, and a download read as it goes. */
#include "server/api/api.h"
#include "server/http/event_loop.h"
#include "server/http/request.h"
#include "server/input/input.h"
#include "server/jobs/jobs.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    DOWNLOAD_CHUNK = 1 << 18,
    PARSER_BYTES = 8192,
    FIELD_BYTES = 64,
    LIST_MOST = 10000,
    LIST_BATCHES = 100
};

/* ---- upload ---- */

struct upload {
    struct jobs *jobs;
    struct request *r;
    struct MHD_PostProcessor *parser;
    struct item *file; /* until jobs_upload_end */
    bool any;          /* some of the file has come */
    char *name;
    char purpose[FIELD_BYTES], anchor[FIELD_BYTES], seconds[FIELD_BYTES];
    uv_work_t drop;
};

static void drop_run(uv_work_t *w)
{
    struct upload *u = w->data;
    jobs_upload_drop(u->jobs, u->file);
}

static void drop_done(uv_work_t *w, int status)
{
    struct upload *u = w->data;
    (void)status;
    if (u->parser) MHD_destroy_post_processor(u->parser);
    free(u->name);
    free(u);
}

/* Loop: its file is deleted by a worker. */
static void upload_free(struct request *r)
{
    struct upload *u = r->own;
    u->drop.data = u;
    if (u->file) (void)uv_queue_work(&r->srv->loop->uv, &u->drop, drop_run, drop_done);
    else drop_done(&u->drop, 0);
}

static enum MHD_Result part_take(void *cls, enum MHD_ValueKind kind, const char *key, const char *filename,
                                 const char *type, const char *coding, const char *data, uint64_t at,
                                 size_t len)
{
    struct upload *u = cls;
    struct api_error *e = &u->r->response.error;
    char *const fields[] = {u->purpose, u->anchor, u->seconds};
    static const char *const names[] = {"purpose", "expires_after[anchor]", "expires_after[seconds]"};
    (void)kind, (void)type, (void)coding;
    if (strcmp(key, "file") == 0) {
        if (!at && u->any) (void)api_fail(e, 400, "invalid_value", "file", "One file can be sent at a time.");
        u->any = true;
        if (!u->name && !(u->name = strdup(filename ? filename : "file"))) (void)api_nomem(e);
        if (!e->http && !u->file) (void)jobs_upload(u->jobs, u->r->http.key, &u->file, e);
        if (!e->http && len) (void)jobs_upload_add(u->jobs, u->file, data, len, e);
    }
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(key, names[i]) != 0) continue;
        if (at + len >= FIELD_BYTES)
            (void)api_fail(e, 400, "invalid_value", names[i], "%s is too long.", names[i]);
        else memcpy(fields[i] + at, data, len);
    }
    return e->http ? MHD_NO : MHD_YES;
}

void api_upload_chunk(struct request *r)
{
    struct upload *u = r->own;
    const char *type = http_message_header(&r->http, "Content-Type");
    if (!u && type && strncasecmp(type, "multipart/form-data", 19) == 0 && (u = calloc(1, sizeof *u))) {
        *u = (struct upload){.jobs = r->srv->jobs, .r = r};
        u->parser = MHD_create_post_processor(r->http.mhd, PARSER_BYTES, part_take, u);
        r->own = u;
        r->own_free = upload_free;
    }
    if (!u || !u->parser)
        (void)api_fail(&r->response.error, 415, "unsupported_media_type", NULL,
                       "A file is sent as multipart/form-data, with the fields file and purpose.");
    else if (MHD_post_process(u->parser, r->http.body.data, r->http.body.len) != MHD_YES)
        (void)api_fail(&r->response.error, 400, "invalid_body", NULL, "The body is no well-formed form.");
}

static void upload_end(struct request *r)
{
    static const char *const purposes[] = {"batch",  "assistants", "fine-tune",
                                           "vision", "user_data",  "evals"};
    struct api_error *e = &r->response.error;
    size_t i = 0;
    char *end = NULL;
    api_upload_chunk(r);
    if (e->http) return;
    struct upload *u = r->own;
    long keep = *u->seconds ? strtol(u->seconds, &end, 10) : 0;
    while (i < 6 && strcmp(u->purpose, purposes[i]) != 0) i++;
    if (MHD_destroy_post_processor(u->parser) != MHD_YES)
        (void)api_fail(e, 400, "invalid_body", NULL, "The form ends before its last boundary.");
    else if (!u->file)
        (void)api_fail(e, 400, "missing_required_parameter", "file",
                       "The form has no file, or an empty one.");
    else if (i == 6)
        (void)api_fail(e, 400, "invalid_value", "purpose",
                       "purpose must be batch, assistants, fine-tune, vision, user_data or evals.");
    else if ((*u->seconds || *u->anchor) && (strcmp(u->anchor, "created_at") != 0 || !end || *end ||
                                             keep < JOBS_KEEP_LEAST || keep > JOBS_KEEP_MOST))
        (void)api_fail(e, 400, "invalid_value", "expires_after",
                       "expires_after must have the anchor created_at and from %d to %d seconds.",
                       JOBS_KEEP_LEAST, JOBS_KEEP_MOST);
    u->parser = NULL;
    if (e->http) return;
    (void)jobs_upload_end(u->jobs, u->file, u->name, purposes[i], keep, &r->response.out, e);
    u->file = NULL;
}

/* ---- download ---- */

static void download_free(struct request *r)
{
    close(*(int *)r->own);
    free(r->own);
}

static void download_more(struct request *r)
{
    struct buf *out = &r->response.out;
    if (buf_reserve(out, DOWNLOAD_CHUNK)) {
        (void)api_nomem(&r->response.error);
        return;
    }
    ssize_t n = read(*(int *)r->own, out->data + out->len, DOWNLOAD_CHUNK);
    if (n < 0) (void)api_fail(&r->response.error, 500, "data_dir_failed", NULL, "%s", strerror(errno));
    r->stream.end = n == 0;
    out->len += n > 0 ? (size_t)n : 0;
}

static void download_begin(struct request *r)
{
    if (r->response.error.http) {
        request_fail(r);
        return;
    }
    r->stream.raw = true;
    r->refill = download_more;
    request_stream_open(r);
}

static void download_job(struct request *r)
{
    char id[JOBS_ID_BYTES];
    int *fd = malloc(sizeof *fd);
    const char *rest = request_rest(r);
    snprintf(id, sizeof id, "%.*s", (int)strcspn(rest, "/"), rest);
    if (!fd) (void)api_nomem(&r->response.error);
    else if (jobs_content(r->srv->jobs, r->http.key, id, fd, &r->response.error)) free(fd);
    else {
        r->own = fd;
        r->own_free = download_free;
    }
}

/* ---- lists, and one of them ---- */

static void list_job(struct request *r)
{
    enum jobs_kind kind = strstr(r->route->path, "files") ? JOBS_FILE : JOBS_BATCH;
    const char *limit = http_message_argument(&r->http, "limit"),
               *order = http_message_argument(&r->http, "order");
    char *end = NULL;
    long most = kind == JOBS_FILE ? LIST_MOST : LIST_BATCHES, n = limit ? strtol(limit, &end, 10)
                                                                  : kind == JOBS_FILE ? LIST_MOST
                                                                                      : 20;
    if (n < 1 || n > most || (limit && (!*limit || *end)))
        (void)api_fail(&r->response.error, 400, "invalid_value", "limit", "limit must be from 1 to %ld.",
                       most);
    else if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        (void)api_fail(&r->response.error, 400, "invalid_value", "order", "order must be 'asc' or 'desc'.");
    else
        (void)jobs_list(r->srv->jobs, kind, r->http.key,
                        &(struct jobs_page){.most = (size_t)n,
                                            .ascending = order && *order == 'a',
                                            .after = http_message_argument(&r->http, "after"),
                                            .purpose = http_message_argument(&r->http, "purpose")},
                        &r->response.out, &r->response.error);
}

static void create_job(struct request *r)
{
    json_t *root = NULL;
    if (!request_body_parse(r, &root))
        (void)jobs_batch_create(r->srv->jobs, r->http.key, root, &r->response.out, &r->response.error);
    json_decref(root);
}

static void one_job(struct request *r)
{
    enum jobs_kind kind = strstr(r->route->path, "files") ? JOBS_FILE : JOBS_BATCH;
    const char *rest = request_rest(r), *tail = rest + strcspn(rest, "/");
    char id[JOBS_ID_BYTES];
    snprintf(id, sizeof id, "%.*s", (int)(tail - rest), rest); /* one that is cut names nothing */
    struct jobs *j = r->srv->jobs;
    struct buf *out = &r->response.out;
    struct api_error *e = &r->response.error;
    bool cancel = kind == JOBS_BATCH && strcmp(tail, "/cancel") == 0;
    if (*tail && !cancel)
        (void)api_fail(e, 404, "unknown_url", NULL, "Invalid URL (%s %.200s)", method_name(r->http.method),
                       r->http.path);
    else if (cancel != (r->http.method == M_POST))
        request_wrong_method(r, cancel ? "POST, OPTIONS" : "GET, OPTIONS");
    else if (cancel) (void)jobs_batch_cancel(j, r->http.key, id, out, e);
    else if (r->http.method == M_DELETE) (void)jobs_delete(j, r->http.key, id, out, e);
    else (void)jobs_get(j, kind, r->http.key, id, out, e);
}

void api_files_start(struct request *r)
{
    r->http.body_marks = 0;
    if (r->response.error.http) request_fail(r); /* an earlier chunk was wrong */
    else request_work(r, r->http.method == M_POST ? upload_end : list_job, request_finish);
}

void api_file_start(struct request *r)
{
    const char *rest = request_rest(r), *tail = rest + strcspn(rest, "/");
    bool content = r->http.method == M_GET && strcmp(tail, "/content") == 0;
    request_work(r, content ? download_job : one_job, content ? download_begin : request_finish);
}

void api_batches_start(struct request *r)
{
    request_work(r, r->http.method == M_POST ? create_job : list_job, request_finish);
}

void api_batch_start(struct request *r)
{
    request_work(r, one_job, request_finish);
}
