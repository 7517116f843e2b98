/* See bench_steps.h. */
#include "tests/lib/bench_steps.h"

#include "engine/engine.h"
#include "engine/model/model_info.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 24, STEPS_TINY = 2, REPEATS = 3, SEQS_MAX = 128 };

/* ---- the report */

double bench_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void put_text(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') fputc('\\', f);
        if ((unsigned char)*s >= 32) fputc(*s, f);
    }
    fputc('"', f);
}

bool bench_report_open(struct bench_report *r, const char *json, const char *name, const char *device)
{
    r->json = json ? fopen(json, "w") : NULL;
    if (json && !r->json) {
        fprintf(stderr, "%s can't be written\n", json);
        return false;
    }
    printf("%s on %s: copy %.1f GB/s, matrix product %.1f TFLOP/s (bf16)\n", name, device,
           r->ceiling.read_bytes_per_s * 1e-9, r->ceiling.matrix_flops * 1e-12);
    printf("%-6s %-38s %6s %12s %10s %6s %10s %6s %9s\n", "", "", "rows", "time", "GB/s", "copy", "TFLOP/s",
           "peak", "possible");
    if (!r->json) return true;
    fprintf(r->json, "{\"backend\":");
    put_text(r->json, name);
    fprintf(r->json, ",\"device\":");
    put_text(r->json, device);
    fprintf(r->json, ",\"copy_gb_s\":%.3f,\"matrix_tflop_s\":%.4f,\"rows\":[",
            r->ceiling.read_bytes_per_s * 1e-9, r->ceiling.matrix_flops * 1e-12);
    return true;
}

void bench_row(struct bench_report *r, const char *part, const char *name, uint32_t rows, double seconds,
               double bytes, double flops)
{
    double read = bytes / seconds / r->ceiling.read_bytes_per_s,
           math = flops / seconds / r->ceiling.matrix_flops;
    double possible = read > math ? read : math;
    printf("%-6s %-38s %6u %9.1f us %10.1f %5.1f%% %10.3f %5.1f%% %8.1f%%\n", part, name, rows, seconds * 1e6,
           bytes / seconds * 1e-9, 100 * read, flops / seconds * 1e-12, 100 * math, 100 * possible);
    fflush(stdout);
    if (!r->json) return;
    fprintf(r->json, "%s\n{\"part\":\"%s\",\"name\":", r->any ? "," : "", part);
    put_text(r->json, name);
    fprintf(r->json,
            ",\"rows\":%u,\"us\":%.3f,\"gb_s\":%.3f,\"copy_share\":%.4f,\"tflop_s\":%.5f,\"peak_share\":%.4f,"
            "\"possible_share\":%"
            ".4f}",
            rows, seconds * 1e6, bytes / seconds * 1e-9, read, flops / seconds * 1e-12, math, possible);
    fflush(r->json);
    r->any = true;
}

void bench_report_close(struct bench_report *r)
{
    if (!r->json) return;
    fprintf(r->json, "\n]}\n");
    fclose(r->json);
    r->json = NULL;
}

/* ---- models: released sizes (config.json of the checkpoints), and small ones of the same kind */

struct shape {
    const char *name, *config, *tiny;
};
static const struct shape shapes[] = {
    {"gemma3-4b",
     "{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,"
     "\"intermediate_size\":10240,\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":"
     "\"linear\"},"
     "\"sliding_window\":1024},\"vision_config\":{\"model_type\":\"siglip_vision_model\",\"hidden_size\":"
     "1152,"
     "\"intermediate_size\":4304,\"num_hidden_layers\":27,\"num_attention_heads\":16,\"image_size\":896,"
     "\"patch_size\":14,"
     "\"vision_use_head\":false}}",
     "{\"model_type\":\"gemma3\",\"mm_tokens_per_image\":4,\"text_config\":{\"model_type\":\"gemma3_text\","
     "\"vocab_size\":512,"
     "\"hidden_size\":96,\"intermediate_size\":160,\"num_hidden_layers\":6,\"num_attention_heads\":4,\"num_"
     "key_value_heads\":2,"
     "\"head_dim\":32,\"sliding_window\":64},\"vision_config\":{\"model_type\":\"siglip_vision_model\","
     "\"hidden_size\":64,"
     "\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":2,\"image_size\":56,\"patch_"
     "size\":14,"
     "\"vision_use_head\":false}}"},
    {"qwen3-vl-8b",
     "{\"model_type\":\"qwen3_vl\",\"tie_word_embeddings\":false,\"text_config\":{\"hidden_size\":4096,"
     "\"intermediate_size\":12288,\"num_hidden_layers\":36,\"num_attention_heads\":32,\"num_key_value_"
     "heads\":8,"
     "\"max_position_embeddings\":262144,\"rope_theta\":5000000,\"rope_scaling\":{\"rope_type\":\"default\","
     "\"mrope_interleaved\":true,\"mrope_section\":[24,20,20]}},\"vision_config\":{\"out_hidden_size\":4096}"
     "}",
     "{\"model_type\":\"qwen3_vl\",\"tie_word_embeddings\":false,\"image_token_id\":500,\"video_token_id\":"
     "501,"
     "\"vision_start_token_id\":502,\"vision_end_token_id\":503,\"text_config\":{\"vocab_size\":512,\"hidden_"
     "size\":96,"
     "\"intermediate_size\":160,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
     "\"head_dim\":32,"
     "\"max_position_embeddings\":4096,\"rope_theta\":5000000,\"rope_scaling\":{\"rope_type\":\"default\","
     "\"mrope_interleaved\":true,\"mrope_section\":[8,4,4]}},\"vision_config\":{\"depth\":2,\"hidden_size\":"
     "64,"
     "\"intermediate_size\":96,\"num_heads\":2,\"out_hidden_size\":96,\"deepstack_visual_indexes\":[0]}}"},
};

static bool write_config(const char *config, char dir[64])
{
    char path[96];
    strcpy(dir, "/tmp/kvasir-device-XXXXXX");
    if (!mkdtemp(dir)) return false;
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    if (!f) return false;
    bool ok = fputs(config, f) >= 0;
    return fclose(f) == 0 && ok;
}
static void remove_config(const char *dir)
{
    char path[96];
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    rmdir(dir);
}

/* ---- sequences with their own blocks, one after the other */

struct seqs {
    struct engine_chunk chunks[SEQS_MAX];
    uint32_t *tokens[SEQS_MAX], *tables[SEQS_MAX][ENGINE_GROUPS_MAX];
    uint32_t count;
};

static void seqs_free(struct seqs *q)
{
    for (uint32_t i = 0; i < q->count; i++) {
        free(q->tokens[i]);
        for (uint32_t g = 0; g < ENGINE_GROUPS_MAX; g++) free(q->tables[i][g]);
    }
    q->count = 0;
}

static bool seqs_init(struct seqs *q, const struct engine_caps *caps, uint32_t count, uint32_t length)
{
    static const struct sampling_params greedy = {.top_p = 1,
                                                  .repetition_penalty = 1,
                                                  .logprobs = SAMPLING_NO_LOGPROBS,
                                                  .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    uint32_t blocks = (length + caps->block_tokens - 1) / caps->block_tokens, seed = 12345;
    uint64_t next = 0;
    memset(q, 0, sizeof *q);
    for (uint32_t i = 0; i < count; i++) {
        q->count = i + 1;
        if (!(q->tokens[i] = malloc((size_t)length * sizeof(uint32_t)))) return false;
        for (uint32_t j = 0; j < length; j++) {
            seed = seed * 1664525u + 1013904223u;
            q->tokens[i][j] = 1 + (seed >> 8) % (caps->vocab_size / 2);
        }
        q->chunks[i] = (struct engine_chunk){.tokens = q->tokens[i],
                                             .token_count = length,
                                             .prompt_count = length,
                                             .sampling = &greedy,
                                             .sample = true,
                                             .score_first = UINT32_MAX};
        for (uint32_t g = 0; g < caps->group_count; g++) {
            uint32_t *t = q->tables[i][g] = malloc(blocks * sizeof(uint32_t));
            if (!t) return false;
            for (uint32_t b = 0; b < blocks; b++, next += caps->groups[g].block_grains) t[b] = (uint32_t)next;
            q->chunks[i].tables[g] = t;
        }
    }
    if (next <= caps->arena_grains) return true;
    printf("       %u sequences of %u tokens don't fit into the memory for keys and values: left out\n",
           count, length);
    return false;
}

static bool step(struct engine *e, struct seqs *q, uint32_t position, uint32_t count, bool sample)
{
    struct engine_batch b = {.chunks = q->chunks, .chunk_count = q->count};
    struct err err = {{0}};
    for (uint32_t i = 0; i < q->count; i++) {
        q->chunks[i].position = position;
        q->chunks[i].count = count;
        q->chunks[i].sample = sample;
    }
    if (!engine_submit(e, &b, &err) && !engine_wait(e, &b, &err)) return true;
    fprintf(stderr, "step: %s\n", err.msg);
    return false;
}
static bool feed(struct engine *e, const struct engine_caps *caps, struct seqs *q, uint32_t to)
{
    uint32_t room = caps->batch_tokens_max / q->count;
    for (uint32_t p = 0; p < to;) {
        uint32_t n = to - p < room ? to - p : room;
        if (!step(e, q, p, n, p + n == to)) return false;
        p += n;
    }
    return true;
}

/* ---- what a step must do at least */

struct load {
    double flops, bytes;
};
/* Rows at positions [from, to) of one sequence: attention alone. Keys are read once for all rows. */
static struct load attention(const struct engine_costs *c, uint32_t from, uint32_t to)
{
    struct load l = {0};
    for (uint32_t g = 0; g < c->group_count; g++) {
        double pairs = 0, window = c->groups[g].window, keys = to;
        for (uint32_t p = from; p < to; p++) pairs += window > 0 && p + 1 > window ? window : p + 1;
        if (window > 0 && keys > window + (to - from)) keys = window + (to - from);
        l.flops += c->groups[g].flops_per_pair * pairs;
        l.bytes += c->groups[g].bytes_per_key * keys;
    }
    return l;
}

static bool bench_decode(struct engine *e, const struct engine_caps *caps, const struct engine_costs *c,
                         struct bench_report *r, const char *name, uint32_t batch, uint32_t context,
                         uint32_t steps)
{
    struct seqs *q = malloc(sizeof *q);
    double best = 1e30;
    bool fits = q && seqs_init(q, caps, batch, context + steps + 1), ok = true;
    if (fits) ok = feed(e, caps, q, context);
    for (int i = 0; fits && ok && i < REPEATS; i++) {
        double t = bench_now();
        for (uint32_t s = 0; ok && s < steps; s++) ok = step(e, q, context + s, 1, true);
        t = (bench_now() - t) / steps;
        if (t < best) best = t;
    }
    struct load l = attention(c, context, context + 1);
    if (fits && ok)
        bench_row(r, "step", name, batch, best, c->weight_bytes + batch * l.bytes,
                  batch * (c->linear_flops_per_token + c->head_flops_per_row + l.flops));
    if (q) seqs_free(q);
    free(q);
    return ok;
}

static bool bench_prefill(struct engine *e, const struct engine_caps *caps, const struct engine_costs *c,
                          struct bench_report *r, const char *name, uint32_t n)
{
    struct seqs *q = malloc(sizeof *q);
    double best = 1e30;
    bool fits = q && seqs_init(q, caps, 1, n), ok = true;
    if (fits) ok = feed(e, caps, q, n);
    for (int i = 0; fits && ok && i < REPEATS; i++) {
        double t = bench_now();
        ok = feed(e, caps, q, n);
        t = bench_now() - t;
        if (t < best) best = t;
    }
    struct load l = attention(c, 0, n);
    if (fits && ok)
        bench_row(r, "step", name, n, best, c->weight_bytes + l.bytes,
                  n * c->linear_flops_per_token + c->head_flops_per_row + l.flops);
    if (q) seqs_free(q);
    free(q);
    return ok;
}

static bool bench_image(struct engine *e, const struct engine_costs *c, struct bench_report *r,
                        const char *name)
{
    uint32_t side = c->vision_side;
    struct image_u8 img = {.width = side, .height = side, .rgb = malloc((size_t)side * side * 3)};
    struct err err = {{0}};
    double best = 1e30;
    bool ok = img.rgb != NULL;
    for (size_t i = 0; ok && i < (size_t)side * side * 3; i++) img.rgb[i] = (uint8_t)(i * 2654435761u >> 24);
    for (int i = 0; ok && i <= REPEATS; i++) {
        struct engine_features *f = NULL;
        double t = bench_now();
        ok = engine_features_create(e, &img, NULL, &f, &err) == ST_OK;
        for (bool done = false; ok && !done;) ok = engine_features_step(e, f, 0, &done, &err) == ST_OK;
        t = bench_now() - t;
        engine_features_free(e, f);
        if (i > 0 && t < best) best = t;
    }
    free(img.rgb);
    if (!ok) fprintf(stderr, "image: %s\n", err.msg);
    if (ok) bench_row(r, "step", name, side, best, 0, c->vision_flops);
    return ok;
}

static bool bench_shape(struct bench_report *r, const struct shape *s, const char *backend, size_t memory,
                        bool tiny)
{
    static const uint32_t batches[] = {1, 8, 32, 128}, lengths[] = {512, 1024, 2048, 4096, 8192};
    uint32_t context = tiny ? 70 : 1024, longest = tiny ? 130 : 8192;
    char dir[64], name[64];
    if (r->only && !strstr(s->name, r->only)) return true;
    if (!write_config(tiny ? s->tiny : s->config, dir)) return false;
    uint64_t kv = (uint64_t)32 << 30;
    struct engine_options opt = {.model_dir = dir,
                                 .backend = (enum opt_backend)option_value("backend", backend),
                                 .dtype = DTYPE_BF16,
                                 .context_max = longest + 64,
                                 .batch_tokens_max = longest,
                                 .sequences_max = tiny ? 8 : SEQS_MAX,
                                 .kv_bytes = tiny              ? (uint64_t)8 << 20
                                             : kv < memory / 3 ? kv
                                                               : memory / 3,
                                 .random_weights = true};
    struct engine *e = NULL;
    struct err err = {{0}};
    double t = bench_now();
    enum status st = engine_open(&opt, &e, &err);
    remove_config(dir);
    if (st) {
        fprintf(stderr, "%s: %s\n", s->name, err.msg);
        return false;
    }
    struct engine_caps caps;
    struct engine_costs c;
    engine_caps(e, &caps);
    printf("       %s opened on %s in %.1f s\n", s->name, engine_model(e)->backend, bench_now() - t);
    bool ok = engine_costs(e, &c, &err) == ST_OK;
    if (!ok) fprintf(stderr, "%s: %s\n", s->name, err.msg);
    for (size_t i = 0; ok && i < (tiny ? 2 : 4); i++) {
        snprintf(name, sizeof name, "%s decode, %u tokens", s->name, context);
        ok = bench_decode(e, &caps, &c, r, name, batches[i], context, tiny ? STEPS_TINY : STEPS);
    }
    snprintf(name, sizeof name, "%s prefill", s->name);
    for (size_t i = 0; ok && i < (tiny ? 1 : 5); i++)
        ok = bench_prefill(e, &caps, &c, r, name, tiny ? longest : lengths[i]);
    snprintf(name, sizeof name, "%s image", s->name);
    if (ok && c.vision_flops > 0 && !(tiny && c.vision_side > 200)) ok = bench_image(e, &c, r, name);
    engine_close(e);
    return ok;
}

bool bench_steps(struct bench_report *r, const char *backend, size_t memory, bool tiny)
{
    bool ok = true;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        ok = bench_shape(r, &shapes[i], backend, memory, tiny) && ok;
    return ok;
}
