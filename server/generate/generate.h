/* Sequences of a typed request (server/input/input.h), and its response. Internal to server/. All on the
 * event loop:
 *
 *   compile.c     requests whose grammar must be compiled, by turns
 *   sequences.c   submission to the scheduler, and its events; masks.c: which tokens a choice may take
 *   images.c      pixels that the scheduler requests
 *   write.c       the response, with new deltas from delta.c; end.c: early ends */
#ifndef KVASIR_GENERATE_H
#define KVASIR_GENERATE_H

#include "server/chat/output.h"
#include "server/http/metrics.h"
#include "server/input/input.h"

#include <sodium.h>

struct choice;
struct delta;
struct receipt_choice;
/* An API: how its requests are read, and how its responses are written. */
struct dialect {
    enum gen_kind kind;
    const char *source; /* the field with the prompt, for errors */
    /* Worker: the body holds another's request: sets the dialect, and *root to its body; may leave a whole
     * response, as read. NULL: it is the request. */
    enum status (*open)(struct generation *g, json_t **root);
    bool plain; /* output without calls and reasoning is not parsed: choice->out is NULL */
    /* Worker: the body -> g->q, except the prompt; or a whole response in
     * r->response.out. r->response.error on failure. May turn a chat into a completion. */
    enum status (*read)(struct generation *g, json_t *root);
    const char *counted; /* the object that only counts a prompt's tokens, up to their number */
    /* The whole response. Loop, or a worker: nothing else changes g meanwhile. */
    void (*response)(struct json_writer *o, struct choice *first);
    /* Loop: the events of a stream. Before the first, once (may be NULL); what is new of a choice, and its
     * end if it has finished, or only its deltas (one is NULL); how far a prompt is (NULL: there are no such
     * events); the end of all; r->response.error. */
    void (*head)(struct generation *g);
    void (*news)(struct choice *c);
    void (*delta)(struct choice *c, const struct delta *delta);
    void (*progress)(struct choice *c, const struct sched_event *ev);
    void (*tail)(struct choice *first);
    void (*error)(struct generation *g);
    /* Loop: a token's log-probs -> c->logprobs; t NULL: the first of an echoed prompt, which has none.
     * offset: code points of the text before it. */
    enum status (*logprob)(struct choice *c, const struct token_out *t, uint32_t id, size_t offset);
    /* Loop, each may be NULL: after new output, streaming or not; before g and its state are freed. */
    void (*token)(struct choice *c);
    void (*end)(struct generation *g);
    const void *own; /* for the dialect's functions alone */
};

/* Log-probs as JSON, in as many lists as the dialect has; what is sent is taken out. */
#define LOGPROBS_PARTS 4
struct logprobs {
    struct buf part[LOGPROBS_PARTS];
    uint32_t count;
    bool special_bytes; /* special tokens have bytes too, because the text shows them */
};

/* What a stream has sent so far. */
struct choice_shown {
    bool dirty;   /* some tokens are not sent yet */
    bool any;     /* the first chunk (with echo) is sent */
    bool finish;  /* the chunk with the finish_reason is sent */
    bool null;    /* the role chunk had "content":null */
    size_t text;  /* bytes */
    uint32_t ids; /* tokens */
};

/* One choice: sample j of prompt i is choice i * n + j. */
struct choice {
    struct generation *gen;
    struct gen_prompt *prompt;
    uint32_t index;
    struct seq_id seq;
    struct sampling_params sampling;
    struct matcher *matcher;                      /* NULL: unconstrained; owned */
    struct sampling_constraint constraint, inner; /* inner: of the output, if `constraint` adds to it */
    bool submitted, seq_ended;
    struct choice_shown shown;
    enum finish finish;
    bool stop_is_id;
    uint32_t stop_id;
    int stop_string; /* index, or -1 */
    struct detok *detok;
    struct stop_state stop;
    struct buf text;         /* all text, including the held-back end; with pooling, the vector's floats */
    struct chat_output *out; /* the parsed text, or NULL (struct dialect); owned */
    size_t held;             /* bytes at the end that may begin a stop string */
    size_t chars;            /* code points of text (without echo) */
    size_t echo_chars;       /* and of the echoed prompt whose log-probs are in `logprobs` */
    uint32_t *ids;           /* generated tokens, EOS included */
    uint32_t id_count;
    size_t id_cap;
    uint32_t proposed, accepted;            /* draft tokens so far (struct sched_event) */
    float logprob;                          /* the last token's */
    double likelihood;                      /* the sum of its log-probs, if it is wanted */
    bool unlikely;                          /* one was not the most likely */
    crypto_hash_sha256_state logprobs_hash; /* with a receipt or a record: of all of them */
    struct token_alt drew, given; /* a receipt is checked, and was found wrong after id_count ids; */
    bool differs;
    struct logprobs logprobs;
    uint64_t first_us, last_us; /* of its tokens */
    size_t accounted;           /* its share of the request's response_bytes */
};

/* frees all that it owns, when none of its sequences is alive */
void gen_free(struct generation *g);
/* Bytes held for the response: *was so far. */
void gen_account(struct generation *g, size_t *was, size_t now);
struct caller caller_of(const struct request *r);
/* Loop thread: attaches a gen to r and passes it to the pool like request_work, or responds that memory is
 * out. If the job leaves URLs in gen->prep.remote, it is called again when the files are
 * fetched, with gen->prep.fetched set, and continues. */
void gen_start(struct request *r, const struct dialect *dialect, void (*job)(struct request *r),
               void (*done)(struct request *r));

/* generate/compile.c (loop): compiles g->compile.source on a worker, then calls done. Few at a time, so
 * that workers remain for everything else; the others wait, also for memory (--grammar-memory). Tenants take
 * turns; requests that fit in memory go before those that don't. */
void gen_compile(struct request *r, void (*done)(struct request *r));
void gen_compile_next(struct server *s); /* starts those whose turn it is; ends those that waited too long */

/* generate/masks.c: the constraint of a choice. False: no memory. */
bool gen_constraint_start(struct choice *c);
/* Why a choice's matcher failed: fills the message and returns the error code. */
const char *gen_constraint_failure(const struct choice *c, char *text, size_t cap);

/* generate/sequences.c (loop) */
void gen_submit(struct request *r); /* after the job: starts the sequences */

void gen_events(struct server *s);      /* handles the scheduler's events */
void gen_remote_done(struct server *s); /* continues requests whose images are fetched */

/* generate/record.c: --request-log. Worker: the request's body, before it is read, or what is kept instead.
 * Loop: what became of it, once. */
void gen_record_begin(struct generation *g, const json_t *body);
void gen_record_end(struct generation *g);

/* generate/end.c (loop) */
/* Frees the response data once it is written or can no longer be written. */
void gen_shed(struct generation *g);
void gen_cancel(struct request *r); /* asks the scheduler to end its sequences */
/* An error for the client, before or inside the stream. */
void gen_abort(struct request *r, int http, const char *code, const char *message);
void gen_abort_status(struct request *r, enum status st, const struct err *err); /* api_fail_status */
void gen_responses_check(struct server *s); /* while responses exceed --response-memory, ends the largest */

/* generate/receipt.c. Worker, after the request is read; full: its body as JSON, made before, which it may
 * take; empty: it isn't wanted. */
enum status gen_receipt_begin(struct generation *g, struct buf *full);
void gen_receipt_free(struct gen_receipt *x);                              /* NULL is fine */
void gen_receipt_write(struct json_writer *o, const struct generation *g); /* ,"receipt":.. if there is one */
struct receipt_choice gen_receipt_choice(const struct choice *c);          /* after the run */
/* A receipt is checked: worker, when the prompts are made. A verdict that needs no run is g->out. */
void gen_verify_before(struct generation *g);
void gen_verify_write(struct json_writer *o, struct generation *g); /* the verdict, after the run */
/* The response {"verdict":VERDICT,"reason":..}. */
void gen_verdict(struct generation *g, const char *verdict, const char *reason);
bool gen_verify_failed(struct generation *g); /* r->response.error, if it is the request's -> a verdict */
/* What choice c is given, and the most tokens that it may have, at most *max. */
const uint32_t *gen_verify_given(const struct choice *c, uint32_t *count, uint32_t *max);

/* generate/images.c (loop) */
void gen_image_wanted(struct choice *c, const struct sched_event *ev); /* EV_IMAGE */
size_t gen_images_bytes(const struct generation *g);                   /* held in files */
void gen_images_free(struct generation *g);
/* generate/write.c (loop): writes into g->r->response.out. */
void gen_write_response(struct generation *g);     /* the whole, and sheds g's output */
const char *gen_model(const struct generation *g); /* its name in the response */
const char *gen_fingerprint(const struct generation *g);
/* Tokens so far, of all prompts and choices. */
struct gen_usage {
    uint64_t prompt, completion, cached, image, reasoning, accepted, rejected;
};
struct gen_usage gen_usage(const struct generation *g);
/* ,"warnings":.. and, if requested, ,"receipt":.. and ,"cache_info":..: the cache report of the prompt; with
 * several prompts a list. */
void gen_cache_info(struct json_writer *o, const struct generation *g);
void gen_event_end(struct json_writer *o, struct generation *g); /* closes the event's object */
void gen_stream_token(struct choice *c);                         /* before each token: one chunk per step */
void gen_stream_progress(struct choice *c, const struct sched_event *ev); /* a chunk without text */
void gen_stream_write(struct generation *g); /* chunks of all that is new, and the end */

#endif
