/* Function calls in a model's text, in the syntax that its chat template describes (syntaxes.c). The text
 * grows; each run of the parser continues where the last one stopped. The result depends on the text alone,
 * never on how it was split: streaming and non-streaming callers get the same content and the same calls.
 * Pure: knows nothing of tokens, requests, JSON output. One parser per choice, any one thread.
 *
 * - Content is the text outside of calls. One newline directly before a call belongs to the call (the
 *   templates write it back), and white space alone next to calls is dropped.
 * - A call begins when its name and the beginning of its arguments are known. Then it is reported and final.
 *   What is no call before that point is content, exactly as written, tags included.
 * - Arguments are an object in JSON, passed on as they arrive; what is not JSON is repaired (value.h). An end
 *   tag closes all that is open. At the end of the text, incomplete arguments stay incomplete.
 * - A block between tags may hold several calls, and any way of writing a call (struct call_reader). White
 *   space of all kinds, a code fence, and a few words before a call of an offered function are skipped:
 *   json.c    {"name": .., "arguments": {..}}, also with `parameters`, packed in a string, or flat
 *   tags.c    <function=NAME><parameter=KEY>value</parameter></function>, and the like; or an object
 *   named.c   NAME{..}, NAME[ARGS]{..}, NAME(key=value)
 * - Plain JSON (rules.bare): small models omit the tags. If the text begins, after white space, a code fence
 * or a bracket, with an object that names one of the given functions and has an object of arguments, it is a
 *   call, and so are further ones after it. */
#ifndef KVASIR_TOOL_CALLS_H
#define KVASIR_TOOL_CALLS_H

#include "server/chat/tool_calls/value.h"

#include <jansson.h>

enum tool_call_syntax {
    TOOL_SYNTAX_NONE = 0,
    TOOL_SYNTAX_JSON,         /* Hermes */
    TOOL_SYNTAX_XML,          /* a tag for every parameter */
    TOOL_SYNTAX_CALL,         /* call:NAME{..} */
    TOOL_SYNTAX_FUNCTION,     /* the same between other tags */
    TOOL_SYNTAX_MISTRAL,      /* NAME[ARGS]{..} */
    TOOL_SYNTAX_MISTRAL_LIST, /* a JSON list */
    TOOL_SYNTAX_GLM,          /* tags for keys and values */
    TOOL_SYNTAX_LFM2,         /* [NAME(key=value)] */
    TOOL_SYNTAX_OLMO,         /* NAME(key=value), a line each */
    TOOL_SYNTAX_GRANITE,      /* a JSON list */
    TOOL_SYNTAX_LLAMA,        /* {"name", "parameters"} without tags */
    TOOL_SYNTAXES
};

/* How arguments are written. */
enum tool_arguments {
    TOOL_ARGUMENTS_JSON = 0, /* one object */
    TOOL_ARGUMENTS_TEXT,     /* key by key: strings verbatim, other values as JSON */
    TOOL_ARGUMENTS_NOTATION, /* key by key: strings in quote tokens, keys without quotes at every level */
    TOOL_ARGUMENTS_VALUES,   /* key by key: JSON values */
};

struct tool_syntax {
    const char *marks[3];  /* strings in the source of a chat template with this syntax, up to NULL */
    const char *opens[3];  /* where a block may begin; the first is the template's */
    const char *closes[2]; /* its end tag, or NULL */
    const char *quote;     /* quote token or NULL */
    const char *tokens[4]; /* further tags that may be tokens */
    bool named;            /* its calls are a name and arguments (named.c) */
    bool plain;            /* its calls are plain JSON (tool_rules.bare) */
    /* A call as the template writes it: open tag, before, NAME, after, arguments, end, end tag. NULL: empty.
     */
    const char *before, *after, *end;
    enum tool_arguments arguments;
    const char *key, *after_key, *after_value, *comma; /* of one argument */
    const char *between;                               /* calls */
};
const struct tool_syntax *tool_syntax(enum tool_call_syntax syntax);
/* Its tags that may be tokens of a vocabulary; their number. */
#define TOOL_TAGS_MAX 7u
size_t tool_syntax_tags(enum tool_call_syntax syntax, const char *tags[TOOL_TAGS_MAX]);
/* The syntax that the source of a chat template describes. */
enum tool_call_syntax tool_syntax_taught(const char *source, size_t len);

/* Receives the events; a function that fails ends the run with its status. Strings are borrowed for the call
 * and split at character boundaries. */
struct tool_sink {
    void *user;
    enum status (*content)(void *user, const char *text, size_t len);   /* len >= 1 */
    enum status (*begin)(void *user, const char *name, size_t len);     /* starts a call; len >= 1 */
    enum status (*arguments)(void *user, const char *text, size_t len); /* of the last call begun; len >= 1 */
};

struct tool_types;
struct tool_rules {
    enum tool_call_syntax syntax;   /* not TOOL_SYNTAX_NONE */
    const struct tool_types *types; /* of the functions; borrowed, may be NULL */
    const json_t *bare; /* keys: functions that may be called as plain JSON; borrowed, may be NULL */
    bool lines;         /* with bare: such a call may begin on any line */
    bool exact;         /* the output is constrained: plain calls are only those that constraints know */
    bool single;        /* only the first call counts: everything after it is dropped */
};

enum tool_state { TOOL_TEXT = 0, TOOL_BLOCK, TOOL_CALL, TOOL_END, TOOL_DONE };

struct call_reader;
struct tool_calls {
    struct tool_rules rules;
    const struct tool_syntax *syntax;
    enum tool_state state;
    uint32_t calls;  /* begun */
    bool open;       /* the last one's arguments are not complete */
    bool ended;      /* set before the last run: the model has ended its text, and did not run into a limit */
    bool broken;     /* a call's arguments could not be read to their end */
    size_t at;       /* content before it was reported or dropped */
    size_t search;   /* no start tag begins before it */
    size_t reread;   /* bytes read as calls that were none */
    size_t blank_to; /* [at, blank_to) is white space, while `blank` */
    bool blank;      /* nothing of this content segment is reported yet */
    /* the current block: its first byte, its current call's, and what is already read */
    size_t block_at, call_at, scan;
    size_t from;       /* what is read as a call begins, after the words before it */
    bool bare, fenced; /* it is plain JSON; inside a code fence */
    bool prefaced;     /* words were between the block's tag and its call */
    /* the current call */
    const struct call_reader *reader;
    bool begun;      /* it is reported */
    struct buf args; /* what is not yet reported of its arguments */
    size_t hold;     /* bytes at their end that are held back */
    char last;       /* reported last, white space aside */
    struct value_reader value;
    union {
        struct { /* json.c */
            uint8_t field;
            bool has_name, has_args, args_done;
            bool drop, other;         /* the current member; flat has members that are no parameters */
            size_t flat_at, value_at; /* of the current member in flat */
        } json;
        struct {                        /* tags.c */
            size_t name_at, name_end;   /* the function's name */
            size_t key[2];              /* the parameter's */
            bool closed;                /* a closing tag in a wrong spelling came after the last value */
            size_t value_at, value_out; /* the value begins; how much of it is in args */
            uint8_t part, types;        /* TYPE_* of the value */
            bool any, inline_, trim; /* there is a parameter; no line break before its value; one after it is
                                        the template's */
            const char *ends[3];
        } tags;
    };
    struct buf name, key, flat;   /* json.c: as JSON strings; flat: members that are not `arguments` */
    const struct tool_sink *sink; /* during a run */
    enum status st;
};

/* Content begins at offset `from` of the text. */
void tool_calls_init(struct tool_calls *c, size_t from, const struct tool_rules *rules);
void tool_calls_fini(struct tool_calls *c);
/* Continues in `text`, which begins with the text of earlier runs. final: nothing will follow. ST_NOMEM, or a
 * sink's status. */
enum status tool_calls_run(struct tool_calls *c, const char *text, size_t len, bool final,
                           const struct tool_sink *sink) KV_MUST_CHECK;
/* All calls are complete, and there is at least one. */
bool tool_calls_complete(const struct tool_calls *c);
/* No later text can change the result. */
bool tool_calls_done(const struct tool_calls *c);

#endif
