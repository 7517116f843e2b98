/* `kvasir cache`: what a --cache-dir holds. */
#ifndef KVASIR_CACHE_COMMAND_H
#define KVASIR_CACHE_COMMAND_H

/* argv[0] is "cache". Returns the process's exit status: 1 on errors, for `verify` also if a record is
 * damaged. */
int cache_command(int argc, char **argv);

#endif
