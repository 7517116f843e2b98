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

/* The first byte at or after i that is no white space, at most BLANKS_MAX further. */
static inline size_t blanks_skip(const struct tag_text *t, size_t i)
{
    size_t to = t->len - i > BLANKS_MAX ? i + BLANKS_MAX : t->len;
    while (i < to && is_blank(t->s[i])) i++;
    return i;
}

/* The first byte at or after i that is none of a name's, at most NAME_MAX_LEN further. */
#define NAME_MAX_LEN 128u
static inline size_t name_skip(const struct tag_text *t, size_t i)
{
    size_t to = t->len - i > NAME_MAX_LEN ? i + NAME_MAX_LEN : t->len;
    for (; i < to; i++) {
        char c = t->s[i];
        if (!isalnum((unsigned char)c) && !(c == '_' || c == '-' || c == '.') && (unsigned char)c < 0x80)
            break;
    }
    return i;
}

#endif
