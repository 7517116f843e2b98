/* One libuv loop that drives libmicrohttpd (no thread of its own) through its epoll descriptor, and the
 * listening socket. Event loop's thread. Internal to server/. */
#ifndef KVASIR_LOOP_H
#define KVASIR_LOOP_H

#include "server/http/loop_state.h"

/* The loop of s, without HTTP: s->loop. */
enum status loop_open(struct loop *l, struct server *s, struct err *err) KV_MUST_CHECK;
enum status loop_listen(struct loop *l, struct err *err) KV_MUST_CHECK; /* takes connections from now on */
void loop_pump(struct loop *l);                                         /* runs libmicrohttpd once */
void loop_tick(struct loop *l, uint64_t now); /* deadlines, and a libmicrohttpd that is stuck; every 100 ms */
void loop_close(struct loop *l);              /* ends HTTP and every handle */

#endif
