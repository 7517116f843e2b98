/* See spec.h. */
#include "server/front/spec.h"

#include "config/base/list.h"
#include "engine/engine.h"
#include "server/hub/hub.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static enum status flag(struct front_spec *s, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static enum status flag(struct front_spec *s, struct err *err, const char *fmt, ...)
{
    va_list ap;
    if (!LIST_RESERVE(s->args, s->cap, s->count + 2)) return err_nomem(err, NULL);
    va_start(ap, fmt);
    int n = vasprintf(&s->args[s->count], fmt, ap);
    va_end(ap);
    if (n < 0) return s->args[s->count] = NULL, err_nomem(err, NULL);
    s->args[++s->count] = NULL;
    return ST_OK;
}

/* Of inspect's plan. --kv-memory auto has no machine for itself: a quarter of the budget. */
static enum status memory_plan(const struct options *mo, uint64_t *budget, struct front_spec *s,
                               struct err *err)
{
    static char text[1 << 18];
    const uint64_t process = 32 << 20; /* tokenizer, template, grammars, the process itself */
    struct engine_options eo = engine_options_from(mo, s->dir);
    struct engine_inspected seen;
    enum status st = engine_inspect(&eo, text, sizeof text, &seen, err);
    if (st && !(st == ST_NOMEM && seen.kv_needed)) return st;
    if (*seen.lacking.msg) return err_set(err, ST_NOT_FOUND, "%s", seen.lacking.msg);
    if (*budget == OPTION_AUTO) *budget = seen.available / 10 * 9;
    s->own_bytes = seen.fixed_bytes;
    uint64_t fixed = seen.fixed_bytes + process + (seen.vision ? mo->encoder_cache_memory : 0),
             most = *budget > fixed ? *budget - fixed : 0, kv = seen.kv_needed;
    if (most > *budget / 4) most = *budget / 4;
    if (kv > most) kv = most;
    if (mo->kv_memory != OPTION_AUTO) kv = mo->kv_memory;
    s->bytes = fixed + kv;
    if (s->bytes > *budget || !kv)
        return err_set(err, ST_NOMEM, "it takes %llu MiB, but --models-memory is %llu MiB",
                       (unsigned long long)(s->bytes >> 20), (unsigned long long)(*budget >> 20));
    return flag(s, err, "--kv-memory=%llu", (unsigned long long)kv);
}

/* A store of its own within --cache-dir, and a log of its own beside --request-log, because both are one
 * process's. */
static enum status own_files(const struct options *mo, size_t models, struct front_spec *s, struct err *err)
{
    char name[256];
    snprintf(name, sizeof name, "%s", s->name);
    for (char *c = name; *c; c++)
        if (*c == '/' || (c == name && *c == '.')) *c = '_';
    if (mo->request_log && flag(s, err, "--request-log=%s.%s", mo->request_log, name)) return ST_NOMEM;
    if (!mo->cache_dir) return ST_OK;
    if (mkdir(mo->cache_dir, 0700) && errno != EEXIST)
        return err_set(err, ST_IO, "--cache-dir %.200s: %s", mo->cache_dir, strerror(errno));
    enum status st = flag(s, err, "--cache-dir=%s/%s", mo->cache_dir, name);
    return st ? st : flag(s, err, "--cache-disk=%llu", (unsigned long long)(mo->cache_disk / models));
}

/* The name is its own, else the hub's, else the directory's. */
static enum status name_it(const struct front_specs *all, const struct option_model *m,
                           const struct options *mo, struct front_spec *s, struct err *err)
{
    const char *name = m->name ? m->name : mo->served_model_name;
    s->name = name ? strdup(name) : model_dir_name(s->dir);
    if (!s->name) return err_nomem(err, NULL);
    for (const struct front_spec *other = all->at; other < s; other++)
        if (strcmp(other->name, s->name) == 0)
            return err_set(err, ST_INVALID, "two models have the name %.200s: write NAME=MODEL", s->name);
    return flag(s, err, "--served-model-name=%s", s->name);
}

static enum status spec_make(const struct options *o, const struct option_model *m, struct front_specs *all,
                             struct front_spec *s, struct err *err)
{
    struct options mo = {0};
    enum status st = o->config ? flag(s, err, "--config=%s", o->config) : ST_OK;
    for (int i = 0; i < o->rest_count && !st; i++) st = flag(s, err, "%s", o->rest[i]);
    for (size_t i = 0; i < m->flag_count && !st; i++) st = flag(s, err, "%s", m->flags[i]);
    if (!st) st = flag(s, err, "--behind-front=on");
    if (!st) st = flag(s, err, "--model=%s", m->path);
    if (!st) st = options_parse(OPTIONS_SERVE, (int)s->count, s->args, &mo, err);
    if (st) return st;
    s->dir = model_find(&mo, false, err);
    if (!s->dir) st = ST_INVALID;
    if (!st) st = flag(s, err, "--model=%s", s->dir); /* of the hub: what was downloaded */
    if (!st && mo.mmproj) st = flag(s, err, "--mmproj=%s", mo.mmproj);
    if (!st && mo.draft_model) st = flag(s, err, "--draft-model=%s", mo.draft_model);
    if (!st && mo.log_file) st = flag(s, err, "--log-file=%s", mo.log_file);
    if (!st) st = name_it(all, m, &mo, s, err);
    if (!st && o->kv_events)
        st = err_set(err, ST_INVALID, "--kv-events is one model's: write it into its section of --config");
    s->loras = mo.lora;
    mo.lora = NULL;
    if (!st) st = own_files(&mo, o->model_count, s, err);
    if (!st) st = memory_plan(&mo, &all->budget, s, err);
    options_fini(&mo);
    return st;
}

enum status front_specs_make(const struct options *o, struct front_specs *out, struct err *err)
{
    enum status st = ST_OK;
    *out = (struct front_specs){.at = calloc(o->model_count, sizeof *out->at), .budget = o->models_memory};
    if (!out->at) return err_nomem(err, NULL);
    for (; out->count < o->model_count && !st; out->count++)
        st = spec_make(o, &o->models[out->count], out, &out->at[out->count], err);
    return st ? err_prefix(err, st, "model %.200s", o->models[out->count - 1].path) : ST_OK;
}

void front_specs_free(struct front_specs *all)
{
    for (size_t i = 0; i < all->count; i++) {
        struct front_spec *s = &all->at[i];
        for (size_t k = 0; k < s->count; k++) free(s->args[k]);
        free(s->args);
        free(s->name);
        free(s->dir);
        free(s->loras);
    }
    free(all->at);
}
