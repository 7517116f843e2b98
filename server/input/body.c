/* Parses a request's body, manages its life time, and checks the model name. Worker thread; changes only its
 * request. */
#include "server/http/request.h"
#include "server/json/fields.h"
#include "server/input/input.h"
#include "server/json/parser.h"
#include "server/context/adapters.h"
#include "server/context/limits.h"

#include "config/base/clock.h"

#include <stdio.h>
#include <string.h>

static enum status parse_fail(struct request *r, const struct json_parser *p, enum status st)
{
    struct api_error *e = &r->response.error;
    if (st == ST_NOMEM) return api_nomem(e);
    unsigned line = 1, column = 1;
    for (const char *s = p->text; s < p->text + p->at; s++) {
        column = *s == '\n' ? 1 : column + (((unsigned char)*s & 0xC0) != 0x80);
        line += *s == '\n';
    }
    return api_fail(e, 400, "invalid_json", NULL, "The body is not valid JSON: %s (line %u, column %u).",
                    p->error, line, column);
}

enum status request_body_parse(struct request *r, json_t **root)
{
    const char *text = r->http.body.data ? r->http.body.data : "";
    size_t bom = r->http.body.len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    struct json_parser p = {.text = text + bom, .len = r->http.body.len - bom};
    json_t *j;
    if (!p.len)
        return api_fail(&r->response.error, 400, "invalid_json", NULL,
                        "The request has no body: a JSON object is expected.");
    enum status st = json_parse_body(&p, &j);
    if (st) return parse_fail(r, &p, st);
    *root = j;
    if (json_is_object(j)) return ST_OK;
    *root = NULL;
    json_decref(j);
    return api_fail(&r->response.error, 400, "invalid_json", NULL, "The body must be a JSON object.");
}

enum status gen_nomem(struct generation *g)
{
    return api_nomem(g->e);
}

const char *gen_source(const struct generation *g)
{
    return g->q.source;
}

enum status gen_tokens_check(struct generation *g, uint64_t tokens)
{
    uint64_t most = g->q.tokens_max ? g->q.tokens_max : LIMIT_PROMPT_TOKENS;
    if (tokens <= most || (g->prompt_count == 1 && !g->q.tokens_max)) return ST_OK;
    return api_fail(g->e, 400, "invalid_value", gen_source(g),
                    "%s has more than %llu tokens in all, %s. Send it in several requests.", gen_source(g),
                    (unsigned long long)most,
                    g->q.tokens_max ? "and a response has at most 512 MiB of vectors"
                                    : "the limit of a request");
}

bool gen_job_over(struct generation *g)
{
    enum { JOB_US = 50000 };
    uint64_t now = now_us();
    if (!g->prep.job_us) g->prep.job_us = now;
    g->prep.again = now - g->prep.job_us > JOB_US;
    return g->prep.again;
}

enum status request_model_unknown(struct request *r, const char *name)
{
    char more[200] = ""; /* adapters, as many as fit */
    size_t n = 0;
    for (struct lora *l = NULL; (l = lora_next(r->srv->ctx.adapters, l));)
        if (n + LORA_NAME_MAX + 5 < sizeof more)
            n += (size_t)snprintf(more + n, sizeof more - n, ", `%s`", l->name);
    return api_fail(
        &r->response.error, 404, "model_not_found", "model",
        "The model `%.150s` is not served here. This server has `%.150s`%s (GET /v1/models lists all).", name,
        r->srv->ctx.model_name, more);
}

bool request_model_find(struct request *r, const char *name, size_t len)
{
    const struct context *x = &r->srv->ctx;
    lora_release(x->adapters, r->lora);
    r->model_name = model_name_find(x, name, len);
    r->lora = r->model_name ? NULL : lora_take(x->adapters, name, len);
    if (r->lora) r->model_name = r->lora->name;
    return r->model_name != NULL;
}

enum status request_model_check(struct request *r, json_t *root)
{
    json_t *m = json_object_get(root, "model");
    if (!m || json_is_null(m)) return ST_OK;
    if (!json_is_string(m))
        return api_fail(&r->response.error, 400, "invalid_type", "model", "model must be a string.");
    const char *name = json_string_value(m);
    size_t len = json_string_length(m);
    bool tagged = r->response.shape == ERROR_OLLAMA && len > 7 && strcmp(name + len - 7, ":latest") == 0;
    if (!len || request_model_find(r, name, len) || (tagged && request_model_find(r, name, len - 7)) ||
        r->srv->ctx.opt->accept_any_model) /* tagged: with Ollama's default */
        return ST_OK;
    return request_model_unknown(r, name);
}
