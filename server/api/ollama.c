/* Ollama's GET /api/tags, /api/ps, /api/version and POST /api/show: the served model. The requests that
 * generate are in generate.c. */
#include "engine/model/model_info.h"
#include "server/context/adapters.h"
#include "server/http/request.h"
#include "server/api/api.h"
#include "server/chat/template.h"
#include "server/front/front.h"
#include "server/embed/pooling.h"
#include "server/dialect/dialect.h"
#include "server/json/fields.h"

#include <stdio.h>
#include <string.h>

/* The version of Ollama whose fields these are: its clients ask for a version before they use them. */
#define OLLAMA_VERSION "0.12.6"

static bool is_gguf(const struct server *s)
{
    size_t n = strlen(s->ctx.model_dir);
    return n > 5 && strcmp(s->ctx.model_dir + n - 5, ".gguf") == 0;
}

static void details(struct json_writer *o, const struct server *s, const struct lora *lora)
{
    const struct model_info *info = s->ctx.model->info;
    double billions = (double)info->parameters * 1e-9;
    char size[32];
    snprintf(size, sizeof size, billions < 1 ? "%.2fM" : "%.1fB", billions < 1 ? billions * 1e3 : billions);
    jw_put(o, ",\"details\":{\"parent_model\":%s,\"format\":", lora ? s->ctx.model_name : "");
    jw_text(o, is_gguf(s) ? "\"gguf\"" : "\"safetensors\"");
    jw_put(o, ",\"family\":%s,\"families\":[%s],\"parameter_size\":%s,\"quantization_level\":%s}",
           info->family, info->family, size, info->weights);
}

/* An entry per name. loaded: as /api/ps has it. */
static void list(struct request *r, bool loaded)
{
    const struct server *s = r->srv;
    struct json_writer o = {.buf = &r->response.out};
    if (s->front) {
        front_tags(s->front, loaded, &o);
        request_respond(r, o.st ? 500 : 200);
        return;
    }
    jw_text(&o, "{\"models\":[");
    for (struct model_iter m = {0}; models_next(&s->ctx, &m);) {
        if (m.name != s->ctx.model_name) jw_text(&o, ",");
        jw_put(&o, "{\"name\":%s,\"model\":%s,\"size\":%lu,\"digest\":%s", m.name, m.name,
               s->ctx.model->info->weight_bytes,
               m.lora ? m.lora->fingerprint : s->ctx.model->info->fingerprint);
        details(&o, s, m.lora);
        jw_text(&o, loaded ? ",\"expires_at\":" : ",\"modified_at\":");
        jw_time(&o, s->started + (loaded ? 100 * 365 * 86400ll : 0), -1); /* it stays loaded */
        if (loaded)
            jw_put(&o, ",\"size_vram\":%lu,\"context_length\":%u",
                   s->ctx.model->info->gemm ? s->ctx.model->info->weight_bytes : 0,
                   s->ctx.model->caps.context_max);
        jw_text(&o, "}");
    }
    jw_text(&o, "]}");
    request_respond(r, o.st ? 500 : 200);
}

void api_ollama_tags_start(struct request *r)
{
    list(r, false);
}

void api_ollama_ps_start(struct request *r)
{
    list(r, true);
}

void api_ollama_version_start(struct request *r)
{
    struct json_writer o = {.buf = &r->response.out};
    jw_text(&o, "{\"version\":\"" OLLAMA_VERSION "\"}");
    request_respond(r, o.st ? 500 : 200);
}

/* The checkpoint's sampling defaults, as lines of a Modelfile. */
static void parameters(struct json_writer *o, const struct hf_generation *d)
{
    const struct {
        bool has;
        const char *name;
        double value;
    } all[] = {{d->has_temperature, "temperature", d->temperature},
               {d->has_top_p, "top_p", d->top_p},
               {d->has_top_k, "top_k", d->top_k},
               {d->has_min_p, "min_p", d->min_p},
               {d->has_repetition_penalty, "repeat_penalty", d->repetition_penalty}};
    char text[300];
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].has)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%-30s %g", n ? "\n" : "", all[i].name,
                                  all[i].value);
    jw_text(o, ",\"parameters\":");
    jw_string(o, text, n);
}

static void capabilities(struct json_writer *o, const struct model *m)
{
    const struct template_caps *caps = m->tmpl ? template_caps(m->tmpl, true) : NULL;
    const struct {
        bool has;
        const char *text;
    } more[] = {{!gen_infill_missing(m->tok), ",\"insert\""},
                {m->caps.images, ",\"vision\""},
                {caps && caps->tools && caps->calls, ",\"tools\""},
                {caps && caps->think, ",\"thinking\""},
                {m->pooling->config, ",\"embedding\""}};
    jw_text(o, ",\"capabilities\":[\"completion\"");
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (more[i].has) jw_text(o, more[i].text);
    jw_text(o, "]");
}

static void show(struct json_writer *o, const struct server *s, const struct lora *lora)
{
    const struct model *m = s->ctx.model;
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"context_length", m->caps.context_max},
                   {"embedding_length", m->caps.hidden_size},
                   {"vocab_size", m->info->vocab_size}};
    size_t len = 0;
    const char *source = m->tmpl ? template_source(m->tmpl, &len) : "";
    jw_text(o, "{\"modelfile\":\"\",\"template\":");
    jw_string(o, source, len);
    parameters(o, &m->info->generation);
    details(o, s, lora);
    capabilities(o, m);
    jw_text(o, ",\"modified_at\":");
    jw_time(o, s->started, -1);
    jw_put(o,
           ",\"model_info\":{\"general.architecture\":%s,\"general.basename\":%s,\"general.parameter_count\":"
           "%lu",
           m->info->family, s->ctx.model_name, m->info->parameters);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char key[100];
        snprintf(key, sizeof key, ",\"%s.%s\":", m->info->family, numbers[i].key);
        jw_text(o, key);
        jw_uint(o, numbers[i].value);
    }
    jw_text(o, "}}");
}

static void show_job(struct request *r)
{
    struct generation *g = r->gen;
    struct json_writer o = {.buf = &r->response.out};
    bool read = !request_body_parse(r, &g->prep.root);
    json_t *name = field(g->prep.root, "name"); /* its older name */
    if (read && name && !field(g->prep.root, "model") && json_object_set(g->prep.root, "model", name))
        o.st = ST_NOMEM;
    if (read && !o.st && !request_model_check(r, g->prep.root)) show(&o, r->srv, r->lora);
    if (o.st) (void)api_nomem(&r->response.error);
    gen_read_end(g);
}

void api_ollama_show_start(struct request *r)
{
    gen_start(r, &dialect_ollama_chat, show_job, request_finish);
}
