/* The sampler against a naive one (full sort, one rule after the other), its short cuts against the long way,
 * frequencies, penalties, ties. */
#include "engine/sample/sampler.h"
#include "engine/sample/sampler_weights.h"
#include "tests/lib/backend_sets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

enum { V = 3000 };

static uint64_t rng = 7;
static uint32_t rnd(uint32_t below)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng >> 33) % below;
}

static void random_row(float *l, float spread)
{
    for (uint32_t i = 0; i < V; i++) l[i] = ((float)rnd(20001) / 10000.0f - 1.0f) * spread;
    for (uint32_t i = 0; i < 40; i++) l[rnd(V)] = l[rnd(V)]; /* ties */
}

static const float *sort_row;
static int descending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (sort_row[x] != sort_row[y]) return sort_row[x] > sort_row[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

struct row {
    float l[V];
    uint32_t top_ids[BE_TOPK_MAX];
    float top_values[BE_TOPK_MAX];
    uint32_t order[V];
    struct sampler_row r;
};

/* What a backend gives for a row. */
static void describe(struct row *w)
{
    for (uint32_t i = 0; i < V; i++) w->order[i] = i;
    sort_row = w->l;
    qsort(w->order, V, sizeof w->order[0], descending);
    double sum = 0;
    for (uint32_t i = 0; i < V; i++) sum += exp((double)(w->l[i] - w->l[w->order[0]]));
    for (uint32_t i = 0; i < BE_TOPK_MAX; i++) {
        w->top_ids[i] = w->order[i];
        w->top_values[i] = w->l[w->order[i]];
    }
    w->r = (struct sampler_row){
        .raw = w->l, .top_ids = w->top_ids, .top_values = w->top_values, .top_count = BE_TOPK_MAX};
    w->r.stats = (struct be_logit_stats){.max = w->l[w->order[0]],
                                         .argmax = w->order[0],
                                         .lse = w->l[w->order[0]] + (float)log(sum),
                                         .drawn = UINT32_MAX};
}

/* A constraint: id is allowed where hash(id, history) falls below `part`. */
struct some {
    uint32_t part, salt;
};
static bool some_allows(const struct some *c, uint32_t id, uint32_t count)
{
    uint32_t h = (id + 1) * 2654435761u ^ (count + c->salt) * 0x9E3779B9u;
    return (h >> 16) % 1000 < c->part || id == c->salt % V;
}
static void some_mask(void *arg, const uint32_t *tokens, uint32_t count, uint32_t *bits, uint32_t words)
{
    (void)tokens;
    memset(bits, 0, words * sizeof *bits);
    for (uint32_t id = 0; id < V; id++) bits[id >> 5] |= (uint32_t)some_allows(arg, id, count) << (id & 31);
}

/* Whether an n-gram that ends with `id` stands in the window already. */
static bool repeats(const struct sampling_ngrams *g, const struct sampler_row *r, uint32_t id)
{
    uint32_t first = g->generated ? r->prompt_count : 0, n = g->size;
    if (g->window && r->history_count - first > g->window) first = r->history_count - g->window;
    for (uint32_t i = 0; i < g->free_count; i++)
        if (g->free[i] == id) return false;
    for (uint32_t at = first; at + n <= r->history_count; at++)
        if (r->history[at + n - 1] == id &&
            memcmp(r->history + at, r->history + r->history_count - (n - 1), (n - 1) * sizeof(uint32_t)) == 0)
            return true;
    return false;
}

/* The rules, one after the other, in double; *close = the draw fell within rounding of a border. */
static uint32_t naive(const struct row *w, const struct sampling_params *p, bool *near_border)
{
    static float l[V];
    static uint32_t order[V];
    uint32_t counts[V] = {0}, n = V;
    bool seen[V] = {false};
    const struct sampler_row *r = &w->r;
    *near_border = false;
    memcpy(l, w->l, sizeof l);
    for (uint32_t i = 0; i < r->history_count; i++) {
        seen[r->history[i]] = true;
        counts[r->history[i]] += i >= r->prompt_count;
    }
    for (uint32_t i = 0; i < V; i++) {
        if (seen[i]) l[i] = l[i] > 0 ? l[i] / p->repetition_penalty : l[i] * p->repetition_penalty;
        if (counts[i]) l[i] -= p->frequency_penalty * (float)counts[i] + p->presence_penalty;
    }
    for (uint32_t i = 0; i < p->bias_count; i++)
        l[p->bias[i].id] = p->bias[i].bias <= -100 ? -INFINITY : l[p->bias[i].id] + p->bias[i].bias;
    for (uint32_t i = 0; i < r->banned_count; i++) l[r->banned[i]] = -INFINITY;
    for (uint32_t i = 0; i < V; i++)
        if (p->ngrams.size && repeats(&p->ngrams, r, i)) l[i] = -INFINITY;
    uint32_t left = 0, largest = V;
    for (uint32_t i = 0; i < V && p->constraint; i++) {
        bool on = some_allows(p->constraint->arg, i, r->history_count - r->prompt_count);
        if (on && (largest == V || w->l[i] > w->l[largest])) largest = i;
        if (!on) l[i] = -INFINITY;
        left += isfinite(l[i]) != 0;
    }
    if (p->constraint && !left) return largest;
    for (uint32_t i = 0; i < V; i++) order[i] = i;
    sort_row = l;
    qsort(order, V, sizeof order[0], descending);
    if (p->temperature == 0) return order[0];
    double weight[V], total = 0, sum = 0;
    if (p->top_n_sigma > 0) {
        double mean = 0, variance = 0;
        uint32_t finite = 0;
        for (uint32_t i = 0; i < V; i++) finite += isfinite(l[i]) != 0;
        for (uint32_t i = 0; i < V; i++) mean += isfinite(l[i]) ? (double)l[i] / finite : 0;
        for (uint32_t i = 0; i < V; i++)
            variance += isfinite(l[i]) ? ((double)l[i] - mean) * ((double)l[i] - mean) / finite : 0;
        double least = (double)l[order[0]] - (double)p->top_n_sigma * sqrt(variance);
        for (uint32_t i = 0; i < V; i++) {
            if (fabs((double)l[i] - least) < 1e-9) *near_border = true;
            if ((double)l[i] < least) l[i] = -INFINITY;
        }
    }
    if (p->top_k && p->top_k < n) n = p->top_k;
    for (uint32_t i = 0; i < n; i++)
        total += weight[i] = exp(((double)l[order[i]] - (double)l[order[0]]) / (double)p->temperature);
    if (p->top_p < 1) {
        for (uint32_t i = 0; i < n; i++) {
            sum += weight[i];
            if (fabs(sum / total - (double)p->top_p) < 1e-6) *near_border = true;
            if (sum >= (double)p->top_p * total) n = i + 1;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (p->min_p > 0 && fabs(weight[i] / weight[0] - (double)p->min_p) < 1e-6) *near_border = true;
        if (weight[i] < (double)p->min_p * weight[0]) n = i;
    }
    bool plain = p->top_p >= 1 && p->min_p <= 0 && !(p->top_k && p->top_k < V);
    double target = (double)sampling_uniform(p->seed, r->position), kept = 0;
    for (uint32_t i = 0; i < n; i++) kept += weight[i];
    target *= kept;
    if (plain) { /* in order of id */
        double by_id[V];
        for (uint32_t i = 0; i < V; i++) by_id[order[i]] = weight[i];
        for (uint32_t i = 0; i < V; i++) {
            order[i] = i;
            weight[i] = by_id[i];
        }
    }
    sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += weight[i];
        if (fabs(sum - target) < 1e-6 * kept) *near_border = true;
        if (sum > target) return order[i];
    }
    return order[n - 1];
}

static struct sampling_params random_params(struct sampling_bias *bias)
{
    static const float temperatures[] = {0, 0.3f, 1, 1.7f, 1e-38f, 30};
    static const uint32_t ks[] = {0, 1, 5, 64, 256, 300, 5000};
    static const float ps[] = {1, 0.9f, 0.5f, 0.999f, 0};
    static const float sigmas[] = {0, 0, 0, -1, 0.3f, 1, 1.5f, 3};
    struct sampling_params p = {.temperature = temperatures[rnd(6)],
                                .top_k = ks[rnd(7)],
                                .top_p = ps[rnd(5)],
                                .min_p = rnd(3) ? 0 : 0.02f,
                                .top_n_sigma = sigmas[rnd(8)],
                                .repetition_penalty = 1,
                                .seed = rnd(1000),
                                .logprobs = SAMPLING_TOP_MAX};
    if (rnd(3) == 0) p.repetition_penalty = 1.3f;
    if (rnd(3) == 0) p.presence_penalty = 0.5f;
    if (rnd(3) == 0) p.frequency_penalty = 0.25f;
    if (rnd(3) == 0)
        p.ngrams = (struct sampling_ngrams){1 + rnd(3), rnd(2) ? rnd(60) : 0, rnd(2), &bias[3].id, rnd(2)};
    if (rnd(3) == 0) {
        p.bias_count = 4;
        p.bias = bias;
        for (uint32_t i = 0; i < 4; i++)
            bias[i] = (struct sampling_bias){i * 700 + rnd(600), i == 0 ? -100.0f : (float)rnd(9) - 4.0f};
    }
    return p;
}

/* By transformers' NoRepeatNGramLogitsProcessor: after a text of the letters a to f, which of them are barred
 * for n-grams of 1 to 5. */
static void test_ngrams_as_transformers(void **state)
{
    static const struct {
        const char *text, *barred[5];
    } cases[] = {{"", {"", "", "", "", ""}},
                 {"a", {"a", "", "", "", ""}},
                 {"aa", {"a", "a", "", "", ""}},
                 {"aaaa", {"a", "a", "a", "a", ""}},
                 {"abcabcab", {"abc", "c", "c", "c", "c"}},
                 {"ababababa", {"ab", "b", "b", "b", "b"}},
                 {"abcdabceab", {"abcde", "c", "c", "", ""}},
                 {"aabaabaaab", {"ab", "a", "a", "a", ""}},
                 {"abacabadabacab", {"abcd", "a", "a", "a", "a"}},
                 {"accabcbccacabbcaacbccbbc", {"abc", "abc", "abc", "a", ""}},
                 {"aacacbcacaacababbccbcbbc", {"abc", "abc", "abc", "c", ""}},
                 {"cbabaaababcbcbbcbcbccbca", {"abc", "ab", "", "", ""}},
                 {"cfaceffbfceeeaffbfeccaadfdacadbacddaaeea", {"abcdef", "acdef", "f", "f", ""}},
                 {"dfececebacaaaeeabdcecbfacccbdddedfefeaee", {"abcdef", "abcdef", "a", "a", ""}}};
    static struct row w;
    struct sampler *s;
    struct err err;
    (void)state;
    assert_int_equal(sampler_create(V, &s, &err), ST_OK);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (uint32_t n = 1; n <= 5; n++)
            for (uint32_t id = 0; id < 6; id++) {
                uint32_t history[64], count = (uint32_t)strlen(cases[c].text);
                struct token_out out;
                for (uint32_t i = 0; i < count; i++) history[i] = (uint32_t)(cases[c].text[i] - 'a');
                for (uint32_t i = 0; i < V; i++) w.l[i] = i == id ? 9.0f : i == 6 ? 8.0f : 0.0f;
                describe(&w);
                w.r.history = history;
                w.r.history_count = count;
                w.r.prompt_count = count / 2;
                struct sampling_params p = {.top_p = 1, .repetition_penalty = 1, .ngrams.size = n};
                assert_true(sampler_draw(s, &p, &w.r, &out));
                bool barred = strchr(cases[c].barred[n - 1], (int)('a' + id)) != NULL;
                if (out.id != (barred ? 6 : id)) fail_msg("'%s', n %u: %u", cases[c].text, n, id);
                p.ngrams.free = &id;
                p.ngrams.free_count = 1;
                assert_true(sampler_draw(s, &p, &w.r, &out));
                assert_int_equal(out.id, id);
            }
    sampler_destroy(s);
}

/* One pass, however the tokens repeat: the time for a long history doesn't depend on the n-grams' size. */
static void test_ngrams_long_history(void **state)
{
    enum { LONG = 200000 };
    static uint32_t history[LONG];
    static struct row w;
    struct sampler *s;
    struct err err;
    (void)state;
    assert_int_equal(sampler_create(V, &s, &err), ST_OK);
    for (uint32_t i = 0; i < LONG; i++) history[i] = i % 512 == 511 ? 2 : 1;
    for (uint32_t i = 0; i < V; i++) w.l[i] = i == 1 ? 9.0f : 0.0f;
    describe(&w);
    w.r.history = history;
    w.r.history_count = LONG;
    double best[2] = {1e9, 1e9};
    for (uint32_t round = 0; round < 10; round++) {
        struct timespec from, to;
        struct token_out out;
        struct sampling_params p = {
            .top_p = 1, .repetition_penalty = 1, .ngrams.size = round % 2 ? SAMPLING_NGRAM_MAX : 4};
        timespec_get(&from, TIME_UTC);
        assert_true(sampler_draw(s, &p, &w.r, &out));
        timespec_get(&to, TIME_UTC);
        assert_int_not_equal(out.id, 1);
        double t = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
        if (t < best[round % 2]) best[round % 2] = t;
    }
    if (best[1] > 20 * best[0] + 1e-4) fail_msg("n 4: %g s, n 1024: %g s", best[0], best[1]);
    printf("n-grams of 4: %.0f us, of 1024: %.0f us after 200,000 tokens\n", 1e6 * best[0], 1e6 * best[1]);
    sampler_destroy(s);
}

static void test_against_naive(void **state)
{
    static struct row w;
    struct sampler *s;
    struct err err;
    uint32_t compared = 0, borders = 0, asked_for_row = 0;
    (void)state;
    assert_int_equal(sampler_create(V, &s, &err), ST_OK);
    for (uint32_t round = 0; round < 2400; round++) {
        struct sampling_bias bias[4] = {{0, 0}};
        struct sampling_params p = random_params(bias);
        struct some some = {(const uint32_t[]){0, 3, 500, 999}[rnd(4)], rnd(100000)};
        struct sampling_constraint constraint = {.arg = &some, .mask = some_mask};
        if (round % 2) p.constraint = &constraint;
        uint32_t history[400], length = round % 4 ? 50 : 400, banned[3] = {rnd(V), rnd(V), 0};
        random_row(w.l, round % 3 == 0 ? 2.0f : 8.0f);
        describe(&w);
        for (uint32_t i = 0; i < length; i++)
            history[i] = rnd(2) ? w.order[rnd(length == 50 ? 30 : 100)] : rnd(V);
        banned[2] = p.constraint && rnd(2) ? some.salt % V : w.order[0];
        w.r.history = history;
        w.r.history_count = length;
        w.r.prompt_count = 20;
        w.r.position = length;
        w.r.banned = banned;
        w.r.banned_count = rnd(3) ? 0 : 3;
        struct token_out a, b;
        bool near_border;
        uint32_t want = naive(&w, &p, &near_border);
        assert_true(sampler_draw(s, &p, &w.r, &a));
        if (near_border) {
            borders++;
            continue;
        }
        compared++;
        if (a.id != want)
            fail_msg("round %u: %u, naive %u (T %g k %u p %g min_p %g sigma %g)", round, a.id, want,
                     (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p, (double)p.top_n_sigma);
        /* Log-prob, rank and alternatives are of the raw row. */
        assert_true(fabsf(a.logprob - (w.l[a.id] - w.r.stats.lse)) < 1e-5f);
        assert_int_equal(w.order[a.rank - 1], a.id);
        assert_int_equal(a.top_count, SAMPLING_TOP_MAX);
        for (uint32_t i = 0; i < a.top_count; i++) assert_int_equal(a.top[i].id, w.order[i]);
        /* Without the row at hand: the same answer or a request for the row. With the row but no list that is
         * long enough: the same answer. */
        w.r.raw = NULL;
        if (sampler_draw(s, &p, &w.r, &b)) assert_memory_equal(&a, &b, sizeof a);
        else asked_for_row++;
        w.r.raw = w.l;
        w.r.top_count = 0;
        assert_true(sampler_draw(s, &p, &w.r, &b));
        assert_true(a.id == b.id && a.rank == b.rank && memcmp(&a.logprob, &b.logprob, sizeof(float)) == 0);
    }
    assert_true(compared > 2000 && borders < 200 && asked_for_row > 200);
    sampler_destroy(s);
}

static void test_uniform(void **state)
{
    (void)state;
    /* Random123's known answer for counter 0, key 0: first word 6627e8d5. */
    assert_true(sampling_uniform(0, 0) == (float)(0x6627e8d5u >> 8) * 0x1p-24f);
    double sum = 0;
    uint32_t bins[16] = {0};
    for (uint32_t i = 0; i < 160000; i++) {
        float u = sampling_uniform(1234567890123ull, i);
        assert_true(u >= 0.0f && u < 1.0f);
        sum += (double)u;
        bins[(int)(u * 16)]++;
    }
    assert_true(fabs(sum / 160000 - 0.5) < 0.005);
    for (int i = 0; i < 16; i++) assert_true(bins[i] > 9500 && bins[i] < 10500);
    assert_true(sampling_uniform(1, 5) != sampling_uniform(2, 5) &&
                sampling_uniform(1, 5) != sampling_uniform(1, 6));
    assert_true(sampling_uniform(1ull << 40, 5) != sampling_uniform(0, 5));
}

/* Drawn frequencies follow the softmax, whichever path draws. */
static void test_frequencies(void **state)
{
    static struct row w;
    struct sampler *s;
    struct err err;
    (void)state;
    if (test_briefly()) skip();
    assert_int_equal(sampler_create(V, &s, &err), ST_OK);
    for (uint32_t i = 0; i < V; i++) w.l[i] = -30;
    for (uint32_t i = 0; i < 6; i++) w.l[i * 97] = (float)i * 0.5f;
    describe(&w);
    static const struct sampling_params ways[] = {
        {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1, .top_k = 6, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 0.9999f, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1, .min_p = 0.01f, .repetition_penalty = 1}};
    double total = 0;
    for (uint32_t i = 0; i < 6; i++) total += exp(i * 0.5);
    for (size_t k = 0; k < 4; k++) {
        uint32_t counts[6] = {0};
        for (uint32_t n = 0; n < 30000; n++) {
            struct token_out out;
            w.r.position = n;
            assert_true(sampler_draw(s, &ways[k], &w.r, &out));
            assert_int_equal(out.id % 97, 0);
            counts[out.id / 97]++;
        }
        for (uint32_t i = 0; i < 6; i++) {
            double p = exp(i * 0.5) / total, sd = sqrt(p * (1 - p) / 30000);
            assert_true(fabs(counts[i] / 30000.0 - p) < 4.5 * sd);
        }
    }
    sampler_destroy(s);
}

/* Nothing left to draw, NaN, infinities, ids beyond the vocabulary: an answer, no crash, no endless loop. */
static void test_odd_rows(void **state)
{
    static struct row w;
    struct sampler *s;
    struct err err;
    static uint32_t all[V];
    static const float values[] = {-INFINITY, NAN, INFINITY, 0};
    (void)state;
    assert_int_equal(sampler_create(V, &s, &err), ST_OK);
    for (uint32_t i = 0; i < V; i++) all[i] = i;
    for (int k = 0; k < 4; k++) {
        for (uint32_t i = 0; i < V; i++) w.l[i] = values[k];
        for (int way = 0; way < 6; way++) {
            struct sampling_bias bias[2] = {{V + 5, 3}, {UINT32_MAX, -100}};
            uint32_t history[2] = {V + 9, UINT32_MAX};
            struct sampling_params p = {.temperature = way ? 1.0f : 0.0f,
                                        .top_p = way == 2 ? 0.5f : 1,
                                        .top_k = way == 3 ? 40 : 0,
                                        .min_p = way == 4 ? 0.1f : 0,
                                        .repetition_penalty = 1,
                                        .bias = bias,
                                        .bias_count = way == 5 ? 2 : 0,
                                        .presence_penalty = way == 5};
            struct token_out out;
            w.r = (struct sampler_row){.raw = w.l,
                                       .top_ids = all,
                                       .top_values = w.l,
                                       .top_count = BE_TOPK_MAX,
                                       .history = history,
                                       .history_count = 2};
            w.r.stats = (struct be_logit_stats){.max = values[k], .argmax = 0, .lse = values[k]};
            assert_true(sampler_draw(s, &p, &w.r, &out));
            assert_true(out.id < V);
        }
    }
    for (uint32_t i = 0; i < V; i++) w.l[i] = (float)(i % 7);
    describe(&w);
    w.r.banned = all;
    w.r.banned_count = V;
    struct token_out out;
    assert_true(sampler_draw(
        s, &(struct sampling_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1}, &w.r, &out));
    assert_true(out.id < V);
    /* -0 is equal to 0: which of them is the first is told by the ids, with the list and without. */
    for (uint32_t i = 0; i < V; i++) w.l[i] = i % 2 ? 0.0f : i < 100 ? -0.0f : -3;
    describe(&w);
    for (uint32_t round = 0; round < 40; round++) {
        struct sampling_params p = {
            .temperature = 1, .top_p = round % 2 ? 0.02f : 1e-6f, .repetition_penalty = 1, .seed = round};
        struct token_out long_way;
        w.r.top_count = BE_TOPK_MAX;
        assert_true(sampler_draw(s, &p, &w.r, &out));
        w.r.top_count = 0;
        assert_true(sampler_draw(s, &p, &w.r, &long_way));
        assert_int_equal(out.id, long_way.id);
        assert_true(out.id <= 40);
    }
    sampler_destroy(s);
}

static void test_greedy_ties(void **state)
{
    static struct row w;
    struct sampler *s;
    struct err err;
    (void)state;
    assert_int_equal(sampler_create(V, &s, &err), ST_OK);
    for (uint32_t i = 0; i < V; i++) w.l[i] = i == 900 || i == 901 || i == 2000 ? 5 : 1;
    describe(&w);
    struct token_out out;
    struct sampling_params p = {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .logprobs = 3};
    assert_true(sampler_draw(s, &p, &w.r, &out));
    assert_int_equal(out.id, 900);
    assert_int_equal(out.rank, 1);
    assert_true(out.top[0].id == 900 && out.top[1].id == 901 && out.top[2].id == 2000);
    uint32_t banned[1] = {900};
    w.r.banned = banned;
    w.r.banned_count = 1;
    assert_true(sampler_draw(s, &p, &w.r, &out));
    assert_int_equal(out.id, 901);
    assert_int_equal(out.rank, 2);
    p.logprobs = SAMPLING_NO_LOGPROBS;
    assert_true(sampler_draw(s, &p, &w.r, &out));
    assert_int_equal(out.top_count, 0);
    sampler_destroy(s);
}

/* Without the row a token that the backend has drawn counts, where nothing else would change the draw. */
static void test_drawn_by_the_backend(void **state)
{
    static struct row w;
    struct sampler *s;
    struct err err;
    struct token_out out;
    (void)state;
    assert_int_equal(sampler_create(V, &s, &err), ST_OK);
    for (uint32_t i = 0; i < V; i++) w.l[i] = (float)(i % 7);
    describe(&w);
    struct sampling_params p = {.temperature = 0.5f, .top_p = 1, .repetition_penalty = 1, .seed = 3};
    struct be_draw draw = sampler_plain_draw(&p, 0, 11);
    assert_true(draw.inverse == 2 && draw.u == sampling_uniform(3, 11));
    w.r.raw = NULL;
    assert_false(sampler_draw(s, &p, &w.r, &out)); /* none was drawn */
    w.r.stats.drawn = 77;
    w.r.stats.drawn_rank = 5;
    w.r.stats.drawn_value = w.l[77];
    assert_true(sampler_draw(s, &p, &w.r, &out));
    assert_true(out.id == 77 && out.rank == 5 && out.logprob == w.l[77] - w.r.stats.lse);
    p.min_p = 0.1f;
    w.r.top_count = 0;
    assert_false(sampler_draw(s, &p, &w.r, &out));
    p.min_p = 0;
    p.presence_penalty = 1;
    assert_true(sampler_plain_draw(&p, 0, 11).inverse == 0);
    assert_false(sampler_draw(s, &p, &w.r, &out));
    p.presence_penalty = 0;
    assert_true(sampler_plain_draw(&p, 1, 11).inverse == 0);
    p.temperature = 0;
    assert_true(sampler_plain_draw(&p, 0, 11).inverse == 0);
    sampler_destroy(s);
}

/* The wide walk over a row has the bits of the plain one, whatever stands in it. */
/* What is changed is penalised, biased or banned; the rest of the row isn't looked at where the list and the
 * changed ids are enough: here it would win. And where the changes take the whole list away, the row decides.
 */
static void test_changed_rows(void **state)
{
    static const struct sampling_params ways[] = {
        {.temperature = 0, .top_p = 1, .repetition_penalty = 1.3f},
        {.temperature = 0.7f, .top_p = 0.8f, .top_k = 20, .repetition_penalty = 1.05f},
        {.temperature = 0.7f, .top_p = 0.8f, .top_k = 20, .repetition_penalty = 1, .presence_penalty = 1.5f},
        {.temperature = 1, .top_p = 1, .min_p = 0.6f, .repetition_penalty = 1, .frequency_penalty = 0.5f},
    };
    static struct row w, poisoned;
    struct sampler *s;
    struct err err;
    (void)state;
    assert_int_equal(sampler_create(V, &s, &err), ST_OK);
    for (uint32_t round = 0; round < 200; round++) {
        struct sampling_params p = ways[round % 4];
        uint32_t history[60];
        struct token_out a, b;
        p.logprobs = SAMPLING_NO_LOGPROBS;
        p.seed = round;
        random_row(w.l, 8.0f);
        describe(&w);
        for (uint32_t i = 0; i < 60; i++) history[i] = w.order[rnd(i < 30 ? 40 : V)];
        w.r.history = history;
        w.r.history_count = 60;
        w.r.position = 60;
        w.r.prompt_count = 10;
        poisoned = w;
        poisoned.r.raw = poisoned.l;
        poisoned.r.top_ids = poisoned.top_ids;
        poisoned.r.top_values = poisoned.top_values;
        bool known[V] = {false};
        for (uint32_t i = 0; i < 60; i++) known[history[i]] = true;
        for (uint32_t i = 0; i < sampler_top_wanted(&p, 0); i++) known[w.top_ids[i]] = true;
        for (uint32_t i = 0; i < V; i++)
            if (!known[i]) poisoned.l[i] = 1000;
        assert_true(sampler_draw(s, &p, &w.r, &a) && sampler_draw(s, &p, &poisoned.r, &b));
        assert_int_equal(a.id, b.id);
        /* All of the list banned. */
        w.r.banned = w.top_ids;
        w.r.banned_count = BE_TOPK_MAX;
        assert_true(sampler_draw(s, &p, &w.r, &a));
        w.r.top_count = 0;
        assert_true(sampler_draw(s, &p, &w.r, &b));
        assert_int_equal(a.id, b.id);
        for (uint32_t i = 0; i < BE_TOPK_MAX; i++) assert_true(a.id != w.top_ids[i]);
    }
    sampler_destroy(s);
}

static void test_weights(void **state)
{
    (void)state;
    sampler__weights_fn *wide = sampler__weights_avx2();
    if (!wide) skip();
    enum { MOST = 3 * SAMPLER__BLOCK };
    static float l[MOST], a[MOST], b[MOST];
    double a_sums[3], b_sums[3];
    static const float odd[] = {NAN, -INFINITY, -1e30f, -87.0f, -86.99f, -0.0f, 0.0f, -1e-30f};
    uint64_t bits = 5;
    for (uint32_t n = 1; n < MOST; n += n < 40 ? 1 : 251) {
        for (uint32_t i = 0; i < n; i++) {
            bits = bits * 6364136223846793005u + 1442695040888963407u;
            l[i] = bits >> 60 ? -90.0f * (float)(bits >> 40) * 0x1p-24f : odd[bits >> 50 & 7];
        }
        for (uint32_t t = 0; t < 3; t++) {
            float inv = t == 0 ? 1.0f : t == 1 ? 1.4285714f : 1e30f;
            double x = sampler__weights_c(l, n, 0.0f, inv, a, a_sums), y = wide(l, n, 0.0f, inv, b, b_sums);
            assert_memory_equal(&x, &y, sizeof x);
            assert_memory_equal(a, b, n * sizeof *a);
            assert_memory_equal(a_sums, b_sums, (n + SAMPLER__BLOCK - 1) / SAMPLER__BLOCK * sizeof *a_sums);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changed_rows),        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_against_naive),       cmocka_unit_test(test_ngrams_as_transformers),
        cmocka_unit_test(test_ngrams_long_history), cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_frequencies),         cmocka_unit_test(test_odd_rows),
        cmocka_unit_test(test_greedy_ties),         cmocka_unit_test(test_drawn_by_the_backend)};
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
