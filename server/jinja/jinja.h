/* Chat templates: an interpreter for the Jinja2 subset that checkpoints use, with the semantics of
 * transformers' sandboxed environment (trim_blocks, lstrip_blocks, loop controls, `generation`, no
 * autoescape, lenient undefined, immutable containers).
 *
 * A parsed template is immutable and shared by all threads. A context (variables, memory, limits) belongs to
 * one render on one thread. The interpreter does no I/O, reads no environment and knows nothing of JSON
 * libraries, models or requests; it only reads the clock, and the caller can set it.
 *
 * Every string tracks the origin of each byte; the output is text plus runs of origin, so that a tokenizer
 * can refuse control tokens in client text, and cache_info can name the message that a token came from.
 * Concatenation, slicing, trimming, splitting, replacing, case mapping, formatting and tojson keep origins.
 *
 * Known differences from the reference: integers are 64 bit (overflow is an error), except those of the
 * request, of from_json and of int, which print and compare at any size; case mapping is per character (plus
 * ß and final sigma); generators are evaluated eagerly; a request variable stays visible to an inner scope
 * where the reference hides it because the outer scope assigns that name later; slicing a constant that can't
 * be sliced is always an error; a macro may be called by `call` and ignore its caller.
 *
 * What no released template is known to use is refused, with an error that names it and its line: the
 * statements include import extends block do autoescape trans print; recursive loops, varargs and kwargs
 * of macros, `**`, subscripts of several expressions, other bases than ten; the filters abs attr batch center
 * filesizeformat float forceescape pprint random round slice striptags sum truncate urlencode urlize
 * wordcount wordwrap xmlattr; the tests escaped filter lower sameas test upper; cycler, loop.cycle,
 * loop.changed; methods: see methods.c; widths, precisions and other types than s, r, d of '%', and all but
 * {}, {0} and {name}, with :d and :s, of format(). */
#ifndef KVASIR_JINJA_H
#define KVASIR_JINJA_H

#include "config/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum jinja_origin {
    JINJA_TEMPLATE = 0, /* template literals, values of the server or its operator (special tokens), and words
                           of a closed set (roles) */
    JINJA_INPUT = 1,    /* anything else that a client sent */
    JINJA_ASSISTANT =
        2, /* content of an assistant message: sent by a client, but presumably written by a model */
};
/* An `origin` argument may carry a number of the caller's choice (below 2^30), which is returned in the
 * output's runs. */
#define JINJA_FROM(origin, source) ((uint32_t)(origin) | (uint32_t)(source) << 2)
/* Of the same source, but text that the server has checked to be one of a few words. */
#define JINJA_OURS(from) ((from) & ~3u)

enum jinja_error_kind {
    JINJA_OK = 0,
    JINJA_SYNTAX,  /* the template can't be parsed, or uses something unsupported */
    JINJA_RUNTIME, /* an error while rendering: undefined value used, wrong type ... */
    JINJA_RAISED,  /* the template called raise_exception: the message is meant for the client */
    JINJA_LIMIT,   /* a limit was hit */
    JINJA_NOMEM,
};

struct jinja_error {
    enum jinja_error_kind code;
    uint32_t line; /* of the template, from 1; 0 = unknown */
    char message[512];
};

struct jinja_limits {
    size_t source_bytes_max; /* of the template */
    size_t output_bytes_max;
    size_t arena_bytes_max; /* memory for values of one render (also for the tree of one template) */
    uint64_t steps_max;     /* nodes evaluated, plus bytes handled by string operations / 64 */
    uint64_t loops_max;     /* loop iterations in total */
    uint32_t range_max;     /* length of range() */
    uint32_t depth_max;     /* nested evaluations: macro calls, expressions, values inside values */
    uint32_t parse_depth_max;
    uint32_t time_ms_max; /* wall clock; 0 = no limit */
};
#define JINJA_LIMITS_DEFAULT                                                                                 \
    ((struct jinja_limits){.source_bytes_max = 4u << 20,                                                     \
                           .output_bytes_max = 16u << 20,                                                    \
                           .arena_bytes_max = 64u << 20,                                                     \
                           .steps_max = 10000000u,                                                           \
                           .loops_max = 1000000u,                                                            \
                           .range_max = 100000u,                                                             \
                           .depth_max = 1000u,                                                               \
                           .parse_depth_max = 200u,                                                          \
                           .time_ms_max = 2000u})

struct jinja_template;
/* Parses src[0..len) (copied; invalid UTF-8 is refused). limits may be NULL (defaults). On failure *out is
 * untouched and err (not NULL) says why: ST_FORMAT (syntax), ST_UNSUPPORTED, ST_TOO_LARGE, ST_NOMEM. */
enum status jinja_parse(const char *src, size_t len, const struct jinja_limits *limits,
                        struct jinja_template **out, struct jinja_error *err) KV_MUST_CHECK;
void jinja_free(struct jinja_template *t); /* NULL is fine */
const char *jinja_source(const struct jinja_template *t, size_t *len);
/* Does the template read a variable of this name? */
bool jinja_reads(const struct jinja_template *t, const char *name);
/* Does the template iterate over (or index) message content, directly, through a `set` alias or as a macro's
 * argument? */
bool jinja_iterates_content(const struct jinja_template *t);

/* A value; 16 bytes, cheap to copy, memory belongs to the context. The fields are private to the interpreter:
 * use the functions. */
struct jinja_str;
struct jinja_list;
struct jinja_dict;
struct jinja_value {
    uint8_t type, kind, n, unused;
    uint32_t origin; /* of the printed form; strings carry their own runs */
    union {
        int64_t i;
        double f;
        const struct jinja_str *s;
        struct jinja_list *l;
        struct jinja_dict *d;
        void *p;
    } u;
};

struct jinja_ctx;
/* limits may be NULL. Returns NULL when out of memory. */
struct jinja_ctx *jinja_ctx_create(const struct jinja_limits *limits);
void jinja_ctx_destroy(struct jinja_ctx *c); /* NULL is fine */

/* Constructors. Strings are borrowed and must outlive the render. Out of memory or over a limit they return
 * none and the context keeps the error, which jinja_render reports: no need to check each call. */
struct jinja_value jinja_none(void);
struct jinja_value jinja_bool(bool b);
struct jinja_value jinja_int(int64_t i);
struct jinja_value jinja_float(double f);
struct jinja_value jinja_int_digits(struct jinja_ctx *c, const char *digits, size_t len,
                                    uint32_t origin); /* decimal, with optional minus; any size; copied */
struct jinja_value jinja_string(struct jinja_ctx *c, const char *text, size_t len, uint32_t origin);
struct jinja_value jinja_list(struct jinja_ctx *c, uint32_t origin);
struct jinja_value jinja_dict(struct jinja_ctx *c, uint32_t origin);
struct jinja_value jinja_with_origin(struct jinja_value scalar, uint32_t origin); /* numbers, bools, none */
void jinja_list_add(struct jinja_ctx *c, struct jinja_value list, struct jinja_value item);
void jinja_dict_set(struct jinja_ctx *c, struct jinja_value dict, const char *key, size_t key_len,
                    struct jinja_value value); /* key borrowed; origin of the dict */
/* Concatenates strings, keeping origins. */
struct jinja_value jinja_join2(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b);
/* Defines a variable of the template; the name is borrowed. A later definition wins. */
void jinja_set(struct jinja_ctx *c, const char *name, struct jinja_value value);
/* The time that strftime_now prints; without it, local time at the first use within a render. */
void jinja_set_now(struct jinja_ctx *c, const struct tm *now);

/* A run of the output with one origin. */
struct jinja_run {
    size_t len; /* bytes, > 0 */
    enum jinja_origin origin;
    uint32_t source; /* the number from JINJA_FROM; 0 = none */
};
struct jinja_output {
    char *text; /* owned; NUL after text[len-1] */
    size_t len;
    struct jinja_run *runs; /* owned; lengths add up to len; neighbours differ in origin or source */
    size_t run_count;
};
void jinja_output_free(struct jinja_output *o);

/* text[0..*len) without white space (as templates understand it) at its ends: returns the start, updates
 * *len. sides: 1 left, 2 right. */
const char *jinja_trim(const char *text, size_t *len, int sides);

/* Renders. A context serves one render. ST_INVALID (error RUNTIME or RAISED), ST_TOO_LARGE (LIMIT), ST_NOMEM;
 * err must not be NULL. */
enum status jinja_render(const struct jinja_template *t, struct jinja_ctx *c, struct jinja_output *out,
                         struct jinja_error *err) KV_MUST_CHECK;
/* After a failed render: 1 if the innermost running loop is at this dict, 2 if the loop around it is ...; 0 =
 * none. */
uint32_t jinja_error_loop(const struct jinja_ctx *c, struct jinja_value item);

#endif
