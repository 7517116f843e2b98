/* The next delta of a streamed response, for all dialects. Event loop's thread. */
#ifndef KVASIR_DELTA_H
#define KVASIR_DELTA_H

#include "server/generate/generate.h"

/* ECHO: the echoed prompt. */
enum delta_kind { DELTA_NONE = 0, DELTA_ECHO, DELTA_REASONING, DELTA_CONTENT, DELTA_CALL, DELTA_ARGUMENTS };
struct delta {
    enum delta_kind kind;
    uint32_t call;
    const char *text; /* borrowed */
    size_t len;
};

/* The first delta not yet sent; content and calls in the order in which the model wrote them. */
struct delta delta_next(const struct choice *c);
void delta_shown(struct choice *c, const struct delta *delta);
/* An item of the whole output. */
struct output_item {
    enum delta_kind kind; /* REASONING, CONTENT, CALL; NONE: before the first */
    uint32_t index;
    uint32_t call;                                   /* CALL */
    size_t from, to;                                 /* CONTENT: range of the content */
    enum { ITEM_BEGUN, ITEM_WHOLE, ITEM_CUT } state; /* the dialect's */
};
/* The next one, in stream order. text: there is a text, even if it is empty. */
bool output_next(const struct chat_output *out, bool text, struct output_item *item);
/* A new id: a prefix of at most 6 characters and 24 letters or digits. */
void call_id_make(struct chat_call *call, const char *prefix);
/* The arguments as an object on one line; invalid or incomplete ones: {"INVALID_JSON": text}. */
void call_object_write(struct json_writer *o, const struct buf *arguments);

#endif
