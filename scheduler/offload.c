/* The tiers below the arena (cache/tier.h): what a waiting sequence loads before it is admitted, images that
 * are loaded instead of encoded, and what is written at the end. Engine thread; it never waits for the disk.
 *
 *   waiting --start-->  its blocks are read, a few at a time, into buffers, and copied to new blocks of the
 *                       arena
 *     complete:         published to the prefix cache; the sequence is admitted and finds them there
 *     given up:         lost or damaged, too slow, or memory is needed; the sequence is admitted and computes
 *
 * Other sequences go on meanwhile. A load holds its blocks as a sequence does. See scheduler/internal.h. */
#include "scheduler/cache/cache_store.h"
#include "scheduler/cache/feature_cache.h"
#include "scheduler/offload.h"

#include "config/base/assert.h"
#include "config/base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOADS_MAX = 4,         /* at a time; others wait */
    READ_AHEAD = 64 << 20, /* bytes of buffers of one load */
    COPY_MAX = 16 << 20,   /* bytes copied to the arena between two steps */
    READY_US = 2000000,    /* a sequence waits so long for the index after the start */
    SLOW_US = 1000000,     /* a load may take this, or SLOW_TIMES what computing would */
    SLOW_TIMES = 2,
    RETRY_PART = 64,  /* what the time of a byte loses of its excess with each load that is not worth it */
    DRAIN_MS = 15000, /* for writing at the end */
    HOST_MIN = 128 << 20, /* bytes above the disk, if blocks are in a device's memory */
};
/* Until they are measured. */
static const double LOAD_US_PER_BYTE = 1.0 / 400, HOST_US_PER_BYTE = 1.0 / 4000, COMPUTE_US_PER_TOKEN = 200;
static const double IMAGE_TOKEN_MORE = 4; /* the tower's share, in tokens */
static const double LOAD_FIXED_US = 3000; /* of a load, however small; a rate is learnt from larger ones */

enum status sched__offload_create(struct scheduler *s, void (*wake)(void *s), struct err *err)
{
    struct cache_store *store = NULL;
    if (!s->cache || (!s->opt.disk && !s->opt.host_bytes)) return ST_OK;
    if (s->opt.disk) {
        struct cache_store_options so = *s->opt.disk;
        struct err why = {{0}};
        so.wake = wake;
        so.wake_arg = s;
        if (cache_store_open(&so, &store, &why)) log_warn("the prefix cache stays in memory: %s", why.msg);
    }
    s->opt.disk = NULL;
    if (!store && !s->opt.host_bytes) return ST_OK;
    struct offload *o = calloc(1, sizeof *o);
    if (!o) {
        cache_store_close(store);
        return err_nomem(err, "the cache tier");
    }
    uint64_t least = s->caps.device_memory ? HOST_MIN : 0;
    struct tier_options to = {.store = store,
                              .host_bytes = s->opt.host_bytes ? s->opt.host_bytes : least,
                              .seed = s->opt.hash_seed,
                              .event_sink = s->opt.event_sink};
    enum status st = tier_create(s->engine, &s->caps, &to, &o->tier, err);
    if (st) {
        free(o);
        return st;
    }
    o->us_per_byte = LOAD_US_PER_BYTE;
    o->started_us = sched__clock(s);
    radix_set_sink(s->cache, &(struct radix_sink){o->tier, tier_keep, tier_announce});
    features_set_sink(s->features, tier_keep_features, o->tier);
    s->offload = o;
    return ST_OK;
}

/* ---- loads ---- */

static void let_go(struct scheduler *s, struct load *l)
{
    for (uint32_t g = 0; g < s->caps.group_count; g++) {
        struct block_table *t = &l->tables[g];
        for (uint32_t i = t->first; i < t->end; i++)
            if (t->block_offsets[i] != ENGINE_NO_BLOCK)
                kvb_release(s->blocks, g, t->block_offsets[i], KVB_LIVE);
        free(t->block_offsets);
        *t = (struct block_table){0};
    }
    s->freed++;
    radix_unpin(s->cache, &l->pin);
}

static void give_up(struct scheduler *s, struct load *l)
{
    if (!l->q) return;
    for (uint32_t i = l->copied; i < l->asked; i++)
        if (l->blocks[i].read.state != TIER_READING) tier_read_end(s->offload->tier, &l->blocks[i].read);
    let_go(s, l);
    l->q->load = NULL;
    l->q->loaded = true;
    l->q = NULL;
    s->offload->ended++;
    if (!l->done) s->now.tier_loads_failed++;
}

/* Frees loads without a sequence whose reads have ended. */
static void sweep(struct offload *o, bool all)
{
    for (struct load **at = &o->loads; *at;) {
        struct load *l = *at;
        bool reading = l->q && !all;
        for (uint32_t i = l->copied; i < l->asked && !all; i++)
            reading |= l->blocks[i].read.state == TIER_READING;
        if (reading) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        for (uint32_t i = l->copied; i < l->asked; i++) tier_read_end(o->tier, &l->blocks[i].read);
        o->ended++;
        free(l->blocks);
        free(l);
    }
    for (struct image_load **at = &o->images; *at;) {
        struct image_load *l = *at;
        if (!all && (l->entry || l->read.state == TIER_READING)) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        tier_read_end(o->tier, &l->read);
        free(l);
    }
}

/* But for those that the store is busy with. */
static void end_reads(struct scheduler *s)
{
    (void)sched__offload_yield(s);
    for (struct image_load *l = s->offload->images; l; l = l->next) {
        if (l->read.state == TIER_READING) continue;
        tier_read_end(s->offload->tier, &l->read);
        l->read.state = TIER_LOST;
    }
}

void sched__offload_destroy(struct scheduler *s)
{
    struct offload *o = s->offload;
    if (!o) return;
    radix_set_sink(s->cache, &(struct radix_sink){0});
    features_set_sink(s->features, NULL, NULL);
    end_reads(s);
    for (struct image_load *l = o->images; l; l = l->next)
        if (l->entry) (void)features_loaded(s->features, l->entry, NULL, 0);
    tier_destroy(o->tier); /* from here on nothing writes into the buffers of the others */
    sweep(o, true);
    free(o);
    s->offload = NULL;
}

/* The blocks and the state that a hit of l->length needs: held if they are in the arena, else listed. False:
 * out of memory. */
static bool list_blocks(struct scheduler *s, struct load *l, const struct radix_hit *hit, struct tier *t)
{
    uint32_t end = 0, most = 0;
    for (uint32_t g = 0; g < s->caps.group_count; g++) {
        const struct block_table *from = &hit->tables[g];
        if (!sched__table_reserve(&l->tables[g], from->end)) return false;
        l->tables[g].first = from->first;
        l->tables[g].end = from->end;
        most += from->end - from->first;
        if (g < s->paged && from->end > end) end = from->end;
    }
    if (!(l->blocks = calloc(most + 1, sizeof *l->blocks))) return false;
    for (uint32_t i = 0; i <= end; i++) {
        for (uint32_t g = 0; g < s->caps.group_count; g++) {
            const struct block_table *from = &hit->tables[g];
            uint32_t at = g == s->paged ? 0 : i;
            if (g == s->paged ? i < end : i >= end) continue;
            if (at < from->first || at >= from->end) continue;
            uint32_t block_offset = from->block_offsets[at];
            l->tables[g].block_offsets[at] = block_offset;
            if (block_offset != ENGINE_NO_BLOCK) {
                kvb_acquire(s->blocks, g, block_offset, KVB_LIVE);
                continue;
            }
            l->blocks[l->count++] = (struct block_load){.group = g, .index = g == s->paged ? l->length : at};
            const struct tier_record *r = tier_found(t, g, l->blocks[l->count - 1].index);
            ASSERT(r);
            *(tier_in_host(r) ? &l->host_bytes : &l->disk_bytes) += s->caps.groups[g].block_bytes;
        }
    }
    return true;
}

/* Microseconds to compute what l would load. */
static double compute_us(const struct scheduler *s, const struct load *l)
{
    uint32_t n = l->length - l->known, rows = 0;
    const struct prompt *p = l->q->req.prompt;
    for (uint32_t i = 0; i < p->span_count && p->spans[i].begin < l->length; i++)
        if (p->spans[i].image && p->spans[i].end > l->known) rows += p->spans[i].end - p->spans[i].begin;
    double us = s->cost.steps ? step_cost_chunk_us(&s->cost, l->known, n, false) + s->cost.us[STEP_FIXED] : 0;
    return (us > 0 ? us : COMPUTE_US_PER_TOKEN * n) * (1 + IMAGE_TOKEN_MORE * rows / n);
}

/* Whether another load will bring more than `known` tokens of q. */
static bool others_load(const struct scheduler *s, const struct sequence *q, uint32_t known)
{
    struct radix_view v = sched__view(q);
    for (const struct load *l = s->offload->loads; l; l = l->next) {
        if (!l->q || l->done) continue;
        struct radix_view w = sched__view(l->q);
        uint32_t limit = l->length < q->count ? l->length : q->count;
        if (limit > known && radix_common(&v, &w, limit) > known) return true;
    }
    return false;
}

/* The position up to which l needs the block. */
static uint32_t block_end(const struct scheduler *s, const struct load *l, const struct block_load *b)
{
    uint32_t end = (b->index + 1) * s->caps.block_tokens;
    return end < l->length ? end : l->length;
}

/* Asks for further records, as far as the buffers may go. */
static void ask(struct scheduler *s, struct load *l)
{
    struct radix_view v = sched__view(l->q);
    struct radix_lower lower;
    if (l->asked == l->count || l->ahead >= READ_AHEAD || !tier_find(s->offload->tier, &v, &lower)) return;
    while (l->asked < l->count && l->ahead < READ_AHEAD) {
        struct block_load *b = &l->blocks[l->asked++];
        bool there = b->group == s->paged ||
                     (b->index < lower.blocks && lower.valid_to[b->group][b->index] >= block_end(s, l, b));
        struct tier_record *r = there ? tier_found(s->offload->tier, b->group, b->index) : NULL;
        b->read.state = TIER_LOST;
        if (!r) return;
        tier_read(s->offload->tier, r, &b->read);
        if (l->asked == l->count) tier_touch(s->offload->tier, r);
        if (b->read.from_disk) l->tier = CACHE_TIER_DISK;
        l->ahead += b->read.size;
    }
}

/* Starts q's load of what `hit` lacks, if it is faster than computing. */
static void start(struct scheduler *s, struct sequence *q, const struct radix_hit *hit, uint32_t known)
{
    struct offload *o = s->offload;
    struct load *l = calloc(1, sizeof *l);
    q->loaded = true;
    if (!l) return;
    *l = (struct load){.q = q, .known = known, .length = hit->length, .tier = CACHE_TIER_HOST};
    double computing = list_blocks(s, l, hit, o->tier) ? compute_us(s, l) : 0,
           loading = LOAD_FIXED_US + (double)l->disk_bytes * o->us_per_byte +
                     (double)l->host_bytes * HOST_US_PER_BYTE;
    if (computing <= 0 || (!s->opt.load_always && loading >= computing)) {
        o->us_per_byte -=
            fmax(o->us_per_byte - LOAD_US_PER_BYTE, 0) / RETRY_PART; /* one day it is tried again */
        let_go(s, l);
        free(l->blocks);
        free(l);
        return;
    }
    l->started_us = sched__clock(s);
    l->limit_us = (uint64_t)fmax(SLOW_US, SLOW_TIMES * computing);
    l->next = o->loads;
    o->loads = l;
    q->load = l;
    ask(s, l);
}

/* A hit inside a prefix-LM prefix is one only while the cache knows all of that: loads the rest, too. False:
 * it is not there. */
static bool make_whole(const struct scheduler *s, const struct radix_view *v, const struct radix_lower *lower,
                       struct radix_hit *hit)
{
    const struct prompt_span *p = v->span_count ? &v->spans[0] : NULL;
    uint32_t bt = s->caps.block_tokens, end = p && p->rule == SPAN_PREFIX_LM ? p->atomic_end : 0;
    for (uint32_t g = 0; g < s->paged && hit->length < end; g++) {
        for (uint32_t i = hit->length / bt; i < (end + bt - 1) / bt; i++) {
            if (i >= lower->blocks || lower->valid_to[g][i] < ((i + 1) * bt < end ? (i + 1) * bt : end))
                return false;
            hit->tables[g].block_offsets[i] = ENGINE_NO_BLOCK;
            hit->tables[g].end = i + 1;
        }
    }
    if (hit->length < end) hit->length = end;
    return true;
}

bool sched__loading(const struct scheduler *s, const struct sequence *q)
{
    return q->load ? !q->load->done : s->offload && q->waits_ended == s->offload->ended + 1;
}

bool sched__offload_waits(struct scheduler *s, struct sequence *q)
{
    struct offload *o = s->offload;
    uint32_t most, active = 0;
    bool ending = false;
    if (sched__loading(s, q)) return true;
    if (!o || q->loaded || q->alone) return false;
    if (!sched__cache_reads(s, q, &most)) return false;
    if (!tier_ready(o->tier)) return sched__clock(s) - o->started_us < READY_US;
    if (s->running.count > 0 && !sched__has_room(s, q)) return false; /* it waits for that first */
    struct radix_view v = sched__view(q);
    struct radix_hit hit;
    struct radix_lower lower;
    uint32_t known = radix_match(s->cache, &v, most, NULL, &hit) ? hit.length : most;
    if (known < most && others_load(s, q, known)) {
        q->waits_ended = o->ended + 1;
        return true;
    }
    bool more = known < most && tier_find(o->tier, &v, &lower) &&
                radix_match(s->cache, &v, most, &lower, &hit) && hit.length > known &&
                make_whole(s, &v, &lower, &hit);
    if (!more) {
        q->loaded = true;
        return false;
    }
    for (const struct load *l = o->loads; l; l = l->next) {
        active++;
        ending |= l->q != NULL; /* others wait for a disk that may hang */
    }
    if (active >= LOADS_MAX) {
        q->waits_ended = ending ? o->ended + 1 : 0;
        return ending;
    }
    start(s, q, &hit, known);
    return q->load != NULL;
}

/* Copies the next block to the arena. False: no memory. */
static bool copy_block(struct scheduler *s, struct load *l)
{
    struct block_load *b = &l->blocks[l->copied];
    uint32_t need[ENGINE_GROUPS_MAX] = {0}, bt = s->caps.block_tokens,
             at = b->group == s->paged ? 0 : b->index;
    need[b->group] = 1;
    if (!kvb_can_allocate(s->blocks, need) && !radix_evict(s->cache, need)) return false;
    uint32_t block_offset = kvb_allocate(s->blocks, b->group),
             tokens = b->group == s->paged ? bt : block_end(s, l, b) - at * bt;
    ASSERT(block_offset != ENGINE_NO_BLOCK);
    l->tables[b->group].block_offsets[at] = block_offset;
    engine_kv_write(s->engine, b->group, block_offset, b->read.bytes, tokens);
    l->ahead -= b->read.size;
    tier_read_end(s->offload->tier, &b->read);
    l->copied++;
    return true;
}

/* A load took so long, at least. */
static void learn(struct offload *o, const struct load *l, uint64_t took)
{
    double us = (double)took - LOAD_FIXED_US;
    if (l->tier != CACHE_TIER_DISK || !l->disk_bytes || us <= LOAD_FIXED_US) return;
    o->us_per_byte += (us / (double)l->disk_bytes - o->us_per_byte) / 4;
}

/* All of it is in the arena: publishes it. */
static void finish(struct scheduler *s, struct load *l)
{
    struct radix_view v = sched__view(l->q);
    struct radix_hit none = {.node = NULL};
    if (!radix_pin_hit(s->cache, &v, &none, &l->pin) ||
        radix_publish(s->cache, &v, &l->pin, 0, l->length, l->tables, true) < l->length) {
        give_up(s, l);
        return;
    }
    uint64_t took = sched__clock(s) - l->started_us;
    learn(s->offload, l, took);
    s->now.tier_loads++;
    s->now.tier_load_us += took;
    s->now.tier_loaded_tokens += l->length - l->known;
    l->done = true;
    s->offload->ended++;
}

/* Copies what has been read, at most `most` bytes; returns how many. */
static uint64_t advance(struct scheduler *s, struct load *l, uint64_t most)
{
    uint64_t bytes = 0;
    while (l->copied < l->asked && bytes < most) {
        const struct tier_read *r = &l->blocks[l->copied].read;
        if (r->state == TIER_READING) break;
        bytes += r->size;
        if (r->state == TIER_LOST || !copy_block(s, l)) {
            give_up(s, l);
            return bytes;
        }
    }
    if (l->copied == l->count) finish(s, l);
    else if (sched__clock(s) - l->started_us <= l->limit_us) ask(s, l);
    else {
        learn(s->offload, l, sched__clock(s) - l->started_us);
        give_up(s, l);
    }
    return bytes;
}

bool sched__offload_take(struct scheduler *s)
{
    struct offload *o = s->offload;
    if (!o) return false;
    uint64_t left = s->running.head ? COPY_MAX : UINT64_MAX, now = sched__clock(s);
    bool worked = tier_poll(o->tier);
    for (struct load *l = o->loads; l; l = l->next) {
        if (!l->q || l->done) continue;
        uint64_t bytes = advance(s, l, left);
        worked |= bytes > 0 || l->done || !l->q;
        left -= bytes < left ? bytes : left;
    }
    for (struct image_load *l = o->images; l; l = l->next) {
        bool slow = now - l->started_us > SLOW_US, done = l->read.state == TIER_DONE;
        if (!l->entry || (l->read.state == TIER_READING && !slow)) continue;
        done = features_loaded(s->features, l->entry, done ? l->read.bytes : NULL, l->read.size);
        s->now.tier_image_loads += done;
        if (l->read.state != TIER_READING) tier_read_end(o->tier, &l->read);
        if (!done) tier_drop_features(o->tier, l->salt, l->key); /* it is encoded */
        l->entry = NULL;
        worked = true;
    }
    sweep(o, false);
    return worked;
}

/* Host memory is read at once, and then nobody wakes the engine thread. */
bool sched__offload_ready(const struct scheduler *s)
{
    const struct offload *o = s->offload;
    for (const struct load *l = o ? o->loads : NULL; l; l = l->next)
        if (l->q && !l->done && l->copied < l->asked && l->blocks[l->copied].read.state != TIER_READING)
            return true;
    for (const struct image_load *l = o ? o->images : NULL; l; l = l->next)
        if (l->entry && l->read.state != TIER_READING) return true;
    return false;
}

void sched__offload_leave(struct scheduler *s, struct sequence *q)
{
    if (q->load) give_up(s, q->load);
}

bool sched__offload_yield(struct scheduler *s)
{
    bool any = false;
    for (struct load *l = s->offload ? s->offload->loads : NULL; l; l = l->next) {
        any |= l->q != NULL;
        give_up(s, l);
    }
    return any;
}

void sched__load_info(const struct load *l, struct sched_cache_info *info)
{
    if (!l->done) return;
    info->loaded = l->length - l->known;
    info->tier = l->tier;
}

/* ---- images ---- */

bool sched__offload_image(struct scheduler *s, struct feature_entry *f, const uint8_t salt[32],
                          const uint8_t key[32])
{
    struct offload *o = s->offload;
    struct tier_record *r = o ? tier_find_features(o->tier, salt, key) : NULL;
    if (!r || features_find(s->features, salt, key) != f) return false;
    for (const struct image_load *l = o->images; l; l = l->next)
        if (l->entry == f) return true;
    struct image_load *l = calloc(1, sizeof *l);
    if (!l) return false;
    tier_read(o->tier, r, &l->read);
    tier_touch(o->tier, r);
    l->started_us = sched__clock(s);
    memcpy(l->salt, salt, sizeof l->salt);
    memcpy(l->key, key, sizeof l->key);
    if (l->read.state != TIER_LOST) {
        features_load(s->features, f);
        l->entry = f;
    }
    l->next = o->images;
    o->images = l;
    return l->entry != NULL;
}

/* ---- the whole ---- */

void sched__offload_reset(struct scheduler *s)
{
    if (!s->offload) return;
    end_reads(s);
    tier_reset(s->offload->tier);
}

void sched__offload_drain(struct scheduler *s)
{
    struct offload *o = s->offload;
    if (!o || atomic_load(&s->failed)) return;
    uint64_t start = event_clock_us();
    end_reads(s);
    tier_drain(o->tier, DRAIN_MS);
    radix_keep_all(s->cache);
    features_keep_all(s->features);
    tier_flush(o->tier);
    struct tier_stats st;
    tier_stats(o->tier, &st);
    log_info("saved the prefix cache: %llu MiB in %.1f s", (unsigned long long)(st.disk_bytes >> 20),
             (double)(event_clock_us() - start) * 1e-6);
}

void sched__offload_gauges(struct scheduler *s)
{
    struct tier_stats st;
    if (!s->offload) return;
    tier_stats(s->offload->tier, &st);
    s->now.tier_on = true;
    if (st.disk_off && !s->now.disk_off && s->now.tier_bytes[CACHE_TIER_DISK])
        log_warn("the prefix cache's disk is off: full or failing");
    s->now.disk_off = st.disk_off;
    s->now.tier_bytes[CACHE_TIER_ARENA] = kvb_used_grains(s->blocks) * s->caps.grain_bytes;
    s->now.tier_bytes[CACHE_TIER_HOST] = st.host_bytes;
    s->now.tier_bytes[CACHE_TIER_DISK] = st.disk_bytes;
    s->now.tier_written_blocks = st.written_blocks;
    s->now.tier_dropped_blocks = st.dropped_blocks;
}

void sched__offload_snapshot(const struct scheduler *s, const uint8_t salt[32], struct cache_snapshot *out)
{
    if (s->offload) tier_snapshot(s->offload->tier, s->cache, salt, out);
}
