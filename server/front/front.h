/* Several models behind one port. This process reads requests as ever (framing, TLS, keys, limits); what
 * needs a model is passed on to that model's own server, a child process on a UNIX socket (child.h), which is
 * started when it is first named. The bytes of its response are passed on as they come.
 *
 *   UNLOADED -> LOADING -> LOADED -> LEAVING -> UNLOADED     a crash: to UNLOADED, and a pause
 *
 * The plans of all children fit into --models-memory: the least recently used model without requests leaves
 * first. Event loop's thread. */
#ifndef KVASIR_FRONT_H
#define KVASIR_FRONT_H

#include "config/base/buf.h"
#include "config/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct front;
struct front_specs;
struct json_writer;
struct request;
struct server;

/* Sets s->front. specs: borrowed. */
enum status front_open(struct server *s, const struct front_specs *specs, struct err *err) KV_MUST_CHECK;
void front_tick(struct front *f, uint64_t now); /* every 100 ms */
void front_pump(struct server *s);              /* before libmicrohttpd runs */
void front_signal(struct front *f, int signum); /* to all children */
void front_close(struct front *f);              /* ends all children; requests are gone */

/* Passes r on, whose body is complete, to the model that it names: the end of r's handling here. */
void front_pass(struct request *r);
/* POST /models/load and /models/unload: the body's model. */
void front_load(struct request *r, bool load);
/* For lists: the model's card as its server has it, or as much of it as is known, with its status. */
void front_card(const struct front *f, const char *name, struct json_writer *o);
void front_tags(const struct front *f, bool loaded, struct json_writer *o); /* of /api/tags and /api/ps */
enum status front_metrics(const struct front *f, struct buf *out); /* of the models, as Prometheus text */
void front_tell(struct front *f, const char *path);                /* an empty POST to all children */

#endif
