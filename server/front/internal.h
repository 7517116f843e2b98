/* What the files of server/front know of models and of requests that are passed on. */
#ifndef KVASIR_FRONT_INTERNAL_H
#define KVASIR_FRONT_INTERNAL_H

#include "server/front/child.h"
#include "server/front/front.h"
#include "server/front/spec.h"
#include "server/http/request.h"

#include <curl/curl.h>
#include <uv.h>

enum front_state { FRONT_UNLOADED = 0, FRONT_LOADING, FRONT_LOADED, FRONT_LEAVING };

struct front_model {
    struct front *front;
    const struct front_spec *spec;
    enum front_state state;
    struct child *child;
    uv_poll_t *poll;           /* of child_fd */
    uint32_t active, waiting;  /* requests: passed on; waiting for it to be loaded */
    bool wanted;               /* to be loaded, without a request */
    bool closing;              /* takes no new requests: it leaves for another model */
    uint64_t since_us;         /* in this state; when it was named first, while it is to be loaded */
    uint64_t named_us;         /* since when it is to be loaded; 0: it isn't */
    uint64_t used_us, load_us; /* last use; what its last loading took */
    uint64_t keep_us;          /* idle time after which it leaves; UINT64_MAX: none */
    uint64_t retry_us;         /* not to be started before */
    uint32_t failures;         /* in a row */
    bool failed;               /* the last start: it ended before it was ready */
    char exit[32];             /* how it ended, if by itself */
    char *card, *tag, *ps;     /* of /v1/models, /api/tags and /api/ps, when it was loaded last; or NULL */
    uint64_t loads, crashes;
};

#define FRONT_STORED 4096u /* responses whose model is known, the latest ones */

struct front {
    struct server *srv;
    uint64_t budget;
    size_t count;
    struct front_model *models;
    CURLM *multi;
    uv_timer_t timer;
    uint32_t throttled; /* transfers that wait for their clients */
    struct front_stored {
        uint64_t hash;
        struct front_model *model;
    } stored[FRONT_STORED];
    uint32_t stored_at;
};

/* A request to a child. */
struct transfer {
    struct front_model *model;
    struct request *request; /* whose response it is; NULL: `text` is for done */
    CURL *easy;
    struct curl_slist *headers;
    struct buf text;
    bool begun;  /* the response has */
    bool counts; /* as a use of the model */
    void (*done)(struct transfer *t, bool ok);
    void *arg;
};

/* What a body says at its top level. */
struct front_ask {
    char model[256];      /* "": nothing */
    bool has_keep, empty; /* keep_alive; no prompt and no messages */
    double keep;          /* seconds; < 0: for ever */
};

/* Of a request that is passed on: request.forward. */
struct forward {
    struct front_model *model;
    struct transfer *transfer; /* running */
    bool waiting;
    uint64_t deadline_us;
    struct front_ask ask;
    char type[128]; /* the response's Content-Type */
};

/* front.c */
struct front_model *front_find(struct front *f, const char *name); /* or an adapter's; NULL: none */
void front_card_read(struct front_model *m); /* again, after an adapter has come or gone */
/* May a request be passed on now? Else it is to be loaded; with false and *failed: it can't be. */
bool front_ready(struct front_model *m, bool *failed);
void front_leave(struct front_model *m); /* when it is loaded */
void front_balance(struct front *f);     /* who is loaded and who leaves; after any change */
void front_used(struct front_model *m, int passed, int waiting); /* more or fewer requests */
const char *front_status(const struct front_model *m);           /* as llama-server's router has it */
/* forward.c */
enum status front_curl_open(struct front *f);
void front_curl_close(struct front *f);
/* GET, or an empty POST, of this process's own to a child. NULL: out of memory, or it has ended. */
struct transfer *front_ask_child(struct front_model *m, const char *path, bool post,
                                 void (*done)(struct transfer *t, bool ok), void *arg);
/* ask.c: reads as much of a JSON text as it needs; all: more than the model. */
void front_ask_read(const char *text, size_t len, bool all, struct front_ask *out);

#endif
