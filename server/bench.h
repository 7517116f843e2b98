/* `kvasir bench`: offline figures of the engine, as text and JSON. */
#ifndef KVASIR_BENCH_H
#define KVASIR_BENCH_H

/* argv[0] is "bench". Returns the process's exit status. */
int bench_main(int argc, char **argv);

#endif
