/* JSON text (RFC 8259): the lexer of all its readers (json.h, server/json/parser.h, server/jinja/json.c) and
 * the escapes of all its writers. Pure; bytes >= 0x80 are not checked. */
#ifndef KVASIR_JSON_TEXT_H
#define KVASIR_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_LEX_DEPTH 128u /* the most for depth_max */

enum json_token {
    JSON_LEX_ERROR = 0,
    JSON_LEX_DEEP, /* nested deeper than depth_max: an error too */
    JSON_LEX_END,  /* the text was one value */
    JSON_LEX_OBJECT,
    JSON_LEX_ARRAY,
    JSON_LEX_CLOSE, /* the innermost object or array ends */
    JSON_LEX_KEY,   /* the value follows */
    JSON_LEX_STRING,
    JSON_LEX_NUMBER,
    JSON_LEX_TRUE,
    JSON_LEX_FALSE,
    JSON_LEX_NULL
};

/* Set text, len and depth_max; all else is zero at first, but for `at` of a text that begins later. */
struct json_lexer {
    const char *text;
    size_t len, at;            /* at: after the token, or what is wrong */
    uint32_t depth, depth_max; /* depth: open objects and arrays, with the one that the token opens */
    size_t from, to;           /* the token's bytes; a string's without its quotes */
    bool escaped;              /* a key or string that holds backslashes */
    bool whole;                /* a number without fraction and exponent */
    uint8_t state;
    const char *error; /* "a key expected": what is wrong; static */
    bool objects[JSON_LEX_DEPTH + 1];
};

/* The next token. Tokens come in the order that the grammar allows: a reader need not check it. */
enum json_token json_lex(struct json_lexer *x);

/* The code point of the escape at s, a backslash -> *cp (a lone surrogate as it is). Returns the bytes that
 * it takes, of `left`; 0 if JSON has no such escape. */
size_t json_unescape(const char *s, size_t left, uint32_t *cp);

/* What to escape besides '"', '\' and U+0000 to U+001F. Except with JSON_ESCAPE_MUST, each ill-formed byte
 * becomes U+FFFD. */
enum json_escapes {
    JSON_ESCAPE_MUST = 0,
    JSON_ESCAPE_ASCII, /* all but printable ASCII, as Python's ensure_ascii */
    JSON_ESCAPE_LINES, /* U+007F, U+0085, U+2028 and U+2029, at which some clients split lines */
    JSON_ESCAPE_LOG    /* ill-formed bytes; and "\u000a", not "\n" */
};
struct json_escape {
    size_t plain;  /* bytes that stay as they are; what follows them is escaped: */
    size_t used;   /* bytes; 0 at the end of the string */
    char text[13]; /* what they become; "" at the end */
};
/* The beginning of s[0..len), up to and with the first character that is escaped. */
struct json_escape json_escape_next(const char *s, size_t len, enum json_escapes which);

#endif
