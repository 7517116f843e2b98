/* Shared by the tool call syntaxes; see tool_parse.h. Only the files tool_parse*.c may include this.
 * Functions without a file name are in tool_parse_parts.c. */
#ifndef KVASIR_TOOL_PARSE_INTERNAL_H
#define KVASIR_TOOL_PARSE_INTERNAL_H

#include "server/chat/tool_parse.h"

#define OPEN_LEN  (sizeof TOOL_OPEN - 1)
#define CLOSE_LEN (sizeof TOOL_CLOSE - 1)

/* The tags around a call in the parser's syntax. */
static inline const char *tool__open(const struct tool_parse *p)
{
    return p->rules.syntax == TOOL_SYNTAX_CALL ? TOOL_CALL_OPEN : TOOL_OPEN;
}
static inline const char *tool__close(const struct tool_parse *p)
{
    return p->rules.syntax == TOOL_SYNTAX_CALL ? TOOL_CALL_CLOSE : TOOL_CLOSE;
}

void tool__to(struct tool_parse *p, enum tool_state state);
bool tool__is_space(char c);
/* 1: tag is at i; 0: it isn't; -1: the text is too short to decide. */
int tool__tag_at(const char *text, size_t len, size_t i, const char *tag, bool final);
/* The block is not a call: its text is content, beginning with what was held back before it. */
void tool__block_refuse(struct tool_parse *p);
/* Content resumes at `from`. */
void tool__text_start(struct tool_parse *p, size_t from);
/* A call begins; its arguments are open. */
enum status tool__call_begin(struct tool_parse *p, const char *name, size_t len,
                             const struct tool_sink *sink);
enum status tool__call_end(struct tool_parse *p, const struct tool_sink *sink);
/* s escaped as the inside of a JSON string. */
enum status tool__say_escaped(const struct tool_sink *sink, const char *s, size_t len);

/* tool_parse_xml.c */

/* The first position at or after `from` where a block may begin; NULL: none. *keep: bytes at the end that may
 * become one. */
const char *tool__xml_find(const char *text, size_t from, size_t len, size_t *keep);
/* TOOL_BLOCK, TOOL_PARAMETERS, TOOL_VALUE. *more: the state has changed. */
enum status tool__xml_block(struct tool_parse *p, const char *text, size_t len, bool final,
                            const struct tool_sink *sink, bool *more);
enum status tool__xml_parameters(struct tool_parse *p, const char *text, size_t len, bool final,
                                 const struct tool_sink *sink, bool *more);
enum status tool__xml_value(struct tool_parse *p, const char *text, size_t len, bool final,
                            const struct tool_sink *sink, bool *more);

/* tool_parse_call.c: same states. */
enum status tool__call_block(struct tool_parse *p, const char *text, size_t len, bool final,
                             const struct tool_sink *sink, bool *more);
enum status tool__call_parameters(struct tool_parse *p, const char *text, size_t len, bool final,
                                  const struct tool_sink *sink, bool *more);
enum status tool__call_value(struct tool_parse *p, const char *text, size_t len, bool final,
                             const struct tool_sink *sink, bool *more);

/* tool_parse_bare.c: TOOL_BARE, and TOOL_END after such a call. */
enum status tool__bare_head(struct tool_parse *p, const char *text, size_t len, bool final,
                            const struct tool_sink *sink, bool *more);
void tool__bare_end(struct tool_parse *p, const char *text, size_t len, bool final, bool *more);

#endif
