/* A server of this program's own: `kvasir serve --host unix:PATH ...` as a child process, which ends when
 * this process does. Its standard error is this process's. For an event loop: child_start, child_fd,
 * child_poll, child_signal; for a command: child_start, child_wait, child_free. One thread; if the thread
 * that started a child ends, the child is told to end too. */
#ifndef KVASIR_CHILD_H
#define KVASIR_CHILD_H

#include "config/base/status.h"

#include <sys/types.h>

enum child_state {
    CHILD_STARTING, /* loads its model */
    CHILD_READY,
    CHILD_ENDED, /* and was waited for */
};

struct child;

/* args: flags after `serve`, and env: "NAME=value" over this process's environment, both up to a NULL; env
 * may be NULL. What concerns the network and keys (--host, --tls-cert, --api-key, --root-path, --config ...)
 * isn't inherited through the environment: env has to name it. The socket is in a directory that only this
 * user may enter. On success *out is the caller's: child_free. ST_IO, ST_NOMEM. */
enum status child_start(const char *const *args, const char *const *env, struct child **out, struct err *err);

/* Readable when child_poll has news; -1 once the process is about to end: ask again a little later. */
int child_fd(const struct child *c);
/* The state now; never waits. */
enum child_state child_poll(struct child *c);
/* Until it is ready, at most so many seconds (0: no limit). ST_AGAIN; ST_IO: it has ended, and said why on
 * standard error. */
enum status child_wait(struct child *c, unsigned seconds, struct err *err);

const char *child_socket(const struct child *c); /* path of its UNIX socket; valid until child_free */
pid_t child_pid(const struct child *c);
/* How it ended: "exit code 1", "signal 9". After CHILD_ENDED. */
const char *child_exit(const struct child *c);
/* SIGTERM: it finishes its requests (--drain-timeout). SIGKILL: at once. Nothing if it has ended. */
void child_signal(struct child *c, int signum);
/* SIGTERM, after so many seconds SIGKILL, and waits for its end. Frees c, which may be NULL. */
void child_free(struct child *c, unsigned seconds);

#endif
