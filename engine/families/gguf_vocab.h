/* What a GGUF file says of its tokenizer by name only: tokenizer.ggml.model and tokenizer.ggml.pre stand for
 * rules that a tokenizer.json spells out. Pure. */
#ifndef KVASIR_GGUF_VOCAB_H
#define KVASIR_GGUF_VOCAB_H

#include "config/gguf/gguf.h"

#include <stdbool.h>

enum gguf_bos {
    GGUF_BOS_IF_STATED,  /* tokenizer.ggml.add_bos_token decides; without it there is none */
    GGUF_BOS_UNLESS_NOT, /* it decides; without it there is one */
    GGUF_BOS_ALWAYS,     /* whatever it says: early files of this kind are wrong about it */
};
struct gguf_vocab {
    const char *model; /* tokenizer.ggml.model */
    const char *pre;   /* tokenizer.ggml.pre, several between bars; NULL: whatever it is, if anything */
    /* Byte-level: the pre-tokenizer's regular expression. NULL: SentencePiece-style, with U+2581 for spaces
     * and <0xNN> for the bytes of characters without a token. */
    const char *split;
    bool nfc; /* the text is normalised first */
    /* User-defined tokens and markers are special in the original; the converter marked some so that other
     * servers show them. */
    bool user_special;
    /* NULL-terminated: tokens that are special in the original and in some files are normal ones. */
    const char *const *markers;
    /* NULL, or: where the model has a tower and `picture` is no token that the embedding has a row for,
     * `spare`, which nobody writes, takes its name. */
    const char *picture, *spare;
    enum gguf_bos bos;
};

/* NULL: we know no such pair. An absent `pre` is the empty string. */
const struct gguf_vocab *gguf_vocab_find(struct gguf_text model, struct gguf_text pre);

#endif
