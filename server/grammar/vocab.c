/* See vocab.h. */
#include "config/base/assert.h"
#include "config/base/list.h"
#include "server/grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

const struct token_class_kind token_class_kinds[TOKEN_CLASSES] = {
    {TOKEN_CLASS_ORDINARY, RX_NO_LIMIT}, {TOKEN_CLASS_ORDINARY, 32}, {TOKEN_CLASS_WORD, 32},
    {TOKEN_CLASS_ORDINARY, 16},          {TOKEN_CLASS_ORDINARY, 8},  {TOKEN_CLASS_ORDINARY, 4}};
#define TOKEN_MAX 4096u /* bytes; longer tokens are never allowed */

void grammar_vocab_free(struct grammar_vocab *v)
{
    if (!v) return;
    for (int i = 0; i < TOKEN_CLASSES; i++) {
        free(v->token_classes[i].bits);
        free(v->token_classes[i].rest.nodes);
    }
    free(v->all.nodes);
    free(v->end_ids);
    free(v->bytes);
    free(v->at);
    free(v->twin);
    free(v->tag);
    free(v);
}

/* Number of characters if a token consists only of the class's characters; else RX_NO_LIMIT. Uses the same
 * expression as the states, so that both agree. */
static uint32_t chars_of(struct rx_pool *p, rx one, const uint8_t *s, size_t len)
{
    uint32_t n = 0;
    rx left = one;
    for (size_t i = 0; i < len; i++) {
        left = rx_derivative(p, left, s[i]);
        if (!left) return RX_NO_LIMIT;
        if (!rx_nullable(p, left)) continue;
        left = one;
        n++;
    }
    return left == one ? n : RX_NO_LIMIT;
}

struct sorted {
    const uint8_t *s;
    uint32_t len, id, chars[TOKEN_CLASS_KINDS];
};

static int by_bytes(const void *a, const void *b)
{
    const struct sorted *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->len < y->len ? x->len : y->len);
    if (c) return c;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool node_put(struct trie *t, uint8_t byte, uint16_t depth)
{
    if (!LIST_RESERVE(t->nodes, t->cap, t->count + 1u)) return false;
    t->nodes[t->count++] = (struct trie_node){.token = NO_TOKEN, .depth = depth, .byte = byte};
    return true;
}

static bool in_token_class(const struct sorted *x, const struct token_class_kind *k)
{
    return k && x->chars[k->what] != RX_NO_LIMIT && x->chars[k->what] <= k->chars;
}

/* The trie of tokens outside the class. NULL: of all. */
static bool trie_make(struct trie *t, const uint32_t *twin, const struct sorted *list, size_t n,
                      const struct token_class_kind *without)
{
    uint32_t path[TOKEN_MAX + 1], depth = 0;
    const struct sorted *last = NULL;
    for (size_t i = 0; i < n; i++) {
        const struct sorted *x = &list[i];
        if (in_token_class(x, without)) continue;
        if (last && last->len == x->len && memcmp(last->s, x->s, x->len) == 0) continue; /* same bytes */
        ASSERT(x->len && x->len <= TOKEN_MAX);
        uint32_t same = 0;
        while (last && same < x->len && same < depth && last->s[same] == x->s[same]) same++;
        while (depth > same) t->nodes[path[--depth]].skip = t->count;
        while (depth < x->len) {
            path[depth] = t->count;
            if (!node_put(t, x->s[depth], (uint16_t)(depth + 1))) return false;
            depth++;
        }
        t->nodes[path[depth - 1]].token = x->id;
        t->nodes[path[depth - 1]].twins = twin[x->id] != NO_TOKEN;
        last = x;
    }
    while (depth) t->nodes[path[--depth]].skip = t->count;
    LIST_FIT(t->nodes, t->cap, t->count);
    return true;
}

static bool copy_bytes(struct grammar_vocab *v, const struct grammar_token *tokens, const uint32_t *tags,
                       uint32_t tag_count)
{
    size_t all = tag_count;
    for (uint32_t i = 0; i < v->count; i++) all += tokens[i].bytes ? tokens[i].len : 0;
    v->bytes = malloc(all + 1);
    v->at = calloc(v->count + 1u, sizeof *v->at);
    v->twin = malloc((v->count + 1u) * sizeof *v->twin);
    v->tag = calloc(v->count + 1u, sizeof *v->tag);
    if (!v->bytes || !v->at || !v->twin || !v->tag) return false;
    memset(v->twin, 0xFF, v->count * sizeof *v->twin);
    for (uint32_t i = 0; i < tag_count; i++)
        if (tags[i] < v->count) v->tag[tags[i]] = true;
    size_t at = 0;
    for (uint32_t i = 0; i < v->count; i++) {
        bool end = false;
        v->at[i] = at;
        for (uint32_t k = 0; k < v->end_count; k++) end = end || v->end_ids[k] == i;
        if (!tokens[i].bytes || !tokens[i].len || tokens[i].len >= TOKEN_MAX || end) continue;
        /* The byte is in no UTF-8 text. Without its byte token the mark is outside of all that is written. */
        if (memchr(tokens[i].bytes, TAG_MARK, tokens[i].len)) continue;
        if (v->tag[i]) v->bytes[at++] = TAG_MARK;
        memcpy(v->bytes + at, tokens[i].bytes, tokens[i].len);
        at += tokens[i].len;
    }
    ASSERT_CMP(at, <=, all);
    v->at[v->count] = at;
    return true;
}

static bool tries_make(struct grammar_vocab *v, struct rx_pool *p, struct sorted *list)
{
    rx one[TOKEN_CLASS_KINDS];
    size_t n = 0;
    for (int k = 0; k < TOKEN_CLASS_KINDS; k++) one[k] = grammar__character(p, (enum token_class_of_what)k);
    for (uint32_t i = 0; i < v->count; i++) {
        const uint8_t *s = v->bytes + v->at[i];
        uint32_t len = (uint32_t)(v->at[i + 1] - v->at[i]);
        if (len > v->depth) v->depth = len;
        if (!len) continue;
        list[n] = (struct sorted){s, len, i, {0}};
        for (int k = 0; k < TOKEN_CLASS_KINDS; k++) list[n].chars[k] = chars_of(p, one[k], s, len);
        n++;
    }
    if (rx_status(p)) return false;
    qsort(list, n, sizeof *list, by_bytes);
    for (size_t i = 1; i < n; i++)
        if (list[i].len == list[i - 1].len && memcmp(list[i].s, list[i - 1].s, list[i].len) == 0)
            v->twin[list[i - 1].id] = list[i].id;
    for (int k = 0; k < TOKEN_CLASSES; k++) {
        v->token_classes[k].bits = calloc(v->words + 1u, sizeof(uint32_t));
        if (!v->token_classes[k].bits ||
            !trie_make(&v->token_classes[k].rest, v->twin, list, n, &token_class_kinds[k]))
            return false;
        for (size_t i = 0; i < n; i++)
            if (in_token_class(&list[i], &token_class_kinds[k]))
                v->token_classes[k].bits[list[i].id >> 5] |= 1u << (list[i].id & 31);
    }
    return trie_make(&v->all, v->twin, list, n, NULL);
}

enum status grammar_vocab_create(const struct grammar_token *tokens, uint32_t count, const uint32_t *end_ids,
                                 uint32_t end_count, const uint32_t *tags, uint32_t tag_count,
                                 struct grammar_vocab **out, struct err *err)
{
    struct grammar_vocab *v = calloc(1, sizeof *v);
    struct rx_pool *p = NULL;
    struct sorted *list = calloc((size_t)count + 1, sizeof *list);
    bool ok = v && list;
    if (ok) {
        v->count = count;
        v->words = count / 32 + (count % 32 != 0);
        v->end_ids = malloc((end_count + 1u) * sizeof *v->end_ids);
        ok = v->end_ids != NULL;
    }
    if (ok) {
        for (uint32_t i = 0; i < end_count; i++)
            if (end_ids[i] < count) v->end_ids[v->end_count++] = end_ids[i];
        ok = copy_bytes(v, tokens, tags, tag_count) && rx_pool_create(1u << 16, &p) == ST_OK &&
             tries_make(v, p, list);
    }
    rx_pool_free(p);
    free(list);
    if (!ok) {
        grammar_vocab_free(v);
        return err_nomem(err, "the tokens of grammars");
    }
    *out = v;
    return ST_OK;
}

gx gb_tag(struct grammar_builder *b, const struct grammar_vocab *v, const char *text)
{
    size_t len = strlen(text);
    char marked[128];
    for (uint32_t i = 0; i < v->count && len < sizeof marked; i++) {
        if (!v->tag[i] || v->at[i + 1] - v->at[i] != len + 1) continue;
        if (memcmp(v->bytes + v->at[i] + 1, text, len) != 0) continue;
        marked[0] = (char)TAG_MARK;
        memcpy(marked + 1, text, len);
        return gb_literal(b, marked, len + 1);
    }
    return gb_literal(b, text, len);
}
