/* See pooling.h. */
#include "server/embed/pooling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* *out = NULL if there is no such file. */
static enum status file_load(const char *dir, const char *sub, const char *name, json_t **out,
                             struct err *err)
{
    char path[4096];
    json_error_t why;
    *out = NULL;
    int n = snprintf(path, sizeof path, "%s/%s%s%s", dir, sub, *sub ? "/" : "", name);
    if (n < 0 || (size_t)n >= sizeof path || access(path, F_OK) != 0) return ST_OK;
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    return *out ? ST_OK : err_set(err, ST_FORMAT, "%s: line %d: %s", path, why.line, why.text);
}

static bool is_set(const json_t *config, const char *name)
{
    return json_is_true(json_object_get(config, name));
}

static enum status pooling_module(const char *dir, const char *path, struct pooling *out, struct err *err)
{
    json_t *c;
    enum status st = file_load(dir, path, "config.json", &c, err);
    const char *mode = json_string_value(json_object_get(c, "pooling_mode"));
    if (is_set(c, "pooling_mode_mean_tokens") || (mode && strcmp(mode, "mean") == 0)) out->kind = POOL_MEAN;
    else if (!is_set(c, "pooling_mode_lasttoken") && !(mode && strcmp(mode, "lasttoken") == 0))
        snprintf(out->unsupported, sizeof out->unsupported, "a pooling that is neither mean nor last token");
    json_decref(c);
    return st;
}

static enum status score_module(const char *dir, const char *path, struct pooling *out, struct err *err)
{
    json_t *c;
    enum status st = file_load(dir, path, "config.json", &c, err);
    const json_t *yes = json_object_get(c, "true_token_id"), *no = json_object_get(c, "false_token_id");
    out->scores = json_is_integer(yes) && json_is_integer(no);
    out->true_id = json_integer_value(yes);
    out->false_id = json_integer_value(no);
    json_decref(c);
    return st;
}

/* The last part of a Python class's name. */
static const char *class_name(const char *type)
{
    const char *dot = strrchr(type, '.');
    return dot ? dot + 1 : type;
}

static enum status modules_read(const char *dir, const json_t *modules, struct pooling *out, struct err *err)
{
    size_t i;
    json_t *m;
    enum status st = ST_OK;
    out->normalize = false;
    json_array_foreach(modules, i, m)
    {
        const char *type = json_string_value(json_object_get(m, "type"));
        const char *path = json_string_value(json_object_get(m, "path")),
                   *name = type ? class_name(type) : "";
        if (st || !path || strstr(path, "..")) continue;
        if (strcmp(name, "Pooling") == 0) st = pooling_module(dir, path, out, err);
        else if (strcmp(name, "LogitScore") == 0) st = score_module(dir, path, out, err);
        else if (strcmp(name, "Normalize") == 0) out->normalize = true;
        else if (strcmp(name, "Transformer") != 0)
            snprintf(out->unsupported, sizeof out->unsupported, "a module of type %.40s", name);
    }
    return st;
}

enum status pooling_load(const char *dir, struct pooling **out, struct err *err)
{
    json_t *modules;
    struct pooling *p = *out = malloc(sizeof *p);
    if (!p) return err_nomem(err, NULL);
    *p = (struct pooling){.kind = POOL_LAST, .normalize = true};
    enum status st = file_load(dir, "", "modules.json", &modules, err);
    if (!st && json_is_array(modules)) st = modules_read(dir, modules, p, err);
    json_decref(modules);
    if (!st) st = file_load(dir, "", "config_sentence_transformers.json", &p->config, err);
    p->prompts = json_object_get(p->config, "prompts");
    p->default_prompt = json_string_value(json_object_get(p->config, "default_prompt_name"));
    return st;
}

void pooling_free(struct pooling *p)
{
    if (p) json_decref(p->config);
    free(p);
}
