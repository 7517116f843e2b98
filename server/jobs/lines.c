/* See lines.h. */
#include "server/jobs/lines.h"

#include "config/base/list.h"
#include "server/jobs/post.h"
#include "server/json/parser.h"
#include "server/json/value.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 18, ERRORS_MOST = 100, RECORD_HEAD = 43 };
#define RECORD_FORMAT "{\"id\":\"batch_req_%08" PRIx32 "%016" PRIx64 "\","

bool line_endpoint_known(const char *url)
{
    static const char *const known[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                        "/v1/embeddings"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(url, known[i]) == 0) return true;
    return false;
}

/* FNV-1a. */
#define HASH_BEGIN 0xcbf29ce484222325ull
static uint64_t hash(uint64_t h, const void *data, size_t len)
{
    for (const unsigned char *p = data, *end = p + len; p < end; p++) h = (h ^ *p) * 0x100000001b3ull;
    return h;
}

/* ---- reading ---- */

static enum status io_failed(struct err *err, const char *what)
{
    return err_set(err, errno == ENOMEM ? ST_NOMEM : ST_IO, "%s: %s", what, strerror(errno));
}

/* Calls each(arg, at, len) for each line of a file, until it is false or there is no more; the last one may
 * lack its end: whole is false then. */
static enum status file_lines(int fd, bool (*each)(void *arg, uint64_t at, uint64_t len, bool whole),
                              void *arg, struct err *err)
{
    char *bytes = malloc(READ_BYTES);
    uint64_t at = 0, begin = 0;
    ssize_t n = 0;
    bool more = true;
    while (bytes && more && (n = pread(fd, bytes, READ_BYTES, (off_t)at)) > 0) {
        char *from = bytes, *end = bytes + n, *stop;
        while (more && (stop = memchr(from, '\n', (size_t)(end - from)))) {
            uint64_t next = at + (uint64_t)(stop - bytes);
            more = each(arg, begin, next - begin, true);
            begin = next + 1;
            from = stop + 1;
        }
        at += (uint64_t)n;
    }
    if (bytes && more && !n && at > begin) (void)each(arg, begin, at - begin, false);
    bool none = !bytes;
    free(bytes);
    return none ? err_nomem(err, NULL) : n < 0 ? io_failed(err, "the file can't be read") : ST_OK;
}

static enum status text_load(struct buf *b, int fd, uint64_t at, size_t len)
{
    b->len = 0;
    if (buf_reserve(b, len + 1)) return ST_NOMEM;
    for (ssize_t n; b->len < len; b->len += (size_t)n)
        if ((n = pread(fd, b->data + b->len, len - b->len, (off_t)(at + b->len))) <= 0) return ST_IO;
    return ST_OK;
}

struct reading {
    struct lines *l;
    const char *endpoint;
    uint32_t most, number; /* number: of the line in the file, from 1 */
    json_t *ids, *errors;
    enum status st;
};

static void fault(struct reading *r, const char *code, const char *param, const char *message)
{
    if (json_array_size(r->errors) >= ERRORS_MOST) return;
    json_t *e = json_pack("{s:s,s:s,s:s?,s:I}", "code", code, "message", message, "param", param, "line",
                          (json_int_t)r->number);
    if (!e || json_array_append_new(r->errors, e)) r->st = ST_NOMEM;
}

/* What makes prompts equal or not: the texts of their beginnings. */
static enum status prefixes(struct line *line, const json_t *body)
{
    static const char *const names[] = {"messages", "input", "prompt"};
    struct buf text;
    struct json_writer o = {.buf = &text};
    uint64_t h = HASH_BEGIN;
    size_t from = 0;
    buf_init(&text, SIZE_MAX / 2);
    for (size_t i = 0; i < 3; i++)
        if (json_object_get(body, names[i])) jw_value(&o, json_object_get(body, names[i]));
    for (int i = 0; i < LINE_PREFIXES; i++) {
        size_t to = (size_t)256 << 2 * i;
        if (to > text.len) to = text.len;
        if (to > from) h = hash(h, text.data + from, to - from);
        from = to;
        line->prefix[i] = h;
    }
    buf_fini(&text);
    return o.st;
}

static void check(struct reading *r, struct line *line, json_t *v)
{
    const json_t *body = json_object_get(v, "body"), *id = json_object_get(v, "custom_id");
    const char *method = json_string_value(json_object_get(v, "method")), *text = json_string_value(id),
               *url = json_string_value(json_object_get(v, "url"));
    char message[300];
    if (!json_is_object(v))
        fault(r, "invalid_json_line", NULL, "This line is not parseable as a JSON object.");
    else if (!text || !*text)
        fault(r, "missing_required_parameter", "custom_id",
              "Missing required parameter: custom_id, a string.");
    else if (json_object_get(r->ids, text)) {
        size_t n = strnlen(text, 101); /* not ending inside a character */
        while (n > 100 || (text[n] & 0xC0) == 0x80) n--;
        snprintf(message, sizeof message,
                 "The custom_id '%.*s' for this request is a duplicate of another request. The custom_id "
                 "parameter must be unique for each request in a batch.",
                 (int)n, text);
        fault(r, "duplicate_custom_id", "custom_id", message);
    } else if (!method || strcmp(method, "POST") != 0)
        fault(r, "invalid_method", "method", "The method must be POST.");
    else if (!url || (r->endpoint ? strcmp(url, r->endpoint) != 0 : !line_endpoint_known(url)))
        fault(r, "invalid_url", "url",
              r->endpoint ? "The URL provided for this request does not match the batch endpoint."
                          : "The URL is none of /v1/chat/completions, /v1/completions, /v1/responses and "
                            "/v1/embeddings.");
    else if (!json_is_object(body))
        fault(r, "missing_required_parameter", "body", "Missing required parameter: body, an object.");
    else if (json_is_true(json_object_get(body, "stream")))
        fault(r, "unsupported_parameter", "body.stream", "A request in a batch can't be streamed.");
    else if (json_object_set_new(r->ids, text, json_true()) || prefixes(line, body)) r->st = ST_NOMEM;
}

static bool read_one(void *arg, uint64_t at, uint64_t len, bool whole)
{
    (void)whole;
    struct reading *r = arg;
    struct lines *l = r->l;
    r->number++;
    json_t *v = NULL;
    if (len > l->most) {
        fault(r, "line_too_long", NULL, "This line is longer than a request may be.");
        return !r->st;
    }
    if ((r->st = text_load(&l->text, l->fd, at, len))) return false;
    if (strspn(l->text.data ? l->text.data : "", " \t\r") >= len) return true; /* blank */
    if (l->count == r->most) {
        fault(r, "too_many_tasks", NULL, "The file has more lines than a batch may have.");
        return false;
    }
    if (!LIST_RESERVE(l->line, l->cap, l->count + 1)) {
        r->st = ST_NOMEM;
        return false;
    }
    struct line *line = &l->line[l->count];
    *line = (struct line){.at = at,
                          .len = (uint32_t)len,
                          .ordinal = l->count,
                          .check = hash(HASH_BEGIN ^ l->owner, l->text.data, len)};
    l->count++;
    enum status st = json_from_text(l->text.data, len, &v);
    if (st == ST_FORMAT) fault(r, "invalid_json_line", NULL, "This line is not parseable as valid JSON.");
    else if (st) r->st = st;
    else check(r, line, v);
    json_decref(v);
    return !r->st;
}

enum status lines_read(struct lines *l, const char *endpoint, uint32_t count_most, json_t *errors,
                       struct err *err)
{
    struct reading r = {.l = l, .endpoint = endpoint, .most = count_most, .errors = errors};
    buf_init(&l->text, l->most + 1);
    r.ids = json_object();
    enum status st = r.ids ? file_lines(l->fd, read_one, &r, err) : ST_NOMEM;
    if (!st && !r.st && !l->count) {
        r.number = 1;
        fault(&r, "empty_file", NULL, "The input file is empty.");
    }
    json_decref(r.ids);
    if (r.st == ST_IO) return io_failed(err, "the file can't be read");
    return st ? st : r.st ? err_nomem(err, NULL) : ST_OK;
}

enum status line_load(struct lines *l, const struct line *line, struct line_request *out)
{
    *out = (struct line_request){0};
    enum status st = text_load(&l->text, l->fd, line->at, line->len);
    if (!st) st = json_from_text(l->text.data, line->len, &out->root);
    out->custom_id = json_object_get(out->root, "custom_id");
    out->body = json_object_get(out->root, "body");
    out->url = json_string_value(json_object_get(out->root, "url"));
    return st;
}

enum status line_post(struct lines *l, struct line *line, struct post *p)
{
    struct line_request q;
    struct json_writer o = {.buf = &p->body};
    enum status st = line_load(l, line, &q);
    if (!st && !q.url) st = ST_IO;
    snprintf(p->url, sizeof p->url, "%s", st ? "" : q.url);
    p->body.len = 0;
    if (!st) jw_value(&o, q.body);
    if (!st) st = o.st;
    if (!st) p->custom_id = json_incref(q.custom_id);
    p->item = line;
    json_decref(q.root);
    return st;
}

static int by_prefix(const void *x, const void *y)
{
    const struct line *a = x, *b = y;
    for (int i = 0; i < LINE_PREFIXES; i++)
        if (a->prefix[i] != b->prefix[i]) return a->prefix[i] < b->prefix[i] ? -1 : 1;
    return a->ordinal < b->ordinal ? -1 : 1;
}

void lines_sort(struct lines *l)
{
    if (l->count) qsort(l->line, l->count, sizeof *l->line, by_prefix);
}

void lines_free(struct lines *l)
{
    free(l->line);
    buf_fini(&l->text);
    *l = (struct lines){.fd = -1};
}

/* ---- records ---- */

struct resuming {
    struct lines *l;
    int fd;
    uint64_t end; /* of the records that count */
    uint32_t count;
};

static bool resume_one(void *arg, uint64_t at, uint64_t len, bool whole)
{
    struct resuming *r = arg;
    char head[RECORD_HEAD + 1] = "", want[RECORD_HEAD + 1];
    uint32_t ordinal;
    if (!whole || len < RECORD_HEAD || pread(r->fd, head, RECORD_HEAD, (off_t)at) != RECORD_HEAD)
        return false;
    if (sscanf(head, "{\"id\":\"batch_req_%8" SCNx32, &ordinal) != 1 || ordinal >= r->l->count) return false;
    struct line *line = &r->l->line[ordinal];
    snprintf(want, sizeof want, RECORD_FORMAT, ordinal, line->check);
    if (memcmp(head, want, RECORD_HEAD) != 0 || line->answered) return false;
    line->answered = true;
    r->count++;
    r->end = at + len + 1;
    return true;
}

enum status lines_resume(struct lines *l, int fd, uint32_t *count, struct err *err)
{
    struct resuming r = {.l = l, .fd = fd};
    enum status st = file_lines(fd, resume_one, &r, err);
    if (!st && (ftruncate(fd, (off_t)r.end) || lseek(fd, 0, SEEK_END) < 0)) st = io_failed(err, "the output");
    *count = r.count;
    return st;
}

/* A response is one line already, but for blanks between its values that a line could not have. */
static void body_put(struct json_writer *o, const struct buf *body)
{
    size_t from = o->buf->len;
    jw_bytes(o, body->data, body->len);
    for (char *p; !o->st && (p = memchr(o->buf->data + from, '\n', o->buf->len - from));) *p = ' ';
}

enum status line_record(const struct line *line, const json_t *custom_id, const struct line_answer *a, int fd,
                        struct err *err)
{
    struct buf text;
    buf_init(&text, SIZE_MAX / 2);
    struct json_writer o = {.buf = &text, .st = buf_addf(&text, RECORD_FORMAT, line->ordinal, line->check)};
    jw_text(&o, "\"custom_id\":");
    jw_value(&o, custom_id);
    if (a->body) {
        jw_put(&o, ",\"response\":{\"status_code\":%lu,\"request_id\":%s,\"body\":", (unsigned long)a->status,
               a->request_id);
        body_put(&o, a->body);
        jw_text(&o, "},\"error\":null}\n");
    } else {
        jw_put(&o, ",\"response\":null,\"error\":{\"code\":%s,\"message\":%s}}\n", a->code, a->message);
    }
    off_t end = lseek(fd, 0, SEEK_END);
    enum status st = o.st ? err_nomem(err, NULL) : end < 0 ? io_failed(err, "the output") : ST_OK;
    for (size_t at = 0; !st && at < text.len;) {
        ssize_t n = write(fd, text.data + at, text.len - at);
        if (n > 0) at += (size_t)n;
        else if (n == 0 || errno != EINTR) st = io_failed(err, "the output can't be written");
    }
    if (st && end >= 0 && ftruncate(fd, end)) st = ST_IO; /* a torn record is cut off by lines_resume */
    buf_fini(&text);
    return st;
}
