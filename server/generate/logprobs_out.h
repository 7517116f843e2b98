/* Log-probabilities as JSON, in the shape of chat completions or of legacy completions. Entries are rendered
 * per token; a chunk or the response takes those rendered so far. Event loop's thread. */
#ifndef KVASIR_LOGPROBS_OUT_H
#define KVASIR_LOGPROBS_OUT_H

#include "engine/sample/sampling.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/json/writer.h"

struct logprobs_acc {
    const struct tokenizer *tok; /* borrowed */
    bool legacy, as_ids;         /* as_ids: "token_id:42" instead of the text */
    bool special_bytes; /* chat: special tokens have bytes too, because the text shows them; may change from
                           token to token */
    uint32_t top;       /* alternatives per token */
    /* chat: part[0] = entries; legacy: tokens, token_logprobs, top_logprobs, text_offset */
    struct buf part[4];
    uint32_t count;
};
void logprobs_init(struct logprobs_acc *a, const struct tokenizer *tok, bool legacy, bool as_ids,
                   uint32_t top);
void logprobs_fini(struct logprobs_acc *a);
/* offset = code points of the choice's text before this token (legacy only). */
enum status logprobs_add(struct logprobs_acc *a, const struct token_out *t, size_t offset) KV_MUST_CHECK;
/* Legacy: the first token of an echoed prompt has no value. */
enum status logprobs_add_null(struct logprobs_acc *a, uint32_t id, size_t offset) KV_MUST_CHECK;
/* Writes the object and resets. */
void logprobs_take(struct logprobs_acc *a, struct json_writer *o);
/* Chat: the entries only, comma-separated; o NULL: drops them. */
void logprobs_take_entries(struct logprobs_acc *a, struct json_writer *o);

/* One element of `prompt_logprobs`: {"<id>":{"logprob":..,"rank":..,"decoded_token":..},..} */
void logprobs_prompt_entry(struct json_writer *o, const struct tokenizer *tok, const struct token_out *t,
                           uint32_t top);

#endif
