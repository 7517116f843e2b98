/* What chat completions and completions share of their responses. Internal to server/dialect/. Event loop's
 * thread, or a worker's while it writes a whole response. */
#ifndef KVASIR_OPENAI_DIALECT_H
#define KVASIR_OPENAI_DIALECT_H

#include "server/dialect/dialect.h"
#include "server/dialect/logprobs_out.h"
#include "server/generate/delta.h"

/* What they differ in. */
struct openai_form {
    const char *id, *object, *chunk; /* the beginning of an id, the types of a response and of a chunk */
    const char *empty;               /* the text of a chunk that has none */
    bool prompt_each;                /* choices have ids and log-probs of their prompt, which may be many */
    void (*text)(struct json_writer *o, const struct choice *c); /* of a choice, whole */
    void (*delta)(struct json_writer *o, struct choice *c, const struct delta *delta);
    void (*logprobs)(struct json_writer *o, struct logprobs *l); /* those not yet written */
};
extern const struct openai_form openai_chat, openai_completions;

/* openai_out.c */
void openai_response(struct json_writer *o, struct choice *first);
/* Text of the output, after the prompt's if it is echoed. */
void openai_text(struct json_writer *o, const struct choice *c, const char *text, size_t len);
void openai_chunk_begin(struct json_writer *o, const struct choice *c);
/* counted: its tokens are in the running usage. finish: it carries a finish_reason. */
void openai_chunk_end(struct json_writer *o, struct generation *g, bool counted, bool finish);
/* The first chunk had null and no content followed: an empty string is to be sent, as without streaming. */
bool openai_content_missing(const struct choice *c);
void openai_news(struct choice *c);
void openai_progress(struct choice *c, const struct sched_event *ev);
void openai_tail(struct choice *first);
void openai_error(struct generation *g);

/* chat_out.c */
void chat_head(struct generation *g);
/* completions_out.c: tokens, token_logprobs, top_logprobs, text_offset */
enum status completion_logprob(struct choice *c, const struct token_out *t, uint32_t id, size_t offset);

#endif
