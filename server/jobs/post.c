/* See post.h. */
#include "server/jobs/post.h"

#include "config/base/clock.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN_US                                                                                             \
    50000u /* the first pause before a request is sent again; the next ones are up to 32 times it */
enum { TRIES = 400 }; /* about ten minutes */

struct slot {
    struct post post;
    struct posts *of;
    CURL *easy;
    struct curl_slist *headers;
    bool used, sent;   /* sent: the handle is in `multi` */
    uint64_t again_us; /* else it is sent then */
    uint32_t tries;
};
struct posts {
    struct post_options opt;
    CURLM *multi;
    struct slot *slots; /* [opt.count] */
    uint32_t used;
};

static size_t answer_take(char *data, size_t size, size_t count, void *user)
{
    struct slot *t = user;
    return buf_add(&t->post.answer, data, size * count) ? 0 : size * count;
}

static bool slot_open(struct posts *s, struct slot *t)
{
    CURL *e = t->easy = curl_easy_init();
    t->of = s;
    buf_init(&t->post.body, SIZE_MAX / 2);
    buf_init(&t->post.answer, SIZE_MAX / 2);
    if (!e) return false;
    unsigned bad = curl_easy_setopt(e, CURLOPT_PROXY, "") | curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    bad |=
        curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, answer_take) | curl_easy_setopt(e, CURLOPT_WRITEDATA, t);
    bad |= curl_easy_setopt(e, CURLOPT_PRIVATE, t) | curl_easy_setopt(e, CURLOPT_POST, 1L);
    return !(bad |
             curl_easy_setopt(e, s->opt.abstract ? CURLOPT_ABSTRACT_UNIX_SOCKET : CURLOPT_UNIX_SOCKET_PATH,
                              s->opt.socket));
}

enum status posts_create(const struct post_options *o, struct posts **out, struct err *err)
{
    struct posts *s = calloc(1, sizeof *s);
    if (!s) return err_nomem(err, NULL);
    s->opt = *o;
    s->multi = curl_multi_init();
    s->slots = calloc(o->count, sizeof *s->slots);
    bool ok = s->multi && s->slots;
    for (uint32_t i = 0; ok && i < o->count; i++) ok = slot_open(s, &s->slots[i]);
    if (ok) *out = s;
    else posts_free(s);
    return ok ? ST_OK : err_nomem(err, NULL);
}

static void slot_end(struct slot *t)
{
    if (t->sent) curl_multi_remove_handle(t->of->multi, t->easy);
    curl_slist_free_all(t->headers);
    t->headers = NULL;
    json_decref(t->post.custom_id);
    t->post.custom_id = NULL;
    buf_fini(&t->post.body);
    buf_fini(&t->post.answer);
    t->used = t->sent = false;
    t->of->used--;
}

/* Again later, or for ever not. */
static void slot_again(struct slot *t)
{
    uint64_t pause = (uint64_t)AGAIN_US << (t->tries < 5 ? t->tries : 5);
    buf_fini(&t->post.answer);
    if (t->sent) curl_multi_remove_handle(t->of->multi, t->easy);
    t->sent = false;
    t->again_us = now_us() + pause;
    if (++t->tries < TRIES) return;
    t->of->opt.done(t->of->opt.arg, &t->post, 0);
    slot_end(t);
}

static bool headers_make(struct slot *t)
{
    const char *const lines[] = {"Content-Type: application/json", "Expect:", t->post.header};
    for (size_t i = 0; i < 3; i++) {
        struct curl_slist *more = *lines[i] ? curl_slist_append(t->headers, lines[i]) : t->headers;
        if (!more) return false;
        t->headers = more;
    }
    return true;
}

static void slot_send(struct slot *t)
{
    char url[100];
    snprintf(url, sizeof url, "http://localhost%s", t->post.url);
    unsigned bad = !t->headers && !headers_make(t);
    bad |= curl_easy_setopt(t->easy, CURLOPT_URL, url);
    bad |= curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
    bad |= curl_easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->post.body.len);
    bad |= curl_easy_setopt(t->easy, CURLOPT_POSTFIELDS, t->post.body.data);
    t->sent = !bad && !curl_multi_add_handle(t->of->multi, t->easy);
    if (!t->sent) slot_again(t);
}

static void slot_done(struct slot *t, CURLcode rc)
{
    long status = 0;
    struct curl_header *id = NULL;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    /* Full, starting, or stopping. */
    if (rc || status == 429 || status == 503) {
        slot_again(t);
        return;
    }
    bool named = !curl_easy_header(t->easy, "X-Request-Id", 0, CURLH_HEADER, -1, &id);
    t->post.request_id = named ? id->value : "";
    t->of->opt.done(t->of->opt.arg, &t->post, status);
    slot_end(t);
}

uint32_t posts_turn(struct posts *s, int ms)
{
    int running, left;
    CURLMsg *m;
    bool more = true;
    for (uint32_t i = 0; i < s->opt.count; i++) {
        struct slot *t = &s->slots[i];
        if (!t->used && more && (more = s->opt.next(s->opt.arg, &t->post))) {
            t->used = true;
            t->again_us = t->tries = 0;
            s->used++;
        }
        if (t->used && !t->sent && now_us() >= t->again_us) slot_send(t);
    }
    curl_multi_perform(s->multi, &running);
    bool any = false;
    while ((m = curl_multi_info_read(s->multi, &left))) {
        struct slot *t;
        CURLcode rc = m->data.result;
        if (m->msg != CURLMSG_DONE || curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t)) continue;
        slot_done(t, rc);
        any = true;
    }
    if (!any) curl_multi_poll(s->multi, NULL, 0, s->used && ms > 100 ? 100 : ms, NULL);
    return s->used;
}

void posts_drop(struct posts *s, const void *user)
{
    for (uint32_t i = 0; i < s->opt.count; i++)
        if (s->slots[i].used && s->slots[i].post.user == user) slot_end(&s->slots[i]);
}

void posts_wake(struct posts *s)
{
    if (s) curl_multi_wakeup(s->multi);
}

void posts_free(struct posts *s)
{
    if (!s) return;
    for (uint32_t i = 0; s->slots && i < s->opt.count; i++) {
        if (s->slots[i].used) slot_end(&s->slots[i]);
        curl_easy_cleanup(s->slots[i].easy);
    }
    curl_multi_cleanup(s->multi);
    free(s->slots);
    free(s);
}
