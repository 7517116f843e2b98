/* Images present in a prompt only by content key, because their file is known from an earlier request. If
 * neither their KV nor their features are cached, the scheduler requests the pixels: a worker decodes and
 * prepares the file. Event loop's thread, except fetch_run.
 *
 * A video with timestamps is many images, which the scheduler requests a few at a time. The other images of a
 * decode are kept while --image-memory allows. There is one fetch per image at a time; other sequences of the
 * request that need it wait for it. The request lives until its fetches are done, even if the client has
 * disconnected; a sequence that has ended is a stale id to the scheduler, which then frees the pixels. */
#include "server/generate/generate.h"
#include "server/http/event_loop.h"
#include "server/http/request.h"

#include "config/base/assert.h"
#include "config/base/list.h"
#include "config/base/log.h"
#include "engine/prompt/image_prep.h"
#include "engine/model/model_info.h"
#include "server/media/image_hash_cache.h"
#include "server/media/image_parts.h"

#include <stdlib.h>
#include <string.h>

struct waiter {
    struct seq_id id;
    uint32_t image; /* prompt image */
};

struct image_fetch {
    struct generation *g;
    struct work work;
    uint32_t image;
    struct waiter *waiters; /* [waiter_count]; owned by the loop */
    uint32_t waiter_count;
    size_t waiter_cap;
    /* owned by the worker, then by the loop */
    struct image_prepared out;
    struct err err;
    enum image_error error;
    bool differs;
    double seconds;
};

static void pixels_unbook(struct generation *g, size_t bytes)
{
    share_sub(g->share, SHARE_PIXELS, bytes);
    g->pixel_bytes -= bytes;
}

/* Frees a video's kept images, and keeps those of the next decode if memory allows. */
static void ready_keep(struct generation *g, struct gen_image *p, struct image_prepared *all)
{
    for (uint32_t i = 0; i < p->ready.count; i++) pixels_unbook(g, image_u8_bytes(&p->ready.images[i]));
    image_prepared_free(&p->ready);
    if (!p->ask.video || !gen_pixels_account(g, all)) image_prepared_free(all);
    else p->ready = *all;
}

size_t gen_images_bytes(const struct generation *g)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < g->image_count; i++) bytes += g->images[i].bytes ? g->images[i].len : 0;
    return bytes;
}

void gen_images_free(struct generation *g)
{
    for (uint32_t i = 0; i < g->image_count; i++) {
        ASSERT(!g->images[i].fetch);
        free(g->images[i].bytes);
        image_prepared_free(&g->images[i].ready);
    }
    free(g->images);
    pixels_unbook(g, g->pixel_bytes);
    g->images = NULL;
    g->image_count = 0;
}

/* ---- worker ---- */

static void fetch_run(void *arg)
{
    struct image_fetch *f = arg;
    const struct generation *g = f->g;
    const struct gen_image *p = &g->images[f->image];
    const struct gen_image *file = &g->images[p->same];
    const struct prompt_span *wanted = &g->prompts[p->prompt].prompt.spans[p->first];
    const struct model_info *mi = g->ctx->model->info;
    struct image_parts parts = {0};
    uint64_t t0 = now_us();
    f->error =
        image_from_file(&mi->image, mi->family, &p->ask, file->bytes, file->len, &f->out, &parts, &f->err);
    /* The prompt was built from an earlier decode; with other keys the cache would return another image's
     * data. */
    if (!f->error) f->differs = parts.count != p->count;
    for (uint32_t i = 0; !f->error && !f->differs && i < p->count; i++)
        f->differs = memcmp(parts.keys[i], wanted[i].key, 32) != 0;
    image_parts_free(&parts);
    f->seconds = (double)(now_us() - t0) * 1e-6;
}

/* ---- loop ---- */

/* The scheduler reports every refused image as an engine error. */
static void no_memory(struct request *r)
{
    gen_abort_status(r, ST_NOMEM, NULL);
}

/* The pixels for waiter i: moved to the last waiter, copied for the others. False: out of memory. */
static bool pixels_take(struct image_fetch *f, uint32_t i, uint32_t first, struct image_u8 *out)
{
    struct image_u8 *from = &f->out.images[f->waiters[i].image - first];
    for (uint32_t k = i + 1; k < f->waiter_count; k++) {
        if (f->waiters[k].image != f->waiters[i].image) continue;
        size_t bytes = image_u8_bytes(from);
        *out = (struct image_u8){
            .width = from->width, .height = from->height, .frames = from->frames, .rgb = malloc(bytes)};
        if (out->rgb) memcpy(out->rgb, from->rgb, bytes);
        return out->rgb != NULL;
    }
    *out = *from;
    *from = (struct image_u8){0};
    return true;
}

static void fetch_done(void *arg)
{
    struct image_fetch *f = arg;
    struct request *r = f->g->r;
    struct server *s = r->srv;
    struct gen_image *p = &f->g->images[f->image];
    p->fetch = NULL;
    bool ok = !f->error && !f->differs;
    if (!f->error) metrics_image(s->metrics, f->seconds);
    if (f->differs) {
        log_error("req=%s an image's file no longer gives the pixels that it gave before", r->http.id);
        image_hash_cache_remove(s->ctx.image_hashes, p->file_hash);
    }
    if (f->error == IMAGE_NOMEM) no_memory(r);
    for (uint32_t i = 0; i < f->waiter_count; i++) {
        struct image_u8 pixels;
        if (ok && pixels_take(f, i, p->first, &pixels)) {
            sched_supply_image(s->ctx.model->sched, f->waiters[i].id, f->waiters[i].image, &pixels);
        } else {
            if (ok) no_memory(r);
            sched_refuse_image(s->ctx.model->sched, f->waiters[i].id, f->waiters[i].image,
                               f->differs      ? "the image could not be read again"
                               : f->err.msg[0] ? f->err.msg
                                               : "out of memory for an image");
        }
    }
    if (ok) ready_keep(f->g, p, &f->out);
    else image_prepared_free(&f->out);
    free(f->waiters);
    free(f);
    r->fetches--;
    request_release(r);
}

static bool fetch_start(struct generation *g, uint32_t image)
{
    struct image_fetch *f = calloc(1, sizeof *f);
    if (!f) return false;
    f->g = g;
    f->image = image;
    f->work = (struct work){.share = g->share, .run = fetch_run, .done = fetch_done, .arg = f};
    g->images[image].fetch = f;
    g->r->fetches++;
    workers_run(&g->r->srv->loop->workers, &f->work);
    return true;
}

static bool wait_for(struct image_fetch *f, struct seq_id id, uint32_t image)
{
    if (!LIST_RESERVE(f->waiters, f->waiter_cap, f->waiter_count + 1)) return false;
    f->waiters[f->waiter_count++] = (struct waiter){.id = id, .image = image};
    return true;
}

void gen_image_wanted(struct choice *c, const struct sched_event *ev)
{
    struct generation *g = c->gen;
    struct request *r = g->r;
    if (r->cancelled || g->failed) return; /* its sequences are ending */
    uint32_t k = 0;
    while (k < g->image_count &&
           !(c->prompt == &g->prompts[g->images[k].prompt] && ev->index >= g->images[k].first &&
             ev->index - g->images[k].first < g->images[k].count))
        k++;
    bool known = k < g->image_count && g->images[g->images[k].same].bytes;
    uint32_t part = known ? ev->index - g->images[k].first : 0;
    if (known && part < g->images[k].ready.count && g->images[k].ready.images[part].rgb) {
        pixels_unbook(g, image_u8_bytes(&g->images[k].ready.images[part]));
        sched_supply_image(r->srv->ctx.model->sched, ev->id, ev->index,
                           &g->images[k].ready.images[part]); /* takes ownership of the pixels */
        return;
    }
    if (!known || (!g->images[k].fetch && !fetch_start(g, k)) ||
        !wait_for(g->images[k].fetch, ev->id, ev->index)) {
        if (known) no_memory(r);
        sched_refuse_image(r->srv->ctx.model->sched, ev->id, ev->index,
                           known ? "out of memory for an image" : "the image's file is gone");
    }
}
