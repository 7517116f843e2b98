/* The one style of errors: a status code returned by everything that can fail, and a fixed-size message
 * filled once, where the error is known. Leaf library: includes nothing of ours, allocates nothing, safe on
 * any thread. */
#ifndef KVASIR_STATUS_H
#define KVASIR_STATUS_H

enum status {
    ST_OK = 0,
    ST_NOMEM,       /* an allocation failed */
    ST_INVALID,     /* the caller's (client's) input is wrong */
    ST_TOO_LARGE,   /* the input is over a limit */
    ST_FORMAT,      /* a file or a body is malformed */
    ST_IO,          /* the operating system refused */
    ST_UNSUPPORTED, /* understood, but not supported */
    ST_DEVICE,      /* the backend failed; requests in flight are lost */
    ST_AGAIN,       /* not now: a queue is full */
    ST_STOPPING,    /* never again: it is shutting down */
    ST_NOT_FOUND,   /* a named thing does not exist */
};

/* Message for people; UTF-8, NUL-terminated, truncated when too long. Control
 * characters, which a terminal would obey, become '?'. An empty `msg` means "not set". */
struct err {
    char msg[768];
};

#define KV_MUST_CHECK __attribute__((warn_unused_result))

/* Writes the message (err may be NULL) and returns st, so that an error is one line: return err_set(err,
 * ST_FORMAT, "...", ...); */
enum status err_set(struct err *err, enum status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* "out of memory for WHAT"; what may be NULL. Returns ST_NOMEM. */
enum status err_nomem(struct err *err, const char *what);
/* Prepends "prefix: " to the message. Returns st. */
enum status err_prefix(struct err *err, enum status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* "invalid", "too large" ...: for logs. Never NULL. */
const char *status_name(enum status st);

#endif
