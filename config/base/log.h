/* One line per event on stderr, or in --log-file: time, level, then key=value text, or a JSON object.
 * Thread-safe (one write per line). Prompts and images only at debug.
 *
 * Writes never block: if a pipe has no reader or a terminal is stopped, lines are dropped. The next line that
 * is written reports how many. */
#ifndef KVASIR_LOG_H
#define KVASIR_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_ERROR = 0, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Once, before any thread: reopens stdout and stderr, which is the only way to make writes to a shared pipe
 * or terminal non-blocking. Without it, or if reopening is not allowed, another writer of the same pipe can
 * still make a write block. */
void log_open(void);
void log_set_level(enum log_level level);
void log_set_json(bool json);
bool log_open_file(const char *path); /* in place of stderr; or opens it again. False: errno says why */
bool log_enabled(enum log_level level);
/* The status line shown below the log on a terminal, until the next line or status; NULL clears it. false,
 * and nothing is written: stderr is not a terminal, or info is not logged. */
bool log_status(const char *text);
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* An event of fields, each printed as the format has it. `event` is the msg of JSON; text has only the
 * fields.
 */
#define LOG_LINE_BYTES 2048
#define LOG_LINE_END   4 /* always room for the end */
struct log_line {
    size_t len;
    bool json;
    char text[LOG_LINE_BYTES];
};
void log_begin(struct log_line *l, enum log_level level, const char *event);
void log_text(struct log_line *l, const char *key, const char *value);
void log_number(struct log_line *l, const char *key, double value, int decimals);
void log_end(struct log_line *l);
/* Writes a string verbatim, at most 4 KiB, to STDOUT_FILENO or STDERR_FILENO; false: it was not written. */
bool log_print(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_msg(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_msg(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_msg(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_msg(LOG_DEBUG, __VA_ARGS__)

#endif
