/* GET /v1/models, /v1/models/{id} (of OpenAI's API and Anthropic's), /model_info and /server_info. Works
 * while the model loads. */
#include "engine/model/model_info.h"
#include "server/http/json_out.h"
#include "server/http/request.h"
#include "server/api/api.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* As Anthropic's API describes models. */
static void anthropic_card(struct json_out *o, const struct server *s, const char *name)
{
    char created[32] = "";
    struct tm tm;
    time_t started = (time_t)s->started;
    if (gmtime_r(&started, &tm)) strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &tm);
    jo_text(o, "{\"type\":\"model\",\"id\":");
    jo_cstring(o, name);
    jo_text(o, ",\"display_name\":");
    jo_cstring(o, name);
    jo_text(o, ",\"created_at\":");
    jo_cstring(o, created);
    jo_text(o, ",\"lifecycle\":\"active\"");
    if (s->model) {
        jo_text(o, ",\"max_input_tokens\":");
        jo_uint(o, s->model->caps.context_max);
        jo_text(o, ",\"max_tokens\":");
        jo_uint(o, s->model->caps.context_max);
    }
    jo_text(o, "}");
}

static void card(struct json_out *o, const struct request *r, const char *name)
{
    const struct server *s = r->srv;
    if (r->answer.shape == ERROR_ANTHROPIC) {
        anthropic_card(o, s, name);
        return;
    }
    jo_text(o, "{\"id\":");
    jo_cstring(o, name);
    jo_text(o, ",\"object\":\"model\",\"created\":");
    jo_int(o, s->started);
    jo_text(o, ",\"owned_by\":\"local\",\"root\":");
    jo_cstring(o, s->model_dir);
    jo_text(o, ",\"parent\":null,\"max_model_len\":");
    if (s->model) {
        jo_uint(o, s->model->caps.context_max);
    } else {
        jo_text(o, "null");
    }
    jo_text(o, ",\"permission\":[]}");
}

void api_models_start(struct request *r)
{
    struct json_out o = {.buf = &r->answer.out};
    bool anthropic = r->answer.shape == ERROR_ANTHROPIC;
    const char *last = r->srv->model_name;
    jo_text(&o, anthropic ? "{\"data\":[" : "{\"object\":\"list\",\"data\":[");
    for (const char *n = r->srv->model_name; n < r->srv->model_names_end; n += strlen(n) + 1) {
        if (n != r->srv->model_name) jo_text(&o, ",");
        card(&o, r, n);
        last = n;
    }
    if (anthropic) {
        jo_text(&o, "],\"has_more\":false,\"first_id\":");
        jo_cstring(&o, r->srv->model_name);
        jo_text(&o, ",\"last_id\":");
        jo_cstring(&o, last);
        jo_text(&o, "}");
    } else {
        jo_text(&o, "]}");
    }
    request_answer(r, o.st ? 500 : 200);
}

/* What SGLang's gateway asks its workers for; it names the model after it. One answer for both questions: the
 * gateway merges them. No model_path: it would look for a tokenizer there, on its own machine or the hub. */
void api_server_info_start(struct request *r)
{
    const struct server *s = r->srv;
    const struct model *m = s->model;
    struct json_out o = {.buf = &r->answer.out};
    jo_text(&o, "{\"served_model_name\":");
    jo_cstring(&o, s->model_name);
    jo_text(&o, ",\"is_generation\":true,\"tp_size\":1,\"dp_size\":1,\"version\":\"" KVASIR_VERSION "\"");
    if (m) {
        jo_text(&o, ",\"model_type\":");
        jo_cstring(&o, m->info->family);
        jo_text(&o, ",\"has_image_understanding\":");
        jo_text(&o, m->caps.images ? "true" : "false");
        jo_text(&o, ",\"context_length\":");
        jo_uint(&o, m->caps.context_max);
        jo_text(&o, ",\"max_running_requests\":");
        jo_uint(&o, m->caps.sequences_max);
    }
    jo_text(&o, "}");
    request_answer(r, o.st ? 500 : 200);
}

void api_model_start(struct request *r)
{
    char *id = strdup(r->http.path + strlen(r->route->path));
    if (!id) {
        request_fail(r);
        return;
    }
    size_t len = percent_decode(id);
    const char *name = model_name_find(r->srv, id, len);
    if (name) {
        struct json_out o = {.buf = &r->answer.out};
        card(&o, r, name);
        request_answer(r, o.st ? 500 : 200);
    } else {
        (void)api_fail(&r->answer.error, 404, "model_not_found", "model",
                       "The model `%.200s` does not exist.", id);
        request_fail(r);
    }
    free(id);
}
