/* The tiers below the arena through the scheduler and a whole engine: prompts that are evicted to host memory
 * come back from there, those that have left it come from the disk, and every token and log-prob is that of a
 * run without cache. On a device nobody waits for a copy: a turn has no more waits than one without tiers.
 * CUEMU_LAZY=1: an emulated device copies as late as it may. */
#include "engine/internal.h"
#include "scheduler/cache/cache_store.h"
#include "scheduler/scheduler.h"
#include "tests/lib/backend_sets.h"
#include "tests/lib/golden.h"
#include "tests/lib/mini_sched.h"
#include "tests/lib/selectors.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

void cuemu_counts(unsigned long *allocations, unsigned long *launches, unsigned long *syncs)
    __attribute__((weak)); /* emu_api.h, which is C++ */

enum { PROMPTS = 6, ROUNDS = 3, REQUESTS = PROMPTS * ROUNDS, LENGTH = 150, ANSWER = 6, STREAM = 150 };

struct request {
    uint32_t tokens[LENGTH];
    struct prompt prompt;
    struct sampling_params sampling;
    struct token_out out[STREAM];
    uint32_t got;
    bool ended;
    struct sched_cache_info cache;
};

static struct engine *engine_of(const char *family, const char *variant, size_t kv_bytes)
{
    struct engine *e = NULL;
    struct err err;
    char dir[600];
    golden_dir(dir, sizeof dir, family, variant);
    struct engine_options opt = {.model_dir = dir,
                                 .backend = test_engine_backend(backend_sets[0]),
                                 .kernels = test_engine_kernels(backend_sets[0]),
                                 .threads = 1,
                                 .kv_bytes = kv_bytes,
                                 .batch_tokens_max = 64,
                                 .sequences_max = 2};
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    return e;
}

/* Prompt 0 is a stream that runs all the time. */
static void submit(struct scheduler *s, struct request *r, uint32_t prompt, uint32_t answer)
{
    struct err err;
    struct seq_id id;
    *r = (struct request){.prompt = {.token_count = prompt ? LENGTH - prompt : 3}, .sampling = mini_greedy()};
    for (uint32_t i = 0; i < LENGTH; i++) r->tokens[i] = 4 + (prompt * 131 + i * i * 7 + i) % 200;
    r->prompt.tokens = r->tokens;
    r->sampling.logprobs = 2;
    r->sampling.prompt_logprobs = SAMPLING_NO_LOGPROBS;
    struct sched_sequence seq = {.prompt = &r->prompt,
                                 .sampling = &r->sampling,
                                 .tokens_max = answer,
                                 .ignore_eos = true,
                                 .no_cache_write = !prompt,
                                 .user = r};
    assert_int_equal(sched_submit(s, &seq, &id, &err), ST_OK);
}

/* Returns the most waits of one turn while the stream ran (0 without an emulated device). */
static unsigned long serve(struct engine *e, const struct sched_options *opt, struct request *r,
                           struct request *stream, struct sched_stats *st)
{
    struct scheduler *s;
    struct err err;
    unsigned long most = 0, before = 0, after = 0;
    assert_int_equal(sched_create(e, opt, &s, &err), ST_OK);
    submit(s, stream, 0, STREAM);
    for (uint32_t turn = 0, sent = 0, ended = 0; ended < REQUESTS; turn++) {
        struct sched_event ev;
        if (sent < REQUESTS && sent == ended) {
            uint32_t i = sent % PROMPTS;
            submit(s, &r[sent], 1 + (sent / PROMPTS % 2 ? PROMPTS - 1 - i : i), ANSWER);
            sent++;
        }
        if (cuemu_counts) cuemu_counts(NULL, NULL, &before);
        if (!sched_step(s, turn + 1)) usleep(100);
        if (cuemu_counts) cuemu_counts(NULL, NULL, &after);
        if (!stream->ended && after - before > most) most = after - before;
        while (sched_poll(s, &ev)) {
            struct request *q = ev.user;
            if (ev.kind == EV_TOKEN) q->out[q->got++] = ev.token;
            if (ev.kind != EV_END) continue;
            if (ev.end != END_LENGTH) fail_msg("ended with %d: %s", ev.end, ev.message);
            q->ended = true;
            q->cache = ev.cache;
            ended += q != stream;
        }
        assert_true(turn < 20000);
    }
    sched_stats(s, st);
    sched_stop(s, true);
    sched_run(s); /* to its end: all goes to the disk */
    sched_destroy(s);
    return most;
}

static void compare(const char *variant, const struct request *a, const struct request *b)
{
    if (a->ended && b->ended) assert_int_equal(a->got, b->got);
    for (uint32_t k = 0; k < a->got && k < b->got; k++) {
        const struct token_out *x = &a->out[k], *y = &b->out[k];
        if (x->id != y->id || memcmp(&x->logprob, &y->logprob, 4) != 0 ||
            memcmp(x->top, y->top, x->top_count * sizeof *x->top) != 0)
            fail_msg("%s: a prompt of %u tokens differs at its token %u", variant, a->prompt.token_count, k);
    }
}

static int remove_file(const char *path, const struct stat *st, int flag, struct FTW *f)
{
    (void)st;
    (void)flag;
    (void)f;
    return remove(path);
}

static void check(const char *family, const char *variant, size_t kv_bytes, size_t host_bytes)
{
    static struct request cold[REQUESTS], host[REQUESTS], both[REQUESTS], stream[3];
    static struct sched_stats st;
    char dir[] = "/tmp/kvasir-tiers-XXXXXX";
    if (!selects_variant(variant)) return;
    struct engine *e = engine_of(family, variant, kv_bytes);
    struct sched_options opt = {.hash_seed = 1, .no_prefix_cache = true, .load_always = true};
    unsigned long waits = serve(e, &opt, cold, &stream[0], &st), waits_with;
    assert_non_null(mkdtemp(dir));
    struct cache_store_options disk = {.dir = dir, .bytes_max = 64 << 20, .about = "test", .queue_max = 1};
    opt.no_prefix_cache = false;
    opt.host_bytes = 64 << 20;
    opt.disk = &disk;
    waits_with = serve(e, &opt, host, &stream[1], &st);
    printf("  %s: %llu blocks evicted, %llu tokens loaded; %lu waits in a turn, %lu with tiers\n", variant,
           (unsigned long long)st.tier_written_blocks, (unsigned long long)st.tier_loaded_tokens, waits,
           waits_with);
    assert_true(st.tier_hits[CACHE_TIER_HOST] >= PROMPTS / 2);
    assert_int_equal(st.tier_hits[CACHE_TIER_DISK], 0);
    assert_int_equal(st.tier_loads_failed, 0);
    assert_int_equal(st.tier_dropped_blocks, 0);
    assert_true(waits_with <= waits);
    disk.queue_max = 0;
    opt.host_bytes = host_bytes;
    (void)serve(e, &opt, both, &stream[2], &st);
    printf("  %s: %llu hits in host memory, %llu on the disk\n", variant,
           (unsigned long long)st.tier_hits[CACHE_TIER_HOST],
           (unsigned long long)st.tier_hits[CACHE_TIER_DISK]);
    assert_true(st.tier_hits[CACHE_TIER_HOST] > 0 && st.tier_hits[CACHE_TIER_DISK] > 0);
    /* Nothing was lost at the end of the run before, though the disk was slow. */
    assert_true(st.tier_hits[CACHE_TIER_HOST] + st.tier_hits[CACHE_TIER_DISK] >= REQUESTS - PROMPTS);
    assert_true(st.tier_bytes[CACHE_TIER_HOST] > 0 && st.tier_bytes[CACHE_TIER_HOST] <= host_bytes);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        compare(variant, &cold[i], &host[i]);
        compare(variant, &cold[i], &both[i]);
    }
    compare(variant, &stream[1], &stream[0]);
    compare(variant, &stream[2], &stream[0]);
    engine_close(e);
    nftw(dir, remove_file, 8, FTW_DEPTH | FTW_PHYS);
}

static void test_tiers(void **state)
{
    (void)state;
    check("gemma3", "text_bf16", 96 << 10, 96 << 10);
    if (test_threads() > 1) check("gemma3", "window_small_f32", 192 << 10, 96 << 10);
    check("qwen", "qwen3_5_f32", 512 << 10, 512 << 10);
}

/* A copy may come late, and is there after the wait for it. */
static void test_copies(void **state)
{
    (void)state;
    struct engine *e = engine_of("gemma3", "text_bf16", 96 << 10);
    size_t bytes = e->kv.groups[0].block_bytes;
    uint8_t *host = engine_host_alloc(e, 2 * bytes);
    assert_non_null(host);
    for (size_t i = 0; i < bytes; i++) host[i] = (uint8_t)(i * i >> 4);
    memset(host + bytes, 0, bytes);
    engine_kv_write(e, 0, 0, host, BE_BLOCK_TOKENS);
    engine_kv_read(e, 0, 0, host + bytes);
    engine_copies_wait(e, engine_copies(e));
    assert_memory_equal(host, host + bytes, bytes);
    engine_host_free(e);
    engine_close(e);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tiers), cmocka_unit_test(test_copies)};
    test_backend_args(&argc, argv);
    return selectors_end(cmocka_run_group_tests_name("tiers", tests, NULL, NULL));
}
