/* The environment. Nothing else reads it: settings (config/options.def), and debugging switches that aren't
 * settings: KVASIR_CUDA_GRAPHS, KVASIR_CUDA_LIBRARY, KVASIR_CUDA_HOPPER. */
#ifndef KVASIR_ENV_H
#define KVASIR_ENV_H

const char *env_get(const char *name); /* NULL: not set; valid until the environment changes */

#endif
