/* Shared by the files of the /v1/messages dialect. Internal to server/dialect/. */
#ifndef KVASIR_MESSAGES_DIALECT_H
#define KVASIR_MESSAGES_DIALECT_H

#include "server/dialect/dialect.h"
#include "server/generate/delta.h"

/* gen.dialect_state of a stream. */
struct messages_state {
    uint32_t blocks;      /* started so far */
    bool open;            /* the last block is open */
    enum delta_kind kind; /* of its contents */
};

/* messages_blocks.c */
/* `system` and `messages` of root -> g->q.messages; whether the last message is continued. */
enum status messages_read(struct generation *g, json_t *root, bool *go_on);

/* messages_out.c */
void messages_write_response(struct json_writer *o, struct choice *c);
void messages_head(struct generation *g);
void messages_delta(struct choice *c, const struct delta *delta);
void messages_tail(struct choice *c);
void messages_error(struct generation *g);

#endif
