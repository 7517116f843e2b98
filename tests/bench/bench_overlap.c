/* What overlap saves: decode steps of an engine with random weights under the scheduler, each submitted while
 * the one before runs, and each after it. Half of the requests are greedy, half drawn at a temperature; every
 * id and log-prob must be the same in both, or the program fails.
 *
 *     bench_overlap [--backend cpu|cuda] [--tiny]
 */
#include "engine/engine.h"
#include "scheduler/scheduler.h"
#include "tests/lib/bench_steps.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEQS_MAX = 128, PROMPT = 64, STEPS = 400, REPEATS = 3 };

static const struct {
    const char *name;
    uint32_t steps;
    const char *config;
} shapes[] = {
    {"tiny", 12,
     "{\"model_type\":\"qwen3\",\"vocab_size\":512,\"hidden_size\":96,\"intermediate_size\":160,"
     "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,"
     "\"max_position_embeddings\":4096}"},
    {"qwen3-0.6b", STEPS,
     "{\"model_type\":\"qwen3\",\"vocab_size\":151936,\"hidden_size\":1024,"
     "\"intermediate_size\":3072,\"num_hidden_layers\":28,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":8,\"head_dim\":128,\"max_position_embeddings\":40960,"
     "\"tie_word_embeddings\":true}"},
    {"qwen3-8b", 100,
     "{\"model_type\":\"qwen3\",\"vocab_size\":151936,\"hidden_size\":4096,"
     "\"intermediate_size\":12288,\"num_hidden_layers\":36,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":8,\"head_dim\":128,\"max_position_embeddings\":40960}"},
};

struct request {
    uint32_t tokens[PROMPT], ids[STEPS], got;
    float logprobs[STEPS];
    struct prompt prompt;
    struct sampling_params sampling;
    struct sched_sequence seq;
};

static void make_request(struct request *r, uint32_t i, uint32_t steps)
{
    uint32_t seed = i + 1;
    *r = (struct request){.prompt = {.tokens = r->tokens, .token_count = PROMPT},
                          .sampling = {.temperature = i % 2 ? 1.0f : 0.0f,
                                       .top_p = 1,
                                       .repetition_penalty = 1,
                                       .seed = i,
                                       .prompt_logprobs = SAMPLING_NO_LOGPROBS}};
    for (uint32_t k = 0; k < PROMPT; k++) {
        seed = seed * 1664525u + 1013904223u;
        r->tokens[k] = 1 + (seed >> 8) % 400;
    }
    r->seq = (struct sched_sequence){
        .prompt = &r->prompt, .sampling = &r->sampling, .tokens_max = steps, .ignore_eos = true, .user = r};
}

/* Seconds per step of decodes, 0 after an error. */
static double run(struct engine *e, bool overlap, struct request *r, uint32_t n, uint32_t steps)
{
    struct sched_options opt = {.no_overlap = !overlap, .no_prefix_cache = true};
    struct scheduler *s;
    struct sched_stats st;
    struct err err;
    struct seq_id id;
    uint32_t begun = 0, ended = 0;
    uint64_t before = 0;
    double start = 0;
    bool ok = sched_create(e, &opt, &s, &err) == ST_OK;
    if (!ok) return 0;
    for (uint32_t i = 0; i < n; i++) {
        make_request(&r[i], i, steps);
        ok = ok && sched_submit(s, &r[i].seq, &id, &err) == ST_OK;
    }
    while (ok && ended < n) {
        struct sched_event ev;
        sched_step(s, 1);
        while (sched_poll(s, &ev)) {
            struct request *q = ev.user;
            if (ev.kind == EV_TOKEN) {
                begun += q->got == 0;
                q->ids[q->got] = ev.token.id;
                q->logprobs[q->got++] = ev.token.logprob;
            }
            ended += ev.kind == EV_END;
            ok = ok && ev.kind != EV_END ? true : ok && ev.end == END_LENGTH;
        }
        sched_stats(s, &st);
        if (begun < n || start > 0) continue;
        start = bench_now();
        before = st.steps;
    }
    double took = bench_now() - start;
    sched_destroy(s);
    return ok ? took / (double)(st.steps - before) : 0;
}

static bool bench(struct engine *e, const char *name, uint32_t n, uint32_t steps)
{
    static struct request with[SEQS_MAX], without[SEQS_MAX];
    double best[2] = {1, 1};
    bool same = true;
    for (int i = 0; i < REPEATS; i++) {
        double t = run(e, false, without, n, steps), u = run(e, true, with, n, steps);
        if (t <= 0 || u <= 0) return false;
        if (t < best[0]) best[0] = t;
        if (u < best[1]) best[1] = u;
        for (uint32_t k = 0; k < n; k++)
            same &= memcmp(with[k].ids, without[k].ids, sizeof with[k].ids) == 0 &&
                    memcmp(with[k].logprobs, without[k].logprobs, sizeof with[k].logprobs) == 0;
    }
    printf(
        "%-12s %4u sequences: %9.1f us a step in turn, %9.1f us overlapped, %5.1f us (%4.1f %%) saved; %s\n",
        name, n, best[0] * 1e6, best[1] * 1e6, (best[0] - best[1]) * 1e6, 100 * (best[0] - best[1]) / best[0],
        same ? "same bits" : "DIFFERENT BITS");
    fflush(stdout);
    return same;
}

int main(int argc, char **argv)
{
    static const uint32_t batches[] = {1, 8, 32, 128};
    const char *backend = "auto";
    bool tiny = false, ok = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tiny") == 0) tiny = true;
        else if (strcmp(argv[i], "--backend") == 0 && i + 1 < argc) backend = argv[++i];
        else return fprintf(stderr, "usage: bench_overlap [--backend cpu|cuda] [--tiny]\n"), 2;
    }
    for (size_t k = tiny ? 0 : 1; ok && k < (tiny ? 1 : sizeof shapes / sizeof *shapes); k++) {
        char dir[] = "/tmp/kvasir-overlap-XXXXXX", path[64];
        struct engine *e = NULL;
        struct err err;
        if (!mkdtemp(dir)) return 1;
        snprintf(path, sizeof path, "%s/config.json", dir);
        FILE *f = fopen(path, "w");
        ok = f && fputs(shapes[k].config, f) >= 0;
        if (f) ok = fclose(f) == 0 && ok;
        struct engine_options opt = {.model_dir = dir,
                                     .backend = (enum opt_backend)option_value("backend", backend),
                                     .dtype = DTYPE_BF16,
                                     .context_max = PROMPT + STEPS,
                                     .batch_tokens_max = tiny ? 128 : 2048,
                                     .sequences_max = tiny ? 8 : SEQS_MAX,
                                     .kv_bytes = tiny ? (uint64_t)8 << 20 : (uint64_t)12 << 30,
                                     .random_weights = true};
        if (ok && engine_open(&opt, &e, &err)) {
            fprintf(stderr, "%s: %s\n", shapes[k].name, err.msg);
            ok = false;
        }
        unlink(path);
        rmdir(dir);
        for (size_t i = 0; ok && i < (tiny ? 2 : sizeof batches / sizeof *batches); i++)
            ok = bench(e, shapes[k].name, batches[i], shapes[k].steps);
        engine_close(e);
    }
    return !ok;
}
