/* Copies of evicted blocks, their way down to the disk, and the store's events. See tier.h. */
#include "scheduler/cache/tier_internal.h"

#include "config/base/assert.h"
#include <stdlib.h>
#include <string.h>

enum {
    FLUSH_MS = 100,  /* of one wait for the disk, while draining */
    HOST_ALIGN = 64, /* bytes */
};

enum status tier_create(struct engine *e, const struct engine_caps *caps, const struct tier_options *opt,
                        struct tier **out, struct err *err)
{
    struct tier *t = calloc(1, sizeof *t);
    if (!t) {
        cache_store_close(opt->store);
        return err_nomem(err, "the cache tier");
    }
    t->engine = e;
    t->caps = *caps;
    t->opt = *opt;
    t->bt = caps->block_tokens;
    t->ready = t->off = !opt->store;
    t->events = opt->event_sink.block_tokens == t->bt;
    t->state_group = TIER_NO_GROUP;
    if (caps->groups[caps->group_count - 1].recurrent) t->state_group = caps->group_count - 1;
    enum status st = tier__index_create(t, err);
    if (!st && opt->host_bytes && !(t->host = engine_host_alloc(e, opt->host_bytes)))
        st = err_set(err, ST_NOMEM, "no %llu MiB of host memory for the prefix cache (--cache-host)",
                     (unsigned long long)(opt->host_bytes >> 20));
    if (st) tier_destroy(t);
    else *out = t;
    return st;
}

void tier_destroy(struct tier *t)
{
    if (!t) return;
    cache_store_close(t->opt.store);
    tier__index_destroy(t);
    engine_host_free(t->engine);
    free(t);
}

bool tier_ready(const struct tier *t)
{
    return t->ready;
}

/* ---- to the disk ---- */

/* Waits for the disk for a while. */
static bool flush(struct tier *t)
{
    if (cache_store_flush(t->opt.store, FLUSH_MS)) return true;
    t->drain_ms -= t->drain_ms < FLUSH_MS ? t->drain_ms : FLUSH_MS;
    return false;
}

static uint64_t put(struct tier *t, enum record_kind kind, const uint8_t salt[32], uint64_t parent,
                    const void *meta, uint32_t meta_bytes, void *payload, uint64_t bytes)
{
    struct store_record r = {
        .parent = parent, .kind = kind, .meta = meta, .meta_bytes = meta_bytes, .payload_bytes = bytes};
    memcpy(r.salt, salt, sizeof r.salt);
    uint64_t id = cache_store_put(t->opt.store, &r, payload);
    while (!id && t->drain_ms && !flush(t)) {
    }
    if (!id && t->drain_ms) id = cache_store_put(t->opt.store, &r, payload);
    t->full |= !id;
    if (!id) free(payload);
    return id;
}

/* Names n in the store by a record with this payload. False: dropped. */
static bool name_node(struct tier *t, struct tier_node *n, struct tier_record *r, enum record_kind kind,
                      void *payload)
{
    n->items->group = r->group;
    uint64_t parent = n->parent->items ? n->parent->name->id : 0,
             id = put(t, kind, n->root->salt, parent, n->items, n->items_bytes, payload, r->bytes);
    if (id) n->name = r;
    if (id) tier__record_id(t, r, id);
    return id != 0;
}

/* Names n and those above it that have no name yet. */
static bool name_path(struct tier *t, struct tier_node *n)
{
    uint32_t depth = 0;
    struct tier_node *a, **path;
    for (a = n; a->items && !a->name; a = a->parent) depth++;
    if (!depth) return true;
    if (!(path = malloc(depth * sizeof(struct tier_node *)))) return false;
    for (uint32_t i = depth; i-- > 0; n = n->parent) path[i] = n;
    bool ok = true;
    for (uint32_t i = 0; ok && i < depth; i++) {
        struct tier_record *r = tier__record_create(t, path[i], TIER_NO_GROUP, 0);
        ok = r && name_node(t, path[i], r, RECORD_KV, NULL);
        if (r && !ok) tier__record_free(t, r);
    }
    free(path);
    return ok;
}

/* Takes the payload. A dropped record keeps neither payload nor id. */
static void to_disk(struct tier *t, struct tier_record *r, void *payload)
{
    struct tier_node *n = r->node;
    if (!n) {
        tier__record_id(t, r, put(t, RECORD_IMAGE, r->salt, 0, r->key, sizeof r->key, payload, r->bytes));
        return;
    }
    enum record_kind kind = r->group == t->state_group            ? RECORD_STATE
                            : t->caps.groups[r->group].window > 0 ? RECORD_WINDOW
                                                                  : RECORD_KV;
    if (!name_path(t, n->name ? n : n->parent)) {
        free(payload);
    } else if (!n->name) {
        (void)name_node(t, n, r, kind, payload);
    } else {
        struct tier_items meta = {.group = r->group};
        tier__record_id(t, r,
                        put(t, kind, n->root->salt, n->name->id, &meta, sizeof meta, payload, r->bytes));
    }
}

static bool disk_takes(const struct tier *t)
{
    return !t->off && (!t->full || t->drain_ms);
}

/* ---- host memory ---- */

/* Moves a record to the disk. */
static void demote(struct tier *t, struct tier_record *r)
{
    void *copy = !r->id && disk_takes(t) ? malloc(r->bytes) : NULL;
    if (copy) {
        engine_copies_wait(t->engine, r->copied);
        memcpy(copy, r->host, r->bytes);
    }
    tier__event(t, r, false);
    tier__host_remove(t, r);
    if (copy) to_disk(t, r, copy);
    tier__event(t, r, true);
    if (!r->id) tier__record_free(t, r);
}

/* Records that were used since the ring's end was here stay for another round. NULL: there is no place. */
static char *host_take(struct tier *t, uint64_t bytes)
{
    uint64_t end = t->opt.host_bytes, size = (bytes + HOST_ALIGN - 1) / HOST_ALIGN * HOST_ALIGN;
    for (uint64_t left = size > end ? 0 : 2 * t->stats.records + 3; left; left--) {
        struct tier_record *r = t->in_host.head;
        bool before = r && r->host >= t->host + t->host_at;
        uint64_t next = before ? (uint64_t)(r->host - t->host) : end;
        if (next - t->host_at >= size) {
            t->host_at += size;
            return t->host + t->host_at - size;
        }
        if (!before) {
            t->host_at = 0;
        } else if (r->used || r->readers) {
            uint64_t copied = r->copied, released = t->released;
            char *host = r->host;
            t->host_at = next + (r->bytes + HOST_ALIGN - 1) / HOST_ALIGN * HOST_ALIGN;
            tier__host_remove(t, r);
            tier__host_add(t, r, host);
            r->copied = copied;
            r->used = false;
            t->released = released;
        } else {
            demote(t, r);
        }
    }
    return NULL;
}

/* ---- keeping what is evicted ---- */

static bool in_host(const struct tier *t, const void *p)
{
    return t->host && (uintptr_t)p - (uintptr_t)t->host < t->opt.host_bytes;
}

/* Memory for a copy: of the ring, or malloc'd on the way to the disk. */
static void *place(struct tier *t, uint64_t bytes)
{
    void *copy = t->host && !t->drain_ms ? host_take(t, bytes) : NULL;
    return copy || !disk_takes(t) ? copy : malloc(bytes);
}

/* Takes the copy; r NULL: frees it. */
static void keep(struct tier *t, struct tier_record *r, void *copy)
{
    bool host = in_host(t, copy);
    if (r && host) tier__host_add(t, r, copy);
    else if (r) to_disk(t, r, copy);
    else if (!host) free(copy);
    if (r && (r->host || r->id)) {
        t->stats.written_blocks++;
        tier__event(t, r, true);
        return;
    }
    t->stats.dropped_blocks++;
    if (r) tier__record_free(t, r);
}

static void keep_block(struct tier *t, struct tier_node *n, uint32_t g, uint32_t block_offset)
{
    bool whole = n->items->end - n->items->start == t->bt;
    if (n->data[g] || (!whole && g != t->state_group && tier__covered(n, g))) return;
    uint64_t bytes = t->caps.groups[g].block_bytes;
    void *copy = place(t, bytes);
    struct tier_record *r = copy ? tier__record_create(t, n, g, bytes) : NULL;
    if (r) engine_kv_read(t->engine, g, block_offset, copy);
    keep(t, r, copy);
}

/* The block of a run at this index of the path; ENGINE_NO_BLOCK: none. */
static uint32_t block_of(const struct tier *t, const struct radix_view *v, const struct radix_run *run,
                         uint32_t g, uint32_t index)
{
    if (g == t->state_group)
        return run->count && (v->count - 1) / t->bt == index ? run->block_offsets[0] : ENGINE_NO_BLOCK;
    bool there = index >= run->first && index - run->first < run->count;
    return there ? run->block_offsets[index - run->first] : ENGINE_NO_BLOCK;
}

void tier_keep(void *tier, const struct radix_view *v, const struct radix_run runs[ENGINE_GROUPS_MAX])
{
    struct tier *t = tier;
    uint32_t last = 0;
    for (uint32_t g = 0; g < t->caps.group_count; g++) {
        uint32_t end = g == t->state_group ? (v->count - 1) / t->bt + 1 : runs[g].first + runs[g].count;
        if (runs[g].count && end > last) last = end;
    }
    struct tier_node *n = last && (t->host || disk_takes(t)) ? tier__root(t, v->salt, true) : NULL, *k;
    for (uint32_t i = 0; n && i < last; i++, n = k) {
        tier__encode(t, v, i * t->bt, v->count - i * t->bt < t->bt ? v->count : (i + 1) * t->bt);
        k = tier__child(t, n);
        if (!k) {
            struct tier_items *items = malloc(t->scratch_bytes);
            if (items) memcpy(items, t->scratch, t->scratch_bytes);
            k = items ? tier__child_create(t, n, items, t->scratch_bytes) : NULL;
        }
        if (!k) break;
        k->busy = true; /* a failed record must not free it */
        for (uint32_t g = 0; g < t->caps.group_count; g++) {
            uint32_t block_offset = block_of(t, v, &runs[g], g, i);
            if (block_offset != ENGINE_NO_BLOCK) keep_block(t, k, g, block_offset);
        }
        k->busy = false;
    }
    if (n && n->name) cache_store_touch(t->opt.store, n->name->id);
    tier__prune(t, n);
}

void tier_keep_features(void *tier, const uint8_t salt[32], const uint8_t key[32],
                        const struct engine_features *f)
{
    struct tier *t = tier;
    uint64_t bytes = engine_features_bytes(f);
    if (tier_find_features(t, salt, key)) return;
    void *copy = place(t, bytes);
    struct tier_record *r = copy ? tier__image_create(t, salt, key, bytes) : NULL;
    if (r) engine_features_read(t->engine, f, copy);
    keep(t, r, copy);
}

void tier_drain(struct tier *t, uint32_t ms)
{
    t->drain_ms = ms;
}

void tier_flush(struct tier *t)
{
    while (t->in_host.head && !t->off) demote(t, t->in_host.head);
    while (t->drain_ms && !t->off && !flush(t)) {
    }
}

void tier_reset(struct tier *t)
{
    t->resetting = !t->ready; /* what is still to be found is deleted, too */
    for (uint64_t i = 0; i < t->by_id.size && !t->off; i++) {
        for (const struct tier_record *r = hash_first(&t->by_id, i); r; r = hash_next(r))
            if (!r->node || (r->node->name == r && !r->node->parent->parent))
                cache_store_drop(t->opt.store, r->id); /* and what continues it */
    }
    tier__index_clear(t);
}

/* ---- reading ---- */

bool tier_in_host(const struct tier_record *record)
{
    return record->host;
}

static void read_in_host(struct tier_record *record, struct tier_read *r)
{
    record->used = true;
    record->readers++;
    r->record = record;
    r->bytes = record->host;
    r->state = TIER_DONE;
}

void tier_read(struct tier *t, struct tier_record *record, struct tier_read *r)
{
    *r = (struct tier_read){.size = record->bytes, .state = TIER_LOST};
    if (record->host) {
        read_in_host(record, r);
        return;
    }
    if (!(r->bytes = malloc(record->bytes))) return;
    r->from_disk = true;
    r->state = TIER_READING;
    if (!cache_store_get(t->opt.store, record->id, r->bytes, record->bytes, r)) r->state = TIER_LOST;
}

void tier_read_end(struct tier *t, struct tier_read *r)
{
    if (r->record) {
        r->record->readers--;
        r->record->copied = engine_copies(t->engine);
    } else {
        free(r->bytes);
    }
    r->record = NULL;
    r->bytes = NULL;
}

/* What was read from the disk goes to host memory: from there a device copies it without waiting. */
static void promote(struct tier *t, struct tier_record *record, struct tier_read *r)
{
    char *host = record && !record->host ? host_take(t, r->size) : NULL;
    if (!host) return;
    engine_copies_wait(t->engine, t->released);
    memcpy(host, r->bytes, r->size);
    free(r->bytes);
    tier__event(t, record, false);
    tier__host_add(t, record, host);
    tier__event(t, record, true);
    read_in_host(record, r);
}

void tier_drop_features(struct tier *t, const uint8_t salt[32], const uint8_t key[32])
{
    struct tier_record *r = tier_find_features(t, salt, key);
    if (!r) return;
    if (r->id) cache_store_drop(t->opt.store, r->id);
    tier__record_free(t, r);
}

void tier_touch(struct tier *t, const struct tier_record *record)
{
    if (record->id) cache_store_touch(t->opt.store, record->id);
}

/* ---- events for routers ---- */

void tier__event(const struct tier *t, const struct tier_record *r, bool there)
{
    const struct tier_node *n = r->node;
    const struct kv_event_sink *w = &t->opt.event_sink;
    if (!t->events || !n || (!r->id && !r->host) || r->group == TIER_NO_GROUP || r->group == t->state_group ||
        n->items->end - n->items->start < t->bt)
        return;
    enum cache_tier tier = r->host ? CACHE_TIER_HOST : CACHE_TIER_DISK;
    if (!there) {
        w->removed(w->arg, tier, r->group, &n->block_hash, 1);
        return;
    }
    struct cache_image images[n->items->span_count + 1];
    for (uint32_t i = 0; i < n->items->span_count; i++) {
        const struct tier_span *s = tier__spans(n->items) + i;
        images[i] = (struct cache_image){.begin = s->begin, .end = s->end};
        memcpy(images[i].key, s->key, sizeof s->key);
    }
    w->stored(w->arg, &(struct cache_stored){.tier = tier,
                                             .group = r->group,
                                             .window = t->caps.groups[r->group].window,
                                             .count = 1,
                                             .first = n->items->start,
                                             .parent = n->parent->block_hash,
                                             .hashes = &n->block_hash,
                                             .tokens = tier__tokens(n->items),
                                             .images = images,
                                             .image_count = n->items->span_count,
                                             .salt = n->root->salt});
}

/* Parents come before their children. */
static const struct tier_node *next_node(const struct tier_node *n)
{
    if (n->child) return n->child;
    while (n->parent && !n->next) n = n->parent;
    return n->next;
}

void tier_announce(void *tier)
{
    const struct tier *t = tier;
    for (uint64_t i = 0; i < t->nodes.size && t->events; i++)
        for (const struct tier_node *root = hash_first(&t->nodes, i); root; root = hash_next(root))
            for (const struct tier_node *n = root->parent ? NULL : root; n; n = next_node(n))
                for (uint32_t g = 0; g < t->caps.group_count; g++)
                    if (n->data[g]) tier__event(t, n->data[g], true);
}

/* ---- the store's events ---- */

/* Whether the meta data are those of a block after `parent`. */
static bool items_valid(const struct tier *t, const struct tier_node *parent, const struct store_record *r)
{
    const struct tier_items *it = (const void *)r->meta;
    if (it->end <= it->start || it->end - it->start > t->bt || it->span_count > t->bt ||
        it->start != (parent->items ? parent->items->end : 0) || it->start % t->bt ||
        r->meta_bytes != tier__items_bytes(it->start, it->end, it->span_count))
        return false;
    return tier__spans_valid(it);
}

/* What an earlier process left; the node and the record that come of it, or NULL. Takes the meta data. */
static struct tier_record *found_block(struct tier *t, const struct store_record *r, struct tier_items *it)
{
    struct tier_record *above = r->parent ? tier__by_id(t, r->parent) : NULL;
    struct tier_node *n = above ? above->node : NULL;
    bool own = it->end > 0;
    if (r->parent && (!n || n->name != above || memcmp(n->root->salt, r->salt, sizeof r->salt) != 0))
        return NULL;
    if (!r->parent) n = own ? tier__root(t, r->salt, true) : NULL;
    if (!n || (it->group == TIER_NO_GROUP ? !own || r->payload_bytes > 0
                                          : it->group >= t->caps.group_count ||
                                                r->payload_bytes != t->caps.groups[it->group].block_bytes))
        return NULL;
    if (!own) return n->data[it->group] ? NULL : tier__record_create(t, n, it->group, r->payload_bytes);
    if (!items_valid(t, n, r)) return NULL;
    memcpy(t->scratch, it, r->meta_bytes);
    t->scratch_bytes = r->meta_bytes;
    if (tier__child(t, n)) return NULL;
    struct tier_items *copy = malloc(r->meta_bytes);
    if (copy) memcpy(copy, it, r->meta_bytes);
    n = copy ? tier__child_create(t, n, copy, r->meta_bytes) : NULL;
    struct tier_record *made = n ? tier__record_create(t, n, it->group, r->payload_bytes) : NULL;
    if (made) n->name = made;
    else tier__prune(t, n);
    return made;
}

static void found(struct tier *t, const struct store_record *r)
{
    struct tier_record *made = NULL;
    struct tier_items *it = (void *)r->meta; /* malloc'd */
    if (t->resetting) {
        /* deleted */
    } else if (r->kind == RECORD_IMAGE) {
        if (r->meta_bytes == 32 && r->payload_bytes && !tier_find_features(t, r->salt, r->meta))
            made = tier__image_create(t, r->salt, r->meta, r->payload_bytes);
    } else if (r->meta_bytes >= sizeof *it) {
        made = found_block(t, r, it);
    }
    if (made) tier__record_id(t, made, r->id);
    if (made) tier__event(t, made, true);
    else cache_store_drop(t->opt.store, r->id);
}

static void gone(struct tier *t, struct tier_record *r)
{
    if (!r->host) tier__event(t, r, false);
    tier__record_id(t, r, 0);
    if (r->node && r->node->name == r) r->node->name = NULL;
    if (!r->host) tier__record_free(t, r);
}

bool tier_poll(struct tier *t)
{
    struct store_event ev;
    bool any = false;
    if (!t->opt.store) return false;
    t->full = false;
    while (cache_store_poll(t->opt.store, &ev)) {
        struct tier_record *r = ev.kind == STORE_GONE ? tier__by_id(t, ev.record.id) : NULL;
        any = true;
        switch (ev.kind) {
        case STORE_FOUND:
            found(t, &ev.record);
            free((void *)ev.record.meta);
            break;
        case STORE_READY:
            t->ready = true;
            t->resetting = false;
            tier__prune_all(t); /* names of nodes whose data were never written */
            break;
        case STORE_READ:
            ((struct tier_read *)ev.user)->state = ev.ok ? TIER_DONE : TIER_LOST;
            if (ev.ok && t->host) promote(t, tier__by_id(t, ev.record.id), ev.user);
            break;
        case STORE_GONE:
            if (r) gone(t, r);
            break;
        case STORE_OFF:
            t->off = t->ready = true;
            for (uint64_t i = 0; i < t->by_id.size; i++)
                while ((r = hash_first(&t->by_id, i))) gone(t, r);
            break;
        }
    }
    return any;
}

void tier_stats(const struct tier *t, struct tier_stats *out)
{
    *out = t->stats;
    out->disk_off = t->off;
}
