/* What the files of the dialect of /v1/messages share. Internal to server/dialect/. */
#ifndef KVASIR_MESSAGES_DIALECT_H
#define KVASIR_MESSAGES_DIALECT_H

#include "server/dialect/dialect.h"
#include "server/generate/pieces.h"

/* Where a message of the chat, or a part of it, stands in the client's request. */
struct place {
    uint32_t chat;        /* messages[chat] of the chat */
    int32_t part;         /* its content[part]; -1: the message */
    uint32_t message;     /* the client's; UINT32_MAX: `system` */
    int32_t block, inner; /* its content[block], and of a tool_result content[inner]; -1: none */
};

/* gen.dialect_state. The worker's, then the loop's. */
struct messages_state {
    /* of a stream */
    uint32_t blocks;      /* begun so far */
    bool open;            /* the last one is not ended */
    enum piece_kind kind; /* of what stands in it */
    /* of the translation */
    size_t place_count, place_cap;
    struct place places[];
};

/* messages_blocks.c */
struct translation {
    struct gen *g;
    struct api_error *e;
    json_t *chat;  /* messages of the chat; owned by who began it */
    size_t at;     /* message being read */
    bool tools;    /* the request has some */
    size_t blocks; /* read so far */
};
/* `system` and `messages` of root -> t->chat; of chat_root, whether the last message is continued. */
enum status messages_translate_chat(struct translation *t, json_t *root, json_t *chat_root);

/* messages_out.c */
void messages_answer(struct gen *g);
void messages_stream_token(struct choice *c);
void messages_stream(struct gen *g);
void messages_stream_error(struct request *r);

#endif
