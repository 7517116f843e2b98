/* A generating request, of chat completions or completions. Internal to server/.
 *
 *   on a worker   body.c -> parse.c, tools.c: what is asked -> prompt.c or chat.c, pictures.c: the prompts
 *                 remote.c: files of pictures; where some are to be fetched first, all of it runs twice
 *   on the loop   sequences.c: to the scheduler, and its events; images.c: pixels that it asks for;
 *                 write.c: the answer, of what pieces.c says is new; end.c: what ends it early
 *
 * Other dialects than OpenAI's are read and written by server/dialect/: struct dialect.
 *
 * To add a request parameter: a field of struct gen_params; parse.c reads it (tools.c: tools and reasoning);
 * the list in note_unknown of parse.c names it; docs/http.md and server/api/openapi.json list it. To add a
 * sampling parameter (top_p and the like): see engine/sample/sampling.h. */
#ifndef KVASIR_GEN_H
#define KVASIR_GEN_H

#include "server/generate/cache_info.h"
#include "server/chat/output.h"
#include "server/generate/logprobs_out.h"
#include "server/http/metrics.h"
#include "server/media/picture.h"
#include "server/http/request.h"
#include "server/generate/stop_match.h"

#include <jansson.h>

enum gen_kind { GEN_CHAT = 0, GEN_COMPLETION };

/* The form that the answer is to have (generate/format.c). */
enum form_kind {
    FORM_FREE = 0,
    FORM_ANY,    /* any JSON value */
    FORM_OBJECT, /* any JSON object */
    FORM_SCHEMA, /* value: a JSON schema */
    FORM_REGEX,  /* value: a string, as in the next */
    FORM_TEXT,   /* a grammar */
    FORM_CHOICE  /* value: a list of strings */
};
struct answer_form {
    enum form_kind kind;
    json_t *value;     /* borrowed from the body or form_root */
    const char *param; /* static: the field that asked for it */
    bool compact;      /* JSON without white space of the model's own */
    bool any_order;    /* of properties; else they come as the schema lists them */
};
/* Which calls the answer is to have (generate/tools.c). */
struct call_form {
    bool required;
    const char *named; /* the one function that is called; borrowed from the body */
    json_t *allowed;   /* [{"function": {"name"}}]: only these may be called; borrowed; NULL = all */
};

struct gen_params {
    bool stream, include_usage, continuous_usage;
    uint32_t n;
    bool has_max;
    uint64_t max_tokens, min_tokens;
    bool max_tokens_fit;     /* max_tokens is a bound: where the context holds less, that is the bound */
    uint64_t max_tokens_cut; /* by that */
    struct sampling_params sampling; /* without seed; bias owned by the gen */
    bool has_seed;
    int64_t seed;
    bool logprobs;         /* per-token log-probs are part of the answer */
    uint32_t logprobs_top; /* alternatives */
    bool prompt_logprobs;  /* the answer field of that name */
    uint32_t prompt_logprobs_top;
    struct stop_string *stops; /* [stop_count]; texts borrowed from `root` */
    uint32_t stop_count;
    uint32_t *stop_ids; /* [stop_id_count], owned */
    uint32_t stop_id_count;
    bool include_stop, ignore_eos, skip_special, echo;
    bool return_token_ids, tokens_as_ids;
    bool add_generation_prompt, continue_final_message, add_special_tokens;
    bool has_truncate;
    int64_t truncate;  /* -1 = as many as fit */
    bool service_tier; /* the request had the field */
    int64_t priority;
    uint64_t tenant;  /* hash of API key and `user`; 0 = unknown */
    uint8_t salt[32]; /* gen_salt */
    bool return_cache_info;
    enum tool_form calls; /* chat: tools are offered, and calls of this form are looked for in the answer */
    struct tool_types *tool_types; /* owned; NULL where the form needs none */
    json_t *bare_calls;            /* an object: functions whose calls may be plain JSON, or NULL; owned */
    bool parallel_calls;           /* chat: more than one call may be returned */
    enum reasoning_form reasoning_form;
    enum reasoning_use reasoning; /* chat: how reasoning is returned, if the template supports it */
    struct answer_form form;
    struct call_form call_form;
    bool named_call;                  /* its finish_reason is "stop" */
    bool must_call;                   /* the answer is a call */
    struct image_bounds image_bounds; /* mm_processor_kwargs; 0 = the checkpoint's */
};

struct gen;
struct choice;
/* What a dialect does otherwise than OpenAI's chat completions and completions. Its answers are those of a
 * chat; choice->out is there always. */
struct dialect {
    /* Worker: puts a body of chat completions in the place of *root; r->answer.error on failure, which leaves
     * *root alone. */
    enum status (*translate)(struct gen *g, json_t **root);
    /* Worker: what came after it has failed: r->answer.error gets the names of the client's own fields. */
    void (*fault)(struct gen *g);
    /* Loop: as gen_write_answer, gen_stream_token, gen_stream_write; and r->answer.error as the last event,
     * into r->answer.out. */
    void (*answer)(struct gen *g);
    void (*stream_token)(struct choice *c);
    void (*stream)(struct gen *g);
    void (*stream_error)(struct request *r);
    /* Loop, each may be NULL: after it took a token, streaming or not; before g and its dialect_state are
     * freed. */
    void (*token)(struct choice *c);
    void (*end)(struct gen *g);
};

/* One prompt of the request (completions may have many). */
struct gen_prompt {
    struct prompt prompt;        /* owned; borrowed by its sequences until their EV_END */
    char *text;                  /* echo: what the client sent, or its ids as text; owned, may be NULL */
    size_t text_len, text_chars; /* bytes, code points */
    uint32_t image_tokens, cached_tokens;
    uint32_t dropped; /* tokens that truncate_prompt_tokens cut off in front */
    bool cache_known; /* the scheduler has reported what it reused (its first sequence's report counts) */
    struct sched_cache_info cache;
    struct cache_places places; /* with return_cache_info: which part of the request each token came from */
    struct token_out
        *scores;   /* [token_count] when scored: [p] = log-prob of prompt token p; [0] unused. Owned */
    size_t booked; /* their share of the request's answer_bytes */
};

/* What the chunks of a stream have shown so far; generate/write.c's. */
struct choice_shown {
    bool dirty;   /* there are tokens that no chunk has shown yet */
    bool any;     /* the first one (with echo) went out */
    bool finish;  /* the one with the finish_reason did */
    bool null;    /* the role chunk said "content":null */
    size_t text;  /* bytes */
    uint32_t ids; /* tokens */
};
struct gen_shown {
    bool head, prompt_ids;
    uint32_t finishes; /* choices whose finish_reason is out */
};

/* One answer: sample j of prompt i is choice i * n + j. */
struct choice {
    struct gen *gen;
    struct gen_prompt *prompt;
    uint32_t index;
    struct seq_id seq;
    struct sampling_params sampling;
    struct matcher *matcher; /* NULL: the form is free; owned */
    struct sampling_constraint constraint;
    bool submitted, seq_ended;
    bool prompt_logged; /* legacy log-probs of the echoed prompt are in `logprobs` */
    struct choice_shown shown;
    enum finish finish;
    bool stop_is_id;
    uint32_t stop_id;
    int stop_string; /* index, or -1 */
    struct detok *detok;
    struct stop_state stop;
    struct buf text;         /* all text, with what is held back at its end */
    struct chat_output *out; /* chat with calls or reasoning: the text taken apart, and shown instead of it;
                                else NULL. Owned */
    size_t held;             /* bytes at the end that may be the beginning of a stop string */
    size_t chars;            /* code points of text (without echo) */
    uint32_t *ids;           /* generated tokens, the end token among them */
    uint32_t id_count, id_cap;
    uint32_t proposed, accepted; /* guesses so far (struct sched_event) */
    struct logprobs_acc logprobs;
    uint64_t first_us, last_us; /* of its tokens */
    size_t booked;              /* its share of the request's answer_bytes */
};

struct image_fetch;
struct fetch_job;
/* A picture of a chat. Where its content is known from an earlier request the pixels are not held; bytes
 * NULL: they are in the prompt. */
struct gen_picture {
    uint8_t *bytes; /* the file, or the files of a video's frames; owned */
    size_t len;
    struct picture_ask ask;
    uint8_t alias[32];           /* its id (media/alias.h) */
    uint32_t first, count;       /* spans of the prompt that it became: [first, first + count) */
    struct image_fetch *fetch;   /* being decoded */
    struct image_prepared ready; /* a video with many parts: those that nobody took yet, so that it is not
                                    decoded for each of them */
};

struct gen {
    struct request *r;
    enum gen_kind kind;
    const struct dialect *dialect;     /* NULL: OpenAI's */
    void *dialect_state;               /* the dialect's own; one block of malloc, owned */
    size_t dialect_kept;               /* bytes of the body, or made of it, that it keeps until the end */
    json_t *root;                      /* the body: kept because stops borrow from it */
    json_t *form_root;                 /* a schema that came as a text; owned, until the body is trimmed */
    struct grammar *grammar;           /* what constrains the answers; NULL: nothing. Owned */
    const struct grammar_vocab *vocab; /* with it: the model's tokens */
    json_t *compile;   /* what it is to be compiled from, with all that the body had of it; owned, as */
    char *compile_key; /* its text. NULL: there is nothing to compile */
    bool compile_waits;
    uint64_t compile_us; /* since when */
    struct gen_params p;
    struct gen_prompt *prompts;
    uint32_t prompt_count;
    struct choice *choices;
    uint32_t choice_count, choices_open;
    struct stop_set *stops; /* NULL = none */
    char *answer_role;      /* chat: "assistant", or the last message's role */
    bool inside_reasoning;  /* chat: the prompt ends within the model's reasoning */
    uint32_t tag_ids[8]; /* tokens that are the tags of calls and reasoning: shown also where special tokens
                            are not */
    uint32_t tag_id_count;
    struct gen_picture
        *pictures; /* chat: [picture_count], owned; read-only once the sequences run, but for `fetch` */
    uint32_t picture_count;
    struct fetch_job *remote;        /* the http(s) URLs of pictures, or NULL; owned (generate/remote.h) */
    bool fetched;                    /* their files are there */
    void (*done)(struct request *r); /* loop: what comes after the job */
    size_t pixel_bytes;              /* of decoded pictures in the prompt: its share of the server's */
    struct gen_shown shown;
    bool failed;
    bool touched; /* events of this wake-up changed it */
    struct gen *next_touched;
    double image_seconds; /* spent on decoding pictures before the sequences were made, and how many: told to
                             the metrics on the loop */
    uint32_t image_count;
};

/* all that it owns, when none of its sequences is alive */
void gen_free(struct gen *g);
/* Loop thread: attaches a gen to r and hands it to the pool as request_work does, or answers that there is no
 * memory. dialect: NULL = OpenAI's. The job runs a second time, with a new gen, where pictures had to be
 * fetched (generate/remote.h): all that it needs it must find in the request's body. */
void gen_start(struct request *r, enum gen_kind kind, const struct dialect *dialect,
               void (*job)(struct request *r), void (*done)(struct request *r));

/* generate/body.c (worker): checks limits, repairs text, parses the body into *root, an object the caller
 * owns. */
enum status request_body_parse(struct request *r, json_t **root);
/* Frees the parts of the body that are no longer needed; stops: the stop strings are still needed. NULL is
 * fine. */
void request_body_trim(struct request *r, json_t *root, bool stops);
/* Checks that `model` is a name of the served model. */
enum status request_model_check(struct request *r, json_t *root);

/* generate/parse.c (worker): all fields but messages and prompt. r->answer.error on failure. */
enum status gen_parse(struct gen *g, json_t *root);
/* Only cache_salt: the name space of everything cached, also of what /tokenize caches about pictures.
 */
enum status gen_parse_salt(struct gen *g, json_t *root);
/* The name space of what is cached for a request: a hash of its cache_salt (len 0: it has none) and, with
 * --cache-scope key, of its API key. All zero without either. */
void gen_salt(const struct request *r, const char *text, size_t len, uint8_t out[32]);
/* Only mm_processor_kwargs. */
enum status gen_parse_image_bounds(struct gen *g, json_t *root);

/* generate/format.c (worker) */
enum status gen_parse_format(struct gen *g, json_t *root);
/* generate/constraint.c (worker): what the form of the answer and of its calls asks for -> g->grammar, if it
 * was compiled before, else g->compile. After the prompt is built. */
enum status gen_constraint_make(struct gen *g, json_t *root);
/* Worker, with memory reserved: g->compile -> g->grammar. r->answer.error on failure. */
enum status gen_constraint_compile(struct gen *g);
void gen_constraint_made(struct gen *g); /* g->compile is no longer needed */
/* The field that asked for the constraint. */
const char *gen_constraint_param(const struct gen *g);
/* Why the matcher of a choice has failed, as a message; the error's code. */
const char *gen_constraint_failure(const struct choice *c, char *text, size_t cap);
extern const char gen_grammar_memory_full[];
/* Loop: the matcher of a choice. False: no memory. */
bool gen_constraint_start(struct choice *c);

/* generate/compile.c (loop): compiles g->compile on a worker, then calls done. So few at a time that workers
 * are left for everything else; the others wait, also for memory (--grammar-memory), in the order of their
 * coming. */
void gen_compile(struct request *r, void (*done)(struct request *r));
void gen_compile_next(struct server *s); /* starts those whose turn has come; ends those that waited long */

/* generate/tools.c (worker): tools, and whether calls of them are looked for; reasoning, as variables of the
 * template (chat_template_kwargs of root) and in the answer. */
enum status gen_parse_tools(struct gen *g, json_t *root);
enum status gen_parse_thinking(struct gen *g, json_t *root);

/* generate/prompt.c (worker): fill g->prompts, check the context length. */
enum status gen_prompt_chat(struct gen *g, json_t *root);
enum status gen_prompt_completion(struct gen *g, json_t *root);
/* For /tokenize: ids of a chat (kind "messages") in *out. */
enum status tokenize_chat(struct request *r, json_t *root, struct gen *g);

/* generate/sequences.c (loop) */
void gen_submit(struct request *r); /* after the work: starts the sequences */

void gen_events(struct server *s);      /* takes those of the scheduler */
void gen_remote_done(struct server *s); /* goes on with requests whose pictures have been fetched */

/* generate/end.c (loop) */
/* Frees the data of the answer, once it is written or can no longer be written. */
void gen_shed(struct gen *g);
void gen_cancel(struct request *r); /* asks the scheduler to end its sequences */
/* An error for the client, before or inside the stream. */
void gen_abort(struct request *r, int http, const char *code, const char *message);
void gen_answers_check(struct server *s); /* while answers exceed --answer-memory, ends the largest */

/* generate/images.c (loop) */
void gen_image_wanted(struct choice *c, const struct sched_event *ev); /* EV_IMAGE */
size_t gen_images_bytes(const struct gen *g);                          /* held in files */
void gen_images_free(struct gen *g);
/* Any thread: adds decoded pixels to g's count and to the server's. False: over --picture-memory; a request
 * that is the only one with pixels is not limited. */
bool gen_pixels_book(struct gen *g, const struct image_prepared *p);

/* generate/write.c (loop): JSON into g->r->answer.out */
enum status gen_prompt_logprobs(struct choice *c)
    KV_MUST_CHECK; /* completions with echo: puts the prompt's entries in front, once */
void gen_write_answer(struct gen *g);
/* Tokens so far, of all prompts and choices. */
struct gen_usage {
    uint64_t prompt, completion, cached, image, reasoning, accepted, rejected;
};
struct gen_usage gen_usage(const struct gen *g);
void gen_stream_token(struct choice *c); /* before it takes a token: chunks show one step each */
void gen_stream_write(struct gen *g);    /* chunks of all that is new, and the end */

#endif
