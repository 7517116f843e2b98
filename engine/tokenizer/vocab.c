/* The vocabulary: literals and their index, the table of merges, the bytes of a token, and the proof of where
 * a text may be cut. Writes only during load. */
#include "config/base/assert.h"
#include "config/base/hex.h"
#include "config/base/json.h"
#include "config/base/list.h"
#include "config/base/log.h"
#include "config/base/utf8.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

/* ---- strings ---- */

uint64_t tok__hash(const void *data, size_t len)
{
    const uint64_t k = 0x9E3779B97F4A7C15u;
    const uint8_t *p = data;
    uint64_t h = (uint64_t)len * k, w;
    for (; len >= 8; p += 8, len -= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * k;
        h ^= h >> 29;
    }
    w = 0;
    memcpy(&w, p, len);
    h = (h ^ w) * k;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    return h ^ h >> 32;
}

static uint32_t index_find(const struct id_table *x, const char *arena, const struct tok_span *spans,
                           const char *s, size_t len)
{
    uint32_t hash = (uint32_t)tok__hash(s, len), at = hash;
    for (uint32_t id; (id = id_table_next(x, hash, &at));)
        if (spans[id - 1].len == len && memcmp(arena + spans[id - 1].at, s, len) == 0) return id - 1;
    return TOK_NO_ID;
}

static enum status index_put(struct id_table *x, const char *s, size_t len, uint32_t id)
{
    return id_table_add(x, (uint32_t)tok__hash(s, len), id + 1) ? ST_OK : ST_NOMEM;
}

uint32_t tok__literal_id(const struct tokenizer *t, const char *s, size_t len)
{
    return index_find(&t->by_literal, t->literals, t->literal, s, len);
}

uint32_t tok__word_id(const struct tokenizer *t, const char *s, size_t len)
{
    if (t->byte_level) return index_find(&t->by_word, t->texts, t->word, s, len);
    uint32_t id = tok__literal_id(t, s, len);
    return id != TOK_NO_ID && t->flags[id] & TOK_IN_MODEL ? id : TOK_NO_ID;
}

static enum status arena_add(char **arena, size_t *len, size_t *cap, const char *s, size_t n,
                             struct tok_span *span)
{
    if (n > UINT32_MAX - *len) return ST_TOO_LARGE;
    if (!LIST_RESERVE(*arena, *cap, *len + n)) return ST_NOMEM;
    if (n) memcpy(*arena + *len, s, n);
    *span = (struct tok_span){(uint32_t)*len, (uint32_t)n};
    *len += n;
    return ST_OK;
}

/* A JSON string: its raw bytes, or an unescaped copy in *tmp. */
struct scratch {
    char *p;
    size_t cap;
};

static enum status get_string(const struct json_doc *d, uint32_t node, struct scratch *tmp, const char **s,
                              size_t *len)
{
    if (json_kind(d, node) != JSON_STRING) return ST_FORMAT;
    *s = json_raw(d, node, len);
    if (!d->nodes[node].escaped) return ST_OK;
    if (!LIST_RESERVE(tmp->p, tmp->cap, *len)) return ST_NOMEM;
    if (!json_str_copy(d, node, tmp->p, tmp->cap, len)) return ST_FORMAT;
    *s = tmp->p;
    return ST_OK;
}

/* ---- vocabulary ---- */

enum status tok__add_literal(struct tokenizer *t, uint32_t id, const char *s, size_t len, struct err *err)
{
    if (id >= t->vocab_size) return err_set(err, ST_FORMAT, "token id %u is out of range", id);
    uint32_t other = tok__literal_id(t, s, len);
    int shown = len > 80 ? 80 : (int)len;
    if (other == id) return ST_OK;
    if (other != TOK_NO_ID)
        return err_set(err, ST_FORMAT, "token \"%.*s\" has the ids %u and %u", shown, s, other, id);
    if (t->flags[id] & TOK_EXISTS)
        return err_set(err, ST_FORMAT, "id %u has two tokens, one of them \"%.*s\"", id, shown, s);
    enum status st = arena_add(&t->literals, &t->literals_len, &t->literals_cap, s, len, &t->literal[id]);
    if (!st) st = index_put(&t->by_literal, s, len, id);
    if (st) return err_set(err, st, "vocabulary: %s", status_name(st));
    t->flags[id] |= TOK_EXISTS;
    return ST_OK;
}

/* Room for `cap` ids, and as many strings; more than there is now. */
static enum status set_capacity(struct tokenizer *t, uint32_t cap)
{
    ASSERT(cap > t->id_cap && cap >= t->vocab_size);
    struct tok_span *literal = realloc(t->literal, cap * sizeof *literal);
    if (literal) t->literal = literal;
    struct tok_span *bytes = realloc(t->bytes, cap * sizeof *bytes);
    if (bytes) t->bytes = bytes;
    uint8_t *flags = realloc(t->flags, cap);
    if (flags) t->flags = flags;
    if (!literal || !bytes || !flags || !id_table_reserve(&t->by_literal, cap)) return ST_NOMEM;
    memset(literal + t->id_cap, 0, (cap - t->id_cap) * sizeof *literal);
    memset(bytes + t->id_cap, 0, (cap - t->id_cap) * sizeof *bytes);
    memset(flags + t->id_cap, 0, cap - t->id_cap);
    t->id_cap = cap;
    return ST_OK;
}

enum status tok__allocate_vocab(struct tokenizer *t, uint64_t highest, struct err *err)
{
    ASSERT(highest < TOK_ID_LIMIT && t->id_cap == 0);
    t->vocab_size = (uint32_t)highest + 1;
    return set_capacity(t, t->vocab_size) ? err_nomem(err, "vocabulary") : ST_OK;
}

enum status tok__add_token(struct tokenizer *t, const char *s, size_t len, uint32_t *id, struct err *err)
{
    if ((*id = tok__literal_id(t, s, len)) != TOK_NO_ID) return ST_OK;
    *id = t->model_count;
    for (size_t i = 0; i < t->added_count; i++)
        if (t->added[i].id >= *id) *id = t->added[i].id + 1;
    while (*id < t->vocab_size && t->flags[*id] & TOK_EXISTS) (*id)++;
    if (*id >= TOK_ID_LIMIT) return err_set(err, ST_UNSUPPORTED, "more than %u tokens", TOK_ID_LIMIT);
    if (*id >= t->id_cap && set_capacity(t, 2 * *id + 1)) return err_nomem(err, "vocabulary");
    if (*id >= t->vocab_size) t->vocab_size = *id + 1;
    return tok__add_literal(t, *id, s, len, err);
}

static enum status allocate_for(struct tokenizer *t, const struct json_doc *d, uint32_t vocab, uint32_t added,
                                struct err *err)
{
    uint64_t id, highest = 0;
    uint32_t node = json_first(d, vocab);
    for (uint32_t i = 0; i < json_count(d, vocab); i++) {
        uint32_t value = json_next(d, node);
        if (!json_uint(d, value, &id) || id >= TOK_ID_LIMIT) {
            return err_set(err, ST_FORMAT, "model.vocab: entry %u has no id below %u", i, TOK_ID_LIMIT);
        }
        if (id > highest) highest = id;
        node = json_next(d, value);
    }
    node = json_first(d, added);
    for (uint32_t i = 0; i < json_count(d, added); i++, node = json_next(d, node)) {
        if (!json_uint(d, json_get(d, node, "id"), &id) || id >= TOK_ID_LIMIT) {
            return err_set(err, ST_FORMAT, "added_tokens: entry %u has no id below %u", i, TOK_ID_LIMIT);
        }
        if (id > highest) highest = id;
    }
    return tok__allocate_vocab(t, highest, err);
}

enum status tok__read_vocab(struct tokenizer *t, const struct json_doc *d, uint32_t vocab, uint32_t added,
                            struct err *err)
{
    if (json_kind(d, vocab) != JSON_OBJECT) return err_set(err, ST_FORMAT, "model.vocab is not an object");
    enum status st = allocate_for(t, d, vocab, added, err);
    struct scratch tmp = {NULL, 0};
    uint32_t node = json_first(d, vocab);
    for (uint32_t i = 0; i < json_count(d, vocab) && !st; i++) {
        uint32_t value = json_next(d, node);
        uint64_t id = 0;
        const char *s;
        size_t len;
        (void)json_uint(d, value, &id); /* checked by allocate_for */
        if ((st = get_string(d, node, &tmp, &s, &len)))
            err_set(err, st, "model.vocab: entry %u: %s", i, status_name(st));
        else if (!(st = tok__add_literal(t, (uint32_t)id, s, len, err))) t->flags[id] |= TOK_IN_MODEL;
        node = json_next(d, value);
    }
    t->model_count = json_count(d, vocab);
    free(tmp.p);
    return st;
}

/* ---- merges ---- */

/* First slot to probe for a pair. */
static uint32_t merge_home(const struct tok_merges *m, uint64_t key)
{
    return (uint32_t)((key * 0x9E3779B97F4A7C15u) >> m->shift);
}

void tok__merges_prefetch(const struct tokenizer *t, uint32_t left, uint32_t right)
{
    const struct tok_merges *m = &t->merges;
    __builtin_prefetch(&m->slots[merge_home(m, (uint64_t)left << TOK_ID_BITS | right) & m->mask]);
}

void tok__merges_put(struct tokenizer *t, uint32_t left, uint32_t right, uint32_t merged)
{
    struct tok_merges *m = &t->merges;
    ASSERT(left < t->vocab_size && right < t->vocab_size && merged < t->vocab_size);
    ASSERT(m->count < TOK_RANK_LIMIT);
    uint64_t key = (uint64_t)left << TOK_ID_BITS | right;
    uint32_t at = merge_home(m, key);
    while (m->slots[at & m->mask] != UINT64_MAX && m->slots[at & m->mask] >> TOK_RANK_BITS != key) at++;
    m->slots[at & m->mask] = key << TOK_RANK_BITS | m->count; /* of equal pairs the last one wins */
    m->merged[m->count++] = merged;
}

static uint32_t model_id(const struct tokenizer *t, const char *s, size_t len)
{
    uint32_t id = tok__literal_id(t, s, len);
    return id != TOK_NO_ID && t->flags[id] & TOK_IN_MODEL ? id : TOK_NO_ID;
}

enum status tok__merges_open(struct tok_merge_reader *r, struct tokenizer *t, const char *where,
                             uint64_t count, struct err *err)
{
    struct tok_merges *m = &t->merges;
    unsigned bits = 4;
    *r = (struct tok_merge_reader){.t = t, .where = where, .err = err};
    if (count >= TOK_RANK_LIMIT)
        return err_set(err, ST_UNSUPPORTED, "%s: %llu merges, fewer than %u are supported", where,
                       (unsigned long long)count, TOK_RANK_LIMIT);
    while (((size_t)1 << bits) < 2 * (size_t)count + 2) bits++;
    size_t slots = (size_t)1 << bits;
    m->slots = malloc(slots * sizeof *m->slots);
    m->merged = calloc((size_t)count + 1, sizeof *m->merged);
    if (!m->slots || !m->merged) return err_nomem(err, where);
    memset(m->slots, 0xFF, slots * sizeof *m->slots);
    m->mask = (uint32_t)(slots - 1);
    m->shift = 64 - bits;
    return ST_OK;
}

/* Part 0 and 1 of a merge, 2: both. */
static const char *batch_string(const struct tok_merge_reader *b, uint32_t i, int part, size_t *len)
{
    *len = part == 2 ? b->len[i][0] + b->len[i][1] : b->len[i][part];
    return b->text + b->at[i] + (part == 1 ? b->len[i][0] : 0);
}

/* Prefetches what the whole batch will touch. */
static void batch_prefetch(const struct tok_merge_reader *b)
{
    const struct tokenizer *t = b->t;
    const struct id_table *x = &t->by_literal;
    const struct id_slot *slot[TOK_MERGE_BATCH][3];
    size_t len;
    for (uint32_t i = 0; i < b->count; i++)
        for (int part = 0; part < 3; part++) {
            const char *s = batch_string(b, i, part, &len);
            slot[i][part] = &x->slots[(uint32_t)tok__hash(s, len) & (x->cap - 1)];
            __builtin_prefetch(slot[i][part]);
        }
    for (uint32_t i = 0; i < b->count; i++)
        for (int part = 0; part < 3; part++)
            if (slot[i][part]->id) __builtin_prefetch(&t->literal[slot[i][part]->id - 1]);
    for (uint32_t i = 0; i < b->count; i++)
        for (int part = 0; part < 3; part++)
            if (slot[i][part]->id) __builtin_prefetch(t->literals + t->literal[slot[i][part]->id - 1].at);
}

static enum status refuse_merge(const struct tok_merge_reader *b, enum status st, uint32_t entry)
{
    return err_set(b->err, st, "%s: entry %u is not a pair of tokens whose union is a token: %s", b->where,
                   entry, status_name(st));
}

static enum status batch_flush(struct tok_merge_reader *b)
{
    uint32_t id[TOK_MERGE_BATCH][3];
    batch_prefetch(b);
    for (uint32_t i = 0; i < b->count; i++) {
        for (int part = 0; part < 3; part++) {
            size_t len;
            const char *s = batch_string(b, i, part, &len);
            id[i][part] = model_id(b->t, s, len);
            if (id[i][part] == TOK_NO_ID) return refuse_merge(b, ST_FORMAT, b->entry[i]);
        }
        tok__merges_prefetch(b->t, id[i][0], id[i][1]);
    }
    for (uint32_t i = 0; i < b->count; i++) tok__merges_put(b->t, id[i][0], id[i][1], id[i][2]);
    b->count = 0;
    b->used = 0;
    return ST_OK;
}

enum status tok__merges_add(struct tok_merge_reader *b, uint32_t entry, const char *left, size_t left_len,
                            const char *right, size_t right_len)
{
    size_t n = left_len + right_len;
    if (left_len == 0 || right_len == 0) return refuse_merge(b, ST_FORMAT, entry);
    if (!LIST_RESERVE(b->text, b->cap, b->used + n)) return err_nomem(b->err, b->where);
    memcpy(b->text + b->used, left, left_len);
    memcpy(b->text + b->used + left_len, right, right_len);
    b->at[b->count] = b->used;
    b->len[b->count][0] = left_len;
    b->len[b->count][1] = right_len;
    b->used += n;
    b->entry[b->count++] = entry;
    return b->count < TOK_MERGE_BATCH ? ST_OK : batch_flush(b);
}

enum status tok__merges_close(struct tok_merge_reader *b, enum status st)
{
    enum status before = b->count < TOK_MERGE_BATCH && b->t->merges.merged ? batch_flush(b) : ST_OK;
    free(b->text);
    return before ? before : st;
}

/* The two strings of one entry: "a b" or ["a", "b"]. *skip: a "#version" line. */
static enum status merge_parts(const struct json_doc *d, uint32_t node, struct scratch tmp[2],
                               const char *s[2], size_t len[2], bool *skip)
{
    *skip = false;
    enum status st;
    if (json_kind(d, node) == JSON_STRING) {
        if ((st = get_string(d, node, &tmp[0], &s[0], &len[0]))) return st;
        if (len[0] >= 8 && memcmp(s[0], "#version", 8) == 0) {
            *skip = true;
            return ST_OK;
        }
        const char *space = memchr(s[0], ' ', len[0]);
        if (!space) return ST_FORMAT;
        s[1] = space + 1;
        len[1] = len[0] - (size_t)(space - s[0]) - 1;
        len[0] = (size_t)(space - s[0]);
        return memchr(s[1], ' ', len[1]) ? ST_FORMAT : ST_OK;
    }
    if (json_kind(d, node) != JSON_ARRAY || json_count(d, node) != 2) return ST_FORMAT;
    uint32_t first = json_first(d, node);
    if ((st = get_string(d, first, &tmp[0], &s[0], &len[0]))) return st;
    return get_string(d, json_next(d, first), &tmp[1], &s[1], &len[1]);
}

enum status tok__read_merges(struct tokenizer *t, const struct json_doc *d, uint32_t merges, struct err *err)
{
    if (json_kind(d, merges) != JSON_ARRAY) return err_set(err, ST_FORMAT, "model.merges is not an array");
    struct scratch tmp[2] = {{NULL, 0}, {NULL, 0}};
    struct tok_merge_reader m;
    uint32_t count = json_count(d, merges), node = json_first(d, merges);
    enum json_kind kind = json_kind(d, node);
    enum status st = tok__merges_open(&m, t, "model.merges", count, err);
    for (uint32_t i = 0; i < count && !st; i++, node = json_next(d, node)) {
        const char *s[2];
        size_t len[2];
        bool skip = false;
        enum status read = json_kind(d, node) == kind ? merge_parts(d, node, tmp, s, len, &skip) : ST_FORMAT;
        if (read) st = refuse_merge(&m, read, i);
        else if (!skip) st = tok__merges_add(&m, i, s[0], len[0], s[1], len[1]);
    }
    for (int i = 0; i < 2; i++) free(tmp[i].p);
    return tok__merges_close(&m, st);
}

/* ---- the text of a token ---- */

/* The byte-level alphabet: printable Latin-1 maps to itself, the other 68 bytes in order to U+0100... */
static bool byte_is_itself(unsigned b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

/* Code point -> byte of the byte-level alphabet; -1: outside. */
static int byte_of_char(uint32_t cp)
{
    if (cp < 0x100) return byte_is_itself(cp) ? (int)cp : -1;
    if (cp > 0x143) return -1;
    for (unsigned b = 0, n = 0x100; b < 0x100; b++) {
        if (byte_is_itself(b)) continue;
        if (n++ == cp) return (int)b;
    }
    return -1;
}

/* Maps a literal of the byte-level alphabet to its bytes; false if a character is outside. dst holds len
 * bytes. */
static bool unmap_bytes(const short map[0x144], const char *s, size_t len, char *dst, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        i += uni_decode((const uint8_t *)s + i, &cp);
        if (cp >= 0x144 || map[cp] < 0) return false;
        dst[(*n)++] = (char)map[cp];
    }
    return true;
}

/* "<0xNN>" -> NN, otherwise -1. */
static int byte_literal(const char *s, size_t len)
{
    if (len != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int hi = hex_digit(s[3]), lo = hex_digit(s[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

/* Text of a token that isn't byte-level: replacements, then <0xNN>. */
static enum status sp_text(struct tokenizer *t, uint32_t id, const char *s, size_t len)
{
    struct tok_textbuf bufs[2] = {{.mixed = false}, {.mixed = false}};
    enum status st = ST_OK;
    size_t done = 0;
    for (; done < t->decode_replace_count && !st; done++) {
        bufs[done % 2].len = 0;
        st = tok__replace(&t->decode_replace[done], &(struct tok_text){.s = (const uint8_t *)s, .len = len},
                          &bufs[done % 2]);
        s = bufs[done % 2].s ? (const char *)bufs[done % 2].s : "";
        len = bufs[done % 2].len;
    }
    int byte = t->decode_byte_fallback ? byte_literal(s, len) : -1;
    char one_byte = (char)byte;
    if (byte >= 0) {
        s = &one_byte;
        len = 1;
    }
    if (!st) st = arena_add(&t->texts, &t->texts_len, &t->texts_cap, s, len, &t->bytes[id]);
    tok__textbuf_fini(&bufs[0]);
    tok__textbuf_fini(&bufs[1]);
    return st;
}

static enum status fill_texts(struct tokenizer *t)
{
    short map[0x144];
    for (uint32_t cp = 0; cp < 0x144; cp++) map[cp] = (short)byte_of_char(cp);
    struct scratch tmp = {NULL, 0};
    enum status st = ST_OK;
    for (uint32_t id = 0; id < t->vocab_size && !st; id++) {
        if (!(t->flags[id] & TOK_EXISTS)) continue;
        const char *s = t->literals + t->literal[id].at;
        size_t len = t->literal[id].len;
        if (!t->decode_byte_level) {
            st = sp_text(t, id, s, len);
            continue;
        }
        st = LIST_RESERVE(tmp.p, tmp.cap, len) ? ST_OK : ST_NOMEM;
        if (st) break;
        size_t n = 0;
        bool mapped = !(t->flags[id] & TOK_ADDED) && len > 0 && unmap_bytes(map, s, len, tmp.p, &n);
        st = arena_add(&t->texts, &t->texts_len, &t->texts_cap, mapped ? tmp.p : s, mapped ? n : len,
                       &t->bytes[id]);
    }
    free(tmp.p);
    return st;
}

/* ---- initial symbols ---- */

/* Released vocabularies lack bytes that their training text had not; the reference drops those, too. */
static void byte_symbols(struct tokenizer *t)
{
    unsigned missing = 0, first = 0;
    for (uint32_t cp = 0; cp < 0x144; cp++) {
        int b = byte_of_char(cp);
        char utf8[4];
        if (b >= 0) t->byte_id[b] = model_id(t, utf8, utf8_encode(cp, utf8));
    }
    for (unsigned b = 0x100; b-- > 0;) {
        bool in_utf8 = b < 0xC0 || (b >= 0xC2 && b <= 0xF4);
        if (!in_utf8 || t->byte_id[b] != TOK_NO_ID) continue;
        first = b;
        missing++;
    }
    if (missing && t->unk_id == TOK_NO_ID)
        log_warn(
            "the vocabulary has no token for %u of the bytes of UTF-8, the first is 0x%02X: prompts lose "
            "them, as with transformers, and answers can't have them",
            missing, first);
}

static enum status char_symbols(struct tokenizer *t)
{
    for (uint32_t id = 0; id < t->vocab_size; id++) {
        if (!(t->flags[id] & TOK_IN_MODEL) || t->literal[id].len == 0) continue;
        const char *s = t->literals + t->literal[id].at;
        uint32_t cp;
        if (uni_decode((const uint8_t *)s, &cp) != t->literal[id].len) continue;
        uint32_t **page = &t->char_pages[cp >> 8];
        if (!*page && !(*page = calloc(256, sizeof **page))) return ST_NOMEM;
        (*page)[cp & 255] = id + 1;
    }
    for (unsigned b = 0; b < 0x100; b++) {
        static const char hex[] = "0123456789ABCDEF";
        char literal[6] = {'<', '0', 'x', hex[b >> 4], hex[b & 15], '>'};
        t->byte_id[b] = model_id(t, literal, sizeof literal);
    }
    return ST_OK;
}

/* Whether every character has symbols without the unknown token. */
static bool spells_everything(const struct tokenizer *t)
{
    for (uint32_t b = 0; b < 0xF5; b++) {
        bool covered = t->byte_fallback && t->byte_id[b] != TOK_NO_ID;
        if (b < 0x80) covered = covered || tok__char_id(t, b) != TOK_NO_ID;
        if (!covered && b != 0xC0 && b != 0xC1) return false;
    }
    return true;
}

static uint32_t last_char(const char *s, size_t len)
{
    size_t i = len - 1;
    while (i > 0 && ((uint8_t)s[i] & 0xC0) == 0x80) i--;
    uint32_t cp;
    uni_decode((const uint8_t *)s + i, &cp);
    return cp;
}

/* The proof behind `joints`: symbols are characters or bytes of one; a merged token spells its text; so a
 * merge across a border x|y has a left part that ends in x and a right part that begins with y. It needs
 * merges that take no byte or unknown token. */
static enum status fill_joints(struct tokenizer *t)
{
    if (t->ignore_merges || !spells_everything(t)) return ST_OK;
    uint64_t *joints = calloc(((size_t)1 << TOK_JOINT_BITS) / 64, sizeof *joints);
    if (!joints) return ST_NOMEM;
    const struct tok_merges *m = &t->merges;
    for (size_t i = 0; i <= m->mask; i++) {
        if (m->slots[i] == UINT64_MAX) continue;
        uint32_t side[2] = {(uint32_t)(m->slots[i] >> (TOK_ID_BITS + TOK_RANK_BITS)),
                            (uint32_t)(m->slots[i] >> TOK_RANK_BITS) & (TOK_ID_LIMIT - 1)};
        for (int k = 0; k < 2; k++) {
            const char *s = t->literals + t->literal[side[k]].at;
            if (side[k] == t->unk_id || (t->byte_fallback && byte_literal(s, t->literal[side[k]].len) >= 0)) {
                free(joints);
                return ST_OK;
            }
        }
        uint32_t right, left = last_char(t->literals + t->literal[side[0]].at, t->literal[side[0]].len);
        uni_decode((const uint8_t *)t->literals + t->literal[side[1]].at, &right);
        uint64_t h = (((uint64_t)left << 21 | right) * 0x9E3779B97F4A7C15u) >> (64 - TOK_JOINT_BITS);
        joints[h / 64] |= (uint64_t)1 << (h % 64);
    }
    t->joints = joints;
    return ST_OK;
}

/* Index of byte-level words by their bytes, for ignore_merges. An added token's `bytes` are its content, so
 * words have their own spans. */
static enum status fill_words(struct tokenizer *t)
{
    short map[0x144];
    for (uint32_t cp = 0; cp < 0x144; cp++) map[cp] = (short)byte_of_char(cp);
    t->word = calloc(t->vocab_size, sizeof *t->word);
    char *tmp = malloc(t->literals_len + 1);
    enum status st = t->word && tmp && id_table_reserve(&t->by_word, t->vocab_size) ? ST_OK : ST_NOMEM;
    for (uint32_t id = 0; id < t->vocab_size && !st; id++) {
        size_t n;
        if (!(t->flags[id] & TOK_IN_MODEL)) continue;
        if (!unmap_bytes(map, t->literals + t->literal[id].at, t->literal[id].len, tmp, &n) || n == 0)
            continue;
        st = arena_add(&t->texts, &t->texts_len, &t->texts_cap, tmp, n, &t->word[id]);
        if (!st) st = index_put(&t->by_word, tmp, n, id);
    }
    free(tmp);
    return st;
}

enum status tok__finish_vocab(struct tokenizer *t, struct err *err)
{
    ASSERT(t->vocab_size > 0 && t->vocab_size <= TOK_ID_LIMIT && !t->joints);
    memset(t->byte_id, 0xFF, sizeof t->byte_id);
    t->longest = 1;
    for (uint32_t id = 0; id < t->vocab_size; id++)
        if (t->literal[id].len > t->longest) t->longest = t->literal[id].len;
    enum status st = fill_texts(t);
    if (!st && t->byte_level) {
        byte_symbols(t);
        if (t->ignore_merges) st = fill_words(t);
    } else if (!st) {
        st = char_symbols(t);
        if (!st && t->unk_id == TOK_NO_ID && !spells_everything(t))
            log_warn("the vocabulary has neither an unk_token nor tokens for every character: prompts lose "
                     "those without one, as with transformers, and answers can't have them");
        if (!st) st = fill_joints(t);
    }
    return st ? err_set(err, st, "vocabulary: %s", status_name(st)) : ST_OK;
}
