/* The images and videos of a chat: from the URLs in the messages to what prompt_build takes. A new file is
 * decoded at once. A known one is not: its content keys are cached (media/image_hash_cache.h), and its pixels
 * are decoded only if neither its KV nor its features are cached (generate/images.c). Worker thread. */
#ifndef KVASIR_CHAT_IMAGES_H
#define KVASIR_CHAT_IMAGES_H

#include "engine/prompt/image_prep.h"
#include "engine/prompt/prompt_build.h"
#include "server/chat/messages.h"
#include "server/input/input.h"
#include "server/media/image_parts.h"

struct chat_images {
    struct image_prepared *prepared; /* [count]; empty if the file is known */
    struct image_parts *parts;       /* [count] */
    struct prompt_image *list;       /* [count], views of the two above */
    uint32_t count;
    /* so far */
    uint32_t made, spans;        /* of the list; parts of the current prompt */
    uint64_t tokens, all, bytes; /* of the current prompt's images; of all; in files */
};

/* Fills g->images too. ST_AGAIN: another job must go on. On failure g->r->response.error is set;
 * chat_images_free in either case. */
enum status chat_images_make(struct generation *g, struct chat_images *out);
/* Sets the error for a part whose file is unavailable or unreadable; returns ST_INVALID. */
enum status image_fail(struct generation *g, enum image_error error, const struct image_ref *ref,
                       const struct err *err);
void chat_images_free(struct chat_images *p);

#endif
