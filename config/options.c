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

enum kind { K_STRING, K_CHOICE, K_COUNT, K_SIZE, K_BOOL };

struct row {
    const char *name;
    enum kind kind;
    size_t at;           /* offset of the field in struct options */
    const char *init;    /* default, as a person would write it; NULL = unset */
    uint64_t min, max;   /* K_COUNT, K_SIZE; K_CHOICE: numbers allowed besides, if max > 0 */
    const char *choices; /* K_CHOICE: "a|b|c" */
    const char *arg;     /* how --help names the value; K_CHOICE: NULL = choices */
    const char *help;
};

#define AT(field) offsetof(struct options, field)
#define U32_TOP   0xffffffffull
static const struct row rows[] = {
    {"model", K_STRING, AT(model), NULL, 0, 0, NULL, "MODEL",
     "checkpoint directory, GGUF file, or hf:ORG/NAME[@REVISION][:FILE.gguf] on the Hugging Face hub "
     "(default: the bundled demo model)"},
    {"mmproj", K_STRING, AT(mmproj), NULL, 0, 0, NULL, "FILE",
     "vision tower of a GGUF model, also a GGUF file (llama.cpp's mmproj)"},
    {"served-model-name", K_STRING, AT(served_model_name), NULL, 0, 0, NULL, "NAME[,NAME]",
     "model names in the API (default: the directory's name, or the file's without .gguf)"},
    {"accept-any-model", K_BOOL, AT(accept_any_model), "off", 0, 0, NULL, NULL,
     "accept requests for any model name"},
    {"default-max-tokens", K_COUNT, AT(default_max_tokens), "0", 0, U32_TOP, NULL, "N",
     "max_tokens of chats and responses that set none; 0 = up to the context limit"},
    {"always-include-usage", K_BOOL, AT(always_include_usage), "off", 0, 0, NULL, NULL,
     "stream_options.include_usage for every stream"},
    {"backend", K_CHOICE, AT(backend), "auto", 0, 0, "auto|cpu|cuda", NULL, "where the model runs"},
    {"cpu-kernels", K_CHOICE, AT(cpu_kernels), "auto", 0, 0, "auto|reference|avx2|avx512|amx", NULL,
     "kernel set of the CPU backend (x86-64)"},
    {"threads", K_COUNT, AT(threads), "0", 0, 256, NULL, "N", "compute threads; 0 = all usable cores"},
    {"dtype", K_CHOICE, AT(dtype), "auto", 0, 0, "auto|bf16|f32", NULL,
     "compute type; auto = the checkpoint's"},
    {"gemm", K_CHOICE, AT(gemm), "auto", 0, 0, "auto|cublas|own", NULL,
     "matrix products on a GPU: cuBLASLt for the weight shapes that are batch-invariant there, or own "
     "kernels; auto: cublas"},
    {"quantize", K_CHOICE, AT(quantize), "none", 0, 0, "none|int8|int4", NULL,
     "weight quantization of the text model (INT8, INT4), mixture of experts too, and of the image tower "
     "(INT8); quantized weights (GGUF, AWQ, ...) keep their type"},
    {"quantize-vision", K_BOOL, AT(quantize_vision), "on", 0, 0, NULL, NULL,
     "integer weights in the image tower: of --quantize and of a GGUF file; off = the compute type"},
    {"generation-config", K_CHOICE, AT(generation_config), "auto", 0, 0, "auto|ignore", NULL,
     "sampling defaults from the checkpoint"},
    {"tool-parser", K_CHOICE, AT(tool_parser), "auto", 0, 0, "auto|strict", NULL,
     "function calling (tools): calls in the chat template's syntax, with auto also as plain JSON"},
    {"chat-template", K_STRING, AT(chat_template), NULL, 0, 0, NULL, "FILE",
     "Jinja chat template instead of the checkpoint's"},
    {"chat-template-kwargs", K_STRING, AT(chat_template_kwargs), NULL, 0, 0, NULL, "JSON",
     "variables of the chat template, an object; a request's chat_template_kwargs take precedence"},
    {"control-tokens", K_CHOICE, AT(control_tokens), "text", 0, 0, "text|parse", NULL,
     "control tokens in message text: plain text, or parsed"},
    {"billing-header", K_CHOICE, AT(billing_header), "drop", 0, 0, "drop|keep", NULL,
     "/v1/messages: the system block x-anthropic-billing-header of Claude Code, which differs in each "
     "request"},
    {"kv-dtype", K_CHOICE, AT(kv_dtype), "auto", 0, 0, "auto|bf16|int8", NULL,
     "KV cache quantization; auto = the compute type, int8 takes half the memory"},
    {"kv-memory", K_SIZE, AT(kv_memory), "auto", 1u << 20, UINT64_MAX, NULL, "SIZE|auto",
     "memory of the paged KV cache (K, M, G suffixes)"},
    {"max-context", K_COUNT, AT(max_context), "0", 0, U32_TOP, NULL, "N",
     "tokens of prompt and output; 0 = the checkpoint's limit"},
    {"prefix-cache", K_CHOICE, AT(prefix_cache), "on", 0, 0, "on|off", NULL,
     "automatic prefix caching: reuse the KV of equal prompt prefixes, text and images"},
    {"cache-scope", K_CHOICE, AT(cache_scope), "key", 0, 0, "key|server", NULL,
     "with API keys: cached data is reused by requests of the same key only, or by all"},
    {"encoder-cache-memory", K_SIZE, AT(encoder_cache_memory), "256M", 1, UINT64_MAX, NULL, "SIZE",
     "encoded images kept for later requests (K, M, G suffixes)"},
    {"cache-dir", K_STRING, AT(cache_dir), NULL, 0, 0, NULL, "DIR",
     "keep cached prefixes and encoded images on disk as well, so that they survive a restart; anyone who "
     "can "
     "read DIR can recover prompts (default: none)"},
    {"cache-disk", K_SIZE, AT(cache_disk), "16G", 1u << 20, UINT64_MAX, NULL, "SIZE",
     "space that --cache-dir may take; least recently used prefixes are deleted first"},
    {"cache-host", K_SIZE, AT(cache_host), "0", 0, UINT64_MAX, NULL, "SIZE",
     "host memory for evicted prefixes and images, before the disk; 0 = none, or 128 MiB with a GPU and "
     "--cache-dir"},
    {"cache-load", K_CHOICE, AT(cache_load), "auto", 0, 0, "auto|always", NULL,
     "load prefixes from host memory and disk where that beats computing them, or always"},
    {"image-memory", K_SIZE, AT(image_memory), "512M", 1, UINT64_MAX, NULL, "SIZE",
     "decoded images of waiting and running requests; above it a request gets 429, unless it is alone"},
    {"response-store", K_SIZE, AT(response_store), "64M", 0, UINT64_MAX, NULL, "SIZE",
     "stored responses of /v1/responses, in memory; 0 = none"},
    {"grammar-memory", K_SIZE, AT(grammar_memory), "256M", 1u << 20, UINT64_MAX, NULL, "SIZE",
     "structured outputs: compiled schemas, regexes and grammars, with masks; above it a request with a new "
     "one waits, then gets 503"},
    {"response-memory", K_SIZE, AT(response_memory), "1G", 1, UINT64_MAX, NULL, "SIZE",
     "buffered responses, with their log-probs; above it the request that holds most gets 429"},
#ifdef KVASIR_KV_EVENTS
    {"kv-events", K_STRING, AT(kv_events), NULL, 0, 0, NULL, "tcp://ADDR:PORT",
     "publish what the prefix cache stores and drops, for routers (ZeroMQ; connect:tcp://... connects)"},
    {"kv-events-replay", K_STRING, AT(kv_events_replay), NULL, 0, 0, NULL, "tcp://ADDR:PORT",
     "ZeroMQ address that replays published events"},
    {"kv-events-block", K_COUNT, AT(kv_events_block), "0", 0, 65536, NULL, "N",
     "tokens of a block in events, as routers expect; 0 = 32, the cache's own"},
    {"kv-events-layout", K_CHOICE, AT(kv_events_layout), "array", 0, 0, "array|map", NULL,
     "encoding of an event: fields in order, or with names, as in newer vLLM"},
#endif
    {"step-ms", K_COUNT, AT(step_ms), "100", 0, 60000, NULL, "MS",
     "target duration of an engine step; long prefills and images are chunked to fit; 0 = no limit"},
    {"draft-model", K_STRING, AT(draft_model), NULL, 0, 0, NULL, "DIR",
     "speculative decoding with an MTP drafter made for the model (its *-it-assistant): its draft tokens are "
     "verified in one step; output stays the same; default: the drafter in the checkpoint, if there is one"},
    {"draft-tokens", K_CHOICE, AT(draft_tokens), "auto", 0, 16, "auto", "N|auto",
     "speculative decoding: draft tokens per step (0 to 16), exactly N with a draft model, at most N with "
     "prompt lookup (n-gram); auto = up to 8, by acceptance rate, prompt lookup on the CPU only; 0 = off; "
     "output stays the same"},
    {"max-batch-tokens", K_COUNT, AT(max_batch_tokens), "0", 0, 1u << 20, NULL, "N",
     "tokens of one engine step (continuous batching); 0 = 2048"},
    {"max-sequences", K_COUNT, AT(max_sequences), "0", 0, 65536, NULL, "N",
     "sequences of one engine step; 0 = 64"},
    {"prefill-chunk", K_COUNT, AT(prefill_chunk), "0", 0, 1u << 20, NULL, "N",
     "chunked prefill: prompt tokens of one sequence per step; 0 = as many as fit"},
    {"max-queue", K_COUNT, AT(max_queue), "1024", 1, 1u << 20, NULL, "N",
     "waiting sequences; above it requests get 429"},
    {"request-timeout", K_COUNT, AT(request_timeout), "0", 0, 31536000, NULL, "SECONDS",
     "time limit of a request, queueing included; 0 = no limit"},
    {"host", K_STRING, AT(host), "127.0.0.1", 0, 0, NULL, "ADDR[,ADDR]",
     "addresses to listen on; unix:PATH is a UNIX socket"},
    {"root-path", K_STRING, AT(root_path), NULL, 0, 0, NULL, "/PREFIX",
     "path prefix under which a proxy serves this server (default: none)"},
    {"port", K_COUNT, AT(port), "8000", 0, 65535, NULL, "N", "TCP port; 0 picks a free one"},
    {"api-key", K_STRING, AT(api_key), NULL, 0, 0, NULL, "KEY",
     "an API key to accept; visible in `ps`, so prefer KVASIR_API_KEY or --api-key-file"},
    {"api-key-file", K_STRING, AT(api_key_file), NULL, 0, 0, NULL, "FILE",
     "accepted API keys, one per line; a line \"KEY priority\" lets its requests' priority count "
     "before other keys' (default: no key needed)"},
    {"tls-cert", K_STRING, AT(tls_cert), NULL, 0, 0, NULL, "FILE",
     "HTTPS: certificate chain, PEM; read again on SIGHUP"},
    {"tls-key", K_STRING, AT(tls_key), NULL, 0, 0, NULL, "FILE", "private key of --tls-cert, PEM"},
    {"enable-admin", K_CHOICE, AT(enable_admin), "auto", 0, 0, "auto|on|off", NULL,
     "POST /reset_prefix_cache and the like; auto: for API keys with \"priority\", or if --host is a "
     "loopback address"},
    {"cors-origins", K_STRING, AT(cors_origins), "loopback", 0, 0, NULL, "ORIGIN[,ORIGIN]",
     "web pages that may use the server: SCHEME://HOST[:PORT], loopback (those of this machine) or *; its "
     "own page always may"},
    {"allowed-hosts", K_STRING, AT(allowed_hosts), "auto", 0, 0, NULL, "HOST[,HOST]",
     "names in the Host header, in addition to loopback ones, addresses and --host: HOST, *.HOST or *; auto: "
     "none without API keys, else any"},
    {"max-body-bytes", K_SIZE, AT(max_body_bytes), "64M", 1024, 1ull << 31, NULL, "SIZE",
     "largest request body"},
    {"max-connections", K_COUNT, AT(max_connections), "4096", 1, 1u << 20, NULL, "N",
     "open client connections"},
    {"max-images", K_COUNT, AT(max_images), "16", 0, 1024, NULL, "N", "images in a prompt, videos included"},
    {"max-n", K_COUNT, AT(max_n), "128", 1, 1024, NULL, "N", "largest n of a request"},
    {"keep-alive-timeout", K_COUNT, AT(keep_alive_timeout), "75", 1, 86400, NULL, "SECONDS",
     "idle time after which a connection is closed"},
    {"stream-finish", K_CHOICE, AT(stream_finish), "separate", 0, 0, "separate|merged", NULL,
     "finish_reason in its own chunk, or merged with the last token"},
    {"allow-remote-media", K_STRING, AT(allow_remote_media), NULL, 0, 0, NULL, "HOST[,HOST]",
     "fetch images of http(s) URLs from these hosts: HOST, *.HOST or *, with :PORT or :* unless 80 or 443 "
     "(default: none)"},
    {"allow-private-media", K_STRING, AT(allow_private_media), NULL, 0, 0, NULL, "CIDR[,CIDR]",
     "private networks that these hosts may be in, such as 10.1.0.0/16"},
    {"media-timeout", K_COUNT, AT(media_timeout), "5", 1, 600, NULL, "SECONDS",
     "time limit for fetching one URL"},
    {"allowed-media-dir", K_STRING, AT(allowed_media_dir), NULL, 0, 0, NULL, "DIR",
     "read images of file: URLs below this directory (default: none)"},
    {"shutdown-delay", K_COUNT, AT(shutdown_delay), "5", 0, 86400, NULL, "SECONDS",
     "after SIGTERM: time in which the server is not ready, but still serves"},
    {"drain-timeout", K_COUNT, AT(drain_timeout), "25", 0, 86400, NULL, "SECONDS",
     "after --shutdown-delay: time for running requests to finish"},
    {"watchdog", K_COUNT, AT(watchdog), "600", 1, 86400, NULL, "SECONDS",
     "seconds without progress before the engine is considered hung: /health 503"},
    {"watchdog-exit", K_COUNT, AT(watchdog_exit), "300", 0, 86400, NULL, "SECONDS",
     "seconds after --watchdog until the process exits with code 1; 0 = never"},
    {"config", K_STRING, AT(config), NULL, 0, 0, NULL, "FILE",
     "file of 'name = value' lines, named as the flags"},
    {"log-level", K_CHOICE, AT(log_level), "info", 0, 0, "error|warn|info|debug", NULL, "what is logged"},
    {"log-format", K_CHOICE, AT(log_format), "text", 0, 0, "text|json", NULL,
     "lines of key=value pairs, or JSON objects"},
    {"log-file", K_STRING, AT(log_file), NULL, 0, 0, NULL, "FILE",
     "append the log to this file, which is opened again on SIGHUP (default: stderr)"},
};
enum { ROW_COUNT = sizeof rows / sizeof *rows };

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

static const struct row *row_find(const char *name, size_t len)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (strlen(rows[i].name) == len && memcmp(rows[i].name, name, len) == 0) return &rows[i];
    }
    return NULL;
}

static bool choice_ok(const char *choices, const char *value)
{
    size_t n = strlen(value);
    for (const char *p = choices; *p;) {
        size_t m = strcspn(p, "|");
        if (m == n && memcmp(p, value, n) == 0) return true;
        p += m + (p[m] == '|');
    }
    return false;
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

static enum status row_set(const struct row *r, struct options *o, const char *value, const char *origin,
                           struct err *err)
{
    char *field = (char *)o + r->at;
    uint64_t v = 0;
    switch (r->kind) {
    case K_STRING:
    case K_CHOICE: {
        if (r->kind == K_CHOICE && !choice_ok(r->choices, value) &&
            !(r->max && number_parse(value, false, &v) && v >= r->min && v <= r->max)) {
            if (!r->max)
                return err_set(err, ST_INVALID, "%s%s: '%.60s' is not one of %s", origin, r->name, value,
                               r->choices);
            return err_set(err, ST_INVALID, "%s%s: '%.60s' is not allowed: %s, or %llu to %llu", origin,
                           r->name, value, r->choices, (unsigned long long)r->min,
                           (unsigned long long)r->max);
        }
        if (!*value) return err_set(err, ST_INVALID, "%s%s: empty value", origin, r->name);
        char *copy = strdup(value);
        if (!copy) return err_nomem(err, NULL);
        free(*(char **)(void *)field);
        *(char **)(void *)field = copy;
        return ST_OK;
    }
    case K_SIZE:
        if (strcmp(value, "auto") == 0 && r->arg && strstr(r->arg, "auto")) {
            *(uint64_t *)(void *)field = 0;
            return ST_OK;
        }
        /* fall through */
    case K_COUNT:
        if (!number_parse(value, r->kind == K_SIZE, &v)) {
            if (r->kind == K_SIZE)
                return err_set(err, ST_INVALID, "%s%s: '%.60s' is not a size (such as 512M or 4G)", origin,
                               r->name, value);
            if (number_parse(value, true, &v))
                return err_set(err, ST_INVALID, "%s%s: '%.60s' is not a whole number: write %llu", origin,
                               r->name, value, (unsigned long long)v);
            return err_set(err, ST_INVALID, "%s%s: '%.60s' is not a whole number", origin, r->name, value);
        }
        if (r->kind == K_SIZE && (v < r->min || v > r->max)) {
            char least[32], most[48] = "";
            size_text(r->min, "", least, sizeof least);
            if (r->max < UINT64_MAX) size_text(r->max, " and at most ", most, sizeof most);
            return err_set(err, ST_INVALID, "%s%s: %.60s is not allowed: it must be at least %s%s", origin,
                           r->name, value, least, most);
        }
        if (v < r->min || v > r->max) {
            return err_set(err, ST_INVALID, "%s%s: %llu is outside %llu..%llu", origin, r->name,
                           (unsigned long long)v, (unsigned long long)r->min, (unsigned long long)r->max);
        }
        *(uint64_t *)(void *)field = v;
        return ST_OK;
    case K_BOOL:
        if (!choice_ok("on|off|true|false|1|0", value))
            return err_set(err, ST_INVALID, "%s%s: '%.60s' is not on or off", origin, r->name, value);
        *(bool *)(void *)field = choice_ok("on|true|1", value);
        return ST_OK;
    }
    return ST_OK;
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

static enum status file_read(const char *path, struct options *o, struct err *err)
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
        const struct row *r = row_find(name, strlen(name));
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
static bool env_known(const char *entry, size_t len)
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
    return len <= sizeof name && row_find(name, len);
}

static enum status env_read(struct options *o, struct err *err)
{
    for (char **e = environ; *e; e++) {
        if (strncmp(*e, "KVASIR_", 7) == 0 && !env_known(*e + 7, strcspn(*e + 7, "=")))
            return err_set(err, ST_INVALID, "environment: unknown name '%.*s'", (int)strcspn(*e, "="), *e);
    }
    for (size_t i = 0; i < ROW_COUNT; i++) {
        char name[64] = "KVASIR_";
        size_t n = strlen(name);
        for (const char *p = rows[i].name; *p && n < sizeof name - 1; p++)
            name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
        name[n] = '\0';
        const char *v = env_get(name);
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

static enum status flag_unknown(const char *flag, size_t len, struct err *err)
{
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (strlen(elsewhere[i][0]) == len && memcmp(flag, elsewhere[i][0], len) == 0)
            return err_set(err, ST_INVALID, "unknown flag '%s': here it is %s", elsewhere[i][0],
                           elsewhere[i][1]);
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (alike(flag + 2, len - 2, rows[i].name))
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
    return row_set(row_find("model", 5), o, name, "--", err);
}

static enum status args_read(int argc, char **argv, struct options *o, bool only_config, struct err *err)
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
        if (a[1] != '-') return flag_unknown(a, strcspn(a, "="), err);
        const char *name = a + 2, *eq = strchr(name, '=');
        size_t len = eq ? (size_t)(eq - name) : strlen(name);
        const struct row *r = row_find(name, len);
        if (!r) return flag_unknown(a, len + 2, err);
        const char *value;
        if (eq) {
            value = eq + 1;
        } else if ((r->kind == K_BOOL || (r->kind == K_CHOICE && choice_ok(r->choices, "on"))) &&
                   (i + 1 >= argc || strncmp(argv[i + 1], "--", 2) == 0)) {
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

static enum status combination_check(const struct options *o, struct err *err)
{
    if (o->allow_private_media && !o->allow_remote_media)
        return err_set(err, ST_INVALID, "--allow-private-media needs --allow-remote-media");
    if (!o->tls_cert != !o->tls_key) return err_set(err, ST_INVALID, "--tls-cert and --tls-key go together");
    if (o->kv_events_replay && !o->kv_events)
        return err_set(err, ST_INVALID, "--kv-events-replay needs --kv-events");
    if (o->kv_events && strcmp(o->prefix_cache, "off") == 0)
        return err_set(err, ST_INVALID, "--kv-events needs the prefix cache: leave out --prefix-cache off");
    return ST_OK;
}

enum status options_parse(int argc, char **argv, struct options *out, struct err *err)
{
    struct options o = {0};
    const char *env_config = env_get("KVASIR_CONFIG");
    enum status st = defaults_set(&o, err);
    /* The file's name may come from the command line or the environment, which both override its contents:
     * find it first. */
    if (!st) st = args_read(argc, argv, &o, true, err);
    if (!st && !o.config && env_config && *env_config) {
        o.config = strdup(env_config);
        if (!o.config) st = err_nomem(err, NULL);
    }
    if (!st && o.config) st = file_read(o.config, &o, err);
    if (!st) st = env_read(&o, err);
    if (!st) st = args_read(argc, argv, &o, false, err);
    if (!st) st = combination_check(&o, err);
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
        if (rows[i].kind == K_STRING || rows[i].kind == K_CHOICE)
            free(*(char **)(void *)((char *)o + rows[i].at));
    }
    *o = (struct options){0};
}

enum { HELP_AT = 34, HELP_WIDTH = 110 };

static void help_row(FILE *f, const struct row *r)
{
    const char *value = r->arg ? r->arg : r->kind == K_CHOICE ? r->choices : "on|off", *p = r->help;
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

void options_help(FILE *f)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
            if (strcmp(rows[i].name, groups[g][0]) == 0) fprintf(f, "\n%s\n", groups[g][1]);
        help_row(f, &rows[i]);
    }
    fputs("\nEach flag is also an environment variable (KVASIR_MAX_CONTEXT) and a line of the --config file\n"
          "(max-context = 4096); the command line overrides the environment, and the environment the file.\n",
          f);
}
