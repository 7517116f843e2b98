/* What the prefix cache did for a request, in terms of the request: which message and part a token came from,
 * and the object for `return_cache_info`. cache_places_build runs on a worker, the rest anywhere; no state.
 * Knows nothing of sequences. */
#ifndef KVASIR_CACHE_INFO_H
#define KVASIR_CACHE_INFO_H

#include "engine/model/model_info.h"
#include "engine/prompt/prompt_build.h"
#include "scheduler/scheduler.h"
#include "server/chat/messages.h"
#include "server/json/writer.h"
#include "server/chat/template.h"

enum cache_place_kind {
    PLACE_TEMPLATE = 0, /* text that the chat template writes */
    PLACE_TEXT,         /* text of a message's content */
    PLACE_IMAGE,        /* an image or video, with the text that the processor adds around it */
    PLACE_FIELD,        /* another field of a message */
    PLACE_TOOLS,
    PLACE_DOCUMENTS,
    PLACE_VARIABLES, /* chat_template_kwargs */
};
/* The tokens from `token` up to the next place's `token`. */
struct cache_place {
    uint32_t token;
    enum cache_place_kind kind;
    uint32_t message;  /* TEXT, IMAGE, FIELD: index in the request's messages. TEMPLATE: 1 + the message whose
                          text precedes it; 0 = none */
    int32_t part;      /* TEXT, IMAGE: index in the message's content; -1: the content is one string */
    uint32_t image;    /* IMAGE: index among the request's images and videos */
    bool video;        /* IMAGE: it is a video */
    const char *role;  /* of the message, as sent; static */
    const char *field; /* FIELD: its name; static; NULL = not a well-known one */
};
struct cache_places {
    struct cache_place *list; /* owned; by token */
    size_t count;
};
void cache_places_free(struct cache_places *p);

/* For a prompt that prompt_build made from `rendered` (template_render with trace) and `images`. */
enum status cache_places_build(const struct model_info *mi, const struct tokenizer *tok,
                               const struct template_result *rendered, const struct chat_messages *messages,
                               const struct prompt_image *images, uint32_t image_count,
                               const struct prompt *prompt, struct cache_places *out,
                               struct err *err) KV_MUST_CHECK;
/* The place of a token; NULL: unknown (a prompt without messages). */
const struct cache_place *cache_place_at(const struct cache_places *p, uint32_t token);
/* The place to report for a token that differs. The template's last token before client text depends on that
 * text, because tokens merge ("\n" and "\n\n\n" before an image): then the following place is reported. */
const struct cache_place *cache_place_of_difference(const struct cache_places *p, uint32_t token);

/* {"reused_tokens":..,"equal_tokens":..,"prompt_tokens":..,"stop":"..",
 *  "reuse_ends_at":{..}|null,"differs_at":{..}|null}.
 * dropped: tokens truncated at the start of the rendered prompt. left_out: if not NULL, "left_out":[..] is
 * added: a part of the request that is not in the prompt. */
void cache_info_write(struct json_writer *o, const struct sched_cache_info *info, uint32_t prompt_tokens,
                      uint32_t dropped, const char *left_out, const struct cache_places *places);
/* [{"token":..,"kind":..}]: where each place begins. */
void cache_places_write(struct json_writer *o, const struct cache_places *p);

#endif
