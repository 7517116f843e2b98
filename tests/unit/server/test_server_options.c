/* Settings: precedence of command line, environment and file; bounds; messages. */
#include "config/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static enum status parse_for(enum option_commands command, struct options *o, struct err *err, int argc,
                             const char **argv)
{
    char *args[16];
    for (int i = 0; i < argc; i++) args[i] = (char *)(uintptr_t)argv[i];
    return options_parse(command, argc, args, o, err);
}
static enum status parse(struct options *o, struct err *err, int argc, const char **argv)
{
    return parse_for(OPTIONS_SERVE, o, err, argc, argv);
}
#define PARSE(o, err, ...)                                                                                   \
    parse(o, err, (int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(char *)), (const char *[]){__VA_ARGS__})

static void test_defaults(void **state)
{
    (void)state;
    struct options o;
    struct err err = {{0}};
    assert_int_equal(options_parse(OPTIONS_SERVE, 0, NULL, &o, &err), ST_OK);
    assert_string_equal(o.host, "127.0.0.1");
    assert_int_equal(o.port, 8000);
    assert_null(o.model);
    assert_true(o.kv_memory == OPTION_AUTO);
    assert_int_equal(o.max_body_bytes, 64u << 20);
    assert_int_equal(o.max_queue, 1024);
    assert_true(o.prefix_cache);
    assert_int_equal(o.encoder_cache_memory, 256u << 20);
    assert_null(o.cache_dir);
    assert_int_equal(o.cache_disk, 16ull << 30);
    assert_int_equal(o.request_timeout, 0);
    assert_int_equal(o.enable_admin, ENABLE_ADMIN_AUTO);
    assert_false(o.accept_any_model);
    options_fini(&o);
}

static void test_good(void **state)
{
    (void)state;
    struct options o;
    struct err err = {{0}};
    assert_int_equal(PARSE(&o, &err, "--model", "dir", "--port=0", "--kv-memory", "2G", "--accept-any-model",
                           "--max-n", "4", "--dtype=f32"),
                     ST_OK);
    assert_string_equal(o.model, "dir");
    assert_int_equal(o.port, 0);
    assert_int_equal(o.kv_memory, 2ull << 30);
    assert_true(o.accept_any_model);
    assert_int_equal(o.max_n, 4);
    assert_int_equal(o.dtype, DTYPE_F32);
    options_fini(&o);
    assert_int_equal(PARSE(&o, &err, "--lora", "a=x", "--lora=b=y,c=z"), ST_OK);
    assert_string_equal(o.lora, "a=x,b=y,c=z");
    options_fini(&o);
    assert_int_equal(PARSE(&o, &err, "--draft-tokens", "16"), ST_OK);
    assert_int_equal(o.draft_tokens, 16);
    options_fini(&o);
    assert_int_equal(PARSE(&o, &err, "--kv-memory", "auto", "--accept-any-model", "off"), ST_OK);
    assert_true(o.kv_memory == OPTION_AUTO);
    assert_false(o.accept_any_model);
    options_fini(&o);
    static const char *const models[][2] = {{"org/name@v1", "hf:org/name@v1"},
                                            {"hf:x:y.gguf", "hf:x:y.gguf"},
                                            {"/tmp", "/tmp"},
                                            {"a/b/c", "a/b/c"},
                                            {"./no/such", "./no/such"},
                                            {"org/name:a/b.gguf", "hf:org/name:a/b.gguf"}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        assert_int_equal(PARSE(&o, &err, models[i][0], "--port", "1"), ST_OK);
        assert_string_equal(o.model, models[i][1]);
        options_fini(&o);
    }
    /* A choice that knows "on" needs no value. */
    assert_int_equal(PARSE(&o, &err, "--enable-admin", "--encoder-cache-memory", "64M",
                           "--request-timeout=30", "--prefix-cache"),
                     ST_OK);
    assert_int_equal(o.enable_admin, ENABLE_ADMIN_ON);
    assert_true(o.prefix_cache);
    assert_int_equal(o.encoder_cache_memory, 64u << 20);
    assert_int_equal(o.request_timeout, 30);
    options_fini(&o);
    assert_int_equal(PARSE(&o, &err, "--enable-admin", "off", "--prefix-cache", "off"), ST_OK);
    assert_int_equal(o.enable_admin, ENABLE_ADMIN_OFF);
    assert_false(o.prefix_cache);
    options_fini(&o);
}

/* Every word of an option gives its enum's value, and back. */
static void test_words(void **state)
{
    (void)state;
    static const struct {
        const char *name, *word;
        size_t at;
        unsigned value;
    } table[] = {
#define WORD(name, word, field, value) {name, word, offsetof(struct options, field), value}
        WORD("backend", "auto", backend, BACKEND_AUTO),
        WORD("backend", "cpu", backend, BACKEND_CPU),
        WORD("backend", "cuda", backend, BACKEND_CUDA),
        WORD("cpu-kernels", "auto", cpu_kernels, CPU_KERNELS_AUTO),
        WORD("cpu-kernels", "amx", cpu_kernels, CPU_KERNELS_AMX),
        WORD("dtype", "auto", dtype, DTYPE_AUTO),
        WORD("dtype", "bf16", dtype, DTYPE_BF16),
        WORD("dtype", "f32", dtype, DTYPE_F32),
        WORD("gemm", "auto", gemm, GEMM_AUTO),
        WORD("gemm", "cublas", gemm, GEMM_CUBLAS),
        WORD("gemm", "own", gemm, GEMM_OWN),
        WORD("quantize", "none", quantize, QUANTIZE_NONE),
        WORD("quantize", "int8", quantize, QUANTIZE_INT8),
        WORD("quantize", "int4", quantize, QUANTIZE_INT4),
        WORD("kv-dtype", "auto", kv_dtype, KV_DTYPE_AUTO),
        WORD("kv-dtype", "bf16", kv_dtype, KV_DTYPE_BF16),
        WORD("kv-dtype", "int8", kv_dtype, KV_DTYPE_INT8),
        WORD("generation-config", "auto", generation_config, GENERATION_CONFIG_AUTO),
        WORD("generation-config", "ignore", generation_config, GENERATION_CONFIG_IGNORE),
        WORD("tool-parser", "auto", tool_parser, TOOL_PARSER_AUTO),
        WORD("tool-parser", "strict", tool_parser, TOOL_PARSER_STRICT),
        WORD("control-tokens", "text", control_tokens, CONTROL_TOKENS_TEXT),
        WORD("control-tokens", "parse", control_tokens, CONTROL_TOKENS_PARSE),
        WORD("billing-header", "drop", billing_header, BILLING_HEADER_DROP),
        WORD("billing-header", "keep", billing_header, BILLING_HEADER_KEEP),
        WORD("cache-scope", "key", cache_scope, CACHE_SCOPE_KEY),
        WORD("cache-scope", "server", cache_scope, CACHE_SCOPE_SERVER),
        WORD("cache-load", "auto", cache_load, CACHE_LOAD_AUTO),
        WORD("cache-load", "always", cache_load, CACHE_LOAD_ALWAYS),
        WORD("enable-admin", "auto", enable_admin, ENABLE_ADMIN_AUTO),
        WORD("enable-admin", "on", enable_admin, ENABLE_ADMIN_ON),
        WORD("enable-admin", "off", enable_admin, ENABLE_ADMIN_OFF),
        WORD("stream-finish", "separate", stream_finish, STREAM_FINISH_SEPARATE),
        WORD("stream-finish", "merged", stream_finish, STREAM_FINISH_MERGED),
        WORD("log-format", "text", log_format, LOG_FORMAT_TEXT),
        WORD("log-format", "json", log_format, LOG_FORMAT_JSON),
        WORD("log-level", "error", log_level, LOG_LEVEL_ERROR),
        WORD("log-level", "warn", log_level, LOG_LEVEL_WARN),
        WORD("log-level", "info", log_level, LOG_LEVEL_INFO),
        WORD("log-level", "debug", log_level, LOG_LEVEL_DEBUG),
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct options o;
        struct err err = {{0}};
        char flag[100];
        snprintf(flag, sizeof flag, "--%s=%s", table[i].name, table[i].word);
        assert_int_equal(PARSE(&o, &err, flag), ST_OK);
        assert_int_equal(*(unsigned *)(void *)((char *)&o + table[i].at), table[i].value);
        assert_string_equal(option_word(table[i].name, table[i].value), table[i].word);
        options_fini(&o);
    }
    assert_int_equal(option_value("dtype", "f64"), -1);
}

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b, *message;
    } table[] = {
        {"--nope", "1", "--nope"},
        {"model", "x", "unexpected argument 'model': a model is a directory"},
        {"--port", "65536", "port"},
        {"--port", "-1", "port"},
        {"--port", "8x", "port"},
        {"--port", "", "port"},
        {"--dtype", "f64", "dtype"},
        {"--max-queue", "0", "max-queue"},
        {"--kv-memory", "1Q", "kv-memory"},
        {"--kv-memory", "99999999T", "kv-memory"},
        {"--model", "", "model"},
        {"--accept-any-model=maybe", NULL, "accept-any-model"},
        {"--max-batch-tokens", "99999999999999999999", "max-batch-tokens"},
        {"--threads", "1.5", "threads"},
        {"--port", NULL, "port"},
        {"--config", "/nonexistent/file", "config"},
        {"--enable-admin", "maybe", "enable-admin"},
        {"--encoder-cache-memory", "0", "encoder-cache-memory"},
        {"--stream-finish", NULL, "stream-finish"},
        {"--kv-memory", "10", "--kv-memory: 10 is not allowed: it must be at least 1M"},
        {"--max-body-bytes", "1T", "at least 1K and at most 2G"},
        {"--threads", "999", "--threads: 999 is outside 0..256"},
        {"--watchdog", "0", "watchdog"},
        {"--watchdog-exit", "never", "watchdog-exit"},
        {"--image-memory", "auto", "image-memory"},
        {"--response-memory", "0", "response-memory"},
        {"--modle", "x", "unknown flag '--modle': did you mean --model?"},
        {"--max-sequence=4", NULL, "'--max-sequence=4': did you mean --max-sequences?"},
        {"--nonsense", "x", "unknown flag '--nonsense' (see --help)"},
        {"word", NULL, "unexpected argument 'word': a model is a directory, a GGUF file or ORG/NAME"},
        {"a/b", "c", "unexpected argument 'c': a model is a directory"},
        {"-c", "9", "unknown flag '-c': here it is --max-context N"},
        {"--tool-call-parser", "hermes", "here it is not needed: tool calls follow the chat template"},
        {"--tls-cert", "x", "--tls-cert and --tls-key go together"},
        {"--max-context", "64K", "'64K' is not a whole number: write 65536"},
        {"--kv-memory", "4X", "'4X' is not a size (such as 512M or 4G)"},
        {"--draft-tokens", "17", "'17' is not allowed: auto, or 0 to 16"},
        {"--allow-private-media", "10.0.0.0/8", "needs --allow-remote-media"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct options o;
        struct err err = {{0}};
        const char *argv[] = {table[i].a, table[i].b};
        assert_int_not_equal(parse(&o, &err, table[i].b ? 2 : 1, argv), ST_OK);
        assert_non_null(strstr(err.msg, table[i].message));
    }
}

/* bench takes the flags of the engine and its own; serve's are known in the environment, and nothing more. */
static void test_bench(void **state)
{
    (void)state;
    static const struct {
        enum option_commands command;
        const char *argv[4], *env, *message;
    } table[] = {
        {OPTIONS_BENCH, {"--shape", "x", "--decode", "none"}, NULL, NULL},
        {OPTIONS_BENCH, {"x/y", "--dtype=f32", "--json", "--vision"}, "KVASIR_MAX_N", NULL},
        {OPTIONS_BENCH, {"--json"}, NULL, "give either --model or --shape"},
        {OPTIONS_BENCH, {"--shape=x", "--model=y"}, NULL, "give either --model or --shape"},
        {OPTIONS_BENCH,
         {"--shape=x", "--decode=1,0"},
         NULL,
         "'1,0' is not a list of at most 8 numbers of 1 to 256"},
        {OPTIONS_BENCH, {"--shape=x", "--decode=1,"}, NULL, "--decode"},
        {OPTIONS_BENCH, {"--shape=x", "--draft=101"}, NULL, "--draft"},
        {OPTIONS_BENCH, {"--shape=x", "--prefill=1,2,3,4,5,6,7,8,9"}, NULL, "--prefill"},
        {OPTIONS_BENCH, {"--shape=x", "--port=1"}, NULL, "unknown flag '--port=1'"},
        {OPTIONS_BENCH, {"--shape=x"}, "KVASIR_MAX_M", "unknown name"},
        {OPTIONS_SERVE, {"--shape=x"}, NULL, "unknown flag '--shape=x'"},
        {OPTIONS_SERVE, {NULL}, "KVASIR_CONTEXT", "unknown name"},
    };
    struct options o;
    struct err err;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *argv[4];
        int argc = 0;
        while (argc < 4 && table[i].argv[argc]) argv[argc] = table[i].argv[argc], argc++;
        if (table[i].env) setenv(table[i].env, "5", 1);
        err = (struct err){{0}};
        enum status st = parse_for(table[i].command, &o, &err, argc, argv);
        if (table[i].env) unsetenv(table[i].env);
        if (!st != !table[i].message || (st && !strstr(err.msg, table[i].message)))
            fail_msg("case %zu: %s", i, err.msg);
        if (!st) options_fini(&o);
    }
    assert_int_equal(parse_for(OPTIONS_BENCH, &o, &err, 2, (const char *[]){"--shape=x", "--decode=1,256"}),
                     0);
    assert_true(o.prefill.count == 2 && o.prefill.at[0] == 512 && o.prefill.at[1] == 2048);
    assert_true(o.decode.count == 2 && o.decode.at[1] == 256 && o.draft.count == 0 && !o.json);
    options_fini(&o);
}

static void test_precedence(void **state)
{
    (void)state;
    char path[] = "/tmp/kvasir-options-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    const char *text = "# comment\n\nmax-n = 5\nmax_queue=7\nhost = \"0.0.0.0\"\nport = 1\n";
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    setenv("KVASIR_MAX_N", "6", 1);
    setenv("KVASIR_PORT", "2", 1);
    struct options o;
    struct err err = {{0}};
    assert_int_equal(PARSE(&o, &err, "--config", path, "--port", "3"), ST_OK);
    assert_int_equal(o.max_queue, 7); /* file */
    assert_int_equal(o.max_n, 6);     /* environment over file */
    assert_int_equal(o.port, 3);      /* command line over both */
    assert_string_equal(o.host, "0.0.0.0");
    options_fini(&o);
    setenv("KVASIR_CONFIG", path, 1);
    assert_int_equal(options_parse(OPTIONS_SERVE, 0, NULL, &o, &err), ST_OK);
    assert_int_equal(o.max_queue, 7);
    options_fini(&o);
    setenv("KVASIR_MAX_N", "many", 1);
    assert_int_equal(options_parse(OPTIONS_SERVE, 0, NULL, &o, &err), ST_INVALID);
    unsetenv("KVASIR_MAX_N");
    unsetenv("KVASIR_PORT");
    unsetenv("KVASIR_CONFIG");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("port 3\n", f);
    fclose(f);
    assert_int_equal(PARSE(&o, &err, "--config", path), ST_INVALID);
    assert_non_null(strstr(err.msg, ":1:"));
    f = fopen(path, "w");
    assert_non_null(f);
    fputs("\nprot = 3\n", f);
    fclose(f);
    assert_int_equal(PARSE(&o, &err, "--config", path), ST_INVALID);
    assert_non_null(strstr(err.msg, "prot"));
    unlink(path);
}

static void test_help(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    options_help(OPTIONS_SERVE, f);
    fclose(f);
    assert_non_null(strstr(text, "--max-context"));
    assert_non_null(strstr(text, "--stream-finish separate|merged"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),   cmocka_unit_test(test_good), cmocka_unit_test(test_bad),
        cmocka_unit_test(test_precedence), cmocka_unit_test(test_help), cmocka_unit_test(test_words),
        cmocka_unit_test(test_bench),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
