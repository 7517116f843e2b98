/* See regex_parse.h. A pattern for JSON matches the whole literal: ^ is its opening quote and $ its closing
 * quote, which can't occur inside. */
#include "server/grammar/regex_parse.h"

#include "config/base/assert.h"
#include "config/base/hex.h"
#include "config/base/utf8.h"
#include "config/base/id_table.h"
#include "config/base/list.h"
#include "server/grammar/build.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define TEXT_MAX   16384u
#define DEPTH_MAX  200u
#define COUNT_MAX  100000u
#define LAST       0x10FFFFu
#define CASED_LAST 0x1FFFu /* of the letters whose other case counts: up to Greek Extended */
#define FORKS_MAX  4096u   /* of what follows a \b or look-ahead, in units of 64 bytes */

struct parser {
    struct rx_pool *p;
    const char *s;
    size_t len, at;
    bool json;
    unsigned flags, depth, forks;
    bool bounds; /* it has a \b or \B */
    bool tied;   /* the last group contains an anchor */
    struct grammar_error *error;
    enum status st;
};

static rx refuse(struct parser *r, enum status st, const char *what)
{
    if (!r->st)
        snprintf(r->error->message, sizeof r->error->message, "The regular expression %s (at byte %zu)", what,
                 r->at);
    if (!r->st) r->st = st;
    return RX_NONE;
}

/* ---- characters ---- */

static rx escaped(struct rx_pool *p, uint32_t c)
{
    static const char special[] = "\"\\/\b\f\n\r\t", letter[] = "\"\\/bfnrt";
    char text[8];
    const char *at = c ? memchr(special, (int)c, sizeof special - 1) : NULL;
    rx out = RX_NONE;
    if (at && c < 0x80) {
        text[0] = '\\';
        text[1] = letter[at - special];
        out = rx_literal(p, text, 2);
    }
    if (c >= 0x20) return out;
    snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    out = rx_alt(p, out, rx_literal(p, text, 6));
    snprintf(text, sizeof text, "\\u%04X", (unsigned)c);
    return rx_alt(p, out, rx_literal(p, text, 6));
}

rx json_chars(struct rx_pool *p, uint32_t from, uint32_t to)
{
    static const uint32_t plain[][2] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, LAST}};
    rx out = RX_NONE;
    for (size_t i = 0; i < 3; i++) {
        uint32_t a = from > plain[i][0] ? from : plain[i][0], b = to < plain[i][1] ? to : plain[i][1];
        if (a <= b) out = rx_alt(p, out, rx_chars(p, a, b));
    }
    for (uint32_t c = 0; c < 0x60; c++)
        if (c >= from && c <= to) out = rx_alt(p, out, escaped(p, c));
    return out;
}

static rx hex(struct rx_pool *p, char from, char to)
{
    rx out = rx_chars(p, (uint32_t)from, (uint32_t)to);
    if (from >= 'A') out = rx_alt(p, out, rx_chars(p, (uint32_t)from + 32, (uint32_t)to + 32));
    return out;
}

rx json_any_char(struct rx_pool *p)
{
    if (*rx_pool_kept(p)) return *rx_pool_kept(p);
    rx d = rx_alt(p, rx_chars(p, '0', '9'), hex(p, 'A', 'F')), u = rx_literal(p, "\\u", 2),
       low = rx_concat(p, hex(p, 'D', 'D'), rx_concat(p, hex(p, 'C', 'F'), rx_repeat(p, d, 2, 2))),
       high =
           rx_concat(p, hex(p, 'D', 'D'),
                     rx_concat(p, rx_alt(p, rx_chars(p, '8', '9'), hex(p, 'A', 'B')), rx_repeat(p, d, 2, 2))),
       other = rx_and(p, rx_repeat(p, d, 4, 4), rx_not(p, rx_alt(p, low, high)));
    rx out = json_chars(p, 0, LAST);
    out = rx_alt(p, out, rx_concat(p, u, other));
    return *rx_pool_kept(p) = rx_alt(p, out, rx_concat(p, u, rx_concat(p, high, rx_concat(p, u, low))));
}

static rx chars(struct parser *r, uint32_t from, uint32_t to)
{
    return r->json ? json_chars(r->p, from, to) : rx_chars(r->p, from, to);
}

static rx anything(struct parser *r)
{
    return rx_repeat(r->p, r->json ? json_any_char(r->p) : rx_chars(r->p, 0, LAST), 0, RX_NO_LIMIT);
}

/* Expressions combined at once: combining one by one would rescan them each time. Also a set's ranges. */
struct list {
    rx *items;
    size_t count, cap;
};

static void list_add(struct parser *r, struct list *l, rx x)
{
    if (!LIST_RESERVE(l->items, l->cap, l->count + 1)) (void)refuse(r, ST_NOMEM, "is too large");
    else l->items[l->count++] = x;
}

static rx list_end(struct parser *r, struct list *l, rx (*together)(struct rx_pool *, const rx *, size_t))
{
    rx out = together(r->p, l->items, l->count);
    free(l->items);
    *l = (struct list){0};
    return out;
}

/* A set of characters: a list of ranges, from and to, in any order; made disjoint at the end. */
static void set_add(struct parser *r, struct list *s, uint32_t from, uint32_t to)
{
    list_add(r, s, from);
    list_add(r, s, to);
}

static int by_start(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Consumes the set. */
static rx set_end(struct parser *r, struct list *s, bool negated)
{
    struct list out = {0};
    uint32_t next = 0;
    if (s->count) qsort(s->items, s->count / 2, 2 * sizeof *s->items, by_start);
    for (size_t i = 0; i + 1 < s->count; i += 2) {
        uint32_t from = s->items[i] > next ? s->items[i] : next, to = s->items[i + 1];
        if (to < next || from > to) continue;
        if (negated && from > next) list_add(r, &out, chars(r, next, from - 1));
        if (!negated) list_add(r, &out, chars(r, from, to));
        next = to + 1;
    }
    if (negated && next <= LAST) list_add(r, &out, chars(r, next, LAST));
    ASSERT(s->count % 2 == 0 || r->st);
    free(s->items);
    *s = (struct list){0};
    return list_end(r, &out, rx_alt_list);
}

static void set_add_not(struct parser *r, struct list *s, const uint32_t (*list)[2], size_t n, bool negated)
{
    uint32_t next = 0;
    for (size_t i = 0; i < n; i++) {
        if (!negated) set_add(r, s, list[i][0], list[i][1]);
        else if (list[i][0] > next) set_add(r, s, next, list[i][0] - 1);
        next = list[i][1] + 1;
    }
    if (negated) set_add(r, s, next, LAST);
}

/* \d, \w, \s and their opposites; false: none of them. */
static bool set_class(struct parser *r, struct list *s, char c)
{
    static const uint32_t digit[][2] = {{'0', '9'}},
                          word[][2] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                          space[][2] = {{9, 13},          {32, 32},         {0xA0, 0xA0},
                                        {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                        {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
                                        {0xFEFF, 0xFEFF}};
    switch (c) {
    case 'd':
    case 'D': set_add_not(r, s, digit, 1, c == 'D'); return true;
    case 'w':
    case 'W': set_add_not(r, s, word, 4, c == 'W'); return true;
    case 's':
    case 'S': set_add_not(r, s, space, sizeof space / sizeof *space, c == 'S'); return true;
    default: return false;
    }
}

/* Characters by their general category: runs of the same one. */
static struct {
    uint32_t from;
    char name[3];
} runs[8192];
static size_t run_count;
static pthread_once_t runs_once = PTHREAD_ONCE_INIT;

static void runs_make(void)
{
    for (uint32_t c = 0; c <= LAST && run_count < sizeof runs / sizeof *runs; c++) {
        const char *name = utf8proc_category_string((utf8proc_int32_t)c);
        if (run_count && strcmp(runs[run_count - 1].name, name) == 0) continue;
        runs[run_count].from = c;
        snprintf(runs[run_count++].name, sizeof runs->name, "%s", name);
    }
}

/* The properties of emoji; false: none of them. */
static bool set_emoji(struct parser *r, struct list *s, const char *name, bool negated)
{
    static const uint32_t parts[][2] = {
        {'#', '#'},       {'*', '*'},         {'0', '9'},         {0x200D, 0x200D},   {0x20E3, 0x20E3},
        {0xFE0F, 0xFE0F}, {0x1F1E6, 0x1F1FF}, {0x1F3FB, 0x1F3FF}, {0x1F9B0, 0x1F9B3}, {0xE0020, 0xE007F}};
    uint32_t emoji[128][2], n = 0;
    if (strcmp(name, "Emoji_Component") == 0) {
        set_add_not(r, s, parts, sizeof parts / sizeof *parts, negated);
        return true;
    }
    if (strcmp(name, "Extended_Pictographic") != 0) return false;
    for (uint32_t c = 0; c < 0x20000; c++) {
        if (utf8proc_get_property((utf8proc_int32_t)c)->boundclass !=
            UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC)
            continue;
        if (n && emoji[n - 1][1] + 1 == c) emoji[n - 1][1] = c;
        else if (n < sizeof emoji / sizeof *emoji) emoji[n][0] = emoji[n][1] = c, n++;
    }
    set_add_not(r, s, (const uint32_t(*)[2])emoji, n, negated);
    return true;
}

/* \p{L}, \p{Lu}, \p{Letter}: by general category. */
static void set_property(struct parser *r, struct list *s, bool negated)
{
    static const char *const longs[][2] = {
        {"Letter", "L"},         {"Number", "N"}, {"Punctuation", "P"},       {"Symbol", "S"},
        {"Separator", "Z"},      {"Mark", "M"},   {"Uppercase_Letter", "Lu"}, {"Lowercase_Letter", "Ll"},
        {"Decimal_Number", "Nd"}};
    char name[64];
    size_t n = 0;
    if (r->at < r->len && r->s[r->at] == '{') {
        for (r->at++; r->at < r->len && r->s[r->at] != '}' && n < sizeof name - 1; r->at++)
            name[n++] = r->s[r->at];
        if (r->at == r->len || r->s[r->at++] != '}') {
            (void)refuse(r, ST_INVALID, "has a property that does not end");
            return;
        }
    } else if (r->at < r->len) {
        name[n++] = r->s[r->at++];
    }
    name[n] = '\0';
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++)
        if (strcmp(name, longs[i][0]) == 0) snprintf(name, sizeof name, "%s", longs[i][1]);
    if (set_emoji(r, s, name, negated)) return;
    bool known = false;
    (void)pthread_once(&runs_once, runs_make);
    for (size_t i = 0, k; i < run_count; i = k) { /* merges adjacent included runs */
        bool in = strlen(name) <= 2 && name[0] && strncmp(runs[i].name, name, strlen(name)) == 0;
        known = known || in;
        for (k = i + 1; k < run_count && (strncmp(runs[k].name, name, strlen(name)) == 0) == in; k++) {
        }
        if (in != negated) set_add(r, s, runs[i].from, k < run_count ? runs[k].from - 1 : LAST);
    }
    if (!known) (void)refuse(r, ST_UNSUPPORTED, "has a property that is not supported");
}

static uint32_t char_at(struct parser *r)
{
    uint32_t c;
    size_t n = utf8_decode(r->s + r->at, r->len - r->at, &c);
    if (c >= UTF8_BAD) {
        (void)refuse(r, ST_INVALID, "is not valid UTF-8");
        return 0;
    }
    r->at += n;
    return c;
}

static bool hex_digits(struct parser *r, size_t n, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        int d = r->at < r->len ? hex_digit(r->s[r->at]) : -1;
        if (d < 0) return false;
        *out = *out << 4 | (uint32_t)d;
        r->at++;
    }
    return true;
}

static uint32_t escape_code(struct parser *r, char kind)
{
    uint32_t c = 0, low = 0;
    if (kind == 'u' && r->at < r->len && r->s[r->at] == '{') {
        size_t n = 0;
        r->at++;
        while (r->at + n < r->len && r->s[r->at + n] != '}') n++;
        if (!n || n > 6 || !hex_digits(r, n, &c) || c > LAST || r->at++ >= r->len)
            return refuse(r, ST_INVALID, "has an escape that is not complete");
        return c;
    }
    if (!hex_digits(r, kind == 'x' ? 2 : kind == 'u' ? 4 : 8, &c) || c > LAST)
        return refuse(r, ST_INVALID, "has an escape that is not complete");
    if (c < 0xD800 || c > 0xDFFF) return c;
    if (r->at + 1 < r->len && r->s[r->at] == '\\' && r->s[r->at + 1] == 'u') {
        r->at += 2;
        if (hex_digits(r, 4, &low) && low >= 0xDC00 && low <= 0xDFFF)
            return 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    return refuse(r, ST_UNSUPPORTED, "has half of a surrogate pair");
}

/* After a backslash: a character, or a class into s (returns UINT32_MAX). */
static uint32_t escape(struct parser *r, struct list *s, bool in_class)
{
    static const char from[] = "tnrfv0", to[] = "\t\n\r\f\v";
    if (r->at == r->len) return refuse(r, ST_INVALID, "ends with a backslash");
    char c = r->s[r->at];
    const char *at = memchr(from, c, 6);
    if ((unsigned char)c >= 0x80) return char_at(r);
    r->at++;
    if (set_class(r, s, c)) return UINT32_MAX;
    if (c == 'p' || c == 'P') {
        set_property(r, s, c == 'P');
        return UINT32_MAX;
    }
    if (at) return (uint32_t)to[at - from];
    if (c == 'x' || c == 'u' || (c == 'U' && r->flags & REGEX_LONG_CODE)) return escape_code(r, c);
    if (c == 'b' && in_class) return 8;
    if (c == 'c' && r->at < r->len) return (uint32_t)r->s[r->at++] & 31;
    if (c >= '1' && c <= '9') return refuse(r, ST_UNSUPPORTED, "refers back to a group");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return refuse(r, ST_UNSUPPORTED, "has an escape that is not supported");
    return (uint32_t)(unsigned char)c;
}

/* Unescaped characters. */
static void add_literal(struct parser *r, struct list *s, uint32_t from, uint32_t to)
{
    set_add(r, s, from, to);
    if (!(r->flags & REGEX_ANY_CASE)) return;
    for (uint32_t c = from; c <= to && c <= CASED_LAST; c++) {
        uint32_t low = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c),
                 up = (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
        if (low < from || low > to) set_add(r, s, low, low);
        if (up < from || up > to) set_add(r, s, up, up);
    }
}

static rx class(struct parser *r)
{
    struct list s = {0};
    bool negated = r->at < r->len && r->s[r->at] == '^';
    if (negated) r->at++;
    while (!r->st && r->at < r->len && r->s[r->at] != ']') {
        uint32_t ends[2];
        bool range = false, literal = true;
        for (int k = 0; k < 2; k++) {
            if (r->s[r->at] == '\\') {
                literal = false;
                r->at++;
                ends[k] = escape(r, &s, true);
            } else {
                ends[k] = char_at(r);
            }
            if (k == 1 || r->st) break;
            range =
                ends[0] != UINT32_MAX && r->at + 1 < r->len && r->s[r->at] == '-' && r->s[r->at + 1] != ']';
            if (!range) break;
            r->at++;
        }
        if (ends[0] == UINT32_MAX || r->st) continue;
        if (range && ends[1] == UINT32_MAX) { /* [a-\d]: both, and the dash */
            set_add(r, &s, '-', '-');
            range = false;
        }
        if (range && ends[1] < ends[0]) (void)refuse(r, ST_INVALID, "has a range that is out of order");
        (literal ? add_literal : set_add)(r, &s, ends[0], range ? ends[1] : ends[0]);
    }
    if (r->at == r->len && !r->st) (void)refuse(r, ST_INVALID, "has a class that does not end");
    r->at++;
    return set_end(r, &s, negated);
}

/* ---- the grammar ---- */

struct ends {
    bool begin, end; /* anchored at the text's beginning, or end */
};
enum place { TOP, GROUP, AHEAD };
static rx alternatives(struct parser *r, enum place place);

/* "(?i" and the like, up to `end`: sets the flags; false: something else. */
static bool set_flags(struct parser *r, char end)
{
    unsigned flags = r->flags;
    size_t i = r->at + 2;
    if (r->at + 3 >= r->len || r->s[r->at] != '(' || r->s[r->at + 1] != '?') return false;
    for (; i < r->len && strchr("isua", r->s[i]) && r->s[i]; i++)
        flags |= r->s[i] == 'i' ? REGEX_ANY_CASE : r->s[i] == 's' ? REGEX_DOT_ALL : 0u;
    if (i == r->at + 2 || i >= r->len || r->s[i] != end) return false;
    r->at = i + 1;
    r->flags = flags;
    return true;
}

static rx group(struct parser *r)
{
    unsigned flags = r->flags;
    bool plain = !set_flags(r, ':');
    r->at += plain;
    if (plain && r->at + 1 < r->len && r->s[r->at] == '?') {
        char c = r->s[r->at + 1], d = r->at + 2 < r->len ? r->s[r->at + 2] : '\0';
        if (c == ':') r->at += 2;
        else if ((c == '<' || c == 'P') && d != '=' && d != '!') {
            while (r->at < r->len && r->s[r->at] != '>') r->at++;
            r->at++;
        } else if (c == '=' || c == '!') return refuse(r, ST_UNSUPPORTED, "looks ahead inside of a group");
        else return refuse(r, ST_UNSUPPORTED, "has a group of a kind that is not supported");
    }
    if (++r->depth > DEPTH_MAX) return refuse(r, ST_TOO_LARGE, "is nested too deeply");
    rx out = alternatives(r, GROUP);
    r->depth--;
    r->flags = flags;
    if (r->at >= r->len || r->s[r->at] != ')') return refuse(r, ST_INVALID, "has a group that does not end");
    r->at++;
    return out;
}

static rx atom(struct parser *r)
{
    struct list s = {0};
    static const uint32_t breaks[][2] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    char c = r->s[r->at];
    switch (c) {
    case '.':
        r->at++;
        set_add_not(r, &s, breaks, r->flags & REGEX_DOT_ALL ? 0 : r->flags & REGEX_DOT_LINE ? 1 : 3, true);
        return set_end(r, &s, false);
    case '[': r->at++; return class(r);
    case '(': return group(r);
    case '^':
    case '$':
        r->tied = r->depth > 0;
        r->at++;
        return r->json ? rx_literal(r->p, "\"", 1) : RX_EMPTY;
    case '*':
    case '+':
    case '?': return refuse(r, ST_INVALID, "repeats nothing");
    case '\\': {
        r->at++;
        uint32_t code = escape(r, &s, false);
        return code == UINT32_MAX ? set_end(r, &s, false) : r->st ? RX_NONE : chars(r, code, code);
    }
    default: {
        uint32_t code = char_at(r);
        if (!r->st) add_literal(r, &s, code, code);
        return set_end(r, &s, false);
    }
    }
}

/* {n}, {n,}, {n,m} and, as Python has it, {,m}: false if not a quantifier, then it is literal. */
static bool counts(struct parser *r, uint32_t *min, uint32_t *max)
{
    size_t i = r->at + 1;
    uint64_t v[2] = {0, 0};
    size_t digits[2] = {0, 0};
    int k = 0;
    for (; i < r->len && r->s[i] != '}'; i++) {
        char c = r->s[i];
        if (c == ',' && k == 0) k = 1;
        else if (c < '0' || c > '9') return false;
        else if ((digits[k]++, v[k] = v[k] * 10 + (uint64_t)(c - '0')) > COUNT_MAX) v[k] = COUNT_MAX + 1;
    }
    if (i == r->len || (!digits[0] && (r->json || !k))) return false;
    if (v[0] > COUNT_MAX || v[1] > COUNT_MAX) (void)refuse(r, ST_TOO_LARGE, "has a count that is too large");
    *min = (uint32_t)v[0];
    *max = k == 0 ? *min : digits[1] ? (uint32_t)v[1] : RX_NO_LIMIT;
    if (*max < *min) (void)refuse(r, ST_INVALID, "has counts that are out of order");
    r->at = i + 1;
    return true;
}

static rx quantified(struct parser *r)
{
    r->tied = false;
    rx a = atom(r);
    while (!r->st && r->at < r->len) {
        uint32_t min = 0, max = RX_NO_LIMIT;
        char c = r->s[r->at];
        if (c == '*' || c == '+' || c == '?') {
            min = c == '+';
            max = c == '?' ? 1 : RX_NO_LIMIT;
            r->at++;
        } else if (c != '{' || !counts(r, &min, &max)) {
            break;
        }
        if (r->tied && r->json && max > 1) return refuse(r, ST_UNSUPPORTED, "repeats an anchor");
        if (r->at < r->len && r->s[r->at] == '?') r->at++; /* lazy: the same language */
        a = rx_repeat(r->p, a, min, max);
    }
    return a;
}

/* ---- what the place in the text decides: \b, \B and look-ahead ---- */

static rx sequence(struct parser *r, bool top, bool word, struct ends *e);

/* Text that ends in a character of a word (of it, from its quote on if it has one), or begins with one. */
static rx at_word(struct parser *r, bool ends)
{
    static const char spelled[] = "\\\\u00(?:3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa]|5[Ff])";
    struct list s = {0};
    rx one, escape, quote = rx_repeat(r->p, rx_literal(r->p, "\"", 1), 0, r->json);
    (void)set_class(r, &s, 'w');
    one = set_end(r, &s, false);
    if (r->json && !regex_parse(r->p, spelled, sizeof spelled - 1, 0, &escape, r->error))
        one = rx_alt(r->p, one, escape);
    return ends ? rx_concat(r->p, rx_concat(r->p, quote, anything(r)), one) : rx_concat(r->p, one, RX_ALL);
}

/* The part of `before` after which the last character is one of a word, or not; was: the one before it is. */
static rx ending(struct parser *r, rx before, bool was, bool word)
{
    rx ends = at_word(r, true), out = rx_and(r->p, before, word ? ends : rx_not(r->p, ends));
    if (!was || !rx_nullable(r->p, before)) return out;
    return word ? rx_alt(r->p, out, RX_EMPTY) : rx_and(r->p, out, rx_not(r->p, RX_EMPTY));
}

/* `before`, then the rest, which is of must[whether `before` ends in a character of a word]. */
static rx rest_of(struct parser *r, rx before, bool was, const rx must[2], struct ends *e)
{
    size_t at = r->at;
    unsigned flags = r->flags;
    rx out = RX_NONE;
    if (r->bounds && (r->forks += 1 + (unsigned)(r->len - r->at) / 64) > FORKS_MAX)
        return refuse(r, ST_UNSUPPORTED, "looks ahead too often");
    for (int word = 0; word <= (int)r->bounds && !r->st; word++) {
        struct ends ends = {true, false};
        r->at = at;
        r->flags = flags;
        rx rest = sequence(r, true, word, &ends);
        if (!ends.end && r->json)
            rest = rx_concat(r->p, rest, rx_concat(r->p, anything(r), rx_literal(r->p, "\"", 1)));
        rx first = r->bounds ? ending(r, before, was, word) : before;
        out = rx_alt(r->p, out, rx_concat(r->p, first, rx_and(r->p, rest, must[word])));
    }
    e->end = true;
    return out;
}

/* (?=...) and (?!...): intersected with the rest of the text. */
static rx look_ahead(struct parser *r, rx before, bool was, struct ends *e)
{
    bool negative = r->s[r->at + 2] == '!';
    r->at += 3;
    rx ahead = alternatives(r, AHEAD);
    if (r->at >= r->len || r->s[r->at] != ')') return refuse(r, ST_INVALID, "has a group that does not end");
    r->at++;
    if (negative) ahead = rx_not(r->p, ahead);
    return rest_of(r, before, was, (rx[]){ahead, ahead}, e);
}

static rx boundary(struct parser *r, rx before, bool was, struct ends *e)
{
    rx word = at_word(r, false), other = rx_not(r->p, word);
    bool edge = r->s[r->at + 1] == 'b';
    r->at += 2;
    return rest_of(r, before, was, edge ? (rx[]){word, other} : (rx[]){other, word}, e);
}

enum { LOOKS_AHEAD = 1, LOOKS_BEHIND = 2 /* \b, \B */ };

/* The end of what begins at `at`: of a group (its ')'), or, `first`, of an alternative; and whether it looks
 * around. */
static size_t end_of(const struct parser *r, size_t at, bool first, unsigned *looks)
{
    unsigned depth = 0;
    bool set = false;
    for (; at < r->len; at++) {
        char c = r->s[at], d = at + 1 < r->len ? r->s[at + 1] : '\0';
        if (c == '\\' && !set && (d == 'b' || d == 'B')) *looks |= LOOKS_BEHIND;
        if (c == '\\') at++;
        else if (set || c == '[') set = c != ']';
        else if (!depth && (c == ')' || (first && c == '|'))) break;
        else if (c == ')') depth--;
        else if (c == '(' && ++depth && d == '?' && at + 2 < r->len)
            *looks |= r->s[at + 2] == '=' || r->s[at + 2] == '!' ? LOOKS_AHEAD : 0;
    }
    return at;
}

static bool counts(struct parser *r, uint32_t *min, uint32_t *max);

/* A group that looks ahead, at most once: each of its alternatives with the rest of the text. */
static rx alternatives_with_rest(struct parser *r, size_t close, rx before, bool was, struct ends *e)
{
    struct parser saved = *r;
    uint32_t min = 1, max = 1;
    unsigned ignored = 0;
    bool last = false;
    size_t at = r->at + 1;
    r->at = close + 1;
    if (r->at < r->len && r->s[r->at] == '?') min = 0, r->at++;
    else if (r->at < r->len && r->s[r->at] == '{') (void)counts(r, &min, &max);
    if (r->at < r->len && r->s[r->at] == '?') r->at++;
    size_t rest = r->at, end = end_of(r, rest, true, &ignored);
    if (r->s[at] == '?') at += 2;
    if (max > 1 || (rest < end && strchr("*+?", r->s[rest])))
        return refuse(r, ST_UNSUPPORTED, "repeats a group that looks ahead");
    char *text = malloc(r->len + 1);
    if (!text) return refuse(r, ST_NOMEM, "is too large");
    rx out = RX_NONE;
    while (!r->st && !last) {
        size_t to = end_of(&saved, at, true, &ignored);
        last = at > close;
        if (last && min) break;
        if (last) to = at; /* without it */
        memcpy(text, saved.s + at, to - at);
        memcpy(text + (to - at), saved.s + rest, end - rest);
        r->s = text;
        r->len = to - at + end - rest;
        r->at = 0;
        if ((r->forks += 1 + (unsigned)(r->len - r->at) / 64) > FORKS_MAX)
            (void)refuse(r, ST_UNSUPPORTED, "looks ahead too often");
        out = rx_alt(r->p, out, rest_of(r, before, was, (rx[]){RX_ALL, RX_ALL}, e));
        if (!r->st && r->at < r->len) (void)refuse(r, ST_INVALID, "has a ) too many");
        at = to + 1;
    }
    free(text);
    r->s = saved.s;
    r->len = saved.len;
    r->at = end;
    return out;
}

static rx sequence(struct parser *r, bool top, bool word, struct ends *e)
{
    struct list out = {0};
    bool first = true;
    while (!r->st && r->at < r->len && r->s[r->at] != '|' && r->s[r->at] != ')') {
        char c = r->s[r->at], d = r->at + 1 < r->len ? r->s[r->at + 1] : '\0',
             kind = r->at + 2 < r->len && d == '?' ? r->s[r->at + 2] : '\0';
        unsigned looks = 0;
        if (set_flags(r, ')')) continue;
        if (top && c == '(' && (kind == '=' || kind == '!'))
            return look_ahead(r, list_end(r, &out, rx_concat_list), word, e);
        if (top && c == '\\' && (d == 'b' || d == 'B'))
            return boundary(r, list_end(r, &out, rx_concat_list), word, e);
        if (top && c == '(' && (d != '?' || kind == ':')) {
            size_t close = end_of(r, r->at + 1, false, &looks);
            if (looks) return alternatives_with_rest(r, close, list_end(r, &out, rx_concat_list), word, e);
        }
        if (c == '^' && first) e->begin = true;
        if (c == '^' && !first && r->s[r->at - 1] == '^') { /* ^^ is ^ */
            r->at++;
            continue;
        }
        e->end = c == '$';
        if (e->end && r->at + 1 < r->len && r->s[r->at + 1] == '$') {
            r->at++;
            continue;
        }
        list_add(r, &out, quantified(r));
        first = false;
    }
    return list_end(r, &out, rx_concat_list);
}

static rx alternatives(struct parser *r, enum place place)
{
    bool top = place == TOP;
    struct list out = {0};
    for (;;) {
        struct ends e = {false, false};
        size_t at = r->at;
        unsigned flags = r->flags;
        rx one = sequence(r, top, false, &e);
        if (r->st) break;
        if (top && r->json) {
            /* With the text before and after the match, both quotes included. */
            rx quote = rx_literal(r->p, "\"", 1), any = anything(r);
            rx open = rx_concat(r->p, quote, any), close = rx_concat(r->p, any, quote);
            /* Anchors within groups are handled per group. */
            if (!e.begin && !r->bounds) one = rx_alt(r->p, one, rx_concat(r->p, open, one));
            if (!e.end) one = rx_alt(r->p, one, rx_concat(r->p, one, close));
            if (!e.begin && r->bounds) {
                r->at = at;
                r->flags = flags;
                one = rx_alt(r->p, one, rest_of(r, open, false, (rx[]){RX_ALL, RX_ALL}, &e));
            }
        }
        /* In JSON the quote that is $ can't be followed by anything. */
        if (place == AHEAD && (r->json || !e.end)) one = rx_concat(r->p, one, RX_ALL);
        list_add(r, &out, one);
        if (r->at >= r->len || r->s[r->at] != '|') break;
        r->at++;
    }
    return list_end(r, &out, rx_alt_list);
}

static enum status parse(struct parser *r, rx *out)
{
    if (r->len > TEXT_MAX) (void)refuse(r, ST_TOO_LARGE, "is too long");
    unsigned looks = 0;
    (void)end_of(r, 0, false, &looks);
    r->bounds = looks & LOOKS_BEHIND;
    *out = r->st ? RX_NONE : alternatives(r, TOP);
    ASSERT(r->st || !r->depth);
    if (!r->st && r->at < r->len) (void)refuse(r, ST_INVALID, "has a ) too many");
    if (!r->st && rx_status(r->p)) (void)refuse(r, rx_status(r->p), "is too large");
    return r->st;
}

enum status regex_parse(struct rx_pool *p, const char *text, size_t len, unsigned flags, rx *out,
                        struct grammar_error *error)
{
    struct parser r = {.p = p, .s = text, .len = len, .flags = flags, .error = error};
    return parse(&r, out);
}

enum status regex_parse_json(struct rx_pool *p, const char *text, size_t len, rx *out,
                             struct grammar_error *error)
{
    struct parser r = {.p = p, .s = text, .len = len, .json = true, .error = error};
    enum status st = parse(&r, out);
    rx quote = rx_literal(p, "\"", 1);
    if (!st) *out = rx_and(p, *out, rx_concat(p, quote, rx_concat(p, anything(&r), quote)));
    return st;
}

enum status gb_regex_text(struct grammar_builder *b, const char *text, size_t len, gx *out,
                          struct grammar_error *error)
{
    rx a;
    enum status st = regex_parse(gb_pool(b), text, len, 0, &a, error);
    *out = st ? 0 : gb_regex(b, a);
    return st;
}
