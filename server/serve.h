/* `kvasir serve`: the process from start to end. */
#ifndef KVASIR_SERVE_H
#define KVASIR_SERVE_H

#include "config/options.h"

/* Opens the listening socket, starts the loader thread, serves until the end. model_dir: the checkpoint,
 * borrowed. Returns the process's exit code. */
int server_run(const struct options *opt, char *model_dir);

#endif
