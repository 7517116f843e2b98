/* Parses a request's body, manages its life time, and checks the model name. Worker thread; changes only its
 * request. */
#include "server/json/fields.h"
#include "server/generate/generate.h"
#include "server/json/parser.h"

#include <malloc.h>
#include <string.h>

#define TRIM_COST (32u << 20)

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

const char *gen_source(const struct gen *g)
{
    return g->dialect ? g->dialect->source : g->kind == GEN_CHAT ? "messages" : "prompt";
}

void gen_read_free(struct gen *g)
{
    json_t **owned[] = {&g->tools, &g->documents, &g->variables, &g->format_root};
    chat_messages_free(&g->messages);
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        json_decref(*owned[i]);
        *owned[i] = NULL;
    }
}

/* The loop needs the request id. The rest, which may be large, is freed before the request is queued, and
 * here, not on the loop: freeing millions of values takes a while, also for a refused request. */
void gen_read_end(struct gen *g)
{
    const struct request *r = g->r;
    const char *key;
    json_t *value;
    void *next;
    gen_read_free(g);
    json_object_foreach_safe(g->root, next, key, value)
    {
        bool id = strcmp(key, "request_id") == 0 || strcmp(key, "rid") == 0;
        if (!id || !json_is_string(value) || json_string_length(value) > 128) json_object_del(g->root, key);
    }
    if (r->parse_cost + r->http.body_kept > TRIM_COST)
        malloc_trim(0); /* else the allocator keeps them per worker */
}

enum status request_model_unknown(struct request *r, const char *name)
{
    return api_fail(
        &r->response.error, 404, "model_not_found", "model",
        "The model `%.150s` is not served here. This server has `%.150s` (GET /v1/models lists all).", name,
        r->srv->model_name);
}

enum status request_model_check(struct request *r, json_t *root)
{
    json_t *m = json_object_get(root, "model");
    if (!m || json_is_null(m)) return ST_OK;
    if (!json_is_string(m))
        return api_fail(&r->response.error, 400, "invalid_type", "model", "model must be a string.");
    const char *name = json_string_value(m);
    size_t len = json_string_length(m);
    r->model_name = model_name_find(r->srv, name, len);
    if (!r->model_name && r->response.shape == ERROR_OLLAMA && len > 7 &&
        strcmp(name + len - 7, ":latest") == 0) /* Ollama's default tag */
        r->model_name = model_name_find(r->srv, name, len - 7);
    if (!len || r->model_name || r->srv->opt->accept_any_model) return ST_OK;
    return request_model_unknown(r, name);
}
