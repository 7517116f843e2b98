/* A tokenizer's tokens as tries over their bytes. Internal to server/grammar/. */
#ifndef KVASIR_GRAMMAR_VOCAB_H
#define KVASIR_GRAMMAR_VOCAB_H

#include "server/grammar/machine.h"

#define NO_TOKEN UINT32_MAX
/* Precedes the bytes of a special token: never occurs in text. */
#define TAG_MARK 0xFF

struct trie_node { /* depth first: the children of a node follow it */
    uint32_t skip; /* the node after its subtree */
    uint32_t token;
    uint16_t depth; /* of top-level nodes: 1 */
    uint8_t byte;
    bool twins; /* other tokens have the same bytes: see `twin` */
};
struct trie {
    struct trie_node *nodes;
    uint32_t count;
    size_t cap;
};

struct grammar_vocab {
    uint32_t count, words;
    uint32_t *end_ids, end_count;
    uint8_t *bytes; /* of all tokens, concatenated */
    size_t *at;     /* [count + 1] */
    uint32_t *twin; /* [count]: the next token with the same bytes, or NO_TOKEN */
    bool *tag;      /* [count]: matches only itself: TAG_MARK precedes its text */
    uint32_t depth; /* of the deepest trie */
    struct trie all;
    struct {
        uint32_t *bits; /* [words] */
        struct trie rest;
    } token_classes[TOKEN_CLASSES];
};

#endif
