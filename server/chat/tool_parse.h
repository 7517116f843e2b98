/* Function calls in a model's text, in one of three syntaxes: JSON (Hermes style, used by many templates), a
 * tag per parameter (templates of coding models), or a notation with tokens for tags and quotes:
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
 * The text grows; each run of the parser continues where the last one stopped. The result depends on the text
 * alone, never on how it was split: streaming and non-streaming callers get the same content and the same
 * calls. Pure: knows nothing of tokens, requests, JSON output. One parser per choice, any one thread.
 *
 * All syntaxes:
 * - Content is the text outside of calls. One newline directly before a call belongs to the call (the
 *   templates write it back), and white space alone next to calls is dropped.
 * - A call begins when its name and the beginning of its arguments are known. Then it is reported and final.
 *   A block that is malformed before that point (no JSON, no name, arguments that are not an object) is
 *   content, exactly as written, tags included.
 * - At the end of the text, incomplete arguments stay as they are (see tool_parse_open).
 *
 * JSON:
 * - Arguments that are an object are passed on as written, byte for byte, as they arrive. If they are not
 *   valid JSON they end at their closing brace or at the end tag, whichever is first: the client gets what
 *   the model wrote, as in OpenAI's API.
 * - Arguments that are a string holding an object are unpacked; missing or null arguments are "{}".
 * - The end tag may be missing; superfluous closing brackets before it are skipped. Unknown keys are ignored.
 *
 * Tags:
 * - The arguments are one object, its keys in the order of the tags (a name that comes twice is in it twice).
 *   A line break after a parameter's tag and one before its end tag belong to the template.
 * - The function's schema gives the type of a value (tool_types.h). If it can only be a string, or if the
 *   schema gives no type, the value is the text exactly as written, passed on as it arrives. Else JSON of an
 *   allowed type is kept (Python's True, False and None are accepted too, because the template writes them),
 *   and anything else is a string.
 * - A value ends at </parameter>; if that is missing, at the beginning of a line with the tag of another of
 *   the function's parameters or with </function> and </tool_call>. Text between the parameters is dropped.
 * - <tool_call> may be missing before a function that was offered. One of </function> and </tool_call> is
 *   enough after it, and after its parameters the beginning of another call is.
 *
 * Plain JSON (struct tool_rules, bare): small models omit the tags.
 * - If the text begins, after white space, with an object, a list or a code fence, followed by an object that
 *   names one of the given functions and has an object of arguments (or "parameters"), it is a call. So are
 *   further objects after it, under the same rules. The name comes before the arguments, without escapes; a
 *   type and an id may accompany it.
 * - Brackets, commas and fences around such calls are dropped. Anything else is content, exactly as written.
 *
 * Notation (call:NAME{...}):
 * - The arguments go out as JSON. Strings are exactly the text between the quotes. Bare words that are
 *   numbers, true, false or null (none, nil) become JSON values; others are strings. Keys may be quoted.
 * - Commas and colons may be missing; white space is allowed between items. A premature end tag closes
 *   everything open, including a string. */
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

/* Receives the events; a function that fails ends the run with its status. Strings are borrowed for the call
 * and split at character boundaries. */
struct tool_sink {
    void *user;
    enum status (*content)(void *user, const char *text, size_t len);   /* len >= 1 */
    enum status (*begin)(void *user, const char *name, size_t len);     /* starts a call; len >= 1 */
    enum status (*arguments)(void *user, const char *text, size_t len); /* of the last call begun; len >= 1 */
    enum status (*end)(void *user); /* the call's arguments are complete */
};

enum tool_call_syntax { TOOL_SYNTAX_NONE = 0, TOOL_SYNTAX_JSON, TOOL_SYNTAX_XML, TOOL_SYNTAX_CALL };

enum tool_state {
    TOOL_TEXT = 0,
    TOOL_BARE, /* where a call as plain JSON may begin */
    TOOL_BLOCK,
    TOOL_REST,       /* JSON: after the beginning of the arguments */
    TOOL_LOOSE,      /* JSON: the same, but they are not valid JSON */
    TOOL_PARAMETERS, /* tags: between parameters; notation: in the arguments */
    TOOL_VALUE,      /* tags: within one; notation: in a string */
    TOOL_END,
    TOOL_DONE
};

struct tool_types;

struct tool_rules {
    enum tool_call_syntax syntax;
    const struct tool_types *types; /* TOOL_SYNTAX_XML; borrowed, may be NULL */
    const json_t *bare; /* keys: functions that may be called as plain JSON; borrowed, may be NULL */
    bool single;        /* only the first call counts: everything after it is dropped */
};

struct tool_parse {
    struct tool_rules rules;
    enum tool_state state;
    uint32_t calls; /* begun */
    bool arguments_open;
    size_t at;       /* content before it was reported or dropped */
    size_t search;   /* no start tag begins before it */
    size_t blank_to; /* [at, blank_to) is white space, while `blank` */
    bool blank;      /* nothing of this content segment is reported yet */
    /* the current block */
    size_t open, scan; /* its start tag; bytes before scan are already scanned */
    struct tool_json json;
    uint8_t field; /* kind of the value at depth 1 */
    size_t key_at;
    size_t name_at, name_end, args_at, args_end; /* ends: 0 = incomplete. Quotes included */
    bool has_name, has_args;
    size_t args_out; /* arguments before it are reported */
    bool loose_string, loose_escape;
    bool bare, fenced; /* the block is plain JSON; inside a code fence */
    /* tags: args_at is where the value begins, args_out how much of it is reported; has_args: a parameter is
     */
    uint8_t value_types; /* TYPE_* */
    bool value_begun;
    /* notation: args_at is where a bare word begins */
    uint8_t part;           /* what is expected next */
    uint32_t level;         /* of objects and arrays; 0: the arguments */
    uint64_t arrays, items; /* bit n: level n is an array; it has items */
};

/* Content begins at offset `from` of the text. The syntax is not TOOL_SYNTAX_NONE. */
void tool_parse_init(struct tool_parse *p, size_t from, const struct tool_rules *rules);
/* Continues in `text`, which begins with the text of earlier runs. final: nothing will follow. ST_NOMEM, or a
 * sink's status. */
enum status tool_parse_run(struct tool_parse *p, const char *text, size_t len, bool final,
                           const struct tool_sink *sink) KV_MUST_CHECK;
/* The last call's arguments are not complete. */
bool tool_parse_open(const struct tool_parse *p);
/* No later text can change the result. */
bool tool_parse_done(const struct tool_parse *p);

/* Bytes at the end of text[0..len) that are a proper prefix of tag. */
size_t tag_prefix(const char *text, size_t len, const char *tag);

#endif
