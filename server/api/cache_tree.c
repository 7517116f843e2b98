/* GET /cache_tree: the shape of the prefix cache. The engine thread takes the snapshot between two steps; the
 * request is suspended until then. */
#include "server/generate/generate.h"
#include "server/http/json_writer.h"
#include "server/http/request.h"
#include "server/api/api.h"

#include <stdlib.h>

#define SNAPSHOT_WAIT_US 10000000u /* a step with an image may take seconds */

static void field(struct json_writer *o, const char *key, uint64_t value)
{
    jw_text(o, key);
    jw_uint(o, value);
}

static void snapshot_write(struct json_writer *o, const struct cache_snapshot *tree)
{
    field(o, "{\"total_nodes\":", tree->nodes);
    field(o, ",\"total_tokens\":", tree->tokens);
    jw_text(o, ",\"nodes\":[");
    for (uint32_t i = 0; i < tree->count; i++) {
        const struct cache_snapshot_node *n = &tree->at[i];
        jw_text(o, i ? ",{\"parent\":" : "{\"parent\":");
        if (n->parent == CACHE_SNAPSHOT_ROOT) jw_text(o, "null");
        else jw_uint(o, n->parent);
        field(o, ",\"start\":", n->start);
        field(o, ",\"end\":", n->end);
        field(o, ",\"children\":", n->children);
        field(o, ",\"running\":", n->running);
        field(o, ",\"images\":", n->images);
        field(o, ",\"uses_ago\":", n->uses_ago);
        jw_text(o, "}");
    }
    jw_text(o, "]}");
}

static void snapshot_poll(struct request *r)
{
    struct cache_snapshot *tree = malloc(sizeof *tree);
    uint8_t salt[32];
    gen_salt(r, "", 0, salt);
    if (!tree) {
        (void)api_nomem(&r->response.error);
        request_fail(r);
    } else if (sched_snapshot(r->srv->model->sched, salt, &r->request_seq, tree)) {
        struct json_writer o = {.buf = &r->response.out};
        snapshot_write(&o, tree);
        request_respond(r, o.st ? 500 : 200);
    } else if (now_us() - r->http.arrived_us > SNAPSHOT_WAIT_US) {
        (void)api_fail(&r->response.error, 503, "engine_busy", NULL, "The engine is busy; try again.");
        request_fail(r);
    }
    free(tree);
}

void api_cache_tree_start(struct request *r)
{
    uint8_t salt[32];
    gen_salt(r, "", 0, salt);
    r->request_seq = sched_snapshot_ask(r->srv->model->sched, salt);
    request_wait(r, snapshot_poll);
}
