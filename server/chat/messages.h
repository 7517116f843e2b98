/* The `messages` array of POST /v1/chat/completions: checks it and returns what a chat template gets,
 * plus the references of the images and videos in order. Decodes no image and renders
 * nothing. Pure; runs on worker threads. */
#ifndef KVASIR_CHAT_MESSAGES_H
#define KVASIR_CHAT_MESSAGES_H

#include "config/base/status.h"
#include "server/http/errors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum image_detail { IMAGE_DETAIL_AUTO = 0, IMAGE_DETAIL_LOW, IMAGE_DETAIL_HIGH, IMAGE_DETAIL_ORIGINAL };

/* One image or video part. URLs are borrowed from the parsed request body: keep that alive. */
struct image_ref {
    const char *url; /* NULL: frames */
    size_t url_len;
    const json_t *frames; /* a video as a list of pictures: array of URL strings, not empty; else NULL */
    bool video;
    double fps; /* of a video, as the part says; 0 = it does not */
    enum image_detail detail;
    uint32_t message, part; /* where it stands: messages[message].content[part] */
    char param[96];         /* "messages[2].content[0].image_url.url": for errors of fetching and decoding */
};

struct chat_limits {
    size_t messages_max;    /* 0 = 100000 */
    size_t images_max;      /* images and videos */
    size_t videos_max;      /* of them videos; 0 = the model takes none */
    bool arguments_as_text; /* leave function arguments as JSON text (template_caps.arguments_as_text) */
    bool text_only;         /* the model takes no pictures, however few */
    bool allow_any_role;    /* pass unknown roles to the template */
};
#define CHAT_LIMITS_DEFAULT ((struct chat_limits){.messages_max = 100000, .images_max = 16})

struct chat_messages {
    json_t
        *list; /* owned. Objects {role, content, ...}: content is a string or a list of {"type":"text","text"}
                * / {"type":"image"} / {"type":"video"}; tool messages have string content unless they hold
                * images; reasoning is under reasoning_content; arguments of calls are objects where they
                * parse; roles as sent except function -> tool; unknown keys pass through */
    struct image_ref *images; /* owned; images and videos in order of appearance over all messages */
    size_t image_count;
};

/* ST_INVALID and a filled err (not NULL) when the client is wrong; ST_NOMEM (err says 503). out is untouched
 * then. */
enum status chat_messages_parse(const json_t *messages, const struct chat_limits *limits,
                                struct chat_messages *out, struct api_error *err) KV_MUST_CHECK;
void chat_messages_free(struct chat_messages *m);

#endif
