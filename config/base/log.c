/* See log.h. */
#include "config/base/log.h"

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
static bool status_shown;
static const char *const names[] = {"error", "warn", "info", "debug"};

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
    return (int)level <= atomic_load_explicit(&current_level, memory_order_relaxed);
}

bool log_level_parse(const char *name, enum log_level *out)
{
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum log_level)i;
            return true;
        }
    }
    return false;
}

#define ERASE "\r\033[K" /* the cursor's line */

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER;     /* protects everything below, and poll with its write */
static int again[] = {-1, -1, -1}; /* stdout and stderr, reopened with O_NONBLOCK; -1: not open */
static unsigned long dropped;      /* lines since the last one written */

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

static size_t line_begin(char *line, size_t cap, enum log_level level)
{
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, cap, "%Y-%m-%dT%H:%M:%S", &tm);
    int m = snprintf(line + n, cap - n, ".%03dZ %s ", (int)(ts.tv_nsec / 1000000), names[level]);
    return n + (m > 0 ? (size_t)m : 0);
}

/* Under the lock. */
static bool dropped_say(void)
{
    char line[128];
    size_t n = line_begin(line, sizeof line, LOG_WARN);
    int m =
        snprintf(line + n, sizeof line - n, "%lu lines of the log were dropped: nobody read it\n", dropped);
    return put(STDERR_FILENO, line, n + (size_t)m);
}

void log_msg(enum log_level level, const char *fmt, ...)
{
    if (!log_enabled(level)) return;
    char line[2048];
    size_t n = line_begin(line, sizeof line, level);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    if (m > 0) n += (size_t)m;
    if (n > sizeof line - 2) n = sizeof line - 2;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)line[i] < 0x20)
            line[i] = ' '; /* one event is one line, whatever the client sent */
    }
    line[n++] = '\n';
    pthread_mutex_lock(&lock);
    if (status_shown) put(STDERR_FILENO, ERASE, sizeof ERASE - 1);
    status_shown = false;
    if (dropped && dropped_say()) dropped = 0;
    if (dropped || !put(STDERR_FILENO, line, n)) dropped++;
    pthread_mutex_unlock(&lock);
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
