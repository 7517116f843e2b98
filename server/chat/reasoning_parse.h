/* Splits a model's text into its reasoning and what comes after it: "<think>\nhm\n</think>\n\nYes.", or with
 * the tags of a channel, "<|channel>thought\nhm\n<channel|>Yes." The text grows, and the parser goes on where
 * it stopped; the split depends on the text alone, never on how it was cut. Pure, as tool_parse.h.
 *
 * Rules, for either pair of tags: reasoning begins with <think> at the very beginning (white space may stand
 * before it), or the prompt has opened it already; it ends at the first
 * </think>, or with the text. Line breaks at both ends of the reasoning and behind </think> belong to the
 * tags, as the templates write them. Without reasoning all of the text is content. */
#ifndef KVASIR_REASONING_PARSE_H
#define KVASIR_REASONING_PARSE_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum reasoning_syntax { REASONING_THINK = 0, REASONING_CHANNEL };
#define CHANNEL_OPEN  "<|channel>" /* a token; the channel's name follows */
#define CHANNEL_CLOSE "<channel|>"

static inline const char *reasoning_open(enum reasoning_syntax syntax)
{
    return syntax == REASONING_CHANNEL ? CHANNEL_OPEN "thought" : "<think>";
}
static inline const char *reasoning_close(enum reasoning_syntax syntax)
{
    return syntax == REASONING_CHANNEL ? CHANNEL_CLOSE : "</think>";
}

enum reasoning_state { REASON_START = 0, REASON_INSIDE, REASON_CLOSED, REASON_AFTER };

struct reasoning_parse {
    enum reasoning_state state;
    enum reasoning_syntax syntax;
    bool verbatim; /* the reasoning is handed over with its tags and line breaks */
    bool found;    /* there is reasoning, be it empty */
    bool any;      /* some of the reasoning was handed over */
    size_t at;     /* REASON_AFTER: where content begins; else what is not yet handed over */
    size_t solid;  /* behind the last byte of the reasoning that is no line break */
    size_t search; /* no tag begins before it */
};

/* inside: the prompt ends within the reasoning. */
void reasoning_parse_init(struct reasoning_parse *p, enum reasoning_syntax syntax, bool inside,
                          bool verbatim);
/* Goes on in `text`, which begins with what earlier runs saw; final: nothing will follow. Hands pieces of the
 * reasoning to `sink` (len >= 1, borrowed) and fails with its status. */
enum status reasoning_parse_run(struct reasoning_parse *p, const char *text, size_t len, bool final,
                                enum status (*sink)(void *user, const char *text, size_t len),
                                void *user) KV_MUST_CHECK;

#endif
