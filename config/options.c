/* See options.h. A row of the table = one setting; its flag, environment variable and config key are the same
 * name spelled three ways ("max-context", "KVASIR_MAX_CONTEXT", "max-context = 4096"). */
#include "config/options.h"

#include "config/base/env.h"
#include "config/base/file.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind { K_STRING, K_WORD, K_COUNT, K_SIZE, K_BOOL, K_NUMBERS };

struct row {
    const char *name;
    enum kind kind;
    size_t at;                /* offset of the field in struct options */
    const char *init;         /* default, as a person would write it; NULL = unset */
    uint64_t min, max;        /* K_COUNT, K_SIZE, K_NUMBERS */
    const char *const *words; /* K_WORD: in the order of the field's enum; numbers: {"auto"} if that is one */
    const char *arg;          /* how --help names the value; NULL = the words */
    const char *help;
    unsigned commands; /* of enum option_commands; 0 = serve's alone */
};

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define ON_OFF     WORDS("on", "off")
#define U32_TOP    0xffffffffull

#define ROW(k, n, field, value, a, text)                                                                     \
    .kind = k, .name = n, .at = offsetof(struct options, field), .init = value, .arg = a, .help = text
#define RANGE(lo, hi)                             .min = lo, .max = hi
#define STRING(n, field, value, a, text)          ROW(K_STRING, n, field, value, a, text)
#define WORD(n, field, value, w, text)            ROW(K_WORD, n, field, value, NULL, text), .words = w
#define BOOL(n, field, value, text)               ROW(K_BOOL, n, field, value, NULL, text), .words = ON_OFF
#define COUNT(n, field, value, lo, hi, a, text)   ROW(K_COUNT, n, field, value, a, text), RANGE(lo, hi)
#define SIZE(n, field, value, lo, hi, text)       ROW(K_SIZE, n, field, value, "SIZE", text), RANGE(lo, hi)
#define NUMBERS(n, field, value, lo, hi, a, text) ROW(K_NUMBERS, n, field, value, a, text), RANGE(lo, hi)
#define BOTH                                      .commands = OPTIONS_SERVE | OPTIONS_BENCH
#define BENCH                                     .commands = OPTIONS_BENCH

static const struct row rows[] = {
    {STRING("model", model, NULL, "MODEL",
            "checkpoint directory, GGUF file, or hf:ORG/NAME[@REVISION][:FILE.gguf] on the Hugging Face hub"),
     BOTH},
    {STRING("mmproj", mmproj, NULL, "FILE",
            "vision tower of a GGUF model, also a GGUF file (llama.cpp's mmproj)"),
     BOTH},
    {STRING("served-model-name", served_model_name, NULL, "NAME[,NAME]",
            "model names in the API (default: the directory's name, or the file's without .gguf)")},
    {BOOL("accept-any-model", accept_any_model, "off", "accept requests for any model name")},
    {COUNT("default-max-tokens", default_max_tokens, "0", 0, U32_TOP, "N",
           "max_tokens of chats and responses that set none; 0 = up to the context limit")},
    {BOOL("always-include-usage", always_include_usage, "off",
          "stream_options.include_usage for every stream")},
    {WORD("backend", backend, "auto", WORDS("auto", "cpu", "cuda"), "where the model runs"), BOTH},
    {WORD("cpu-kernels", cpu_kernels, "auto", WORDS("auto", "reference", "avx2", "avx512", "amx"),
          "kernel set of the CPU backend (x86-64)"),
     BOTH},
    {COUNT("threads", threads, "0", 0, 256, "N", "compute threads; 0 = all usable cores"), BOTH},
    {WORD("dtype", dtype, "auto", WORDS("auto", "bf16", "f32"), "compute type; auto = the checkpoint's"),
     BOTH},
    {WORD("gemm", gemm, "auto", WORDS("auto", "cublas", "own"),
          "matrix products on a GPU: cuBLASLt for the weight shapes that are batch-invariant there, or own "
          "kernels; auto: cublas"),
     BOTH},
    {WORD("quantize", quantize, "none", WORDS("none", "int8", "int4"),
          "weight quantization of the text model (INT8, INT4), mixture of experts too, and of the image "
          "tower (INT8); quantized weights (GGUF, AWQ, ...) keep their type"),
     BOTH},
    {BOOL("quantize-vision", quantize_vision, "on",
          "integer weights in the image tower: of --quantize and of a GGUF file; off = the compute type"),
     BOTH},
    {WORD("generation-config", generation_config, "auto", WORDS("auto", "ignore"),
          "sampling defaults from the checkpoint")},
    {WORD("tool-parser", tool_parser, "auto", WORDS("auto", "strict"),
          "function calling (tools): calls in the chat template's syntax, with auto also as plain JSON")},
    {STRING("chat-template", chat_template, NULL, "FILE", "Jinja chat template instead of the checkpoint's")},
    {STRING("chat-template-kwargs", chat_template_kwargs, NULL, "JSON",
            "variables of the chat template, an object; a request's chat_template_kwargs take precedence")},
    {WORD("control-tokens", control_tokens, "text", WORDS("text", "parse"),
          "control tokens in message text: plain text, or parsed")},
    {WORD("billing-header", billing_header, "drop", WORDS("drop", "keep"),
          "/v1/messages: the system block x-anthropic-billing-header of Claude Code, which differs in each "
          "request")},
    {WORD("kv-dtype", kv_dtype, "auto", WORDS("auto", "bf16", "int8"),
          "KV cache quantization; auto = the compute type, int8 takes half the memory"),
     BOTH},
    {ROW(K_SIZE, "kv-memory", kv_memory, "auto", "SIZE|auto",
         "memory of the paged KV cache (K, M, G suffixes)"),
     RANGE(1u << 20, UINT64_MAX), .words = WORDS("auto")},
    {COUNT("max-context", max_context, "0", 0, U32_TOP, "N",
           "tokens of prompt and output; 0 = the checkpoint's limit")},
    {BOOL("prefix-cache", prefix_cache, "on",
          "automatic prefix caching: reuse the KV of equal prompt prefixes, text and images")},
    {WORD("cache-scope", cache_scope, "key", WORDS("key", "server"),
          "with API keys: cached data is reused by requests of the same key only, or by all")},
    {SIZE("encoder-cache-memory", encoder_cache_memory, "256M", 1, UINT64_MAX,
          "encoded images kept for later requests (K, M, G suffixes)")},
    {STRING("cache-dir", cache_dir, NULL, "DIR",
            "keep cached prefixes and encoded images on disk as well, so that they survive a restart; anyone "
            "who can read DIR can recover prompts (default: none)")},
    {SIZE("cache-disk", cache_disk, "16G", 1u << 20, UINT64_MAX,
          "space that --cache-dir may take; least recently used prefixes are deleted first")},
    {SIZE("cache-host", cache_host, "0", 0, UINT64_MAX,
          "host memory for evicted prefixes and images, before the disk; 0 = none, or 128 MiB with a GPU and "
          "--cache-dir")},
    {WORD("cache-load", cache_load, "auto", WORDS("auto", "always"),
          "load prefixes from host memory and disk where that beats computing them, or always")},
    {SIZE("image-memory", image_memory, "512M", 1, UINT64_MAX,
          "decoded images of waiting and running requests; above it a request gets 429, unless it is alone")},
    {SIZE("response-store", response_store, "64M", 0, UINT64_MAX,
          "stored responses of /v1/responses, in memory; 0 = none")},
    {SIZE("grammar-memory", grammar_memory, "256M", 1u << 20, UINT64_MAX,
          "structured outputs: compiled schemas, regexes and grammars, with masks; above it a request with a "
          "new one waits, then gets 503")},
    {SIZE("response-memory", response_memory, "1G", 1, UINT64_MAX,
          "buffered responses, with their log-probs; above it the request that holds most gets 429")},
#ifdef KVASIR_KV_EVENTS
    {STRING(
        "kv-events", kv_events, NULL, "tcp://ADDR:PORT",
        "publish what the prefix cache stores and drops, for routers (ZeroMQ; connect:tcp://... connects)")},
    {STRING("kv-events-replay", kv_events_replay, NULL, "tcp://ADDR:PORT",
            "ZeroMQ address that replays published events")},
    {COUNT("kv-events-block", kv_events_block, "0", 0, 65536, "N",
           "tokens of a block in events, as routers expect; 0 = 32, the cache's own")},
    {WORD("kv-events-layout", kv_events_layout, "array", WORDS("array", "map"),
          "encoding of an event: fields in order, or with names, as in newer vLLM")},
#endif
    {COUNT("step-ms", step_ms, "100", 0, 60000, "MS",
           "target duration of an engine step; long prefills and images are chunked to fit; 0 = no limit")},
    {STRING("draft-model", draft_model, NULL, "DIR",
            "speculative decoding with an MTP drafter made for the model (its *-it-assistant): its draft "
            "tokens are verified in one step; output stays the same; default: the drafter in the checkpoint, "
            "if there is one"),
     BOTH},
    {COUNT("draft-tokens", draft_tokens, "auto", 0, 16, "N|auto",
           "speculative decoding: draft tokens per step (0 to 16), exactly N with a draft model, at most N "
           "with "
           "prompt lookup (n-gram); auto = up to 8, by acceptance rate, prompt lookup on the CPU only; 0 = "
           "off; "
           "output stays the same"),
     .words = WORDS("auto")},
    {COUNT("max-batch-tokens", max_batch_tokens, "0", 0, 1u << 20, "N",
           "tokens of one engine step (continuous batching); 0 = 2048")},
    {COUNT("max-sequences", max_sequences, "0", 0, 65536, "N", "sequences of one engine step; 0 = 64")},
    {COUNT("prefill-chunk", prefill_chunk, "0", 0, 1u << 20, "N",
           "chunked prefill: prompt tokens of one sequence per step; 0 = as many as fit")},
    {COUNT("max-queue", max_queue, "1024", 1, 1u << 20, "N", "waiting sequences; above it requests get 429")},
    {COUNT("request-timeout", request_timeout, "0", 0, 31536000, "SECONDS",
           "time limit of a request, queueing included; 0 = no limit")},
    {STRING("host", host, "127.0.0.1", "ADDR[,ADDR]", "addresses to listen on; unix:PATH is a UNIX socket")},
    {STRING("root-path", root_path, NULL, "/PREFIX",
            "path prefix under which a proxy serves this server (default: none)")},
    {COUNT("port", port, "8000", 0, 65535, "N", "TCP port; 0 picks a free one")},
    {STRING("api-key", api_key, NULL, "KEY",
            "an API key to accept; visible in `ps`, so prefer KVASIR_API_KEY or --api-key-file")},
    {STRING("api-key-file", api_key_file, NULL, "FILE",
            "accepted API keys, one per line; a line \"KEY priority\" lets its requests' priority count "
            "before other keys' (default: no key needed)")},
    {STRING("tls-cert", tls_cert, NULL, "FILE", "HTTPS: certificate chain, PEM; read again on SIGHUP")},
    {STRING("tls-key", tls_key, NULL, "FILE", "private key of --tls-cert, PEM")},
    {WORD("enable-admin", enable_admin, "auto", WORDS("auto", "on", "off"),
          "POST /reset_prefix_cache and the like; auto: for API keys with \"priority\", or if --host is a "
          "loopback address")},
    {STRING("cors-origins", cors_origins, "loopback", "ORIGIN[,ORIGIN]",
            "web pages that may use the server: SCHEME://HOST[:PORT], loopback (those of this machine) or *; "
            "its own page always may")},
    {STRING("allowed-hosts", allowed_hosts, "auto", "HOST[,HOST]",
            "names in the Host header, in addition to loopback ones, addresses and --host: HOST, *.HOST or "
            "*; auto: none without API keys, else any")},
    {SIZE("max-body-bytes", max_body_bytes, "64M", 1024, 1ull << 31, "largest request body")},
    {COUNT("max-connections", max_connections, "4096", 1, 1u << 20, "N", "open client connections")},
    {COUNT("max-images", max_images, "16", 0, 1024, "N", "images in a prompt, videos included")},
    {COUNT("max-n", max_n, "128", 1, 1024, "N", "largest n of a request")},
    {COUNT("keep-alive-timeout", keep_alive_timeout, "75", 1, 86400, "SECONDS",
           "idle time after which a connection is closed")},
    {WORD("stream-finish", stream_finish, "separate", WORDS("separate", "merged"),
          "finish_reason in its own chunk, or merged with the last token")},
    {STRING("allow-remote-media", allow_remote_media, NULL, "HOST[,HOST]",
            "fetch images of http(s) URLs from these hosts: HOST, *.HOST or *, with :PORT or :* unless 80 or "
            "443 (default: none)")},
    {STRING("allow-private-media", allow_private_media, NULL, "CIDR[,CIDR]",
            "private networks that these hosts may be in, such as 10.1.0.0/16")},
    {COUNT("media-timeout", media_timeout, "5", 1, 600, "SECONDS", "time limit for fetching one URL")},
    {STRING("allowed-media-dir", allowed_media_dir, NULL, "DIR",
            "read images of file: URLs below this directory (default: none)")},
    {COUNT("shutdown-delay", shutdown_delay, "5", 0, 86400, "SECONDS",
           "after SIGTERM: time in which the server is not ready, but still serves")},
    {COUNT("drain-timeout", drain_timeout, "25", 0, 86400, "SECONDS",
           "after --shutdown-delay: time for running requests to finish")},
    {COUNT("watchdog", watchdog, "600", 1, 86400, "SECONDS",
           "seconds without progress before the engine is considered hung: /health 503")},
    {COUNT("watchdog-exit", watchdog_exit, "300", 0, 86400, "SECONDS",
           "seconds after --watchdog until the process exits with code 1; 0 = never")},
    {STRING("config", config, NULL, "FILE", "file of 'name = value' lines, named as the flags"), BOTH},
    {WORD("log-level", log_level, "info", WORDS("error", "warn", "info", "debug"), "what is logged")},
    {WORD("log-format", log_format, "text", WORDS("text", "json"),
          "lines of key=value pairs, or JSON objects")},
    {STRING("log-file", log_file, NULL, "FILE",
            "append the log to this file, which is opened again on SIGHUP (default: stderr)")},
    {STRING("shape", shape, NULL, "NAME", "random weights of a known model's shape, see below"), BENCH},
    {NUMBERS("prefill", prefill, "512,2048", 1, 1u << 17, "N,N...|none", "prompt lengths to measure"), BENCH},
    {NUMBERS("decode", decode, "1,8,32", 1, OPTION_BATCH_MAX, "N,N...|none", "batch sizes to measure"),
     BENCH},
    {COUNT("context", context, "128", 1, 1u << 17, "N", "tokens in the cache when decoding starts"), BENCH},
    {BOOL("vision", vision, "off", "also measure the vision tower"), BENCH},
    {NUMBERS("draft", draft, "none", 0, 100, "P,P...|none",
             "speculative decoding at acceptance rates of P %, against none, by batch of --decode, with "
             "--draft-model or the shape's drafter"),
     BENCH},
    {COUNT("repeats", repeats, "3", 1, 1000, "N", "runs of each measurement; the best counts"), BENCH},
    {BOOL("profile", profile, "off", "time by part of the model, with shares of the ceilings"), BENCH},
    {BOOL("json", json, "off", "the results as JSON"), BENCH},
};
enum { ROW_COUNT = sizeof rows / sizeof *rows, WORDS_BYTES = 64, ALL = OPTIONS_SERVE | OPTIONS_BENCH };

/* The headings of docs/flags.md, each with its first flag. */
static const char *const groups[][2] = {
    {"model", "Model and backend"},
    {"kv-dtype", "Memory and caches"},
    {"kv-events", "Cache events"},
    {"step-ms", "Scheduling"},
    {"host", "HTTP"},
    {"allow-remote-media", "Media"},
    {"shutdown-delay", "Process"},
};

static bool row_of(const struct row *r, unsigned commands)
{
    return ((r->commands ? r->commands : OPTIONS_SERVE) & commands) != 0;
}

static const struct row *row_find(const char *name, size_t len, unsigned commands)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (row_of(&rows[i], commands) && strlen(rows[i].name) == len && memcmp(rows[i].name, name, len) == 0)
            return &rows[i];
    }
    return NULL;
}

/* Index of a word; -1: it is none of them. */
static int word_find(const char *const *words, const char *word)
{
    for (int i = 0; words && words[i]; i++)
        if (strcmp(words[i], word) == 0) return i;
    return -1;
}

const char *option_word(const char *name, unsigned value)
{
    return row_find(name, strlen(name), ALL)->words[value];
}

int option_value(const char *name, const char *word)
{
    return word_find(row_find(name, strlen(name), ALL)->words, word);
}

/* "a|b|c" */
static const char *words_join(const char *const *words, char to[WORDS_BYTES])
{
    size_t n = 0;
    for (size_t i = 0; words[i]; i++)
        n += (size_t)snprintf(to + n, WORDS_BYTES - n, "%s%s", i ? "|" : "", words[i]);
    return to;
}

/* "123", "64M" (if suffixes are allowed), digits only otherwise. */
static bool number_parse(const char *s, bool suffix, uint64_t *out)
{
    if (!isdigit((unsigned char)*s)) return false;
    char *end;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno) return false;
    unsigned shift = 0;
    if (suffix && *end) {
        switch (toupper((unsigned char)*end)) {
        case 'K': shift = 10; break;
        case 'M': shift = 20; break;
        case 'G': shift = 30; break;
        case 'T': shift = 40; break;
        default: return false;
        }
        end++;
        if (*end == 'i') end++;
        if (*end == 'B' || *end == 'b') end++;
    }
    if (*end || (shift && v >> (64 - shift))) return false;
    *out = (uint64_t)v << shift;
    return true;
}

bool options_size(const char *text, uint64_t *out)
{
    return number_parse(text, true, out);
}

/* "1,8,32", or "none" */
static bool numbers_parse(const struct row *r, const char *s, struct option_numbers *out)
{
    *out = (struct option_numbers){0};
    for (bool more = strcmp(s, "none") != 0; more;) {
        char digits[16];
        uint64_t v;
        size_t n = strcspn(s, ",");
        snprintf(digits, sizeof digits, "%.*s", (int)n, s);
        if (out->count == OPTION_NUMBERS_MAX || n >= sizeof digits || !number_parse(digits, false, &v) ||
            v < r->min || v > r->max)
            return false;
        out->at[out->count++] = (uint32_t)v;
        more = s[n] == ',';
        s += n + more;
    }
    return true;
}

/* As a person would write it: "1M". */
static void size_text(uint64_t v, const char *before, char *to, size_t cap)
{
    static const char *const suffix[] = {"", "K", "M", "G"};
    unsigned i = 0;
    while (i < 3 && v && v % 1024 == 0) {
        v /= 1024;
        i++;
    }
    snprintf(to, cap, "%s%llu%s", before, (unsigned long long)v, suffix[i]);
}

/* What is wrong with a number. */
static enum status number_bad(const struct row *r, const char *value, struct err *err)
{
    unsigned long long min = r->min, max = r->max;
    char least[32], most[48] = "";
    uint64_t v;
    if (r->kind == K_SIZE) {
        if (!number_parse(value, true, &v))
            return err_set(err, ST_INVALID, "'%.60s' is not a size (such as 512M or 4G)", value);
        size_text(r->min, "", least, sizeof least);
        if (r->max < UINT64_MAX) size_text(r->max, " and at most ", most, sizeof most);
        return err_set(err, ST_INVALID, "%.60s is not allowed: it must be at least %s%s", value, least, most);
    }
    if (r->words)
        return err_set(err, ST_INVALID, "'%.60s' is not allowed: auto, or %llu to %llu", value, min, max);
    if (number_parse(value, false, &v))
        return err_set(err, ST_INVALID, "%llu is outside %llu..%llu", (unsigned long long)v, min, max);
    if (number_parse(value, true, &v))
        return err_set(err, ST_INVALID, "'%.60s' is not a whole number: write %llu", value,
                       (unsigned long long)v);
    return err_set(err, ST_INVALID, "'%.60s' is not a whole number", value);
}

static enum status value_set(const struct row *r, void *field, const char *value, struct err *err)
{
    uint64_t v = 0;
    int word = word_find(r->words, value);
    char words[WORDS_BYTES], *copy;
    switch (r->kind) {
    case K_STRING:
        if (!*value) return err_set(err, ST_INVALID, "empty value");
        if (!(copy = strdup(value))) return err_nomem(err, NULL);
        free(*(char **)field);
        *(char **)field = copy;
        break;
    case K_WORD:
        if (word < 0)
            return err_set(err, ST_INVALID, "'%.60s' is not one of %s", value, words_join(r->words, words));
        *(unsigned *)field = (unsigned)word;
        break;
    case K_BOOL:
        if (word < 0) word = word_find(WORDS("true", "false"), value);
        if (word < 0) word = word_find(WORDS("1", "0"), value);
        if (word < 0) return err_set(err, ST_INVALID, "'%.60s' is not on or off", value);
        *(bool *)field = word == 0;
        break;
    case K_NUMBERS:
        if (!numbers_parse(r, value, field))
            return err_set(err, ST_INVALID, "'%.60s' is not a list of at most %u numbers of %llu to %llu",
                           value, OPTION_NUMBERS_MAX, (unsigned long long)r->min, (unsigned long long)r->max);
        break;
    case K_SIZE:
    case K_COUNT:
        if (word >= 0) v = OPTION_AUTO;
        else if (!number_parse(value, r->kind == K_SIZE, &v) || v < r->min || v > r->max)
            return number_bad(r, value, err);
        *(uint64_t *)field = v;
    }
    return ST_OK;
}

static enum status row_set(const struct row *r, struct options *o, const char *value, const char *origin,
                           struct err *err)
{
    enum status st = value_set(r, (char *)o + r->at, value, err);
    return st ? err_prefix(err, st, "%s%s", origin, r->name) : ST_OK;
}

static enum status defaults_set(struct options *o, struct err *err)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (!rows[i].init) continue;
        enum status st = row_set(&rows[i], o, rows[i].init, "default of --", err);
        if (st) return st;
    }
    return ST_OK;
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s)) s++;
    size_t n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1])) s[--n] = '\0';
    return s;
}

static enum status file_read(const char *path, unsigned commands, struct options *o, struct err *err)
{
    char *text = NULL;
    size_t len;
    enum status st = file_text_piped(path, FILE_FLAG_MAX, FILE_PIPE_MS, &text, &len, err);
    if (st) return err_prefix(err, ST_IO, "--config");
    unsigned number = 0;
    for (char *at = text, *line; !st && (line = file_line(&at, text + len));) {
        number++;
        char *s = trim(line);
        if (!*s || *s == '#') continue;
        char *eq = strchr(s, '=');
        if (!eq) {
            st = err_set(err, ST_INVALID, "%s:%u: expected 'name = value'", path, number);
            break;
        }
        *eq = '\0';
        char *name = trim(s), *value = trim(eq + 1);
        size_t n = strlen(value);
        if (n >= 2 && value[0] == '"' && value[n - 1] == '"') {
            value[n - 1] = '\0';
            value++;
        }
        for (char *p = name; *p; p++) {
            if (*p == '_') *p = '-';
        }
        const struct row *r = row_find(name, strlen(name), commands);
        if (!r || strcmp(name, "config") == 0) {
            st = err_set(err, ST_INVALID, "%s:%u: unknown name '%.60s'", path, number, name);
            break;
        }
        char origin[300];
        snprintf(origin, sizeof origin, "%.200s:%u: ", path, number);
        st = row_set(r, o, value, origin, err);
    }
    free(text);
    return st;
}

/* A misspelt name must not be ignored silently. Exceptions: debugging switches, and variables that Kubernetes
 * sets in every pod for a service named kvasir or kvasir-something. */
static bool env_known(const char *entry, size_t len, unsigned commands)
{
    static const char *const exact[] = {"CUDA_GRAPHS", "CUDA_HOPPER", "CUDA_LIBRARY", "TEMPLATE_CASES"};
    static const char *const within[] = {"TEST_", "FUZZ_", "SERVICE_", "PORT_"};
    char name[64];
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        if (strlen(exact[i]) == len && memcmp(entry, exact[i], len) == 0) return true;
    for (size_t i = 0; i < sizeof within / sizeof *within; i++)
        if (memmem(entry, len, within[i], strlen(within[i]))) return true;
    if (strncmp(entry + len, "=tcp://", 7) == 0 || strncmp(entry + len, "=udp://", 7) == 0) return true;
    for (size_t i = 0; i < len && i < sizeof name; i++)
        name[i] = entry[i] == '_' ? '-' : (char)tolower((unsigned char)entry[i]);
    return len <= sizeof name && row_find(name, len, commands);
}

static enum status env_read(unsigned commands, struct options *o, struct err *err)
{
    for (char **e = environ; *e; e++) {
        if (strncmp(*e, "KVASIR_", 7) == 0 && !env_known(*e + 7, strcspn(*e + 7, "="), commands))
            return err_set(err, ST_INVALID, "environment: unknown name '%.*s'", (int)strcspn(*e, "="), *e);
    }
    for (size_t i = 0; i < ROW_COUNT; i++) {
        char name[64] = "KVASIR_";
        size_t n = strlen(name);
        for (const char *p = rows[i].name; *p && n < sizeof name - 1; p++)
            name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
        name[n] = '\0';
        const char *v = row_of(&rows[i], commands) ? env_get(name) : NULL;
        if (!v || !*v) continue;
        if (strcmp(name, "KVASIR_PORT") == 0 && strncmp(v, "tcp://", 6) == 0) continue; /* Kubernetes again */
        enum status st = row_set(&rows[i], o, v, "environment, --", err);
        if (st) return st;
    }
    return ST_OK;
}

/* Whether a and b differ in at most two neighbouring characters. */
static bool alike(const char *a, size_t n, const char *b)
{
    size_t m = strlen(b), i = 0, k = 0, longer = n > m ? n : m;
    while (i < n && i < m && a[i] == b[i]) i++;
    while (i + k < n && i + k < m && a[n - 1 - k] == b[m - 1 - k]) k++;
    return i + k + 2 >= longer && longer > 3;
}

/* As llama.cpp and vLLM spell it. */
static const char *const elsewhere[][2] = {
    {"-m", "--model MODEL"},
    {"-c", "--max-context N"},
    {"--ctx-size", "--max-context N"},
    {"--max-model-len", "--max-context N"},
    {"-hf", "kvasir serve ORG/NAME[:Q4_K_M]"},
    {"--hf-repo", "kvasir serve ORG/NAME[:Q4_K_M]"},
    {"-a", "--served-model-name NAME"},
    {"--alias", "--served-model-name NAME"},
    {"-t", "--threads N"},
    {"-ngl", "--backend cuda"},
    {"--n-gpu-layers", "--backend cuda"},
    {"-md", "--draft-model DIR"},
    {"-np", "--max-sequences N"},
    {"--parallel", "--max-sequences N"},
    {"--max-num-seqs", "--max-sequences N"},
    {"--max-num-batched-tokens", "--max-batch-tokens N"},
    {"--gpu-memory-utilization", "--kv-memory SIZE"},
    {"--kv-cache-dtype", "--kv-dtype TYPE"},
    {"--cache-type-k", "--kv-dtype TYPE"},
    {"--limit-mm-per-prompt", "--max-images N"},
    {"--enable-prefix-caching", "on by default"},
    {"--trust-remote-code", "not needed"},
    {"--enable-auto-tool-choice", "on by default"},
    {"--tool-call-parser", "not needed: tool calls follow the chat template"},
    {"--reasoning-parser", "not needed: reasoning follows the chat template"},
    {"--jinja", "on by default"},
    {"--chat-template-file", "--chat-template FILE"},
    {"--default-chat-template-kwargs", "--chat-template-kwargs JSON"},
    {"--ssl-cert-file", "--tls-cert FILE"},
    {"--ssl-certfile", "--tls-cert FILE"},
    {"--ssl-key-file", "--tls-key FILE"},
    {"--ssl-keyfile", "--tls-key FILE"},
};

static enum status flag_unknown(unsigned commands, const char *flag, size_t len, struct err *err)
{
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (strlen(elsewhere[i][0]) == len && memcmp(flag, elsewhere[i][0], len) == 0)
            return err_set(err, ST_INVALID, "unknown flag '%s': here it is %s", elsewhere[i][0],
                           elsewhere[i][1]);
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (row_of(&rows[i], commands) && alike(flag + 2, len - 2, rows[i].name))
            return err_set(err, ST_INVALID, "unknown flag '%.60s': did you mean --%s? (see --help)", flag,
                           rows[i].name);
    return err_set(err, ST_INVALID, "unknown flag '%.60s' (see --help)", flag);
}

/* The first argument, if it is no flag: a path, or a model of the hub. */
static enum status model_argument(const char *a, struct options *o, struct err *err)
{
    char name[1400];
    const char *slash = strchr(a, '/');
    size_t repo = strcspn(a, "@:");
    bool path = access(a, F_OK) == 0 || strncmp(a, "hf:", 3) == 0 || strspn(a, "./~") > 0 ||
                (slash && slash < a + repo && memchr(slash + 1, '/', repo - (size_t)(slash + 1 - a)));
    if (!path && !slash)
        return err_set(err, ST_INVALID,
                       "unexpected argument '%.60s': a model is a directory, a GGUF file or ORG/NAME on the "
                       "Hugging Face hub, and flags begin with -- (see --help)",
                       a);
    snprintf(name, sizeof name, "%s%s", path ? "" : "hf:", a);
    return row_set(row_find("model", 5, ALL), o, name, "--", err);
}

static enum status args_read(unsigned commands, int argc, char **argv, struct options *o, bool only_config,
                             struct err *err)
{
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i];
        if (*a != '-') {
            if (only_config) continue;
            enum status st = !i ? model_argument(a, o, err)
                                : err_set(err, ST_INVALID,
                                          "unexpected argument '%.60s': MODEL comes once, before the flags "
                                          "(see --help)",
                                          a);
            if (st) return st;
            continue;
        }
        if (a[1] != '-') return flag_unknown(commands, a, strcspn(a, "="), err);
        const char *name = a + 2, *eq = strchr(name, '=');
        size_t len = eq ? (size_t)(eq - name) : strlen(name);
        const struct row *r = row_find(name, len, commands);
        if (!r) return flag_unknown(commands, a, len + 2, err);
        const char *value;
        if (eq) {
            value = eq + 1;
        } else if (word_find(r->words, "on") >= 0 && (i + 1 >= argc || strncmp(argv[i + 1], "--", 2) == 0)) {
            value = "on";
        } else if (i + 1 < argc) {
            value = argv[++i];
        } else {
            return err_set(err, ST_INVALID, "--%s needs a value", r->name);
        }
        if (only_config && strcmp(r->name, "config") != 0) continue;
        enum status st = row_set(r, o, value, "--", err);
        if (st) return st;
    }
    return ST_OK;
}

static enum status combination_check(unsigned commands, const struct options *o, struct err *err)
{
    if (commands == OPTIONS_BENCH && !o->model == !o->shape)
        return err_set(err, ST_INVALID, "give either --model or --shape");
    if (o->allow_private_media && !o->allow_remote_media)
        return err_set(err, ST_INVALID, "--allow-private-media needs --allow-remote-media");
    if (!o->tls_cert != !o->tls_key) return err_set(err, ST_INVALID, "--tls-cert and --tls-key go together");
    if (o->kv_events_replay && !o->kv_events)
        return err_set(err, ST_INVALID, "--kv-events-replay needs --kv-events");
    if (o->kv_events && !o->prefix_cache)
        return err_set(err, ST_INVALID, "--kv-events needs the prefix cache: leave out --prefix-cache off");
    return ST_OK;
}

enum status options_parse(enum option_commands command, int argc, char **argv, struct options *out,
                          struct err *err)
{
    struct options o = {0};
    const char *env_config = env_get("KVASIR_CONFIG");
    enum status st = defaults_set(&o, err);
    /* The file's name may come from the command line or the environment, which both override its contents:
     * find it first. */
    if (!st) st = args_read(command, argc, argv, &o, true, err);
    if (!st && !o.config && env_config && *env_config) {
        o.config = strdup(env_config);
        if (!o.config) st = err_nomem(err, NULL);
    }
    if (!st && o.config) st = file_read(o.config, command | OPTIONS_SERVE, &o, err);
    if (!st) st = env_read(command | OPTIONS_SERVE, &o, err);
    if (!st) st = args_read(command, argc, argv, &o, false, err);
    if (!st) st = combination_check(command, &o, err);
    if (st) {
        options_fini(&o);
        return st;
    }
    *out = o;
    return ST_OK;
}

void options_fini(struct options *o)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (rows[i].kind == K_STRING) free(*(char **)(void *)((char *)o + rows[i].at));
    }
    *o = (struct options){0};
}

enum { HELP_AT = 34, HELP_WIDTH = 110 };

static void help_row(FILE *f, const struct row *r)
{
    char words[WORDS_BYTES];
    const char *value = r->arg ? r->arg : words_join(r->words, words), *p = r->help;
    int at = fprintf(f, "  --%s %s", r->name, value);
    if (at >= HELP_AT) at = HELP_WIDTH; /* the text starts in the next line */
    else at += fprintf(f, "%*s", HELP_AT - 1 - at, "");
    while (*p) {
        int n = (int)strcspn(p, " ");
        if (at + 1 + n > HELP_WIDTH) at = fprintf(f, "\n%*s", HELP_AT - 1, "") - 1;
        at += fprintf(f, " %.*s", n, p);
        p += n + (p[n] == ' ');
    }
    if (r->init && strcmp(r->init, "0") != 0) {
        if (at + 3 + (int)strlen(r->init) > HELP_WIDTH) fprintf(f, "\n%*s", HELP_AT - 1, "");
        fprintf(f, " [%s]", r->init);
    }
    fputc('\n', f);
}

void options_help(enum option_commands command, FILE *f)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (!row_of(&rows[i], command)) continue;
        for (size_t g = 0; command == OPTIONS_SERVE && g < sizeof groups / sizeof *groups; g++)
            if (strcmp(rows[i].name, groups[g][0]) == 0) fprintf(f, "\n%s\n", groups[g][1]);
        help_row(f, &rows[i]);
    }
    fputs("\nEach flag is also an environment variable (KVASIR_MAX_CONTEXT) and a line of the --config file\n"
          "(max-context = 4096); the command line overrides the environment, and the environment the file.\n",
          f);
}
