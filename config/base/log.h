/* One line per event on stderr: time, level, then key=value text. Thread-safe (one write per line). Prompts
 * and images only at debug. */
#ifndef KVASIR_LOG_H
#define KVASIR_LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR = 0, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);
/* "error", "warn", "info", "debug" -> level; false when unknown. */
bool log_level_parse(const char *name, enum log_level *out);
/* What is shown behind the log as long as stderr is a terminal, until the next line or the next status; NULL:
 * nothing. false, and nothing is written: it is no terminal, or info is not logged. */
bool log_status(const char *text);
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_msg(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_msg(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_msg(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_msg(LOG_DEBUG, __VA_ARGS__)

#endif
