/* Settings of the program: command line, environment, config file. One table (options.c) gives names, bounds,
 * defaults and the help text; nothing else in the program reads argv or the environment for settings.
 * Immutable after options_parse; then safe on any thread. Knows nothing of models or HTTP. */
#ifndef KVASIR_OPTIONS_H
#define KVASIR_OPTIONS_H

#include "config/base/log.h"
#include "config/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define KVASIR_VERSION "0.2.0-dev"

/* Options whose values are words, each enum named after its option, with the words of options.c in their
 * order. */
enum opt_backend { BACKEND_AUTO, BACKEND_CPU, BACKEND_CUDA };
enum opt_dtype { DTYPE_AUTO, DTYPE_BF16, DTYPE_F32 };
enum opt_gemm { GEMM_AUTO, GEMM_CUBLAS, GEMM_OWN };
enum opt_quantize { QUANTIZE_NONE, QUANTIZE_INT8, QUANTIZE_INT4 };
enum opt_kv_dtype { KV_DTYPE_AUTO, KV_DTYPE_BF16, KV_DTYPE_INT8 };
enum opt_generation_config { GENERATION_CONFIG_AUTO, GENERATION_CONFIG_IGNORE };
enum opt_tool_parser { TOOL_PARSER_AUTO, TOOL_PARSER_STRICT };
enum opt_control_tokens { CONTROL_TOKENS_TEXT, CONTROL_TOKENS_PARSE };
enum opt_billing_header { BILLING_HEADER_DROP, BILLING_HEADER_KEEP };
enum opt_cache_scope { CACHE_SCOPE_KEY, CACHE_SCOPE_SERVER };
enum opt_cache_load { CACHE_LOAD_AUTO, CACHE_LOAD_ALWAYS };
enum opt_kv_events_layout { KV_EVENTS_LAYOUT_ARRAY, KV_EVENTS_LAYOUT_MAP };
enum opt_enable_admin { ENABLE_ADMIN_AUTO, ENABLE_ADMIN_ON, ENABLE_ADMIN_OFF };
enum opt_stream_finish { STREAM_FINISH_SEPARATE, STREAM_FINISH_MERGED };
enum opt_log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON };

#define OPTION_AUTO UINT64_MAX /* "auto" for a number */

#define OPTION_NUMBERS_MAX 8u
struct option_numbers {
    uint32_t count, at[OPTION_NUMBERS_MAX];
};
#define OPTION_BATCH_MAX 256 /* largest number of --decode */

struct options {
    /* model */
    char *model;             /* directory, GGUF file or hf:ORG/NAME; NULL = the bundled demo model */
    char *mmproj;            /* GGUF file of the vision tower, or NULL */
    char *served_model_name; /* NULL = last component of the directory, the file's name without .gguf */
    enum opt_backend backend;
    unsigned cpu_kernels; /* option_word is what the backend calls the kernel set */
    enum opt_dtype dtype;
    enum opt_gemm gemm;
    enum opt_quantize quantize;
    bool quantize_vision;
    enum opt_kv_dtype kv_dtype;
    uint64_t threads;     /* 0 = all usable cores */
    uint64_t kv_memory;   /* bytes, or OPTION_AUTO */
    uint64_t max_context; /* tokens; 0 = the checkpoint's */
    uint64_t max_batch_tokens, max_sequences, max_queue;
    uint64_t step_ms;       /* time budget of a step; 0 = none */
    uint64_t prefill_chunk; /* tokens of one sequence's prefill per step; 0 = the step's budget */
    bool prefix_cache;
    enum opt_cache_scope cache_scope; /* who shares cached data when there are API keys */
    uint64_t encoder_cache_memory;    /* bytes of encoded images kept */
    char *cache_dir;                  /* disk tier of the caches; NULL = none */
    uint64_t cache_disk;              /* bytes in cache_dir */
    uint64_t cache_host;              /* bytes of host memory above cache_dir; 0 = none */
    enum opt_cache_load cache_load;
    uint64_t image_memory;              /* bytes of decoded images held by requests that wait or run */
    uint64_t grammar_memory;            /* bytes of compiled grammars and their masks */
    uint64_t response_memory;           /* bytes of buffered responses */
    uint64_t response_store;            /* bytes of responses kept for previous_response_id; 0 = none */
    char *kv_events, *kv_events_replay; /* ZeroMQ addresses; NULL = none */
    uint64_t kv_events_block;           /* tokens; 0 = the cache's own blocks */
    enum opt_kv_events_layout kv_events_layout;
    char *draft_model;
    uint64_t draft_tokens;                        /* or OPTION_AUTO */
    char *chat_template;                          /* Jinja file; NULL = the checkpoint's */
    char *chat_template_kwargs;                   /* JSON object; NULL = none */
    enum opt_generation_config generation_config; /* sampling defaults from the checkpoint */
    /* HTTP */
    char *host, *root_path;
    uint64_t port;                /* 0 = the system picks one */
    char *api_key, *api_key_file; /* one key; one per line. Both NULL = open */
    char *tls_cert, *tls_key;     /* both, or neither: plain HTTP */
    char *cors_origins;           /* origins that may use the server: "loopback", or a list */
    char *allowed_hosts;          /* accepted Host names: "auto", or a list */
    enum opt_control_tokens control_tokens;
    enum opt_billing_header billing_header;
    enum opt_tool_parser tool_parser;
    bool accept_any_model, always_include_usage;
    uint64_t default_max_tokens; /* 0 = none */
    uint64_t max_body_bytes, max_connections, max_n, max_images;
    char *allow_remote_media;  /* hosts that images are fetched from; NULL = none */
    char *allow_private_media; /* non-public networks allowed for them; NULL = none */
    uint64_t media_timeout;    /* seconds per URL */
    char *allowed_media_dir;   /* for file: URLs; NULL = none */
    uint64_t keep_alive_timeout, shutdown_delay, drain_timeout; /* seconds */
    uint64_t watchdog;                                          /* seconds */
    uint64_t watchdog_exit;                                     /* seconds after that; 0 = never */
    uint64_t request_timeout;                                   /* seconds; 0 = none */
    enum opt_enable_admin enable_admin;
    enum opt_stream_finish stream_finish;
    /* process */
    char *config; /* file of "key = value" lines */
    enum log_level log_level;
    enum opt_log_format log_format;
    char *log_file; /* NULL: stderr */
    /* bench */
    char *shape; /* or NULL */
    struct option_numbers prefill, decode, draft;
    uint64_t context, repeats;
    bool vision, profile, json;
};

enum option_commands { OPTIONS_SERVE = 1, OPTIONS_BENCH = 2 }; /* serve and inspect; bench */

/* Fills *out from, in falling precedence: argv[0..argc) (flags "--name value" or "--name=value"), the
 * environment (KVASIR_NAME), the file of --config, defaults. bench ignores what is serve's alone in
 * these two. ST_INVALID with a message that names the flag. All strings of *out are owned: options_fini. */
enum status options_parse(enum option_commands command, int argc, char **argv, struct options *out,
                          struct err *err) KV_MUST_CHECK;
void options_fini(struct options *o);
bool options_size(const char *text, uint64_t *out); /* "512M" */
/* The word of a value, ("quantize", QUANTIZE_INT8) -> "int8", and the value of a word, or -1. */
const char *option_word(const char *name, unsigned value);
int option_value(const char *name, const char *word);
/* The flags table as text, generated from the same rows. */
void options_help(enum option_commands command, FILE *f);

#endif
