/* The promise, at the engine's interface: a request's output depends on the request alone. One request with
 * two images (of two sizes, and one of them a video, where the family has these), greedy, sampled from the
 * best and from whole rows with penalties, is run alone and whole; then cut into chunks of 1, 7, 33, 64
 * tokens (through the images, where the family allows it), alongside 16 others that come and go, with 1, 2
 * and 3 threads, with the tower in slices, on a device with steps submitted while another runs. Every log-
 * prob (of the token and of 20 alternatives, at every prompt and generated position), rank and id must be
 * bit-equal, on every kernel set of this CPU, in f32 and in bf16. */
#include "engine/model/model_info.h"
#include "kernels/backend.h"
#include "tests/lib/backend_sets.h"
#include "tests/lib/golden.h"
#include "tests/lib/test_images.h"
#include "tests/lib/selectors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { PROMPT = 430, GENERATE = 24, OTHERS = 16, VOCAB_TEXT = 300, HIDDEN_MAX = 128 };

struct variant {
    const char *family, *name;
};
static enum opt_kv_dtype kv_dtype = KV_DTYPE_AUTO; /* of the engines */

#define SETS backend_sets

static uint32_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*s >> 33);
}

/* A request that depends on its seed alone. */
struct request {
    uint32_t prompt[PROMPT];
    struct test_image test_images[2];
    struct mini_image images[2];
    struct mini_seq s;
};

static void make_images(struct request *r, const struct model_info *m, uint64_t seed, uint64_t *rng)
{
    uint32_t group = m->image.config.depth;
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t w = 1 + next_random(rng) % 5, h = 2 + next_random(rng) % 5;
        uint32_t frames = k == 1 && m->image.video_marker ? (m->image.video_stamp ? group : 2 * group) : 0;
        r->test_images[k] = image_make(m, k, w, h, frames, frames ? 1.4 : 0, seed * 2 + k);
    }
}

/* How tokens are drawn. WALKED: each draw looks at the whole row or at the history, so that several of a step
 * share the backend's threads. */
enum draw { GREEDY, SAMPLED, WALKED, PLAIN /* a device draws itself */, DRAWS };

static void set_walked(struct sampling_params *p, uint64_t seed)
{
    p->temperature = 1.1f;
    p->seed = seed;
    if (seed % 4 < 2) p->top_p = 0.95f;
    if (seed % 4 > 0) p->repetition_penalty = 1.1f;
    if (seed % 4 == 1) p->frequency_penalty = 0.4f;
    if (seed % 4 == 3) p->presence_penalty = 0.7f;
    if (seed % 4 == 2) p->ngrams.size = 2;
}

static void make_request(struct request *r, const struct model_info *m, uint64_t seed, uint32_t length,
                         enum draw draw)
{
    uint64_t rng = seed * 77 + 5;
    *r = (struct request){0};
    for (uint32_t i = 0; i < length; i++) r->prompt[i] = 4 + next_random(&rng) % VOCAB_TEXT;
    if (m->image.present) make_images(r, m, seed, &rng);
    uint32_t count =
        m->image.present && length > r->test_images[0].rows + r->test_images[1].rows + 24 ? 2 : 0;
    for (uint32_t k = 0; k < count; k++) {
        const struct test_image *p = &r->test_images[k];
        uint32_t begin = k == 0 ? 3 + next_random(&rng) % 5 : length - p->rows - 1 - next_random(&rng) % 4;
        r->images[k] =
            (struct mini_image){.begin = begin, .end = begin + p->rows, .pixels = p->pixels, .grid = p->grid};
        for (uint32_t i = begin; i < begin + p->rows; i++)
            r->prompt[i] = p->pixels.frames ? m->image.video_placeholder_id : m->image.placeholder_id;
    }
    mini_scan(r->images, count);
    r->s = (struct mini_seq){.prompt = r->prompt,
                             .prompt_count = length,
                             .generate = GENERATE,
                             .images = r->images,
                             .image_count = count,
                             .sampling = mini_greedy()};
    r->s.sampling.logprobs = r->s.sampling.prompt_logprobs = SAMPLING_TOP_MAX;
    if (draw == WALKED) set_walked(&r->s.sampling, seed);
    if (draw == SAMPLED || draw == PLAIN) {
        r->s.sampling.temperature = 0.9f;
        r->s.sampling.top_k = draw == PLAIN ? 0 : 40;
        r->s.sampling.top_p = draw == PLAIN ? 1 : 0.95f;
        r->s.sampling.seed = seed;
    }
}

static void free_request(struct request *r)
{
    for (uint32_t k = 0; k < 2; k++) image_free(&r->test_images[k]);
}

struct result {
    struct token_out out[PROMPT + GENERATE];
    uint32_t tokens[PROMPT + GENERATE];
    float hidden[PROMPT * HIDDEN_MAX]; /* the head's input, of the prompt */
};

/* In CI an emulated device or CPU has half the others and half the prompt, which cost it most. */
static bool half(void)
{
    return test_in_small() || (!BACKEND_ON_CPU && getenv("KVASIR_TEST_SHORT"));
}
static uint32_t others_of(uint32_t n)
{
    return half() && n > OTHERS / 2 ? OTHERS / 2 : n;
}
static uint32_t prompt_length(void)
{
    return half() ? PROMPT / 2 : PROMPT;
}

static struct engine *open_engine(const struct variant *v, const char *set, uint32_t threads)
{
    struct engine *e;
    struct err err;
    char dir[600];
    golden_dir(dir, sizeof dir, v->family, v->name);
    struct engine_options opt = {.model_dir = dir,
                                 .backend = test_engine_backend(set),
                                 .kernels = test_engine_kernels(set),
                                 .threads = threads,
                                 .kv_dtype = kv_dtype,
                                 .own_drafter = true,
                                 .kv_bytes = 64u << 20,
                                 .batch_tokens_max = 2048,
                                 .sequences_max = others_of(OTHERS) + 1};
    if (engine_open(&opt, &e, &err)) fail_msg("%s", err.msg);
    return e;
}

/* Steps in which each sequence takes part on its own schedule: some join late, some skip turns. */
static void run_mixed(struct mini_sched *m, struct request *mine, struct request *others, uint32_t n,
                      uint64_t seed)
{
    uint64_t rng = seed;
    mini_add(m, &mine->s);
    for (uint32_t i = 0; i < n; i++) mini_add(m, &others[i].s);
    for (bool more = true; more;) {
        struct mini_seq *now[OTHERS + 1];
        uint32_t k = 0, at = next_random(&rng) % (n + 1); /* where mine stands among them */
        for (uint32_t i = 0; i <= n; i++) {
            if (i == at) now[k++] = &mine->s;
            if (i < n && next_random(&rng) % 4) now[k++] = &others[i].s;
        }
        more = mini_step(m, now, k) || mine->s.generated < GENERATE;
        if (mine->s.generated == GENERATE) more = false;
    }
}

static void run_one(const struct variant *v, const char *set, uint32_t threads, uint32_t chunk, uint32_t n,
                    enum draw draw, uint32_t encode_layers, struct result *out)
{
    static struct request mine, others[OTHERS];
    struct engine *e = open_engine(v, set, threads);
    struct mini_sched m;
    n = others_of(n);
    mini_init(&m, e);
    m.encode_layers = encode_layers;
    m.ahead = n || chunk == 1 ? 3 : 0; /* where a device draws: steps submitted while another runs */
    make_request(&mine, engine_model(e), 1, prompt_length(), draw);
    mine.s.chunk = chunk;
    assert_in_range(m.caps.hidden_size, 1, HIDDEN_MAX);
    memset(out, 0, sizeof *out);
    mine.s.hidden = out->hidden;
    for (uint32_t i = 0; i < n; i++) {
        make_request(&others[i], engine_model(e), 100 + i, 3 + 9 * i,
                     draw >= WALKED ? draw
                     : i % 2        ? SAMPLED
                                    : GREEDY);
        others[i].s.chunk = i % 3 == 0 ? 0 : 1 + 5 * i;
    }
    run_mixed(&m, &mine, others, n, chunk + 31u * threads);
    for (uint32_t i = 1; i < prompt_length() + GENERATE; i++) {
        const struct token_out *t = &mine.s.scores[i];
        out->out[i] = *t;
        out->tokens[i] = mine.s.tokens[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        mini_drop(&m, &others[i].s);
        free_request(&others[i]);
    }
    mini_drop(&m, &mine.s);
    free_request(&mine);
    mini_fini(&m);
    engine_close(e);
}

static void compare(const struct result *a, const struct result *b, const char *what)
{
    for (uint32_t i = 1; i < prompt_length() + GENERATE; i++) {
        const struct token_out *x = &a->out[i], *y = &b->out[i];
        bool same = x->id == y->id && memcmp(&x->logprob, &y->logprob, 4) == 0 && x->rank == y->rank &&
                    x->top_count == y->top_count &&
                    memcmp(x->top, y->top, x->top_count * sizeof x->top[0]) == 0;
        if (!same)
            fail_msg("%s: position %u differs: id %u and %u, log-prob %.9g and %.9g", what, i, x->id, y->id,
                     (double)x->logprob, (double)y->logprob);
    }
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    if (memcmp(a->hidden, b->hidden, sizeof a->hidden)) fail_msg("%s: the head's input differs", what);
}

static const struct {
    uint32_t threads, chunk, others, encode_layers;
} ways[] = {{1, 0, 0, 1},       {2, 1, 0, 0},      {2, 7, OTHERS, 1},
            {1, 64, OTHERS, 0}, {3, 0, OTHERS, 0}, {2, 33, 5, 1}};

/* In short the greedy runs have one of the ways among all others, the nth variant's; the other draws one. */
static bool takes_way(size_t n, enum draw draw, size_t way)
{
#ifdef __SANITIZE_THREAD__
    if (ways[way].threads == 1) return false;
#endif
    if (draw == PLAIN) return way == 4;
    if (!getenv("KVASIR_TEST_SHORT")) return draw != WALKED || way >= 3;
    if (draw) return way == (draw == SAMPLED ? 2 : 4);
    if (!BACKEND_ON_CPU && way == 0) return false; /* as the first */
    return (test_briefly() && !test_in_small()) || ways[way].others < OTHERS || way == 2 + n % 3;
}

/* With KVASIR_TEST_SHORT; in brief greedy alone: sampling is the same code, however it came to its row. On
 * the CPU WALKED does as much as PLAIN, and each variant takes one of the draws. */
static bool takes_draw(size_t n, enum draw draw)
{
    if (!getenv("KVASIR_TEST_SHORT") || !draw) return true;
    if (!BACKEND_ON_CPU) return draw != WALKED; /* drawn on the CPU */
    return !test_briefly() && draw == (n / 4 % 2 ? SAMPLED : WALKED);
}

static void check_set(const struct variant *v, size_t n, const char *set)
{
    static struct result base, other;
    static const char *const draws[DRAWS] = {"greedy", "sampled", "walked", "plain"};
    for (enum draw draw = GREEDY; draw < DRAWS; draw++) {
        if (!takes_draw(n, draw)) continue;
        run_one(v, set, 2, 0, 0, draw, 0, &base);
        assert_int_equal(base.out[prompt_length()].top_count, SAMPLING_TOP_MAX);
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
            if (!takes_way(n, draw, w)) continue;
            char what[160];
            snprintf(what, sizeof what, "%s %s %s: %u threads, chunk %u, %u others", v->name, set,
                     draws[draw], ways[w].threads, ways[w].chunk, ways[w].others);
            run_one(v, set, ways[w].threads, ways[w].chunk, ways[w].others, draw, ways[w].encode_layers,
                    &other);
            compare(&base, &other, what);
        }
    }
}

/* In short each variant is run on one set: a table's first on the reference, which is slow, the others on the
 * rest of those that this CPU has. */
static bool takes_set(size_t n, size_t set)
{
    size_t fast = 0, at = 0;
    for (size_t k = 1; k < TEST_SETS; k++) {
        if (!be_cpu_has(SETS[k])) continue;
        if (k < set) at++;
        fast++;
    }
    return n == 0 || fast == 0 ? set == 0 : set > 0 && n % fast == at;
}

static void check_variants(const struct variant *variants, size_t count)
{
    const char *name = getenv("GOLDEN_VARIANT");
    for (size_t k = 0; k < TEST_SETS; k++) {
        if (!be_cpu_has(SETS[k]) || !selects_kernels(SETS[k])) continue;
        for (size_t i = 0; i < count; i++) {
            if (!selects_variant(variants[i].name)) continue;
            if (test_briefly() &&
                ((strcmp(SETS[k], "reference") == 0 && be_cpu_has("avx2")) || (!name && i % 6)))
                continue;
            if (getenv("KVASIR_TEST_SHORT") && !test_briefly() && !name && !takes_set(i, k)) continue;
            check_set(&variants[i], i, SETS[k]);
            printf("  %s %s, KV %s: bit-equal\n", SETS[k], variants[i].name,
                   option_word("kv-dtype", kv_dtype));
        }
    }
}

static void test_gemma3(void **state)
{
    static const struct variant variants[] = {
        {"gemma3", "vision_f32"}, {"gemma3", "vision_bf16"}, {"gemma3", "window_small_f32"}};
    (void)state;
    check_variants(variants, sizeof variants / sizeof variants[0]);
}

static void test_gemma4(void **state)
{
    static const struct variant variants[] = {
        {"gemma4", "e2b_f32"},        {"gemma4", "e2b_bf16"},        {"gemma4", "moe_f32"},
        {"gemma4", "e2b_vision_f32"}, {"gemma4", "31b_vision_bf16"}, {"gemma4", "26b_vision_f32"},
        {"gemma4", "12b_f32"},        {"gemma4", "text_bf16"},       {"gemma4", "missing_keys_f32"}};
    (void)state;
    check_variants(variants, sizeof variants / sizeof variants[0]);
}

static void test_qwen(void **state)
{
    static const struct variant variants[] = {
        {"qwen", "qwen2_vl_f32"},     {"qwen", "qwen2_vl_bf16"},      {"qwen", "qwen2_5_vl_f32"},
        {"qwen", "qwen2_5_vl_bf16"},  {"qwen", "qwen3_vl_f32"},       {"qwen", "qwen3_vl_bf16"},
        {"qwen", "qwen3_vl_moe_f32"}, {"qwen", "qwen3_moe_bf16"},     {"qwen", "qwen3_window_f32"},
        {"qwen", "qwen2_yarn_f32"},   {"qwen", "qwen3_moe_fused_f32"}};
    (void)state;
    check_variants(variants, sizeof variants / sizeof variants[0]);
}

static void test_qwen3_5(void **state)
{
    static const struct variant variants[] = {{"qwen", "qwen3_5_text_f32"}, {"qwen", "qwen3_5_f32"},
                                              {"qwen", "qwen3_5_odd_f32"},  {"qwen", "qwen3_5_moe_f32"},
                                              {"qwen", "qwen3_5_bf16"},     {"qwen", "qwen3_5_moe_text_f32"}};
    (void)state;
    check_variants(variants, sizeof variants / sizeof variants[0]);
}

static void test_llama(void **state)
{
    static const struct variant variants[] = {{"llama", "llama3_f32"},    {"llama", "mistral_window_f32"},
                                              {"llama", "smollm2_bf16"},  {"llama", "smollm3_odd_f32"},
                                              {"llama", "granite_f32"},   {"llama", "lfm2_f32"},
                                              {"llama", "lfm2_odd_f32"},  {"llama", "ministral3_f32"},
                                              {"llama", "olmo2_odd_f32"}, {"llama", "olmo3_f32"}};
    (void)state;
    check_variants(variants, sizeof variants / sizeof variants[0]);
}

/* Their prompts go as a whole; chunks mean nothing. */
static void test_paligemma(void **state)
{
    static const struct variant variants[] = {{"paligemma", "pg1_f32"},
                                              {"paligemma", "pg1_bf16"},
                                              {"paligemma", "pg2_f32"},
                                              {"paligemma", "pg2_bf16"},
                                              {"paligemma", "pg2_odd_f32"}};
    (void)state;
    check_variants(variants, sizeof variants / sizeof variants[0]);
}

/* In 8 bits: windows and images whose tokens see each other, layers that read another's keys, values that
 * are keys, prompts that go as a whole. */
static void test_kv_q8(void **state)
{
    static const struct variant int8[] = {{"gemma3", "vision_bf16"},      {"gemma4", "e2b_bf16"},
                                          {"qwen", "qwen2_5_vl_bf16"},    {"paligemma", "pg2_bf16"},
                                          {"gemma3", "window_small_f32"}, {"gemma4", "31b_vision_bf16"},
                                          {"qwen", "qwen3_vl_f32"}};
    (void)state;
    if (!BACKEND_ON_CPU) skip();
    kv_dtype = KV_DTYPE_INT8;
    check_variants(int8, sizeof int8 / sizeof int8[0]);
    kv_dtype = KV_DTYPE_AUTO;
}

/* The comparison can fail: other weights, another seed and quants for keys and values do change the result.
 */
static void test_it_can_fail(void **state)
{
    static const struct variant f32 = {"gemma3", "text_f32"}, bf16 = {"gemma3", "text_bf16"};
    static struct result a, b;
    (void)state;
    if (!BACKEND_ON_CPU) skip(); /* of the comparison, which is the same there */
    run_one(&f32, SETS[0], 1, 0, 0, false, 0, &a);
    run_one(&bf16, SETS[0], 1, 0, 0, false, 0, &b);
    assert_memory_not_equal(a.out, b.out, sizeof a.out);
    assert_memory_not_equal(a.hidden, b.hidden, sizeof a.hidden);
    kv_dtype = KV_DTYPE_INT8;
    run_one(&f32, SETS[0], 1, 0, 0, false, 0, &b);
    kv_dtype = KV_DTYPE_AUTO;
    assert_memory_not_equal(a.out, b.out, sizeof a.out);
    run_one(&f32, SETS[0], 1, 0, 0, true, 0, &b);
    assert_memory_not_equal(a.tokens, b.tokens, sizeof a.tokens);
}

int main(int argc, char **argv)
{
    test_backend_args(&argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gemma3), cmocka_unit_test(test_gemma4),
                                       cmocka_unit_test(test_qwen),   cmocka_unit_test(test_qwen3_5),
                                       cmocka_unit_test(test_llama),  cmocka_unit_test(test_paligemma),
                                       cmocka_unit_test(test_kv_q8),  cmocka_unit_test(test_it_can_fail)};
    return selectors_end(cmocka_run_group_tests_name("engine_invariance", tests, NULL, NULL));
}
