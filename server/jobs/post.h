/* Requests that a batch's lines are, to a server of this machine: some at a time, by libcurl. A request that
 * the server can't take now is sent again. One thread, except post_wake. */
#ifndef KVASIR_POST_H
#define KVASIR_POST_H

#include "config/base/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct posts;
struct post {
    char url[64];    /* /v1/chat/completions */
    char header[96]; /* "Name: value", or empty */
    struct buf body; /* JSON */
    struct buf answer;
    const char *request_id; /* during `done` */
    json_t *custom_id;      /* owned; may be NULL */
    void *user;             /* whose it is */
    void *item;             /* and which */
};
struct post_options {
    uint32_t count;                                       /* at a time */
    const char *socket;                                   /* path of the server's Unix socket */
    bool abstract;                                        /* its name instead */
    bool (*next)(void *arg, struct post *p);              /* fills p; false: there is none now */
    void (*done)(void *arg, struct post *p, long status); /* 0: no answer came, however often it was tried */
    void *arg;
};

/* ST_NOMEM. */
enum status posts_create(const struct post_options *o, struct posts **out, struct err *err) KV_MUST_CHECK;
/* Begins what `next` has, takes what was answered; waits for the next change, `ms` at most. How many run. */
uint32_t posts_turn(struct posts *s, int ms);
/* Gives up those of a user, without `done`; the server notices. */
void posts_drop(struct posts *s, const void *user);
void posts_wake(struct posts *s); /* any thread: posts_turn returns; NULL is fine */
void posts_free(struct posts *s); /* gives up all; NULL is fine */

#endif
