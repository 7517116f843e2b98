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
    FORMAT_REGEX,
    FORMAT_TEXT,  /* a grammar */
    FORMAT_CHOICE /* one of some texts */
};
struct response_format {
    enum response_format_kind kind;
    json_t *schema;       /* SCHEMA: opaque, owned */
    struct text text;     /* REGEX, TEXT */
    struct text *choices; /* [choice_count] */
    size_t choice_count;
    const char *param; /* static: the field that asked for it */
    bool compact;      /* JSON without optional white space */
    bool any_order;    /* of properties; else in the order of the schema */
    bool strict;       /* a keyword that can't be enforced is an error */
};
/* tool_choice (input/tools.c). */
struct tool_choice {
    bool required, none;
    struct text named; /* the one function to call */
    bool limited;      /* only these may be called: */
    struct text *allowed;
    size_t allowed_count;
};
struct reasoning_choice {
    bool drop, inline_; /* it is not returned, or is returned within the content */
    bool limited;       /* to so many tokens: */
    uint32_t budget;
    const char *budget_path; /* static: its field; NULL: kept where it can be */
};
/* A prompt of a completion: a text, or token ids; or an output's ids. */
struct prompt_input {
    struct text text; /* data NULL: */
    uint32_t *ids;
    size_t id_count;
};

struct inference_request {
    struct arena arena; /* owns what the rest points to; prompts are in that of `messages` */
    struct arena form;  /* owns what `format` and the allowed tools point to */
    enum gen_kind kind;
    const char *source; /* static: the field with the prompt, for errors */
    /* what is prompted with; until the prompts are made */
    struct chat_messages messages; /* also for a prompt that is a list of parts */
    bool pairs;                    /* by the template for pairs: query and document */
    struct prompt_input *inputs;   /* [input_count], of a completion */
    size_t input_count;
    bool inputs_listed;     /* they came as a list */
    struct text suffix;     /* of fill-in-the-middle */
    uint32_t messages_each; /* so many of them are a prompt; 0: all of them are one */
    /* Opaque, for the template and the grammar: [{"type", "function": {"name", ..}}]; a list; an object; or
     * NULL. Owned. */
    json_t *tools, *documents, *variables;
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
    int64_t template_time;            /* Unix seconds; 0: when the request came */
    struct text user, cache_salt, id; /* id: X-Request-Id, where that header is absent */
    bool return_cache_info, timings, progress;
    enum { RECEIPT_NONE = 0, RECEIPT_SHORT, RECEIPT_FULL } receipt;
    bool parallel_calls; /* chat: more than one call may be returned */
    struct response_format format;
    struct tool_choice tool_choice;
    struct reasoning_choice reasoning;
    enum sched_pooling pooling; /* embeddings: nothing is sampled */
    uint64_t tokens_max;        /* of all prompts: their vectors fit a response; 0: as always */
    /* The output's ids: given_count is n (of sample j), 1 (of each sample) or 0 (it is generated). */
    struct prompt_input *given;
    uint32_t given_count;
    struct image_bounds image_bounds; /* mm_processor_kwargs; 0 = the checkpoint's */
};

/* Frees messages, inputs, tools, documents and variables: the prompts are made. What a client can make large
 * is not held while it is answered. */
void inference_request_shed(struct inference_request *q);
void inference_request_form_free(struct inference_request *q); /* the output's grammar is made */
void inference_request_free(struct inference_request *q);

#endif
