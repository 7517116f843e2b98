/* See run_batch.h. The model is a child process that serves on a Unix socket; the lines are sent there.
 * Records go to OUT.part, which the next run of the same command goes on with, and which becomes OUT at the
 * end. */
#include "server/run_batch.h"

#include "config/base/clock.h"
#include "server/front/child.h"
#include "server/jobs/jobs.h"
#include "server/jobs/lines.h"
#include "server/jobs/post.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static const char usage[] =
    "usage: kvasir run-batch -i IN -o OUT --model MODEL [flags of kvasir serve]\n\n"
    "Answers the requests of a file without a server (docs/jobs.md).\n\n"
    "  -i, --input-file IN     JSON lines, each a request of OpenAI's batches: custom_id, method, url, body\n"
    "  -o, --output-file OUT   a JSON line for each, in any order; until all are there it is OUT.part,\n"
    "                          which the same command continues after an interruption\n\n"
    "Exit code: 0 all lines were answered with status 200, 1 it could not end, 2 a wrong command or wrong\n"
    "lines, 3 some lines have errors, 130 interrupted.\n";

struct batch {
    struct lines lines;
    const char *in, *out;
    char part[PATH_MAX];
    int fd; /* of OUT.part */
    uint32_t next, answered, failed, before;
    uint64_t began_us, shown_us;
    struct err err; /* why it can't go on */
};
static volatile sig_atomic_t interrupted;

static void interrupt(int signum)
{
    (void)signum;
    interrupted = 1;
}

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "kvasir: %s%s%s\n", what ? what : "", what ? ": " : "", why);
    return 1;
}

static void show(struct batch *b, bool end)
{
    enum { WIDTH = 30 };
    bool terminal = isatty(STDERR_FILENO);
    uint64_t now = now_us();
    if (!end && now < b->shown_us + (terminal ? 200000u : 10000000u)) return;
    b->shown_us = now;
    double seconds = (double)(now - b->began_us) * 1e-6 + 1e-6, rate = (b->answered - b->before) / seconds;
    int full = b->lines.count ? (int)((uint64_t)b->answered * WIDTH / b->lines.count) : WIDTH;
    if (terminal) fprintf(stderr, "\r[%.*s%*s] ", full, "##############################", WIDTH - full, "");
    fprintf(stderr, "%u of %u lines, %.1f a second, %u with an error%s", b->answered, b->lines.count, rate,
            b->failed, terminal && !end ? "  " : "\n");
}

static bool next_post(void *arg, struct post *p)
{
    struct batch *b = arg;
    while (b->next < b->lines.count && b->lines.line[b->next].answered) b->next++;
    if (b->next == b->lines.count || b->err.msg[0]) return false;
    if (!line_post(&b->lines, &b->lines.line[b->next++], p)) return true;
    (void)err_set(&b->err, ST_IO, "%.200s: it has changed", b->in);
    return false;
}

static void post_done(void *arg, struct post *p, long status)
{
    struct batch *b = arg;
    struct line *line = p->item;
    struct line_answer a = {.status = status, .request_id = p->request_id, .body = &p->answer};
    if (!status) (void)err_set(&b->err, ST_IO, "the model's server takes no requests");
    if (b->err.msg[0] || line_record(line, p->custom_id, &a, b->fd, &b->err)) return;
    line->answered = true;
    b->answered++;
    b->failed += status != 200;
}

/* -> exit code; 0: the lines are read, and those that an earlier run has answered are marked. */
static int lines_open(struct batch *b)
{
    json_t *errors = json_array();
    struct err err = {0};
    int fd = open(b->in, O_RDONLY | O_CLOEXEC);
    b->lines = (struct lines){.fd = fd, .most = 1u << 30};
    if (fd < 0 || !errors) return fail(b->in, strerror(errno)) + 1;
    if (lines_read(&b->lines, NULL, UINT32_MAX, errors, &err)) return fail(b->in, err.msg);
    for (size_t i = 0; i < json_array_size(errors); i++) {
        const json_t *e = json_array_get(errors, i);
        fprintf(stderr, "kvasir: %s:%d: %s\n", b->in, (int)json_integer_value(json_object_get(e, "line")),
                json_string_value(json_object_get(e, "message")));
    }
    size_t wrong = json_array_size(errors);
    json_decref(errors);
    if (wrong) return 2;
    b->fd = open(b->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (b->fd < 0 || flock(b->fd, LOCK_EX | LOCK_NB))
        return fail(b->part, b->fd < 0 ? strerror(errno) : "another run writes it");
    if (lines_resume(&b->lines, b->fd, &b->before, &err)) return fail(b->part, err.msg);
    b->answered = b->before;
    lines_sort(&b->lines);
    return 0;
}

static enum status lines_run(struct batch *b, const char *const *flags)
{
    struct child *child = NULL;
    struct posts *posts = NULL;
    enum status st = child_start(flags, NULL, &child, &b->err);
    while (!st && !interrupted && child_poll(child) == CHILD_STARTING) usleep(10000);
    if (!st && !interrupted) st = child_wait(child, 1, &b->err);
    if (!st && !interrupted)
        st = posts_create(&(struct post_options){.count = JOBS_OPEN,
                                                 .socket = child_socket(child),
                                                 .next = next_post,
                                                 .done = post_done,
                                                 .arg = b},
                          &posts, &b->err);
    b->began_us = b->shown_us = now_us();
    while (posts && !interrupted && !b->err.msg[0] && b->answered < b->lines.count) {
        (void)posts_turn(posts, 100);
        if (child_poll(child) == CHILD_ENDED)
            (void)err_set(&b->err, ST_IO, "the model's server ended: %s", child_exit(child));
        show(b, false);
    }
    if (posts) show(b, true);
    posts_free(posts);
    child_free(child, 10);
    return b->err.msg[0] ? ST_IO : st;
}

/* Takes -i and -o out of argv; the rest is for serve. False: they are wrong. */
static bool flags_read(struct batch *b, int argc, char **argv, const char **flags)
{
    int n = 0;
    flags[n++] = "--log-level";
    flags[n++] = "warn";
    for (int i = 1; i < argc; i++) {
        bool in = !strcmp(argv[i], "-i") || !strcmp(argv[i], "--input-file"),
             out = !strcmp(argv[i], "-o") || !strcmp(argv[i], "--output-file");
        if (!in && !out) flags[n++] = argv[i];
        else if (i + 1 < argc) *(in ? &b->in : &b->out) = argv[++i];
    }
    if (argc > 1 && !(b->in && b->out)) (void)fail(b->in ? "-o OUT" : "-i IN", "missing");
    return b->in && b->out && snprintf(b->part, sizeof b->part, "%s.part", b->out) < (int)sizeof b->part;
}

int run_batch(int argc, char **argv)
{
    struct batch b = {.fd = -1};
    const char **flags = calloc((size_t)argc + 3, sizeof *flags);
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) return fputs(usage, stdout) < 0;
    bool ok = flags && flags_read(&b, argc, argv, flags);
    if (!ok) {
        free(flags);
        return fputs(usage, stderr), 2;
    }
    struct sigaction sa = {.sa_handler = interrupt, .sa_flags = (int)SA_RESETHAND};
    (void)sigaction(SIGINT, &sa, NULL);
    (void)sigaction(SIGTERM, &sa, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    int rc = lines_open(&b);
    if (!rc && b.before) fprintf(stderr, "kvasir: %s has %u lines already\n", b.part, b.before);
    if (!rc && b.answered < b.lines.count && lines_run(&b, flags)) rc = fail(NULL, b.err.msg);
    if (!rc && b.answered < b.lines.count) rc = 130;
    if (!rc && (fsync(b.fd) || rename(b.part, b.out))) rc = fail(b.out, strerror(errno));
    if (rc && b.answered && rc != 2)
        fprintf(stderr, "kvasir: %u of %u lines are in %s; the same command goes on\n", b.answered,
                b.lines.count, b.part);
    lines_free(&b.lines);
    free(flags);
    return rc ? rc : b.failed ? 3 : 0;
}
