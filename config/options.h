/* Settings of the program: command line, environment, config file. One table (options.c) gives names, bounds,
 * defaults and the help text; nothing else in the program reads argv or the environment for settings.
 * Immutable after options_parse; then safe on any thread. Knows nothing of models or HTTP. */
#ifndef KVASIR_OPTIONS_H
#define KVASIR_OPTIONS_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define KVASIR_VERSION "0.2.0-dev"

struct options {
    /* model */
    char *model;             /* directory, GGUF file or hf:ORG/NAME; NULL = the bundled demo model */
    char *mmproj;            /* GGUF file of the vision tower, or NULL */
    char *served_model_name; /* NULL = last component of the directory, the file's name without .gguf */
    char *backend;           /* auto | cpu | cuda */
    char *cpu_kernels;       /* auto | reference | avx2 | avx512 | amx */
    char *dtype;             /* auto | bf16 | f32 */
    char *gemm;              /* auto | cublas | own */
    char *quantize;          /* none | int8 | int4 */
    bool quantize_vision;
    char *kv_dtype;       /* auto | bf16 | int8 */
    uint64_t threads;     /* 0 = all usable cores */
    uint64_t kv_memory;   /* bytes; 0 = auto */
    uint64_t max_context; /* tokens; 0 = the checkpoint's */
    uint64_t max_batch_tokens, max_sequences, max_queue;
    uint64_t step_ms;                   /* time budget of a step; 0 = none */
    uint64_t prefill_chunk;             /* tokens of one sequence's prefill per step; 0 = the step's budget */
    char *prefix_cache;                 /* on | off */
    char *cache_scope;                  /* key | server: who shares cached data when there are API keys */
    uint64_t encoder_cache_memory;      /* bytes of encoded images kept */
    char *cache_dir;                    /* disk tier of the caches; NULL = none */
    uint64_t cache_disk;                /* bytes in cache_dir */
    uint64_t cache_host;                /* bytes of host memory above cache_dir; 0 = none */
    char *cache_load;                   /* "auto", "always" */
    uint64_t image_memory;              /* bytes of decoded images held by requests that wait or run */
    uint64_t grammar_memory;            /* bytes of compiled grammars and their masks */
    uint64_t response_memory;           /* bytes of buffered responses */
    uint64_t response_store;            /* bytes of responses kept for previous_response_id; 0 = none */
    char *kv_events, *kv_events_replay; /* ZeroMQ addresses; NULL = none */
    uint64_t kv_events_block;           /* tokens; 0 = the cache's own blocks */
    char *kv_events_layout;             /* array | map */
    char *draft_model;
    char *draft_tokens;
    char *chat_template;        /* Jinja file; NULL = the checkpoint's */
    char *chat_template_kwargs; /* JSON object; NULL = none */
    char *generation_config;    /* auto | ignore: sampling defaults from the checkpoint */
    /* HTTP */
    char *host, *root_path;
    uint64_t port;                /* 0 = the system picks one */
    char *api_key, *api_key_file; /* one key; one per line. Both NULL = open */
    char *tls_cert, *tls_key;     /* both, or neither: plain HTTP */
    char *cors_origins;           /* origins that may use the server: "loopback", or a list */
    char *allowed_hosts;          /* accepted Host names: "auto", or a list */
    char *control_tokens;         /* text | parse */
    char *billing_header;         /* drop | keep */
    char *tool_parser;            /* auto | strict */
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
    char *enable_admin;  /* auto (API keys are configured, or only this machine can connect) | on | off */
    char *stream_finish; /* separate | merged */
    /* process */
    char *config;                            /* file of "key = value" lines */
    char *log_level, *log_format, *log_file; /* log_file NULL: stderr */
};

/* Fills *out from, in falling precedence: argv[0..argc) (flags "--name value" or "--name=value"), the
 * environment (KVASIR_NAME), the file of --config, defaults. ST_INVALID with a message that names the flag.
 * All strings of *out are owned: options_fini. */
enum status options_parse(int argc, char **argv, struct options *out, struct err *err) KV_MUST_CHECK;
void options_fini(struct options *o);
bool options_size(const char *text, uint64_t *out); /* "512M" */
/* The flags table as text, generated from the same rows. */
void options_help(FILE *f);

#endif
