/* See adapters.h. The lock is held for a look at the list, never while files are read. */
#include "server/context/adapters.h"

#include "config/base/file.h"
#include "config/base/log.h"
#include "config/base/utf8.h"
#include "engine/model/model_info.h"
#include "server/context/context.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

struct adapters {
    pthread_mutex_t lock;
    struct lora *first; /* listed ones, and those still held */
    struct lora *gone;  /* to be freed */
    pthread_cond_t work;
    pthread_t reaper;
    bool reaps, stop;
    struct engine *engine; /* of all */
    char *dir;             /* without links; or NULL */
    uint32_t max, listed, ids;
};

enum status adapters_create(uint32_t max, const char *dir, struct adapters **out, struct err *err)
{
    struct adapters *a = calloc(1, sizeof *a);
    if (!a) return err_nomem(err, NULL);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->work, NULL);
    a->max = max;
    a->dir = dir ? realpath(dir, NULL) : NULL;
    *out = a;
    return dir && !a->dir ? err_set(err, ST_INVALID, "--lora-dir %.200s: no such directory", dir) : ST_OK;
}

uint64_t adapters_bytes(const struct options *o)
{
    char *list = o->lora ? strdup(o->lora) : NULL, *at = list;
    uint64_t sum = 0, largest = 0, left = o->max_loras;
    for (char *one; (one = strsep(&at, ",")); left -= left > 0) {
        char *dir = strchr(one, '='), *file = dir ? file_join(dir + 1, "adapter_model.safetensors") : NULL;
        struct stat st = {0};
        if (file && stat(file, &st)) (void)stat(dir + 1, &st); /* a GGUF file */
        sum += (uint64_t)st.st_size;
        largest = (uint64_t)st.st_size > largest ? (uint64_t)st.st_size : largest;
        free(file);
    }
    free(list);
    return 2 * (sum + (o->lora_dir ? left * largest : 0));
}

/* ---- references; under the lock, except for what is freed ---- */

static void lora_free(struct adapters *a, struct lora *x)
{
    if (x) adapter_free(a->engine, x->weights);
    if (x) free(x->path);
    free(x);
}

/* Frees what nothing needs any more, in that order: on a thread of its own, because it waits for the step in
 * flight, and for an adapter that is being read. */
static void *reap(void *arg)
{
    struct adapters *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!a->stop) {
        struct lora *x = a->gone;
        if (!x) {
            pthread_cond_wait(&a->work, &a->lock);
            continue;
        }
        a->gone = x->next;
        pthread_mutex_unlock(&a->lock);
        while (atomic_load(&x->running)) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        lora_free(a, x);
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* Takes x out if nothing needs it. */
static void drop(struct adapters *a, struct lora *x)
{
    if (x->listed || x->holders) return;
    struct lora **at = &a->first;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    for (const struct lora *y = a->first; y; y = y->next)
        if (y->weights == x->weights) x->weights = NULL;
    for (at = &a->gone; *at;) at = &(*at)->next;
    x->next = NULL;
    *at = x;
    pthread_cond_signal(&a->work);
}

static struct lora *find(const struct adapters *a, const char *name, size_t len)
{
    struct lora *x = a->first;
    while (x && (!x->listed || strlen(x->name) != len || memcmp(x->name, name, len) != 0)) x = x->next;
    return x;
}

struct lora *lora_take(struct adapters *a, const char *name, size_t len)
{
    pthread_mutex_lock(&a->lock);
    struct lora *x = find(a, name, len);
    if (x) x->holders++;
    pthread_mutex_unlock(&a->lock);
    return x;
}

void lora_release(struct adapters *a, struct lora *x)
{
    if (!x) return;
    pthread_mutex_lock(&a->lock);
    x->holders--;
    drop(a, x);
    pthread_mutex_unlock(&a->lock);
}

struct lora *lora_next(struct adapters *a, struct lora *x)
{
    pthread_mutex_lock(&a->lock);
    struct lora *y = x ? x->next : a->first;
    while (y && !y->listed) y = y->next;
    if (y) y->holders++;
    pthread_mutex_unlock(&a->lock);
    lora_release(a, x);
    return y;
}

bool lora_named(void *adapters, const uint8_t space[32], char name[LORA_NAME_MAX], uint32_t *id)
{
    struct adapters *a = adapters;
    pthread_mutex_lock(&a->lock);
    const struct lora *x = a->first;
    while (x && (!x->listed || memcmp(x->digest, space + 24, 8) != 0)) x = x->next;
    if (x) strcpy(name, x->name);
    if (x) *id = x->id;
    pthread_mutex_unlock(&a->lock);
    return x != NULL;
}

/* ---- loading ---- */

static enum status name_check(const struct context *x, const char *name, struct err *err)
{
    size_t n = strlen(name), plain = 0;
    while ((unsigned char)name[plain] >= ' ' && !strchr(",\"\\", name[plain])) plain++; /* of metrics */
    if (model_name_find(x, name, n))
        return err_set(err, ST_INVALID, "The name '%.127s' is the base model's.", name);
    return n && n < LORA_NAME_MAX && plain == n && utf8_valid(name, n)
               ? ST_OK
               : err_set(err, ST_INVALID,
                         "'%.127s' is no name for an adapter: 1 to 127 bytes of UTF-8 without , \" and \\",
                         name);
}

/* Under the lock: may x be listed? */
static enum status may_list(const struct adapters *a, const struct lora *x, bool in_place, struct err *err)
{
    bool taken = find(a, x->name, strlen(x->name)) != NULL;
    if (taken && !in_place)
        return err_set(
            err, ST_INVALID,
            "The lora adapter '%s' has already been loaded. If you want to load the adapter in place, "
            "set 'load_inplace' to True.",
            x->name);
    if (!taken && a->listed >= a->max)
        return err_set(err, ST_INVALID,
                       "%u adapters are loaded, as many as --max-loras allows: unload one first.", a->listed);
    return ST_OK;
}

/* Under the lock: lists x. An earlier one with its content has its weights: *spare are not needed. */
static void list(struct adapters *a, struct lora *x, struct adapter **spare)
{
    struct lora *was = find(a, x->name, strlen(x->name)), **at = &a->first;
    x->id = ++a->ids;
    x->listed = true;
    a->listed += !was;
    for (; *at; at = &(*at)->next) {
        if (memcmp((*at)->digest, x->digest, 32) != 0 || *spare) continue;
        *spare = x->weights;
        x->weights = (*at)->weights;
    }
    *at = x;
    if (!was) return;
    was->listed = false;
    drop(a, was);
}

enum status adapters_load(const struct context *c, struct engine *e, const char *name, const char *path,
                          bool in_place, struct err *err)
{
    struct adapters *a = c->adapters;
    struct lora *x = calloc(1, sizeof *x);
    struct adapter *spare = NULL;
    enum status st = x && (x->path = strdup(path)) ? name_check(c, name, err) : err_nomem(err, name);
    if (!st) st = adapter_open(e, path, &x->weights, err);
    pthread_mutex_lock(&a->lock);
    a->engine = e;
    if (!a->reaps) a->reaps = pthread_create(&a->reaper, NULL, reap, a) == 0;
    if (!st) {
        const uint8_t *d = adapter_info(x->weights)->digest;
        memcpy(x->digest, d, sizeof x->digest);
        strcpy(x->name, name);
        snprintf(x->fingerprint, sizeof x->fingerprint, "%s_%02x%02x%02x%02x%02x",
                 engine_model(e)->fingerprint, d[0], d[1], d[2], d[3], d[4]);
        x->created = (int64_t)time(NULL);
        st = may_list(a, x, in_place, err);
    }
    if (!st) list(a, x, &spare);
    pthread_mutex_unlock(&a->lock);
    adapter_free(e, spare);
    if (st) lora_free(a, x);
    else log_info("lora=%s path=%s", name, path);
    return st;
}

enum status adapters_load_list(const struct context *c, struct engine *e, const char *text, struct err *err)
{
    char *copy = text ? strdup(text) : NULL, *at = copy;
    enum status st = text && !copy ? err_nomem(err, text) : ST_OK;
    for (char *name; !st && (name = strsep(&at, ","));) {
        char *path = strchr(name, '=');
        if (path) *path++ = '\0';
        st = path ? adapters_load(c, e, name, path, false, err)
                  : err_set(err, ST_INVALID, "'%.200s' is not NAME=DIR", name);
        if (st) st = err_prefix(err, st, "--lora");
    }
    free(copy);
    return st;
}

bool adapters_unload(struct adapters *a, const char *name)
{
    pthread_mutex_lock(&a->lock);
    struct lora *x = find(a, name, strlen(name));
    if (x) {
        x->listed = false;
        a->listed--;
        drop(a, x);
    }
    pthread_mutex_unlock(&a->lock);
    return x != NULL;
}

void adapters_stop(struct adapters *a)
{
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    pthread_cond_signal(&a->work);
    pthread_mutex_unlock(&a->lock);
    if (a->reaps) pthread_join(a->reaper, NULL);
}

char *adapters_path(const struct adapters *a, const char *name)
{
    char *path = !a->dir ? NULL : *name == '/' ? strdup(name) : file_join(a->dir, name);
    char *real = path ? realpath(path, NULL) : NULL;
    size_t n = a->dir ? strlen(a->dir) : 0;
    free(path);
    if (real && strncmp(real, a->dir, n) == 0 && (real[n] == '/' || a->dir[n - 1] == '/')) return real;
    free(real);
    return NULL;
}
