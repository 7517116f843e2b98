/* Pixels on demand: who gets which, who shares a decode, and what happens when the file gives other pixels
 * than it gave before, is broken, or nobody listens any more. The scheduler and the request are stood in for;
 * files, decoders, keys and the event loop's workers are real. */
#include "server/generate/generate.h"
#include "server/http/event_loop.h"

#define sched_supply_image fake_supply
#define sched_refuse_image fake_refuse
#define request_release    fake_release
#define metrics_image      fake_metrics
#define now_us             fake_now
void fake_supply(struct scheduler *s, struct seq_id id, uint32_t image, struct image_u8 *pixels);
void fake_refuse(struct scheduler *s, struct seq_id id, uint32_t image, const char *message);
void fake_release(struct request *r);
void fake_metrics(struct metrics *m, double seconds);
uint64_t fake_now(void);
#include "server/generate/images.c"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>

#include <cmocka.h>

enum { ANSWERS = 8, IMAGES = 3 };

/* What the stand-ins were told. */
static struct {
    struct {
        uint32_t slot, image;
        struct image_u8 pixels; /* rgb NULL: refused */
        char message[160];
    } answers[ANSWERS];
    uint32_t count, released, decoded;
} told;

void fake_supply(struct scheduler *s, struct seq_id id, uint32_t image, struct image_u8 *pixels)
{
    (void)s;
    assert_true(told.count < ANSWERS);
    told.answers[told.count].slot = id.slot;
    told.answers[told.count].image = image;
    told.answers[told.count++].pixels = *pixels;
    *pixels = (struct image_u8){0};
}

void fake_refuse(struct scheduler *s, struct seq_id id, uint32_t image, const char *message)
{
    (void)s;
    assert_true(told.count < ANSWERS);
    told.answers[told.count].slot = id.slot;
    told.answers[told.count].image = image;
    size_t n = strnlen(message, sizeof told.answers[0].message - 1);
    memcpy(told.answers[told.count].message, message, n);
    told.answers[told.count++].message[n] = '\0';
}

void fake_release(struct request *r)
{
    (void)r;
    told.released++;
}

void fake_metrics(struct metrics *m, double seconds)
{
    (void)m;
    (void)seconds;
    told.decoded++;
}

uint64_t fake_now(void)
{
    return 0;
}

static void told_clear(void)
{
    for (uint32_t i = 0; i < told.count; i++) image_u8_free(&told.answers[i].pixels);
    memset(&told, 0, sizeof told);
}

/* A server with a request whose prompt has three images: two files that were seen before (the second with
 * crops), and one that was decoded with the request. */
struct world {
    struct server srv;
    struct loop loop;
    struct options opt;
    struct model model;
    struct model_info info;
    struct request r;
    struct generation g;
    struct gen_prompt prompt;
    struct gen_image images[IMAGES];
    struct choice choice;
    struct image_prepared want[2];
};

/* A 24-bit BMP; its pixels depend on the seed. */
static uint8_t *bmp(uint32_t width, uint32_t height, uint8_t seed, size_t *len)
{
    size_t row = (3 * width + 3) / 4 * 4;
    *len = 54 + row * height;
    uint8_t *b = calloc(1, *len);
    assert_non_null(b);
    memcpy(b, "BM", 2);
    uint32_t head[] = {(uint32_t)*len,           0, 54, 40, width, height, 1 | 24u << 16, 0,
                       (uint32_t)(row * height), 0, 0,  0,  0};
    memcpy(b + 2, head, sizeof head);
    for (uint32_t y = 0; y < height; y++)
        for (uint32_t x = 0; x < 3 * width; x++) b[54 + y * row + x] = (uint8_t)(seed + 31 * x + 17 * y);
    return b;
}

static void prepare(const struct world *w, const struct gen_image *p, struct image_prepared *out,
                    struct image_parts *parts)
{
    struct err err = {{0}};
    assert_int_equal(
        image_from_file(&w->info.image, w->info.family, &p->ask, p->bytes, p->len, out, parts, &err),
        IMAGE_OK);
}

static void world_open(struct world *w)
{
    memset(w, 0, sizeof *w);
    told_clear();
    assert_int_equal(uv_loop_init(&w->loop.uv), 0);
    w->info = (struct model_info){.family = "gemma3"};
    w->info.image.config = (struct image_config){.width = 16,
                                                 .height = 16,
                                                 .filter = IMAGE_BILINEAR,
                                                 .do_resize = true,
                                                 .do_rescale = true,
                                                 .do_normalize = true,
                                                 .rescale_factor = 1.0 / 255,
                                                 .std = {1, 1, 1},
                                                 .pan_and_scan = true,
                                                 .pan_min_crop = 4,
                                                 .pan_max_crops = 4,
                                                 .pan_min_ratio = 1.2};
    w->model.info = &w->info;
    w->srv.ctx.model = &w->model;
    w->srv.loop = &w->loop;
    w->opt.image_memory = 1u << 20;
    w->srv.ctx.opt = &w->opt;
    w->srv.ctx.image_hashes = image_hash_cache_create(8);
    w->r.srv = &w->srv;
    w->r.response.share = share_take(&w->srv.shares, 1);
    w->loop.workers = (struct workers){.uv = &w->loop.uv, .count = 2};
    w->r.gen = &w->g;
    w->g = (struct generation){.r = &w->r,
                               .ctx = &w->srv.ctx,
                               .share = w->r.response.share,
                               .e = &w->r.response.error,
                               .prompts = &w->prompt,
                               .prompt_count = 1,
                               .images = w->images,
                               .image_count = IMAGES};
    w->choice = (struct choice){.gen = &w->g, .prompt = &w->prompt};
    w->prompt.prompt.spans = calloc(16, sizeof *w->prompt.prompt.spans);
    uint32_t first = 0;
    for (uint32_t i = 0; i < 2; i++) {
        struct gen_image *p = &w->images[i];
        p->bytes = bmp(i ? 40 : 12, i ? 10 : 12, (uint8_t)(i + 1), &p->len);
        struct image_parts parts;
        prepare(w, p, &w->want[i], &parts);
        p->same = i;
        p->first = first;
        p->count = w->want[i].count;
        for (uint32_t k = 0; k < p->count; k++)
            memcpy(w->prompt.prompt.spans[first + k].key, parts.keys[k], 32);
        first += p->count;
        memset(p->file_hash, (int)i + 1, sizeof p->file_hash);
        image_hash_cache_put(w->srv.ctx.image_hashes, p->file_hash, &parts);
        image_parts_free(&parts);
    }
    assert_true(w->want[0].count == 1 && w->want[1].count > 2); /* a whole, and a whole with crops */
    w->images[2] = (struct gen_image){.same = 2, .first = first, .count = 1};
    w->prompt.prompt.span_count = first + 1;
}

static void world_close(struct world *w)
{
    for (int i = 0; i < 2; i++) {
        free(w->images[i].bytes);
        image_prepared_free(&w->want[i]);
    }
    free(w->prompt.prompt.spans);
    image_hash_cache_destroy(w->srv.ctx.image_hashes);
    share_release(w->r.response.share);
    assert_int_equal(uv_loop_close(&w->loop.uv), 0);
    told_clear();
}

static void want(struct world *w, uint32_t slot, uint32_t image)
{
    struct sched_event ev = {.kind = EV_IMAGE, .id = {.slot = slot}, .index = image};
    gen_image_wanted(&w->choice, &ev);
}

static void run(struct world *w, uint32_t fetches)
{
    assert_int_equal(w->r.fetches, fetches);
    uv_run(&w->loop.uv, UV_RUN_DEFAULT);
    assert_int_equal(w->r.fetches, 0);
    assert_int_equal(told.released, fetches);
    for (uint32_t i = 0; i < IMAGES; i++) assert_null(w->images[i].fetch);
}

static void assert_supplied(const struct world *w, uint32_t response, uint32_t slot, uint32_t image,
                            uint32_t of_it)
{
    const struct image_u8 *got = &told.answers[response].pixels, *expected = &w->want[image].images[of_it];
    assert_int_equal(told.answers[response].slot, slot);
    assert_int_equal(told.answers[response].image, w->images[image].first + of_it);
    assert_non_null(got->rgb);
    assert_int_equal(got->width, expected->width);
    assert_int_equal(got->height, expected->height);
    assert_int_equal(got->frames, expected->frames);
    assert_memory_equal(got->rgb, expected->rgb, image_u8_bytes(got));
}

static void test_supply(void **state)
{
    (void)state;
    struct world w;
    world_open(&w);
    assert_int_equal(gen_images_bytes(&w.g), w.images[0].len + w.images[1].len);
    /* Two sequences want image 0; one of them wants the whole and the last crop of image 1: two decodes.
     */
    want(&w, 1, 0);
    want(&w, 2, 0);
    want(&w, 1, 1);
    want(&w, 1, w.images[1].count);
    run(&w, 2);
    assert_int_equal(told.count, 4);
    assert_int_equal(told.decoded, 2);
    uint32_t zero = told.answers[0].image == 0 ? 0 : 2, one = 2 - zero; /* either may be done first */
    assert_supplied(&w, zero, 1, 0, 0);
    assert_supplied(&w, zero + 1, 2, 0, 0);
    assert_ptr_not_equal(told.answers[zero].pixels.rgb, told.answers[zero + 1].pixels.rgb);
    assert_supplied(&w, one, 1, 1, 0);
    assert_supplied(&w, one + 1, 1, 1, w.images[1].count - 1);
    /* Later again: the file is still there. */
    told_clear();
    want(&w, 3, 0);
    run(&w, 1);
    assert_supplied(&w, 0, 3, 0, 0);
    world_close(&w);
}

static void test_refuse(void **state)
{
    (void)state;
    struct world w;
    struct image_hash_cache_stats st;
    world_open(&w);
    want(&w, 1, w.images[2].first); /* decoded with the request: its pixels were never missing */
    want(&w, 1, 99);
    run(&w, 0);
    assert_int_equal(told.count, 2);
    assert_null(told.answers[0].pixels.rgb);
    assert_null(told.answers[1].pixels.rgb);
    told_clear();
    /* Another key than the prompt was built with: never the wrong image; the alias goes. */
    w.prompt.prompt.spans[w.images[1].first + 1].key[7] ^= 1;
    want(&w, 1, 1);
    want(&w, 2, 2);
    run(&w, 1);
    assert_int_equal(told.count, 2);
    for (int i = 0; i < 2; i++) {
        assert_null(told.answers[i].pixels.rgb);
        assert_string_not_equal(told.answers[i].message, "");
    }
    image_hash_cache_stats(w.srv.ctx.image_hashes, &st);
    assert_int_equal(st.entries, 1);
    told_clear();
    /* Fewer images than were counted. */
    w.images[0].count = 2;
    want(&w, 1, 0);
    run(&w, 1);
    assert_null(told.answers[0].pixels.rgb);
    w.images[0].count = 1;
    told_clear();
    w.images[0].len = 60; /* cut off */
    want(&w, 1, 0);
    run(&w, 1);
    assert_null(told.answers[0].pixels.rgb);
    assert_string_not_equal(told.answers[0].message, "");
    assert_int_equal(told.decoded, 0);
    world_close(&w);
}

static void test_nobody(void **state)
{
    (void)state;
    struct world w;
    world_open(&w);
    want(&w, 1, 0);
    w.r.cancelled =
        true; /* the client leaves meanwhile: the answer goes to a stale id, which the scheduler drops */
    want(&w, 2, 0); /* and nothing new begins */
    run(&w, 1);
    assert_int_equal(told.count, 1);
    w.r.cancelled = false;
    w.g.failed = true;
    told_clear();
    want(&w, 1, 0);
    run(&w, 0);
    assert_int_equal(told.count, 0);
    world_close(&w);
}

static int stamp(char out[MODEL_TEXT_BYTES], double seconds)
{
    return snprintf(out, MODEL_TEXT_BYTES, "%g s", seconds);
}

/* A video of three parts: one decode serves all of them, however late they are asked for. */
static void test_video(void **state)
{
    (void)state;
    struct world w;
    struct image_parts parts;
    world_open(&w);
    struct gen_image *p = &w.images[0];
    const struct image_config qwen = {.dynamic = true,
                                      .filter = IMAGE_BICUBIC,
                                      .do_resize = true,
                                      .do_rescale = true,
                                      .do_normalize = true,
                                      .rescale_factor = 1.0 / 255,
                                      .std = {1, 1, 1},
                                      .patch = 4,
                                      .merge = 2,
                                      .depth = 2,
                                      .area_min = 64,
                                      .area_max = 4096,
                                      .video = true,
                                      .video_volume = true,
                                      .video_area_min = 64,
                                      .video_area_max = 65536,
                                      .video_fps = 2,
                                      .video_frames_min = 4,
                                      .video_frames_max = 16};
    w.info.image.config = qwen;
    w.info.image.video_marker = "v";
    w.info.image.video_stamp = stamp;
    free(p->bytes);
    image_prepared_free(&w.want[0]);
    p->bytes = NULL;
    p->len = 0;
    p->ask = (struct image_ask){.video = true, .list = true};
    for (uint8_t i = 0; i < 5; i++) {
        const struct image_limits limits = IMAGE_LIMITS_DEFAULT;
        size_t len;
        uint8_t *frame = bmp(20, 12, i, &len);
        assert_int_equal(image_pack(&p->bytes, &p->len, frame, len, &limits, NULL), IMAGE_OK);
        free(frame);
    }
    prepare(&w, p, &w.want[0], &parts);
    assert_int_equal(parts.count, 3);
    p->count = 3;
    w.images[1].first = 8; /* out of the way */
    w.images[2].first = 15;
    for (uint32_t k = 0; k < 3; k++) memcpy(w.prompt.prompt.spans[k].key, parts.keys[k], 32);
    image_parts_free(&parts);
    want(&w, 1, 0);
    run(&w, 1);
    assert_supplied(&w, 0, 1, 0, 0);
    want(&w, 1, 2); /* at once, without a decode */
    want(&w, 1, 1);
    assert_int_equal(w.r.fetches, 0);
    assert_int_equal(told.count, 3);
    assert_int_equal(told.decoded, 1);
    assert_supplied(&w, 1, 1, 0, 2);
    assert_supplied(&w, 2, 1, 0, 1);
    told_clear();
    want(&w, 2, 1); /* was given away: decoded again */
    run(&w, 1);
    assert_supplied(&w, 0, 2, 0, 1);
    size_t part = image_u8_bytes(&w.want[0].images[0]);
    assert_int_equal(shares_held(&w.srv.shares, SHARE_PIXELS),
                     2 * part); /* the other two count among the decoded images */
    want(&w, 1, 2);
    want(&w, 1, 0);
    assert_int_equal(shares_held(&w.srv.shares, SHARE_PIXELS), 0);
    /* Where others leave no room, nothing is kept, and each is decoded again; who is alone has room. */
    for (int others = 0; others < 2; others++) {
        uint32_t decoded = 0;
        w.opt.image_memory = 1;
        share_add(w.r.response.share, SHARE_PIXELS, (size_t)others);
        for (uint32_t k = 0; k < 3; k++) {
            told_clear();
            want(&w, 1, k);
            run(&w, w.r.fetches);
            assert_supplied(&w, 0, 1, 0, k);
            decoded += told.decoded;
        }
        assert_int_equal(decoded, others ? 3 : 1);
        share_sub(w.r.response.share, SHARE_PIXELS, (size_t)others);
    }
    assert_int_equal(shares_held(&w.srv.shares, SHARE_PIXELS), 0);
    assert_int_equal(w.g.pixel_bytes, 0);
    image_prepared_free(&p->ready);
    world_close(&w);
}

int main(void)
{
    if (sodium_init() < 0) return 1;
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_supply), cmocka_unit_test(test_refuse),
                                       cmocka_unit_test(test_nobody), cmocka_unit_test(test_video)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
