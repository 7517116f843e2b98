/* The public functions: encoding of runs, lookups, incremental detokenizing. See tokenizer/internal.h for
 * the parts. Any thread.
 */
#include "config/base/assert.h"
#include "config/base/utf8.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

/* ---- encoding ---- */

/* State of one tok_encode: the encoder and the normalised text that contains its words. */
struct call {
    struct tok_encoder e;
    struct tok_textbuf norm, spaced;
    bool in_place; /* the text is normalised already: words point into it and nothing is copied */
};

static enum status split_words(struct call *c, size_t step, const uint8_t *s, size_t len);

/* Passes a piece on, unless it is empty. */
static enum status pass(struct call *c, size_t step, const uint8_t *s, size_t from, size_t to)
{
    return from < to ? split_words(c, step + 1, s + from, to - from) : ST_OK;
}

/* Split on a literal, with the five behaviours. */
static enum status split_literal(struct call *c, size_t step, const uint8_t *s, size_t len)
{
    const struct tok_split *sp = &c->e.t->splits[step];
    size_t piece = 0, at = 0; /* start of the current piece; where to search */
    enum status st = ST_OK;
    while (!st) {
        const uint8_t *hit = at < len ? memmem(s + at, len - at, sp->literal, sp->literal_len) : NULL;
        if (!hit) break;
        size_t from = (size_t)(hit - s), to = from + sp->literal_len;
        switch (sp->behavior) {
        case TOK_ISOLATED:
            st = pass(c, step, s, piece, from);
            if (!st) st = pass(c, step, s, from, to);
            piece = to;
            break;
        case TOK_REMOVED:
            st = pass(c, step, s, piece, from);
            piece = to;
            break;
        case TOK_MERGED_WITH_PREVIOUS:
            st = pass(c, step, s, piece, to);
            piece = to;
            break;
        case TOK_MERGED_WITH_NEXT:
            st = pass(c, step, s, piece, from);
            piece = from;
            break;
        case TOK_CONTIGUOUS:
            st = pass(c, step, s, piece, from);
            piece = from;
            while (to + sp->literal_len <= len && memcmp(s + to, sp->literal, sp->literal_len) == 0)
                to += sp->literal_len;
            if (!st) st = pass(c, step, s, piece, to);
            piece = to;
            break;
        }
        at = to;
    }
    return st ? st : pass(c, step, s, piece, len);
}

static enum status split_words(struct call *c, size_t step, const uint8_t *s, size_t len)
{
    const struct tokenizer *t = c->e.t;
    if (step == t->split_count) return tok__encode_word(&c->e, s, len);
    if (t->splits[step].pattern == TOK_PATTERN_LITERAL) return split_literal(c, step, s, len);
    for (size_t at = 0; at < len;) {
        size_t end = tok__next_word(t->splits[step].pattern, s, len, at);
        enum status st = pass(c, step, s, at, end);
        if (st) return st;
        at = end;
    }
    return ST_OK;
}

static enum status token_sink(void *ctx, uint32_t id)
{
    struct call *c = ctx;
    return tok__emit(&c->e, id);
}

/* Normalised text between added tokens. */
static enum status words_sink(void *ctx, const struct tok_text *x)
{
    struct call *c = ctx;
    const struct tokenizer *t = c->e.t;
    size_t from = c->spaced.len;
    if (x->len == 0) return ST_OK;
    if (t->space_count == 0) return split_words(c, 0, x->s, x->len);
    struct tok_text bare = {.s = x->s, .len = x->len};
    enum status st = tok__normalize(t->spaces, t->space_count, &bare, c->e.count == 0, &c->spaced);
    c->e.base = c->spaced.s;
    return st ? st : split_words(c, 0, c->spaced.s + from, c->spaced.len - from);
}

/* Raw text between the added tokens that are matched raw. */
static enum status piece_sink(void *ctx, const struct tok_text *x)
{
    struct call *c = ctx;
    struct tok_text piece = *x;
    if (!c->in_place) {
        size_t from = c->norm.len;
        enum status st = tok__normalize(c->e.t->norms, c->e.t->norm_count, x, c->e.count == 0, &c->norm);
        if (st) return st;
        if (c->norm.len == from) return ST_OK;
        if (c->e.t->space_count == 0) c->e.base = c->norm.s;
        piece.s = c->norm.s + from;
        piece.len = c->norm.len - from;
        piece.control = c->norm.mixed ? c->norm.control + from : NULL;
    }
    struct tok_added_sink sink = {.text = words_sink, .token = token_sink, .ctx = c};
    return tok__find_added(c->e.t, &c->e.t->normal_trie, &piece, &sink);
}

/* Words of a long text repeat: remembers the position of each. Results don't depend on it. */
static void make_cache(struct tok_encoder *e, size_t text_bytes)
{
    enum { WORTHWHILE = 1024, SLOTS_MAX = 16384 };
    if (text_bytes < WORTHWHILE) return;
    uint32_t slots = 128;
    while (slots < SLOTS_MAX && slots < text_bytes / 8) slots *= 2;
    e->cache = calloc(slots, sizeof *e->cache); /* none: only slower */
    e->cache_mask = slots - 1;
}

static enum status encode_text(struct call *c, const struct tok_text *text)
{
    const struct tokenizer *t = c->e.t;
    c->in_place = tok__is_normal(t, text->s, text->len);
    c->norm.mixed = text->control != NULL;
    c->e.base = text->s;
    make_cache(&c->e, text->len);
    struct tok_added_sink sink = {.text = piece_sink, .token = token_sink, .ctx = c};
    return tok__find_added(t, &t->raw_trie, text, &sink);
}

/* Puts the template's tokens around the ids; a prefix already in the text is not repeated. */
static enum status add_template(struct tok_encoder *e)
{
    const struct tokenizer *t = e->t;
    size_t n = t->prefix_count;
    bool doubled = n > 0 && e->count >= n && memcmp(e->ids, t->prefix, n * sizeof *t->prefix) == 0;
    enum status st = ST_OK;
    if (n > 0 && !doubled) {
        for (size_t i = 0; i < n && !st; i++) st = tok__emit(e, 0); /* room */
        if (st) return st;
        memmove(e->ids + n, e->ids, (e->count - n) * sizeof *e->ids);
        memcpy(e->ids, t->prefix, n * sizeof *e->ids);
    }
    for (size_t i = 0; i < t->suffix_count && !st; i++) st = tok__emit(e, t->suffix[i]);
    return st;
}

enum status tok_encode(const struct tokenizer *t, const struct tok_run *runs, size_t run_count,
                       bool add_special, size_t ids_max, struct tok_ids *out, struct err *err)
{
    ASSERT(runs || run_count == 0);
    struct tok_textbuf own = {.mixed = false};
    struct tok_text text;
    struct call c = {.e = {.t = t, .ids_max = ids_max}};
    enum status st = tok__join_runs(runs, run_count, &own, &text, err);
    if (!st) {
        st = encode_text(&c, &text);
        if (!st && add_special) st = add_template(&c.e);
        if (st == ST_TOO_LARGE) err_set(err, st, "the text has more than %zu tokens", ids_max);
        else if (st) err_set(err, st, "the text could not be tokenized: %s", status_name(st));
    }
    if (!st) {
        *out = (struct tok_ids){c.e.ids, c.e.count};
        c.e.ids = NULL;
    }
    tok__encoder_fini(&c.e);
    tok__textbuf_fini(&c.norm);
    tok__textbuf_fini(&c.spaced);
    tok__textbuf_fini(&own);
    return st;
}

void tok_ids_free(struct tok_ids *ids)
{
    free(ids->ids);
    *ids = (struct tok_ids){NULL, 0};
}

/* ---- lookups ---- */

uint32_t tok_vocab_size(const struct tokenizer *t)
{
    return t->vocab_size;
}

static unsigned flags_of(const struct tokenizer *t, uint32_t id)
{
    return id < t->vocab_size ? t->flags[id] : 0;
}

const char *tok_bytes(const struct tokenizer *t, uint32_t id, size_t *len)
{
    *len = 0;
    if (!(flags_of(t, id) & TOK_EXISTS) || t->bytes[id].len == 0) return "";
    *len = t->bytes[id].len;
    return t->texts + t->bytes[id].at;
}

bool tok_exists(const struct tokenizer *t, uint32_t id)
{
    return flags_of(t, id) & TOK_EXISTS;
}

bool tok_is_special(const struct tokenizer *t, uint32_t id)
{
    return flags_of(t, id) & TOK_SPECIAL;
}

bool tok_is_added(const struct tokenizer *t, uint32_t id)
{
    return flags_of(t, id) & TOK_ADDED;
}

bool tok_id_of(const struct tokenizer *t, const char *content, size_t len, uint32_t *id)
{
    uint32_t found = tok__literal_id(t, content, len);
    if (found == TOK_NO_ID) return false;
    *id = found;
    return true;
}

bool tok_special_role(const struct tokenizer *t, size_t idx, const char **role, const char **content)
{
    if (idx >= t->role_count) return false;
    *role = t->roles[idx].role;
    *content = t->roles[idx].content;
    return true;
}

/* ---- detokenizing ---- */

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special)
{
    *d = (struct detok){.t = t, .skip_special = skip_special, .strip = t->decode_strip};
}

enum status detok_push(struct detok *d, uint32_t id, struct buf *out)
{
    ASSERT(d->pending_len < sizeof d->pending);
    if (d->skip_special && tok_is_special(d->t, id)) return ST_OK;
    size_t len, i = 0;
    const uint8_t *s = (const uint8_t *)tok_bytes(d->t, id, &len);
    enum status st = ST_OK;
    struct detok before = *d; /* a failed push changes nothing */
    if (len > 0) {
        i = d->strip && s[0] == ' ';
        d->strip = false;
    }
    size_t out_before = out->len;
    uint32_t cp;
    while (d->pending_len > 0 && i < len && !st) { /* a sequence begun by an earlier token */
        uint8_t joined[sizeof d->pending + 1];
        memcpy(joined, d->pending, d->pending_len);
        joined[d->pending_len] = s[i];
        size_t n = utf8_decode(joined, d->pending_len + 1u, &cp);
        if (cp < UTF8_BAD) {
            st = buf_add(out, joined, n);
            d->pending_len = 0;
            i++;
        } else if (cp == UTF8_SHORT) {
            d->pending[d->pending_len++] = s[i++];
        } else { /* s[i] doesn't continue it, but may begin another */
            st = buf_add(out, "\xEF\xBF\xBD", 3);
            d->pending_len = 0;
        }
    }
    size_t from = i;
    while (i < len && !st) {
        size_t n = utf8_decode(s + i, len - i, &cp);
        if (cp < UTF8_BAD) {
            i += n;
            continue;
        }
        st = buf_add(out, s + from, i - from);
        if (cp == UTF8_SHORT) { /* the token ends inside a sequence */
            memcpy(d->pending, s + i, n);
            d->pending_len = (uint8_t)n;
        } else if (!st) {
            st = buf_add(out, "\xEF\xBF\xBD", 3);
        }
        i += n;
        from = i;
    }
    if (!st && from < i) st = buf_add(out, s + from, i - from);
    if (st) {
        *d = before;
        out->len = out_before;
        if (out->data) out->data[out_before] = '\0';
    }
    return st;
}

enum status detok_flush(struct detok *d, struct buf *out)
{
    if (d->pending_len == 0) return ST_OK;
    enum status st = buf_add(out, "\xEF\xBF\xBD", 3);
    if (!st) d->pending_len = 0;
    return st;
}
