/* The disk store of the caches: what is put is found again with the same bytes, in this process or the next;
 * size, recency, the lock; a disk that is full or fails, a process that is killed, files that are damaged.
 * usage: test_cache_store [MUTATIONS [SEED]] */
#include "scheduler/cache/cache_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { PAGE = 4096 };
static uint32_t mutations = 300;
static uint64_t rng_state = 1;
static uint32_t rnd(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((rng_state >> 33) % below);
}

/* ---- a directory ---- */

static char top[64], dir[128];

static void path_of(char out[512], const char *name)
{
    snprintf(out, 512, "%s/%s", dir, name);
}

static uint32_t names(char list[][256], uint32_t max, bool records)
{
    DIR *d = opendir(dir);
    uint32_t n = 0;
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.' || (records && strlen(e->d_name) != 33)) continue;
        if (list) {
            assert_true(n < max);
            strcpy(list[n], e->d_name);
        }
        n++;
    }
    closedir(d);
    return n;
}

static void clear(void)
{
    static char list[4096][256];
    uint32_t n = names(list, 4096, false);
    char path[512];
    for (uint32_t i = 0; i < n; i++) {
        path_of(path, list[i]);
        if (unlink(path)) assert_int_equal(rmdir(path), 0);
    }
    rmdir(dir);
    rmdir(top);
}

static uint64_t disk_usage(void)
{
    static char list[4096][256];
    uint32_t n = names(list, 4096, false);
    struct stat st;
    assert_int_equal(stat(dir, &st), 0);
    uint64_t bytes = (uint64_t)st.st_blocks * 512;
    char path[512];
    for (uint32_t i = 0; i < n; i++) {
        path_of(path, list[i]);
        if (!lstat(path, &st)) bytes += (uint64_t)st.st_blocks * 512;
    }
    return bytes;
}

static int setup(void **state)
{
    (void)state;
    strcpy(top, "/tmp/kvasir-cache-XXXXXX");
    assert_non_null(mkdtemp(top));
    snprintf(dir, sizeof dir, "%s/kvasir-cache", top);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    clear();
    return 0;
}

/* ---- records whose content follows from a number ---- */

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        if (i % 4 == 0) seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        p[i] = (uint8_t)(seed >> (33 + 8 * (i % 4)));
    }
}

static uint64_t payload_size(uint64_t number)
{
    return number % 7 == 6 ? 0 : number * 7919 % 20000;
}

/* The meta: the number, then bytes of it. */
static uint32_t meta_of(uint8_t meta[200], uint64_t number)
{
    memcpy(meta, &number, sizeof number);
    uint32_t more = (uint32_t)(number * 31 % 150);
    fill(meta + sizeof number, more, number + 1);
    return (uint32_t)sizeof number + more;
}

static uint64_t number_of(const struct store_record *r)
{
    uint64_t number;
    uint8_t meta[200];
    assert_true(r->meta_bytes >= sizeof number);
    memcpy(&number, r->meta, sizeof number);
    assert_int_equal(r->meta_bytes, meta_of(meta, number));
    assert_memory_equal(r->meta, meta, r->meta_bytes);
    assert_int_equal(r->payload_bytes, payload_size(number));
    assert_int_equal(r->kind, 1 + number % 4);
    uint8_t salt[32];
    memset(salt, (int)number, sizeof salt);
    assert_memory_equal(r->salt, salt, sizeof salt);
    return number;
}

static uint64_t put(struct cache_store *s, uint64_t parent, uint64_t number)
{
    uint8_t meta[200];
    struct store_record r = {.parent = parent, .kind = 1 + number % 4, .meta = meta};
    r.meta_bytes = meta_of(meta, number);
    r.payload_bytes = payload_size(number);
    memset(r.salt, (int)number, sizeof r.salt);
    uint8_t *payload = malloc(r.payload_bytes + 1);
    fill(payload, r.payload_bytes, number);
    uint64_t id = cache_store_put(s, &r, payload);
    if (!id) free(payload);
    return id;
}

static struct cache_store *start(uint64_t bytes_max, uint8_t binding)
{
    struct cache_store *s;
    struct err err = {{0}};
    struct cache_store_options o = {.dir = top, .bytes_max = bytes_max, .about = "a model, bf16"};
    memset(o.binding, binding & 0x7f, sizeof o.binding);
    o.binding[sizeof o.binding - 1] = binding; /* 0x80 more differs in the last byte alone */
    if (cache_store_open(&o, &s, &err)) fail_msg("%s", err.msg);
    return s;
}

/* ---- events ---- */

enum { KNOWN_MAX = 4096 };
/* What the events say: by id. */
struct known {
    uint64_t number[KNOWN_MAX], parent[KNOWN_MAX]; /* number + 1; 0: not there */
    uint32_t count, gone;
    bool ready, off;
    uint32_t reads, reads_ok;
};
static struct known k;

static void learn(uint64_t id, uint64_t parent, uint64_t number)
{
    if (!id) return;
    assert_true(id < KNOWN_MAX && !k.number[id]);
    k.number[id] = number + 1;
    k.parent[id] = parent;
    k.count++;
}

static void take_events(struct cache_store *s)
{
    struct store_event ev;
    while (cache_store_poll(s, &ev)) {
        uint64_t id = ev.record.id;
        switch (ev.kind) {
        case STORE_FOUND:
            assert_false(k.ready);
            assert_true(!ev.record.parent || k.number[ev.record.parent]);
            learn(id, ev.record.parent, number_of(&ev.record));
            free((void *)ev.record.meta);
            break;
        case STORE_READY: k.ready = true; break;
        case STORE_READ:
            k.reads++;
            k.reads_ok += ev.ok;
            *(bool *)ev.user = ev.ok;
            break;
        case STORE_GONE:
            assert_true(id < KNOWN_MAX);
            if (k.number[id]) k.count--, k.gone++;
            k.number[id] = 0;
            break;
        case STORE_OFF: k.off = true; break;
        }
    }
}

static void finish(struct cache_store *s)
{
    assert_true(cache_store_flush(s, 20000));
    take_events(s);
}

static struct cache_store *restart(uint64_t bytes_max, uint8_t binding)
{
    struct cache_store *s = start(bytes_max, binding);
    memset(&k, 0, sizeof k);
    for (int ms = 0; !k.ready && !k.off; ms++) {
        assert_true(ms < 20000);
        take_events(s);
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    return s;
}

/* Reads it and compares. */
static bool get(struct cache_store *s, uint64_t id, uint64_t number)
{
    static uint8_t got[20000], want[20000];
    uint64_t n = payload_size(number);
    memset(got, 0xee, sizeof got);
    bool ok = false;
    uint32_t reads = k.reads;
    if (!cache_store_get(s, id, got, n, &ok)) return false;
    finish(s);
    assert_int_equal(k.reads, reads + 1);
    if (!ok) return false;
    fill(want, n, number);
    assert_memory_equal(got, want, n);
    return true;
}

/* ---- tests ---- */

#define PLENTY (64ull << 20)

static void test_found_again(void **state)
{
    (void)state;
    struct cache_store *s = restart(PLENTY, 1);
    assert_int_equal(k.count, 0);
    uint64_t ids[20];
    for (uint64_t i = 0; i < 20; i++) {
        ids[i] = put(s, i ? ids[i / 2] : 0, i);
        assert_true(ids[i] > 0);
        learn(ids[i], i ? ids[i / 2] : 0, i);
        assert_true(get(s, ids[i], i));
    }
    bool ok = true;
    uint8_t small[1];
    assert_true(cache_store_get(s, ids[3], small, 1, &ok)); /* another size than it has */
    finish(s);
    assert_false(ok);
    assert_int_equal(k.gone, 0);
    cache_store_close(s);

    struct known before = k;
    s = restart(PLENTY, 1);
    assert_int_equal(k.count, 20);
    assert_memory_equal(k.number, before.number, sizeof k.number);
    assert_memory_equal(k.parent, before.parent, sizeof k.parent);
    for (uint64_t i = 0; i < 20; i++) assert_true(get(s, ids[i], i));
    uint64_t more = put(s, ids[19], 20);
    assert_true(more > ids[19]);
    /* Dropped with all that continues it. */
    cache_store_drop(s, ids[1]);
    finish(s);
    assert_false(get(s, ids[1], 1) || get(s, ids[2], 2) || get(s, more, 20));
    cache_store_close(s);
    s = restart(PLENTY, 2);
    assert_int_equal(k.count, 0); /* of another model */
    cache_store_close(s);
    s = restart(PLENTY, 0x81);
    assert_int_equal(k.count, 0); /* also if the bindings begin alike */
    cache_store_close(s);

    static char list[64][256];
    struct stat st;
    char path[512];
    uint32_t n = names(list, 64, false);
    for (uint32_t i = 0; i < n; i++) {
        path_of(path, list[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
}

static void test_one_process(void **state)
{
    (void)state;
    struct cache_store *s = start(PLENTY, 1), *other = (void *)1;
    struct err err = {{0}};
    struct cache_store_options o = {.dir = top, .bytes_max = PLENTY};
    assert_int_equal(cache_store_open(&o, &other, &err), ST_AGAIN);
    assert_non_null(strstr(err.msg, "another server"));
    assert_null(other);
    cache_store_close(s);
    s = start(PLENTY, 1);
    cache_store_close(s);
    o.dir = "/dev/null";
    assert_int_equal(cache_store_open(&o, &other, &err), ST_IO);
    o.dir = "/nonexistent/a/b";
    assert_true(cache_store_open(&o, &other, &err) != ST_OK);
}

/* Random puts, reads, touches, drops and restarts under two bindings, in little space. */
static void test_bounded(void **state)
{
    (void)state;
    enum { SIZE = 600 << 10 };
    uint64_t number = 0, evicted = 0;
    static uint64_t ids[KNOWN_MAX];
    for (uint32_t round = 0; round < 12; round++) {
        struct cache_store *s = restart(SIZE, round % 3 == 2 ? 2 : 1);
        for (uint32_t step = 0; step < 60; step++) {
            uint32_t n = 0;
            for (uint32_t id = 1; id < KNOWN_MAX; id++)
                if (k.number[id]) ids[n++] = id;
            uint64_t some = n ? ids[rnd(n)] : 0;
            switch (rnd(8)) {
            case 0: cache_store_touch(s, some); break;
            case 1:
                if (rnd(10) == 0) cache_store_drop(s, some);
                break;
            case 2:
            case 3:
                if (some) (void)get(s, some, k.number[some] - 1);
                break;
            default:
                some = rnd(3) ? some : 0;
                learn(put(s, some, number), some, number);
                number++;
            }
            if (rnd(3) == 0) finish(s);
            for (uint32_t id = 1; id < KNOWN_MAX && rnd(4) == 0; id++)
                if (k.number[id] && k.parent[id]) assert_true(k.number[k.parent[id]]);
        }
        finish(s);
        assert_true(disk_usage() <= SIZE);
        struct cache_store_stats st;
        cache_store_stats(s, &st);
        evicted += st.evicted;
        assert_int_equal(st.damaged, 0);
        assert_int_equal(st.records, names(NULL, 0, true));
        for (uint32_t id = 1; id < KNOWN_MAX; id++)
            if (k.number[id]) assert_true(get(s, id, k.number[id] - 1));
        struct known before = k;
        cache_store_close(s);
        s = restart(SIZE, round % 3 == 2 ? 2 : 1);
        assert_memory_equal(k.number, before.number, sizeof k.number);
        cache_store_close(s);
    }
    assert_true(evicted > 100);
    /* A smaller size holds from the start, and a record that can't fit leaves the others alone. */
    struct cache_store *s = restart(SIZE / 4, 1);
    assert_true(disk_usage() <= SIZE / 4);
    uint32_t count = k.count;
    struct store_record huge = {.kind = RECORD_KV, .payload_bytes = SIZE};
    assert_true(cache_store_put(s, &huge, calloc(1, SIZE)) > 0);
    finish(s);
    assert_int_equal(k.count, count);
    cache_store_close(s);
}

static void test_least_recently_used(void **state)
{
    (void)state;
    struct cache_store *s = restart(PLENTY, 1);
    uint64_t ids[10];
    for (uint64_t i = 0; i < 10; i++) ids[i] = put(s, i == 9 ? ids[1] : 0, 1); /* each of two pages */
    finish(s);
    cache_store_close(s);
    /* An hour ago; the store updates times of files that are a minute old. */
    static char list[64][256];
    char path[512];
    uint32_t n = names(list, 64, true);
    assert_int_equal(n, 10);
    struct timespec t[2];
    clock_gettime(CLOCK_REALTIME, &t[1]);
    for (uint32_t i = 0; i < n; i++) {
        path_of(path, list[i]);
        t[0].tv_nsec = UTIME_OMIT;
        t[1].tv_sec -= 3600;
        t[1].tv_nsec = 0;
        assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
        t[1].tv_sec += 3600;
    }
    s = restart(PLENTY, 1);
    cache_store_touch(s, ids[9]); /* and so its parent, 1 */
    finish(s);
    cache_store_close(s);
    /* The use is known after a restart, also under another binding. */
    s = restart((5 + 3 * 2) * PAGE, 2);
    cache_store_close(s);
    s = restart(PLENTY, 1);
    assert_true(k.number[ids[1]] && k.number[ids[9]]);
    assert_in_range(k.count, 2, 4);
    cache_store_close(s);
}

static void test_full_disk(void **state)
{
    (void)state;
    struct cache_store *s = restart(PLENTY, 1);
    uint64_t first = put(s, 0, 3), second;
    finish(s);
    struct rlimit old, low = {.rlim_cur = 8192};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    uint64_t number = 0;
    while (payload_size(number) < 12000) number++;
    second = put(s, first, number);
    assert_true(second > 0);
    bool ok = true;
    uint8_t buffer[20000];
    /* refused if the write has failed by now */
    if (!cache_store_get(s, second, buffer, payload_size(number), &ok)) ok = false;
    finish(s);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_true(k.off);
    assert_false(ok);
    struct cache_store_stats st;
    cache_store_stats(s, &st);
    assert_true(st.off);
    assert_int_equal(put(s, 0, 4), 0);
    assert_false(cache_store_get(s, first, buffer, payload_size(3), &ok));
    cache_store_close(s);
    s = restart(PLENTY, 1);
    assert_int_equal(k.count, 1);
    assert_true(get(s, first, 3));
    cache_store_close(s);
}

static void test_files_vanish(void **state)
{
    (void)state;
    struct cache_store *s = restart(PLENTY, 1);
    uint64_t a = put(s, 0, 3), b = put(s, a, 4), c = put(s, 0, 5);
    learn(a, 0, 3);
    learn(b, a, 4);
    learn(c, 0, 5);
    finish(s);
    static char list[64][256];
    char path[512];
    uint32_t n = names(list, 64, true);
    for (uint32_t i = 0; i < n; i++) {
        path_of(path, list[i]);
        if (strtoull(list[i], NULL, 16) == a) assert_int_equal(unlink(path), 0);
    }
    assert_false(get(s, a, 3));
    finish(s);
    assert_false(k.number[a] || k.number[b]);
    assert_true(get(s, c, 5));
    assert_false(k.off);
    clear(); /* now the directory */
    (void)put(s, 0, 6);
    finish(s);
    assert_true(k.off);
    cache_store_close(s);
    mkdir(top, 0700);
}

/* The queue is bounded: what doesn't fit is dropped and counted, and its memory freed. */
static void test_queue(void **state)
{
    (void)state;
    struct cache_store *s;
    struct err err;
    struct cache_store_options o = {.dir = top, .bytes_max = 1ull << 30, .queue_max = 100000};
    assert_int_equal(cache_store_open(&o, &s, &err), ST_OK);
    uint32_t dropped = 0;
    for (uint64_t i = 0; i < 2000; i++) dropped += !put(s, 0, i);
    assert_true(cache_store_flush(s, 20000));
    struct cache_store_stats st;
    cache_store_stats(s, &st);
    assert_true(dropped > 0);
    assert_int_equal(st.dropped, dropped);
    assert_int_equal(st.puts, 2000 - dropped);
    for (uint64_t i = 0; i < 10; i++) (void)put(s, 0, i); /* close frees what is queued */
    cache_store_close(s);
}

/* kill -9 at any moment loses what was being written alone. */
static void test_killed(void **state)
{
    (void)state;
    uint32_t found = 0;
    for (uint32_t round = 0; round < 20; round++) {
        pid_t pid = fork();
        if (!pid) {
            struct cache_store *s = start(400 << 10, 1);
            for (uint64_t i = round, parent = 0;; i++) {
                parent = put(s, i % 5 ? parent : 0, i);
                if (i % 3 == 0) (void)cache_store_flush(s, 1000);
                struct store_event ev;
                while (cache_store_poll(s, &ev))
                    if (ev.kind == STORE_FOUND) free((void *)ev.record.meta);
            }
        }
        for (uint32_t ms = 0, want = 8 + rnd(15); names(NULL, 0, true) < want; ms++) {
            assert_true(ms < 20000);
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        nanosleep(&(struct timespec){.tv_nsec = rnd(3000000)}, NULL);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        struct cache_store *s = restart(400 << 10, 1);
        struct cache_store_stats st;
        cache_store_stats(s, &st);
        assert_int_equal(st.damaged, 0);
        found += k.count;
        for (uint32_t id = 1; id < KNOWN_MAX; id++)
            if (k.number[id]) assert_true(get(s, id, k.number[id] - 1));
        cache_store_close(s);
        clear();
        setup(NULL);
    }
    assert_true(found >= 100);
}

/* ---- damage ---- */

enum { BASE = 9 };
struct file {
    char name[256];
    uint8_t *bytes;
    size_t len;
};

static void write_file(const char *name, const uint8_t *bytes, size_t len)
{
    char path[512];
    path_of(path, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

/* A directory with one or two faults, of these files. */
static void damage(const struct file *files)
{
    static uint8_t bytes[1 << 16];
    char path[512], other[512], name[512];
    for (uint32_t i = 0; i < BASE; i++) write_file(files[i].name, files[i].bytes, files[i].len);
    for (uint32_t faults = 1 + rnd(2); faults; faults--) {
        const struct file *f = &files[rnd(BASE)], *g = &files[rnd(BASE)];
        size_t len = f->len, at = rnd(rnd(2) ? 300 : (uint32_t)len) % len;
        memcpy(bytes, f->bytes, len);
        path_of(path, f->name);
        path_of(other, g->name);
        switch (rnd(12)) {
        case 0: bytes[at] ^= (uint8_t)(1u << rnd(8)); break;
        case 1: bytes[at] = (uint8_t)rnd(256); break;
        case 2: len = at; break;
        case 3: memset(bytes + len, (int)rnd(256), 100), len += 1 + rnd(100); break;
        case 4: memset(bytes + at, rnd(2) ? 0 : 0xff, len - at < 64 ? len - at : 64); break;
        case 5: memcpy(bytes, g->bytes, at < g->len ? at : g->len); break;
        case 6: len = g->len, memcpy(bytes, g->bytes, len); break; /* another record under this name */
        case 7:                                                    /* under a new id, or for a new binding */
            snprintf(name, sizeof name, "%016x%.*s", 1 + rnd(40), 17, f->name + 16);
            if (rnd(2)) snprintf(name, sizeof name, "%.17s%016x", f->name, rnd(99));
            path_of(other, name);
            (void)rename(path, other);
            continue;
        case 8: (void)unlink(path); continue;
        case 9:
            (void)unlink(path);
            if (rnd(2)) (void)mkdir(path, 0700);
            else (void)!symlink(other, path);
            continue;
        case 10:
            (void)unlink(path);
            (void)mkfifo(path, 0600);
            continue;
        default: write_file(rnd(2) ? "fffffffffffffffe-0101010101010101" : "writing", bytes, len); continue;
        }
        struct stat st;
        if (!lstat(path, &st) && S_ISREG(st.st_mode)) write_file(f->name, bytes, len);
    }
}

/* 10,000 mutations: test_cache_store 10000. */
static void test_mutations(void **state)
{
    (void)state;
    static struct file files[BASE];
    static char list[BASE][256];
    struct cache_store *s = restart(PLENTY, 1);
    uint64_t ids[BASE];
    for (uint64_t i = 0; i < BASE; i++) ids[i] = put(s, i % 4 ? ids[i - 1] : 0, i);
    finish(s);
    cache_store_close(s);
    assert_int_equal(names(list, BASE, true), BASE);
    for (uint32_t i = 0; i < BASE; i++) {
        char path[512];
        path_of(path, list[i]);
        FILE *f = fopen(path, "rb");
        strcpy(files[i].name, list[i]);
        files[i].bytes = malloc(1 << 16);
        files[i].len = fread(files[i].bytes, 1, 1 << 16, f);
        fclose(f);
    }
    uint32_t whole = 0;
    for (uint32_t m = 0; m < mutations; m++) {
        clear();
        mkdir(top, 0700);
        mkdir(dir, 0700);
        damage(files);
        s = restart(PLENTY, 1);
        assert_false(k.off);
        for (uint64_t i = 0; i < BASE; i++) {
            if (!k.number[ids[i]]) continue;
            assert_int_equal(k.number[ids[i]], i + 1);
            assert_int_equal(k.parent[ids[i]], i % 4 ? ids[i - 1] : 0);
            whole += get(s, ids[i], i);
        }
        assert_true(k.count <= BASE);
        uint64_t more = put(s, 0, 17);
        assert_true(get(s, more, 17));
        cache_store_close(s);
    }
    assert_in_range(whole, mutations, mutations * BASE);
    for (uint32_t i = 0; i < BASE; i++) free(files[i].bytes);
}

/* ---- what is named like a record ---- */

enum stray { GARBAGE, COPY, LONG, UNREADABLE, FOLDER, LINK, FIFO, STRAYS };

static void stray_make(enum stray what, const char *name, const char *record)
{
    static uint8_t bytes[1 << 16];
    char path[512], from[512];
    path_of(path, name);
    path_of(from, record);
    if (what == FOLDER) assert_int_equal(mkdir(path, 0700), 0);
    else if (what == LINK) assert_int_equal(symlink(from, path), 0);
    else if (what == FIFO) assert_int_equal(mkfifo(path, 0600), 0);
    if (what >= FOLDER) return;
    FILE *f = what == COPY ? fopen(from, "rb") : NULL;
    write_file(name, bytes, f ? fread(bytes, 1, sizeof bytes, f) : 1000);
    if (f) fclose(f);
    if (what == LONG) assert_int_equal(truncate(path, 5ll << 30), 0);
    if (what == UNREADABLE) assert_int_equal(chmod(path, 0), 0);
}

/* The records that are there once all are found; ids may be any. */
static struct cache_store *found(uint64_t bytes_max, uint32_t *count)
{
    struct cache_store *s = start(bytes_max, 1);
    struct store_event ev = {.kind = STORE_FOUND};
    for (*count = 0; ev.kind != STORE_READY;) {
        if (!cache_store_poll(s, &ev)) continue;
        assert_int_not_equal(ev.kind, STORE_OFF);
        if (ev.kind != STORE_FOUND) continue;
        free((void *)ev.record.meta);
        ++*count;
    }
    return s;
}

/* Whatever it is and whatever its id: what was there is found, and what is put after it, too. */
static void test_strays(void **state)
{
    (void)state;
    static const char *const ids[] = {"3fffffffffffffff", "3ffffffffffffffe", "0000ffffffffffff",
                                      "0000000000000003", "0000000000000002", "0000000000000001"};
    bool root = geteuid() == 0; /* who reads everything */
    if (root) assert_int_equal(chown(top, 65534, 65534) + seteuid(65534), 0);
    for (uint32_t i = 0; i < STRAYS * 6 * 2; i++) {
        const char *id = ids[i / 2 % 6];
        enum stray what = i / 12;
        char list[8][256], name[300], tag[17] = "0000000000000000";
        clear();
        mkdir(top, 0700);
        struct cache_store *s = restart(PLENTY, 1);
        uint64_t a = put(s, 0, 3);
        assert_true(get(s, put(s, a, 4), 4));
        cache_store_close(s);
        assert_int_equal(names(list, 8, true), 2);
        const char *first = list[strtoull(list[0], NULL, 16) != a];
        if (i % 2) strcpy(tag, first + 17);
        snprintf(name, sizeof name, "%s-%s", id, tag);
        if (strcmp(name, list[0]) == 0 || strcmp(name, list[1]) == 0) continue;
        stray_make(what, name, first);
        uint32_t count = 0;
        s = found(PLENTY, &count);
        if (count != 2) fail_msg("%s of kind %d: %u are found", name, what, count);
        assert_true(get(s, a, 3));
        uint64_t b = put(s, 0, 5);
        if (!b || !get(s, b, 5)) fail_msg("%s of kind %d: nothing can be put", name, what);
        cache_store_close(s);
        s = found(PLENTY, &count);
        if (count < 3 || !get(s, b, 5)) fail_msg("%s of kind %d: %u are found at last", name, what, count);
        cache_store_close(s);
    }
    if (root) assert_int_equal(seteuid(0), 0);
}

/* A folder in the place of a file that is being written: removed, or named. */
static void test_writing(void **state)
{
    (void)state;
    char path[512];
    cache_store_close(restart(PLENTY, 1));
    path_of(path, "writing");
    assert_int_equal(mkdir(path, 0700), 0);
    struct cache_store *s = restart(PLENTY, 1);
    assert_true(get(s, put(s, 0, 3), 3));
    cache_store_close(s);
    assert_int_equal(mkdir(path, 0700), 0);
    strcat(path, "/x");
    assert_int_equal(mkdir(path, 0700), 0);
    struct err err = {{0}};
    struct cache_store_options o = {.dir = top, .bytes_max = PLENTY};
    assert_int_equal(cache_store_open(&o, &s, &err), ST_IO);
    assert_non_null(strstr(err.msg, "\"writing\" is in the way"));
    assert_int_equal(rmdir(path), 0);
}

/* A read of a record that is gone waits for no write: the reads after it would wait, too. */
static void test_get_of_a_gone_one(void **state)
{
    (void)state;
    struct cache_store *s = start(1u << 30, 1);
    struct store_event ev = {0};
    uint8_t dst[20000];
    uint64_t a = put(s, 0, 1), b = put(s, 0, 2);
    cache_store_drop(s, a);
    assert_true(cache_store_flush(s, 10000));
    for (bool ready = false, gone = false; !ready || !gone;) {
        if (!cache_store_poll(s, &ev)) continue;
        ready |= ev.kind == STORE_READY;
        gone |= ev.kind == STORE_GONE;
    }
    for (int i = 0; i < 2; i++) { /* the thread is busy */
        struct store_record r = {.kind = RECORD_KV, .payload_bytes = 40u << 20};
        assert_true(cache_store_put(s, &r, calloc(1, r.payload_bytes)));
    }
    assert_true(cache_store_get(s, a, dst, payload_size(1), &ev));
    cache_store_drop(s, b);
    while (!cache_store_poll(s, &ev)) nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_int_equal(ev.kind, STORE_READ);
    assert_int_equal(ev.record.id, a);
    assert_false(ev.ok);
    cache_store_close(s);
}

int main(int argc, char **argv)
{
    if (argc > 1) mutations = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2) rng_state = strtoull(argv[2], NULL, 10);
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_found_again), TEST(test_one_process),  TEST(test_bounded), TEST(test_least_recently_used),
        TEST(test_full_disk),   TEST(test_files_vanish), TEST(test_queue),   TEST(test_get_of_a_gone_one),
        TEST(test_killed),      TEST(test_mutations),    TEST(test_strays),  TEST(test_writing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
