/* See store.h. A use moves a response to the front of the LRU list, and its previous responses ahead of it.
 * So nothing follows an owner's last response of the list: evicting it frees its memory at once. */
#include "server/dialect/store.h"

#include "config/base/assert.h"
#include "config/base/list.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Freeing a response's values may take the event loop some 10 ms. */
enum { ENTRIES_MAX = 65536, VALUES_MAX = 1 << 18, VALUE_BYTES = 100 };

_Static_assert(JSON_HAVE_ATOMIC_BUILTINS || JSON_HAVE_SYNC_BUILTINS, "threads share the values");

struct response_store {
    pthread_mutex_t lock;
    uint64_t bytes_max, bytes;
    struct response_kept *head, *tail; /* the newest, the oldest */
    struct hash_table table;
    struct shares shares;
};

struct response_store *response_store_create(uint64_t bytes)
{
    struct response_store *s = calloc(1, sizeof *s);
    if (!s || !hash_create(&s->table, 64) || pthread_mutex_init(&s->lock, NULL)) {
        if (s) free(s->table.buckets);
        free(s);
        return NULL;
    }
    s->bytes_max = bytes;
    return s;
}

bool response_store_on(const struct response_store *s)
{
    return s->bytes_max > 0;
}

/* Ids are random, but clients may look up others: FNV-1a. */
static uint64_t hash_of(const char *id)
{
    uint32_t h = 2166136261u;
    for (; *id; id++) h = (h ^ (unsigned char)*id) * 16777619u;
    return h ^ h >> 16;
}

/* Bytes of text and number of values and names in v, added up; it gives up above VALUES_MAX. */
static size_t text_of(json_t *v, size_t *values)
{
    size_t text = json_string_length(v), i;
    const char *key;
    json_t *one;
    if (++*values > VALUES_MAX) return text;
    json_array_foreach(v, i, one) text += text_of(one, values);
    json_object_foreach(v, key, one) {
        ++*values;
        text += strlen(key) + text_of(one, values);
    }
    return text;
}

static void touch(struct response_store *s, struct response_kept *r)
{
    for (; r; r = r->before) {
        if (!r->listed) continue;
        LIST_UNLINK(s, r);
        LIST_LINK(s, NULL, r);
    }
}

static void drop(struct response_store *s, struct response_kept *r)
{
    while (r && !--r->refs) {
        struct response_kept *before = r->before;
        s->bytes -= r->bytes;
        share_sub(r->share, SHARE_STORED, r->charge);
        share_release(r->share);
        json_decref(r->items);
        buf_fini(&r->response);
        free(r);
        r = before;
    }
}

static void unlist(struct response_store *s, struct response_kept *r)
{
    hash_remove(&s->table, &r->link);
    LIST_UNLINK(s, r);
    r->listed = false;
    drop(s, r);
}

/* The oldest of who has most. */
static void evict(struct response_store *s)
{
    const struct share *most = shares_most(&s->shares, SHARE_STORED);
    struct response_kept *r = s->tail;
    while (r && r->share != most) r = r->prev;
    unlist(s, r ? r : s->tail);
}

static struct response_kept *find(struct response_store *s, const char *id,
                                  const struct response_owner *owner)
{
    for (struct response_kept *r = hash_first(&s->table, hash_of(id)); r; r = hash_next(r))
        if (strcmp(r->id, id) == 0 && memcmp(&r->owner, owner, sizeof *owner) == 0) return r;
    return NULL;
}

struct response_kept *response_take(struct response_store *s, const char *id,
                                    const struct response_owner *owner)
{
    pthread_mutex_lock(&s->lock);
    struct response_kept *r = find(s, id, owner);
    if (r) {
        r->refs++;
        touch(s, r);
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

void response_give_back(struct response_store *s, struct response_kept *r)
{
    if (!r) return;
    pthread_mutex_lock(&s->lock);
    drop(s, r);
    pthread_mutex_unlock(&s->lock);
}

bool response_keep(struct response_store *s, const struct response_kept *new, const char *response,
                   size_t len)
{
    size_t values = 0, text = text_of(new->items, &values);
    uint64_t bytes = sizeof *new + len + text + values *VALUE_BYTES;
    struct response_kept *r = values > VALUES_MAX || bytes > s->bytes_max ? NULL : malloc(sizeof *r);
    if (!r) return false;
    *r = *new;
    r->bytes = bytes;
    r->refs = 1;
    r->listed = true;
    buf_init(&r->response, len);
    if (buf_add(&r->response, response, len)) {
        free(r);
        return false;
    }
    pthread_mutex_lock(&s->lock);
    hash_insert(&s->table, &r->link, hash_of(r->id));
    LIST_LINK(s, NULL, r);
    touch(s, r->before);
    s->bytes += r->bytes;
    r->share = share_take(&s->shares, r->holder);
    r->charge = r->bytes + s->bytes_max / ENTRIES_MAX;
    share_add(r->share, SHARE_STORED, r->charge);
    while (s->tail && (s->bytes > s->bytes_max || s->table.count > ENTRIES_MAX)) evict(s);
    pthread_mutex_unlock(&s->lock);
    return true;
}

bool response_forget(struct response_store *s, const char *id, const struct response_owner *owner)
{
    pthread_mutex_lock(&s->lock);
    struct response_kept *r = find(s, id, owner);
    if (r) unlist(s, r);
    pthread_mutex_unlock(&s->lock);
    return r != NULL;
}

void response_forget_websocket(struct response_store *s, uint64_t websocket)
{
    pthread_mutex_lock(&s->lock);
    for (struct response_kept *r = s->head, *next; r; r = next) {
        next = r->next;
        if (r->owner.websocket == websocket) unlist(s, r);
    }
    pthread_mutex_unlock(&s->lock);
}

void response_store_size(struct response_store *s, uint32_t *count, uint64_t *bytes)
{
    pthread_mutex_lock(&s->lock);
    *count = (uint32_t)s->table.count;
    *bytes = s->bytes;
    pthread_mutex_unlock(&s->lock);
}

void response_store_destroy(struct response_store *s)
{
    if (!s) return;
    while (s->tail) unlist(s, s->tail);
    ASSERT_SLOW(!s->bytes);
    pthread_mutex_destroy(&s->lock);
    free(s->table.buckets);
    free(s);
}
