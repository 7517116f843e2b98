/* The messages of a chat, filled by all dialects and passed to the chat template, with references to their
 * images and videos in order; and the reader of the `messages` array of POST /v1/chat/completions. Decodes no
 * image and renders nothing. Pure; runs on worker threads. */
#ifndef KVASIR_CHAT_MESSAGES_H
#define KVASIR_CHAT_MESSAGES_H

#include "config/base/buf.h"
#include "config/base/status.h"
#include "server/json/arena.h"
#include "server/json/errors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum image_detail { IMAGE_DETAIL_AUTO = 0, IMAGE_DETAIL_LOW, IMAGE_DETAIL_HIGH, IMAGE_DETAIL_ORIGINAL };

/* Where a message is in the client's request: `field`, or field[index]. */
struct chat_place {
    const char *field; /* static */
    int32_t index;     /* -1: the field itself */
    bool whole;        /* errors inside it name this place too */
};

/* <at><suffix>, or <at> if `whole`. */
void chat_place_name(const struct chat_place *at, const char *suffix, char *out, size_t cap);

/* One image or video part. */
struct image_ref {
    struct text url;     /* data NULL: frames */
    struct text *frames; /* [frame_count] a video as a list of images: their URLs; else NULL */
    size_t frame_count;
    bool video;
    double fps; /* of a video, from the part; 0 = not given */
    enum image_detail detail;
    uint32_t min_pixels, max_pixels, resized_height, resized_width; /* of the part; 0 = not given */
    uint32_t message, part;                                         /* messages[message].content[part] */
    char param[96]; /* "messages[2].content[0].image_url.url": for errors of fetching and decoding */
};

/* They come from one value of the body. */
bool image_ref_same(const struct image_ref *a, const struct image_ref *b);

enum chat_role {
    CHAT_SYSTEM = 0,
    CHAT_DEVELOPER,
    CHAT_USER,
    CHAT_ASSISTANT,
    CHAT_TOOL,
    CHAT_FUNCTION,
    CHAT_QUERY, /* of a pair that is scored, with the next; clients send neither */
    CHAT_DOCUMENT
};
const char *chat_role_name(enum chat_role role); /* as clients send it */
bool chat_role_find(const json_t *name, enum chat_role *out);
const char *chat_role_shown(enum chat_role role); /* as templates see it: function becomes tool */

struct chat_part {
    struct text text;     /* data NULL: an image or a video */
    bool video, thinking; /* thinking: the text is reasoning */
    uint32_t number;      /* index in the content as sent */
    json_t *more;         /* owned: the part's strings that only the template knows; or NULL */
};

struct chat_message {
    enum chat_role role;
    struct chat_place at;
    bool list; /* the content is the list of parts; else the text of the only part */
    struct chat_part *parts;
    size_t part_count, part_cap;
    struct buf reasoning; /* with `reasons` */
    bool reasons;
    bool plain;    /* the content was sent as a string */
    json_t *calls; /* [{"id", "type", "function": {"name", "arguments"}}], or NULL: arguments are objects if
                      they parse, unless the template expects text */
    json_t *more;  /* an object with further fields for the template, except nulls and those in
                      chat_field_known; or NULL */
};
bool chat_field_known(const char *name);

struct chat_messages {
    struct arena arena;        /* of texts */
    struct chat_message *list; /* owned */
    size_t count, cap;
    struct image_ref *images; /* owned; images and videos in order of appearance over all messages */
    size_t image_count, image_cap;
};
void chat_messages_free(struct chat_messages *m);
void chat_message_drop(struct chat_messages *m); /* drops the last one, which must have no image */

struct chat_limits {
    size_t messages_max;    /* 0 = 100000 */
    size_t images_max;      /* images and videos */
    size_t videos_max;      /* videos among them; 0 = the model takes none */
    bool arguments_as_text; /* leave function arguments as JSON text (template_caps.arguments_as_text) */
    bool thinking_parts;    /* keep reasoning as a part of the content (template_caps.thinking_parts) */
    bool text_only;         /* the model takes no images, however few */
};
#define CHAT_LIMITS_DEFAULT ((struct chat_limits){.messages_max = 100000, .images_max = 16})

/* ST_INVALID and a filled err (not NULL) for a client error; ST_NOMEM (err says 503). out is empty then. */
enum status chat_messages_parse(const json_t *messages, const struct chat_limits *limits,
                                struct chat_messages *out, struct api_error *err) KV_MUST_CHECK;

/* ---- for other dialects' readers ---- */

/* State while reading messages: {.limits, .err, .out, .at}. */
struct chat_reader {
    struct chat_limits limits;
    struct api_error *err;
    struct chat_messages *out;
    struct chat_place at;  /* of the current message */
    size_t images, videos; /* of the current prompt: images include videos */
    size_t part_count;
};

/* A client error at <at><path><key>. */
enum status chat_fault_at(struct chat_reader *r, const char *code, const char *path, const char *key,
                          const char *fmt, ...) __attribute__((format(printf, 5, 6)));
#define chat_fault(r, code, path, ...) chat_fault_at(r, code, path, "", __VA_ARGS__)
/* The string `key` of an object whose place is <at><path>. */
enum status chat_string(struct chat_reader *r, const json_t *object, const char *path, const char *key,
                        json_t **out);
/* Counts so many items, content parts or calls: each becomes several values. */
enum status chat_count(struct chat_reader *r, const char *path, size_t n);
enum status chat_no_memory(struct chat_reader *r);
/* Adds the next message, at r->at. *out is valid until the next call. */
enum status chat_message_add(struct chat_reader *r, enum chat_role role, struct chat_message **out);
/* Add to the last message: a string of the body, or a copy of a text. */
enum status chat_text_add(struct chat_reader *r, const json_t *text, uint32_t number);
enum status chat_copy_add(struct chat_reader *r, struct text text, uint32_t number);
enum status chat_reasoning_add(struct chat_reader *r, struct text text);
/* Takes ownership; NULL: out of memory. */
enum status chat_call_add(struct chat_reader *r, json_t *call);
/* Builds {"id", "type", "function": {"name", "arguments"}} from the body's values; arguments: text or an
 * object. */
json_t *chat_call_new(const struct chat_reader *r, json_t *id, json_t *name, json_t *arguments);
/* suffix: path of the part; url: after it, path of the URL. The caller sets the URL of *out, which is valid
 * until the next call. */
enum status chat_image_add(struct chat_reader *r, uint32_t number, bool video, const char *suffix,
                           const char *url, struct image_ref **out);
/* Content in the format of Chat Completions and Responses; name: ".content". */
enum status chat_content_read(struct chat_reader *r, const json_t *content, const char *name);
/* The current message is complete: without images, its parts are joined into one string with the separator
 * `between`. */
enum status chat_one_text(struct chat_reader *r, struct chat_message *m, const char *between);

#endif
