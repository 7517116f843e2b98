/* tokenizer.json or GGUF metadata -> ids and back: the BPE families of the supported checkpoints (byte-level
 * with a pre-tokenizer; SentencePiece-style with byte fallback), added tokens, incremental detokenizing.
 * Reference: the `tokenizers` library. A loaded tokenizer is immutable and shared by all threads; encode uses
 * only the caller's stack and heap. */
#ifndef KVASIR_TOKENIZER_H
#define KVASIR_TOKENIZER_H

#include "config/base/buf.h"
#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Tokens that a family's processor adds to the tokenizer that the files describe: PREFIX, a number of
 * `digits` digits from 0 to count - 1 (none with digits 0), SUFFIX. */
struct tok_extra {
    const char *prefix, *suffix;
    uint32_t digits, count;
    bool special;
};
/* Reads DIR/tokenizer.json and, where they exist, tokenizer_config.json, special_tokens_map.json and
 * added_tokens.json: what these add or name may have ids beyond the model's vocabulary. Tokens in `extra`
 * that the vocabulary has become added tokens. ST_UNSUPPORTED names an unsupported component type, pattern or
 * option; never assumes. */
enum status tok_load_extra(const char *dir, const struct tok_extra *extra, size_t extra_count,
                           struct tokenizer **out, struct err *err) KV_MUST_CHECK;

/* The supported pre-tokenizers, by their regular expressions in load.c. */
enum tok_pattern {
    TOK_PATTERN_DIGIT,
    TOK_PATTERN_DIGITS3,
    TOK_PATTERN_DIGITS,
    TOK_PATTERN_DIGIT_MARKS,
    TOK_PATTERN_DIGIT_BARE,
    TOK_PATTERN_PLAIN,
    TOK_PATTERN_CASED,
    TOK_PATTERN_NUMBERS,
    TOK_PATTERN_NUMBERS3,
    TOK_PATTERN_LITERAL
};
enum tok_bos {
    TOK_BOS_IF_STATED,  /* tokenizer.ggml.add_bos_token decides; without it there is none */
    TOK_BOS_UNLESS_NOT, /* the same; without it there is one */
    TOK_BOS_ALWAYS,     /* there is one, whatever it says: early files of this kind are wrong */
};
/* What a GGUF file gives only by the name of its tokenizer. */
struct tok_gguf_kind {
    const char *arch;       /* general.architecture, alternatives between bars; NULL: any */
    const char *model;      /* tokenizer.ggml.model */
    const char *pre;        /* tokenizer.ggml.pre, alternatives between bars; NULL: any or none */
    bool byte_level;        /* false: SentencePiece-style, with U+2581 for spaces and <0xNN> for the bytes of
                             * characters without a token */
    enum tok_pattern split; /* byte-level: the pre-tokenizer */
    enum tok_pattern first; /* before it; 0: none */
    bool ignore_merges;
    bool space_prefix; /* unless tokenizer.ggml.add_space_prefix says otherwise: one before every piece */
    bool nfc;          /* the text is normalised first */
    /* User-defined tokens and markers are special in the original, whatever the converter marked them as. */
    bool user_special;
    /* NULL-terminated: tokens that are special in the original but normal in some files. */
    const char *const *markers;
    /* NULL, or: if the model has a tower and the embedding has no row for the token `image`, the unused token
     * `spare` takes its name. */
    const char *image, *spare;
    enum tok_bos bos;
};
struct gguf;
/* From a GGUF file's metadata. tower: the model has one, in another file. */
enum status tok_load_gguf(const struct gguf *g, const struct tok_gguf_kind *kind, bool tower,
                          const struct tok_extra *extra, size_t extra_count, struct tokenizer **out,
                          struct err *err) KV_MUST_CHECK;
void tok_free(struct tokenizer *t); /* NULL is fine */
/* Guards every added token whose content occurs in `text`, the source of the checkpoint's chat template, and
 * isn't plain text: what the template writes is control, so users can't type it. Call it before the tokenizer
 * is shared. */
void tok_guard(struct tokenizer *t, const char *text, size_t len);

/* Which added tokens a piece of text may match; any others are tokenized as ordinary text. UNGUARDED is for
 * text typed by a user: "<h1>" can be an added token and is a word there, "<tool_call>" is the template's. */
enum tok_control {
    TOK_CONTROL_ALL = 0,        /* every one (text that a template wrote) */
    TOK_CONTROL_NONSPECIAL = 1, /* only those that are not `special` (an assistant's own earlier output) */
    TOK_CONTROL_UNGUARDED = 2,  /* of those, only the ones that tok_guard didn't name */
    TOK_CONTROL_NONE = 3,       /* none at all */
};

/* A piece of UTF-8 text. Runs form one text: merges cross their borders as in one string; only the matching
 * of control tokens is decided per byte: an added token matches only if ALL of its bytes lie in runs that
 * allow it. */
struct tok_run {
    const char *text; /* borrowed for the call */
    size_t len;       /* bytes; U+0000 is ordinary text */
    enum tok_control control;
};

struct tok_ids {
    uint32_t *ids; /* owned: free with tok_ids_free */
    size_t count;
};
void tok_ids_free(struct tok_ids *ids);

/* Encodes the concatenation of the runs. add_special applies the post-processor (BOS), but never doubles a
 * BOS that the text already starts with. Invalid UTF-8 is repaired with U+FFFD. ST_TOO_LARGE: more than
 * ids_max ids. O(n log n) on any input. */
enum status tok_encode(const struct tokenizer *t, const struct tok_run *runs, size_t run_count,
                       bool add_special, size_t ids_max, struct tok_ids *out, struct err *err) KV_MUST_CHECK;

uint32_t tok_vocab_size(const struct tokenizer *t); /* 1 + the highest id; ids in between may have no token */
/* The exact bytes of the token in the output text ("▁" already a space, <0xNN> the byte, an added token its
 * content). Empty for an id without a token. Borrowed from t. */
const char *tok_bytes(const struct tokenizer *t, uint32_t id, size_t *len);
bool tok_exists(const struct tokenizer *t, uint32_t id);
bool tok_is_special(const struct tokenizer *t,
                    uint32_t id); /* an added token with special:true: dropped by skip_special_tokens */
bool tok_is_added(const struct tokenizer *t, uint32_t id);
/* Id of a token by its literal vocabulary or added-token content; false if there is none. */
bool tok_id_of(const struct tokenizer *t, const char *content, size_t len, uint32_t *id);
/* Special-token strings as tokenizer_config.json names them: role is "bos_token", "eos_token", "pad_token",
 * "unk_token"... Enumerates all of them (chat templates get every one as a variable); false past the end. */
bool tok_special_role(const struct tokenizer *t, size_t idx, const char **role, const char **content);

/* Incremental detokenizing: bytes come out only on UTF-8 boundaries; broken sequences become U+FFFD as
 * specified by WHATWG (one per maximal invalid subpart). The concatenation of all pushes and the flush is THE
 * text of a generation, streamed or not. */
struct detok {
    const struct tokenizer *t;
    bool skip_special, strip; /* strip: a space that the text begins with */
    uint8_t pending_len;
    uint8_t pending[4];
};
void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special);
enum status detok_push(struct detok *d, uint32_t id,
                       struct buf *out) KV_MUST_CHECK; /* appends complete characters only */
enum status detok_flush(struct detok *d,
                        struct buf *out) KV_MUST_CHECK; /* a dangling tail becomes one U+FFFD */

#endif
