/* See feature_cache.h. */
#include "scheduler/cache/feature_cache.h"

#include "config/base/assert.h"
#include "config/base/list.h"
#include "scheduler/cache/hash_mix.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS_MIN = 64 }; /* a power of two, as every later size */

static uint64_t hash_of(const struct feature_cache *c, const uint8_t salt[32], const uint8_t key[32])
{
    return hash_mix_bytes(hash_mix_bytes(hash_mix(c->seed), salt, 32), key, 32);
}

enum status features_create(struct engine *e, uint64_t bytes_max, uint64_t seed, struct feature_cache **out,
                            struct err *err)
{
    struct feature_cache *c = calloc(1, sizeof *c);
    if (!c || !hash_create(&c->table, BUCKETS_MIN)) {
        free(c);
        return err_nomem(err, "the table of image features");
    }
    c->engine = e;
    c->bytes_max = bytes_max;
    c->seed = seed;
    *out = c;
    return ST_OK;
}

static void count_bytes(struct feature_cache *c, struct feature_entry *f)
{
    uint64_t now = f->features ? engine_features_bytes(f->features) : 0;
    c->st.bytes = c->st.bytes - f->bytes + now;
    f->bytes = now;
}

static void make_empty(struct feature_cache *c, struct feature_entry *f)
{
    engine_features_free(c->engine, f->features);
    f->features = NULL;
    f->state = FEATURES_EMPTY;
    count_bytes(c, f);
}

/* Frees an entry without holders that is in no list. */
static void drop(struct feature_cache *c, struct feature_entry *f)
{
    ASSERT_CMP(f->holders, ==, 0);
    if (!f->private) hash_remove(&c->table, &f->link);
    if (f->features) make_empty(c, f);
    c->st.entries--;
    free(f);
}

static void evict(struct feature_cache *c, uint64_t bytes_max)
{
    while (c->st.bytes > bytes_max && c->idle.head) {
        struct feature_entry *f = c->idle.head;
        LIST_UNLINK(&c->idle, f);
        if (c->keep) c->keep(c->keep_arg, f->salt, f->key, f->features);
        drop(c, f);
        c->st.evictions++;
    }
}

void features_reset(struct feature_cache *c)
{
    while (c->idle.head) {
        struct feature_entry *f = c->idle.head;
        LIST_UNLINK(&c->idle, f);
        drop(c, f);
    }
}

void features_destroy(struct feature_cache *c)
{
    if (!c) return;
    features_reset(c);
    ASSERT_CMP(c->st.entries, ==, 0); /* an entry still has holders */
    free(c->table.buckets);
    free(c);
}

struct feature_entry *features_find(const struct feature_cache *c, const uint8_t salt[32],
                                    const uint8_t key[32])
{
    struct feature_entry *f = hash_first(&c->table, hash_of(c, salt, key));
    while (f && (memcmp(f->key, key, 32) != 0 || memcmp(f->salt, salt, 32) != 0)) f = hash_next(f);
    return f;
}

struct feature_entry *features_get(struct feature_cache *c, const uint8_t salt[32], const uint8_t key[32])
{
    struct feature_entry *f = features_find(c, salt, key);
    if (f) {
        c->st.hits++;
        if (f->holders == 0) LIST_UNLINK(&c->idle, f);
    } else {
        f = calloc(1, sizeof *f);
        if (!f) return NULL;
        memcpy(f->salt, salt, 32);
        memcpy(f->key, key, 32);
        hash_insert(&c->table, &f->link, hash_of(c, salt, key));
        c->st.entries++;
    }
    c->st.queries++;
    c->st.holds++;
    f->holders++;
    return f;
}

struct feature_entry *features_get_private(struct feature_cache *c)
{
    struct feature_entry *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->private = true;
    f->holders = 1;
    LIST_LINK(&c->privates, c->privates.tail, f);
    c->st.entries++;
    c->st.holds++;
    return f;
}

void features_release(struct feature_cache *c, struct feature_entry *f)
{
    ASSERT_CMP(f->holders, >, 0);
    c->st.holds--;
    if (--f->holders > 0) return;
    if (f->private) LIST_UNLINK(&c->privates, f);
    if (f->private || f->state != FEATURES_DONE) {
        drop(c, f);
        return;
    }
    LIST_LINK(&c->idle, c->idle.tail, f);
    evict(c, c->bytes_max);
}

enum feature_state features_state(const struct feature_entry *f)
{
    return f->state;
}

const struct engine_features *features_of(const struct feature_entry *f)
{
    ASSERT(f->state == FEATURES_DONE && f->holders > 0);
    return f->features;
}

enum status features_begin(struct feature_cache *c, struct feature_entry *f, const struct image_u8 *pixels,
                           const struct adapter *adapter, struct err *err)
{
    ASSERT(f->state == FEATURES_EMPTY && f->holders > 0);
    struct err first = {{0}};
    enum status st = engine_features_create(c->engine, pixels, adapter, &f->features, &first);
    if (st == ST_NOMEM && c->idle.head) {
        evict(c, 0); /* an image needed now comes before idle ones */
        st = engine_features_create(c->engine, pixels, adapter, &f->features, &first);
    }
    if (st) {
        f->features = NULL;
        return err_set(err, st, "%s", first.msg[0] ? first.msg : "the image could not be encoded");
    }
    f->state = FEATURES_ENCODING;
    count_bytes(c, f);
    evict(c, c->bytes_max);
    return ST_OK;
}

enum status features_encode(struct feature_cache *c, struct feature_entry *f, uint32_t layers,
                            struct err *err)
{
    ASSERT(f->state == FEATURES_ENCODING && f->holders > 0);
    bool done = false;
    enum status st = engine_features_step(c->engine, f->features, layers, &done, err);
    if (st) {
        make_empty(c, f);
        return st;
    }
    if (done) f->state = FEATURES_DONE;
    count_bytes(c, f);
    evict(c, c->bytes_max);
    return ST_OK;
}

void features_load(struct feature_cache *c, struct feature_entry *f)
{
    ASSERT(c && f->state == FEATURES_EMPTY && f->holders > 0 && !f->private);
    f->state = FEATURES_LOADING;
    f->holders++;
    c->st.holds++;
}

bool features_loaded(struct feature_cache *c, struct feature_entry *f, const void *host, size_t bytes)
{
    struct err err;
    ASSERT(f->state == FEATURES_LOADING && f->holders > 0);
    bool ok = host && !engine_features_write(c->engine, host, bytes, &f->features, &err);
    f->state = ok ? FEATURES_DONE : FEATURES_EMPTY;
    count_bytes(c, f);
    evict(c, c->bytes_max);
    features_release(c, f);
    return ok;
}

void features_set_sink(struct feature_cache *c, features_keep *keep, void *arg)
{
    c->keep = keep;
    c->keep_arg = arg;
}

void features_keep_all(struct feature_cache *c)
{
    for (const struct feature_entry *f = c->idle.tail; f && c->keep; f = f->prev)
        c->keep(c->keep_arg, f->salt, f->key, f->features);
}

void features_stats(const struct feature_cache *c, struct features_stats *out)
{
    *out = c->st;
}
