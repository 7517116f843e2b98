/* See child.h. */
#include "server/front/child.h"

#include "config/base/clock.h"
#include "config/base/env.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct child {
    pid_t pid;
    int fd; /* its standard output; -1 once it has closed that */
    enum child_state state;
    char said[64]; /* the beginning of its output: that it listens */
    size_t said_len;
    char dir[32], host[48], exit[32]; /* host: unix:PATH */
};

static const char ready_line[] = "kvasir: listening on ";

/* In the forked process: functions that are safe after fork only. */
static void become(int out, pid_t parent, char *const *argv, char *const *envp)
{
    sigset_t none;
    int null = open("/dev/null", O_RDONLY);
    sigemptyset(&none);
    /* A terminal's signals go to the parent, which decides; with it, this process ends too. */
    bool ok = null >= 0 && !setpgid(0, 0) && !prctl(PR_SET_PDEATHSIG, SIGTERM) && getppid() == parent &&
              dup2(null, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 &&
              !sigprocmask(SIG_SETMASK, &none, NULL) && !close_range(STDERR_FILENO + 1, ~0u, 0);
    if (ok) execve("/proc/self/exe", argv, envp);
    _exit(127);
}

static enum status spawn(struct child *c, char *const *argv, char *const *envp, struct err *err)
{
    int out[2];
    if (pipe2(out, O_CLOEXEC | O_NONBLOCK)) return err_set(err, ST_IO, "a pipe: %s", strerror(errno));
    pid_t parent = getpid();
    c->pid = fork();
    if (!c->pid) {
        (void)fcntl(out[1], F_SETFL, 0);
        become(out[1], parent, argv, envp);
    }
    close(out[1]);
    c->fd = out[0];
    return c->pid > 0 ? ST_OK : err_set(err, ST_IO, "can't start a process: %s", strerror(errno));
}

/* --host last, so that it counts. */
static char **arguments(struct child *c, const char *const *args)
{
    size_t n = 0;
    while (args[n]) n++;
    char **argv = calloc(n + 7, sizeof *argv), **to = argv;
    if (!argv) return NULL;
    *to++ = "kvasir";
    *to++ = "serve";
    for (size_t i = 0; i < n; i++) *to++ = (char *)(uintptr_t)args[i];
    *to++ = "--host";
    *to++ = c->host;
    *to++ = "--shutdown-delay";
    *to++ = "0";
    return argv;
}

enum status child_start(const char *const *args, const char *const *env, struct child **out, struct err *err)
{
    static const char *const own[] = {"KVASIR_TLS_CERT=",  "KVASIR_TLS_KEY=",      "KVASIR_ROOT_PATH=",
                                      "KVASIR_API_KEY=",   "KVASIR_API_KEY_FILE=", "KVASIR_CONFIG=",
                                      "KVASIR_KV_EVENTS=", "KVASIR_LOG_FILE=",     NULL};
    struct child *c = calloc(1, sizeof *c);
    if (!c) return err_nomem(err, NULL);
    c->fd = -1;
    snprintf(c->dir, sizeof c->dir, "/tmp/kvasir-XXXXXX");
    bool made = mkdtemp(c->dir);
    enum status st = made ? ST_OK : err_set(err, ST_IO, "a directory in /tmp: %s", strerror(errno));
    snprintf(c->host, sizeof c->host, "unix:%s/http", c->dir);
    char **argv = st ? NULL : arguments(c, args), **envp = st ? NULL : env_with(env, own);
    if (!st) st = argv && envp ? spawn(c, argv, envp, err) : err_nomem(err, NULL);
    free(argv);
    free(envp);
    if (!st) {
        *out = c;
        return ST_OK;
    }
    if (made) rmdir(c->dir);
    if (c->fd >= 0) close(c->fd);
    free(c);
    return st;
}

int child_fd(const struct child *c)
{
    return c->fd;
}

const char *child_socket(const struct child *c)
{
    return c->host + 5;
}

pid_t child_pid(const struct child *c)
{
    return c->pid;
}

const char *child_exit(const struct child *c)
{
    return c->exit;
}

static void reap(struct child *c, int options)
{
    int how;
    if (c->state == CHILD_ENDED || waitpid(c->pid, &how, options) != c->pid) return;
    snprintf(c->exit, sizeof c->exit, "%s %d", WIFEXITED(how) ? "exit code" : "signal",
             WIFEXITED(how) ? WEXITSTATUS(how) : WTERMSIG(how));
    c->state = CHILD_ENDED;
}

enum child_state child_poll(struct child *c)
{
    char bytes[512];
    ssize_t n = 0;
    while (c->fd >= 0 && ((n = read(c->fd, bytes, sizeof bytes)) > 0 || (n < 0 && errno == EINTR))) {
        size_t room = sizeof c->said - 1 - c->said_len, more = n < 0 ? 0 : (size_t)n;
        memcpy(c->said + c->said_len, bytes, more < room ? more : room);
        c->said_len += more < room ? more : room;
    }
    if (c->fd >= 0 && (n == 0 || errno != EAGAIN)) {
        close(c->fd);
        c->fd = -1;
    }
    if (c->state == CHILD_STARTING && strncmp(c->said, ready_line, sizeof ready_line - 1) == 0)
        c->state = CHILD_READY;
    reap(c, WNOHANG);
    return c->state;
}

enum status child_wait(struct child *c, unsigned seconds, struct err *err)
{
    uint64_t until = now_us() + seconds * 1000000ull, now;
    while (child_poll(c) == CHILD_STARTING) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        now = now_us();
        if (seconds && now >= until)
            return err_set(err, ST_AGAIN, "the server of the model isn't ready after %u s", seconds);
        (void)poll(&p, 1, c->fd < 0 ? 10 : seconds ? (int)((until - now) / 1000) + 1 : -1);
    }
    if (c->state == CHILD_READY) return ST_OK;
    return err_set(err, ST_IO, "the server of the model ended before it was ready: %s", c->exit);
}

void child_signal(struct child *c, int signum)
{
    reap(c, WNOHANG);
    if (c->state != CHILD_ENDED) kill(c->pid, signum);
}

void child_free(struct child *c, unsigned seconds)
{
    if (!c) return;
    uint64_t until = now_us() + seconds * 1000000ull;
    child_signal(c, SIGTERM);
    while (child_poll(c) != CHILD_ENDED && now_us() < until) nanosleep(&(struct timespec){0, 5000000}, NULL);
    if (c->state != CHILD_ENDED) {
        kill(c->pid, SIGKILL);
        reap(c, 0);
    }
    if (c->fd >= 0) close(c->fd);
    unlink(child_socket(c));
    rmdir(c->dir);
    free(c);
}
