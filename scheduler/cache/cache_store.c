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
    /* the thread's */
    struct record_index x;
    struct record_header blank; /* binding and about, of each record */
    uint64_t tag, scan_id;      /* scan_id: headers of lower ids are read */
    uint64_t scan_end;          /* 0: all are */
    uint64_t found, last_put;   /* last_put: its id */
    size_t foreign;
    struct cache_store_stats now;
    struct node off_event;
    /* constant */
    struct cache_store_options opt;
    pthread_t thread;
    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    struct fifo gets, others, events;
    uint64_t next_id, queued_bytes, found_bytes, refused;
    uint32_t queued; /* requests, the one in progress included */
    bool stop;
    struct cache_store_stats stats; /* as of the last request */
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

static uint64_t put_bytes(const struct store_record *r)
{
    return r->meta_bytes + r->payload_bytes;
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
    size_t left = e->children;
    remove_entry(s, e);
    for (e++; left && e < s->x.at + s->x.count; e++) {
        if (e->dead || !e->known || !e->parent || index_find(&s->x, e->parent)) continue;
        left = left - 1 + e->children;
        remove_entry(s, e);
    }
}

/* errno says why. */
static void turn_off(struct cache_store *s, const char *doing)
{
    if (s->now.off) return;
    log_warn("cache: %s: %s failed: %s; the disk tier is off until the next start (free space there or lower "
             "--cache-disk?)",
             s->opt.dir, doing, strerror(errno));
    s->now.off = true;
    s->off_event.ev.kind = STORE_OFF;
    emit(s, &s->off_event);
}

/* Evicts until `more` bytes fit. */
static bool make_room(struct cache_store *s, uint64_t more)
{
    uint64_t left = s->opt.bytes_max, dir = cache_dir_bytes(&s->x.dir);
    if (dir > left || more > left - dir) return false;
    left -= dir + more;
    while (s->x.bytes > left || s->x.count - s->x.dead >= RECORDS_MAX) {
        struct index_entry *e = index_oldest(&s->x);
        if (!e) break;
        remove_entry(s, e);
        s->now.evicted++;
    }
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
    struct record_header h = s->blank;
    h.id = r->id;
    h.parent = r->parent;
    h.parent_sum = parent ? parent->header_sum : 0;
    h.kind = r->kind;
    h.meta_bytes = r->meta_bytes;
    h.payload_bytes = r->payload_bytes;
    memcpy(h.salt, r->salt, sizeof h.salt);
    enum file_state fs = record_write(&s->x.dir, &h, n->meta, n->data);
    if (fs == FILE_FAILED) turn_off(s, "writing");
    e.header_sum = h.header_sum;
    if (fs || index_add(&s->x, &e)) return !fs;
    record_remove(&s->x.dir, r->id, s->tag);
    return false;
}

static void get_now(struct cache_store *s, struct node *n)
{
    uint64_t id = n->ev.record.id;
    struct index_entry *e = index_find(&s->x, id);
    bool there = !s->now.off && e && e->known && e->payload_bytes == n->ev.record.payload_bytes;
    enum file_state fs =
        there ? record_payload(&s->x.dir, id, s->tag, e->header_sum, n->data, e->payload_bytes) : FILE_LATER;
    if (fs == FILE_FAILED) turn_off(s, "reading");
    bool bad = fs == FILE_GONE || fs == FILE_DAMAGED;
    s->now.damaged += bad;
    n->ev.kind = STORE_READ;
    n->ev.ok = !fs;
    emit(s, n);
    if (!fs) index_use(&s->x, e, index_now(&s->x));
    if (!bad) return;
    log_warn("cache: %s: record %016llx is damaged or gone; dropped", s->opt.dir, (unsigned long long)id);
    remove_tree(s, e);
}

/* Reads the header of one record of this binding, or ends the scan. */
static void scan_step(struct cache_store *s)
{
    struct index_entry *e;
    while ((e = index_next(&s->x, s->scan_id)) && e->file.id < s->scan_end && e->file.tag != s->tag)
        s->scan_id = e->file.id + 1;
    if (!e || e->file.id >= s->scan_end || s->now.off) {
        s->scan_end = 0;
        if (s->now.off) return;
        log_info("cache: %s: %llu records found, %llu damaged ones dropped, %zu other files ignored",
                 s->opt.dir, (unsigned long long)s->found, (unsigned long long)s->now.damaged, s->foreign);
        (void)emit_new(s, STORE_READY, &(struct store_record){0});
        return;
    }
    s->scan_id = e->file.id + 1;
    struct record_header h;
    uint8_t *meta = NULL;
    enum file_state fs = record_head(&s->x.dir, e->file.id, e->file.tag, &h, &meta);
    bool ours = !fs && !memcmp(h.binding, s->blank.binding, sizeof h.binding);
    struct index_entry *parent = ours ? index_find(&s->x, h.parent) : NULL;
    /* Other bindings evict by mtimes alone, which lag, so a parent may be gone. */
    bool orphan = ours && h.parent && !(parent && parent->known && parent->header_sum == h.parent_sum);
    bool bad = fs == FILE_GONE || fs == FILE_DAMAGED;
    if (fs == FILE_FAILED) {
        turn_off(s, "reading");
    } else if (bad || orphan) {
        remove_entry(s, e);
        s->now.damaged += bad;
        s->now.evicted += orphan;
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
            index_adopt(&s->x, h.parent, 1);
            index_use(&s->x, parent, e->file.used);
        }
    }
    free(meta);
}

static void handle(struct cache_store *s, struct node *n)
{
    const struct store_record *r = &n->ev.record;
    struct index_entry *e = n->request == REQ_PUT ? NULL : index_find(&s->x, r->id);
    bool put;
    switch (n->request) {
    case REQ_GET: get_now(s, n); return;
    case REQ_PUT:
        s->last_put = r->id;
        put = !s->now.off && put_now(s, n);
        s->now.puts += put;
        s->now.dropped += !put;
        if (!put && !s->now.off) gone(s, r->id);
        free(n->data);
        break;
    case REQ_TOUCH: index_use(&s->x, e, index_now(&s->x)); break;
    case REQ_DROP:
        if (e) remove_tree(s, e);
        break;
    }
    free(n);
}

/* Reads go before what else waits, unless they are of a record that is yet to be put. */
static struct node *next_request(struct cache_store *s)
{
    struct node *get = s->gets.head;
    return get && (!s->others.head || get->ev.record.id <= s->last_put) ? pop(&s->gets) : pop(&s->others);
}

/* One request, or one record of the scan; false: there is nothing to do. Called with the lock, which it
 * releases meanwhile. */
static bool work(struct cache_store *s)
{
    struct node *n = next_request(s);
    if (!n && !(s->scan_end && s->found_bytes < FOUND_MAX)) return false;
    uint64_t bytes = n && n->request == REQ_PUT ? put_bytes(&n->ev.record) : 0;
    pthread_mutex_unlock(&s->lock);
    if (n) handle(s, n);
    else scan_step(s);
    s->now.bytes = s->x.bytes + cache_dir_bytes(&s->x.dir);
    s->now.records = s->x.count - s->x.dead;
    pthread_mutex_lock(&s->lock);
    s->queued_bytes -= bytes;
    s->stats = s->now;
    if (n && !--s->queued) pthread_cond_signal(&s->idle);
    return true;
}

static void *store_main(void *arg)
{
    struct cache_store *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->stop)
        if (!work(s)) pthread_cond_wait(&s->work, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the caller's side ---- */

enum status cache_store_open(const struct cache_store_options *opt, struct cache_store **out, struct err *err)
{
    struct cache_dir d;
    struct cache_store *s = calloc(1, sizeof *s);
    char *dir = strdup(opt->dir);
    *out = NULL;
    enum status st = s && dir ? cache_dir_open(dir, true, &d, err) : err_nomem(err, "the disk cache");
    if (!st) st = index_open(&s->x, &d, &s->foreign, err);
    if (st) {
        free(dir);
        free(s);
        return st;
    }
    s->opt = *opt;
    s->opt.dir = dir;
    if (!opt->queue_max) s->opt.queue_max = QUEUE_DEFAULT;
    memcpy(s->blank.binding, opt->binding, sizeof s->blank.binding);
    strncpy(s->blank.about, opt->about ? opt->about : "", sizeof s->blank.about - 1);
    s->tag = record_tag(opt->binding);
    s->next_id = s->scan_end = s->x.count ? s->x.at[s->x.count - 1].file.id + 1 : 1;
    s->last_put = s->next_id - 1;
    struct fifo *fifos[] = {&s->gets, &s->others, &s->events};
    for (size_t i = 0; i < 3; i++) fifos[i]->tail = &fifos[i]->head;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->idle, &attr);
    pthread_condattr_destroy(&attr);
    (void)make_room(s, 0);
    s->stats = s->now;
    if (!opt->work && pthread_create(&s->thread, NULL, store_main, s)) {
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
    bool runs = !s->stop && !s->opt.work;
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
    free((void *)s->opt.dir);
    free(s);
}

/* Queues a request; false: there is no place for it. REQ_PUT: *id is that of its record. */
static bool request(struct cache_store *s, enum request what, const struct store_record *r, void *data,
                    void *user, uint64_t *id)
{
    struct node *n = malloc(sizeof *n + r->meta_bytes);
    uint64_t bytes = what == REQ_PUT ? put_bytes(r) : 0;
    if (n) *n = (struct node){.request = what, .data = data, .ev = {.record = *r, .user = user}};
    if (n && r->meta_bytes) memcpy(n->meta, r->meta, r->meta_bytes);
    pthread_mutex_lock(&s->lock);
    bool fits = n && !s->stats.off && (what != REQ_TOUCH || s->queued <= TOUCHES_MAX);
    if (what == REQ_PUT)
        fits = fits && s->next_id < RECORD_ID_MAX &&
               (!s->queued_bytes || s->queued_bytes + bytes <= s->opt.queue_max);
    if (fits) {
        if (what == REQ_PUT) *id = n->ev.record.id = s->next_id++;
        s->queued_bytes += bytes;
        push(what == REQ_GET ? &s->gets : &s->others, n);
        s->queued++;
        pthread_cond_signal(&s->work);
    }
    s->refused += what == REQ_PUT && !fits;
    pthread_mutex_unlock(&s->lock);
    if (!fits) free(n);
    return fits;
}

uint64_t cache_store_put(struct cache_store *s, const struct store_record *r, void *payload)
{
    uint64_t id = 0;
    ASSERT(r->kind && r->kind < RECORD_KINDS && r->meta_bytes <= RECORD_META_MAX);
    ASSERT(r->payload_bytes <= RECORD_PAYLOAD_MAX);
    (void)request(s, REQ_PUT, r, payload, NULL, &id);
    return id;
}

bool cache_store_get(struct cache_store *s, uint64_t id, void *dst, uint64_t bytes, void *user)
{
    return request(s, REQ_GET, &(struct store_record){.id = id, .payload_bytes = bytes}, dst, user, NULL);
}

void cache_store_touch(struct cache_store *s, uint64_t id)
{
    (void)request(s, REQ_TOUCH, &(struct store_record){.id = id}, NULL, NULL, NULL);
}

void cache_store_drop(struct cache_store *s, uint64_t id)
{
    (void)request(s, REQ_DROP, &(struct store_record){.id = id}, NULL, NULL, NULL);
}

bool cache_store_poll(struct cache_store *s, struct store_event *ev)
{
    pthread_mutex_lock(&s->lock);
    for (uint32_t left = s->opt.work ? s->opt.work(s->opt.work_arg) : 0; left && work(s);) left--;
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
    int64_t end = now_ns() + ms * 1000000ll;
    struct timespec until = {end / 1000000000, end % 1000000000};
    pthread_mutex_lock(&s->lock);
    while (s->opt.work && s->queued && work(s)) {
    }
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
    out->dropped += s->refused;
    pthread_mutex_unlock(&s->lock);
}
