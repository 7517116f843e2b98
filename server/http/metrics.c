/* See metrics.h. Families are tables; each is exported from the first scrape, with zeros. */
#include "server/http/metrics.h"
#include "config/base/decimal.h"

#include "engine/model/model_info.h"
#include "server/fetch/fetch.h"
#include "server/grammar/grammar.h"
#include "server/context/adapters.h"
#include "server/media/image_hash_cache.h"
#include "server/json/writer.h"
#include "server/replay/request_log.h"
#include "server/http/http.h"
#include "server/jobs/jobs.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define BUCKETS_MAX 28
#define HTTP_MAX    256 /* more than there are labels of routes, times methods */

struct histogram {
    uint64_t counts[BUCKETS_MAX + 1]; /* last = +Inf; not cumulative */
    double sum;
};
struct scale {
    double le[BUCKETS_MAX];
    uint32_t count;
};
static const struct scale scale_ttft = {
    {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560},
    22};
static const struct scale scale_itl = {
    {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}, 19};
static const struct scale scale_request = {
    {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}, 21};
static const struct scale scale_n = {{1, 2, 5, 10, 20}, 5};
static const struct scale scale_preemptions = {{0, 1, 2, 5, 10, 20, 50, 100}, 8};
static const struct scale scale_http = {{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}, 14};

/* Histograms with no label of their own, in the order of the output: their scale, NULL = tokens, up to the
 * context. */
#define HISTOGRAMS(X)                                                                                        \
    X(PROMPT, "vllm:request_prompt_tokens", "Prompt tokens per finished request.", NULL)                     \
    X(GENERATION, "vllm:request_generation_tokens", "Generated tokens per finished request.", NULL)          \
    X(MAX_GENERATION, "vllm:request_max_num_generation_tokens", "Longest choice of a finished request.",     \
      NULL)                                                                                                  \
    X(PARAM_MAX, "vllm:request_params_max_tokens", "Requested token limit.", NULL)                           \
    X(PREFILL_COMPUTED, "vllm:request_prefill_kv_computed_tokens",                                           \
      "Prompt tokens computed, without cache hits.", NULL)                                                   \
    X(PREEMPTIONS, "vllm:request_num_preemptions", "Preemptions per finished request.", &scale_preemptions)  \
    X(N, "vllm:request_params_n", "Requested n.", &scale_n)                                                  \
    X(TTFT, "vllm:time_to_first_token_seconds", "Arrival to first token.", &scale_ttft)                      \
    X(ITL, "vllm:inter_token_latency_seconds", "Time between tokens.", &scale_itl)                           \
    X(ITL_OLD, "vllm:time_per_output_token_seconds", "Deprecated name of vllm:inter_token_latency_seconds.", \
      &scale_itl)                                                                                            \
    X(TPOT, "vllm:request_time_per_output_token_seconds", "Mean time per token of a request.", &scale_itl)   \
    X(E2E, "vllm:e2e_request_latency_seconds", "Arrival to last token.", &scale_request)                     \
    X(QUEUE, "vllm:request_queue_time_seconds", "Time waiting to run.", &scale_request)                      \
    X(INFERENCE, "vllm:request_inference_time_seconds", "Time running.", &scale_request)                     \
    X(PREFILL, "vllm:request_prefill_time_seconds", "Admission to first token.", &scale_request)             \
    X(DECODE, "vllm:request_decode_time_seconds", "First to last token.", &scale_request)                    \
    X(IMAGE, "kvasir:image_decode_seconds", "Decoding and preparing one image.", &scale_ttft)
#define HIST(id, name, help, scale)     H_##id,
#define HIST_ROW(id, name, help, scale) {name, help, scale},
enum hist { HISTOGRAMS(HIST) H_COUNT };
static const struct {
    const char *name, *help;
    const struct scale *scale;
} hists[] = {HISTOGRAMS(HIST_ROW)};

struct http_series {
    const char *handler, *method;
    uint64_t by_class[6]; /* [2]: responses of 2xx */
    struct histogram seconds;
};
struct metrics {
    char *model_label, *labels; /* escaped; engine="0",model_name="..." */
    struct scale tokens;
    struct histogram hist[H_COUNT];
    uint64_t finished[5], images_decoded;
    uint64_t rejected[4]; /* 400-class, 429, 5xx, auth */
    struct http_series http[HTTP_MAX];
    uint32_t http_count;
};

static void token_scale(struct scale *s, uint32_t top)
{
    static const double steps[] = {1, 2, 5};
    s->count = 0;
    for (double ten = 1; ten <= 1e8; ten *= 10) {
        for (int i = 0; i < 3 && s->count < BUCKETS_MAX; i++) {
            if (steps[i] * ten <= (double)top) s->le[s->count++] = steps[i] * ten;
        }
    }
}

struct metrics *metrics_create(void)
{
    struct metrics *m = calloc(1, sizeof *m);
    if (m) metrics_model(m, "", 100000);
    return m;
}

void metrics_destroy(struct metrics *m)
{
    if (!m) return;
    free(m->model_label);
    free(m->labels);
    free(m);
}

void metrics_model(struct metrics *m, const char *model_name, uint32_t context_max)
{
    char *label = malloc(2 * strlen(model_name) + 1), *p = label, *labels;
    if (!label) return;
    for (const char *s = model_name; *s; s++) {
        if (*s == '\\' || *s == '"' || *s == '\n') *p++ = '\\';
        *p++ = *s == '\n' ? 'n' : *s;
    }
    *p = '\0';
    if (asprintf(&labels, "engine=\"0\",model_name=\"%s\"", label) < 0) {
        free(label);
        return;
    }
    free(m->model_label);
    free(m->labels);
    m->model_label = label;
    m->labels = labels;
    token_scale(&m->tokens, context_max);
}

static void observe(struct histogram *h, const struct scale *s, double v)
{
    uint32_t i = 0;
    while (i < s->count && v > s->le[i]) i++;
    h->counts[i == s->count ? BUCKETS_MAX : i]++;
    h->sum += v;
}

static void observe_in(struct metrics *m, enum hist h, double v)
{
    observe(&m->hist[h], hists[h].scale ? hists[h].scale : &m->tokens, v);
}

void metrics_http(struct metrics *m, const char *handler, const char *method, int status, double seconds)
{
    uint32_t i = 0;
    while (i < m->http_count &&
           (strcmp(m->http[i].handler, handler) != 0 || strcmp(m->http[i].method, method) != 0))
        i++;
    if (i == HTTP_MAX) return;
    struct http_series *s = &m->http[i];
    if (i == m->http_count)
        m->http[m->http_count++] = (struct http_series){.handler = handler, .method = method};
    s->by_class[status / 100 % 6]++;
    observe(&s->seconds, &scale_http, seconds);
}

void metrics_rejected(struct metrics *m, int status)
{
    m->rejected[status == 429 ? 1 : status >= 500 ? 2 : status == 401 ? 3 : 0]++;
}

void metrics_first_token(struct metrics *m, double seconds)
{
    observe_in(m, H_TTFT, seconds);
}

void metrics_next_token(struct metrics *m, double seconds)
{
    observe_in(m, H_ITL, seconds);
    observe_in(m, H_ITL_OLD, seconds);
}

void metrics_image(struct metrics *m, double decode_seconds)
{
    m->images_decoded++;
    observe_in(m, H_IMAGE, decode_seconds);
}

void metrics_sequence(struct metrics *m, const struct metrics_sequence *q)
{
    m->finished[q->finish]++;
    if (!q->had_token && q->finish == FIN_ABORT) return;
    observe_in(m, H_PROMPT, q->prompt_tokens);
    observe_in(m, H_GENERATION, q->generated);
    observe_in(m, H_PARAM_MAX, q->max_tokens);
    observe_in(m, H_PREFILL_COMPUTED, q->prompt_tokens - q->cached_tokens);
    observe_in(m, H_PREEMPTIONS, q->preemptions);
    observe_in(m, H_E2E, q->e2e_seconds);
    observe_in(m, H_QUEUE, q->queue_seconds);
    observe_in(m, H_INFERENCE, q->prefill_seconds + q->decode_seconds);
    observe_in(m, H_PREFILL, q->prefill_seconds);
    observe_in(m, H_DECODE, q->decode_seconds);
    if (q->generated > 1) observe_in(m, H_TPOT, q->decode_seconds / (q->generated - 1));
}

void metrics_request_n(struct metrics *m, uint32_t n, uint32_t max_generated)
{
    observe_in(m, H_N, n);
    observe_in(m, H_MAX_GENERATION, max_generated);
}

/* ---- text ---- */

struct writer {
    struct buf *b;
    enum status st;
    const struct metrics *m;
};

#define W(w, ...)                                                                                            \
    do {                                                                                                     \
        if (!(w)->st) (w)->st = buf_addf((w)->b, __VA_ARGS__);                                               \
    } while (0)

/* As Python's float, so that `le` values equal those of other servers. */
static const char *number(double v, char text[DECIMAL_BYTES])
{
    (void)decimal_repr(v, text);
    return text;
}

static void head(struct writer *w, const char *name, const char *type, const char *help)
{
    W(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Counters' names end with _total. */
static void head_plain(struct writer *w, const char *name, const char *help)
{
    size_t len = strlen(name), n = strlen("_total");
    head(w, name, len > n && strcmp(name + len - n, "_total") == 0 ? "counter" : "gauge", help);
}

/* One series; its own label, if any, in alphabetical order among the others. */
static void sample(struct writer *w, const char *name, const char *label, const char *value, double v)
{
    char text[DECIMAL_BYTES];
    bool before = strcmp(label, "model_name") < 0;
    W(w, "%s{engine=\"0\"", name);
    if (*label && before) W(w, ",%s=\"%s\"", label, value);
    W(w, ",model_name=\"%s\"", w->m->model_label);
    if (*label && !before) W(w, ",%s=\"%s\"", label, value);
    W(w, "} %s\n", number(v, text));
}

/* A metric without labels of its own: a number, or a count. */
static void single(struct writer *w, const char *name, const char *help, double v)
{
    head_plain(w, name, help);
    sample(w, name, "", "", v);
}

static void count(struct writer *w, const char *name, const char *help, uint64_t v)
{
    single(w, name, help, (double)v);
}

/* A family with a series for each value of its label; without names: their numbers. */
static void family(struct writer *w, const char *name, const char *help, const char *label,
                   const char *const *names, const uint64_t *values, uint32_t n)
{
    head_plain(w, name, help);
    for (uint32_t i = 0; i < n; i++) {
        char text[12];
        snprintf(text, sizeof text, "%u", i);
        sample(w, name, label, names ? names[i] : text, (double)values[i]);
    }
}

static void histogram_text(struct writer *w, const char *name, const char *labels, const struct histogram *h,
                           const struct scale *s)
{
    char text[DECIMAL_BYTES];
    uint64_t total = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        total += h->counts[i];
        W(w, "%s_bucket{%s,le=\"%s\"} %llu.0\n", name, labels, number(s->le[i], text),
          (unsigned long long)total);
    }
    total += h->counts[BUCKETS_MAX];
    W(w, "%s_bucket{%s,le=\"+Inf\"} %llu.0\n%s_sum{%s} %s\n", name, labels, (unsigned long long)total, name,
      labels, number(h->sum, text));
    W(w, "%s_count{%s} %llu.0\n", name, labels, (unsigned long long)total);
}

static void requests_text(struct writer *w)
{
    static const char *const finishes[] = {
        [FIN_STOP] = "stop", [FIN_LENGTH] = "length", [FIN_ABORT] = "abort", [FIN_ERROR] = "error"};
    static const char *const kinds[] = {"invalid", "queue_full", "server", "auth"};
    const struct metrics *m = w->m;
    family(w, "vllm:request_success_total", "Finished requests by reason.", "finished_reason",
           finishes + FIN_STOP, m->finished + FIN_STOP, FIN_ERROR + 1 - FIN_STOP);
    for (int i = 0; i < H_COUNT; i++) {
        head(w, hists[i].name, "histogram", hists[i].help);
        histogram_text(w, hists[i].name, m->labels, &m->hist[i],
                       hists[i].scale ? hists[i].scale : &m->tokens);
    }
    family(w, "kvasir:requests_rejected_total", "Requests answered with an error, by kind.", "reason", kinds,
           m->rejected, 4);
}

/* Arena usage of the fullest group: blocks used by its sequences, relative to the blocks that it could use if
 * it got all unused ones. 1 = no further block for it, whatever is evicted. */
static double usage(const struct sched_stats *st, const struct engine_caps *caps)
{
    double most = 0, live = 0;
    for (uint32_t g = 0; g < st->group_count; g++)
        live += (double)st->groups[g].blocks_live * caps->groups[g].block_grains;
    for (uint32_t g = 0; g < st->group_count; g++) {
        double own = (double)st->groups[g].blocks_live * caps->groups[g].block_grains;
        double room = (double)st->arena_grains - (live - own);
        double share = own > 0 && room > 0 ? own / room : 0;
        if (share > most) most = share;
    }
    return most > 1 ? 1 : most;
}

/* Families with a series for each group of layers: fields of its statistics. */
static const struct {
    const char *name, *help;
    size_t at;
} group_families[] = {
    {"kvasir:kv_blocks_used", "KV blocks in use or cached", offsetof(struct sched_group_stats, blocks_used)},
    {"kvasir:kv_bytes_used", "KV bytes in use or cached", offsetof(struct sched_group_stats, bytes_used)},
    {"kvasir:kv_blocks_live", "KV blocks that sequences hold",
     offsetof(struct sched_group_stats, blocks_live)},
    {"kvasir:kv_blocks_cached", "KV blocks that only the prefix cache holds",
     offsetof(struct sched_group_stats, blocks_cached)},
    {"kvasir:prefix_cache_hit_tokens_total", "Tokens whose KV was taken from the prefix cache",
     offsetof(struct sched_group_stats, hit_tokens)},
    {"kvasir:kv_blocks_evicted_total", "KV blocks that the prefix cache gave back for want of memory",
     offsetof(struct sched_group_stats, evicted_blocks)},
};

static void groups_text(struct writer *w, const struct sched_stats *st)
{
    char help[128], text[DECIMAL_BYTES];
    for (size_t i = 0; i < sizeof group_families / sizeof *group_families; i++) {
        snprintf(help, sizeof help, "%s, by group of layers.", group_families[i].help);
        head_plain(w, group_families[i].name, help);
        for (uint32_t g = 0; g < st->group_count; g++) {
            uint64_t v;
            memcpy(&v, (const char *)&st->groups[g] + group_families[i].at, sizeof v);
            W(w, "%s{engine=\"0\",group=\"%u\",model_name=\"%s\",window=\"%u\"} %s\n", group_families[i].name,
              g, w->m->model_label, st->groups[g].window, number((double)v, text));
        }
    }
}

static void kv_text(struct writer *w, const struct sched_stats *st, const struct engine_caps *caps,
                    const struct server *s)
{
    uint64_t grains = 0; /* of a block of every group but the recurrent one, the last */
    const uint32_t last = st->group_count ? st->group_count - 1 : 0;
    const bool recurrent = st->groups[last].recurrent;
    double share = usage(st, caps);
    for (uint32_t g = 0; g + recurrent < st->group_count; g++) grains += caps->groups[g].block_grains;
    single(w, "vllm:kv_cache_usage_perc",
           "Share of the KV blocks that running sequences use, 0 to 1; of the fullest group.", share);
    single(w, "vllm:gpu_cache_usage_perc", "Deprecated name of vllm:kv_cache_usage_perc.", share);
    groups_text(w, st);
    if (recurrent) {
        count(w, "kvasir:saved_states", "Saved states of the recurrent layers.", st->cache_states);
        count(w, "kvasir:saved_state_bytes", "Memory of the saved states.",
              st->cache_states * caps->groups[last].block_bytes);
    }
    count(w, "kvasir:kv_arena_bytes", "Size of the KV arena.", st->arena_grains * caps->grain_bytes);
    count(w, "kvasir:kv_arena_bytes_used", "Bytes of the KV arena in use or cached.",
          st->used_grains * caps->grain_bytes);
    head(w, "vllm:cache_config_info", "gauge", "Settings of the KV arena.");
    W(w,
      "vllm:cache_config_info{block_size=\"%u\",cache_dtype=\"%s\",enable_prefix_caching=\"%s\",engine=\"0\","
      "model_name=\"%s\",num_gpu_blocks=\"%llu\"} 1.0\n",
      caps->block_tokens, s->ctx.model ? s->ctx.model->info->kv_dtype : "",
      s->ctx.opt->prefix_cache ? "True" : "False", w->m->model_label,
      (unsigned long long)(grains ? st->arena_grains / grains : 0));
}

static const char *const cache_stops[] = {[CACHE_STOP_NONE] = "none",
                                          [CACHE_STOP_END] = "end_of_cached",
                                          [CACHE_STOP_TOKEN] = "token_differs",
                                          [CACHE_STOP_IMAGE] = "image_differs",
                                          [CACHE_STOP_SPAN] = "inside_image",
                                          [CACHE_STOP_WINDOW] = "sliding_window_gone",
                                          [CACHE_STOP_STATE] = "no_state_saved",
                                          [CACHE_STOP_EVICTED] = "evicted",
                                          [CACHE_STOP_SALT] = "salt",
                                          [CACHE_STOP_PROMPT] = "prompt_differs",
                                          [CACHE_STOP_DISABLED] = "disabled"};

const char *cache_stop_name(enum cache_stop stop)
{
    return stop < sizeof cache_stops / sizeof *cache_stops ? cache_stops[stop] : "unknown";
}

static void prefix_cache_text(struct writer *w, const struct sched_stats *st)
{
    static const char *const sources[] = {"local_compute", "local_cache_hit", "external_kv_transfer"};
    uint64_t by_source[] = {st->prompt_tokens, st->cache_hit_tokens, 0};
    count(w, "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
          st->cache_query_tokens);
    count(w, "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
          st->cache_hit_tokens);
    count(w, "vllm:prompt_tokens_cached_total", "Prompt tokens taken from the cache.", st->cache_hit_tokens);
    count(w, "vllm:prompt_tokens_recomputed_total",
          "Prompt tokens equal to cached ones that were computed again.", st->cache_recomputed_tokens);
    family(w, "vllm:prompt_tokens_by_source_total", "Prompt tokens by where their KV came from.", "source",
           sources, by_source, 3);
    count(w, "kvasir:prefix_cache_lookups_total", "Sequences that looked up the prefix cache.",
          st->cache_queries);
    count(w, "kvasir:prefix_cache_hits_total", "Sequences with a prefix cache hit.", st->cache_hits);
    count(w, "kvasir:prefix_cache_nodes", "Nodes of the prefix cache's tree.", st->cache_nodes);
    count(w, "kvasir:prefix_cache_evicted_nodes_total", "Nodes dropped from the tree for want of memory.",
          st->cache_evictions);
    family(w, "kvasir:prefix_cache_stops_total", "Sequences by the reason why reuse ended where it did.",
           "stop", cache_stops, st->cache_stops, CACHE_STOP_DISABLED + 1);
}

static const char *const cache_tiers[] = {
    [CACHE_TIER_ARENA] = "memory", [CACHE_TIER_HOST] = "host", [CACHE_TIER_DISK] = "disk"};

const char *cache_tier_name(enum cache_tier tier)
{
    return cache_tiers[tier];
}

static void tiers_text(struct writer *w, const struct sched_stats *st)
{
    if (!st->tier_on) return;
    family(w, "kvasir:cache_tier_bytes", "KV and encoded images kept, by where.", "tier", cache_tiers,
           st->tier_bytes, CACHE_TIERS);
    family(w, "kvasir:cache_tier_hits_total",
           "Sequences with a prefix cache hit, by the lowest tier that it came from.", "tier", cache_tiers,
           st->tier_hits, CACHE_TIERS);
    count(w, "kvasir:cache_tier_off", "1: the disk is full or failing, nothing is written to it any more.",
          st->disk_off);
    count(w, "kvasir:cache_tier_loads_total", "Loads of prefixes from a lower tier.", st->tier_loads);
    count(w, "kvasir:cache_tier_loads_failed_total",
          "Loads given up: damaged, too slow, or memory was needed; computed instead.",
          st->tier_loads_failed);
    single(w, "kvasir:cache_tier_load_seconds_total", "Time of these loads, from request to use.",
           (double)st->tier_load_us * 1e-6);
    count(w, "kvasir:cache_tier_loaded_tokens_total", "Prompt tokens loaded instead of computed.",
          st->tier_loaded_tokens);
    count(w, "kvasir:cache_tier_loaded_images_total", "Encoded images loaded.", st->tier_image_loads);
    count(w, "kvasir:cache_tier_written_blocks_total",
          "Evicted blocks, states and images copied to a lower tier.", st->tier_written_blocks);
    count(w, "kvasir:cache_tier_dropped_blocks_total", "Evicted ones not copied: the disk was too slow.",
          st->tier_dropped_blocks);
}

static void images_text(struct writer *w, const struct sched_stats *st, const struct server *s)
{
    struct image_hash_cache_stats a;
    image_hash_cache_stats(s->ctx.image_hashes, &a);
    count(w, "vllm:mm_cache_queries_total", "Images looked up in the feature cache.", st->feature_queries);
    count(w, "vllm:mm_cache_hits_total", "Images found in the feature cache.", st->feature_hits);
    count(w, "kvasir:images_encoded_total", "Images encoded by the vision tower.", st->images_encoded);
    count(w, "kvasir:images_decoded_total", "Image files decoded and prepared.", w->m->images_decoded);
    count(w, "kvasir:image_bytes", "Decoded images held by requests.", shares_held(&s->shares, SHARE_PIXELS));
    count(w, "kvasir:response_bytes", "Memory of buffered responses.",
          shares_held(&s->shares, SHARE_RESPONSES));
    count(w, "kvasir:image_hash_cache_queries_total", "Image hash cache lookups.", a.queries);
    count(w, "kvasir:image_hash_cache_hits_total", "Image hash cache hits: files already decoded.", a.hits);
    count(w, "kvasir:image_hash_cache_entries", "Image files whose content is known.", a.entries);
    count(w, "kvasir:encoder_cache_bytes", "Encoded images kept, in use or for later.", st->feature_bytes);
    count(w, "kvasir:encoder_cache_evictions_total", "Encoded images dropped for want of memory.",
          st->feature_evictions);
}

static void fetch_text(struct writer *w, const struct server *s)
{
    struct fetch_stats f;
    if (!s->ctx.fetcher) return;
    fetch_stats(s->ctx.fetcher, &f);
    count(w, "kvasir:urls_fetched_total", "URLs of images fetched.", f.fetched);
    count(w, "kvasir:urls_failed_total", "URLs of images that were refused or failed.", f.failed);
    count(w, "kvasir:fetched_bytes_total", "Bytes of images fetched.", f.bytes);
    count(w, "kvasir:urls_waiting", "URLs of images being fetched or waiting for that.",
          shares_held(&s->shares, SHARE_URLS));
    count(w, "kvasir:fetched_bytes_held", "Fetched files not yet taken by their requests.",
          shares_held(&s->shares, SHARE_FILES));
}

static void engine_text(struct writer *w, const struct sched_stats *st, const struct server *s)
{
    static const char *const ends[SEQ_ENDS] = {
        [END_STOP_EOS] = "eos",          [END_STOP_TOKEN] = "stop_token", [END_LENGTH] = "length",
        [END_CANCELLED] = "cancelled",   [END_ERROR] = "error",           [END_DEADLINE] = "deadline",
        [END_CONSTRAINT] = "constraint", [END_GIVEN] = "given",           [END_DIFFERS] = "differs"};
    static const char *const sleeps[] = {"awake", "weights_offloaded", "discard_all"};
    count(w, "vllm:num_requests_running", "Sequences in the running batch.", st->running);
    count(w, "vllm:num_requests_waiting", "Sequences admitted and not running.", st->waiting);
    count(w, "vllm:num_preemptions_total", "Preempted sequences.", st->preemptions);
    count(w, "vllm:prompt_tokens_total", "Prefill tokens processed.", st->prompt_tokens);
    count(w, "vllm:generation_tokens_total", "Generated tokens.", st->generated_tokens);
    count(w, "vllm:spec_decode_num_drafts_total", "Verify steps: chunks with draft tokens.",
          st->verified_chunks);
    count(w, "vllm:spec_decode_num_draft_tokens_total", "Draft tokens.", st->proposed_tokens);
    count(w, "vllm:spec_decode_num_accepted_tokens_total", "Accepted draft tokens.", st->accepted_tokens);
    family(w, "vllm:spec_decode_num_accepted_tokens_per_pos_total",
           "Accepted draft tokens by position in the draft.", "position", NULL, st->accepted_at,
           SCHED_DRAFT_MAX);
    count(w, "kvasir:engine_steps_total", "Engine steps.", st->steps);
    single(w, "kvasir:engine_step_seconds_total", "Time in engine steps.", (double)st->step_us_total * 1e-6);
    count(w, "kvasir:mask_waits_total",
          "Chunks left out of a step because the mask of their constraint was not ready.", st->mask_waits);
    count(w, "kvasir:grammar_bytes", "Memory of compiled grammars and their masks.",
          atomic_load(&s->ctx.grammar_memory->used));
    count(w, "kvasir:last_batch_tokens", "Tokens of the last step.", st->last_batch_tokens);
    count(w, "kvasir:last_batch_sequences", "Sequences of the last step.", st->last_batch_sequences);
    struct scale scale = {{1}, SCHED_STEP_BUCKETS - 1};
    struct histogram tokens = {.sum = (double)st->step_tokens_total};
    for (uint32_t i = 1; i < scale.count; i++) scale.le[i] = 4u << i;
    for (uint32_t i = 0; i < scale.count; i++) tokens.counts[i] = st->step_tokens[i];
    tokens.counts[BUCKETS_MAX] = st->step_tokens[scale.count];
    head(w, "vllm:iteration_tokens_total", "histogram", "Tokens of an engine step.");
    histogram_text(w, "vllm:iteration_tokens_total", w->m->labels, &tokens, &scale);
    family(w, "kvasir:sequences_ended_total", "Sequences by how the scheduler ended them.", "end", ends,
           st->ended, SEQ_ENDS);
    family(w, "vllm:engine_sleep_state", "1 for the state that the engine is in.", "sleep_state", sleeps,
           (const uint64_t[]){1, 0, 0}, 3);
}

static void lora_names(struct writer *w, const struct server *s, bool waiting)
{
    const char *between = "";
    for (struct lora *l = NULL; (l = lora_next(s->ctx.adapters, l));) {
        unsigned running = atomic_load(&l->running), all = atomic_load(&l->sequences);
        if (waiting ? all <= running : !running) continue;
        W(w, "%s%s", between, l->name);
        between = ",";
    }
}

/* As vLLM has it: the value is the time, for those who look for the newest. */
static void lora_text(struct writer *w, const struct server *s)
{
    if (!s->ctx.opt->lora && !s->ctx.opt->lora_dir) return;
    head(w, "vllm:lora_requests_info", "gauge", "Adapters with running and with waiting sequences.");
    W(w, "vllm:lora_requests_info{max_lora=\"%llu\",running_lora_adapters=\"",
      (unsigned long long)s->ctx.opt->max_loras);
    lora_names(w, s, false);
    W(w, "\",waiting_lora_adapters=\"");
    lora_names(w, s, true);
    W(w, "\"} %lld.0\n", (long long)time(NULL));
}

static void http_text(struct writer *w)
{
    const struct metrics *m = w->m;
    head(w, "http_requests_total", "counter", "HTTP requests by route, method and class of status.");
    for (uint32_t i = 0; i < m->http_count; i++) {
        const struct http_series *s = &m->http[i];
        for (int class = 1; class < 6; class ++)
            if (s->by_class[class])
                W(w, "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} %llu.0\n", s->handler,
                  s->method, class, (unsigned long long)s->by_class[class]);
    }
    head(w, "http_request_duration_seconds", "histogram", "Duration of HTTP requests.");
    for (uint32_t i = 0; i < m->http_count; i++) {
        char labels[160];
        snprintf(labels, sizeof labels, "handler=\"%s\",method=\"%s\"", m->http[i].handler,
                 m->http[i].method);
        histogram_text(w, "http_request_duration_seconds", labels, &m->http[i].seconds, &scale_http);
    }
}

/* One without labels. */
static void process_one(struct writer *w, const char *name, const char *help, double v)
{
    char text[DECIMAL_BYTES];
    head_plain(w, name, help);
    W(w, "%s %s\n", name, number(v, text));
}

static const char *const shares[SHARE_STORED] = {"connections", "bodies", "workers", "queue",    "urls",
                                                 "transfers",   "files",  "images",  "responses"};

static void process_text(struct writer *w, const struct server *s)
{
    struct rusage u;
    struct rlimit rl;
    unsigned long long vsize = 0, rss = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%llu %llu", &vsize, &rss) != 2) vsize = rss = 0;
        fclose(f);
    }
    double page = (double)sysconf(_SC_PAGESIZE);
    unsigned fds = 0;
    DIR *d = opendir("/proc/self/fd");
    if (d) {
        while (readdir(d)) fds++;
        closedir(d);
        fds = fds > 3 ? fds - 3 : 0; /* ".", ".." and the directory itself */
    }
    if (!getrusage(RUSAGE_SELF, &u)) {
        process_one(w, "process_cpu_seconds_total", "CPU time.",
                    (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                        1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec));
    }
    process_one(w, "process_resident_memory_bytes", "Resident memory.", (double)rss * page);
    process_one(w, "process_virtual_memory_bytes", "Virtual memory.", (double)vsize * page);
    process_one(w, "process_open_fds", "Open file descriptors.", fds);
    if (!getrlimit(RLIMIT_NOFILE, &rl))
        process_one(w, "process_max_fds", "Limit of file descriptors.", (double)rl.rlim_cur);
    process_one(w, "process_start_time_seconds", "Start of the process, Unix time.", (double)s->started);
    uint64_t refused[SHARE_STORED];
    for (int i = 0; i < SHARE_STORED; i++) refused[i] = atomic_load(&s->shares.refused[i]);
    family(w, "kvasir:shares_refused_total",
           "What was closed, dropped or refused because its key or address held more than others, by what.",
           "of", shares, refused, SHARE_STORED);
    struct jobs_stats jobs = {0};
    if (s->jobs) jobs_stats(s->jobs, &jobs);
    family(w, "kvasir:batches", "Batches in --data-dir, by status.", "status", jobs_statuses, jobs.batches,
           JOBS_STATUSES);
    family(w, "kvasir:batch_lines_total", "Lines of batches that are done, by result.", "result",
           (const char *const[]){"answered", "failed"}, (uint64_t[]){jobs.answered, jobs.failed}, 2);
    process_one(w, "kvasir:open_connections", "Client connections.", s->conn_count);
    struct sched_stats st = {0};
    if (s->ctx.model) sched_stats(s->ctx.model->sched, &st);
    process_one(w, "kvasir:loop_lag_seconds",
                "How late the event loop's clock was, the worst of ten seconds.",
                (double)s->health.lag.us * 1e-6);
    process_one(w, "kvasir:engine_to_loop_seconds",
                "How long events of the engine waited for the event loop, the worst of ten seconds.",
                (double)s->health.handed.us * 1e-6);
    process_one(w, "kvasir:loop_to_engine_seconds",
                "How long the oldest submission has waited for the engine's thread.",
                (double)st.inbox_us * 1e-6);
    process_one(w, "kvasir:requests_in_flight", "Generating requests in flight.", s->load);
    process_one(w, "kvasir:queue_limit", "Sequences that may wait.", (double)s->ctx.opt->max_queue);
    process_one(w, "kvasir:draining", "1 while the process is shutting down.",
                s->health.phase >= SRV_LEAVING);
    head(w, "kvasir:build_info", "gauge", "Version and kernel set.");
    W(w, "kvasir:build_info{backend=\"%s\",version=\"%s\"} 1.0\n",
      s->ctx.model ? s->ctx.model->info->backend : "", KVASIR_VERSION);
}

enum status metrics_text(const struct server *s, struct buf *out)
{
    struct writer w = {.b = out, .m = s->metrics};
    struct sched_stats st = {0};
    struct engine_caps caps = {0};
    if (s->ctx.model) {
        sched_stats(s->ctx.model->sched, &st);
        caps = s->ctx.model->caps;
    }
    if (s->front) { /* engines are the children's */
        http_text(&w);
        process_text(&w, s);
        return w.st;
    }
    engine_text(&w, &st, s);
    prefix_cache_text(&w, &st);
    tiers_text(&w, &st);
    images_text(&w, &st, s);
    fetch_text(&w, s);
    kv_text(&w, &st, &caps, s);
    lora_text(&w, s);
    requests_text(&w);
    http_text(&w);
    count(&w, "kvasir:request_log_lost_total", "Lines that --request-log could not keep.",
          request_log_lost(s->ctx.request_log));
    process_text(&w, s);
    return w.st;
}
