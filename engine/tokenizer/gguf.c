/* GGUF metadata -> struct tokenizer. A file has the tokens by id, each with a type and a score, and for
 * byte-level models the merges; the rest is in struct tok_gguf_kind. See tokenizer.h, load.c. */
#include "config/base/utf8.h"
#include "config/base/list.h"
#include "config/gguf/gguf.h"
#include "engine/tokenizer/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_BYTES_MAX 4096u /* where merges are derived: quadratic work */

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
    const struct tok_gguf_kind *kind;
    struct tokenizer *t;
    struct err *err;
    uint32_t count;
    struct gguf_text *token; /* [count] p is NULL if the original has none */
    uint8_t *type;           /* [count] */
};

/* ---- the file's metadata ---- */

static const struct gguf_value *array(const struct vocab *v, const char *key, bool strings)
{
    const struct gguf_value *a = gguf_get(v->g, key);
    return a && a->kind == GGUF_ARRAY && (a->item == GGUF_STRING) == strings ? a : NULL;
}

/* Rows that the converter appended because the embedding has more rows than the vocabulary: "[PAD<id>]". The
 * original has no such tokens. */
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

/* See `markers` and `image` in tokenizer.h. */
static void name_markers(struct vocab *v)
{
    const struct tok_gguf_kind *r = v->kind;
    const struct gguf_tensor *embd = gguf_find(v->g, "token_embd.weight");
    uint64_t rows = embd && embd->rank == 2 ? embd->shape[1] : v->count;
    uint32_t image = TOK_NO_ID, spare = TOK_NO_ID;
    for (uint32_t i = 0; i < v->count; i++) {
        struct gguf_text t = v->token[i];
        for (const char *const *m = r->markers; *m && v->type[i] == TYPE_NORMAL; m++)
            if (gguf_text_is(t, *m)) v->type[i] = TYPE_CONTROL;
        if (r->spare && gguf_text_is(t, r->image)) image = i;
        if (r->spare && gguf_text_is(t, r->spare)) spare = i;
    }
    if (!v->tower || spare == TOK_NO_ID || (image != TOK_NO_ID && image < rows)) return;
    if (image != TOK_NO_ID) {
        v->token[image] = (struct gguf_text){NULL, 0};
        v->type[image] = TYPE_UNUSED;
    }
    v->token[spare] = (struct gguf_text){r->image, strlen(r->image)};
    v->type[spare] = TYPE_CONTROL;
}

static enum status read_vocab(struct vocab *v)
{
    const struct gguf_value *tokens = array(v, "tokenizer.ggml.tokens", true);
    if (!tokens || tokens->count == 0 || tokens->count > TOK_ID_LIMIT)
        return err_set(v->err, ST_FORMAT, "tokenizer.ggml.tokens is not an array of 1 to %u strings",
                       TOK_ID_LIMIT);
    v->count = (uint32_t)tokens->count;
    v->token = calloc(v->count, sizeof *v->token);
    v->type = calloc(v->count, sizeof *v->type);
    if (!v->token || !v->type) return err_nomem(v->err, "tokenizer");
    const void *at = NULL;
    for (uint32_t i = 0; i < v->count && gguf_next_string(tokens, &at, &v->token[i]); i++) continue;
    enum status st = read_types(v);
    if (!st && v->kind->markers) name_markers(v);
    for (uint32_t i = 0; i < v->count && v->kind->user_special && !st; i++)
        if (v->type[i] == TYPE_NORMAL && is_marker(v->token[i])) v->type[i] = TYPE_CONTROL;
    for (uint32_t i = 0; i < v->count && !st; i++)
        if (v->type[i] == TYPE_UNUSED && is_padding(v->token[i], i))
            v->token[i] = (struct gguf_text){NULL, 0};
    return st;
}

/* The token that a key names by its id; *id is TOK_NO_ID if the key is absent or -1. */
static enum status role_id(const struct vocab *v, const char *key, uint32_t *id)
{
    const struct gguf_value *value = gguf_get(v->g, key);
    *id = TOK_NO_ID;
    if (!value || !gguf_u32(value, id) || *id == TOK_NO_ID) return ST_OK;
    if (*id < v->count && v->token[*id].p) return ST_OK;
    return err_set(v->err, ST_FORMAT, "%s is %u, which is no token", key, *id);
}

/* ---- merges ---- */

static enum status read_stated_merges(const struct vocab *v, const struct gguf_value *merges)
{
    struct tok_merge_reader m;
    const void *at = NULL;
    struct gguf_text s;
    enum status st = tok__merges_open(&m, v->t, "tokenizer.ggml.merges", merges->count, v->err);
    for (uint32_t i = 0; !st && gguf_next_string(merges, &at, &s); i++) {
        const char *space = s.len > 1 ? memchr(s.p + 1, ' ', s.len - 1) : NULL;
        if (!space) st = err_set(v->err, ST_FORMAT, "tokenizer.ggml.merges[%u] is not a pair", i);
        else
            st = tok__merges_add(&m, i, s.p, (size_t)(space - s.p), space + 1,
                                 s.len - (size_t)(space + 1 - s.p));
    }
    return tok__merges_close(&m, st);
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

/* Order in which tokens are merged. By score; in most vocabularies that is the order of ids, which must stay:
 * the scores of tokens that aren't normal are invented by the converter. */
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

struct pairs {
    struct pair {
        uint32_t left, right, merged;
    } * list;
    size_t count, cap;
};

/* Every split of the token into two, the longest left part first. */
static enum status add_splits(const struct vocab *v, uint32_t id, struct pairs *out)
{
    uint32_t left[TOKEN_BYTES_MAX];
    const char *s = v->token[id].p;
    size_t len = v->token[id].len;
    for (size_t k = 1; k < len; k++)
        left[k] = ((unsigned char)s[k] & 0xC0) == 0x80 ? TOK_NO_ID : tok__literal_id(v->t, s, k);
    for (size_t k = len; k-- > 1;) {
        uint32_t right = left[k] == TOK_NO_ID ? TOK_NO_ID : tok__literal_id(v->t, s + k, len - k);
        if (right == TOK_NO_ID) continue;
        if (!LIST_RESERVE(out->list, out->cap, out->count + 1)) return err_nomem(v->err, "tokenizer");
        out->list[out->count++] = (struct pair){left[k], right, id};
    }
    return ST_OK;
}

/* SentencePiece joins the pair whose union has the best score; merges are a list of pairs instead, derived
 * from the vocabulary: all pairs whose union is a token, by the rank of that. */
static enum status derive_merges(const struct vocab *v)
{
    struct tok_merge_reader m;
    struct pairs pairs = {NULL, 0, 0};
    struct rank *order = calloc(v->count, sizeof *order);
    enum status st = order ? order_tokens(v, order) : err_nomem(v->err, "tokenizer");
    for (uint32_t i = 0; i < v->count && !st && pairs.count < TOK_RANK_LIMIT; i++)
        if (v->token[order[i].id].p) st = add_splits(v, order[i].id, &pairs);
    free(order);
    if (!st) st = tok__merges_open(&m, v->t, "tokenizer.ggml.tokens", pairs.count, v->err);
    for (size_t i = 0; i < pairs.count && !st; i++) {
        if (i + 16 < pairs.count)
            tok__merges_prefetch(v->t, pairs.list[i + 16].left, pairs.list[i + 16].right);
        tok__merges_put(v->t, pairs.list[i].left, pairs.list[i].right, pairs.list[i].merged);
    }
    free(pairs.list);
    return st;
}

/* ---- struct tokenizer ---- */

static bool set_replace(struct tok_norm *n, const char *from, const char *to)
{
    *n = (struct tok_norm){.kind = TOK_NORM_REPLACE,
                           .from = strdup(from),
                           .to = strdup(to),
                           .from_len = strlen(from),
                           .to_len = strlen(to)};
    return n->from && n->to;
}

static enum status set_steps(const struct vocab *v)
{
    struct tokenizer *t = v->t;
    t->byte_level = t->decode_byte_level = v->kind->byte_level;
    t->split_count = 1;
    if (t->byte_level) {
        bool two = v->kind->first;
        t->splits[0] = (struct tok_split){.pattern = v->kind->first, .behavior = TOK_ISOLATED};
        t->splits[two] = (struct tok_split){.pattern = v->kind->split, .behavior = TOK_ISOLATED};
        t->split_count += two;
        t->ignore_merges = v->kind->ignore_merges;
        t->norms[0].kind = TOK_NORM_NFC;
        t->norm_count = v->kind->nfc;
        return ST_OK;
    }
    t->fuse_unk = t->byte_fallback = t->decode_byte_fallback = true;
    t->norm_count = t->decode_replace_count = 1;
    bool prefix = v->kind->space_prefix;
    (void)gguf_bool(gguf_get(v->g, "tokenizer.ggml.add_space_prefix"), &prefix);
    if (prefix) {
        t->norms[t->norm_count++] =
            (struct tok_norm){.kind = TOK_NORM_PREPEND, .to = strdup("\xE2\x96\x81"), .to_len = 3};
        t->decode_strip = true;
    }
    t->splits[0] = (struct tok_split){.pattern = TOK_PATTERN_LITERAL,
                                      .behavior = TOK_MERGED_WITH_PREVIOUS,
                                      .literal = strdup(" "),
                                      .literal_len = 1};
    if (t->splits[0].literal && (!prefix || t->norms[1].to) &&
        set_replace(&t->norms[0], " ", "\xE2\x96\x81") &&
        set_replace(&t->decode_replace[0], "\xE2\x96\x81", " "))
        return ST_OK;
    return err_nomem(v->err, "tokenizer");
}

/* User-defined tokens of a SentencePiece-style vocabulary are in the file with spaces: the original has
 * U+2581 for each. */
static enum status put_token(const struct vocab *v, uint32_t id, struct tok_textbuf *tmp)
{
    struct gguf_text s = v->token[id];
    if (!v->kind->byte_level && s.len > TOKEN_BYTES_MAX)
        return err_set(v->err, ST_UNSUPPORTED, "token %u has more than %u bytes", id, TOKEN_BYTES_MAX);
    if (!utf8_valid(s.p, s.len))
        return err_set(v->err, ST_FORMAT, "tokenizer.ggml.tokens[%u] is not UTF-8", id);
    if (!v->kind->byte_level && v->type[id] == TYPE_USER && s.len) {
        tmp->len = 0;
        if (tok__replace(&v->t->norms[0], &(struct tok_text){.s = (const uint8_t *)s.p, .len = s.len}, tmp))
            return err_nomem(v->err, "tokenizer");
        s = (struct gguf_text){(const char *)tmp->s, tmp->len};
    }
    v->t->flags[id] |= TOK_IN_MODEL;
    return tok__add_literal(v->t, id, s.p, s.len, v->err);
}

static enum status put_vocab(const struct vocab *v)
{
    struct tok_textbuf tmp = {.mixed = false};
    uint32_t highest = 0;
    for (uint32_t i = 0; i < v->count; i++)
        if (v->token[i].p) highest = i;
    enum status st = tok__allocate_vocab(v->t, highest, v->err);
    for (uint32_t i = 0; i < v->count && !st; i++)
        if (v->token[i].p) st = put_token(v, i, &tmp);
    for (uint32_t i = 0; i <= highest && !st; i++)
        if (v->token[i].p)
            v->token[i] = (struct gguf_text){v->t->literals + v->t->literal[i].at, v->t->literal[i].len};
    tok__textbuf_fini(&tmp);
    return st;
}

static enum status put_added(const struct vocab *v)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; i < v->count && !st; i++) {
        bool user = v->type[i] == TYPE_USER;
        if (v->token[i].len == 0 || !(user || v->type[i] == TYPE_CONTROL || v->type[i] == TYPE_UNKNOWN))
            continue;
        struct tok_added flags = {.special = !user || v->kind->user_special};
        st = tok__put_added(v->t, i, &flags, v->err);
    }
    return st;
}

/* The tokens added around text that isn't a chat. */
static enum status set_template(const struct vocab *v)
{
    static const char *const names[2] = {"bos", "eos"};
    bool on[2] = {v->kind->bos == TOK_BOS_UNLESS_NOT, false};
    uint32_t side[2];
    (void)gguf_bool(gguf_get(v->g, "tokenizer.ggml.add_bos_token"), &on[0]);
    (void)gguf_bool(gguf_get(v->g, "tokenizer.ggml.add_eos_token"), &on[1]);
    on[0] |= v->kind->bos == TOK_BOS_ALWAYS;
    enum status st = role_id(v, "tokenizer.ggml.bos_token_id", &side[0]);
    if (!st) st = role_id(v, "tokenizer.ggml.eos_token_id", &side[1]);
    for (int i = 0; i < 2 && !st; i++)
        if (on[i] && side[i] == TOK_NO_ID)
            st = err_set(v->err, ST_FORMAT, "tokenizer.ggml.add_%s_token without tokenizer.ggml.%s_token_id",
                         names[i], names[i]);
    v->t->prefix[0] = side[0];
    v->t->prefix_count = on[0];
    v->t->suffix[0] = side[1];
    v->t->suffix_count = on[1];
    return st;
}

static enum status put_roles(const struct vocab *v)
{
    static const char *const roles[][2] = {{"tokenizer.ggml.bos_token_id", "bos_token"},
                                           {"tokenizer.ggml.eos_token_id", "eos_token"},
                                           {"tokenizer.ggml.padding_token_id", "pad_token"},
                                           {"tokenizer.ggml.unknown_token_id", "unk_token"},
                                           {"tokenizer.ggml.mask_token_id", "mask_token"}};
    enum status st = ST_OK;
    for (size_t i = 0; i < sizeof roles / sizeof *roles && !st; i++) {
        uint32_t id;
        if ((st = role_id(v, roles[i][0], &id)) || id == TOK_NO_ID) continue;
        st = tok__put_role(v->t, roles[i][1], v->token[id].p, v->token[id].len,
                           &(struct tok_added){.special = true}, v->err);
    }
    return st ? st : tok__add_roles(v->t, v->err);
}

static enum status build(struct vocab *v)
{
    bool prefix = false;
    const struct gguf_value *merges = array(v, "tokenizer.ggml.merges", true);
    (void)gguf_bool(gguf_get(v->g, "tokenizer.ggml.add_space_prefix"), &prefix);
    if (prefix && !v->kind->space_prefix)
        return err_set(v->err, ST_UNSUPPORTED,
                       "a tokenizer with tokenizer.ggml.add_space_prefix is not supported");
    enum status st = read_vocab(v);
    v->t->unk_id = TOK_NO_ID;
    if (!st && !v->kind->byte_level) st = role_id(v, "tokenizer.ggml.unknown_token_id", &v->t->unk_id);
    if (!st) st = set_template(v);
    if (!st) st = set_steps(v);
    if (!st) st = put_vocab(v);
    if (!st && merges) st = read_stated_merges(v, merges);
    else if (!st && !v->kind->byte_level) st = derive_merges(v);
    else if (!st) st = err_set(v->err, ST_FORMAT, "tokenizer.ggml.merges is not an array of strings");
    if (!st) st = put_added(v);
    return st ? st : put_roles(v);
}

enum status tok_load_gguf(const struct gguf *g, const struct tok_gguf_kind *kind, bool tower,
                          const struct tok_extra *extra, size_t extra_count, struct tokenizer **out,
                          struct err *err)
{
    struct vocab v = {.g = g, .tower = tower, .kind = kind, .t = calloc(1, sizeof *v.t), .err = err};
    enum status st = v.t ? build(&v) : err_nomem(err, "tokenizer");
    free(v.token);
    free(v.type);
    if (!st) st = tok__finish(v.t, extra, extra_count, err);
    if (st) tok_free(v.t);
    else *out = v.t;
    return st ? err_prefix(err, st, "%s", gguf_path(g)) : ST_OK;
}
