/* `kvasir bench`: offline benchmark of the engine, as text and JSON. */
#ifndef KVASIR_BENCH_H
#define KVASIR_BENCH_H

#include <stdbool.h>
#include <stdint.h>

struct engine;
struct err;
struct options;
struct sampling_params;

#define BENCH_DRAFT_TOKENS 96u /* generated per sequence, with and without speculative decoding */

/* Measures the checkpoint in dir, or random weights of --shape. Returns the process's exit status. */
int bench_run(const struct options *o, const char *dir);
void bench_usage(void);                   /* --help */
bool bench_failed(const struct err *err); /* says so; false */

struct bench_drafts {
    double tokens_s, plain_tokens_s; /* of all sequences, with and without speculative decoding */
    double tokens_per_step;          /* of one sequence, with draft tokens */
};
/* bench/draft.c: `batch` sequences after `context` tokens, at an acceptance rate of `right` %; the
 * best of `repeats` of each, alternating. False: a message is on stderr. */
bool bench_drafts(struct engine *e, uint32_t batch, uint32_t context, uint32_t right, uint32_t repeats,
                  const struct sampling_params *sampling, struct bench_drafts *out);

#endif
