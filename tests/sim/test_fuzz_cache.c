/* Differential fuzzer of the prefix cache on real checkpoints: random conversations (growing turns, edits,
 * branches, repeats, swapped images, several at once) run through the scheduler with small arenas, any chunk
 * size and batch mix, cancels, deadlines and resets, constraints whose masks come late; every request's
 * output must equal, bit for bit, its output alone and without cache. Where images have shapes of their own
 * (Qwen, Gemma 4) they come in several and in several row counts, videos too, occur anywhere in the prompt
 * and are swapped for longer and shorter ones; hits may end inside them if their attention is causal.
 * A part of the requests has LoRA adapters: two names of one content, and one that changes the image tower.
 * Prefix-LM prompts (PaliGemma) get their spans as in a request, and only whole ones may be reused. Counters
 * show that the cache took part. Wrong keys must be found, and so must the bugs of tests/mutants. One thread,
 * virtual clock, everything from a seed; no HTTP, no files but the checkpoints.
 *
 *     test_fuzz_cache                                        the short version for CI, and wrong keys
 *     test_fuzz_cache --requests N [--seed S] [--model DIR | --family NAME] [--kernels SET]
 *         [--quantize none|int8|int4] [--kv-dtype auto|int8] [--instance K] [--no-cache] [--no-adapters]
 *         [--bug NAME] [--first-difference]
 * A failing instance prints the line that runs it again. */
#include "config/base/log.h"
#include "kernels/backend.h"
#include "scheduler/cache/cache_store.h"
#include "scheduler/ngram_draft.h"
#include "scheduler/scheduler.h"
#include "tests/lib/golden.h"
#include "tests/lib/lora_files.h"
#include "tests/lib/test_images.h"
#include "tests/lib/sched_check.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum {
    LENGTH_MAX = 500, /* prompt tokens, images included */
    ANSWER_MAX = 48,
    IMAGES_MAX = 4,
    SPANS_MAX = 2 * IMAGES_MAX + 1, /* with the text between, where that has spans */
    CONTENTS = 8,                   /* image bytes; every one is read in two shapes: w x h and h x w */
    CONTENTS_FIXED = 6,             /* of which so many where all images have one size */
    IMAGES = 2 * CONTENTS,
    PER_INSTANCE = 150, /* requests of one scheduler */
    FLIGHT_MAX = 24,
    FAMILIES = 8,
    ADAPTERS = 3, /* the first two of one content; the third touches the tower, where it can */
    MODELS_MAX = 32 * FAMILIES,
    STALL_TURNS = 4000,
};

/* ---- randomness: splitmix64 ---- */
static uint64_t rng_state;
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
static uint32_t rnd(uint32_t below)
{
    rng_state = mix(rng_state);
    return (uint32_t)((rng_state >> 33) % below);
}
static bool chance(uint32_t percent)
{
    return rnd(100) < percent;
}
static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- images ---- */

/* Content 2k+1 is content 2k with a few bytes changed where their sizes are equal; images 2c and 2c+1 are
 * the same bytes in two shapes. */
static void make_fixed_images(const struct model_info *m, struct test_image *pool)
{
    static const uint32_t shapes[CONTENTS_FIXED / 2][2] = {{12, 40}, {33, 20}, {24, 31}};
    static uint8_t bytes[CONTENTS_FIXED][3 * 33 * 40];
    for (uint32_t c = 0; c < CONTENTS_FIXED; c++) {
        size_t n = 3u * shapes[c / 2][0] * shapes[c / 2][1];
        uint64_t s = 977 * (c / 2) + 1;
        for (size_t i = 0; i < n; i++) bytes[c][i] = (uint8_t)(s = mix(s));
        for (size_t i = 0; c % 2 && i < 30; i++) bytes[c][n / 2 + i] ^= 0x80;
        for (uint32_t t = 0; t < 2; t++)
            pool[2 * c + t] = image_prepare(m, c, shapes[c / 2][t], shapes[c / 2][1 - t], bytes[c], 0, 0);
    }
}

/* Of 4 to 40 tokens: two pairs of 12 in other shapes, one image under other bounds of its area, a video of
 * two groups of frames, if the model takes videos. The sources are a little off the sizes that the tower
 * takes. */
static void make_grid_images(const struct model_info *m, struct test_image *pool)
{
    static const struct {
        uint32_t w, h, most; /* tokens; most: the area's bound in tokens */
    } shapes[CONTENTS] = {{3, 4, 40}, {3, 4, 40}, {2, 6, 40}, {2, 6, 40},
                          {5, 8, 40}, {5, 8, 15}, {1, 4, 40}, {3, 2, 0}};
    uint32_t unit = image_unit(m);
    for (uint32_t c = 0; c < CONTENTS; c++) {
        for (uint32_t t = 0; t < 2; t++) {
            uint32_t w = t ? shapes[c].h : shapes[c].w, h = t ? shapes[c].w : shapes[c].h;
            uint32_t most = !shapes[c].most && !m->image.video_marker ? 40 : shapes[c].most;
            if (!most) {
                pool[2 * c + t] = image_make(m, c, w, h, 2 * m->image.config.depth, 1.4, c);
                continue;
            }
            uint32_t width = w * unit + (w > h ? 2 : 0), height = h * unit + (h > w ? 2 : 0);
            size_t n = 3u * width * height;
            uint8_t *bytes = malloc(n);
            uint64_t s = 977 * (c / 2) + 1;
            for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(s = mix(s));
            for (size_t i = 0; c < 4 && c % 2 && i < 30; i++) bytes[n / 2 + i] ^= 0x80;
            pool[2 * c + t] = image_prepare(m, c, width, height, bytes, (uint64_t)unit * unit,
                                            (uint64_t)most * unit * unit);
            free(bytes);
        }
    }
}

/* The image's key, unless the bug of leaving the size out is put in. */
static void content_key(const struct test_image *p, bool drop_size, uint8_t key[32])
{
    struct test_image q = {.content = p->content};
    image_key(drop_size ? &q : p, key);
}

/* ---- what a request asks, and what it gets cold and alone ---- */
struct span {
    uint32_t begin, image;
};
struct history {
    uint32_t tokens[LENGTH_MAX];
    uint32_t count;
    struct span images[IMAGES_MAX];
    uint32_t image_count;
};
struct answer {
    struct token_out tokens[ANSWER_MAX];
    uint32_t count;
    struct token_out *scores; /* [prompt], entry 0 unused; NULL = none were asked for */
    uint32_t score_count;     /* entries that came */
    enum seq_end end;
    uint32_t stop_id;
};
struct spec {
    struct history h;
    struct sampling_params sampling;
    struct sampling_bias bias[2];
    bool constrained;
    uint32_t fails_at; /* answer of so many tokens whose constraint fails; 0 = none */
    uint32_t tokens_max, tokens_min, stop_ids[2], stop_id_count;
    bool ignore_eos;
    uint32_t adapter; /* content: 0 or 1; UINT32_MAX = none */
    struct answer cold;
};
/* A constraint whose masks come late, by chance, and never in a step that does not wait for them. */
struct constraint {
    struct sampling_constraint is;
    struct sampling_params sampling; /* the spec's, with it */
    uint64_t luck;                   /* 0: masks are ready at once */
    uint32_t ready; /* tokens after which the last mask was found ready, and as many draft tokens behind: */
    uint32_t drafts;
    uint64_t lates;
    uint32_t fails_at;
    bool stopped;
};
struct request {
    const struct spec *spec;
    struct constraint constraint;
    struct prompt prompt; /* tokens are the spec's; images below */
    struct prompt_span images[SPANS_MAX];
    uint32_t in_doubt; /* first image whose key is withheld; IMAGES_MAX = none */
    uint8_t salt;
    uint32_t name; /* of its adapter: of ADAPTERS */
    bool no_read, no_write;
    uint64_t deadline_us;
    uint32_t cancel_in; /* turns until it is cancelled; 0 = never */
    struct seq_id id;
    uint64_t answer_at[SPANS_MAX]; /* turn in which the pixels that were asked for are handed over; 0 = not
                                       asked for */
    bool refused, submitted, ended;
    enum { GENERATED = 0, GIVEN, FORCED, ALTERED } output;
    uint32_t given[ANSWER_MAX], altered; /* the cold answer; the one of its tokens that is another */
    struct answer got;
    struct sched_cache_info cache;
    struct ngram ngram;
};

struct totals { /* counters first: add_totals goes over them */
    uint64_t requests, cacheable, hits, prompt_tokens, hit_tokens, partial, images, images_reused,
        feature_hits;
    uint64_t evictions, evicted_blocks, preemptions, cancelled, expired, refused, images_asked, instances,
        inside, grids, given, drafted, accepted, looked_up, whole, constrained, masks_late, masks_failed;
    uint64_t adapted, adapted_hits; /* with an adapter; of these hits */
    uint64_t restarts, loads, loaded_tokens, loads_failed, image_loads, written, announced;
    uint64_t stops[CACHE_STOP_DISABLED + 1];
    uint64_t differences;
    double seconds;
};

/* ---- one run: a checkpoint on a kernel set, one scheduler and its requests ---- */
struct fuzz_options {
    uint32_t requests;
    uint64_t seed;
    const char *model, *kernels, *quantize; /* quantize NULL: every third instance int8, every third int4 */
    const char *kv_dtype;                   /* NULL: every second three instances int8 */
    int64_t instance;                       /* only this one; -1 = all */
    bool no_cache, no_adapters;
    const char *family; /* only its checkpoints: a folder of tests/golden; NULL = all */
    bool drop_size;     /* bug: the image key leaves the size out */
    bool drop_end;      /* bug: the identity of a whole prompt leaves its last token out */
    bool first;         /* answers alone are compared, to the first difference: a bug is known to be there */
};
struct run {
    const struct fuzz_options *o;
    const char *model, *kernels, *dtype, *quantize, *kv_dtype;
    uint32_t instance;
    struct sched_options opt;        /* of the warm scheduler */
    struct cache_store_options disk; /* dir NULL: none */
    char dir[64];
    struct engine *cold, *warm;
    struct adapter *cold_adapters[ADAPTERS], *warm_adapters[ADAPTERS]; /* NULL: none */
    struct scheduler *s;
    const struct model_info *info;
    struct engine_caps caps;
    struct test_image pool[IMAGES];
    uint32_t images; /* in the pool; 0 without a tower */
    bool cut;        /* they have shapes of their own and may be cut */
    uint32_t length_max, image_percent, rate, flight_max, salts, tenants, talkative;
    bool cache;
    bool ngram;              /* draft tokens are those of lookup */
    bool drafter;            /* the warm engine has one */
    uint32_t draft_accepted; /* of 100 other draft tokens */
    uint64_t drafts;
    struct history roots[3];
    uint32_t root_count;
    struct spec *specs[PER_INSTANCE + 8];
    uint32_t spec_count;
    struct request *requests;                 /* [PER_INSTANCE + 8], zeroed */
    uint32_t request_count, live, restart_at; /* at so many requests the scheduler starts again */
    uint64_t now_us, clock_us, turn, last_event, works;
    struct totals t;
};

static bool has_bug(const struct fuzz_options *o)
{
    return o->drop_size || o->drop_end || o->first;
}

static uint32_t rows_of(const struct run *r, const struct span *s)
{
    return r->pool[s->image].rows;
}

static void differs(struct run *r, const struct request *q, const char *fmt, ...)
{
    va_list args;
    if (r->o->drop_size && !q->cache.reused) return; /* another's encoded image, not the prefix cache */
    if (++r->t.differences > 4) return;
    printf("DIFFERS: request %u of instance %u: ", (uint32_t)(q - r->requests), r->instance);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n  prompt of %u tokens, %u images, %u reused, %u equal, stop %u; %s %s %s %s KV %s\n  "
           "test_fuzz_cache "
           "--seed %llu "
           "--instance %u%s%s%s%s\n",
           q->spec->h.count, q->spec->h.image_count, q->cache.reused, q->cache.equal, q->cache.stop, r->model,
           r->kernels, r->dtype, r->quantize, r->kv_dtype, (unsigned long long)r->o->seed, r->instance,
           r->o->model ? " --model " : "", r->o->model ? r->o->model : "", r->o->family ? " --family " : "",
           r->o->family ? r->o->family : "");
    fflush(stdout);
}

/* ---- histories ---- */
static void add_text(const struct run *r, struct history *h, uint32_t n)
{
    for (; n > 0 && h->count < r->length_max; n--) {
        uint32_t id = rnd(r->caps.vocab_size);
        h->tokens[h->count++] = id == r->info->image.placeholder_id ? 5 : id;
    }
}

static void write_image(const struct run *r, uint32_t image, uint32_t *tokens)
{
    const struct test_image *p = &r->pool[image];
    for (uint32_t i = 0; i < p->rows; i++)
        tokens[i] = prompt_grid_break(&p->grid, i) ? 7 : r->info->image.placeholder_id;
}

static void add_image(const struct run *r, struct history *h, uint32_t image)
{
    uint32_t n = r->pool[image].rows;
    if (!r->images || h->image_count == IMAGES_MAX || h->count + n > r->length_max) return;
    h->images[h->image_count++] = (struct span){h->count, image};
    write_image(r, image, h->tokens + h->count);
    h->count += n;
}

/* Another image in the place of image i: what follows moves when it has another number of rows. */
static void replace_image(const struct run *r, struct history *h, uint32_t i, uint32_t image)
{
    struct span *s = &h->images[i];
    uint32_t old = rows_of(r, s), now = r->pool[image].rows, end = s->begin + old;
    if (h->count - old + now > r->length_max) return;
    memmove(h->tokens + s->begin + now, h->tokens + end, (h->count - end) * sizeof *h->tokens);
    write_image(r, image, h->tokens + s->begin);
    for (uint32_t k = i + 1; k < h->image_count; k++) h->images[k].begin = h->images[k].begin - old + now;
    h->count = h->count - old + now;
    s->image = image;
}

/* Keeps the first `at` tokens; an image that this would cut goes whole. */
static void cut(const struct run *r, struct history *h, uint32_t at)
{
    while (h->image_count > 0 &&
           h->images[h->image_count - 1].begin + rows_of(r, &h->images[h->image_count - 1]) > at) {
        at = min_u32(at, h->images[h->image_count - 1].begin);
        h->image_count--;
    }
    h->count = min_u32(h->count, at);
}

/* A place in [1, count], often beside a block border or a window's length before the end. */
static uint32_t place(const struct run *r, const struct history *h)
{
    uint32_t at = 1 + rnd(h->count), block = r->caps.block_tokens;
    if (chance(40) && h->count > block) at = block * (1 + rnd(h->count / block)) + rnd(3) - 1;
    return at > h->count ? h->count : at;
}

static void add_turn(const struct run *r, struct history *h)
{
    static const uint32_t lengths[] = {1, 3, 9, 20, 35, 60, 120};
    if (chance(50)) add_text(r, h, 1 + rnd(6));
    for (uint32_t k = chance(15) ? 2 : 1; k > 0; k--)
        if (chance(r->image_percent)) add_image(r, h, rnd(r->images ? r->images : IMAGES));
    if (r->cut && h->count && chance(35)) return; /* an image ends the prompt, often */
    add_text(r, h, 1 + rnd(lengths[rnd(7)]));
}

static bool inside_image(const struct run *r, const struct history *h, uint32_t at)
{
    for (uint32_t i = 0; i < h->image_count; i++)
        if (at >= h->images[i].begin && at < h->images[i].begin + rows_of(r, &h->images[i])) return true;
    return false;
}

/* One thing is changed: an image (most often into the one with the same bytes and the other shape), or a
 * token. */
static void edit(const struct run *r, struct history *h, bool want_image)
{
    if (h->image_count > 0 && (want_image || chance(40))) {
        uint32_t i = rnd(h->image_count);
        replace_image(r, h, i, chance(60) ? h->images[i].image ^ 1u : rnd(r->images));
        return;
    }
    uint32_t at = place(r, h) - 1;
    if (!inside_image(r, h, at)) h->tokens[at] = 4 + (h->tokens[at] + 1 + rnd(97)) % 300;
}

/* Does a prompt go as a whole? */
static bool prefix(const struct run *r)
{
    return r->info->image.present && r->info->image.rule == SPAN_PREFIX_LM;
}

/* The next prompt: out of nothing, or from what an earlier request asked and was answered. */
static void next_history(const struct run *r, struct history *h)
{
    uint32_t way = rnd(100);
    *h = r->roots[rnd(r->root_count)];
    if (way < 8 || r->spec_count == 0) {
        add_turn(r, h);
        return;
    }
    uint32_t recent = min_u32(r->spec_count, chance(60) ? 6 : 40);
    const struct spec *from = r->specs[r->spec_count - 1 - rnd(recent)];
    *h = from->h;
    if (prefix(r) && chance(60)) return; /* the only thing that can be had of an earlier one */
    if (way < 50) {                      /* the conversation goes on */
        for (uint32_t i = 0; i < from->cold.count && h->count < r->length_max; i++) {
            if (from->cold.tokens[i].id == r->info->image.placeholder_id)
                break; /* a client can't send that back */
            h->tokens[h->count++] = from->cold.tokens[i].id;
        }
        add_turn(r, h);
    } else if (way < 63) { /* a branch */
        cut(r, h, place(r, h));
        add_turn(r, h);
    } else if (way < 77) {
        edit(r, h, way < 71);
        if (chance(30)) add_text(r, h, 1 + rnd(8));
    } else if (way < 83) { /* a beginning of it */
        cut(r, h, place(r, h));
    } /* else the same again */
    if (h->count + 8 > r->length_max && chance(80))
        cut(r, h, 1 + rnd(r->length_max / 2)); /* the client forgets the end */
    if (h->count == 0) add_text(r, h, 1 + rnd(20));
}

/* ---- sampling ---- */
static void draw_sampling(const struct run *r, struct spec *p)
{
    static const uint32_t tops[] = {SAMPLING_NO_LOGPROBS, 0, 1, 5, SAMPLING_TOP_MAX};
    p->sampling = mini_greedy();
    p->sampling.logprobs = tops[rnd(5)];
    p->sampling.prompt_logprobs = chance(5) ? rnd(4) : SAMPLING_NO_LOGPROBS;
    if (chance(50)) {
        p->sampling.temperature = 0.5f + 0.1f * (float)rnd(9);
        p->sampling.top_k = chance(50) ? 2 + rnd(60) : 0;
        p->sampling.top_p = chance(50) ? 0.9f : 1.0f;
        p->sampling.min_p = chance(20) ? 0.02f : 0.0f;
        p->sampling.seed = mix(rnd(1000));
    }
    if (chance(15)) p->sampling.repetition_penalty = 1.2f;
    if (chance(10)) p->sampling.presence_penalty = 0.5f;
    if (chance(10)) p->sampling.frequency_penalty = 0.3f;
    if (p->sampling.presence_penalty > 0)
        p->sampling.ngrams = (struct sampling_ngrams){.size = 2, .window = 40};
    if (chance(10)) {
        for (uint32_t i = 0; i < 2; i++)
            p->bias[i] = (struct sampling_bias){4 + rnd(200), 2.0f - 4.0f * (float)i};
        p->sampling.bias = p->bias;
        p->sampling.bias_count = 2;
    }
    if (r->ngram && chance(40)) { /* an answer of two tokens, in which lookup finds what to draft */
        for (uint32_t i = 0; i < 2; i++) p->bias[i] = (struct sampling_bias){4 + rnd(200), 40.0f};
        p->sampling.bias = p->bias;
        p->sampling.bias_count = 2;
    }
    p->adapter = r->cold_adapters[0] && chance(45) ? rnd(2) : UINT32_MAX;
    p->constrained = chance(30);
    if (p->constrained && chance(10)) p->fails_at = 1 + rnd(12);
    p->tokens_max = 1 + rnd(chance(r->talkative) ? ANSWER_MAX : chance(50) ? 12 : 3);
    if (p->sampling.prompt_logprobs != SAMPLING_NO_LOGPROBS && chance(30)) p->tokens_max = 0;
    p->tokens_min = chance(10) ? min_u32(rnd(4), p->tokens_max) : 0;
    p->ignore_eos = chance(50);
    p->stop_id_count = chance(20) ? 1 + rnd(2) : 0;
    for (uint32_t i = 0; i < 2; i++) p->stop_ids[i] = rnd(r->caps.vocab_size);
}

/* ---- constraints ---- */

/* What may follow depends on the answer so far: about a quarter of all ids. */
static bool allows(const uint32_t *tokens, uint32_t count, uint32_t id)
{
    uint64_t h = count;
    for (uint32_t i = 0; i < count; i++) h = mix(h ^ tokens[i]);
    return mix(h + id) % 4 == 0;
}

static enum mask_state prepare(void *arg, const uint32_t *tokens, uint32_t count, bool brief)
{
    struct constraint *c = arg;
    (void)tokens;
    (void)brief;
    assert_false(c->stopped);
    c->ready = UINT32_MAX;
    c->luck = c->luck ? mix(c->luck) : 0;
    if (c->luck % 3 == 1) { /* now, or in some turns */
        c->lates++;
        return c->luck >> 8 & 1 ? MASK_BUSY : MASK_LATER;
    }
    if (c->fails_at && count + 1 >= c->fails_at) return MASK_FAILED;
    c->ready = count;
    c->drafts = 0;
    return MASK_READY;
}

static uint32_t drafts(void *arg, const uint32_t *tokens, uint32_t count, uint32_t n)
{
    struct constraint *c = arg;
    assert_int_equal(c->ready, count);
    c->luck = c->luck ? mix(c->luck) : 0;
    uint32_t most = c->luck ? min_u32(n, (uint32_t)(c->luck >> 8) % (n + 1)) : n;
    if (c->fails_at) most = min_u32(most, c->fails_at > count + 2 ? c->fails_at - count - 2 : 0);
    while (c->drafts < most && allows(tokens, count + c->drafts, tokens[count + c->drafts])) c->drafts++;
    return c->drafts;
}

static void mask(void *arg, const uint32_t *tokens, uint32_t count, uint32_t *bits, uint32_t words)
{
    struct constraint *c = arg;
    assert_in_range(count, c->ready, c->ready + c->drafts);
    memset(bits, 0, words * sizeof *bits);
    for (uint32_t id = 0; id < 32 * words; id++)
        if (allows(tokens, count, id)) bits[id >> 5] |= 1u << (id & 31);
}

static uint32_t forced(void *arg, const uint32_t *tokens, uint32_t count, uint32_t most, uint32_t *out)
{
    struct constraint *c = arg;
    uint32_t n = c->luck % 4 ? 0 : min_u32(most, 2);
    for (uint32_t i = 0; i < n; i++) out[i] = (uint32_t)mix(c->luck + i) % 200;
    (void)tokens;
    (void)count;
    return n;
}

static void stop(void *arg)
{
    ((struct constraint *)arg)->stopped = true;
}

static const struct sampling_params *constrain(struct request *q)
{
    struct constraint *c = &q->constraint;
    if (!q->spec->constrained) return &q->spec->sampling;
    c->fails_at = q->spec->fails_at;
    c->is = (struct sampling_constraint){c, prepare, drafts, mask, forced, stop};
    c->sampling = q->spec->sampling;
    c->sampling.constraint = &c->is;
    return &c->sampling;
}

/* As prompt_build does. */
static void make_whole(const struct run *r, struct request *q)
{
    uint32_t tokens[LENGTH_MAX], last = q->prompt.token_count - 1;
    struct prompt p = {.tokens = tokens,
                       .token_count = q->prompt.token_count,
                       .spans = malloc((q->prompt.span_count + 1) * sizeof *p.spans),
                       .span_count = q->prompt.span_count};
    struct err err;
    memcpy(tokens, q->prompt.tokens, p.token_count * sizeof *tokens);
    memcpy(p.spans, q->images, p.span_count * sizeof *p.spans);
    if (r->o->drop_end) tokens[last] = 0;
    for (uint32_t i = 0; i < p.span_count; i++) p.spans[i].rule = SPAN_CAUSAL; /* it is set there */
    if (prompt_prefix_lm(&p, &err)) fail_msg("%s", err.msg);
    assert_true(p.span_count <= SPANS_MAX);
    memcpy(q->images, p.spans, p.span_count * sizeof *p.spans);
    q->prompt.span_count = p.span_count;
    free(p.spans);
}

static void fill_prompt(const struct run *r, struct request *q)
{
    const struct history *h = &q->spec->h;
    for (uint32_t i = 0; i < h->image_count; i++) {
        const struct test_image *p = &r->pool[h->images[i].image];
        q->images[i] = image_at(r->info, p, h->images[i].begin);
        content_key(p, r->o->drop_size, q->images[i].key);
        if (i == q->in_doubt) memset(q->images[i].key, 0, sizeof q->images[i].key);
    }
    images_scan(q->images, h->image_count);
    union { /* the scheduler only reads them */
        const uint32_t *from;
        uint32_t *to;
    } tokens = {.from = h->tokens};
    q->prompt = (struct prompt){
        .tokens = tokens.to, .token_count = h->count, .spans = q->images, .span_count = h->image_count};
    if (prefix(r)) make_whole(r, q);
}

static struct sched_sequence sequence_of(struct request *q)
{
    const struct spec *p = q->spec;
    struct sched_sequence seq = {.prompt = &q->prompt,
                                 .sampling = constrain(q),
                                 .tokens_max = p->tokens_max,
                                 .tokens_min = p->tokens_min,
                                 .ignore_eos = p->ignore_eos,
                                 .stop_ids = p->stop_ids,
                                 .stop_id_count = p->stop_id_count,
                                 .no_cache_read = q->no_read,
                                 .no_cache_write = q->no_write,
                                 .deadline_us = q->deadline_us,
                                 .user = q};
    seq.salt[5] = q->salt;
    if (!q->output) return seq;
    for (uint32_t i = 0; i < p->cold.count; i++) q->given[i] = p->cold.tokens[i].id;
    if (q->output == ALTERED) q->given[q->altered] ^= 1;
    seq.given = q->given;
    seq.given_count = p->cold.count;
    seq.forced = q->output == FORCED;
    return seq;
}

/* Takes one event into q's answer. */
static void take_event(struct request *q, const struct sched_event *ev)
{
    struct answer *a = &q->got;
    if (ev->kind == EV_TOKEN) {
        if (ev->index != a->count || a->count == ANSWER_MAX)
            fail_msg("token event %u where %u is next", ev->index, a->count);
        a->tokens[a->count++] = ev->token;
    } else if (ev->kind == EV_PROMPT_SCORES) {
        if (!a->scores) a->scores = calloc(LENGTH_MAX, sizeof *a->scores);
        assert_int_equal(ev->index, a->score_count + 1);
        assert_true(ev->index + ev->score_count <= q->spec->h.count);
        memcpy(a->scores + ev->index, ev->scores, ev->score_count * sizeof *a->scores);
        a->score_count += ev->score_count;
        free(ev->scores);
    } else if (ev->kind == EV_END) {
        assert_int_equal(ev->generated, a->count);
        a->end = ev->end;
        if (ev->end == END_DIFFERS) {
            assert_int_equal(ev->given.id, q->given[a->count]);
            a->tokens[a->count].id = ev->drew.id;
            a->tokens[a->count].logprob = ev->drew.logprob;
        }
        a->stop_id = ev->stop_id;
        q->ended = true;
    }
    if (ev->kind == EV_TOKEN || ev->kind == EV_END) q->cache = ev->cache;
}

/* The reference: a scheduler of its own without a cache, on another engine of the same checkpoint, the
 * request alone and whole.
 */
static void run_cold(struct run *r, struct spec *p)
{
    struct scheduler *s;
    struct sched_event ev;
    struct err err;
    struct request q = {.spec = p, .in_doubt = IMAGES_MAX};
    struct fuzz_options right = *r->o; /* the reference has no bugs */
    right.drop_size = right.drop_end = false;
    const struct fuzz_options *o = r->o;
    r->o = &right;
    fill_prompt(r, &q);
    r->o = o;
    struct sched_options opt = {.queue_max = 1, .no_prefix_cache = true, .features_bytes = 1};
    if (sched_create(r->cold, &opt, &s, &err)) fail_msg("%s", err.msg);
    struct sched_sequence seq = sequence_of(&q);
    if (p->adapter != UINT32_MAX) seq.adapter = r->cold_adapters[2 * p->adapter];
    if (sched_submit(s, &seq, &q.id, &err)) fail_msg("cold: %s", err.msg);
    for (uint32_t n = 0; !q.ended; n++) {
        if (n == STALL_TURNS) fail_msg("the cold run of instance %u hangs", r->instance);
        sched_step(s, n);
        while (sched_poll(s, &ev)) take_event(&q, &ev);
    }
    if (q.got.end == END_ERROR || q.got.end == END_CANCELLED)
        fail_msg("the cold run of instance %u ends with %d", r->instance, q.got.end);
    sched_destroy(s);
    p->cold = q.got;
}

/* ---- comparing ---- */
static bool same_token(const struct token_out *a, const struct token_out *b)
{
    return a->id == b->id && memcmp(&a->logprob, &b->logprob, sizeof a->logprob) == 0 && a->rank == b->rank &&
           a->top_count == b->top_count && memcmp(a->top, b->top, a->top_count * sizeof a->top[0]) == 0;
}

static void compare(struct run *r, const struct request *q)
{
    const struct answer *want = &q->spec->cold, *got = &q->got;
    bool whole = got->end != END_CANCELLED && got->end != END_DEADLINE && got->end != END_ERROR;
    uint32_t scores = got->score_count, count = got->count;
    if (got->end == END_CONSTRAINT && got->count == 0) /* it may fail before they come */
        scores = min_u32(scores, want->score_count);
    if (got->end == END_ERROR && !q->refused) {
        differs(r, q, "it ends with an error");
        return;
    }
    if (q->spec->constrained && !q->constraint.stopped) differs(r, q, "its constraint was not stopped");
    if (got->end == END_CANCELLED && !q->cancel_in) differs(r, q, "cancelled by nobody");
    if (got->end == END_DEADLINE && !q->deadline_us) differs(r, q, "it had no deadline");
    for (uint32_t i = 0; i < got->count; i++) {
        if (i < want->count && same_token(&got->tokens[i], &want->tokens[i])) continue;
        if (q->output == FORCED && got->tokens[i].id == want->tokens[i].id &&
            got->tokens[i].logprob == want->tokens[i].logprob &&
            q->spec->sampling.logprobs == SAMPLING_NO_LOGPROBS)
            continue; /* it has a rank, too */
        differs(r, q, "token %u is %u (%.9g), cold %u (%.9g)", i, got->tokens[i].id,
                (double)got->tokens[i].logprob, i < want->count ? want->tokens[i].id : UINT32_MAX,
                i < want->count ? (double)want->tokens[i].logprob : 0.0);
        return;
    }
    for (uint32_t i = 1; i <= scores; i++) {
        if (i <= want->score_count && same_token(&got->scores[i], &want->scores[i])) continue;
        differs(r, q, "the score of prompt token %u", i);
        return;
    }
    if (whole && q->output == ALTERED) {
        if (count != q->altered || got->end != END_DIFFERS ||
            got->tokens[count].id != want->tokens[count].id ||
            memcmp(&got->tokens[count].logprob, &want->tokens[count].logprob, sizeof(float)) != 0)
            differs(r, q, "%u given tokens, end %d, altered at %u", count, got->end, q->altered);
        return;
    }
    if (whole && q->output == FORCED && got->end == END_GIVEN && count == want->count) return;
    if (whole && (got->count != want->count || got->end != want->end || got->stop_id != want->stop_id ||
                  (scores != want->score_count && scores == got->score_count)))
        differs(r, q, "%u tokens, end %d, cold %u tokens, end %d", got->count, got->end, want->count,
                want->end);
}

/* Item i of a prompt and its answer: an image's row or a token. */
static uint64_t item(const struct run *r, const struct spec *p, uint32_t i)
{
    for (uint32_t k = 0; k < p->h.image_count; k++) {
        const struct span *s = &p->h.images[k];
        if (i >= s->begin && i < s->begin + rows_of(r, s))
            return (1ull << 40) + ((uint64_t)s->image << 20) + (i - s->begin);
    }
    return i < p->h.count ? p->h.tokens[i] : p->cold.tokens[i - p->h.count].id;
}

/* Leading items that are equal to those of a request that was submitted: nothing beyond can be had from any
 * cache. */
static uint32_t longest_equal(const struct run *r, const struct request *q)
{
    uint32_t best = 0, limit = q->spec->h.count;
    if (q->in_doubt < q->spec->h.image_count) limit = q->spec->h.images[q->in_doubt].begin;
    for (uint32_t k = 0; k < r->request_count; k++) {
        const struct request *other = &r->requests[k];
        if (other == q || !other->submitted || other->salt != q->salt || other->no_write ||
            other->spec->adapter != q->spec->adapter)
            continue;
        uint32_t n = 0, all = other->spec->h.count + other->spec->cold.count;
        if (other->in_doubt < other->spec->h.image_count) all = other->spec->h.images[other->in_doubt].begin;
        while (n < limit && n < all && item(r, q->spec, n) == item(r, other->spec, n)) n++;
        if (n > best) best = n;
    }
    return best;
}

static void count_end(struct run *r, const struct request *q)
{
    const struct history *h = &q->spec->h;
    struct totals *t = &r->t;
    bool may = r->cache && !q->no_read && q->spec->sampling.prompt_logprobs == SAMPLING_NO_LOGPROBS;
    t->requests++;
    t->cancelled += q->got.end == END_CANCELLED;
    t->expired += q->got.end == END_DEADLINE;
    t->refused += q->got.end == END_ERROR;
    t->constrained += q->spec->constrained;
    t->given += q->output != GENERATED;
    t->masks_late += q->constraint.lates;
    t->masks_failed += q->got.end == END_CONSTRAINT;
    t->prompt_tokens += h->count;
    t->cacheable += may;
    t->hits += q->cache.reused > 0;
    t->adapted += q->spec->adapter != UINT32_MAX;
    t->adapted_hits += q->spec->adapter != UINT32_MAX && q->cache.reused > 0;
    t->hit_tokens += q->cache.reused;
    t->partial += q->cache.reused % r->caps.block_tokens != 0;
    t->stops[q->cache.stop]++;
    t->images += h->image_count;
    bool inside = false;
    for (uint32_t i = 0; i < q->prompt.span_count; i++) {
        if (!q->images[i].image) continue;
        t->images_reused += q->images[i].end <= q->cache.reused;
        inside |= q->cache.reused > q->images[i].begin && q->cache.reused < q->images[i].end;
    }
    t->inside += inside;
    t->grids += r->cut && h->image_count;
    t->whole += prefix(r);
    if (has_bug(r->o)) return; /* there the answers must give the bug away */
    if (!may && q->cache.reused) differs(r, q, "a hit where none may be");
    if (q->cache.reused >= h->count) differs(r, q, "more reused than the prompt has");
    if (inside && r->info->image.rule && !prefix(r)) differs(r, q, "the hit ends inside an image");
    if (prefix(r) && q->cache.reused && longest_equal(r, q) < h->count)
        differs(r, q, "a hit in a prompt that was never there as a whole");
    if (q->cache.equal < q->cache.reused) differs(r, q, "more reused than equal");
    if (may && q->cache.equal > longest_equal(r, q))
        differs(r, q, "only %u tokens are equal to anything", longest_equal(r, q));
}

/* ---- submitting ---- */
static struct spec *new_spec(struct run *r)
{
    struct spec *p = calloc(1, sizeof *p);
    r->specs[r->spec_count++] = p;
    return p;
}

static void submit(struct run *r, const struct spec *p)
{
    struct request *q = &r->requests[r->request_count++];
    struct err err = {{0}};
    q->spec = p;
    q->in_doubt = chance(4) ? rnd(IMAGES_MAX) : IMAGES_MAX;
    q->salt = (uint8_t)rnd(r->salts);
    q->no_read = chance(4);
    q->no_write = chance(4);
    q->constraint.luck = mix(rnd(1u << 30)) | 1;
    q->cancel_in = chance(6) ? 1 + rnd(30) : 0;
    q->deadline_us = chance(3) ? r->now_us + 1 + rnd(20000) : 0;
    if (p->cold.count && p->cold.end <= END_LENGTH && chance(25)) q->output = 1 + rnd(3);
    if (q->output == ALTERED) {
        q->altered = rnd(p->cold.count);
        if ((p->cold.tokens[q->altered].id ^ 1) >= r->caps.vocab_size) q->output = GIVEN;
    }
    fill_prompt(r, q);
    bool undecoded = chance(50);
    for (uint32_t i = 0; undecoded && i < q->prompt.span_count; i++)
        if (chance(80)) q->images[i].pixels.rgb = NULL;
    struct sched_sequence seq = sequence_of(q);
    q->name = p->adapter ? 2 : rnd(2);
    if (p->adapter != UINT32_MAX) seq.adapter = r->warm_adapters[q->name];
    seq.priority = chance(30) ? (int64_t)rnd(3) - 1 : 0;
    seq.tenant = rnd(r->tenants);
    seq.rank = (int64_t)(r->request_count % 3) - 1;
    if (sched_submit(r->s, &seq, &q->id, &err)) fail_msg("instance %u: %s", r->instance, err.msg);
    q->submitted = true;
    r->live++;
}

/* One new conversation turn, alone or in several copies at once. */
static void arrive(struct run *r)
{
    struct spec *p = new_spec(r);
    next_history(r, &p->h);
    draw_sampling(r, p);
    run_cold(r, p);
    submit(r, p);
    if (!chance(18)) return;
    bool equal = chance(40);
    for (uint32_t n = 1 + rnd(3); n > 0 && r->request_count < PER_INSTANCE; n--) {
        if (!equal) {
            struct spec *other = new_spec(r);
            *other = *p;
            other->cold = (struct answer){0};
            if (other->sampling.bias) other->sampling.bias = other->bias;
            other->sampling.temperature = 0.9f;
            other->sampling.seed = p->sampling.seed + n;
            run_cold(r, other);
            submit(r, other);
        } else {
            submit(r, p);
        }
    }
}

/* ---- the loop ---- */
static void supply(struct run *r, struct request *q, uint32_t image)
{
    uint32_t k = 0; /* which image */
    for (uint32_t i = 0; i < image; i++) k += q->images[i].image;
    const struct image_u8 *from = &r->pool[q->spec->h.images[k].image].pixels;
    struct image_u8 copy = *from;
    copy.rgb = malloc(image_u8_bytes(from));
    memcpy(copy.rgb, from->rgb, image_u8_bytes(from));
    sched_supply_image(r->s, q->id, image, &copy); /* also when it has ended by now: the id is stale then */
}

static void poll_events(struct run *r)
{
    struct sched_event ev;
    while (sched_poll(r->s, &ev)) {
        struct request *q = ev.user;
        r->last_event = r->turn;
        if (q->ended) fail_msg("instance %u: an event after the end", r->instance);
        if (ev.kind == EV_IMAGE) {
            if (ev.index >= q->prompt.span_count || !q->images[ev.index].image ||
                q->images[ev.index].pixels.rgb)
                fail_msg("instance %u: asks for image %u", r->instance, ev.index);
            if (!q->answer_at[ev.index]) r->t.images_asked++;
            q->answer_at[ev.index] = r->turn + rnd(6) * rnd(4) + 1;
            continue;
        }
        take_event(q, &ev);
        if (!q->ended) continue;
        r->live--;
        compare(r, q);
        count_end(r, q);
    }
}

static void answer_and_cancel(struct run *r)
{
    for (uint32_t k = 0; k < r->request_count; k++) {
        struct request *q = &r->requests[k];
        for (uint32_t i = 0; i < q->prompt.span_count; i++) {
            if (!q->answer_at[i] || q->answer_at[i] > r->turn) continue;
            q->answer_at[i] = 0;
            if (chance(3)) {
                q->refused = true;
                sched_refuse_image(r->s, q->id, i, "not an image");
            } else {
                supply(r, q, i);
            }
        }
        if (!q->ended && q->cancel_in > 1 && --q->cancel_in == 1) sched_cancel(r->s, q->id);
    }
}

/* ---- what a router is told: nothing is stored twice, or removed without being stored ---- */

enum { MIRROR = 1 << 16 };
static uint64_t mirror[CACHE_TIERS][MIRROR]; /* hashes of (group, block), each at its place; 0: none */

/* Its place; bit 0: it is stored. */
static uint64_t *mirror_find(enum cache_tier tier, uint32_t group, uint64_t hash)
{
    uint64_t key = mix(hash + group) | 2, i = key >> 20;
    while (mirror[tier][i % MIRROR] && (mirror[tier][i % MIRROR] | 1) != (key | 1)) i++;
    if (!mirror[tier][i % MIRROR]) mirror[tier][i % MIRROR] = key & ~(uint64_t)1;
    return &mirror[tier][i % MIRROR];
}

static void on_stored(void *arg, const struct cache_stored *what)
{
    struct run *r = arg;
    r->t.announced += what->tier == CACHE_TIER_DISK;
    if (what->recurrent) return; /* two states may have one block before them */
    for (uint32_t i = 0; i < what->count; i++) {
        uint64_t *at = mirror_find(what->tier, what->group, what->hashes[i]);
        if (*at & 1) fail_msg("tier %d: a block is stored twice", what->tier);
        *at |= 1;
    }
}

static void on_removed(void *arg, enum cache_tier tier, uint32_t group, const uint64_t *hashes,
                       uint32_t count)
{
    const struct run *r = arg;
    for (uint32_t i = 0; i < count && !r->caps.groups[group].recurrent; i++) {
        uint64_t *at = mirror_find(tier, group, hashes[i]);
        if (!(*at & 1)) fail_msg("tier %d: a block is removed that was not stored", tier);
        *at &= ~(uint64_t)1;
    }
}

static void on_resync(void *arg, bool done)
{
    (void)arg;
    if (!done) memset(mirror, 0, sizeof mirror);
}

/* ---- the tiers below the arena: restarts with and without a drain, damaged records ---- */

/* What a scheduler has done, at its end. */
static void count_scheduler(struct run *r)
{
    struct sched_stats st;
    sched_stats(r->s, &st);
    for (uint32_t g = 0; g < st.group_count; g++) r->t.evicted_blocks += st.groups[g].evicted_blocks;
    r->t.evictions += st.cache_evictions;
    r->t.preemptions += st.preemptions;
    r->t.drafted += st.proposed_tokens;
    if (r->ngram) r->t.looked_up += st.proposed_tokens;
    r->t.accepted += st.accepted_tokens;
    r->t.feature_hits += st.feature_hits;
    r->t.image_loads += st.tier_image_loads;
    r->t.loads += st.tier_loads;
    r->t.loaded_tokens += st.tier_loaded_tokens;
    r->t.loads_failed += st.tier_loads_failed;
    r->t.written += st.tier_written_blocks;
}

static int damage_file(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)at;
    if (type != FTW_F || st->st_size < 1 || !chance(10)) return 0;
    if (chance(30)) return truncate(path, rnd((uint32_t)st->st_size)) && false;
    FILE *f = fopen(path, "r+b");
    if (!f) return 0;
    long where = (long)rnd((uint32_t)st->st_size);
    fseek(f, where, SEEK_SET);
    int c = fgetc(f);
    fseek(f, where, SEEK_SET);
    fputc(c ^ (1 << rnd(8)), f);
    fclose(f);
    return 0;
}

static int remove_file(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static void restart(struct run *r)
{
    struct err err;
    count_scheduler(r);
    sched_check(r->s);
    if (chance(60)) {
        sched_stop(r->s, true);
        sched_run(r->s);
    }
    sched_destroy(r->s);
    for (uint32_t i = 0; i < r->request_count; i++) /* late replies have no addressee */
        memset(r->requests[i].answer_at, 0, sizeof r->requests[i].answer_at);
    if (chance(30)) nftw(r->dir, damage_file, 8, FTW_PHYS);
    r->opt.disk = &r->disk;
    memset(mirror, 0, sizeof mirror);
    if (sched_create(r->warm, &r->opt, &r->s, &err)) fail_msg("%s", err.msg);
    r->t.restarts++;
    r->restart_at = r->request_count + 1 + rnd(20);
}

static void run_requests(struct run *r)
{
    bool strict = !has_bug(r->o);
    while (r->request_count < PER_INSTANCE || r->live > 0) {
        r->turn++;
        r->now_us += rnd(400);
        while (r->request_count < PER_INSTANCE && r->live < r->flight_max && chance(r->rate)) arrive(r);
        answer_and_cancel(r);
        if (chance(1) && chance(30)) sched_reset_prefix_cache(r->s);
        if (chance(1) && chance(30)) sched_reset_features(r->s);
        if (r->disk.dir && chance(1)) sched_announce_cache(r->s);
        sched_step(r->s, r->now_us);
        poll_events(r);
        if (r->disk.dir && r->live == 0 && r->request_count >= r->restart_at) restart(r);
        if (strict && chance(6)) sched_check(r->s);
        if (!strict && r->t.differences) return;
        if (r->live == 0) r->last_event = r->turn;
        if (r->turn - r->last_event > STALL_TURNS)
            fail_msg("instance %u of %s hangs with %u requests (seed %llu)", r->instance, r->model, r->live,
                     (unsigned long long)r->o->seed);
    }
    answer_and_cancel(r); /* images asked for by requests that are gone */
    sched_step(r->s, r->now_us);
}

static void close_requests(struct run *r)
{
    struct sched_stats st;
    bool strict = !has_bug(r->o);
    uint64_t hit_tokens = 0;
    sched_stats(r->s, &st);
    if (strict) {
        for (uint32_t i = 0; i < r->request_count;
             i++) /* one that was cancelled while it waited took nothing */
            if (r->requests[i].got.count > 0) hit_tokens += r->requests[i].cache.reused;
        sched_check(r->s);
        assert_int_equal(st.running + st.waiting, 0);
        for (uint32_t g = 0; g < st.group_count; g++) assert_int_equal(st.groups[g].blocks_live, 0);
        if (!r->t.restarts) assert_true(st.cache_hit_tokens >= hit_tokens);
    }
    count_scheduler(r);
    r->t.instances++;
}

/* ---- engines ---- */
static struct engine *open_engine(const struct run *r, uint64_t kv_bytes, uint32_t batch_tokens,
                                  uint32_t sequences, uint32_t threads)
{
    struct engine *e;
    struct err err;
    struct engine_options opt = {.model_dir = r->model,
                                 .kernels = r->kernels,
                                 .dtype = (enum opt_dtype)option_value("dtype", r->dtype),
                                 .quantize = (enum opt_quantize)option_value("quantize", r->quantize),
                                 .kv_dtype = (enum opt_kv_dtype)option_value("kv-dtype", r->kv_dtype),
                                 .threads = threads,
                                 .kv_bytes = kv_bytes,
                                 .batch_tokens_max = batch_tokens,
                                 .sequences_max = sequences};
    char drafter[600];
    snprintf(drafter, sizeof drafter, "%s/assistant", r->model);
    if (r->drafter) opt.draft_dir = drafter;
    opt.own_drafter = true;
    if (engine_open(&opt, &e, &err)) fail_msg("%s: %s", r->model, err.msg);
    return e;
}

/* Bytes of the blocks that one sequence of `tokens` tokens holds, more or less. */
static uint64_t kv_bytes_of(const struct engine_caps *c, uint32_t tokens)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < c->group_count; g++) {
        uint32_t w = c->groups[g].window,
                 run = c->span_tokens_max > c->block_tokens ? c->span_tokens_max : c->block_tokens;
        uint32_t all = (tokens + c->block_tokens - 1) / c->block_tokens,
                 some = (w + run) / c->block_tokens + 2;
        bytes += c->groups[g].block_bytes * (c->groups[g].recurrent ? 2 : w && some < all ? some : all);
    }
    return bytes;
}

/* Draft tokens at what a request is answered, some of them right: by lookup also where that does not pay, or
 * from the cold answer. */
static uint32_t propose_drafts(void *arg, void *user, const uint32_t *tokens, uint32_t count, uint32_t most,
                               uint32_t *out)
{
    struct run *r = arg;
    struct request *q = user;
    const struct spec *p = q->spec;
    if (r->ngram) return ngram_draft_propose(&q->ngram, tokens, count, most, out);
    uint64_t luck = mix(r->drafts++ + r->instance);
    uint32_t n = (uint32_t)(luck >> 8) % (most + 1), at = count - p->h.count;
    for (uint32_t i = 0; i < n; i++, luck = mix(luck))
        out[i] = at + i < p->cold.count && luck % 100 < r->draft_accepted ? p->cold.tokens[at + i].id
                                                                          : tokens[luck % count];
    return n;
}

/* Now and then a step seems to take far longer than the others, as on a busy machine. */
static uint64_t virtual_clock(void *arg)
{
    struct run *r = arg;
    uint64_t luck = mix(r->clock_us + r->instance) >> 8;
    r->clock_us += luck % 10 ? 20 + (luck >> 8) % 100 : (luck >> 8) % (4u << (luck >> 32) % 16);
    return r->clock_us;
}

/* The disk, as slow as chance has it: a thread of its own would make each run another one. */
static uint32_t disk_work(void *arg)
{
    struct run *r = arg;
    uint64_t luck = mix(r->works++ + r->instance) >> 8;
    return luck % 100 < 40 ? 1 + (uint32_t)(luck >> 8) % 8 : 0;
}

/* An arena that holds from one to many of the longest requests; chunks, batches, threads and the cache's
 * settings by chance. */
static void open_warm(struct run *r)
{
    static const uint32_t rooms[] = {10, 12, 15, 22, 45, 150}, more_rows[] = {0, 0, 9, 40, 150};
    uint32_t step_us =
        chance(60) ? 1 + rnd(chance(50) ? 300 : 20000) : 0; /* from one row a step to all that is there */
    uint32_t chunk = chance(40) ? 1 + rnd(90) : 0, layers = rnd(4),
             features = chance(40) ? 1 + rnd(60000) : 0, off = chance(6);
    struct sched_options opt = {
        .queue_max = 2 * PER_INSTANCE,
        .step_us = step_us,
        .prefill_chunk = chunk,
        .encode_layers = layers,
        .clock = virtual_clock,
        .clock_arg = r,
        .no_prefix_cache = r->o->no_cache || (off && !has_bug(r->o)),
        .features_bytes = r->o->drop_size ? 1 : features}; /* 1: the prefix cache alone shall give it away */
    opt.hash_seed = rnd(1000);
    r->draft_accepted = rnd(101);
    if (chance(50) && !has_bug(r->o)) {
        opt.propose = propose_drafts;
        opt.propose_arg = r;
        opt.draft_max = 1 + rnd(7);
        opt.draft_always = true;
        r->ngram = chance(50);
    } else if (chance(30) && !has_bug(r->o)) {
        opt.draft_max = 1 + rnd(7); /* as the server has it; the rest goes without draft tokens */
        opt.draft_always = r->instance % 2 == 0;
        r->ngram = true;
    }
    r->drafter = strstr(r->model, "/gemma4-mtp/") && !has_bug(r->o) && chance(60);
    if (r->drafter) {
        opt.propose = chance(20) ? propose_drafts : NULL; /* in the drafter's place */
        opt.propose_arg = r;
        opt.draft_max = 1 + rnd(7);
        opt.draft_always = chance(70);
        r->ngram = false;
    }
    if (chance(50) && !has_bug(r->o)) {
        static const uint64_t sizes[] = {200u << 10, 2u << 20, 64u << 20};
        snprintf(r->dir, sizeof r->dir, "%s", "/tmp/kvasir-fuzz-XXXXXX");
        r->disk = (struct cache_store_options){
            .dir = mkdtemp(r->dir), .bytes_max = sizes[rnd(3)], .work = disk_work, .work_arg = r};
        assert_non_null(r->disk.dir);
        opt.load_always = true;
        memset(mirror, 0, sizeof mirror);
        opt.event_sink = (struct kv_event_sink){.block_tokens = r->caps.block_tokens,
                                                .arg = r,
                                                .stored = on_stored,
                                                .removed = on_removed,
                                                .resync = on_resync};
        opt.host_bytes = chance(50) ? 1 + rnd(300000) : 0;
    }
    uint32_t sequences = chance(20) ? 2 : 3 + rnd(12), threads = 1 + chance(15);
    uint32_t rows =
        r->caps.span_tokens_max + sequences + more_rows[rnd(5)] + (r->caps.span_tokens_max ? 0 : rnd(30));
    r->cache = !opt.no_prefix_cache;
    for (uint64_t room = rooms[rnd(6)];; room += 2) {
        struct err err;
        r->warm = open_engine(r, kv_bytes_of(&r->caps, r->length_max + ANSWER_MAX) * room / 10, rows,
                              sequences, threads);
        opt.disk = r->disk.dir ? &r->disk : NULL;
        r->opt = opt;
        enum status st = sched_create(r->warm, &opt, &r->s, &err);
        if (st && room > 1000) fail_msg("%s", err.msg); /* else the arena may be too small for any */
        if (!st && sched_context_max(r->s) >= r->length_max + ANSWER_MAX) break;
        if (!st) sched_destroy(r->s);
        engine_close(r->warm);
    }
    engine_caps(r->warm, &r->caps);
}

static void open_adapters(struct run *r)
{
    static const struct {
        const char *name;
        uint32_t rank, seed;
        bool tower;
    } made[ADAPTERS] = {{"a", 3, 1, false}, {"b", 3, 1, false}, {"c", 8, 2, true}};
    char top[] = "/tmp/kvasir-lora-XXXXXX", dir[64];
    struct err err;
    if (r->o->no_adapters || has_bug(r->o)) return;
    assert_non_null(mkdtemp(top));
    for (uint32_t i = 0; i < ADAPTERS; i++) {
        snprintf(dir, sizeof dir, "%s/%s", top, made[i].name);
        if (!lora_write(r->model, dir, made[i].rank, made[i].seed, made[i].tower)) break;
        if (adapter_open(r->cold, dir, &r->cold_adapters[i], &err) ||
            adapter_open(r->warm, dir, &r->warm_adapters[i], &err))
            fail_msg("%s: %s", r->model, err.msg);
    }
    nftw(top, remove_file, 8, FTW_DEPTH | FTW_PHYS);
}

static void add_totals(struct totals *to, const struct totals *from)
{
    for (size_t i = 0; i < offsetof(struct totals, seconds) / sizeof(uint64_t); i++)
        ((uint64_t *)(void *)to)[i] += ((const uint64_t *)(const void *)from)[i];
    to->seconds += from->seconds;
}

static void run_instance(const struct fuzz_options *o, const char *model, const char *kernels,
                         uint32_t instance, struct totals *sum)
{
    static const uint32_t lengths[] = {70, 130, 200, 330, LENGTH_MAX}, images[] = {15, 40, 60},
                          rates[] = {5, 30, 70, 95}, talks[] = {10, 30, 80};
    static struct run run;
    struct run *r = &run;
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    *r = (struct run){.o = o, .model = model, .kernels = kernels, .instance = instance};
    rng_state = mix(o->seed * 1000003u + instance);
    r->dtype = chance(75) ? "auto" : chance(50) ? "f32" : "bf16";
    static const char *const quantized[] = {"none", "int8", "int4"};
    static const char *const kept[] = {"auto", "int8"};
    r->quantize = o->quantize ? o->quantize : quantized[instance % 3];
    r->kv_dtype = o->kv_dtype ? o->kv_dtype : kept[instance / 3 % 2];
    r->cold = open_engine(r, 16u << 20, 512, 1, 1);
    engine_caps(r->cold, &r->caps);
    r->info = engine_model(r->cold);
    r->length_max = lengths[rnd(5)];
    r->image_percent = images[rnd(3)];
    r->rate = rates[rnd(4)];
    r->flight_max = 1 + rnd(FLIGHT_MAX);
    r->salts = chance(30) ? 3 : 1;
    r->tenants = r->instance % 2 ? 3 : 50; /* fewer and more than run at a time: both preempt */
    r->talkative = talks[rnd(3)];
    bool shapes = r->info->image.config.dynamic;
    r->cut = r->info->image.present && shapes && r->info->image.rule == SPAN_CAUSAL;
    if (r->info->image.present) {
        (shapes ? make_grid_images : make_fixed_images)(r->info, r->pool);
        r->images = shapes ? IMAGES : 2 * CONTENTS_FIXED;
    }
    open_warm(r);
    open_adapters(r);
    r->root_count = 1 + rnd(3);
    for (uint32_t i = 0; i < r->root_count; i++) {
        if (chance(20)) add_image(r, &r->roots[i], rnd(r->images ? r->images : IMAGES));
        add_text(r, &r->roots[i], 1 + rnd(min_u32(60, r->length_max / 2)));
    }
    r->requests = calloc(PER_INSTANCE + 8, sizeof *r->requests);
    run_requests(r);
    close_requests(r);
    sched_destroy(r->s);
    if (r->disk.dir) nftw(r->dir, remove_file, 8, FTW_DEPTH | FTW_PHYS);
    for (uint32_t i = 0; i < ADAPTERS; i++) {
        adapter_free(r->cold, r->cold_adapters[i]);
        adapter_free(r->warm, r->warm_adapters[i]);
    }
    engine_close(r->warm);
    engine_close(r->cold);
    for (uint32_t i = 0; i < r->request_count; i++) {
        free(r->requests[i].got.scores);
        ngram_draft_fini(&r->requests[i].ngram);
    }
    for (uint32_t i = 0; i < r->spec_count; i++) {
        free(r->specs[i]->cold.scores);
        free(r->specs[i]);
    }
    for (uint32_t i = 0; i < r->images; i++) image_free(&r->pool[i]);
    free(r->requests);
    clock_gettime(CLOCK_MONOTONIC, &b);
    r->t.seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    add_totals(sum, &r->t);
}

/* ---- all checkpoints ---- */
static char models[MODELS_MAX][600];

static bool there(const char *dir, const char *file)
{
    char path[1300];
    struct stat st;
    snprintf(path, sizeof path, "%.900s/%s", dir, file);
    return stat(path, &st) == 0;
}

/* The golden checkpoints of a family and its demo model: every `stride`-th entry of `models` from `first` on.
 * Returns how many.
 */
static uint32_t list_family(const char *family, const char *demo, uint32_t first, uint32_t stride)
{
    char names[MODELS_MAX / FAMILIES][64], golden[600], *to = NULL;
    uint32_t n = 0;
    snprintf(golden, sizeof golden, "%s/tests/golden", golden_root());
    uint32_t count = there(golden, family) ? golden_variants(family, names, MODELS_MAX / FAMILIES - 1) : 0;
    for (uint32_t i = 0; i < count; i++)
        golden_dir(models[first + stride * n++], sizeof models[0], family, names[i]);
    if (!demo) return n;
    to = models[first + stride * n];
    snprintf(to, sizeof models[0], "%s/models/%s", golden_root(), demo);
    return there(to, "model.safetensors") ? n + 1 : n;
}

/* The families in turns, so that a short run meets all. */
static uint32_t find_models(const struct fuzz_options *o)
{
    static const char *const families[FAMILIES] = {"gemma3", "qwen",       "paligemma", "gemma4",
                                                   "gemma",  "gemma4-mtp", "native",    "tiles"};
    static const char *const demos[FAMILIES] = {"demo", "demo-qwen3-vl", "none", "none",
                                                "none", "none",          "none", "none"};
    uint32_t n[FAMILIES], all = 0;
    if (o->model) {
        snprintf(models[0], sizeof models[0], "%s", o->model);
        return 1;
    }
    for (uint32_t f = 0; f < FAMILIES; f++)
        if (o->family && strcmp(o->family, families[f]) == 0) return list_family(families[f], demos[f], 0, 1);
    for (uint32_t f = 0; f < FAMILIES; f++) n[f] = list_family(families[f], demos[f], f, FAMILIES);
    for (uint32_t i = 0; i < MODELS_MAX; i++) {
        if (i / FAMILIES >= n[i % FAMILIES]) continue;
        if (all != i) memcpy(models[all], models[i], sizeof models[0]);
        all++;
    }
    return all;
}

static uint32_t find_sets(const struct fuzz_options *o, const char *sets[5])
{
    static const char *const all[] = {"amx", "avx512", "avx2", "neon", "reference"};
    uint32_t n = 0;
    for (uint32_t i = 0; i < 4; i++)
        if (be_cpu_has(all[i]) && (!o->kernels || strcmp(o->kernels, all[i]) == 0)) sets[n++] = all[i];
    if (n == 0) fail_msg("this CPU has no kernel set %s", o->kernels);
    return n;
}

/* Every checkpoint meets every set; the reference, by far the slowest, half as often. */
static const char *set_of(uint32_t round, const char *sets[5], uint32_t n)
{
    uint32_t k = round % (2 * n - 1);
    return sets[k < n - 1 ? k : k - (n - 1)];
}

static const char *short_name(const char *dir)
{
    const char *slash = strrchr(dir, '/');
    return slash ? slash + 1 : dir;
}

static void print_row(const char *name, const struct totals *t)
{
    double n = t->requests ? (double)t->requests : 1;
    printf("%-19s %8llu %6.1f%% %10llu %10llu %8llu %9llu %9llu %8llu %8llu %7llu %7llu %8llu %7.1f\n", name,
           (unsigned long long)t->requests, 100 * (double)t->hits / n, (unsigned long long)t->prompt_tokens,
           (unsigned long long)t->hit_tokens, (unsigned long long)t->partial,
           (unsigned long long)t->evictions, (unsigned long long)t->evicted_blocks,
           (unsigned long long)t->preemptions, (unsigned long long)t->images_reused,
           (unsigned long long)t->inside, (unsigned long long)t->feature_hits,
           (unsigned long long)(t->cancelled + t->expired + t->refused), t->seconds);
}

/* The cache must have taken part, in every way, or the comparison shows nothing. */
static void check_not_vacuous(const char *name, const struct totals *t)
{
    if (t->requests < 1000) return;
    /* Only an equal prompt hits a prefix-LM, and only a saved state with recurrent layers. */
    bool few = t->whole * 2 > t->requests || t->stops[CACHE_STOP_STATE] * 4 > t->requests;
    uint32_t least = few ? 15 : 30;
    if (t->hits * 100 < t->cacheable * least)
        fail_msg("%s: only %llu of %llu requests hit", name, (unsigned long long)t->hits,
                 (unsigned long long)t->cacheable);
    if (t->hit_tokens * 100 < t->prompt_tokens * 15)
        fail_msg("%s: only %llu tokens were reused", name, (unsigned long long)t->hit_tokens);
    if (t->partial * 100 < t->requests * 15)
        fail_msg("%s: only %llu hits end inside a block", name, (unsigned long long)t->partial);
    /* What follows depends on an instance's settings (half have a disk, some of those never fill), not on its
     * requests: a few instances may miss some of it. */
    if (t->instances < 24) return;
    if (!t->evictions || !t->evicted_blocks || !t->preemptions || !t->cancelled || !t->expired)
        fail_msg("%s: no evictions, preemptions or cancels", name);
    if (!t->constrained || !t->masks_late || !t->masks_failed) fail_msg("%s: no masks came late", name);
    if (!t->accepted || t->drafted == t->accepted) fail_msg("%s: no draft tokens of both kinds", name);
    if (!t->loads || !t->loads_failed || !t->restarts || !t->written || !t->announced)
        fail_msg("%s: nothing came from the disk, or nothing was damaged", name);
    if (t->adapted * 10 < t->requests || !t->adapted_hits) fail_msg("%s: no adapters", name);
    if (t->grids >= 500 && !t->inside) fail_msg("%s: no hit ends inside an image", name);
    if (t->images &&
        (!t->images_reused || !t->image_loads || !t->feature_hits || !t->images_asked || !t->refused))
        fail_msg("%s: no image was reused", name);
}

/* Runs o->requests requests, or until a bug that was put in shows itself. Returns the differences; *last: the
 * instance that ran last. */
static uint64_t fuzz(const struct fuzz_options *o, bool print, uint32_t *last)
{
    static struct totals by_model[MODELS_MAX];
    struct totals all = {0};
    const char *sets[5];
    uint32_t n = find_models(o), set_count = find_sets(o, sets),
             instances = (o->requests + PER_INSTANCE - 1) / PER_INSTANCE;
    memset(by_model, 0, sizeof by_model);
    for (uint32_t i = 0; i < instances || o->instance >= 0; i++) {
        if (o->instance >= 0) i = (uint32_t)o->instance;
        *last = i;
        run_instance(o, models[i % n], set_of(i / n + i % n, sets, set_count), i, &by_model[i % n]);
        if (print && i % 50 == 49) {
            printf("%u of %u instances\n", i + 1, instances);
            fflush(stdout);
        }
        if (o->instance >= 0 || (has_bug(o) && by_model[i % n].differences)) break;
    }
    if (print)
        printf("%-19s %8s %7s %10s %10s %8s %9s %9s %8s %8s %7s %7s %8s %7s\n", "checkpoint", "requests",
               "hits", "prompt tok", "hit tok", "partial", "evictions", "ev.blocks", "preempt", "images",
               "inside", "feat.", "cut off", "seconds");
    for (uint32_t i = 0; i < n; i++) {
        if (print && by_model[i].instances) print_row(short_name(models[i]), &by_model[i]);
        add_totals(&all, &by_model[i]);
    }
    if (print) {
        print_row("all", &all);
        printf("images: reused with their KV; inside: hits that end in one; feat.: encoded once, used "
               "again. %u kernel sets, "
               "seed %llu. Where reuse ended:",
               set_count, (unsigned long long)o->seed);
        for (uint32_t i = 0; i <= CACHE_STOP_DISABLED; i++) printf(" %llu", (unsigned long long)all.stops[i]);
        printf("\n%llu restarts; %llu loads of %llu tokens, %llu given up, %llu of images; %llu blocks "
               "written, %llu announced",
               (unsigned long long)all.restarts, (unsigned long long)all.loads,
               (unsigned long long)all.loaded_tokens, (unsigned long long)all.loads_failed,
               (unsigned long long)all.image_loads, (unsigned long long)all.written,
               (unsigned long long)all.announced);
        printf("\n%llu with an adapter, of which %llu hits", (unsigned long long)all.adapted,
               (unsigned long long)all.adapted_hits);
        printf("\n%llu given; %llu constrained, %llu masks late, %llu failed; %llu tokens drafted, %llu "
               "rightly; %llu of "
               "them "
               "by lookup\n%llu differences\n",
               (unsigned long long)all.given, (unsigned long long)all.constrained,
               (unsigned long long)all.masks_late, (unsigned long long)all.masks_failed,
               (unsigned long long)all.drafted, (unsigned long long)all.accepted,
               (unsigned long long)all.looked_up, (unsigned long long)all.differences);
        fflush(stdout);
    }
    if (!o->no_cache && o->instance < 0 && !has_bug(o) && !all.differences) {
        for (uint32_t i = 0; i < n; i++) check_not_vacuous(models[i], &by_model[i]);
        check_not_vacuous("all checkpoints", &all);
    }
    return all.differences;
}

/* ---- known bugs, put in on purpose ---- */
static const struct bug {
    const char *name, *family; /* where it can show itself; NULL = anywhere */
    bool drop_size, drop_end;
} bugs[] = {{"image-key", "gemma3", true, false}, {"whole-key", "paligemma", false, true}};

static void put_in(struct fuzz_options *o, const char *name)
{
    const struct bug *b = bugs;
    for (size_t k = 0; strcmp(b->name, name) != 0; k++, b++)
        if (k + 1 == sizeof bugs / sizeof bugs[0]) fail_msg("no bug \"%s\"", name);
    o->family = b->family;
    o->drop_size = b->drop_size;
    o->drop_end = b->drop_end;
}

/* Shared with the child that looks: known also when the bug kills it. */
struct finding {
    uint64_t differences;
    uint32_t instance;
};

/* In a process of its own, because a bug may as well make the scheduler or the engine abort or read where
 * nothing is. */
static void fuzz_apart(const struct fuzz_options *o, struct finding *f, int *status)
{
    struct finding *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        shared->differences = fuzz(o, false, &shared->instance);
        fflush(NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(child, status, 0), child);
    *f = *shared;
    munmap(shared, sizeof *shared);
}

/* The bug shows itself within o.requests requests; the same requests without it are equal. family: NULL =
 * where the table says. */
static void check_bug_of(const char *name, const char *family)
{
    struct finding f;
    int status = 0;
    const char *brief = getenv("KVASIR_TEST_SHORT");
    if (brief && strcmp(brief, "2") == 0) skip(); /* a sanitizer has nothing to say about planted bugs */
    struct fuzz_options o = {.requests = 60 * PER_INSTANCE, .seed = 7, .instance = -1};
    put_in(&o, name);
    if (family) o.family = family;
    fuzz_apart(&o, &f, &status);
    bool died = WIFSIGNALED(status);
    if (!died && (!WIFEXITED(status) || WEXITSTATUS(status)))
        fail_msg("the run with the bug \"%s\" ended with status %d", name, status);
    if (!died && !f.differences) fail_msg("the bug \"%s\" was not found in %u requests", name, o.requests);
    printf("bug \"%s\": %s in instance %u, after at most %u requests\n", name,
           died ? "killed the process" : "answers differ", f.instance, (f.instance + 1) * PER_INSTANCE);
    o.drop_size = o.drop_end = false;
    o.instance = f.instance;
    fuzz_apart(&o, &f, &status);
    assert_int_equal(status, 0);
    assert_int_equal(f.differences, 0);
}

static void check_bug(const char *name)
{
    check_bug_of(name, NULL);
}

static void test_finds_image_key_without_size(void **state)
{
    (void)state;
    check_bug("image-key");
    check_bug_of("image-key", "gemma4");
}
static void test_finds_whole_key_without_end(void **state)
{
    (void)state;
    check_bug("whole-key");
}

static void test_cold_equals_warm(void **state)
{
    uint32_t last;
    struct fuzz_options o = {.requests =
                                 getenv("KVASIR_TEST_SHORT") ? FAMILIES * PER_INSTANCE : 60 * PER_INSTANCE,
                             .seed = 1,
                             .instance = -1};
    (void)state;
    assert_int_equal(fuzz(&o, true, &last), 0);
}

static struct fuzz_options by_hand = {.requests = 1000, .seed = 1, .instance = -1};

static void test_by_hand(void **state)
{
    uint32_t last;
    (void)state;
    assert_int_equal(fuzz(&by_hand, true, &last), 0);
}

static bool read_arguments(int argc, char **argv, struct fuzz_options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(a, "--no-cache") == 0) {
            o->no_cache = true;
            continue;
        }
        if (strcmp(a, "--no-adapters") == 0) {
            o->no_adapters = true;
            continue;
        }
        if (strcmp(a, "--first-difference") == 0) {
            o->first = true;
            continue;
        }
        i++;
        if (strcmp(a, "--requests") == 0) o->requests = (uint32_t)strtoul(v, NULL, 10);
        else if (strcmp(a, "--seed") == 0) o->seed = strtoull(v, NULL, 10);
        else if (strcmp(a, "--model") == 0) o->model = v;
        else if (strcmp(a, "--kernels") == 0) o->kernels = v;
        else if (strcmp(a, "--quantize") == 0) o->quantize = v;
        else if (strcmp(a, "--kv-dtype") == 0) o->kv_dtype = v;
        else if (strcmp(a, "--instance") == 0) o->instance = (int64_t)strtoul(v, NULL, 10);
        else if (strcmp(a, "--family") == 0) o->family = v;
        else if (strcmp(a, "--bug") == 0) put_in(o, v);
        else {
            fprintf(stderr, "unknown argument %s: see the top of the source\n", a);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cold_equals_warm),
        cmocka_unit_test(test_finds_image_key_without_size),
        cmocka_unit_test(test_finds_whole_key_without_end),
    };
    const struct CMUnitTest by_hand_only[] = {cmocka_unit_test(test_by_hand)};
    if (argc > 1 && !read_arguments(argc, argv, &by_hand)) return 2;
    if (argc > 1) return cmocka_run_group_tests_name("fuzz_cache", by_hand_only, NULL, NULL);
    return cmocka_run_group_tests_name("fuzz_cache", tests, NULL, NULL);
}
