/* What the files of the dialect of /v1/responses share. Internal to server/dialect/. */
#ifndef KVASIR_RESPONSES_DIALECT_H
#define KVASIR_RESPONSES_DIALECT_H

#include "server/dialect/dialect.h"
#include "server/dialect/reader.h"
#include "server/dialect/store.h"
#include "server/generate/delta.h"
#include "server/http/json_writer.h"

/* Of a text between calls: the log-probs of its tokens begin at `from`. */
struct logprobs_part {
    uint32_t calls; /* before it */
    size_t from;
};

/* gen.dialect_state. The worker's, then the loop's. */
struct responses_state {
    char id[RESPONSE_ID_BYTES];
    struct response_owner owner;
    struct response_kept *before; /* what it follows upon, or NULL; taken */
    bool store;                   /* it is to be kept */
    bool has_temperature, has_top_p;
    struct buf items; /* the input items, to be kept */
    struct buf echo;  /* fields of the response that only repeat the request */
    /* of the answer */
    size_t seen_content;     /* bytes of it that have their tokens */
    uint32_t seen_reasoning; /* tokens */
    bool in_call;            /* after the last token */
    struct buf logprobs;     /* entries of tokens that are shown as text */
    struct logprobs_part *parts;
    uint32_t part_count;
    size_t accounted;
    /* of a stream */
    uint64_t sequence; /* of the next event */
    uint32_t items_begun;
    bool open; /* the last one is not ended */
    enum delta_kind kind;
    uint32_t call;
    size_t from;           /* a text: where it begins in the content */
    size_t logprobs_shown; /* by deltas */
};

/* responses_items.c */
/* `input`, what it follows upon, and `instructions` -> messages of a chat. */
enum status responses_messages(struct reader *r, struct responses_state *s);
/* The input, in the form in which it is kept and listed -> s->items. */
enum status responses_items_keep(struct reader *r, struct responses_state *s);

/* responses_out.c: one item of a response. */
struct response_item {
    enum delta_kind kind; /* REASONING, CONTENT, CALL */
    uint32_t index;
    uint32_t call;   /* CALL */
    size_t from, to; /* CONTENT: of the content */
    enum { ITEM_BEGUN, ITEM_WHOLE, ITEM_CUT } state;
};
void response_item_id(struct json_writer *o, const struct responses_state *s,
                      const struct response_item *item);
void response_item_write(struct json_writer *o, struct choice *c, const struct response_item *item);
/* {"type":"output_text",..} or {"type":"reasoning_text",..} */
void response_part_write(struct json_writer *o, struct choice *c, const struct response_item *item);
/* [..] of the text from `from` on; to = SIZE_MAX: all of it. */
void response_logprobs_write(struct json_writer *o, const struct responses_state *s, size_t from, size_t to);
/* Of the text that begins at `from` of the content: its log-probs. */
void response_logprobs_range(const struct choice *c, size_t from, size_t *begin, size_t *end);
/* An item of type message is due though it has no text: there is no other. */
bool response_text_missing(const struct choice *c);
/* c NULL: without output. error: of a failed one, else NULL. */
void response_write(struct json_writer *o, struct gen *g, const char *status, struct choice *c,
                    const struct api_error *error);
/* The end: writes the response and keeps it. */
void response_finish(struct json_writer *o, struct choice *c);
void responses_token(struct choice *c);
void responses_write_response(struct gen *g);

/* responses_stream.c */
void responses_stream_token(struct choice *c);
void responses_stream(struct gen *g);
void responses_stream_error(struct request *r);

#endif
