/* See log.h. */
#include "config/base/log.h"

#include "config/base/json_text.h"
#include "config/base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static atomic_int current_level = LOG_INFO;
static atomic_bool as_json;
static bool status_shown;
static const char *const names[] = {"error", "warn", "info", "debug"};

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

void log_set_json(bool json)
{
    atomic_store_explicit(&as_json, json, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
    return (int)level <= atomic_load_explicit(&current_level, memory_order_relaxed);
}

#define ERASE "\r\033[K" /* the cursor's line */

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER;     /* protects everything below, and poll with its write */
static int again[] = {-1, -1, -1}; /* stdout and stderr, reopened with O_NONBLOCK; -1: not open */
static unsigned long dropped;      /* lines since the last one written */
static int file = -1;              /* --log-file, in place of stderr */

bool log_open_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0640);
    if (fd < 0) return false;
    pthread_mutex_lock(&lock);
    if (file >= 0) close(file);
    file = fd;
    pthread_mutex_unlock(&lock);
    return true;
}

/* O_NONBLOCK belongs to the open file description, which is shared with the parent process, so it must not be
 * set here. A reopened file would have its own offset, and a socket can't be reopened. */
void log_open(void)
{
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        struct stat st;
        char path[32];
        if (fstat(fd, &st) || !(S_ISFIFO(st.st_mode) || isatty(fd))) continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        again[fd] = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    }
}

static bool put(int fd, const char *text, size_t len)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    ssize_t n =
        again[fd] >= 0 ? write(again[fd], text, len) : send(fd, text, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == ENOTSOCK && poll(&p, 1, 0) == 1) n = write(fd, text, len);
    return n == (ssize_t)len;
}

bool log_status(const char *text)
{
    char line[256];
    if (!log_enabled(LOG_INFO) || !isatty(STDERR_FILENO)) return false;
    int n = snprintf(line, sizeof line, ERASE "%s", text ? text : "");
    pthread_mutex_lock(&lock);
    if (status_shown || text) put(STDERR_FILENO, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
    status_shown = text != NULL;
    pthread_mutex_unlock(&lock);
    return true;
}

/* A line being written: always JSON, or text, as a whole; what does not fit is left out. */
static void add(struct log_line *l, const char *text, size_t len)
{
    size_t room = sizeof l->text - LOG_LINE_END - l->len;
    memcpy(l->text + l->len, text, len < room ? len : room);
    l->len += len < room ? len : room;
}

/* One event is one line, and one JSON string, whatever the client sent. */
static void add_escaped(struct log_line *l, const char *s)
{
    size_t left = strlen(s);
    while (left) {
        uint32_t cp;
        size_t n = utf8_decode(s, left, &cp);
        bool control = cp < 0x20 || (cp >= 0x7f && cp < 0xa0);
        struct json_escape e = json_escape_next(s, n, JSON_ESCAPE_LOG);
        if (sizeof l->text - LOG_LINE_END - l->len < 7) return; /* with the closing quote */
        if (!l->json) add(l, control ? " " : s, control ? 1 : n);
        else add(l, e.used ? e.text : s, e.used ? strlen(e.text) : n);
        s += n;
        left -= n;
    }
}

static void line_begin(struct log_line *l, enum log_level level)
{
    struct timespec ts;
    struct tm tm;
    char at[32], head[80];
    l->json = atomic_load_explicit(&as_json, memory_order_relaxed);
    l->len = 0;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%S", &tm);
    int n = snprintf(head, sizeof head, l->json ? "{\"time\":\"%s.%03dZ\",\"level\":\"%s\"" : "%s.%03dZ %s",
                     at, (int)(ts.tv_nsec / 1000000), names[level]);
    add(l, head, (size_t)n);
}

static void field(struct log_line *l, const char *key, const char *value, bool quoted)
{
    size_t need = strlen(key) + 8;
    if (sizeof l->text - LOG_LINE_END - l->len < need) return;
    add(l, l->json ? ",\"" : " ", l->json ? 2 : 1);
    add(l, key, strlen(key));
    add(l, l->json ? "\":" : "=", l->json ? 2 : 1);
    if (quoted && l->json) l->text[l->len++] = '"';
    add_escaped(l, value);
    if (quoted && l->json) l->text[l->len++] = '"';
}

void log_begin(struct log_line *l, enum log_level level, const char *event)
{
    line_begin(l, level);
    if (l->json) field(l, "msg", event, true);
}

void log_text(struct log_line *l, const char *key, const char *value)
{
    field(l, key, value, true);
}

void log_number(struct log_line *l, const char *key, double value, int decimals)
{
    char text[40];
    snprintf(text, sizeof text, "%.*f", decimals, value);
    field(l, key, text, false);
}

/* Under the lock. */
static bool line_put(struct log_line *l)
{
    if (l->json) l->text[l->len++] = '}';
    l->text[l->len++] = '\n';
    return file >= 0 ? write(file, l->text, l->len) == (ssize_t)l->len : put(STDERR_FILENO, l->text, l->len);
}

/* Under the lock. */
static bool dropped_say(void)
{
    struct log_line l;
    char text[80];
    line_begin(&l, LOG_WARN);
    snprintf(text, sizeof text, "%lu lines of the log were dropped: nobody read it", dropped);
    if (l.json) field(&l, "msg", text, true);
    else add(&l, " ", 1), add(&l, text, strlen(text));
    return line_put(&l);
}

void log_end(struct log_line *l)
{
    pthread_mutex_lock(&lock);
    if (status_shown) put(STDERR_FILENO, ERASE, sizeof ERASE - 1);
    status_shown = false;
    if (dropped && dropped_say()) dropped = 0;
    if (dropped || !line_put(l)) dropped++;
    pthread_mutex_unlock(&lock);
}

void log_msg(enum log_level level, const char *fmt, ...)
{
    if (!log_enabled(level)) return;
    struct log_line l;
    char text[LOG_LINE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    line_begin(&l, level);
    if (l.json) field(&l, "msg", text, true);
    else add(&l, " ", 1), add_escaped(&l, text);
    log_end(&l);
}

bool log_print(int fd, const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) return false;
    pthread_mutex_lock(&lock);
    bool taken = put(fd, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
    pthread_mutex_unlock(&lock);
    return taken;
}
