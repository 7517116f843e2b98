/* Images of live sequences: the encoded ones they hold, requests for pixels, and encoding in slices between
 * steps so that decoding continues. Entries come from feature_cache.h and are released when the image's
 * tokens are prefilled. See scheduler/internal.h.
 *
 *   hold an entry of one of the next images
 *     EMPTY, no pixels:  EV_IMAGE -> reply (any thread) -> replies -> pixels -> encode slices -> ready
 *     ENCODING or DONE:  another sequence encodes it, or a hit: nothing is requested */
#include "scheduler/cache/feature_cache.h"
#include "scheduler/internal.h"

#include "config/base/assert.h"
#include "config/base/list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FEATURES_BYTES_DEFAULT (256ull << 20)
enum {
    LOOK_AHEAD = 4, /* images of one sequence requested at a time: they are decoded while others are
                       encoded */
    OPEN_MAX = 8,   /* of all sequences: one image is encoded at a time, and decoded ones are large */
};

enum status sched__images_create(struct scheduler *s, struct err *err)
{
    uint64_t bytes = s->opt.features_bytes ? s->opt.features_bytes : FEATURES_BYTES_DEFAULT;
    /* Without a prefix cache nothing is kept between requests. */
    return features_create(s->engine, s->opt.no_prefix_cache ? 0 : bytes, s->opt.hash_seed, &s->features,
                           err);
}

void sched__images_destroy(struct scheduler *s)
{
    for (struct image_reply *r; (r = s->replies.head); sched__reply_free(r)) s->replies.head = r->next;
    features_destroy(s->features);
}

/* ---- replies (any thread) ---- */

/* Under the lock. Takes the pending reply for this image from its sequence; NULL: not requested, or already
 * replied. */
static struct image_reply *claim(struct scheduler *s, struct seq_id id, uint32_t image)
{
    if (id.slot >= s->slot_count || s->slots[id.slot].gen != id.gen) return NULL;
    struct sequence *q = s->slots[id.slot].seq;
    if (!q || image >= q->req.prompt->span_count) return NULL;
    struct image_reply *r = q->features[image].reply;
    q->features[image].reply = NULL;
    return r;
}

/* The pixels are taken if anybody waits for them. */
static void reply(struct scheduler *s, struct seq_id id, uint32_t image, struct image_u8 *pixels,
                  const char *refusal)
{
    pthread_mutex_lock(&s->lock);
    struct image_reply *r = claim(s, id, image);
    if (r) {
        r->refused = refusal != NULL;
        snprintf(r->message, sizeof r->message, "%s", refusal ? refusal : "");
        r->pixels = *pixels;
        *pixels = (struct image_u8){0};
        LIST_LINK(&s->replies, s->replies.tail, r);
        s->poked = true;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
}

void sched_supply_image(struct scheduler *s, struct seq_id id, uint32_t image, struct image_u8 *pixels)
{
    ASSERT(pixels->rgb);
    reply(s, id, image, pixels, NULL);
    image_u8_free(pixels);
}

void sched_refuse_image(struct scheduler *s, struct seq_id id, uint32_t image, const char *message)
{
    reply(s, id, image, &(struct image_u8){0}, message);
}

/* ---- engine thread ---- */

static struct sequence *sequence_of(struct scheduler *s, struct seq_id id)
{
    pthread_mutex_lock(&s->lock); /* sched_submit may be reusing the slot */
    struct sequence *q = s->slots[id.slot].gen == id.gen ? s->slots[id.slot].seq : NULL;
    pthread_mutex_unlock(&s->lock);
    return q;
}

/* q ends with an error after this turn's images. */
static void fail(struct scheduler *s, struct sequence *q, const char *message)
{
    snprintf(q->failure, sizeof q->failure, "%.*s", (int)sizeof q->failure - 1, message);
    s->image_failed = true;
}

bool sched__images_take(struct scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    struct image_reply *r = s->replies.head;
    bool reset = s->reset_features;
    s->replies.head = s->replies.tail = NULL;
    s->reset_features = false;
    pthread_mutex_unlock(&s->lock);
    if (reset) features_reset(s->features);
    bool any = r || reset;
    for (struct image_reply *next; r; r = next) {
        next = r->next;
        struct sequence *q = sequence_of(s, r->id);
        struct seq_image *f = q ? &q->features[r->image] : NULL;
        if (f) f->asked = false;
        if (f && r->refused) {
            fail(s, q, r->message);
        } else if (f && r->image >= q->next_span &&
                   !(f->entry && features_state(f->entry) != FEATURES_EMPTY)) {
            /* Also while q waits after a preemption: it will need them. Otherwise others encoded the image
             * meanwhile, or it came from the prefix cache. */
            ASSERT(!f->pixels.rgb);
            f->pixels = r->pixels;
            r->pixels = (struct image_u8){0};
        }
        sched__reply_free(r);
    }
    return any;
}

bool sched__span_ready(const struct sequence *q, uint32_t span)
{
    const struct feature_entry *f = q->features[span].entry;
    return !q->req.prompt->spans[span].image || (f && features_state(f) == FEATURES_DONE);
}

const struct engine_features *sched__span_features(const struct sequence *q, uint32_t span)
{
    return q->req.prompt->spans[span].image ? features_of(q->features[span].entry) : NULL;
}

/* Spans [next_span, it) are those that the next chunk needs: one, or all of its atomic span. */
static uint32_t needed_end(const struct sequence *q)
{
    const struct prompt *p = q->req.prompt;
    uint32_t n = q->next_span;
    if (n == p->span_count) return n;
    uint32_t whole = p->spans[n++].atomic_end;
    while (n < p->span_count && p->spans[n].begin < whole) n++;
    return n;
}

/* The first of these whose image is not encoded; needed_end: none. */
static uint32_t needed_image(const struct sequence *q)
{
    uint32_t i = q->next_span, end = needed_end(q);
    while (i < end && sched__span_ready(q, i)) i++;
    return i;
}

static uint32_t look_ahead_end(const struct sequence *q)
{
    uint32_t end = needed_end(q), ahead = q->next_span + LOOK_AHEAD, all = q->req.prompt->span_count;
    return end > ahead ? end : ahead < all ? ahead : all;
}

static void let_go(struct scheduler *s, struct seq_image *f)
{
    if (f->entry) features_release(s->features, f->entry);
    f->entry = NULL;
    image_u8_free(&f->pixels);
}

void sched__features_drop(struct scheduler *s, struct sequence *q)
{
    q->next_span = 0;
    if (q->state == SEQ_WAITING) return; /* it holds no entry, and will need pixels that came meanwhile */
    for (uint32_t i = 0; i < q->req.prompt->span_count; i++) let_go(s, &q->features[i]);
}

void sched__features_passed(struct scheduler *s, struct sequence *q)
{
    const struct prompt *p = q->req.prompt;
    while (q->next_span < p->span_count && p->spans[q->next_span].end <= q->position)
        let_go(s, &q->features[q->next_span++]);
}

static const struct image_u8 *pixels_of(const struct sequence *q, uint32_t image)
{
    const struct image_u8 *supplied = &q->features[image].pixels,
                          *given = &q->req.prompt->spans[image].pixels;
    return supplied->rgb ? supplied : given->rgb ? given : NULL;
}

static struct feature_entry *hold(struct scheduler *s, const struct sequence *q, const uint8_t key[32])
{
    static const uint8_t in_doubt[32];
    struct feature_cache *c = s->features;
    if (q->req.no_cache_read || memcmp(key, in_doubt, sizeof in_doubt) == 0) return features_get_private(c);
    if (q->req.no_cache_write && !features_find(c, q->image_salt, key)) return features_get_private(c);
    return features_get(c, q->image_salt, key);
}

/* Sends EV_IMAGE. False: out of memory. */
static bool ask(struct scheduler *s, struct sequence *q, uint32_t image)
{
    struct image_reply *r = calloc(1, sizeof *r);
    if (!r) return false;
    r->id = q->id;
    r->image = image;
    pthread_mutex_lock(&s->lock);
    ASSERT(!q->features[image].reply);
    q->features[image].reply = r;
    pthread_mutex_unlock(&s->lock);
    q->features[image].asked = true;
    struct sched_event ev = {.kind = EV_IMAGE, .id = q->id, .user = q->req.user, .index = image};
    return eventq_emit(&s->events, &ev);
}

/* Images whose pixels are present or requested, and not yet encoded: all of them, and those that their
 * sequence needs next. The latter are counted separately, so that look-ahead requests can't block them. */
struct open_images {
    uint32_t all, next;
};

static void count_open(const struct sequence *q, struct open_images *open)
{
    for (uint32_t i = q->next_span, end = look_ahead_end(q), needed = needed_image(q); i < end; i++) {
        const struct seq_image *f = &q->features[i];
        bool ready = f->entry && features_state(f->entry) == FEATURES_DONE; /* by somebody else */
        if (!f->asked && (!f->pixels.rgb || ready)) continue;
        open->all++;
        open->next += i == needed;
    }
}

/* Holds the entries of q's next images and requests the missing pixels. False: out of memory. */
static bool look_ahead(struct scheduler *s, struct sequence *q, struct open_images *open)
{
    const struct prompt *p = q->req.prompt;
    for (uint32_t i = q->next_span, end = look_ahead_end(q); i < end; i++) {
        struct seq_image *f = &q->features[i];
        if (!p->spans[i].image) continue;
        if (!f->entry) f->entry = hold(s, q, p->spans[i].key);
        if (!f->entry) return false;
        if (f->asked || features_state(f->entry) != FEATURES_EMPTY || pixels_of(q, i)) continue;
        if (!q->req.no_cache_read && sched__offload_image(s, f->entry, q->image_salt, p->spans[i].key))
            continue;
        uint32_t twin = q->next_span; /* the same image earlier in the prompt is encoded before this one is
                                         needed */
        while (twin < i && q->features[twin].entry != f->entry) twin++;
        bool next_one = i == needed_image(q);
        if (twin < i || (next_one ? open->next : open->all) >= OPEN_MAX) continue;
        if (!ask(s, q, i)) return false;
        open->all++;
        open->next += next_one;
    }
    return true;
}

/* The oldest running sequence whose next tokens need an image that can be encoded now, and that image. */
static struct sequence *find_encodable(const struct scheduler *s, uint32_t *image)
{
    for (struct sequence *q = s->running.head; q; q = q->next) {
        uint32_t i = needed_image(q);
        if (i == needed_end(q) || q->failure[0] || sched__waits_turn(s, q)) continue;
        enum feature_state state = features_state(q->features[i].entry);
        if (state == FEATURES_LOADING || (state == FEATURES_EMPTY && !pixels_of(q, i))) continue;
        *image = i;
        return q;
    }
    return NULL;
}

/* Layers of the next slice: what fits into half of a step's time. A layer's time is measured per slice, and
 * scaled for an image of another size by its patches and their attention. */
static uint32_t slice_layers(struct scheduler *s, const struct image_u8 *begun)
{
    if (s->opt.encode_layers) return s->opt.encode_layers;
    if (!s->opt.step_us) return 2;
    if (begun) {
        uint64_t pixels = (uint64_t)begun->width * begun->height;
        double times = s->layer_pixels ? (double)pixels / (double)s->layer_pixels : 1;
        s->layer_us *= times * times;
        s->layer_pixels = pixels;
    }
    if (s->layer_us <= 0) return 1;
    double n = (double)s->opt.step_us / 2 / s->layer_us;
    return n < 1 ? 1 : n > 64 ? 64 : (uint32_t)n;
}

bool sched__encode_slice(struct scheduler *s)
{
    s->slice_us = 0;
    struct open_images open = {0};
    /* Images of background sequences keep nobody from requesting theirs. */
    const struct sequence *counted = s->running.head;
    for (struct sequence *q = s->running.head; q; q = q->next) {
        for (; counted && (!sched__yields(s, counted) || sched__yields(s, q)); counted = counted->next)
            count_open(counted, &open);
        if (!look_ahead(s, q, &open)) fail(s, q, "out of memory for image features");
    }
    uint32_t image;
    struct sequence *q = find_encodable(s, &image);
    if (!q) return false;
    struct feature_cache *c = s->features;
    struct feature_entry *f = q->features[image].entry;
    struct err err = {{0}};
    enum status st = ST_OK;
    uint64_t start = sched__clock(s);
    bool begins = features_state(f) == FEATURES_EMPTY;
    uint32_t layers = slice_layers(s, begins ? pixels_of(q, image) : NULL);
    if (begins) {
        st = features_begin(c, f, pixels_of(q, image), sched__image_adapter(q), &err);
        image_u8_free(&q->features[image].pixels);
    }
    if (!st) st = features_encode(c, f, layers, &err);
    s->slice_us = (double)(sched__clock(s) - start);
    /* The last slice of an image runs the remaining layers. */
    if (!st && features_state(f) != FEATURES_DONE) s->layer_us = s->slice_us / layers;
    if (!st && features_state(f) == FEATURES_DONE) s->now.images_encoded++;
    if (st) {
        /* Other holders of the image start over with their own pixels. */
        if (st == ST_DEVICE) atomic_store(&s->failed, true);
        fail(s, q, err.msg[0] ? err.msg : "encoding the image failed");
    }
    return true;
}

/* ---- statistics ---- */

void sched__images_gauges(struct scheduler *s)
{
    struct features_stats st;
    features_stats(s->features, &st);
    s->now.feature_queries = st.queries;
    s->now.feature_hits = st.hits;
    s->now.feature_evictions = st.evictions;
    s->now.feature_bytes = st.bytes;
}
