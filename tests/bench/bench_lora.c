/* What adapters cost: decode steps with and without them in turn, at the same positions.
 *
 * usage: bench_lora MODEL SEQUENCES ROUNDS ADAPTER...     sequence i has adapter i % their number
 * Prints the median time of both and the ratio of the throughputs. */
#include "config/base/clock.h"
#include "tests/lib/mini_sched.h"

#include <stdio.h>
#include <stdlib.h>

#define ADAPTERS_MAX 64
#define PROMPT       64u

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

int main(int argc, char **argv)
{
    struct adapter *adapters[ADAPTERS_MAX];
    struct engine *e;
    struct err err;
    if (argc < 5 || argc - 4 > ADAPTERS_MAX) {
        fprintf(stderr, "usage: bench_lora MODEL SEQUENCES ROUNDS ADAPTER...\n");
        return 2;
    }
    uint32_t n = (uint32_t)atoi(argv[2]), rounds = (uint32_t)atoi(argv[3]), count = (uint32_t)argc - 4;
    struct engine_options opt = {
        .model_dir = argv[1], .kv_bytes = 1u << 30, .sequences_max = n, .batch_tokens_max = n * PROMPT};
    enum status st = engine_open(&opt, &e, &err);
    for (uint32_t i = 0; i < count && !st; i++) st = adapter_open(e, argv[4 + i], &adapters[i], &err);
    if (st) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    uint32_t prompt[PROMPT];
    for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = 1000 + 7 * i;
    struct mini_sched m;
    struct mini_seq *seqs = calloc(n, sizeof *seqs), **list = calloc(n, sizeof *list);
    double *plain = calloc(rounds, sizeof *plain), *with = calloc(rounds, sizeof *with);
    mini_init(&m, e);
    for (uint32_t i = 0; i < n; i++) {
        list[i] = &seqs[i];
        seqs[i] = (struct mini_seq){.prompt = prompt,
                                    .prompt_count = PROMPT,
                                    .generate = 2 * rounds + 1,
                                    .score_first = PROMPT, /* none */
                                    .sampling = mini_greedy()};
        mini_add(&m, &seqs[i]);
    }
    (void)mini_step(&m, list, n);
    for (uint32_t r = 0; r < 2 * rounds; r++) {
        bool adapted = r % 2 != r / 2 % 2; /* each as often before the other */
        for (uint32_t i = 0; i < n; i++) seqs[i].adapter = adapted ? adapters[i % count] : NULL;
        double t = now_s();
        (void)mini_step(&m, list, n);
        (adapted ? with : plain)[r / 2] = now_s() - t;
    }
    double a = median(plain, rounds), b = median(with, rounds);
    printf("%u sequences, %u adapters of %.1f MB: step %.2f ms, with adapters %.2f ms: %.1f %% of the "
           "throughput\n",
           n, count, (double)adapter_info(adapters[0])->bytes / 1e6, 1e3 * a, 1e3 * b, 100 * a / b);
    return 0;
}
