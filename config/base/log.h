/* One line per event on stderr: time, level, then key=value text. Thread-safe (one write per line). Prompts
 * and images only at debug.
 *
 * No write waits: where nobody reads a pipe or a terminal is stopped, lines are dropped; how many were is
 * said with the next line that is taken. */
#ifndef KVASIR_LOG_H
#define KVASIR_LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR = 0, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Once, before any thread: opens stdout and stderr a second time, as only so a write to a shared pipe or
 * terminal never waits. Without it, or where that is not allowed, another process that writes to the same
 * pipe can still make one wait. */
void log_open(void);
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);
/* "error", "warn", "info", "debug" -> level; false when unknown. */
bool log_level_parse(const char *name, enum log_level *out);
/* What is shown behind the log as long as stderr is a terminal, until the next line or the next status; NULL:
 * nothing. false, and nothing is written: it is no terminal, or info is not logged. */
bool log_status(const char *text);
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A text as it is, at most 4 KiB, to STDOUT_FILENO or STDERR_FILENO; false: it was not taken. */
bool log_print(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_msg(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_msg(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_msg(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_msg(LOG_DEBUG, __VA_ARGS__)

#endif
