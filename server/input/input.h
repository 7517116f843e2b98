/* The typed request of an endpoint that generates, and what it becomes before it runs: prompts and the
 * constraint of its output. Internal to server/. All on a worker:
 *
 *   body.c -> fields.c, parse.c, resolve.c, tools.c, format.c, chat.c   the request
 *   remote.c                                       image URLs, fetched by the loop before the job continues
 *   prompt.c or chat.c, chat_images.c              the prompts; cache_info.c: where their tokens come from
 *   constraint.c, call_grammar.c                   the grammar of the output; grammars.c: those compiled
 *
 * server/generate/ runs it; server/dialect/ reads and writes what the APIs have of their own.
 *
 * To add a request parameter: a row of fields.def, with a member of struct inference_request. */
#ifndef KVASIR_INPUT_H
#define KVASIR_INPUT_H

#include "server/chat/output.h"
#include "server/json/writer.h"
#include "server/context/context.h"
#include "server/json/errors.h"
#include "server/shares/shares.h"
#include "server/input/cache_info.h"
#include "server/input/inference_request.h"

#include <jansson.h>

/* How the output is parsed, of what the request asks for and the model does. */
struct output_rules {
    /* chat: tools are offered, and the output is parsed for calls in this syntax */
    enum tool_call_syntax calls;
    struct tool_types *tool_types; /* owned; NULL if the syntax needs none */
    json_t *bare_calls;            /* an object: functions that may be called as plain JSON, or NULL; owned */
    enum reasoning_syntax reasoning_syntax;
    enum reasoning_use reasoning; /* chat: how reasoning is returned, if the template supports it */
    struct {
        bool limited;
        uint32_t budget, close; /* tokens of reasoning; the one that ends it */
    } think;
    bool named_call; /* its finish_reason is "stop" */
    bool must_call;  /* the output must be a call */
};

/* Who asks: of the connection and its headers, and what follows for shares of scheduler and cache. */
struct caller {
    const char *id;        /* of the request, for the log; borrowed */
    const char *client;    /* its address; borrowed */
    const uint8_t *key;    /* [32] a hash of the API key; borrowed */
    bool has_key, one_key; /* one_key: there is no other */
    uint64_t websocket;    /* over which it came; 0: none */
    int64_t created;       /* Unix seconds */
    uint64_t arrived_us;
    size_t body_len, body_bytes; /* of the text; and of its values */
    uint64_t tenant;             /* hash of API key and `user`; 0 = unknown */
    uint8_t salt[32];            /* gen_salt */
};

/* What a worker makes of a request before it runs. */
struct chat;
struct fetch_job;
struct preparation {
    json_t *root;             /* the body, while it is read; owned */
    struct chat *chat;        /* what prompts are made from; owned, until gen_read_end */
    uint32_t prompts_made;    /* a job that takes long is continued by another */
    uint64_t prompt_tokens;   /* of those made */
    uint64_t job_us;          /* since when the job makes prompts; 0: it has not begun */
    bool read, again;         /* the body is read; another job continues */
    bool counting;            /* no sequence is made: the prompt may be longer than the context */
    struct fetch_job *remote; /* the http(s) URLs of images, or NULL; owned (input/remote.h) */
    bool fetched;             /* their files are there */
};
/* The grammar of the output, until it is compiled. */
struct compilation {
    json_t *source; /* with all that it references in the body; owned, like */
    char *key;      /* its text. NULL: nothing to compile */
    size_t bytes;
    bool waits;
    uint64_t since_us, turn; /* a tenant compiles one grammar per turn */
};

struct generation;
struct dialect; /* generate/generate.h */
struct choice;
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

/* With a receipt: of the request, as it was read. */
struct gen_receipt {
    const char *api;       /* the endpoint's path; borrowed */
    bool full, cut;        /* cut: the claim ends for want of room where there is some here */
    uint8_t request[32];   /* SHA-256 of request_write */
    uint8_t weights[32];   /* checkpoint_id */
    uint64_t seed;         /* the request's, or the one that was drawn */
    struct buf body;       /* full: the request's, as JSON */
    uint8_t body_hash[32]; /* of it, before it was read */
    /* The receipt that is checked; NULL: one is made. Owned, with the output that it claims by choice. */
    json_t *claim;
    uint32_t **given;
    uint32_t given_choices;
};

struct gen_shown {
    bool head, prompt_ids;
    const struct sched_event *progress; /* for the chunk that is being written */
    uint32_t finishes;                  /* choices whose finish_reason is sent */
};

struct image_fetch;
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

struct generation {
    struct request *r;
    const struct context *ctx;
    struct api_error *e; /* r's */
    struct inference_request q;
    struct caller caller;
    struct buf *out;     /* r's: what is written to the client */
    struct share *share; /* of the server, for all that the request holds */
    struct output_rules rules;
    struct preparation prep;
    struct compilation compile;
    uint64_t max_tokens_cut; /* what the context does not hold of them */
    const struct dialect *dialect;
    struct gen_receipt *receipt;       /* NULL: none is wanted; owned */
    void *dialect_state;               /* the dialect's own; one block of malloc, owned */
    size_t dialect_kept;               /* bytes of the body, or derived from it, kept until the end */
    struct buf written;                /* the whole response, until it is r's */
    struct grammar *grammar;           /* the output constraint; NULL: none. Owned */
    const struct grammar_vocab *vocab; /* with grammar: the model's vocabulary */
    char *warnings;                    /* for the response: a JSON list, or NULL; owned */
    json_t *misspelt;                  /* further ones, of fields; NULL: none. Owned */
    struct gen_prompt *prompts;
    uint32_t prompt_count;
    struct choice *choices;
    uint32_t choice_count, choices_open, choices_fed; /* fed: submitted so far */
    struct stop_set *stops;                           /* NULL = none */
    const char *response_role;                        /* chat: "assistant", or the last message's role */
    const char *left_out;  /* the part of the request that is not in the prompt, or NULL; static */
    bool inside_reasoning; /* chat: the prompt ends within the model's reasoning */
    uint32_t tag_ids[TOOL_TAGS_MAX + 2]; /* tags of calls and reasoning: always kept in the text */
    uint32_t tag_id_count;
    /* chat: [image_count], owned; read-only once the sequences run, except `fetch` */
    struct gen_image *images;
    uint32_t image_count;
    void (*done)(struct request *r); /* loop: called after the job */
    size_t pixel_bytes;              /* of decoded images in the prompt: its share of the server's */
    struct gen_shown shown;
    bool failed;
    atomic_bool cancelled; /* ends its compile; any thread */
    bool touched;          /* changed by events of this wake-up */
    struct generation *next_touched;
    struct log_record *record; /* its line of --request-log, or NULL; owned */
    double image_seconds; /* time and number of images decoded before the sequences were created; the loop
                             adds them to the metrics */
    uint32_t images_decoded;
};

/* The name of the prompt field, for errors. */
const char *gen_source(const struct generation *g);
enum status gen_nomem(struct generation *g); /* the error of a request that finds no memory */
/* input/body.c (worker): checks limits, repairs text, parses the body into *root, an object the caller
 * owns. */
enum status request_body_parse(struct request *r, json_t **root);
/* Fails if the prompts of a request have too many tokens together. */
enum status gen_tokens_check(struct generation *g, uint64_t tokens);
/* With several prompts: has this job taken so long that others should have the worker? Then it is to end, and
 * sets g->prep.again. */
bool gen_job_over(struct generation *g);
void gen_body_free(struct generation *g); /* the request is read */
/* The prompt is built, or never will be: frees its parts, and the body. */
void gen_read_end(struct generation *g);
void gen_read_free(struct generation *g); /* if it was not called: when the client is gone */
/* Checks that `model` names the served model. */
enum status request_model_check(struct request *r, json_t *root);
enum status request_model_unknown(struct request *r, const char *name);   /* 404 */
bool request_model_find(struct request *r, const char *name, size_t len); /* -> model_name, lora */

/* Fails if the model generates no text. */
enum status gen_generates(struct generation *g);
/* input/resolve.c (worker; r->response.error on failure). What a request has before any field is read: */
void gen_defaults(struct generation *g);
/* The fields of the table (input/fields.h), and whose the request is. */
enum status gen_fields(struct generation *g, json_t *root, unsigned read, unsigned known);
void gen_caller(struct generation *g); /* tenant and salt, of user, cache_salt and API key */
/* Checks between fields, the constraint of the output, stops, sampling; after gen_fields. */
enum status gen_resolve(struct generation *g, json_t *root, unsigned api);
/* What sampling does where a request says nothing: generation_config.json, else OpenAI's values. */
struct sampling_defaults {
    double temperature, top_p, min_p, repetition;
    int64_t top_k; /* 0: all tokens */
};
struct sampling_defaults sampling_defaults(const struct context *x);
/* The name space of what is cached for a request: a hash of its cache_salt (len 0: none) and, with
 * --cache-scope key, its API key. All zero without either. */
void gen_salt(const struct context *x, const struct caller *of, const char *text, size_t len,
              uint8_t out[32]);

/* input/given.c (worker) */
/* A list of token ids, not empty, -> *in. */
enum status gen_ids_read(struct generation *g, struct arena *arena, const json_t *list, const char *path,
                         struct prompt_input *in) KV_MUST_CHECK;
/* input/format.c (worker) */
enum status gen_parse_format(struct generation *g, json_t *root, unsigned api);
/* A schema, or a schema as a string; path: static. */
enum status gen_schema(struct generation *g, json_t *v, const char *path, struct response_format *out);
/* A format by type: for json_schema, `in` has schema, name, strict. Paths: static. */
struct format_paths {
    const char *format, *type, *name, *strict;
};
enum status gen_format(struct generation *g, json_t *type, json_t *in, const struct format_paths *paths);
/* input/constraint.c (worker): the constraint of response format and tool calls -> g->grammar if it is
 * cached, else g->compile.source. After the prompt is built. */
enum status gen_constraint_make(struct generation *g);
/* Worker, with memory reserved: g->compile.source -> g->grammar. r->response.error on failure. */
enum status gen_constraint_compile(struct generation *g);
void gen_constraint_made(struct generation *g); /* g->compile.source is no longer needed */
/* The field that requested the constraint. */
const char *gen_constraint_param(const struct generation *g);
/* Whose share of the memory for grammars it takes: one of several API keys; 0: the memory isn't shared. */
uint64_t gen_grammar_tenant(const struct generation *g);
extern const char gen_grammar_memory_full[];
/* input/tools.c (worker): the fields of a chat -> g->q.tools, g->q.tool_choice. */
enum status gen_parse_tools(struct generation *g, json_t *root);
/* "auto", "none", "required". */
enum status gen_choose(struct generation *g, json_t *word);
/* nested: the tools are {"function": {"name"}}, else {"name"}. */
enum status gen_choose_among(struct generation *g, json_t *mode, json_t *list, bool nested);
struct name_rule {
    const char *pattern;
    size_t max;
    bool dot;
};
extern const struct name_rule names_openai; /* OpenAI's in its chat completions */
extern const struct name_rule names_mcp;    /* MCP's, which the other dialects' clients pass on */
/* Checks them. names: of functions. */
enum status gen_tools_resolve(struct generation *g, const struct name_rule *names);
/* The request -> g->rules: whether the output is parsed for calls and reasoning. */
enum status gen_rules(struct generation *g);
/* The fields of a chat for reasoning. */
enum status gen_parse_reasoning(struct generation *g, json_t *root);
enum status gen_effort_check(struct generation *g, json_t *v, const char *path);
/* Reasoning options of a body; each value may be NULL. */
struct reasoning_ask {
    json_t *effort, *verbosity; /* strings */
    json_t *enabled;            /* a boolean */
    json_t *variables;          /* chat_template_kwargs, an object */
    json_t *budget;             /* the most tokens of reasoning, an integer */
    const char *budget_path;    /* its field; NULL: a number that was checked, kept where it can be */
    bool drop, inline_;         /* it is not returned, or is returned within the content */
};
/* -> g->q.variables, g->q.reasoning. */
enum status gen_reasoning(struct generation *g, const struct reasoning_ask *ask);
/* input/chat.c, input/prompt.c (worker). First step: the messages or the kind of prompt, and the URLs
 * to fetch: g->prep.remote. */
enum status gen_read_chat(struct generation *g, json_t *root);
/* The same for other dialects: before and after they add their messages; r->at is set by the dialect. */
enum status gen_read_begin(struct generation *g, struct chat_reader *r);
enum status gen_read_added(struct generation *g);
/* The prompts of a completion, of the field gen_source; suffix may be NULL. */
enum status gen_read_completion(struct generation *g, json_t *prompt, json_t *suffix);
const char *gen_infill_missing(const struct tokenizer *tok); /* a token that `suffix` needs; NULL: none */
/* Second step, with the files: fill g->prompts, check the context length. ST_AGAIN: another job must go on.
 */
enum status gen_prompt_chat(struct generation *g);
enum status gen_prompt_completion(struct generation *g);
/* Both steps for /tokenize: the ids of a chat. */
enum status tokenize_read(struct generation *g, json_t *root);
enum status tokenize_chat(struct generation *g);
/* The second step for /apply-template: the text, with markers for images. */
enum status render_chat(struct generation *g, struct json_writer *o);
/* input/chat_images.c */
/* Any thread: adds decoded pixels to g's count and to the server's. False: over --image-memory; a request
 * that is the only one with pixels is not limited. */
bool gen_pixels_account(struct generation *g, const struct image_prepared *p);

#endif
