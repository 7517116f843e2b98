/* See log.h. */
#include "config/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int current_level = LOG_INFO;
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

void log_msg(enum log_level level, const char *fmt, ...)
{
    if (!log_enabled(level)) return;
    char line[2048];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    int m = snprintf(line + n, sizeof line - n, ".%03dZ %s ", (int)(ts.tv_nsec / 1000000), names[level]);
    if (m > 0) n += (size_t)m;
    va_list ap;
    va_start(ap, fmt);
    m = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    if (m > 0) n += (size_t)m;
    if (n > sizeof line - 2) n = sizeof line - 2;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)line[i] < 0x20)
            line[i] = ' '; /* one event stays one line, whatever a client wrote */
    }
    line[n++] = '\n';
    ssize_t w = write(STDERR_FILENO, line, n);
    (void)w;
}
