/* See record_index.h. */
#include "scheduler/cache/record_index.h"

#include "config/base/list.h"

#include <time.h>

#define MTIME_LAG 60000000000u /* ns that an mtime may lag behind: hits don't write to the disk each time */

enum status index_open(struct record_index *x, const struct cache_dir *d, size_t *foreign, struct err *err)
{
    struct record_file *files = NULL;
    size_t n = 0;
    *x = (struct record_index){.dir = *d};
    enum status st = cache_dir_list(d, &files, &n, foreign, err);
    if (!st && n && !(x->at = calloc(n, sizeof *x->at))) st = err_nomem(err, "the disk cache's index");
    for (size_t i = 0; !st && i < n; i++) {
        x->at[i] = (struct index_entry){.file = files[i], .stored_used = files[i].used};
        x->bytes += files[i].bytes;
        if (files[i].used > x->clock) x->clock = files[i].used;
    }
    free(files);
    if (st) {
        index_close(x);
        return st;
    }
    x->count = x->cap = n;
    return ST_OK;
}

void index_close(struct record_index *x)
{
    cache_dir_close(&x->dir);
    free(x->at);
    free(x->by_use);
    *x = (struct record_index){.dir = {-1, -1}};
}

/* The first with at least this id. */
static size_t lower_bound(const struct record_index *x, uint64_t id)
{
    size_t from = 0, to = x->count;
    while (from < to) {
        size_t mid = from + (to - from) / 2;
        if (x->at[mid].file.id < id) from = mid + 1;
        else to = mid;
    }
    return from;
}

struct index_entry *index_find(const struct record_index *x, uint64_t id)
{
    size_t i = lower_bound(x, id);
    return id && i < x->count && x->at[i].file.id == id && !x->at[i].dead ? &x->at[i] : NULL;
}

struct index_entry *index_next(const struct record_index *x, uint64_t id)
{
    size_t i = lower_bound(x, id);
    while (i < x->count && x->at[i].dead) i++;
    return i < x->count ? &x->at[i] : NULL;
}

void index_adopt(const struct record_index *x, uint64_t parent, int children)
{
    struct index_entry *e = index_find(x, parent);
    if (e) e->children += (uint32_t)children;
}

bool index_add(struct record_index *x, const struct index_entry *e)
{
    if (x->dead > 64 && x->dead > x->count / 2) {
        size_t n = 0;
        for (size_t i = 0; i < x->count; i++)
            if (!x->at[i].dead) x->at[n++] = x->at[i];
        x->count = n;
        x->dead = 0;
    }
    if (!LIST_RESERVE(x->at, x->cap, x->count + 1)) return false;
    index_adopt(x, e->parent, 1);
    x->at[x->count++] = *e;
    x->bytes += e->file.bytes;
    return true;
}

uint64_t index_now(struct record_index *x)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    return x->clock = now > x->clock ? now : x->clock + 1;
}

void index_use(struct record_index *x, struct index_entry *e, uint64_t when)
{
    for (; e && e->file.used < when; e = e->known ? index_find(x, e->parent) : NULL) {
        e->file.used = when;
        if (when - e->stored_used < MTIME_LAG) continue;
        e->stored_used = when;
        record_set_used(&x->dir, e->file.id, e->file.tag, when);
    }
}

void index_remove(struct record_index *x, struct index_entry *e)
{
    record_remove(&x->dir, e->file.id, e->file.tag);
    index_adopt(x, e->parent, -1);
    e->dead = true;
    x->dead++;
    x->bytes -= e->file.bytes;
}

static int newest_first(const void *a, const void *b)
{
    const struct by_use *x = a, *y = b;
    return x->used != y->used ? (x->used < y->used) - (x->used > y->used) : (x->id > y->id) - (x->id < y->id);
}

struct index_entry *index_oldest(struct record_index *x)
{
    for (int made = 0;; made++) {
        /* What was used since the list was made is newer than all that was not. */
        while (x->by_use_count) {
            const struct by_use *last = &x->by_use[x->by_use_count - 1];
            struct index_entry *e = index_find(x, last->id);
            if (e && e->file.used == last->used) return e;
            x->by_use_count--;
        }
        struct by_use *list = made ? NULL : realloc(x->by_use, (x->count + 1) * sizeof *list);
        if (!list) return NULL;
        x->by_use = list;
        for (size_t i = 0; i < x->count; i++)
            if (!x->at[i].dead)
                list[x->by_use_count++] = (struct by_use){x->at[i].file.used, x->at[i].file.id};
        qsort(list, x->by_use_count, sizeof *list, newest_first);
    }
}
