/* See cache_store.h. The index is the thread's; the lock guards the queues and the numbers, and is never held
 * during file access. */
#include "scheduler/cache/cache_store.h"

#include "config/base/assert.h"
#include "config/base/clock.h"
#include "config/base/log.h"
#include "scheduler/cache/record_index.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_DEFAULT (256ull << 20)
#define TOUCHES_MAX   65536u
#define FOUND_MAX     (4u << 20) /* bytes of metas that wait to be polled: the scan waits */
#define RECORDS_MAX   (1u << 19)

enum request { REQ_PUT, REQ_GET, REQ_TOUCH, REQ_DROP };
/* A request, or an event; the node of a get becomes its READ. */
struct node {
    struct node *next;
    enum request request;
    void *data; /* PUT: malloc'd; GET: the caller's */
    struct store_event ev;
    uint8_t meta[]; /* PUT */
};
struct fifo {
    struct node *head, **tail;
};

struct cache_store {
    struct record_index x; /* of the thread */
    uint64_t scan_id;      /* headers of older records are read; of this one on, not yet */
    uint64_t scan_end;     /* 0: all are */
    size_t foreign;
    uint64_t found, tag;
    struct node off_event;

    struct cache_store_options opt;
    char about[64];
    char *dir;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    struct fifo gets, others, events;
    uint64_t next_id, queued_bytes, found_bytes;
    uint32_t queued; /* requests, the one in progress included */
    bool stop;
    struct cache_store_stats stats;
};

static void push(struct fifo *f, struct node *n)
{
    n->next = NULL;
    *f->tail = n;
    f->tail = &n->next;
}

static struct node *pop(struct fifo *f)
{
    struct node *n = f->head;
    if (n && !(f->head = n->next)) f->tail = &f->head;
    return n;
}

/* ---- the thread ---- */

static void emit(struct cache_store *s, struct node *n)
{
    pthread_mutex_lock(&s->lock);
    bool first = !s->events.head;
    push(&s->events, n);
    if (n->ev.kind == STORE_FOUND) s->found_bytes += sizeof *n + n->ev.record.meta_bytes;
    pthread_mutex_unlock(&s->lock);
    if (first && s->opt.wake) s->opt.wake(s->opt.wake_arg);
}

static bool emit_new(struct cache_store *s, enum store_event_kind kind, const struct store_record *r)
{
    struct node *n = malloc(sizeof *n);
    if (!n) return false;
    *n = (struct node){.ev = {.kind = kind, .record = *r}};
    emit(s, n);
    return true;
}

static void gone(struct cache_store *s, uint64_t id)
{
    (void)emit_new(s, STORE_GONE, &(struct store_record){.id = id});
}

static void remove_entry(struct cache_store *s, struct index_entry *e)
{
    if (e->known) gone(s, e->file.id);
    index_remove(&s->x, e);
}

/* With what continues it. */
static void remove_tree(struct cache_store *s, struct index_entry *e)
{
    size_t i = (size_t)(e - s->x.at);
    remove_entry(s, e);
    while (++i < s->x.count) {
        e = &s->x.at[i];
        if (!e->dead && e->known && e->parent && !index_find(&s->x, e->parent)) remove_entry(s, e);
    }
}

/* errno says why. */
static void turn_off(struct cache_store *s, const char *doing)
{
    if (s->stats.off) return;
    log_warn("cache: %s: %s failed: %s; the disk tier is off until the next start", s->dir, doing,
             strerror(errno));
    pthread_mutex_lock(&s->lock);
    s->stats.off = true;
    pthread_mutex_unlock(&s->lock);
    s->off_event.ev.kind = STORE_OFF;
    emit(s, &s->off_event);
}

/* Evicts until `more` bytes fit. */
static bool make_room(struct cache_store *s, uint64_t more)
{
    uint64_t evicted = 0, left = s->opt.bytes_max, dir = cache_dir_bytes(&s->x.dir);
    if (dir > left || more > left - dir) return false;
    left -= dir + more;
    while (s->x.bytes > left || s->x.count - s->x.dead >= RECORDS_MAX) {
        struct index_entry *e = index_oldest(&s->x);
        if (!e) break;
        remove_entry(s, e);
        evicted++;
    }
    pthread_mutex_lock(&s->lock);
    s->stats.evicted += evicted;
    pthread_mutex_unlock(&s->lock);
    return s->x.bytes <= left;
}

static bool put_now(struct cache_store *s, const struct node *n)
{
    const struct store_record *r = &n->ev.record;
    struct index_entry e = {.parent = r->parent, .payload_bytes = r->payload_bytes, .known = true};
    e.file =
        (struct record_file){r->id, s->tag, record_bytes(r->meta_bytes, r->payload_bytes), index_now(&s->x)};
    e.stored_used = e.file.used;
    index_use(&s->x, index_find(&s->x, r->parent), e.file.used); /* it must not be evicted now */
    if (!make_room(s, e.file.bytes)) return false;
    const struct index_entry *parent = index_find(&s->x, r->parent);
    if (r->parent && !(parent && parent->known)) return false;
    struct record_header h = {.id = r->id,
                              .parent = r->parent,
                              .kind = r->kind,
                              .meta_bytes = r->meta_bytes,
                              .payload_bytes = r->payload_bytes,
                              .parent_sum = parent ? parent->header_sum : 0};
    memcpy(h.salt, r->salt, sizeof h.salt);
    memcpy(h.binding, s->opt.binding, sizeof h.binding);
    memcpy(h.about, s->about, sizeof h.about);
    enum file_state fs = record_write(&s->x.dir, &h, n->meta, n->data);
    if (fs == FILE_FAILED) turn_off(s, "writing");
    e.header_sum = h.header_sum;
    if (fs || index_add(&s->x, &e)) return !fs;
    record_remove(&s->x.dir, r->id, s->tag);
    return false;
}

static void get_now(struct cache_store *s, struct node *n)
{
    uint64_t id = n->ev.record.id, began = now_us();
    struct index_entry *e = index_find(&s->x, id);
    bool there = !s->stats.off && e && e->known && e->payload_bytes == n->ev.record.payload_bytes;
    enum file_state fs =
        there ? record_payload(&s->x.dir, id, s->tag, e->header_sum, n->data, e->payload_bytes) : FILE_LATER;
    if (fs == FILE_FAILED) turn_off(s, "reading");
    bool bad = fs == FILE_GONE || fs == FILE_DAMAGED;
    pthread_mutex_lock(&s->lock);
    s->stats.reads += !fs;
    s->stats.read_bytes += fs ? 0 : e->payload_bytes;
    s->stats.read_us += now_us() - began;
    s->stats.damaged += bad;
    pthread_mutex_unlock(&s->lock);
    n->ev.kind = STORE_READ;
    n->ev.ok = !fs;
    emit(s, n);
    if (!fs) index_use(&s->x, e, index_now(&s->x));
    if (!bad) return;
    log_warn("cache: %s: record %016llx is damaged or gone; dropped", s->dir, (unsigned long long)id);
    remove_tree(s, e);
}

/* Reads the header of one record of this binding, or ends the scan. */
static void scan_step(struct cache_store *s)
{
    struct index_entry *e;
    while ((e = index_next(&s->x, s->scan_id)) && e->file.id < s->scan_end && e->file.tag != s->tag)
        s->scan_id = e->file.id + 1;
    if (!e || e->file.id >= s->scan_end || s->stats.off) {
        s->scan_end = 0;
        if (s->stats.off) return;
        log_info("cache: %s: %llu records found, %llu damaged ones dropped, %zu other files ignored", s->dir,
                 (unsigned long long)s->found, (unsigned long long)s->stats.damaged, s->foreign);
        (void)emit_new(s, STORE_READY, &(struct store_record){0});
        return;
    }
    s->scan_id = e->file.id + 1;
    struct record_header h;
    uint8_t *meta = NULL;
    enum file_state fs = record_head(&s->x.dir, e->file.id, e->file.tag, &h, &meta);
    bool ours = !fs && !memcmp(h.binding, s->opt.binding, sizeof h.binding);
    struct index_entry *parent = ours ? index_find(&s->x, h.parent) : NULL;
    /* Other bindings evict by mtimes alone, which lag, so a parent may be gone. */
    bool orphan = ours && h.parent && !(parent && parent->known && parent->header_sum == h.parent_sum);
    bool bad = fs == FILE_GONE || fs == FILE_DAMAGED;
    if (fs == FILE_FAILED) {
        turn_off(s, "reading");
    } else if (bad || orphan) {
        remove_entry(s, e);
        pthread_mutex_lock(&s->lock);
        s->stats.damaged += bad;
        s->stats.evicted += orphan;
        pthread_mutex_unlock(&s->lock);
    } else if (ours) {
        struct store_record r = {.id = h.id, .parent = h.parent, .kind = (enum record_kind)h.kind};
        memcpy(r.salt, h.salt, sizeof r.salt);
        r.meta = meta;
        r.meta_bytes = h.meta_bytes;
        r.payload_bytes = e->payload_bytes = h.payload_bytes;
        e->parent = h.parent;
        e->header_sum = h.header_sum;
        if ((e->known = emit_new(s, STORE_FOUND, &r))) {
            meta = NULL; /* the consumer's */
            s->found++;
            index_use(&s->x, parent, e->file.used);
        }
    }
    free(meta);
}

static void handle(struct cache_store *s, struct node *n)
{
    const struct store_record *r = &n->ev.record;
    bool off = s->stats.off;
    struct index_entry *e = off || n->request == REQ_PUT ? NULL : index_find(&s->x, r->id);
    bool put = false;
    switch (n->request) {
    case REQ_GET: get_now(s, n); return;
    case REQ_PUT:
        put = !off && put_now(s, n);
        if (!put && !s->stats.off) gone(s, r->id);
        break;
    case REQ_TOUCH: index_use(&s->x, e, index_now(&s->x)); break;
    case REQ_DROP:
        if (e) remove_tree(s, e);
        break;
    }
    pthread_mutex_lock(&s->lock);
    if (n->request == REQ_PUT) {
        s->queued_bytes -= r->meta_bytes + r->payload_bytes;
        s->stats.puts += put;
        s->stats.written_bytes += put ? r->payload_bytes : 0;
        s->stats.dropped += !put;
    }
    pthread_mutex_unlock(&s->lock);
    if (n->request == REQ_PUT) free(n->data);
    free(n);
}

/* Reads go before what else waits, unless they wait for a put. */
static struct node *next_request(struct cache_store *s)
{
    struct node *get = s->gets.head;
    return get && (!s->others.head || index_find(&s->x, get->ev.record.id)) ? pop(&s->gets) : pop(&s->others);
}

static void *store_main(void *arg)
{
    struct cache_store *s = arg;
    (void)make_room(s, 0);
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        s->stats.bytes = s->x.bytes + cache_dir_bytes(&s->x.dir);
        s->stats.records = s->x.count - s->x.dead;
        struct node *n = next_request(s);
        bool scan = !n && s->scan_end && s->found_bytes < FOUND_MAX;
        if (!n && !scan) {
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        if (n) handle(s, n);
        else scan_step(s);
        pthread_mutex_lock(&s->lock);
        if (n && !--s->queued) pthread_cond_signal(&s->idle);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the caller's side ---- */

enum status cache_store_open(const struct cache_store_options *opt, struct cache_store **out, struct err *err)
{
    struct cache_dir d;
    struct cache_store *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s || !(s->dir = strdup(opt->dir))) {
        free(s);
        return err_nomem(err, "the disk cache");
    }
    enum status st = cache_dir_open(opt->dir, true, &d, err);
    if (!st) st = index_open(&s->x, &d, &s->foreign, err);
    if (st) {
        free(s->dir);
        free(s);
        return st;
    }
    s->opt = *opt;
    s->opt.dir = s->dir;
    if (!opt->queue_max) s->opt.queue_max = QUEUE_DEFAULT;
    strncpy(s->about, opt->about ? opt->about : "", sizeof s->about - 1);
    s->opt.about = s->about;
    s->tag = record_tag(opt->binding);
    s->next_id = s->x.count ? s->x.at[s->x.count - 1].file.id + 1 : 1;
    s->scan_id = 1;
    s->scan_end = s->next_id;
    s->stats.bytes_max = opt->bytes_max;
    struct fifo *fifos[] = {&s->gets, &s->others, &s->events};
    for (size_t i = 0; i < 3; i++) fifos[i]->tail = &fifos[i]->head;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->idle, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&s->thread, NULL, store_main, s)) {
        s->stop = true;
        cache_store_close(s);
        return err_set(err, ST_NOMEM, "the disk cache can't start a thread");
    }
    *out = s;
    return ST_OK;
}

void cache_store_close(struct cache_store *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    bool runs = !s->stop;
    s->stop = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (runs) pthread_join(s->thread, NULL);
    struct fifo *fifos[] = {&s->gets, &s->others, &s->events};
    for (size_t i = 0; i < 3; i++)
        for (struct node *n; (n = pop(fifos[i]));) {
            if (fifos[i] == &s->others && n->request == REQ_PUT) free(n->data);
            if (fifos[i] == &s->events && n->ev.kind == STORE_FOUND) free((void *)n->ev.record.meta);
            if (n != &s->off_event) free(n);
        }
    index_close(&s->x);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    free(s->dir);
    free(s);
}

static struct node *request_new(enum request what, const struct store_record *r)
{
    struct node *n = malloc(sizeof *n + r->meta_bytes);
    if (!n) return NULL;
    *n = (struct node){.request = what, .ev.record = *r};
    if (r->meta_bytes) memcpy(n->meta, r->meta, r->meta_bytes);
    return n;
}

/* Frees n if it can't be queued. The lock is held. */
static bool request_queue(struct cache_store *s, struct node *n)
{
    if (!n || s->stats.off) {
        free(n);
        return false;
    }
    push(n->request == REQ_GET ? &s->gets : &s->others, n);
    s->queued++;
    pthread_cond_signal(&s->work);
    return true;
}

uint64_t cache_store_put(struct cache_store *s, const struct store_record *r, void *payload)
{
    ASSERT(r->meta_bytes <= RECORD_META_MAX && r->payload_bytes <= RECORD_PAYLOAD_MAX);
    uint64_t bytes = r->meta_bytes + r->payload_bytes, id = 0;
    struct node *n = request_new(REQ_PUT, r);
    pthread_mutex_lock(&s->lock);
    bool fits = !s->queued_bytes || s->queued_bytes + bytes <= s->opt.queue_max;
    if (n) {
        n->data = payload;
        n->ev.record.id = s->next_id;
    }
    if (fits && request_queue(s, n)) {
        s->queued_bytes += bytes;
        id = s->next_id++;
    } else {
        s->stats.dropped++;
    }
    pthread_mutex_unlock(&s->lock);
    if (id) return id;
    if (!fits) free(n);
    free(payload);
    return 0;
}

bool cache_store_get(struct cache_store *s, uint64_t id, void *dst, uint64_t bytes, void *user)
{
    struct node *n = request_new(REQ_GET, &(struct store_record){.id = id, .payload_bytes = bytes});
    if (n) {
        n->data = dst;
        n->ev.user = user;
    }
    pthread_mutex_lock(&s->lock);
    bool ok = request_queue(s, n);
    pthread_mutex_unlock(&s->lock);
    return ok;
}

static void request_small(struct cache_store *s, enum request what, uint64_t id)
{
    struct node *n = request_new(what, &(struct store_record){.id = id});
    pthread_mutex_lock(&s->lock);
    if (what == REQ_TOUCH && s->queued > TOUCHES_MAX) free(n);
    else (void)request_queue(s, n);
    pthread_mutex_unlock(&s->lock);
}

void cache_store_touch(struct cache_store *s, uint64_t id)
{
    request_small(s, REQ_TOUCH, id);
}

void cache_store_drop(struct cache_store *s, uint64_t id)
{
    request_small(s, REQ_DROP, id);
}

bool cache_store_poll(struct cache_store *s, struct store_event *ev)
{
    pthread_mutex_lock(&s->lock);
    struct node *n = pop(&s->events);
    if (n && n->ev.kind == STORE_FOUND) {
        if (s->found_bytes >= FOUND_MAX) pthread_cond_signal(&s->work);
        s->found_bytes -= sizeof *n + n->ev.record.meta_bytes;
    }
    pthread_mutex_unlock(&s->lock);
    if (!n) return false;
    *ev = n->ev;
    if (n != &s->off_event) free(n);
    return true;
}

bool cache_store_flush(struct cache_store *s, uint32_t ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000l;
    if (until.tv_nsec >= 1000000000l) until.tv_sec++, until.tv_nsec -= 1000000000l;
    pthread_mutex_lock(&s->lock);
    while (s->queued && !pthread_cond_timedwait(&s->idle, &s->lock, &until)) {
    }
    bool idle = !s->queued;
    pthread_mutex_unlock(&s->lock);
    return idle;
}

void cache_store_stats(struct cache_store *s, struct cache_store_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}
