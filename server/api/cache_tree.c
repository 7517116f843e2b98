/* GET /cache_tree: the shape of the prefix cache. POST: which of its nodes a chat's prompt lies in, and which
 * messages its tokens come from. The engine thread takes the snapshot between two steps; the request is
 * suspended until then. */
#include "server/context/adapters.h"
#include "server/input/cache_info.h"
#include "server/dialect/dialect.h"
#include "server/json/writer.h"
#include "server/http/metrics.h"
#include "server/http/request.h"
#include "server/api/api.h"

#include "scheduler/cache/radix_cache.h"

#include <stdlib.h>
#include <string.h>

#define SNAPSHOT_WAIT_US 10000000u /* a step with an image may take seconds */

static void snapshot_write(struct json_writer *o, const struct cache_snapshot *tree)
{
    jw_put(o, "{\"total_nodes\":%lu,\"total_tokens\":%lu,\"nodes\":[", tree->nodes, tree->tokens);
    for (uint32_t i = 0; i < tree->count; i++) {
        const struct cache_snapshot_node *n = &tree->at[i];
        if (i) jw_text(o, ",");
        jw_put(o, "{\"id\":%lu,\"tier\":%s,\"parent\":", n->id, cache_tier_name(n->tier));
        if (n->parent == CACHE_SNAPSHOT_ROOT) jw_text(o, "null");
        else jw_uint(o, n->parent);
        jw_put(o, ",\"start\":%u,\"end\":%u,\"children\":%u,\"running\":%u,\"images\":%u,\"uses_ago\":%lu}",
               n->start, n->end, n->children, n->running, n->images, n->uses_ago);
    }
    jw_text(o, "]}");
}

/* How many of the prompt's tokens lead into the node, as far as its marks tell; 0: none. */
static uint32_t equal_to(const struct cache_snapshot_node *n, const uint64_t *hashes, uint32_t count)
{
    if (n->end <= count && n->hash == hashes[n->end]) return n->end;
    for (uint32_t i = n->mark_count; i-- > 0;)
        if (n->marks[i].end <= count && n->marks[i].hash == hashes[n->marks[i].end]) return n->marks[i].end;
    return 0;
}

static void path_write(struct json_writer *o, const struct cache_snapshot *tree, const struct generation *g)
{
    const struct prompt *p = &g->prompts[0].prompt;
    struct radix_view v = {
        .tokens = p->tokens, .count = p->token_count, .spans = p->spans, .span_count = p->span_count};
    uint64_t *hashes = calloc((size_t)v.count + 1, sizeof *hashes); /* of [0, i) */
    uint32_t equal = 0, last = CACHE_SNAPSHOT_ROOT, path[CACHE_SNAPSHOT_MAX], n = 0;
    if (!hashes) o->st = ST_NOMEM;
    for (uint32_t i = 0; hashes && i < v.count; i++) hashes[i + 1] = radix_path_hash(hashes[i], &v, i);
    for (uint32_t i = 0; hashes && i < tree->count; i++) {
        uint32_t end = equal_to(&tree->at[i], hashes, v.count);
        if (end <= equal) continue;
        equal = end;
        last = i;
    }
    free(hashes);
    for (; last != CACHE_SNAPSHOT_ROOT; last = tree->at[last].parent) path[n++] = last;
    jw_put(o, "{\"prompt_tokens\":%u,\"equal_tokens\":%u,\"nodes\":[", v.count, equal);
    while (n-- > 0) {
        jw_uint(o, tree->at[path[n]].id);
        if (n) jw_text(o, ",");
    }
    jw_text(o, "],\"places\":");
    cache_places_write(o, &g->prompts[0].places);
    jw_text(o, "}");
}

static void salt_of(const struct request *r, uint8_t salt[32])
{
    struct caller of = caller_of(r);
    if (r->gen) sched_namespace(r->gen->caller.salt, r->lora ? r->lora->weights : NULL, salt);
    else gen_salt(&r->srv->ctx, &of, "", 0, salt);
}

static void snapshot_poll(struct request *r)
{
    struct cache_snapshot *tree = malloc(sizeof *tree);
    uint8_t salt[32];
    salt_of(r, salt);
    if (!tree) {
        (void)api_nomem(&r->response.error);
        request_fail(r);
    } else if (sched_snapshot(r->srv->ctx.model->sched, salt, &r->request_seq, tree)) {
        struct json_writer o = {.buf = &r->response.out};
        if (r->gen) path_write(&o, tree, r->gen);
        else snapshot_write(&o, tree);
        request_respond(r, o.st ? 500 : 200);
    } else if (now_us() - r->http.arrived_us > SNAPSHOT_WAIT_US) {
        (void)api_fail(&r->response.error, 503, "engine_busy", NULL, "The engine is busy; try again.");
        request_fail(r);
    }
    free(tree);
}

static void snapshot_ask(struct request *r)
{
    uint8_t salt[32];
    salt_of(r, salt);
    r->request_seq = sched_snapshot_ask(r->srv->ctx.model->sched, salt);
    request_wait(r, snapshot_poll);
}

static void chat_job(struct request *r)
{
    struct generation *g = r->gen;
    enum status st = ST_OK;
    if (!g->prep.fetched) {
        st = request_body_parse(r, &g->prep.root) || request_model_check(r, g->prep.root)
                 ? ST_INVALID
                 : g->dialect->read(g, g->prep.root);
        if (!st && g->prep.remote) return;
    }
    g->q.return_cache_info = true;
    if (!st) (void)tokenize_chat(g);
    gen_read_end(g);
}

static void chat_done(struct request *r)
{
    if (r->response.error.http) request_fail(r);
    else snapshot_ask(r);
}

void api_cache_tree_start(struct request *r)
{
    if (r->http.method == M_POST) gen_start(r, &dialect_chat_tokens, chat_job, chat_done);
    else snapshot_ask(r);
}
