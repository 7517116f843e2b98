/* Stored responses of /v1/responses: GET and DELETE /v1/responses/{id}, GET .../input_items, POST .../cancel.
 * On a worker: they may be large. */
#include "server/dialect/store.h"
#include "server/generate/generate.h"
#include "server/json/fields.h"
#include "server/json/value.h"
#include "server/http/request.h"
#include "server/api/api.h"

#include <stdlib.h>
#include <string.h>

/* ---- the list of input items ---- */

struct page {
    size_t limit;
    bool ascending;
    const char *after;
};

static enum status page_read(struct request *r, struct page *p)
{
    const char *limit = http_message_argument(&r->http, "limit"),
               *order = http_message_argument(&r->http, "order");
    char *end = NULL;
    long n = limit ? strtol(limit, &end, 10) : 20;
    if (n < 1 || n > 100 || (limit && (!*limit || *end)))
        return api_fail(&r->response.error, 400, "invalid_value", "limit", "limit must be from 1 to 100.");
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        return api_fail(&r->response.error, 400, "invalid_value", "order", "order must be 'asc' or 'desc'.");
    *p = (struct page){(size_t)n, order && *order == 'a', http_message_argument(&r->http, "after")};
    return ST_OK;
}

static void list_items(struct request *r, const struct response_kept *kept)
{
    struct json_writer o = {.buf = &r->response.out};
    json_t *items = kept->items;
    size_t count = kept->inputs, at = 0, shown = 0;
    struct page p = {0};
    const json_t *first = NULL, *last = NULL;
    if (page_read(r, &p)) return;
    for (size_t i = 0; i < count && p.after && !at; i++) {
        const json_t *item = json_array_get(items, p.ascending ? i : count - 1 - i);
        if (json_is(json_object_get(item, "id"), p.after)) at = i + 1;
    }
    if (p.after && !at) {
        (void)api_fail(&r->response.error, 400, "invalid_value", "after", "There is no such item.");
        return;
    }
    jw_text(&o, "{\"object\":\"list\",\"data\":[");
    for (; at < count && shown < p.limit; at++, shown++) {
        last = json_array_get(items, p.ascending ? at : count - 1 - at);
        if (!shown) first = last;
        if (shown) jw_text(&o, ",");
        jw_value(&o, last);
    }
    jw_text(&o, "],\"first_id\":");
    jw_value(&o, json_object_get(first, "id"));
    jw_text(&o, ",\"last_id\":");
    jw_value(&o, json_object_get(last, "id"));
    jw_text(&o, at < count ? ",\"has_more\":true}" : ",\"has_more\":false}");
    if (o.st) api_nomem(&r->response.error);
}

/* ---- one response ---- */

static void retrieve(struct request *r, const struct response_kept *kept)
{
    const char *stream = http_message_argument(&r->http, "stream");
    if (stream && strcmp(stream, "true") == 0) {
        (void)api_fail(&r->response.error, 400, "unsupported_parameter", "stream",
                       "A stored response cannot be streamed again.");
        return;
    }
    if (buf_add(&r->response.out, kept->response.data, kept->response.len)) api_nomem(&r->response.error);
}

static void forget(struct request *r, const char *id, const struct response_owner *owner)
{
    struct json_writer o = {.buf = &r->response.out};
    (void)response_forget(r->srv->ctx.responses, id, owner); /* another request may have been faster */
    jw_put(&o, "{\"id\":%s,\"object\":\"response.deleted\",\"deleted\":true}", id);
    if (o.st) api_nomem(&r->response.error);
}

/* The required owner. The salt is in the URL: there is no body. */
static bool owner_of(const struct request *r, struct response_owner *owner)
{
    const char *salt = http_message_argument(&r->http, "cache_salt");
    *owner = (struct response_owner){0};
    if (r->http.has_key) memcpy(owner->key, r->http.key, sizeof owner->key);
    char *text = strdup(salt ? salt : "");
    struct caller of = caller_of(r);
    if (text) gen_salt(&r->srv->ctx, &of, text, percent_decode(text), owner->salt);
    bool ok = text != NULL;
    free(text);
    return ok;
}

static void response_job(struct request *r)
{
    struct response_owner owner;
    const char *path = request_rest(r), *rest = path + strcspn(path, "/");
    bool items = strcmp(rest, "/input_items") == 0, cancel = strcmp(rest, "/cancel") == 0;
    char id[RESPONSE_ID_BYTES] = "";
    if (*rest && !items && !cancel) {
        (void)api_fail(&r->response.error, 404, "unknown_url", NULL, "Invalid URL (%s %.200s)",
                       method_name(r->http.method), r->http.path);
        return;
    }
    if (r->http.method == M_POST && !cancel)
        request_wrong_method(r, items ? "GET, OPTIONS" : "GET, DELETE, OPTIONS");
    if (r->http.method != M_POST && cancel) request_wrong_method(r, "POST, OPTIONS");
    if (r->http.method == M_DELETE && items) request_wrong_method(r, "GET, OPTIONS");
    if (!owner_of(r, &owner)) api_nomem(&r->response.error);
    if (r->response.error.http) return;
    if ((size_t)(rest - path) < sizeof id) memcpy(id, path, (size_t)(rest - path));
    struct response_kept *kept = response_take(r->srv->ctx.responses, id, &owner);
    if (!kept)
        (void)api_fail(&r->response.error, 404, "response_not_found", NULL,
                       "Response with id '%.*s' not found%s", (int)strcspn(path, "/"), path,
                       response_store_on(r->srv->ctx.responses) ? "." : ": this server keeps none.");
    else if (cancel)
        (void)api_fail(&r->response.error, 400, "invalid_value", NULL,
                       "Only responses in the background can be cancelled, and this one is complete. Close "
                       "the connection to cancel a running one.");
    else if (items) list_items(r, kept);
    else if (r->http.method == M_DELETE) forget(r, id, &owner);
    else retrieve(r, kept);
    response_give_back(r->srv->ctx.responses, kept);
}

void api_response_start(struct request *r)
{
    request_work(r, response_job, request_finish);
}
