/* The environment. Nothing else reads it: settings (config/options.def), and debugging switches that aren't
 * settings: KVASIR_CUDA_GRAPHS, KVASIR_CUDA_LIBRARY, KVASIR_CUDA_HOPPER. */
#ifndef KVASIR_ENV_H
#define KVASIR_ENV_H

const char *env_get(const char *name); /* NULL: not set; valid until the environment changes */
/* For execve: the entries ("NAME=value", up to a NULL) of first, then second, then the environment, of which
 * the first of a name counts. An array to free; the entries are borrowed. NULL: out of memory. */
char **env_with(const char *const *first, const char *const *second);

#endif
