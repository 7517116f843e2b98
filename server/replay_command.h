/* `kvasir replay`: runs the requests of a log (server/replay/request_log.h) again, and compares the bits. */
#ifndef KVASIR_REPLAY_COMMAND_H
#define KVASIR_REPLAY_COMMAND_H

/* argv[0] is "replay". Exit code: 0 equal; 1 differences; 2 some could not be compared. */
int replay_command(int argc, char **argv);

#endif
