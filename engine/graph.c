/* Decode steps as graphs. A step in which every sequence has one row runs the same operations with the same
 * arguments every time; only the contents of the index arrays differ. So it is recorded once per size and
 * replayed. A batch between two sizes gets padding rows (engine__pack). By the rule of backend.h the results
 * are bit for bit those of a step without a graph. Engine thread. */
#include "engine/internal.h"

#include "config/base/clock.h"
#include "config/base/env.h"

#include "config/base/log.h"

#include <stdlib.h>
#include <string.h>

/* Close together, so that few rows are wasted, and at multiples of the backend's tiles. Larger batches run
 * without a graph: launch time is negligible there. */
static const uint32_t sizes[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};
_Static_assert(sizeof sizes / sizeof *sizes <= ENGINE_GRAPHS_MAX, "a place for each");

bool engine__graph_has_logits(const struct engine *e, const struct engine_graph *g)
{
    return g->rows <= e->plan.logit_rows;
}

static void record(struct engine *e, const struct engine_batch *b, const struct engine_graph *g)
{
    decoder_run(e, &e->net, b);
    if (engine__graph_has_logits(e, g)) decoder_logits(e, &e->net, 0, g->rows);
}

/* One real row, at the start of the arena, which is still unused, and g->rows - 1 padding rows. The step runs
 * once without recording, for the backend's first-call setup, and is then recorded. */
static enum be_result open_one(struct engine *e, struct engine_graph *g)
{
    static const struct sampling_params greedy = {.top_p = 1, .repetition_penalty = 1};
    const uint32_t token = 0, block_offset = 0;
    struct engine_chunk chunk = {.count = 1,
                                 .tokens = &token,
                                 .token_count = 1,
                                 .prompt_count = 1,
                                 .sampling = &greedy,
                                 .sample = true,
                                 .state_from = ENGINE_NO_BLOCK,
                                 .state_to = ENGINE_NO_BLOCK,
                                 .score_first = UINT32_MAX};
    struct engine_batch b = {.chunks = &chunk, .chunk_count = 1};
    for (uint32_t i = 0; i < e->kv.table_groups; i++) chunk.tables[i] = &block_offset;
    engine__pack(e, &b, g->rows);
    record(e, &b, g);
    if (e->ops->sync(e->be) != BE_OK) return BE_DEVICE;
    enum be_result r = e->ops->graph_begin(e->be);
    if (r != BE_OK) return r;
    record(e, &b, g);
    return e->ops->graph_end(e->be, &g->graph);
}

enum status engine__graphs_open(struct engine *e, struct err *err)
{
    const char *wish = env_get("KVASIR_CUDA_GRAPHS"); /* for debugging */
    uint32_t most = e->plan.sequences_max;
    enum be_result r = BE_OK;
    double start = now_s();
    size_t dirty = 0;
    if (!e->ops->graph_begin) return ST_OK;
    if (wish && strcmp(wish, "0") == 0) {
        log_info("CUDA graphs: off (KVASIR_CUDA_GRAPHS=0)");
        return ST_OK;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && r == BE_OK && (i == 0 || sizes[i - 1] < most);
         i++) {
        struct engine_graph g = {.rows = sizes[i] < most ? sizes[i] : most};
        r = open_one(e, &g);
        if (r == BE_OK) e->graphs[e->graph_count++] = g;
    }
    e->step = (struct step){0};
    for (uint32_t g = 0; g < e->kv.table_groups; g++)
        if (e->kv.groups[g].block_bytes > dirty) dirty = (size_t)e->kv.groups[g].block_bytes;
    e->ops->zero(e->be, e->arena, dirty);
    if (e->ops->sync(e->be) != BE_OK) return err_set(err, ST_DEVICE, "%s", e->ops->last_error(e->be));
    if (r != BE_OK) {
        log_warn("CUDA graphs: none, steps are launched one operation at a time: %s",
                 e->ops->last_error(e->be));
        engine__graphs_close(e);
        return ST_OK;
    }
    log_info("CUDA graphs: decode steps of up to %u sequences, %u sizes, recorded in %.2f s",
             e->graphs[e->graph_count - 1].rows, e->graph_count, now_s() - start);
    return ST_OK;
}

void engine__graphs_close(struct engine *e)
{
    for (uint32_t i = 0; i < e->graph_count; i++) e->ops->graph_free(e->be, e->graphs[i].graph);
    e->graph_count = 0;
}

const struct engine_graph *engine__graph_for(const struct engine *e, const struct engine_batch *b)
{
    if (!e->graph_count || b->chunk_count > e->graphs[e->graph_count - 1].rows) return NULL;
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        const struct engine_chunk *r = &b->chunks[i];
        if (r->count != 1 || !r->sample || r->adapter) return NULL;
        for (uint32_t k = 0; k < r->span_count; k++)
            if (r->spans[k].begin <= r->position && r->position < r->spans[k].end) return NULL;
    }
    const struct engine_graph *g = e->graphs;
    while (g->rows < b->chunk_count) g++;
    return g;
}
