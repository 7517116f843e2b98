/* From the runs of a caller to one valid, normalised text: joining, UTF-8 repair, NFC, literal replacement.
 * Pure; any thread.
 *
 * NFC is utf8proc's composition with a frozen table of the characters that need it: nothing composes across a
 * character that isn't in the table, so characters unknown to the reference stay unchanged, whatever version
 * of utf8proc is installed. */
#include "config/base/assert.h"
#include "config/base/list.h"
#include "config/base/utf8.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void tok__textbuf_fini(struct tok_textbuf *b)
{
    free(b->s);
    free(b->control);
    *b = (struct tok_textbuf){.mixed = false};
}

static enum status reserve(struct tok_textbuf *b, size_t extra)
{
    size_t cap = b->cap;
    if (extra > 3 * TOK_TEXT_MAX || b->len + extra > 3 * TOK_TEXT_MAX) return ST_TOO_LARGE;
    if (b->mixed && !LIST_RESERVE(b->control, cap, b->len + extra)) return ST_NOMEM;
    return LIST_RESERVE(b->s, b->cap, b->len + extra) ? ST_OK : ST_NOMEM;
}

static enum status append(struct tok_textbuf *b, const void *s, size_t len, unsigned control)
{
    enum status st = reserve(b, len);
    if (st || len == 0) return st;
    memcpy(b->s + b->len, s, len);
    if (b->mixed) memset(b->control + b->len, (int)control, len);
    b->len += len;
    return ST_OK;
}

/* Appends a part of a text unchanged. */
static enum status append_part(struct tok_textbuf *b, const struct tok_text *x, size_t from, size_t to)
{
    if (from >= to) return ST_OK;
    enum status st = append(b, x->s + from, to - from, x->all);
    if (!st && b->mixed && x->control)
        memcpy(b->control + b->len - (to - from), x->control + from, to - from);
    return st;
}

/* The strictest control of a part: text made from several bytes may be part of a token only if all of them
 * may. */
static unsigned part_control(const struct tok_text *x, size_t from, size_t to)
{
    if (!x->control) return x->all;
    unsigned c = TOK_CONTROL_ALL;
    for (size_t i = from; i < to; i++) {
        if (x->control[i] > c) c = x->control[i];
    }
    return c;
}

/* Replaces every maximal invalid subpart by U+FFFD, which takes the control of its first byte. */
static enum status repair(const struct tok_text *x, struct tok_textbuf *out)
{
    size_t i = 0, from = 0;
    enum status st;
    while (i < x->len) {
        uint32_t cp;
        size_t n = utf8_decode(x->s + i, x->len - i, &cp);
        if (cp < UTF8_BAD) {
            i += n;
            continue;
        }
        if ((st = append_part(out, x, from, i))) return st;
        if ((st = append(out, "\xEF\xBF\xBD", 3, x->control ? x->control[i] : x->all))) return st;
        i += n;
        from = i;
    }
    return append_part(out, x, from, x->len);
}

enum status tok__join_runs(const struct tok_run *runs, size_t run_count, struct tok_textbuf *own,
                           struct tok_text *out, struct err *err)
{
    size_t total = 0, used = 0, first = 0;
    bool mixed = false;
    for (size_t i = 0; i < run_count; i++) {
        if (runs[i].len == 0) continue;
        if (runs[i].len > TOK_TEXT_MAX - total)
            return err_set(err, ST_TOO_LARGE, "more than %zu bytes of text", TOK_TEXT_MAX);
        total += runs[i].len;
        if (used++ == 0) first = i;
        else if (runs[i].control != runs[first].control) mixed = true;
    }
    *out = (struct tok_text){.s = (const uint8_t *)"", .all = TOK_CONTROL_ALL};
    if (used == 0) return ST_OK;
    *out = (struct tok_text){(const uint8_t *)runs[first].text, runs[first].len, NULL, runs[first].control};
    struct tok_textbuf joined = {.mixed = mixed};
    enum status st = ST_OK;
    if (used > 1) {
        for (size_t i = first; i < run_count && !st; i++)
            st = append(&joined, runs[i].text, runs[i].len, (unsigned)runs[i].control);
        *out = (struct tok_text){joined.s, joined.len, joined.control, runs[first].control};
    }
    if (!st && !utf8_valid(out->s, out->len)) {
        struct tok_textbuf fixed = {.mixed = mixed};
        st = repair(out, &fixed);
        tok__textbuf_fini(&joined);
        joined = fixed;
        *out = (struct tok_text){joined.s, joined.len, joined.control, runs[first].control};
    }
    *own = joined;
    return st ? err_set(err, st, "the text could not be joined: %s", status_name(st)) : ST_OK;
}

/* ---- NFC ---- */

/* First character at or after `at` that NFC may touch; len if none. */
static size_t next_nfc(const uint8_t *s, size_t len, size_t at)
{
    while (at < len) {
        if (s[at] < 0xCC) { /* nothing below U+0300 changes */
            at += s[at] < 0x80 ? 1 : 2;
            continue;
        }
        uint32_t cp;
        unsigned n = uni_decode(s + at, &cp);
        if (uni_props(cp) & UNI_NFC) return at;
        at += n;
    }
    return len;
}

static unsigned combining_class(int32_t cp)
{
    return (unsigned)utf8proc_get_property(cp)->combining_class;
}

/* Stable sort of a run of marks by combining class, counting: the run may be as long as the text. */
static enum status sort_marks(int32_t *cp, size_t n)
{
    bool sorted = true;
    for (size_t i = 1; i < n && sorted; i++) sorted = combining_class(cp[i - 1]) <= combining_class(cp[i]);
    if (sorted) return ST_OK;
    int32_t *copy = malloc(n * sizeof *copy);
    if (!copy) return ST_NOMEM;
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) {
        copy[i] = cp[i];
        start[combining_class(cp[i]) + 1]++;
    }
    for (size_t c = 1; c < 257; c++) start[c] += start[c - 1];
    for (size_t i = 0; i < n; i++) cp[start[combining_class(copy[i])]++] = copy[i];
    free(copy);
    return ST_OK;
}

/* Code points of s[0..len) decomposed, marks in order, composed again; in cp, returns the count through *n.
 */
static enum status compose(const uint8_t *s, size_t len, int32_t *cp, size_t cap, size_t *n)
{
    size_t count = 0;
    int last_boundclass = 0;
    for (size_t i = 0; i < len;) {
        uint32_t c;
        i += uni_decode(s + i, &c);
        utf8proc_ssize_t k = utf8proc_decompose_char((int32_t)c, cp + count, (utf8proc_ssize_t)(cap - count),
                                                     UTF8PROC_DECOMPOSE, &last_boundclass);
        if (k < 0 || (size_t)k > cap - count) return ST_INVALID;
        count += (size_t)k;
    }
    for (size_t i = 0; i < count;) {
        size_t j = i;
        while (j < count && combining_class(cp[j]) != 0) j++;
        enum status st = sort_marks(cp + i, j - i);
        if (st) return st;
        i = j > i ? j : i + 1;
    }
    utf8proc_ssize_t k =
        utf8proc_normalize_utf32(cp, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (k < 0) return ST_INVALID;
    *n = (size_t)k;
    return ST_OK;
}

/* Appends the NFC of x[from..to), which begins a composition. */
static enum status nfc_segment(const struct tok_text *x, size_t from, size_t to, struct tok_textbuf *out)
{
    enum { SMALL = 64, GROWTH = 4 }; /* a code point of the table decomposes into at most 4 */
    int32_t small[SMALL * GROWTH], *cp = small;
    size_t cap = SMALL * GROWTH, n = 0;
    if (to - from > SMALL) {
        cap = (to - from) * GROWTH;
        cp = malloc(cap * sizeof *cp);
        if (!cp) return ST_NOMEM;
    }
    enum status st = compose(x->s + from, to - from, cp, cap, &n);
    unsigned control = part_control(x, from, to);
    for (size_t i = 0; i < n && !st; i++) {
        uint8_t utf8[4];
        st = append(out, utf8, utf8_encode((uint32_t)cp[i], utf8), control);
    }
    if (cp != small) free(cp);
    return st;
}

static enum status nfc(const struct tok_text *x, struct tok_textbuf *out)
{
    size_t done = 0;
    enum status st;
    for (;;) {
        size_t hit = next_nfc(x->s, x->len, done), start = hit, end = hit;
        if (hit == x->len) return append_part(out, x, done, x->len);
        uint32_t cp;
        if (hit > done) { /* it composes with what precedes it, unless only the installed utf8proc takes it
                             for a mark */
            start--;
            while ((x->s[start] & 0xC0) == 0x80) start--;
            uni_decode(x->s + start, &cp);
            if (combining_class((int32_t)cp) != 0) start = hit;
        }
        while (end < x->len) {
            unsigned n = uni_decode(x->s + end, &cp);
            if (!(uni_props(cp) & UNI_NFC)) break;
            end += n;
        }
        if ((st = append_part(out, x, done, start))) return st;
        if ((st = nfc_segment(x, start, end, out))) return st;
        done = end;
    }
}

enum status tok__replace(const struct tok_norm *r, const struct tok_text *x, struct tok_textbuf *out)
{
    ASSERT(r->kind == TOK_NORM_REPLACE && r->from_len > 0);
    size_t done = 0;
    enum status st;
    while (done < x->len) {
        const uint8_t *p = r->from_len == 1 ? memchr(x->s + done, r->from[0], x->len - done)
                                            : memmem(x->s + done, x->len - done, r->from, r->from_len);
        if (!p) break;
        size_t at = (size_t)(p - x->s);
        if ((st = append_part(out, x, done, at))) return st;
        if ((st = append(out, r->to, r->to_len, part_control(x, at, at + r->from_len)))) return st;
        done = at + r->from_len;
    }
    return append_part(out, x, done, x->len);
}

bool tok__is_normal(const struct tokenizer *t, const uint8_t *s, size_t len)
{
    for (size_t i = 0; i < t->norm_count; i++) {
        if (t->norms[i].kind != TOK_NORM_NFC || next_nfc(s, len, 0) != len) return false;
    }
    return true;
}

static enum status prepend(const struct tok_norm *r, const struct tok_text *x, bool first,
                           struct tok_textbuf *out)
{
    bool begun = x->len >= r->to_len && memcmp(x->s, r->to, r->to_len) == 0;
    enum status st = ST_OK;
    if (x->len && !(r->first && !first) && !(r->once && begun))
        st = append(out, r->to, r->to_len, x->control ? x->control[0] : x->all);
    return st ? st : append_part(out, x, 0, x->len);
}

enum status tok__normalize(const struct tok_norm *steps, size_t count, const struct tok_text *piece,
                           bool first, struct tok_textbuf *out)
{
    if (count == 0) return append_part(out, piece, 0, piece->len);
    struct tok_text x = *piece;
    struct tok_textbuf between[2] = {{.mixed = out->mixed}, {.mixed = out->mixed}};
    enum status st = ST_OK;
    for (size_t i = 0; i < count && !st; i++) {
        struct tok_textbuf *to = i + 1 == count ? out : &between[i % 2];
        if (to != out) to->len = 0;
        st = steps[i].kind == TOK_NORM_NFC       ? nfc(&x, to)
             : steps[i].kind == TOK_NORM_REPLACE ? tok__replace(&steps[i], &x, to)
                                                 : prepend(&steps[i], &x, first, to);
        if (to != out)
            x = (struct tok_text){to->s ? to->s : (const uint8_t *)"", to->len, to->control, piece->all};
    }
    tok__textbuf_fini(&between[0]);
    tok__textbuf_fini(&between[1]);
    return st;
}
