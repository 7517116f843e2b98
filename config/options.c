/* See options.h, and options.def for the table. */
#include "config/options.h"

#include "config/base/env.h"
#include "config/base/file.h"
#include "config/base/list.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind { K_STRING, K_LIST, K_WORD, K_COUNT, K_SIZE, K_BOOL, K_NUMBERS, K_GROUP };

struct row {
    const char *name; /* K_GROUP: of the rows after it, as in docs/flags.md */
    enum kind kind;
    unsigned commands;        /* of enum option_commands */
    size_t at;                /* offset of the field in struct options */
    const char *init;         /* default, as a person would write it; NULL = unset */
    uint64_t min, max;        /* K_COUNT, K_SIZE, K_NUMBERS */
    const char *const *words; /* K_WORD: in the order of the field's enum; K_BOOL */
    const char *arg;          /* how --help names the value; NULL = the words */
    const char *help;
};

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define SERVE      OPTIONS_SERVE
#define BENCH      OPTIONS_BENCH
#define BOTH       (OPTIONS_SERVE | OPTIONS_BENCH)
#define U32_TOP    0xffffffffull
#define ROW(kind, c, field, name, init, from, to, words, arg, help)                                          \
    {name, kind, c, offsetof(struct options, field), init, from, to, words, arg, help},
#define GROUP(title)                            {.name = title, .kind = K_GROUP},
#define STRING(c, field, name, init, arg, help) ROW(K_STRING, c, field, name, init, 0, 0, NULL, arg, help)
#define LIST(c, field, name, init, arg, help)   ROW(K_LIST, c, field, name, init, 0, 0, NULL, arg, help)
#define WORD(c, field, name, init, help, ...)                                                                \
    ROW(K_WORD, c, field, name, init, 0, 0, WORDS(__VA_ARGS__), NULL, help)
#define BOOL(c, field, name, init, help)                                                                     \
    ROW(K_BOOL, c, field, name, init, 0, 0, WORDS("on", "off"), NULL, help)
#define COUNT(c, field, name, init, from, to, arg, help)                                                     \
    ROW(K_COUNT, c, field, name, init, from, to, NULL, arg, help)
#define SIZE(c, field, name, init, from, to, arg, help)                                                      \
    ROW(K_SIZE, c, field, name, init, from, to, NULL, arg, help)
#define NUMBERS(c, field, name, init, from, to, arg, help)                                                   \
    ROW(K_NUMBERS, c, field, name, init, from, to, NULL, arg, help)

static const struct row rows[] = {
#include "config/options.def"
};
enum { ROW_COUNT = sizeof rows / sizeof *rows, WORDS_BYTES = 64 };

static bool row_of(const struct row *r, unsigned commands)
{
    return (r->commands & commands) != 0;
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
    return row_find(name, strlen(name), BOTH)->words[value];
}

int option_value(const char *name, const char *word)
{
    return word_find(row_find(name, strlen(name), BOTH)->words, word);
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

static bool takes_auto(const struct row *r)
{
    return strstr(r->arg, "|auto") != NULL;
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
    if (takes_auto(r))
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
    char words[WORDS_BYTES], *copy, *was;
    switch (r->kind) {
    case K_STRING:
    case K_LIST:
        was = r->kind == K_LIST ? *(char **)field : NULL;
        if (!*value) return err_set(err, ST_INVALID, "empty value");
        if (asprintf(&copy, "%s%s%s", was ? was : "", was ? "," : "", value) < 0) return err_nomem(err, NULL);
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
        if (takes_auto(r) && strcmp(value, "auto") == 0) v = OPTION_AUTO;
        else if (!number_parse(value, r->kind == K_SIZE, &v) || v < r->min || v > r->max)
            return number_bad(r, value, err);
        *(uint64_t *)field = v;
        break;
    case K_GROUP: break;
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

/* The model of that name, or a new one; its path, if given. */
static enum status model_add(struct options *o, const char *name, size_t len, const char *path,
                             struct err *err)
{
    struct option_model *m = NULL;
    if (len && (memchr(name, ',', len) || memchr(name, '"', len)))
        return err_set(err, ST_INVALID, "'%.*s' is no name for a model", (int)len, name);
    for (size_t i = 0; i < o->model_count && len; i++)
        if (o->models[i].name && strlen(o->models[i].name) == len && !memcmp(o->models[i].name, name, len))
            m = &o->models[i];
    if (!m) {
        if (!LIST_RESERVE(o->models, o->model_cap, o->model_count + 1)) return err_nomem(err, NULL);
        m = &o->models[o->model_count++];
        *m = (struct option_model){.name = len ? strndup(name, len) : NULL};
        if (len && !m->name) return err_nomem(err, NULL);
    }
    if (!path) return ST_OK;
    free(m->path);
    return (m->path = strdup(path)) ? ST_OK : err_nomem(err, NULL);
}

static enum status model_argument(const char *a, struct options *o, bool file, struct err *err);

/* A line after [NAME] is a flag of that model's server. */
static enum status model_line(const struct row *r, struct options *o, const char *value, const char *origin,
                              struct err *err)
{
    struct option_model *m = &o->models[o->model_count - 1];
    struct options checked = {0};
    enum status st = row_set(r, &checked, value, origin, err);
    options_fini(&checked);
    if (st) return st;
    if (strcmp(r->name, "model") == 0) return model_argument(value, o, true, err);
    if (!LIST_RESERVE(m->flags, m->flag_cap, m->flag_count + 1) ||
        asprintf(&m->flags[m->flag_count], "--%s=%s", r->name, value) < 0)
        return err_nomem(err, NULL);
    m->flag_count++;
    return ST_OK;
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
        size_t end = strlen(s) - 1;
        if (*s == '[' && s[end] == ']') {
            st = model_add(o, s + 1, end - 1, NULL, err);
            continue;
        }
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
        st = (o->model_count ? model_line : row_set)(r, o, value, origin, err);
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
    {"--lora-modules", "--lora NAME=DIR"},
    {"--enable-lora", "--lora NAME=DIR, or --lora-dir DIR"},
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

/* An argument that is no flag, or `model` in a file's section: a path, or a model of the hub. */
static enum status model_argument(const char *a, struct options *o, bool file, struct err *err)
{
    char name[1400];
    size_t named = file ? 0 : strcspn(a, "=/");
    const char *own = a;
    if (!file && a[named] == '=' && named) a += named + 1;
    else named = 0;
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
    struct option_model *last = file ? &o->models[o->model_count - 1] : NULL;
    if (last) return model_add(o, last->name, strlen(last->name), name, err);
    enum status st = row_set(row_find("model", 5, BOTH), o, name, "--", err);
    return st ? st : model_add(o, own, named, name, err);
}

static enum status args_read(unsigned commands, int argc, char **argv, struct options *o, bool only_config,
                             struct err *err)
{
    int models = 0;
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i];
        if (*a != '-') {
            if (only_config) continue;
            enum status st = i == models
                                 ? model_argument(a, o, false, err)
                                 : err_set(err, ST_INVALID,
                                           "unexpected argument '%.60s': models come before the flags "
                                           "(see --help)",
                                           a);
            if (st) return st;
            models++;
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
    o->rest = argv + models;
    o->rest_count = argc - models;
    return ST_OK;
}

static void models_free(struct options *o)
{
    for (size_t i = 0; i < o->model_count; i++) {
        struct option_model *m = &o->models[i];
        while (m->flag_count) free(m->flags[--m->flag_count]);
        free(m->flags);
        free(m->name);
        free(m->path);
    }
    free(o->models);
    o->models = NULL;
    o->model_count = o->model_cap = 0;
}

/* One model on the command line, and none in the file: it is `model`, and served as ever. */
static enum status models_resolve(unsigned commands, bool named, struct options *o, struct err *err)
{
    const struct option_model *m = o->models;
    if (o->model_count == 1 && named && !m->flag_count) {
        if (m->name && !o->served_model_name && !(o->served_model_name = strdup(m->name)))
            return err_nomem(err, NULL);
        models_free(o);
    }
    if (o->behind_front) models_free(o);
    if (!o->model_count) return ST_OK;
    if (commands != OPTIONS_SERVE) return err_set(err, ST_INVALID, "one model at a time");
    if (o->served_model_name)
        return err_set(err, ST_INVALID,
                       "several models have their names by NAME=MODEL, not by "
                       "--served-model-name");
    for (size_t i = 0; i < o->model_count; i++)
        if (!o->models[i].path)
            return err_set(err, ST_INVALID, "%.200s: [%.100s] has no line 'model = MODEL'", o->config,
                           o->models[i].name);
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
    if (!st) st = models_resolve(command, argc - o.rest_count == 1, &o, err);
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
        if (rows[i].kind <= K_LIST) free(*(char **)(void *)((char *)o + rows[i].at));
    }
    models_free(o);
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
        if (rows[i].kind == K_GROUP && command == OPTIONS_SERVE) fprintf(f, "\n%s\n", rows[i].name);
        if (row_of(&rows[i], command)) help_row(f, &rows[i]);
    }
    fputs("\nEach flag is also an environment variable (KVASIR_MAX_CONTEXT) and a line of the --config file\n"
          "(max-context = 4096); the command line overrides the environment, and the environment the file.\n",
          f);
}
