/* The messages of a chat as all dialects fill them and a chat template gets them, with the references of
 * their images and videos in order; and the reader of the `messages` array of POST /v1/chat/completions.
 * Decodes no image and renders nothing. Pure; runs on worker threads. */
#ifndef KVASIR_CHAT_MESSAGES_H
#define KVASIR_CHAT_MESSAGES_H

#include "config/base/status.h"
#include "server/http/errors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum image_detail { IMAGE_DETAIL_AUTO = 0, IMAGE_DETAIL_LOW, IMAGE_DETAIL_HIGH, IMAGE_DETAIL_ORIGINAL };

/* Where a message stands in the client's request: `field`, or field[index]. */
struct chat_place {
    const char *field; /* static */
    int32_t index;     /* -1: the field itself */
    bool whole;        /* errors of what is inside name this place too */
};

/* <at><suffix>, or <at> where all errors name it. */
void chat_place_name(const struct chat_place *at, const char *suffix, char *out, size_t cap);

/* One image or video part. */
struct image_ref {
    json_t *source;  /* owned: what the next three point into */
    const char *url; /* NULL: frames */
    size_t url_len;
    const json_t *frames; /* a video as a list of images: array of URL strings, not empty; else NULL */
    bool video;
    double fps; /* of a video, as the part says; 0 = it does not */
    enum image_detail detail;
    uint32_t message, part; /* where it stands: messages[message].content[part] */
    char param[96];         /* "messages[2].content[0].image_url.url": for errors of fetching and decoding */
};

enum chat_role { CHAT_SYSTEM = 0, CHAT_DEVELOPER, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_FUNCTION };
const char *chat_role_name(enum chat_role role);  /* as clients send it */
const char *chat_role_shown(enum chat_role role); /* as templates see it: a function is a tool */

struct chat_part {
    json_t *text; /* owned; NULL: an image or a video */
    bool video;
    uint32_t number; /* in the content as it was sent */
};

struct chat_message {
    enum chat_role role;
    struct chat_place at;
    bool list; /* the content is the list of parts; else it is the text of the only one */
    struct chat_part *parts;
    size_t part_count, part_cap;
    json_t *reasoning; /* a string (while it is read a list of them), or NULL */
    json_t *calls;     /* [{"id", "type", "function": {"name", "arguments"}}], or NULL: arguments are objects
                          where they parse, unless the template wants text */
    json_t *more;      /* an object with further fields for the template, but for those that chat_field_known
                          names and nulls; or NULL */
};
bool chat_field_known(const char *name);

struct chat_messages {
    struct chat_message *list; /* owned */
    size_t count, cap;
    struct image_ref *images; /* owned; images and videos in order of appearance over all messages */
    size_t image_count, image_cap;
};
void chat_messages_free(struct chat_messages *m);
void chat_message_drop(struct chat_messages *m); /* the last one, which has no image */

struct chat_limits {
    size_t messages_max;    /* 0 = 100000 */
    size_t images_max;      /* images and videos */
    size_t videos_max;      /* of them videos; 0 = the model takes none */
    bool arguments_as_text; /* leave function arguments as JSON text (template_caps.arguments_as_text) */
    bool text_only;         /* the model takes no images, however few */
};
#define CHAT_LIMITS_DEFAULT ((struct chat_limits){.messages_max = 100000, .images_max = 16})

/* ST_INVALID and a filled err (not NULL) when the client is wrong; ST_NOMEM (err says 503). out is empty
 * then. */
enum status chat_messages_parse(const json_t *messages, const struct chat_limits *limits,
                                struct chat_messages *out, struct api_error *err) KV_MUST_CHECK;

/* ---- for the readers of other dialects ---- */

/* Messages that are being read: {.limits, .err, .out, .at}. */
struct chat_reader {
    struct chat_limits limits;
    struct api_error *err;
    struct chat_messages *out;
    struct chat_place at; /* of the message at hand */
    size_t videos, part_count;
};

/* A client's error at <at><suffix>. */
enum status chat_fault(struct chat_reader *r, const char *code, const char *suffix, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
enum status chat_no_memory(struct chat_reader *r);
/* The next message, at r->at. *out is good until the next call. */
enum status chat_message_add(struct chat_reader *r, enum chat_role role, struct chat_message **out);
/* Each consumes what it adds (NULL: out of memory) to the message, which is the last one. */
enum status chat_text_add(struct chat_reader *r, json_t *text, uint32_t number);
enum status chat_reasoning_add(struct chat_reader *r, json_t *text);
enum status chat_call_add(struct chat_reader *r, json_t *call);
/* {"id", "type", "function": {"name", "arguments"}} of what is in the body; arguments: text or an object. */
json_t *chat_call_new(const struct chat_reader *r, json_t *id, json_t *name, json_t *arguments);
/* suffix: of the part; url: behind it, of the URL. *out is to be given its source, and good until the next
 * call. */
enum status chat_image_add(struct chat_reader *r, uint32_t number, bool video, const char *suffix,
                           const char *url, struct image_ref **out);
/* A content as Chat Completions and Responses have it; name: ".content". */
enum status chat_content_read(struct chat_reader *r, const json_t *content, const char *name);
/* The message at hand is read: its parts become one text with `between` between them, if it has no image. */
enum status chat_one_text(struct chat_reader *r, struct chat_message *m, const char *between);
enum status chat_reasoning_end(struct chat_reader *r, struct chat_message *m);

#endif
