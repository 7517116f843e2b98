/* The checkpoint that --model names. See hub.h. */
#include "server/hub/hub.h"

#include "config/gguf/gguf.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_checkpoint(const char *dir)
{
    char path[PATH_MAX];
    struct stat st;
    if (gguf_is(dir)) return true;
    return snprintf(path, sizeof path, "%s/config.json", dir) < (int)sizeof path && stat(path, &st) == 0;
}

static enum status path_get(char **path, struct hub_model *m, struct err *err)
{
    if (!*path || strncmp(*path, HUB_PREFIX, strlen(HUB_PREFIX)) != 0) return ST_OK;
    enum status st = hub_get(*path, m, err);
    if (st) return st;
    free(*path);
    *path = m->path;
    m->path = NULL;
    return ST_OK;
}

/* --model, --mmproj, --served-model-name and --draft-model of names at the hub. */
static enum status models_get(struct options *o, struct err *err)
{
    struct hub_model m = {0}, draft = {0};
    enum status st = path_get(&o->model, &m, err);
    if (!o->mmproj) o->mmproj = m.mmproj, m.mmproj = NULL;
    if (!o->served_model_name) o->served_model_name = m.repo, m.repo = NULL;
    if (!st) st = path_get(&o->draft_model, &draft, err);
    hub_model_free(&m);
    hub_model_free(&draft);
    return st;
}

/* --lora: each "NAME=DIR", of the hub or of this machine. */
static enum status loras_get(struct options *o, struct err *err)
{
    char *list = o->lora, *at = list, *all = NULL, *longer;
    enum status st = ST_OK;
    struct stat sb;
    for (char *one; !st && (one = strsep(&at, ","));) {
        char *eq = strchr(one, '='), *path = eq ? eq + 1 : one, *slash = strrchr(path, '/');
        struct hub_model m = {0};
        if (eq) *eq = '\0';
        if (strncmp(path, HUB_PREFIX, strlen(HUB_PREFIX)) == 0 ||
            (slash && *path != '/' && *path != '.' && stat(path, &sb)))
            st = hub_get(path, &m, err);
        const char *name = eq ? one : m.repo ? m.repo : slash && slash[1] ? slash + 1 : path;
        if (m.path) path = m.path;
        if (!st && asprintf(&longer, "%s%s%s=%s", all ? all : "", all ? "," : "", name, path) < 0)
            st = err_nomem(err, path);
        if (st) st = err_prefix(err, st, "--lora");
        else free(all), all = longer;
        hub_model_free(&m);
    }
    free(list);
    o->lora = all;
    return st;
}

char *model_find(struct options *o, bool bare, struct err *err)
{
    if (models_get(o, err) || loras_get(o, err)) return NULL;
    if (o->model) {
        bool gguf = gguf_is(o->model);
        if (hub_path_check(o->model, bare, err)) return NULL;
        if (!is_checkpoint(o->model))
            (void)err_set(err, ST_INVALID, "--model %.200s: neither a directory nor a GGUF file", o->model);
        else if (o->mmproj && !gguf_is(o->mmproj))
            (void)err_set(err, ST_INVALID,
                          "--mmproj %.200s: not a GGUF file; use the mmproj-*.gguf of the model", o->mmproj);
        else if (o->mmproj && !gguf)
            (void)err_set(err, ST_INVALID, "--mmproj goes with a GGUF file as --model, not with a directory");
        else {
            char *dir = strdup(o->model);
            if (!dir) (void)err_nomem(err, NULL);
            return dir;
        }
        return NULL;
    }
    char exe[PATH_MAX], dir[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash) *slash = '\0';
    static const char *const beside[] = {"../../models/demo", "../share/kvasir/models/demo", "models/demo"};
    snprintf(dir, sizeof dir, "./models/demo");
    for (size_t i = 0; i < 3 && !is_checkpoint(dir); i++) snprintf(dir, sizeof dir, "%s/%s", exe, beside[i]);
    if (!is_checkpoint(dir)) {
        (void)err_set(err, ST_NOT_FOUND, "no --model given, and the demo model (models/demo) was not found");
        return NULL;
    }
    char *real = realpath(dir, NULL);
    if (!real) (void)err_nomem(err, NULL);
    return real;
}

char *model_dir_name(const char *dir)
{
    char *real = realpath(dir, NULL);
    const char *from = real ? real : dir;
    const char *slash = strrchr(from, '/');
    char *name = strdup(slash && slash[1] ? slash + 1 : from);
    size_t len = name ? strlen(name) : 0, tail = strlen(".gguf");
    if (len > tail && strcmp(name + len - tail, ".gguf") == 0) name[len - tail] = '\0';
    free(real);
    return name;
}
