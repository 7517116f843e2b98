/* The cache of encoded images against a fake engine: states, sharing, byte bound, and a random run against
 * a naive model. */
#include "config/base/assert.h"
#include "scheduler/cache/feature_cache.h"
#include "tests/lib/cache_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t rng_state = 1;
static uint32_t rnd(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((rng_state >> 33) % below);
}

/* ---- the fake engine ---- */
enum { ROWS = 100, SCRATCH = 50, LAYERS = 4 };
struct engine_features {
    uint8_t first_byte;
    uint32_t layers_left;
};
struct engine {
    uint32_t live, created;
    uint32_t live_max; /* more is ST_NOMEM; 0 = no limit */
    enum status step_fails;
};

enum status engine_features_create(struct engine *e, const struct image_u8 *pixels,
                                   const struct adapter *adapter, struct engine_features **out,
                                   struct err *err)
{
    (void)adapter;
    if (pixels->width != 1) return err_set(err, ST_INVALID, "an image of the wrong size");
    if (e->live_max && e->live >= e->live_max) return err_set(err, ST_NOMEM, "the device is full");
    *out = calloc(1, sizeof **out);
    (*out)->first_byte = pixels->rgb[0];
    (*out)->layers_left = LAYERS;
    e->live++;
    e->created++;
    return ST_OK;
}
enum status engine_features_step(struct engine *e, struct engine_features *f, uint32_t layers, bool *done,
                                 struct err *err)
{
    if (e->step_fails) return err_set(err, e->step_fails, "injected fault");
    assert_true(f->layers_left > 0);
    f->layers_left = layers == 0 || layers >= f->layers_left ? 0 : f->layers_left - layers;
    *done = f->layers_left == 0;
    return ST_OK;
}
size_t engine_features_bytes(const struct engine_features *f)
{
    return f->layers_left ? ROWS + SCRATCH : ROWS;
}
/* A copy is the first byte, ROWS times. */
void engine_features_read(struct engine *e, const struct engine_features *f, void *host)
{
    (void)e;
    memset(host, f->first_byte, ROWS);
}
enum status engine_features_write(struct engine *e, const void *host, size_t bytes,
                                  struct engine_features **out, struct err *err)
{
    if (bytes != ROWS) return err_set(err, ST_FORMAT, "%zu bytes", bytes);
    *out = calloc(1, sizeof **out);
    (*out)->first_byte = *(const uint8_t *)host;
    e->live++;
    return ST_OK;
}
void engine_features_free(struct engine *e, struct engine_features *f)
{
    assert_non_null(f);
    e->live--;
    free(f);
}

/* ---- helpers ---- */
static struct engine fake;
static struct feature_cache *cache;

static void open_cache(uint64_t bytes_max)
{
    struct err err = {{0}};
    fake = (struct engine){0};
    assert_int_equal(features_create(&fake, bytes_max, 7, &cache, &err), ST_OK);
}
static void close_cache(void)
{
    features_check(cache);
    features_destroy(cache);
    assert_int_equal(fake.live, 0);
}
static const uint8_t *name(uint8_t n)
{
    static uint8_t names[4][32];
    static int turn;
    uint8_t *at = names[turn++ % 4];
    memset(at, 0, 32);
    at[31] = n; /* only the last byte differs: keys are compared in full */
    return at;
}
static struct feature_entry *get(uint8_t salt, uint8_t key)
{
    struct feature_entry *f = features_get(cache, name(salt), name(key));
    assert_non_null(f);
    return f;
}
static enum status begin(struct feature_entry *f, uint8_t byte)
{
    uint8_t rgb[3] = {byte, 0, 0};
    struct err err = {{0}};
    enum status st =
        features_begin(cache, f, &(struct image_u8){.width = 1, .height = 1, .rgb = rgb}, NULL, &err);
    assert_true(st == ST_OK || err.msg[0]);
    return st;
}
static void encode_all(struct feature_entry *f, uint8_t byte)
{
    struct err err;
    assert_int_equal(begin(f, byte), ST_OK);
    assert_int_equal(features_state(f), FEATURES_ENCODING);
    assert_int_equal(features_encode(cache, f, 0, &err), ST_OK);
    assert_int_equal(features_state(f), FEATURES_DONE);
}
static uint64_t idle(void)
{
    uint64_t n = 0;
    for (const struct feature_entry *f = cache->idle.head; f; f = f->next) n++;
    return n;
}
static struct features_stats stats(void)
{
    struct features_stats st;
    features_check(cache);
    features_stats(cache, &st);
    return st;
}

/* ---- tests ---- */
static void test_states_and_sharing(void **state)
{
    (void)state;
    struct err err;
    open_cache(1000);
    struct feature_entry *a = get(0, 1), *b = get(0, 1);
    assert_ptr_equal(a, b);
    assert_int_equal(features_state(a), FEATURES_EMPTY);
    assert_int_equal(begin(a, 9), ST_OK);
    assert_int_equal(features_encode(cache, a, 3, &err), ST_OK);
    assert_int_equal(features_state(b), FEATURES_ENCODING);
    assert_int_equal(stats().bytes, ROWS + SCRATCH);
    assert_int_equal(features_encode(cache, b, 3, &err), ST_OK);
    assert_int_equal(features_state(a), FEATURES_DONE);
    assert_int_equal(stats().bytes, ROWS); /* scratch was given back */
    assert_int_equal(features_of(a)->first_byte, 9);
    features_release(cache, a);
    assert_int_equal(idle(), 0);
    features_release(cache, b);
    assert_int_equal(idle(), 1);
    a = get(0, 1); /* from the idle ones */
    assert_int_equal(features_state(a), FEATURES_DONE);
    struct features_stats st = stats();
    assert_int_equal(st.queries, 3);
    assert_int_equal(st.hits, 2);
    assert_int_equal(st.holds, 1);
    assert_int_equal(fake.created, 1);
    features_release(cache, a);
    close_cache();
}

/* Another salt or another key is another image. */
static void test_names(void **state)
{
    (void)state;
    open_cache(10000);
    struct feature_entry *f[3] = {get(0, 1), get(0, 2), get(1, 1)};
    for (uint8_t i = 0; i < 3; i++) encode_all(f[i], i);
    for (uint8_t i = 0; i < 3; i++) features_release(cache, f[i]);
    assert_int_equal(stats().entries, 3);
    assert_null(features_find(cache, name(1), name(2)));
    assert_null(features_find(cache, name(2), name(1)));
    static const struct {
        uint8_t salt, key, byte;
    } want[] = {{1, 1, 2}, {0, 2, 1}, {0, 1, 0}};
    for (int i = 0; i < 3; i++) {
        struct feature_entry *g = get(want[i].salt, want[i].key);
        assert_ptr_equal(features_find(cache, name(want[i].salt), name(want[i].key)), g);
        assert_int_equal(features_of(g)->first_byte, want[i].byte);
        features_release(cache, g);
    }
    close_cache();
}

static void test_unfinished_goes_with_its_holder(void **state)
{
    (void)state;
    open_cache(1000);
    struct feature_entry *f = get(0, 1);
    features_release(cache, f);
    assert_int_equal(stats().entries, 0);
    f = get(0, 1);
    assert_int_equal(begin(f, 1), ST_OK);
    features_release(cache, f);
    assert_int_equal(stats().entries, 0);
    assert_int_equal(stats().bytes, 0);
    assert_int_equal(fake.live, 0);
    assert_int_equal(stats().evictions, 0);
    close_cache();
}

static void test_private(void **state)
{
    (void)state;
    static const uint8_t zero[32];
    open_cache(1000);
    struct feature_entry *a = features_get_private(cache), *b = features_get_private(cache);
    assert_ptr_not_equal(a, b);
    encode_all(a, 1);
    assert_null(features_find(cache, zero, zero));
    assert_int_equal(stats().entries, 2);
    assert_int_equal(stats().queries, 0);
    features_release(cache, a);
    assert_int_equal(fake.live, 0);
    features_release(cache, b);
    assert_int_equal(stats().entries, 0);
    close_cache();
}

static void test_bound(void **state)
{
    (void)state;
    open_cache(3 * ROWS + SCRATCH);
    for (uint8_t k = 1; k <= 3; k++) {
        struct feature_entry *f = get(0, k);
        encode_all(f, k);
        features_release(cache, f);
    }
    features_release(cache, get(0, 1)); /* now 2 is the oldest */
    struct feature_entry *f = get(0, 4);
    encode_all(f, 4);
    assert_null(features_find(cache, name(0), name(2)));
    assert_non_null(features_find(cache, name(0), name(1)));
    assert_non_null(features_find(cache, name(0), name(3)));
    assert_int_equal(stats().evictions, 1);
    features_release(cache, f);
    /* What is in use may exceed the bound; then nothing idle stays. */
    struct feature_entry *many[6];
    for (uint8_t k = 0; k < 6; k++) encode_all(many[k] = get(1, k), k);
    assert_int_equal(stats().bytes, 6 * ROWS);
    assert_int_equal(idle(), 0);
    for (uint8_t k = 0; k < 6; k++) {
        assert_int_equal(features_of(many[k])->first_byte, k);
        features_release(cache, many[k]);
    }
    assert_true(stats().bytes <= 3 * ROWS + SCRATCH);
    assert_int_equal(idle(), 3);
    uint64_t evictions = stats().evictions;
    features_reset(cache);
    assert_int_equal(stats().entries, 0);
    assert_int_equal(stats().evictions, evictions);
    close_cache();
    /* A bound of nothing: shared while held, then gone. */
    open_cache(0);
    f = get(0, 1);
    encode_all(f, 1);
    assert_ptr_equal(get(0, 1), f);
    features_release(cache, f);
    features_release(cache, f);
    assert_int_equal(stats().entries, 0);
    close_cache();
}

static void test_faults(void **state)
{
    (void)state;
    struct err err = {{0}};
    uint8_t rgb[3] = {0};
    open_cache(1000);
    struct feature_entry *f = get(0, 1);
    assert_int_equal(
        features_begin(cache, f, &(struct image_u8){.width = 2, .height = 1, .rgb = rgb}, NULL, &err),
        ST_INVALID);
    assert_string_equal(err.msg, "an image of the wrong size");
    assert_int_equal(features_state(f), FEATURES_EMPTY);
    assert_int_equal(begin(f, 1), ST_OK); /* usable again */
    fake.step_fails = ST_DEVICE;
    assert_int_equal(features_encode(cache, f, 1, &err), ST_DEVICE);
    assert_int_equal(features_state(f), FEATURES_EMPTY);
    assert_int_equal(stats().bytes, 0);
    assert_int_equal(fake.live, 0);
    fake.step_fails = ST_OK;
    encode_all(f, 1);
    features_release(cache, f);
    /* Memory is short: what is idle gives way; what is in use doesn't. */
    fake.live_max = 1;
    f = get(0, 2);
    encode_all(f, 2);
    assert_int_equal(stats().evictions, 1);
    struct feature_entry *g = get(0, 3);
    assert_int_equal(begin(g, 3), ST_NOMEM);
    assert_int_equal(features_of(f)->first_byte, 2);
    features_release(cache, f);
    assert_int_equal(begin(g, 3), ST_OK);
    features_release(cache, g);
    close_cache();
}

/* ---- random operations against a model that is simple and slow ---- */
struct model_entry {
    bool there;
    enum feature_state state;
    uint32_t holders, layers_left;
    uint64_t bytes, released; /* released: when it became idle */
};
enum { SALTS = 2, KEYS = 40, MODEL = SALTS * KEYS };

static void model_evict(struct model_entry *m, uint64_t bytes_max, uint64_t *evictions)
{
    for (;;) {
        uint64_t bytes = 0;
        struct model_entry *oldest = NULL;
        for (uint32_t i = 0; i < MODEL; i++) {
            bytes += m[i].bytes;
            if (m[i].there && m[i].holders == 0 && (!oldest || m[i].released < oldest->released))
                oldest = &m[i];
        }
        if (bytes <= bytes_max || !oldest) return;
        *oldest = (struct model_entry){0};
        ++*evictions;
    }
}

static void model_compare(const struct model_entry *m, uint64_t evictions)
{
    struct features_stats st = stats();
    uint64_t entries = 0, bytes = 0, holds = 0;
    for (uint8_t i = 0; i < MODEL; i++) {
        struct feature_entry *f = features_find(cache, name(i / KEYS), name(i % KEYS));
        assert_int_equal(f != NULL, m[i].there);
        if (f) assert_int_equal(features_state(f), m[i].state);
        if (f && m[i].state == FEATURES_DONE && m[i].holders) assert_int_equal(features_of(f)->first_byte, i);
        entries += m[i].there;
        bytes += m[i].bytes;
        holds += m[i].holders;
    }
    assert_int_equal(st.entries, entries);
    assert_int_equal(st.bytes, bytes);
    assert_int_equal(st.holds, holds);
    assert_int_equal(st.evictions, evictions);
}

static void random_run(uint64_t seed, uint32_t ops)
{
    struct model_entry m[MODEL] = {0};
    uint64_t evictions = 0, hits = 0, queries = 0;
    rng_state = seed;
    uint64_t bound = rnd(20) * 70;
    open_cache(bound);
    for (uint32_t op = 0; op < ops; op++) {
        uint8_t i = (uint8_t)rnd(MODEL), byte = i;
        struct feature_entry *f = features_find(cache, name(i / KEYS), name(i % KEYS));
        struct err err;
        switch (rnd(8)) {
        case 0:
        case 1:
            queries++;
            hits += m[i].there;
            assert_int_equal(f != NULL, m[i].there);
            struct feature_entry *got = get(i / KEYS, i % KEYS);
            if (f) assert_ptr_equal(got, f);
            m[i].there = true;
            m[i].holders++;
            break;
        case 2:
        case 3:
        case 4:
            if (m[i].holders == 0) break;
            features_release(cache, f);
            if (--m[i].holders > 0) break;
            m[i].released = op;
            if (m[i].state != FEATURES_DONE) m[i] = (struct model_entry){0};
            model_evict(m, bound, &evictions);
            break;
        case 5:
            if (m[i].holders == 0 || m[i].state != FEATURES_EMPTY) break;
            assert_int_equal(begin(f, byte), ST_OK);
            m[i].state = FEATURES_ENCODING;
            m[i].bytes = ROWS + SCRATCH;
            m[i].layers_left = LAYERS;
            model_evict(m, bound, &evictions);
            break;
        default:
            if (m[i].holders == 0 || m[i].state != FEATURES_ENCODING) break;
            assert_int_equal(features_encode(cache, f, 2, &err), ST_OK);
            m[i].layers_left -= 2;
            if (m[i].layers_left > 0) break;
            m[i].state = FEATURES_DONE;
            m[i].bytes = ROWS;
            break;
        }
        if (rnd(200) == 0) {
            features_reset(cache);
            for (uint32_t j = 0; j < MODEL; j++)
                if (m[j].there && m[j].holders == 0) m[j] = (struct model_entry){0};
        }
        model_compare(m, evictions);
    }
    assert_int_equal(stats().hits, hits);
    assert_int_equal(stats().queries, queries);
    for (uint8_t i = 0; i < MODEL; i++)
        for (; m[i].holders > 0; m[i].holders--)
            features_release(cache, features_find(cache, name(i / KEYS), name(i % KEYS)));
    if (bound >= ROWS) assert_true(evictions > 0 && hits > 0); /* not vacuous */
    close_cache();
}
static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) random_run(seed, 3000);
}

/* What is evicted goes to the sink, and comes back by a load; a load that fails leaves the entry empty. */
static uint8_t kept[4];
static uint32_t kept_count;
static void keep(void *arg, const uint8_t salt[32], const uint8_t key[32], const struct engine_features *f)
{
    assert_ptr_equal(arg, &kept_count);
    assert_int_equal(salt[31], 1);
    assert_int_equal(f->first_byte, key[31]);
    kept[kept_count++ % 4] = key[31];
}
static void test_tier_below(void **state)
{
    (void)state;
    uint8_t copy[ROWS];
    open_cache(2 * ROWS + SCRATCH);
    kept_count = 0;
    features_set_sink(cache, keep, &kept_count);
    for (uint8_t k = 1; k <= 3; k++) {
        struct feature_entry *f = get(1, k);
        encode_all(f, k);
        features_release(cache, f);
    }
    assert_int_equal(kept_count, 1);
    assert_int_equal(kept[0], 1);
    features_keep_all(cache); /* the latest first */
    assert_int_equal(kept_count, 3);
    assert_int_equal(kept[1], 3);
    assert_int_equal(idle(), 2);

    struct feature_entry *f = get(1, 1);
    features_load(cache, f);
    assert_int_equal(features_state(f), FEATURES_LOADING);
    assert_int_equal(stats().holds, 2);
    memset(copy, 1, sizeof copy);
    features_loaded(cache, f, copy, sizeof copy - 1); /* not an image */
    assert_int_equal(features_state(f), FEATURES_EMPTY);
    features_load(cache, f);
    features_loaded(cache, f, NULL, 0);
    assert_int_equal(features_state(f), FEATURES_EMPTY);
    features_load(cache, f);
    features_loaded(cache, f, copy, sizeof copy);
    assert_int_equal(features_state(f), FEATURES_DONE);
    assert_int_equal(features_of(f)->first_byte, 1);
    features_release(cache, f);

    f = get(1, 9); /* its holder leaves while it loads */
    features_load(cache, f);
    features_release(cache, f);
    features_loaded(cache, f, NULL, 0);
    assert_null(features_find(cache, name(1), name(9)));
    kept_count = 0;
    features_reset(cache);
    assert_int_equal(kept_count, 0);
    close_cache();
}

/* Many entries: the table grows and nothing is lost. */
static void test_growth(void **state)
{
    (void)state;
    enum { MANY = 20000 };
    struct feature_entry **f = calloc(MANY, sizeof(struct feature_entry *));
    uint8_t key[32] = {0};
    open_cache(1000);
    for (uint32_t i = 0; i < MANY; i++) {
        memcpy(key, &i, sizeof i);
        assert_non_null(f[i] = features_get(cache, name(0), key));
    }
    assert_int_equal(stats().entries, MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        memcpy(key, &i, sizeof i);
        assert_ptr_equal(features_find(cache, name(0), key), f[i]);
    }
    for (uint32_t i = 0; i < MANY; i++) features_release(cache, f[i]);
    assert_int_equal(stats().entries, 0);
    free(f);
    close_cache();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_and_sharing),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_unfinished_goes_with_its_holder),
        cmocka_unit_test(test_private),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_tier_below),
        cmocka_unit_test(test_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
