/* The environment. This is the one place that reads it: settings (config/options.c), and the switches for
 * hunting faults that aren't settings: KVASIR_CUDA_GRAPHS, KVASIR_CUDA_LIBRARY, KVASIR_CUDA_HOPPER. */
#ifndef KVASIR_ENV_H
#define KVASIR_ENV_H

const char *env_get(const char *name); /* NULL: not set; lives until the environment is changed */

#endif
