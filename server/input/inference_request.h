/* The request of an endpoint that infers, as a value: what a dialect reads from its body, the same for all
 * dialects. Read by a worker, then constant. Whose it is, over which connection it came and what becomes of
 * it are in struct generation (input.h). */
#ifndef KVASIR_INFERENCE_REQUEST_H
#define KVASIR_INFERENCE_REQUEST_H

#include "engine/sample/sampling.h"
#include "scheduler/scheduler.h"
#include "server/chat/messages.h"
#include "server/chat/stop_match.h"
#include "server/json/arena.h"
#include "server/media/image_parts.h"

#include <jansson.h>

enum gen_kind { GEN_CHAT = 0, GEN_COMPLETION, GEN_VECTORS }; /* embeddings, scores: no text is made */

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

struct inference_request {
    struct arena arena; /* owns what the rest points to */
    enum gen_kind kind;
    const char *source; /* static: the field with the prompt, for errors */
    /* what is prompted with; owned, until the prompts are made */
    struct chat_messages messages; /* also for a prompt that is a list of parts */
    const struct template *tmpl;   /* NULL: the model's */
    bool control_parse;            /* control tokens count in the client's text, too */
    json_t *suffix;         /* completions: the text after the output, or NULL; borrowed from the body */
    uint32_t messages_each; /* so many of them are a prompt; 0: all of them are one */
    json_t *tools, *documents, *variables; /* for the template: [{"type", "function": {"name", ..}}]; a list;
                                              an object; or NULL */
    /* what is wanted */
    bool stream, include_usage, continuous_usage;
    uint32_t n;
    bool has_max_tokens;
    uint64_t max_tokens, min_tokens;
    bool max_tokens_fit;             /* max_tokens is lowered to what the context holds */
    struct sampling_params sampling; /* without seed */
    bool has_seed;
    int64_t seed;
    bool logprobs;         /* per-token log-probs are returned */
    uint32_t logprobs_top; /* alternatives */
    bool prompt_logprobs;  /* the response field of that name */
    uint32_t prompt_logprobs_top;
    struct stop_string *stops; /* [stop_count] */
    uint32_t stop_count;
    uint32_t *stop_ids; /* [stop_id_count] */
    uint32_t stop_id_count;
    bool include_stop, ignore_eos, skip_special, echo;
    bool return_token_ids, tokens_as_ids;
    bool add_generation_prompt, continue_final_message, add_special_tokens;
    bool has_truncate;
    int64_t truncate;  /* -1 = as many as fit */
    bool service_tier; /* the request has the field */
    int64_t priority;
    struct text user, cache_salt, id; /* id: X-Request-Id, where that header is absent */
    bool return_cache_info, timings, progress;
    bool parallel_calls; /* chat: more than one call may be returned */
    struct response_format format;
    struct tool_choice tool_choice;
    enum sched_pooling pooling;       /* embeddings: nothing is sampled */
    uint64_t tokens_max;              /* of all prompts: their vectors fit a response; 0: as always */
    const struct sampling_bias *only; /* [n]: sample j's one token; the dialect's, or NULL */
    struct image_bounds image_bounds; /* mm_processor_kwargs; 0 = the checkpoint's */
};

void inference_request_free(struct inference_request *q);

#endif
