/* Shared by the files of the /v1/responses dialect. Internal to server/dialect/. */
#ifndef KVASIR_RESPONSES_DIALECT_H
#define KVASIR_RESPONSES_DIALECT_H

#include "server/dialect/dialect.h"
#include "server/dialect/logprobs_out.h"
#include "server/dialect/reader.h"
#include "server/dialect/store.h"
#include "server/generate/delta.h"
#include "server/json/writer.h"

/* A text between calls: its tokens' log-probs begin at `from`. */
struct logprobs_part {
    uint32_t calls; /* before it */
    size_t from;
};

/* gen.dialect_state. Owned by the worker, then by the loop. */
struct responses_state {
    char id[RESPONSE_ID_BYTES];
    struct response_owner owner;
    struct response_kept *before; /* the previous response, or NULL; a reference */
    bool store, local;            /* it will be stored; it will be for its WebSocket alone */
    bool compact;                 /* the output is a summary of the conversation */
    bool warm;                    /* generate: false: one token, which is dropped */
    bool sealed;                  /* reasoning is also sent as encrypted_content */
    json_t *renamed; /* {name in the prompt: {"custom", "namespace", "name"}}: tools that are not plain
                        functions; owned */
    json_t *allowed; /* allowed_tools by their names in the prompt, or NULL; owned */
    json_t *items;   /* to be stored: the input's; of a compaction: the instructions. Owned */
    struct buf echo; /* fields of the response that only repeat the request */
    /* output */
    size_t seen_content;     /* bytes of content whose tokens are counted */
    uint32_t seen_reasoning; /* tokens */
    bool in_call;            /* after the last token */
    struct buf logprobs;     /* entries of tokens that appear in text */
    struct logprobs_part *parts;
    uint32_t part_count, part_cap;
    size_t accounted;
    /* streaming */
    uint64_t sequence; /* of the next event */
    uint32_t items_begun;
    bool open; /* the last item is open */
    enum delta_kind kind;
    uint32_t call;
    size_t from;           /* a text: its start in the content */
    size_t logprobs_shown; /* sent in deltas */
};

/* Prefix of the text in the encrypted_content of a reasoning or compaction item. The text is not secret, and
 * another server of the same model must be able to read it. */
#define SEALED_TEXT "kvasir:"

/* responses_items.c */
/* The name in the prompt of a namespace's tool; name_space NULL: of a plain one. A new string. */
json_t *responses_tool_name(const json_t *name_space, const json_t *name);
/* `input`, previous responses and `instructions` -> messages of a chat. */
enum status responses_messages(struct reader *r, struct responses_state *s);
/* The input as listed -> s->items. */
enum status responses_items_keep(struct reader *r, struct responses_state *s);
/* The system and developer messages of a conversation that is compacted -> s->items. */
enum status responses_instructions_keep(struct reader *r, struct responses_state *s);

/* responses_out.c */
void response_item_id(struct json_writer *o, const struct responses_state *s, const struct output_item *item);
void response_item_write(struct json_writer *o, struct choice *c, const struct output_item *item);
/* {"type":"output_text",..} or {"type":"reasoning_text",..} */
void response_part_write(struct json_writer *o, struct choice *c, const struct output_item *item);
/* [..] of the text from `from` up to `to` (SIZE_MAX: its end). */
void response_logprobs_write(struct json_writer *o, const struct responses_state *s, size_t from, size_t to);
/* The log-probs of the text that begins at `from` of the content. */
void response_logprobs_range(const struct choice *c, size_t from, size_t *begin, size_t *end);
/* A message item without text is needed because there is no other item. */
bool response_text_missing(const struct choice *c);
/* The token limit ended the output. */
bool response_incomplete(const struct choice *c);
/* The last item, of this kind, is not complete. */
bool response_cut(const struct choice *c, enum delta_kind last);
/* c NULL: without output. error: of a failed response, else NULL. */
void response_write(struct json_writer *o, struct generation *g, const char *status, struct choice *c,
                    const struct api_error *error);
/* At the end: writes the response and stores it. */
void response_finish(struct json_writer *o, struct choice *c);
/* The whole response of a compaction. */
void response_compact(struct json_writer *o, struct choice *c);
void responses_token(struct choice *c);
/* The tool of a call in s->renamed, or NULL: a plain function. */
const json_t *response_tool(const struct choice *c, uint32_t call);
/* ,KEY:"..": the free text in a custom tool's arguments. */
void response_input_write(struct json_writer *o, const char *key, const struct buf *arguments);

/* A response that failed is not continued over its WebSocket: forgets the one before it. */
void responses_evict(struct generation *g);

/* responses_stream.c */
void responses_head(struct generation *g);
void responses_delta(struct choice *c, const struct delta *delta);
void responses_tail(struct choice *c);
void responses_error(struct generation *g);

#endif
