/* The supported pre-tokenizer patterns, as scanners. Each pattern is a list of ordered alternatives without
 * gaps: every character belongs to exactly one word. Pure; any thread.
 *
 * DIGIT:       (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N} |  ?[^\s\p{L}\p{N}]+[\r\n]* |
 * \s*[\r\n]+ | \s+(?!\S) | \s+ DIGITS3:     the same with \p{N}{1,3} DIGIT_MARKS: as DIGIT, marks counted as
 * letters PLAIN:       's|'t|'re|'ve|'m|'ll|'d | ?\p{L}+ |  ?\p{N}+ |  ?[^\s\p{L}\p{N}]+ | \s+(?!\S) | \s+ */
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"

struct scan {
    const uint8_t *s;
    size_t len;
    unsigned mark; /* what a \p{M} counts as: UNI_LETTER or UNI_OTHER */
};

/* Class of the character at `at` and the offset after it; past the end: UNI_NONE. */
enum { UNI_NONE = UNI_CLASS_MASK };

static inline unsigned class_at(const struct scan *c, size_t at, size_t *after)
{
    if (at >= c->len) {
        *after = at;
        return UNI_NONE;
    }
    uint32_t cp;
    *after = at + uni_decode(c->s + at, &cp);
    unsigned cls = uni_class(cp);
    return cls == UNI_MARK ? c->mark : cls;
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

static size_t next_digits(const struct scan *c, size_t at, unsigned digits)
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
            return extend(c, end, UNI_NEWLINE);
        }
    }
    return space_run(c, at, true);
}

size_t tok__next_word(enum tok_pattern pattern, const uint8_t *s, size_t len, size_t at)
{
    struct scan c = {.s = s, .len = len, .mark = pattern == TOK_PATTERN_DIGIT_MARKS ? UNI_LETTER : UNI_OTHER};
    if (pattern == TOK_PATTERN_PLAIN) return next_plain(&c, at);
    return next_digits(&c, at, pattern == TOK_PATTERN_DIGITS3 ? 3 : 1);
}
