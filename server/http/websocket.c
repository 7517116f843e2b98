/* See websocket.h. */
#include "server/http/websocket.h"

#include "server/context/limits.h"
#include "server/http/request.h"

#include <sha1.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <wslay/wslay.h>

#define ACCEPT_BYTES sodium_base64_ENCODED_LEN(SHA1_DIGEST_LENGTH, sodium_base64_VARIANT_ORIGINAL)
#define FRAME_BYTES  64u /* of wslay, for each frame of an incomplete message */

struct websocket {
    wslay_event_context_ptr ctx;
    struct buf *up, *down;
    char accept[ACCEPT_BYTES]; /* the value of Sec-WebSocket-Accept */
    struct buf post;           /* head of each request, without its length */
    const char *in;            /* input of websocket_receive */
    size_t in_len, partial;
    size_t frames, frames_max; /* of the incomplete message */
    bool failed;
    /* the response that is being read */
    enum { RESPONSE_HEAD = 0, RESPONSE_SIZE, RESPONSE_DATA, RESPONSE_END } state;
    struct buf line; /* the head so far, or a chunk's size */
    unsigned status;
    bool chunked, last; /* the chunk is the last */
    uint64_t left;      /* bytes of the body or chunk */
    size_t skip;        /* bytes of the line end after it */
    /* the event that is being sent: the part not yet handed to wslay */
    const char *piece;
    size_t piece_len;
    bool event, event_end; /* an event has begun; the piece is its last */
    size_t matched;        /* bytes of "data: " at the start of a line; SIZE_MAX: another line */
};

/* ---- wslay's callbacks ---- */

static ssize_t from_client(wslay_event_context_ptr ctx, uint8_t *to, size_t len, int flags, void *user)
{
    struct websocket *w = user;
    (void)flags;
    size_t n = w->in_len < len ? w->in_len : len;
    if (!n) {
        wslay_event_set_error(ctx, WSLAY_ERR_WOULDBLOCK);
        return -1;
    }
    memcpy(to, w->in, n);
    w->in += n;
    w->in_len -= n;
    return (ssize_t)n;
}

static ssize_t to_client(wslay_event_context_ptr ctx, const uint8_t *data, size_t len, int flags, void *user)
{
    struct websocket *w = user;
    (void)flags;
    if (!buf_add(w->down, data, len)) return (ssize_t)len;
    wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
    return -1;
}

/* Each frame costs memory besides its bytes. */
static void on_frame(wslay_event_context_ptr ctx, const struct wslay_event_on_frame_recv_start_arg *arg,
                     void *user)
{
    struct websocket *w = user;
    if (!wslay_is_ctrl_frame(arg->opcode) && ++w->frames > w->frames_max)
        wslay_event_queue_close(ctx, WSLAY_CODE_MESSAGE_TOO_BIG, NULL, 0);
}

static void on_chunk(wslay_event_context_ptr ctx, const struct wslay_event_on_frame_recv_chunk_arg *arg,
                     void *user)
{
    struct websocket *w = user;
    (void)ctx;
    w->partial += arg->data_length;
}

static void on_message(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *arg, void *user)
{
    struct websocket *w = user;
    w->partial -= arg->msg_length;
    if (wslay_is_ctrl_frame(arg->opcode)) return;
    w->frames = 0;
    if (arg->opcode != WSLAY_TEXT_FRAME) {
        wslay_event_queue_close(ctx, WSLAY_CODE_UNSUPPORTED_DATA, NULL, 0);
        return;
    }
    w->failed = w->failed || buf_add(w->up, w->post.data, w->post.len) ||
                buf_addf(w->up, "Content-Length: %zu\r\n\r\n", arg->msg_length) ||
                buf_add(w->up, arg->msg, arg->msg_length);
}

/* A piece of the event; 0 bytes: more follow later. */
static ssize_t event_read(wslay_event_context_ptr ctx, uint8_t *to, size_t len,
                          const union wslay_event_msg_source *source, int *eof, void *user)
{
    struct websocket *w = user;
    (void)ctx;
    (void)source;
    size_t n = w->piece_len < len ? w->piece_len : len;
    memcpy(to, w->piece, n);
    w->piece += n;
    w->piece_len -= n;
    *eof = w->event_end && !w->piece_len;
    return (ssize_t)n;
}

/* ---- opening and closing ---- */

static void accept_key(struct websocket *w, const char *key)
{
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    uint8_t digest[SHA1_DIGEST_LENGTH];
    SHA1_CTX sha;
    SHA1Init(&sha);
    SHA1Update(&sha, (const uint8_t *)key, strlen(key));
    SHA1Update(&sha, (const uint8_t *)guid, sizeof guid - 1);
    SHA1Final(digest, &sha);
    sodium_bin2base64(w->accept, sizeof w->accept, digest, sizeof digest, sodium_base64_VARIANT_ORIGINAL);
}

/* The requests have the upgrade's own path, key and host. */
static enum status post_head(struct websocket *w, const struct request *r)
{
    static const char *const names[] = {"Host", "Origin", "Authorization", "x-api-key", "api-key"};
    enum status st =
        buf_addf(&w->post, "POST %s HTTP/1.1\r\nContent-Type: application/json\r\n", r->http.path);
    for (size_t i = 0; i < sizeof names / sizeof *names && !st; i++) {
        const char *value = http_message_header(&r->http, names[i]);
        if (value) st = buf_addf(&w->post, "%s: %s\r\n", names[i], value);
    }
    return st;
}

struct websocket *websocket_open(struct request *r, struct buf *up, struct buf *down)
{
    static const struct wslay_event_callbacks callbacks = {.recv_callback = from_client,
                                                           .send_callback = to_client,
                                                           .on_frame_recv_start_callback = on_frame,
                                                           .on_frame_recv_chunk_callback = on_chunk,
                                                           .on_msg_recv_callback = on_message};
    const char *upgrade = http_message_header(&r->http, "Upgrade"),
               *version = http_message_header(&r->http, "Sec-WebSocket-Version"),
               *key = http_message_header(&r->http, "Sec-WebSocket-Key");
    if (!upgrade || strcasecmp(upgrade, "websocket") != 0 || !version || strcmp(version, "13") != 0 || !key ||
        strlen(key) != 24) {
        (void)api_fail(&r->response.error, 426, "upgrade_required", NULL,
                       "GET opens a WebSocket (Upgrade: websocket, version 13) at this URL; use POST "
                       "otherwise.");
        return NULL;
    }
    struct websocket *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->up = up;
    w->down = down;
    buf_init(&w->post, LIMIT_HEADER_BYTES + LIMIT_URL_BYTES);
    buf_init(&w->line, LIMIT_HEADER_BYTES);
    accept_key(w, key);
    if (post_head(w, r) || wslay_event_context_server_init(&w->ctx, &callbacks, w)) {
        websocket_free(w);
        return NULL;
    }
    wslay_event_config_set_max_recv_msg_length(w->ctx, r->srv->ctx.opt->max_body_bytes);
    w->frames_max = r->srv->ctx.opt->max_body_bytes / FRAME_BYTES;
    return w;
}

void websocket_free(struct websocket *w)
{
    if (!w) return;
    if (w->ctx) wslay_event_context_free(w->ctx);
    buf_fini(&w->post);
    buf_fini(&w->line);
    free(w);
}

bool websocket_receive(struct websocket *w, const char *data, size_t len)
{
    w->in = data;
    w->in_len = len;
    return !wslay_event_recv(w->ctx) && !wslay_event_send(w->ctx) && !w->failed;
}

void websocket_close(struct websocket *w, uint16_t code)
{
    if (!wslay_event_queue_close(w->ctx, code, NULL, 0)) (void)wslay_event_send(w->ctx);
}

bool websocket_closed(const struct websocket *w)
{
    return wslay_event_get_close_sent(w->ctx) || wslay_event_get_close_received(w->ctx);
}

size_t websocket_partial(const struct websocket *w)
{
    return w->partial + w->frames * FRAME_BYTES;
}

/* ---- responses ---- */

static bool event_send(struct websocket *w, const char *data, size_t len, bool end)
{
    w->piece = data;
    w->piece_len = len;
    w->event_end = end;
    if (!w->event && wslay_event_queue_fragmented_msg(
                         w->ctx, &(struct wslay_event_fragmented_msg){.opcode = WSLAY_TEXT_FRAME,
                                                                      .read_callback = event_read}))
        return websocket_closed(w); /* nothing is sent after a close frame */
    w->event = !end;
    return !wslay_event_send(w->ctx);
}

/* Server-sent events: the text after "data: ", which is one line of JSON. */
static bool events(struct websocket *w, const char *data, size_t len)
{
    static const char front[] = "data: ";
    for (size_t at = 0; at < len;) {
        if (w->matched < sizeof front - 1) {
            bool same = data[at] == front[w->matched];
            if (data[at] == '\n') w->matched = 0;
            else w->matched = same ? w->matched + 1 : SIZE_MAX;
            at++;
            continue;
        }
        const char *lf = memchr(data + at, '\n', len - at);
        size_t n = lf ? (size_t)(lf - data) - at : len - at;
        if (w->matched != SIZE_MAX && !event_send(w, data + at, n, lf != NULL)) return false;
        if (lf) w->matched = 0;
        at += n + (lf != NULL);
    }
    return true;
}

/* An error is an event: its JSON with a type and the status. */
static bool error_begin(struct websocket *w)
{
    char text[48];
    int n = snprintf(text, sizeof text, "{\"type\":\"error\",\"status\":%u,", w->status);
    w->matched = 0;
    return event_send(w, text, (size_t)n, false);
}

static bool error_part(struct websocket *w, const char *data, size_t len, bool end)
{
    size_t skip = len && !w->matched; /* the JSON's own brace */
    w->matched += skip;
    return event_send(w, data + skip, len - skip, end);
}

static bool head_done(struct websocket *w)
{
    static const char length[] = "\r\nContent-Length: ";
    const char *head = w->line.data, *value = strcasestr(head, length);
    w->status = (unsigned)strtoul(head + strlen("HTTP/1.1 "), NULL, 10);
    w->chunked = strcasestr(head, "\r\nTransfer-Encoding: chunked") != NULL;
    w->left = value ? strtoull(value + sizeof length - 1, NULL, 10) : 0;
    w->matched = 0;
    w->state = w->chunked ? RESPONSE_SIZE : w->left ? RESPONSE_DATA : RESPONSE_HEAD;
    if (w->status == 204)
        return !buf_addf(w->down,
                         "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                         "Sec-WebSocket-Accept: %s\r\n\r\n",
                         w->accept);
    return w->status == 200 || error_begin(w);
}

/* A line of the head, or the size of a chunk, has ended. */
static bool line_done(struct websocket *w)
{
    bool ok = true;
    if (w->state == RESPONSE_SIZE) {
        w->left = strtoull(w->line.data, NULL, 16);
        w->last = !w->left;
        w->state = w->last ? RESPONSE_END : RESPONSE_DATA;
        w->skip = 2;
    } else if (w->line.len < 4 || memcmp(w->line.data + w->line.len - 4, "\r\n\r\n", 4) != 0) {
        return true;
    } else {
        ok = head_done(w);
    }
    w->line.len = 0;
    return ok;
}

static bool body_part(struct websocket *w, const char *data, size_t len)
{
    w->left -= len;
    bool end = !w->left;
    if (end) w->state = w->chunked ? RESPONSE_END : RESPONSE_HEAD;
    return w->status == 200 ? events(w, data, len) : error_part(w, data, len, end);
}

bool websocket_respond(struct websocket *w, const char *data, size_t len)
{
    bool ok = true;
    while (len && ok) {
        size_t n = len;
        if (w->state == RESPONSE_DATA) {
            if (w->left < n) n = (size_t)w->left;
            ok = body_part(w, data, n);
        } else if (w->state == RESPONSE_END) { /* the line end after a chunk */
            n = w->skip < len ? w->skip : len;
            w->skip -= n;
            if (!w->skip) w->state = w->last ? RESPONSE_HEAD : RESPONSE_SIZE;
        } else {
            const char *lf = memchr(data, '\n', len);
            if (lf) n = (size_t)(lf - data) + 1;
            ok = !buf_add(&w->line, data, n) && (!lf || line_done(w));
        }
        data += n;
        len -= n;
    }
    return ok;
}
