/* Settings of the program: command line, environment, config file. One table (options.def) gives members,
 * names, bounds, defaults and the help text; nothing else in the program reads argv or the environment for
 * settings. Immutable after options_parse; then safe on any thread. Knows nothing of models or HTTP. */
#ifndef KVASIR_OPTIONS_H
#define KVASIR_OPTIONS_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define KVASIR_VERSION "0.2.0-dev"

/* Options whose values are words, each enum named after its option, with the words of options.def in their
 * order. */
enum opt_backend { BACKEND_AUTO, BACKEND_CPU, BACKEND_CUDA };
enum opt_cpu_kernels {
    CPU_KERNELS_AUTO,
    CPU_KERNELS_REFERENCE,
    CPU_KERNELS_AVX2,
    CPU_KERNELS_AVX512,
    CPU_KERNELS_AMX
}; /* option_word is what the backend calls the kernel set */
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
enum opt_log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG }; /* as log_level */
enum opt_log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON };

#define OPTION_AUTO UINT64_MAX /* "auto" for a number */

#define OPTION_NUMBERS_MAX 8u
struct option_numbers {
    uint32_t count, at[OPTION_NUMBERS_MAX];
};
#define OPTION_BATCH_MAX 256 /* largest number of --decode */

#define OPTIONS_FIELDS
#define GROUP(name)
#define STRING(commands, field, ...)  char *field; /* owned */
#define LIST(commands, field, ...)    char *field; /* owned */
#define WORD(commands, field, ...)    enum opt_##field field;
#define BOOL(commands, field, ...)    bool field;
#define COUNT(commands, field, ...)   uint64_t field;
#define SIZE(commands, field, ...)    uint64_t field;
#define NUMBERS(commands, field, ...) struct option_numbers field;
/* One of several models to serve: `kvasir serve A NAME=B`, or [NAME] in the file of --config. */
struct option_model {
    char *name, *path; /* owned; name NULL: by the path */
    char **flags;      /* "--name=value" of its own, owned */
    size_t flag_count, flag_cap;
};
struct options {
#include "config/options.def"
    struct option_model *models; /* owned; none: the one of `model` */
    size_t model_count, model_cap;
    char **rest; /* the command line after the models, borrowed */
    int rest_count;
};
#undef OPTIONS_FIELDS
#undef GROUP
#undef STRING
#undef LIST
#undef WORD
#undef BOOL
#undef COUNT
#undef SIZE
#undef NUMBERS

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
