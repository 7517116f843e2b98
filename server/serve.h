/* `kvasir serve`: the life of the process. */
#ifndef KVASIR_SERVE_H
#define KVASIR_SERVE_H

#include "config/options.h"

struct front_specs;

/* Opens the listening socket, starts the loader thread, serves until shutdown. model_dir: the checkpoint;
 * models: several instead (server/front), else NULL; borrowed. Returns the process's exit code. */
int server_run(const struct options *opt, char *model_dir, const struct front_specs *models);

#endif
