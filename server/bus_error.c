/* See bus_error.h. */
#include "server/bus_error.h"

#include "engine/checkpoint/safetensors.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static void on_bus_error(int signum, siginfo_t *info, void *context)
{
    (void)context;
    const char *parts[] = {
        "kvasir: ", stf_file_at(info->si_addr),
        ": can't be read: it was cut short while it was being loaded, or the disk has failed\n"};
    if (!parts[1]) {
        signal(signum, SIG_DFL);
        raise(signum); /* takes effect on return; the signal may have been sent by kill, so no access would
                          fault again */
        return;
    }
    for (int i = 0; i < 3; i++) {
        struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT}; /* there may be no reader */
        if (poll(&p, 1, 0) != 1 || write(STDERR_FILENO, parts[i], strlen(parts[i])) < 0) break;
    }
    _exit(1);
}

void bus_error_catch(void)
{
    struct sigaction act = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &act, NULL);
}
