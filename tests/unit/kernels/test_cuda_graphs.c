/* Decode steps replayed from graphs against the same steps launched one operation at a time, through the
 * whole engine: tokens, log-probs, ranks and every byte of the cache must be equal, at every size of a graph,
 * between two, and above the largest; and the graphs must really have run. Then what a step may not do:
 * allocate, or wait for anything but its results; blocks of the cache that hold no numbers; a device that
 * can't record, or fails while it plays back. Where the backend has no graphs (the CPU's) there is nothing to
 * run. */
#include "engine/internal.h"
#include "engine/model/model_info.h"
#include "kernels/cuda/kv.h"
#include "tests/lib/backend_sets.h"
#include "tests/lib/golden.h"
#include "tests/lib/test_images.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* emu_api.h, which is C++ */
enum { FAIL_GRAPH = 5 };
void cuemu_fail_at(int kind, unsigned long nth, int error, int sticky) __attribute__((weak));
void cuemu_counts(unsigned long *allocations, unsigned long *launches, unsigned long *syncs)
    __attribute__((weak));
unsigned long cuemu_graph_launches(void) __attribute__((weak));

/* The batches of a run, in the order of its steps. Graphs for 20 sequences: 1, 2, 4, 8, 16, 20; for 100:
 * these and 24, 32, 48, 64, 96, 100. */
enum { SEQS_MAX = 100, STEPS_MAX = 14, PROMPT_MAX = 96 };
struct plan {
    uint32_t seqs, sizes, prompt_max, steps, batches[STEPS_MAX];
};
static const struct plan small = {20, 6, 95, 14, {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 19, 20}};
static const struct plan brief = {20, 6, 40, 14, {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 19, 20}};
static const struct plan briefest = {20, 6, 40, 6, {1, 2, 3, 8, 12, 20}};
static const struct plan large = {100, 11, 5, 6, {33, 64, 65, 96, 97, 100}};

static uint32_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*s >> 33);
}

static struct engine *engine_with(const char *family, const char *variant, bool graphs, uint32_t sequences)
{
    struct engine *e = NULL;
    struct err err;
    char dir[600];
    golden_dir(dir, sizeof dir, family, variant);
    struct engine_options opt = {.model_dir = dir,
                                 .backend = test_engine_backend(backend_sets[0]),
                                 .kernels = test_engine_kernels(backend_sets[0]),
                                 .threads = 1,
                                 .kv_bytes = 16u << 20,
                                 .batch_tokens_max = 512,
                                 .sequences_max = sequences};
    setenv("KVASIR_CUDA_GRAPHS", graphs ? "1" : "0", 1);
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    return e;
}

/* The requests: prompts of many lengths, some beyond the windows of the checkpoints, the first with an
 * image; greedy and sampled. */
struct requests {
    struct test_image test_image;
    struct mini_image image;
    uint32_t prompt[SEQS_MAX][PROMPT_MAX];
    struct mini_seq s[SEQS_MAX];
};

static struct requests *requests_make(const struct model_info *m, const struct plan *p)
{
    struct requests *q = calloc(1, sizeof *q);
    uint64_t rng = 99;
    assert_non_null(q);
    for (uint32_t i = 0; i < p->seqs; i++) {
        struct mini_seq *s = &q->s[i];
        uint32_t length = 1 + (i * 37 + 64) % p->prompt_max;
        for (uint32_t k = 0; k < length; k++) q->prompt[i][k] = 4 + next_random(&rng) % 200;
        *s = (struct mini_seq){.prompt = q->prompt[i],
                               .prompt_count = length,
                               .generate = STEPS_MAX + 1,
                               .sampling = mini_greedy()};
        s->sampling.logprobs = i % 3 == 0 ? SAMPLING_NO_LOGPROBS : i % 3 * 4;
        s->sampling.prompt_logprobs = SAMPLING_NO_LOGPROBS;
        if (i % 2) s->sampling.temperature = 0.9f;
        if (i % 4 == 1) s->sampling.top_k = 50;
        s->sampling.seed = i;
    }
    if (!m->image.present) return q;
    q->test_image = image_make(m, 0, 3, 4, 0, 0, 7);
    q->image = (struct mini_image){.begin = 2,
                                   .end = 2 + q->test_image.rows,
                                   .pixels = q->test_image.pixels,
                                   .grid = q->test_image.grid};
    if (q->image.end >= q->s[0].prompt_count) return q; /* a family with large images: text is enough */
    mini_scan(&q->image, 1);
    for (uint32_t k = q->image.begin; k < q->image.end; k++) q->prompt[0][k] = m->image.placeholder_id;
    q->s[0].images = &q->image;
    q->s[0].image_count = 1;
    return q;
}

/* All prompts, then one step over the first n requests for every n of `batches`. */
struct outcome {
    const struct plan *plan;
    struct requests *q;
    struct mini_sched m;
    struct token_out drawn[STEPS_MAX][SEQS_MAX];
    uint8_t *arena;
    size_t arena_bytes;
};

static void play(struct engine *e, const struct plan *p, struct outcome *o)
{
    struct mini_seq *all[SEQS_MAX];
    memset(o, 0, sizeof *o);
    o->plan = p;
    o->q = requests_make(engine_model(e), p);
    mini_init(&o->m, e);
    for (uint32_t i = 0; i < p->seqs; i++) {
        all[i] = &o->q->s[i];
        mini_add(&o->m, all[i]);
        while (all[i]->done < all[i]->prompt_count) assert_true(mini_step(&o->m, &all[i], 1));
    }
    uint64_t before = e->graph_steps;
    for (uint32_t i = 0; i < p->steps; i++) {
        assert_true(mini_step(&o->m, all, p->batches[i]));
        for (uint32_t k = 0; k < p->batches[i]; k++)
            o->drawn[i][k] = all[k]->scores[all[k]->prompt_count + all[k]->generated - 1];
    }
    assert_int_equal(e->graph_steps - before, e->graph_count ? p->steps : 0);
    o->arena_bytes = (size_t)(o->m.next_unit * BE_KV_GRAIN);
    o->arena = malloc(o->arena_bytes);
    assert_non_null(o->arena);
    e->ops->download(e->be, o->arena, e->arena, o->arena_bytes);
    assert_int_equal(e->ops->sync(e->be), BE_OK);
}

static void play_end(struct outcome *o)
{
    for (uint32_t i = 0; i < o->plan->seqs; i++) mini_drop(&o->m, &o->q->s[i]);
    mini_fini(&o->m);
    if (o->q->test_image.pixels.rgb) image_free(&o->q->test_image);
    free(o->q);
    free(o->arena);
}

static void same_token(const char *name, uint32_t batch, uint32_t seq, const struct token_out *a,
                       const struct token_out *b)
{
    bool same = a->id == b->id && a->rank == b->rank && a->top_count == b->top_count &&
                memcmp(&a->logprob, &b->logprob, sizeof a->logprob) == 0 &&
                memcmp(a->top, b->top, a->top_count * sizeof a->top[0]) == 0;
    if (!same)
        fail_msg("%s: batch of %u, sequence %u: token %u at %.9g with a graph, %u at %.9g without", name,
                 batch, seq, a->id, (double)a->logprob, b->id, (double)b->logprob);
}

/* In the quick half of the tests one variant of a kind, with shorter prompts. */
static bool quick(void)
{
    return getenv("KVASIR_TEST_SHORT") != NULL;
}

static void compare_plan(const char *family, const char *variant, const struct plan *p)
{
    static struct outcome with, without;
    struct engine *e = engine_with(family, variant, true, p->seqs),
                  *plain = engine_with(family, variant, false, p->seqs);
    if (!e->ops->graph_begin) {
        engine_close(e);
        engine_close(plain);
        skip();
    }
    unsigned long before = cuemu_graph_launches ? cuemu_graph_launches() : 0;
    assert_int_equal(e->graph_count, p->sizes);
    assert_int_equal(plain->graph_count, 0);
    play(e, p, &with);
    if (cuemu_graph_launches) assert_true(cuemu_graph_launches() - before >= p->steps);
    before = cuemu_graph_launches ? cuemu_graph_launches() : 0;
    play(plain, p, &without);
    if (cuemu_graph_launches) assert_int_equal(cuemu_graph_launches(), before);
    for (uint32_t i = 0; i < p->steps; i++)
        for (uint32_t k = 0; k < p->batches[i]; k++)
            same_token(variant, p->batches[i], k, &with.drawn[i][k], &without.drawn[i][k]);
    assert_int_equal(with.arena_bytes, without.arena_bytes);
    for (size_t i = 0; i < with.arena_bytes; i++)
        if (with.arena[i] != without.arena[i]) fail_msg("%s: byte %zu of the cache differs", variant, i);
    play_end(&with);
    play_end(&without);
    engine_close(e);
    engine_close(plain);
}

static void compare(const char *family, const char *variant)
{
    compare_plan(family, variant, !quick() ? &small : strcmp(variant, "qwen2_bf16") ? &briefest : &brief);
}

static void test_large(void **state)
{
    (void)state;
    if (quick()) skip();
    compare_plan("qwen", "qwen2_bf16", &large);
}

static void test_dense(void **state)
{
    (void)state;
    if (!quick()) compare("qwen", "qwen2_f32");
    compare("qwen", "qwen2_bf16");
}

static void test_sliding(void **state)
{
    (void)state;
    compare("gemma3", "window_small_f32");
    if (!quick()) compare("gemma3", "text_bf16");
}

static void test_experts(void **state)
{
    (void)state;
    if (!quick()) compare("qwen", "qwen3_moe_f32");
    compare("qwen", "qwen3_moe_bf16");
}

static void test_images(void **state)
{
    (void)state;
    compare("qwen", "qwen3_vl_bf16");
    if (quick()) return;
    compare("qwen", "qwen3_vl_f32");
    compare("qwen", "qwen3_vl_moe_f32");
}

/* ---- a step allocates nothing, and waits once, for its results; an image's memory comes and goes without a
 * wait */

static void run_of(struct mini_sched *m, struct mini_seq *s, struct engine_chunk *r)
{
    bool prefill = s->done < s->prompt_count;
    *r = (struct engine_chunk){.position = s->done,
                               .count = prefill ? s->prompt_count : 1,
                               .tokens = s->tokens,
                               .token_count = s->prompt_count + s->generated,
                               .prompt_count = s->prompt_count,
                               .sampling = &s->sampling,
                               .sample = true,
                               .score_first = UINT32_MAX};
    for (uint32_t g = 0; g < m->caps.group_count; g++) r->tables[g] = s->tables[g];
}

static void steps_wait_once(bool graphs)
{
    struct engine *e = engine_with("gemma3", "text_bf16", graphs, 8);
    struct requests *q = requests_make(engine_model(e), &small);
    struct mini_sched m;
    struct engine_chunk chunks[3];
    struct engine_batch b = {chunks, 3};
    struct err err;
    mini_init(&m, e);
    for (uint32_t i = 0; i < 3; i++) mini_add(&m, &q->s[i]);
    for (uint32_t step = 0; step < 6; step++) {
        unsigned long at[3][3];
        for (uint32_t i = 0; i < 3; i++) run_of(&m, &q->s[i], &chunks[i]);
        cuemu_counts(&at[0][0], &at[0][1], &at[0][2]);
        assert_int_equal(engine_submit(e, &b, &err), ST_OK);
        cuemu_counts(&at[1][0], &at[1][1], &at[1][2]);
        assert_int_equal(engine_wait(e, &b, &err), ST_OK);
        cuemu_counts(&at[2][0], &at[2][1], &at[2][2]);
        assert_int_equal(at[2][0], at[0][0]);
        assert_int_equal(at[1][2], at[0][2]);
        assert_true(at[2][2] <= at[1][2] + 2); /* the download; and sync(), which finds the stream empty */
        bool played = graphs && step > 0; /* all that is launched otherwise is the search for the largest */
        assert_true(played ? at[2][1] <= at[0][1] + 2 : at[1][1] > at[0][1] + 10);
        for (uint32_t i = 0; i < 3; i++) {
            struct mini_seq *s = &q->s[i];
            s->done += chunks[i].count;
            s->tokens[s->prompt_count + s->generated++] = chunks[i].out.id;
        }
    }
    for (uint32_t i = 0; i < 3; i++) mini_drop(&m, &q->s[i]);
    mini_fini(&m);
    free(q);
    engine_close(e);
}

static void test_step_waits_once(void **state)
{
    (void)state;
    if (!cuemu_counts) skip();
    steps_wait_once(true);
    steps_wait_once(false);
}

static void test_image_waits_once(void **state)
{
    (void)state;
    if (!cuemu_counts) skip();
    struct engine *e = engine_with("qwen", "qwen3_vl_bf16", true, 4);
    struct test_image p = image_make(engine_model(e), 0, 4, 6, 0, 0, 3);
    for (int i = 0; i < 2; i++) {
        struct engine_features *f = NULL;
        unsigned long before, after;
        bool done = false;
        struct err err;
        cuemu_counts(NULL, NULL, &before);
        assert_int_equal(engine_features_create(e, &p.pixels, NULL, &f, &err), ST_OK);
        while (!done) assert_int_equal(engine_features_step(e, f, 1, &done, &err), ST_OK);
        engine_features_free(e, f);
        cuemu_counts(NULL, NULL, &after);
        assert_true(after <= before + 1); /* for what went wrong in the tower */
    }
    image_free(&p);
    engine_close(e);
}

/* ---- blocks that are not numbers */

static void spoil(struct engine *e, uint32_t group, uint32_t block_offset)
{
    char bytes[BE_KV_GRAIN];
    memset(bytes, 0xff, sizeof bytes);
    for (uint32_t i = 0; i < e->kv.groups[group].block_grains; i++)
        e->ops->upload(e->be, (char *)e->arena + (size_t)(block_offset + i) * BE_KV_GRAIN, bytes,
                       sizeof bytes);
}

/* A copy of a block has zeros behind what is taken over, in all layers. */
static void check_copy(struct engine *e, uint32_t group, uint32_t from, uint32_t to, uint32_t tokens)
{
    size_t size = be_dtype_bytes(e->plan.act);
    engine_kv_copy(e, group, from, to, tokens);
    for (uint32_t n = 0; n < e->net.desc.layer_count; n++) {
        const struct desc_layer *l = &e->net.desc.layers[n];
        size_t row = cuda_kv_dpad(e->plan.act, l->head_dim) * size,
               bytes = l->kv_heads * cuda_kv_head_bytes(e->plan.act, l->head_dim);
        unsigned char *layer = malloc(bytes);
        assert_non_null(layer);
        e->ops->download(e->be, layer, (char *)e->arena + (size_t)to * BE_KV_GRAIN + e->kv.layer_offset[n],
                         bytes);
        for (size_t i = 0; e->kv.layer_group[n] == group && i < bytes;
             i++) /* K and V of each head: [slot][dpad] */
            assert_int_equal(layer[i], i / row % CUDA_KV_SLOTS < tokens ? 0xff : 0);
        free(layer);
    }
}

/* A part of a prompt of which nobody wants logits tells that its numbers are none; another in the same step
 * is not touched. */
static void test_unseen(void **state)
{
    (void)state;
    static const char *const variants[] = {"text_f32", "text_bf16"};
    for (uint32_t i = 0; i < 2; i++) {
        struct engine *e = engine_with("gemma3", variants[i], true, 4);
        struct mini_seq seqs[2];
        struct engine_chunk chunks[2];
        struct engine_batch b = {chunks, 2};
        struct mini_sched m;
        struct err err;
        uint32_t prompt[100];
        if (e->becaps.host_memory) { /* the CPU's: test_engine_open */
            engine_close(e);
            skip();
        }
        for (uint32_t k = 0; k < 100; k++) prompt[k] = 4 + k * 37 % 200;
        mini_init(&m, e);
        for (uint32_t turn = 0; turn < 2; turn++) {
            for (uint32_t k = 0; k < 2; k++) {
                if (!turn)
                    seqs[k] =
                        (struct mini_seq){.prompt = prompt, .prompt_count = 100, .sampling = mini_greedy()};
                if (!turn) mini_add(&m, &seqs[k]);
                seqs[k].done = turn ? 40 : 0;
                run_of(&m, &seqs[k], &chunks[k]);
                chunks[k].count = turn ? 20 : 40;
                chunks[k].sample = false;
            }
            assert_int_equal(engine_submit(e, &b, &err), ST_OK);
            assert_int_equal(engine_wait(e, &b, &err), ST_OK);
            assert_int_equal(chunks[0].broken, turn == 1);
            assert_false(chunks[1].broken);
            for (uint32_t g = 0; g < m.caps.group_count; g++) spoil(e, g, seqs[0].tables[g][1]);
        }
        for (uint32_t g = 0; g < m.caps.group_count; g++)
            for (uint32_t tokens = 1; tokens <= CUDA_KV_SLOTS; tokens++)
                check_copy(e, g, seqs[0].tables[g][1], seqs[0].tables[g][2], tokens);
        for (uint32_t k = 0; k < 2; k++) mini_drop(&m, &seqs[k]);
        mini_fini(&m);
        engine_close(e);
    }
}

/* ---- faults */

/* The nth call about graphs fails: while they are made the engine goes on without; later the step is lost,
 * and said to be. */
static void test_faults(void **state)
{
    (void)state;
    if (!cuemu_fail_at) skip();
    uint32_t made = 0, failed = 0;
    for (unsigned long nth = 1; failed < 2; nth += nth < 9 ? 1 : 2) {
        struct mini_sched m;
        struct engine_chunk chunk;
        struct engine_batch b = {&chunk, 1};
        struct err err = {{0}};
        cuemu_fail_at(FAIL_GRAPH, nth, 999, 0);
        struct engine *e = engine_with("qwen", "qwen2_f32", true, 3);
        struct requests *q = requests_make(engine_model(e), &small);
        if (e->graph_count == 0) made++;
        mini_init(&m, e);
        mini_add(&m, &q->s[0]);
        enum status st = ST_OK;
        for (uint32_t step = 0; step < 6 && !st; step++) {
            run_of(&m, &q->s[0], &chunk);
            st = engine_submit(e, &b, &err);
            if (!st) st = engine_wait(e, &b, &err);
            if (st) break;
            q->s[0].done += chunk.count;
            q->s[0].tokens[q->s[0].prompt_count + q->s[0].generated++] = chunk.out.id;
        }
        if (st) {
            assert_int_equal(st, ST_DEVICE);
            assert_non_null(strstr(err.msg, "cudaGraphLaunch"));
            assert_int_not_equal(e->graph_count, 0);
            failed++;
        }
        mini_drop(&m, &q->s[0]);
        mini_fini(&m);
        free(q);
        engine_close(e);
        cuemu_fail_at(FAIL_GRAPH, 0, 0, 0);
        assert_true(nth < 40);
    }
    assert_true(made >= 9); /* begin, end, instantiate, upload, of three sizes */
}

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense),
                                       cmocka_unit_test(test_large),
                                       cmocka_unit_test(test_sliding),
                                       cmocka_unit_test(test_experts),
                                       cmocka_unit_test(test_images),
                                       cmocka_unit_test(test_step_waits_once),
                                       cmocka_unit_test(test_image_waits_once),
                                       cmocka_unit_test(test_unseen),
                                       cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests_name("CUDA graphs", tests, NULL, NULL);
}
