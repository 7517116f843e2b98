/* Splits a model's text into its reasoning and what comes after it: "<think>\nhm\n</think>\n\nYes.", or with
 * the tags of a channel, "<|channel>thought\nhm\n<channel|>Yes.", or Mistral's, "[THINK]hm[/THINK]Yes." The
 * text grows, and the parser continues where it stopped; the result depends on the text alone, never on how
 * it was split. Pure, like tool_calls.h.
 *
 * Rules, for each pair of tags: reasoning begins with <think> at the very beginning (after optional white
 * space), or is already opened by the prompt; it ends at the first </think>, or with the text. Line breaks at
 * both ends of the reasoning and after </think> belong to the tags, as templates write them. Without
 * reasoning all of the text is content. Reasoning that ends with the text ends where the caller saw a call
 * begin in it. */
#ifndef KVASIR_REASONING_PARSE_H
#define KVASIR_REASONING_PARSE_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum reasoning_syntax { REASONING_THINK = 0, REASONING_CHANNEL, REASONING_MISTRAL };
#define CHANNEL_OPEN  "<|channel>" /* a token; the channel's name follows */
#define CHANNEL_CLOSE "<channel|>"

static inline const char *reasoning_open(enum reasoning_syntax syntax)
{
    static const char *const tags[] = {"<think>", CHANNEL_OPEN "thought", "[THINK]"};
    return tags[syntax];
}
static inline const char *reasoning_close(enum reasoning_syntax syntax)
{
    static const char *const tags[] = {"</think>", CHANNEL_CLOSE, "[/THINK]"};
    return tags[syntax];
}

enum reasoning_state { REASON_START = 0, REASON_INSIDE, REASON_CLOSED, REASON_AFTER };

struct reasoning_parse {
    enum reasoning_state state;
    enum reasoning_syntax syntax;
    bool verbatim; /* the reasoning is emitted with its tags and line breaks */
    bool found;    /* there is reasoning, possibly empty */
    bool any;      /* some of the reasoning is emitted */
    size_t at;     /* REASON_AFTER: where content begins; else the first byte not yet emitted */
    size_t solid;  /* end of the reasoning without trailing line breaks */
    size_t search; /* no tag begins before it */
    size_t seen;   /* `solid` is that of the text before it */
    size_t hold;   /* the caller's: a call may begin here; what follows is undecided up to the end tag */
    bool cut;      /* the reasoning ended at `hold` */
};

/* inside: the prompt ends within the reasoning. */
void reasoning_parse_init(struct reasoning_parse *p, enum reasoning_syntax syntax, bool inside,
                          bool verbatim);
/* Continues in `text`, which begins with the text of earlier runs; final: nothing will follow. Passes chunks
 * of the reasoning to `sink` (len >= 1, borrowed) and fails with its status. */
enum status reasoning_parse_run(struct reasoning_parse *p, const char *text, size_t len, bool final,
                                enum status (*sink)(void *user, const char *text, size_t len),
                                void *user) KV_MUST_CHECK;

#endif
