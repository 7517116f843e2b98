/* The readers of calls, one for each way to write them. Only the files of server/chat/tool_calls/ may include
 * this. */
#ifndef KVASIR_CALL_READER_H
#define KVASIR_CALL_READER_H

#include "server/chat/tool_calls/tool_calls.h"
#include "server/chat/tool_calls/types.h"

enum call_step {
    CALL_MORE, /* the text ends within the call */
    CALL_NO,   /* it is no call; not after calls__begin */
    CALL_END   /* it ends at c->scan */
};
struct call_reader {
    /* A call begins at c->scan: 1; 0: none; -1: the text is too short to decide. */
    int (*starts)(struct tool_calls *c, const struct tag_text *t);
    /* Reads on from c->scan. */
    enum call_step (*feed)(struct tool_calls *c, const struct tag_text *t);
};
extern const struct call_reader call_json, call_tags, call_named;

/* reader.c */
void calls__flush(struct tool_calls *c); /* reports arguments, except what is held back */
/* Reports the call. */
void calls__begin(struct tool_calls *c, const char *name, size_t len);
/* Its arguments are complete. */
void calls__end(struct tool_calls *c);
/* The value of the arguments begins at `at`. */
void calls__value(struct tool_calls *c, size_t at);
/* Reads on in arguments that are one value. */
enum call_step calls__arguments(struct tool_calls *c, const struct tag_text *t);
/* A function of this name was offered. */
bool calls__known(const struct tool_calls *c, const char *name, size_t len);
/* White space, then a tag that closes some part of a call, in any spelling: </invoke>, </function_call>,
 * </parameter, <|/parameter|>; or, if c isn't NULL, named as the function or one of its parameters. Like
 * tag_at; *i receives its end, *name what it closes. */
int calls__closer(const struct tool_calls *c, const struct tag_text *t, size_t *i, size_t name[2]);
void calls__put(struct tool_calls *c, const char *s);

#endif
