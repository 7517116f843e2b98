/* `kvasir run-batch`: the lines of a batch file, without a server. Exit code: 0, 1 (it could not end), 2 (a
 * wrong command or input), 3 (it ended, and lines of this run have errors). */
#ifndef KVASIR_RUN_BATCH_H
#define KVASIR_RUN_BATCH_H

int run_batch(int argc, char **argv);

#endif
