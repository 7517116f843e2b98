/* `kvasir verify`: receipts, recomputed by a server of its own (server/front/child.h). */
#ifndef KVASIR_VERIFY_COMMAND_H
#define KVASIR_VERIFY_COMMAND_H

/* argv[0] is the command. The exit code: 0 all match, 1 one doesn't, 2 one can't be verified. */
int verify_command(int argc, char **argv);

#endif
