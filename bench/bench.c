/* `kvasir bench`: measures the machine's (CPU's or GPU's) ceilings (matrix peak, read bandwidth), then
 * prefill and decode of a checkpoint or of random weights of a named shape, each as tokens/s and as a share
 * of the ceiling that binds it. No HTTP, no scheduler: steps go straight to the engine. */
#include "bench/bench.h"

#include "config/base/clock.h"
#include "config/options.h"
#include "engine/engine.h"
#include "engine/model/model_info.h"
#include "bench/profile.h"
#include "bench/shapes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DECODE_STEPS = 24, IMAGE_TOKENS = 4096, BATCH_MAX = OPTION_BATCH_MAX };

void bench_usage(void)
{
    puts("usage: kvasir bench (MODEL | --model MODEL | --shape NAME) [flags]\n");
    options_help(OPTIONS_BENCH, stdout);
    fputs("\nThe ceilings are measured on this machine with products of the compute type. Products of 8-bit\n"
          "weights (--quantize, quantized checkpoints) are faster than those: they can exceed 100 %. So can\n"
          "the read bandwidth of weights that fit into the CPU's caches.\n"
          "\nShapes:",
          stdout);
    for (size_t i = 0; bench_shape_name(i); i++) printf("%s %s", i % 6 ? "" : "\n ", bench_shape_name(i));
    puts("\n  NAME/N: its first N layers only");
}

bool bench_failed(const struct err *err)
{
    fprintf(stderr, "kvasir bench: %s\n", err->msg);
    return false;
}

static void remove_shape(const char *dir)
{
    char path[96];
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    rmdir(dir);
}

/* A directory with only a config.json; the engine generates random weights. write false: none is written, and
 * dir stays empty. */
static bool write_config(const char *shape, bool (*write)(const char *, FILE *), char dir[64])
{
    char path[96];
    strcpy(dir, "/tmp/kvasir-bench-XXXXXX");
    FILE *f =
        mkdtemp(dir) && snprintf(path, sizeof path, "%s/config.json", dir) > 0 ? fopen(path, "w") : NULL;
    bool known = f && write(shape, f);
    if (!f || fclose(f)) {
        fprintf(stderr, "kvasir bench: can't write in /tmp: %s\n", strerror(errno));
        exit(1);
    }
    if (known) return true;
    remove_shape(dir);
    dir[0] = '\0';
    return false;
}

/* Sequences with trivially assigned blocks: sequence i of `count` owns an equal share of the arena. */
struct bench_seqs {
    struct engine_chunk chunks[BATCH_MAX];
    uint32_t *tokens[BATCH_MAX];
    uint32_t *tables[BATCH_MAX][ENGINE_GROUPS_MAX];
    uint32_t count, length; /* capacity of each in tokens */
};

static void seqs_free(struct bench_seqs *q)
{
    for (uint32_t i = 0; i < q->count; i++) {
        free(q->tokens[i]);
        for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) free(q->tables[i][g]);
    }
    memset(q, 0, sizeof *q);
}

static bool seqs_init(struct bench_seqs *q, const struct engine_caps *caps, uint32_t count, uint32_t length,
                      const struct sampling_params *sp)
{
    memset(q, 0, sizeof *q);
    q->length = length;
    uint64_t next = 0;
    uint32_t blocks = (length + caps->block_tokens - 1) / caps->block_tokens, seed = 12345;
    for (uint32_t i = 0; i < count; i++) {
        q->count = i + 1;
        q->tokens[i] = malloc((size_t)length * sizeof(uint32_t));
        if (!q->tokens[i]) return false;
        for (uint32_t j = 0; j < length; j++) {
            seed = seed * 1664525u + 1013904223u;
            q->tokens[i][j] = (seed >> 8) % (caps->vocab_size < 250000 ? caps->vocab_size : 250000);
        }
        q->chunks[i] = (struct engine_chunk){.tokens = q->tokens[i],
                                             .token_count = length,
                                             .prompt_count = length,
                                             .sampling = sp,
                                             .sample = true,
                                             .score_first = UINT32_MAX};
        for (uint32_t g = 0; g < caps->group_count; g++) {
            if (caps->groups[g].recurrent) {
                q->chunks[i].state_from = q->chunks[i].state_to = (uint32_t)next;
                next += caps->groups[g].block_grains;
                continue;
            }
            uint32_t *t = q->tables[i][g] = malloc(blocks * sizeof(uint32_t));
            if (!t) return false;
            for (uint32_t b = 0; b < blocks; b++, next += caps->groups[g].block_grains) t[b] = (uint32_t)next;
            q->chunks[i].tables[g] = t;
        }
    }
    if (next > caps->arena_grains) {
        fprintf(stderr, "kvasir bench: the KV arena is too small for %u sequences of %u tokens\n", count,
                length);
        return false;
    }
    return true;
}

static bool step(struct engine *e, struct bench_seqs *q)
{
    struct engine_batch b = {.chunks = q->chunks, .chunk_count = q->count};
    struct err err = {{0}};
    return (!engine_submit(e, &b, &err) && !engine_wait(e, &b, &err)) || bench_failed(&err);
}

/* Feeds [from, to) of every sequence in chunks that fit a step. */
static bool feed(struct engine *e, const struct engine_caps *caps, struct bench_seqs *q, uint32_t from,
                 uint32_t to)
{
    uint32_t room = caps->batch_tokens_max / q->count;
    for (uint32_t p = from; p < to;) {
        uint32_t n = to - p < room ? to - p : room;
        for (uint32_t i = 0; i < q->count; i++) {
            q->chunks[i].position = p;
            q->chunks[i].count = n;
            q->chunks[i].sample = p + n == to;
        }
        if (!step(e, q)) return false;
        p += n;
    }
    return true;
}

/* Visible (query, key) pairs of queries [from, to), for a window (0 = full). */
static double pairs(uint32_t from, uint32_t to, uint32_t window)
{
    double n = 0;
    for (uint32_t p = from; p < to; p++) n += window && p + 1 > window ? window : p + 1;
    return n;
}

/* Queries [from, to), with logits for the last. */
static double attention_flops(const struct engine_costs *c, uint32_t from, uint32_t to)
{
    double f = 0;
    for (uint32_t g = 0; g < c->group_count; g++)
        f += c->groups[g].flops_per_pair * pairs(from, to, c->groups[g].window) -
             c->groups[g].out_flops_per_pair * pairs(from, to - 1, c->groups[g].window);
    return f;
}

/* Bytes of weights that a step of so many rows reads: for experts, the expected number chosen by at least one
 * row. */
static double weight_bytes(const struct engine_costs *c, uint32_t rows)
{
    double missed = 1;
    if (c->experts == 0) return c->weight_bytes;
    for (uint32_t i = 0; i < rows; i++) missed *= 1 - (double)c->experts_used / c->experts;
    return c->weight_bytes + c->expert_bytes * (1 - missed);
}

static double attention_bytes(const struct engine_costs *c, uint32_t from, uint32_t to)
{
    double b = 0;
    for (uint32_t g = 0; g < c->group_count; g++)
        b += c->groups[g].bytes_per_key * pairs(from, to, c->groups[g].window);
    return b;
}

struct result {
    char name[32];
    double tokens_s, seconds, flops_share, read_share; /* seconds: of the best pass */
    double wall;                                       /* of everything measured */
    uint32_t passes;
};

static void lap(struct result *r, double begun, uint32_t passes)
{
    double t = now_s() - begun;
    r->wall += t;
    r->passes += passes;
    if (r->seconds == 0 || t / passes < r->seconds) r->seconds = t / passes;
}

/* count: what a pass made of; flops, bytes: what it took. */
static void rate(struct result *r, const struct engine_costs *c, double count, double flops, double bytes)
{
    r->tokens_s = count / r->seconds;
    r->flops_share = flops / r->seconds / c->matrix_flops;
    r->read_share = bytes / r->seconds / c->read_bytes_per_s;
}

static bool profile_start(struct engine *e, const struct options *o)
{
    struct err err = {{0}};
    return !o->profile || !engine_profile_start(e, &err) || bench_failed(&err);
}

static bool bench_prefill(struct engine *e, const struct engine_caps *caps, const struct engine_costs *c,
                          const struct options *o, uint32_t n, const struct sampling_params *sp,
                          struct result *r)
{
    struct bench_seqs q;
    *r = (struct result){.passes = 0};
    snprintf(r->name, sizeof r->name, "prefill %u", n);
    bool ok = seqs_init(&q, caps, 1, n, sp) && feed(e, caps, &q, 0, n) && profile_start(e, o);
    for (uint32_t i = 0; ok && i < o->repeats; i++) {
        double t = now_s();
        ok = feed(e, caps, &q, 0, n);
        lap(r, t, 1);
    }
    seqs_free(&q);
    double flops = (c->linear_flops_per_token + c->state_flops_per_token) * n -
                   c->out_flops_per_token * (n - 1) + c->head_flops_per_row + attention_flops(c, 0, n);
    rate(r, c, n, flops, weight_bytes(c, n));
    return ok;
}

static bool bench_decode(struct engine *e, const struct engine_caps *caps, const struct engine_costs *c,
                         const struct options *o, uint32_t batch, const struct sampling_params *sp,
                         struct result *r)
{
    struct bench_seqs q;
    *r = (struct result){.passes = 0};
    snprintf(r->name, sizeof r->name, "decode batch %u", batch);
    uint32_t ctx = (uint32_t)o->context, length = ctx + DECODE_STEPS + 1;
    bool ok = seqs_init(&q, caps, batch, length, sp) && feed(e, caps, &q, 0, ctx) && profile_start(e, o);
    for (uint32_t i = 0; ok && i < o->repeats; i++) {
        double t = now_s();
        for (uint32_t s = 0; ok && s < DECODE_STEPS; s++) ok = feed(e, caps, &q, ctx + s, ctx + s + 1);
        lap(r, t, DECODE_STEPS);
    }
    seqs_free(&q);
    double flops = batch * (c->linear_flops_per_token + c->state_flops_per_token + c->head_flops_per_row +
                            attention_flops(c, ctx, ctx + 1));
    double bytes = weight_bytes(c, batch) + batch * (c->state_bytes + attention_bytes(c, ctx, ctx + 1));
    rate(r, c, batch, flops, bytes);
    return ok;
}

static bool bench_vision(struct engine *e, const struct engine_costs *c, const struct options *o,
                         struct result *r)
{
    uint32_t side = c->vision_side;
    struct image_u8 img = {.width = side, .height = side, .rgb = calloc((size_t)side * side, 3)};
    *r = (struct result){.passes = 0};
    snprintf(r->name, sizeof r->name, "images of %ux%u", side, side);
    bool ok = img.rgb != NULL && profile_start(e, o);
    for (uint32_t i = 0; ok && i < o->repeats; i++) {
        struct engine_features *f;
        struct err err = {{0}};
        bool done = false;
        double t = now_s();
        ok = engine_features_create(e, &img, NULL, &f, &err) == ST_OK;
        if (!ok) break;
        while (ok && !done) ok = engine_features_step(e, f, 0, &done, &err) == ST_OK;
        lap(r, t, 1);
        engine_features_free(e, f);
    }
    free(img.rgb);
    rate(r, c, 1, c->vision_flops, 0);
    return ok;
}

static void print_result(const struct engine *e, const struct engine_costs *c, const struct result *r,
                         const struct options *o, bool first)
{
    bool json = o->json;
    if (json)
        printf("%s{\"name\":\"%s\",\"per_s\":%.4g,\"seconds\":%.6g,\"matrix_share\":%.4f,\"read_share\":%.4f",
               first ? "" : ",", r->name, r->tokens_s, r->seconds, r->flops_share, r->read_share);
    else
        printf("%-20s %10.1f /s   %9.3f ms   %5.1f %% of %s matrix peak   %5.1f %% of read bandwidth\n",
               r->name, r->tokens_s, r->seconds * 1e3, r->flops_share * 100, engine_model(e)->dtype,
               r->read_share * 100);
    if (o->profile) {
        struct engine_profile_part parts[ENGINE_PROFILE_PARTS];
        engine_profile_read(e, parts);
        bench_profile_print(parts, r->wall, r->passes, c, json);
    }
    if (json) printf("}");
    fflush(stdout);
}

static bool print_drafts(struct engine *e, const struct options *o, const struct sampling_params *sp,
                         bool first)
{
    for (uint32_t i = 0; i < o->draft.count; i++)
        for (uint32_t k = 0; k < o->decode.count; k++, first = false) {
            struct bench_drafts r;
            if (!bench_drafts(e, o->decode.at[k], (uint32_t)o->context, o->draft.at[i], (uint32_t)o->repeats,
                              sp, &r))
                return false;
            double ratio = r.tokens_s / r.plain_tokens_s;
            if (o->json)
                printf("%s{\"name\":\"draft %u batch %u\",\"per_s\":%.4g,\"undrafted_per_s\":%.4g,"
                       "\"ratio\":%.4f,\"tokens_per_step\":%.3f}",
                       first ? "" : ",", o->draft.at[i], o->decode.at[k], r.tokens_s, r.plain_tokens_s, ratio,
                       r.tokens_per_step);
            else
                printf(
                    "draft %3u %%, batch %-3u %9.1f /s   %.3fx of %.1f /s undrafted   %.2f tokens a step and "
                    "sequence\n",
                    o->draft.at[i], o->decode.at[k], r.tokens_s, ratio, r.plain_tokens_s, r.tokens_per_step);
            fflush(stdout);
        }
    return true;
}

static int measure(struct engine *e, const struct options *o)
{
    struct engine_caps caps;
    struct engine_costs c;
    struct err err = {{0}};
    const struct model_info *m = engine_model(e);
    engine_caps(e, &caps);
    if (engine_costs(e, &c, &err)) return bench_failed(&err), 1;
    const struct sampling_params greedy = {.top_p = 1,
                                           .repetition_penalty = 1,
                                           .logprobs = SAMPLING_NO_LOGPROBS,
                                           .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    char threads[32] = ""; /* not reported for a GPU */
    if (c.threads) snprintf(threads, sizeof threads, "%u threads, ", c.threads);
    if (o->json)
        printf("{\"model\":\"%s\",\"kernels\":\"%s\",\"threads\":%u,\"dtype\":\"%s\",\"weights\":\"%s\","
               "\"kv\":\"%s\",\"matrix_tflops\":%.4f,"
               "\"read_gb_s\":%.3f,\"weight_bytes\":%.0f,\"results\":[",
               o->shape ? o->shape : o->model, m->backend, c.threads, m->dtype, m->weights, m->kv_dtype,
               c.matrix_flops * 1e-12, c.read_bytes_per_s * 1e-9, weight_bytes(&c, 1));
    else
        printf("%s, %s, %s%s, weights %s, KV %s\nceilings: matrix %.3f TFLOP/s, read %.2f GB/s; weights read "
               "for "
               "one token: "
               "%.0f MB\n",
               o->shape ? o->shape : o->model, m->backend, threads, m->dtype, m->weights, m->kv_dtype,
               c.matrix_flops * 1e-12, c.read_bytes_per_s * 1e-9, weight_bytes(&c, 1) * 1e-6);
    bool ok = true, first = true;
    struct result r;
    for (uint32_t i = 0; ok && i < o->prefill.count; i++, first = false)
        if ((ok = bench_prefill(e, &caps, &c, o, o->prefill.at[i], &greedy, &r)))
            print_result(e, &c, &r, o, first);
    for (uint32_t i = 0; ok && i < o->decode.count; i++, first = false)
        if ((ok = bench_decode(e, &caps, &c, o, o->decode.at[i], &greedy, &r)))
            print_result(e, &c, &r, o, first);
    if (ok && o->vision && c.vision_flops > 0 && (ok = bench_vision(e, &c, o, &r)))
        print_result(e, &c, &r, o, first);
    if (ok) ok = print_drafts(e, o, &greedy, first);
    if (o->json) printf("]}\n");
    return ok ? 0 : 1;
}

int bench_run(const struct options *o, const char *dir)
{
    char shape[64] = "", drafter[64] = "";
    if (o->shape && !write_config(o->shape, bench_shape_write, shape)) {
        fprintf(stderr, "kvasir bench: unknown shape \"%s\" (see kvasir bench --help)\n", o->shape);
        return 2;
    }
    bool drafts = o->draft.count > 0;
    if (o->shape && drafts && !o->draft_model) (void)write_config(o->shape, bench_drafter_write, drafter);
    uint32_t longest = (uint32_t)o->context + (drafts ? BENCH_DRAFT_TOKENS : DECODE_STEPS) + 32, batch = 1;
    for (uint32_t i = 0; i < o->decode.count; i++) batch = o->decode.at[i] > batch ? o->decode.at[i] : batch;
    for (uint32_t i = 0; i < o->prefill.count; i++)
        longest = o->prefill.at[i] > longest ? o->prefill.at[i] : longest;
    if (o->vision && longest < IMAGE_TOKENS) longest = IMAGE_TOKENS;
    struct engine_options opt = engine_options_from(o, o->shape ? shape : dir);
    opt.draft_dir = !drafts ? NULL : drafter[0] ? drafter : o->draft_model;
    opt.own_drafter = false;
    opt.profile = o->profile;
    opt.context_max = longest;
    opt.sequences_max = batch;
    opt.random_weights = o->shape != NULL;
    struct engine *e;
    struct err err = {{0}};
    enum status st = engine_open(&opt, &e, &err);
    if (shape[0]) remove_shape(shape);
    if (drafter[0]) remove_shape(drafter);
    if (st) return bench_failed(&err), 1;
    int rc = measure(e, o);
    engine_close(e);
    return rc;
}
