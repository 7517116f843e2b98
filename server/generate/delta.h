/* The next delta of a streamed, parsed response (chat/output.h), for all dialects. Event loop's thread. */
#ifndef KVASIR_DELTA_H
#define KVASIR_DELTA_H

#include "server/generate/generate.h"

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
/* A new id: a prefix of at most 6 characters and 24 letters or digits. */
void call_id_make(struct chat_call *call, const char *prefix);
/* The arguments as an object on one line; invalid or incomplete ones: {"INVALID_JSON": text}. */
void call_object_write(struct json_writer *o, const struct buf *arguments);

#endif
