/* See remote.h. */
#include "server/input/remote.h"

#include "server/fetch/fetch.h"
#include "server/fetch/local.h"
#include "server/input/chat_images.h"
#include "server/replay/request_log.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool has_scheme(struct text url, const char *scheme)
{
    size_t n = strlen(scheme);
    return url.len > n && strncasecmp(url.data, scheme, n) == 0 && url.data[n] == ':';
}

static bool is_remote(const struct generation *g, struct text url)
{
    return g->ctx->fetcher && (has_scheme(url, "http") || has_scheme(url, "https"));
}

/* One URL of a part: registers it, or takes its result. */
static enum status one_url(struct generation *g, const struct image_ref *ref, struct text url)
{
    if (!is_remote(g, url)) return ST_OK;
    if (g->prep.fetched) {
        const struct fetch_file *file = fetch_find(g->prep.remote, url.data, url.len);
        return file && file->done && file->error ? image_fail(g, file->error, ref, &file->err) : ST_OK;
    }
    if (!g->prep.remote && !(g->prep.remote = fetch_job_new(g->ctx->fetcher))) return gen_nomem(g);
    enum status st = fetch_job_add(g->prep.remote, url.data, url.len);
    if (st == ST_TOO_LARGE)
        return api_fail(g->e, 400, "invalid_value", ref->param,
                        "At most %u http(s) URLs may be in one prompt.", FETCH_URLS_MAX);
    return st ? gen_nomem(g) : ST_OK;
}

enum status gen_remote(struct generation *g)
{
    enum status st = ST_OK;
    for (size_t i = 0; i < g->q.messages.image_count && !st; i++) {
        const struct image_ref *ref = &g->q.messages.images[i];
        if (!ref->frames) st = one_url(g, ref, ref->url);
        for (size_t k = 0; k < ref->frame_count && !st; k++) st = one_url(g, ref, ref->frames[k]);
    }
    return st;
}

void gen_remote_end(struct generation *g)
{
    fetch_job_free(g->prep.remote);
    g->prep.remote = NULL;
}

enum image_error gen_file(const struct generation *g, struct text url, const struct image_limits *limits,
                          uint8_t **bytes, size_t *n, struct err *err)
{
    if (g->ctx->media_dir && has_scheme(url, "file")) {
        enum image_error error =
            local_read(g->ctx->media_dir, url.data, url.len, limits->encoded_bytes_max, bytes, n, err);
        if (!error && g->record) log_record_fetched(g->record, url.data, url.len, *bytes, *n);
        return error;
    }
    if (!is_remote(g, url)) return image_decode_data_uri(url.data, url.len, limits, bytes, n, err);
    const struct fetch_file *file = g->prep.remote ? fetch_find(g->prep.remote, url.data, url.len) : NULL;
    if (!file || !file->done || file->error) {
        (void)err_set(err, ST_IO, "the URL could not be fetched");
        return IMAGE_DOWNLOAD;
    }
    *bytes = malloc(file->len);
    if (!*bytes) {
        (void)err_nomem(err, NULL);
        return IMAGE_NOMEM;
    }
    memcpy(*bytes, file->bytes, file->len);
    *n = file->len;
    if (g->record) log_record_fetched(g->record, url.data, url.len, *bytes, *n);
    return IMAGE_OK;
}
