/* Images through the scheduler, against a fake engine: requests for pixels, replies from any thread, sharing,
 * retention, and failures. */
#include "config/base/assert.h"
#include "config/base/log.h"
#include "scheduler/internal.h"
#include "tests/lib/sched_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct scheduler *s;

/* ---- the fake engine ---- */
enum { BT = 8, SOFT = 6, WIDE = 16, LAYERS = 4, ROWS = 1000 };
struct engine_features {
    uint8_t byte;
    uint32_t layers_left;
};
struct engine {
    uint32_t live, created;
    bool full, broken, unwritable;
    uint8_t host[8 * ROWS]; /* the tier's */
};
static struct engine fake;

void engine_caps(const struct engine *e, struct engine_caps *out)
{
    (void)e;
    *out = (struct engine_caps){.group_count = 1,
                                .block_tokens = BT,
                                .arena_grains = 400,
                                .grain_bytes = 64,
                                .vocab_size = 100,
                                .context_max = 200,
                                .batch_tokens_max = 64,
                                .sequences_max = 8,
                                .images = true,
                                .span_tokens_max = WIDE};
    out->groups[0] =
        (struct engine_kv_group){.layers = 1, .bytes_per_token = 8, .block_bytes = 64, .block_grains = 1};
}
const struct adapter_info *adapter_info(const struct adapter *a)
{
    (void)a;
    return NULL;
}
enum status engine_features_create(struct engine *e, const struct image_u8 *pixels,
                                   const struct adapter *adapter, struct engine_features **out,
                                   struct err *err)
{
    (void)adapter;
    if (e->full) return err_set(err, ST_NOMEM, "the device is full");
    if (pixels->width != 1) return err_set(err, ST_INVALID, "an image of the wrong size");
    *out = calloc(1, sizeof **out);
    **out = (struct engine_features){pixels->rgb[0], LAYERS};
    e->live++;
    e->created++;
    return ST_OK;
}
/* Whoever looks while the engine works sees that it has work: a watchdog. */
static void check_busy(void)
{
    struct sched_stats st;
    sched_stats(s, &st);
    ASSERT_CMP(st.running, >, 0);
}
enum status engine_features_step(struct engine *e, struct engine_features *f, uint32_t layers, bool *done,
                                 struct err *err)
{
    (void)e;
    (void)err;
    check_busy();
    f->layers_left = f->layers_left > layers ? f->layers_left - layers : 0;
    *done = f->layers_left == 0;
    return ST_OK;
}
size_t engine_features_bytes(const struct engine_features *f)
{
    (void)f;
    return ROWS;
}
void engine_features_free(struct engine *e, struct engine_features *f)
{
    e->live--;
    free(f);
}
enum status engine_draft(struct engine *e, const struct engine_draft *d, uint32_t n, struct err *err)
{
    (void)e;
    (void)d;
    (void)n;
    return err_set(err, ST_UNSUPPORTED, "no drafter");
}

void engine_each(struct engine *e, uint32_t count, void (*fn)(void *ctx, uint32_t i), void *ctx)
{
    (void)e;
    for (uint32_t i = 0; i < count; i++) fn(ctx, i);
}
void engine_kv_copy(struct engine *e, uint32_t group, uint32_t from_offset, uint32_t to_offset,
                    uint32_t tokens)
{
    (void)e;
    (void)tokens;
    (void)group;
    assert_int_not_equal(from_offset, to_offset);
}
void *engine_host_alloc(struct engine *e, size_t bytes)
{
    return bytes <= sizeof e->host ? e->host : NULL;
}
void engine_host_free(struct engine *e)
{
    (void)e;
}
uint64_t engine_copies(const struct engine *e)
{
    (void)e;
    return 0;
}
void engine_copies_wait(struct engine *e, uint64_t copies)
{
    (void)e;
    (void)copies;
}
void engine_kv_read(struct engine *e, uint32_t group, uint32_t block_offset, void *host)
{
    (void)e;
    (void)group;
    (void)block_offset;
    (void)host;
    fail();
}
void engine_kv_write(struct engine *e, uint32_t group, uint32_t block_offset, const void *host,
                     uint32_t tokens)
{
    (void)tokens;
    engine_kv_read(e, group, block_offset, (void *)(uintptr_t)host);
}
void engine_features_read(struct engine *e, const struct engine_features *f, void *host)
{
    (void)e;
    memcpy(host, f, sizeof *f);
}
enum status engine_features_write(struct engine *e, const void *host, size_t bytes,
                                  struct engine_features **out, struct err *err)
{
    (void)bytes;
    if (e->unwritable) return err_set(err, ST_NOMEM, "the device is full");
    *out = malloc(sizeof **out);
    memcpy(*out, host, sizeof **out);
    e->live++;
    return ST_OK;
}
bool engine_draws(const struct engine *e, const struct engine_chunk *r)
{
    (void)e;
    (void)r;
    return false;
}
/* Every use of an image must bring the image whose first byte the request names (as the seed). */
enum status engine_submit(struct engine *e, struct engine_batch *b, struct err *err)
{
    (void)e;
    (void)err;
    check_busy();
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        struct engine_chunk *r = &b->chunks[i];
        for (uint32_t k = 0; k < r->span_count; k++) {
            ASSERT_CMP(r->spans[k].features->layers_left, ==, 0);
            ASSERT_CMP(r->spans[k].features->byte, ==, (uint8_t)r->sampling->seed);
        }
        r->out = (struct token_out){.id = 1};
    }
    return ST_OK;
}
enum status engine_wait(struct engine *e, struct engine_batch *b, struct err *err)
{
    (void)err;
    for (uint32_t i = 0; i < b->chunk_count; i++) b->chunks[i].broken = e->broken && b->chunks[i].sample;
    return ST_OK;
}

/* ---- requests ---- */
struct request {
    struct prompt prompt;
    struct prompt_span images[6];
    uint32_t tokens[80];
    uint8_t rgb[3];
    struct sampling_params sampling;
    struct sched_sequence seq;
    struct seq_id id;
    uint32_t asks[6], tokens_got, ends;
    enum seq_end end;
    char message[160];
};

static void open_sched(struct sched_options opt)
{
    struct err err = {{0}};
    fake = (struct engine){0};
    assert_int_equal(sched_create(&fake, &opt, &s, &err), ST_OK);
}
static void close_sched(void)
{
    sched_check(s);
    sched_destroy(s);
    assert_int_equal(fake.live, 0);
}

/* A prompt that begins with `head` (so that prompts share no KV), then `count` images of content `byte`. */
static struct request *make(uint8_t head, uint32_t count, uint8_t byte, bool with_pixels)
{
    struct request *r = calloc(1, sizeof *r);
    uint32_t n = 0;
    for (int i = 0; i < 3; i++) r->tokens[n++] = head;
    for (uint32_t k = 0; k < count; k++) {
        struct prompt_span *im = &r->images[k];
        *im = span_of_image(n, n + SOFT, SPAN_BIDIRECTIONAL);
        memset(im->key, byte, sizeof im->key);
        r->rgb[0] = byte;
        if (with_pixels) im->pixels = (struct image_u8){.width = 1, .height = 1, .rgb = r->rgb};
        n += SOFT;
        r->tokens[n++] = head;
    }
    r->prompt = (struct prompt){r->tokens, n, r->images, count};
    r->sampling = (struct sampling_params){
        .seed = byte, .logprobs = SAMPLING_NO_LOGPROBS, .prompt_logprobs = SAMPLING_NO_LOGPROBS};
    r->seq =
        (struct sched_sequence){.prompt = &r->prompt, .sampling = &r->sampling, .tokens_max = 3, .user = r};
    return r;
}
static struct request *submit(struct request *r)
{
    struct err err;
    assert_int_equal(sched_submit(s, &r->seq, &r->id, &err), ST_OK);
    return r;
}
static void take_events(void)
{
    struct sched_event ev;
    while (sched_poll(s, &ev)) {
        struct request *r = ev.user;
        assert_int_equal(r->ends, 0);
        if (ev.kind == EV_IMAGE) r->asks[ev.index]++;
        r->tokens_got += ev.kind == EV_TOKEN;
        if (ev.kind != EV_END) continue;
        r->ends++;
        r->end = ev.end;
        memcpy(r->message, ev.message, sizeof r->message);
    }
}
static void steps(uint32_t n)
{
    static uint64_t now = 1;
    for (uint32_t i = 0; i < n; i++) {
        sched_step(s, now++);
        sched_check(s);
        take_events();
    }
}
static void supply(const struct request *r, uint32_t image, uint32_t width)
{
    struct image_u8 px = {.width = width, .height = 1, .rgb = malloc(3 * (size_t)width)};
    memset(px.rgb, (int)r->sampling.seed, 3 * (size_t)width);
    sched_supply_image(s, r->id, image, &px);
    assert_null(px.rgb); /* taken */
}
static void check_end(struct request *r, enum seq_end end)
{
    assert_int_equal(r->ends, 1);
    assert_int_equal(r->end, end);
    free(r);
}
static struct sched_stats stats(void)
{
    struct sched_stats st;
    sched_stats(s, &st);
    return st;
}

/* ---- tests ---- */
static void test_asks_once_and_others_go_on(void **state)
{
    (void)state;
    open_sched((struct sched_options){0});
    struct request *waits = submit(make(1, 1, 5, false)), *has = submit(make(2, 1, 6, true)),
                   *text = submit(make(3, 0, 0, false));
    steps(30);
    assert_int_equal(waits->asks[0], 1);
    assert_int_equal(waits->ends, 0);
    assert_int_equal(has->asks[0], 0);
    check_end(has, END_LENGTH);
    check_end(text, END_LENGTH);
    assert_false(sched_step(s, 1000)); /* nothing to do: the engine thread may sleep */
    supply(waits, 0, 1);
    steps(30);
    assert_int_equal(waits->asks[0], 1);
    check_end(waits, END_LENGTH);
    assert_int_equal(stats().images_encoded, 2);
    close_sched();
}

static void test_one_supply_serves_all(void **state)
{
    (void)state;
    open_sched((struct sched_options){0});
    struct request *a = submit(make(1, 1, 5, false)), *b = submit(make(2, 1, 5, false));
    steps(3);
    assert_int_equal(a->asks[0] + b->asks[0], 2); /* each for itself */
    supply(b, 0, 1);
    steps(1);
    supply(a, 0, 1); /* too late, not an error */
    supply(a, 0, 1); /* nor is another one */
    steps(30);
    check_end(a, END_LENGTH);
    check_end(b, END_LENGTH);
    assert_int_equal(fake.created, 1);
    assert_int_equal(stats().feature_queries, 2);
    assert_int_equal(stats().feature_hits, 1);
    close_sched();
}

static void test_refusal(void **state)
{
    (void)state;
    open_sched((struct sched_options){0});
    struct request *a = submit(make(1, 1, 5, false)), *b = submit(make(2, 1, 5, false));
    steps(2);
    sched_refuse_image(s, a->id, 0, "not an image");
    steps(2);
    assert_string_equal(a->message, "not an image");
    sched_refuse_image(s, a->id, 0, "stale");
    check_end(a, END_ERROR);
    assert_int_equal(b->ends, 0);
    supply(b, 0, 1);
    steps(30);
    check_end(b, END_LENGTH);
    close_sched();
}

static void test_kept_by_key_and_salt(void **state)
{
    (void)state;
    open_sched((struct sched_options){0});
    struct request *a = submit(make(1, 1, 5, true));
    steps(30);
    check_end(a, END_LENGTH);
    assert_int_equal(stats().feature_bytes, ROWS);
    struct request *b = submit(make(2, 1, 5, false)); /* another prefix, the same image */
    steps(30);
    assert_int_equal(b->asks[0], 0);
    check_end(b, END_LENGTH);
    struct request *c = make(3, 1, 5, false), *d = make(4, 1, 5, false);
    c->seq.salt[0] = 1;
    d->seq.no_cache_read = true;
    submit(c);
    submit(d);
    steps(3);
    assert_int_equal(c->asks[0], 1);
    assert_int_equal(d->asks[0], 1);
    supply(c, 0, 1);
    supply(d, 0, 1);
    steps(30);
    check_end(c, END_LENGTH);
    check_end(d, END_LENGTH);
    assert_int_equal(fake.created, 3);
    assert_int_equal(fake.live, 2); /* d's was nobody else's */
    sched_reset_features(s);
    steps(1);
    assert_int_equal(fake.live, 0);
    assert_int_equal(stats().feature_bytes, 0);
    struct request *e = submit(make(6, 1, 5, false));
    steps(3);
    assert_int_equal(e->asks[0], 1);
    sched_cancel(s, e->id);
    steps(2);
    check_end(e, END_CANCELLED);
    close_sched();
}

/* Identity in doubt, no writing, or no cache at all: nothing of one request serves another later. */
static void test_nothing_kept(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        open_sched((struct sched_options){.no_prefix_cache = kind == 2});
        for (uint8_t i = 0; i < 2; i++) {
            struct request *a = make((uint8_t)(1 + i), 1, 0, true);
            if (kind > 0) memset(a->images[0].key, 7, 32);
            a->seq.no_cache_write = kind == 1;
            submit(a);
            steps(30);
            check_end(a, END_LENGTH);
            assert_int_equal(fake.live, 0);
        }
        assert_int_equal(fake.created, 2);
        close_sched();
    }
}

static void test_failures_end_one(void **state)
{
    (void)state;
    open_sched((struct sched_options){0});
    struct request *a = submit(make(1, 1, 5, false)), *b = submit(make(2, 1, 5, false));
    steps(2);
    supply(a, 0, 2); /* the engine takes no such image */
    steps(3);
    assert_string_equal(a->message, "an image of the wrong size");
    check_end(a, END_ERROR);
    assert_int_equal(b->ends, 0);
    /* The other waits for its own answer; a third joins; one of both answers is too many. */
    struct request *c = submit(make(3, 1, 5, false));
    steps(2);
    supply(b, 0, 1);
    supply(c, 0, 1);
    steps(30);
    check_end(b, END_LENGTH);
    check_end(c, END_LENGTH);
    fake.full = true;
    struct request *d = submit(make(4, 1, 8, true)), *text = submit(make(5, 0, 0, false));
    steps(30);
    assert_string_equal(d->message, "the device is full");
    check_end(d, END_ERROR);
    check_end(text, END_LENGTH);
    close_sched();
}

/* Asked for a few ahead, each once; the same image twice in one prompt is asked for once. */
static void test_many_images(void **state)
{
    (void)state;
    open_sched((struct sched_options){.features_bytes = 1});
    struct request *a = make(1, 6, 5, false), *b = submit(make(2, 3, 6, false));
    for (uint8_t k = 0; k < 6; k++) a->images[k].key[0] = k;
    submit(a);
    steps(3);
    assert_int_equal(b->asks[0], 1);
    assert_int_equal(b->asks[1] + b->asks[2], 0);
    for (int k = 0; k < 6; k++) assert_int_equal(a->asks[k], k < 4);
    supply(b, 0, 1);
    for (uint32_t k = 4; k-- > 0;) supply(a, k, 1); /* answers come in any order */
    steps(60);
    for (int k = 0; k < 6; k++) assert_int_equal(a->asks[k], 1);
    supply(a, 4, 1);
    supply(a, 5, 1);
    steps(60);
    check_end(a, END_LENGTH);
    check_end(b, END_LENGTH);
    assert_int_equal(fake.created, 7);
    assert_int_equal(fake.live, 0); /* over the bound as soon as nobody held them */
    close_sched();
}

/* An image that didn't fit into a step comes first in the next one; if it is gone by then, decodes go on. */
static void test_wide_image_goes(void **state)
{
    (void)state;
    open_sched((struct sched_options){0});
    struct request *stream = make(1, 0, 0, false), *text = make(2, 0, 0, false), *wide = make(3, 1, 5, true);
    stream->seq.tokens_max = 40;
    submit(stream);
    steps(1);
    for (uint32_t i = 0; i < 50; i++) text->tokens[i] = 4;
    text->prompt.token_count = 50;
    wide->images[0] = span_of_image(3, 3 + WIDE, SPAN_BIDIRECTIONAL);
    memset(wide->images[0].key, 5, sizeof wide->images[0].key);
    wide->images[0].pixels = (struct image_u8){.width = 1, .height = 1, .rgb = wide->rgb};
    wide->prompt.token_count = 3 + WIDE + 1;
    wide->seq.priority = 1;
    submit(wide);
    steps(1);
    submit(text);
    steps(1);
    assert_ptr_equal(s->wide, s->running.tail);
    sched_cancel(s, wide->id);
    uint32_t before = stream->tokens_got;
    steps(1);
    assert_int_equal(stream->tokens_got, before + 1);
    check_end(wide, END_CANCELLED);
    steps(50);
    check_end(stream, END_LENGTH);
    check_end(text, END_LENGTH);
    close_sched();
}

/* An image that the tier has and the device can't take is encoded: nobody tries for ever to load it. */
static void test_load_fails(void **state)
{
    (void)state;
    open_sched((struct sched_options){.features_bytes = 1, .host_bytes = sizeof fake.host});
    for (uint8_t head = 1; head <= 3; head++) {
        struct request *r = submit(make(head, 1, 5, false));
        fake.unwritable = head == 3;
        steps(3);
        assert_int_equal(r->asks[0], head != 2);
        if (head != 2) supply(r, 0, 1);
        steps(30);
        check_end(r, END_LENGTH);
        assert_int_equal(fake.live, 0);
        assert_int_equal(fake.created, head == 3 ? 2 : 1);
        assert_int_equal(stats().tier_image_loads, head > 1);
    }
    close_sched();
}

/* Decoded images are large: only some are asked for at a time, however many sequences want one, and
 * everybody gets theirs. */
static void test_few_at_a_time(void **state)
{
    (void)state;
    open_sched((struct sched_options){.features_bytes = 1});
    struct request *r[8];
    uint32_t open = 0, most = 0, done = 0, answered[8][6] = {{0}};
    for (uint8_t i = 0; i < 8; i++) {
        r[i] = make(i, 6, 5, false);
        for (uint8_t k = 0; k < 6; k++) {
            r[i]->images[k].key[0] = i;
            r[i]->images[k].key[1] = k;
        }
        submit(r[i]);
    }
    for (uint32_t turn = 0; turn < 2000 && done < 8; turn++) {
        steps(1);
        open = done = 0;
        for (int i = 0; i < 8; i++) {
            done += r[i]->ends;
            for (int k = 0; k < 6; k++) open += r[i]->asks[k] - answered[i][k];
        }
        if (open > most) most = open;
        for (uint32_t i = 8; turn % 7 == 6 && i-- > 0;) /* the last first, one each */
            for (uint32_t k = 6; k-- > 0;) {
                if (r[i]->asks[k] == answered[i][k]) continue;
                supply(r[i], k, 1);
                answered[i][k]++;
                break;
            }
    }
    assert_in_range(most, 8, 15);
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 6; k++) assert_int_equal(r[i]->asks[k], 1);
        check_end(r[i], END_LENGTH);
    }
    assert_int_equal(fake.created, 48);
    close_sched();
}

/* Logits that are no numbers end a request; nothing that it may have got them from is there for the next one:
 * neither its image nor the KV of its steps before. */
static void test_broken_is_not_kept(void **state)
{
    (void)state;
    open_sched((struct sched_options){.prefill_chunk = BT});
    for (int turn = 0; turn < 3; turn++) {
        struct request *r = submit(make(1, 3, 5, true));
        fake.broken = turn == 0;
        steps(30);
        if (fake.broken) assert_non_null(strstr(r->message, "no finite logits"));
        check_end(r, fake.broken ? END_ERROR : END_LENGTH);
        assert_int_equal(fake.created, turn == 0 ? 1 : 2);
        assert_int_equal(stats().cache_hit_tokens > 0, turn == 2);
    }
    close_sched();
}

/* Preempted before, while and after its image is encoded: it asks again for what is gone, and only for
 * that. */
static void test_preemption(void **state)
{
    (void)state;
    for (uint32_t at = 0; at < 4; at++) {
        open_sched((struct sched_options){.encode_layers = 1});
        struct request *a = submit(make(1, 1, 5, false));
        steps(2);
        assert_int_equal(a->asks[0], 1);
        if (at > 0) supply(a, 0, 1);
        steps(at == 0 ? 1 : at == 1 ? 2 : at == 2 ? LAYERS : LAYERS + 1);
        uint32_t created = fake.created;
        assert_int_equal(a->ends, 0);
        sched__preempt(s, s->running.head);
        steps(3);
        if (at == 0) assert_int_equal(a->asks[0], 1); /* the first question still stands */
        if (at == 1) assert_int_equal(a->asks[0], 2);
        if (at > 1) assert_int_equal(a->asks[0], 1);
        if (at < 2) supply(a, 0, 1);
        steps(30);
        assert_int_equal(fake.created, at == 0 ? 1 : at == 1 ? created + 1 : created);
        check_end(a, END_LENGTH);
        close_sched();
    }
    /* The answer comes while it waits to run again, and then memory is short for some turns. */
    open_sched((struct sched_options){0});
    struct request *a = submit(make(1, 1, 5, false)), *other = make(2, 0, 0, false);
    uint32_t need[ENGINE_GROUPS_MAX] = {1}, taken[400], count = 0;
    steps(2);
    sched__preempt(s, s->running.head);
    supply(a, 0, 1);
    other->seq.priority = -1;
    submit(other);
    while (kvb_can_allocate(s->blocks, need)) taken[count++] = kvb_allocate(s->blocks, 0);
    kvb_release(s->blocks, 0, taken[--count], KVB_LIVE); /* enough for the other one */
    for (uint64_t now = 1; now < 3; now++) sched_step(s, now);
    assert_int_equal(s->running.count, 1);
    while (count) kvb_release(s->blocks, 0, taken[--count], KVB_LIVE);
    s->freed++;
    steps(30);
    assert_int_equal(a->asks[0], 1);
    check_end(a, END_LENGTH);
    check_end(other, END_LENGTH);
    close_sched();
}

/* Answers to whoever isn't there any more, or never asked, are freed (the address sanitizer looks on). */
static void test_stale_answers(void **state)
{
    (void)state;
    open_sched((struct sched_options){0});
    struct request *a = submit(make(1, 1, 5, false)), *b = submit(make(2, 2, 6, false));
    supply(a, 0, 1); /* before it asked */
    steps(2);
    supply(a, 7, 1);
    struct seq_id id = a->id;
    sched_cancel(s, a->id);
    supply(a, 0, 1); /* in time, but it goes in the same turn */
    steps(2);
    supply(a, 0, 1);
    sched_refuse_image(s, id, 0, "late");
    sched_refuse_image(s, (struct seq_id){9999999, 1}, 0, "nobody");
    check_end(a, END_CANCELLED);
    assert_int_equal(fake.created, 0);
    supply(b, 0, 1); /* undelivered */
    close_sched();
    free(b);
}

/* ---- with threads: one runs the scheduler, this one submits and answers, a third answers wrongly ---- */
static atomic_bool stop_noise;
static void *run_thread(void *arg)
{
    (void)arg;
    sched_run(s);
    return NULL;
}
static void *noise_thread(void *arg)
{
    uint32_t i = 0;
    (void)arg;
    while (!atomic_load(&stop_noise)) {
        struct image_u8 px = {.width = 1, .height = 1, .rgb = calloc(3, 1)};
        sched_supply_image(s, (struct seq_id){i % 1100, i / 1100}, 5, &px);
        if (i++ % 64 == 0) sched_reset_features(s);
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    return NULL;
}
static void test_threads(void **state)
{
    (void)state;
    enum { COUNT = 300, AT_ONCE = 24 };
    pthread_t runner, noise;
    uint32_t sent = 0, ended = 0, refused = 0, wanted_errors = 0, errors = 0, asks = 0;
    open_sched((struct sched_options){.features_bytes = 3 * ROWS});
    atomic_store(&stop_noise, false);
    assert_int_equal(pthread_create(&runner, NULL, run_thread, NULL), 0);
    assert_int_equal(pthread_create(&noise, NULL, noise_thread, NULL), 0);
    while (ended < COUNT) {
        while (sent < COUNT && sent - ended < AT_ONCE)
            submit(make((uint8_t)(sent % 90), 2, (uint8_t)(1 + sent % 7), sent % 5 == 0)), sent++;
        struct sched_event ev;
        bool any = false;
        while (sched_poll(s, &ev)) {
            struct request *r = ev.user;
            any = true;
            if (ev.kind == EV_IMAGE && ++asks % 17 == 0 && !r->asks[ev.index]) {
                sched_refuse_image(s, ev.id, ev.index, "no");
                r->asks[ev.index] = 1;
                refused++;
            } else if (ev.kind == EV_IMAGE) {
                supply(r, ev.index, 1);
            } else if (ev.kind == EV_END) {
                bool was_refused = r->asks[0] || r->asks[1];
                wanted_errors += was_refused;
                errors += ev.end == END_ERROR;
                assert_true(ev.end == END_LENGTH || (was_refused && strcmp(ev.message, "no") == 0));
                free(r);
                ended++;
            }
        }
        if (!any) nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    assert_true(asks > 20 && refused > 0 && errors > 0 &&
                errors <= wanted_errors); /* a refusal may come when the image is there already */
    atomic_store(&stop_noise, true);
    pthread_join(noise, NULL);
    sched_stop(s, true);
    pthread_join(runner, NULL);
    close_sched();
}

int main(void)
{
    log_set_level((enum log_level) - 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_asks_once_and_others_go_on),
        cmocka_unit_test(test_one_supply_serves_all),
        cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_kept_by_key_and_salt),
        cmocka_unit_test(test_nothing_kept),
        cmocka_unit_test(test_failures_end_one),
        cmocka_unit_test(test_many_images),
        cmocka_unit_test(test_wide_image_goes),
        cmocka_unit_test(test_load_fails),
        cmocka_unit_test(test_few_at_a_time),
        cmocka_unit_test(test_broken_is_not_kept),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_stale_answers),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
