/* See gguf_tokenizer.h. A GGUF file has the tokens by id with a type and a score each, for byte-level models
 * the merges too, and names for the rest (engine/families/gguf_vocab.h). */
#include "engine/checkpoint/gguf_tokenizer.h"

#include "config/base/buf.h"
#include "engine/families/gguf_vocab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX  ((size_t)512 << 20)
#define TOKENS_MAX      (1u << 21) /* as engine/tokenizer has it */
#define TOKEN_BYTES_MAX 4096u      /* where merges are derived: the work grows with the square of it */
#define NO_ID           UINT32_MAX

enum {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN,
    TYPE_CONTROL,
    TYPE_USER,
    TYPE_UNUSED,
    TYPE_BYTE,
};

struct vocab {
    const struct gguf *g;
    bool tower; /* there is one */
    const struct gguf_vocab *rules;
    struct err *err;
    uint32_t count;
    struct gguf_text *token; /* [count] as the original spells it; p is NULL where it has none */
    uint8_t *type;           /* [count] */
    char *respelt;           /* bytes of those that the file spells in another way */
};

/* ---- the file's metadata ---- */

static enum status read_rules(struct vocab *v)
{
    struct gguf_text model, pre = {"", 0};
    if (!gguf_string(gguf_get(v->g, "tokenizer.ggml.model"), &model))
        return err_set(v->err, ST_NOT_FOUND, "no tokenizer: the file has no tokenizer.ggml.model");
    (void)gguf_string(gguf_get(v->g, "tokenizer.ggml.pre"), &pre);
    v->rules = gguf_vocab_find(model, pre);
    if (v->rules) return ST_OK;
    return err_set(v->err, ST_UNSUPPORTED,
                   "tokenizer.ggml.model \"%.*s\" with tokenizer.ggml.pre \"%.*s\" is not supported",
                   model.len > 80 ? 80 : (int)model.len, model.p, pre.len > 80 ? 80 : (int)pre.len, pre.p);
}

static const struct gguf_value *array(const struct vocab *v, const char *key, bool strings)
{
    const struct gguf_value *a = gguf_get(v->g, key);
    return a && a->kind == GGUF_ARRAY && (a->item == GGUF_STRING) == strings ? a : NULL;
}

/* Rows that the converter appended because the embedding has more of them than the vocabulary: "[PAD<id>]".
 * Where the original has no token, there is none. */
static bool is_padding(struct gguf_text token, uint32_t id)
{
    char name[24];
    int n = snprintf(name, sizeof name, "[PAD%u]", id);
    return token.len == (size_t)n && memcmp(token.p, name, token.len) == 0;
}

static enum status read_types(struct vocab *v)
{
    const struct gguf_value *types = array(v, "tokenizer.ggml.token_type", false);
    if (!types || types->count != v->count)
        return err_set(v->err, ST_FORMAT, "tokenizer.ggml.token_type is not an array of %u numbers",
                       v->count);
    for (uint32_t i = 0; i < v->count; i++) {
        double x = gguf_item(types, i);
        if (!(x >= 0 && x <= TYPE_BYTE) || x != (int)x)
            return err_set(v->err, ST_FORMAT, "tokenizer.ggml.token_type[%u] is not a type of token", i);
        v->type[i] = (uint8_t)x;
    }
    return ST_OK;
}

/* "<|name>", "<name|>" or "<|name|>": converters state the type only of some of a model's markers. */
static bool is_marker(struct gguf_text t)
{
    if (t.len < 4 || t.p[0] != '<' || t.p[t.len - 1] != '>') return false;
    if (t.p[1] != '|' && t.p[t.len - 2] != '|') return false;
    for (size_t i = 2; i + 2 < t.len; i++)
        if (t.p[i] != '_' && !(t.p[i] >= 'a' && t.p[i] <= 'z')) return false;
    return true;
}

/* See `markers` and `picture` in gguf_vocab.h. */
static void name_markers(struct vocab *v)
{
    const struct gguf_vocab *r = v->rules;
    const struct gguf_tensor *embd = gguf_find(v->g, "token_embd.weight");
    uint64_t rows = embd && embd->rank == 2 ? embd->shape[1] : v->count;
    uint32_t picture = NO_ID, spare = NO_ID;
    for (uint32_t i = 0; i < v->count; i++) {
        struct gguf_text t = v->token[i];
        for (const char *const *m = r->markers; *m && v->type[i] == TYPE_NORMAL; m++)
            if (gguf_text_is(t, *m)) v->type[i] = TYPE_CONTROL;
        if (r->spare && gguf_text_is(t, r->picture)) picture = i;
        if (r->spare && gguf_text_is(t, r->spare)) spare = i;
    }
    if (!v->tower || spare == NO_ID || (picture != NO_ID && picture < rows)) return;
    if (picture != NO_ID) {
        v->token[picture] = (struct gguf_text){NULL, 0};
        v->type[picture] = TYPE_UNUSED;
    }
    v->token[spare] = (struct gguf_text){r->picture, strlen(r->picture)};
    v->type[spare] = TYPE_CONTROL;
}

static bool respelt(const struct vocab *v, uint32_t id)
{
    return !v->rules->split && v->type[id] == TYPE_USER &&
           memchr(v->token[id].p, ' ', v->token[id].len) != NULL;
}

/* User-defined tokens of a SentencePiece-style vocabulary stand in the file with spaces: the original has
 * U+2581 for each. */
static enum status respell(struct vocab *v)
{
    static const char mark[3] = {'\xE2', '\x96', '\x81'};
    size_t total = 0;
    for (uint32_t i = 0; i < v->count; i++)
        if (respelt(v, i)) total += 3 * v->token[i].len; /* tokens don't overlap: less than 3 files */
    if (!total) return ST_OK;
    if (!(v->respelt = malloc(total))) return err_set(v->err, ST_NOMEM, "tokenizer: out of memory");
    char *to = v->respelt;
    for (uint32_t i = 0; i < v->count; i++) {
        if (!respelt(v, i)) continue;
        struct gguf_text from = v->token[i];
        v->token[i].p = to;
        for (size_t k = 0; k < from.len; k++) {
            if (from.p[k] == ' ') {
                memcpy(to, mark, sizeof mark);
                to += sizeof mark;
            } else {
                *to++ = from.p[k];
            }
        }
        v->token[i].len = (size_t)(to - v->token[i].p);
    }
    return ST_OK;
}

static enum status read_vocab(struct vocab *v)
{
    const struct gguf_value *tokens = array(v, "tokenizer.ggml.tokens", true);
    if (!tokens || tokens->count == 0 || tokens->count > TOKENS_MAX)
        return err_set(v->err, ST_FORMAT, "tokenizer.ggml.tokens is not an array of 1 to %u strings",
                       TOKENS_MAX);
    v->count = (uint32_t)tokens->count;
    v->token = calloc(v->count, sizeof *v->token);
    v->type = calloc(v->count, sizeof *v->type);
    if (!v->token || !v->type) return err_set(v->err, ST_NOMEM, "tokenizer: out of memory");
    const void *at = NULL;
    for (uint32_t i = 0; i < v->count && gguf_next_string(tokens, &at, &v->token[i]); i++) continue;
    enum status st = read_types(v);
    if (!st && v->rules->markers) name_markers(v);
    if (!st) st = respell(v);
    for (uint32_t i = 0; i < v->count && v->rules->user_special && !st; i++)
        if (v->type[i] == TYPE_NORMAL && is_marker(v->token[i])) v->type[i] = TYPE_CONTROL;
    for (uint32_t i = 0; i < v->count && !st; i++)
        if (v->type[i] == TYPE_UNUSED && is_padding(v->token[i], i))
            v->token[i] = (struct gguf_text){NULL, 0};
    return st;
}

static void vocab_fini(struct vocab *v)
{
    free(v->token);
    free(v->type);
    free(v->respelt);
}

/* The token that a key names by its id; *id is NO_ID if there is no such key (or it holds -1, which is none
 * as well). */
static enum status role_id(const struct vocab *v, const char *key, uint32_t *id)
{
    const struct gguf_value *value = gguf_get(v->g, key);
    *id = NO_ID;
    if (!value || !gguf_u32(value, id) || *id == NO_ID) return ST_OK;
    if (*id < v->count && v->token[*id].p) return ST_OK;
    return err_set(v->err, ST_FORMAT, "%s is %u, which is no token", key, *id);
}

/* ---- JSON ---- */

/* After the first failure nothing is added. */
struct out {
    struct buf b;
    enum status st;
};

static void put(struct out *o, const void *data, size_t len)
{
    if (!o->st) o->st = buf_add(&o->b, data, len);
}

static void puts_to(struct out *o, const char *s)
{
    put(o, s, strlen(s));
}

static void put_string(struct out *o, const char *s, size_t len)
{
    size_t from = 0;
    put(o, "\"", 1);
    for (size_t i = 0; i < len; i++) {
        char escape[8];
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        put(o, s + from, i - from);
        put(o, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", c));
        from = i + 1;
    }
    put(o, s + from, len - from);
    put(o, "\"", 1);
}

static void put_token(struct out *o, const struct vocab *v, uint32_t id)
{
    put_string(o, v->token[id].p, v->token[id].len);
}

static void put_number(struct out *o, uint32_t n)
{
    char digits[16];
    put(o, digits, (size_t)snprintf(digits, sizeof digits, "%u", n));
}

static void put_pair(struct out *o, bool first, const char *s, size_t left, const char *right,
                     size_t right_len)
{
    puts_to(o, first ? "[" : ",[");
    put_string(o, s, left);
    put(o, ",", 1);
    put_string(o, right, right_len);
    put(o, "]", 1);
}

/* ---- merges ---- */

static enum status put_stated_merges(struct out *o, const struct vocab *v, const struct gguf_value *merges)
{
    const void *at = NULL;
    struct gguf_text m;
    for (uint64_t i = 0; i < merges->count && gguf_next_string(merges, &at, &m); i++) {
        const char *space = m.len > 1 ? memchr(m.p + 1, ' ', m.len - 1) : NULL;
        if (!space)
            return err_set(v->err, ST_FORMAT, "tokenizer.ggml.merges[%llu] is not a pair",
                           (unsigned long long)i);
        size_t left = (size_t)(space - m.p);
        put_pair(o, i == 0, m.p, left, space + 1, m.len - left - 1);
    }
    return o->st;
}

/* Open addressing, at most half full: high half of the hash and id + 1; 0 is empty. */
struct table {
    uint64_t *slots;
    uint32_t mask;
};

#define HASH_START 0xCBF29CE484222325u
static uint64_t hash_more(uint64_t h, char c)
{
    return (h ^ (unsigned char)c) * 0x100000001B3u;
}

static uint64_t *slot_of(const struct table *t, const struct vocab *v, const char *s, size_t len, uint64_t h)
{
    for (uint32_t at = (uint32_t)(h ^ h >> 32);; at++) {
        uint64_t *slot = &t->slots[at & t->mask];
        if (!*slot) return slot;
        if (*slot >> 32 != h >> 32) continue;
        const struct gguf_text *token = &v->token[(uint32_t)*slot - 1];
        if (token->len == len && memcmp(token->p, s, len) == 0) return slot;
    }
}

static enum status fill_table(struct table *t, const struct vocab *v)
{
    size_t slots = 16;
    while (slots < 2 * (size_t)v->count) slots *= 2;
    t->slots = calloc(slots, sizeof *t->slots);
    t->mask = (uint32_t)(slots - 1);
    if (!t->slots) return err_set(v->err, ST_NOMEM, "tokenizer: out of memory");
    for (uint32_t i = 0; i < v->count; i++) {
        if (v->token[i].len > TOKEN_BYTES_MAX)
            return err_set(v->err, ST_UNSUPPORTED, "token %u has more than %u bytes", i, TOKEN_BYTES_MAX);
        uint64_t h = HASH_START;
        for (size_t k = 0; k < v->token[i].len; k++) h = hash_more(h, v->token[i].p[k]);
        if (v->token[i].p) *slot_of(t, v, v->token[i].p, v->token[i].len, h) = h >> 32 << 32 | (i + 1);
    }
    return ST_OK;
}

struct rank {
    double score;
    uint32_t id;
};

static int compare_ranks(const void *pa, const void *pb)
{
    const struct rank *a = pa, *b = pb;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Order in which tokens are merged. By score; in most vocabularies that is the order of ids already, and it
 * has to stay that: the scores of tokens that aren't normal are the converter's inventions. */
static enum status order_tokens(const struct vocab *v, struct rank *order)
{
    const struct gguf_value *scores = array(v, "tokenizer.ggml.scores", false);
    if (!scores || scores->count != v->count)
        return err_set(v->err, ST_FORMAT, "tokenizer.ggml.scores is not an array of %u numbers", v->count);
    bool sorted = true;
    double last = INFINITY;
    for (uint32_t i = 0; i < v->count; i++) {
        double score = v->type[i] == TYPE_NORMAL ? gguf_item(scores, i) : 0;
        if (!isfinite(score))
            return err_set(v->err, ST_FORMAT, "tokenizer.ggml.scores[%u] is not a number", i);
        order[i] = (struct rank){score, i};
        if (v->type[i] != TYPE_NORMAL) continue;
        sorted = sorted && score <= last;
        last = score;
    }
    if (!sorted) qsort(order, v->count, sizeof *order, compare_ranks);
    return ST_OK;
}

/* Every way to put the token together from two, the longest left part first. */
static void put_splits(struct out *o, const struct vocab *v, const struct table *t, uint32_t id, bool *first)
{
    bool is_token[TOKEN_BYTES_MAX];
    const char *s = v->token[id].p;
    size_t len = v->token[id].len;
    uint64_t h = HASH_START;
    for (size_t k = 1; k < len; k++) {
        h = hash_more(h, s[k - 1]);
        is_token[k] = ((unsigned char)s[k] & 0xC0) != 0x80 && *slot_of(t, v, s, k, h) != 0;
    }
    for (size_t k = len; k-- > 1;) {
        if (!is_token[k]) continue;
        h = HASH_START;
        for (size_t i = k; i < len; i++) h = hash_more(h, s[i]);
        if (!*slot_of(t, v, s + k, len - k, h)) continue;
        put_pair(o, *first, s, k, s + k, len - k);
        *first = false;
    }
}

/* SentencePiece joins the pair whose union has the best score; a tokenizer.json has a list of pairs instead,
 * which its converter makes from the vocabulary: all pairs whose union is a token, by the rank of that. */
static enum status put_derived_merges(struct out *o, const struct vocab *v)
{
    struct table t = {NULL, 0};
    struct rank *order = calloc(v->count, sizeof *order);
    enum status st = order ? fill_table(&t, v) : err_set(v->err, ST_NOMEM, "tokenizer: out of memory");
    if (!st) st = order_tokens(v, order);
    bool first = true;
    for (uint32_t i = 0; i < v->count && !st; i++) {
        put_splits(o, v, &t, order[i].id, &first);
        st = o->st;
    }
    free(order);
    free(t.slots);
    return st;
}

/* ---- tokenizer.json ---- */

static void put_added(struct out *o, const struct vocab *v)
{
    bool first = true;
    puts_to(o, "\"added_tokens\":[");
    for (uint32_t i = 0; i < v->count; i++) {
        bool user = v->type[i] == TYPE_USER;
        if (!v->token[i].p || !(user || v->type[i] == TYPE_CONTROL || v->type[i] == TYPE_UNKNOWN)) continue;
        puts_to(o, first ? "{\"id\":" : ",{\"id\":");
        put_number(o, i);
        puts_to(o, ",\"content\":");
        put_token(o, v, i);
        puts_to(o, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                   "\"special\":");
        puts_to(o, user && !v->rules->user_special ? "false}" : "true}");
        first = false;
    }
    puts_to(o, "],");
}

static void put_steps(struct out *o, const struct gguf_vocab *rules)
{
    if (!rules->split) {
        puts_to(o, "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"▁\"},"
                   "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},"
                   "\"behavior\":\"MergedWithPrevious\",\"invert\":false},"
                   "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
                   "\"pattern\":{\"String\":\"▁\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
                   "{\"type\":\"Fuse\"}]},");
        return;
    }
    puts_to(o, rules->nfc ? "\"normalizer\":{\"type\":\"NFC\"}," : "\"normalizer\":null,");
    puts_to(o, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
               "\"pattern\":{\"Regex\":");
    put_string(o, rules->split, strlen(rules->split));
    puts_to(o, "},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
               "\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}]},"
               "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,"
               "\"use_regex\":false},");
}

static void put_special(struct out *o, const struct vocab *v, uint32_t id)
{
    puts_to(o, "{\"SpecialToken\":{\"id\":");
    put_token(o, v, id);
    puts_to(o, ",\"type_id\":0}}");
}

/* What a text gets around it that isn't a chat. */
static enum status put_template(struct out *o, const struct vocab *v)
{
    uint32_t side[2];
    bool on[2] = {v->rules->bos == GGUF_BOS_UNLESS_NOT, false}, any = false;
    (void)gguf_bool(gguf_get(v->g, "tokenizer.ggml.add_bos_token"), &on[0]);
    (void)gguf_bool(gguf_get(v->g, "tokenizer.ggml.add_eos_token"), &on[1]);
    on[0] |= v->rules->bos == GGUF_BOS_ALWAYS;
    enum status st = role_id(v, "tokenizer.ggml.bos_token_id", &side[0]);
    if (!st) st = role_id(v, "tokenizer.ggml.eos_token_id", &side[1]);
    if (st) return st;
    for (int i = 0; i < 2; i++) {
        if (on[i] && side[i] == NO_ID)
            return err_set(v->err, ST_FORMAT,
                           "tokenizer.ggml.add_%s_token without tokenizer.ggml.%s_token_id",
                           i ? "eos" : "bos", i ? "eos" : "bos");
    }
    puts_to(o, "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    if (on[0]) put_special(o, v, side[0]);
    puts_to(o, on[0] ? ",{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
                     : "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}");
    if (on[1]) put(o, ",", 1);
    if (on[1]) put_special(o, v, side[1]);
    puts_to(o, "],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
               "{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":{");
    for (int i = 0; i < 2; i++) {
        if (!on[i] || (i && on[0] && side[0] == side[1])) continue;
        if (any) put(o, ",", 1);
        any = true;
        put_token(o, v, side[i]);
        puts_to(o, ":{\"id\":");
        put_token(o, v, side[i]);
        puts_to(o, ",\"ids\":[");
        put_number(o, side[i]);
        puts_to(o, "],\"tokens\":[");
        put_token(o, v, side[i]);
        puts_to(o, "]}");
    }
    puts_to(o, "}},");
    return ST_OK;
}

static enum status put_model(struct out *o, const struct vocab *v)
{
    bool first = true, bytes = v->rules->split != NULL;
    uint32_t unk = NO_ID;
    enum status st = bytes ? ST_OK : role_id(v, "tokenizer.ggml.unknown_token_id", &unk);
    if (st) return st;
    puts_to(o, "\"model\":{\"type\":\"BPE\",\"unk_token\":");
    if (unk == NO_ID) puts_to(o, "null");
    else put_token(o, v, unk);
    puts_to(o, bytes ? ",\"vocab\":{" : ",\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{");
    for (uint32_t i = 0; i < v->count; i++) {
        if (!v->token[i].p) continue;
        if (!first) put(o, ",", 1);
        first = false;
        put_token(o, v, i);
        put(o, ":", 1);
        put_number(o, i);
    }
    puts_to(o, "},\"merges\":[");
    const struct gguf_value *merges = array(v, "tokenizer.ggml.merges", true);
    if (merges) st = put_stated_merges(o, v, merges);
    else if (!bytes) st = put_derived_merges(o, v);
    else st = err_set(v->err, ST_FORMAT, "tokenizer.ggml.merges is not an array of strings");
    puts_to(o, "]}");
    return st;
}

static enum status write_tokenizer(struct out *o, const struct vocab *v)
{
    bool prefix = false;
    (void)gguf_bool(gguf_get(v->g, "tokenizer.ggml.add_space_prefix"), &prefix);
    if (prefix)
        return err_set(v->err, ST_UNSUPPORTED,
                       "a tokenizer with tokenizer.ggml.add_space_prefix is not supported");
    puts_to(o, "{\"version\":\"1.0\",");
    put_added(o, v);
    put_steps(o, v->rules);
    enum status st = put_template(o, v);
    if (!st) st = put_model(o, v);
    puts_to(o, "}\n");
    return st;
}

/* ---- tokenizer_config.json ---- */

static enum status write_config(struct out *o, const struct vocab *v)
{
    static const struct {
        const char *key, *role;
    } roles[] = {
        {"tokenizer.ggml.bos_token_id", "bos_token"},     {"tokenizer.ggml.eos_token_id", "eos_token"},
        {"tokenizer.ggml.padding_token_id", "pad_token"}, {"tokenizer.ggml.unknown_token_id", "unk_token"},
        {"tokenizer.ggml.mask_token_id", "mask_token"},
    };
    bool first = true;
    put(o, "{", 1);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        uint32_t id;
        enum status st = role_id(v, roles[i].key, &id);
        if (st) return st;
        if (id == NO_ID) continue;
        if (!first) put(o, ",", 1);
        first = false;
        put_string(o, roles[i].role, strlen(roles[i].role));
        put(o, ":", 1);
        put_token(o, v, id);
    }
    puts_to(o, "}\n");
    return ST_OK;
}

/* ---- all of it ---- */

static enum status write_template(struct out *o, const struct gguf *g, const char *key, struct err *err)
{
    struct gguf_text source;
    if (!gguf_string(gguf_get(g, key), &source)) return err_set(err, ST_NOT_FOUND, "no %s", key);
    put(o, source.p, source.len);
    return ST_OK;
}

static enum status write_from_vocab(struct out *o, const struct gguf *g, bool tower, struct err *err,
                                    enum status (*write)(struct out *o, const struct vocab *v))
{
    struct vocab v = {.g = g, .tower = tower, .err = err};
    enum status st = read_rules(&v);
    if (!st) st = read_vocab(&v);
    if (!st) st = write(o, &v);
    vocab_fini(&v);
    return st;
}

enum status gguf_side_text(const struct gguf *g, bool tower, const char *name, char **text, size_t *len,
                           struct err *err)
{
    struct out o = {.st = ST_OK};
    enum status st;
    buf_init(&o.b, TEXT_BYTES_MAX);
    if (strcmp(name, "tokenizer.json") == 0) {
        st = write_from_vocab(&o, g, tower, err, write_tokenizer);
    } else if (strcmp(name, "tokenizer_config.json") == 0) {
        st = write_from_vocab(&o, g, tower, err, write_config);
    } else if (strcmp(name, "chat_template.jinja") == 0) {
        st = write_template(&o, g, "tokenizer.chat_template", err);
    } else if (strcmp(name, "additional_chat_templates/tool_use.jinja") == 0) {
        st = write_template(&o, g, "tokenizer.chat_template.tool_use", err);
    } else {
        st = err_set(err, ST_NOT_FOUND, "no %s", name);
    }
    if (o.st && (!st || st == o.st)) st = err_set(err, o.st, "%s: %s", name, status_name(o.st));
    if (st) {
        buf_fini(&o.b);
        return st;
    }
    *text = o.b.data;
    *len = o.b.len;
    return ST_OK;
}
