/* Splits the output of a chat into reasoning, content and function calls (reasoning_parse.h, tool_calls.h) as
 * the text grows. Pure; used by one thread at a time. The dialects turn the result into JSON.
 *
 * A call within the reasoning is a draft, and part of the reasoning, if the reasoning's end tag follows.
 * Without it, models forget the tag and wait for the result: it is a call, and only the text around calls is
 * reasoning. Until that is known, the text from the call on is held back. */
#ifndef KVASIR_CHAT_OUTPUT_H
#define KVASIR_CHAT_OUTPUT_H

#include "config/base/buf.h"
#include "server/chat/reasoning_parse.h"
#include "server/chat/tool_calls/tool_calls.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum reasoning_use {
    REASONING_NONE = 0, /* the model doesn't mark reasoning: all is content */
    REASONING_FIELD,    /* a field of its own */
    REASONING_DROP,     /* recognised and dropped */
    REASONING_CONTENT,  /* recognised and kept in the content, with its tags */
};

struct chat_output_rules {
    enum reasoning_use reasoning;
    enum reasoning_syntax syntax;   /* its tags */
    bool inside;                    /* the prompt ends within the reasoning */
    enum tool_call_syntax calls;    /* syntax of calls to parse */
    const struct tool_types *types; /* of the functions; borrowed, may be NULL */
    const json_t *bare;             /* functions (tool_calls.h); borrowed, may be NULL */
    bool exact;                     /* the output is constrained */
    bool single_call;               /* at most one */
    bool must_call;                 /* all text is a call: an incomplete call without a name is dropped */
};

struct chat_call {
    struct buf name, arguments;
    size_t content_at; /* bytes of the content before it */
    char id[32];       /* empty until assigned */
    bool begun_shown;  /* STREAM: its id and name are sent */
    size_t shown;      /* STREAM: bytes of its arguments that are sent */
};

struct chat_output {
    struct chat_output_rules rules;
    struct reasoning_parse reasoning_parse;
    struct tool_calls tool_calls;
    bool content_begun; /* tool_calls is set up */
    bool drafting;      /* tool_calls is set up, and reads the reasoning */
    bool drafted;       /* a call has begun in the reasoning: what follows is held back */
    bool ended;         /* set before the final run: see struct tool_calls */
    struct buf content, reasoning;
    size_t content_shown, reasoning_shown; /* STREAM */
    struct chat_call *calls;               /* [call_count] */
    uint32_t call_count;
    size_t call_cap;
    uint32_t calls_shown;                        /* STREAM: calls before it are sent completely */
    uint32_t reasoning_tokens, undecided_tokens; /* chat_output_token */
};

#define CHAT_CALLS_MAX 1024u

void chat_output_init(struct chat_output *o, const struct chat_output_rules *rules, size_t text_max);
void chat_output_fini(struct chat_output *o);
/* Continues with the output so far (it begins with the text of the earlier calls). ST_NOMEM; ST_TOO_LARGE:
 * over text_max or CHAT_CALLS_MAX. */
enum status chat_output_run(struct chat_output *o, const char *text, size_t len, bool final) KV_MUST_CHECK;
/* After the run for one more token: counts the reasoning tokens, tags included. `before`:
 * reasoning_parse.state before that run. */
void chat_output_token(struct chat_output *o, enum reasoning_state before);
bool chat_output_reasons(const struct chat_output *o); /* the text ends within the reasoning */
/* All calls are complete, and there is at least one. */
bool chat_output_called(const struct chat_output *o);
/* No later text can change the result. */
bool chat_output_done(const struct chat_output *o);

#endif
