/* Measuring for tests/bench/bench_device.c: the report (a table on stdout, JSON in a file) and whole steps of
 * an engine with random weights. */
#ifndef KVASIR_TEST_BENCH_STEPS_H
#define KVASIR_TEST_BENCH_STEPS_H

#include "kernels/backend.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct bench_report {
    struct be_ceiling ceiling; /* the 100 % of shares */
    const char *only;          /* rows whose name contains this; NULL = all */
    FILE *json;                /* or NULL */
    bool any;                  /* a row has been written */
};

double bench_now(void); /* seconds, monotonic */
/* Prints an error and returns false if the file can't be written. json NULL: only the table. */
bool bench_report_open(struct bench_report *r, const char *json, const char *name, const char *device);
/* One result: `part` is "kernel" or "step"; rows: tokens or sequences in the call; bytes and flops may be
 * 0. */
void bench_row(struct bench_report *r, const char *part, const char *name, uint32_t rows, double seconds,
               double bytes, double flops);
void bench_report_close(struct bench_report *r);

/* Decoding at several batch sizes, prefill of several lengths and one image, of Gemma 3 4B and of
 * Qwen3-VL-8B (tiny: of small models of the same families), on engine_options.backend `backend` with `memory`
 * bytes. False after saying why. */
bool bench_steps(struct bench_report *r, const char *backend, size_t memory, bool tiny);

#endif
