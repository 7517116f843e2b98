/* See replay_command.h. A server of its own, a child process, answers the requests; what they gave is read
 * from the request log that it writes into a pipe, so that no API's responses need be understood here. */
#include "server/replay_command.h"

#include "config/base/clock.h"
#include "config/base/file.h"
#include "config/base/list.h"
#include "server/front/child.h"
#include "server/json/fields.h"
#include "server/json/parser.h"
#include "server/json/value.h"
#include "server/replay/request_log.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "usage: kvasir replay LOG MODEL [flags] [flags of kvasir serve]\n\n"
    "Runs the requests of a log that `kvasir serve --request-log LOG` has written again, and compares\n"
    "token ids, log-probs and finish reasons, bit for bit (docs/replay.md).\n\n"
    "  --concurrency N   requests at a time (1 to 1024, default 8)\n"
    "  --shuffle         in random order\n"
    "  --junit FILE      the results as JUnit XML, a test case per request\n"
    "  --json            the results as lines of JSON on standard output\n\n"
    "Exit code: 0 all are equal, 1 there are differences, 2 some could not be compared.\n";

enum { CONCURRENCY_MAX = 1024, LINE_WAIT_US = 10000000, PATH_BYTES = 128 };

enum verdict {
    OPEN = 0,
    EQUAL,
    DIFFERENT,
    SKIPPED,
    UNSURE /* skipped too, but it might be different */
};
static const char *const verdicts[] = {"open", "equal", "different", "skipped", "skipped"};

struct entry {
    const char *at; /* the line */
    size_t len;
    enum verdict verdict;
    char id[64], why[256];
    double seconds;
};

/* A request in flight. */
struct slot {
    struct entry *entry; /* NULL: none */
    CURL *easy;
    struct curl_slist *headers;
    char *body;
    json_t *want, *got;         /* lines; got NULL: not there yet */
    uint64_t begun_us, done_us; /* done: the response is there; 0: not yet */
};

struct replay {
    const char *path, *junit;
    bool shuffle, json;
    struct slot slots[CONCURRENCY_MAX];
    unsigned concurrency, running;
    bool held; /* the server refused one: the next begins when another ends */
    struct entry *entries;
    size_t count, cap, next, *order;
    size_t counts[UNSURE + 1]; /* by verdict */
    struct child *server;
    CURLM *multi;
    int lines[2]; /* the pipe */
    struct buf in;
};

static void judge(struct entry *e, enum verdict verdict, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void judge(struct entry *e, enum verdict verdict, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->why, sizeof e->why, fmt, args);
    va_end(args);
    e->verdict = verdict;
}

/* ---- two lines ---- */

static const char *word(const json_t *line, const char *name)
{
    const char *s = json_string_value(json_object_get(line, name));
    return s ? s : "none";
}

/* The first place where two values differ; path is where they are. False: none. */
static bool differs(struct entry *e, json_t *was, json_t *is, char path[PATH_BYTES])
{
    const char *key;
    json_t *member;
    size_t end = strlen(path), n = json_array_size(was), m = json_array_size(is);
    json_object_foreach(was, key, member) {
        snprintf(path + end, PATH_BYTES - end, ".%s", key);
        if (differs(e, member, json_object_get(is, key), path)) return true;
    }
    for (size_t i = 0; i < (n > m ? n : m); i++) {
        snprintf(path + end, PATH_BYTES - end, "[%zu]", i);
        if (differs(e, json_array_get(was, i), json_array_get(is, i), path)) return true;
    }
    path[end] = '\0';
    if (was == is || json_equal(was, is)) return false;
    char *before = json_dumps(was, JSON_ENCODE_ANY), *now = json_dumps(is, JSON_ENCODE_ANY);
    judge(e, DIFFERENT, "%s is %.80s, was %.80s", path, now ? now : "absent", before ? before : "absent");
    free(before);
    free(now);
    return true;
}

static void compare(struct entry *e, const json_t *want, const json_t *got)
{
    static const char *const names[] = {"status", "error", "choices"};
    char path[PATH_BYTES];
    judge(e, EQUAL, "%s", "");
    for (size_t i = 0; i < 3 && e->verdict == EQUAL; i++) {
        snprintf(path, sizeof path, "%s", names[i]);
        (void)differs(e, json_object_get(want, names[i]), json_object_get(got, names[i]), path);
    }
    if (e->verdict == EQUAL || strcmp(word(want, "fingerprint"), word(got, "fingerprint")) == 0) return;
    bool kernels = strcmp(word(want, "backend"), word(got, "backend")) != 0;
    const char *what = kernels ? "backend" : "fingerprint";
    judge(e, UNSURE, "bits may differ: made with %s (%.40s, here %s)",
          kernels ? "another kernel set" : "other weights, adapter or types, or another version",
          word(want, what), word(got, what));
}

/* ---- from a line to a request ---- */

/* prefix + a file of the log in base64, or as it is. NULL: it is missing, or no memory. */
static json_t *from_file(const struct replay *r, const char *prefix, size_t len, const char *hex, bool base64)
{
    char *path = NULL, *bytes = NULL;
    size_t n = 0;
    struct err err;
    json_t *out = NULL;
    if (strlen(hex) != 64 || strspn(hex, "0123456789abcdef") != 64 ||
        asprintf(&path, "%s.images/%s", r->path, hex) < 0 || file_text(path, SIZE_MAX / 4, &bytes, &n, &err))
        return free(path), NULL;
    size_t size = len + (base64 ? sodium_base64_ENCODED_LEN(n, sodium_base64_VARIANT_ORIGINAL) : n + 1);
    char *text = malloc(size);
    if (text) memcpy(text, prefix, len);
    if (text && base64)
        sodium_bin2base64(text + len, size - len, (uint8_t *)bytes, n, sodium_base64_VARIANT_ORIGINAL);
    else if (text) memcpy(text + len, bytes, n);
    if (text) out = json_stringn(text, size - 1);
    free(path);
    free(bytes);
    free(text);
    return out;
}

/* v with images in it: a new value, or v with one more reference. NULL: an image is missing. */
static json_t *whole(const struct replay *r, json_t *v, const json_t *fetched)
{
    static const char data[] = "data:application/octet-stream;base64,";
    const char *s = json_string_value(v), *at = s, *url, *key;
    json_t *member, *new;
    size_t i;
    if (s && (url = json_string_value(json_object_get(fetched, s))))
        return from_file(r, data, sizeof data - 1, url, true);
    if (s && strncmp(s, "data:", 5) == 0 && (at = strstr(s, ";base64,"))) at += 8;
    if (s && at && strncmp(at, REQUEST_LOG_IMAGE, sizeof REQUEST_LOG_IMAGE - 1) == 0)
        return from_file(r, s, (size_t)(at - s), at + sizeof REQUEST_LOG_IMAGE - 1, true);
    if (s && at && strncmp(at, REQUEST_LOG_TEXT, sizeof REQUEST_LOG_TEXT - 1) == 0)
        return from_file(r, s, (size_t)(at - s), at + sizeof REQUEST_LOG_TEXT - 1, false);
    json_object_foreach(v, key, member)
        if (!(new = whole(r, member, fetched)) || json_object_set_new(v, key, new)) return NULL;
    json_array_foreach(v, i, member)
        if (!(new = whole(r, member, fetched)) || json_array_set_new(v, i, new)) return NULL;
    return json_incref(v);
}

/* The body to send, malloc'd. NULL: e says why. */
static char *body_of(const struct replay *r, struct entry *e, const json_t *line, size_t *len)
{
    json_t *body = json_object_get(line, "body"), *seed = json_object_get(line, "seed"),
           *to = strncmp(word(line, "path"), "/api/", 5) == 0 ? json_object_get(body, "options") : body;
    struct buf text;
    struct json_writer o = {.buf = &text};
    buf_init(&text, SIZE_MAX / 4);
    if (!json_is_object(to) && seed && !json_object_set_new(body, "options", json_object()))
        to = json_object_get(body, "options");
    body = whole(r, body, json_object_get(line, "fetched"));
    if (!body) return judge(e, UNSURE, "an image is missing in %.200s.images", r->path), NULL;
    if (seed && json_object_set(to, "seed", seed)) o.st = ST_NOMEM;
    if (!json_object_get(body, "template_time") &&
        json_object_set(body, "template_time", json_object_get(line, "time")))
        o.st = ST_NOMEM;
    jw_value(&o, body);
    json_decref(body);
    *len = text.len;
    if (!o.st) return text.data;
    buf_fini(&text);
    return judge(e, UNSURE, "out of memory"), NULL;
}

static size_t drop(char *data, size_t size, size_t n, void *arg)
{
    (void)data, (void)arg;
    return size * n;
}

/* Sends an entry's request, unless it is to be skipped. */
static void slot_begin(struct replay *r, struct slot *s, struct entry *e)
{
    char id[64], *url = NULL;
    size_t len;
    json_t *line = NULL;
    if (json_from_text(e->at, e->len, &line) || !json_is_object(json_object_get(line, "body"))) {
        judge(e, UNSURE, "this is no line of a request log");
        json_decref(line);
        return;
    }
    long status = (long)json_integer_value(json_object_get(line, "status"));
    snprintf(e->id, sizeof e->id, "%s", word(line, "id"));
    if (status != 200 && status != 400) judge(e, SKIPPED, "status %ld depends on the server's load", status);
    char *body = e->verdict ? NULL : body_of(r, e, line, &len);
    if (!body) {
        json_decref(line);
        return;
    }
    *s =
        (struct slot){.easy = curl_easy_init(), .entry = e, .want = line, .body = body, .begun_us = now_us()};
    snprintf(id, sizeof id, "X-Request-Id: replay-%zu", (size_t)(e - r->entries) + 1);
    s->headers = curl_slist_append(curl_slist_append(NULL, id), "Content-Type: application/json");
    bool ok =
        s->easy && s->headers && asprintf(&url, "http://localhost%s", word(line, "path")) > 0 &&
        !curl_easy_setopt(s->easy, CURLOPT_URL, url) && !curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s) &&
        !curl_easy_setopt(s->easy, CURLOPT_UNIX_SOCKET_PATH, child_socket(r->server)) &&
        !curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, s->headers) &&
        !curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)len) &&
        !curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, body) &&
        !curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, drop) && !curl_multi_add_handle(r->multi, s->easy);
    free(url);
    r->running++;
    if (!ok) judge(e, UNSURE, "out of memory");
}

static void slot_end(struct replay *r, struct slot *s)
{
    s->entry->seconds = (double)(now_us() - s->begun_us) * 1e-6;
    if (s->easy) {
        curl_multi_remove_handle(r->multi, s->easy);
        curl_easy_cleanup(s->easy);
    }
    curl_slist_free_all(s->headers);
    json_decref(s->want);
    json_decref(s->got);
    free(s->body);
    *s = (struct slot){0};
    r->running--;
    r->held = false;
}

/* ---- the run ---- */

/* By the request's id, replay-LINE; NULL: none. */
static struct slot *slot_of(struct replay *r, const char *id)
{
    size_t k = strncmp(id, "replay-", 7) == 0 ? strtoul(id + 7, NULL, 10) : 0;
    for (unsigned i = 0; i < r->concurrency && k; i++)
        if (r->slots[i].entry == &r->entries[k - 1]) return &r->slots[i];
    return NULL;
}

/* Lines of the server's log, as they come. */
static void lines_read(struct replay *r)
{
    ssize_t n;
    while (!buf_reserve(&r->in, 1 << 16) && (n = read(r->lines[0], r->in.data + r->in.len, 1 << 16)) > 0)
        r->in.len += (size_t)n;
    size_t from = 0;
    for (char *at, *end; (end = memchr(at = r->in.data + from, '\n', r->in.len - from));
         from = (size_t)(end - r->in.data) + 1) {
        json_t *line = NULL;
        if (json_from_text(at, (size_t)(end - at), &line)) continue;
        struct slot *s = slot_of(r, word(line, "id"));
        if (s && !s->got) s->got = line;
        else json_decref(line);
    }
    memmove(r->in.data, r->in.data + from, r->in.len -= from);
}

static void responses_take(struct replay *r)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(r->multi, &left));) {
        struct slot *s = NULL;
        long status = 0;
        if (m->msg != CURLMSG_DONE || curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &s) || !s) continue;
        (void)curl_easy_getinfo(m->easy_handle, CURLINFO_RESPONSE_CODE, &status);
        s->done_us = now_us();
        bool refused = status / 100 == 4 && status != 400 && status != 429; /* before it is logged */
        if (refused) judge(s->entry, DIFFERENT, "the server refused the request: HTTP %ld", status);
        if (m->data.result) judge(s->entry, DIFFERENT, "no response: %s", curl_easy_strerror(m->data.result));
        else if (status == 429 && r->running > 1) {
            r->order[--r->next] = (size_t)(s->entry - r->entries);
            slot_end(r, s);
            r->held = true;
        }
    }
}

/* False: the server has ended. */
static bool run(struct replay *r)
{
    while (r->next < r->count || r->running) {
        int ignored;
        struct curl_waitfd fds[2] = {{r->lines[0], CURL_WAIT_POLLIN, 0},
                                     {child_fd(r->server), CURL_WAIT_POLLIN, 0}};
        for (unsigned i = 0; i < r->concurrency && r->next < r->count && !r->held; i++)
            while (!r->slots[i].entry && r->next < r->count)
                slot_begin(r, &r->slots[i], &r->entries[r->order[r->next++]]);
        curl_multi_perform(r->multi, &ignored);
        responses_take(r);
        lines_read(r);
        for (unsigned i = 0; i < r->concurrency; i++) {
            struct slot *s = &r->slots[i];
            if (!s->entry) continue;
            if (s->got && s->done_us && !s->entry->verdict) compare(s->entry, s->want, s->got);
            if (!s->got && s->done_us && now_us() - s->done_us > LINE_WAIT_US)
                judge(s->entry, DIFFERENT, "the server did not log the request");
            if (s->entry->verdict) slot_end(r, s);
        }
        if (child_poll(r->server) == CHILD_ENDED) return false;
        if (r->running) curl_multi_poll(r->multi, fds, child_fd(r->server) < 0 ? 1 : 2, 100, NULL);
    }
    return true;
}

/* The lines of the log; an unfinished one at its end is none. */
static enum status log_read(struct replay *r, struct err *err)
{
    int fd;
    uint64_t size;
    if (file_open(r->path, &fd, &size, err)) return ST_IO;
    char *at = size ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    close(fd);
    if (at == MAP_FAILED) return file_unmapped(r->path, size, err);
    for (char *end, *last = at + size; at && (end = memchr(at, '\n', (size_t)(last - at))); at = end + 1) {
        if (!LIST_RESERVE(r->entries, r->cap, r->count + 1)) return err_nomem(err, NULL);
        r->entries[r->count++] = (struct entry){.at = at, .len = (size_t)(end - at)};
    }
    if (!r->count) return err_set(err, ST_FORMAT, "%.200s has no lines", r->path);
    if (!(r->order = calloc(r->count, sizeof *r->order))) return err_nomem(err, NULL);
    for (size_t i = 0; i < r->count; i++) {
        size_t k = r->shuffle ? randombytes_uniform((uint32_t)i + 1) : i;
        r->order[i] = r->order[k];
        r->order[k] = i;
    }
    return ST_OK;
}

static enum status server_start(struct replay *r, int argc, char **argv, struct err *err)
{
    static const char *const own[] = {"--accept-any-model", "on",      "--max-body-bytes", "2G",
                                      "--max-queue",        "1048576", "--request-log"};
    enum { OWN = sizeof own / sizeof *own };
    char pipe_path[64];
    const char **args = calloc((size_t)argc + OWN + 4, sizeof *args);
    r->multi = curl_multi_init();
    if (!args || !r->multi || pipe2(r->lines, O_CLOEXEC | O_NONBLOCK))
        return free(args), err_set(err, ST_IO, "can't make a pipe");
    snprintf(pipe_path, sizeof pipe_path, "/proc/%d/fd/%d", (int)getpid(), r->lines[1]);
    int at = argc && argv[0][0] != '-'; /* MODEL comes before all flags */
    args[0] = argv[0];
    args[at] = "--log-level";
    args[at + 1] = "warn";
    memcpy(args + 2 + at, argv + at, (size_t)(argc - at) * sizeof *argv);
    memcpy(args + 2 + argc, own, sizeof own);
    args[2 + argc + OWN] = pipe_path;
    enum status st = child_start(args, NULL, &r->server, err);
    free(args);
    return st ? st : child_wait(r->server, 0, err);
}

/* ---- results ---- */

static void xml(FILE *f, const char *text, const char *end)
{
    for (; *text; text++)
        if (strchr("<>&\"", *text)) fprintf(f, "&#%d;", *text);
        else fputc((unsigned char)*text < ' ' ? '?' : *text, f);
    fputs(end, f);
}

static bool junit_write(const struct replay *r)
{
    static const char *const kinds[] = {"error", NULL, "failure", "skipped", "error"};
    FILE *f = fopen(r->junit, "w");
    if (!f) return false;
    fprintf(f,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"kvasir replay\" tests=\"%zu\" "
            "failures=\"%zu\" errors=\"%zu\" skipped=\"%zu\">\n",
            r->count, r->counts[DIFFERENT], r->counts[UNSURE], r->counts[SKIPPED]);
    for (const struct entry *e = r->entries; e < r->entries + r->count; e++) {
        fprintf(f, "<testcase time=\"%.3f\" classname=\"", e->seconds);
        xml(f, r->path, "\" name=\"");
        fprintf(f, "line %zu: ", (size_t)(e - r->entries) + 1);
        xml(f, e->id, "\">");
        if (kinds[e->verdict]) fprintf(f, "<%s message=\"", kinds[e->verdict]);
        if (kinds[e->verdict]) xml(f, e->why, "\"/>");
        fputs("</testcase>\n", f);
    }
    fputs("</testsuite>\n", f);
    return fclose(f) == 0;
}

static int report(struct replay *r)
{
    struct buf text;
    struct json_writer o = {.buf = &text};
    buf_init(&text, SIZE_MAX / 4);
    for (size_t i = 0; i < r->count; i++) {
        const struct entry *e = &r->entries[i];
        r->counts[e->verdict]++;
        jw_put(&o, "{\"line\":%lu,\"id\":%s,\"result\":%s,\"reason\":%s}\n", i + 1, e->id,
               verdicts[e->verdict], e->why);
        if (!r->json && e->verdict != EQUAL)
            printf("line %zu (%s): %s: %s\n", i + 1, e->id, verdicts[e->verdict], e->why);
    }
    size_t equal = r->counts[EQUAL], different = r->counts[DIFFERENT], unsure = r->counts[UNSURE],
           skipped = r->counts[SKIPPED] + unsure;
    jw_put(&o, "{\"requests\":%lu,\"equal\":%lu,\"different\":%lu,\"skipped\":%lu}\n", r->count, equal,
           different, skipped);
    if (r->json && !o.st) fputs(text.data, stdout);
    else printf("%zu requests: %zu equal, %zu different, %zu skipped\n", r->count, equal, different, skipped);
    buf_fini(&text);
    if (!r->junit || junit_write(r)) return fflush(stdout) ? 2 : different ? 1 : unsure || !equal ? 2 : 0;
    return fprintf(stderr, "kvasir: --junit %s: %s\n", r->junit, strerror(errno)), 2;
}

int replay_command(int argc, char **argv)
{
    static struct replay r = {.concurrency = 8, .lines = {-1, -1}};
    struct err err = {0};
    int kept = 0;
    buf_init(&r.in, SIZE_MAX / 4);
    bool ok = argc > 1 && strcmp(argv[1], "--help") != 0 && strcmp(argv[1], "-h") != 0;
    if (ok) r.path = argv[1];
    for (int i = 2; i < argc && ok; i++) {
        char *end = NULL;
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--shuffle") == 0) r.shuffle = true;
        else if (strcmp(argv[i], "--json") == 0) r.json = true;
        else if (strcmp(argv[i], "--junit") == 0) ok = (r.junit = argv[++i]) != NULL;
        else if (strcmp(argv[i], "--concurrency") == 0) {
            unsigned long n = value ? strtoul(value, &end, 10) : 0;
            ok = n && n <= CONCURRENCY_MAX && !*end;
            r.concurrency = (unsigned)n;
            i++;
        } else argv[kept++] = argv[i];
    }
    if (!ok) return fputs(usage, argc == 2 ? stdout : stderr), argc == 2 && argv[1][0] == '-' ? 0 : 2;
    enum status st = log_read(&r, &err);
    if (!st) st = server_start(&r, kept, argv, &err);
    if (!st && !run(&r)) st = err_set(&err, ST_IO, "the server has ended: %s", child_exit(r.server));
    int code = st ? 2 : report(&r);
    if (st) fprintf(stderr, "kvasir: %s\n", err.msg);
    child_free(r.server, 10);
    return code;
}
