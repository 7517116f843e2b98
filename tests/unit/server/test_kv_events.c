/* The publisher of cache events when its queue overflows: subscribers drop everything and get the whole
 * content again, and numbers have no hole that a repeat could not fill. What is published otherwise:
 * tests/api/test_fleet.py. */
#include "config/base/assert.h"
#include "server/kv_events/kv_events.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#ifdef KVASIR_KV_EVENTS
#include "server/kv_events/kv_wire.h"

#include <pthread.h>
#include <zmq.h>

enum { BLOCK = 4096, QUEUE_MIB = 64 };

struct scene {
    struct kv_event_sink watch;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    bool full; /* the test has filled the queue; the first resync waits for it */
    uint32_t resyncs;
};

static void store(const struct kv_event_sink *w, uint64_t hash)
{
    static uint32_t tokens[BLOCK];
    static const uint8_t salt[32];
    w->stored(w->arg, &(struct cache_stored){.count = 1, .hashes = &hash, .tokens = tokens, .salt = salt});
}

/* Where the engine thread would tell everything: one block, 7. */
static void resync(void *arg)
{
    struct scene *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->full) pthread_cond_wait(&s->turn, &s->lock);
    bool first = s->resyncs++ == 0;
    pthread_mutex_unlock(&s->lock);
    if (first) return;
    s->watch.resync(s->watch.arg, false);
    store(&s->watch, 7);
    s->watch.resync(s->watch.arg, true);
}

/* Takes a batch; its number, and whether its payload contains `word`. */
static uint64_t receive(void *sub, const char *word, bool *has)
{
    uint64_t number = 0;
    for (int i = 0; i < 3; i++) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        assert_true(zmq_msg_recv(&m, sub, 0) >= 0);
        const uint8_t *data = zmq_msg_data(&m);
        size_t len = zmq_msg_size(&m);
        if (i == 1) {
            assert_int_equal(len, 8);
            for (int k = 0; k < 8; k++) number = number << 8 | data[k];
        }
        *has = memmem(data, len, word, strlen(word)) != NULL;
        assert_int_equal(zmq_msg_more(&m), i < 2);
        zmq_msg_close(&m);
    }
    return number;
}

static void test_overflow(void **state)
{
    (void)state;
    char address[64];
    snprintf(address, sizeof address, "ipc:///tmp/kvasir-test-%ld", (long)getpid());
    struct kv_events *k;
    struct err err;
    struct scene s = {.lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER};
    struct kv_events_options o = {.publish = address, .block_tokens = BLOCK, .one_group = true};
    assert_int_equal(kv_events_open(&o, &k, &err), ST_OK);
    s.watch = kv_events_sink(k);
    void *context = zmq_ctx_new(), *sub = zmq_socket(context, ZMQ_SUB);
    int wait_ms = 30000, unlimited = 0;
    zmq_setsockopt(sub, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    zmq_setsockopt(sub, ZMQ_RCVHWM, &unlimited, sizeof unlimited);
    zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "", 0);
    assert_int_equal(zmq_connect(sub, address), 0);
    assert_int_equal(kv_events_start(k, resync, &s, &err), ST_OK);
    uint32_t blocks = QUEUE_MIB * (1u << 20) / (BLOCK * (uint32_t)sizeof(uint32_t)) + 100;
    for (uint32_t i = 0; i < blocks; i++) store(&s.watch, 1000 + i);
    pthread_mutex_lock(&s.lock);
    s.full = true;
    pthread_cond_signal(&s.turn);
    pthread_mutex_unlock(&s.lock);
    /* The subscription may come behind the first batches; from then on there is no hole. */
    bool cleared = false, first = true;
    for (uint64_t last = 0; !cleared; first = false) {
        uint64_t number = receive(sub, "AllBlocksCleared", &cleared);
        if (!first) assert_int_equal(number, last + 1);
        last = number;
    }
    pthread_mutex_lock(&s.lock);
    assert_true(s.resyncs >= 2);
    pthread_mutex_unlock(&s.lock);
    store(&s.watch, 8); /* taken again */
    bool stored = false;
    receive(sub, "BlockStored", &stored);
    assert_true(stored);
    zmq_close(sub);
    kv_events_close(k);
    zmq_ctx_term(context);
    unlink(address + strlen("ipc://"));
}

static void test_addresses(void **state)
{
    (void)state;
    struct kv_events *k;
    struct err err;
    struct kv_events_options o = {.publish = "nonsense", .block_tokens = BLOCK};
    assert_int_equal(kv_events_open(&o, &k, &err), ST_IO);
    assert_non_null(strstr(err.msg, "--kv-events nonsense"));
    o = (struct kv_events_options){
        .publish = "connect:tcp://127.0.0.1:9", .replay = "x", .block_tokens = BLOCK};
    assert_int_equal(kv_events_open(&o, &k, &err), ST_IO);
    assert_non_null(strstr(err.msg, "--kv-events-replay x"));
}

static bool sql(void *arg, const uint8_t salt[32], char name[128], uint32_t *id)
{
    (void)arg;
    strcpy(name, "sql");
    *id = 7;
    return salt[31] == 1;
}

/* vLLM's names of the groups' kinds, and of the tiers; adapters: the salt of the last is one's. */
static void test_kinds(void **state)
{
    (void)state;
    static const char *const names[] = {"full_attention", "sliding_window", "mamba"};
    static const char *const mediums[] = {"GPU", "CPU", "DISK"};
    static const enum cache_tier tiers[] = {CACHE_TIER_ARENA, CACHE_TIER_HOST, CACHE_TIER_DISK};
    for (uint32_t i = 0; i < 3; i++) {
        const uint8_t salt[32] = {[30] = i == 1, [31] = i == 2};
        uint32_t token = 5;
        uint64_t hash = 77;
        struct cache_stored what = {.tier = tiers[i],
                                    .group = i,
                                    .window = i == 1 ? 9 : 0,
                                    .recurrent = i == 2,
                                    .count = 1,
                                    .hashes = &hash,
                                    .tokens = &token,
                                    .salt = salt};
        struct buf b;
        buf_init(&b, 1000);
        msgpack_sbuffer out;
        msgpack_sbuffer_init(&out);
        assert_int_equal(kv_put_stored(&b, 1, &what), ST_OK);
        assert_int_equal(
            kv_pack_batch(&out, b.data, b.len, 1, 0, (struct kv_layout){.map = true, .lora = sql}), b.len);
        assert_int_equal(memmem(out.data, out.size, "lora_name\xa3sql", 13) != NULL, i == 2);
        assert_int_equal(memmem(out.data, out.size, "lora_id\x07", 8) != NULL, i == 2);
        for (uint32_t k = 0; k < 3; k++) {
            char word[64]; /* the field's name is followed by the value's length */
            int n = snprintf(word, sizeof word, "kv_cache_spec_kind%c%s", (int)(0xa0 + strlen(names[k])),
                             names[k]);
            assert_int_equal(memmem(out.data, out.size, word, (size_t)n) != NULL, k == i);
            n = snprintf(word, sizeof word, "medium%c%s", (int)(0xa0 + strlen(mediums[k])), mediums[k]);
            assert_int_equal(memmem(out.data, out.size, word, (size_t)n) != NULL, k == i);
        }
        msgpack_sbuffer_destroy(&out);
        buf_fini(&b);
    }
}
#else
static void test_kinds(void **state)
{
    (void)state;
}
static void test_overflow(void **state)
{
    (void)state;
}
static void test_addresses(void **state)
{
    struct kv_events *k;
    struct err err;
    (void)state;
    assert_int_equal(kv_events_open(&(struct kv_events_options){0}, &k, &err), ST_UNSUPPORTED);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_overflow), cmocka_unit_test(test_addresses),
                                       cmocka_unit_test(test_kinds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
