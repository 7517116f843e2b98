/* The supported pre-tokenizer patterns, as scanners. Each pattern is a list of ordered alternatives without
 * gaps: every character belongs to exactly one word. Pure; any thread.
 *
 * DIGIT:       (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N} |  ?[^\s\p{L}\p{N}]+[\r\n]* |
 *              \s*[\r\n]+ | \s+(?!\S) | \s+
 * DIGITS3:     the same with \p{N}{1,3}; DIGITS: with \p{N}+
 * DIGIT_MARKS: as DIGIT, marks counted as letters; DIGIT_BARE: as DIGIT, without that [\r\n]*
 * PLAIN:       's|'t|'re|'ve|'m|'ll|'d | ?\p{L}+ |  ?\p{N}+ |  ?[^\s\p{L}\p{N}]+ | \s+(?!\S) | \s+
 * CASED:       [^\r\n\p{L}\p{N}]?U*L+ | [^\r\n\p{L}\p{N}]?U+L* | \p{N} |  ?[^\s\p{L}\p{N}]+[\r\n/]* |
 *              \s*[\r\n]+ | \s+(?!\S) | \s+, U all letters and marks but \p{Ll}, L all but \p{Lu} and \p{Lt}
 * NUMBERS:     \p{N} | \P{N}+; NUMBERS3: \p{N}{1,3} | \P{N}+ */
#include "config/base/assert.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"

#include <limits.h>

struct scan {
    const uint8_t *s;
    size_t len;
    unsigned mark; /* what a \p{M} counts as: UNI_LETTER or UNI_OTHER */
};

/* Class of the character at `at` and the offset after it; past the end: UNI_NONE. */
enum { UNI_NONE = UNI_CLASS_MASK + 1 };

static inline unsigned class_at(const struct scan *c, size_t at, size_t *after)
{
    if (at >= c->len) {
        *after = at;
        return UNI_NONE;
    }
    uint32_t cp;
    *after = at + uni_decode(c->s + at, &cp);
    unsigned cls = uni_class(cp);
    return cls == UNI_MARK ? c->mark : cls >= UNI_UPPER ? UNI_LETTER : cls;
}

static size_t extend(const struct scan *c, size_t at, unsigned cls)
{
    size_t after;
    while (class_at(c, at, &after) == cls) at = after;
    return at;
}

/* Bytes of a contraction after the apostrophe at `at`, 0 if none. With `fold`, upper case and U+017F (long s)
 * match as (?i) has it. */
static size_t contraction(const struct scan *c, size_t at, bool fold)
{
    size_t left = c->len - at - 1;
    const uint8_t *p = c->s + at + 1;
    if (left == 0) return 0;
    if (fold && left >= 2 && p[0] == 0xC5 && p[1] == 0xBF) return 2;
    uint8_t bit = fold ? 0x20 : 0;
    uint8_t a = p[0] | bit;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 1;
    if (left < 2) return 0;
    uint8_t b = p[1] | bit;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 2 : 0;
}

/* \s*[\r\n]+ | \s+(?!\S) | \s+ ; the first only with `newlines`. */
static size_t space_run(const struct scan *c, size_t at, bool newlines)
{
    size_t i = at, last_newline = 0, last_start = at, after, chars = 0;
    for (;;) {
        unsigned cls = class_at(c, i, &after);
        if (cls != UNI_SPACE && cls != UNI_NEWLINE) break;
        last_start = i;
        i = after;
        chars++;
        if (cls == UNI_NEWLINE) last_newline = i;
    }
    if (newlines && last_newline) return last_newline;
    /* The last space goes to the word that follows. */
    return i < c->len && chars > 1 ? last_start : i;
}

static size_t next_plain(const struct scan *c, size_t at)
{
    if (c->s[at] == '\'') {
        size_t n = contraction(c, at, false);
        if (n) return at + 1 + n;
    }
    size_t after, second;
    unsigned cls = class_at(c, at, &after);
    if (c->s[at] == ' ') {
        unsigned next = class_at(c, after, &second);
        if (next == UNI_LETTER || next == UNI_NUMBER || next == UNI_OTHER) return extend(c, second, next);
    }
    if (cls == UNI_SPACE || cls == UNI_NEWLINE) return space_run(c, at, false);
    return extend(c, after, cls);
}

static size_t next_digits(const struct scan *c, size_t at, unsigned digits, bool bare)
{
    if (c->s[at] == '\'') {
        size_t n = contraction(c, at, true);
        if (n) return at + 1 + n;
    }
    size_t after, second;
    unsigned cls = class_at(c, at, &after);
    if (cls == UNI_LETTER) return extend(c, after, UNI_LETTER);
    if (cls == UNI_NUMBER) {
        while (--digits > 0 && class_at(c, after, &second) == UNI_NUMBER) after = second;
        return after;
    }
    if (cls != UNI_NEWLINE) {
        unsigned next = class_at(c, after, &second);
        if (next == UNI_LETTER) return extend(c, second, UNI_LETTER);
        if (cls == UNI_OTHER || (c->s[at] == ' ' && next == UNI_OTHER)) {
            size_t end = extend(c, after, UNI_OTHER);
            return bare ? end : extend(c, end, UNI_NEWLINE);
        }
    }
    return space_run(c, at, true);
}

/* End of the characters of the classes in the set; *last (may be NULL): of the last that is also in `also`.
 */
static size_t run_of(const struct scan *c, size_t at, unsigned set, unsigned also, size_t *last)
{
    while (at < c->len) {
        uint32_t cp;
        unsigned n = uni_decode(c->s + at, &cp), cls = uni_class(cp);
        if (!(set >> cls & 1)) break;
        at += n;
        if (last && also >> cls & 1) *last = at;
    }
    return at;
}

enum {
    CASELESS = 1 << UNI_LETTER | 1 << UNI_MARK,
    NOT_LOWER = CASELESS | 1 << UNI_UPPER,
    NOT_UPPER = CASELESS | 1 << UNI_LOWER,
};

/* U*L+ from `at`; 0: no match. If no L follows the U, the last U that is one matches L. */
static size_t lower_word(const struct scan *c, size_t at)
{
    size_t last = 0, u = run_of(c, at, NOT_LOWER, CASELESS, &last), end = run_of(c, u, NOT_UPPER, 0, NULL);
    return end > u ? end : last;
}

/* U+L* */
static size_t upper_word(const struct scan *c, size_t at)
{
    size_t u = run_of(c, at, NOT_LOWER, 0, NULL);
    return u > at ? run_of(c, u, NOT_UPPER, 0, NULL) : 0;
}

static size_t next_cased(const struct scan *c, size_t at)
{
    size_t after, end;
    unsigned cls = class_at(c, at, &after);
    bool prefix = cls != UNI_LETTER && cls != UNI_NUMBER && cls != UNI_NEWLINE;
    if (prefix && (end = lower_word(c, after))) return end;
    if ((end = lower_word(c, at))) return end;
    if (prefix && (end = upper_word(c, after))) return end;
    if ((end = upper_word(c, at))) return end;
    if (cls == UNI_NUMBER) return after;
    size_t from = c->s[at] == ' ' ? after : at;
    end = extend(c, from, UNI_OTHER);
    if (end == from) return space_run(c, at, true);
    while (end < c->len && (c->s[end] == '\r' || c->s[end] == '\n' || c->s[end] == '/')) end++;
    return end;
}

size_t tok__next_word(enum tok_pattern pattern, const uint8_t *s, size_t len, size_t at)
{
    ASSERT(at < len && pattern != TOK_PATTERN_LITERAL);
    struct scan c = {.s = s, .len = len, .mark = pattern == TOK_PATTERN_DIGIT_MARKS ? UNI_LETTER : UNI_OTHER};
    if (pattern == TOK_PATTERN_PLAIN) return next_plain(&c, at);
    if (pattern == TOK_PATTERN_CASED) return next_cased(&c, at);
    bool numbers = pattern == TOK_PATTERN_NUMBERS || pattern == TOK_PATTERN_NUMBERS3;
    unsigned digits = pattern == TOK_PATTERN_DIGITS                                       ? UINT_MAX
                      : pattern == TOK_PATTERN_DIGITS3 || pattern == TOK_PATTERN_NUMBERS3 ? 3
                                                                                          : 1;
    size_t end = numbers ? run_of(&c, at, ~(1u << UNI_NUMBER), 0, NULL) : at;
    if (end > at) return end;
    /* At a number all the others take as many of them. */
    return next_digits(&c, at, digits, pattern == TOK_PATTERN_DIGIT_BARE);
}
