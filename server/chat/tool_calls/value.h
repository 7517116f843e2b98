/* An incremental reader of one value in a model's output: JSON, or malformed JSON and Python-like notation,
 * which are repaired. The output is JSON. Strict JSON is passed on byte for byte; otherwise:
 *
 * - Strings in single quotes or in the template's quote token. A quote that neither a separator nor a bracket
 *   follows is part of its string. Control characters and unknown escapes are escaped.
 * - Bare words: true, false, null in any notation, numbers; every other word is a string.
 * - Keys without quotes, `=` for a colon, tuples, keyword arguments in parentheses, doubled braces.
 * - Missing or superfluous commas and brackets; a missing value is null.
 *
 * The result depends on the text alone, never on how it was split. */
#ifndef KVASIR_TOOL_VALUE_H
#define KVASIR_TOOL_VALUE_H

#include "config/base/buf.h"
#include "server/chat/tool_calls/tag_text.h"

#include <stdint.h>

#define VALUE_DEPTH_MAX 500u

enum value_event {
    VALUE_MORE,   /* the text ends within the value */
    VALUE_MEMBER, /* watched object: `key` is complete, its value begins at `at`; `out` may be changed */
    VALUE_NEXT,   /* watched object: the member's value is complete */
    VALUE_DONE,   /* the value is complete, at `at` */
    VALUE_TAG,    /* the end tag is at `at`: see value_close */
    VALUE_DEEP,   /* more than VALUE_DEPTH_MAX levels */
};

/* How far the text is from JSON. */
enum value_odds { VALUE_JSON = 0, VALUE_NOTATION /* only written differently */, VALUE_REPAIRED };

struct value_reader {
    struct buf *out, *key;           /* key: of the watched object's current member, a JSON string */
    const char *quote, *const *ends; /* quote token or NULL; the tags that end a value, up to NULL */
    const char *const *opens;        /* tags that may follow an end tag */
    uint32_t watch;                  /* level whose members are reported; 0: none */
    enum value_odds odds;
    size_t at; /* everything before it is read */
    /* private */
    uint32_t level;
    uint8_t part, mark;
    const char *close; /* ends the string, or NULL: `mark` does */
    bool is_key;
    size_t from, run, gap; /* a string's or word's text that is not yet in `out`; its end that may be closing
                              brackets; what separates it from the previous one */
    uint8_t kinds[VALUE_DEPTH_MAX + 1];
    enum status st;
};

/* A value begins at `at`. */
void value_init(struct value_reader *r, size_t at, struct buf *out);
/* Reads on. ST_NOMEM and ST_TOO_LARGE of the output: r->st. */
enum value_event value_read(struct value_reader *r, const struct tag_text *t);
/* After VALUE_TAG: closes everything that is open, also the watched object. */
void value_close(struct value_reader *r, const struct tag_text *t);
/* At the end of the text: only brackets are missing. */
bool value_may_end(const struct value_reader *r);
/* At the end of the text: the part of a string or word that is held back. */
void value_flush(struct value_reader *r, const struct tag_text *t);
/* The whole text is one value: its JSON is added to out, VALUE_JSON .. VALUE_REPAIRED; else -1 (out may have
 * changed). */
int value_whole(const char *s, size_t len, struct buf *out);
/* Appends s as the inside of a JSON string. */
enum status value_escape(struct buf *out, const char *s, size_t len);
/* May a call's arguments begin with this key? 1: a name or string, and a colon; 0: no; -1: too short. */
int value_key_at(const struct tag_text *t, size_t i);
/* An end tag at i that no text follows, but the end of the text or one of `opens`. Else like tag_at. */
int value_end_at(const struct tag_text *t, size_t i, const char *const *ends, const char *const *opens);

#endif
