/* Internals of the tokenizer; included by engine/tokenizer only.
 *
 *   runs -> one valid UTF-8 text -> pieces between added tokens -> normalised piece
 *        -> pieces between `normalized` added tokens -> words (pre-tokenizer)
 *        -> [cuts that no merge can cross] -> initial symbols -> merges -> ids -> post-processor
 *
 *   tokenizer/load.c        tokenizer.json -> struct tokenizer    tokenizer/split.c  pre-tokenizer
 *   tokenizer/side_files.c  tokenizer_config.json and others      tokenizer/bpe.c    words -> ids
 *   tokenizer/gguf.c        metadata -> struct tokenizer          tokenizer/added.c  added tokens in a text
 *   tokenizer/vocab.c       strings, merges, token bytes          tokenizer.c        the public functions
 *   tokenizer/text.c        UTF-8 repair, normalisation
 *
 * Nothing here is written after loading: all of it may be used by any number of threads. */
#ifndef KVASIR_TOKENIZER_INTERNAL_H
#define KVASIR_TOKENIZER_INTERNAL_H

#include "config/base/id_table.h"
#include "engine/tokenizer/tokenizer.h"

struct json_doc;

enum {
    TOK_ID_BITS = 21,   /* ids are below 2^21: two of them and a rank share 64 bits */
    TOK_RANK_BITS = 22, /* merges are fewer than 2^22 */
};
#define TOK_ID_LIMIT   (1u << TOK_ID_BITS)
#define TOK_RANK_LIMIT (1u << TOK_RANK_BITS)
#define TOK_NO_ID      UINT32_MAX
#define TOK_NO_RANK    UINT32_MAX
/* Longest text of one call; offsets have 32 bits, and normalising may triple it. */
#define TOK_TEXT_MAX ((size_t)1 << 30)

enum { TOK_EXISTS = 1, TOK_SPECIAL = 2, TOK_ADDED = 4, TOK_IN_MODEL = 8 };

struct tok_span {
    uint32_t at, len; /* bytes of an arena */
};

/* left << 43 | right << 22 | rank per slot; all ones is empty. */
struct tok_merges {
    uint64_t *slots;
    uint32_t mask;
    unsigned shift;
    uint32_t count;
    uint32_t *merged; /* [count] id of the merge with this rank */
};

struct tok_added {
    const char *content; /* its literal */
    size_t len;
    char *needle; /* owned: what is searched, the normalised content of a `normalized` token */
    size_t needle_len;
    uint32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    bool listed;  /* in a side file, or in tokenizer.json where no file lists tokens */
    bool guarded; /* see tok_guard */
};

/* Byte trie over needles. Node 0 is unused, so that 0 means "no node". */
struct tok_trie {
    uint32_t root[256]; /* node after the first byte */
    struct tok_trie_node {
        uint32_t edge, edge_count; /* sorted by byte */
        uint32_t hit;              /* 1 + index into `added`, 0: no needle ends here */
    } * nodes;
    uint8_t *edge_byte;
    uint32_t *edge_node;
    bool any;
};

enum tok_norm_kind {
    TOK_NORM_NFC,
    TOK_NORM_REPLACE,
    TOK_NORM_PREPEND, /* `to`, unless the text is empty */
};
struct tok_norm {
    enum tok_norm_kind kind;
    char *from, *to; /* REPLACE, PREPEND: owned */
    size_t from_len, to_len;
    bool first, once; /* PREPEND: only to what a text begins with; unless it begins with `to` */
};

enum tok_behavior {
    TOK_ISOLATED,
    TOK_MERGED_WITH_PREVIOUS,
    TOK_MERGED_WITH_NEXT,
    TOK_CONTIGUOUS,
    TOK_REMOVED
};
struct tok_split {
    enum tok_pattern pattern;
    enum tok_behavior behavior; /* of LITERAL; the known patterns leave no gaps and are always isolated */
    char *literal;              /* owned */
    size_t literal_len;
};

struct tok_role {
    char *role, *content;   /* owned */
    struct tok_added flags; /* of the token, should it not be an added one yet */
};

enum { TOK_STEPS_MAX = 8, TOK_TEMPLATE_MAX = 8 };

struct tokenizer {
    /* Tokens by id, [vocab_size]. `literal` is the string in the file, `bytes` the token's text. */
    uint32_t vocab_size, id_cap; /* arrays by id have room for id_cap */
    uint32_t model_count;        /* tokens of the model: the first id of others, where it is free */
    struct tok_span *literal, *bytes;
    uint8_t *flags;
    char *literals, *texts; /* arenas */
    size_t literals_len, texts_len;
    uint32_t longest; /* literal, in bytes: no token has more symbols */
    size_t literals_cap, texts_cap;
    struct id_table by_literal; /* all tokens: id + 1, strings in the arena */
    struct id_table by_word;    /* byte-level and ignore_merges only: model tokens by the bytes of `word` */
    struct tok_span *word;

    /* The model. */
    struct tok_merges merges;
    bool byte_level; /* symbols are bytes; otherwise code points */
    bool byte_fallback, fuse_unk, ignore_merges;
    uint32_t byte_id[256];        /* byte-level: the byte's token; otherwise <0xNN>; TOK_NO_ID: none */
    uint32_t *char_pages[0x1100]; /* code point -> 1 + id, pages of 256, NULL: none */
    uint32_t unk_id;
    /* Bit per hash of (last code point of a, first code point of b) of all merges (a, b): if the bit of two
     * neighbours is not set, no merge can join them and the text may be cut there. NULL: the proof failed,
     * nothing is cut. */
    uint64_t *joints;

    struct tok_norm norms[TOK_STEPS_MAX];
    size_t norm_count;
    struct tok_norm spaces[2]; /* of a Metaspace step: applied after the added tokens are cut out */
    size_t space_count;
    struct tok_split splits[TOK_STEPS_MAX];
    size_t split_count;
    uint32_t prefix[TOK_TEMPLATE_MAX], suffix[TOK_TEMPLATE_MAX];
    size_t prefix_count, suffix_count;
    bool decode_byte_level, decode_byte_fallback, decode_strip; /* strip: one space that a text begins with */
    struct tok_norm decode_replace[TOK_STEPS_MAX];
    size_t decode_replace_count;

    struct tok_added *added;
    size_t added_count, added_cap;
    struct tok_trie raw_trie, normal_trie; /* normalized:false, normalized:true */

    struct tok_role *roles;
    size_t role_count, role_cap;
};

/* ---- tokenizer/vocab.c ---- */
uint64_t tok__hash(const void *data, size_t len);
/* Id of a literal, TOK_NO_ID if there is none. */
uint32_t tok__literal_id(const struct tokenizer *t, const char *s, size_t len);
uint32_t tok__word_id(const struct tokenizer *t, const char *s, size_t len); /* by_word */
/* Allocates for ids up to `highest`. */
enum status tok__allocate_vocab(struct tokenizer *t, uint64_t highest, struct err *err) KV_MUST_CHECK;
/* The document that vocab.json and merges.txt of a directory stand for. ST_NOT_FOUND, with err untouched:
 * there are none, or tokenizer_config.json doesn't name their tokenizer_class. */
enum status tok__load_vocab_merges(const char *dir, struct json_doc *out, struct err *err) KV_MUST_CHECK;
/* Reads model.vocab and model.merges of the document; byte_level must be set. */
enum status tok__read_vocab(struct tokenizer *t, const struct json_doc *d, uint32_t vocab, uint32_t added,
                            struct err *err) KV_MUST_CHECK;
enum status tok__read_merges(struct tokenizer *t, const struct json_doc *d, uint32_t merges,
                             struct err *err) KV_MUST_CHECK;
/* Merges by rank, of pairs of tokens whose union is a token. They are looked up in batches. */
#define TOK_MERGE_BATCH 16u
struct tok_merge_reader {
    struct tokenizer *t;
    const char *where; /* in messages */
    struct err *err;
    char *text; /* left and right of each, concatenated */
    size_t used, cap;
    size_t at[TOK_MERGE_BATCH], len[TOK_MERGE_BATCH][2];
    uint32_t entry[TOK_MERGE_BATCH], count;
};
enum status tok__merges_open(struct tok_merge_reader *m, struct tokenizer *t, const char *where,
                             uint64_t count, struct err *err) KV_MUST_CHECK;
/* entry: its number in messages. The strings are copied. */
enum status tok__merges_add(struct tok_merge_reader *m, uint32_t entry, const char *left, size_t left_len,
                            const char *right, size_t right_len) KV_MUST_CHECK;
/* Looks up the rest; returns the error of an earlier entry if there is one, else `st`. */
enum status tok__merges_close(struct tok_merge_reader *m, enum status st) KV_MUST_CHECK;
/* After tok__merges_open, instead of the two above: a pair whose ids are known. */
void tok__merges_put(struct tokenizer *t, uint32_t left, uint32_t right, uint32_t merged);
void tok__merges_prefetch(const struct tokenizer *t, uint32_t left, uint32_t right);
/* Sets the literal of an id above the model's vocabulary. */
enum status tok__add_literal(struct tokenizer *t, uint32_t id, const char *s, size_t len,
                             struct err *err) KV_MUST_CHECK;
/* The id of a literal, which gets the next one after the added tokens if it has none, as in the reference. */
enum status tok__add_token(struct tokenizer *t, const char *s, size_t len, uint32_t *id,
                           struct err *err) KV_MUST_CHECK;
/* Fills byte_id, char_pages, bytes, by_word and joints once vocabulary, merges, added tokens and decoder are
 * known. */
enum status tok__finish_vocab(struct tokenizer *t, struct err *err) KV_MUST_CHECK;

static inline uint32_t tok__merge_rank(const struct tok_merges *m, uint32_t left, uint32_t right)
{
    uint64_t key = (uint64_t)left << TOK_ID_BITS | right;
    uint32_t at = (uint32_t)((key * 0x9E3779B97F4A7C15u) >> m->shift);
    for (;; at++) {
        uint64_t slot = m->slots[at & m->mask];
        if (slot >> TOK_RANK_BITS == key) return (uint32_t)slot & (TOK_RANK_LIMIT - 1);
        if (slot == UINT64_MAX) return TOK_NO_RANK;
    }
}

enum { TOK_JOINT_BITS = 22 };
static inline bool tok__may_join(const uint64_t *joints, uint32_t left_cp, uint32_t right_cp)
{
    uint64_t h = (((uint64_t)left_cp << 21 | right_cp) * 0x9E3779B97F4A7C15u) >> (64 - TOK_JOINT_BITS);
    return joints[h / 64] >> (h % 64) & 1;
}

static inline uint32_t tok__char_id(const struct tokenizer *t, uint32_t cp)
{
    const uint32_t *page = t->char_pages[cp >> 8];
    return page && page[cp & 255] ? page[cp & 255] - 1 : TOK_NO_ID;
}

/* ---- tokenizer/load.c ---- */
struct tok_loader {
    const struct json_doc *d;
    struct tokenizer *t;
    struct err *err;
};
/* A boolean member; `absent` when it is missing or null. */
enum status tok__get_bool(struct tok_loader *l, uint32_t node, const char *where, const char *key,
                          bool absent, bool *out) KV_MUST_CHECK;
/* A string member, owned by the caller. */
enum status tok__get_string(struct tok_loader *l, uint32_t node, const char *where, const char *key,
                            char **out, size_t *len) KV_MUST_CHECK;
/* Flags of an added token's object. Without "normalized" special tokens are matched raw, as in the
 * reference. */
enum status tok__read_flags(struct tok_loader *l, uint32_t node, const char *where, bool special,
                            struct tok_added *out) KV_MUST_CHECK;
/* Makes that token an added one, or changes its flags. */
enum status tok__put_added(struct tokenizer *t, uint32_t id, const struct tok_added *flags,
                           struct err *err) KV_MUST_CHECK;
/* Derives the rest from vocabulary, merges, added tokens and steps, all complete except `extra`. */
enum status tok__finish(struct tokenizer *t, const struct tok_extra *extra, size_t extra_count,
                        struct err *err) KV_MUST_CHECK;

/* ---- tokenizer/side_files.c ---- */
/* Keeps role: content; a later one replaces an earlier one. */
enum status tok__put_role(struct tokenizer *t, const char *role, const char *content, size_t len,
                          const struct tok_added *flags, struct err *err) KV_MUST_CHECK;
/* Tokens that the roles name become added ones, unless they are: bos_token to mask_token, then the rest. */
enum status tok__add_roles(struct tokenizer *t, struct err *err) KV_MUST_CHECK;
/* DIR/tokenizer_config.json, special_tokens_map.json and added_tokens.json, where they exist. */
enum status tok__read_side_files(struct tokenizer *t, const char *dir, struct err *err) KV_MUST_CHECK;

/* ---- tokenizer/text.c ---- */
/* A text and, if its runs differ in control, the control of every byte. */
struct tok_text {
    const uint8_t *s;
    size_t len;
    const uint8_t *control; /* [len] enum tok_control; NULL: `all` for every byte */
    enum tok_control all;
};
struct tok_textbuf {
    uint8_t *s, *control; /* control stays NULL if all are equal */
    size_t len, cap;
    bool mixed;
};
void tok__textbuf_fini(struct tok_textbuf *b);
/* Joins runs into one valid text: borrowed from the only run where possible, else in *own. */
enum status tok__join_runs(const struct tok_run *runs, size_t run_count, struct tok_textbuf *own,
                           struct tok_text *out, struct err *err) KV_MUST_CHECK;
/* Whether normalising leaves every substring of s unchanged. */
bool tok__is_normal(const struct tokenizer *t, const uint8_t *s, size_t len);
/* Appends x with every occurrence replaced (rule of kind REPLACE). */
enum status tok__replace(const struct tok_norm *rule, const struct tok_text *x,
                         struct tok_textbuf *out) KV_MUST_CHECK;
/* Appends the piece to out after the steps; first: a text begins with it. */
enum status tok__normalize(const struct tok_norm *steps, size_t count, const struct tok_text *piece,
                           bool first, struct tok_textbuf *out) KV_MUST_CHECK;

/* ---- tokenizer/split.c ---- */
/* End of the word that starts at s[at]; at < len; s is valid UTF-8. */
size_t tok__next_word(enum tok_pattern pattern, const uint8_t *s, size_t len, size_t at);

/* ---- tokenizer/added.c ---- */
enum status tok__build_trie(struct tok_trie *trie, const struct tok_added *added, size_t count,
                            bool normalized) KV_MUST_CHECK;
void tok__trie_fini(struct tok_trie *trie);
/* Cuts a text at added tokens: calls text_fn for the text between them and token_fn for ids, in order; stops
 * at the first failure. */
struct tok_added_sink {
    enum status (*text)(void *ctx, const struct tok_text *stretch);
    enum status (*token)(void *ctx, uint32_t id);
    void *ctx;
};
enum status tok__find_added(const struct tokenizer *t, const struct tok_trie *trie,
                            const struct tok_text *text, const struct tok_added_sink *sink) KV_MUST_CHECK;

/* ---- tokenizer/bpe.c ---- */
struct tok_word_slot {
    uint32_t at, ids_at; /* offset of the word in the text and of its ids in the output */
    uint16_t len, count; /* len 0: empty slot */
};
/* One call of tok_encode. */
struct tok_encoder {
    const struct tokenizer *t;
    uint32_t *ids; /* output */
    size_t count, cap, ids_max;
    const uint8_t *base;         /* the text that contains all words */
    struct tok_word_slot *cache; /* NULL for short texts */
    uint32_t cache_mask;
    /* Scratch of long words: linked list of symbols and heap of rank << 32 | position. */
    uint32_t *sym, *rank, *prev, *next;
    uint64_t *heap;
    size_t scratch_cap, heap_cap;
};
enum status tok__emit(struct tok_encoder *e, uint32_t id) KV_MUST_CHECK;
/* One word of the pre-tokenizer, inside e->base. */
enum status tok__encode_word(struct tok_encoder *e, const uint8_t *s, size_t len) KV_MUST_CHECK;
void tok__encoder_fini(struct tok_encoder *e);

#endif
