/* The typed request of an endpoint that generates, and what it becomes before it runs: prompts and the
 * constraint of its output. Internal to server/. All on a worker:
 *
 *   body.c -> parse.c, tools.c, format.c, chat.c   the request
 *   remote.c                                       image URLs, fetched by the loop before the job continues
 *   prompt.c or chat.c, chat_images.c              the prompts; cache_info.c: where their tokens come from
 *   constraint.c, call_grammar.c                   the grammar of the output; grammars.c: those compiled
 *
 * server/generate/ runs it. Other dialects than OpenAI's are read and written by server/dialect/: struct
 * dialect.
 *
 * To add a request parameter: a field of struct gen_params; parse.c reads it (tools.c: tools and reasoning);
 * the list in note_unknown of parse.c names it; docs/http.md and server/api/openapi.json list it. To add a
 * sampling parameter (top_p and the like): see engine/sample/sampling.h. */
#ifndef KVASIR_INPUT_H
#define KVASIR_INPUT_H

#include "server/chat/messages.h"
#include "server/chat/output.h"
#include "server/chat/stop_match.h"
#include "server/json/writer.h"
#include "server/http/request.h"
#include "server/input/cache_info.h"
#include "server/media/image_parts.h"

#include <jansson.h>

enum gen_kind { GEN_CHAT = 0, GEN_COMPLETION };

/* The response format (input/format.c). */
enum response_format_kind {
    FORMAT_FREE = 0,
    FORMAT_ANY,    /* any JSON value */
    FORMAT_OBJECT, /* any JSON object */
    FORMAT_SCHEMA, /* value: a JSON schema */
    FORMAT_REGEX,  /* value: a string, also for FORMAT_TEXT */
    FORMAT_TEXT,   /* a grammar */
    FORMAT_CHOICE  /* value: a list of strings */
};
struct response_format {
    enum response_format_kind kind;
    json_t *value;     /* borrowed from the body or format_root */
    const char *param; /* static: the field that asked for it */
    bool compact;      /* JSON without optional white space */
    bool any_order;    /* of properties; else in the order of the schema */
    bool strict;       /* a keyword that can't be enforced is an error */
};
/* tool_choice (input/tools.c). */
struct tool_choice {
    bool required, none;
    const char *named; /* the one function to call; borrowed from the body */
    json_t *name;      /* the same */
    /* [{"function": {"name"}}] or [{"name"}]: only these may be called; borrowed; NULL = all */
    json_t *allowed;
};
/* Reasoning options; borrowed from the body, each may be NULL. */
struct reasoning_ask {
    json_t *effort, *verbosity; /* strings */
    json_t *enabled;            /* a boolean */
    json_t *variables;          /* chat_template_kwargs, an object */
    json_t *budget;             /* the most tokens of reasoning, an integer */
    const char *budget_path;    /* its field; NULL: a number that was checked, kept where it can be */
    bool drop, inline_;         /* it is not returned, or is returned within the content */
};

struct gen_params {
    bool stream, include_usage, continuous_usage;
    uint32_t n;
    bool has_max;
    uint64_t max_tokens, min_tokens;
    bool max_tokens_fit;             /* max_tokens is lowered to what the context holds */
    uint64_t max_tokens_cut;         /* by how much */
    struct sampling_params sampling; /* without seed; lists owned by the gen */
    bool has_seed;
    int64_t seed;
    bool logprobs;         /* per-token log-probs are returned */
    uint32_t logprobs_top; /* alternatives */
    bool prompt_logprobs;  /* the response field of that name */
    uint32_t prompt_logprobs_top;
    struct stop_string *stops; /* [stop_count]; strings borrowed from stop_list */
    json_t *stop_list;         /* a string or a list of them; owned */
    uint32_t stop_count;
    uint32_t *stop_ids; /* [stop_id_count], owned */
    uint32_t stop_id_count;
    bool include_stop, ignore_eos, skip_special, echo;
    bool return_token_ids, tokens_as_ids;
    bool add_generation_prompt, continue_final_message, add_special_tokens;
    bool has_truncate;
    int64_t truncate;  /* -1 = as many as fit */
    bool service_tier; /* the request has the field */
    int64_t priority;
    uint64_t tenant;  /* hash of API key and `user`; 0 = unknown */
    uint8_t salt[32]; /* gen_salt */
    bool return_cache_info, timings, progress;
    /* chat: tools are offered, and the output is parsed for calls in this syntax */
    enum tool_call_syntax calls;
    struct tool_types *tool_types; /* owned; NULL if the syntax needs none */
    json_t *bare_calls;            /* an object: functions that may be called as plain JSON, or NULL; owned */
    bool parallel_calls;           /* chat: more than one call may be returned */
    enum reasoning_syntax reasoning_syntax;
    enum reasoning_use reasoning; /* chat: how reasoning is returned, if the template supports it */
    struct {
        bool limited;
        uint32_t budget, close; /* tokens of reasoning; the one that ends it */
    } think;
    struct response_format format;
    struct tool_choice tool_choice;
    bool named_call;                  /* its finish_reason is "stop" */
    bool must_call;                   /* the output must be a call */
    enum sched_pooling pooling;       /* embeddings: nothing is sampled */
    uint64_t tokens_max;              /* of all prompts: their vectors fit a response; 0: as always */
    const struct sampling_bias *only; /* [n]: sample j's one token; the dialect's, or NULL */
    struct image_bounds image_bounds; /* mm_processor_kwargs; 0 = the checkpoint's */
};

struct gen;
struct choice;
struct delta;
/* What a dialect does differently from OpenAI's chat completions and completions. Its output is that of a
 * chat; choice->out is always set. */
struct dialect {
    /* Worker: the body -> g->p and the fields after it, except the prompt; or a whole response in
     * r->response.out. r->response.error on failure. May turn a chat into a completion. */
    enum status (*read)(struct gen *g, json_t *root);
    const char *source; /* the field with the messages, for errors */
    /* The whole response. Loop; a worker with on_worker, for long ones: nothing else changes g meanwhile. */
    void (*response)(struct json_writer *o, struct choice *c);
    bool on_worker;
    /* Loop: the events of a stream, NULL if it has none: before the first delta, once (may be NULL); a delta;
     * at the end; r->response.error, NULL: as its shape says. */
    void (*head)(struct gen *g);
    void (*delta)(struct choice *c, const struct delta *delta);
    void (*tail)(struct choice *c);
    void (*stream_error)(struct request *r);
    /* Loop, each may be NULL: after each token, streaming or not; before g and its dialect_state are freed.
     */
    void (*token)(struct choice *c);
    void (*end)(struct gen *g);
};

/* One prompt of the request (completions may have many). */
struct gen_prompt {
    struct prompt prompt;        /* owned; borrowed by its sequences until their EV_END */
    char *text;                  /* echo: the client's text, or its ids as text; owned, may be NULL */
    size_t text_len, text_chars; /* bytes, code points */
    uint32_t image_tokens, cached_tokens;
    uint32_t dropped; /* tokens that truncate_prompt_tokens removed at the start */
    bool cache_known; /* the scheduler has reported what it reused (first sequence only) */
    struct sched_cache_info cache;
    struct cache_places places; /* with return_cache_info: which part of the request each token came from */
    /* [token_count] when scored: [p] = log-prob of prompt token p; [0] unused. Owned */
    struct token_out *scores;
    size_t accounted; /* their share of the request's response_bytes */
};

struct gen_shown {
    bool head, prompt_ids;
    const struct sched_event *progress; /* for the chunk that is being written */
    uint32_t finishes;                  /* choices whose finish_reason is sent */
};

struct image_fetch;
struct fetch_job;
/* An image of a chat. If its content is known from an earlier request, the pixels are not held; bytes NULL:
 * they are in the prompt. */
struct gen_image {
    uint8_t *bytes; /* the file, or the files of a video's frames; owned */
    size_t len;
    struct image_ask ask;
    uint8_t file_hash[32]; /* its id (media/image_hash_cache.h) */
    uint32_t same;         /* the image that holds the file: itself, or an earlier one */
    uint32_t prompt;
    uint32_t first, count;       /* its spans of the prompt: [first, first + count) */
    struct image_fetch *fetch;   /* being decoded */
    struct image_prepared ready; /* a video with many parts: those not yet used */
};

struct gen {
    struct request *r;
    const struct context *ctx;
    struct api_error *e; /* r's */
    enum gen_kind kind;
    const struct dialect *dialect;     /* NULL: OpenAI's */
    void *dialect_state;               /* the dialect's own; one block of malloc, owned */
    size_t dialect_kept;               /* bytes of the body, or derived from it, kept until the end */
    struct buf written;                /* the whole response, until it is r's */
    json_t *root;                      /* the body; after gen_read_end: only its request id */
    struct grammar *grammar;           /* the output constraint; NULL: none. Owned */
    const struct grammar_vocab *vocab; /* with grammar: the model's vocabulary */
    json_t *compile;   /* the grammar's source, with all it references in the body; owned, like */
    char *compile_key; /* its text. NULL: nothing to compile */
    char *warnings;    /* for the response: a JSON list, or NULL; owned */
    json_t *misspelt;  /* further ones, of fields; NULL: none. Owned */
    size_t compile_bytes;
    bool compile_waits;
    uint64_t compile_us, compile_turn; /* since when; a tenant compiles one grammar per turn */
    struct gen_params p;
    /* other parts of a chat's prompt; owned, until gen_read_end */
    struct chat_messages messages;         /* also for a prompt that is a list of parts */
    const struct template *tmpl;           /* NULL: the model's */
    bool control_parse;                    /* control tokens count in the client's text, too */
    uint32_t messages_each;                /* so many of them are a prompt; 0: all of them are one */
    json_t *tools, *documents, *variables; /* for the template: [{"type", "function": {"name", ..}}]; a list;
                                             an object; or NULL */
    json_t *format_root;                   /* a schema that was sent as a string */
    struct gen_prompt *prompts;
    uint32_t prompt_count, prompts_made; /* a job that takes long is continued by another */
    uint64_t prompt_tokens;              /* of those made */
    struct chat *chat;                   /* what prompts are made from; owned, until gen_read_end */
    uint64_t job_us;                     /* since when the job makes prompts; 0: it has not begun */
    bool read, again;                    /* the body is read; another job continues */
    struct choice *choices;
    uint32_t choice_count, choices_open, choices_fed; /* fed: submitted so far */
    struct stop_set *stops;                           /* NULL = none */
    const char *response_role;                        /* chat: "assistant", or the last message's role */
    const char *left_out;  /* the part of the request that is not in the prompt, or NULL; static */
    bool inside_reasoning; /* chat: the prompt ends within the model's reasoning */
    uint32_t tag_ids[TOOL_TAGS_MAX + 2]; /* tags of calls and reasoning: always kept in the text */
    uint32_t tag_id_count;
    bool counting; /* no sequence is made: the prompt may be longer than the context */
    /* chat: [image_count], owned; read-only once the sequences run, except `fetch` */
    struct gen_image *images;
    uint32_t image_count;
    struct fetch_job *remote;        /* the http(s) URLs of images, or NULL; owned (input/remote.h) */
    bool fetched;                    /* their files are there */
    void (*done)(struct request *r); /* loop: called after the job */
    size_t pixel_bytes;              /* of decoded images in the prompt: its share of the server's */
    struct gen_shown shown;
    bool failed;
    atomic_bool cancelled; /* ends its compile; any thread */
    bool touched;          /* changed by events of this wake-up */
    struct gen *next_touched;
    double image_seconds; /* time and number of images decoded before the sequences were created; the loop
                             adds them to the metrics */
    uint32_t images_decoded;
};

/* The name of the prompt field, for errors. */
const char *gen_source(const struct gen *g);
enum status gen_nomem(struct gen *g); /* the error of a request that finds no memory */
/* input/body.c (worker): checks limits, repairs text, parses the body into *root, an object the caller
 * owns. */
enum status request_body_parse(struct request *r, json_t **root);
/* Fails if the prompts of a request have too many tokens together. */
enum status gen_tokens_check(struct gen *g, uint64_t tokens);
/* With several prompts: has this job taken so long that others should have the worker? Then it is to end, and
 * sets g->again. */
bool gen_job_over(struct gen *g);
/* The prompt is built, or never will be: frees its parts, and the body except the request id. */
void gen_read_end(struct gen *g);
void gen_read_free(struct gen *g); /* only the parts of the prompt */
/* Checks that `model` names the served model. */
enum status request_model_check(struct request *r, json_t *root);
enum status request_model_unknown(struct request *r, const char *name); /* 404 */

/* Fails if the model generates no text. */
enum status gen_generates(struct gen *g);
/* input/parse.c (worker): the fields of a chat or a completion, except messages and prompt; for another
 * dialect, the fields with the same meaning, after its reader has run. r->response.error on failure. */
enum status gen_parse(struct gen *g, json_t *root);
/* What sampling does where a request says nothing: generation_config.json, else OpenAI's values. */
struct sampling_defaults {
    double temperature, top_p, min_p, repetition;
    int64_t top_k; /* 0: all tokens */
};
struct sampling_defaults sampling_defaults(const struct server *s);
/* Only continue_final_message and the choice of special tokens. */
enum status gen_parse_turn(struct gen *g, json_t *root);
/* Refuses fields of other servers that would change the output. */
/* Warns of the fields of `root` that are none of known[0..count), but nearly. With --log-level debug the log
 * names all others, too. */
void gen_note_unknown(struct gen *g, json_t *root, const char *const *known, size_t count);
enum status gen_parse_refused(struct gen *g, json_t *root);
/* stop: a string or an array of them, or NULL; the field called `name`. */
enum status gen_parse_stops(struct gen *g, json_t *stop, const char *name);
/* Sets the tenant, from the API key or `user`, which may be NULL. */
void gen_tenant(struct gen *g, json_t *user);
/* Only cache_salt: the name space of everything cached, including what /tokenize caches about images. */
enum status gen_parse_salt(struct gen *g, json_t *root);
/* The name space of what is cached for a request: a hash of its cache_salt (len 0: none) and, with
 * --cache-scope key, its API key. All zero without either. */
void gen_salt(const struct request *r, const char *text, size_t len, uint8_t out[32]);
/* Only mm_processor_kwargs. */
enum status gen_parse_image_bounds(struct gen *g, json_t *root);

/* input/format.c (worker) */
enum status gen_parse_format(struct gen *g, json_t *root);
/* A schema, or a schema as a string; path: static. */
enum status gen_schema(struct gen *g, json_t *v, const char *path, struct response_format *out);
/* A format by type: for json_schema, `in` has schema, name, strict. Paths: static. */
struct format_paths {
    const char *format, *type, *name, *strict;
};
enum status gen_format(struct gen *g, json_t *type, json_t *in, const struct format_paths *paths);
/* input/constraint.c (worker): the constraint of response format and tool calls -> g->grammar if it is
 * cached, else g->compile. After the prompt is built. */
enum status gen_constraint_make(struct gen *g);
/* Worker, with memory reserved: g->compile -> g->grammar. r->response.error on failure. */
enum status gen_constraint_compile(struct gen *g);
void gen_constraint_made(struct gen *g); /* g->compile is no longer needed */
/* The field that requested the constraint. */
const char *gen_constraint_param(const struct gen *g);
/* Whose share of the memory for grammars it takes: one of several API keys; 0: the memory isn't shared. */
uint64_t gen_grammar_tenant(const struct gen *g);
extern const char gen_grammar_memory_full[];
/* input/tools.c (worker): the fields of a chat -> g->tools, g->p.tool_choice. */
enum status gen_parse_tools(struct gen *g, json_t *root);
/* "auto", "none", "required". */
enum status gen_choose(struct gen *g, json_t *word);
/* nested: the tools are {"function": {"name"}}, else {"name"}. */
enum status gen_choose_among(struct gen *g, json_t *mode, json_t *list, bool nested);
/* Checks them, and decides whether the output is parsed for calls. */
enum status gen_tools_resolve(struct gen *g);
/* The fields of a chat for reasoning. */
enum status gen_parse_reasoning(struct gen *g, json_t *root);
enum status gen_effort_check(struct gen *g, json_t *v, const char *path);
/* Sets up reasoning in the template variables and in the output; after the tools. */
enum status gen_reasoning(struct gen *g, const struct reasoning_ask *ask);
/* input/chat.c, input/prompt.c (worker). First step: the messages or the kind of prompt, and the URLs
 * to fetch: g->remote. */
enum status gen_read_chat(struct gen *g, json_t *root);
/* The same for other dialects: before and after they add their messages; r->at is set by the dialect. */
enum status gen_read_begin(struct gen *g, struct chat_reader *r);
enum status gen_read_added(struct gen *g);
enum status gen_read_completion(struct gen *g, json_t *root);
const char *gen_infill_missing(const struct tokenizer *tok); /* a token that `suffix` needs; NULL: none */
/* Second step, with the files: fill g->prompts, check the context length. ST_AGAIN: another job must go on.
 */
enum status gen_prompt_chat(struct gen *g);
enum status gen_prompt_completion(struct gen *g, json_t *root);
/* Both steps for /tokenize: the ids of a chat. */
enum status tokenize_read(struct gen *g, json_t *root);
enum status tokenize_chat(struct gen *g);
/* The second step for /apply-template: the text, with markers for images. */
enum status render_chat(struct gen *g, struct json_writer *o);
/* input/chat_images.c */
/* Any thread: adds decoded pixels to g's count and to the server's. False: over --image-memory; a request
 * that is the only one with pixels is not limited. */
bool gen_pixels_account(struct gen *g, const struct image_prepared *p);

#endif
