/* Encoded pictures of live sequences: made in slices between steps so that decoding goes on, shared by sequences with the same content key,
 * released when the picture's tokens are prefilled. See sched_internal.h. */
#include "scheduler/sched_internal.h"

#include "config/base/assert.h"

#include <stdlib.h>
#include <string.h>

bool sched__image_ready(const struct sequence *q, uint32_t image)
{
    return q->features[image] && q->features[image]->done;
}

static void release(struct scheduler *s, struct feature_ref *f)
{
    if (--f->holders > 0) return;
    struct feature_ref **at = &s->features;
    while (*at != f) at = &(*at)->next;
    *at = f->next;
    engine_features_free(s->engine, f->features);
    free(f);
}

void sched__features_drop(struct scheduler *s, struct sequence *q)
{
    for (uint32_t i = 0; i < q->req.prompt->image_count; i++) {
        if (q->features[i]) release(s, q->features[i]);
        q->features[i] = NULL;
    }
    q->next_image = 0;
}

void sched__features_passed(struct scheduler *s, struct sequence *q)
{
    const struct prompt *p = q->req.prompt;
    while (q->next_image < p->image_count && p->images[q->next_image].end <= q->position) {
        uint32_t i = q->next_image++;
        if (q->features[i]) release(s, q->features[i]);
        q->features[i] = NULL;
    }
}

static enum status attach(struct scheduler *s, struct sequence *q, uint32_t image, struct err *err)
{
    const struct prompt_image *im = &q->req.prompt->images[image];
    struct feature_ref *f = s->features;
    while (f && memcmp(f->key, im->key, sizeof f->key) != 0) f = f->next;
    if (!f) {
        f = calloc(1, sizeof *f);
        if (!f) return err_set(err, ST_NOMEM, "out of memory for image features");
        enum status st = engine_features_create(s->engine, &im->pixels, &f->features, err);
        if (st) {
            free(f);
            return st;
        }
        memcpy(f->key, im->key, sizeof f->key);
        f->next = s->features;
        s->features = f;
    }
    f->holders++;
    q->features[image] = f;
    return ST_OK;
}

/* The oldest running sequence whose next tokens need a picture that isn't encoded, and that picture. */
static struct sequence *find_wanting(const struct scheduler *s, uint32_t *image)
{
    for (struct sequence *q = s->running.head; q; q = q->next) {
        if (q->next_image < q->req.prompt->image_count && !sched__image_ready(q, q->next_image)) {
            *image = q->next_image;
            return q;
        }
    }
    return NULL;
}

bool sched__encode_slice(struct scheduler *s, uint64_t now_us)
{
    uint32_t image;
    struct sequence *q = find_wanting(s, &image);
    if (!q) return false;
    struct err err = {{0}};
    enum status st = q->features[image] ? ST_OK : attach(s, q, image, &err);
    struct feature_ref *f = q->features[image];
    if (!st && !f->done) {
        st = engine_features_step(s->engine, f->features, s->opt.encode_layers, &f->done, &err);
        if (!st && f->done) atomic_fetch_add_explicit(&s->st.images, 1, memory_order_relaxed);
    }
    if (st) {
        if (st == ST_DEVICE) atomic_store(&s->st.failed, true);
        sched__end(s, q, END_ERROR, 0, err.msg[0] ? err.msg : "encoding the image failed", now_us);
    }
    return true;
}
