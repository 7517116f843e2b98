/* The server as the program sees it. */
#ifndef KVASIR_SERVER_H
#define KVASIR_SERVER_H

#include "config/options.h"
#include "engine/engine.h"

#define KVASIR_VERSION "0.1.0"

/* Opens the listening socket, starts the loader thread, serves until the end. model_dir: the checkpoint,
 * borrowed. Returns the process's exit code. */
int server_run(const struct options *opt, char *model_dir);
/* What the flags say about the engine. */
struct engine_options server_engine_options(const struct options *o, const char *model_dir);

#endif
