/* Time to the first token with a cached prefix, against the engine alone for the same work:
 *     bench_cache MODEL_DIR [NEW_TOKENS]
 * For prefixes of n tokens (1k to 8k, as far as the checkpoint's context goes) it prints: cold (n + m tokens
 * computed), warm (n from the cache, m computed: lookup, copy, plan, step and event included), and the bare
 * engine step of m tokens at position n, which is the time for m tokens plus attention over n. Best of
 * several. Not run as a test. */
#include "engine/engine.h"
#include "scheduler/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEAT = 9 };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* The best of several: a shared machine only ever adds time. */
static double best(const double *v, int n)
{
    double b = v[0];
    for (int i = 1; i < n; i++) b = v[i] < b ? v[i] : b;
    return b;
}

static void die(const char *what, const struct err *err)
{
    fprintf(stderr, "%s: %s\n", what, err->msg);
    exit(1);
}

static const struct sampling_params greedy = {.logprobs = SAMPLING_NO_LOGPROBS,
                                              .prompt_logprobs = SAMPLING_NO_LOGPROBS};

/* Submits and runs until the end; milliseconds to the first token. */
static double first_token(struct scheduler *s, const struct prompt *p, uint32_t *reused)
{
    struct sched_sequence q = {.prompt = p, .sampling = &greedy, .tokens_max = 1, .ignore_eos = true};
    struct seq_id id;
    struct err err = {{0}};
    struct sched_event ev;
    double start = now_ms(), took = 0;
    if (sched_submit(s, &q, &id, &err)) die("submit", &err);
    for (bool end = false; !end;) {
        sched_step(s, (uint64_t)(now_ms() * 1e3));
        while (sched_poll(s, &ev)) {
            if (ev.kind == EV_TOKEN) took = now_ms() - start;
            if (ev.kind == EV_END) {
                *reused = ev.cache.reused;
                if (ev.end != END_LENGTH) die("sequence", &(struct err){{0}});
                end = true;
            }
        }
    }
    return took;
}

/* Milliseconds of one step of m tokens at position n; the arena holds what the scheduler left there. */
static double bare_step(struct engine *e, const struct engine_caps *caps, const struct prompt *p, uint32_t n,
                        uint32_t m)
{
    uint32_t *tables[ENGINE_GROUPS_MAX] = {NULL}, blocks = p->token_count / caps->block_tokens + 1, at = 0;
    struct engine_chunk chunk = {.position = n,
                                 .count = m,
                                 .tokens = p->tokens,
                                 .token_count = p->token_count,
                                 .prompt_count = p->token_count,
                                 .sampling = &greedy,
                                 .sample = true,
                                 .score_first = UINT32_MAX};
    for (uint32_t g = 0; g < caps->group_count; g++) {
        tables[g] = malloc(blocks * sizeof *tables[g]);
        for (uint32_t i = 0; i < blocks; i++, at += caps->groups[g].block_grains) tables[g][i] = at;
        chunk.tables[g] = tables[g];
    }
    struct engine_batch batch = {.chunks = &chunk, .chunk_count = 1};
    struct err err = {{0}};
    double start = now_ms();
    if (at > caps->arena_grains || engine_submit(e, &batch, &err) || engine_wait(e, &batch, &err))
        die("step", &err);
    double took = now_ms() - start;
    for (uint32_t g = 0; g < caps->group_count; g++) free(tables[g]);
    return took;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_cache MODEL_DIR [NEW_TOKENS]\n");
        return 2;
    }
    uint32_t m = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 64, state = 1;
    struct engine_options opt = {.model_dir = argv[1], .kv_bytes = 3ull << 30};
    struct engine *e;
    struct err err = {{0}};
    struct engine_caps caps;
    if (engine_open(&opt, &e, &err)) die("open", &err);
    engine_caps(e, &caps);
    struct {
        uint32_t n;
        double cold, warm, bare, alone;
    } rows[4] = {{.n = 1024}, {.n = 2048}, {.n = 4096}, {.n = 8192}};
    uint32_t count = 0;
    struct prompt p = {.tokens = malloc((8192 + m) * sizeof(uint32_t))};
    struct sched_options so = {.queue_max = 4};
    struct scheduler *s;
    if (sched_create(e, &so, &s, &err)) die("scheduler", &err);
    for (uint32_t i = 0; i < 8192 + m; i++)
        p.tokens[i] = (state = state * 1664525u + 1013904223u) % (caps.vocab_size - 300) + 100;
    for (; count < 4 && rows[count].n + m + 1 <= caps.context_max; count++) {
        uint32_t n = rows[count].n, reused;
        double v[REPEAT];
        p.token_count = n + m;
        p.tokens[0] = 100 + count; /* another prefix than the row's before */
        rows[count].cold = first_token(s, &p, &reused);
        for (int i = 0; i < REPEAT; i++) {
            p.tokens[n] = 100 + (uint32_t)i; /* parts right behind the prefix */
            v[i] = first_token(s, &p, &reused);
            if (reused != n && i > 0) fprintf(stderr, "reused %u of %u\n", reused, n);
        }
        rows[count].warm = best(v + 1, REPEAT - 1);
    }
    sched_destroy(s);
    for (uint32_t k = 0; k < count; k++) {
        double v[REPEAT], a[REPEAT];
        p.token_count = rows[k].n + m;
        for (int i = 0; i < REPEAT; i++) {
            v[i] = bare_step(e, &caps, &p, rows[k].n, m);
            a[i] = bare_step(e, &caps, &p, 0, m);
        }
        rows[k].bare = best(v, REPEAT);
        rows[k].alone = best(a, REPEAT);
    }
    printf("%u new tokens; milliseconds to the first token\n  cached      cold      warm   engine alone: "
           "same step   without prefix   warm / same step\n",
           m);
    for (uint32_t k = 0; k < count; k++)
        printf("%8u %9.1f %9.1f %25.1f %16.1f %18.3f\n", rows[k].n, rows[k].cold, rows[k].warm, rows[k].bare,
               rows[k].alone, rows[k].warm / rows[k].bare);
    free(p.tokens);
    engine_close(e);
    return 0;
}
