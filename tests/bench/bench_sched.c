/* Host cost of the prefix cache and the scheduler, with an engine that does nothing: looking up and inserting
 * a 32k-token prompt, also in a tree of 10,000 nodes; a step with 256 running sequences; eviction in a full
 * arena. Prints; nothing is asserted about time.
 *
 *     bench_sched [repeats]      goals: lookup and insertion together < 2 ms; a step < 100 us */
#include "tests/sim/fake_engine.h"

#include "scheduler/cache/kv_blocks.h"
#include "scheduler/cache/radix_cache.h"
#include "scheduler/scheduler.h"

#include <stdio.h>
#include <time.h>

enum { BT = 32, LONG = 32768, REPEATS = 50, SEQUENCES = 256 };

static double now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}
static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, ascending);
    return v[n / 2];
}

static void caps_of(struct engine_caps *c, uint64_t block_offsets, uint32_t window)
{
    *c = (struct engine_caps){.group_count = window ? 2 : 1,
                              .block_tokens = BT,
                              .grain_bytes = FAKE_GRAIN_BYTES,
                              .arena_grains = block_offsets,
                              .context_max = 2 * LONG,
                              .sequences_max = SEQUENCES,
                              .batch_tokens_max = 2048,
                              .images = true,
                              .span_tokens_max = 256};
    c->groups[0] = (struct engine_kv_group){.layers = 1, .block_grains = 1};
    c->groups[1] = (struct engine_kv_group){.layers = 5, .block_grains = 5, .window = window};
}

/* ---- the tree alone ---- */
struct tree {
    struct engine_caps caps;
    struct kv_blocks *blocks;
    struct radix_cache *cache;
    uint32_t *block_offsets[2];
};
static const uint8_t salt[32];

static void tree_open(struct tree *t, uint64_t block_offsets, uint32_t window)
{
    struct err err;
    caps_of(&t->caps, block_offsets, window);
    ASSERT(kvb_create(&t->caps, &t->blocks, &err) == ST_OK);
    ASSERT(radix_create(&t->caps, t->blocks, 1, &t->cache, &err) == ST_OK);
    for (int g = 0; g < 2; g++) t->block_offsets[g] = malloc((LONG / BT + 1) * sizeof(uint32_t));
}
static void tree_close(struct tree *t)
{
    radix_destroy(t->cache);
    kvb_destroy(t->blocks);
    for (int g = 0; g < 2; g++) free(t->block_offsets[g]);
}
/* A sequence of `count` tokens goes through: lookup (timed into *look), blocks for what is new, publishing
 * (*insert). */
static void pass(struct tree *t, uint32_t *tokens, uint32_t count, uint32_t chunk, double *look,
                 double *insert)
{
    struct radix_view v = {.tokens = tokens, .count = count, .salt = salt};
    struct radix_hit hit;
    struct radix_pin pin = {0};
    double start = now_us();
    ASSERT(radix_match(t->cache, &v, count - 1, NULL, &hit));
    uint32_t length = hit.length / BT * BT, first[2] = {0};
    for (uint32_t g = 0; g < t->caps.group_count; g++) {
        first[g] = hit.tables[g].first;
        for (uint32_t b = first[g]; b < length / BT; b++) {
            t->block_offsets[g][b] = hit.tables[g].block_offsets[b];
            kvb_acquire(t->blocks, g, t->block_offsets[g][b], KVB_LIVE);
        }
    }
    ASSERT(radix_pin_hit(t->cache, &v, &hit, &pin));
    *look = now_us() - start;
    uint32_t end = (count + BT - 1) / BT, need[ENGINE_GROUPS_MAX] = {0};
    for (uint32_t g = 0; g < t->caps.group_count; g++) {
        if (first[g] > length / BT) first[g] = length / BT;
        need[g] = end - length / BT;
    }
    ASSERT(radix_evict(t->cache, need));
    for (uint32_t g = 0; g < t->caps.group_count; g++)
        for (uint32_t b = length / BT; b < end; b++) t->block_offsets[g][b] = kvb_allocate(t->blocks, g);
    *insert = 0;
    for (uint32_t at = hit.length; at < count;) {
        uint32_t to = at + chunk < count ? at + chunk : count;
        struct block_table tables[ENGINE_GROUPS_MAX] = {{0}};
        for (uint32_t g = 0; g < t->caps.group_count; g++)
            tables[g] = (struct block_table){t->block_offsets[g], first[g], (to + BT - 1) / BT, 0};
        start = now_us();
        ASSERT_CMP(radix_publish(t->cache, &v, &pin, at, to, tables, to == count), ==, to);
        *insert += now_us() - start;
        at = to;
    }
    radix_unpin(t->cache, &pin);
    for (uint32_t g = 0; g < t->caps.group_count; g++)
        for (uint32_t b = first[g]; b < end; b++) kvb_release(t->blocks, g, t->block_offsets[g][b], KVB_LIVE);
}

static void bench_tree(uint32_t nodes, uint32_t window, uint64_t block_offsets, uint32_t repeats)
{
    struct tree t;
    tree_open(&t, block_offsets, window);
    static uint32_t tokens[LONG];
    double look, insert, *looks = malloc(repeats * sizeof(double)),
                         *inserts = malloc(repeats * sizeof(double)),
                         *hits = malloc(repeats * sizeof(double));
    struct radix_stats st = {0};
    /* Short prompts that part at many places. */
    for (uint32_t i = 0; st.nodes < nodes; i++) {
        uint32_t n = 40 + (uint32_t)(fake_mix(i) % 60), part = (uint32_t)(fake_mix(i + 7) % 40);
        for (uint32_t k = 0; k < n; k++)
            tokens[k] = k < part ? k : (uint32_t)(fake_mix(k + 1000ull * i) % 50000);
        pass(&t, tokens, n, n, &look, &insert);
        radix_stats(t.cache, &st);
    }
    for (uint32_t i = 0; i < repeats; i++) {
        /* The long prompts share their first half. */
        for (uint32_t k = 0; k < LONG; k++)
            tokens[k] = 100 + (uint32_t)(fake_mix(k + (k < LONG / 2 ? 0 : 100000ull * (i + 1))) % 50000);
        pass(&t, tokens, LONG, 2048, &looks[i], &inserts[i]);
        pass(&t, tokens, LONG, 2048, &hits[i], &insert);
    }
    radix_stats(t.cache, &st);
    double a = median(looks, repeats), b = median(inserts, repeats), c = median(hits, repeats);
    printf("32k tokens, window %5u, %6llu nodes: lookup (half of it known) %7.1f us, insertion in chunks of "
           "2048 %7.1f us, together %7.1f us; "
           "lookup of all %7.1f us; %llu blocks evicted\n",
           window, (unsigned long long)st.nodes, a, b, a + b, c,
           (unsigned long long)(st.evicted_blocks[0] + st.evicted_blocks[1]));
    free(looks);
    free(inserts);
    free(hits);
    tree_close(&t);
}

/* ---- steps ---- */
static void bench_steps(uint32_t window, uint32_t history, bool cache, uint32_t steps)
{
    struct engine e = {.vocab = 60000, .eos = 1};
    caps_of(&e.caps, 1u << 21, window);
    fake_open(&e, false);
    struct sched_options opt = {.no_prefix_cache = !cache, .hash_seed = 1};
    struct scheduler *s;
    struct err err;
    ASSERT(sched_create(&e, &opt, &s, &err) == ST_OK);
    static const struct sampling_params plain = {
        .seed = 1, .logprobs = SAMPLING_NO_LOGPROBS, .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    uint32_t *tokens = malloc((size_t)SEQUENCES * history * sizeof *tokens);
    struct prompt prompts[SEQUENCES];
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        for (uint32_t k = 0; k < history; k++)
            tokens[(size_t)i * history + k] =
                (uint32_t)(fake_mix(k + (k < 200 ? 0 : 1000003ull * i)) % 60000);
        prompts[i] = (struct prompt){.tokens = tokens + (size_t)i * history, .token_count = history};
        struct sched_sequence q = {.prompt = &prompts[i],
                                   .sampling = &plain,
                                   .tokens_max = 16000,
                                   .ignore_eos = true,
                                   .tenant = i % 7};
        struct seq_id id;
        ASSERT(sched_submit(s, &q, &id, &err) == ST_OK);
    }
    struct sched_event ev;
    struct sched_stats st;
    do {
        sched_step(s, 1);
        while (sched_poll(s, &ev)) {
        }
        sched_stats(s, &st);
    } while (st.last_batch_tokens != SEQUENCES || st.last_batch_sequences != SEQUENCES);
    double *us = malloc(steps * sizeof *us), sum = 0;
    uint64_t engine_us = st.step_us_total;
    for (uint32_t i = 0; i < steps; i++) {
        double start = now_us();
        sched_step(s, 2 + i);
        us[i] = now_us() - start;
        sum += us[i];
        while (sched_poll(s, &ev)) {
        }
    }
    sched_stats(s, &st);
    printf("step with %u sequences, history %5u, window %5u, cache %s: median %6.1f us, mean %6.1f us (of "
           "which the engine that does nothing %.1f us)\n",
           SEQUENCES, history, window, cache ? "on " : "off", median(us, steps), sum / steps,
           (double)(st.step_us_total - engine_us) / steps);
    free(us);
    sched_destroy(s);
    free(tokens);
    fake_close(&e);
}

int main(int argc, char **argv)
{
    uint32_t repeats = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : REPEATS;
    if (repeats == 0) repeats = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    static const uint32_t windows[] = {0, 512, 1024};
    for (uint32_t w = 0; w < 3; w++) {
        bench_tree(0, windows[w], 1u << 21, repeats);
        bench_tree(10000, windows[w], 1u << 21, repeats);
    }
    /* An arena that holds about three of the prompts: insertion evicts. */
    bench_tree(100, 1024, 3u * (LONG / BT) * 6, repeats);
    bench_steps(0, 256, true, 10 * repeats);
    bench_steps(1024, 256, true, 10 * repeats);
    bench_steps(1024, 2048, true, 10 * repeats);
    bench_steps(1024, 2048, false, 10 * repeats);
    return 0;
}
