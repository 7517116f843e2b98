/* See verify_command.h. */
#include "server/verify_command.h"

#include "config/base/buf.h"
#include "config/base/file.h"
#include "server/front/child.h"
#include "server/json/fields.h"
#include "server/json/parser.h"
#include "server/receipts/receipts.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 256 << 20, TOGETHER = 64, EXIT_SECONDS = 30 };

struct item {
    const char *path;
    json_t *receipt, *statement; /* statement NULL: it has its verdict */
    json_t *verdict;
    char *body; /* of the request that is under way */
    struct buf answer;
    CURL *easy;
};
struct verification {
    struct item *items;
    size_t count;
    const char **flags; /* of `kvasir serve`, up to flag_count */
    size_t flag_count;
    bool json, kernels_given;
    json_t *request;
    struct receipt_key key;
    bool has_key;
};

static int usage(FILE *f)
{
    static const char text[] =
        "usage: kvasir verify RECEIPT... --model MODEL [flags] [flags of kvasir serve]\n\n"
        "Recomputes what receipts say, bit for bit (docs/receipts.md). RECEIPT is a file with a receipt, or\n"
        "with a response that has one (\"receipt\": true in the request).\n\n"
        "  --request FILE      the body that was sent; not needed for a full receipt, which has it\n"
        "  --public-key FILE   the signature must be of this Ed25519 key (PEM, or 64 hexadecimal digits)\n"
        "  --json              the verdicts as lines of JSON\n\n"
        "Exit code: 0 match, 1 mismatch, 2 unverifiable.\n";
    fputs(text, f);
    return f == stdout ? 0 : 2;
}

static enum status json_read(const char *path, json_t **out, struct err *err)
{
    char *text = NULL;
    size_t len;
    enum status st = file_text_piped(path, FILE_MAX, FILE_PIPE_MS, &text, &len, err);
    if (!st && (st = json_from_text(text, len, out))) (void)err_set(err, st, "%s: not JSON", path);
    free(text);
    return st;
}

static void judge(struct item *it, const char *verdict, const char *reason)
{
    json_decref(it->verdict);
    json_decref(it->statement);
    it->statement = NULL;
    it->verdict = json_pack("{s:s,s:s}", "verdict", verdict, "reason", reason);
}

static void item_read(struct verification *v, struct item *it)
{
    struct err err;
    json_t *all = NULL;
    bool forged;
    const char *why;
    buf_init(&it->answer, SIZE_MAX / 4);
    if (json_read(it->path, &all, &err)) {
        judge(it, "unverifiable", err.msg);
        return;
    }
    json_t *in = field(all, "response") ? field(all, "response") : all;
    it->receipt = json_incref(field(in, "receipt") ? field(in, "receipt") : in);
    it->statement = receipt_open(it->receipt, v->has_key ? &v->key : NULL, &forged, &why);
    if (!it->statement) judge(it, forged ? "mismatch" : "unverifiable", why);
    json_decref(all);
}

/* "avx2" of "cpu-avx2"; "": not of a CPU. */
static const char *kernels_of(const struct item *it)
{
    const json_t *arithmetic = json_object_get(json_object_get(it->statement, "predicate"), "arithmetic");
    const char *name = json_string_value(json_object_get(arithmetic, "kernels"));
    return name && strncmp(name, "cpu-", 4) == 0 ? name + 4 : "";
}

/* A server with the receipt's kernel set, or, if the CPU lacks it, with its own, which will say so. */
static enum status start(struct verification *v, const char *kernels, struct child **out, struct err *err)
{
    static const char *const sets[] = {"reference", "avx2", "avx512", "amx"};
    bool known = false;
    for (size_t i = 0; i < 4; i++) known = known || strcmp(sets[i], kernels) == 0;
    for (int with = known && !v->kernels_given; with >= 0; with--) {
        v->flags[v->flag_count] = with ? "--cpu-kernels" : NULL;
        v->flags[v->flag_count + 1] = kernels;
        enum status st = child_start(v->flags, NULL, out, err);
        if (!st) st = child_wait(*out, 0, err);
        if (!st) return ST_OK;
        child_free(*out, EXIT_SECONDS);
        *out = NULL;
        if (!with) return st;
    }
    return ST_OK;
}

static size_t take(char *data, size_t size, size_t count, void *arg)
{
    return buf_add(arg, data, size * count) ? 0 : size * count;
}

static bool post(const struct verification *v, struct item *it, const char *socket,
                 struct curl_slist *headers, CURLM *multi)
{
    json_t *body = json_pack("{s:O,s:O*}", "receipt", it->receipt, "request", v->request);
    it->body = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    it->easy = it->body ? curl_easy_init() : NULL;
    return it->easy && !curl_easy_setopt(it->easy, CURLOPT_URL, "http://localhost/v1/receipts/verify") &&
           !curl_easy_setopt(it->easy, CURLOPT_UNIX_SOCKET_PATH, socket) &&
           !curl_easy_setopt(it->easy, CURLOPT_PROXY, "") &&
           !curl_easy_setopt(it->easy, CURLOPT_HTTPHEADER, headers) &&
           !curl_easy_setopt(it->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(it->body)) &&
           !curl_easy_setopt(it->easy, CURLOPT_POSTFIELDS, it->body) &&
           !curl_easy_setopt(it->easy, CURLOPT_WRITEFUNCTION, take) &&
           !curl_easy_setopt(it->easy, CURLOPT_WRITEDATA, &it->answer) &&
           !curl_multi_add_handle(multi, it->easy);
}

static void verdict_take(struct item *it)
{
    json_t *answer = NULL;
    if (!json_from_text(it->answer.data ? it->answer.data : "", it->answer.len, &answer) &&
        json_is_string(field(answer, "verdict"))) {
        json_decref(it->statement);
        it->statement = NULL;
        it->verdict = answer;
        return;
    }
    const char *why = json_string_value(json_object_get(field(answer, "error"), "message"));
    judge(it, "unverifiable", why ? why : "the server gave no answer");
    json_decref(answer);
}

/* All that have this kernel set, in one batch. */
static void run(struct verification *v, const char *kernels)
{
    struct child *child = NULL;
    struct err err = {0};
    CURLM *multi = curl_multi_init();
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    int left = 1;
    struct item **of = calloc(v->count, sizeof *of);
    size_t n = 0;
    for (size_t i = 0; of && i < v->count; i++)
        if (v->items[i].statement && strcmp(kernels_of(&v->items[i]), kernels) == 0) of[n++] = &v->items[i];
    bool ok = multi && headers && of && !start(v, kernels, &child, &err);
    if (ok) curl_multi_setopt(multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)TOGETHER);
    for (size_t i = 0; ok && i < n; i++) ok = post(v, of[i], child_socket(child), headers, multi);
    while (ok && left && !curl_multi_perform(multi, &left)) (void)curl_multi_wait(multi, NULL, 0, 1000, NULL);
    for (size_t i = 0; i < n; i++) {
        if (ok) verdict_take(of[i]);
        else judge(of[i], "unverifiable", err.msg[0] ? err.msg : "out of memory");
        if (of[i]->easy) curl_multi_remove_handle(multi, of[i]->easy);
        curl_easy_cleanup(of[i]->easy);
        free(of[i]->body);
    }
    free(of);
    curl_multi_cleanup(multi);
    curl_slist_free_all(headers);
    child_free(child, EXIT_SECONDS);
}

/* 0, 1 or 2. */
static int say(const struct verification *v, struct item *it)
{
    const char *verdict = json_string_value(field(it->verdict, "verdict")),
               *reason = json_string_value(field(it->verdict, "reason"));
    int code = !verdict ? 2 : strcmp(verdict, "match") == 0 ? 0 : strcmp(verdict, "mismatch") == 0 ? 1 : 2;
    if (v->json) {
        if (it->verdict) json_object_set_new(it->verdict, "receipt", json_string(it->path));
        char *text = it->verdict ? json_dumps(it->verdict, JSON_COMPACT) : NULL;
        puts(text ? text : "{}");
        free(text);
    } else {
        printf("%s: %s%s%s\n", it->path, verdict ? verdict : "unverifiable", reason ? ": " : "",
               reason ? reason : "");
    }
    return code;
}

static enum status arguments(struct verification *v, int argc, char **argv, struct err *err)
{
    enum status st = ST_OK;
    for (int i = 1; i < argc && !st; i++) {
        const char *a = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(a, "--json") == 0) {
            v->json = true;
        } else if (strncmp(a, "--", 2) != 0) {
            v->items[v->count++].path = a;
        } else if (!strchr(a, '=') && !value) {
            st = err_set(err, ST_INVALID, "%s needs a value", a);
        } else if (strcmp(a, "--request") == 0) {
            json_t *read = NULL;
            st = json_read(value, &read, err);
            v->request = json_is_object(field(read, "body")) ? json_incref(field(read, "body")) : read;
            if (v->request != read) json_decref(read);
            i++;
        } else if (strcmp(a, "--public-key") == 0) {
            st = receipt_public_key_read(value, &v->key, err);
            v->has_key = true;
            i++;
        } else {
            v->kernels_given = v->kernels_given || strncmp(a, "--cpu-kernels", 13) == 0;
            v->flags[v->flag_count++] = a;
            if (!strchr(a, '=')) v->flags[v->flag_count++] = argv[++i];
        }
    }
    return st;
}

int verify_command(int argc, char **argv)
{
    struct verification v = {.items = calloc((size_t)argc, sizeof *v.items),
                             .flags = calloc((size_t)argc + 10, sizeof *v.flags)};
    struct err err = {0};
    int code = 0;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return usage(stdout);
    if (!v.items || !v.flags || sodium_init() < 0) return 2;
    json_object_seed(0);
    v.flags[v.flag_count++] = "--log-level";
    v.flags[v.flag_count++] = "error";
    v.flags[v.flag_count++] = "--step-ms"; /* nobody else waits */
    v.flags[v.flag_count++] = "0";
    if (arguments(&v, argc, argv, &err)) {
        fprintf(stderr, "kvasir: %s\n", err.msg);
        code = 2;
    } else if (!v.count) {
        code = usage(stderr);
    }
    for (size_t i = 0; !code && i < v.count; i++) item_read(&v, &v.items[i]);
    for (size_t i = 0; !code && i < v.count; i++) {
        char kernels[32];
        snprintf(kernels, sizeof kernels, "%s", v.items[i].statement ? kernels_of(&v.items[i]) : "");
        if (v.items[i].statement) run(&v, kernels);
    }
    for (size_t i = 0; i < v.count; i++) {
        int one = err.msg[0] ? 2 : say(&v, &v.items[i]);
        code = code == 1 || one == 1 ? 1 : code > one ? code : one;
        json_decref(v.items[i].receipt);
        json_decref(v.items[i].statement);
        json_decref(v.items[i].verdict);
        buf_fini(&v.items[i].answer);
    }
    json_decref(v.request);
    free(v.items);
    free(v.flags);
    return fflush(stdout) ? 2 : code;
}
