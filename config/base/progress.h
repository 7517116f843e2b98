/* Progress of something long: a bar on a terminal, else a line now and then; nothing for what is short. */
#ifndef KVASIR_PROGRESS_H
#define KVASIR_PROGRESS_H

#include <stdint.h>

struct progress {
    const char *what;                   /* "loading" */
    uint64_t began_us, bar_us, line_us; /* 0 at first */
};
/* done of total bytes, of which `before` were there at the beginning. */
void progress_show(struct progress *p, uint64_t done, uint64_t total, uint64_t before);

#endif
