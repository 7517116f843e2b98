/* The chat template of a checkpoint: loading it, detecting its capabilities, and rendering a conversation
 * into text runs for the tokenizer. Loaded once at start, immutable and shared by all threads afterwards;
 * rendering runs on worker threads and uses only the caller's memory. Knows nothing of HTTP, models or token
 * ids. Specification: the Jinja environment of transformers' apply_chat_template. */
#ifndef KVASIR_TEMPLATE_H
#define KVASIR_TEMPLATE_H

#include "config/base/status.h"
#include "engine/model/model_info.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/chat/messages.h"
#include "server/jinja/jinja.h"
#include "server/chat/reasoning_parse.h"
#include "server/chat/tool_calls/tool_calls.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

/* Capabilities of the template, detected at load by rendering small conversations and searching for marker
 * strings. */
struct template_caps {
    bool content_list;  /* iterates over content parts: pass lists; else content is passed as one string */
    bool only_lists;    /* and loses content that is a string: pass a list of one part */
    bool system_role;   /* a system message's text appears */
    bool system_list;   /* so does the first text of one whose content is a list, and not as a printed list */
    bool system_images; /* and images in that list are not skipped */
    bool images, videos;    /* shows them among the content parts of a user */
    bool developer_role;    /* the source mentions `developer`: the role is kept, else it becomes `system` */
    bool tools;             /* declarations of tools appear */
    bool tool_calls;        /* calls of earlier assistant turns appear */
    bool thinking_parts;    /* shows parts of an assistant message that are reasoning (Mistral) */
    bool short_ids;         /* accepts ids of tool calls of 9 characters only */
    bool arguments_as_text; /* expects function arguments as JSON text, not as an object */
    bool null_calls;        /* an assistant's message of calls may have no content (null) */
    bool only_null_calls;   /* with an empty one the calls don't appear */
    bool tool_role;         /* results of tools appear as messages of role `tool` */
    bool tool_responses;    /* expects results folded into the assistant's message (`tool_responses`) */
    enum tool_call_syntax calls; /* the tool call syntax that it describes */
    bool think;                  /* supports reasoning (reasoning_parse.h), with these tags: */
    enum reasoning_syntax reasoning;
    bool uses_time; /* calls strftime_now: prompts change over time, prefix-cache hits suffer */
};

struct template;

/* Reads DIR/chat_template.jinja, else DIR/chat_template.json, else the chat_template of
 * DIR/tokenizer_config.json (a string, or a list of {name, template}: `default`, and `tool_use` for requests
 * with tools); if DIR is a GGUF file, its tokenizer.chat_template. ST_NOT_FOUND when the checkpoint has none
 * (a route answers 400 chat_template_error then), ST_FORMAT names file and template line. */
enum status template_load(const char *dir, struct template **out, struct err *err) KV_MUST_CHECK;
/* --chat-template: the source of one template. */
enum status template_load_file(const char *path, struct template **out, struct err *err) KV_MUST_CHECK;
/* From source text; tool_source may be NULL. limits may be NULL. */
enum status template_create(const char *source, size_t len, const char *tool_source, size_t tool_len,
                            const struct jinja_limits *limits, struct template **out,
                            struct err *err) KV_MUST_CHECK;
void template_free(struct template *t); /* NULL is fine */
/* Not terminated; of requests without tools. */
const char *template_source(const struct template *t, size_t *len);
/* --chat-template-kwargs, a JSON object: variables of every render, unless the request sets them. Once,
 * before t is shared. */
enum status template_set_kwargs(struct template *t, const char *text, struct err *err) KV_MUST_CHECK;
/* Registers the added tokens that the template itself writes: client text can't produce them (tok_guard).
 * Before tok is shared. */
void template_guard(const struct template *t, struct tokenizer *tok);
const struct template_caps *template_caps(const struct template *t,
                                          bool with_tools); /* the template for such a request */

/* A special token as a variable: {"bos_token", "<bos>"}. tok_special_role of engine/tokenizer/tokenizer.h
 * enumerates them. */
struct template_special {
    const char *name, *text;
};

struct template_request {
    const struct chat_messages *messages;
    const json_t *tools;     /* array or NULL; borrowed. Empty = NULL. Bare function objects are wrapped */
    const json_t *documents; /* array or NULL */
    const json_t *kwargs; /* object of further variables (chat_template_kwargs) or NULL; may replace special
                             tokens, nothing else */
    const struct template_special *specials;
    size_t special_count;
    const char *image_placeholder;   /* written in place of an image, for templates that expect strings; NULL:
                                      images are then an error */
    const char *video_placeholder;   /* the same for a video */
    const struct model_parts *parts; /* NULL: text and images are joined by line breaks */
    bool add_generation_prompt;
    bool continue_final_message; /* the last message (assistant) stays open; excludes add_generation_prompt */
    bool control_parse;          /* control tokens are matched everywhere, including client text */
    bool trace;                  /* records the sources of the runs */
    const struct tm *now;        /* for strftime_now; NULL: local time */
};

/* The part of the request that a run of rendered text came from. */
enum template_part {
    TEMPLATE_CONTENT = 1, /* text of a message's content */
    TEMPLATE_FIELD,       /* another field of a message: role, name, tool_calls ... */
    TEMPLATE_TOOLS,
    TEMPLATE_DOCUMENTS,
    TEMPLATE_VARIABLES, /* chat_template_kwargs */
};
struct template_source {
    enum template_part kind;
    uint32_t message;  /* CONTENT, FIELD: index in `messages` */
    int32_t part;      /* CONTENT: index in the content list; -1: the content is a string */
    const char *field; /* FIELD: its name if well known, else NULL; static */
};

struct template_result {
    char *text; /* owned */
    size_t len;
    /* owned; point into text; neighbours differ in control, or in source where there are sources */
    struct tok_run *runs;
    size_t run_count;
    uint32_t *run_sources; /* with trace, else NULL: [run_count] 0 = the template wrote it, else 1 + index in
                              `sources`; owned */
    struct template_source *sources; /* owned */
    size_t source_count;
};
void template_result_free(struct template_result *r);

bool template_effort(const json_t *v); /* one of the words for a reasoning effort */
/* Is the variable set by the request itself, so that kwargs can't set it? */
bool template_reserves(const char *name);

/* Renders. err->msg is meant for the client: the argument of raise_exception, else "line N of the chat
 * template: ...", prefixed with the message it concerns if known: "messages[2] (role 'user' after 'user'):
 * ...". ST_INVALID (the template refused, or the request makes no sense), ST_TOO_LARGE (a limit), ST_NOMEM.
 */
enum status template_render(const struct template *t, const struct template_request *rq,
                            struct template_result *out, struct err *err) KV_MUST_CHECK;

/* JSON -> value of the interpreter; strings are borrowed from v. Numbers keep their kind. Nesting above 256
 * levels becomes none. */
struct jinja_value template_value(struct jinja_ctx *c, const json_t *v, uint32_t origin);

#endif
