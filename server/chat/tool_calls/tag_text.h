/* Tags in a text that arrives in parts. */
#ifndef KVASIR_TAG_TEXT_H
#define KVASIR_TAG_TEXT_H

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Most white space that is skipped to see what follows it. */
#define BLANKS_MAX 64u

static inline bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Bytes at the end of text[0..len) that are a proper prefix of tag. */
static inline size_t tag_prefix(const char *text, size_t len, const char *tag)
{
    size_t n = strlen(tag) - 1;
    if (n > len) n = len;
    while (n && memcmp(text + len - n, tag, n) != 0) n--;
    return n;
}

/* The text so far; more may follow. */
struct tag_text {
    const char *s;
    size_t len;
    bool final; /* nothing will follow */
};

/* 1: tag is at i; 0: it isn't; -1: the text is too short to decide. */
static inline int tag_at(const struct tag_text *t, size_t i, const char *tag)
{
    size_t tag_len = strlen(tag), n = t->len - i < tag_len ? t->len - i : tag_len;
    if (memcmp(t->s + i, tag, n) != 0) return 0;
    return n == tag_len ? 1 : t->final ? 0 : -1;
}

/* Bytes of the white space at i, of any kind in Unicode, or a byte order mark. Like tag_at. */
static inline int space_at(const struct tag_text *t, size_t i)
{
    static const char *const spaces[] = {"\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE3\x80\x80",
                                         "\xEF\xBB\xBF"};
    if ((unsigned char)t->s[i] < 0x80) return is_blank(t->s[i]);
    int most = 0, general = tag_at(t, i, "\xE2\x80"), found;
    if (!general) general = tag_at(t, i, "\xE2\x81");
    if (general < 0) return -1;
    if (general && i + 2 == t->len) return t->final ? 0 : -1;
    if (general)
        return strchr("\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8A\x8B\xA8\xA9\xAF\x9F\xA0", t->s[i + 2])
                   ? 3
                   : 0;
    for (size_t k = 0; k < sizeof spaces / sizeof *spaces; k++) {
        found = tag_at(t, i, spaces[k]);
        if (found > 0) return (int)strlen(spaces[k]);
        if (found < 0) most = -1;
    }
    return most;
}

/* The first byte at or after i that is no white space, at most BLANKS_MAX further; the end of the text if it
 * ends within a character that may be. */
static inline size_t blanks_skip(const struct tag_text *t, size_t i)
{
    size_t to = t->len - i > BLANKS_MAX ? i + BLANKS_MAX : t->len;
    int n = 1;
    for (; n > 0 && i<to; i += n> 0 ? (size_t)n : 0) n = space_at(t, i);
    return n < 0 ? t->len : i;
}

/* The end of [from, to) without the white space there. */
static inline size_t blanks_trim(const struct tag_text *t, size_t from, size_t to)
{
    for (size_t n = 1; n <= 3 && n <= to - from; n++)
        if (space_at(t, to - n) == (int)n) {
            to -= n;
            n = 0;
        }
    return to;
}

/* The first byte at or after i that is none of a name's, at most NAME_MAX_LEN further. */
#define NAME_MAX_LEN 128u
static inline size_t name_skip(const struct tag_text *t, size_t i)
{
    size_t to = t->len - i > NAME_MAX_LEN ? i + NAME_MAX_LEN : t->len;
    for (; i < to; i++) {
        char c = t->s[i];
        if (!isalnum((unsigned char)c) && !(c == '_' || c == '-' || c == '.') &&
            ((unsigned char)c < 0x80 || space_at(t, i)))
            break;
    }
    return i;
}

#endif
