/* GET /cache_tree: the shape of the prefix cache. The engine thread draws it up between two steps; the
 * request sleeps until then. */
#include "server/generate/generate.h"
#include "server/http/json_out.h"
#include "server/http/request.h"
#include "server/api/api.h"

#include <stdlib.h>

#define OUTLINE_WAIT_US 10000000u /* a step and a picture that goes with it may take seconds */

static void field(struct json_out *o, const char *key, uint64_t value)
{
    jo_text(o, key);
    jo_uint(o, value);
}

static void outline_write(struct json_out *o, const struct cache_outline *tree)
{
    field(o, "{\"total_nodes\":", tree->nodes);
    field(o, ",\"total_tokens\":", tree->tokens);
    jo_text(o, ",\"nodes\":[");
    for (uint32_t i = 0; i < tree->count; i++) {
        const struct cache_outline_node *n = &tree->at[i];
        jo_text(o, i ? ",{\"parent\":" : "{\"parent\":");
        if (n->parent == CACHE_OUTLINE_ROOT) jo_text(o, "null");
        else jo_uint(o, n->parent);
        field(o, ",\"start\":", n->start);
        field(o, ",\"end\":", n->end);
        field(o, ",\"children\":", n->children);
        field(o, ",\"running\":", n->running);
        field(o, ",\"pictures\":", n->pictures);
        field(o, ",\"uses_ago\":", n->uses_ago);
        jo_text(o, "}");
    }
    jo_text(o, "]}");
}

static void outline_poll(struct request *r)
{
    struct cache_outline *tree = malloc(sizeof *tree);
    uint8_t salt[32];
    gen_salt(r, "", 0, salt);
    if (!tree) {
        (void)api_nomem(&r->answer.error);
        request_fail(r);
    } else if (sched_outline(r->srv->model->sched, salt, &r->ticket, tree)) {
        struct json_out o = {.buf = &r->answer.out};
        outline_write(&o, tree);
        request_answer(r, o.st ? 500 : 200);
    } else if (now_us() - r->http.arrived_us > OUTLINE_WAIT_US) {
        (void)api_fail(&r->answer.error, 503, "engine_busy", NULL, "The engine is busy; try again.");
        request_fail(r);
    }
    free(tree);
}

void api_cache_tree_start(struct request *r)
{
    uint8_t salt[32];
    gen_salt(r, "", 0, salt);
    r->ticket = sched_outline_ask(r->srv->model->sched, salt);
    request_wait(r, outline_poll);
}
