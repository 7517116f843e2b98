/* See log.h. */
#include "config/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int current_level = LOG_INFO;
static atomic_bool status_shown;
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

#define ERASE "\r\033[K" /* the line that the cursor stands in */

static void put(const char *text, size_t len)
{
    ssize_t w = write(STDERR_FILENO, text, len);
    (void)w;
}

bool log_status(const char *text)
{
    char line[256];
    if (!log_enabled(LOG_INFO) || !isatty(STDERR_FILENO)) return false;
    bool shown = atomic_exchange(&status_shown, text != NULL);
    if (!shown && !text) return true;
    int n = snprintf(line, sizeof line, ERASE "%s", text ? text : "");
    put(line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
    return true;
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
    if (atomic_exchange(&status_shown, false)) put(ERASE, sizeof ERASE - 1);
    put(line, n);
}
