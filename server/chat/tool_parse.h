/* Function calls in a model's text, in one of three forms: JSON, as many templates teach it (after Hermes), a
 * tag for every parameter, as templates of coding models do, or a notation with tokens for tags and quotes:
 *
 *     <tool_call>                                                    <tool_call>
 *     {"name": "get_weather", "arguments": {"city": "Paris"}}        <function=get_weather>
 *     </tool_call>                                                   <parameter=city>
 *                                                                    Paris
 *                                                                    </parameter>
 *                                                                    </function>
 *                                                                    </tool_call>
 *     <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:[1,2]}<tool_call|>
 *
 * The text grows; the parser is run over it again and again and goes on where it stopped. What comes out
 * depends on the text alone, never on how it was cut: a caller that streams and one that waits for the end
 * get the same content and the same calls. Pure: knows nothing of tokens, requests, JSON output. One parser
 * per answer, any one thread.
 *
 * All forms:
 * - Content is the text outside of calls. One newline directly before a call belongs to the call (the
 *   templates write it back), and pieces of white space alone next to calls are dropped.
 * - A call begins when its name and the beginning of its arguments are known. Then it is reported and cannot
 *   be taken back. A block that is wrong before that (no JSON, no name, arguments that are not an object) is
 *   content, exactly as written, tags included.
 * - At the end of the text, incomplete arguments stay as they are (tool_parse_open tells).
 *
 * JSON:
 * - Arguments that are an object are passed on as written, byte for byte, as they come. Where they are not
 *   valid JSON they end at the brace that closes them or at the end tag, whichever is first: the client gets
 *   what the model wrote, as in OpenAI's API.
 * - Arguments that are a string holding an object are unpacked; missing or null arguments are "{}".
 * - The end tag may be missing; superfluous closing brackets before it are skipped. Unknown keys are ignored.
 *
 * Tags:
 * - The arguments are one object, its keys in the order of the tags (a name that comes twice is in it twice).
 *   A line break after a parameter's tag and one before its end tag belong to the template.
 * - The function's schema says what a value is (tool_types.h). If it can only be text, or if the schema does
 *   not tell, the value is the text exactly as written, passed on as it comes. Else JSON of an allowed type
 *   is kept (Python's True, False and None are read too, because the template writes them), and anything else
 *   is a string.
 * - A value ends at </parameter>; if that is missing, at the beginning of a line with the tag of another of
 *   the function's parameters or with </function> and </tool_call>. Text between the parameters is dropped.
 * - <tool_call> may be missing before a function that was offered. One of </function> and </tool_call> is
 *   enough after it, and after its parameters the beginning of another call is.
 *
 * Plain JSON (struct tool_rules, bare): small models leave the tags out.
 * - Where the answer begins, behind white space, with an object, a list or a code fence, and what follows is
 * an object that names one of the given functions and has an object of arguments (or "parameters"), it is a
 *   call. So are further objects behind it, each as strictly. The name comes before the arguments, without
 *   escapes, and beside it there may be a type and an id.
 * - Brackets, commas and fences around such calls are dropped. What is no call is content, exactly as
 * written.
 *
 * Notation (call:NAME{...}):
 * - The arguments go out as JSON. Strings are exactly what is between the quotes. Bare words that are
 *   numbers, true, false or null (none, nil) are that; others are strings. Keys may be quoted.
 * - Commas and colons may be missing, white space may be between. Where the end tag comes too early it closes
 *   what is open, a string too. */
#ifndef KVASIR_TOOL_PARSE_H
#define KVASIR_TOOL_PARSE_H

#include "config/base/status.h"
#include "server/chat/tool_json.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOOL_OPEN  "<tool_call>"
#define TOOL_CLOSE "</tool_call>"
/* TOOL_SYNTAX_CALL */
#define TOOL_CALL_OPEN  "<|tool_call>"
#define TOOL_CALL_CLOSE "<tool_call|>"
#define TOOL_QUOTE      "<|\"|>"

/* Where the events go; a function that fails ends the run with its status. Texts are borrowed for the call
 * and cut at character borders. */
struct tool_sink {
    void *user;
    enum status (*content)(void *user, const char *text, size_t len); /* len >= 1 */
    enum status (*begin)(void *user, const char *name, size_t len);   /* a call; len >= 1 */
    enum status (*arguments)(void *user, const char *text,
                             size_t len); /* of the call that began last; len >= 1 */
    enum status (*end)(void *user);       /* its arguments are complete */
};

enum tool_call_syntax { TOOL_SYNTAX_NONE = 0, TOOL_SYNTAX_JSON, TOOL_SYNTAX_XML, TOOL_SYNTAX_CALL };

enum tool_state {
    TOOL_TEXT = 0,
    TOOL_BARE, /* where a call as plain JSON may begin */
    TOOL_BLOCK,
    TOOL_REST,       /* JSON: behind the beginning of the arguments */
    TOOL_LOOSE,      /* JSON: the same, and it is none */
    TOOL_PARAMETERS, /* tags: between parameters; notation: in the arguments */
    TOOL_VALUE,      /* tags: within one; notation: in a string */
    TOOL_END,
    TOOL_DONE
};

struct tool_types;

struct tool_rules {
    enum tool_call_syntax syntax;
    const struct tool_types *types; /* TOOL_SYNTAX_XML; borrowed, may be NULL */
    const json_t *bare; /* its keys are functions that may be called as plain JSON; borrowed, may be
                           NULL */
    bool single;        /* only the first call counts: all that follows is dropped */
};

struct tool_parse {
    struct tool_rules rules;
    enum tool_state state;
    uint32_t calls; /* begun */
    bool arguments_open;
    size_t at;       /* content before it was reported or dropped */
    size_t search;   /* no start tag begins before it */
    size_t blank_to; /* [at, blank_to) is white space, while `blank` */
    bool blank;      /* nothing of this stretch of content was reported yet */
    /* the block at hand */
    size_t open, scan; /* its start tag; bytes before scan were looked at */
    struct tool_json json;
    uint8_t field; /* what the value at depth 1 is */
    size_t key_at;
    size_t name_at, name_end, args_at, args_end; /* ends: 0 = not complete. With the quotes */
    bool has_name, has_args;
    size_t args_out; /* arguments before it were reported */
    bool loose_string, loose_escape;
    bool bare, fenced; /* the block is plain JSON; a fence is open around it */
    /* tags: args_at is where the value begins, args_out what was reported of it; has_args: a parameter was */
    uint8_t value_types; /* TYPE_* */
    bool value_begun;
    /* notation: args_at is where a bare word begins */
    uint8_t part;           /* what stands next */
    uint32_t level;         /* of objects and arrays; 0: the arguments */
    uint64_t arrays, items; /* bit n: level n is an array; something stands in it */
};

/* Content begins at offset `from` of the text. The form is not TOOL_SYNTAX_NONE. */
void tool_parse_init(struct tool_parse *p, size_t from, const struct tool_rules *rules);
/* Goes on in `text`, which begins with what earlier runs saw. final: nothing will follow. ST_NOMEM, or what a
 * sink said. */
enum status tool_parse_run(struct tool_parse *p, const char *text, size_t len, bool final,
                           const struct tool_sink *sink) KV_MUST_CHECK;
/* The last call's arguments are not complete. */
bool tool_parse_open(const struct tool_parse *p);
/* No later text can change the result. */
bool tool_parse_done(const struct tool_parse *p);

/* Bytes at the end of text[0..len) that are a proper prefix of tag. */
size_t tag_prefix(const char *text, size_t len, const char *tag);

#endif
