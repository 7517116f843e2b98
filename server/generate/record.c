/* A request's line of --request-log (server/replay/request_log.h, docs/replay.md): what was asked, and the
 * bits of what was generated. */
#include "server/generate/generate.h"

#include "engine/model/model_info.h"
#include "server/context/adapters.h"
#include "server/http/request.h"
#include "server/receipts/receipts.h"
#include "server/replay/request_log.h"

void gen_record_begin(struct generation *g, const json_t *body)
{
    const struct model_info *mi = g->ctx->model->info;
    log_record_free(g->record);
    g->record = NULL;
    if (!g->ctx->request_log || g->receipt /* is checked */ ||
        !(g->record = request_log_record(g->ctx->request_log)))
        return;
    jw_put(
        &g->record->o,
        "{\"time\":%ld,\"path\":%s,\"model\":%s,\"fingerprint\":%s,\"backend\":%s,\"weights\":%s,\"body\":",
        g->caller.created, g->r->http.path, g->r->model_name ? g->r->model_name : g->ctx->model_name,
        g->r->lora ? g->r->lora->fingerprint : mi->fingerprint, mi->backend, mi->weights);
    log_record_value(g->record, body);
}

static void choice_write(struct json_writer *o, const struct choice *c)
{
    struct receipt_choice bits = gen_receipt_choice(c);
    if (!c->gen->q.pooling) {
        receipt_choice_write(o, &bits);
        return;
    }
    jw_text(o, "{\"vectors_sha256\":");
    receipt_hex(o, bits.text);
    jw_text(o, "}");
}

/* Nothing is kept of what nobody was answered, and of answers for which nothing was generated. */
void gen_record_end(struct generation *g)
{
    struct log_record *record = g->record;
    const struct request *r = g->r;
    if (!record) return;
    struct json_writer *o = &record->o;
    unsigned status = r->response.error.http ? (unsigned)r->response.error.http : 200;
    g->record = NULL;
    if (r->cancelled || (status == 200 && !g->choice_count)) {
        log_record_free(record);
        return;
    }
    jw_text(o, record->fetched ? "}" : "");
    jw_put(o, ",\"id\":%s,\"status\":%u", r->http.id, status);
    if (status != 200) jw_put(o, ",\"error\":%s", r->response.error.code);
    if (g->choice_count && !g->q.has_seed && g->q.kind != GEN_VECTORS)
        jw_put(o, ",\"seed\":%ld", (long)g->choices[0].sampling.seed);
    jw_text(o, ",\"choices\":[");
    for (uint32_t i = 0; i < g->choice_count; i++) {
        jw_text(o, i ? "," : "");
        choice_write(o, &g->choices[i]);
    }
    jw_text(o, "]}");
    log_record_write(record);
}
