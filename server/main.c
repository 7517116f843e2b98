/* The program: sub-commands. The only file besides assert.h, bus_error.c and serve.c (second signal, failed
 * engine) that ends the process. */
#include "bench/bench.h"
#include "config/base/env.h"
#include "config/base/log.h"
#include "config/options.h"
#include "engine/engine.h"
#include "server/bus_error.h"
#include "server/cache_command.h"
#include "server/context/adapters.h"
#include "server/hub/hub.h"
#include "server/front/spec.h"
#include "server/model_load.h"
#include "server/run_batch.h"
#include "server/replay_command.h"
#include "server/serve.h"
#include "server/verify_command.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef KVASIR_COMMIT
#define KVASIR_COMMIT "" /* " (1234567890ab)": Makefile */
#endif

static int usage(FILE *f)
{
    fputs("kvasir " KVASIR_VERSION ": deterministic, batch-invariant, OpenAI-compatible inference\n"
          "server for vision-language models\n\n"
          "  kvasir serve [MODEL] [flags]    serve the HTTP API (kvasir serve --help)\n"
          "  kvasir serve A NAME=B [flags]   serve several models, each loaded when it is named\n"
          "  kvasir pull ORG/NAME ...        download models without serving them\n"
          "  kvasir rm ORG/NAME ...          remove downloaded models\n"
          "  kvasir list                     list downloaded models\n"
          "  kvasir inspect [MODEL] [flags]  show the model and the memory plan\n"
          "  kvasir inspect --devices        show the CPU and the GPUs of this machine\n"
          "  kvasir cache ls|verify|prune    look after the directory of --cache-dir (kvasir cache --help)\n"
          "  kvasir run-batch -i IN -o OUT   answer the requests of a file (kvasir run-batch --help)\n"
          "  kvasir verify RECEIPT ...       recompute what receipts say (kvasir verify --help)\n"
          "  kvasir replay LOG ...           run the requests of a --request-log again, compare the bits\n"
          "  kvasir ready [PORT]             exit with code 0 if the server on this machine is ready\n"
          "  kvasir bench ...                measure the engine without a server (kvasir bench --help)\n"
          "  kvasir version                  print the version\n\n"
          "MODEL: a directory, a GGUF file, or ORG/NAME[@REVISION][:FILE.gguf] (or :Q4_K_M) on the Hugging\n"
          "Face hub; without one, a small demo model is served.\n",
          f);
    return f == stdout ? 0 : 2;
}

static int usage_flags(bool bench)
{
    if (bench) return bench_usage(), fflush(stdout) ? 1 : 0;
    puts("usage: kvasir serve [MODEL | [NAME=]MODEL [NAME=]MODEL ...] [flags]\n"
         "       kvasir inspect [MODEL] [flags]\n\n"
         "  MODEL: a directory, a GGUF file, or ORG/NAME[@REVISION][:FILE.gguf] (or :Q4_K_M) on the\n"
         "  Hugging Face hub; without one, the demo model.");
    options_help(OPTIONS_SERVE, stdout);
    return fflush(stdout) ? 1 : 0;
}

static int fail(const struct err *err)
{
    (void)log_print(STDERR_FILENO, "kvasir: %s\n", err->msg);
    return 1;
}

static int serve_several(const struct options *o)
{
    struct front_specs specs;
    struct err err = {0};
    int rc = front_specs_make(o, &specs, &err) ? fail(&err) : server_run(o, NULL, &specs);
    front_specs_free(&specs);
    return rc;
}

static enum status inspect_loras(char *list, const struct engine_options *eo, struct err *err)
{
    enum status st = ST_OK;
    for (char *name; !st && (name = strsep(&list, ","));) { /* loras_get has written it */
        struct adapter_info i;
        char *path = strchr(name, '=');
        *path++ = '\0';
        st = adapter_inspect(eo, path, &i, err);
        if (!st)
            printf("lora       %s: rank %u, scale %g, %u products (%s), %.1f MiB%s%s%s\n", name, i.rank_max,
                   i.scale_max, i.matrices, i.targets, (double)i.bytes / (1 << 20), *i.base ? ", of " : "",
                   i.base, i.touches_images ? ", changes images" : "");
    }
    return st;
}

static int inspect(struct options *o, const char *dir)
{
    static char text[1 << 18];
    struct err err = {0};
    struct engine_options eo = engine_options_from(o, dir);
    eo.adapter_bytes = adapters_bytes(o);
    struct engine_inspected seen;
    bool starts =
        !engine_inspect(&eo, text, sizeof text, &seen, &err) && !model_load_check(o, dir, &seen, &err);
    /* It is shown whether or not it would start; then what is in the way. */
    char *rest = strchr(text, '\n');
    if (starts) fputs(text, stdout);
    else if (rest)
        printf("served     no: %s%s%s%s", err.msg, *seen.lacking.msg ? "; " : "", seen.lacking.msg, rest);
    starts = starts && !inspect_loras(o->lora, &eo, &err);
    if (fflush(stdout)) return 1;
    return starts ? 0 : fail(&err);
}

static int inspect_devices(void)
{
    static char text[1 << 14];
    struct err err = {0};
    if (engine_devices(text, sizeof text, &err)) return fail(&err);
    fputs(text, stdout);
    return fflush(stdout) ? 1 : 0;
}

/* 0 if the server at 127.0.0.1 says that it is ready: for health checks of containers and services. By HTTP,
 * else by HTTPS, whose certificate is for another name. */
static int ready(int argc, char **argv)
{
    const char *port = argc > 1 ? argv[1] : env_get("KVASIR_PORT");
    bool number = port && *port && strspn(port, "0123456789") == strlen(port);
    long status = 0;
    if (argc > 2 || (argc > 1 && !number)) {
        bool help = argc == 2 && (strcmp(port, "--help") == 0 || strcmp(port, "-h") == 0);
        return fputs("usage: kvasir ready [PORT]\n", help ? stdout : stderr), help ? 0 : 2;
    }
    CURL *e = curl_easy_init();
    for (int tls = 0; e && tls < 2 && (!status || status == 400); tls++) {
        char url[100];
        snprintf(url, sizeof url, "http%s://127.0.0.1:%.20s/ready", tls ? "s" : "", number ? port : "8000");
        bool bad = curl_easy_setopt(e, CURLOPT_URL, url) || curl_easy_setopt(e, CURLOPT_PROXY, "") ||
                   curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, 0L) ||
                   curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, 0L) ||
                   curl_easy_setopt(e, CURLOPT_NOBODY, 1L) ||
                   curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, 2000L) || curl_easy_perform(e);
        if (!bad) curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &status);
    }
    curl_easy_cleanup(e);
    if (!status) fprintf(stderr, "kvasir: no server answers on 127.0.0.1 port %s\n", number ? port : "8000");
    if (status && status != 200) fprintf(stderr, "kvasir: not ready: GET /ready gives %ld\n", status);
    return status != 200;
}

/* The parent may have closed them: other files must not get their numbers. */
static bool standard_files_open(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_WRONLY : O_RDONLY) != fd) return false;
    return true;
}

int main(int argc, char **argv)
{
    const char *command = argc > 1 ? argv[1] : "";
    if (!standard_files_open()) return 1;
    log_open();
    bus_error_catch();
    if (strcmp(command, "version") == 0 || strcmp(command, "--version") == 0)
        return puts("kvasir " KVASIR_VERSION KVASIR_COMMIT) < 0;
    if (strcmp(command, "cache") == 0) return cache_command(argc - 1, argv + 1);
    if (strcmp(command, "run-batch") == 0) return sodium_init() < 0 ? 1 : run_batch(argc - 1, argv + 1);
    if (strcmp(command, "replay") == 0)
        return sodium_init() < 0 || curl_global_init(CURL_GLOBAL_DEFAULT)
                   ? 2
                   : replay_command(argc - 1, argv + 1);
    if (strcmp(command, "ready") == 0) return ready(argc - 1, argv + 1);
    if (strcmp(command, "verify") == 0) return verify_command(argc - 1, argv + 1);
    static const char *const of_the_hub[] = {"pull", "list", "rm"};
    for (size_t i = 0; i < 3; i++)
        if (strcmp(command, of_the_hub[i]) == 0) return hub_main(argc - 1, argv + 1);
    bool serve = strcmp(command, "serve") == 0, bench = strcmp(command, "bench") == 0;
    if (!serve && !bench && strcmp(command, "inspect") != 0) {
        static const char *const help[] = {"help", "--help", "-h"};
        for (size_t i = 0; i < 3; i++)
            if (strcmp(command, help[i]) == 0) return usage(stdout);
        if (argc < 2) return usage(stderr);
        fprintf(stderr, "kvasir: unknown command '%.60s' (see kvasir --help)\n", command);
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return usage_flags(bench);
        if (!serve && !bench && strcmp(argv[i], "--devices") == 0)
            return argc == 3 ? inspect_devices() : usage(stderr);
    }
    struct options opt;
    struct err err = {0};
    if (options_parse(bench ? OPTIONS_BENCH : OPTIONS_SERVE, argc - 2, argv + 2, &opt, &err)) {
        (void)fail(&err);
        if (bench) fputs("see kvasir bench --help\n", stderr);
        return 2;
    }
    log_set_level(bench ? LOG_WARN : (enum log_level)opt.log_level);
    log_set_json(opt.log_format == LOG_FORMAT_JSON);
    if (opt.log_file && !log_open_file(opt.log_file))
        (void)err_set(&err, ST_IO, "--log-file %.200s: %s", opt.log_file, strerror(errno));
    if (sodium_init() < 0) return 1;
    json_object_seed(0); /* not thread-safe later */
    if (opt.model_count && !serve) (void)err_set(&err, ST_INVALID, "inspect takes one model");
    char *dir = err.msg[0] || opt.shape || opt.model_count ? NULL : model_find(&opt, !serve && !bench, &err);
    int rc = err.msg[0]        ? fail(&err)
             : opt.model_count ? serve_several(&opt)
             : serve           ? server_run(&opt, dir, NULL)
             : bench           ? bench_run(&opt, dir)
                               : inspect(&opt, dir);
    free(dir);
    options_fini(&opt);
    return rc;
}
